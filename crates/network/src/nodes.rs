//! What the cluster says of nodes, as far as routes need it.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

/// What is read of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeView {
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
    #[serde(rename = "podCIDR")]
    pod_cidr: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Status {
    addresses: Vec<Address>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// When it was made, in nanoseconds since 1970: who came first has what two say is theirs.
    pub created: i128,
    /// Where its pods' addresses come from.
    pub pod_cidrs: Vec<IpNet>,
    /// Its own addresses in the cluster (`InternalIP`).
    pub addresses: Vec<IpAddr>,
}

impl Node {
    /// What can be read of it; what cannot is left out.
    pub fn of(name: &str, created: i128, view: &NodeView) -> Self {
        let single = view.spec.pod_cidrs.is_empty().then_some(&view.spec.pod_cidr);
        let pod_cidrs = view.spec.pod_cidrs.iter().chain(single).filter_map(|text| text.parse::<IpNet>().ok());
        let internal = view.status.addresses.iter().filter(|a| a.kind == "InternalIP");
        Self {
            name: name.to_owned(),
            created,
            pod_cidrs: pod_cidrs.map(|net| net.trunc()).collect(),
            addresses: internal.filter_map(|a| a.address.parse().ok()).collect(),
        }
    }
}
