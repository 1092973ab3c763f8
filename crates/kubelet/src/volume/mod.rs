//! Volumes of pods: what is wanted, made, kept fresh and taken away again.

pub mod atomic;
pub mod beneath;
pub mod claim;
pub mod empty_dir;
pub mod files;
pub mod holder;
pub mod host_path;
pub mod mounts;
mod overlay;
pub mod ownership;
pub mod setup;
pub mod source;
pub mod storage;
pub mod trust;
