//! The cache of one kind: its objects now, and the changes that led here.
//!
//! ```text
//!   floor ──► ring: changes, oldest first ──► now: objects, indexes
//!     │                                         │
//!     └ a watch may start after any revision     └ snapshots are clones of the map; one at an earlier
//!       since the floor                            revision is the map with later changes undone
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kinds::SharedKind;
use machinery::status::{self, Status};
use parking_lot::RwLock;
use serde_json::Value;
use stdx::SharedClock;
use stdx::clock::{ClockExt, Instant};
use storage::Store;
use tokio::sync::{mpsc, watch};

use super::change::{Change, Delivery};
use super::object::CachedObject;
use super::snapshot::{Snapshot, Tables};
use super::trees::Trees;
use super::watcher::{Parts, WatchOptions, Watcher, Watchers};

/// The bounds of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Recent changes kept per kind: so many, of so many bytes, for so long.
    pub changes: usize,
    pub bytes: usize,
    pub age: Duration,
    /// Events a watcher may be behind before it is ended.
    pub queue: usize,
    /// Snapshots of paginated lists kept per kind, and for how long.
    pub pages: usize,
    pub pages_age: Duration,
    /// Time between a watch's bookmarks.
    pub bookmark: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            changes: 20_000,
            bytes: 12 << 20,
            age: Duration::from_secs(300),
            queue: 4096,
            pages: 16,
            pages_age: Duration::from_secs(300),
            bookmark: Duration::from_secs(60),
        }
    }
}

const LIST_TOO_OLD: &str = "The resourceVersion for the provided list is too old.";

/// The cache of one kind.
pub struct Cacher {
    pub kind: SharedKind,
    store: Arc<dyn Store>,
    clock: SharedClock,
    limits: Limits,
    state: RwLock<State>,
    trees: Trees,
    /// The revision up to which all caches of the store hold everything.
    reached: watch::Receiver<u64>,
}

struct State {
    tables: Tables,
    ring: VecDeque<(Instant, Change)>,
    ring_bytes: usize,
    /// Changes after this revision are all in the ring.
    floor: u64,
    watchers: Watchers,
    /// Changes that came before what is stored has been read: of a cache that is being added.
    early: Option<Vec<Early>>,
    /// It is taken away: no watch begins.
    ended: bool,
    /// Snapshots that paginated lists go on with.
    pages: VecDeque<(Instant, Snapshot)>,
}

/// The key of a change, its revision, and the object after it.
type Early = (Arc<str>, u64, Option<Arc<CachedObject>>);

impl Cacher {
    pub(super) fn new(
        kind: SharedKind,
        store: Arc<dyn Store>,
        clock: SharedClock,
        limits: Limits,
        reached: watch::Receiver<u64>,
    ) -> Self {
        let state = State {
            tables: Tables::new(&kind.shape()),
            ring: VecDeque::new(),
            ring_bytes: 0,
            floor: 0,
            watchers: Watchers::default(),
            early: None,
            ended: false,
            pages: VecDeque::new(),
        };
        Self { kind, store, clock, limits, state: RwLock::new(state), trees: Trees::default(), reached }
    }

    pub(super) fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// The revision this cache shows.
    pub fn revision(&self) -> u64 {
        *self.reached.borrow()
    }

    /// Returns once the cache shows `revision` or a later one; 504 when that takes longer than `limit`.
    pub async fn wait_for(&self, revision: u64, limit: Duration) -> status::Result<()> {
        let mut reached = self.reached.clone();
        let waited = self.clock.timeout(limit, async { reached.wait_for(|now| *now >= revision).await.is_ok() }).await;
        match waited {
            Ok(true) => Ok(()),
            Ok(false) => Err(Status::unavailable("the server is shutting down")),
            Err(_) => Err(Status::too_large_resource_version(revision, self.revision())),
        }
    }

    /// Returns once the cache shows every write acknowledged before the call.
    pub async fn wait_current(&self, limit: Duration) -> status::Result<()> {
        self.wait_for(self.store.revision(), limit).await
    }

    /// The object with this key (`namespace/name`, or `name` at cluster scope).
    pub fn get(&self, key: &str) -> Option<Arc<CachedObject>> {
        self.state.read().tables.objects.get(key).map(|slot| slot.object.clone())
    }

    /// The same as a tree, shared by those who read it; `None` also for one whose bytes are damaged, which
    /// was reported when it was read.
    pub(super) fn tree(&self, key: &str) -> Option<Arc<Value>> {
        self.trees.of(&*self.get(key)?).ok()
    }

    /// The objects now.
    pub fn snapshot(&self) -> Snapshot {
        // Read first: changes come before the revision that says they are there.
        let revision = self.revision();
        let state = self.state.read();
        state.snapshot(revision)
    }

    /// The objects at a revision that the cache has reached; 410 when it is forgotten.
    pub fn snapshot_at(&self, revision: u64) -> status::Result<Snapshot> {
        let state = self.state.read();
        if revision >= state.floor {
            let mut tables = state.tables.clone();
            for (_, change) in state.ring.iter().rev().take_while(|(_, change)| change.revision > revision) {
                if let Some(object) = change.old.as_ref().or(change.new.as_ref()) {
                    tables.set(&object.key, change.old.as_ref());
                }
            }
            return Ok(Snapshot { revision, tables });
        }
        let kept = state.pages.iter().find(|(_, kept)| kept.revision == revision);
        kept.map(|(_, kept)| kept.clone()).ok_or_else(|| Status::expired(LIST_TOO_OLD))
    }

    /// Keeps a snapshot for a while, so that a paginated list can go on at its revision.
    pub fn keep(&self, snapshot: &Snapshot) {
        let now = self.clock.now();
        let mut state = self.state.write();
        if state.pages.iter().any(|(_, kept)| kept.revision == snapshot.revision) {
            return;
        }
        state.pages.push_back((now, snapshot.clone()));
        self.trim(&mut state, now);
    }

    /// Starts a watch; 410 when it should begin at a revision that is forgotten.
    pub fn watch(&self, options: WatchOptions) -> status::Result<Watcher> {
        let (sender, queue) = mpsc::channel(self.limits.queue);
        let mut parts = Parts {
            snapshot: None,
            backlog: VecDeque::new(),
            queue,
            reached: self.reached.clone(),
            clock: self.clock.clone(),
            every: self.limits.bookmark,
        };
        let revision = self.revision();
        let mut state = self.state.write();
        match options.after {
            Some(after) => parts.backlog = state.backlog(after, &options)?,
            None => parts.snapshot = Some(state.snapshot(revision)),
        }
        if !state.ended {
            state.watchers.add(options.filter.clone(), sender);
        }
        drop(state);
        Ok(Watcher::new(options, parts))
    }

    /// How many watches run.
    pub fn watchers(&self) -> usize {
        self.state.read().watchers.len()
    }

    /// From now on changes are kept until [`fill`](Self::fill) brings what was there before them.
    pub(super) fn begin_filling(&self) {
        self.state.write().early = Some(Vec::new());
    }

    /// Takes in the state at `revision` and the changes since.
    pub(super) fn fill(&self, objects: Vec<Arc<CachedObject>>, revision: u64) {
        self.replace(objects, revision);
        // Changes wait for their turn here: none comes between those kept and the next.
        let mut state = self.state.write();
        for (key, revision, new) in state.early.take().unwrap_or_default() {
            self.apply_to(&mut state, &key, revision, new);
        }
    }

    /// Begins anew with these objects at `revision`; all watches end.
    pub(super) fn replace(&self, objects: Vec<Arc<CachedObject>>, revision: u64) {
        let mut tables = Tables::new(&self.kind.shape());
        for object in &objects {
            tables.set(&object.key, Some(object));
        }
        let mut state = self.state.write();
        state.tables = tables;
        state.ring.clear();
        state.ring_bytes = 0;
        state.floor = revision;
        state.watchers.clear();
    }

    /// Takes a change in and shows it to the watchers.
    pub(super) fn apply(&self, key: &Arc<str>, revision: u64, new: Option<Arc<CachedObject>>) {
        let mut state = self.state.write();
        match &mut state.early {
            Some(early) => early.push((key.clone(), revision, new)),
            None => self.apply_to(&mut state, key, revision, new),
        }
    }

    fn apply_to(&self, state: &mut State, key: &Arc<str>, revision: u64, new: Option<Arc<CachedObject>>) {
        // The state that it began with may have been read later.
        if revision <= state.floor {
            return;
        }
        let now = self.clock.now();
        let old = state.tables.set(key, new.as_ref());
        if old.is_none() && new.is_none() {
            return;
        }
        let change = Change::new(revision, old, new);
        state.watchers.deliver(&change);
        state.ring_bytes += change.cost();
        state.ring.push_back((now, change));
        self.trim(state, now);
    }

    /// Ends all watches; none begins after that.
    pub(super) fn end(&self) {
        let mut state = self.state.write();
        state.ended = true;
        state.watchers.clear();
    }

    /// Forgets what is too old, also where nothing changes.
    pub(super) fn tidy(&self) {
        let now = self.clock.now();
        let mut state = self.state.write();
        self.trim(&mut state, now);
        state.watchers.sweep();
    }

    fn trim(&self, state: &mut State, now: Instant) {
        while let Some((at, oldest)) = state.ring.front() {
            let fits = state.ring.len() <= self.limits.changes && state.ring_bytes <= self.limits.bytes;
            if fits && now.since(*at) <= self.limits.age {
                break;
            }
            state.ring_bytes -= oldest.cost();
            state.floor = oldest.revision;
            state.ring.pop_front();
        }
        while let Some((at, _)) = state.pages.front() {
            if state.pages.len() <= self.limits.pages && now.since(*at) <= self.limits.pages_age {
                break;
            }
            state.pages.pop_front();
        }
    }
}

impl State {
    /// The objects now; `reached` was read before the state was locked, and a change may already be
    /// there that it does not tell yet.
    fn snapshot(&self, reached: u64) -> Snapshot {
        let last = self.ring.back().map_or(self.floor, |(_, change)| change.revision);
        Snapshot { revision: reached.max(last), tables: self.tables.clone() }
    }

    /// What a watch after `after` has missed.
    fn backlog(&self, after: u64, options: &WatchOptions) -> status::Result<VecDeque<Delivery>> {
        if after < self.floor {
            return Err(Status::expired(format!("too old resource version: {after} ({})", self.floor)));
        }
        let from = self.ring.partition_point(|(_, change)| change.revision <= after);
        let passes = |object: &Option<Arc<CachedObject>>| object.as_ref().is_some_and(|o| options.filter.passes(o));
        let seen = |(_, change): &(_, Change)| change.seen(passes(&change.old), passes(&change.new), None);
        Ok(self.ring.range(from..).filter_map(seen).collect())
    }
}
