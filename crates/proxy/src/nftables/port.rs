//! One Service port → its chains, sets and elements of the shared maps; pure.
//!
//! ```text
//!  service-ips  10.96.7.1 . tcp . 80    : goto tcp-endpoints-2           (shared.rs)
//!               192.0.2.9 . tcp . 80    : goto external-tcp-endpoints-2  (external and load balancers' addresses)
//!  service-nodeports        tcp . 30080 : goto nodeport-tcp-endpoints-2
//!
//!  with session affinity:
//!  service-ips  10.96.7.2 . tcp . 80    : goto service-…
//!               192.0.2.8 . tcp . 80    : goto external-…
//!  service-nodeports        tcp . 30081 : goto external-…
//!
//!  external-…   mark for masquerade, or for the policy Local: pods and this node → service-…
//!               goto service-… or local-…
//!  service-…    to the endpoint that the client has in @affinity-…, or to any, which is put there
//! ```
//!
//! Upstream has a chain and a set for each endpoint. The kernel finds sets by going through all of them: with
//! twenty thousand a load takes it most of a minute. Here all endpoints of a Service port share one set, of
//! clients and endpoints' numbers; a number that is always the same is what `numgen` gives with a modulus of one.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use net::ruleset::{Chain, Family, Set};

use super::base::{local_pods, set};
use super::names::{
    self, CLUSTER_IPS, FIREWALL_IPS, HAIRPIN, NO_ENDPOINT_NODEPORTS, NO_ENDPOINT_SERVICES, REJECT, SERVICE_IPS,
    SERVICE_NODEPORTS,
};
use super::shared::{Balanced, Way};
use crate::model::{Policy, PortName, ServicePort, Settings, Target};

/// What one Service port adds to the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    pub chains: Vec<(String, Chain)>,
    pub sets: Vec<(String, Set)>,
    pub elements: Vec<Element>,
}

/// An element a Service port wants in a shared map or set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub set: &'static str,
    pub key: String,
    pub value: Value,
    pub rank: Rank,
}

/// What an element says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Nobody has it.
    Nothing,
    /// A verdict; empty in a set.
    Text(String),
    /// Connections go to these, by the chain of all Service ports that have as many.
    Balanced(Balanced),
}

/// Who gets an address that two Services claim: the one whose own it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    ClusterIp,
    LoadBalancer,
    ExternalIp,
}

/// The verdict on connections that have nowhere to go.
fn verdict(target: Target) -> String {
    match target {
        Target::Drop => "drop".into(),
        Target::Reject | Target::Endpoints(..) => format!("goto {REJECT}"),
    }
}

/// The order in which endpoints came, given that of before: a client that has been sent to two, because the first was
/// away for a while, stays with the second.
pub(super) fn arrived(before: &[SocketAddr], port: &ServicePort) -> Vec<SocketAddr> {
    let all = port.endpoints.all();
    let known: BTreeSet<&SocketAddr> = before.iter().collect();
    let stayed = before.iter().filter(|endpoint| all.contains(endpoint));
    stayed.chain(all.iter().filter(|endpoint| !known.contains(endpoint))).copied().collect()
}

/// Renders one port. `arrived` is the order in which its endpoints came, where clients stay with them.
pub(super) fn render(
    name: &PortName,
    port: &ServicePort,
    arrived: &[SocketAddr],
    settings: &Settings,
    family: Family,
) -> Piece {
    let tail = names::of_port(name);
    let mut context = Context { name, port, arrived, settings, family, tail, out: Piece::default() };
    context.balance();
    context.expose();
    context.firewall();
    context.hairpins();
    context.out
}

struct Context<'a> {
    name: &'a PortName,
    port: &'a ServicePort,
    arrived: &'a [SocketAddr],
    settings: &'a Settings,
    family: Family,
    tail: String,
    out: Piece,
}

impl Context<'_> {
    fn chain(&mut self, name: String, rules: Vec<String>) {
        self.out.chains.push((name, Chain { hook: String::new(), rules }));
    }

    fn element(&mut self, set: &'static str, key: String, value: impl Into<String>, rank: Rank) {
        self.out.elements.push(Element { set, key, value: Value::Text(value.into()), rank });
    }

    fn balanced(&mut self, set: &'static str, key: String, to: Balanced, rank: Rank) {
        self.out.elements.push(Element { set, key, value: Value::Balanced(to), rank });
    }

    /// The key of an address's maps.
    fn at(&self, ip: &IpAddr) -> String {
        format!("{ip} . {} . {}", self.name.protocol.as_str(), self.port.port)
    }

    fn policy_chain(&self, policy: Policy) -> String {
        match policy {
            Policy::Cluster => format!("service-{}", self.tail),
            Policy::Local => format!("local-{}", self.tail),
        }
    }

    /// The chains that pick an endpoint, and what leads from the cluster to them.
    fn balance(&mut self) {
        let (port, ip) = (self.port, self.family.as_str());
        let endpoints = &port.endpoints;
        let own = self.at(&port.cluster_ip);
        self.element(CLUSTER_IPS, port.cluster_ip.to_string(), "", Rank::ClusterIp);
        let internal = match port.internal() {
            Target::Endpoints(policy, _) => Some(policy),
            Target::Drop | Target::Reject => None,
        };
        // Where clients stay with an endpoint there are chains and a set of the Service port's own.
        for (policy, chosen) in endpoints.chosen().filter(|_| port.affinity.is_some()) {
            let mut rules = Vec::new();
            if internal == Some(policy) {
                let mark = self.mark();
                let to_own = format!("{ip} daddr {}", port.cluster_ip);
                if self.settings.masquerade_all {
                    rules.push(format!("{to_own} {mark}"));
                } else if let Some((_, foreign)) = local_pods(self.settings, self.family) {
                    rules.push(format!("{to_own} {foreign} {mark}"));
                }
            }
            rules.extend(self.pick(chosen));
            self.chain(self.policy_chain(policy), rules);
        }
        match port.internal() {
            Target::Endpoints(policy, _) if port.affinity.is_some() => {
                let goto = format!("goto {}", self.policy_chain(policy));
                self.element(SERVICE_IPS, own, goto, Rank::ClusterIp);
            }
            Target::Endpoints(_, chosen) => {
                let balanced = Balanced { way: Way::Own, endpoints: chosen.into(), near: None };
                self.balanced(SERVICE_IPS, own, balanced, Rank::ClusterIp);
            }
            refused => {
                // Without endpoints of its own, an address is still nobody else's.
                let reserved =
                    Element { set: SERVICE_IPS, key: own.clone(), value: Value::Nothing, rank: Rank::ClusterIp };
                self.out.elements.push(reserved);
                self.element(NO_ENDPOINT_SERVICES, own, verdict(refused), Rank::ClusterIp);
            }
        }
        if port.affinity.is_some() && endpoints.chosen().next().is_some() {
            let affinity = self.affinity();
            let declared = set(&affinity, self.family);
            self.out.sets.push((affinity, declared));
        }
    }

    /// The set of who has which endpoint.
    fn affinity(&self) -> String {
        names::of_affinity(self.name)
    }

    fn mark(&self) -> String {
        format!("meta mark set meta mark | {}", self.settings.mark())
    }

    fn dnat(&self, endpoint: &SocketAddr) -> String {
        format!("meta l4proto {} dnat {} to {endpoint}", self.name.protocol.as_str(), self.family.as_str())
    }

    /// The rules that pick one of the endpoints: the one the client had, or each with the same chance.
    fn pick(&self, endpoints: &[SocketAddr]) -> Vec<String> {
        let (ip, seconds) = (self.family.as_str(), self.port.affinity.unwrap_or_default());
        let (set, chosen) = (self.affinity(), endpoints.iter().collect::<BTreeSet<_>>());
        let client = |e: &SocketAddr| {
            let number = names::number(self.name, e);
            format!("{ip} saddr . numgen inc mod 1 offset {number}")
        };
        let to = |e: &SocketAddr| {
            let client = client(e);
            format!("update @{set} {{ {client} timeout {seconds}s }} {}", self.dnat(e))
        };
        let had = self.arrived.iter().filter(|e| chosen.contains(e));
        let mut rules: Vec<String> = had.map(|e| format!("{} @{set} {}", client(e), to(e))).collect();
        // One after the other: a map would be one more set of the Service's own. Of a set that is full the kernel
        // takes a rule as one that does not match; then it is any, each time.
        for takes_note in [true, false] {
            rules.extend(endpoints.iter().enumerate().map(|(i, e)| {
                let to = if takes_note { to(e) } else { self.dnat(e) };
                match endpoints.len() - i {
                    1 => to,
                    left => format!("numgen random mod {left} 0 {to}"),
                }
            }));
        }
        rules
    }

    /// What leads from outside to the endpoints.
    fn expose(&mut self) {
        let port = self.port;
        if !port.is_external() {
            return;
        }
        let ranked =
            |ips: &[IpAddr], rank: Rank| -> Vec<(String, Rank)> { ips.iter().map(|ip| (self.at(ip), rank)).collect() };
        let mut outside = ranked(&port.load_balancer_ips, Rank::LoadBalancer);
        outside.extend(ranked(&port.external_ips, Rank::ExternalIp));
        let number = port.node_port.map(|n| format!("{} . {n}", self.name.protocol.as_str()));
        if port.endpoints.any && port.affinity.is_some() {
            let rules = self.outside_rules();
            let external = format!("external-{}", self.tail);
            let goto = format!("goto {external}");
            self.chain(external, rules);
            for (key, rank) in &outside {
                self.element(SERVICE_IPS, key.clone(), goto.clone(), *rank);
            }
            if let Some(key) = &number {
                self.element(SERVICE_NODEPORTS, key.clone(), goto, Rank::ClusterIp);
            }
        } else if port.endpoints.any {
            let endpoints: Arc<[SocketAddr]> = port.endpoints.cluster.as_slice().into();
            let near: Option<Arc<[SocketAddr]>> = port.external_local.then(|| port.endpoints.local.as_slice().into());
            let to = |way: Way| Balanced { way, endpoints: endpoints.clone(), near: near.clone() };
            for (key, rank) in &outside {
                self.balanced(SERVICE_IPS, key.clone(), to(Way::External), *rank);
            }
            if let Some(key) = &number {
                self.balanced(SERVICE_NODEPORTS, key.clone(), to(Way::NodePort), Rank::ClusterIp);
            }
        }
        let target = port.external();
        if matches!(target, Target::Endpoints(..)) {
            return;
        }
        for (key, rank) in outside {
            self.element(NO_ENDPOINT_SERVICES, key, verdict(target), rank);
        }
        if let Some(key) = number {
            self.element(NO_ENDPOINT_NODEPORTS, key, verdict(target), Rank::ClusterIp);
        }
    }

    fn outside_rules(&self) -> Vec<String> {
        let port = self.port;
        let mut rules = Vec::new();
        if port.external_local {
            if !port.endpoints.cluster.is_empty() {
                let anywhere = format!("goto {}", self.policy_chain(Policy::Cluster));
                // What pods and this node send is for any endpoint: out to a load balancer and back
                // it would be, too. The node's own source may be the address itself.
                if let Some((local, _)) = local_pods(self.settings, self.family) {
                    rules.push(format!("{local} {anywhere}"));
                }
                rules.push(format!("fib saddr type local {}", self.mark()));
                rules.push(format!("fib saddr type local {anywhere}"));
            }
        } else {
            rules.push(self.mark());
        }
        if let Target::Endpoints(policy, _) = port.external() {
            rules.push(format!("goto {}", self.policy_chain(policy)));
        }
        rules
    }

    /// Who may not use a load balancer's addresses.
    fn firewall(&mut self) {
        let port = self.port;
        if port.source_ranges.is_empty() || port.load_balancer_ips.is_empty() {
            return;
        }
        let ranges = ipnet::IpNet::aggregate(&port.source_ranges);
        let mut sources = ranges.clone();
        // A node that is admitted may have the balancer's address as its source.
        if self.settings.node_ips.iter().any(|ip| ranges.iter().any(|r| r.contains(ip))) {
            let others = port.load_balancer_ips.iter().filter(|ip| !ranges.iter().any(|r| r.contains(*ip)));
            sources.extend(others.map(|ip| ipnet::IpNet::from(*ip)));
        }
        let ip = self.family.as_str();
        let chain = format!("firewall-{}", self.tail);
        let keys: Vec<String> = port.load_balancer_ips.iter().map(|ip| self.at(ip)).collect();
        for key in keys {
            self.element(FIREWALL_IPS, key, format!("goto {chain}"), Rank::LoadBalancer);
        }
        let admitted = sources.iter().map(|range| match range.prefix_len() {
            0 => "return".to_owned(),
            _ => format!("{ip} saddr {range} return"),
        });
        let rules = admitted.chain(["drop".to_owned()]).collect();
        self.chain(chain, rules);
    }

    /// A pod that reaches itself must see another's address.
    fn hairpins(&mut self) {
        for endpoint in &self.port.endpoints.here {
            let (ip, protocol) = (endpoint.ip(), self.name.protocol.as_str());
            self.element(HAIRPIN, format!("{ip} . {ip} . {protocol} . {}", endpoint.port()), "", Rank::ClusterIp);
        }
    }
}
