//! From a pod's spec to what the runtime is told: pure rendering, one file per concern.

pub mod config;
pub mod dns;
pub mod downward;
pub mod env;
pub mod env_file;
pub mod expand;
pub mod hosts;
pub mod read_only;
pub mod resources;
pub mod sandbox;
pub mod security;
pub mod service_links;
pub mod signal;
