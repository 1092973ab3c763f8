//! Evicts pods from nodes with NoExecute taints they do not tolerate, or no longer do.
//!
//! How long a pod may stay counts from when the taint was added, as the taint says; from the moment
//! we see it, the rest runs on our monotonic clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::taint::{NO_EXECUTE, tolerates};
use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::events::{Reference, Type};
use client::{Change, DeleteParams, Informer, Key, Patch, Queue, Resource, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use parking_lot::Mutex;
use serde_json::json;
use stdx::SharedClock;
use stdx::clock::Instant;

use crate::context::{Context, NODE};
use crate::views::{NodeView, PodView};
use crate::writer::Writer;

/// What becomes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Stay,
    Go,
    /// It may stay this much longer.
    GoAfter(Duration),
}

/// Decides by the NoExecute taints of the node.
fn judge(taints: &[Taint], tolerations: &[Toleration], now: Timestamp) -> Verdict {
    let mut shortest: Option<Duration> = None;
    for taint in taints.iter().filter(|t| t.effect == NO_EXECUTE) {
        let answers: Vec<_> = tolerations.iter().filter(|t| tolerates(t, taint)).collect();
        if answers.is_empty() {
            return Verdict::Go;
        }
        // One toleration without an end is not enough when another that answers has one.
        let Some(seconds) = answers.iter().filter_map(|t| t.toleration_seconds).min() else { continue };
        let allowed = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let added = taint.time_added.as_ref().map_or(now, |t| t.0);
        let since = u64::try_from(now.duration_since(added).as_millis()).unwrap_or(0);
        let left = allowed.saturating_sub(Duration::from_millis(since));
        shortest = Some(shortest.map_or(left, |s| s.min(left)));
    }
    match shortest {
        None => Verdict::Stay,
        Some(left) if left.is_zero() => Verdict::Go,
        Some(left) => Verdict::GoAfter(left),
    }
}

/// A pod that is to go.
struct Sentence {
    uid: String,
    /// The taints it was judged by.
    taints: Vec<Taint>,
    at: Instant,
}

struct Controller {
    nodes: Informer<NodeView>,
    pods: Informer<PodView>,
    writer: Writer,
    clock: SharedClock,
    sentences: Mutex<HashMap<Key, Sentence>>,
    resource: Resource,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<Key>::new(context.clock.clone());
    let controller = Arc::new(Controller {
        nodes: context.nodes(),
        pods: context.pods(),
        writer: context.writer("node-controller", "taint-eviction-controller"),
        clock: context.clock.clone(),
        sentences: Mutex::new(HashMap::new()),
        resource: Resource::of::<Pod>(),
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.nodes.subscribe(move |change| {
        let no_execute =
            |n: &NodeView| n.spec.taints.iter().filter(|t| t.effect == NO_EXECUTE).cloned().collect::<Vec<_>>();
        let new = no_execute(&change.object().view);
        if change.old().map(|o| no_execute(&o.view)).unwrap_or_default() != new {
            for pod in own.pods.by_index(NODE, &change.object().meta.name) {
                keys.add_caused(pod.meta.key(), own.nodes.cause(change.object()));
            }
        }
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.pods.subscribe(move |change| {
        let pod = change.object();
        match change {
            Change::Deleted(_) => drop(own.sentences.lock().remove(&pod.meta.key())),
            Change::Applied { .. } if pod.view.spec.node_name.is_empty() => {}
            Change::Applied { old, .. } => {
                let is_bound = old.as_ref().is_none_or(|o| o.view.spec.node_name.is_empty());
                let is_news =
                    is_bound || old.as_ref().is_some_and(|o| o.view.spec.tolerations != pod.view.spec.tolerations);
                if is_news {
                    keys.add_caused(pod.meta.key(), own.pods.cause(pod));
                }
            }
        }
    });
    let own = controller.clone();
    let ready = async move {
        own.nodes.synced().await;
        own.pods.synced().await;
    };
    controller::run(context.runner("taint-eviction", 8), queue, controller, ready, &context.stage);
}

#[async_trait]
impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: &Key, pass: &Pass) -> Result<Next> {
        let Some(pod) = self.pods.get(key).filter(|p| !p.meta.is_deleting()) else {
            self.sentences.lock().remove(key);
            return Ok(Next::Done);
        };
        let Some(node) = self.nodes.find("", &pod.view.spec.node_name) else { return Ok(Next::Done) };
        let about = Reference::of(&self.resource, &pod.meta);
        let taints: Vec<Taint> = node.view.spec.taints.iter().filter(|t| t.effect == NO_EXECUTE).cloned().collect();
        let now = self.clock.now();
        let left = match judge(&taints, &pod.view.spec.tolerations, self.clock.wall()) {
            Verdict::Stay => {
                if self.sentences.lock().remove(key).is_some() {
                    let message = format!("Cancelling deletion of Pod {key}");
                    self.writer.event_about(&about, Type::Normal, "TaintManagerEviction", message);
                }
                return Ok(Next::Done);
            }
            Verdict::Go => Duration::ZERO,
            Verdict::GoAfter(left) => left,
        };
        // A sentence by the same taints stands: wall clocks may have moved, ours has not.
        let at = {
            let mut sentences = self.sentences.lock();
            match sentences.get(key).filter(|s| s.uid == pod.meta.uid && s.taints == taints) {
                Some(sentence) => sentence.at,
                None => {
                    let at = now + left;
                    sentences.insert(key.clone(), Sentence { uid: pod.meta.uid.clone(), taints, at });
                    at
                }
            }
        };
        if at > now {
            return Ok(Next::After(at.since(now)));
        }
        let message = format!("Marking for deletion Pod {key}");
        self.writer.event_about(&about, Type::Normal, "TaintManagerEviction", message);
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": machinery::time::rfc3339(self.clock.wall()),
        });
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.meta.uid}, "status": {"conditions": [condition]}}));
        match self.writer.patch_status(&self.resource, &key.namespace, &key.name, &patch).await {
            Err(error) if error.is_not_found() || error.is_conflict() => return Ok(Next::Done),
            result => drop(result?),
        }
        let params = DeleteParams::of_uid(&pod.meta.uid);
        match self.writer.delete(&self.resource, &key.namespace, &key.name, &params).await {
            Err(error) if error.is_conflict() => {}
            result => drop(result?),
        }
        self.sentences.lock().remove(key);
        pass.hold(self.pods.gone(key.clone(), pod.meta.uid.clone()));
        Ok(Next::Done)
    }

    fn all(&self) -> Vec<Key> {
        self.pods.list().iter().map(|p| p.meta.key()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn how_long_pods_stay() {
        let now = Timestamp::from_second(1000).expect("in range");
        let taint = |key: &str, added: i64| {
            let at = machinery::time::rfc3339(Timestamp::from_second(added).expect("in range"));
            json!({"key": key, "effect": "NoExecute", "timeAdded": at})
        };
        let tolerate = |key: &str, seconds: Option<i64>| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        let secs = Duration::from_secs;
        for (taints, tolerations, verdict) in [
            (json!([]), json!([]), Verdict::Stay),
            (json!([{"key": "a", "effect": "NoSchedule"}]), json!([]), Verdict::Stay),
            (json!([taint("a", 990)]), json!([]), Verdict::Go),
            (json!([taint("a", 990)]), json!([tolerate("a", None)]), Verdict::Stay),
            (json!([taint("a", 990)]), json!([tolerate("a", Some(300))]), Verdict::GoAfter(secs(290))),
            (json!([taint("a", 100)]), json!([tolerate("a", Some(300))]), Verdict::Go),
            (json!([taint("a", 990), taint("b", 990)]), json!([tolerate("a", Some(300))]), Verdict::Go),
            (
                json!([taint("a", 990), taint("b", 995)]),
                json!([tolerate("a", Some(300)), tolerate("b", Some(60))]),
                Verdict::GoAfter(secs(55)),
            ),
            // A taint from the future counts from now.
            (json!([taint("a", 2000)]), json!([tolerate("a", Some(300))]), Verdict::GoAfter(secs(300))),
        ] {
            let parse = |v: &Value| v.clone();
            let (t, o) = (parse(&taints), parse(&tolerations));
            let taints: Vec<Taint> = serde_json::from_value(t).expect("taints");
            let tolerations: Vec<Toleration> = serde_json::from_value(o).expect("tolerations");
            assert_eq!(judge(&taints, &tolerations, now), verdict, "{taints:?}");
        }
    }
}
