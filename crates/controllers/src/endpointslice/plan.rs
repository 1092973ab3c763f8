//! Which slices a Service should have, changed as little as possible from those it has. Pure.
//!
//! ```text
//!   pods → endpoints, grouped by the ports they serve on
//!   per group: keep each endpoint in the slice it is in → fill slices that change anyway
//!              → one untouched slice the rest fits into → new slices
//!   slices to delete are reused for slices to create
//! ```
//!
//! Hints: those of `trafficDistribution`, or in topology mode `Auto` those of `topology.rs`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use client::{Cached, OwnerRef};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, ForNode, ForZone};
use machinery::labels::Labels;
use serde_json::{Value, json};

use super::topology::{self, Hinted, Place, Zones};
use crate::service_pods::{self, HEADLESS, TRIGGER_TIME};
use crate::templates;
use crate::views::{CachedPod, PodView, ServiceView};

pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";

/// A slice as it is.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    /// The whole object.
    pub object: Value,
    pub name: String,
    /// The uid of the Service it is controlled by.
    pub owner: String,
    pub family: String,
    pub ports: Vec<EndpointPort>,
    pub endpoints: Vec<Endpoint>,
    pub labels: Labels,
}

impl Slice {
    pub(super) fn of(object: Value) -> Result<Self, serde_json::Error> {
        let read = |key: &str| object.get(key).cloned().unwrap_or_else(|| json!([]));
        Ok(Self {
            name: machinery::meta::name(&object).to_owned(),
            owner: owner(&object).to_owned(),
            family: object.get("addressType").and_then(Value::as_str).unwrap_or_default().to_owned(),
            ports: Option::<Vec<_>>::deserialize_from(read("ports"))?.unwrap_or_default(),
            endpoints: Option::<Vec<_>>::deserialize_from(read("endpoints"))?.unwrap_or_default(),
            labels: machinery::meta::labels(&object),
            object,
        })
    }
}

fn owner(object: &Value) -> &str {
    let owners = machinery::meta::owner_references(object);
    owners.into_iter().find(|owner| owner.controller).map(|owner| owner.uid).unwrap_or_default()
}

trait DeserializeFrom: Sized {
    fn deserialize_from(value: Value) -> Result<Self, serde_json::Error>;
}

impl<T: serde::de::DeserializeOwned> DeserializeFrom for T {
    fn deserialize_from(value: Value) -> Result<Self, serde_json::Error> {
        serde_json::from_value(value)
    }
}

/// What to write, in this order.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub create: Vec<Value>,
    pub update: Vec<Value>,
    pub delete: Vec<String>,
    /// Pods left out because the cache does not know their node (yet).
    pub skipped: Vec<String>,
    /// Of a Service in topology mode `Auto`.
    pub hinted: Hinted,
}

/// What is true now.
pub(super) struct Seen<'a> {
    pub service: &'a Cached<ServiceView>,
    pub pods: &'a [Arc<CachedPod>],
    /// The zone of each node that exists.
    pub nodes: &'a HashMap<String, Option<String>>,
    pub slices: Vec<Slice>,
    pub per_slice: usize,
    pub trigger: Option<Timestamp>,
    /// What zones are to have in topology mode `Auto`, where that can be said.
    pub zones: Option<&'a Zones>,
}

pub(super) fn plan(seen: Seen) -> Plan {
    let mut plan = Plan::default();
    let families = families(seen.service);
    // One of a Service that had the name before goes with it, whatever is written to it.
    let is_own = |slice: &&Slice| families.contains(&slice.family) && slice.owner == seen.service.meta.uid;
    let (known, foreign): (Vec<_>, Vec<_>) = seen.slices.iter().partition(is_own);
    plan.delete.extend(foreign.into_iter().map(|s| s.name.clone()));
    for family in families {
        let slices: Vec<&Slice> = known.iter().copied().filter(|s| s.family == family).collect();
        plan_family(&seen, &family, &slices, &mut plan);
    }
    plan.skipped.sort();
    plan.skipped.dedup();
    plan
}

/// The address families of a Service.
fn families(service: &Cached<ServiceView>) -> Vec<String> {
    let spec = &service.view.spec;
    if !spec.ip_families.is_empty() {
        return spec.ip_families.clone();
    }
    // An object from before families were recorded: its address says which, and without one both.
    match spec.cluster_ip.as_str() {
        "" | "None" => vec!["IPv4".into(), "IPv6".into()],
        ip if ip.contains(':') => vec!["IPv6".into()],
        _ => vec!["IPv4".into()],
    }
}

fn plan_family(seen: &Seen, family: &str, slices: &[&Slice], plan: &mut Plan) {
    let mut groups: BTreeMap<String, (Vec<EndpointPort>, Vec<Endpoint>)> = BTreeMap::new();
    for pod in seen.pods {
        let node = &pod.view.spec.node_name;
        if pod.view.is_finished() || pod.view.ips().is_empty() {
            continue;
        }
        let zone = match seen.nodes.get(node) {
            Some(zone) => zone.clone(),
            // Who is to be found whether ready or not is found there, too.
            None if node.is_empty() || seen.service.view.spec.publish_not_ready_addresses => None,
            None => {
                plan.skipped.push(pod.meta.name.clone());
                continue;
            }
        };
        let Some(endpoint) = endpoint(pod, seen.service, family, zone) else { continue };
        let ports = ports(seen.service, &pod.view);
        groups.entry(port_key(&ports)).or_insert_with(|| (ports, Vec::new())).1.push(endpoint);
    }
    if seen.service.view.is_topology_auto() {
        let hinted = hint(seen.zones, slices, groups.values_mut().flat_map(|(_, endpoints)| endpoints));
        plan.hinted.insert(family.to_owned(), hinted);
    }
    let mut existing: BTreeMap<String, Vec<&Slice>> = BTreeMap::new();
    for slice in slices {
        existing.entry(port_key(&slice.ports)).or_default().push(slice);
    }
    let labels = labels(seen.service);
    let mut create: Vec<Draft> = Vec::new();
    let mut update: Vec<Draft> = Vec::new();
    let mut delete: Vec<&Slice> = Vec::new();
    for (key, (ports, endpoints)) in groups {
        let slices = existing.remove(&key).unwrap_or_default();
        fit(slices, ports, endpoints, &labels, seen.per_slice, &mut create, &mut update, &mut delete);
    }
    delete.extend(existing.into_values().flatten());
    // A Service always has a slice: without endpoints an empty one.
    if slices.len() == delete.len() && create.is_empty() {
        let kept = delete.iter().position(|s| s.endpoints.is_empty() && s.ports.is_empty() && s.labels == labels);
        match kept {
            Some(at) => drop(delete.swap_remove(at)),
            None => create.push(Draft { base: None, ports: Vec::new(), endpoints: Vec::new() }),
        }
    }
    // Watchers see an update as one step, a deletion and a creation as a gap.
    while !delete.is_empty() && !create.is_empty() {
        let (reused, mut draft) = (delete.remove(0), create.remove(0));
        draft.base = Some(reused);
        update.push(draft);
    }
    plan.create.extend(create.into_iter().map(|d| d.render(seen, family, &labels)));
    plan.update.extend(update.into_iter().map(|d| d.render(seen, family, &labels)));
    plan.delete.extend(delete.into_iter().map(|s| s.name.clone()));
}

/// A slice to be written.
struct Draft<'a> {
    /// The slice it is written over; none for a new one.
    base: Option<&'a Slice>,
    ports: Vec<EndpointPort>,
    endpoints: Vec<Endpoint>,
}

impl Draft<'_> {
    fn render(self, seen: &Seen, family: &str, labels: &Labels) -> Value {
        let service = &seen.service.meta;
        let mut object = self.base.map_or_else(
            || {
                let owner = OwnerRef {
                    api_version: "v1".into(),
                    kind: "Service".into(),
                    name: service.name.clone(),
                    uid: service.uid.clone(),
                    controller: true,
                    block_owner_deletion: true,
                };
                json!({
                    "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": family,
                    "metadata": {
                        "generateName": templates::prefix(&service.name), "namespace": service.namespace,
                        "ownerReferences": [templates::reference(&owner)],
                    },
                })
            },
            |slice| slice.object.clone(),
        );
        object["metadata"]["labels"] = json!(labels);
        object["ports"] = json!(self.ports);
        object["endpoints"] = json!(self.endpoints);
        let at = seen.trigger.map(|t| t.to_string());
        machinery::meta::set_annotation(&mut object, TRIGGER_TIME, at.as_deref());
        object
    }
}

/// Fits the endpoints of one group of ports into slices.
#[allow(clippy::too_many_arguments, reason = "three of them are the three answers")]
fn fit<'a>(
    slices: Vec<&'a Slice>,
    ports: Vec<EndpointPort>,
    endpoints: Vec<Endpoint>,
    labels: &Labels,
    per_slice: usize,
    create: &mut Vec<Draft<'a>>,
    update: &mut Vec<Draft<'a>>,
    delete: &mut Vec<&'a Slice>,
) {
    let mut wanted: BTreeMap<String, Endpoint> = endpoints.into_iter().map(|e| (identity(&e), e)).collect();
    let mut unchanged: Vec<&Slice> = Vec::new();
    let mut drafts: Vec<Draft> = Vec::new();
    for slice in slices {
        let mut kept = Vec::new();
        let mut changed = slice.labels != *labels;
        for old in &slice.endpoints {
            match wanted.remove(&identity(old)) {
                Some(new) => {
                    changed |= new != *old;
                    kept.push(new);
                }
                None => changed = true,
            }
        }
        if kept.is_empty() {
            delete.push(slice);
        } else if changed {
            drafts.push(Draft { base: Some(slice), ports: ports.clone(), endpoints: kept });
        } else {
            unchanged.push(slice);
        }
    }
    let mut rest: Vec<Endpoint> = wanted.into_values().collect();
    for draft in &mut drafts {
        let room = per_slice.saturating_sub(draft.endpoints.len()).min(rest.len());
        draft.endpoints.extend(rest.drain(..room));
    }
    while !rest.is_empty() {
        // The fullest untouched slice that takes all of the rest.
        let fits = |s: &&&Slice| rest.len() < per_slice && s.endpoints.len() + rest.len() <= per_slice;
        let fullest = unchanged.iter().filter(fits).max_by_key(|s| s.endpoints.len()).map(|s| s.name.clone());
        if let Some(at) = fullest.and_then(|name| unchanged.iter().position(|s| s.name == name)) {
            let slice = unchanged.swap_remove(at);
            let mut endpoints = slice.endpoints.clone();
            endpoints.append(&mut rest);
            drafts.push(Draft { base: Some(slice), ports: ports.clone(), endpoints });
        } else {
            let count = rest.len().min(per_slice.max(1));
            create.push(Draft { base: None, ports: ports.clone(), endpoints: rest.drain(..count).collect() });
        }
    }
    update.append(&mut drafts);
}

/// What makes an endpoint the same one: its addresses and the pod behind it.
fn identity(endpoint: &Endpoint) -> String {
    let target = endpoint.target_ref.as_ref();
    let uid = target.and_then(|t| t.uid.as_deref()).unwrap_or_default();
    let name = target.and_then(|t| t.name.as_deref()).unwrap_or_default();
    let mut addresses = endpoint.addresses.clone();
    addresses.sort();
    format!("{} {uid} {name} {}", addresses.join(","), endpoint.hostname.as_deref().unwrap_or_default())
}

fn port_key(ports: &[EndpointPort]) -> String {
    let one = |p: &EndpointPort| {
        let name = p.name.as_deref().unwrap_or_default();
        let (protocol, app) = (p.protocol.as_deref().unwrap_or("TCP"), p.app_protocol.as_deref().unwrap_or_default());
        format!("{name}/{protocol}/{:?}/{app}", p.port)
    };
    let mut keys: Vec<String> = ports.iter().map(one).collect();
    keys.sort();
    keys.join(";")
}

fn ports(service: &Cached<ServiceView>, pod: &PodView) -> Vec<EndpointPort> {
    let of = |port: &crate::views::ServicePort| {
        Some(EndpointPort {
            name: Some(port.name.clone()),
            port: Some(service_pods::target(port, pod)?),
            protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
            app_protocol: port.app_protocol.clone(),
        })
    };
    service.view.spec.ports.iter().filter_map(of).collect()
}

fn endpoint(pod: &CachedPod, service: &Cached<ServiceView>, family: &str, zone: Option<String>) -> Option<Endpoint> {
    let addresses: Vec<String> =
        pod.view.ips().into_iter().filter(|ip| ip.contains(':') == (family == "IPv6")).map(str::to_owned).collect();
    if addresses.is_empty() {
        return None;
    }
    let serving = pod.view.is_ready();
    let terminating = pod.meta.is_deleting();
    let ready = service.view.spec.publish_not_ready_addresses || (serving && !terminating);
    let node = Some(pod.view.spec.node_name.clone()).filter(|n| !n.is_empty());
    let wish = service.view.spec.traffic_distribution.as_deref();
    let hints = wish.filter(|_| ready && !service.view.is_topology_auto());
    let hints = hints.and_then(|wish| hints_for(wish, zone.clone(), node.clone()));
    Some(Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: service_pods::hostname(pod, &service.meta),
        node_name: node,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: Some(pod.meta.namespace.clone()),
            name: Some(pod.meta.name.clone()),
            uid: Some(pod.meta.uid.clone()),
            ..ObjectReference::default()
        }),
        zone,
        hints,
        ..Endpoint::default()
    })
}

/// Gives the endpoints that are ready hints in proportion to zones, or says why they get none.
fn hint<'a>(
    zones: Option<&Zones>,
    slices: &[&Slice],
    endpoints: impl Iterator<Item = &'a mut Endpoint>,
) -> Result<(), String> {
    let is_ready = |e: &&'a mut Endpoint| e.conditions.as_ref().is_some_and(|c| c.ready == Some(true));
    let zone_of = |hints: &EndpointHints| Some(hints.for_zones.as_ref()?.first()?.name.clone());
    let before: HashMap<String, String> = slices
        .iter()
        .flat_map(|slice| &slice.endpoints)
        .filter_map(|e| Some((identity(e), e.hints.as_ref().and_then(zone_of)?)))
        .collect();
    let ready: Vec<&mut Endpoint> = endpoints.filter(is_ready).collect();
    let identities: Vec<String> = ready.iter().map(|e| identity(e)).collect();
    let place = |(endpoint, identity): (&&mut Endpoint, &String)| -> (Option<String>, Option<String>) {
        (endpoint.zone.clone(), before.get(identity).cloned())
    };
    let known: Vec<(Option<String>, Option<String>)> = ready.iter().zip(&identities).map(place).collect();
    let places: Vec<Place> =
        known.iter().map(|(zone, hint)| Place { zone: zone.as_deref(), hint: hint.as_deref() }).collect();
    for (endpoint, name) in ready.into_iter().zip(topology::assign(zones, &places)?) {
        endpoint.hints = Some(EndpointHints { for_zones: Some(vec![ForZone { name }]), for_nodes: None });
    }
    Ok(())
}

/// For whom an endpoint is meant first. A node without a zone has nodes all the same.
fn hints_for(wish: &str, zone: Option<String>, node: Option<String>) -> Option<EndpointHints> {
    let for_zones = zone.map(|name| vec![ForZone { name }]);
    let for_nodes = node.filter(|_| wish == "PreferSameNode").map(|name| vec![ForNode { name }]);
    let is_known = matches!(wish, "PreferClose" | "PreferSameZone" | "PreferSameNode");
    (is_known && (for_zones.is_some() || for_nodes.is_some())).then_some(EndpointHints { for_zones, for_nodes })
}

/// The Service's labels, and ours.
fn labels(service: &Cached<ServiceView>) -> Labels {
    let mut labels = service.meta.labels.clone();
    labels.remove(HEADLESS);
    if service_pods::is_headless(&service.view) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels.insert(SERVICE_NAME.into(), service.meta.name.clone());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    labels
}

#[cfg(test)]
mod tests;
