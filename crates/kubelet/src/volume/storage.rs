//! What volumes ask of the API server beside ConfigMaps and Secrets, behind a trait so that tests
//! can answer.

use std::collections::HashSet;
use std::sync::Arc;

use api::types::certificates::v1::ClusterTrustBundle;
use api::types::core::v1::{PersistentVolume, PersistentVolumeClaim};
use async_trait::async_trait;
use client::{Client, Error, Informer, Resource};
use parking_lot::Mutex;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};

use crate::cluster::OnChange;
use crate::shared::Shared;

/// The API server, as far as volumes need it.
#[async_trait]
pub trait Storage: Send + Sync + 'static {
    /// A claim.
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<PersistentVolumeClaim>, Error>;
    /// A volume.
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, Error>;
    /// All bundles of authorities. From now on changes to them are told to the pod.
    async fn bundles(&self, uid: &str) -> Vec<Arc<ClusterTrustBundle>>;
    /// The pod needs no bundles any more.
    fn release(&self, uid: &str);
}

/// The real one. Bundles are followed from when the first pod needs them.
pub struct ApiStorage {
    client: Client,
    clock: SharedClock,
    rng: Rng,
    stage: Stage,
    on_change: OnChange,
    users: Arc<Mutex<HashSet<String>>>,
    bundles: Mutex<Option<Informer<Shared<ClusterTrustBundle>>>>,
}

impl ApiStorage {
    /// `on_change` is called with the uid of each pod whose bundles may have changed.
    pub fn new(client: Client, clock: SharedClock, rng: Rng, stage: &Stage, on_change: OnChange) -> Self {
        let (users, bundles) = (Arc::default(), Mutex::default());
        Self { client, clock, rng, stage: stage.clone(), on_change, users, bundles }
    }

    fn follow(&self) -> Informer<Shared<ClusterTrustBundle>> {
        let mut bundles = self.bundles.lock();
        if let Some(known) = &*bundles {
            return known.clone();
        }
        let resource = Resource::of::<ClusterTrustBundle>();
        let informer = Informer::<Shared<ClusterTrustBundle>>::builder(self.client.clone(), resource)
            .without_json()
            .start(self.clock.clone(), self.rng.clone(), &self.stage);
        let (users, on_change) = (self.users.clone(), self.on_change.clone());
        informer.subscribe(move |_| {
            let users: Vec<String> = users.lock().iter().cloned().collect();
            users.iter().for_each(|uid| on_change(uid));
        });
        bundles.insert(informer).clone()
    }
}

#[async_trait]
impl Storage for ApiStorage {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<PersistentVolumeClaim>, Error> {
        self.client.api::<PersistentVolumeClaim>().namespace(namespace).find(name).await
    }

    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, Error> {
        self.client.api::<PersistentVolume>().find(name).await
    }

    async fn bundles(&self, uid: &str) -> Vec<Arc<ClusterTrustBundle>> {
        self.users.lock().insert(uid.to_owned());
        let informer = self.follow();
        informer.synced().await;
        informer.list().iter().map(|cached| cached.view.0.clone()).collect()
    }

    fn release(&self, uid: &str) {
        self.users.lock().remove(uid);
    }
}

/// No API server: nothing can be had.
pub struct NoStorage;

fn nobody<T>() -> Result<T, Error> {
    Err(Error::Interrupted("this kubelet runs without an API server".into()))
}

#[async_trait]
impl Storage for NoStorage {
    async fn claim(&self, _: &str, _: &str) -> Result<Option<PersistentVolumeClaim>, Error> {
        nobody()
    }

    async fn volume(&self, _: &str) -> Result<Option<PersistentVolume>, Error> {
        nobody()
    }

    async fn bundles(&self, _: &str) -> Vec<Arc<ClusterTrustBundle>> {
        Vec::new()
    }

    fn release(&self, _: &str) {}
}

/// Claims and volumes that a test puts in.
#[cfg(test)]
#[derive(Clone, Default)]
pub struct FakeStorage {
    pub claims: Arc<Mutex<std::collections::BTreeMap<String, PersistentVolumeClaim>>>,
    pub volumes: Arc<Mutex<std::collections::BTreeMap<String, PersistentVolume>>>,
    pub trusted: Arc<Mutex<Vec<Arc<ClusterTrustBundle>>>>,
}

#[cfg(test)]
#[async_trait]
impl Storage for FakeStorage {
    async fn claim(&self, _: &str, name: &str) -> Result<Option<PersistentVolumeClaim>, Error> {
        Ok(self.claims.lock().get(name).cloned())
    }

    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, Error> {
        Ok(self.volumes.lock().get(name).cloned())
    }

    async fn bundles(&self, _: &str) -> Vec<Arc<ClusterTrustBundle>> {
        self.trusted.lock().clone()
    }

    fn release(&self, _: &str) {}
}
