//! Pods and nodes from short JSON, and one `check` for the tables of all plugins.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::Plugin;
use crate::node::{NodeFacts, NodeInfo};
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// A pod whose spec is `spec` (containers are added when missing).
pub fn pod(name: &str, mut spec: Value) -> PodInfo {
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "c"}]);
    }
    let metadata = json!({"name": name, "namespace": "default", "uid": name});
    let pod: Pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a pod");
    PodInfo::from(&pod)
}

/// A pod with one container that asks for `requests`.
pub fn asking(name: &str, requests: Value) -> PodInfo {
    pod(name, json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}))
}

/// A node with the given metadata.labels, spec and status.allocatable.
pub fn facts(name: &str, labels: Value, spec: Value, allocatable: Value) -> NodeFacts {
    let node: Node = serde_json::from_value(
        json!({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": allocatable}}),
    )
    .expect("a node");
    NodeFacts::from(node)
}

/// A node with room for pods: 4 cores, 8Gi, 110 pods.
pub fn roomy(name: &str) -> NodeFacts {
    facts(name, json!({}), json!({}), json!({"cpu": "4", "memory": "8Gi", "pods": "110"}))
}

/// A node with pods on it.
pub fn node(facts: NodeFacts, pods: Vec<PodInfo>) -> NodeInfo {
    let mut node = NodeInfo::new(facts);
    for pod in pods {
        node.add(Arc::new(pod));
    }
    node
}

/// What the plugin's filter says: the reasons joined, `!` in front when preemption cannot help.
pub fn filter(plugin: &dyn Plugin, pod: &PodInfo, node: &NodeInfo) -> String {
    let snapshot = Snapshot::default();
    let Some(judge) = plugin.prepare(pod, &snapshot) else { return "skip".to_owned() };
    match judge.filter(node) {
        Ok(()) => "fits".to_owned(),
        Err(refusal) => {
            let mark = if refusal.preemption_helps { "" } else { "!" };
            format!("{mark}{}", refusal.reasons.join(", "))
        }
    }
}

/// The plugin's normalized scores of the nodes, `None` when it does not score the pod.
pub fn scores(plugin: &dyn Plugin, pod: &PodInfo, nodes: &[NodeInfo]) -> Option<Vec<i64>> {
    let mut snapshot = Snapshot::default();
    for node in nodes {
        snapshot.set_node((*node.facts).clone());
    }
    let judge = plugin.prepare(pod, &snapshot).filter(|j| j.scores())?;
    let mut scores: Vec<i64> = nodes.iter().map(|n| judge.score(n)).collect();
    judge.normalize(&mut scores);
    Some(scores)
}
