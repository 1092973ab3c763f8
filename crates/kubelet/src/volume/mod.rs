//! Volumes of pods: what is wanted, made, kept fresh and taken away again.

pub mod atomic;
pub mod beneath;
pub mod files;
pub mod mounts;
pub mod setup;
