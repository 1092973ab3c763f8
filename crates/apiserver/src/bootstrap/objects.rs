//! The objects themselves, and what existing ones lack of them; pure. Roles are in `roles`.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Completing, Mend};

type Wanted = (Value, Completing);

/// What is there stays as it is.
fn keep(_existing: &Value, _wanted: &Value) -> Mend {
    Mend::Keep
}

/// The namespaces of the system. Their labels and finalizers are the kind's business.
pub fn namespaces() -> Vec<Wanted> {
    let one =
        |name: &str| -> Wanted { (json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}), keep) };
    ["kube-system", "kube-public", "kube-node-lease", "default"].into_iter().map(one).collect()
}

/// The priority classes of the system.
pub fn priority_classes() -> Vec<Wanted> {
    let one = |(name, value, description): (&str, i64, &str)| -> Wanted {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description,
        });
        (class, keep)
    };
    let classes = [
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ];
    classes.into_iter().map(one).collect()
}

/// The range Service addresses come from. It is ready from the start: the server hands them out.
pub fn service_cidr(cidrs: &[IpNet], now: Timestamp) -> Option<Wanted> {
    let cidrs: Vec<String> = cidrs.iter().map(IpNet::to_string).collect();
    if cidrs.is_empty() {
        return None;
    }
    let cidr = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": cidrs},
        "status": {"conditions": [{
            "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes default Service CIDR is ready",
            "lastTransitionTime": machinery::time::rfc3339(now),
        }]},
    });
    Some((cidr, keep))
}

/// The Service pods find the API server by.
pub fn service(address: IpAddr, port: u16) -> Wanted {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": address.to_string(), "clusterIPs": [address.to_string()],
            "ipFamilies": [family], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}],
        },
    });
    (service, |existing, wanted| replace(existing, wanted, &["/spec/ports"]))
}

/// Who answers for the Service: this server.
pub fn endpoints(endpoint: SocketAddr) -> Vec<Wanted> {
    let address = endpoint.ip().to_string();
    let family = if endpoint.is_ipv4() { "IPv4" } else { "IPv6" };
    let ports = json!([{"name": "https", "port": endpoint.port(), "protocol": "TCP"}]);
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": family,
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        "ports": ports,
    });
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{"addresses": [{"ip": address}], "ports": ports}],
    });
    let complete_slice: Completing = |existing, wanted| {
        // The family of a slice cannot change.
        if existing["addressType"] == wanted["addressType"] {
            replace(existing, wanted, &["/endpoints", "/ports"])
        } else {
            Mend::Recreate
        }
    };
    vec![(slice, complete_slice), (endpoints, |existing, wanted| replace(existing, wanted, &["/subsets"]))]
}

/// The wanted values at the pointers. Fields that defaults have added to list elements do not count
/// as different.
fn replace(existing: &Value, wanted: &Value, pointers: &[&str]) -> Mend {
    let mut next = existing.clone();
    let mut changed = false;
    for pointer in pointers {
        let Some(value) = wanted.pointer(pointer) else { continue };
        if existing.pointer(pointer).is_some_and(|have| includes(have, value)) {
            continue;
        }
        changed = true;
        match next.pointer_mut(pointer) {
            Some(place) => *place = value.clone(),
            // Only fields of the object itself can be missing.
            None => next[pointer.trim_start_matches('/')] = value.clone(),
        }
    }
    if changed { Mend::Update(next) } else { Mend::Keep }
}

/// True when `have` says everything `wanted` does; lists must be of the same length.
fn includes(have: &Value, wanted: &Value) -> bool {
    match (have, wanted) {
        (Value::Object(have), Value::Object(wanted)) => {
            wanted.iter().all(|(k, w)| have.get(k).is_some_and(|h| includes(h, w)))
        }
        (Value::Array(have), Value::Array(wanted)) => {
            have.len() == wanted.len() && have.iter().zip(wanted).all(|(h, w)| includes(h, w))
        }
        (have, wanted) => have == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_address_replaces_the_old_one() {
        let at = |text: &str| endpoints(text.parse().unwrap());
        let [(old_slice, mend), (old_endpoints, mend_endpoints)] =
            <[Wanted; 2]>::try_from(at("10.0.0.1:6443")).unwrap();
        let [(new_slice, _), (new_endpoints, _)] = <[Wanted; 2]>::try_from(at("10.0.0.2:6443")).unwrap();
        assert_eq!(mend(&old_slice, &old_slice), Mend::Keep);
        assert_eq!(mend(&old_slice, &new_slice), Mend::Update(new_slice.clone()));
        assert_eq!(mend_endpoints(&old_endpoints, &new_endpoints), Mend::Update(new_endpoints));
        assert_eq!(mend(&old_slice, &at("[fd00::1]:6443")[0].0), Mend::Recreate);
        let mut defaulted = old_slice.clone();
        defaulted["endpoints"][0]["conditions"]["serving"] = json!(true);
        assert_eq!(mend(&defaulted, &old_slice), Mend::Keep);
    }
}
