//! A watched copy of the objects of one kind: their bytes, and the view its readers declared.
//!
//! ```text
//!   watch (streaming list) ──► reflect ──► Cache { objects, indexes } ──► subscribers: Change<V>
//!                                              │
//!                                              └─ progress: revision reached, lists completed
//! ```
//!
//! * A relist is a difference: what vanished during a gap is delivered as deleted.
//! * Subscribers see each change after the cache shows it, in order, one at a time.
//! * [`Informer::reached`] ends when the cache shows a revision of this kind: read your writes.
//! * An object that does not fit the view is logged and kept as it was; it is never "absent".

mod cache;
mod reflect;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use machinery::labels::Selector;
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use tokio::sync::watch;

use crate::causes::Cause;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::object::{Key, Meta};
use crate::resource::Resource;
use cache::Cache;

/// What a view must be.
pub trait View: DeserializeOwned + Send + Sync + 'static {}
impl<V: DeserializeOwned + Send + Sync + 'static> View for V {}

/// An object in a cache.
#[derive(Debug)]
pub struct Cached<V> {
    pub meta: Meta,
    pub view: V,
    /// The whole object as JSON; empty when the informer keeps none.
    pub json: Bytes,
}

impl<V> Cached<V> {
    /// Reads the whole object as another type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.json).map_err(|e| Error::Decode(format!("{}: {e}", self.meta.key())))
    }

    /// The object as a cause of writes.
    pub fn cause(&self, resource: &Arc<str>) -> Cause {
        Cause {
            resource: resource.clone(),
            namespace: self.meta.namespace.clone(),
            name: self.meta.name.clone(),
            revision: self.meta.revision,
        }
    }
}

/// What a subscriber is told.
#[derive(Debug)]
pub enum Change<V> {
    /// The object is new or has changed. After a gap `old` may be several revisions old.
    Applied { old: Option<Arc<Cached<V>>>, new: Arc<Cached<V>> },
    /// The object is gone; this is its last known state.
    Deleted(Arc<Cached<V>>),
}

impl<V> Change<V> {
    /// The object in its newest state.
    pub fn object(&self) -> &Arc<Cached<V>> {
        match self {
            Self::Applied { new, .. } => new,
            Self::Deleted(old) => old,
        }
    }

    /// The state before, if there was one.
    pub fn old(&self) -> Option<&Arc<Cached<V>>> {
        match self {
            Self::Applied { old, .. } => old.as_ref(),
            Self::Deleted(old) => Some(old),
        }
    }
}

type Handler<V> = Box<dyn Fn(&Change<V>) + Send + Sync>;
type Indexer<V> = Box<dyn Fn(&Meta, &V) -> Vec<String> + Send + Sync>;

/// How far the cache has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The newest revision the cache shows.
    pub revision: u64,
    /// Which list was completed last, counted as they start; 0 means that the cache is not filled.
    pub lists: u64,
}

struct Shared<V> {
    resource: Resource,
    /// `pods`, `deployments.apps`: what causes call the resource.
    cause_name: Arc<str>,
    cache: RwLock<Cache<V>>,
    handlers: Mutex<Vec<Handler<V>>>,
    progress: watch::Sender<Progress>,
    /// Lists started.
    started: AtomicU64,
    /// The list that must at least be completed: bumped by [`Informer::refreshed`].
    wanted: watch::Sender<u64>,
}

/// A cache that follows one kind. Clones share it.
pub struct Informer<V> {
    shared: Arc<Shared<V>>,
}

impl<V> Clone for Informer<V> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

/// What an informer follows and how it is indexed.
pub struct Builder<V> {
    pub(crate) client: Client,
    pub(crate) resource: Resource,
    pub(crate) namespace: String,
    pub(crate) label_selector: String,
    pub(crate) field_selector: String,
    pub(crate) keep_json: bool,
    pub(crate) metadata_only: bool,
    cache: Cache<V>,
}

impl<V: View> Builder<V> {
    /// Follow one namespace only.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Follow only what this label selector matches.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.label_selector = selector.into();
        self
    }

    /// Follow only what this field selector matches. A revision that matches nothing then shows
    /// only with the next bookmark.
    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.field_selector = selector.into();
        self
    }

    /// Keep no bytes: [`Cached::json`] is empty and nothing can be decoded later.
    #[must_use]
    pub fn without_json(mut self) -> Self {
        self.keep_json = false;
        self
    }

    /// Ask the server for metadata alone, for a view that reads nothing else.
    #[must_use]
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }

    /// Adds an index: under which values an object is found.
    #[must_use]
    pub fn index(
        mut self,
        name: &'static str,
        values: impl Fn(&Meta, &V) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        self.cache.add_index(name, Box::new(values));
        self
    }

    /// Adds the index [`OWNER`]: objects by the uid of each owner.
    #[must_use]
    pub fn index_owners(self) -> Self {
        self.index(OWNER, |meta, _| meta.owner_references.iter().map(|o| o.uid.clone()).collect())
    }

    /// Makes [`Informer::select`] look up labels instead of walking the namespace.
    #[must_use]
    pub fn index_labels(mut self) -> Self {
        self.cache.index_labels();
        self
    }

    /// Starts to follow. The informer ends with the stage.
    pub fn start(mut self, clock: SharedClock, rng: Rng, stage: &Stage) -> Informer<V> {
        let cache = std::mem::take(&mut self.cache);
        let shared = Arc::new(Shared {
            cause_name: self.resource.group_resource().to_string().into(),
            resource: self.resource.clone(),
            cache: RwLock::new(cache),
            handlers: Mutex::new(Vec::new()),
            progress: watch::Sender::new(Progress::default()),
            started: AtomicU64::new(0),
            wanted: watch::Sender::new(0),
        });
        let reflector = reflect::Reflector::new(self, shared.clone(), clock, rng);
        let stopped = stage.stopped();
        stage.spawn(async move {
            tokio::select! {
                () = reflector.run() => {}
                () = stopped => {}
            }
        });
        Informer { shared }
    }
}

/// The index of [`Builder::index_owners`].
pub const OWNER: &str = "owner";

impl<V: View> Informer<V> {
    /// An informer of a resource, before it starts.
    pub fn builder(client: Client, resource: Resource) -> Builder<V> {
        Builder {
            client,
            resource,
            namespace: String::new(),
            label_selector: String::new(),
            field_selector: String::new(),
            keep_json: true,
            metadata_only: false,
            cache: Cache::default(),
        }
    }

    /// What is followed.
    pub fn resource(&self) -> &Resource {
        &self.shared.resource
    }

    /// Calls `handler` for every object there is, and then for every change. The handler must be
    /// quick and must not subscribe; it runs in the informer's task.
    pub fn subscribe(&self, handler: impl Fn(&Change<V>) + Send + Sync + 'static) {
        let mut handlers = self.shared.handlers.lock();
        let present: Vec<_> = self.shared.cache.read().all().cloned().collect();
        for new in present {
            handler(&Change::Applied { old: None, new });
        }
        handlers.push(Box::new(handler));
    }

    /// The object as a cause of writes.
    pub fn cause(&self, object: &Cached<V>) -> Cause {
        object.cause(&self.shared.cause_name)
    }

    /// True once the cache holds what existed when it started.
    pub fn has_synced(&self) -> bool {
        self.shared.progress.borrow().lists > 0
    }

    /// Ends once the cache holds what existed when it started.
    pub fn synced(&self) -> impl Future<Output = ()> + Send + 'static {
        self.until(|p| p.lists > 0)
    }

    /// The newest revision the cache shows.
    pub fn revision(&self) -> u64 {
        self.shared.progress.borrow().revision
    }

    /// Ends when the cache shows `revision`, which must be one of this kind's own.
    pub fn reached(&self, revision: u64) -> impl Future<Output = ()> + Send + 'static {
        self.until(move |p| p.revision >= revision)
    }

    /// Ends when the cache shows that the object with this uid is gone or being deleted.
    pub fn gone(&self, key: Key, uid: String) -> impl Future<Output = ()> + Send + 'static {
        let shared = self.shared.clone();
        let mut progress = shared.progress.subscribe();
        async move {
            loop {
                progress.borrow_and_update();
                let object = shared.cache.read().get(&key);
                if object.is_none_or(|o| o.meta.uid != uid || o.meta.is_deleting()) {
                    return;
                }
                if progress.changed().await.is_err() {
                    return;
                }
            }
        }
    }

    /// Ends when the cache has been listed anew, beginning after this call: for writes whose
    /// outcome is unknown.
    pub fn refreshed(&self) -> impl Future<Output = ()> + Send + 'static {
        // A list that runs now may have begun before the write; the one after it has not.
        let wanted = self.shared.started.load(Ordering::SeqCst) + 1;
        self.shared.wanted.send_if_modified(|w| {
            let grows = *w < wanted;
            *w = (*w).max(wanted);
            grows
        });
        self.until(move |p| p.lists >= wanted)
    }

    fn until(&self, reached: impl Fn(&Progress) -> bool + Send + 'static) -> impl Future<Output = ()> + Send + 'static {
        let mut progress = self.shared.progress.subscribe();
        async move {
            // An error means that the informer is gone; so is the component.
            let _ = progress.wait_for(reached).await.map(|p| *p);
        }
    }

    /// One object.
    pub fn get(&self, key: &Key) -> Option<Arc<Cached<V>>> {
        self.shared.cache.read().get(key)
    }

    /// One object of cluster scope, or by parts.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<Cached<V>>> {
        self.get(&Key::new(namespace, name))
    }

    /// Everything, by key.
    pub fn list(&self) -> Vec<Arc<Cached<V>>> {
        self.shared.cache.read().all().cloned().collect()
    }

    /// Everything in a namespace, by name.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<Cached<V>>> {
        self.shared.cache.read().namespace(namespace).cloned().collect()
    }

    /// What `selector` matches in a namespace, by name.
    pub fn select(&self, namespace: &str, selector: &Selector) -> Vec<Arc<Cached<V>>> {
        self.shared.cache.read().select(namespace, selector)
    }

    /// The objects an index holds under `value`, by key.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<Cached<V>>> {
        self.shared.cache.read().by_index(index, value)
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.shared.cache.read().len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
