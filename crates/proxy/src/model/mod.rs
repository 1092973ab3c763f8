//! The dataplane-neutral truth: which address and port leads to which endpoints. Built from
//! Services and EndpointSlices, sorted, comparable, and the same for every renderer.
//!
//! One Service port with its slices becomes one [`ServicePort`] a family:
//!
//! ```text
//!  Service web  10.96.7.1  80→http  nodePort 30080      default/web:http of IPv4
//!  Slice web-x  10.244.0.4:8080 ready        ──────►      10.96.7.1:80 and *:30080
//!               10.244.0.5:8080 not ready                 → [10.244.0.4:8080]
//! ```

mod endpoints;
pub mod objects;
mod services;
mod settings;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use client::Key;
use ipnet::IpNet;
use net::ruleset::Family;

pub use services::{HealthCheck, decide};
pub use settings::{Here, LocalPods, NodePortAddresses, Settings};

/// A transport protocol as rules spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// From the API's spelling; the default is TCP.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }

    /// In lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// Names one port of one Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName {
    pub namespace: String,
    pub service: String,
    /// The port's name; may be empty when it is the only one.
    pub port: String,
    pub protocol: Protocol,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service)?;
        if self.port.is_empty() { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// Where one Service port leads, in one family of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    pub cluster_ip: IpAddr,
    pub port: u16,
    pub node_port: Option<u16>,
    pub external_ips: Vec<IpAddr>,
    /// Addresses of load balancers that leave them to us (`ipMode: VIP`).
    pub load_balancer_ips: Vec<IpAddr>,
    /// Who may use these; empty for everybody.
    pub source_ranges: Vec<IpNet>,
    /// A client stays with its endpoint for so many seconds.
    pub affinity: Option<u32>,
    /// Connections from within the cluster stay on this node.
    pub internal_local: bool,
    /// Connections from outside stay on this node.
    pub external_local: bool,
    pub endpoints: Endpoints,
}

impl ServicePort {
    /// Can it be reached from outside the cluster?
    pub fn is_external(&self) -> bool {
        self.node_port.is_some() || !self.external_ips.is_empty() || !self.load_balancer_ips.is_empty()
    }

    /// Where connections from within go.
    pub fn internal(&self) -> Target<'_> {
        self.target(self.internal_local)
    }

    /// Where connections from outside go.
    pub fn external(&self) -> Target<'_> {
        self.target(self.external_local)
    }

    fn target(&self, local: bool) -> Target<'_> {
        let (chosen, policy) =
            if local { (&self.endpoints.local, Policy::Local) } else { (&self.endpoints.cluster, Policy::Cluster) };
        match (chosen.is_empty(), self.endpoints.any) {
            (false, _) => Target::Endpoints(policy, chosen),
            (true, true) => Target::Drop,
            (true, false) => Target::Reject,
        }
    }
}

/// Which endpoints may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Cluster,
    Local,
}

/// What becomes of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    Endpoints(Policy, &'a [SocketAddr]),
    /// Another node has endpoints: who balances between nodes tries those.
    Drop,
    /// Nobody has.
    Reject,
}

/// The endpoints of a port, chosen by what is known of them; sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// For the policy Cluster; empty where nothing uses it.
    pub cluster: Vec<SocketAddr>,
    /// For the policy Local; empty where nothing uses it.
    pub local: Vec<SocketAddr>,
    /// Those chosen for either that run on this node: a connection may come back to who made it.
    pub here: Vec<SocketAddr>,
    /// Those that answer, ready or not: what is on its way to others is lost. Of UDP only.
    pub serving: Vec<SocketAddr>,
    /// Has any node one that takes connections?
    pub any: bool,
}

impl Endpoints {
    /// Those that connections may go to, by the policy that chooses them; policies that choose none
    /// are left out.
    pub fn chosen(&self) -> impl Iterator<Item = (Policy, &[SocketAddr])> {
        let all = [(Policy::Cluster, self.cluster.as_slice()), (Policy::Local, self.local.as_slice())];
        all.into_iter().filter(|(_, chosen)| !chosen.is_empty())
    }

    /// The same, each once, in order.
    pub fn all(&self) -> std::collections::BTreeSet<SocketAddr> {
        self.cluster.iter().chain(&self.local).copied().collect()
    }
}

/// What one Service asks of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRules {
    pub v4: Vec<(PortName, ServicePort)>,
    pub v6: Vec<(PortName, ServicePort)>,
    pub health_check: Option<HealthCheck>,
}

impl ServiceRules {
    /// Its ports of one family.
    pub fn of(&self, family: Family) -> &[(PortName, ServicePort)] {
        match family {
            Family::Ip => &self.v4,
            Family::Ip6 => &self.v6,
        }
    }

    /// May new connections go to that address?
    pub fn leads_to(&self, ip: &IpAddr) -> bool {
        let ports = self.v4.iter().chain(&self.v6);
        ports.flat_map(|(_, port)| port.endpoints.cluster.iter().chain(&port.endpoints.local)).any(|e| e.ip() == *ip)
    }

    /// Does it ask for nothing?
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty() && self.health_check.is_none()
    }
}

/// What every Service of the cluster asks of the kernel; those that ask for nothing are left out.
pub type Model = BTreeMap<Key, Arc<ServiceRules>>;

/// Is this an address of that family?
pub fn is_of(ip: &IpAddr, family: Family) -> bool {
    ip.is_ipv4() == (family == Family::Ip)
}
