//! The nftables dataplane: a pure renderer, the state that remembers what the kernel has, and what
//! is said to it.

mod affinity;
pub mod apply;
mod base;
pub mod names;
mod port;
mod shared;
pub mod table;

pub use names::TABLE;
