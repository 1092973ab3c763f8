//! Keeps the zone as the API says: what changes is decided anew, Service by Service.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use api::types::core::v1 as core;
use api::types::discovery::v1 as discovery;
use client::{Change, Client, Informer, Key, Resource};
use parking_lot::{Mutex, RwLock};
use serde::Deserialize;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use tokio::sync::Notify;

use crate::ready::Ready;
use crate::zone::{Records, SERVICE_NAME, Service, Slice, Zone, decide};

const BY_SERVICE: &str = "service";
/// Services that are decided before questions are answered again: the zone is not held for long.
const ROUND: usize = 256;

/// Nothing but metadata is read of it.
#[derive(Deserialize)]
struct Nothing {}

/// What has changed since the last pass: bounded by what there is.
#[derive(Default)]
struct Dirty {
    services: Mutex<BTreeSet<Key>>,
    namespaces: Mutex<BTreeSet<String>>,
    wake: Notify,
}

impl Dirty {
    fn service(&self, key: Key) {
        self.services.lock().insert(key);
        self.wake.notify_one();
    }

    fn slice(&self, change: &Change<Slice>) {
        // A label that was changed concerns two Services.
        for object in change.old().into_iter().chain([change.object()]) {
            if let Some(name) = object.meta.labels.get(SERVICE_NAME) {
                self.service(Key::new(object.meta.namespace.clone(), name.clone()));
            }
        }
    }
}

/// The objects that names are made of.
pub struct Names {
    services: Informer<Service>,
    slices: Informer<Slice>,
    namespaces: Informer<Nothing>,
    dirty: Arc<Dirty>,
    zone: Arc<RwLock<Zone>>,
    ready: Arc<Ready>,
}

impl Names {
    /// Begins to follow the API.
    pub fn start(
        client: &Client,
        zone: Arc<RwLock<Zone>>,
        ready: Arc<Ready>,
        (clock, rng): (&SharedClock, &Rng),
        stage: &Stage,
    ) -> Self {
        let dirty = Arc::new(Dirty::default());
        let services = Informer::builder(client.clone(), Resource::of::<core::Service>()).without_json();
        let services: Informer<Service> = services.start(clock.clone(), rng.clone(), stage);
        let slices: Informer<Slice> = Informer::builder(client.clone(), Resource::of::<discovery::EndpointSlice>())
            .without_json()
            .index(BY_SERVICE, |meta, _| {
                let owner = meta.labels.get(SERVICE_NAME);
                owner.map(|name| format!("{}/{name}", meta.namespace)).into_iter().collect()
            })
            .start(clock.clone(), rng.clone(), stage);
        let namespaces = Informer::builder(client.clone(), Resource::of::<core::Namespace>());
        let namespaces: Informer<Nothing> =
            namespaces.without_json().metadata_only().start(clock.clone(), rng.clone(), stage);
        let of = dirty.clone();
        services.subscribe(move |change| of.service(change.object().meta.key()));
        let of = dirty.clone();
        slices.subscribe(move |change| of.slice(change));
        let of = dirty.clone();
        namespaces.subscribe(move |change| {
            of.namespaces.lock().insert(change.object().meta.name.clone());
            of.wake.notify_one();
        });
        Self { services, slices, namespaces, dirty, zone, ready }
    }

    /// Follows, and says when the zone holds what there was at the beginning. It may be begun again after it panicked.
    pub async fn run(&self) {
        futures::join!(self.services.synced(), self.slices.synced(), self.namespaces.synced());
        // Made aside, also after a panic that may have left the zone as it should not be; meanwhile what was known
        // is answered.
        *self.dirty.services.lock() = BTreeSet::new();
        *self.dirty.namespaces.lock() = BTreeSet::new();
        let mut zone = self.zone.read().begun_again();
        for namespace in self.namespaces.list() {
            zone.set_namespace(&namespace.meta.name, true);
        }
        let domain = zone.settings().domain.clone();
        for some in self.services.list().chunks(ROUND) {
            for key in some.iter().map(|service| service.meta.key()) {
                zone.set(&key, contained(&key, || self.records(&key, &domain)));
            }
            tokio::task::yield_now().await;
        }
        *self.zone.write() = zone;
        self.ready.synced();
        loop {
            self.pass().await;
            self.dirty.wake.notified().await;
        }
    }

    async fn pass(&self) {
        let namespaces = std::mem::take(&mut *self.dirty.namespaces.lock());
        for name in namespaces {
            let exists = self.namespaces.find("", &name).is_some();
            self.zone.write().set_namespace(&name, exists);
        }
        let keys: Vec<Key> = std::mem::take(&mut *self.dirty.services.lock()).into_iter().collect();
        for some in keys.chunks(ROUND) {
            let domain = self.zone.read().settings().domain.clone();
            let decided =
                some.iter().map(|key| (key, contained(key, || self.records(key, &domain)))).collect::<Vec<_>>();
            {
                let mut zone = self.zone.write();
                for (key, records) in decided {
                    zone.set(key, records);
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn records(&self, key: &Key, domain: &crate::wire::Name) -> Option<Records> {
        let service = self.services.get(key)?;
        let slices = self.slices.by_index(BY_SERVICE, &format!("{}/{}", key.namespace, key.name));
        decide((&key.namespace, &key.name), &service.view, slices.iter().map(|s| &s.view), domain)
    }
}

/// A Service that brings the code to its end has no names, and takes those of no other with it.
fn contained(key: &Key, decide: impl FnOnce() -> Option<Records>) -> Option<Records> {
    catch_unwind(AssertUnwindSafe(decide)).unwrap_or_else(|_| {
        tracing::error!(service = %key, "names of a Service were lost by a panic");
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_panics_has_no_names() {
        assert!(contained(&Key::new("a", "b"), || panic!("on purpose")).is_none());
    }
}
