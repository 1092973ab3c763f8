//! Deployments: one template rolled out through ReplicaSets, a new one for each change.
//!
//! Watches Deployments, ReplicaSets and pods. A pass claims ReplicaSets, plans, writes the new set,
//! the changed ones and the deletions, then the status.

mod model;
mod plan;
mod status;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::events::{Reference, Type};
use client::informer::OWNER;
use client::waits::Publisher;
use client::{Cached, Change, DeleteParams, Error, Informer, Key, Queue, Resource, Result};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use machinery::labels::Selector;
use stdx::SharedClock;

use crate::claims::{self, Claimer};
use crate::context::Context;
use crate::templates;
use crate::views::{PodView, SelectorView};
use crate::writer::{Writer, revision};
use model::{REVISION, Rollout, Set};
use plan::{Plan, Seen};

const WAIT: &str = "ReplicaSetNotCreated";

struct Controller {
    deployments: Informer<SelectorView>,
    replica_sets: Informer<SelectorView>,
    pods: Informer<PodView>,
    writer: Writer,
    waits: Publisher,
    clock: SharedClock,
    resource: Resource,
    set_resource: Resource,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<Key>::new(context.clock.clone());
    let controller = Arc::new(Controller {
        deployments: context.deployments(),
        replica_sets: context.replica_sets(),
        pods: context.pods(),
        writer: context.writer("deployment-controller", "deployment-controller"),
        waits: context.waits(),
        clock: context.clock.clone(),
        resource: Resource::of::<Deployment>(),
        set_resource: Resource::of::<ReplicaSet>(),
    });
    controller.watch(&queue);
    let synced = (controller.deployments.synced(), controller.replica_sets.synced(), controller.pods.synced());
    let ready = async move {
        synced.0.await;
        synced.1.await;
        synced.2.await;
    };
    controller::run(context.runner("deployment", 5), queue, controller, ready, &context.stage);
}

impl Controller {
    fn watch(self: &Arc<Self>, queue: &Arc<Queue<Key>>) {
        let (own, keys) = (self.clone(), queue.clone());
        self.deployments.subscribe(move |change| {
            if let Change::Deleted(gone) = change {
                own.waits.withdraw_all(&Reference::of(&own.resource, &gone.meta));
            }
            keys.add_caused(change.object().meta.key(), own.deployments.cause(change.object()));
        });
        let (own, keys) = (self.clone(), queue.clone());
        self.replica_sets.subscribe(move |change| {
            for key in claims::concerned(&own.deployments, change) {
                keys.add_caused(key, own.replica_sets.cause(change.object()));
            }
        });
        // The last pod of the old template lets Recreate go on.
        let (own, keys) = (self.clone(), queue.clone());
        self.pods.subscribe(move |change| {
            let Change::Deleted(pod) = change else { return };
            let Some(owner) = pod.meta.controller().filter(|o| o.kind == "ReplicaSet") else { return };
            let Some(set) = own.replica_sets.find(&pod.meta.namespace, &owner.name) else { return };
            if let Some(key) = claims::owner_of(&own.deployments, &set) {
                keys.add_caused(key, own.pods.cause(pod));
            }
        });
    }

    /// The ReplicaSets that are the Deployment's, after adoption and release.
    async fn claim(&self, deployment: &Cached<SelectorView>, selector: &Selector, pass: &Pass) -> Result<Vec<Set>> {
        let claimer = Claimer {
            writer: &self.writer,
            kind: &self.resource,
            owner: &deployment.meta,
            objects: &self.replica_sets,
        };
        let claimed = claimer.settle(selector, |_| true, pass).await?.into_iter();
        claimed.map(|set| Ok(Set::of(set.adopted.map_or_else(|| set.cached.decode(), Ok)?))).collect()
    }

    /// Makes the new ReplicaSet. False when its name is taken by another template: the caller
    /// must count the collision and come again.
    async fn create(&self, about: &Reference, set: &Set, pass: &Pass) -> Result<bool> {
        let namespace = &about.namespace;
        match self.writer.create(&self.set_resource, namespace, &set.object).await {
            Ok(created) => {
                pass.hold(self.replica_sets.reached(revision(&created)));
                if set.replicas > 0 {
                    let scaled = plan::Scaled { set: set.name.clone(), from: 0, to: set.replicas };
                    self.writer.event_about(about, Type::Normal, "ScalingReplicaSet", scaled.message());
                }
                Ok(true)
            }
            Err(error) if error.is_already_exists() => {
                let api = self.writer.client.dynamic(self.set_resource.clone()).namespace(namespace);
                let Some(other) = api.find(&set.name).await? else { return Err(error) };
                let other = Set::of(other);
                let owners = machinery::meta::owner_references(&other.object);
                let is_mine = owners.iter().any(|o| o.controller && o.uid == about.uid);
                if is_mine && templates::is_same(other.template(), set.template()) {
                    // Made by a pass that was cut off before the cache showed it.
                    pass.hold(self.replica_sets.reached(revision(&other.object)));
                    return Ok(true);
                }
                Ok(false)
            }
            Err(error) => {
                if error.is_outcome_unknown() {
                    pass.hold(self.replica_sets.refreshed());
                }
                Err(error)
            }
        }
    }

    async fn apply(&self, about: &Reference, deployment: &Rollout, plan: &Plan, pass: &Pass) -> Result<()> {
        let namespace = &about.namespace;
        if let Some(set) = &plan.create {
            match self.create(about, set, pass).await {
                Ok(true) => self.waits.withdraw(about, WAIT),
                Ok(false) => {
                    let mut status = deployment.status.clone();
                    status.collision_count = Some(deployment.collisions().saturating_add(1));
                    self.write_status(deployment, &status, None, pass).await?;
                    return Err(Error::Invalid(format!("the name {} is taken by another template", set.name)));
                }
                Err(error) if error.is_namespace_terminating() => return Err(error),
                Err(error) => {
                    let message = status::create_error(&set.name, &error);
                    self.waits.publish(about, WAIT, format!("ReplicaSet {}", set.name), error.to_string());
                    self.writer.event_about(about, Type::Warning, "ReplicaSetCreateError", message.clone());
                    let mut failed = deployment.clone();
                    status::note_progress(&mut failed, &status::Progress::Failed(message), self.clock.wall());
                    if status::is_news(&deployment.status, &failed.status) {
                        self.write_status(deployment, &failed.status, None, pass).await?;
                    }
                    return Err(error);
                }
            }
        } else {
            self.waits.withdraw(about, WAIT);
        }
        for (set, scaled) in &plan.update {
            let written = self.writer.update(&self.set_resource, &set.object).await?;
            pass.hold(self.replica_sets.reached(revision(&written)));
            if let Some(scaled) = scaled {
                self.writer.event_about(about, Type::Normal, "ScalingReplicaSet", scaled.message());
            }
        }
        for (name, uid) in &plan.delete {
            let params = DeleteParams::of_uid(uid);
            self.writer.delete(&self.set_resource, namespace, name, &params).await?;
            pass.hold(self.replica_sets.gone(Key::new(namespace.clone(), name.clone()), uid.clone()));
        }
        if status::is_news(&deployment.status, &plan.status) || plan.revision.is_some() {
            self.write_status(deployment, &plan.status, plan.revision.as_deref(), pass).await?;
        }
        Ok(())
    }

    /// Writes the status, and with it the revision annotation. A server that does not take
    /// annotations there gets them by an ordinary update.
    async fn write_status(
        &self,
        deployment: &Rollout,
        status: &DeploymentStatus,
        revision_text: Option<&str>,
        pass: &Pass,
    ) -> Result<()> {
        let mut object = deployment.object.clone();
        object["status"] = serde_json::to_value(status).unwrap_or_default();
        if let Some(text) = revision_text {
            machinery::meta::set_annotation(&mut object, REVISION, Some(text));
        }
        let mut written = match self.writer.update_status(&self.resource, &object).await {
            Ok(written) => written,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        if revision_text.is_some() && machinery::meta::annotation(&written, REVISION) != revision_text {
            machinery::meta::set_annotation(&mut written, REVISION, revision_text);
            written = self.writer.update(&self.resource, &written).await?;
        }
        pass.hold(self.deployments.reached(revision(&written)));
        Ok(())
    }
}

#[async_trait]
impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: &Key, pass: &Pass) -> Result<Next> {
        let Some(cached) = self.deployments.get(key) else {
            return Ok(Next::Done);
        };
        let about = Reference::of(&self.resource, &cached.meta);
        let typed: Deployment = cached.decode()?;
        let deployment = Rollout::of(cached.decode()?, &typed);
        let selector = match api::selector(&typed.spec.selector) {
            Ok(selector) => selector,
            Err(error) => {
                tracing::error!(%key, %error, "a Deployment has no usable selector");
                return Ok(Next::Done);
            }
        };
        if selector.is_empty() {
            let message = "This deployment is selecting all pods. A non-empty selector is required.";
            self.writer.event_about(&about, Type::Warning, "SelectingAll", message);
            if deployment.status.observed_generation.unwrap_or(0) < deployment.generation {
                let mut status = deployment.status.clone();
                status.observed_generation = Some(deployment.generation);
                self.write_status(&deployment, &status, None, pass).await?;
            }
            return Ok(Next::Done);
        }
        let sets = self.claim(&cached, &selector, pass).await?;
        let pods = sets.iter().flat_map(|s| self.pods.by_index(OWNER, &s.uid).into_iter().map(|p| (s.uid.clone(), p)));
        let pod_owners = pods.filter(|(_, p)| !p.view.is_finished()).map(|(uid, _)| uid).collect();
        let now = self.clock.wall();
        let plan = plan::plan(Seen { deployment: deployment.clone(), sets, pod_owners, now });
        self.apply(&about, &deployment, &plan, pass).await?;
        Ok(plan.check_at.map_or(Next::Done, |at| {
            let wait = u64::try_from(at.duration_since(now).as_millis()).unwrap_or(0);
            Next::After(Duration::from_millis(wait.max(1000)))
        }))
    }

    fn all(&self) -> Vec<Key> {
        self.deployments.list().iter().map(|d| d.meta.key()).collect()
    }
}
