//! The service proxy: Services and EndpointSlices become kernel rules.
//!
//! ```text
//!  Services, EndpointSlices, Nodes ─► Model ─► render ─► difference ─► one transaction
//! ```
//!
//! Invariants: a connection reaches only endpoints that were ready in the applied model; what no
//! Service or pod owns is refused on this host; with the proxy stopped the rules stay.

pub mod model;
pub mod nftables;
mod sync;

pub use sync::{Options, cleanup, run};
