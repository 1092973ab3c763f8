//! The service proxy: Services and EndpointSlices become kernel rules.
//!
//! ```text
//!  Services, EndpointSlices, Nodes ─► Model ─► render ─► difference ─► one transaction
//! ```
//!
//! # Invariants
//!
//! * A connection reaches only endpoints that were ready in the applied model. [src/model.rs:
//!   only_ready_endpoints_of_the_named_port_are_taken]
//! * What no Service or pod owns is refused on this host. [src/nftables/render.rs:
//!   golden_three_services]
//! * After a failure the whole table is loaded again; with the proxy stopped the rules stay.
//!   [src/nftables/apply.rs: after_a_failure_the_whole_table_is_loaded_again;
//!   ../e2e/tests/restart.rs: pods_and_services_outlive_the_process]

mod metrics;
pub mod model;
pub mod nftables;
mod sync;

pub use sync::{Options, cleanup, run};
