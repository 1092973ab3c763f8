//! NodePorts: a host port is had by one pod of a node at a time.

use super::{ClusterEvent, Judge, Plugin, Refusal};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// See the module.
pub struct NodePorts;

struct Prepared<'a>(&'a PodInfo);

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn prepare<'a>(&'a self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn Judge + 'a>> {
        if pod.ports.is_empty() { None } else { Some(Box::new(Prepared(pod))) }
    }

    fn wakes(&self, pod: &PodInfo, event: ClusterEvent<'_>) -> bool {
        match event {
            ClusterEvent::NodeAdded(_) => true,
            ClusterEvent::NodeChanged { .. } => false,
            ClusterEvent::PodGone(gone) => gone.ports.iter().any(|p| pod.ports.iter().any(|q| q.conflicts(p))),
        }
    }
}

impl Judge for Prepared<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        let taken = |p: &api::pod::HostPort| node.ports.iter().any(|q| q.conflicts(p));
        if self.0.ports.iter().any(taken) {
            Err(Refusal::crowded("node(s) didn't have free ports for the requested pod ports"))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{filter, node, pod, roomy};
    use super::*;
    use serde_json::{Value, json};

    fn wanting(name: &str, ports: Value) -> PodInfo {
        pod(name, json!({"containers": [{"name": "c", "ports": ports}]}))
    }

    #[test]
    fn a_taken_port_refuses() {
        let no = "node(s) didn't have free ports for the requested pod ports";
        let other = wanting("q", json!([{"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.1"}]));
        let on = node(roomy("n"), vec![other.clone()]);
        for (ports, want) in [
            (json!([{"containerPort": 80}]), "skip"),
            (json!([{"containerPort": 80, "hostPort": 80}]), no),
            (json!([{"containerPort": 80, "hostPort": 81}]), "fits"),
            (json!([{"containerPort": 80, "hostPort": 80, "protocol": "UDP"}]), "fits"),
            (json!([{"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.2"}]), "fits"),
        ] {
            assert_eq!(filter(&NodePorts, &wanting("p", ports.clone()), &on), want, "{ports}");
        }
        let waiting = wanting("p", json!([{"containerPort": 80, "hostPort": 80}]));
        assert!(NodePorts.wakes(&waiting, ClusterEvent::PodGone(&other)));
        assert!(!NodePorts.wakes(&waiting, ClusterEvent::PodGone(&wanting("r", json!([])))));
    }
}
