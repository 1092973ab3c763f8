//! The loop: what changed in the API becomes one transaction to the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1 as core;
use api::types::discovery::v1 as discovery;
use client::events::Reference;
use client::informer::View;
use client::waits::Publisher;
use client::{Client, Informer, Key, Resource};
use ipnet::IpNet;
use net::egress;
use net::nft::Kernel;
use net::ruleset::Family;
use parking_lot::Mutex;
use serde::Deserialize;
use stdx::backoff::Policy;
use stdx::metrics::Registry;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};
use tokio::sync::Notify;

use crate::metrics::Metrics;
use crate::model::{EndpointSlice, Model, PortName, SERVICE_NAME, Service, ServicePort, of_service, service_ports};
use crate::nftables::apply::Applied;
use crate::nftables::render::{Settings, render};

/// What the proxy is told at its start.
pub struct Options {
    /// This node: its own pod range is on this host, others' are reached by routes.
    pub node_name: String,
    pub service_cidrs: Vec<IpNet>,
    pub cluster_cidrs: Vec<IpNet>,
    /// The interfaces of this node's pods, as an nftables pattern.
    pub pod_interfaces: String,
    /// Masquerade what pods send out of the cluster.
    pub masquerade_egress: bool,
    pub kernel: Arc<dyn Kernel>,
    /// Where the proxy counts what it does.
    pub registry: Registry,
}

/// What the proxy reads of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Node {
    spec: NodeSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeSpec {
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
}

/// What has changed since the last pass. Bounded by the number of Services.
#[derive(Default)]
struct Dirty {
    services: Mutex<BTreeSet<Key>>,
    /// Nodes changed: the ranges must be read again.
    nodes: Mutex<bool>,
    wake: Notify,
}

impl Dirty {
    fn service(&self, key: Key) {
        self.services.lock().insert(key);
        self.wake.notify_one();
    }

    fn node(&self) {
        *self.nodes.lock() = true;
        self.wake.notify_one();
    }

    fn take(&self) -> (BTreeSet<Key>, bool) {
        (std::mem::take(&mut *self.services.lock()), std::mem::take(&mut *self.nodes.lock()))
    }

    /// The Services that changed, left where they are.
    fn peek(&self) -> BTreeSet<Key> {
        self.services.lock().clone()
    }

    fn is_empty(&self) -> bool {
        self.services.lock().is_empty() && !*self.nodes.lock()
    }
}

const BY_SERVICE: &str = "service";
/// How long to wait before a refused transaction is tried again.
const RETRY: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(30) };
/// At most so many Services are named at a time as waiting for the kernel.
const NAMED: usize = 100;
/// The code of the Wait.
const NOT_IN_KERNEL: &str = "RulesNotInKernel";
/// What is waited for while the kernel has refused nothing.
const NOT_YET: &str = "the kernel does not have this Service's present rules yet";

/// Runs until the stage stops. The rules stay.
pub async fn run(client: Client, clock: SharedClock, rng: Rng, options: Options, stage: &Stage) {
    let mut sync = Sync::start(&client, clock, rng, options, stage);
    tokio::select! {
        () = sync.run() => {}
        () = stage.stopped() => {}
    }
}

struct Sync {
    caches: Caches,
    nodes: Informer<Node>,
    dirty: Arc<Dirty>,
    clock: SharedClock,
    options: Options,
    model: Model,
    settings: Settings,
    tables: Tables,
    waiting: Waiting,
    metrics: Metrics,
}

/// What the cluster says of Services.
struct Caches {
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
}

impl Caches {
    /// The ports a Service should have by now.
    fn ports(&self, key: &Key) -> Vec<(PortName, ServicePort)> {
        let Some(service) = self.services.get(key) else { return Vec::new() };
        let slices = self.slices.by_index(BY_SERVICE, &format!("{}/{}", key.namespace, key.name));
        service_ports(&service.view, slices.iter().map(|s| &s.view))
    }
}

/// Services whose present rules the kernel does not have: each is published when it changes, and
/// withdrawn with the transaction that carries it. One that takes less than a Wait needs to be seen
/// is never shown.
struct Waiting {
    waits: Publisher,
    resource: Resource,
    services: BTreeMap<Key, Reference>,
}

impl Waiting {
    fn publish(&mut self, caches: &Caches, key: &Key, text: &str) {
        if self.services.len() >= NAMED && !self.services.contains_key(key) {
            return;
        }
        // Of a Service that is gone there is nobody left to tell.
        let Some(service) = caches.services.get(key) else { return };
        let reference = Reference::of(&self.resource, &service.meta);
        self.waits.publish(&reference, NOT_IN_KERNEL, "nftables", text);
        if let Some(former) = self.services.insert(key.clone(), reference.clone())
            && former.uid != reference.uid
        {
            self.waits.withdraw(&former, NOT_IN_KERNEL);
        }
    }

    /// Says of all of them what the kernel said.
    fn refused(&self, error: &str) {
        for reference in self.services.values() {
            self.waits.publish(reference, NOT_IN_KERNEL, "nftables", format!("the kernel refused the rules: {error}"));
        }
    }

    fn is_over(&mut self) {
        for reference in std::mem::take(&mut self.services).into_values() {
            self.waits.withdraw(&reference, NOT_IN_KERNEL);
        }
    }

    /// Publishes what changes while the kernel is busy with, or waits for, an earlier state.
    async fn follow(&mut self, caches: &Caches, dirty: &Dirty, model: &Model) -> Infallible {
        loop {
            dirty.wake.notified().await;
            for key in dirty.peek() {
                if !caches.ports(&key).iter().map(|(name, port)| (name, port)).eq(of_service(
                    model,
                    &key.namespace,
                    &key.name,
                )) {
                    self.publish(caches, &key, NOT_YET);
                }
            }
        }
    }
}

/// What the kernel has: a table a family, for Services and for egress.
struct Tables(Vec<(Family, Applied, Applied)>);

impl Tables {
    async fn apply(
        &mut self,
        model: &Model,
        settings: &Settings,
        options: &Options,
        (metrics, clock): (&Metrics, &SharedClock),
    ) -> Result<(), net::nft::Error> {
        for (family, services, outside) in &mut self.0 {
            let began = clock.now();
            let applied = services.apply(render(model, settings, *family)).await;
            metrics.applied(*family, clock.now().since(began), applied.is_ok(), clock.wall().as_second());
            applied?;
            if options.masquerade_egress {
                let cluster = &options.cluster_cidrs;
                outside.apply(egress::render(*family, cluster, cluster)).await?;
            }
        }
        Ok(())
    }
}

fn informer<V: View>(client: &Client, resource: Resource) -> client::informer::Builder<V> {
    Informer::builder(client.clone(), resource).without_json()
}

impl Sync {
    fn start(client: &Client, clock: SharedClock, rng: Rng, options: Options, stage: &Stage) -> Self {
        let dirty = Arc::new(Dirty::default());
        let services = informer::<Service>(client, Resource::of::<core::Service>())
            .labels("!service.kubernetes.io/service-proxy-name")
            .start(clock.clone(), rng.clone(), stage);
        let slices = informer::<EndpointSlice>(client, Resource::of::<discovery::EndpointSlice>())
            .labels("!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name")
            .index(BY_SERVICE, |meta, _| {
                let owner = meta.labels.get(SERVICE_NAME);
                owner.map(|name| format!("{}/{name}", meta.namespace)).into_iter().collect()
            })
            .start(clock.clone(), rng.clone(), stage);
        let nodes = informer::<Node>(client, Resource::of::<core::Node>()).start(clock.clone(), rng.clone(), stage);
        services.subscribe({
            let dirty = dirty.clone();
            move |change| dirty.service(change.object().meta.key())
        });
        slices.subscribe({
            let dirty = dirty.clone();
            move |change| {
                for object in change.old().into_iter().chain([change.object()]) {
                    if let Some(name) = object.meta.labels.get(SERVICE_NAME) {
                        dirty.service(Key::new(object.meta.namespace.clone(), name.clone()));
                    }
                }
            }
        });
        nodes.subscribe({
            let dirty = dirty.clone();
            move |change| {
                if change.old().is_none_or(|old| old.view != change.object().view || Arc::ptr_eq(old, change.object()))
                {
                    dirty.node();
                }
            }
        });
        let waits = Publisher::start(client, "proxy", |_| true, clock.clone(), stage);
        let settings = Settings {
            service_cidrs: options.service_cidrs.clone(),
            cluster_cidrs: options.cluster_cidrs.clone(),
            remote_pod_cidrs: Vec::new(),
            pod_interfaces: options.pod_interfaces.clone(),
        };
        let is_used = |family: &Family| {
            let v4 = *family == Family::Ip;
            options.service_cidrs.iter().chain(&options.cluster_cidrs).any(|n| n.addr().is_ipv4() == v4)
        };
        let tables = [Family::Ip, Family::Ip6]
            .into_iter()
            .filter(is_used)
            .map(|f| (f, Applied::new(options.kernel.clone()), Applied::new(options.kernel.clone())))
            .collect();
        let waiting = Waiting { waits, resource: Resource::of::<core::Service>(), services: BTreeMap::new() };
        let (caches, tables, model) = (Caches { services, slices }, Tables(tables), Model::new());
        let metrics = Metrics::new(&options.registry);
        Self { caches, nodes, dirty, clock, options, model, settings, tables, waiting, metrics }
    }

    async fn run(&mut self) {
        // Until the caches are full the kernel keeps what an earlier process left there.
        futures::join!(self.caches.services.synced(), self.caches.slices.synced(), self.nodes.synced());
        let mut failures = 0;
        loop {
            let (services, nodes) = self.dirty.take();
            self.metrics.begun(services.len(), self.clock.wall().as_second());
            self.observe(&services, nodes);
            let Self { caches, dirty, clock, options, model, settings, tables, waiting, metrics, .. } = self;
            let applied = tokio::select! {
                applied = tables.apply(model, settings, options, (metrics, clock)) => applied,
                never = waiting.follow(caches, dirty, model) => match never {},
            };
            match applied {
                Ok(()) => {
                    failures = 0;
                    waiting.is_over();
                    // What woke `follow` is still to be done.
                    if dirty.is_empty() {
                        dirty.wake.notified().await;
                    }
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, failures, "the kernel refused the service rules");
                    waiting.refused(&error.to_string());
                    tokio::select! {
                        () = clock.sleep(RETRY.delay(failures)) => {}
                        never = waiting.follow(caches, dirty, model) => match never {},
                    }
                }
            }
        }
    }

    /// Brings the model up to date with the caches.
    fn observe(&mut self, services: &BTreeSet<Key>, nodes: bool) {
        for key in services {
            let ports = self.caches.ports(key);
            let before = of_service(&self.model, &key.namespace, &key.name);
            if ports.iter().map(|(name, port)| (name, port)).eq(before) {
                continue;
            }
            self.waiting.publish(&self.caches, key, NOT_YET);
            let names: Vec<PortName> =
                of_service(&self.model, &key.namespace, &key.name).map(|(name, _)| name.clone()).collect();
            for name in names {
                self.model.remove(&name);
            }
            self.model.extend(ports);
        }
        if nodes {
            let others = self.nodes.list().into_iter().filter(|n| n.meta.name != self.options.node_name);
            let ranges = others.flat_map(|n| n.view.spec.pod_cidrs.clone()).filter_map(|c| c.parse().ok());
            self.settings.remote_pod_cidrs = ranges.collect::<BTreeSet<IpNet>>().into_iter().collect();
        }
    }
}

/// The text of every table of ours, removed: what `--cleanup` sends.
pub fn cleanup() -> String {
    let mut tables = BTreeMap::new();
    for family in [Family::Ip, Family::Ip6] {
        for name in [crate::nftables::render::TABLE, egress::TABLE] {
            tables.insert((family, name), net::ruleset::Ruleset::new(family, name).remove());
        }
    }
    tables.into_values().collect()
}

#[cfg(test)]
mod tests;
