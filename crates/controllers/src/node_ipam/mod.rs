//! A range of pod addresses for every node, out of the cluster's.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::events::{Reference, Type};
use client::{Change, Error, Informer, Patch, Queue, Resource, Result};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::json;

use crate::context::Context;
use crate::views::NodeView;
use crate::writer::{Writer, revision};

/// Ranges looked through at most per family.
const MAX_RANGES: usize = 1 << 16;

struct Controller {
    nodes: Informer<NodeView>,
    writer: Writer,
    clusters: Vec<IpNet>,
    masks: (u8, u8),
    /// Ranges given out that the cache may not show yet, by node.
    given: Mutex<HashMap<String, Vec<IpNet>>>,
    resource: Resource,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<String>::new(context.clock.clone());
    let controller = Arc::new(Controller {
        nodes: context.nodes(),
        writer: context.writer("node-controller", "cidrAllocator"),
        clusters: context.options.cluster_cidrs.clone(),
        masks: context.options.node_masks,
        given: Mutex::new(HashMap::new()),
        resource: Resource::of::<Node>(),
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.nodes.subscribe(move |change| {
        let node = change.object();
        match change {
            Change::Deleted(_) => {
                own.given.lock().remove(&node.meta.name);
                // A range is free again: whoever found none may now.
                for other in own.nodes.list().iter().filter(|n| n.view.spec.pod_cidrs.is_empty()) {
                    keys.add_caused(other.meta.name.clone(), own.nodes.cause(node));
                }
            }
            Change::Applied { .. } if node.view.spec.pod_cidrs.is_empty() => {
                keys.add_caused(node.meta.name.clone(), own.nodes.cause(node));
            }
            Change::Applied { .. } => {}
        }
    });
    let ready = controller.nodes.synced();
    // One worker: two nodes must not be given the same range.
    controller::run(context.runner("node-ipam", 1), queue, controller, ready, &context.stage);
}

/// One free range per cluster range; `None` when a family has none left.
fn choose(clusters: &[IpNet], masks: (u8, u8), used: &BTreeSet<IpNet>) -> Option<Vec<IpNet>> {
    clusters
        .iter()
        .map(|cluster| {
            let mask = match cluster {
                IpNet::V4(_) => masks.0,
                IpNet::V6(_) => masks.1,
            };
            let free = |range: &IpNet| !used.iter().any(|u| u.contains(range) || range.contains(u));
            cluster.subnets(mask.max(cluster.prefix_len())).ok()?.take(MAX_RANGES).find(free)
        })
        .collect()
}

#[async_trait]
impl Reconcile for Controller {
    type Key = String;

    async fn reconcile(&self, name: &String, pass: &Pass) -> Result<Next> {
        let Some(node) = self.nodes.find("", name) else { return Ok(Next::Done) };
        if !node.view.spec.pod_cidrs.is_empty() || !node.view.spec.pod_cidr.is_empty() || node.meta.is_deleting() {
            return Ok(Next::Done);
        }
        let ranges = {
            let mut given = self.given.lock();
            let mut used: BTreeSet<IpNet> = BTreeSet::new();
            for other in self.nodes.list() {
                used.extend(other.view.spec.pod_cidrs.iter().filter_map(|c| c.parse::<IpNet>().ok()));
            }
            used.extend(given.iter().filter(|(n, _)| *n != name).flat_map(|(_, r)| r.iter().copied()));
            // What was chosen before an unknown outcome is chosen again.
            let before = given.get(name).cloned();
            let chosen = before.or_else(|| choose(&self.clusters, self.masks, &used));
            if let Some(ranges) = &chosen {
                given.insert(name.clone(), ranges.clone());
            }
            chosen
        };
        let Some(ranges) = ranges else {
            let about = Reference::of(&self.resource, &node.meta);
            let message = format!("Node {name} status is now: CIDRNotAvailable");
            self.writer.event_about(&about, Type::Normal, "CIDRNotAvailable", message);
            return Err(Error::Invalid(format!("no pod range is left for node {name}")));
        };
        let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        let patch = Patch::Strategic(json!({
            "metadata": {"uid": node.meta.uid},
            "spec": {"podCIDR": texts.first(), "podCIDRs": texts},
        }));
        match self.writer.patch(&self.resource, "", name, &patch).await {
            Ok(written) => pass.hold(self.nodes.reached(revision(&written))),
            Err(error) if error.is_not_found() => {
                self.given.lock().remove(name);
            }
            Err(error) => return Err(error),
        }
        Ok(Next::Done)
    }

    fn all(&self) -> Vec<String> {
        self.nodes.list().iter().map(|n| n.meta.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_free_range_of_each_family_is_taken() {
        let net = |s: &str| s.parse::<IpNet>().expect("a range");
        let both = [net("10.244.0.0/16"), net("fd00::/56")];
        let used: BTreeSet<_> = [net("10.244.0.0/24"), net("10.244.2.0/23")].into();
        let chosen = choose(&both, (24, 64), &used).expect("free");
        assert_eq!(chosen, [net("10.244.1.0/24"), net("fd00::/64")]);
        let full: BTreeSet<_> = [net("10.244.0.0/16")].into();
        assert_eq!(choose(&both, (24, 64), &full), None);
    }
}
