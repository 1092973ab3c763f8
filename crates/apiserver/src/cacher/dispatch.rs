//! One task per store reads its events and brings each to the cache of its kind, so that every cache
//! knows the store's revision, not just that of its own last change.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use stdx::SharedClock;
use stdx::clock::ClockExt;
use stdx::shutdown::Stage;
use storage::{Entry, Error, Event, RangeOptions, Signal, Store, WatchStream};
use tokio::sync::watch;

use super::cache::Cacher;
use super::object::CachedObject;

/// Where all objects are.
const ROOT: &str = "/registry/";

/// Entries read at a time when a cache begins.
const PAGE: usize = 500;

/// How often what is too old is looked for where nothing changes.
const TIDY: Duration = Duration::from_secs(60);

pub(super) struct Dispatcher {
    pub store: Arc<dyn Store>,
    /// By storage prefix, `pods`, `services/specs`.
    pub cachers: HashMap<&'static str, Arc<Cacher>>,
    pub reached: watch::Sender<u64>,
    pub clock: SharedClock,
}

impl Dispatcher {
    /// Fills the caches with the store's state, and returns the watch that goes on from it.
    pub async fn begin(&self) -> Result<WatchStream, Error> {
        let mut objects: HashMap<&'static str, Vec<Arc<CachedObject>>> = HashMap::new();
        let mut options = RangeOptions { limit: PAGE, ..RangeOptions::default() };
        let revision = loop {
            let page = self.store.range(ROOT.as_bytes(), options.clone()).await?;
            options.revision = Some(page.revision);
            options.start = page.entries.last().map(|last| [&last.key[..], &[0]].concat().into());
            for entry in &page.entries {
                if let Some((prefix, cacher, key)) = self.route(&entry.key) {
                    objects.entry(prefix).or_default().push(self.read(cacher, &key, entry));
                }
            }
            if !page.more {
                break page.revision;
            }
        };
        for (prefix, cacher) in &self.cachers {
            cacher.replace(objects.remove(prefix).unwrap_or_default(), revision);
        }
        self.reached.send_replace(revision);
        self.store.watch(ROOT.as_bytes(), revision)
    }

    /// Follows the store until the stage stops or the store closes; then all watches end.
    pub async fn run(self, events: WatchStream, stage: Stage) {
        self.follow(events, &stage).await;
        self.cachers.values().for_each(|cacher| cacher.end());
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
                    self.cachers.values().for_each(|cacher| cacher.tidy());
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
                if let Some((_, cacher, key)) = self.route(&key) {
                    let new = entry.map(|entry| self.read(cacher, &key, &entry));
                    cacher.apply(&key, revision, new);
                }
                revision
            }
            Signal::Progress(revision) => revision,
        };
        // After the change is in its cache and in the watchers' queues.
        self.reached.send_replace(revision);
    }

    fn read(&self, cacher: &Cacher, key: &Arc<str>, entry: &Entry) -> Arc<CachedObject> {
        let old = cacher.get(key);
        // The key the map already has is shared.
        let key = old.as_ref().map_or_else(|| key.clone(), |old| old.key.clone());
        Arc::new(CachedObject::read(cacher.kind, key, entry, old.as_deref()))
    }

    /// The cache a storage key belongs to, and the object's key in it.
    fn route(&self, key: &[u8]) -> Option<(&'static str, &Arc<Cacher>, Arc<str>)> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(ROOT)?;
        // Prefixes have one, two or three parts: `pods`, `services/specs`, a custom resource's group.
        let ends = rest.match_indices('/').map(|(at, _)| at).take(3);
        for end in ends {
            if let Some((prefix, cacher)) = self.cachers.get_key_value(&rest[..end]) {
                return Some((prefix, cacher, rest[end + 1..].into()));
            }
        }
        None
    }
}
