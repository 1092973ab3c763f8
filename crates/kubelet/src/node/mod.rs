//! The Node object: registers this machine, says what it has and how it does, and keeps its Lease.
//!
//! ```text
//!  identity ─┐                        ┌► register (once)
//!  facts ────┼─► status::render ──────┼► nodes/status, on change and every 5 minutes
//!  pressure ─┤   (pure)               └► events, Waits
//!  runtime ──┘                         Lease every 10 s, beside it
//! ```

pub mod facts;
pub mod identity;
pub mod keeper;
pub mod pressure;
pub mod register;
pub mod runtime_state;
pub mod status;
pub mod thresholds;

pub use identity::Identity;

use client::events::Reference;

/// The node as its kubelet's events name it: the uid is its name, as upstream's is, and as
/// `kubectl describe node` asks for.
pub fn reference(name: &str) -> Reference {
    Reference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.into(),
        uid: name.into(),
        ..Reference::default()
    }
}
