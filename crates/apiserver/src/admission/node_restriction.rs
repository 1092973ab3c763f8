//! A kubelet changes its own Node, its own pods and its own Lease, and of those only what is its
//! business: no taints, no labels that would draw others' pods to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use kinds::{User, Verb};
use machinery::meta;
use machinery::status::{self, GroupResource, Status};
use serde_json::Value;

use super::{Attributes, Plugin, node_requests, signers};
use crate::authz::node::{self, Reference};
use crate::objects::{self, Objects, Resource};

const MIRROR: &str = "kubernetes.io/config.mirror";
const LEASES: Resource = Resource { group: "coordination.k8s.io", plural: "leases" };
const SLICES: Resource = Resource { group: "resource.k8s.io", plural: "resourceslices" };
const CSI_NODES: Resource = Resource { group: "storage.k8s.io", plural: "csinodes" };

/// Labels of the `kubernetes.io` domains that a kubelet may set on its Node.
const KUBELET_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Domains whose labels are the kubelet's own.
const KUBELET_DOMAINS: &[&str] = &["kubelet.kubernetes.io", "node.kubernetes.io"];

/// The plugin.
pub struct NodeRestriction {
    objects: Arc<dyn Objects>,
}

impl NodeRestriction {
    /// Over the objects given.
    pub fn new(objects: Arc<dyn Objects>) -> Self {
        Self { objects }
    }

    /// The pod as it is, for questions about where it runs.
    async fn pod(&self, namespace: &str, name: &str) -> status::Result<Arc<Value>> {
        let found = self.objects.find(objects::PODS, namespace, name).await?;
        found.ok_or_else(|| Status::not_found(&GroupResource::new("", "pods"), name))
    }

    /// A request for a certificate is for the node itself, or for a pod that runs on it.
    async fn judge_request(&self, node: &str, a: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
        let Some(request) = object else { return Ok(()) };
        let verdict = if a.is_for(signers::REQUESTS, "") {
            node_requests::judge(node, request)
        } else if a.is_for(signers::POD_REQUESTS, "") {
            let named = |pointer: &str| text(request, pointer);
            let this = self.objects.find(objects::NODES, "", node).await?;
            let pod = self.objects.find(objects::PODS, a.namespace, named("/spec/podName")).await?;
            let account = named("/spec/serviceAccountName");
            let account = self.objects.find(objects::SERVICE_ACCOUNTS, a.namespace, account).await?;
            node_requests::judge_for_pod(node, request, this.as_deref(), pod.as_deref(), account.as_deref())
        } else {
            Ok(())
        };
        verdict.map_err(|why| a.forbidden(object, why))
    }

    async fn judge_pod(&self, node: &str, a: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
        let own = |pod: &Value| text(pod, "/spec/nodeName") == node;
        let refuse = |what: &str| {
            let why = format!("node {node:?} can only {what} pods with spec.nodeName set to itself");
            Err(a.forbidden(object, why))
        };
        match (a.request.subresource.as_str(), a.verb, object) {
            ("", Verb::Create, Some(pod)) => {
                let this = self.objects.find(objects::NODES, "", node).await?;
                judge_new_pod(node, pod, this.as_deref()).map_err(|why| a.forbidden(object, why))
            }
            ("", Verb::Delete, _) => {
                let pod = self.pod(a.namespace, a.name).await?;
                if own(&pod) { Ok(()) } else { refuse("delete") }
            }
            ("status", Verb::Update, Some(pod)) => {
                let Some(old) = a.old.filter(|old| own(old)) else { return refuse("update pod status for") };
                if meta::labels(old) == meta::labels(pod) {
                    Ok(())
                } else {
                    let why = format!("node {node:?} cannot update labels through pod status");
                    Err(a.forbidden(object, why))
                }
            }
            // The Eviction, and what it does to the pod.
            ("eviction", _, _) => {
                let pod = self.pod(a.namespace, a.name).await?;
                if own(&pod) { Ok(()) } else { refuse("evict") }
            }
            (subresource, verb, _) => {
                let why = format!("unexpected operation {:?} on pods/{subresource}", verb.as_str().to_uppercase());
                Err(a.forbidden(object, why))
            }
        }
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A pod that a node creates mirrors one of its static pods and refers to nothing.
fn judge_new_pod(node: &str, pod: &Value, this: Option<&Value>) -> Result<(), String> {
    if meta::annotation(pod, MIRROR).is_none() {
        return Err(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
    }
    if text(pod, "/spec/nodeName") != node {
        return Err(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owners = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let [owner] = owners else {
        return Err(format!("node {node:?} can only create pods with an owner reference set to itself"));
    };
    let is = |key: &str, value: &str| owner.get(key).and_then(Value::as_str) == Some(value);
    if !is("apiVersion", "v1") || !is("kind", "Node") || !is("name", node) {
        return Err(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if owner.get("controller") != Some(&Value::Bool(true)) {
        return Err(format!("node {node:?} can only create pods with a controller owner reference set to itself"));
    }
    if owner.get("blockOwnerDeletion") == Some(&Value::Bool(true)) {
        return Err(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    match this {
        Some(this) if is("uid", meta::uid(this)) => {}
        _ => return Err(format!("node {node:?} UID mismatch: expected the UID of the Node in the owner reference")),
    }
    let what = match node::references(pod).first() {
        None => return Ok(()),
        Some((Reference::ServiceAccount, _)) => "a service account",
        Some((Reference::Secret, _)) => "secrets",
        Some((Reference::ConfigMap, _)) => "configmaps",
        Some((Reference::Claim, _)) => "persistentvolumeclaims",
    };
    Err(format!("node {node:?} can not create pods that reference {what}"))
}

/// What a node may write of its own Node.
fn judge_node(node: &str, new: &Value, old: Option<&Value>) -> Result<(), String> {
    let labels = |object: Option<&Value>| object.map(meta::labels).unwrap_or_default();
    let forbidden: Vec<String> =
        changed(&labels(Some(new)), &labels(old)).into_iter().filter(|label| !may_set(label)).collect();
    let Some(old) = old else {
        if forbidden.is_empty() {
            return Ok(());
        }
        return Err(format!("node {node:?} is not allowed to set the following labels: {}", forbidden.join(", ")));
    };
    let differs = |pointer: &str| {
        let value = |object: &Value| {
            object.pointer(pointer).filter(|v| v.as_array().is_none_or(|a| !a.is_empty()) && !v.is_null()).cloned()
        };
        value(new) != value(old)
    };
    if differs("/spec/taints") {
        return Err(format!("node {node:?} is not allowed to modify taints"));
    }
    if !forbidden.is_empty() {
        return Err(format!("is not allowed to modify labels: {}", forbidden.join(", ")));
    }
    if differs("/metadata/ownerReferences") {
        return Err(format!("node {node:?} is not allowed to modify ownerReferences"));
    }
    Ok(())
}

/// Labels that were added, removed or given another value.
fn changed(new: &BTreeMap<String, String>, old: &BTreeMap<String, String>) -> BTreeSet<String> {
    new.keys().chain(old.keys()).filter(|key| new.get(*key) != old.get(*key)).cloned().collect()
}

/// True for labels outside Kubernetes' domains and for those that are a kubelet's to set.
fn may_set(label: &str) -> bool {
    let Some((domain, _)) = label.split_once('/') else { return true };
    let within = |parent: &str| domain == parent || domain.strip_suffix(parent).is_some_and(|d| d.ends_with('.'));
    if within("node-restriction.kubernetes.io") {
        return false;
    }
    let system = within("kubernetes.io") || within("k8s.io");
    !system || KUBELET_LABELS.contains(&label) || KUBELET_DOMAINS.iter().any(|d| within(d))
}

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    async fn mutate(&self, a: &Attributes<'_>, object: Option<&mut Value>) -> status::Result<()> {
        let object = object.as_deref();
        let Some(node) = node_of(a.user) else { return Ok(()) };
        let shape = a.kind.shape();
        let on = |resource: Resource| shape.group == resource.group && shape.plural == resource.plural;
        if on(objects::PODS) {
            return self.judge_pod(node, a, object).await;
        }
        // A node's own name stands in the body when it creates.
        let name = if a.name.is_empty() { object.map(meta::name).unwrap_or_default() } else { a.name };
        if on(objects::NODES) {
            if name != node {
                let why = format!("node {node:?} is not allowed to modify node {name:?}");
                return Err(a.forbidden(object, why));
            }
            return match object {
                Some(new) => judge_node(node, new, a.old).map_err(|why| a.forbidden(object, why)),
                None => Ok(()),
            };
        }
        if on(LEASES) {
            if a.namespace != "kube-node-lease" {
                let why = format!("can only access leases in the {:?} system namespace", "kube-node-lease");
                return Err(a.forbidden(object, why));
            }
            if name != node {
                let why = "can only access node lease with the same name as the requesting node";
                return Err(a.forbidden(object, why));
            }
        }
        if a.verb == Verb::Create && a.request.subresource.is_empty() {
            self.judge_request(node, a, object).await?;
        }
        if on(SLICES) && matches!(a.verb, Verb::Create | Verb::Delete) {
            let (what, slice) = if a.verb == Verb::Create { ("create", object) } else { ("delete", a.old) };
            if slice.is_none_or(|slice| text(slice, "/spec/nodeName") != node) {
                let why = format!("can only {what} ResourceSlice with the same NodeName as the requesting node");
                return Err(a.forbidden(object, why));
            }
        }
        if on(CSI_NODES) && name != node {
            return Err(a.forbidden(object, "can only access CSINode with the same name as the requesting node"));
        }
        Ok(())
    }
}

fn node_of(user: &User) -> Option<&str> {
    node::node_name(user)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_a_node_may_set() {
        for (label, want) in [
            ("role", true),
            ("example.com/role", true),
            ("mykubernetes.io/role", true),
            ("kubernetes.io/hostname", true),
            ("kubernetes.io/role", false),
            ("node-role.kubernetes.io/control-plane", false),
            ("node.kubernetes.io/anything", true),
            ("x.node.kubernetes.io/anything", true),
            ("kubelet.kubernetes.io/anything", true),
            ("node-restriction.kubernetes.io/x", false),
            ("a.node-restriction.kubernetes.io/x", false),
            ("foo.k8s.io/x", false),
        ] {
            assert_eq!(may_set(label), want, "{label}");
        }
    }

    #[test]
    fn what_a_node_may_change_of_itself() {
        let with = |labels: Value, taints: Value| json!({"metadata": {"labels": labels}, "spec": {"taints": taints}});
        let plain = || with(json!({}), json!([]));
        let taint = || json!([{"key": "a", "effect": "NoSchedule"}]);
        for (new, old, want) in [
            (with(json!({"a": "b"}), taint()), None, None),
            (
                with(json!({"node-role.kubernetes.io/x": ""}), json!(null)),
                None,
                Some(r#"node "n" is not allowed to set the following labels: node-role.kubernetes.io/x"#),
            ),
            (plain(), Some(with(json!({}), json!(null))), None),
            (with(json!({}), taint()), Some(plain()), Some(r#"node "n" is not allowed to modify taints"#)),
            (plain(), Some(with(json!({}), taint())), Some(r#"node "n" is not allowed to modify taints"#)),
            (
                plain(),
                Some(with(json!({"node-restriction.kubernetes.io/x": "1"}), json!([]))),
                Some("is not allowed to modify labels: node-restriction.kubernetes.io/x"),
            ),
            (with(json!({"x": "2"}), json!([])), Some(with(json!({"x": "1"}), json!([]))), None),
        ] {
            assert_eq!(judge_node("n", &new, old.as_ref()).err().as_deref(), want, "{new} {old:?}");
        }
    }

    #[test]
    fn a_node_creates_only_mirrors_of_its_own_pods() {
        let this = json!({"metadata": {"name": "n", "uid": "u"}});
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true});
        let good = json!({"metadata": {"annotations": {MIRROR: "x"}, "ownerReferences": [owner]},
                          "spec": {"nodeName": "n"}});
        assert_eq!(judge_new_pod("n", &good, Some(&this)), Ok(()));
        for (pointer, value, want) in [
            ("/metadata/annotations", json!({}), "can only create mirror pods"),
            ("/spec/nodeName", json!("other"), "with spec.nodeName set to itself"),
            ("/metadata/ownerReferences", json!([]), "an owner reference set to itself"),
            ("/metadata/ownerReferences/0/name", json!("other"), "an owner reference set to itself"),
            ("/metadata/ownerReferences/0/uid", json!("other"), "UID mismatch"),
            ("/metadata/ownerReferences/0/controller", json!(false), "a controller owner reference"),
            ("/spec", json!({"nodeName": "n", "serviceAccountName": "x"}), "reference a service account"),
            ("/spec", json!({"nodeName": "n", "volumes": [{"configMap": {"name": "x"}}]}), "reference configmaps"),
        ] {
            let mut pod = good.clone();
            *pod.pointer_mut(pointer).unwrap() = value.clone();
            let error = judge_new_pod("n", &pod, Some(&this)).unwrap_err();
            assert!(error.contains(want), "{pointer} {value}: {error}");
        }
    }
}
