//! Pods nobody else will clean up: of nodes that are gone, deleted before they ran anywhere, or
//! finished long ago and too many.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::{Change, DeleteParams, Informer, Key, Patch, Queue, Resource, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;
use serde_json::json;
use stdx::SharedClock;
use stdx::clock::Instant;

use crate::context::{Context, NODE};
use crate::views::{CachedPod, NodeView, PodView};
use crate::writer::Writer;

/// A node may vanish and come back; its pods are left alone for this long.
const QUARANTINE: Duration = Duration::from_secs(40);
/// Finished pods are counted at most this often.
const COUNT: Duration = Duration::from_secs(20);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What to look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    /// The pods of a node that may be gone.
    Node(String),
    /// A pod that is being deleted and may have nobody to finish it.
    Pod(Key),
    /// The finished pods.
    Finished,
}

struct Controller {
    pods: Informer<PodView>,
    nodes: Informer<NodeView>,
    writer: Writer,
    clock: SharedClock,
    keep: usize,
    /// Since when each node has been missed.
    missed: Mutex<HashMap<String, Instant>>,
    resource: Resource,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<Item>::new(context.clock.clone());
    let controller = Arc::new(Controller {
        pods: context.pods(),
        nodes: context.nodes(),
        writer: context.writer("pod-garbage-collector", "pod-garbage-collector"),
        clock: context.clock.clone(),
        keep: context.options.finished_pods,
        missed: Mutex::new(HashMap::new()),
        resource: Resource::of::<Pod>(),
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.nodes.subscribe(move |change| {
        let name = change.object().meta.name.clone();
        if matches!(change, Change::Deleted(_)) {
            keys.add(Item::Node(name));
            return;
        }
        own.missed.lock().remove(&name);
        // A node taken out of service no longer finishes its pods.
        if is_out_of_service(&change.object().view) {
            for pod in own.pods.by_index(NODE, &name).iter().filter(|p| p.meta.is_deleting()) {
                keys.add(Item::Pod(pod.meta.key()));
            }
        }
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.pods.subscribe(move |change| {
        let Change::Applied { new: pod, old } = change else { return };
        let node = &pod.view.spec.node_name;
        if !node.is_empty() && own.nodes.has_synced() && own.nodes.find("", node).is_none() {
            keys.add(Item::Node(node.clone()));
        }
        if pod.meta.is_deleting() {
            keys.add_caused(Item::Pod(pod.meta.key()), own.pods.cause(pod));
        }
        if pod.view.is_finished() && old.as_ref().is_none_or(|o| !o.view.is_finished()) {
            keys.add_after(Item::Finished, COUNT);
        }
    });
    let (own, keys) = (controller.clone(), queue.clone());
    let ready = async move {
        own.pods.synced().await;
        own.nodes.synced().await;
        for pod in own.pods.list() {
            let node = &pod.view.spec.node_name;
            if !node.is_empty() && own.nodes.find("", node).is_none() {
                keys.add(Item::Node(node.clone()));
            }
        }
    };
    controller::run(context.runner("pod-garbage-collector", 1), queue, controller, ready, &context.stage);
}

fn is_out_of_service(node: &NodeView) -> bool {
    let is_ready = node.condition("Ready").is_some_and(|c| c.status == "True");
    !is_ready && node.spec.taints.iter().any(|t| t.key == OUT_OF_SERVICE)
}

/// Which finished pods go: the oldest beyond those that are kept.
fn surplus(pods: &[Arc<CachedPod>], keep: usize) -> Vec<Arc<CachedPod>> {
    let mut finished: Vec<_> = pods.iter().filter(|p| p.view.is_finished()).cloned().collect();
    let count = finished.len().saturating_sub(keep);
    finished.sort_by_cached_key(|p| (p.meta.creation_timestamp, p.meta.key()));
    finished.truncate(count);
    finished
}

impl Controller {
    async fn remove(&self, pod: &CachedPod, reason: Option<(&str, &str)>) -> Result<()> {
        let (namespace, name) = (&pod.meta.namespace, &pod.meta.name);
        // Whatever counts this pod must learn that it did not end by itself.
        if !pod.view.is_finished() {
            let mut status = json!({"phase": "Failed"});
            if let Some((reason, message)) = reason {
                status["conditions"] = json!([{
                    "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
                    "lastTransitionTime": machinery::time::rfc3339(self.clock.wall()),
                }]);
            }
            let patch = Patch::Strategic(json!({"metadata": {"uid": pod.meta.uid}, "status": status}));
            match self.writer.patch_status(&self.resource, namespace, name, &patch).await {
                Err(error) if error.is_not_found() || error.is_conflict() => return Ok(()),
                result => drop(result?),
            }
        }
        let params = DeleteParams::of_uid(&pod.meta.uid).grace(0);
        match self.writer.delete(&self.resource, namespace, name, &params).await {
            Err(error) if error.is_conflict() => Ok(()),
            result => result.map(drop),
        }
    }

    async fn clear_node(&self, name: &str) -> Result<Next> {
        if self.nodes.find("", name).is_some() {
            self.missed.lock().remove(name);
            return Ok(Next::Done);
        }
        let pods = self.pods.by_index(NODE, name);
        if pods.is_empty() {
            self.missed.lock().remove(name);
            return Ok(Next::Done);
        }
        let now = self.clock.now();
        let since = *self.missed.lock().entry(name.to_owned()).or_insert(now);
        let waited = now.since(since);
        if waited < QUARANTINE {
            return Ok(Next::After(QUARANTINE.saturating_sub(waited)));
        }
        // The cache may be behind: the server has the last word.
        if self.writer.client.dynamic(Resource::of::<Node>()).find(name).await?.is_some() {
            return Ok(Next::Done);
        }
        for pod in pods {
            self.remove(&pod, Some(("DeletionByPodGC", "PodGC: node no longer exists"))).await?;
        }
        Ok(Next::Done)
    }

    async fn finish_pod(&self, key: &Key) -> Result<Next> {
        let Some(pod) = self.pods.get(key).filter(|p| p.meta.is_deleting()) else { return Ok(Next::Done) };
        let node = &pod.view.spec.node_name;
        let is_alone = node.is_empty() || self.nodes.find("", node).is_some_and(|n| is_out_of_service(&n.view));
        if is_alone {
            self.remove(&pod, None).await?;
        }
        Ok(Next::Done)
    }
}

#[async_trait]
impl Reconcile for Controller {
    type Key = Item;

    async fn reconcile(&self, item: &Item, _pass: &Pass) -> Result<Next> {
        match item {
            Item::Node(name) => self.clear_node(name).await,
            Item::Pod(key) => self.finish_pod(key).await,
            Item::Finished => {
                for pod in surplus(&self.pods.list(), self.keep) {
                    self.remove(&pod, None).await?;
                }
                Ok(Next::Done)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::cached;

    #[test]
    fn the_oldest_finished_pods_go() {
        let pod = |name: &str, phase: &str, at: &str| {
            Arc::new(cached::<PodView>(
                &json!({"metadata": {"name": name, "creationTimestamp": at}, "status": {"phase": phase}}),
            ))
        };
        let pods = [
            pod("a", "Succeeded", "2026-01-03T00:00:00Z"),
            pod("b", "Failed", "2026-01-01T00:00:00Z"),
            pod("c", "Running", "2026-01-01T00:00:00Z"),
            pod("d", "Succeeded", "2026-01-02T00:00:00Z"),
        ];
        let names = |keep| surplus(&pods, keep).iter().map(|p| p.meta.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(1), ["b", "d"]);
        assert_eq!(names(5), Vec::<String>::new());
    }
}
