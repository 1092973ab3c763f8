//! Which pods serve a Service, on which ports, and since when: what EndpointSlices and Endpoints
//! are both made from.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use client::{Cached, Change, Informer, Key, Meta};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use machinery::labels::{Labels, Selector};
use parking_lot::Mutex;

use crate::context::SELECTOR;
use crate::views::{CachedPod, PodView, ServicePort, ServiceView};

/// Marks a Service, slice or Endpoints without a cluster address.
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";
pub(crate) const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Where a Service with this selector is found: under the first of its labels.
pub(crate) fn index(namespace: &str, selector: &BTreeMap<String, String>) -> Vec<String> {
    selector.iter().take(1).map(|(k, v)| format!("{namespace}/{k}={v}")).collect()
}

/// The Services that select an object with these labels.
pub(crate) fn selecting(services: &Informer<ServiceView>, meta: &Meta) -> Vec<Arc<Cached<ServiceView>>> {
    let mut found = Vec::new();
    for (label, value) in &meta.labels {
        for service in services.by_index(SELECTOR, &format!("{}/{label}={value}", meta.namespace)) {
            if is_selected(&service.view.spec.selector, &meta.labels) {
                found.push(service);
            }
        }
    }
    found
}

fn is_selected(selector: &BTreeMap<String, String>, labels: &Labels) -> bool {
    !selector.is_empty() && selector.iter().all(|(k, v)| labels.get(k) == Some(v))
}

/// The Services concerned by a change of a pod; none when nothing about it matters to them.
pub(crate) fn concerned(services: &Informer<ServiceView>, change: &Change<PodView>) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    let mut add = |meta: &Meta| keys.extend(selecting(services, meta).iter().map(|s| s.meta.key()));
    match change {
        Change::Applied { old: Some(old), new } => {
            if !is_different(old, new) {
                return Vec::new();
            }
            add(&new.meta);
            if old.meta.labels != new.meta.labels {
                add(&old.meta);
            }
        }
        Change::Applied { old: None, new } => add(&new.meta),
        Change::Deleted(old) => add(&old.meta),
    }
    keys.sort();
    keys.dedup();
    keys
}

fn is_different(old: &CachedPod, new: &CachedPod) -> bool {
    let face = |p: &CachedPod| {
        let ips: Vec<String> = p.view.ips().into_iter().map(str::to_owned).collect();
        let spec = &p.view.spec;
        let place = (spec.node_name.clone(), spec.hostname.clone(), spec.subdomain.clone());
        (ips, place, p.view.is_ready(), p.view.is_finished(), p.meta.is_deleting())
    };
    old.meta.uid != new.meta.uid || old.meta.labels != new.meta.labels || face(old) != face(new)
}

/// Is this a Service whose endpoints are ours to write?
pub(crate) fn is_ours(service: &ServiceView) -> bool {
    service.spec.kind != "ExternalName" && !service.spec.selector.is_empty()
}

pub(crate) fn is_headless(service: &ServiceView) -> bool {
    service.spec.cluster_ip == "None"
}

/// The pods a Service selects.
pub(crate) fn pods(pods: &Informer<PodView>, service: &Cached<ServiceView>) -> Vec<Arc<CachedPod>> {
    pods.select(&service.meta.namespace, &Selector::from_labels(&service.view.spec.selector))
}

/// The port of the pod that a Service port leads to.
pub(crate) fn target(port: &ServicePort, pod: &PodView) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let sidecars = pod.spec.init_containers.iter().filter(|c| c.restart_policy.as_deref() == Some("Always"));
            let ports = pod.spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports);
            let mut named = ports.filter(|p| p.name == *name && p.protocol.as_deref().unwrap_or("TCP") == protocol);
            named.next().map(|p| p.container_port)
        }
    }
}

/// The host name a pod has within its Service.
pub(crate) fn hostname(pod: &CachedPod, service: &Meta) -> Option<String> {
    let spec = &pod.view.spec;
    let has = !spec.hostname.is_empty() && spec.subdomain == service.name && pod.meta.namespace == service.namespace;
    has.then(|| spec.hostname.clone())
}

/// Remembers when the pods of a Service last changed, so that the time from a change to the rules
/// in the kernels can be measured from the objects alone. Lost at a restart: it is a measurement.
#[derive(Default)]
pub(crate) struct Triggers {
    services: Mutex<HashMap<Key, Trigger>>,
}

#[derive(Default)]
struct Trigger {
    service: Option<Timestamp>,
    pods: HashMap<String, Timestamp>,
}

impl Triggers {
    /// The earliest change since the last call, if there was one.
    pub(crate) fn observe(&self, service: &Meta, pods: &[Arc<CachedPod>]) -> Option<Timestamp> {
        let created = service.creation_timestamp;
        let mut services = self.services.lock();
        let known = services.get(&service.key());
        let mut earliest: Option<Timestamp> = None;
        let mut times = HashMap::new();
        let mut note = |at: Timestamp| earliest = Some(earliest.map_or(at, |e| e.min(at)));
        for pod in pods {
            let Some(at) = pod.view.ready().and_then(|c| c.last_transition_time) else { continue };
            if known.and_then(|k| k.pods.get(&pod.meta.name)).is_none_or(|old| at > *old) {
                note(at);
            }
            times.insert(pod.meta.name.clone(), at);
        }
        if let Some(at) = created.filter(|at| known.and_then(|k| k.service).is_none_or(|old| *at > old)) {
            note(at);
        }
        let is_new = known.is_none();
        services.insert(service.key(), Trigger { service: created, pods: times });
        if is_new { created } else { earliest }
    }

    pub(crate) fn forget(&self, service: &Key) {
        self.services.lock().remove(service);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::cached;
    use serde_json::json;

    #[test]
    fn ports_are_found_by_number_and_by_name_and_protocol() {
        let pod: CachedPod = cached(&json!({"metadata": {}, "spec": {
            "containers": [{"ports": [{"name": "dns", "containerPort": 53, "protocol": "UDP"}, {"name": "web", "containerPort": 8080}]}],
            "initContainers": [{"restartPolicy": "Always", "ports": [{"name": "side", "containerPort": 9}]}, {"ports": [{"name": "init", "containerPort": 1}]}],
        }}));
        let port = |target: serde_json::Value, protocol: Option<&str>| ServicePort {
            port: 80,
            protocol: protocol.map(str::to_owned),
            target_port: serde_json::from_value(target).expect("a port"),
            ..ServicePort::default()
        };
        for (target_port, protocol, found) in [
            (json!(null), None, Some(80)),
            (json!(81), None, Some(81)),
            (json!("web"), Some("TCP"), Some(8080)),
            (json!("dns"), Some("UDP"), Some(53)),
            (json!("dns"), Some("TCP"), None),
            (json!("side"), None, Some(9)),
            (json!("init"), None, None),
        ] {
            assert_eq!(target(&port(target_port.clone(), protocol), &pod.view), found, "{target_port}");
        }
    }

    #[test]
    fn the_earliest_change_triggers() {
        let service: Cached<ServiceView> =
            cached(&json!({"metadata": {"name": "s", "creationTimestamp": "2026-01-01T00:00:00Z"}}));
        let pod = |name: &str, at: &str| {
            Arc::new(cached::<PodView>(&json!({"metadata": {"name": name}, "status": {"conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": at}]}})))
        };
        let triggers = Triggers::default();
        let at = |s: &str| machinery::time::parse(s);
        let pods = [pod("a", "2026-01-01T00:00:05Z")];
        assert_eq!(triggers.observe(&service.meta, &pods), at("2026-01-01T00:00:00Z"));
        assert_eq!(triggers.observe(&service.meta, &pods), None);
        let pods = [pod("a", "2026-01-01T00:00:09Z"), pod("b", "2026-01-01T00:00:07Z")];
        assert_eq!(triggers.observe(&service.meta, &pods), at("2026-01-01T00:00:07Z"));
    }
}
