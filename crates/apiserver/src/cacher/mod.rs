//! The watch cache: every object once, as the bytes that clients get, and the recent changes.
//!
//! ```text
//!                              ┌─► Cacher of pods ──► watchers (bounded queues, one frame for all)
//!  store.watch("/registry/") ──┤     │ objects: ordered, immutable map; snapshots are free
//!   one task, routes by prefix ├─► Cacher of …       │ ring of recent changes
//!                              └─► revision reached: a consistent read waits for the store's
//! ```
//!
//! Invariants:
//! - A change is in its cache, and in the queues of its watchers, before `reached` says so
//!   (`tests::reads_after_a_write_see_it`).
//! - Between the state a watch begins with and its first event nothing is missing
//!   (`tests::replayed_watches_equal_the_state`).
//! - A watcher that does not read costs others nothing and is ended (`tests::a_slow_watcher_is_ended_alone`).

mod cache;
mod change;
mod dispatch;
mod listers;
mod object;
mod pairs;
mod scan;
mod snapshot;
#[cfg(test)]
mod tests;
mod trees;
mod watcher;

use std::collections::HashMap;
use std::sync::Arc;

use kinds::{AnyKind, AnyShape, Keep, SharedKind};
use machinery::status::{self, Status};
use stdx::SharedClock;
use stdx::shutdown::Stage;
use storage::{Entry, Store};
use tokio::sync::watch;

pub use cache::{Cacher, Limits};
pub use change::{Delivery, Shared, What};
pub use object::CachedObject;
pub use pairs::Pairs;
pub use scan::Scan;
pub use snapshot::{Objects, Slot, Snapshot};
pub use watcher::{Filter, WatchItem, WatchOptions, Watcher};

use dispatch::{Dispatcher, Routes};

/// The caches of every stored kind.
pub struct Cachers {
    /// By plural; the few of the same plural differ in their group. Built-in kinds only.
    by_plural: HashMap<&'static str, Vec<Arc<Cacher>>>,
    /// Where caches of custom kinds are added.
    durable: Durable,
}

/// What a cache over the durable store is made with.
struct Durable {
    store: Arc<dyn Store>,
    clock: SharedClock,
    limits: Limits,
    routes: Arc<Routes>,
    reached: watch::Receiver<u64>,
}

/// Where kinds live.
#[derive(Clone)]
pub struct Stores {
    pub durable: Arc<dyn Store>,
    pub memory: Arc<dyn Store>,
}

impl Stores {
    /// The store a kind's objects are written to; `None` for kinds that are not stored.
    pub fn of(&self, keep: Keep) -> Option<&Arc<dyn Store>> {
        match keep {
            Keep::Durable | Keep::Relaxed => Some(&self.durable),
            Keep::Memory => Some(&self.memory),
            Keep::Virtual => None,
        }
    }
}

impl Cachers {
    /// Fills a cache for each of the kinds ([`kinds::stored`]); returns when all hold the stores' state.
    pub async fn start(
        stores: &Stores,
        kinds: impl IntoIterator<Item = &'static dyn AnyKind>,
        clock: &SharedClock,
        limits: Limits,
        stage: &Stage,
    ) -> status::Result<Arc<Self>> {
        let (in_memory, in_durable): (Vec<_>, Vec<_>) = kinds
            .into_iter()
            .filter(|kind| kind.shape().keep != Keep::Virtual)
            .partition(|kind| kind.shape().keep == Keep::Memory);
        let reached = watch::Sender::new(0);
        let durable = Durable {
            store: stores.durable.clone(),
            clock: clock.clone(),
            limits,
            routes: Arc::default(),
            reached: reached.subscribe(),
        };
        let (memory, memory_routes) = (watch::Sender::new(0), Arc::<Routes>::default());
        let mut by_plural: HashMap<_, Vec<_>> = HashMap::new();
        for (store, kinds, reached, routes) in [
            (&stores.durable, in_durable, reached, durable.routes.clone()),
            (&stores.memory, in_memory, memory, memory_routes),
        ] {
            for kind in kinds {
                let shape = kind.shape();
                let cacher = Cacher::new(kind.into(), store.clone(), clock.clone(), limits, reached.subscribe());
                let cacher = Arc::new(cacher);
                routes.by_prefix.write().insert(shape.prefix.to_owned(), cacher.clone());
                by_plural.entry(shape.plural).or_default().push(cacher);
            }
            let dispatcher = Dispatcher { store: store.clone(), routes, reached, clock: clock.clone() };
            let events = dispatcher.begin().await.map_err(Status::internal)?;
            stage.spawn(dispatcher.run(events, stage.clone()));
        }
        Ok(Arc::new(Self { by_plural, durable }))
    }

    /// Adds a cache for a custom kind, in the place of the one its prefix may have; returns when it holds
    /// what is stored.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn add(&self, kind: SharedKind) -> status::Result<Arc<Cacher>> {
        let Durable { store, clock, limits, routes, reached } = &self.durable;
        let prefix = kind.shape().prefix.to_owned();
        let cacher = Arc::new(Cacher::new(kind, store.clone(), clock.clone(), *limits, reached.clone()));
        cacher.begin_filling();
        let _turn = routes.filling.lock().await;
        // From here on it hears of changes; what is stored is read after that.
        let before = routes.by_prefix.write().insert(prefix.clone(), cacher.clone());
        let (below, mut objects) = (format!("{prefix}/"), Vec::new());
        let take = |entry: &Entry| {
            let key = std::str::from_utf8(&entry.key).ok().and_then(|key| key.split_once(&below));
            if let Some((_, key)) = key {
                objects.push(dispatch::read(&cacher, &key.into(), entry));
            }
        };
        match dispatch::each(&**store, &below, take).await {
            Ok(revision) => {
                cacher.fill(objects, revision);
                if let Some(before) = before {
                    before.end();
                }
                Ok(cacher)
            }
            Err(error) => {
                let mut routes = routes.by_prefix.write();
                match before {
                    Some(before) => drop(routes.insert(prefix, before)),
                    None => drop(routes.remove(&prefix)),
                }
                Err(Status::internal(error))
            }
        }
    }

    /// The store that caches of custom kinds are filled from.
    pub fn durable_store(&self) -> &Arc<dyn Store> {
        &self.durable.store
    }

    /// The cache of the kind that is stored under the prefix.
    pub fn of_prefix(&self, prefix: &str) -> Option<Arc<Cacher>> {
        self.durable.routes.by_prefix.read().get(prefix).cloned()
    }

    /// Takes a custom kind's cache away; its watches end.
    pub fn remove(&self, cacher: &Arc<Cacher>) {
        let mut routes = self.durable.routes.by_prefix.write();
        let prefix = cacher.kind.shape().prefix;
        if routes.get(prefix).is_some_and(|found| Arc::ptr_eq(found, cacher)) {
            routes.remove(prefix);
        }
        drop(routes);
        cacher.end();
    }

    /// The cache of a kind; `None` when it has none.
    pub fn get(&self, shape: &AnyShape<'_>) -> Option<&Arc<Cacher>> {
        self.find(shape.group, shape.plural)
    }

    /// The cache of a kind by group and plural.
    pub fn find(&self, group: &str, plural: &str) -> Option<&Arc<Cacher>> {
        self.by_plural.get(plural)?.iter().find(|cacher| cacher.kind.shape().group == group)
    }
}
