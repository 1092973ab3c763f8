//! Model → one nftables table; pure.
//!
//! ```text
//!  prerouting, output (nat) ─► services ─► @service-ips ────────────────► svc/ns/name/tcp/http ─► dnat
//!                                     └──► @node-ports (local address) ─► ext/… mark ─► svc/…
//!  forward, output (filter) ─► whatever is still addressed to the Service range: reject
//!                           └► pod addresses that no interface of a pod has: reject
//!  postrouting (filter) ─────► the same again, dropped: nothing for the cluster leaves the host
//!  postrouting (nat) ────────► marked, or a pod that reaches itself: masquerade
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use net::ruleset::{Chain, Family, Ruleset, Set};

use crate::model::{Model, PortName, ServicePort};

/// The table's name.
pub const TABLE: &str = "pintle-proxy";
/// The packet mark that asks for masquerade (upstream's bit 14).
const MARK: &str = "0x4000";

/// What rules depend on besides Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where Service addresses come from: what no Service owns there is rejected.
    pub service_cidrs: Vec<IpNet>,
    /// Where pod addresses of all nodes come from.
    pub cluster_cidrs: Vec<IpNet>,
    /// Pod ranges that other nodes have: packets to them may leave this node.
    pub remote_pod_cidrs: Vec<IpNet>,
    /// The interfaces of this node's pods, as an nftables pattern.
    pub pod_interfaces: String,
}

/// The table for one family.
pub fn render(model: &Model, settings: &Settings, family: Family) -> Ruleset {
    let mut out = base(settings, family);
    let mut ips = BTreeMap::new();
    let mut node_ports = BTreeMap::new();
    let mut idle_ports = BTreeMap::new();
    let mut hairpins = BTreeMap::new();
    for (name, port) in model {
        let Some(rendered) = render_port(name, port, family) else { continue };
        let protocol = name.protocol.as_str();
        let Some(target) = rendered.service else {
            if let Some(number) = port.node_port {
                idle_ports.insert(format!("{protocol} . {number}"), "goto refuse".to_owned());
            }
            continue;
        };
        for ip in port.cluster_ips.iter().filter(|ip| is_of(ip, family)) {
            ips.insert(format!("{ip} . {protocol} . {}", port.port), format!("goto {target}"));
        }
        for endpoint in port.endpoints.iter().filter(|e| is_of(&e.ip(), family)) {
            hairpins.insert(format!("{0} . {0}", endpoint.ip()), String::new());
        }
        if let (Some(number), Some(external)) = (port.node_port, rendered.external) {
            node_ports.insert(format!("{protocol} . {number}"), format!("goto {external}"));
        }
        out.chains.extend(rendered.chains);
    }
    let address = address_type(family);
    let map = |declaration: String, elements| Set { keyword: "map", declaration, elements };
    let by_address = format!("type {address} . inet_proto . inet_service : verdict");
    let by_port = "type inet_proto . inet_service : verdict".to_owned();
    out.sets.insert("service-ips".into(), map(by_address, ips));
    out.sets.insert("node-ports".into(), map(by_port.clone(), node_ports));
    out.sets.insert("idle-node-ports".into(), map(by_port, idle_ports));
    let hairpin = Set { keyword: "set", declaration: format!("type {address} . {address}"), elements: hairpins };
    out.sets.insert("hairpin".into(), hairpin);
    out
}

fn address_type(family: Family) -> &'static str {
    match family {
        Family::Ip => "ipv4_addr",
        Family::Ip6 => "ipv6_addr",
    }
}

fn is_of(ip: &IpAddr, family: Family) -> bool {
    ip.is_ipv4() == (family == Family::Ip)
}

fn list(networks: &[IpNet], family: Family) -> Option<String> {
    let texts: Vec<String> =
        networks.iter().filter(|n| is_of(&n.addr(), family)).map(|n| n.trunc().to_string()).collect();
    (!texts.is_empty()).then(|| format!("{{ {} }}", texts.join(", ")))
}

/// The chains that do not depend on Services.
fn base(settings: &Settings, family: Family) -> Ruleset {
    let ip = family.as_str();
    let mut out = Ruleset::new(family, TABLE);
    let mut chain = |name: &str, hook: &str, rules: Vec<String>| {
        out.chains.insert(name.into(), Chain { hook: hook.into(), rules });
    };
    let services = vec!["jump services".to_owned()];
    chain("nat-prerouting", "type nat hook prerouting priority -100", services.clone());
    chain("nat-output", "type nat hook output priority -100", services);
    chain(
        "services",
        "",
        vec![
            format!("{ip} daddr . meta l4proto . th dport vmap @service-ips"),
            "fib daddr type local meta l4proto . th dport vmap @node-ports".to_owned(),
        ],
    );
    chain(
        "nat-postrouting",
        "type nat hook postrouting priority 100",
        vec![
            format!("{ip} saddr . {ip} daddr @hairpin masquerade fully-random"),
            format!("meta mark & {MARK} == 0 return"),
            format!("meta mark set meta mark ^ {MARK}"),
            "masquerade fully-random".to_owned(),
        ],
    );
    let service = list(&settings.service_cidrs, family).map(|range| format!("{ip} daddr {range}"));
    let stray_pod = list(&settings.cluster_cidrs, family).map(|range| {
        let pods = &settings.pod_interfaces;
        let remote = list(&settings.remote_pod_cidrs, family);
        let except = remote.map(|r| format!(" {ip} daddr != {r}")).unwrap_or_default();
        format!("{ip} daddr {range}{except} oifname != \"{pods}\" oifname != \"lo\"")
    });
    let unowned = service.iter().chain(&stray_pod);
    chain("unowned", "", unowned.clone().map(|packet| format!("{packet} goto refuse")).collect());
    let checked = "ct state new jump unowned".to_owned();
    chain("filter-forward", "type filter hook forward priority 0", vec![checked.clone()]);
    // A packet that was given a new destination on its way out still shows the old interface in this
    // hook; whether it is stray is seen after routing, where it can only be dropped.
    let output = vec!["ct status dnat return".to_owned(), checked];
    chain("filter-output", "type filter hook output priority 0", output);
    let last = unowned.map(|packet| format!("{packet} drop")).collect();
    chain("filter-postrouting", "type filter hook postrouting priority 0", last);
    let idle = "ct state new fib daddr type local meta l4proto . th dport vmap @idle-node-ports".to_owned();
    chain("filter-input", "type filter hook input priority 0", vec![idle]);
    chain("refuse", "", vec!["reject".to_owned()]);
    out
}

#[derive(Default)]
struct Rendered {
    /// The chain that picks an endpoint; absent when there is none.
    service: Option<String>,
    /// The chain for traffic from outside.
    external: Option<String>,
    chains: Vec<(String, Chain)>,
}

/// The chains of one Service port; `None` when it has no address of this family.
fn render_port(name: &PortName, port: &ServicePort, family: Family) -> Option<Rendered> {
    port.cluster_ips.iter().find(|ip| is_of(ip, family))?;
    let endpoints: Vec<&SocketAddr> = port.endpoints.iter().filter(|e| is_of(&e.ip(), family)).collect();
    let mut out = Rendered::default();
    let Some(rule) = dnat(name, &endpoints, family) else { return Some(out) };
    let label = if name.port.is_empty() { port.port.to_string() } else { name.port.clone() };
    let path = format!("{}/{}/{}/{label}", name.namespace, name.service, name.protocol.as_str());
    let service = format!("svc/{path}");
    out.chains.push((service.clone(), Chain { hook: String::new(), rules: vec![rule] }));
    if port.node_port.is_some() {
        let external = format!("ext/{path}");
        let rules = vec![format!("meta mark set meta mark | {MARK}"), format!("goto {service}")];
        out.chains.push((external.clone(), Chain { hook: String::new(), rules }));
        out.external = Some(external);
    }
    out.service = Some(service);
    Some(out)
}

/// The rule that picks one of the endpoints, each with the same chance.
fn dnat(name: &PortName, endpoints: &[&SocketAddr], family: Family) -> Option<String> {
    let (ip, protocol) = (family.as_str(), name.protocol.as_str());
    match endpoints {
        [] => None,
        [one] => Some(format!("meta l4proto {protocol} dnat {ip} to {one}")),
        many => {
            let choices: Vec<String> =
                many.iter().enumerate().map(|(i, e)| format!("{i} : {} . {}", e.ip(), e.port())).collect();
            let (count, choices) = (many.len(), choices.join(", "));
            let pick = format!("numgen random mod {count} map {{ {choices} }}");
            Some(format!("meta l4proto {protocol} dnat {ip} addr . port to {pick}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Protocol;
    use proptest::prelude::*;

    fn settings() -> Settings {
        let net = |s: &str| s.parse::<IpNet>().expect("a network");
        Settings {
            service_cidrs: vec![net("10.96.0.0/12")],
            cluster_cidrs: vec![net("10.244.0.0/16")],
            remote_pod_cidrs: vec![],
            pod_interfaces: "veth*".into(),
        }
    }

    fn entry(service: &str, ip: &str, node_port: Option<u16>, endpoints: &[&str]) -> (PortName, ServicePort) {
        let name = PortName {
            namespace: "default".into(),
            service: service.into(),
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        let endpoints = endpoints.iter().map(|e| e.parse().expect("an endpoint")).collect();
        let cluster_ips = [ip.parse().expect("an address")].into();
        (name, ServicePort { cluster_ips, port: 80, node_port, endpoints })
    }

    #[test]
    fn golden_three_services() {
        let model: Model = [
            entry("many", "10.96.0.10", Some(30080), &["10.244.0.2:8080", "10.244.0.3:8080"]),
            entry("none", "10.96.0.11", Some(30081), &[]),
            entry("one", "10.96.0.12", None, &["10.244.0.4:80"]),
        ]
        .into();
        insta::with_settings!({ snapshot_path => "../../testdata", prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!("three_services", render(&model, &settings(), Family::Ip).load());
        });
    }

    #[test]
    fn a_service_of_the_other_family_is_left_out() {
        let model: Model = [entry("one", "10.96.0.12", None, &["10.244.0.4:80"])].into();
        let rules = render(&model, &settings(), Family::Ip6);
        assert!(rules.sets.values().all(|s| s.elements.is_empty()));
        assert!(!rules.chains.keys().any(|c| c.starts_with("svc/")));
    }

    fn any_model() -> impl Strategy<Value = Model> {
        let port = (0u8..4, 0u8..4, prop::option::of(30000u16..30004), prop::collection::btree_set(1u8..5, 0..4));
        prop::collection::vec(port, 0..6).prop_map(|ports| {
            ports
                .into_iter()
                .map(|(service, ip, node_port, endpoints)| {
                    let endpoints: Vec<String> = endpoints.iter().map(|e| format!("10.244.0.{e}:80")).collect();
                    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
                    entry(&format!("s{service}"), &format!("10.96.0.{ip}"), node_port, &endpoints)
                })
                .collect()
        })
    }

    proptest! {
        /// Every chain that is named exists, so that the kernel accepts the text.
        #[test]
        fn nothing_is_named_that_does_not_exist(model in any_model()) {
            let rules = render(&model, &settings(), Family::Ip);
            let verdicts = rules.sets.values().flat_map(|s| s.elements.values());
            let jumps = rules.chains.values().flat_map(|c| &c.rules);
            for text in verdicts.chain(jumps) {
                if let Some((_, target)) = text.split_once("goto ").or_else(|| text.split_once("jump ")) {
                    prop_assert!(rules.chains.contains_key(target), "{target}");
                }
            }
        }
    }
}
