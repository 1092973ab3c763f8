//! What the cluster says of Services and nodes, and what of it has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1 as core;
use api::types::discovery::v1 as discovery;
use api::types::networking::v1 as networking;
use client::informer::View;
use client::{Client, Informer, Key, Resource};
use ipnet::IpNet;
use jiff::Timestamp;
use parking_lot::Mutex;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};
use tokio::sync::Notify;

use crate::model::objects::{Endpoint, EndpointSlice, Node, SERVICE_NAME, Service, ServiceCidr};
use crate::model::{Here, ServiceRules, decide};

const BY_SERVICE: &str = "service";
/// Of so many changes of one Service between two passes it is told how long they took.
const TRIGGERS: usize = 16;

/// What has changed since the last pass. Bounded by the number of Services.
#[derive(Default)]
pub(super) struct Dirty {
    services: Mutex<BTreeSet<Key>>,
    /// Nodes, or ranges of Service addresses, changed: what is read of them must be read again.
    nodes: Mutex<bool>,
    /// When what changed them happened; at most [`TRIGGERS`] a Service.
    triggers: Mutex<BTreeMap<Key, Vec<Timestamp>>>,
    /// How often Services and slices changed.
    counts: Mutex<(u64, u64)>,
    pub(super) wake: Notify,
}

impl Dirty {
    fn service(&self, key: Key) {
        self.services.lock().insert(key);
        self.wake.notify_one();
    }

    /// How often Services and slices changed since the last call.
    pub(super) fn take_counts(&self) -> (u64, u64) {
        std::mem::take(&mut *self.counts.lock())
    }

    fn trigger(&self, key: &Key, at: Timestamp) {
        let mut triggers = self.triggers.lock();
        let times = triggers.entry(key.clone()).or_default();
        if times.len() < TRIGGERS {
            times.push(at);
        }
    }

    pub(super) fn take_triggers(&self) -> BTreeMap<Key, Vec<Timestamp>> {
        std::mem::take(&mut *self.triggers.lock())
    }

    fn node(&self) {
        *self.nodes.lock() = true;
        self.wake.notify_one();
    }

    pub(super) fn take(&self) -> (BTreeSet<Key>, bool) {
        (std::mem::take(&mut *self.services.lock()), std::mem::take(&mut *self.nodes.lock()))
    }

    /// The Services that changed, left where they are.
    pub(super) fn peek(&self) -> BTreeSet<Key> {
        self.services.lock().clone()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.services.lock().is_empty() && !*self.nodes.lock()
    }
}

/// A pod of this node that is about to end.
pub(super) struct Leaver {
    pub(super) ip: IpAddr,
    pub(super) uid: String,
    /// Where it answers over TCP.
    pub(super) at: BTreeSet<SocketAddr>,
}

/// Services and their slices.
pub(super) struct Caches {
    pub(super) services: Informer<Service>,
    pub(super) slices: Informer<EndpointSlice>,
    pub(super) nodes: Informer<Node>,
    /// Where nobody has said which they are.
    ranges: Option<Informer<ServiceCidr>>,
    clock: SharedClock,
}

/// How long ranges of Service addresses are waited for: an API server may know of none.
const RANGES: Duration = Duration::from_secs(5);

fn informer<V: View>(client: &Client, resource: Resource) -> client::informer::Builder<V> {
    Informer::builder(client.clone(), resource).without_json()
}

impl Caches {
    pub(super) fn start(
        client: &Client,
        dirty: &Arc<Dirty>,
        (clock, rng): (&SharedClock, &Rng),
        has_ranges: bool,
        stage: &Stage,
    ) -> Self {
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
            move |change| {
                dirty.counts.lock().0 += 1;
                dirty.service(change.object().meta.key());
            }
        });
        slices.subscribe({
            let dirty = dirty.clone();
            move |change| {
                dirty.counts.lock().1 += 1;
                let time = |slice: &EndpointSlice| slice.metadata.annotations.trigger_time.clone();
                let (before, after) = (change.old().and_then(|old| time(&old.view)), time(&change.object().view));
                let changed = after.filter(|after| before.as_ref() != Some(after));
                if let Some(at) = changed.as_deref().and_then(machinery::time::parse)
                    && let Some(name) = change.object().meta.labels.get(SERVICE_NAME)
                {
                    dirty.trigger(&Key::new(change.object().meta.namespace.clone(), name.clone()), at);
                }
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
                let (old, new) = (change.old(), change.object());
                let same = old.is_some_and(|old| {
                    !Arc::ptr_eq(old, new)
                        && old.view == new.view
                        && old.meta.labels == new.meta.labels
                        && old.meta.is_deleting() == new.meta.is_deleting()
                });
                if !same {
                    dirty.node();
                }
            }
        });
        let ranges = (!has_ranges).then(|| {
            let ranges = informer::<ServiceCidr>(client, Resource::of::<networking::ServiceCIDR>());
            let ranges = ranges.start(clock.clone(), rng.clone(), stage);
            let dirty = dirty.clone();
            ranges.subscribe(move |_| dirty.node());
            ranges
        });
        Self { services, slices, nodes, ranges, clock: clock.clone() }
    }

    pub(super) async fn synced(&self) {
        futures::join!(self.services.synced(), self.slices.synced(), self.nodes.synced());
        if let Some(ranges) = &self.ranges
            && self.clock.timeout(RANGES, ranges.synced()).await.is_err()
        {
            tracing::warn!("the API tells of no ranges of Service addresses: what no Service owns is not refused");
        }
    }

    /// Where Service addresses come from as the API says it; `None` where it is not asked.
    pub(super) fn service_ranges(&self) -> Option<Vec<IpNet>> {
        let all = self.ranges.as_ref()?.list();
        let mut out: Vec<IpNet> =
            all.iter().flat_map(|range| &range.view.spec.cidrs).filter_map(|text| text.parse().ok()).collect();
        out.sort();
        out.dedup();
        Some(out)
    }

    /// Everything up to these revisions of Services and slices is among what is dirty, or was.
    pub(super) fn revisions(&self) -> [(&'static str, u64); 2] {
        [("services", self.services.revision()), ("endpointslices", self.slices.revision())]
    }

    /// The pods of this node that are about to end, by the addresses they have in a Service, where that wants to be
    /// rid of them before they do. To be asked before [`Self::rules`], which then know of them.
    pub(super) fn leavers(&self, key: &Key, here: &Here) -> Vec<Leaver> {
        let Some(service) = self.services.get(key) else { return Vec::new() };
        if !api::leaving::is_wanted(service.view.metadata.annotations.leaves_first.as_deref()) {
            return Vec::new();
        }
        let slices = self.slices.by_index(BY_SERVICE, &format!("{}/{}", key.namespace, key.name));
        let mut out = Vec::new();
        for slice in slices.iter().map(|slice| &slice.view) {
            let own = |e: &&Endpoint| e.node_name.as_deref() == Some(here.name.as_str());
            for endpoint in slice.endpoints.iter().filter(own) {
                let (Some(ip), Some(pod)) = (endpoint.address, &endpoint.leaver) else { continue };
                let at = slice.tcp_ports().map(|port| SocketAddr::new(ip, port)).collect();
                out.push(Leaver { ip, uid: pod.uid.clone(), at });
            }
        }
        out
    }

    /// What a Service should have by now.
    pub(super) fn rules(&self, key: &Key, here: &Here) -> ServiceRules {
        let Some(service) = self.services.get(key) else { return ServiceRules::default() };
        let slices = self.slices.by_index(BY_SERVICE, &format!("{}/{}", key.namespace, key.name));
        decide(&service.view, slices.iter().map(|s| &s.view), here)
    }
}
