//! Packets decide: real connections between network namespaces show what policies let through, whatever
//! their rules look like.

mod world;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use api::types::networking::v1::NetworkPolicy;
use client::Key;
use net::nft::{Kernel, Nft};
use policy::model::policy::{Protocol, read};
use policy::model::{NamedPort, Pod, Rank};
use policy::nftables::apply::Applied;
use policy::nftables::table::Change;
use serde_json::{Value, json};
use stdx::clock::RealClock;
use world::{Talk, allowed, denied, run, within};

/// Set inside the test's own namespaces.
const INSIDE: &str = "PINTLE_POLICY_PACKETS";

const P1: &str = "10.244.0.2:8080";
const P2: &str = "10.244.0.3:8080";
const P3: &str = "10.244.1.2:8080";
const OUT: &str = "192.168.9.100:8080";
const NODE: &str = "192.168.9.1:8080";

#[test]
#[ignore = "needs root: ./dev test runs it"]
fn packets() {
    if !namespaces::is_inside(INSIDE, "packets", namespaces::Own::NetworkAndMounts) {
        return;
    }
    world::build();
    let mut node = Node::new();
    for (name, check) in CHECKS {
        println!("packets: {name}");
        check(&mut node);
        node.set(&[]);
        world::control();
    }
    node.cleanup();
}

type Check = fn(&mut Node);

const CHECKS: &[(&str, Check)] = &[
    ("no policies", nothing),
    ("nobody in", nobody_in),
    ("nobody out", nobody_out),
    ("both ends decide", both_ends),
    ("pods and namespaces", selectors),
    ("networks and exceptions", networks),
    ("ports", ports),
    ("protocols without ports", protocols),
    ("several policies", union),
    ("Services", services),
    ("connections there are", established),
    ("pods that change", pods_change),
    ("both families", both_families),
];

/// The rules of node n1.
struct Node {
    runtime: tokio::runtime::Runtime,
    kernel: Arc<Nft>,
    applied: Applied,
    policies: BTreeMap<Key, Value>,
}

/// A pod in the namespace `shop` (p3: `ops`) with its name as label.
fn pod(name: &str, last: &str, is_here: bool, more: &[(&str, &str)]) -> Change {
    let port = |name: &str, protocol, number| (NamedPort { name: name.into(), protocol }, number);
    let labels = [("app", name)].iter().chain(more).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let addresses = vec![
        format!("10.244.{last}").parse().expect("an address"),
        format!("fd00:0:0:{}::{}", &last[..1], &last[2..]).parse().expect("an address"),
    ];
    // Each pod calls another port "web".
    let ports = vec![port("web", Protocol::Tcp, if name == "p1" { 8081 } else { 8080 })];
    let pod = Pod { labels, addresses, ports, is_here, rank: Rank::default() };
    Change::Pod(Key::new(if name == "p3" { "ops" } else { "shop" }, name), Some(Arc::new(pod)))
}

impl Node {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let kernel = Arc::new(Nft::new(RealClock::shared()));
        let applied = Applied::new(kernel.clone());
        let mut node = Self { runtime, kernel, applied, policies: BTreeMap::new() };
        let namespace = |name: &str| {
            let labels = BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), name.to_owned())]);
            Change::Namespace(name.into(), Some(labels))
        };
        node.change(vec![
            namespace("shop"),
            namespace("ops"),
            pod("p1", "0.2", true, &[]),
            pod("p2", "0.3", true, &[]),
            pod("p3", "1.2", false, &[]),
        ]);
        node
    }

    fn change(&mut self, changes: Vec<Change>) {
        let Self { runtime, applied, .. } = self;
        within("n1", || runtime.block_on(applied.change(&changes)).expect("taken"));
        assert!(applied.refused().is_empty(), "{:?}", applied.refused());
    }

    /// These policies of the namespace `shop` and no others.
    fn set(&mut self, specs: &[Value]) {
        let policies: BTreeMap<Key, Value> =
            specs.iter().enumerate().map(|(i, spec)| (Key::new("shop", format!("p{i}")), spec.clone())).collect();
        let keys: Vec<Key> = self.policies.keys().chain(policies.keys()).cloned().collect();
        let mut changes = BTreeMap::new();
        for key in keys {
            let policy = policies.get(&key).map(|spec| {
                let policy: NetworkPolicy = serde_json::from_value(json!({"spec": spec})).expect("a policy");
                Arc::new(read(&key.namespace, &policy))
            });
            changes.insert(key.clone(), Change::Policy(key, policy));
        }
        self.policies = policies;
        self.change(changes.into_values().collect());
    }

    fn cleanup(&self) {
        within("n1", || {
            self.runtime.block_on(self.kernel.apply(&policy::cleanup())).expect("removed");
            let left = Command::new("nft").args(["list", "ruleset"]).output().expect("nft runs");
            assert!(!String::from_utf8_lossy(&left.stdout).contains("pintle-policy"));
        });
        allowed(&[("p2", P1)]);
    }
}

/// A policy about one pod.
fn about(app: &str, more: Value) -> Value {
    let mut spec = json!({"podSelector": {"matchLabels": {"app": app}}});
    for (key, value) in more.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    spec
}

fn nothing(_: &mut Node) {
    allowed(&[("p2", P1), ("p3", P1), ("out", P1), ("n1", P1), ("p1", P3), ("p1", OUT), ("p1", NODE)]);
    allowed(&[("p2", "udp:10.244.0.2:5353"), ("p2", "ping:10.244.0.2")]);
}

fn nobody_in(node: &mut Node) {
    node.set(&[about("p1", json!({}))]);
    denied(&[("p2", P1), ("p3", P1), ("out", P1), ("p2", "udp:10.244.0.2:5353"), ("p3", "ping:10.244.0.2")]);
    // Its node may, it may speak to others and is answered, and others are not concerned.
    allowed(&[("n1", P1), ("n1", "ping:10.244.0.2"), ("p1", P2), ("p1", P3), ("p1", OUT), ("p1", "ping:10.244.0.3")]);
    allowed(&[("p2", P3), ("out", P2), ("p3", P2)]);
}

fn nobody_out(node: &mut Node) {
    node.set(&[about("p1", json!({"policyTypes": ["Egress"]}))]);
    denied(&[("p1", P2), ("p1", P3), ("p1", OUT), ("p1", "udp:10.244.0.3:5353"), ("p1", "ping:192.168.9.100")]);
    allowed(&[("p2", P1), ("p3", P1), ("out", P1), ("n1", P1), ("p1", NODE), ("p2", "ping:10.244.0.2")]);
}

fn both_ends(node: &mut Node) {
    let out = about(
        "p1",
        json!({"egress": [{"to": [{"podSelector": {"matchLabels": {"app": "p2"}}}]}], "policyTypes": ["Egress"]}),
    );
    node.set(std::slice::from_ref(&out));
    allowed(&[("p1", P2)]);
    denied(&[("p1", P3)]);
    node.set(&[out.clone(), about("p2", json!({}))]);
    denied(&[("p1", P2)]);
    node.set(&[out, about("p2", json!({"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "p1"}}}]}]}))]);
    allowed(&[("p1", P2)]);
    denied(&[("p3", P2)]);
}

fn selectors(node: &mut Node) {
    let from = |peer: Value| about("p1", json!({"ingress": [{"from": [peer]}]}));
    let ops = json!({"matchLabels": {"kubernetes.io/metadata.name": "ops"}});
    let named = |app: &str| json!({"matchExpressions": [{"key": "app", "operator": "In", "values": [app, "x"]}]});
    for (peer, may) in [
        (json!({"podSelector": {}}), [true, false, false]),
        (json!({"podSelector": named("p2")}), [true, false, false]),
        (json!({"podSelector": named("p3")}), [false, false, false]),
        (json!({"namespaceSelector": {}}), [true, true, false]),
        (json!({"namespaceSelector": ops}), [false, true, false]),
        (json!({"namespaceSelector": ops, "podSelector": named("p3")}), [false, true, false]),
        (json!({"namespaceSelector": ops, "podSelector": named("p2")}), [false, false, false]),
        (json!({"ipBlock": {"cidr": "0.0.0.0/0"}}), [true, true, true]),
    ] {
        println!("         from {peer}");
        node.set(&[from(peer)]);
        for (client, may) in ["p2", "p3", "out"].into_iter().zip(may) {
            if may { allowed(&[(client, P1)]) } else { denied(&[(client, P1)]) }
        }
    }
    let all = json!({"ingress": [{}], "egress": [{}]});
    node.set(&[about("p1", all)]);
    allowed(&[("p2", P1), ("p3", P1), ("out", P1), ("p1", P2), ("p1", OUT)]);
}

fn networks(node: &mut Node) {
    let block = |cidr: &str, except: Value| json!({"ipBlock": {"cidr": cidr, "except": except}});
    let outside = block("192.168.9.0/24", json!(["192.168.9.0/26"]));
    node.set(&[about("p1", json!({"ingress": [{"from": [outside.clone()]}], "egress": [{"to": [outside]}]}))]);
    allowed(&[("out", P1), ("p1", OUT)]);
    denied(&[("p2", P1), ("p3", P1), ("p1", P2), ("p1", "192.168.9.2:8080")]);
    // Overlapping ones, and one whose exceptions leave nothing.
    let many = json!([
        block("192.168.0.0/16", json!(["192.168.9.96/28"])),
        block("192.168.9.0/28", json!([])),
        block("10.244.1.0/24", json!(["10.244.1.0/24"])),
        block("192.168.9.0/29", json!([]))
    ]);
    node.set(&[about("p1", json!({"ingress": [{"from": many}]}))]);
    denied(&[("out", P1), ("p3", P1)]);
    allowed(&[("n2", P1)]);
}

fn ports(node: &mut Node) {
    let open = |ports: Value| about("p1", json!({"ingress": [{"ports": ports}]}));
    let (other, far, udp) = ("10.244.0.2:8081", "10.244.0.2:9090", "udp:10.244.0.2:5353");
    node.set(&[open(json!([{"port": 8080}]))]);
    allowed(&[("p2", P1)]);
    denied(&[("p2", other), ("p2", far), ("p2", udp)]);
    node.set(&[open(json!([{"port": 8000, "endPort": 8081}, {"protocol": "UDP", "port": 5353}]))]);
    allowed(&[("p2", P1), ("p3", other), ("p2", udp)]);
    denied(&[("p2", far)]);
    // p1 calls 8081 "web", p2 8080.
    node.set(&[open(json!([{"port": "web"}]))]);
    allowed(&[("p2", other)]);
    denied(&[("p2", P1), ("p2", far)]);
    node.set(&[about("p1", json!({"egress": [{"ports": [{"port": "web"}]}], "policyTypes": ["Egress"]}))]);
    allowed(&[("p1", P2), ("p1", P3)]);
    denied(&[("p1", "10.244.0.3:8081"), ("p1", OUT)]);
    node.set(&[open(json!([{"protocol": "UDP"}]))]);
    allowed(&[("p2", udp)]);
    denied(&[("p2", P1), ("p2", "ping:10.244.0.2")]);
}

fn protocols(node: &mut Node) {
    node.set(&[about("p1", json!({"ingress": [{"from": [{"podSelector": {}}]}]}))]);
    allowed(&[("p2", "ping:10.244.0.2"), ("p2", P1), ("p2", "udp:10.244.0.2:5353")]);
    denied(&[("p3", "ping:10.244.0.2")]);
}

fn union(node: &mut Node) {
    let from = |app: &str, port: u16| {
        let peer = json!({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": app}}});
        about("p1", json!({"ingress": [{"from": [peer], "ports": [{"port": port}]}]}))
    };
    node.set(&[about("p1", json!({})), from("p2", 8080), from("p3", 9090)]);
    allowed(&[("p2", P1), ("p3", "10.244.0.2:9090")]);
    denied(&[("p3", P1), ("p2", "10.244.0.2:9090"), ("out", P1)]);
}

/// A Service address of p1, as a proxy translates it.
fn services(node: &mut Node) {
    let text = "table ip services {\n\
        chain pre {\n type nat hook prerouting priority -100\n ip daddr 10.96.0.10 tcp dport 80 dnat to 10.244.0.2:8080\n }\n\
        chain post {\n type nat hook postrouting priority 100\n ip saddr 10.244.0.2 ip daddr 10.244.0.2 masquerade\n }\n}\n";
    within("n1", || net::nft::run(text, net::nft::Mode::Apply)).expect("taken");
    let service = "10.96.0.10:80";
    let from = Talk::begin("p2", service, Duration::from_secs(10)).expect("reached").1;
    assert_eq!(from, "10.244.0.3", "the source is kept");
    // What counts is the pod and its port, not the Service's.
    let peer = json!({"podSelector": {"matchLabels": {"app": "p2"}}});
    node.set(&[about("p1", json!({"ingress": [{"from": [peer], "ports": [{"port": 8080}]}]}))]);
    allowed(&[("p2", service)]);
    node.set(&[about("p1", json!({"ingress": [{"ports": [{"port": 80}]}]}))]);
    denied(&[("p2", service)]);
    let egress =
        |cidr: &str| about("p2", json!({"egress": [{"to": [{"ipBlock": {"cidr": cidr}}]}], "policyTypes": ["Egress"]}));
    node.set(&[egress("10.96.0.0/12")]);
    denied(&[("p2", service)]);
    node.set(&[egress("10.244.0.2/32")]);
    allowed(&[("p2", service)]);
    // To itself through its Service, though nobody else may.
    node.set(&[about("p1", json!({"policyTypes": ["Ingress", "Egress"]}))]);
    allowed(&[("p1", service)]);
    denied(&[("p2", service)]);
    node.set(&[]);
    world::control();
    within("n1", || run("nft delete table ip services"));
}

fn established(node: &mut Node) {
    let mut inward = Talk::open("p2", P1);
    let mut outward = Talk::open("p1", P3);
    assert!(inward.goes_on() && outward.goes_on());
    // It answers, and is answered.
    node.set(&[about("p1", json!({"policyTypes": ["Ingress"]}))]);
    assert!(outward.goes_on(), "what it began goes on");
    assert!(inward.stands_still(), "what a later policy forbids does not");
    node.set(&[]);
    assert!(inward.goes_on(), "and goes on when it may again");
    node.set(&[about("p1", json!({"policyTypes": ["Egress"]}))]);
    assert!(outward.stands_still());
    node.set(&[about("p1", json!({"egress": [{"ports": [{"port": 8080}]}]}))]);
    assert!(outward.goes_on());
}

fn pods_change(node: &mut Node) {
    let peer = json!({"podSelector": {"matchLabels": {"role": "client"}}});
    node.set(&[about("p1", json!({"ingress": [{"from": [peer]}]}))]);
    denied(&[("p2", P1)]);
    node.change(vec![pod("p2", "0.3", true, &[("role", "client")])]);
    allowed(&[("p2", P1)]);
    node.change(vec![pod("p2", "0.3", true, &[])]);
    denied(&[("p2", P1)]);
    node.change(vec![Change::Pod(Key::new("shop", "p1"), None)]);
    allowed(&[("p2", P1)]);
    node.change(vec![pod("p1", "0.2", true, &[])]);
    denied(&[("p2", P1)]);
}

fn both_families(node: &mut Node) {
    let (p1, p2, out) = ("[fd00::2]:8080", "[fd00::3]:8080", "[fd09::100]:8080");
    allowed(&[("p2", p1), ("p3", p1), ("out", p1), ("p1", out)]);
    node.set(&[about("p1", json!({"policyTypes": ["Ingress", "Egress"]}))]);
    denied(&[("p2", p1), ("p3", p1), ("out", p1), ("p1", p2), ("p1", out), ("p2", "udp:[fd00::2]:5353")]);
    allowed(&[("n1", p1), ("n1", "ping:fd00::2")]);
    let block = json!({"ipBlock": {"cidr": "fd00::/16", "except": ["fd09::/64"]}});
    node.set(&[about(
        "p1",
        json!({"ingress": [{"from": [block]}], "egress": [{"to": [{"podSelector": {}}], "ports": [{"port": "web"}]}]}),
    )]);
    allowed(&[("p2", p1), ("p3", p1), ("p1", p2)]);
    denied(&[("out", p1), ("p1", out), ("p1", "[fd00::3]:8081"), ("out", P1), ("p2", P1)]);
}
