//! The Endpoints object of a Service. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use client::Cached;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, ObjectReference};
use machinery::labels::Labels;
use serde_json::{Value, json};

use crate::service_pods::{self, HEADLESS, TRIGGER_TIME};
use crate::views::{CachedPod, ServiceView};

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Addresses one object holds; more are left out and the object says so.
const CAPACITY: usize = 1000;

/// A pod of a Service as its address, ordered as the object lists them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Address {
    ip: String,
    uid: String,
    ready: bool,
    name: String,
    node: String,
    hostname: Option<String>,
}

type Port = (String, String, i32, Option<String>);

/// The object the Service should have; `None` when the one it has says the same.
pub(super) fn plan(
    service: &Cached<ServiceView>,
    pods: &[Arc<CachedPod>],
    current: Option<&Value>,
    trigger: Option<Timestamp>,
) -> Option<Value> {
    let mut subsets = subsets(service, pods);
    let over = truncate(&mut subsets);
    let labels = labels(service);
    let mut object = current.cloned().unwrap_or_else(|| {
        json!({
            "kind": "Endpoints", "apiVersion": "v1",
            "metadata": {"name": service.meta.name, "namespace": service.meta.namespace},
        })
    });
    let had = object.get("subsets").cloned().unwrap_or_default();
    let had: Option<Vec<EndpointSubset>> = serde_json::from_value(had).ok().flatten();
    let was_over = machinery::meta::annotation(&object, OVER_CAPACITY).is_some();
    let is_same = current.is_some()
        && had.unwrap_or_default() == subsets
        && machinery::meta::labels(&object) == labels
        && was_over == over;
    if is_same {
        return None;
    }
    object["metadata"]["labels"] = json!(labels);
    object["subsets"] = json!(subsets);
    machinery::meta::set_annotation(&mut object, OVER_CAPACITY, over.then_some("truncated"));
    let at = trigger.map(|t| t.to_string());
    machinery::meta::set_annotation(&mut object, TRIGGER_TIME, at.as_deref());
    Some(object)
}

fn labels(service: &Cached<ServiceView>) -> Labels {
    let mut labels = service.meta.labels.clone();
    labels.remove(HEADLESS);
    if service_pods::is_headless(&service.view) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels.insert(MANAGED_BY.into(), "endpoint-controller".into());
    labels
}

/// Addresses per port, then ports with the same addresses together.
fn subsets(service: &Cached<ServiceView>, pods: &[Arc<CachedPod>]) -> Vec<EndpointSubset> {
    let spec = &service.view.spec;
    let v6 = spec.ip_families.first().map_or(spec.cluster_ip.contains(':'), |f| f == "IPv6");
    let tolerates = spec.publish_not_ready_addresses;
    let mut by_port: BTreeMap<Option<Port>, BTreeSet<Address>> = BTreeMap::new();
    for pod in pods {
        if pod.view.is_finished() || (pod.meta.is_deleting() && !tolerates) {
            continue;
        }
        let Some(ip) = pod.view.ips().into_iter().find(|ip| ip.contains(':') == v6) else { continue };
        let address = Address {
            ip: ip.to_owned(),
            uid: pod.meta.uid.clone(),
            ready: tolerates || pod.view.is_ready(),
            name: pod.meta.name.clone(),
            node: pod.view.spec.node_name.clone(),
            hostname: service_pods::hostname(pod, &service.meta),
        };
        if spec.ports.is_empty() && service_pods::is_headless(&service.view) {
            by_port.entry(None).or_default().insert(address);
            continue;
        }
        for port in &spec.ports {
            let Some(number) = service_pods::target(port, &pod.view) else { continue };
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
            let key = (port.name.clone(), protocol, number, port.app_protocol.clone());
            by_port.entry(Some(key)).or_default().insert(address.clone());
        }
    }
    let mut by_addresses: BTreeMap<BTreeSet<Address>, Vec<Option<Port>>> = BTreeMap::new();
    for (port, addresses) in by_port {
        by_addresses.entry(addresses).or_default().push(port);
    }
    by_addresses.into_iter().map(|(addresses, ports)| subset(&addresses, ports, &service.meta.namespace)).collect()
}

fn subset(addresses: &BTreeSet<Address>, ports: Vec<Option<Port>>, namespace: &str) -> EndpointSubset {
    let list = |ready: bool| {
        let list: Vec<_> = addresses.iter().filter(|a| a.ready == ready).map(|a| address(a, namespace)).collect();
        (!list.is_empty()).then_some(list)
    };
    let ports: Vec<_> = ports
        .into_iter()
        .flatten()
        .map(|(name, protocol, port, app_protocol)| EndpointPort {
            name: (!name.is_empty()).then_some(name),
            port,
            protocol: Some(protocol),
            app_protocol,
        })
        .collect();
    EndpointSubset {
        addresses: list(true),
        not_ready_addresses: list(false),
        ports: (!ports.is_empty()).then_some(ports),
    }
}

fn address(address: &Address, namespace: &str) -> EndpointAddress {
    EndpointAddress {
        ip: address.ip.clone(),
        hostname: address.hostname.clone(),
        node_name: Some(address.node.clone()).filter(|n| !n.is_empty()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: Some(namespace.to_owned()),
            name: Some(address.name.clone()),
            uid: Some(address.uid.clone()),
            ..ObjectReference::default()
        }),
    }
}

/// Cuts the object to its capacity, ready addresses first; true when something was cut.
fn truncate(subsets: &mut Vec<EndpointSubset>) -> bool {
    let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
    let total: usize = subsets.iter().map(|s| count(&s.addresses) + count(&s.not_ready_addresses)).sum();
    if total <= CAPACITY {
        return false;
    }
    let mut room = CAPACITY;
    let mut cut = |list: &mut Option<Vec<EndpointAddress>>| {
        if let Some(addresses) = list {
            addresses.truncate(room);
            room -= addresses.len();
            if addresses.is_empty() {
                *list = None;
            }
        }
    };
    subsets.iter_mut().for_each(|s| cut(&mut s.addresses));
    subsets.iter_mut().for_each(|s| cut(&mut s.not_ready_addresses));
    subsets.retain(|s| s.addresses.is_some() || s.not_ready_addresses.is_some());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::cached;

    fn service(ports: Value) -> Cached<ServiceView> {
        cached(&json!({"metadata": {"name": "web", "namespace": "default", "labels": {"l": "v"}},
            "spec": {"clusterIP": "10.96.0.1", "selector": {"app": "web"}, "ports": ports}}))
    }

    fn pod(name: &str, ip: &str, ready: bool, port: i32) -> Arc<CachedPod> {
        Arc::new(cached(&json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "http", "containerPort": port}]}]},
            "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
        })))
    }

    /// `ready,ready|not ready:port,port; …`
    fn shape(object: &Value) -> String {
        let join = |s: &Value, pointer: &str, key: &str| {
            let items = s[pointer].as_array().cloned().unwrap_or_default();
            items.iter().map(|i| i[key].to_string().replace('"', "")).collect::<Vec<_>>().join(",")
        };
        let subsets = object["subsets"].as_array().cloned().unwrap_or_default();
        let one = |s: &Value| {
            format!(
                "{}|{}:{}",
                join(s, "addresses", "ip"),
                join(s, "notReadyAddresses", "ip"),
                join(s, "ports", "port")
            )
        };
        subsets.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn addresses_are_grouped_by_the_ports_they_share() {
        let ports = json!([{"name": "http", "port": 80, "targetPort": "http"}, {"name": "metrics", "port": 90, "targetPort": 9090}]);
        let same = [pod("a", "10.0.0.1", true, 80), pod("b", "10.0.0.2", false, 80)];
        let object = plan(&service(ports.clone()), &same, None, None).expect("new");
        assert_eq!(shape(&object), "10.0.0.1|10.0.0.2:80,9090");
        assert_eq!(object["metadata"]["labels"], json!({"l": "v", MANAGED_BY: "endpoint-controller"}));
        assert!(plan(&service(ports.clone()), &same, Some(&object), None).is_none());
        let differ = [pod("a", "10.0.0.1", true, 80), pod("b", "10.0.0.2", true, 81)];
        let object = plan(&service(ports), &differ, Some(&object), None).expect("changed");
        assert_eq!(shape(&object), "10.0.0.1|:80; 10.0.0.1,10.0.0.2|:9090; 10.0.0.2|:81");
    }

    #[test]
    fn more_than_the_capacity_is_cut_and_said() {
        let pods: Vec<_> = (0..1200)
            .map(|n| pod(&format!("p{n}"), &format!("10.1.{}.{}", n / 250, n % 250), n % 2 == 0, 80))
            .collect();
        let object = plan(&service(json!([{"port": 80}])), &pods, None, None).expect("new");
        let subset = &object["subsets"][0];
        assert_eq!(subset["addresses"].as_array().map(Vec::len), Some(600));
        assert_eq!(subset["notReadyAddresses"].as_array().map(Vec::len), Some(400));
        assert_eq!(object["metadata"]["annotations"][OVER_CAPACITY], "truncated");
    }
}
