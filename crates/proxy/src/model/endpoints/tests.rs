//! Which endpoints of a Service get its packets, from slices as they come.

use super::*;
use serde_json::{Value, json};

const HERE: &str = "n1";

fn here(zone: Option<&str>) -> Here {
    Here { name: HERE.into(), zone: zone.map(str::to_owned) }
}

/// Endpoints in one word each: last byte of the address, `@` node, then letters: `n` not ready, `t`
/// terminating and serving, `d` terminating and not serving, `zX` a hint for zone X, `hX` one for node X.
fn slice(words: &str) -> EndpointSlice {
    let endpoint = |word: &str| -> Value {
        let mut parts = word.split('/');
        let (byte, node) = parts.next().and_then(|p| p.split_once('@')).expect("byte@node");
        let mut endpoint = json!({"addresses": [format!("10.244.0.{byte}")], "nodeName": node, "conditions": {}});
        for part in parts {
            match part.split_at(1) {
                ("n", "") => endpoint["conditions"] = json!({"ready": false, "serving": false}),
                ("t", "") => endpoint["conditions"] = json!({"ready": false, "serving": true, "terminating": true}),
                ("d", "") => endpoint["conditions"] = json!({"ready": false, "serving": false, "terminating": true}),
                ("z", zone) => endpoint["hints"]["forZones"] = json!([{"name": zone}]),
                ("h", node) => endpoint["hints"]["forNodes"] = json!([{"name": node}]),
                other => panic!("{other:?}"),
            }
        }
        endpoint
    };
    let endpoints: Vec<Value> = words.split_whitespace().map(endpoint).collect();
    serde_json::from_value(json!({"endpoints": endpoints, "ports": [{"name": "p", "port": 80}]})).expect("a slice")
}

fn bytes(addresses: &[SocketAddr]) -> String {
    let bytes: Vec<String> =
        addresses.iter().map(|a| a.ip().to_string().rsplit('.').next().unwrap_or_default().to_owned()).collect();
    bytes.join(" ")
}

fn chosen(words: &str, zone: Option<&str>, used: Use) -> Endpoints {
    choose(std::iter::once(&slice(words)), ("p", Protocol::Tcp), Family::Ip, used, &here(zone))
}

/// Endpoints → for the policy Cluster, for Local, and whether any node has one.
#[test]
fn who_is_chosen() {
    let both = Use { cluster: true, local: true };
    for (words, zone, cluster, local, any) in [
        ("", None, "", "", false),
        ("1@n1 2@n2", None, "1 2", "1", true),
        ("1@n1/n 2@n2", None, "2", "", true),
        ("1@n1/n 2@n2/n", None, "", "", false),
        // About to end: only where nobody else is, for each policy by itself.
        ("1@n1/t 2@n2", None, "2", "1", true),
        ("1@n1/t 2@n2/t", None, "1 2", "1", true),
        ("1@n1/d 2@n2/d", None, "", "", false),
        ("1@n1/t 3@n1 2@n2/t", None, "3", "3", true),
        // Hints of zones: all ready ones have them and one is for here.
        ("1@n1/za 2@n2/zb", Some("a"), "1", "1", true),
        ("1@n1/za 2@n2/zb", Some("b"), "2", "1", true),
        ("1@n1/za 2@n2/zb", Some("c"), "1 2", "1", true),
        ("1@n1/za 2@n2/zb", None, "1 2", "1", true),
        ("1@n1/za 2@n2", Some("a"), "1 2", "1", true),
        ("1@n1/za 2@n2/n", Some("a"), "1", "1", true),
        // Hints of nodes come before those of zones.
        ("1@n1/za/hn1 2@n2/za/hn2", Some("a"), "1", "1", true),
        ("2@n2/za/hn2 3@n3/za/hn3", Some("a"), "2 3", "", true),
        ("2@n2/za/hn2 3@n3/zb/hn3", Some("a"), "2", "", true),
        ("1@n1/hn1 2@n2", Some("a"), "1 2", "1", true),
    ] {
        let got = chosen(words, zone, both);
        let shown = (bytes(&got.cluster), bytes(&got.local), got.any);
        assert_eq!(shown, (cluster.to_owned(), local.to_owned(), any), "{words} in {zone:?}");
    }
}

#[test]
fn what_nobody_uses_is_left_out_and_those_here_are_among_the_chosen() {
    let words = "1@n1/za 2@n2/zb 3@n1/n";
    let got = chosen(words, Some("b"), Use { cluster: true, local: false });
    assert_eq!((bytes(&got.cluster), bytes(&got.local), bytes(&got.here)), ("2".into(), String::new(), String::new()));
    let got = chosen(words, Some("b"), Use { cluster: false, local: true });
    assert_eq!((bytes(&got.cluster), bytes(&got.local), bytes(&got.here)), (String::new(), "1".into(), "1".into()));
}

#[test]
fn in_two_slices_the_better_counts_once() {
    let slices = [slice("1@n1/n 2@n1"), slice("1@n1 2@n1/t")];
    let used = Use { cluster: true, local: true };
    let got = choose(slices.iter(), ("p", Protocol::Tcp), Family::Ip, used, &here(None));
    assert_eq!(bytes(&got.cluster), "1 2");
}

#[test]
fn other_ports_protocols_and_families_are_not_taken() {
    let slice = slice("1@n1");
    let used = Use { cluster: true, local: false };
    for (port, family, found) in [
        (("p", Protocol::Tcp), Family::Ip, "1"),
        (("q", Protocol::Tcp), Family::Ip, ""),
        (("p", Protocol::Udp), Family::Ip, ""),
        (("p", Protocol::Tcp), Family::Ip6, ""),
    ] {
        let got = choose(std::iter::once(&slice), port, family, used, &here(None));
        assert_eq!(bytes(&got.cluster), found, "{port:?} {family:?}");
    }
}

#[test]
fn of_udp_it_is_known_who_answers() {
    let mut slice = slice("1@n1 2@n2/t 3@n2/n 4@n2/d");
    slice.ports[0].protocol = Some("UDP".into());
    let used = Use { cluster: true, local: false };
    let got = choose(std::iter::once(&slice), ("p", Protocol::Udp), Family::Ip, used, &here(None));
    assert_eq!((bytes(&got.cluster), bytes(&got.serving)), ("1".into(), "1 2".into()));
}

#[test]
fn health_checks_count_addresses_that_are_ready_here() {
    let slices = [slice("1@n1 2@n2 3@n1/n 4@n1/t"), slice("1@n1 5@n1")];
    assert_eq!(local_ready(slices.iter(), Family::Ip, &here(None)), 2);
}

#[test]
fn an_empty_slice_as_the_api_prints_it_is_read() {
    let slice: EndpointSlice = serde_json::from_value(json!({ "endpoints": null, "ports": null })).expect("read");
    assert!(slice.endpoints.is_empty() && slice.ports.is_empty());
    let odd = json!({ "endpoints": [{"addresses": ["example.org"]}, {"addresses": null}, {}], "ports": [{"port": 0}] });
    let odd: EndpointSlice = serde_json::from_value(odd).expect("read");
    assert!(odd.endpoints.iter().all(|e| e.address.is_none()));
}
