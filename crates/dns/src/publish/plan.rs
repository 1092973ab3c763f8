//! What of the Service `kube-dns` and its slices should be written, from what there is.
//!
//! Each process has a slice of its own, which belongs to its Node and goes with it. While a Node's health is not
//! known, whoever else is alive takes its slice out of the traffic; its own process puts it back in when the
//! Node is heard of again. So they do not write against each other, and the last one is never taken out. A process
//! that was killed beside a kubelet that lives is found out by its Lease, which it renews.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};
use stdx::clock::Instant;

/// The namespace and the name of the Service: where everybody looks for it.
pub const NAMESPACE: &str = "kube-system";
/// Where the Leases are: not beside those by which controllers and schedulers are led, so that who may write these
/// may write no others.
pub const LEASES: &str = "kube-public";
pub const SERVICE: &str = "kube-dns";
/// Who writes the slices.
pub const MANAGER: &str = "dns.pintle.dev";
/// The label that says so.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// Where this process is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    pub node: String,
    pub address: IpAddr,
    pub udp: u16,
    pub tcp: u16,
    /// Absent when metrics are not served.
    pub metrics: Option<u16>,
    /// The address that the Service is to have.
    pub cluster_ip: IpAddr,
}

/// A Node, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub uid: String,
    pub zone: Option<String>,
    /// Nothing has been heard of it, or of its DNS, for long.
    pub is_unknown: bool,
}

/// What there is.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub service: Option<Value>,
    pub nodes: BTreeMap<String, Node>,
    /// Those of all processes, by name.
    pub slices: BTreeMap<String, Value>,
    /// This process can answer.
    pub is_ready: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    CreateService(Value),
    CreateSlice(Value),
    UpdateSlice(Value),
    DeleteSlice(String),
}

/// The name of the slice of a node's process.
pub fn slice_name(node: &str) -> String {
    let name = format!("{SERVICE}-{node}");
    let end = name.char_indices().nth(253).map_or(name.len(), |(at, _)| at);
    name[..end].trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// True when the Service is somebody else's DNS: it chooses pods.
fn is_foreign(service: &Value) -> bool {
    service["spec"]["selector"].as_object().is_some_and(|selector| !selector.is_empty())
}

/// What cannot be written because somebody else has: told to whoever looks after the cluster.
pub fn conflicts(own: &Own, seen: &Seen, is_name_taken: bool) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(service) = seen.service.as_ref().filter(|service| !is_foreign(service)) {
        let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
        if address.parse() != Ok(own.cluster_ip) {
            out.push(format!(
                "pods are to ask {}, and this Service has the address {address:?}, which cannot be changed: once it is \
                 deleted it is made anew",
                own.cluster_ip
            ));
        }
    }
    if is_name_taken && !seen.slices.contains_key(&slice_name(&own.node)) {
        out.push(format!(
            "the EndpointSlice {} is not ours, as it has no label {MANAGED_BY}={MANAGER}: until it is deleted no \
             questions are led to the DNS of node {}",
            slice_name(&own.node),
            own.node
        ));
    }
    out
}

/// The Lease by which others know that the process of a node lives.
pub fn lease(own: &Own, node: &Node, renewed: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": slice_name(&own.node),
            "namespace": LEASES,
            "labels": {"k8s-app": "kube-dns", MANAGED_BY: MANAGER},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": own.node, "uid": node.uid}],
        },
        "spec": {"holderIdentity": own.node, "leaseDurationSeconds": SILENT.as_secs(), "renewTime": renewed},
    })
}

/// For how long a process may not be heard of before others take its slice out: what Nodes have.
pub const SILENT: Duration = Duration::from_secs(40);

/// When the processes of other nodes were heard of, by our own clock: theirs may be wrong.
#[derive(Debug, Default)]
pub struct Heard(BTreeMap<String, (String, Instant)>);

impl Heard {
    /// Takes note of the Leases that there are; those nodes whose process has been silent for too long. Of a process
    /// without a Lease nothing is known.
    pub fn silent<'a>(&mut self, leases: impl Iterator<Item = &'a Value>, now: Instant) -> BTreeSet<String> {
        let mut before = std::mem::take(&mut self.0);
        for lease in leases {
            let spec = &lease["spec"];
            let (Some(node), Some(renewed)) = (spec["holderIdentity"].as_str(), spec["renewTime"].as_str()) else {
                continue;
            };
            let known = before.remove(node).filter(|(last, _)| last == renewed);
            self.0.insert(node.to_owned(), known.unwrap_or_else(|| (renewed.to_owned(), now)));
        }
        let silent = self.0.iter().filter(|(_, (_, at))| now.since(*at) >= SILENT);
        silent.map(|(node, _)| node.clone()).collect()
    }
}

/// What should be written now.
pub fn plan(own: &Own, seen: &Seen) -> Vec<Action> {
    let name = slice_name(&own.node);
    let existing = seen.slices.get(&name);
    let mut out = Vec::new();
    match &seen.service {
        Some(service) if is_foreign(service) => {
            out.extend(existing.map(|_| Action::DeleteSlice(name)));
            return out;
        }
        Some(_) => {}
        None => out.push(Action::CreateService(service(own))),
    }
    // Without its Node nobody would remove the slice.
    if let Some(node) = seen.nodes.get(&own.node) {
        let was_ready = existing.is_some_and(is_ready);
        let ready = seen.is_ready && (was_ready || !node.is_unknown);
        let wanted = slice(own, node, ready);
        match existing {
            None => out.push(Action::CreateSlice(wanted)),
            Some(existing) if existing["addressType"] != wanted["addressType"] => out.push(Action::DeleteSlice(name)),
            Some(existing) if essence(existing) != essence(&wanted) => {
                out.push(Action::UpdateSlice(with_revision(wanted, existing)));
            }
            Some(_) => {}
        }
    }
    // Not while nobody hears of ourselves: two such would take each other out.
    let is_heard_of = seen.nodes.get(&own.node).is_some_and(|node| !node.is_unknown);
    if seen.is_ready && is_heard_of {
        let unknown: BTreeSet<&str> =
            seen.nodes.iter().filter(|(_, n)| n.is_unknown).map(|(n, _)| n.as_str()).collect();
        for slice in seen.slices.values().filter(|slice| is_ready(slice)) {
            let node = slice["endpoints"][0]["nodeName"].as_str().unwrap_or_default();
            if node != own.node && unknown.contains(node) {
                let mut slice = slice.clone();
                slice["endpoints"][0]["conditions"] = conditions(false);
                out.push(Action::UpdateSlice(slice));
            }
        }
    }
    out
}

fn is_ready(slice: &Value) -> bool {
    slice["endpoints"][0]["conditions"]["ready"] == true
}

fn conditions(ready: bool) -> Value {
    json!({"ready": ready, "serving": ready, "terminating": false})
}

fn service(own: &Own) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": SERVICE,
            "namespace": NAMESPACE,
            "labels": {
                "k8s-app": "kube-dns",
                "kubernetes.io/cluster-service": "true",
                "kubernetes.io/name": "CoreDNS",
            },
            "annotations": {"prometheus.io/port": "9153", "prometheus.io/scrape": "true"},
        },
        "spec": {
            "clusterIP": own.cluster_ip.to_string(),
            "trafficDistribution": "PreferSameNode",
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
                {"name": "metrics", "port": 9153, "protocol": "TCP", "targetPort": 9153},
            ],
        },
    })
}

fn slice(own: &Own, node: &Node, ready: bool) -> Value {
    let mut ports = vec![
        json!({"name": "dns", "port": own.udp, "protocol": "UDP"}),
        json!({"name": "dns-tcp", "port": own.tcp, "protocol": "TCP"}),
    ];
    ports.extend(own.metrics.map(|port| json!({"name": "metrics", "port": port, "protocol": "TCP"})));
    let mut endpoint = json!({
        "addresses": [own.address.to_string()],
        "conditions": conditions(ready),
        "nodeName": own.node,
        "hints": {"forNodes": [{"name": own.node}]},
    });
    if let Some(zone) = &node.zone {
        endpoint["zone"] = json!(zone);
        endpoint["hints"]["forZones"] = json!([{"name": zone}]);
    }
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": slice_name(&own.node),
            "namespace": NAMESPACE,
            "labels": {"k8s-app": "kube-dns", "kubernetes.io/service-name": SERVICE, MANAGED_BY: MANAGER},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": own.node, "uid": node.uid}],
        },
        "addressType": if own.address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [endpoint],
        "ports": ports,
    })
}

fn with_revision(mut wanted: Value, existing: &Value) -> Value {
    wanted["metadata"]["resourceVersion"] = existing["metadata"]["resourceVersion"].clone();
    wanted
}

/// What is compared: what we write, without what the server adds.
fn essence(slice: &Value) -> Value {
    let ports: Vec<Value> = slice["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|port| json!([port["name"], port["protocol"], port["port"]]))
        .collect();
    let endpoints = &slice["endpoints"];
    let owners: Vec<&Value> =
        slice["metadata"]["ownerReferences"].as_array().into_iter().flatten().map(|owner| &owner["uid"]).collect();
    let labels = &slice["metadata"]["labels"];
    json!({"ports": ports, "endpoints": endpoints, "owners": owners, "labels": labels})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Own {
        let [address, cluster_ip] = ["192.168.1.2", "10.96.0.10"].map(|text| text.parse().expect("an address"));
        Own { node: "a".into(), address, udp: 10053, tcp: 10054, metrics: Some(9153), cluster_ip }
    }

    fn node(uid: &str, is_unknown: bool) -> Node {
        Node { uid: uid.into(), zone: None, is_unknown }
    }

    fn seen() -> Seen {
        let nodes = BTreeMap::from([("a".into(), node("u-a", false)), ("b".into(), node("u-b", false))]);
        Seen { service: Some(service(&own())), nodes, slices: BTreeMap::new(), is_ready: true }
    }

    fn slice_of(name: &str, uid: &str, ready: bool) -> Value {
        let mut out = slice(&Own { node: name.into(), ..own() }, &node(uid, false), ready);
        out["metadata"]["resourceVersion"] = json!("7");
        // What the server adds.
        out["metadata"]["uid"] = json!("x");
        out["ports"][0]["appProtocol"] = Value::Null;
        out
    }

    fn told(own: &Own, seen: &Seen) -> Vec<String> {
        let one = |action: &Action| match action {
            Action::CreateService(s) => format!("service {}", s["spec"]["clusterIP"]),
            Action::CreateSlice(s) => format!("create {} {}", s["metadata"]["name"], is_ready(s)),
            Action::UpdateSlice(s) => {
                assert_eq!(s["metadata"]["resourceVersion"], "7");
                format!("update {} {}", s["metadata"]["name"], is_ready(s))
            }
            Action::DeleteSlice(name) => format!("delete {name}"),
        };
        plan(own, seen).iter().map(one).collect()
    }

    #[test]
    fn what_is_written() {
        type Row = (&'static str, fn(&mut Seen), &'static [&'static str]);
        fn with(seen: &mut Seen, slice: Value) {
            let name = slice["metadata"]["name"].as_str().expect("a name").to_owned();
            seen.slices.insert(name, slice);
        }
        let rows: &[Row] = &[
            ("nothing is there", |seen| seen.service = None, &["service \"10.96.0.10\"", "create \"kube-dns-a\" true"]),
            ("the Service is there", |_| {}, &["create \"kube-dns-a\" true"]),
            ("all is well", |seen| with(seen, slice_of("a", "u-a", true)), &[]),
            ("not ready yet", |seen| seen.is_ready = false, &["create \"kube-dns-a\" false"]),
            (
                "not ready any more",
                |seen| {
                    seen.is_ready = false;
                    with(seen, slice_of("a", "u-a", true));
                    // Who cannot answer does not judge others.
                    seen.nodes.insert("b".into(), node("u-b", true));
                    with(seen, slice_of("b", "u-b", true));
                },
                &["update \"kube-dns-a\" false"],
            ),
            ("ready now", |seen| with(seen, slice_of("a", "u-a", false)), &["update \"kube-dns-a\" true"]),
            ("the Node is not there", |seen| drop(seen.nodes.remove("a")), &[]),
            (
                "another Node of that name",
                |seen| with(seen, slice_of("a", "old", true)),
                &["update \"kube-dns-a\" true"],
            ),
            (
                "another address",
                |seen| {
                    let mut slice = slice_of("a", "u-a", true);
                    slice["endpoints"][0]["addresses"] = json!(["10.0.0.1"]);
                    with(seen, slice);
                },
                &["update \"kube-dns-a\" true"],
            ),
            (
                "an address of the other family",
                |seen| {
                    let mut slice = slice_of("a", "u-a", true);
                    slice["addressType"] = json!("IPv6");
                    with(seen, slice);
                },
                &["delete kube-dns-a"],
            ),
            (
                "somebody else's DNS",
                |seen| {
                    seen.service = Some(json!({"spec": {"selector": {"k8s-app": "kube-dns"}}}));
                    with(seen, slice_of("a", "u-a", true));
                },
                &["delete kube-dns-a"],
            ),
            (
                "another node is not heard of",
                |seen| {
                    with(seen, slice_of("a", "u-a", true));
                    with(seen, slice_of("b", "u-b", true));
                    seen.nodes.insert("b".into(), node("u-b", true));
                },
                &["update \"kube-dns-b\" false"],
            ),
            (
                "it has been taken out",
                |seen| {
                    with(seen, slice_of("a", "u-a", true));
                    with(seen, slice_of("b", "u-b", false));
                    seen.nodes.insert("b".into(), node("u-b", true));
                },
                &[],
            ),
            (
                "our own node is not heard of: nobody takes themselves out",
                |seen| {
                    with(seen, slice_of("a", "u-a", true));
                    seen.nodes.insert("a".into(), node("u-a", true));
                },
                &[],
            ),
            (
                "nobody is heard of: they do not take each other out",
                |seen| {
                    with(seen, slice_of("a", "u-a", true));
                    with(seen, slice_of("b", "u-b", true));
                    seen.nodes.insert("a".into(), node("u-a", true));
                    seen.nodes.insert("b".into(), node("u-b", true));
                },
                &[],
            ),
            (
                "somebody else took us out: not in again before the Node is heard of",
                |seen| {
                    with(seen, slice_of("a", "u-a", false));
                    seen.nodes.insert("a".into(), node("u-a", true));
                },
                &[],
            ),
        ];
        for (case, change, want) in rows {
            let mut seen = seen();
            change(&mut seen);
            assert_eq!(told(&own(), &seen), *want, "{case}");
        }
    }

    #[test]
    fn who_is_silent_for_long_is_not_heard_of() {
        let own = |node: &str| Own { node: node.into(), ..own() };
        let renewed = |name: &str, at: &str| lease(&own(name), &node("u", false), at);
        let mut heard = Heard::default();
        for (second, b, c, want) in [
            (0, Some("1"), Some("9"), &[][..]),
            (39, Some("2"), Some("9"), &[]),
            // By which clock they tell the time does not matter, as long as they tell another one.
            (40, Some("2"), Some("9"), &["c"]),
            (45, Some("2"), Some("0"), &[]),
            (79, Some("2"), None, &["b"]),
            (80, None, Some("0"), &[]),
        ] {
            let leases: Vec<Value> =
                [("b", b), ("c", c)].iter().filter_map(|(name, at)| Some(renewed(name, (*at)?))).collect();
            let silent = heard.silent(leases.iter(), Instant(Duration::from_secs(second)));
            assert_eq!(silent.iter().map(String::as_str).collect::<Vec<_>>(), want, "{second}");
        }
    }

    #[test]
    fn what_somebody_else_has_is_told() {
        let is_told = |seen: &Seen, taken| {
            conflicts(&own(), seen, taken).iter().map(|why| why.contains("kube-dns-a")).collect::<Vec<_>>()
        };
        let mut seen = seen();
        assert!(is_told(&seen, false).is_empty());
        assert_eq!(is_told(&seen, true), [true], "the slice's name is taken");
        seen.slices.insert("kube-dns-a".into(), slice_of("a", "u-a", true));
        assert!(is_told(&seen, true).is_empty(), "it is ours now");
        seen.service = Some(json!({"spec": {"clusterIP": "10.96.0.53"}}));
        assert_eq!(is_told(&seen, false), [false], "another address");
        seen.service = Some(json!({"spec": {"clusterIP": "10.96.0.53", "selector": {"a": "b"}}}));
        assert!(is_told(&seen, false).is_empty(), "somebody else's DNS may be where it likes");
        seen.service = None;
        assert!(is_told(&seen, false).is_empty());
    }

    #[test]
    fn names_of_slices_are_names() {
        assert_eq!(slice_name("a"), "kube-dns-a");
        let long = slice_name(&format!("{}.{}", "x".repeat(243), "y".repeat(9)));
        assert_eq!((long.len(), long.ends_with('x')), (252, true));
    }
}
