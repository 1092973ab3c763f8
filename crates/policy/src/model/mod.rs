//! What NetworkPolicies mean, without a kernel: policies as read from the API, pods as far as rules
//! concern them, and which addresses are whose.

pub mod objects;
pub mod policy;
pub mod ranges;

use std::collections::BTreeMap;
use std::net::IpAddr;

pub use machinery::labels::Labels;
pub use policy::{Direction, Group, Policy, Ports, Protocol, Rule};

/// A port that a pod gives a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedPort {
    pub name: String,
    pub protocol: Protocol,
}

/// What rules need to know of a pod. Pods that share their node's network and pods that have ended are
/// none: their addresses are the node's, or nobody's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    pub labels: Labels,
    /// Without duplicates; either family.
    pub addresses: Vec<IpAddr>,
    /// Several containers may name the same: each is one.
    pub ports: Vec<(NamedPort, u16)>,
    /// It runs on this node: what it may send and get is decided here.
    pub is_here: bool,
    pub rank: Rank,
}

impl Pod {
    /// Who has an address that two pods name: the lower. What somebody says of another node's pod takes nothing,
    /// least of all its isolation, from one that is here.
    pub fn precedence(&self) -> Precedence {
        (!self.is_here, self.rank)
    }
}

/// Whether it is elsewhere, and its rank.
pub type Precedence = (bool, Rank);

/// Of two pods of this node, or two of others, the lower has an address that both name. The runtime's word (`told`, counted upwards) comes
/// before what a status says, pods that stay before pods that go, and younger ones before older ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    pub told: std::cmp::Reverse<u64>,
    pub is_deleting: bool,
    /// Seconds since 1970.
    pub created: std::cmp::Reverse<i64>,
}

/// Labels of namespaces by name.
pub type Namespaces = BTreeMap<String, Labels>;
