//! The node agent: makes the pods bound to this node run, and tells the API server how they do.

pub mod container;
pub mod pod;
pub mod probe;
pub mod runtime;
pub mod status;
pub mod sync;
