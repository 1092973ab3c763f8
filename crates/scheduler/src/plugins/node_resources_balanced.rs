//! NodeResourcesBalancedAllocation: better where cpu and memory end up used in like parts.

use super::{Judge, MAX_SCORE, Plugin};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// See the module.
pub struct NodeResourcesBalancedAllocation;

struct Prepared<'a>(&'a PodInfo);

impl Plugin for NodeResourcesBalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    /// A pod that asks for neither shifts no balance.
    fn prepare<'a>(&'a self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn Judge + 'a>> {
        let asks = pod.requests.cpu > 0 || pod.requests.memory > 0;
        if asks { Some(Box::new(Prepared(pod))) } else { None }
    }
}

impl Judge for Prepared<'_> {
    fn scores(&self) -> bool {
        true
    }

    fn score(&self, node: &NodeInfo) -> i64 {
        let (has, taken, asked) = (&node.allocatable, &node.requested, &self.0.requests);
        let part = |has: i64, taken: i64, asked: i64| {
            (has > 0).then(|| (taken.saturating_add(asked) as f64 / has as f64).min(1.0))
        };
        // Of two numbers the standard deviation is half their distance; of one it is nothing.
        let deviation = match (part(has.cpu, taken.cpu, asked.cpu), part(has.memory, taken.memory, asked.memory)) {
            (Some(cpu), Some(memory)) => (cpu - memory).abs() / 2.0,
            _ => 0.0,
        };
        ((1.0 - deviation) * MAX_SCORE as f64) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{asking, node, roomy, scores};
    use super::*;
    use serde_json::json;

    #[test]
    fn like_parts_score_highest() {
        let nodes = [node(roomy("a"), vec![]), node(roomy("b"), vec![asking("q", json!({"cpu": "2"}))])];
        let plugin = NodeResourcesBalancedAllocation;
        let pod = asking("p", json!({"cpu": "1", "memory": "2Gi"}));
        assert_eq!(scores(&plugin, &pod, &nodes), Some(vec![100, 75]));
        assert_eq!(scores(&plugin, &asking("p", json!({})), &nodes), None);
    }
}
