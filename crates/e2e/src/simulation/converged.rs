//! What must hold once nothing happens any more: everything asked for is there, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use machinery::meta;
use serde_json::Value;

use super::recorder::Objects;
use super::view::{self, at, number, text};

/// What has not converged.
pub fn judge(objects: &Objects) -> Vec<String> {
    let mut broken = Vec::new();
    leftovers(objects, &mut broken);
    owners(objects, &mut broken);
    scheduled(objects, &mut broken);
    replica_sets(objects, &mut broken);
    deployments(objects, &mut broken);
    services(objects, &mut broken);
    claims(objects, &mut broken);
    namespaces(objects, &mut broken);
    nodes(objects, &mut broken);
    broken
}

/// Nothing is half deleted.
fn leftovers(objects: &Objects, broken: &mut Vec<String>) {
    for (key, object) in objects {
        if meta::is_deleting(object) {
            let finalizers = meta::finalizers(object);
            broken.push(format!("{key} is still being deleted, held by {finalizers:?}"));
        } else if meta::finalizers(object).iter().any(|f| matches!(*f, "foregroundDeletion" | "orphan")) {
            broken.push(format!("{key} has a finalizer of a deletion"));
        }
    }
}

/// Whoever names owners has one that exists.
fn owners(objects: &Objects, broken: &mut Vec<String>) {
    let uids: BTreeSet<&str> = objects.values().map(|o| meta::uid(o)).collect();
    for (key, object) in objects {
        let owners = meta::owner_references(object);
        if !owners.is_empty() && !owners.iter().any(|o| uids.contains(o.uid)) {
            broken.push(format!("{key} outlived its owners"));
        }
    }
}

/// A pod waits only for room, and a bound pod runs.
fn scheduled(objects: &Objects, broken: &mut Vec<String>) {
    let nodes: Vec<&Value> = view::all(objects, "nodes").collect();
    for pod in view::all(objects, "pods").filter(|p| view::is_active(p)) {
        let name = format!("pod {}/{}", meta::namespace(pod), meta::name(pod));
        if !text(pod, "/spec/nodeName").is_empty() {
            if !view::has_condition(pod, "Ready") {
                broken.push(format!("{name} is bound and not ready: {}", at(pod, "/status")));
            }
            continue;
        }
        let roomy = nodes.iter().find(|node| {
            let taken = view::taken_on(objects, meta::name(node)).and(view::Room::taken(pod));
            taken.fits(&view::Room::allocatable(node))
        });
        if let Some(node) = roomy {
            broken.push(format!("{name} waits although {} has room", meta::name(node)));
        }
    }
}

fn count(pods: &[&Value], wanted: impl Fn(&Value) -> bool) -> i64 {
    i64::try_from(pods.iter().filter(|p| wanted(p)).count()).unwrap_or(i64::MAX)
}

/// A ReplicaSet has what it asks for, and says so.
fn replica_sets(objects: &Objects, broken: &mut Vec<String>) {
    for set in view::all(objects, "replicasets") {
        let name = format!("replicaset {}/{}", meta::namespace(set), meta::name(set));
        let own = |p: &&Value| view::controller(p) == Some(meta::uid(set)) && view::is_active(p);
        let pods: Vec<&Value> = view::all(objects, "pods").filter(own).collect();
        let (have, ready) = (count(&pods, |_| true), count(&pods, |p| view::has_condition(p, "Ready")));
        let wants = number(set, "/spec/replicas");
        if have != wants {
            broken.push(format!("{name} wants {wants} pods and has {have}"));
        }
        for (field, real) in [("replicas", have), ("readyReplicas", ready), ("availableReplicas", ready)] {
            let said = number(set, &format!("/status/{field}"));
            if said != real {
                broken.push(format!("{name} says {field} {said}, it has {real}"));
            }
        }
        if number(set, "/status/observedGeneration") != meta::generation(set) {
            broken.push(format!("{name} has an unobserved generation"));
        }
        for pod in pods.iter().filter(|p| !view::selects(set, p)) {
            broken.push(format!("{name} owns {}, which it does not select", meta::name(pod)));
        }
    }
    // A pod without a controller belongs to the set that selects it.
    for pod in view::all(objects, "pods").filter(|p| view::controller(p).is_none() && view::is_active(p)) {
        let selects = |s: &&Value| meta::namespace(s) == meta::namespace(pod) && view::selects(s, pod);
        if let Some(set) = view::all(objects, "replicasets").find(selects) {
            broken.push(format!("replicaset {} did not adopt {}", meta::name(set), meta::name(pod)));
        }
    }
}

/// A Deployment is complete, unless it is paused or there is no room.
fn deployments(objects: &Objects, broken: &mut Vec<String>) {
    for deployment in view::all(objects, "deployments") {
        let name = format!("deployment {}/{}", meta::namespace(deployment), meta::name(deployment));
        let uid = meta::uid(deployment);
        if number(deployment, "/status/observedGeneration") != meta::generation(deployment) {
            broken.push(format!("{name} has an unobserved generation"));
        }
        let sets: Vec<&Value> =
            view::all(objects, "replicasets").filter(|s| view::controller(s) == Some(uid)).collect();
        let uids: BTreeSet<&str> = sets.iter().map(|s| meta::uid(s)).collect();
        let own = |p: &&Value| view::is_active(p) && view::controller(p).is_some_and(|u| uids.contains(u));
        let pods: Vec<&Value> = view::all(objects, "pods").filter(own).collect();
        let ready = count(&pods, |p| view::has_condition(p, "Ready"));
        for (field, real) in [("replicas", count(&pods, |_| true)), ("readyReplicas", ready)] {
            let said = number(deployment, &format!("/status/{field}"));
            if said != real {
                broken.push(format!("{name} says {field} {said}, it has {real}"));
            }
        }
        let is_starved = pods.iter().any(|p| text(p, "/spec/nodeName").is_empty());
        let is_paused = at(deployment, "/spec/paused").as_bool().unwrap_or_default();
        if is_paused || is_starved {
            continue;
        }
        let wants = number(deployment, "/spec/replicas");
        for field in ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"] {
            let said = number(deployment, &format!("/status/{field}"));
            if said != wants {
                broken.push(format!("{name} wants {wants}, its {field} are {said}"));
            }
        }
        let busy = sets.iter().filter(|s| number(s, "/spec/replicas") > 0).count();
        if busy > 1 {
            broken.push(format!("{name} has {busy} replica sets at work"));
        }
        let image = text(deployment, "/spec/template/spec/containers/0/image");
        for pod in pods.iter().filter(|p| text(p, "/spec/containers/0/image") != image) {
            broken.push(format!("{name} wants {image}, {} has another", meta::name(pod)));
        }
    }
}

/// A Service's endpoints are its ready pods.
fn services(objects: &Objects, broken: &mut Vec<String>) {
    for service in view::all(objects, "services") {
        let (namespace, name) = (meta::namespace(service), meta::name(service));
        let Some(selector) = at(service, "/spec/selector").as_object() else { continue };
        let selects = |pod: &&Value| {
            let labels = view::labels(pod);
            meta::namespace(pod) == namespace
                && selector.iter().all(|(k, v)| labels.get(k).map(String::as_str) == v.as_str())
        };
        let all = at(service, "/spec/publishNotReadyAddresses") == true;
        let is_listed = |p: &&Value| view::is_serving(p) || (all && view::is_active(p));
        let ready: BTreeSet<&str> = view::all(objects, "pods")
            .filter(selects)
            .filter(is_listed)
            .map(|p| text(p, "/status/podIP"))
            .filter(|address| !address.is_empty())
            .collect();
        let mut listed: BTreeSet<&str> = BTreeSet::new();
        let own = |s: &&Value| {
            meta::namespace(s) == namespace && text(s, "/metadata/labels/kubernetes.io~1service-name") == name
        };
        for slice in view::all(objects, "endpointslices").filter(own) {
            for endpoint in at(slice, "/endpoints").as_array().into_iter().flatten() {
                if endpoint["conditions"]["ready"] == false {
                    continue;
                }
                for address in endpoint["addresses"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    if !listed.insert(address) {
                        broken.push(format!("service {namespace}/{name} lists {address} twice"));
                    }
                }
            }
        }
        if listed != ready {
            broken.push(format!("service {namespace}/{name} lists {listed:?}, ready are {ready:?}"));
        }
        let old = view::all(objects, "endpoints").find(|e| meta::namespace(e) == namespace && meta::name(e) == name);
        let subsets = old.and_then(|e| at(e, "/subsets").as_array()).into_iter().flatten();
        let addresses = subsets.flat_map(|s| s["addresses"].as_array().into_iter().flatten());
        let old: BTreeSet<&str> = addresses.filter_map(|a| a["ip"].as_str()).collect();
        if old != ready {
            broken.push(format!("endpoints {namespace}/{name} lists {old:?}, ready are {ready:?}"));
        }
    }
}

/// An address is claimed by exactly the Service that has it.
fn claims(objects: &Objects, broken: &mut Vec<String>) {
    let held: BTreeSet<&str> = view::all(objects, "services")
        .flat_map(|s| at(s, "/spec/clusterIPs").as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .filter(|a| *a != "None")
        .collect();
    let claimed: BTreeSet<&str> = view::all(objects, "ipaddresses").map(meta::name).collect();
    if held != claimed {
        broken.push(format!("claimed are {claimed:?}, held are {held:?}"));
    }
}

/// What every namespace has, and that nothing is outside of one.
fn namespaces(objects: &Objects, broken: &mut Vec<String>) {
    let names: BTreeSet<&str> = view::all(objects, "namespaces").map(meta::name).collect();
    for key in objects.keys().filter(|k| !k.namespace.is_empty() && k.plural != "events") {
        if !names.contains(key.namespace.as_str()) {
            broken.push(format!("{key} is in a namespace that does not exist"));
        }
    }
    for namespace in names {
        for (plural, name) in [("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")] {
            if !objects.keys().any(|k| k.plural == plural && k.namespace == namespace && k.name == name) {
                broken.push(format!("namespace {namespace} has no {plural} {name}"));
            }
        }
    }
}

/// Nodes are ready and free of taints.
fn nodes(objects: &Objects, broken: &mut Vec<String>) {
    let mut ranges: BTreeMap<&str, &str> = BTreeMap::new();
    for node in view::all(objects, "nodes") {
        let name = meta::name(node);
        if !view::has_condition(node, "Ready") {
            broken.push(format!("node {name} is not ready: {}", at(node, "/status/conditions")));
        }
        let taints = at(node, "/spec/taints");
        if taints.as_array().is_some_and(|t| !t.is_empty()) {
            broken.push(format!("node {name} has taints {taints}"));
        }
        let range = text(node, "/spec/podCIDR");
        if range.is_empty() {
            broken.push(format!("node {name} has no range for pods"));
        } else if let Some(other) = ranges.insert(range, name) {
            broken.push(format!("nodes {name} and {other} share {range}"));
        }
    }
}
