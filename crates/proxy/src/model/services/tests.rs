//! What Services say becomes what the kernel is to do: one Service a row.

use super::*;
use serde_json::{Value, json};

fn service(spec: Value, status: Value) -> Service {
    let whole = json!({ "metadata": { "namespace": "default", "name": "web" }, "spec": spec, "status": status });
    serde_json::from_value(whole).expect("a Service")
}

fn decided(spec: Value, status: Value) -> ServiceRules {
    let slice = json!({"endpoints": [{"addresses": ["10.244.0.4"], "nodeName": "n1"}, {"addresses": ["fd00::4"]},
        {"addresses": ["10.244.0.5"], "nodeName": "n2"}], "ports": [{"name": "http", "port": 8080}]});
    let slice: EndpointSlice = serde_json::from_value(slice).expect("a slice");
    let here = Here { name: "n1".into(), zone: None };
    decide(&service(spec, status), std::iter::once(&slice), &here)
}

fn texts(ips: &[IpAddr]) -> Vec<String> {
    ips.iter().map(ToString::to_string).collect()
}

#[test]
fn a_service_of_both_families_has_ports_in_both() {
    let rules = decided(
        json!({"type": "NodePort", "clusterIP": "10.96.7.1", "clusterIPs": ["10.96.7.1", "fd01::7"],
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}, {"name": "other", "port": 81}]}),
        json!({}),
    );
    let names: Vec<String> = rules.v4.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, ["default/web:http", "default/web:other"]);
    let (http, other) = (&rules.v4[0].1, &rules.v4[1].1);
    assert_eq!((http.node_port, other.node_port), (Some(30080), None));
    assert_eq!(http.endpoints.cluster.len(), 2);
    assert!(!other.endpoints.any);
    assert_eq!(rules.v6[0].1.cluster_ip.to_string(), "fd01::7");
    assert_eq!(rules.v6[0].1.endpoints.cluster, ["[fd00::4]:8080".parse().expect("an address")]);
    assert_eq!(rules.health_check, None);
}

#[test]
fn a_load_balancers_addresses_are_ours_unless_it_keeps_them() {
    let rules = decided(
        json!({"type": "LoadBalancer", "clusterIP": "10.96.7.1", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 31000, "externalIPs": ["198.51.100.2", "fd09::1", "0.0.0.0", "what"],
            "loadBalancerSourceRanges": [" 192.0.2.0/24", "fd08::/64", "nonsense"],
            "sessionAffinity": "ClientIP", "ports": [{"name": "http", "port": 80, "nodePort": 30080}]}),
        json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}, {"ip": "203.0.113.2", "ipMode": "Proxy"},
            {"ip": "203.0.113.3", "ipMode": "VIP"}, {"hostname": "lb.example.org"}]}}),
    );
    let port = &rules.v4[0].1;
    assert_eq!(texts(&port.load_balancer_ips), ["203.0.113.1", "203.0.113.3"]);
    assert_eq!(texts(&port.external_ips), ["198.51.100.2"]);
    assert_eq!(port.source_ranges, ["192.0.2.0/24".parse::<IpNet>().expect("a range")]);
    assert_eq!(port.affinity, Some(AFFINITY));
    assert_eq!(rules.health_check, Some(HealthCheck { port: 31000, local: 1 }));
    assert!(port.external_local && !port.internal_local);
    assert_eq!((port.endpoints.cluster.len(), port.endpoints.local.len()), (2, 1));
    assert!(rules.v6.is_empty());
}

#[test]
fn policies_and_affinity_are_those_that_apply() {
    let ports = json!([{"name": "http", "port": 80, "nodePort": 30080}]);
    for (spec, internal, external, affinity) in [
        (json!({"type": "ClusterIP", "externalTrafficPolicy": "Local"}), false, false, None),
        (
            json!({"type": "ClusterIP", "externalTrafficPolicy": "Local", "externalIPs": ["192.0.2.9"]}),
            false,
            true,
            None,
        ),
        (json!({"type": "NodePort", "externalTrafficPolicy": "Local"}), false, true, None),
        (json!({"type": "ClusterIP", "internalTrafficPolicy": "Local"}), true, false, None),
        (
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}}}),
            false,
            false,
            Some(7),
        ),
    ] {
        let mut whole = spec.clone();
        (whole["clusterIP"], whole["ports"]) = (json!("10.96.7.1"), ports.clone());
        let rules = decided(whole, json!({}));
        let port = &rules.v4[0].1;
        assert_eq!((port.internal_local, port.external_local, port.affinity), (internal, external, affinity), "{spec}");
    }
}

/// Policies and where endpoints are → what becomes of connections.
#[test]
fn targets() {
    let decide = |policies: Value, nodes: &[&str]| {
        let endpoints: Vec<Value> = nodes
            .iter()
            .enumerate()
            .map(|(i, node)| json!({"addresses": [format!("10.244.0.{}", i + 2)], "nodeName": node}))
            .collect();
        let slice = json!({"endpoints": endpoints, "ports": [{"name": "", "port": 80}]});
        let slice: EndpointSlice = serde_json::from_value(slice).expect("a slice");
        let mut spec = policies;
        (spec["type"], spec["clusterIP"]) = (json!("NodePort"), json!("10.96.0.1"));
        spec["ports"] = json!([{"port": 80, "nodePort": 30080}]);
        let here = Here { name: "n1".into(), zone: None };
        super::decide(&service(spec, json!({})), std::iter::once(&slice), &here).v4.remove(0).1
    };
    let name = |target: super::super::Target| match target {
        super::super::Target::Endpoints(policy, endpoints) => format!("{policy:?} {}", endpoints.len()),
        other => format!("{other:?}"),
    };
    let (cluster, external) = (json!({}), json!({"externalTrafficPolicy": "Local"}));
    let internal = json!({"internalTrafficPolicy": "Local"});
    for (policies, nodes, from_within, from_outside) in [
        (&cluster, &["n1", "n2"][..], "Cluster 2", "Cluster 2"),
        (&cluster, &[], "Reject", "Reject"),
        (&external, &["n1", "n2"], "Cluster 2", "Local 1"),
        (&external, &["n2"], "Cluster 1", "Drop"),
        (&external, &[], "Reject", "Reject"),
        (&internal, &["n1", "n2"], "Local 1", "Cluster 2"),
        (&internal, &["n2"], "Drop", "Cluster 1"),
        (&internal, &[], "Reject", "Reject"),
    ] {
        let port = decide(policies.clone(), nodes);
        let got = (name(port.internal()), name(port.external()));
        assert_eq!(got, (from_within.to_owned(), from_outside.to_owned()), "{policies} {nodes:?}");
    }
}

#[test]
fn headless_external_and_hostile_services_have_no_ports() {
    let ports = json!([{ "name": "http", "port": 80 }]);
    for spec in [
        json!({ "clusterIP": "None", "ports": ports }),
        json!({ "type": "ExternalName", "clusterIP": "", "ports": ports }),
        json!({ "clusterIP": "", "ports": ports }),
        json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 0 }] }),
        json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 70000 }] }),
        json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 80, "protocol": "ICMP" }] }),
        json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 80, "name": "a } ; flush ruleset" }] }),
    ] {
        assert!(decided(spec.clone(), json!({})).is_empty(), "{spec}");
    }
    let mut hostile = service(json!({ "clusterIP": "10.96.0.9", "ports": ports }), json!({}));
    hostile.metadata.name = "a } ; flush ruleset".into();
    assert!(decide(&hostile, std::iter::empty(), &Here::default()).is_empty());
}
