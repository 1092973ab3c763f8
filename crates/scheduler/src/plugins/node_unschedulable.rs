//! NodeUnschedulable: `spec.unschedulable` (cordon) keeps pods away that do not tolerate it.

use k8s_openapi::api::core::v1::Taint;

use super::{ClusterEvent, Judge, Plugin, Refusal};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// See the module.
pub struct NodeUnschedulable;

struct Prepared;

fn tolerates(pod: &PodInfo) -> bool {
    let (key, effect) = (api::taint::UNSCHEDULABLE.to_owned(), api::taint::NO_SCHEDULE.to_owned());
    let taint = Taint { key, effect, ..Taint::default() };
    pod.tolerations.iter().any(|t| api::taint::tolerates(t, &taint))
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn prepare<'a>(&'a self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn Judge + 'a>> {
        if tolerates(pod) { None } else { Some(Box::new(Prepared)) }
    }

    fn wakes(&self, _: &PodInfo, event: ClusterEvent<'_>) -> bool {
        match event {
            ClusterEvent::NodeAdded(node) => !node.unschedulable,
            ClusterEvent::NodeChanged { old, new } => old.unschedulable && !new.unschedulable,
            ClusterEvent::PodGone(_) => false,
        }
    }
}

impl Judge for Prepared {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        if node.unschedulable { Err(Refusal::never("node(s) were unschedulable")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{facts, filter, node, pod, roomy};
    use super::*;
    use serde_json::json;

    #[test]
    fn cordoned_nodes_take_only_who_tolerates_it() {
        let cordoned = node(facts("n", json!({}), json!({"unschedulable": true}), json!({})), vec![]);
        let open = node(roomy("n"), vec![]);
        let daemon = json!({"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]});
        for (spec, on, want) in [
            (json!({}), &cordoned, "!node(s) were unschedulable"),
            (json!({}), &open, "fits"),
            (daemon, &cordoned, "skip"),
        ] {
            assert_eq!(filter(&NodeUnschedulable, &pod("p", spec), on), want);
        }
        let pod = pod("p", json!({}));
        let change = ClusterEvent::NodeChanged { old: &cordoned.facts, new: &open.facts };
        assert!(NodeUnschedulable.wakes(&pod, change));
        assert!(!NodeUnschedulable.wakes(&pod, ClusterEvent::NodeAdded(&cordoned.facts)));
    }
}
