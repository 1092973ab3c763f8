//! Addresses and ports of Services over HTTP: none is leaked by what fails, none is given twice, ranges come
//! and go, families follow their policies.

mod common;

use common::{Answer, Server};
use futures::future::join_all;
use serde_json::{Value, json};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";

async fn server(cidrs: &[&str], ports: (u16, u16)) -> Server {
    Server::start_with(|config| {
        config.options.service_cidrs = cidrs.iter().map(|cidr| cidr.parse().expect("a network")).collect();
        config.options.node_ports = ports;
    })
    .await
}

fn service(name: &str, more: Value) -> Value {
    let mut spec = json!({"ports": [{"port": 80}]});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn make(server: &Server, name: &str, more: Value) -> Answer {
    server.root.post(SERVICES, &service(name, more)).await
}

/// Addresses that are claimed, without that of the API server itself.
async fn claimed(server: &Server) -> Vec<String> {
    let list = server.root.get(ADDRESSES).await.ok();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let others = items.iter().filter(|a| a["spec"]["parentRef"]["name"] != "kubernetes");
    others.map(|a| a["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn nothing_is_leaked_by_what_does_not_happen() {
    let server = server(&["10.96.0.0/28"], (30000, 30003)).await;
    let node = json!({"type": "NodePort"});
    let root = &server.root;
    make(&server, "there", json!({})).await.ok();
    let before = claimed(&server).await;
    for _ in 0..30 {
        assert_eq!(make(&server, "there", node.clone()).await.code, 409);
        assert_eq!(root.post(&format!("{SERVICES}?dryRun=All"), &service("dry", node.clone())).await.code, 201);
        assert_eq!(make(&server, "wrong", json!({"type": "NodePort", "sessionAffinity": "Odd"})).await.code, 422);
        let stale = json!({"metadata": {"resourceVersion": "1"}, "spec": {"type": "NodePort"}});
        assert_eq!(root.patch("merge", &format!("{SERVICES}/there"), &stale).await.code, 409);
        let dry =
            root.patch("merge", &format!("{SERVICES}/there?dryRun=All"), &json!({"spec": {"type": "NodePort"}})).await;
        assert_eq!(dry.code, 200);
        let wrong = json!({"spec": {"type": "NodePort", "sessionAffinity": "Odd"}});
        assert_eq!(root.patch("merge", &format!("{SERVICES}/there"), &wrong).await.code, 422);
    }
    assert_eq!(claimed(&server).await, before);
    // Every port is still to be had.
    for i in 0..4 {
        make(&server, &format!("p{i}"), node.clone()).await.ok();
    }
    assert_eq!(
        make(&server, "none", node.clone()).await.failure(),
        "500 InternalError: Internal error occurred: failed to allocate a nodePort: range is full"
    );
    assert_eq!(claimed(&server).await.len(), 5, "the address of what got no port is free");
    for i in 0..4 {
        root.delete(&format!("{SERVICES}/p{i}")).await.ok();
    }
    assert_eq!(claimed(&server).await, before);
}

#[tokio::test]
async fn what_many_want_one_gets() {
    let server = server(&["10.96.0.0/24"], (30000, 32767)).await;
    let names: Vec<String> = (0..12).map(|i| format!("s{i}")).collect();
    let wish = json!({"clusterIP": "10.96.0.77", "type": "NodePort", "ports": [{"port": 80, "nodePort": 30077}]});
    let answers = join_all(names.iter().map(|name| make(&server, name, wish.clone()))).await;
    assert_eq!(answers.iter().filter(|a| a.code == 201).count(), 1);
    for refused in answers.iter().filter(|a| a.code != 201) {
        assert_eq!(refused.code, 422, "{}", refused.text());
        assert!(refused.failure().contains("provided IP is already allocated"), "{}", refused.failure());
    }
    assert_eq!(claimed(&server).await, ["10.96.0.77"]);
    // And each gets its own where nothing is wished for.
    let names: Vec<String> = (0..40).map(|i| format!("t{i}")).collect();
    let answers = join_all(names.iter().map(|name| make(&server, name, json!({"type": "NodePort"})))).await;
    let of = |pointer: &str| {
        let mut all: Vec<String> =
            answers.iter().map(|a| a.ok().pointer(pointer).map(Value::to_string).unwrap_or_default()).collect();
        all.sort();
        all.dedup();
        all.len()
    };
    assert_eq!((of("/spec/clusterIP"), of("/spec/ports/0/nodePort")), (40, 40));
}

#[tokio::test]
async fn ranges_come_and_go() {
    let server = server(&["10.96.0.0/30"], (30000, 32767)).await;
    let root = &server.root;
    make(&server, "a", json!({})).await.ok();
    let full = make(&server, "b", json!({})).await;
    assert!(full.failure().starts_with("500 InternalError: Internal error occurred: failed to allocate a serviceIP"));
    assert_eq!(
        make(&server, "b", json!({"clusterIP": "10.97.0.2"})).await.failure(),
        "422 Invalid: Service \"b\" is invalid: spec.clusterIPs: Invalid value: [\"10.97.0.2\"]: failed to allocate IP \
         10.97.0.2: the provided network does not match the current range"
    );
    root.post(RANGES, &json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/29"]}})).await.ok();
    assert_eq!(make(&server, "b", json!({})).await.code, 500, "it is not ready");
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "NetworkReady",
        "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}});
    root.patch("merge", &format!("{RANGES}/more/status"), &ready).await.ok();
    let b = make(&server, "b", json!({})).await.ok();
    assert!(b["spec"]["clusterIP"].as_str().is_some_and(|ip| ip.starts_with("10.97.0.")), "{b}");
    make(&server, "c", json!({"clusterIP": "10.97.0.6"})).await.ok();
    let hold = json!({"metadata": {"finalizers": ["networking.k8s.io/service-cidr-finalizer"]}});
    root.patch("merge", &format!("{RANGES}/more"), &hold).await.ok();
    root.delete(&format!("{RANGES}/more")).await.ok();
    assert_eq!(make(&server, "d", json!({})).await.code, 500, "nothing is taken from what is to go");
    // What it has it keeps.
    root.patch("merge", &format!("{SERVICES}/c"), &json!({"metadata": {"labels": {"a": "b"}}})).await.ok();
}

#[tokio::test]
async fn families_follow_the_policy() {
    let server = server(&["10.96.0.0/24", "fd00::/112"], (30000, 32767)).await;
    let root = &server.root;
    let families = |service: &Value| {
        let list = |field: &str| service["spec"][field].as_array().cloned().unwrap_or_default();
        (list("clusterIPs").len(), list("ipFamilies"), service["spec"]["ipFamilyPolicy"].clone())
    };
    let single = make(&server, "s", json!({})).await.ok();
    assert_eq!(families(&single), (1, vec![json!("IPv4")], json!("SingleStack")));
    let wider = root
        .patch("merge", &format!("{SERVICES}/s"), &json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}}))
        .await
        .ok();
    assert_eq!(families(&wider), (2, vec![json!("IPv4"), json!("IPv6")], json!("PreferDualStack")));
    assert_eq!(wider["spec"]["clusterIPs"][0], single["spec"]["clusterIPs"][0]);
    assert_eq!(claimed(&server).await.len(), 2);
    let narrower =
        root.patch("merge", &format!("{SERVICES}/s"), &json!({"spec": {"ipFamilyPolicy": "SingleStack"}})).await.ok();
    assert_eq!(families(&narrower), (1, vec![json!("IPv4")], json!("SingleStack")));
    assert_eq!(claimed(&server).await.len(), 1);
    let six = make(&server, "six", json!({"ipFamilies": ["IPv6"]})).await.ok();
    assert_eq!(families(&six), (1, vec![json!("IPv6")], json!("SingleStack")));
    let both = make(&server, "both", json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"]})).await.ok();
    assert_eq!(families(&both), (2, vec![json!("IPv6"), json!("IPv4")], json!("RequireDualStack")));
    let balanced = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let balanced = make(&server, "lb", balanced).await.ok();
    let health = balanced["spec"]["healthCheckNodePort"].as_i64().unwrap_or_default();
    assert!((30000..=32767).contains(&health) && balanced["spec"]["ports"][0]["nodePort"] != health, "{balanced}");
    let taken = make(&server, "other", json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": health}]})).await;
    assert!(taken.failure().contains("provided port is already allocated"), "{}", taken.failure());
    root.patch("merge", &format!("{SERVICES}/lb"), &json!({"spec": {"externalTrafficPolicy": "Cluster"}})).await.ok();
    make(&server, "other", json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": health}]})).await.ok();
    let poor = Server::start().await;
    let refused = poor.root.post(SERVICES, &service("s", json!({"ipFamilyPolicy": "RequireDualStack"}))).await;
    assert!(refused.failure().contains("this cluster is not configured for dual-stack services"));
}
