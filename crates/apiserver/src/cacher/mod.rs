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
mod watcher;

use std::collections::HashMap;
use std::sync::Arc;

use kinds::{AnyKind, Keep, Shape};
use machinery::status::{self, Status};
use stdx::SharedClock;
use stdx::shutdown::Stage;
use storage::Store;
use tokio::sync::watch;

pub use cache::{Cacher, Limits};
pub use change::{Delivery, Shared, What};
pub use object::CachedObject;
pub use pairs::Pairs;
pub use scan::Scan;
pub use snapshot::{Objects, Slot, Snapshot};
pub use watcher::{Filter, WatchItem, WatchOptions, Watcher};

use dispatch::Dispatcher;

/// The caches of every stored kind.
pub struct Cachers {
    /// By plural; the few of the same plural differ in their group.
    by_plural: HashMap<&'static str, Vec<Arc<Cacher>>>,
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
        let (in_memory, durable): (Vec<_>, Vec<_>) = kinds
            .into_iter()
            .filter(|kind| kind.shape().keep != Keep::Virtual)
            .partition(|kind| kind.shape().keep == Keep::Memory);
        let mut by_plural: HashMap<_, Vec<_>> = HashMap::new();
        for (store, kinds) in [(&stores.durable, durable), (&stores.memory, in_memory)] {
            let reached = watch::Sender::new(0);
            let mut cachers = HashMap::new();
            for kind in kinds {
                let shape = kind.shape();
                let cacher = Cacher::new(kind, store.clone(), clock.clone(), limits, reached.subscribe());
                let cacher = Arc::new(cacher);
                cachers.insert(shape.prefix, cacher.clone());
                by_plural.entry(shape.plural).or_default().push(cacher);
            }
            let dispatcher = Dispatcher { store: store.clone(), cachers, reached, clock: clock.clone() };
            let events = dispatcher.begin().await.map_err(Status::internal)?;
            stage.spawn(dispatcher.run(events, stage.clone()));
        }
        Ok(Arc::new(Self { by_plural }))
    }

    /// The cache of a kind; `None` when it has none.
    pub fn get(&self, shape: &Shape) -> Option<&Arc<Cacher>> {
        self.find(shape.group, shape.plural)
    }

    /// The cache of a kind by group and plural.
    pub fn find(&self, group: &str, plural: &str) -> Option<&Arc<Cacher>> {
        self.by_plural.get(plural)?.iter().find(|cacher| cacher.kind.shape().group == group)
    }
}
