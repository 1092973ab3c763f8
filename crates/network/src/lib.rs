//! Routes between nodes: what is for a pod of another node goes to that node, by a plain route where both are on
//! one layer-2 network, else by VXLAN.
//!
//! ```text
//!  Nodes (podCIDRs, InternalIP) ─┐
//!                                ├─► plan ─► difference ─► netlink
//!  links, addresses, routes ─────┘    ▲
//!   └── the kernel tells of changes ──┘
//!
//!  10.244.1.0/24 via 192.0.2.11 dev eth0 proto 113                on one network
//!  10.244.2.0/24 via 10.244.2.0 dev pintle-vx onlink proto 113    elsewhere: 10.244.2.0 is the other node's end,
//!                                                                 whose Ethernet address follows from its name
//! ```
//!
//! Nothing is remembered: what is ours is known by the number that routes carry (and that they lead to a network by
//! a gateway) and by the device's name, so that a process that starts goes on from what it finds. When it stops
//! everything stays: pods outlive us.
//!
//! # Invariants
//!
//! * Routes of others are not touched, and none of ours leads this node's own pods or addresses away.
//!   [src/plan.rs: what_others_made_stays; src/plan.rs: a_node_cannot_take_what_is_not_its_own;
//!   src/plan.rs: a_forged_node_takes_nothing_of_the_hosts_and_of_older_nodes]
//! * What is there already is not done again, and what is wanted no longer goes.
//!   [src/plan.rs: only_the_difference_is_done]

pub mod kernel;
mod metrics;
pub mod nodes;
pub mod plan;
mod sync;

use std::sync::Arc;

use ipnet::IpNet;
use stdx::metrics::Registry;

pub use plan::Mode;
pub use sync::run;

/// The VXLAN device's name.
pub const DEVICE: &str = "pintle-vx";

/// What this node's own pods need: told when it is known, and whenever it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// Where their addresses come from.
    pub pod_cidrs: Vec<IpNet>,
    /// How large packets may be where that is less than on the way out: VXLAN needs some of it.
    pub mtu: Option<u32>,
}

/// Hears what this node's own pods need.
pub type Tell = Arc<dyn Fn(&Own) -> std::io::Result<()> + Send + Sync>;

/// What the component is told.
#[derive(Clone)]
pub struct Options {
    /// This node's name.
    pub node_name: String,
    pub mode: Mode,
    /// The cluster's ranges of pods' addresses: no other Node may have one elsewhere. Empty where nobody says them.
    pub ranges: Vec<IpNet>,
    /// Hears what this node's own pods need.
    pub own: Option<Tell>,
    /// Where it counts what it does.
    pub registry: Registry,
}
