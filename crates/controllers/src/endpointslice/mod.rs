//! EndpointSlices: the pods behind each Service, in slices of bounded size.
//!
//! Watches Services, pods, nodes and the slices it keeps. A pass plans the fewest writes that make
//! the slices true, then makes them: creations and updates before deletions, so that no endpoint
//! is missing in between.

mod plan;
mod topology;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::events::{Reference, Type};
use client::{DeleteParams, Error, Informer, Key, Queue, Resource, Result};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use machinery::labels::{Labels, Selector};
use parking_lot::Mutex;
use stdx::backoff::Policy;

use crate::context::Context;
use crate::service_pods::{self, Triggers};
use crate::views::{BareView, NodeView, PodView, ServiceView};
use crate::writer::{Writer, revision};
use plan::{MANAGED_BY, MANAGER, SERVICE_NAME, Seen, Slice};
use topology::{Hinted, Zones};

const BACKOFF: Policy = Policy { initial: Duration::from_secs(1), max: Duration::from_secs(1000) };
const ZONE: &str = "topology.kubernetes.io/zone";

struct Controller {
    services: Informer<ServiceView>,
    pods: Informer<PodView>,
    nodes: Informer<NodeView>,
    slices: Informer<BareView>,
    writer: Writer,
    triggers: Triggers,
    /// What was told of Services in topology mode `Auto`.
    hinted: Mutex<HashMap<Key, Hinted>>,
    per_slice: usize,
    resource: Resource,
    service_resource: Resource,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<Key>::with(context.clock.clone(), BACKOFF, client::queue::CAPACITY);
    let controller = Arc::new(Controller {
        services: context.services(),
        pods: context.pods(),
        nodes: context.nodes(),
        slices: context.slices(),
        writer: context.writer("endpointslice-controller", "endpoint-slice-controller"),
        triggers: Triggers::default(),
        hinted: Mutex::default(),
        per_slice: context.options.endpoints_per_slice,
        resource: Resource::of::<EndpointSlice>(),
        service_resource: Resource::of::<Service>(),
    });
    controller.watch(&queue);
    let own = controller.clone();
    let ready = async move {
        own.services.synced().await;
        own.pods.synced().await;
        own.nodes.synced().await;
        own.slices.synced().await;
    };
    controller::run(context.runner("endpointslice", 5), queue, controller, ready, &context.stage);
}

impl Controller {
    fn watch(self: &Arc<Self>, queue: &Arc<Queue<Key>>) {
        let (own, keys) = (self.clone(), queue.clone());
        self.services.subscribe(move |change| {
            keys.add_caused(change.object().meta.key(), own.services.cause(change.object()));
        });
        let (own, keys) = (self.clone(), queue.clone());
        self.pods.subscribe(move |change| {
            for key in service_pods::concerned(&own.services, change) {
                keys.add_caused(key, own.pods.cause(change.object()));
            }
        });
        // Zones have other shares of the processors: Services that go by them are looked at again.
        let (own, keys, known) = (self.clone(), queue.clone(), Mutex::new(None));
        self.nodes.subscribe(move |change| {
            if change.old().is_some_and(|old| topology::is_same(old, change.object())) {
                return;
            }
            let zones = Zones::of(own.nodes.list().iter());
            if known.lock().replace(zones.clone()) == Some(zones) {
                return;
            }
            for service in own.services.list().iter().filter(|s| s.view.is_topology_auto()) {
                keys.add_caused(service.meta.key(), own.nodes.cause(change.object()));
            }
        });
        let (own, keys) = (self.clone(), queue.clone());
        self.slices.subscribe(move |change| {
            let meta = &change.object().meta;
            let labels = [Some(&meta.labels), change.old().map(|o| &o.meta.labels)];
            for labels in labels.into_iter().flatten().filter(|l| l.get(MANAGED_BY).is_some_and(|m| m == MANAGER)) {
                if let Some(service) = labels.get(SERVICE_NAME) {
                    let key = Key::new(meta.namespace.clone(), service.clone());
                    keys.add_caused(key, own.slices.cause(change.object()));
                }
            }
        });
    }

    /// Tells of a Service in topology mode `Auto` what has changed of its hints.
    fn tell_hints(&self, key: &Key, about: &Reference, now: &Hinted) {
        let mut told = self.hinted.lock();
        let before = if now.is_empty() { told.remove(key) } else { told.insert(key.clone(), now.clone()) };
        drop(told);
        let before = before.unwrap_or_default();
        let families: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        for family in families {
            if let Some((kind, reason, text)) = topology::news(before.get(family), now.get(family), family) {
                self.writer.event_about(about, kind, reason, text);
            }
        }
    }

    async fn apply(&self, namespace: &str, plan: &plan::Plan, pass: &Pass) -> Result<()> {
        for slice in &plan.create {
            match self.writer.create(&self.resource, namespace, slice).await {
                Ok(written) => pass.hold(self.slices.reached(revision(&written))),
                // Nothing can be created here any more.
                Err(error) if error.is_namespace_terminating() => return Ok(()),
                Err(error) => {
                    if error.is_outcome_unknown() {
                        pass.hold(self.slices.refreshed());
                    }
                    return Err(error);
                }
            }
        }
        for slice in &plan.update {
            let written = self.writer.update(&self.resource, slice).await?;
            pass.hold(self.slices.reached(revision(&written)));
        }
        for name in &plan.delete {
            let Some(slice) = self.slices.find(namespace, name) else { continue };
            let params = DeleteParams::of_uid(&slice.meta.uid);
            self.writer.delete(&self.resource, namespace, name, &params).await?;
            pass.hold(self.slices.gone(slice.meta.key(), slice.meta.uid.clone()));
        }
        Ok(())
    }
}

#[async_trait]
impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: &Key, pass: &Pass) -> Result<Next> {
        let Some(service) = self.services.get(key) else {
            // Its slices go by their owner reference.
            self.triggers.forget(key);
            self.hinted.lock().remove(key);
            return Ok(Next::Done);
        };
        if !service_pods::is_ours(&service.view) || service.meta.is_deleting() {
            return Ok(Next::Done);
        }
        let pods = service_pods::pods(&self.pods, &service);
        let own: Labels = [(SERVICE_NAME.into(), key.name.clone()), (MANAGED_BY.into(), MANAGER.into())].into();
        let mut slices = Vec::new();
        for slice in self.slices.select(&key.namespace, &Selector::from_labels(&own)) {
            if slice.meta.is_deleting() {
                continue;
            }
            slices.push(Slice::of(slice.decode()?).map_err(|e| Error::Decode(e.to_string()))?);
        }
        let names = pods.iter().map(|p| &p.view.spec.node_name).filter(|n| !n.is_empty());
        let zone = |name: &String| {
            let node = self.nodes.find("", name)?;
            Some((name.clone(), node.meta.labels.get(ZONE).cloned()))
        };
        let nodes: HashMap<String, Option<String>> = names.filter_map(zone).collect();
        let trigger = self.triggers.observe(&service.meta, &pods);
        let zones = if service.view.is_topology_auto() { Zones::of(self.nodes.list().iter()) } else { None };
        let (nodes, zones) = (&nodes, zones.as_ref());
        let seen = Seen { service: &service, pods: &pods, nodes, slices, per_slice: self.per_slice, trigger, zones };
        let plan = plan::plan(seen);
        let about = Reference::of(&self.service_resource, &service.meta);
        self.tell_hints(key, &about, &plan.hinted);
        if let Err(error) = self.apply(&key.namespace, &plan, pass).await {
            let message = format!("Error updating Endpoint Slices for Service {key}: {error}");
            // A conflict is mended by the next pass; nobody needs to hear of it.
            if !error.is_conflict() {
                self.writer.event_about(&about, Type::Warning, "FailedToUpdateEndpointSlices", message);
            }
            return Err(error);
        }
        if let Some(pod) = plan.skipped.first() {
            return Err(Error::Invalid(format!("skipping Pod {pod} for Service {key}: its node is not found")));
        }
        Ok(Next::Done)
    }

    fn all(&self) -> Vec<Key> {
        self.services.list().iter().map(|s| s.meta.key()).collect()
    }
}
