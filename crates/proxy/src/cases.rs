//! Services as tests know them: the golden cases that every renderer shares, and random ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::Key;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::model::objects::{EndpointSlice, Service};
use crate::model::{Here, LocalPods, Model, NodePortAddresses, ServiceRules, Settings, decide};
use crate::nftables::table::Change;

/// The settings of `pintle up`, with both families.
pub fn settings() -> Settings {
    let nets = |texts: &[&str]| texts.iter().map(|s| s.parse().expect("a network")).collect::<Vec<_>>();
    Settings {
        service_cidrs: nets(&["10.96.0.0/12", "fd01::/112"]),
        cluster_cidrs: nets(&["10.244.0.0/16", "fd00::/56"]),
        remote_pod_cidrs: Vec::new(),
        pod_interfaces: Some("veth*".into()),
        local_pods: LocalPods::Ranges(nets(&["10.244.0.0/16", "fd00::/56"])),
        node_ports: NodePortAddresses::All,
        masquerade_all: false,
        masquerade_bit: 14,
        node_ips: vec!["192.168.9.1".parse().expect("an address")],
    }
}

/// Settings that make other rules of the same Services; of those whose rules can be said in messages of our own.
pub fn varied() -> Vec<Settings> {
    vec![
        settings(),
        Settings { masquerade_all: true, ..settings() },
        Settings { local_pods: LocalPods::Bridge("cni0".into()), ..settings() },
        Settings { local_pods: LocalPods::Interfaces("veth".into()), ..settings() },
        Settings { local_pods: LocalPods::Unknown, ..settings() },
    ]
}

/// Any of those, and one with several ranges of pods.
pub fn any_settings() -> impl Strategy<Value = Settings> {
    let nets = ["10.244.0.0/24", "10.245.0.0/24", "fd00::/64"].map(|s| s.parse().expect("a network"));
    let ranges = Settings { local_pods: LocalPods::Ranges(nets.into()), ..settings() };
    let all: Vec<Settings> = varied().into_iter().chain([ranges]).collect();
    prop::sample::select(all)
}

/// What a Service asks for on node n1, in zone a.
pub fn rules(name: &str, spec: Value, status: Value, slice: Value) -> Arc<ServiceRules> {
    let service = json!({"metadata": {"namespace": "default", "name": name}, "spec": spec, "status": status});
    let service: Service = serde_json::from_value(service).expect("a Service");
    let slice: EndpointSlice = serde_json::from_value(slice).expect("a slice");
    let here = Here { name: "n1".into(), zone: Some("a".into()) };
    Arc::new(decide(&service, std::iter::once(&slice), &here))
}

fn slice(endpoints: Value) -> Value {
    json!({"endpoints": endpoints, "ports": [{"name": "http", "port": 8080}]})
}

/// A case: its name, its settings, its Services.
pub type Case = (&'static str, Settings, Model);

/// Every feature by itself.
pub fn golden() -> Vec<Case> {
    let two = slice(
        json!([{"addresses": ["10.244.0.2"], "nodeName": "n1"}, {"addresses": ["10.244.1.2"], "nodeName": "n2"}]),
    );
    let away = slice(json!([{"addresses": ["10.244.1.2"], "nodeName": "n2"}]));
    let none = slice(json!([]));
    let spec = |more: Value| {
        let mut spec = json!({"type": "ClusterIP", "clusterIP": "10.96.0.10", "ports": [{"name": "http", "port": 80}]});
        for (key, value) in more.as_object().expect("an object") {
            spec[key] = value.clone();
        }
        spec
    };
    let node_port = json!([{"name": "http", "port": 80, "nodePort": 30080}]);
    let balanced = |more: Value| {
        let mut spec = spec(json!({"type": "LoadBalancer", "ports": node_port}));
        for (key, value) in more.as_object().expect("an object") {
            spec[key] = value.clone();
        }
        spec
    };
    let vip = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}});
    let model = |services: Vec<(&str, Arc<ServiceRules>)>| -> Model {
        services.into_iter().map(|(name, rules)| (Key::new("default", name), rules)).collect()
    };
    let one = |spec: Value, status: &Value, slice: &Value| {
        model(vec![("web", rules("web", spec, status.clone(), slice.clone()))])
    };
    let nothing = json!({});
    let base = settings;
    vec![
        ("cluster_ip", base(), one(spec(json!({})), &nothing, &two)),
        ("no_endpoints", base(), one(spec(json!({"type": "NodePort", "ports": node_port})), &nothing, &none)),
        ("node_port", base(), one(spec(json!({"type": "NodePort", "ports": node_port})), &nothing, &two)),
        (
            "node_port_addresses",
            Settings {
                node_ports: NodePortAddresses::Ranges(vec!["192.168.9.0/24".parse().expect("a range")]),
                ..base()
            },
            one(spec(json!({"type": "NodePort", "ports": node_port})), &nothing, &two),
        ),
        ("external_ips", base(), one(spec(json!({"externalIPs": ["198.51.100.2"]})), &nothing, &two)),
        ("load_balancer", base(), one(balanced(json!({"loadBalancerSourceRanges": ["192.168.9.0/24"]})), &vip, &two)),
        (
            "external_local",
            base(),
            one(balanced(json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000})), &vip, &two),
        ),
        (
            "two_pod_ranges",
            Settings {
                local_pods: LocalPods::Ranges(
                    ["10.244.0.0/24", "10.245.0.0/24"].map(|s| s.parse().expect("a network")).into(),
                ),
                ..base()
            },
            one(balanced(json!({"externalTrafficPolicy": "Local"})), &vip, &two),
        ),
        ("external_local_elsewhere", base(), one(balanced(json!({"externalTrafficPolicy": "Local"})), &vip, &away)),
        ("internal_local", base(), one(spec(json!({"internalTrafficPolicy": "Local"})), &nothing, &two)),
        ("internal_local_elsewhere", base(), one(spec(json!({"internalTrafficPolicy": "Local"})), &nothing, &away)),
        (
            "affinity",
            base(),
            one(spec(json!({"sessionAffinity": "ClientIP", "type": "NodePort", "ports": node_port})), &nothing, &two),
        ),
        ("masquerade_all", Settings { masquerade_all: true, ..base() }, one(spec(json!({})), &nothing, &two)),
        (
            "bridge",
            Settings { local_pods: LocalPods::Bridge("cni0".into()), pod_interfaces: None, ..base() },
            one(balanced(json!({"externalTrafficPolicy": "Local"})), &vip, &two),
        ),
        (
            "one_address_claimed_twice",
            base(),
            model(vec![
                (
                    "a-thief",
                    rules(
                        "a-thief",
                        spec(json!({"clusterIP": "10.96.0.66", "externalIPs": ["10.96.0.10"]})),
                        nothing.clone(),
                        two.clone(),
                    ),
                ),
                ("web", rules("web", spec(json!({})), nothing.clone(), none.clone())),
            ]),
        ),
        (
            "both_families_and_protocols",
            base(),
            one(
                spec(json!({"clusterIPs": ["10.96.0.10", "fd01::10"],
                    "ports": [{"name": "http", "port": 53}, {"name": "udp", "port": 53, "protocol": "UDP"},
                        {"name": "sctp", "port": 53, "protocol": "SCTP"}]})),
                &nothing,
                &json!({"endpoints": [{"addresses": ["10.244.0.2"], "nodeName": "n1"}, {"addresses": ["fd00::2"], "nodeName": "n1"}],
                    "ports": [{"name": "http", "port": 53}, {"name": "udp", "port": 53, "protocol": "UDP"},
                        {"name": "sctp", "port": 53, "protocol": "SCTP"}]}),
            ),
        ),
        (
            "outside_of_both_families",
            base(),
            one(
                balanced(
                    json!({"clusterIPs": ["10.96.0.10", "fd01::10"], "externalIPs": ["198.51.100.2", "2001:db8::2"],
                    "loadBalancerSourceRanges": ["192.168.9.0/24", "fd09::/61"]}),
                ),
                &json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}, {"ip": "2001:db8::1"}]}}),
                &slice(
                    json!([{"addresses": ["10.244.0.2"], "nodeName": "n1"}, {"addresses": ["fd00::2"], "nodeName": "n1"},
                    {"addresses": ["fd00:0:0:1::2"], "nodeName": "n2"}]),
                ),
            ),
        ),
    ]
}

/// Any Service, with any endpoints; small numbers, so that they clash.
pub fn any_rules(name: &'static str) -> impl Strategy<Value = Option<Arc<ServiceRules>>> {
    let policies = (any::<bool>(), any::<bool>(), prop::option::of(prop::sample::select(vec![10, 600])));
    let addresses = (1u8..4, prop::collection::vec(1u8..4, 0..2), prop::collection::vec(1u8..4, 0..2));
    let kinds = prop::sample::select(vec!["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]);
    let ports =
        prop::collection::vec((1u16..4, prop::sample::select(vec!["TCP", "UDP", "SCTP"]), 30000u16..30003), 1..3);
    let endpoint =
        (1u8..6, any::<bool>(), prop::sample::select(vec![0u8, 0, 0, 1, 2]), prop::option::of(any::<bool>()));
    let endpoints = prop::collection::vec(endpoint, 0..5);
    let all = (kinds, policies, addresses, ports, endpoints, any::<bool>());
    prop::option::weighted(0.85, all).prop_map(move |service| {
        let (kind, (internal, external, affinity), (ip, outside, vips), ports, endpoints, ranged) = service?;
        let named = |(i, (port, protocol, node_port)): (usize, &(u16, &str, u16))| {
            json!({"name": format!("p{i}"), "port": port, "protocol": protocol, "nodePort": node_port})
        };
        let policy = |local: bool| if local { "Local" } else { "Cluster" };
        let ips = |net: &str, bytes: &[u8]| -> Vec<String> { bytes.iter().map(|b| format!("{net}.{b}")).collect() };
        // An address of one's own, one that a load balancer may have, too, and one of some Service.
        let foreign = |byte: &u8| {
            let all = [
                ["198.51.100.1", "2001:db8:1::1"],
                ["203.0.113.2", "2001:db8:2::2"],
                ["10.96.0.3", "fd01::3"],
            ];
            all[usize::from(byte % 3)]
        };
        let spec = json!({
            "type": kind, "clusterIP": format!("10.96.0.{ip}"), "clusterIPs": [format!("10.96.0.{ip}"), format!("fd01::{ip}")],
            "externalIPs": outside.iter().flat_map(foreign).collect::<Vec<&str>>(),
            "internalTrafficPolicy": policy(internal), "externalTrafficPolicy": policy(external),
            "sessionAffinity": if affinity.is_some() { "ClientIP" } else { "None" },
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": affinity}},
            "loadBalancerSourceRanges": if ranged { json!(["192.168.0.0/16", "192.168.9.0/24", "10.9.8.0/21", "fd08::/64", "fd09::/61"]) } else { json!([]) },
            "ports": ports.iter().enumerate().map(named).collect::<Vec<Value>>(),
        });
        let ingress: Vec<Value> = ips("203.0.113", &vips)
            .into_iter()
            .chain(vips.iter().map(|byte| format!("2001:db8:2::{byte}")))
            .map(|ip| json!({"ip": ip}))
            .collect();
        let endpoint = |(byte, here, state, hint): &(u8, bool, u8, Option<bool>)| {
            let zone = |a: bool| if a { "a" } else { "b" };
            let mut both = vec![json!({"addresses": [format!("10.244.0.{byte}")]}), json!({"addresses": [format!("fd00::{byte}")]})];
            for endpoint in &mut both {
                endpoint["nodeName"] = json!(if *here { "n1" } else { "n2" });
                endpoint["conditions"] = json!({"ready": *state == 0, "serving": *state < 2, "terminating": *state == 1});
                if let Some(a) = hint {
                    endpoint["hints"] = json!({"forZones": [{"name": zone(*a)}]});
                }
            }
            both
        };
        let slice_ports: Vec<Value> = ports
            .iter()
            .enumerate()
            .map(|(i, (_, protocol, _))| json!({"name": format!("p{i}"), "port": 8080 + i, "protocol": protocol}))
            .collect();
        let slice = json!({"endpoints": endpoints.iter().flat_map(endpoint).collect::<Vec<Value>>(), "ports": slice_ports});
        Some(rules(name, spec, json!({"loadBalancer": {"ingress": ingress}}), slice))
    })
}

/// A history: each step changes one or more of four Services.
pub fn any_history() -> impl Strategy<Value = Vec<Vec<Change>>> {
    let change = |name: &'static str| any_rules(name).prop_map(move |rules| (Key::new("default", name), rules));
    let any = prop_oneof![change("a"), change("b"), change("c"), change("d")];
    let step = prop::collection::vec(any, 1..4).prop_map(|changes| {
        // Of one Service there is one change a step.
        changes.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect()
    });
    prop::collection::vec(step, 1..8)
}
