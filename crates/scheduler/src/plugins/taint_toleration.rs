//! TaintToleration: NoSchedule and NoExecute taints keep away pods that do not tolerate them;
//! PreferNoSchedule ones make a node less wanted.

use api::taint::{self, NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE};

use super::{ClusterEvent, Judge, Plugin, Refusal, scale};
use crate::node::{NodeFacts, NodeInfo};
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// See the module.
pub struct TaintToleration;

struct Prepared<'a>(&'a PodInfo);

fn admits(pod: &PodInfo, node: &NodeFacts) -> bool {
    taint::untolerated(&node.taints, &pod.tolerations, &[NO_SCHEDULE, NO_EXECUTE]).is_none()
}

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn weight(&self) -> i64 {
        3
    }

    fn prepare<'a>(&'a self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn Judge + 'a>> {
        Some(Box::new(Prepared(pod)))
    }

    fn wakes(&self, pod: &PodInfo, event: ClusterEvent<'_>) -> bool {
        match event {
            ClusterEvent::NodeAdded(node) => admits(pod, node),
            ClusterEvent::NodeChanged { old, new } => old.taints != new.taints && admits(pod, new),
            ClusterEvent::PodGone(_) => false,
        }
    }
}

impl Judge for Prepared<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        if admits(self.0, node) { Ok(()) } else { Err(Refusal::never("node(s) had untolerated taint(s)")) }
    }

    fn scores(&self) -> bool {
        true
    }

    fn score(&self, node: &NodeInfo) -> i64 {
        let unwanted = node.taints.iter().filter(|t| t.effect == PREFER_NO_SCHEDULE);
        unwanted.filter(|taint| !self.0.tolerations.iter().any(|t| taint::tolerates(t, taint))).count() as i64
    }

    fn normalize(&self, scores: &mut [i64]) {
        scale(scores, true);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{facts, filter, node, pod, scores};
    use super::*;
    use serde_json::{Value, json};

    fn tainted(taints: Value) -> NodeInfo {
        node(facts("n", json!({}), json!({ "taints": taints }), json!({})), vec![])
    }

    #[test]
    fn untolerated_taints_refuse() {
        let no = "!node(s) had untolerated taint(s)";
        let taint = |effect: &str| json!([{"key": "k", "value": "v", "effect": effect}]);
        let tolerant = json!({"tolerations": [{"key": "k", "operator": "Exists"}]});
        for (spec, taints, want) in [
            (json!({}), json!([]), "fits"),
            (json!({}), taint("NoSchedule"), no),
            (json!({}), taint("NoExecute"), no),
            (json!({}), taint("PreferNoSchedule"), "fits"),
            (tolerant.clone(), taint("NoSchedule"), "fits"),
        ] {
            assert_eq!(filter(&TaintToleration, &pod("p", spec), &tainted(taints)), want);
        }
        let (old, new) = (tainted(taint("NoSchedule")), tainted(json!([])));
        let change = ClusterEvent::NodeChanged { old: &old.facts, new: &new.facts };
        assert!(TaintToleration.wakes(&pod("p", json!({})), change));
        assert!(!TaintToleration.wakes(&pod("p", json!({})), ClusterEvent::NodeAdded(&old.facts)));
    }

    #[test]
    fn fewer_unwanted_taints_score_higher() {
        let prefer = |n: usize| {
            let taints: Vec<Value> =
                (0..n).map(|i| json!({"key": format!("k{i}"), "effect": "PreferNoSchedule"})).collect();
            tainted(json!(taints))
        };
        let nodes = [prefer(0), prefer(1), prefer(2)];
        assert_eq!(scores(&TaintToleration, &pod("p", json!({})), &nodes), Some(vec![100, 50, 0]));
        assert_eq!(scores(&TaintToleration, &pod("p", json!({})), &[prefer(0), prefer(0)]), Some(vec![100, 100]));
    }
}
