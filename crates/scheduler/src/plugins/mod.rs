//! What decides where a pod may and should run: one file per plugin, and the default profile.
//!
//! A plugin is asked once per pod to [`Plugin::prepare`]; what comes back is asked per node. The
//! order of the profile is the order of the filters, and the first that refuses a node is the one
//! the user reads about.

mod image_locality;
mod node_affinity;
mod node_name;
mod node_ports;
mod node_resources_balanced;
mod node_resources_fit;
mod node_unschedulable;
pub mod priority_sort;
mod scheduling_gates;
mod taint_toleration;
#[cfg(test)]
pub(crate) mod testing;

use std::borrow::Cow;

use crate::node::{NodeFacts, NodeInfo};
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// The best score a plugin gives.
pub const MAX_SCORE: i64 = 100;

/// Why a node does not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// In the words users read: `Insufficient cpu`.
    pub reasons: Vec<Cow<'static, str>>,
    /// True when the pod might fit if other pods were not there.
    pub preemption_helps: bool,
}

impl Refusal {
    /// Whatever pods run there, the node does not do.
    pub fn never(reason: &'static str) -> Self {
        Self { reasons: vec![Cow::Borrowed(reason)], preemption_helps: false }
    }

    /// The pods that run there are in the way.
    pub fn crowded(reason: &'static str) -> Self {
        Self { reasons: vec![Cow::Borrowed(reason)], preemption_helps: true }
    }
}

/// What happened in the cluster that may let a parked pod fit.
#[derive(Clone, Copy, Debug)]
pub enum ClusterEvent<'a> {
    NodeAdded(&'a NodeFacts),
    NodeChanged {
        old: &'a NodeFacts,
        new: &'a NodeFacts,
    },
    /// A pod left its node, or asks for less of it.
    PodGone(&'a PodInfo),
}

/// A plugin prepared for one pod.
pub trait Judge {
    /// May the pod run on the node? It must not remember nodes: it is asked about variants of one.
    fn filter(&self, _node: &NodeInfo) -> Result<(), Refusal> {
        Ok(())
    }

    /// The only nodes that can do, when the pod names them.
    fn only(&self) -> Option<Vec<&str>> {
        None
    }

    /// True when it scores nodes for this pod.
    fn scores(&self) -> bool {
        false
    }

    /// How well the node suits; any number, brought to `0..=MAX_SCORE` by [`Judge::normalize`].
    fn score(&self, _node: &NodeInfo) -> i64 {
        0
    }

    /// Brings the scores of all feasible nodes to the common scale.
    fn normalize(&self, _scores: &mut [i64]) {}
}

/// One rule of scheduling.
pub trait Plugin: Send + Sync + 'static {
    /// Upstream's name.
    fn name(&self) -> &'static str;

    /// How much its scores count.
    fn weight(&self) -> i64 {
        1
    }

    /// Why the pod may not even enter the queue.
    fn bars(&self, _pod: &PodInfo) -> bool {
        false
    }

    /// The rule for one pod; `None` when it says nothing about it.
    fn prepare<'a>(&'a self, pod: &'a PodInfo, snapshot: &'a Snapshot) -> Option<Box<dyn Judge + 'a>>;

    /// Might the event undo this plugin's refusal of the pod?
    fn wakes(&self, _pod: &PodInfo, _event: ClusterEvent<'_>) -> bool {
        false
    }
}

/// Plugins in order.
pub struct Profile {
    pub plugins: Vec<Box<dyn Plugin>>,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            plugins: vec![
                Box::new(scheduling_gates::SchedulingGates),
                Box::new(node_unschedulable::NodeUnschedulable),
                Box::new(node_name::NodeName),
                Box::new(taint_toleration::TaintToleration),
                Box::new(node_affinity::NodeAffinity),
                Box::new(node_ports::NodePorts),
                Box::new(node_resources_fit::NodeResourcesFit),
                Box::new(node_resources_balanced::NodeResourcesBalancedAllocation),
                Box::new(image_locality::ImageLocality),
            ],
        }
    }
}

impl Profile {
    /// The plugin of that name.
    pub fn get(&self, name: &str) -> Option<&dyn Plugin> {
        self.plugins.iter().find(|p| p.name() == name).map(AsRef::as_ref)
    }
}

/// Scales scores so that the best is [`MAX_SCORE`]; `reverse` makes the smallest number the best.
fn scale(scores: &mut [i64], reverse: bool) {
    let best = scores.iter().copied().max().unwrap_or_default();
    for score in scores {
        let scaled = if best == 0 { 0 } else { *score * MAX_SCORE / best };
        *score = if reverse { MAX_SCORE - scaled } else { scaled };
    }
}
