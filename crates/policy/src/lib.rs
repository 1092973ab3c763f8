//! NetworkPolicies of the cluster as nftables rules of this node.
//!
//! ```text
//!  Pods, Namespaces, NetworkPolicies ─► caches ─► changes ─► Table ─► text ─► kernel
//!  the runtime's plugin ─► gate: "pod p has address a" ─┘              └─► "its rules are there"
//! ```
//!
//! What a policy means is in [`model`], what it looks like to the kernel in [`nftables`]; [`sync`](run) is
//! the loop between them, and [`gate`] answers the network plugin, so that a pod's rules are there before
//! its first packet.
//!
//! # Invariants
//!
//! * What the rules let through is what the API says. [src/nftables/table/tests.rs:
//!   rules_let_through_what_the_api_says]
//! * Any history ends as a fresh load. [src/nftables/table/tests.rs: any_history_ends_as_a_fresh_load]

pub mod bridge;
#[cfg(test)]
mod cases;
pub mod gate;
mod metrics;
pub mod model;
pub mod nftables;
mod sync;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use net::nft::Kernel;
use stdx::metrics::Registry;
use tokio::net::UnixListener;

pub use gate::Record;
pub use nftables::TABLE;
pub use sync::run;

/// Asks which sandboxes the network plugin remembers, half-made ones included.
pub type Sandboxes = Arc<dyn Fn() -> BoxFuture<'static, io::Result<BTreeSet<String>>> + Send + Sync>;
/// Asks why rules of this node do not see all that the pod with this address gets.
pub type Unseen = Arc<dyn Fn(IpAddr) -> Option<String> + Send + Sync>;

/// What the component is told at its start.
pub struct Options {
    /// This node: what its pods may send and get is decided here.
    pub node_name: String,
    pub kernel: Arc<dyn Kernel>,
    pub registry: Registry,
    /// Where the network plugin asks ([`gate::bind`]); `None`: pods have rules once their status tells their
    /// address.
    pub gate: Option<UnixListener>,
    /// What the network plugin remembers of pods that are there already.
    pub records: Arc<dyn Fn() -> Vec<Record> + Send + Sync>,
    /// Which of them it remembers still: a word of one's end may be lost.
    pub sandboxes: Sandboxes,
    /// Who knows what rules do not see ([`bridge::unseen`]).
    pub unseen: Unseen,
    /// The addresses of a DNS of the cluster that is no pod: policies know it by the labels that upstream's has.
    pub names: Vec<IpAddr>,
}

/// The text that removes all rules, present or not.
pub fn cleanup() -> String {
    nftables::table::Table::remove()
}
