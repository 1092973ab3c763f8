//! Which resources are served: group, version and plural to the kind, its cache and its store. Those of
//! built-in kinds never change; those of custom ones come and go with their definitions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kinds::{AnyKind, AnyShape, SharedKind};
use machinery::status::{self, GroupResource, Status};
use parking_lot::RwLock;
use storage::Store;
use tokio::sync::OwnedRwLockReadGuard;

use crate::cacher::{CachedObject, Cacher, Cachers, Stores};
use crate::crd::Custom;

/// How long a reader waits for the cache to be as new as it demands.
const PATIENCE: Duration = Duration::from_secs(3);

/// One served resource.
#[derive(Clone)]
pub struct Resource {
    pub kind: SharedKind,
    /// Where its objects are written and read; `None` for kinds that are answered, not stored.
    stored: Option<(Arc<dyn Store>, Arc<Cacher>)>,
    /// Of a custom resource: its other versions, and the way between them.
    custom: Option<Arc<Custom>>,
}

impl Resource {
    /// One version of a custom resource.
    pub fn custom(kind: SharedKind, store: Arc<dyn Store>, cacher: Arc<Cacher>, custom: Arc<Custom>) -> Self {
        Self { kind, stored: Some((store, cacher)), custom: Some(custom) }
    }

    /// Of a custom resource, what its versions have in common.
    pub fn custom_parts(&self) -> Option<&Custom> {
        self.custom.as_deref()
    }

    /// True when objects are stored in the form that clients of the resource get.
    pub fn is_stored_form(&self) -> bool {
        let other = |custom: &Arc<Custom>| custom.storage().version() != self.shape().version;
        self.kind.stored_as().is_none() && !self.custom.as_ref().is_some_and(other)
    }

    /// The kind's data.
    pub fn shape(&self) -> AnyShape<'_> {
        self.kind.shape()
    }

    /// As error texts name it.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.shape().group, self.shape().plural)
    }

    /// The storage key of an object.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        self.kind.stored_as().unwrap_or(&*self.kind).shape().key(namespace, name)
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

    /// The 405 of a verb that the resource, or a part of it, does not have. The paths of built-in resources
    /// have no such method; custom ones, and a list that is to be watched, say so themselves.
    pub fn refuses(&self, verb: &str) -> Box<Status> {
        if self.custom.is_some() || verb == "watch" {
            return Status::method_not_allowed(&self.group_resource(), verb);
        }
        Status::no_such_method()
    }

    /// May objects be created? Holds the definition's end back while what comes back is held.
    ///
    /// # Errors
    /// 405 while the resource's definition is being deleted.
    pub async fn begin_create(&self) -> status::Result<Option<OwnedRwLockReadGuard<bool>>> {
        let Some(custom) = &self.custom else { return Ok(None) };
        let open = custom.open.clone().read_owned().await;
        if *open { Ok(Some(open)) } else { Err(self.ending()) }
    }

    /// The 405 of a create while the resource's definition is being deleted.
    pub fn ending(&self) -> Box<Status> {
        let mut status = Status::method_not_allowed(&self.group_resource(), "create");
        status.message = "create not allowed while custom resource definition is terminating".to_owned();
        status
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
    /// By plural and group, one for each version.
    custom: RwLock<HashMap<GroupResource, Vec<Arc<Resource>>>>,
}

impl Catalogue {
    /// The kinds given, over their caches and stores.
    pub fn new(kinds: &[&'static dyn AnyKind], cachers: &Cachers, stores: &Stores) -> Self {
        let resource = |kind: &'static dyn AnyKind| {
            let at = kind.stored_as().unwrap_or(kind).shape();
            let stored = stores.of(at.keep).cloned().zip(cachers.get(&at).cloned());
            let shape = kind.shape();
            ((shape.group, shape.version, shape.plural), Arc::new(Resource { kind: kind.into(), stored, custom: None }))
        };
        Self { by_name: kinds.iter().map(|kind| resource(*kind)).collect(), custom: RwLock::default() }
    }

    /// The resource a path names.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        if let Some(found) = self.by_name.get(&(group, version, plural)) {
            return Some(found.clone());
        }
        let custom = self.custom.read();
        let versions = custom.get(&GroupResource::new(group, plural))?;
        versions.iter().find(|resource| resource.shape().version == version).cloned()
    }

    /// The resource of the kind of this name, stored or not.
    pub fn of_kind(&self, group: &str, version: &str, kind: &str) -> Option<Arc<Resource>> {
        let same = |resource: &&Arc<Resource>| {
            let shape = resource.shape();
            shape.kind == kind && shape.group == group && shape.version == version
        };
        if let Some(found) = self.by_name.values().find(same) {
            return Some(found.clone());
        }
        self.custom.read().values().flatten().find(same).cloned()
    }

    /// True when a built-in resource has the name.
    pub fn is_built_in(&self, group: &str, plural: &str) -> bool {
        self.by_name.keys().any(|(g, _, p)| *g == group && *p == plural)
    }

    /// Serves the versions of a custom resource from now on, or no longer when there are none.
    pub fn set_custom(&self, name: GroupResource, versions: Vec<Arc<Resource>>) {
        let mut custom = self.custom.write();
        if versions.is_empty() {
            custom.remove(&name);
        } else {
            custom.insert(name, versions);
        }
    }

    /// Every resource served now, custom ones too, in no order.
    pub fn all(&self) -> Vec<Arc<Resource>> {
        let custom = self.custom.read();
        self.by_name.values().chain(custom.values().flatten()).cloned().collect()
    }

    /// The custom kinds served, in no order.
    pub fn custom_kinds(&self) -> Vec<SharedKind> {
        self.custom.read().values().flatten().map(|resource| resource.kind.clone()).collect()
    }
}
