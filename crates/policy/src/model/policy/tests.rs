//! What is read of a policy.

use serde_json::{Value, json};

use super::*;
use crate::cases::network_policy;

fn shown(rules: Option<&[Rule]>) -> String {
    rules.map_or("none".into(), |rules| rules.len().to_string())
}

#[test]
fn types_are_as_the_api_defaults_them() {
    let one = json!([{}]);
    for (types, ingress, egress, want) in [
        (json!(null), json!(null), json!(null), "0 none"),
        (json!([]), json!([]), json!([]), "0 none"),
        (json!(null), one.clone(), json!(null), "1 none"),
        (json!(null), json!(null), one.clone(), "0 1"),
        (json!(["Ingress"]), one.clone(), one.clone(), "1 none"),
        (json!(["Egress"]), one.clone(), one.clone(), "none 1"),
        (json!(["Egress"]), json!(null), json!(null), "none 0"),
        (json!(["Ingress", "Egress"]), json!(null), one.clone(), "0 1"),
    ] {
        let spec = json!({"podSelector": {}, "policyTypes": types, "ingress": ingress, "egress": egress});
        let policy = read("n", &network_policy(spec.clone()));
        assert_eq!(
            format!("{} {}", shown(policy.rules(Direction::Ingress)), shown(policy.rules(Direction::Egress))),
            want,
            "{spec}"
        );
        assert_eq!(policy.closed().ingress.is_some(), policy.ingress.is_some());
    }
}

fn ports(ports: Value) -> String {
    let policy = read("n", &network_policy(json!({"podSelector": {}, "ingress": [{"ports": ports}]})));
    let rule = &policy.ingress.as_ref().expect("ingress")[0];
    let Some(ports) = &rule.ports else { return "any".into() };
    let whole = ports.whole.iter().map(|p| p.as_str().to_owned());
    let numbers = ports.numbers.iter().map(|(p, n)| format!("{}:{}", p.as_str(), n.numbers().join(",")));
    let named = ports.named.iter().map(|p| format!("{}:{}", p.protocol.as_str(), p.name));
    let mut all: Vec<String> = whole.chain(numbers).chain(named).collect();
    all.extend(policy.unreadable);
    all.join(" ")
}

#[test]
fn ports_are_joined_and_what_is_unreadable_is_told() {
    assert_eq!(ports(json!(null)), "any");
    assert_eq!(ports(json!([])), "any");
    assert_eq!(ports(json!([{}])), "tcp");
    assert_eq!(ports(json!([{"port": 80}, {"port": 81, "endPort": 90}, {"port": 85}])), "tcp:80-90");
    assert_eq!(
        ports(json!([{"port": 80}, {"protocol": "TCP"}, {"port": "web"}, {"protocol": "UDP", "port": "x"}])),
        "tcp udp:x"
    );
    assert_eq!(ports(json!([{"protocol": "SCTP", "port": 65535}])), "sctp:65535");
    assert_eq!(ports(json!([{"protocol": "DCCP", "port": 1}])), "protocol \"DCCP\" is not known");
    assert_eq!(ports(json!([{"port": 90, "endPort": 80}])), "90 to Some(80) are no ports");
    assert_eq!(ports(json!([{"port": 0}])), "0 to None are no ports");
}

#[test]
fn peers_that_mean_the_same_share_a_name() {
    let group = |namespace: &str, from: Value| {
        let policy = read(namespace, &network_policy(json!({"podSelector": {}, "ingress": [{"from": from}]})));
        let peers = policy.ingress.expect("ingress").remove(0).peers.expect("peers");
        peers.pods.map(|group| group.name.clone())
    };
    let (a, b) = (json!({"podSelector": {"matchLabels": {"a": "x"}}}), json!({"namespaceSelector": {}}));
    let ab = group("n", json!([a.clone(), b.clone()]));
    assert_eq!(ab, group("n", json!([b.clone(), a.clone(), a.clone()])));
    assert_ne!(ab, group("m", json!([a.clone(), b.clone()])), "a podSelector alone is about the policy's namespace");
    assert_eq!(group("n", json!([b.clone()])), group("m", json!([b])));
    assert_eq!(group("n", json!([{"ipBlock": {"cidr": "10.0.0.0/8"}}])), None);
    let label = |a: &str, b: &str| group("n", json!([{"podSelector": {"matchLabels": {a: b}}}]));
    assert_ne!(label("a", "bc"), label("ab", "c"));
}

#[test]
fn what_cannot_be_read_lets_nothing_through() {
    let spec = json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Weird"}]},
        "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/99"}}, {}, {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]}]});
    let policy = read("n", &network_policy(spec));
    assert_eq!(policy.unreadable.len(), 4, "{:?}", policy.unreadable);
    assert!(policy.pods.is_empty(), "whom it is about is not guessed too small");
    assert_eq!(policy.ingress.expect("ingress")[0].peers, Some(Peers::default()));
}
