//! The node agent: makes the pods bound to this node run, and tells the API server how they do.

pub mod admit;
pub mod cgroup;
pub mod cluster;
pub mod container;
pub mod context;
pub mod hook;
pub mod image;
pub mod logs;
pub mod pod;
pub mod probe;
pub mod report;
pub mod runtime;
pub mod status;
pub mod sync;
pub mod volume;
