//! What rules depend on besides Services: this node and what the proxy was told at its start.

use std::net::IpAddr;

use ipnet::IpNet;
use net::ruleset::Family;

use super::is_of;

/// This node, as far as it decides which endpoints are chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Here {
    pub name: String,
    pub zone: Option<String>,
}

/// How it is known that a packet comes from a pod of this node; what does not is masqueraded on
/// its way to a Service address, so that the answer comes back the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalPods {
    /// It is not known, and nothing is masqueraded for it.
    Unknown,
    /// Its source is in one of these ranges.
    Ranges(Vec<IpNet>),
    /// It comes in by this interface.
    Bridge(String),
    /// It comes in by an interface whose name begins so.
    Interfaces(String),
}

/// At which of the node's addresses node ports answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// At every one but loopback.
    All,
    /// At those in these ranges.
    Ranges(Vec<IpNet>),
}

/// What rules depend on besides Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where Service addresses come from: what no Service owns there is rejected.
    pub service_cidrs: Vec<IpNet>,
    /// Where pod addresses of all nodes come from.
    pub cluster_cidrs: Vec<IpNet>,
    /// Pod ranges that other nodes have: packets to them may leave this node.
    pub remote_pod_cidrs: Vec<IpNet>,
    /// The interfaces of this node's pods, as an nftables pattern: what is addressed to a pod and
    /// would go elsewhere is refused. `None` leaves it alone.
    pub pod_interfaces: Option<String>,
    pub local_pods: LocalPods,
    pub node_ports: NodePortAddresses,
    /// Masquerade everything that is sent to a Service address.
    pub masquerade_all: bool,
    /// The bit of the packet mark that asks for masquerade.
    pub masquerade_bit: u8,
    /// This node's addresses: a load balancer's source ranges that hold one admit the node itself.
    pub node_ips: Vec<IpAddr>,
}

impl Settings {
    /// The mark that asks for masquerade.
    pub fn mark(&self) -> String {
        format!("{:#x}", 1_u32 << self.masquerade_bit.min(31))
    }

    /// The families there are: of any range and of this node's addresses. IPv4 where nothing is known.
    pub fn families(&self) -> Vec<Family> {
        let ranges = self.service_cidrs.iter().chain(&self.cluster_cidrs).map(IpNet::addr);
        let ips: Vec<IpAddr> = ranges.chain(self.node_ips.iter().copied()).collect();
        let has = |family: &Family| ips.iter().any(|ip| is_of(ip, *family));
        let all: Vec<Family> = [Family::Ip, Family::Ip6].into_iter().filter(has).collect();
        if all.is_empty() { vec![Family::Ip] } else { all }
    }

    /// Those of `networks` that are of one family.
    pub fn of_family(networks: &[IpNet], family: Family) -> impl Iterator<Item = IpNet> + '_ {
        networks.iter().filter(move |n| is_of(&n.addr(), family)).map(IpNet::trunc)
    }
}
