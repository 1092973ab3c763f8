//! Clusters for tests: hand-made ones and any, and what the API says of a packet in them.

pub mod reference;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::types::networking::v1::NetworkPolicy;
use client::Key;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::model::policy::{self, Protocol};
use crate::model::{Labels, NamedPort, Pod, Rank};
use crate::nftables::table::Change;

/// A cluster as the API has it.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub namespaces: BTreeMap<String, Labels>,
    pub pods: BTreeMap<Key, Arc<Pod>>,
    pub policies: BTreeMap<Key, NetworkPolicy>,
}

/// What happens to one object.
#[derive(Clone, Debug)]
pub enum Step {
    Namespace(String, Option<Labels>),
    Pod(Key, Option<Arc<Pod>>),
    Policy(Key, Option<Box<NetworkPolicy>>),
}

impl World {
    /// Takes a step, and tells it as a change of rules.
    pub fn step(&mut self, step: &Step) -> Change {
        fn set<K: Ord + Clone, V: Clone>(all: &mut BTreeMap<K, V>, key: &K, value: Option<V>) {
            match value {
                Some(value) => drop(all.insert(key.clone(), value)),
                None => drop(all.remove(key)),
            }
        }
        match step {
            Step::Namespace(name, labels) => {
                set(&mut self.namespaces, name, labels.clone());
                Change::Namespace(name.clone(), labels.clone())
            }
            Step::Pod(key, pod) => {
                set(&mut self.pods, key, pod.clone());
                Change::Pod(key.clone(), pod.clone())
            }
            Step::Policy(key, spec) => {
                set(&mut self.policies, key, spec.as_deref().cloned());
                let read = spec.as_ref().map(|spec| Arc::new(policy::read(&key.namespace, spec)));
                Change::Policy(key.clone(), read)
            }
        }
    }
}

pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

/// A policy with this spec.
pub fn network_policy(spec: Value) -> NetworkPolicy {
    serde_json::from_value(json!({"metadata": {}, "spec": spec})).expect("a policy")
}

/// A change that makes one policy.
pub fn policy(namespace: &str, name: &str, spec: Value) -> Change {
    let read = policy::read(namespace, &network_policy(spec));
    Change::Policy(Key::new(namespace, name), Some(Arc::new(read)))
}

/// A change that makes one pod, with the ports `web` (TCP 80) and `dns` (UDP 53).
pub fn pod(namespace: &str, name: &str, pairs: &[(&str, &str)], addresses: &[&str], is_here: bool) -> Change {
    let port = |name: &str, protocol, number| (NamedPort { name: name.into(), protocol }, number);
    let pod = Pod {
        labels: labels(pairs),
        addresses: addresses.iter().map(|a| a.parse().expect("an address")).collect(),
        ports: vec![port("dns", Protocol::Udp, 53), port("web", Protocol::Tcp, 80)],
        is_here,
        rank: Rank::default(),
    };
    Change::Pod(Key::new(namespace, name), Some(Arc::new(pod)))
}

/// Hand-made tables by name.
pub fn golden() -> Vec<(&'static str, Vec<Change>)> {
    let shop = || {
        vec![
            Change::Namespace("shop".into(), Some(labels(&[("kubernetes.io/metadata.name", "shop")]))),
            Change::Namespace("ops".into(), Some(labels(&[("team", "ops")]))),
            pod("shop", "web-1", &[("app", "web")], &["10.244.0.7", "fd00::7"], true),
            pod("shop", "web-2", &[("app", "web")], &["10.244.1.7", "fd00::107"], false),
            pod("shop", "db", &[("app", "db")], &["10.244.0.8", "fd00::8"], true),
            pod("ops", "probe", &[("app", "probe")], &["10.244.0.9"], true),
        ]
    };
    let with = |policies: Vec<Change>| shop().into_iter().chain(policies).collect();
    vec![
        ("nothing", Vec::new()),
        ("no-policies", shop()),
        (
            "deny-all",
            with(vec![policy("shop", "deny", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))]),
        ),
        ("allow-all", with(vec![policy("shop", "all", json!({"podSelector": {}, "ingress": [{}], "egress": [{}]}))])),
        (
            "every-form",
            with(vec![policy(
                "shop",
                "forms",
                json!({
                    "podSelector": {"matchLabels": {"app": "db"}},
                    "policyTypes": ["Ingress", "Egress"],
                    "ingress": [
                        {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": 5432}, {"port": "web"}]},
                        {"from": [{"namespaceSelector": {"matchLabels": {"team": "ops"}}},
                            {"namespaceSelector": {}, "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "web"]}]}}]},
                        {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.1.2.0/24"]}}, {"ipBlock": {"cidr": "10.200.0.0/16"}}, {"ipBlock": {"cidr": "fd00::/64"}}],
                         "ports": [{"protocol": "UDP"}, {"protocol": "SCTP", "port": 7, "endPort": 9}, {"protocol": "UDP", "port": 53}]},
                    ],
                    "egress": [
                        {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 443}, {"port": 440, "endPort": 445}, {"port": 80}]},
                        {"ports": [{"protocol": "UDP", "port": "dns"}]},
                    ],
                }),
            )]),
        ),
        (
            "union",
            with(vec![
                policy("shop", "a", json!({"podSelector": {}})),
                policy(
                    "shop",
                    "b",
                    json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"ports": [{"port": 80}]}]}),
                ),
                policy(
                    "shop",
                    "c",
                    json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": [{"podSelector": {}}]}]}),
                ),
            ]),
        ),
    ]
}

fn any_labels() -> impl Strategy<Value = Labels> {
    let value = || prop::option::of(prop::sample::select(vec!["x", "y"]));
    (value(), value()).prop_map(|(a, b)| {
        let pairs = [a.map(|v| ("a", v)), b.map(|v| ("b", v))];
        labels(&pairs.into_iter().flatten().collect::<Vec<_>>())
    })
}

fn any_selector() -> impl Strategy<Value = Value> {
    let expression = (
        prop::sample::select(vec!["a", "b"]),
        prop::sample::select(vec!["In", "NotIn", "Exists", "DoesNotExist"]),
        prop::sample::select(vec![vec!["x"], vec!["x", "y"]]),
    );
    prop_oneof![
        Just(json!({})),
        any_labels().prop_map(|labels| json!({"matchLabels": labels})),
        expression.prop_map(|(key, operator, values)| {
            let values = if operator.ends_with("In") { json!(values) } else { Value::Null };
            json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
        }),
    ]
}

fn any_peer() -> impl Strategy<Value = Value> {
    let nets = vec![
        json!({"cidr": "0.0.0.0/0"}),
        json!({"cidr": "10.0.0.0/30"}),
        json!({"cidr": "10.0.0.0/29", "except": ["10.0.0.2/31", "10.0.0.3/32"]}),
        json!({"cidr": "192.0.2.0/24", "except": ["192.0.2.0/24"]}),
        json!({"cidr": "::/0", "except": ["fd00::2/127"]}),
        json!({"cidr": "fd00::/125"}),
    ];
    prop_oneof![
        any_selector().prop_map(|s| json!({"podSelector": s})),
        any_selector().prop_map(|s| json!({"namespaceSelector": s})),
        (any_selector(), any_selector()).prop_map(|(n, p)| json!({"namespaceSelector": n, "podSelector": p})),
        prop::sample::select(nets).prop_map(|net| json!({"ipBlock": net})),
    ]
}

fn any_port() -> impl Strategy<Value = Value> {
    let protocol = prop::sample::select(vec!["TCP", "UDP", "SCTP"]);
    let port = prop::sample::select(vec![
        json!({}),
        json!({"port": 80}),
        json!({"port": 79, "endPort": 81}),
        json!({"port": 81, "endPort": 90}),
        json!({"port": "web"}),
        json!({"port": "dns"}),
    ]);
    (protocol, port).prop_map(|(protocol, mut port)| {
        port["protocol"] = json!(protocol);
        port
    })
}

fn any_rules(peers: &'static str) -> impl Strategy<Value = Value> {
    let peer = prop::option::of(prop::collection::vec(any_peer(), 0..3));
    let ports = prop::option::of(prop::collection::vec(any_port(), 0..3));
    let rule = (peer, ports).prop_map(move |(peer, ports)| json!({peers: peer, "ports": ports}));
    prop::collection::vec(rule, 0..3).prop_map(Value::from)
}

fn any_policy() -> impl Strategy<Value = Value> {
    let types =
        prop::sample::select(vec![json!(null), json!(["Ingress"]), json!(["Egress"]), json!(["Ingress", "Egress"])]);
    (any_selector(), types, any_rules("from"), any_rules("to")).prop_map(|(pods, types, ingress, egress)| {
        json!({"podSelector": pods, "policyTypes": types, "ingress": ingress, "egress": egress})
    })
}

fn any_pod() -> impl Strategy<Value = Pod> {
    let port = (prop::sample::select(vec!["web", "dns"]), prop::sample::select(vec![80_u16, 81]), any::<bool>());
    let ports = prop::collection::vec(port, 0..3);
    (any_labels(), 1_u8..7, any::<bool>(), any::<bool>(), ports, 0_i64..3).prop_map(
        |(labels, byte, both, is_here, ports, created)| {
            let v4: IpAddr = [10, 0, 0, byte].into();
            let v6: IpAddr = format!("fd00::{byte}").parse().expect("an address");
            let mut ports: Vec<_> = ports
                .into_iter()
                .map(|(name, number, tcp)| {
                    let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
                    (NamedPort { name: name.into(), protocol }, number)
                })
                .collect();
            ports.sort();
            ports.dedup();
            let rank = Rank { created: std::cmp::Reverse(created), ..Rank::default() };
            Pod { labels, addresses: if both { vec![v4, v6] } else { vec![v4] }, ports, is_here, rank }
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let namespace = || prop::sample::select(vec!["n1", "n2"]);
    let gone = 0.85;
    prop_oneof![
        1 => (namespace(), prop::option::weighted(gone, any_labels()))
            .prop_map(|(name, labels)| Step::Namespace(name.into(), labels)),
        4 => (namespace(), 0_u8..4, prop::option::weighted(gone, any_pod()))
            .prop_map(|(ns, i, pod)| Step::Pod(Key::new(ns, format!("p{i}")), pod.map(Arc::new))),
        4 => (namespace(), 0_u8..3, prop::option::weighted(gone, any_policy())).prop_map(|(ns, i, spec)| {
            Step::Policy(Key::new(ns, format!("np{i}")), spec.map(|spec| Box::new(network_policy(spec))))
        }),
    ]
}

/// A history: each item is one transaction, in which each object changes once at most.
pub fn any_history() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let whose = |step: &Step| match step {
        Step::Namespace(name, _) => (0, Key::new("", name.clone())),
        Step::Pod(key, _) => (1, key.clone()),
        Step::Policy(key, _) => (2, key.clone()),
    };
    let once = prop::collection::vec(any_step(), 1..6).prop_map(move |steps| {
        steps.into_iter().map(|step| (whose(&step), step)).collect::<BTreeMap<_, _>>().into_values().collect()
    });
    prop::collection::vec(once, 1..8)
}
