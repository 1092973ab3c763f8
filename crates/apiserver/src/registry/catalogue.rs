//! Which resources are served: group, version and plural to the kind, its cache and its store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kinds::{AnyKind, Shape};
use machinery::status::{self, GroupResource, Status};
use storage::Store;

use crate::cacher::{CachedObject, Cacher, Cachers, Stores};

/// How long a reader waits for the cache to be as new as it demands.
const PATIENCE: Duration = Duration::from_secs(3);

/// One served resource.
#[derive(Clone)]
pub struct Resource {
    pub kind: &'static dyn AnyKind,
    /// Where its objects are written and read; `None` for kinds that are answered, not stored.
    stored: Option<(Arc<dyn Store>, Arc<Cacher>)>,
}

impl Resource {
    /// The kind's data.
    pub fn shape(&self) -> &'static Shape {
        self.kind.shape()
    }

    /// As error texts name it.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.shape().group, self.shape().plural)
    }

    /// The storage key of an object.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        self.kind.stored_as().unwrap_or(self.kind).shape().key(namespace, name)
    }

    /// The key in the cache: `namespace/name`, or `name` at cluster scope.
    pub fn cache_key(&self, namespace: &str, name: &str) -> String {
        if self.shape().is_namespaced() { format!("{namespace}/{name}") } else { name.to_owned() }
    }

    /// Where its objects are written.
    ///
    /// # Errors
    /// 405 for kinds that are not stored.
    pub fn store(&self) -> status::Result<&Arc<dyn Store>> {
        self.stored.as_ref().map(|(store, _)| store).ok_or_else(|| self.not_stored())
    }

    /// Where its objects are read.
    ///
    /// # Errors
    /// 405 for kinds that are not stored.
    pub fn cacher(&self) -> status::Result<&Arc<Cacher>> {
        self.stored.as_ref().map(|(_, cacher)| cacher).ok_or_else(|| self.not_stored())
    }

    fn not_stored(&self) -> Box<Status> {
        Status::method_not_allowed(&self.group_resource(), "get")
    }

    /// An object as the cache has it.
    pub fn cached(&self, namespace: &str, name: &str) -> Option<Arc<CachedObject>> {
        self.stored.as_ref()?.1.get(&self.cache_key(namespace, name))
    }

    /// Waits until the cache is as new as a reader demands: `None` is "every write acknowledged so
    /// far", 0 is "anything", else the revision named.
    ///
    /// # Errors
    /// 504 when that takes too long.
    pub async fn settle(&self, asked: Option<u64>) -> status::Result<()> {
        match asked {
            None => self.cacher()?.wait_current(PATIENCE).await,
            Some(0) => Ok(()),
            Some(revision) => self.cacher()?.wait_for(revision, PATIENCE).await,
        }
    }
}

/// Every served resource.
pub struct Catalogue {
    by_name: HashMap<(&'static str, &'static str, &'static str), Arc<Resource>>,
}

impl Catalogue {
    /// The kinds given, over their caches and stores.
    pub fn new(kinds: &[&'static dyn AnyKind], cachers: &Cachers, stores: &Stores) -> Self {
        let resource = |kind: &'static dyn AnyKind| {
            let at = kind.stored_as().unwrap_or(kind).shape();
            let stored = stores.of(at.keep).cloned().zip(cachers.get(at).cloned());
            let shape = kind.shape();
            ((shape.group, shape.version, shape.plural), Arc::new(Resource { kind, stored }))
        };
        Self { by_name: kinds.iter().map(|kind| resource(*kind)).collect() }
    }

    /// The resource a path names.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.by_name.get(&(group, version, plural)).cloned()
    }

    /// The kind of this name, stored or not.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<&'static dyn AnyKind> {
        let same = |r: &&Arc<Resource>| {
            let shape = r.shape();
            shape.kind == kind && shape.group == group && shape.version == version
        };
        self.by_name.values().find(same).map(|r| r.kind)
    }

    /// Every resource, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.by_name.values()
    }
}
