//! Endpoints: the older form of a Service's pods, one object each, still asked for by clients.

mod plan;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::events::{Reference, Type};
use client::{DeleteParams, Informer, Key, Queue, Resource, Result};
use k8s_openapi::api::core::v1::Endpoints;
use serde_json::Value;
use stdx::backoff::Policy;

use crate::context::Context;
use crate::service_pods::{self, Triggers};
use crate::views::{BareView, PodView, ServiceView};
use crate::writer::{Writer, revision};

const BACKOFF: Policy = Policy { initial: Duration::from_secs(1), max: Duration::from_secs(1000) };

struct Controller {
    services: Informer<ServiceView>,
    pods: Informer<PodView>,
    endpoints: Informer<BareView>,
    writer: Writer,
    triggers: Triggers,
    resource: Resource,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<Key>::with(context.clock.clone(), BACKOFF, client::queue::CAPACITY);
    let controller = Arc::new(Controller {
        services: context.services(),
        pods: context.pods(),
        endpoints: context.endpoints(),
        writer: context.writer("endpoint-controller", "endpoint-controller"),
        triggers: Triggers::default(),
        resource: Resource::of::<Endpoints>(),
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.services.subscribe(move |change| {
        keys.add_caused(change.object().meta.key(), own.services.cause(change.object()));
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.pods.subscribe(move |change| {
        for key in service_pods::concerned(&own.services, change) {
            keys.add_caused(key, own.pods.cause(change.object()));
        }
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.endpoints.subscribe(move |change| {
        // Its Service has the same name. Objects of Services without a selector are others'.
        keys.add_caused(change.object().meta.key(), own.endpoints.cause(change.object()));
    });
    let own = controller.clone();
    let ready = async move {
        own.services.synced().await;
        own.pods.synced().await;
        own.endpoints.synced().await;
    };
    controller::run(context.runner("endpoints", 5), queue, controller, ready, &context.stage);
}

/// Kept by leader elections of old, which used Endpoints as locks.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

#[async_trait]
impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: &Key, pass: &Pass) -> Result<Next> {
        let current = self.endpoints.get(key);
        let Some(service) = self.services.get(key) else {
            self.triggers.forget(key);
            let Some(current) = current else { return Ok(Next::Done) };
            let object: Value = current.decode()?;
            // Objects of nobody's Service are somebody's own, unless we made them.
            let is_ours = current.meta.labels.contains_key("endpoints.kubernetes.io/managed-by");
            if is_ours && machinery::meta::annotation(&object, LEADER).is_none() {
                let params = DeleteParams::of_uid(&current.meta.uid);
                self.writer.delete(&self.resource, &key.namespace, &key.name, &params).await?;
                pass.hold(self.endpoints.gone(key.clone(), current.meta.uid.clone()));
            }
            return Ok(Next::Done);
        };
        if !service_pods::is_ours(&service.view) || service.meta.is_deleting() {
            return Ok(Next::Done);
        }
        let pods = service_pods::pods(&self.pods, &service);
        let trigger = self.triggers.observe(&service.meta, &pods);
        let object: Option<Value> = current.as_ref().map(|c| c.decode()).transpose()?;
        let Some(wanted) = plan::plan(&service, &pods, object.as_ref(), trigger) else { return Ok(Next::Done) };
        let (written, reason, what) = if current.is_none() {
            let written = self.writer.create(&self.resource, &key.namespace, &wanted).await;
            (written, "FailedToCreateEndpoint", "create endpoint for service")
        } else {
            (self.writer.update(&self.resource, &wanted).await, "FailedToUpdateEndpoint", "update endpoint")
        };
        match written {
            Ok(object) => {
                pass.hold(self.endpoints.reached(revision(&object)));
                Ok(Next::Done)
            }
            Err(error) if error.is_namespace_terminating() => Ok(Next::Done),
            Err(error) => {
                if !error.is_conflict() && !error.is_already_exists() {
                    let about = Reference {
                        api_version: "v1".into(),
                        kind: "Endpoints".into(),
                        namespace: key.namespace.clone(),
                        name: key.name.clone(),
                        uid: current.map(|c| c.meta.uid.clone()).unwrap_or_default(),
                        ..Reference::default()
                    };
                    let message = format!("Failed to {what} {key}: {error}");
                    self.writer.event_about(&about, Type::Warning, reason, message);
                }
                Err(error)
            }
        }
    }

    fn all(&self) -> Vec<Key> {
        self.services.list().iter().map(|s| s.meta.key()).collect()
    }
}
