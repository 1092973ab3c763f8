//! What the server itself reads of the cluster, for authorization, admission and tokens: its own
//! listers over the watch cache, as one small trait that tests can stand in for.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use machinery::status;
use serde_json::Value;
use stdx::{ClockExt, SharedClock};

/// A kind of object, by group and plural; the stored version is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    pub group: &'static str,
    pub plural: &'static str,
}

macro_rules! resources {
    ($($name:ident $group:literal $plural:literal)*) => {
        $(pub const $name: Resource = Resource { group: $group, plural: $plural };)*
    };
}

resources! {
    CONFIG_MAPS "" "configmaps"
    NAMESPACES "" "namespaces"
    NODES "" "nodes"
    PERSISTENT_VOLUMES "" "persistentvolumes"
    PERSISTENT_VOLUME_CLAIMS "" "persistentvolumeclaims"
    PODS "" "pods"
    SECRETS "" "secrets"
    SERVICE_ACCOUNTS "" "serviceaccounts"
    STORAGE_CLASSES "storage.k8s.io" "storageclasses"
    LIMIT_RANGES "" "limitranges"
    SERVICE_CIDRS "networking.k8s.io" "servicecidrs"
    PRIORITY_CLASSES "scheduling.k8s.io" "priorityclasses"
    ROLES "rbac.authorization.k8s.io" "roles"
    ROLE_BINDINGS "rbac.authorization.k8s.io" "rolebindings"
    CLUSTER_ROLES "rbac.authorization.k8s.io" "clusterroles"
    CLUSTER_ROLE_BINDINGS "rbac.authorization.k8s.io" "clusterrolebindings"
}

/// What happened to an object, as an index needs it.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It is now this.
    Put(Arc<Value>),
    /// It is gone.
    Gone { namespace: String, name: String },
}

/// Where an index stands in a kind's history; opaque to the index.
#[derive(Default)]
pub struct Seen(pub Option<Box<dyn std::any::Any + Send>>);

/// The cluster's state as this server's watch cache has it.
#[async_trait]
pub trait Objects: Send + Sync + 'static {
    /// One object; `None` also when its kind is not served. `namespace` is empty at cluster scope.
    fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Value>>;

    /// What changed since `seen` was last given; with a new `seen`, everything that exists.
    fn changes(&self, resource: Resource, seen: &mut Seen) -> Vec<Change>;

    /// The same for an index that reads nothing of an object but its identity, `metadata.annotations` and `spec`:
    /// where no more than the rest has changed, nothing need be told.
    fn changes_of_spec(&self, resource: Resource, seen: &mut Seen) -> Vec<Change> {
        self.changes(resource, seen)
    }

    /// Returns once the cache has every write acknowledged before the call, so that `get` cannot
    /// miss what was created a moment ago.
    async fn settle(&self, resource: Resource) -> status::Result<()>;

    /// One object, surely: what the cache has, else what it has after [`settle`](Objects::settle).
    async fn find(&self, resource: Resource, namespace: &str, name: &str) -> status::Result<Option<Arc<Value>>> {
        if let Some(found) = self.get(resource, namespace, name) {
            return Ok(Some(found));
        }
        self.settle(resource).await?;
        Ok(self.get(resource, namespace, name))
    }

    /// Ends when the object exists, or never.
    async fn appears(&self, resource: Resource, namespace: &str, name: &str) -> status::Result<Arc<Value>>;

    /// One object, which may be about to be created: waits for it, at most `patience`.
    async fn expect(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        patience: Duration,
        clock: &SharedClock,
    ) -> status::Result<Option<Arc<Value>>> {
        match self.find(resource, namespace, name).await? {
            None if !patience.is_zero() => {
                clock.timeout(patience, self.appears(resource, namespace, name)).await.ok().transpose()
            }
            found => Ok(found),
        }
    }
}

#[cfg(test)]
pub mod fixed {
    //! Objects given as a list.

    use std::collections::BTreeMap;

    use machinery::meta;
    use parking_lot::Mutex;

    use super::*;

    type Key = (Resource, String, String);

    /// Objects that tests put and take away.
    #[derive(Default)]
    pub struct Fixed {
        inner: Mutex<Inner>,
        changed: tokio::sync::Notify,
    }

    #[derive(Default)]
    struct Inner {
        now: BTreeMap<Key, Arc<Value>>,
        history: Vec<(Key, Change)>,
    }

    impl Fixed {
        pub fn put(&self, resource: Resource, object: Value) -> &Self {
            let key = (resource, meta::namespace(&object).to_owned(), meta::name(&object).to_owned());
            let object = Arc::new(object);
            let mut inner = self.inner.lock();
            inner.now.insert(key.clone(), object.clone());
            inner.history.push((key, Change::Put(object)));
            drop(inner);
            self.changed.notify_waiters();
            self
        }

        pub fn remove(&self, resource: Resource, namespace: &str, name: &str) {
            let key = (resource, namespace.to_owned(), name.to_owned());
            let mut inner = self.inner.lock();
            inner.now.remove(&key);
            inner.history.push((key, Change::Gone { namespace: namespace.into(), name: name.into() }));
        }
    }

    #[async_trait]
    impl Objects for Fixed {
        fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Value>> {
            self.inner.lock().now.get(&(resource, namespace.to_owned(), name.to_owned())).cloned()
        }

        fn changes(&self, resource: Resource, seen: &mut Seen) -> Vec<Change> {
            let from = seen.0.as_ref().and_then(|s| s.downcast_ref::<usize>()).copied().unwrap_or(0);
            let inner = self.inner.lock();
            seen.0 = Some(Box::new(inner.history.len()));
            inner.history[from..]
                .iter()
                .filter(|((r, ..), _)| *r == resource)
                .map(|(_, change)| change.clone())
                .collect()
        }

        async fn settle(&self, _resource: Resource) -> status::Result<()> {
            Ok(())
        }

        async fn appears(&self, resource: Resource, namespace: &str, name: &str) -> status::Result<Arc<Value>> {
            loop {
                let changed = self.changed.notified();
                if let Some(found) = self.get(resource, namespace, name) {
                    return Ok(found);
                }
                changed.await;
            }
        }
    }
}
