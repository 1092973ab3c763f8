//! What the API server is told about a pod.

pub mod conditions;
pub mod containers;
pub mod generate;
pub mod patch;

#[cfg(test)]
mod tests;

pub use generate::{Inputs, generate};
