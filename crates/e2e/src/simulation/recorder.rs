//! The store as the simulation sees it: every commit is recorded, judged, and may take its time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;
use stdx::clock::{Clock, ClockExt, Instant, ManualClock};
use storage::{Committed, Entry, Error, Op, Page, RangeOptions, Revision, Store, WatchStream};
use tokio_util::sync::CancellationToken;

use super::keys::{self, ObjectKey};
use super::safety::Safety;
use super::trace::Trace;

/// One commit.
#[derive(Clone, Debug)]
pub struct Commit {
    pub revision: Revision,
    pub key: ObjectKey,
    pub before: Option<Arc<Value>>,
    pub after: Option<Arc<Value>>,
    pub at: Instant,
}

impl Commit {
    /// The state after, or the last one.
    pub fn object(&self) -> &Value {
        self.after.as_deref().or(self.before.as_deref()).unwrap_or(&Value::Null)
    }
}

/// Everything that is stored now, by key.
pub type Objects = BTreeMap<ObjectKey, Arc<Value>>;

#[derive(Default)]
struct State {
    history: Vec<Commit>,
    objects: Objects,
    safety: Safety,
    /// When something other than a sign of life was written last.
    changed: Instant,
}

/// The history of the durable store, and what is in it.
pub struct Recorder {
    clock: ManualClock,
    trace: Arc<Trace>,
    state: Mutex<State>,
}

/// Writes that go on for as long as a cluster lives.
fn is_routine(key: &ObjectKey) -> bool {
    matches!(key.plural, "leases" | "events" | "nodes")
}

impl Recorder {
    /// An empty history.
    pub fn new(clock: ManualClock, trace: Arc<Trace>) -> Self {
        Self { clock, trace, state: Mutex::default() }
    }

    fn record(&self, revision: Revision, key: &[u8], before: Option<&[u8]>, after: Option<&[u8]>) {
        let key = String::from_utf8_lossy(key);
        let sort = match (before, after) {
            (None, _) => "+",
            (_, None) => "-",
            _ => "~",
        };
        let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes);
        let (before, after) = match (before.map(read).transpose(), after.map(read).transpose()) {
            (Ok(before), Ok(after)) => (before.map(Arc::new), after.map(Arc::new)),
            _ => return self.trace.broken(format_args!("{key} is not JSON")),
        };
        let text = after.as_ref().map(ToString::to_string).unwrap_or_default();
        self.trace.line(format_args!("{revision:>6} {sort} {key} {text}"));
        let Some(key) = keys::parse(&key) else { return };
        let commit = Commit { revision, key, before, after, at: self.clock.now() };
        let mut state = self.state.lock();
        let State { history, objects, safety, changed } = &mut *state;
        if !is_routine(&commit.key) {
            *changed = commit.at;
        }
        match &commit.after {
            Some(object) => drop(objects.insert(commit.key.clone(), object.clone())),
            None => drop(objects.remove(&commit.key)),
        }
        for rule in safety.judge(&commit, objects) {
            self.trace.broken(format_args!("revision {revision}: {rule}"));
        }
        history.push(commit);
    }

    /// What is stored now.
    pub fn objects(&self) -> Objects {
        self.state.lock().objects.clone()
    }

    /// When something other than a sign of life was written last.
    pub fn changed(&self) -> Instant {
        self.state.lock().changed
    }

    /// Lets the judge know what happens beside the store.
    pub fn tell(&self, news: impl FnOnce(&mut Safety, &Objects)) {
        let state = &mut *self.state.lock();
        news(&mut state.safety, &state.objects);
    }

    /// The first commit after a revision that `wanted` looks for.
    pub fn next<T>(&self, after: Revision, wanted: impl FnMut(&Commit) -> Option<T>) -> Option<T> {
        let state = self.state.lock();
        let from = state.history.partition_point(|c| c.revision <= after);
        state.history[from..].iter().find_map(wanted)
    }

    /// What was stored at a revision.
    pub fn state_at(&self, revision: Revision, plural: &str) -> Objects {
        let state = self.state.lock();
        let to = state.history.partition_point(|c| c.revision <= revision);
        let mut objects = Objects::new();
        for commit in state.history[..to].iter().filter(|c| c.key.plural == plural) {
            match &commit.after {
                Some(object) => drop(objects.insert(commit.key.clone(), object.clone())),
                None => drop(objects.remove(&commit.key)),
            }
        }
        objects
    }
}

/// How long commits take.
pub type Pace = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A store in memory whose commits take time, and are told to a recorder.
pub struct Recorded {
    pub inner: Arc<storage::Memory>,
    /// `None` for what is not recorded.
    pub recorder: Option<Arc<Recorder>>,
    pub clock: ManualClock,
    pub pace: Pace,
    /// Cancelled when the process that writes is killed: what it has begun comes to nothing.
    pub killed: CancellationToken,
}

impl Recorded {
    async fn pause(&self) -> Result<(), Error> {
        let time = (self.pace)();
        if !time.is_zero() {
            self.clock.sleep(time).await;
        }
        if self.killed.is_cancelled() { Err(Error::Closed("the server is dead".into())) } else { Ok(()) }
    }
}

#[async_trait]
impl Store for Recorded {
    async fn get(&self, key: &[u8]) -> Result<Option<Entry>, Error> {
        self.inner.get(key).await
    }

    async fn range(&self, prefix: &[u8], options: RangeOptions) -> Result<Page, Error> {
        self.inner.range(prefix, options).await
    }

    async fn commit(&self, op: Op) -> Result<Committed, Error> {
        // A caller that is cut off here has written nothing …
        self.pause().await?;
        let key = op.key().clone();
        let after = match &op {
            Op::Put { value, .. } => Some(value.clone()),
            Op::Delete { .. } => None,
        };
        // Nothing runs between these: neither waits.
        let before = self.inner.get(&key).await?;
        let committed = self.inner.commit(op).await?;
        if let Some(recorder) = &self.recorder {
            recorder.record(committed.revision, &key, before.as_ref().map(|e| &*e.value), after.as_deref());
        }
        // … and here it has, and does not know it.
        self.pause().await?;
        Ok(committed)
    }

    fn watch(&self, prefix: &[u8], after: Revision) -> Result<WatchStream, Error> {
        self.inner.watch(prefix, after)
    }

    fn revision(&self) -> Revision {
        self.inner.revision()
    }

    async fn compact(&self, before: Revision) -> Result<(), Error> {
        self.inner.compact(before).await
    }

    fn compacted(&self) -> Revision {
        self.inner.compacted()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
