//! PodDisruptionBudgets: how many pods of an application may be taken away just now.
//!
//! Watches budgets and pods. A pass counts the budget's healthy pods and writes the status that evictions
//! are charged against. A pod that was marked for disruption and is still there is unmarked again.

mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::events::{Reference, Type};
use client::{Bounds, Change, Client, Error, Informer, Key, OwnerRef, Patch, Queue, Resource, Result, discovery};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use machinery::labels::Labels;
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::SharedClock;

use crate::context::Context;
use crate::views::{BudgetView, CachedPod, PodView, SelectorView};
use crate::writer::{Writer, revision};
use plan::Seen;

const TARGET: &str = "DisruptionTarget";

/// What to look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    Budget(Key),
    /// A pod that is marked for disruption.
    Marked(Key),
}

struct Controller {
    budgets: Informer<BudgetView>,
    pods: Informer<PodView>,
    replica_sets: Informer<SelectorView>,
    deployments: Informer<SelectorView>,
    writer: Writer,
    reader: Client,
    clock: SharedClock,
    resource: Resource,
    pod_resource: Resource,
    /// Resources by API version and kind, as discovery last told.
    kinds: Mutex<BTreeMap<(String, String), Resource>>,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<Item>::new(context.clock.clone());
    let controller = Arc::new(Controller {
        budgets: context.budgets(),
        pods: context.pods(),
        replica_sets: context.replica_sets(),
        deployments: context.deployments(),
        writer: context.writer("disruption-controller", "controllermanager"),
        // It reads single objects, which may be those of another server.
        reader: context.reader().clone().with_bounds(Bounds::FOREIGN),
        clock: context.clock.clone(),
        resource: Resource::of::<PodDisruptionBudget>(),
        pod_resource: Resource::of::<Pod>(),
        kinds: Mutex::default(),
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.budgets.subscribe(move |change| {
        let budget = change.object();
        keys.add_caused(Item::Budget(budget.meta.key()), own.budgets.cause(budget));
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.pods.subscribe(move |change| own.pod_changed(change, &keys));
    let waits = [
        Box::pin(controller.budgets.synced()) as futures::future::BoxFuture<'static, ()>,
        Box::pin(controller.pods.synced()),
        Box::pin(controller.replica_sets.synced()),
        Box::pin(controller.deployments.synced()),
    ];
    let ready = async move {
        for wait in waits {
            wait.await;
        }
    };
    controller::run(context.runner("disruption", 1), queue, controller, ready, &context.stage);
}

/// Until when the mark of a pod is believed; `None` for a pod without one that could be stale.
fn marked_until(pod: &CachedPod) -> Option<Timestamp> {
    let mark = pod.view.status.conditions.iter().find(|c| c.kind == TARGET && c.status == "True")?;
    if pod.meta.is_deleting() || pod.view.is_finished() {
        return None;
    }
    let since = mark.last_transition_time.unwrap_or(Timestamp::MIN);
    Some(since.saturating_add(plan::DELETION_TIMEOUT).unwrap_or(Timestamp::MAX))
}

/// How long it is until `at`; nothing for what is past.
fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(at.duration_since(now).as_millis()).unwrap_or(0))
}

impl Controller {
    fn pod_changed(&self, change: &Change<PodView>, keys: &Queue<Item>) {
        let pod = change.object();
        let before = change.old().map(|old| &old.meta.labels).filter(|labels| **labels != pod.meta.labels);
        let selects = |budget: &BudgetView, labels: &Labels| {
            let selector = budget.spec.selector.as_ref().and_then(|selector| api::selector(selector).ok());
            selector.is_some_and(|selector| selector.matches(labels))
        };
        for budget in self.budgets.list_namespace(&pod.meta.namespace) {
            if selects(&budget.view, &pod.meta.labels) || before.is_some_and(|labels| selects(&budget.view, labels)) {
                keys.add_caused(Item::Budget(budget.meta.key()), self.pods.cause(pod));
            }
        }
        if let (Change::Applied { .. }, Some(end)) = (change, marked_until(pod)) {
            keys.add_after(Item::Marked(pod.meta.key()), until(end, self.clock.wall()));
        }
    }

    /// How many pods their controllers want together, and the pods that have none.
    async fn scale(&self, pods: &[Arc<CachedPod>]) -> Result<(i32, Vec<String>)> {
        let mut scales: BTreeMap<String, i32> = BTreeMap::new();
        let mut unmanaged = Vec::new();
        for pod in pods {
            let Some(owner) = pod.meta.controller() else {
                unmanaged.push(pod.meta.name.clone());
                continue;
            };
            if scales.contains_key(&owner.uid) {
                continue;
            }
            let (uid, scale) = self
                .scale_of(owner, &pod.meta.namespace)
                .await?
                .ok_or_else(|| Error::Invalid(format!("found no controllers for pod {:?}", pod.meta.name)))?;
            // Pods of two ReplicaSets of one Deployment count once.
            scales.insert(uid, scale);
        }
        let sum = scales.values().fold(0i32, |sum, scale| sum.saturating_add(*scale));
        Ok((sum, unmanaged))
    }

    /// Whom the owner's number is counted for, and the number.
    async fn scale_of(&self, owner: &OwnerRef, namespace: &str) -> Result<Option<(String, i32)>> {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        if (group, owner.kind.as_str()) != ("apps", "ReplicaSet") {
            return self.scale_asked(owner, namespace).await;
        }
        let same = |cached: &client::Cached<SelectorView>, uid: &str| cached.meta.uid == uid;
        let Some(set) = self.replica_sets.find(namespace, &owner.name).filter(|s| same(s, &owner.uid)) else {
            return Ok(None);
        };
        let Some(above) = set.meta.controller().filter(|above| above.kind == "Deployment") else {
            return Ok(Some((set.meta.uid.clone(), set.view.spec.replicas.unwrap_or(1))));
        };
        let deployment = self.deployments.find(namespace, &above.name).filter(|d| same(d, &above.uid));
        Ok(deployment.map(|d| (d.meta.uid.clone(), d.view.spec.replicas.unwrap_or(1))))
    }

    /// The same of an owner of any kind, by its `scale` subresource.
    async fn scale_asked(&self, owner: &OwnerRef, namespace: &str) -> Result<Option<(String, i32)>> {
        let Some(resource) = self.resource_of(owner).await? else {
            let kind = &owner.kind;
            return Err(Error::Invalid(format!("no matches for kind {kind:?} in version {:?}", owner.api_version)));
        };
        let api = self.writer.client.dynamic(resource).namespace(namespace);
        let scale = match api.get_subresource(&owner.name, "scale").await {
            Err(error) if error.is_not_found() => return Ok(None),
            scale => scale?,
        };
        let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
        let uid = machinery::meta::uid(&scale);
        Ok((uid == owner.uid).then(|| (uid.to_owned(), i32::try_from(replicas).unwrap_or(i32::MAX))))
    }

    async fn resource_of(&self, owner: &OwnerRef) -> Result<Option<Resource>> {
        let wanted = (owner.api_version.clone(), owner.kind.clone());
        if let Some(found) = self.kinds.lock().get(&wanted) {
            return Ok(Some(found.clone()));
        }
        let served = discovery::discover(&self.reader).await?.resources;
        let kinds = served.into_iter().map(|s| ((s.resource.api_version(), s.resource.kind.to_string()), s.resource));
        let kinds: BTreeMap<_, _> = kinds.collect();
        let found = kinds.get(&wanted).cloned();
        *self.kinds.lock() = kinds;
        Ok(found)
    }

    async fn expected(
        &self,
        spec: &PodDisruptionBudgetSpec,
        pods: &[Arc<CachedPod>],
        about: &Reference,
    ) -> Result<(i32, i32)> {
        let scale = if plan::needs_scale(spec) {
            let (scale, unmanaged) = self.scale(pods).await?;
            if !unmanaged.is_empty() {
                let selector = spec.selector.as_ref().map(|s| json!(s)).unwrap_or_default();
                let message = format!(
                    "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a \
                     result, the status of the PDB cannot be calculated correctly, which may result in undefined \
                     behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an \
                     integer value."
                );
                self.writer.event_about(about, Type::Warning, "UnmanagedPods", message);
            }
            scale
        } else {
            0
        };
        plan::wanted(spec, pods.len(), scale).map_err(Error::Invalid)
    }

    async fn budget(&self, key: &Key, pass: &Pass) -> Result<Next> {
        let Some(cached) = self.budgets.get(key) else { return Ok(Next::Done) };
        let about = Reference::of(&self.resource, &cached.meta);
        let budget: PodDisruptionBudget = cached.decode()?;
        let mut object: Value = cached.decode()?;
        let (spec, old) = (budget.spec.unwrap_or_default(), budget.status.unwrap_or_default());
        let selector = spec.selector.as_ref().map(api::selector);
        let pods = match selector {
            Some(Ok(selector)) => self.pods.select(&key.namespace, &selector),
            Some(Err(_)) | None => Vec::new(),
        };
        if pods.is_empty() {
            self.writer.event_about(&about, Type::Normal, "NoPods", "No matching pods found");
        }
        let now = self.clock.wall();
        let (status, recheck, failure) = match self.expected(&spec, &pods, &about).await {
            Ok((expected, desired)) => {
                let seen = Seen { pods: &pods, old: &old, generation: cached.meta.generation, expected, desired, now };
                let found = plan::plan(&seen);
                for pod in pods.iter().filter(|pod| found.stayed.contains(&pod.meta.name)) {
                    let space = &key.namespace;
                    let message = format!("Pod was expected by PDB {space}/{space} to be deleted but it wasn't");
                    let pod = Reference::of(&self.pod_resource, &pod.meta);
                    self.writer.event_about(&pod, Type::Warning, "NotDeleted", message);
                }
                (found.status, found.recheck, None)
            }
            Err(error) => {
                let message = format!("Failed to calculate the number of expected pods: {error}");
                self.writer.event_about(&about, Type::Warning, "CalculateExpectedPodCountFailed", message);
                (plan::failed(&old, error.to_string(), now), None, Some(error))
            }
        };
        if status != old {
            object["status"] = json!(status);
            match self.writer.update_status(&self.resource, &object).await {
                Ok(written) => pass.hold(self.budgets.reached(revision(&written))),
                Err(error) if error.is_not_found() => return Ok(Next::Done),
                Err(error) => return Err(error),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(recheck.map_or(Next::Done, |at| Next::After(until(at, now) + Duration::from_millis(1)))),
        }
    }

    /// Takes the mark off a pod that nobody deletes.
    async fn marked(&self, key: &Key) -> Result<Next> {
        let Some(pod) = self.pods.get(key) else { return Ok(Next::Done) };
        let Some(end) = marked_until(&pod) else { return Ok(Next::Done) };
        let now = self.clock.wall();
        if end > now {
            return Ok(Next::After(until(end, now) + Duration::from_millis(1)));
        }
        // A kubelet's own mark stays however long the pod takes to end.
        let api = self.reader.dynamic(self.pod_resource.clone()).namespace(&*key.namespace);
        let Some(object) = api.find(&key.name).await? else { return Ok(Next::Done) };
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        let mark = conditions.into_iter().flatten().find(|c| c["type"] == TARGET);
        if mark.is_none_or(|mark| mark["status"] != "True" || mark["reason"] == "TerminationByKubelet") {
            return Ok(Next::Done);
        }
        let patch = Patch::Strategic(json!({
            "metadata": {"uid": pod.meta.uid, "resourceVersion": machinery::meta::resource_version(&object)},
            "status": {"conditions": [{"type": TARGET, "status": "False", "reason": null, "message": null,
                "lastTransitionTime": machinery::time::rfc3339(now)}]},
        }));
        match self.writer.patch_status(&self.pod_resource, &key.namespace, &key.name, &patch).await {
            Err(error) if error.is_not_found() => Ok(Next::Done),
            result => result.map(|_| Next::Done),
        }
    }
}

#[async_trait]
impl Reconcile for Controller {
    type Key = Item;

    async fn reconcile(&self, item: &Item, pass: &Pass) -> Result<Next> {
        match item {
            Item::Budget(key) => self.budget(key, pass).await,
            Item::Marked(key) => self.marked(key).await,
        }
    }

    fn all(&self) -> Vec<Item> {
        self.budgets.list().iter().map(|budget| Item::Budget(budget.meta.key())).collect()
    }
}
