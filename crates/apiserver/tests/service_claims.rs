//! Addresses and ports of Services over HTTP: none is leaked by what fails, none is given twice, ranges come
//! and go, families follow their policies.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Answer, Server};
use futures::future::join_all;
use serde_json::{Value, json};
use stdx::ClockExt;

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

/// The same for all that a balanced Service of both families takes: two addresses, a port and one for health
/// checks; also where what refuses it comes after the claims (a quota).
#[tokio::test]
async fn nothing_of_a_balancer_is_leaked() {
    let server = server(&["10.96.0.0/28", "fd00::/124"], (30000, 30003)).await;
    let root = &server.root;
    let balancer =
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ipFamilyPolicy": "RequireDualStack"});
    make(&server, "there", json!({})).await.ok();
    let before = claimed(&server).await;
    let with = |more: Value| {
        let mut spec = balancer.clone();
        spec.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        spec
    };
    for _ in 0..20 {
        assert_eq!(root.post(&format!("{SERVICES}?dryRun=All"), &service("dry", balancer.clone())).await.code, 201);
        assert_eq!(make(&server, "there", balancer.clone()).await.code, 409);
        assert_eq!(make(&server, "wrong", with(json!({"sessionAffinity": "Odd"}))).await.code, 422);
        assert_eq!(make(&server, "far", with(json!({"healthCheckNodePort": 40000}))).await.code, 422);
        let change = json!({"spec": with(json!({"sessionAffinity": "Odd"}))});
        assert_eq!(root.patch("merge", &format!("{SERVICES}/there"), &change).await.code, 422);
        let change = json!({"metadata": {"resourceVersion": "1"}, "spec": balancer});
        assert_eq!(root.patch("merge", &format!("{SERVICES}/there"), &change).await.code, 409);
    }
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let none = json!({"metadata": {"name": "none"}, "spec": {"hard": {"services.loadbalancers": "0"}}});
    root.post(quotas, &none).await.ok();
    let refused = async {
        while make(&server, "poor", balancer.clone()).await.code != 403 {
            // Until the quota is counted.
            root.delete(&format!("{SERVICES}/poor")).await.ok();
        }
    };
    server.clock.timeout(Duration::from_secs(20), refused).await.expect("the quota refuses");
    for _ in 0..20 {
        assert_eq!(make(&server, "poor", balancer.clone()).await.code, 403);
    }
    root.delete(&format!("{quotas}/none")).await.ok();
    assert_eq!(claimed(&server).await, before);
    for name in ["a", "b"] {
        make(&server, name, balancer.clone()).await.ok();
    }
    assert_eq!(
        make(&server, "c", balancer.clone()).await.failure(),
        "500 InternalError: Internal error occurred: failed to allocate a nodePort: range is full"
    );
    assert_eq!(claimed(&server).await.len(), before.len() + 4, "the addresses of what got no port are free");
    for name in ["a", "b"] {
        root.delete(&format!("{SERVICES}/{name}")).await.ok();
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

/// A fixture of a cluster whose ranges have both families.
async fn dual() -> Server {
    server(&["10.96.0.0/24", "fd00::/112"], (30000, 32767)).await
}

/// `IPv4,IPv6 PreferDualStack` and how many addresses, in the families' order.
fn shape(service: &Value) -> String {
    let list = |field: &str| -> Vec<String> {
        let values = service["spec"][field].as_array().into_iter().flatten();
        values.map(|value| value.as_str().unwrap_or_default().to_owned()).collect()
    };
    let families = list("ipFamilies");
    let ips = list("clusterIPs");
    let in_order = ips.iter().zip(&families).all(|(ip, family)| ip == "None" || (family == "IPv6") == ip.contains(':'));
    let policy = service["spec"]["ipFamilyPolicy"].as_str().unwrap_or("-");
    format!("{} {policy} {}{}", families.join(","), ips.len(), if in_order { "" } else { " out of order" })
}

#[tokio::test]
async fn families_of_new_services() {
    let (both, one) = (dual().await, server(&["10.96.0.0/24"], (30000, 32767)).await);
    for (i, (spec, on_both, on_one)) in [
        (json!({}), "IPv4 SingleStack 1", "IPv4 SingleStack 1"),
        (json!({"ipFamilyPolicy": "PreferDualStack"}), "IPv4,IPv6 PreferDualStack 2", "IPv4 PreferDualStack 1"),
        (
            json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"]}),
            "IPv6,IPv4 PreferDualStack 2",
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            "IPv4,IPv6 RequireDualStack 2",
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (
            json!({"ipFamilyPolicy": "RequireDualStack", "clusterIP": "fd00::77"}),
            "IPv6,IPv4 RequireDualStack 2",
            "spec.clusterIPs[0]: Invalid value: [\"fd00::77\"]: IPv6 is not configured on this cluster",
        ),
        (
            json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4", "IPv6"]}),
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
        ),
        (
            json!({"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5", "10.96.0.6"], "ipFamilyPolicy": "PreferDualStack"}),
            "spec.clusterIPs: Invalid value: [\"10.96.0.5\",\"10.96.0.6\"]: may specify no more than one IP for each IP family",
            "spec.clusterIPs: Invalid value: [\"10.96.0.5\",\"10.96.0.6\"]: may specify no more than one IP for each IP family",
        ),
        (
            json!({"clusterIP": "10.96.0.5", "ipFamilies": ["IPv6"]}),
            "spec.clusterIPs[0]: Invalid value: \"10.96.0.5\": expected an IPv6 value as indicated by `ipFamilies[0]`",
            "spec.clusterIPs[0]: Invalid value: \"10.96.0.5\": expected an IPv6 value as indicated by `ipFamilies[0]`",
        ),
        // Headless: with endpoints of one's own both families, on any cluster.
        (json!({"clusterIP": "None"}), "IPv4,IPv6 RequireDualStack 1", "IPv4,IPv6 RequireDualStack 1"),
        (json!({"clusterIP": "None", "ipFamilyPolicy": "SingleStack"}), "IPv4 SingleStack 1", "IPv4 SingleStack 1"),
        (json!({"clusterIP": "None", "ipFamilies": ["IPv6"]}), "IPv6,IPv4 RequireDualStack 1", "IPv6,IPv4 RequireDualStack 1"),
        (json!({"clusterIP": "None", "selector": {"a": "b"}}), "IPv4 SingleStack 1", "IPv4 SingleStack 1"),
        (
            json!({"clusterIP": "None", "selector": {"a": "b"}, "ipFamilyPolicy": "PreferDualStack"}),
            "IPv4,IPv6 PreferDualStack 1",
            "IPv4 PreferDualStack 1",
        ),
        (
            json!({"clusterIP": "None", "clusterIPs": ["None", "10.96.0.9"]}),
            "spec.clusterIPs: Invalid value: [\"None\",\"10.96.0.9\"]: 'None' must be the first and only value",
            "spec.clusterIPs: Invalid value: [\"None\",\"10.96.0.9\"]: 'None' must be the first and only value",
        ),
        (json!({"type": "ExternalName", "externalName": "a.example"}), " - 0", " - 0"),
    ]
    .into_iter()
    .enumerate()
    {
        for (server, want) in [(&both, on_both), (&one, on_one)] {
            let answer = make(server, &format!("s{i}"), spec.clone()).await;
            match answer.code {
                201 => assert_eq!(shape(&answer.ok()), want, "{spec}"),
                _ => assert!(answer.failure().ends_with(want), "{spec}: {} != {want}", answer.failure()),
            }
        }
    }
    assert!(claimed(&one).await.iter().all(|ip| !ip.contains(':')));
}

#[tokio::test]
async fn families_of_services_that_change() {
    let server = dual().await;
    let root = &server.root;
    let patch = async |name: &str, spec: Value| {
        root.patch("merge", &format!("{SERVICES}/{name}"), &json!({"spec": spec})).await
    };
    make(&server, "s", json!({})).await.ok();
    let first = claimed(&server).await[0].clone();
    // One second address of the user's choice, then none; the first stays.
    let named = patch("s", json!({"ipFamilyPolicy": "PreferDualStack", "clusterIPs": [first, "fd00::99"]})).await.ok();
    assert_eq!(
        (shape(&named).as_str(), &named["spec"]["clusterIPs"][1]),
        ("IPv4,IPv6 PreferDualStack 2", &json!("fd00::99"))
    );
    assert_eq!(
        patch("s", json!({"clusterIPs": [first]})).await.failure(),
        "422 Invalid: Service \"s\" is invalid: spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be \
         'SingleStack' to release the secondary cluster IP"
    );
    assert_eq!(
        patch("s", json!({"ipFamilies": ["IPv4"]})).await.failure(),
        "422 Invalid: Service \"s\" is invalid: spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be \
         'SingleStack' to release the secondary IP family"
    );
    let wrong = patch("s", json!({"clusterIPs": [first, "fd00::98"]})).await.failure();
    assert!(wrong.contains("spec.clusterIPs[1]: Invalid value: [\"fd00::98\"]: may not change once set"), "{wrong}");
    assert_eq!(claimed(&server).await, [first.clone(), "fd00::99".into()], "what was refused has claimed nothing");
    // Single stack releases; with the lists given, too.
    let single =
        patch("s", json!({"ipFamilyPolicy": "SingleStack", "clusterIPs": [first], "ipFamilies": ["IPv4"]})).await.ok();
    assert_eq!(shape(&single), "IPv4 SingleStack 1");
    assert_eq!(claimed(&server).await, std::slice::from_ref(&first));
    // To a name and back: everything is given up, and taken anew.
    patch("s", json!({"ipFamilyPolicy": "RequireDualStack"})).await.ok();
    let named = patch("s", json!({"type": "ExternalName", "externalName": "a.example"})).await.ok();
    assert_eq!(shape(&named), " - 0");
    assert!(claimed(&server).await.is_empty());
    let back =
        patch("s", json!({"type": "ClusterIP", "externalName": null, "ipFamilyPolicy": "PreferDualStack"})).await.ok();
    assert_eq!(shape(&back), "IPv4,IPv6 PreferDualStack 2");
    assert_eq!(claimed(&server).await.len(), 2);
    // A headless one has families and no addresses.
    make(&server, "h", json!({"clusterIP": "None", "selector": {"a": "b"}})).await.ok();
    assert_eq!(
        shape(&patch("h", json!({"ipFamilyPolicy": "PreferDualStack"})).await.ok()),
        "IPv4,IPv6 PreferDualStack 1"
    );
    assert_eq!(shape(&patch("h", json!({"ipFamilyPolicy": "SingleStack"})).await.ok()), "IPv4 SingleStack 1");
    assert_eq!(claimed(&server).await.len(), 2);
}

#[tokio::test]
async fn second_addresses_are_claimed_once_by_many() {
    let server = dual().await;
    let names: Vec<String> = (0..8).map(|i| format!("s{i}")).collect();
    join_all(names.iter().map(|name| make(&server, name, json!({})))).await.iter().for_each(|a| drop(a.ok()));
    let wish = |ip: &Value| json!({"spec": {"ipFamilyPolicy": "PreferDualStack", "clusterIPs": [ip, "fd00::42"]}});
    let grow = async |name: &String| {
        let path = format!("{SERVICES}/{name}");
        let ip = server.root.get(&path).await.ok()["spec"]["clusterIP"].clone();
        server.root.patch("merge", &path, &wish(&ip)).await
    };
    let answers = join_all(names.iter().map(grow)).await;
    assert_eq!(answers.iter().filter(|a| a.code == 200).count(), 1);
    assert!(answers.iter().filter(|a| a.code != 200).all(|a| a.failure().contains("provided IP is already allocated")));
    assert_eq!(claimed(&server).await.len(), 9);
    // The rest get one each, and give it back together.
    let policy = |policy: &str| json!({"spec": {"ipFamilyPolicy": policy}});
    for (word, count) in [("RequireDualStack", 16), ("SingleStack", 8)] {
        let change = policy(word);
        let paths: Vec<String> = names.iter().map(|name| format!("{SERVICES}/{name}")).collect();
        let answers = join_all(paths.iter().map(|path| server.root.patch("merge", path, &change))).await;
        answers.iter().for_each(|a| drop(a.ok()));
        assert_eq!(claimed(&server).await.len(), count, "{word}");
    }
}

#[tokio::test]
async fn several_ranges_of_both_families() {
    let server = server(&["10.96.0.0/30", "fd00::/126"], (30000, 32767)).await;
    let root = &server.root;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "", "message": "",
        "lastTransitionTime": "2026-01-02T03:04:05Z"}]}});
    for (name, cidrs) in [("a", json!(["10.97.0.0/30", "fd01::/126"])), ("b", json!(["fd02::/126"]))] {
        root.post(RANGES, &json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs}})).await.ok();
        root.patch("merge", &format!("{RANGES}/{name}/status"), &ready).await.ok();
    }
    let dual = json!({"ipFamilyPolicy": "RequireDualStack"});
    // IPv4: one of the first range is the API server's, so 1 + 2; IPv6: 3 + 3 + 3.
    for i in 0..3 {
        make(&server, &format!("d{i}"), dual.clone()).await.ok();
    }
    let full = make(&server, "d3", dual.clone()).await.failure();
    assert!(full.starts_with("500 InternalError: Internal error occurred: failed to allocate a serviceIP"), "{full}");
    assert_eq!(claimed(&server).await.len(), 6, "the family that had room gave back what it took");
    for i in 0..6 {
        make(&server, &format!("six{i}"), json!({"ipFamilies": ["IPv6"]})).await.ok();
    }
    assert_eq!(make(&server, "six6", json!({"ipFamilies": ["IPv6"]})).await.code, 500);
    let sixes = claimed(&server).await.into_iter().filter(|ip| ip.contains(':'));
    let of = |prefix: &str, all: &[String]| all.iter().filter(|ip| ip.starts_with(prefix)).count();
    let sixes: Vec<String> = sixes.collect();
    assert_eq!((of("fd00::", &sixes), of("fd01::", &sixes), of("fd02::", &sixes)), (3, 3, 3));
}

#[tokio::test]
async fn node_ports_come_from_the_upper_band_first() {
    // 512 ports: 16 below are for those who choose.
    let server = server(&["10.96.0.0/22"], (30000, 30511)).await;
    let balancer = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let mut ports = Vec::new();
    for i in 0..40 {
        let made = make(&server, &format!("s{i}"), balancer.clone()).await.ok();
        ports.extend([&made["spec"]["ports"][0]["nodePort"], &made["spec"]["healthCheckNodePort"]].map(|p| p.as_i64()));
    }
    assert!(ports.iter().all(|port| port.is_some_and(|port| (30016..=30511).contains(&port))), "{ports:?}");
    ports.sort();
    ports.dedup();
    assert_eq!(ports.len(), 80, "ports and health checks share one range");
    // What is wished for is had, in the lower band, at its ends, and for health checks.
    for (name, port) in [("low", 30000), ("high", 30511)] {
        let wish = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": port,
            "allocateLoadBalancerNodePorts": false});
        let answer = make(&server, name, wish).await;
        assert!(answer.code == 201 || ports.contains(&Some(port)), "{}", answer.text());
    }
    let beyond = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30512});
    let refused = make(&server, "beyond", beyond).await.failure();
    assert!(
        refused.contains("provided port is not in the valid range. The range of valid ports is 30000-30511"),
        "{refused}"
    );
}

/// Waits until an event with this reason is there.
async fn told(server: &Server, reason: &str) -> Value {
    let url = format!("/apis/events.k8s.io/v1/namespaces/default/events?watch=true&fieldSelector=reason={reason}");
    let mut watch = server.root.watch(&url).await;
    let event = server.clock.timeout(Duration::from_secs(30), watch.next()).await;
    event.ok().flatten().unwrap_or_else(|| panic!("nothing was told of {reason}"))["object"].clone()
}

#[tokio::test]
async fn an_address_that_is_taken_away_is_claimed_again_and_told() {
    let server = dual().await;
    let made = make(&server, "web", json!({"ipFamilyPolicy": "RequireDualStack"})).await.ok();
    let six = made["spec"]["clusterIPs"][1].as_str().expect("an address").to_owned();
    server.root.delete(&format!("{ADDRESSES}/{six}")).await.ok();
    let event = told(&server, "ClusterIPNotAllocated").await;
    assert_eq!(event["note"], format!("Cluster IP [IPv6]: {six} is not allocated; repairing"));
    let regarding = &event["regarding"];
    assert_eq!(
        (&regarding["kind"], &regarding["name"], &regarding["uid"]),
        (&json!("Service"), &json!("web"), &made["metadata"]["uid"])
    );
    assert_eq!((&event["action"], &event["type"]), (&json!("ClusterIPAllocation"), &json!("Warning")));
    assert!(claimed(&server).await.contains(&six));
}

#[tokio::test]
async fn a_crash_between_claim_and_service_is_told_and_mended() {
    let clock = stdx::clock::RealClock::shared();
    let mut config = common::config(&clock, 1);
    let store = config.store.clone();
    let put = async |key: &str, value: Value| {
        let value = value.to_string().into_bytes().into();
        let op = storage::Op::Put {
            key: key.to_owned().into(),
            value,
            expect: storage::Expect::Absent,
            urgency: storage::Urgency::Now,
        };
        store.commit(op).await.expect("commits")
    };
    // Two Services with one address and one port, and one with what no range has, as if written by hand.
    for (name, ip, port) in [("a", "10.96.0.9", 30009), ("b", "10.96.0.9", 30009), ("c", "192.0.2.1", 99)] {
        let service = json!({
            "kind": "Service", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"type": "NodePort", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack", "ports": [{"port": 80, "protocol": "TCP", "nodePort": port}]},
        });
        put(&format!("/registry/services/specs/default/{name}"), service).await;
    }
    config.store = store.clone() as Arc<dyn storage::Store>;
    let server = Server::from(config, clock).await;
    for (reason, name, note) in [
        (
            "ClusterIPAlreadyAllocated",
            "b",
            "Cluster IP [IPv4]:10.96.0.9 was assigned to multiple services; please recreate service",
        ),
        ("PortAlreadyAllocated", "b", "Port 30009 was assigned to multiple services; please recreate service"),
        (
            "ClusterIPOutOfRange",
            "c",
            "Cluster IP [IPv4]: 192.0.2.1 is not within any configured Service CIDR; please recreate service",
        ),
        ("PortOutOfRange", "c", "Port 99 is not within the port range 30000-32767; please recreate service"),
        ("PortNotAllocated", "a", "Port 30009 is not allocated; repairing"),
    ] {
        let event = told(&server, reason).await;
        assert_eq!((&event["regarding"]["name"], &event["note"]), (&json!(name), &json!(note)), "{reason}");
    }
    assert_eq!(claimed(&server).await, ["10.96.0.9"]);
    let late = make(&server, "late", json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30009}]})).await;
    assert!(late.failure().contains("provided port is already allocated"), "{}", late.failure());
}
