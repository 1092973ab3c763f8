//! ReplicaSets: as many pods of one template as asked for.
//!
//! Watches ReplicaSets and pods. A pass claims pods (adopts orphans that match, releases pods that
//! no longer do), creates or deletes the difference, and writes the status.

mod plan;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::events::{Reference, Type};
use client::informer::OWNER;
use client::waits::Publisher;
use client::{Cached, Change, DeleteParams, Error, Informer, Key, Queue, Resource, Result};
use futures::future::join_all;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use machinery::labels::{Labels, Selector};
use serde_json::{Value, json};
use stdx::SharedClock;

use crate::claims::{self, Claimer};
use crate::context::Context;
use crate::templates;
use crate::views::{CachedPod, PodView, SelectorView, is_active};
use crate::writer::{Writer, revision};
use plan::{Action, Outcome, Seen};

/// The code of the Wait of a ReplicaSet whose pods are refused.
const WAIT: &str = "PodsNotCreated";

struct Controller {
    replica_sets: Informer<SelectorView>,
    pods: Informer<PodView>,
    writer: Writer,
    waits: Publisher,
    clock: SharedClock,
    resource: Resource,
    pod_resource: Resource,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<Key>::new(context.clock.clone());
    let controller = Arc::new(Controller {
        replica_sets: context.replica_sets(),
        pods: context.pods(),
        writer: context.writer("replicaset-controller", "replicaset-controller"),
        waits: context.waits(),
        clock: context.clock.clone(),
        resource: Resource::of::<ReplicaSet>(),
        pod_resource: Resource::of::<Pod>(),
    });
    controller.watch(&queue);
    let (sets, pods) = (controller.replica_sets.synced(), controller.pods.synced());
    let ready = async move {
        sets.await;
        pods.await;
    };
    controller::run(context.runner("replicaset", 5), queue, controller, ready, &context.stage);
}

impl Controller {
    fn watch(self: &Arc<Self>, queue: &Arc<Queue<Key>>) {
        let (own, keys) = (self.clone(), queue.clone());
        self.replica_sets.subscribe(move |change| {
            if let Change::Deleted(set) = change {
                own.waits.withdraw_all(&Reference::of(&own.resource, &set.meta));
            }
            keys.add_caused(change.object().meta.key(), own.replica_sets.cause(change.object()));
        });
        let (own, keys) = (self.clone(), queue.clone());
        self.pods.subscribe(move |change| {
            for key in claims::concerned(&own.replica_sets, change) {
                keys.add_caused(key, own.pods.cause(change.object()));
            }
        });
    }

    /// The pods that are the set's, after adoption and release. Finished orphans stay what they are.
    async fn claim(&self, set: &Cached<SelectorView>, selector: &Selector, pass: &Pass) -> Result<Vec<Arc<CachedPod>>> {
        let claimer = Claimer { writer: &self.writer, kind: &self.resource, owner: &set.meta, objects: &self.pods };
        let claimed = claimer.settle(selector, |pod| !pod.is_finished(), pass).await?;
        Ok(claimed.into_iter().map(|pod| pod.cached).collect())
    }

    /// Active pods per node of all sets with the same owner, this one included.
    fn related(&self, set: &Cached<SelectorView>) -> HashMap<String, usize> {
        let sets = match set.meta.controller() {
            Some(owner) => self.replica_sets.by_index(OWNER, &owner.uid),
            None => self.replica_sets.get(&set.meta.key()).into_iter().collect(),
        };
        let mut nodes = HashMap::new();
        for pod in sets.iter().flat_map(|s| self.pods.by_index(OWNER, &s.meta.uid)).filter(|p| is_active(p)) {
            *nodes.entry(pod.view.spec.node_name.clone()).or_default() += 1;
        }
        nodes
    }

    async fn create(&self, set: &Cached<SelectorView>, object: &Value, total: usize, pass: &Pass) -> Result<(), Error> {
        let about = Reference::of(&self.resource, &set.meta);
        let owner = templates::controller(&self.resource, &set.meta);
        let template = object.pointer("/spec/template").cloned().unwrap_or_default();
        let pod = templates::pod(&template, &owner, &set.meta.namespace);
        for batch in plan::batches(total) {
            let creations = (0..batch).map(|_| self.writer.create(&self.pod_resource, &set.meta.namespace, &pod));
            let mut failed = None;
            for result in join_all(creations).await {
                match result {
                    Ok(created) => {
                        pass.hold(self.pods.reached(revision(&created)));
                        let name = machinery::meta::name(&created);
                        self.writer.event_about(
                            &about,
                            Type::Normal,
                            "SuccessfulCreate",
                            format!("Created pod: {name}"),
                        );
                    }
                    Err(error) => {
                        if error.is_outcome_unknown() {
                            pass.hold(self.pods.refreshed());
                        }
                        if !error.is_namespace_terminating() {
                            let message = format!("Error creating: {error}");
                            self.writer.event_about(&about, Type::Warning, "FailedCreate", message);
                        }
                        failed.get_or_insert(error);
                    }
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn delete(
        &self,
        set: &Cached<SelectorView>,
        pods: &[Arc<CachedPod>],
        doomed: &[usize],
        pass: &Pass,
    ) -> Result<()> {
        let about = Reference::of(&self.resource, &set.meta);
        let deletions = doomed.iter().filter_map(|i| pods.get(*i)).map(|pod| async move {
            let params = DeleteParams::of_uid(&pod.meta.uid);
            let result = self.writer.delete(&self.pod_resource, &pod.meta.namespace, &pod.meta.name, &params).await;
            match &result {
                Ok(_) => pass.hold(self.pods.gone(pod.meta.key(), pod.meta.uid.clone())),
                Err(error) if error.is_outcome_unknown() => pass.hold(self.pods.refreshed()),
                Err(_) => {}
            }
            (pod, result)
        });
        let mut failed = None;
        for (pod, result) in join_all(deletions).await {
            match result {
                Ok(Some(_)) => {
                    let message = format!("Deleted pod: {}", pod.meta.name);
                    self.writer.event_about(&about, Type::Normal, "SuccessfulDelete", message);
                }
                // Gone already, or a namesake took its place.
                Ok(None) => {}
                Err(error) if error.is_conflict() => {}
                Err(error) => {
                    self.writer.event_about(&about, Type::Warning, "FailedDelete", format!("Error deleting: {error}"));
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

#[async_trait]
impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: &Key, pass: &Pass) -> Result<Next> {
        let Some(cached) = self.replica_sets.get(key) else {
            return Ok(Next::Done);
        };
        let about = Reference::of(&self.resource, &cached.meta);
        let set: ReplicaSet = cached.decode()?;
        let object: Value = cached.decode()?;
        let spec = set.spec.clone();
        let selector = match api::selector(&spec.selector) {
            Ok(selector) => selector,
            Err(error) => {
                tracing::error!(%key, %error, "a ReplicaSet has no usable selector");
                return Ok(Next::Done);
            }
        };
        let pods = self.claim(&cached, &selector, pass).await?;
        let wanted = spec.replicas.unwrap_or(1);
        let action = if cached.meta.is_deleting() {
            Action::Nothing
        } else {
            plan::plan(&pods, wanted, &self.related(&cached), self.clock.wall())
        };
        let (failure, outcome) = match &action {
            Action::Nothing => (None, Outcome::Fine),
            Action::Create(total) => match self.create(&cached, &object, *total, pass).await {
                Ok(()) => (None, Outcome::Fine),
                // Nothing can be created here any more; nobody needs to hear of it.
                Err(error) if error.is_namespace_terminating() => (None, Outcome::Fine),
                Err(error) => {
                    let text = error.to_string();
                    (Some(error), Outcome::CreateFailed(text))
                }
            },
            Action::Delete(doomed) => match self.delete(&cached, &pods, doomed, pass).await {
                Ok(()) => (None, Outcome::Fine),
                Err(error) => {
                    let text = error.to_string();
                    (Some(error), Outcome::DeleteFailed(text))
                }
            },
        };
        match &outcome {
            Outcome::CreateFailed(text) => self.waits.publish(&about, WAIT, "pod creation", text.clone()),
            _ => self.waits.withdraw(&about, WAIT),
        }
        let old = set.status.clone().unwrap_or_default();
        let labels: Labels =
            spec.template.as_ref().and_then(|t| t.metadata.as_ref()).and_then(|m| m.labels.clone()).unwrap_or_default();
        let min_ready_seconds = spec.min_ready_seconds.unwrap_or(0);
        let now = self.clock.wall();
        let generation = cached.meta.generation;
        let seen = Seen {
            pods: &pods,
            template_labels: &labels,
            min_ready_seconds,
            generation,
            old: &old,
            outcome: &outcome,
            now,
        };
        let (status, next_available) = plan::status(&seen);
        if plan::is_news(&old, &status) {
            let mut object = object;
            object["status"] = serde_json::to_value(&status).unwrap_or_else(|_| json!({}));
            match self.writer.update_status(&self.resource, &object).await {
                Ok(written) => pass.hold(self.replica_sets.reached(revision(&written))),
                Err(error) if error.is_not_found() => {}
                // What failed first is what counts.
                Err(error) if failure.is_none() => return Err(error),
                Err(_) => {}
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        Ok(next_available.map_or(Next::Done, |at| {
            let wait = u64::try_from(at.duration_since(now).as_millis()).unwrap_or(0);
            Next::After(Duration::from_millis(wait + 1))
        }))
    }

    fn all(&self) -> Vec<Key> {
        self.replica_sets.list().iter().map(|s| s.meta.key()).collect()
    }
}
