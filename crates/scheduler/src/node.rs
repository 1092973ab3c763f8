//! What the scheduler keeps of a node: its facts, and what the pods on it take.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::affinity::NodeFacts as Affine;
use api::pod::HostPort;
use k8s_openapi::api::core::v1::{Node, Taint};
use serde::Deserialize;

use crate::amounts::Amounts;
use crate::pod::{PodInfo, Uid};

/// The facts of one node. It deserializes from a Node and forgets the rest.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Node")]
pub struct NodeFacts {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub allocatable: Amounts,
    /// Sizes of the images present, by each of their names.
    pub images: BTreeMap<String, i64>,
}

impl From<Node> for NodeFacts {
    fn from(node: Node) -> Self {
        let spec = node.spec.unwrap_or_default();
        let status = node.status.unwrap_or_default();
        let images = status.images.into_iter().flatten().flat_map(|image| {
            let size = image.size_bytes.unwrap_or_default();
            image.names.into_iter().flatten().map(move |name| (name, size))
        });
        Self {
            name: node.metadata.name.unwrap_or_default(),
            labels: node.metadata.labels.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            allocatable: Amounts::of(&api::resources::parse(&status.allocatable.unwrap_or_default())),
            images: images.collect(),
        }
    }
}

impl NodeFacts {
    /// What affinity looks at.
    pub fn affine(&self) -> Affine<'_> {
        Affine { name: &self.name, labels: &self.labels }
    }

    /// True when something differs that decides whether pods fit; images only move scores.
    pub fn admits_differently(&self, old: &Self) -> bool {
        self.labels != old.labels
            || self.taints != old.taints
            || self.unschedulable != old.unschedulable
            || self.allocatable != old.allocatable
    }
}

/// A node with the pods on it: bound, or assumed to be bound soon.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    pub facts: Arc<NodeFacts>,
    pub pods: HashMap<Uid, Arc<PodInfo>>,
    /// What the pods ask for.
    pub requested: Amounts,
    /// The same with something assumed for containers that ask for nothing.
    pub assumed_cpu: i64,
    pub assumed_memory: i64,
    pub ports: Vec<HostPort>,
}

impl std::ops::Deref for NodeInfo {
    type Target = NodeFacts;

    fn deref(&self) -> &NodeFacts {
        &self.facts
    }
}

impl NodeInfo {
    /// An empty node.
    pub fn new(facts: NodeFacts) -> Self {
        Self { facts: Arc::new(facts), ..Self::default() }
    }

    /// Puts a pod on it; replaces what it knew of that pod.
    pub fn add(&mut self, pod: Arc<PodInfo>) {
        self.remove(&pod.uid);
        self.requested.add(&pod.requests);
        self.assumed_cpu = self.assumed_cpu.saturating_add(pod.assumed_cpu);
        self.assumed_memory = self.assumed_memory.saturating_add(pod.assumed_memory);
        self.ports.extend(pod.ports.iter().cloned());
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// Takes a pod off it.
    pub fn remove(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let pod = self.pods.remove(uid)?;
        self.requested.sub(&pod.requests);
        self.assumed_cpu -= pod.assumed_cpu;
        self.assumed_memory -= pod.assumed_memory;
        for port in &pod.ports {
            if let Some(at) = self.ports.iter().position(|p| p == port) {
                self.ports.swap_remove(at);
            }
        }
        Some(pod)
    }
}
