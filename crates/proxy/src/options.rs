//! What the proxy is told at its start, and what becomes of it on this node.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use net::conntrack::Connections;
use net::iptables::Iptables;
use net::nft::Kernel;
use stdx::metrics::Registry;

use crate::health::Health;
use crate::model::objects::Node;
use crate::model::{LocalPods, NodePortAddresses, Settings};

/// The modes that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Iptables,
    Nftables,
}

impl Mode {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Iptables => Self::Nftables,
            Self::Nftables => Self::Iptables,
        }
    }

    /// As users spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

/// How pods of this node are told from everybody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// By the pod ranges of the whole cluster.
    ClusterCidr,
    /// By the pod ranges of this Node.
    NodeCidr,
    /// By the interface they share.
    Bridge(String),
    /// By what the names of their interfaces begin with.
    Interfaces(String),
}

/// At which of the node's addresses node ports answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// At every one but loopback.
    All,
    /// At those the Node names.
    Primary,
    /// At those in these ranges.
    Ranges(Vec<IpNet>),
}

/// What the proxy is told at its start.
pub struct Options {
    /// This node: its own pod range is on this host, others' are reached by routes.
    pub node_name: String,
    pub mode: Mode,
    /// Where Service addresses come from; where it is not said, what ServiceCIDRs of the API say.
    pub service_cidrs: Vec<IpNet>,
    pub cluster_cidrs: Vec<IpNet>,
    /// The interfaces of this node's pods, as an nftables pattern; what is addressed to a pod and
    /// would leave by another is refused. `None` where pods are connected in ways of their own.
    pub pod_interfaces: Option<String>,
    pub detect_local: DetectLocal,
    pub node_ports: NodePorts,
    /// Masquerade everything that is sent to a Service address.
    pub masquerade_all: bool,
    /// The bit of the packet mark that asks for masquerade.
    pub masquerade_bit: u8,
    /// Masquerade what pods send out of the cluster.
    pub masquerade_egress: bool,
    /// Remove what the other mode has left once the kernel has the rules of this one.
    pub takes_over: bool,
    pub kernel: Arc<dyn Kernel>,
    /// The kernel as iptables sees it, for that mode.
    pub tables: Arc<dyn Iptables>,
    pub connections: Arc<dyn Connections>,
    /// Tells the addresses of this host.
    pub addresses: crate::checks::Addresses,
    /// Where the proxy counts what it does.
    pub registry: Registry,
    /// What `/healthz` tells of it.
    pub health: Health,
}

impl Options {
    /// What rules depend on, on this node as it is.
    pub(crate) fn settings(
        &self,
        own: Option<&Node>,
        others: impl Iterator<Item = String>,
        service_ranges: Option<Vec<IpNet>>,
    ) -> Settings {
        let parse = |texts: &mut dyn Iterator<Item = String>| -> Vec<IpNet> {
            let mut out: Vec<IpNet> = texts.filter_map(|c| c.parse().ok()).collect();
            out.sort();
            out.dedup();
            out
        };
        let mut others = others;
        let node_ips: Vec<IpAddr> = own.iter().flat_map(|n| n.internal_ips()).collect();
        let local_pods = match &self.detect_local {
            DetectLocal::ClusterCidr if self.cluster_cidrs.is_empty() => LocalPods::Unknown,
            DetectLocal::ClusterCidr => LocalPods::Ranges(self.cluster_cidrs.clone()),
            DetectLocal::NodeCidr => {
                let ranges = parse(&mut own.iter().flat_map(|n| n.spec.pod_cidrs.iter().cloned()));
                if ranges.is_empty() { LocalPods::Unknown } else { LocalPods::Ranges(ranges) }
            }
            DetectLocal::Bridge(name) => LocalPods::Bridge(name.clone()),
            DetectLocal::Interfaces(prefix) => LocalPods::Interfaces(prefix.clone()),
        };
        let node_ports = match &self.node_ports {
            NodePorts::All => NodePortAddresses::All,
            NodePorts::Primary => NodePortAddresses::Ranges(node_ips.iter().map(|ip| IpNet::from(*ip)).collect()),
            NodePorts::Ranges(ranges) => NodePortAddresses::Ranges(ranges.clone()),
        };
        Settings {
            service_cidrs: service_ranges.unwrap_or_else(|| self.service_cidrs.clone()),
            cluster_cidrs: self.cluster_cidrs.clone(),
            remote_pod_cidrs: parse(&mut others),
            pod_interfaces: self.pod_interfaces.clone(),
            local_pods,
            node_ports,
            masquerade_all: self.masquerade_all,
            masquerade_bit: self.masquerade_bit,
            node_ips,
        }
    }
}

/// A name of an interface, or what names begin with, that can stand in a rule.
///
/// # Errors
/// Says what is wrong with it.
pub fn interface(name: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if name.is_empty() || name.len() > 15 {
        return Err("interfaces have names of 1 to 15 characters".into());
    }
    if name.chars().all(plain) { Ok(name.into()) } else { Err("letters, digits, '-', '_', '.' and '@' only".into()) }
}
