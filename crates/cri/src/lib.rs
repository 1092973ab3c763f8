//! The Container Runtime Interface, version 1, as a client: typed errors and a deadline per call.
//!
//! ```text
//!  kubelet ──► Client ──gRPC over a unix socket──► containerd (or another runtime)
//!          ──► Containerd: its own events and download progress, where CRI has none
//! ```
//!
//! Deadlines run on the injected clock; a call that passes its deadline is dropped, which resets its
//! HTTP/2 stream and so cancels it in the runtime. The connection is opened by the first call and
//! again after it broke: a runtime that restarts is met again without anyone's help.
//!
//! # Invariants
//!
//! * An error is known by its variant. [src/error.rs:
//!   codes_become_variants_and_texts_read_as_upstream_prints_them]

mod client;
mod connect;
mod containerd;
mod count;
mod error;
pub mod shims;
mod snapshots;

pub use client::{Client, Limits, whole_seconds};
pub use connect::socket_path;
pub use containerd::{Containerd, Ingest, TaskEvent, TaskEventKind, TaskEvents};
pub use error::{Error, Result};
pub use snapshots::{Mount, Snapshots};

/// The messages of CRI v1.
#[allow(clippy::all, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

#[allow(clippy::all, reason = "generated")]
mod events_v1 {
    tonic::include_proto!("containerd.services.events.v1");
}

#[allow(clippy::all, reason = "generated")]
mod tasks_v1 {
    tonic::include_proto!("containerd.services.tasks.v1");
}

#[allow(clippy::all, reason = "generated")]
mod containers_v1 {
    tonic::include_proto!("containerd.services.containers.v1");
}

#[allow(clippy::all, reason = "generated")]
mod content_v1 {
    tonic::include_proto!("containerd.services.content.v1");
}

#[allow(clippy::all, reason = "generated")]
mod snapshots_v1 {
    tonic::include_proto!("containerd.services.snapshots.v1");
}
