//! What a kubelet may touch: its own Node, Lease and pods, and what those pods refer to.
//!
//! ```text
//!  system:node:a ─► pods with spec.nodeName a ─► their Secrets, ConfigMaps, claims, ServiceAccounts
//!                                                 and the volumes that say they belong to those claims
//! ```
//!
//! Requests about other resources are judged by the rules of the ClusterRole `system:node`; for the
//! ones listed here the relation must be found, and what cannot be found is not allowed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kinds::User;
use machinery::meta;
use parking_lot::Mutex;
use serde_json::Value;

use super::rbac::Rule;
use super::{Authorizer, Decision};
use crate::bootstrap::roles;
use crate::objects::{self, Change, Objects, Seen};
use crate::request::RequestInfo;

const USER_PREFIX: &str = "system:node:";
const GROUP: &str = "system:nodes";

/// The node a user speaks for.
pub fn node_name(user: &User) -> Option<&str> {
    let name = user.name.strip_prefix(USER_PREFIX).filter(|n| !n.is_empty())?;
    user.groups.iter().any(|g| g == GROUP).then_some(name)
}

/// What a pod refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reference {
    Secret,
    ConfigMap,
    Claim,
    ServiceAccount,
}

type References = BTreeSet<(Reference, String)>;

/// The references of a pod, by kind and name, in its own namespace.
pub fn references(pod: &Value) -> References {
    let mut out = References::new();
    let mut add = |kind: Reference, name: Option<&Value>| {
        if let Some(name) = name.and_then(Value::as_str).filter(|n| !n.is_empty()) {
            out.insert((kind, name.to_owned()));
        }
    };
    let spec = &pod["spec"];
    add(Reference::ServiceAccount, spec.get("serviceAccountName"));
    for secret in array(spec, "imagePullSecrets") {
        add(Reference::Secret, secret.get("name"));
    }
    for volume in array(spec, "volumes") {
        add(Reference::Secret, volume.pointer("/secret/secretName"));
        add(Reference::ConfigMap, volume.pointer("/configMap/name"));
        add(Reference::Claim, volume.pointer("/persistentVolumeClaim/claimName"));
        if volume.get("ephemeral").is_some() {
            let claim = format!("{}-{}", meta::name(pod), volume["name"].as_str().unwrap_or_default());
            add(Reference::Claim, Some(&Value::String(claim)));
        }
        add(Reference::Secret, volume.pointer("/azureFile/secretName"));
        for driver in ["cephfs", "rbd", "flexVolume", "scaleIO", "iscsi", "storageos", "cinder"] {
            add(Reference::Secret, volume.get(driver).and_then(|d| d.pointer("/secretRef/name")));
        }
        add(Reference::Secret, volume.pointer("/csi/nodePublishSecretRef/name"));
        for source in volume.pointer("/projected/sources").and_then(Value::as_array).into_iter().flatten() {
            add(Reference::Secret, source.pointer("/secret/name"));
            add(Reference::ConfigMap, source.pointer("/configMap/name"));
        }
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in array(spec, list) {
            for variable in array(container, "env") {
                add(Reference::Secret, variable.pointer("/valueFrom/secretKeyRef/name"));
                add(Reference::ConfigMap, variable.pointer("/valueFrom/configMapKeyRef/name"));
            }
            for source in array(container, "envFrom") {
                add(Reference::Secret, source.pointer("/secretRef/name"));
                add(Reference::ConfigMap, source.pointer("/configMapRef/name"));
            }
        }
    }
    out
}

fn array<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

#[derive(Default)]
struct Graph {
    /// node → (namespace, pod) → references.
    pods: HashMap<String, HashMap<(String, String), References>>,
    /// (namespace, pod) → node.
    placed: HashMap<(String, String), String>,
    seen: Seen,
}

impl Graph {
    fn put(&mut self, pod: &Value) {
        let key = (meta::namespace(pod).to_owned(), meta::name(pod).to_owned());
        self.remove(&key);
        let Some(node) = pod.pointer("/spec/nodeName").and_then(Value::as_str).filter(|n| !n.is_empty()) else {
            return;
        };
        // A mirror pod says what a file on the node says: it gives the node no access to anything.
        let mirror = meta::annotation(pod, "kubernetes.io/config.mirror").is_some();
        let references = if mirror { References::new() } else { references(pod) };
        self.pods.entry(node.to_owned()).or_default().insert(key.clone(), references);
        self.placed.insert(key, node.to_owned());
    }

    fn remove(&mut self, key: &(String, String)) {
        let Some(node) = self.placed.remove(key) else { return };
        if let Some(pods) = self.pods.get_mut(&node) {
            pods.remove(key);
            if pods.is_empty() {
                self.pods.remove(&node);
            }
        }
    }

    fn runs(&self, node: &str, namespace: &str, pod: &str) -> bool {
        self.placed.get(&(namespace.to_owned(), pod.to_owned())).is_some_and(|n| n == node)
    }

    fn refers(&self, node: &str, namespace: &str, kind: Reference, name: &str) -> bool {
        let wanted = (kind, name.to_owned());
        self.pods
            .get(node)
            .is_some_and(|pods| pods.iter().any(|((ns, _), refs)| ns == namespace && refs.contains(&wanted)))
    }
}

/// The Node authorizer.
pub struct NodeAuthorizer {
    objects: Arc<dyn Objects>,
    graph: Mutex<Graph>,
    rules: Vec<Rule>,
}

impl NodeAuthorizer {
    /// Over the objects given; reads them when first asked.
    pub fn new(objects: Arc<dyn Objects>) -> Arc<Self> {
        let rules = roles::cluster_role_rules("system:node");
        Arc::new(Self { objects, graph: Mutex::default(), rules })
    }

    fn with_graph<T>(&self, read: impl FnOnce(&Graph) -> T) -> T {
        let mut graph = self.graph.lock();
        let mut seen = std::mem::take(&mut graph.seen);
        for change in self.objects.changes_of_spec(objects::PODS, &mut seen) {
            match change {
                Change::Put(pod) => graph.put(&pod),
                Change::Gone { namespace, name } => graph.remove(&(namespace, name)),
            }
        }
        graph.seen = seen;
        read(&graph)
    }

    fn by_rules(&self, request: &RequestInfo) -> Result<(), String> {
        if self.rules.iter().any(|r| r.matches(request)) { Ok(()) } else { Err(String::new()) }
    }

    /// `Ok` when the node may; else why not (empty: nothing to say).
    fn judge(&self, node: &str, request: &RequestInfo) -> Result<(), String> {
        if !request.is_resource {
            return self.by_rules(request);
        }
        let unrelated = || Err(format!("no relationship found between node '{node}' and this object"));
        let r = request;
        let refers = |kind| self.with_graph(|graph| graph.refers(node, &r.namespace, kind, &r.name));
        match (r.group.as_str(), r.resource.as_str(), r.subresource.as_str()) {
            ("", kind @ ("secrets" | "configmaps"), "") => {
                // A watch of one object by name is how a kubelet follows it.
                if !matches!(r.verb.as_str(), "get" | "list" | "watch") {
                    return Err(format!("can only read resources of this type: {kind}"));
                }
                if r.namespace.is_empty() || r.name.is_empty() {
                    return Err("can only read namespaced object of this type".into());
                }
                let kind = if kind == "secrets" { Reference::Secret } else { Reference::ConfigMap };
                if refers(kind) { Ok(()) } else { unrelated() }
            }
            ("", "secrets" | "configmaps", _) => Err("cannot get subresource of this type".into()),
            ("", "persistentvolumeclaims", sub @ ("" | "status")) => {
                let verbs: &[&str] = if sub.is_empty() { &["get"] } else { &["get", "update", "patch"] };
                if !verbs.contains(&r.verb.as_str()) || r.name.is_empty() {
                    return Err("can only get individual resources of this type".into());
                }
                if refers(Reference::Claim) { Ok(()) } else { unrelated() }
            }
            ("", "serviceaccounts", "token") => {
                if r.verb != "create" || r.name.is_empty() {
                    return Err("can only create tokens for individual service accounts".into());
                }
                if refers(Reference::ServiceAccount) { Ok(()) } else { unrelated() }
            }
            ("", "serviceaccounts", "") => {
                if r.verb != "get" || r.name.is_empty() {
                    return Err("can only get individual resources of this type".into());
                }
                if refers(Reference::ServiceAccount) { Ok(()) } else { unrelated() }
            }
            ("", "persistentvolumes", "") => {
                if r.verb != "get" || r.name.is_empty() {
                    return Err("can only get individual resources of this type".into());
                }
                // Through the claim that the volume itself says it belongs to.
                let Some(volume) = self.objects.get(objects::PERSISTENT_VOLUMES, "", &r.name) else {
                    return unrelated();
                };
                let text = |key: &str| volume.pointer(key).and_then(Value::as_str).unwrap_or_default();
                let (namespace, claim) = (text("/spec/claimRef/namespace"), text("/spec/claimRef/name"));
                let refers = self.with_graph(|g| g.refers(node, namespace, Reference::Claim, claim));
                if refers { Ok(()) } else { unrelated() }
            }
            ("", "persistentvolumes", _) => Err("cannot get subresource of this type".into()),
            // Of volumes that are attached, which nothing served does yet.
            ("storage.k8s.io", "volumeattachments", _) => unrelated(),
            ("resource.k8s.io", "resourceclaims" | "resourceslices", _) => unrelated(),
            // By this one the service proxy of the node tells the kubelet which endpoints have left.
            ("coordination.k8s.io", "leases", "")
                if r.namespace == api::leaving::NAMESPACE && r.name == api::leaving::lease(node) =>
            {
                match r.verb.as_str() {
                    "get" | "list" | "watch" => Ok(()),
                    _ => Err("can only read the lease of its service proxy".into()),
                }
            }
            ("coordination.k8s.io", "leases", sub) => {
                if !sub.is_empty() || r.namespace != "kube-node-lease" {
                    return Err(format!("can only access leases in the {:?} system namespace", "kube-node-lease"));
                }
                match r.verb.as_str() {
                    // The name is in the body; admission looks at it.
                    "create" => Ok(()),
                    "get" | "update" | "patch" | "delete" if r.name == node => Ok(()),
                    "get" | "update" | "patch" | "delete" => {
                        Err("can only access node lease with the same name as the requesting node".into())
                    }
                    _ => Err("can only get, create, update, patch, or delete a node lease".into()),
                }
            }
            ("storage.k8s.io", "csinodes", sub) => {
                if !sub.is_empty() {
                    return Err("cannot authorize CSINode subresources".into());
                }
                match r.verb.as_str() {
                    "create" => Ok(()),
                    "get" | "update" | "patch" | "delete" if r.name == node => Ok(()),
                    "get" | "update" | "patch" | "delete" => {
                        Err("can only access CSINode with the same name as the requesting node".into())
                    }
                    _ => Err("can only get, create, update, patch, or delete a CSINode".into()),
                }
            }
            ("", "nodes", sub) => match r.verb.as_str() {
                "create" if sub.is_empty() => self.by_rules(r),
                "get" | "list" | "watch" if r.name != node => {
                    Err(format!("node '{node}' cannot read '{}', only its own Node object", r.name))
                }
                "update" | "patch" if r.name != node => {
                    Err(format!("node '{node}' cannot modify '{}', only its own Node object", r.name))
                }
                _ => self.by_rules(r),
            },
            ("", "pods", sub) => match (r.verb.as_str(), sub) {
                ("get", "") | ("delete", "") | ("update" | "patch", "status") | ("create", "eviction") => {
                    let own = self.with_graph(|graph| graph.runs(node, &r.namespace, &r.name));
                    if own { self.by_rules(r) } else { unrelated() }
                }
                // Only mirror pods bound to itself; admission looks at the body.
                ("create", "") => self.by_rules(r),
                ("list" | "watch", "") if r.selects("spec.nodeName", node) => self.by_rules(r),
                ("list" | "watch", "") => {
                    Err(format!("can only list/watch pods with spec.nodeName field selector of '{node}'"))
                }
                _ => Err(String::new()),
            },
            _ => self.by_rules(r),
        }
    }
}

impl Authorizer for NodeAuthorizer {
    fn authorize(&self, user: &User, request: &RequestInfo) -> Decision {
        let Some(node) = node_name(user) else { return Decision::silent() };
        match self.judge(node, request) {
            Ok(()) => Decision::Allow { reason: String::new() },
            Err(reason) => Decision::NoOpinion { reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::fixed::Fixed;

    #[test]
    fn a_node_reaches_what_its_pods_refer_to_and_nothing_else() {
        let objects = Arc::new(Fixed::default());
        let pod = |node: &str, name: &str, mirror: bool| {
            let annotations = if mirror { json!({"kubernetes.io/config.mirror": "x"}) } else { json!({}) };
            json!({"metadata": {"namespace": "ns", "name": name, "annotations": annotations},
                   "spec": {"nodeName": node, "serviceAccountName": format!("sa-{name}"),
                            "volumes": [{"secret": {"secretName": format!("vol-{name}")}},
                                        {"persistentVolumeClaim": {"claimName": format!("claim-{name}")}},
                                        {"projected": {"sources": [{"configMap": {"name": format!("cm-{name}")}}]}}],
                            "initContainers": [{"envFrom": [{"secretRef": {"name": format!("env-{name}")}}]}]}})
        };
        objects.put(objects::PODS, pod("a", "p", false)).put(objects::PODS, pod("b", "q", false));
        objects.put(objects::PODS, pod("a", "m", true));
        for (name, namespace, claim) in [("pv-p", "ns", "claim-p"), ("pv-q", "ns", "claim-q"), ("pv-x", "x", "claim-p")]
        {
            let claim = json!({"namespace": namespace, "name": claim});
            let volume = json!({"metadata": {"name": name}, "spec": {"claimRef": claim}});
            objects.put(objects::PERSISTENT_VOLUMES, volume);
        }
        objects.put(objects::PERSISTENT_VOLUMES, json!({"metadata": {"name": "pv-free"}, "spec": {}}));
        let authorizer = NodeAuthorizer::new(objects.clone());
        let user = User { name: "system:node:a".into(), groups: vec![GROUP.into()], ..User::default() };
        let check = |line: &str, want: bool| {
            let parts: Vec<&str> = line.split_whitespace().collect();
            let (group, resource) = parts[1].rsplit_once('|').unwrap_or(("", parts[1]));
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let at = |i: usize| parts.get(i).filter(|s| **s != "-").map(|s| (*s).to_owned()).unwrap_or_default();
            let request = RequestInfo {
                is_resource: true,
                verb: parts[0].into(),
                group: group.into(),
                resource: resource.into(),
                subresource: subresource.into(),
                namespace: at(2),
                name: at(3),
                field_selector: at(4),
                ..RequestInfo::default()
            };
            assert_eq!(authorizer.authorize(&user, &request).is_allowed(), want, "{line}");
        };
        for (line, want) in [
            ("get secrets ns vol-p", true),
            ("watch secrets ns env-p", true),
            ("get secrets ns vol-q", false),
            ("get secrets ns vol-m", false),
            ("get secrets other vol-p", false),
            ("list secrets ns", false),
            ("update secrets ns vol-p", false),
            ("get configmaps ns cm-p", true),
            ("get persistentvolumeclaims ns claim-p", true),
            ("get persistentvolumeclaims ns claim-q", false),
            ("get persistentvolumes - pv-p", true),
            ("get persistentvolumes - pv-q", false),
            ("get persistentvolumes - pv-x", false),
            ("get persistentvolumes - pv-free", false),
            ("get persistentvolumes - none", false),
            ("list persistentvolumes -", false),
            ("patch persistentvolumes/status - pv-p", false),
            ("create serviceaccounts/token ns sa-p", true),
            ("create serviceaccounts/token ns sa-q", false),
            ("get nodes - a", true),
            ("get nodes - b", false),
            ("list nodes -", false),
            ("list nodes - a", true),
            ("create nodes -", true),
            ("patch nodes/status - a", true),
            ("patch nodes/status - b", false),
            ("delete nodes - a", false),
            ("get pods ns p", true),
            ("get pods ns q", false),
            ("list pods - - spec.nodeName=a", true),
            ("watch pods - - spec.nodeName=b", false),
            ("list pods -", false),
            ("patch pods/status ns p", true),
            ("patch pods/status ns q", false),
            ("patch pods ns p", false),
            ("create pods/exec ns p", false),
            ("get coordination.k8s.io|leases kube-node-lease a", true),
            ("get coordination.k8s.io|leases kube-node-lease b", false),
            ("get coordination.k8s.io|leases kube-system a", false),
            ("watch coordination.k8s.io|leases kube-public kube-proxy-a", true),
            ("update coordination.k8s.io|leases kube-public kube-proxy-a", false),
            ("watch coordination.k8s.io|leases kube-public kube-proxy-b", false),
            ("watch coordination.k8s.io|leases kube-node-lease kube-proxy-a", false),
            ("list coordination.k8s.io|leases kube-public -", false),
            ("watch coordination.k8s.io|leases kube-system kube-proxy-a", false),
            ("list services -", true),
            ("create events ns", true),
            ("create authentication.k8s.io|tokenreviews -", true),
            ("get namespaces - ns", false),
        ] {
            check(line, want);
        }
        objects.remove(objects::PODS, "ns", "p");
        check("get secrets ns vol-p", false);
    }
}
