//! NodeName: a pod that names its node runs there or nowhere.

use super::{ClusterEvent, Judge, Plugin, Refusal};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// See the module.
pub struct NodeName;

struct Prepared<'a>(&'a str);

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn prepare<'a>(&'a self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn Judge + 'a>> {
        if pod.node.is_empty() { None } else { Some(Box::new(Prepared(&pod.node))) }
    }

    fn wakes(&self, pod: &PodInfo, event: ClusterEvent<'_>) -> bool {
        matches!(event, ClusterEvent::NodeAdded(node) if node.name == pod.node)
    }
}

impl Judge for Prepared<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        if node.name == self.0 { Ok(()) } else { Err(Refusal::never("node(s) didn't match the requested node name")) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{filter, node, pod, roomy};
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_named_node_does() {
        for (spec, want) in [
            (json!({}), "skip"),
            (json!({"nodeName": "n"}), "fits"),
            (json!({"nodeName": "m"}), "!node(s) didn't match the requested node name"),
        ] {
            assert_eq!(filter(&NodeName, &pod("p", spec), &node(roomy("n"), vec![])), want);
        }
        assert!(NodeName.wakes(&pod("p", json!({"nodeName": "n"})), ClusterEvent::NodeAdded(&roomy("n"))));
    }
}
