//! The service proxy: Services and EndpointSlices become kernel rules.
//!
//! ```text
//!  Services, EndpointSlices, Nodes ─► Model ─► render ─► difference ─► one transaction
//!                                       └─► ports for load balancers' checks, stale connections
//! ```
//!
//! # Invariants
//!
//! * A connection reaches only endpoints that the applied model chose. [src/model/endpoints/tests.rs:
//!   who_is_chosen]
//! * What no Service or pod owns is refused on this host. [tests/packets/main.rs: packets]
//! * What the kernel holds after any history is what a fresh load gives. [src/nftables/table/tests.rs:
//!   any_history_ends_as_a_fresh_load]
//! * One Service that the kernel refuses starves no other. [src/nftables/apply/tests.rs:
//!   what_is_refused_is_found_and_left_out]
//! * A mode that begins removes what the other has left. [tests/packets/main.rs: packets]
//! * After a failure the whole table is loaded again; with the proxy stopped the rules stay.
//!   [src/nftables/apply/tests.rs: after_a_failure_the_whole_table_is_loaded_again;
//!   ../e2e/tests/restart.rs: pods_and_services_outlive_the_process]

#[cfg(test)]
mod cases;
mod checks;
mod cleanup;
pub mod config;
pub mod conntrack;
pub mod dataplane;
mod health;
pub mod iptables;
mod metrics;
pub mod model;
pub mod nftables;
mod options;
mod sync;

pub use cleanup::{cleanup, remove};
pub use health::Health;
pub use options::{DetectLocal, Mode, NodePorts, Options, interface};
pub use sync::run;
