//! What the cluster says of pods, namespaces and policies, and what of it has changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::types::core::v1 as core;
use api::types::networking::v1::NetworkPolicy;
use client::informer::View;
use client::{Client, Informer, Key, Resource};
use parking_lot::Mutex;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use tokio::sync::Notify;

use crate::gate::{Claims, Desk, Waiter};
use crate::model::objects;

/// What has changed since the last pass. Bounded by the number of objects.
#[derive(Default)]
pub(super) struct Dirty {
    pub(super) claims: Mutex<Claims>,
    marks: Mutex<Marks>,
    pub(super) wake: Notify,
    /// More sandboxes are claimed than there can be.
    pub(super) full: Notify,
}

#[derive(Default)]
pub(super) struct Marks {
    pub(super) namespaces: BTreeSet<String>,
    pub(super) pods: BTreeSet<Key>,
    pub(super) policies: BTreeSet<Key>,
    pub(super) waiters: Vec<Waiter>,
}

impl Dirty {
    fn mark(&self, mark: impl FnOnce(&mut Marks)) {
        mark(&mut self.marks.lock());
        self.wake.notify_one();
    }

    pub(super) fn take(&self) -> Marks {
        std::mem::take(&mut *self.marks.lock())
    }

    /// The policies that changed, left where they are.
    pub(super) fn policies(&self) -> BTreeSet<Key> {
        self.marks.lock().policies.clone()
    }

    pub(super) fn is_empty(&self) -> bool {
        let marks = self.marks.lock();
        let Marks { namespaces, pods, policies, waiters } = &*marks;
        namespaces.is_empty() && pods.is_empty() && policies.is_empty() && waiters.is_empty()
    }
}

impl Desk for Dirty {
    fn claims(&self) -> &Mutex<Claims> {
        &self.claims
    }

    fn look(&self, key: Key, waiter: Option<Waiter>) {
        self.mark(|marks| {
            marks.pods.insert(key);
            marks.waiters.extend(waiter);
        });
    }

    fn is_full(&self) {
        self.full.notify_one();
    }
}

pub(super) struct Caches {
    pub(super) pods: Informer<objects::Pod>,
    pub(super) namespaces: Informer<objects::Namespace>,
    pub(super) policies: Informer<NetworkPolicy>,
}

fn informer<V: View>(client: &Client, resource: Resource) -> client::informer::Builder<V> {
    Informer::builder(client.clone(), resource).without_json()
}

impl Caches {
    pub(super) fn start(client: &Client, dirty: &Arc<Dirty>, clock: &SharedClock, rng: &Rng, stage: &Stage) -> Self {
        let pods = informer::<objects::Pod>(client, Resource::of::<core::Pod>());
        let namespaces = informer::<objects::Namespace>(client, Resource::of::<core::Namespace>()).metadata_only();
        let policies = informer::<NetworkPolicy>(client, Resource::of::<NetworkPolicy>());
        let caches = Self {
            pods: pods.start(clock.clone(), rng.clone(), stage),
            namespaces: namespaces.start(clock.clone(), rng.clone(), stage),
            policies: policies.start(clock.clone(), rng.clone(), stage),
        };
        caches.pods.subscribe({
            let dirty = dirty.clone();
            move |change| dirty.mark(|marks| _ = marks.pods.insert(change.object().meta.key()))
        });
        caches.namespaces.subscribe({
            let dirty = dirty.clone();
            move |change| dirty.mark(|marks| _ = marks.namespaces.insert(change.object().meta.name.clone()))
        });
        caches.policies.subscribe({
            let dirty = dirty.clone();
            move |change| dirty.mark(|marks| _ = marks.policies.insert(change.object().meta.key()))
        });
        caches
    }

    pub(super) async fn synced(&self) {
        futures::join!(self.pods.synced(), self.namespaces.synced(), self.policies.synced());
    }

    /// Everything up to these revisions is among what is dirty, or was.
    pub(super) fn revisions(&self) -> [(&'static str, u64); 3] {
        [
            ("namespaces", self.namespaces.revision()),
            ("networkpolicies", self.policies.revision()),
            ("pods", self.pods.revision()),
        ]
    }
}
