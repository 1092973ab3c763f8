//! The node agent: makes the pods bound to this node run, and tells the API server how they do.
//!
//! ```text
//!  API server ──watch──► pods ──► one task per pod (sync::worker)
//!                                   │  look ─ plan ─ begin ─ describe ─ write
//!                                   ├──► runtime (CRI)     ◄── hints, relist
//!                                   ├──► volumes, cgroups, images, probes, hooks
//!                                   └──► status patches, events, Waits ──► API server
//!  node::keeper ──► Node, Lease            server ──► logs over HTTPS
//! ```
//!
//! What is decided is decided in pure functions: `sync::plan`, `sync::lifecycle`, `status::generate`,
//! `admit`, `probe::threshold`, `image::policy`, everything in `container`. The tasks around them do
//! the I/O and may be stopped at any point: pods outlive the kubelet, and the next one adopts them.

pub mod admit;
pub mod cgroup;
pub mod cluster;
pub mod container;
pub mod context;
pub mod hook;
pub mod image;
pub mod logs;
pub mod node;
pub mod pod;
pub mod pods;
pub mod probe;
pub mod relist;
pub mod report;
mod run;
pub mod runtime;
pub mod server;
pub mod status;
pub mod sync;
pub mod volume;

pub use run::{Error, Options, run};
