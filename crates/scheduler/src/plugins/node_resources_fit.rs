//! NodeResourcesFit: what the pod asks for must be free; the emptier node is the better one.

use std::borrow::Cow;

use super::{ClusterEvent, Judge, MAX_SCORE, Plugin, Refusal};
use crate::amounts::Amounts;
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// See the module.
pub struct NodeResourcesFit;

struct Prepared<'a>(&'a PodInfo);

fn ever_fits(pod: &PodInfo, allocatable: &Amounts) -> bool {
    let asked = &pod.requests;
    asked.cpu <= allocatable.cpu
        && asked.memory <= allocatable.memory
        && asked.ephemeral <= allocatable.ephemeral
        && asked.others.iter().all(|(name, amount)| *amount <= allocatable.other(name))
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn prepare<'a>(&'a self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn Judge + 'a>> {
        Some(Box::new(Prepared(pod)))
    }

    fn wakes(&self, pod: &PodInfo, event: ClusterEvent<'_>) -> bool {
        match event {
            ClusterEvent::NodeAdded(node) => ever_fits(pod, &node.allocatable),
            ClusterEvent::NodeChanged { old, new } => {
                old.allocatable.is_less_somewhere(&new.allocatable) && ever_fits(pod, &new.allocatable)
            }
            ClusterEvent::PodGone(_) => true,
        }
    }
}

impl Judge for Prepared<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        let (asked, has, taken) = (&self.0.requests, &node.allocatable, &node.requested);
        let mut reasons: Vec<Cow<'static, str>> = Vec::new();
        let mut preemption_helps = true;
        if node.pods.len() as i64 + 1 > has.pods {
            reasons.push(Cow::Borrowed("Too many pods"));
        }
        let mut check = |reason: &dyn Fn() -> Cow<'static, str>, asked: i64, has: i64, taken: i64| {
            if asked > 0 && asked > has.saturating_sub(taken) {
                reasons.push(reason());
                preemption_helps &= asked <= has;
            }
        };
        check(&|| Cow::Borrowed("Insufficient cpu"), asked.cpu, has.cpu, taken.cpu);
        check(&|| Cow::Borrowed("Insufficient memory"), asked.memory, has.memory, taken.memory);
        check(&|| Cow::Borrowed("Insufficient ephemeral-storage"), asked.ephemeral, has.ephemeral, taken.ephemeral);
        for (name, amount) in &asked.others {
            check(&|| Cow::Owned(format!("Insufficient {name}")), *amount, has.other(name), taken.other(name));
        }
        if reasons.is_empty() { Ok(()) } else { Err(Refusal { reasons, preemption_helps }) }
    }

    fn scores(&self) -> bool {
        true
    }

    /// The mean over cpu and memory of the part that stays free.
    fn score(&self, node: &NodeInfo) -> i64 {
        let has = &node.allocatable;
        let pairs = [
            (has.cpu, node.assumed_cpu.saturating_add(self.0.assumed_cpu)),
            (has.memory, node.assumed_memory.saturating_add(self.0.assumed_memory)),
        ];
        let (mut sum, mut count) = (0, 0);
        for (has, taken) in pairs.into_iter().filter(|(has, _)| *has > 0) {
            let free = i128::from(has.saturating_sub(taken).max(0)) * i128::from(MAX_SCORE) / i128::from(has);
            sum += i64::try_from(free).unwrap_or(MAX_SCORE);
            count += 1;
        }
        if count == 0 { 0 } else { sum / count }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{asking, facts, filter, node, roomy, scores};
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_asked_must_be_free() {
        let on = node(roomy("n"), vec![asking("q", json!({"cpu": "3", "memory": "1Gi"}))]);
        for (requests, want) in [
            (json!({}), "fits"),
            (json!({"cpu": "1"}), "fits"),
            (json!({"cpu": "1001m"}), "Insufficient cpu"),
            (json!({"cpu": "64"}), "!Insufficient cpu"),
            (json!({"memory": "8Gi"}), "Insufficient memory"),
            (json!({"cpu": "2", "memory": "8Gi"}), "Insufficient cpu, Insufficient memory"),
            (json!({"cpu": "2", "memory": "9Gi"}), "!Insufficient cpu, Insufficient memory"),
            (json!({"ephemeral-storage": "1Gi"}), "!Insufficient ephemeral-storage"),
            (json!({"example.com/gpu": "1"}), "!Insufficient example.com/gpu"),
        ] {
            assert_eq!(filter(&NodeResourcesFit, &asking("p", requests.clone()), &on), want, "{requests}");
        }
        let full = node(facts("n", json!({}), json!({}), json!({"pods": "1"})), vec![asking("q", json!({}))]);
        assert_eq!(filter(&NodeResourcesFit, &asking("p", json!({})), &full), "Too many pods");
    }

    #[test]
    fn the_emptier_node_scores_higher() {
        let nodes = [
            node(roomy("a"), vec![]),
            node(roomy("b"), vec![asking("q", json!({"cpu": "2", "memory": "4Gi"}))]),
            node(roomy("c"), vec![asking("q", json!({"cpu": "4", "memory": "8Gi"}))]),
            node(facts("d", json!({}), json!({}), json!({})), vec![]),
        ];
        let pod = asking("p", json!({"cpu": "1", "memory": "2Gi"}));
        assert_eq!(scores(&NodeResourcesFit, &pod, &nodes), Some(vec![75, 25, 0, 0]));
        // Who asks for nothing counts as 100m and 200Mi.
        assert_eq!(scores(&NodeResourcesFit, &asking("p", json!({})), &nodes[..1]), Some(vec![97]));
    }

    #[test]
    fn room_wakes() {
        let pod = asking("p", json!({"cpu": "2"}));
        let small = facts("s", json!({}), json!({}), json!({"cpu": "1"}));
        assert!(NodeResourcesFit.wakes(&pod, ClusterEvent::NodeAdded(&roomy("n"))));
        assert!(!NodeResourcesFit.wakes(&pod, ClusterEvent::NodeAdded(&small)));
        assert!(NodeResourcesFit.wakes(&pod, ClusterEvent::NodeChanged { old: &small, new: &roomy("s") }));
        assert!(!NodeResourcesFit.wakes(&pod, ClusterEvent::NodeChanged { old: &roomy("s"), new: &roomy("s") }));
        assert!(NodeResourcesFit.wakes(&pod, ClusterEvent::PodGone(&pod)));
    }
}
