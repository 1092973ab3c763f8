//! One task per store reads its events and brings each to the cache of its kind, so that every cache
//! knows the store's revision, not just that of its own last change.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use parking_lot::RwLock;
use stdx::SharedClock;
use stdx::clock::ClockExt;
use stdx::shutdown::Stage;
use storage::{Entry, Error, Event, RangeOptions, Signal, Store, WatchStream};
use tokio::sync::{Mutex, watch};

use super::cache::Cacher;
use super::object::CachedObject;

/// Where all objects are.
const ROOT: &str = "/registry/";

/// Entries read at a time when a cache begins.
const PAGE: usize = 500;

/// How often what is too old is looked for where nothing changes.
const TIDY: Duration = Duration::from_secs(60);

/// Which cache a storage key belongs to.
#[derive(Default)]
pub(super) struct Routes {
    /// By storage prefix: `pods`, `services/specs`, a custom resource's group and plural.
    pub by_prefix: RwLock<HashMap<String, Arc<Cacher>>>,
    /// Held while caches are filled from the store: one that is added then would miss what happens
    /// between its state and that of the others.
    pub filling: Mutex<()>,
}

impl Routes {
    /// The cache a storage key belongs to, and the object's key in it.
    fn find(&self, key: &[u8]) -> Option<(Arc<Cacher>, Arc<str>)> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(ROOT)?;
        let routes = self.by_prefix.read();
        // Prefixes have one or two parts.
        let ends = rest.match_indices('/').map(|(at, _)| at).take(2);
        for end in ends {
            if let Some(cacher) = routes.get(&rest[..end]) {
                return Some((cacher.clone(), rest[end + 1..].into()));
            }
        }
        None
    }

    fn all(&self) -> Vec<Arc<Cacher>> {
        self.by_prefix.read().values().cloned().collect()
    }
}

/// Gives every entry stored below `/registry/` and the prefix to `take`; the revision whose state that is.
pub(super) async fn each(store: &dyn Store, prefix: &str, mut take: impl FnMut(&Entry)) -> Result<u64, Error> {
    let prefix = format!("{ROOT}{prefix}");
    let mut options = RangeOptions { limit: PAGE, ..RangeOptions::default() };
    loop {
        let page = store.range(prefix.as_bytes(), options.clone()).await?;
        options.revision = Some(page.revision);
        options.start = page.entries.last().map(|last| [&last.key[..], &[0]].concat().into());
        page.entries.iter().for_each(&mut take);
        if !page.more {
            return Ok(page.revision);
        }
    }
}

/// An object as a cache keeps it. What the cache has the same of it is shared.
pub(super) fn read(cacher: &Cacher, key: &Arc<str>, entry: &Entry) -> Arc<CachedObject> {
    let old = cacher.get(key);
    // The key the map already has is shared.
    let key = old.as_ref().map_or_else(|| key.clone(), |old| old.key.clone());
    Arc::new(CachedObject::read(&*cacher.kind, key, entry, old.as_deref()))
}

pub(super) struct Dispatcher {
    pub store: Arc<dyn Store>,
    pub routes: Arc<Routes>,
    pub reached: watch::Sender<u64>,
    pub clock: SharedClock,
}

impl Dispatcher {
    /// Fills the caches with the store's state, and returns the watch that goes on from it.
    pub async fn begin(&self) -> Result<WatchStream, Error> {
        let _turn = self.routes.filling.lock().await;
        let mut objects: HashMap<String, Vec<Arc<CachedObject>>> = HashMap::new();
        let take = |entry: &Entry| {
            if let Some((cacher, key)) = self.routes.find(&entry.key) {
                let of_kind = objects.entry(cacher.kind.shape().prefix.to_owned()).or_default();
                of_kind.push(read(&cacher, &key, entry));
            }
        };
        let revision = each(&*self.store, "", take).await?;
        for cacher in self.routes.all() {
            cacher.replace(objects.remove(cacher.kind.shape().prefix).unwrap_or_default(), revision);
        }
        self.reached.send_replace(revision);
        self.store.watch(ROOT.as_bytes(), revision)
    }

    /// Follows the store until the stage stops or the store closes; then all watches end.
    pub async fn run(self, events: WatchStream, stage: Stage) {
        self.follow(events, &stage).await;
        self.routes.all().iter().for_each(|cacher| cacher.end());
    }

    async fn follow(&self, mut events: WatchStream, stage: &Stage) {
        let stopped = stage.stopped();
        tokio::pin!(stopped);
        let mut tidy = self.clock.sleep(TIDY);
        loop {
            tokio::select! {
                biased;
                () = &mut stopped => return,
                signal = events.next() => match signal {
                    Some(Ok(signal)) => self.take(signal),
                    Some(Err(Error::Closed(_))) | None => return,
                    Some(Err(error)) => {
                        tracing::warn!(%error, "the watch cache lost the store's events and begins anew");
                        match self.restart(stage).await {
                            Some(again) => events = again,
                            None => return,
                        }
                    }
                },
                () = &mut tidy => {
                    self.routes.all().iter().for_each(|cacher| cacher.tidy());
                    tidy = self.clock.sleep(TIDY);
                }
            }
        }
    }

    async fn restart(&self, stage: &Stage) -> Option<WatchStream> {
        let mut delay = Duration::from_millis(10);
        loop {
            match self.begin().await {
                Ok(events) => return Some(events),
                Err(Error::Closed(_)) => return None,
                Err(error) => tracing::error!(%error, "the watch cache could not read the store"),
            }
            tokio::select! {
                () = stage.stopped() => return None,
                () = self.clock.sleep(delay) => delay = (2 * delay).min(Duration::from_secs(5)),
            }
        }
    }

    fn take(&self, signal: Signal) {
        let revision = match signal {
            Signal::Event(Event { revision, key, entry, .. }) => {
                if let Some((cacher, key)) = self.routes.find(&key) {
                    let new = entry.map(|entry| read(&cacher, &key, &entry));
                    cacher.apply(&key, revision, new);
                }
                revision
            }
            Signal::Progress(revision) => revision,
        };
        // After the change is in its cache and in the watchers' queues.
        self.reached.send_replace(revision);
    }
}
