//! Which UDP connections lead where nobody answers any more; pure.
//!
//! The kernel translates what it has translated before, without asking the rules again. A client
//! that keeps sending from one port keeps its endpoint alive there, also one that is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use net::conntrack::Entry;
use net::ruleset::Family;

use crate::model::{Model, Protocol, ServicePort, ServiceRules, Settings};

/// Addresses and node ports that led to UDP endpoints and do not any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    addresses: BTreeSet<SocketAddr>,
    node_ports: BTreeSet<u16>,
}

fn udp(rules: &ServiceRules) -> impl Iterator<Item = &ServicePort> {
    let all = rules.v4.iter().chain(&rules.v6);
    all.filter(|(name, _)| name.protocol == Protocol::Udp).map(|(_, port)| port)
}

fn addresses(port: &ServicePort) -> impl Iterator<Item = SocketAddr> + '_ {
    let ips = std::iter::once(&port.cluster_ip).chain(&port.external_ips).chain(&port.load_balancer_ips);
    ips.map(|ip| SocketAddr::new(*ip, port.port))
}

/// Has this Service anything to do with UDP?
pub fn concerns(rules: &ServiceRules) -> bool {
    udp(rules).next().is_some()
}

impl Gone {
    /// Takes in what a Service no longer has, and gives back what it has again.
    pub fn replace(&mut self, old: Option<&ServiceRules>, new: Option<&ServiceRules>) {
        for port in old.into_iter().flat_map(udp) {
            self.addresses.extend(addresses(port));
            self.node_ports.extend(port.node_port);
        }
        for port in new.into_iter().flat_map(udp) {
            for address in addresses(port) {
                self.addresses.remove(&address);
            }
            if let Some(number) = port.node_port {
                self.node_ports.remove(&number);
            }
        }
    }
}

/// Where UDP should lead, in one family.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    services: BTreeMap<SocketAddr, BTreeSet<SocketAddr>>,
    node_ports: BTreeMap<u16, BTreeSet<SocketAddr>>,
    service_cidrs: Vec<IpNet>,
    node_ips: Vec<IpAddr>,
    gone: Gone,
}

impl Expected {
    /// What the model says, and what it said before.
    pub fn of(model: &Model, gone: &Gone, settings: &Settings, family: Family) -> Self {
        let mut out = Self {
            service_cidrs: Settings::of_family(&settings.service_cidrs, family).collect(),
            node_ips: settings.node_ips.clone(),
            gone: gone.clone(),
            ..Self::default()
        };
        for rules in model.values() {
            for (_, port) in rules.of(family).iter().filter(|(name, _)| name.protocol == Protocol::Udp) {
                for address in addresses(port) {
                    out.services.entry(address).or_default().extend(&port.endpoints.serving);
                }
                if let Some(number) = port.node_port {
                    out.node_ports.entry(number).or_default().extend(&port.endpoints.serving);
                }
            }
        }
        out
    }

    /// Does this connection lead where it should not?
    pub fn is_stale(&self, entry: &Entry) -> bool {
        let (to, from) = (entry.destination, entry.answers);
        if let Some(serving) = self.services.get(&to) {
            return !serving.contains(&from);
        }
        let translated = from != to;
        if self.gone.addresses.contains(&to) {
            return translated;
        }
        // A port of this node, or of somebody else who happens to have the same.
        if let Some(serving) = self.node_ports.get(&to.port()) {
            return (translated || self.node_ips.contains(&to.ip())) && !serving.contains(&from);
        }
        if self.gone.node_ports.contains(&to.port()) {
            return translated;
        }
        // An address of a Service that was gone before this process began.
        self.service_cidrs.iter().any(|range| range.contains(&to.ip()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Here, LocalPods, NodePortAddresses, decide};
    use client::Key;
    use serde_json::json;
    use std::sync::Arc;

    fn settings() -> Settings {
        Settings {
            service_cidrs: vec!["10.96.0.0/12".parse().expect("a range")],
            cluster_cidrs: vec![],
            remote_pod_cidrs: vec![],
            pod_interfaces: None,
            local_pods: LocalPods::Unknown,
            node_ports: NodePortAddresses::All,
            masquerade_all: false,
            masquerade_bit: 14,
            node_ips: vec!["192.0.2.1".parse().expect("an address")],
        }
    }

    fn rules(protocol: &str, node_port: u16, endpoints: serde_json::Value) -> Arc<ServiceRules> {
        let service = serde_json::from_value(json!({"metadata": {"namespace": "d", "name": "dns"},
            "spec": {"type": "NodePort", "clusterIP": "10.96.0.10", "externalIPs": ["198.51.100.7"],
                "ports": [{"port": 53, "protocol": protocol, "nodePort": node_port}]}}));
        let slice =
            serde_json::from_value(json!({"endpoints": endpoints, "ports": [{"port": 5353, "protocol": protocol}]}));
        let slice = slice.expect("a slice");
        Arc::new(decide(&service.expect("a Service"), std::iter::once(&slice), &Here::default()))
    }

    fn entry(to: &str, from: &str) -> Entry {
        let address = |text: &str| text.parse().expect("an address");
        Entry::new(address("10.9.9.9:40000"), address(to), address(from))
    }

    #[test]
    fn what_leads_to_endpoints_that_answer_stays_and_the_rest_goes() {
        let endpoints = json!([{"addresses": ["10.244.0.2"]},
            {"addresses": ["10.244.0.3"], "conditions": {"ready": false, "serving": true, "terminating": true}},
            {"addresses": ["10.244.0.4"], "conditions": {"ready": false, "serving": false}}]);
        let model = [(Key::new("d", "dns"), rules("UDP", 30053, endpoints))].into();
        let expected = Expected::of(&model, &Gone::default(), &settings(), Family::Ip);
        for (to, from, stale) in [
            ("10.96.0.10:53", "10.244.0.2:5353", false),
            ("10.96.0.10:53", "10.244.0.3:5353", false),
            ("10.96.0.10:53", "10.244.0.4:5353", true),
            ("10.96.0.10:53", "10.244.0.9:5353", true),
            ("10.96.0.10:53", "10.96.0.10:53", true),
            ("198.51.100.7:53", "198.51.100.7:53", true),
            ("192.0.2.1:30053", "10.244.0.2:5353", false),
            ("192.0.2.1:30053", "10.244.0.9:5353", true),
            ("192.0.2.1:30053", "192.0.2.1:30053", true),
            ("203.0.113.5:30053", "203.0.113.5:30053", false),
            ("10.96.0.99:53", "10.244.0.2:5353", true),
            ("192.0.2.1:40000", "10.244.0.2:5353", false),
            ("8.8.8.8:53", "8.8.8.8:53", false),
        ] {
            assert_eq!(expected.is_stale(&entry(to, from)), stale, "{to} answered by {from}");
        }
    }

    #[test]
    fn what_a_service_had_goes_with_it_and_comes_back_with_it() {
        let old = rules("UDP", 30053, json!([{"addresses": ["10.244.0.2"]}]));
        let mut gone = Gone::default();
        gone.replace(Some(&old), None);
        let expected = Expected::of(&Model::new(), &gone, &settings(), Family::Ip);
        for (to, from, stale) in [
            ("198.51.100.7:53", "10.244.0.2:5353", true),
            ("192.0.2.1:30053", "10.244.0.2:5353", true),
            ("203.0.113.5:30053", "203.0.113.5:30053", false),
        ] {
            assert_eq!(expected.is_stale(&entry(to, from)), stale, "{to} answered by {from}");
        }
        gone.replace(None, Some(&old));
        assert_eq!(gone, Gone::default());
        assert!(concerns(&old) && !concerns(&rules("TCP", 1, json!([]))));
    }
}
