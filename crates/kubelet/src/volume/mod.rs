//! Volumes of pods: what is wanted, made, kept fresh and taken away again.

pub mod atomic;
pub mod beneath;
pub mod claim;
pub mod cleanup;
pub mod empty_dir;
pub mod files;
pub mod held;
pub mod holder;
pub mod host_path;
pub mod mounts;
mod overlay;
pub mod ownership;
pub(crate) mod removal;
pub mod setup;
pub mod source;
pub mod storage;
pub mod trust;
pub mod walk;
