//! Keeps a cache equal to what the server has: list, watch, and what to do when either ends.
//!
//! ```text
//!   Fresh ──streaming list──► Following(revision) ──stream ends──► Following: watch after revision
//!     ▲  └─(refused) list + watch ▲                    │
//!     └──────────── 410 Expired, refresh asked ────────┘          errors wait, doubling, with jitter
//! ```

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use stdx::backoff::Policy;
use stdx::{ClockExt, Rng, SharedClock};

use super::{Builder, Cached, Change, Shared, View};
use crate::api::Api;
use crate::error::{Error, Result};
use crate::object::{self, Key};
use crate::params::{ListParams, WatchParams};
use crate::watch::{Event, Frames};

const WAIT: Policy = Policy { initial: Duration::from_millis(50), max: Duration::from_secs(30) };
const ACCEPT_METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Why a session ended.
enum End {
    /// The stream closed after it had delivered something: go on at once.
    Closed,
    /// It closed without a word.
    Silent,
    /// The cache must be listed anew.
    Relist,
}

/// An object that was read.
enum Found<V> {
    Fits(Arc<Cached<V>>),
    /// Its metadata alone: the rest does not fit the view.
    Odd(Box<object::Meta>),
}

impl<V> Found<V> {
    fn meta(&self) -> &object::Meta {
        match self {
            Self::Fits(cached) => &cached.meta,
            Self::Odd(meta) => meta,
        }
    }
}

pub(super) struct Reflector<V> {
    what: Builder<V>,
    api: Api<serde_json::Value>,
    shared: Arc<Shared<V>>,
    clock: SharedClock,
    rng: Rng,
    /// The server does not stream lists.
    plain_lists: bool,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    resource_version: String,
    #[serde(default)]
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

impl<V: View> Reflector<V> {
    pub(super) fn new(what: Builder<V>, shared: Arc<Shared<V>>, clock: SharedClock, rng: Rng) -> Self {
        let api = what.client.dynamic(what.resource.clone()).namespace(what.namespace.clone());
        Self { what, api, shared, clock, rng, plain_lists: false }
    }

    /// Follows until dropped.
    pub(super) async fn run(mut self) {
        let mut after: Option<u64> = None;
        let mut failures = 0u32;
        loop {
            let result = match after {
                None => self.fresh(&mut after).await,
                Some(_) => self.follow(&mut after).await,
            };
            match result {
                Ok(End::Closed) => failures = 0,
                Ok(End::Silent) => self.pause(&mut failures).await,
                Ok(End::Relist) => (after, failures) = (None, 0),
                Err(error) => {
                    let resource = &self.what.resource;
                    if error.is_expired() {
                        tracing::debug!(%resource, "revision expired; listing again");
                        after = None;
                        // A server that expires even fresh lists must not be hammered.
                        self.pause(&mut failures).await;
                        continue;
                    }
                    tracing::warn!(%resource, %error, "watch failed; trying again");
                    self.pause_for(&mut failures, error.retry_after()).await;
                }
            }
        }
    }

    async fn pause(&self, failures: &mut u32) {
        self.pause_for(failures, None).await;
    }

    async fn pause_for(&self, failures: &mut u32, at_least: Option<Duration>) {
        *failures = failures.saturating_add(1);
        let delay = WAIT.delay(*failures).mul_f64(1.0 + self.rng.unit());
        self.clock.sleep(delay.max(at_least.unwrap_or_default())).await;
    }

    fn accept(&self) -> &'static str {
        if self.what.metadata_only { ACCEPT_METADATA } else { crate::client::JSON }
    }

    fn watch_params(&self, after: Option<u64>, initial_events: bool) -> WatchParams {
        WatchParams {
            label_selector: self.what.label_selector.clone(),
            field_selector: self.what.field_selector.clone(),
            after,
            initial_events,
            bookmarks: true,
            // Spread over 5 to 10 minutes, so that watches do not all renew at once.
            timeout_seconds: Some(300 + u32::try_from(self.rng.below(300)).unwrap_or(0)),
        }
    }

    /// Fills the cache anew, then follows on the same stream where the server allows it.
    async fn fresh(&mut self, after: &mut Option<u64>) -> Result<End> {
        let number = self.shared.started.fetch_add(1, Ordering::SeqCst) + 1;
        if !self.plain_lists {
            match self.api.watch_accepting(&self.watch_params(None, true), self.accept()).await {
                Ok(mut frames) => {
                    let turn = self.what.client.turn().await;
                    let filled = self.initial(&mut frames).await?;
                    drop(turn);
                    let (objects, revision) = match filled {
                        Some(filled) => filled,
                        None => return Ok(End::Silent),
                    };
                    self.replace(objects, revision, number);
                    *after = Some(revision);
                    return self.stream(frames, after, true).await;
                }
                Err(error) if error.is_invalid() => {
                    tracing::debug!(resource = %self.what.resource, %error, "no streaming lists; listing in pages");
                    self.plain_lists = true;
                }
                Err(error) => return Err(error),
            }
        }
        let mut params = ListParams::all().limit(500);
        params.label_selector.clone_from(&self.what.label_selector);
        params.field_selector.clone_from(&self.what.field_selector);
        let (mut objects, mut at, mut size) = (Vec::new(), 0, 0);
        loop {
            let (items, (revision, more)) = self.api.list_accepting(&params, self.accept()).await?;
            if at == 0 {
                at = revision;
            }
            size += items.iter().map(Bytes::len).sum::<usize>();
            self.bound(size)?;
            objects.extend(items);
            if more.is_empty() {
                break;
            }
            params.continue_token = more;
        }
        self.replace(objects, at, number);
        *after = Some(at);
        Ok(End::Closed)
    }

    /// What need not be what it should be is not read without end.
    fn bound(&self, size: usize) -> Result<()> {
        let longest = self.what.client.bounds().list;
        if size > longest {
            return Err(Error::Interrupted(format!("the list is longer than {longest} bytes")));
        }
        Ok(())
    }

    async fn follow(&mut self, after: &mut Option<u64>) -> Result<End> {
        if self.is_refresh_wanted() {
            return Ok(End::Relist);
        }
        let frames = self.api.watch_accepting(&self.watch_params(*after, false), self.accept()).await?;
        self.stream(frames, after, false).await
    }

    fn is_refresh_wanted(&self) -> bool {
        *self.shared.wanted.borrow() > self.shared.started.load(Ordering::SeqCst)
    }

    /// Reads the existing objects up to the closing bookmark; `None` when the stream ended first.
    async fn initial(&self, frames: &mut Frames) -> Result<Option<(Vec<Bytes>, u64)>> {
        let (mut objects, mut size) = (Vec::new(), 0);
        while let Some(event) = frames.next().await {
            match event? {
                Event::Added(bytes) | Event::Modified(bytes) => {
                    size += bytes.len();
                    self.bound(size)?;
                    objects.push(bytes);
                }
                // Changes while the list streams come in order; the last state of a key wins.
                Event::Deleted(bytes) => {
                    let gone = object::meta(&bytes)?.key();
                    objects.retain(|o| object::meta(o).map_or(true, |m| m.key() != gone));
                }
                Event::Bookmark(bytes) => {
                    let (revision, is_end) = bookmark(&bytes)?;
                    if is_end {
                        return Ok(Some((objects, revision)));
                    }
                }
                Event::Error(status) => return Err(Error::Api(status)),
            }
        }
        Ok(None)
    }

    async fn stream(&self, mut frames: Frames, after: &mut Option<u64>, mut heard: bool) -> Result<End> {
        let mut wanted = self.shared.wanted.subscribe();
        loop {
            if self.is_refresh_wanted() {
                return Ok(End::Relist);
            }
            let event = tokio::select! {
                biased;
                event = frames.next() => event,
                _ = wanted.changed() => continue,
            };
            let Some(event) = event else {
                return Ok(if heard { End::Closed } else { End::Silent });
            };
            let revision = match event? {
                Event::Added(bytes) | Event::Modified(bytes) => self.applied(bytes)?,
                Event::Deleted(bytes) => self.deleted(&bytes)?,
                Event::Bookmark(bytes) => bookmark(&bytes)?.0,
                Event::Error(status) => return Err(Error::Api(status)),
            };
            heard = true;
            *after = Some(revision);
            self.shared.progress.send_modify(|p| p.revision = p.revision.max(revision));
        }
    }

    /// Reads an object; that it does not fit the view is said in the log.
    fn read(&self, bytes: Bytes) -> Result<Found<V>> {
        let meta = object::meta(&bytes)?;
        match serde_json::from_slice::<V>(&bytes) {
            Ok(view) => {
                let json = if self.what.keep_json { bytes } else { Bytes::new() };
                Ok(Found::Fits(Arc::new(Cached { meta, view, json })))
            }
            Err(error) => {
                tracing::error!(resource = %self.what.resource, key = %meta.key(), %error, "an object does not fit; kept as it was");
                Ok(Found::Odd(Box::new(meta)))
            }
        }
    }

    fn applied(&self, bytes: Bytes) -> Result<u64> {
        let found = self.read(bytes)?;
        let revision = found.meta().revision;
        if let Found::Fits(new) = found {
            let handlers = self.shared.handlers.lock();
            let old = self.shared.cache.write().insert(new.clone());
            for change in changes(old, new) {
                self.tell(&handlers, &change);
            }
        }
        Ok(revision)
    }

    fn deleted(&self, bytes: &Bytes) -> Result<u64> {
        let found = self.read(bytes.clone())?;
        let revision = found.meta().revision;
        let handlers = self.shared.handlers.lock();
        let known = self.shared.cache.write().remove(&found.meta().key());
        if let Some(known) = known {
            let last = if let Found::Fits(last) = found { last } else { known };
            self.tell(&handlers, &Change::Deleted(last));
        }
        Ok(revision)
    }

    /// Makes the cache equal to a list; tells what differs.
    fn replace(&self, objects: Vec<Bytes>, revision: u64, number: u64) {
        let handlers = self.shared.handlers.lock();
        let mut present: BTreeSet<Key> = BTreeSet::new();
        for bytes in objects {
            let found = match self.read(bytes) {
                Ok(found) => found,
                Err(error) => {
                    tracing::error!(resource = %self.what.resource, %error, "an object has no readable metadata");
                    continue;
                }
            };
            let key = found.meta().key();
            present.insert(key.clone());
            let Found::Fits(new) = found else { continue };
            let same = |o: Arc<Cached<V>>| o.meta.uid == new.meta.uid && o.meta.revision == new.meta.revision;
            if self.shared.cache.read().get(&key).is_some_and(same) {
                continue;
            }
            let old = self.shared.cache.write().insert(new.clone());
            for change in changes(old, new) {
                self.tell(&handlers, &change);
            }
        }
        let gone: Vec<Key> = self.shared.cache.read().keys().filter(|k| !present.contains(*k)).cloned().collect();
        for key in gone {
            let old = self.shared.cache.write().remove(&key);
            if let Some(old) = old {
                self.tell(&handlers, &Change::Deleted(old));
            }
        }
        drop(handlers);
        self.shared.progress.send_modify(|p| (p.revision, p.lists) = (revision, number));
    }

    fn tell(&self, handlers: &[super::Handler<V>], change: &Change<V>) {
        for handler in handlers {
            if catch_unwind(AssertUnwindSafe(|| handler(change))).is_err() {
                tracing::error!(resource = %self.what.resource, key = %change.object().meta.key(), "a subscriber panicked");
            }
        }
    }
}

/// An object replaced by another of the same name was deleted in between.
fn changes<V>(old: Option<Arc<Cached<V>>>, new: Arc<Cached<V>>) -> Vec<Change<V>> {
    match old {
        Some(old) if old.meta.uid != new.meta.uid => {
            vec![Change::Deleted(old), Change::Applied { old: None, new }]
        }
        old => vec![Change::Applied { old, new }],
    }
}

fn bookmark(bytes: &[u8]) -> Result<(u64, bool)> {
    let mark: Bookmark = serde_json::from_slice(bytes).map_err(Error::decode)?;
    let revision = mark.metadata.resource_version.parse().map_err(Error::decode)?;
    let is_end = mark.metadata.annotations.is_some_and(|a| a.get(INITIAL_EVENTS_END).is_some_and(|v| v == "true"));
    Ok((revision, is_end))
}
