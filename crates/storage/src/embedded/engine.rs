//! The log as a machine without threads: one call commits a batch. The writer thread drives it, and
//! so do the crash tests, step by step.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use stdx::clock::Instant;
use tokio::sync::watch::Sender;

use super::base::{self, Base, Moved};
use super::files::Files;
use super::place::Place;
use super::record::{ALIGN, BATCH_HEADER, BatchHeader, Record};
use super::recovery::{self, Log, Recovered};
use crate::mvcc::{Entries, Mvcc, Versioned, holds};
use crate::watch::{BATCH, Batch, Source};
use crate::{Committed, Error, Event, HistoryBounds, Op, Revision};

/// Bounds of the files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// A log is followed by a new one when it is larger.
    pub log: u64,
    /// Old logs are replaced by a new base when they have at least so many bytes, and at least as
    /// many as the base before: so compaction writes no byte more than once on average.
    pub garbage: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { log: 8 << 20, garbage: 16 << 20 }
    }
}

/// What readers share with the writer. Only the writer changes `state`.
pub(crate) struct Shared {
    pub state: RwLock<Mvcc<Place>>,
    pub wake: Sender<Revision>,
    /// Why nothing more will be committed.
    pub closed: Mutex<Option<String>>,
    pub size: AtomicU64,
}

impl Shared {
    pub fn shut(&self, why: &str) {
        self.closed.lock().get_or_insert_with(|| why.to_owned());
        self.wake.send_modify(|_| ());
    }
}

impl Source for Shared {
    fn read(&self, prefix: &[u8], after: Revision) -> Result<Batch, Error> {
        let (changes, reached) = self.state.read().changes_after(prefix, after, BATCH)?;
        let entry = |key: &Bytes, versioned: Option<Versioned<Place>>| {
            versioned.map(|v| Place::entry(key.clone(), &v)).transpose()
        };
        let mut events = Vec::with_capacity(changes.len());
        for change in changes {
            events.push(Event {
                revision: change.revision,
                entry: entry(&change.key, change.after)?,
                previous: entry(&change.key, change.before)?,
                key: change.key,
            });
        }
        Ok(Batch { events, reached })
    }

    fn closed(&self) -> Option<Error> {
        self.closed.lock().clone().map(Error::Closed)
    }
}

/// A refused operation: the entry that was found, still to be read.
pub(crate) type Refused = Option<Versioned<Place>>;

/// What became of a batch. None of it is acknowledged unless it is `Done`.
pub(crate) enum Outcome {
    /// One result per operation; what succeeded is durable.
    Done(Vec<Result<Committed, Refused>>),
    /// The batch could not be written (a full disk); the log is as before.
    Refused(io::Error),
    /// It is not known what is on disk. The process must end.
    Fatal(io::Error),
}

/// A new base to be written, away from the writer.
pub(crate) struct Job {
    files: Arc<dyn Files>,
    entries: Entries<Place>,
    revision: Revision,
    salt: u64,
}

/// A base that was written, and where its entries are now.
pub(crate) struct Written {
    base: Base,
    moved: Vec<Moved>,
}

impl Job {
    /// Writes the base, unless told to give up; durable when it returns.
    pub fn run(self, cancel: &AtomicBool) -> Result<Written, Error> {
        let mut moved = Vec::with_capacity(self.entries.len());
        let name = base::name(self.revision);
        let header = (self.revision, self.salt);
        let seen = |entry| {
            moved.push(entry);
            !cancel.load(Ordering::Relaxed)
        };
        let base = base::write(&*self.files, &name, &self.entries, header, seen)?;
        Ok(Written { base, moved })
    }
}

/// The open log.
pub(crate) struct Engine {
    files: Arc<dyn Files>,
    shared: Arc<Shared>,
    base: Option<Base>,
    logs: Vec<Log>,
    sizes: Sizes,
    buffer: Vec<u8>,
    /// Reclaimable bytes below which no new base is tried: grows when one failed.
    patience: u64,
}

/// An operation that will be part of the batch.
struct Planned {
    key: Bytes,
    after: Option<Versioned<Place>>,
    revision: Revision,
    /// Bytes of the value.
    cost: usize,
}

/// One result per operation: a refusal still names the key to look up.
type Results = Vec<Result<Committed, Bytes>>;

impl Engine {
    /// Opens the folder, or makes it a store.
    pub fn open(
        files: Arc<dyn Files>,
        bounds: HistoryBounds,
        sizes: Sizes,
        salt: u64,
        now: Instant,
    ) -> Result<Self, Error> {
        let Recovered { state, base, logs } = recovery::recover(&*files, bounds, salt, now)?;
        let shared = Shared {
            wake: Sender::new(state.revision()),
            state: RwLock::new(state),
            closed: Mutex::new(None),
            size: AtomicU64::new(0),
        };
        let engine = Self { files, shared: Arc::new(shared), base, logs, sizes, buffer: Vec::new(), patience: 0 };
        engine.measure();
        Ok(engine)
    }

    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    fn measure(&self) {
        let base = self.base.as_ref().map_or(0, |b| b.bytes);
        let total = base + self.logs.iter().map(|l| l.end).sum::<u64>();
        self.shared.size.store(total, Ordering::Relaxed);
    }

    /// Commits the operations in order, with one sync, and publishes them. `salt` names a new file
    /// should one be needed.
    pub fn commit(&mut self, ops: Vec<Op>, now: Instant, salt: u64) -> Outcome {
        if let Err(error) = self.rotate(salt) {
            // Nothing of this batch has been written; the old log goes on.
            return Outcome::Refused(error);
        }
        let (planned, results) = self.plan(ops);
        if !planned.is_empty() {
            let at = match self.write() {
                Ok(at) => at,
                Err(outcome) => return outcome,
            };
            self.publish(planned, at, now);
        }
        // A refusal shows the entry as it is after the batch, which is what a reader would see.
        let state = self.shared.state.read();
        let found = |key: Bytes| state.current().get(&key[..]).cloned();
        Outcome::Done(results.into_iter().map(|r| r.map_err(found)).collect())
    }

    /// Decides each operation against the state and those before it, and encodes what holds.
    fn plan(&mut self, ops: Vec<Op>) -> (Vec<Planned>, Results) {
        let file = self.active().data.clone();
        let state = self.shared.state.read();
        let first = state.revision() + 1;
        let mut pending: HashMap<Bytes, Option<(Revision, Revision, u64)>> = HashMap::new();
        let mut planned: Vec<Planned> = Vec::new();
        let mut results = Vec::with_capacity(ops.len());
        self.buffer.clear();
        self.buffer.resize(BATCH_HEADER, 0);
        for op in ops {
            let found = match pending.get(op.key()) {
                Some(pending) => *pending,
                None => state.current().get(op.key()).map(|v| (v.create, v.modified, v.version)),
            };
            let revision = first + planned.len() as u64;
            let deletes_nothing = matches!(op, Op::Delete { .. }) && found.is_none();
            if deletes_nothing || !holds(op.expect(), found.map(|(_, modified, _)| modified)) {
                results.push(Err(op.key().clone()));
                continue;
            }
            let create = found.map_or(revision, |(create, ..)| create);
            let version = found.map_or(0, |(.., version)| version);
            let key = state.current().get_key_value(op.key()).map(|(key, _)| key.clone());
            // A key of its own: the caller's may hold on to a large buffer.
            let key = key.unwrap_or_else(|| Bytes::copy_from_slice(op.key()));
            let (value, version) = match &op {
                Op::Put { value, .. } => (Some(&value[..]), version + 1),
                Op::Delete { .. } => (None, version),
            };
            let record = Record { revision, create, version, key: &key, value };
            let offset = self.buffer.len() as u64;
            record.encode(&mut self.buffer);
            let length = record.encoded_len();
            let after = value.is_some().then(|| Versioned {
                value: Place { file: file.clone(), offset, length: length as u32 },
                create,
                modified: revision,
                version,
            });
            pending.insert(key.clone(), after.as_ref().map(|v| (v.create, v.modified, v.version)));
            results.push(Ok(Committed { revision, create_revision: create, version }));
            planned.push(Planned { key, after, revision, cost: value.map_or(0, <[u8]>::len) });
        }
        let length = (self.buffer.len() - BATCH_HEADER) as u32;
        let header = BatchHeader { length, count: planned.len() as u32, first };
        let header = header.encode(self.active().salt);
        self.buffer[..BATCH_HEADER].copy_from_slice(&header);
        let padded = self.buffer.len().next_multiple_of(ALIGN);
        self.buffer.resize(padded, 0);
        (planned, results)
    }

    fn active(&self) -> &Log {
        // `recover` returns at least one log and none is removed while it is the last.
        &self.logs[self.logs.len() - 1]
    }

    /// Appends the buffer and makes it durable. Tells where it begins.
    fn write(&mut self) -> Result<u64, Outcome> {
        let (file, at) = (self.active().data.file.clone(), self.active().end);
        if let Err(error) = file.write_all_at(&self.buffer, at) {
            return Err(match file.set_size(at) {
                Ok(()) => Outcome::Refused(error),
                Err(_) => Outcome::Fatal(error),
            });
        }
        // After a failed sync the kernel may call the pages clean: nothing can be known any more.
        file.sync().map_err(Outcome::Fatal)?;
        let length = self.buffer.len() as u64;
        if let Some(log) = self.logs.last_mut() {
            log.end += length;
        }
        self.shared.size.fetch_add(length, Ordering::Relaxed);
        // One large batch must not keep its memory for ever.
        self.buffer.shrink_to(64 << 10);
        Ok(at)
    }

    fn publish(&mut self, planned: Vec<Planned>, at: u64, now: Instant) {
        let mut state = self.shared.state.write();
        let mut last = state.revision();
        for Planned { key, after, revision, cost } in planned {
            let after = after.map(|mut versioned| {
                versioned.value.offset += at;
                versioned
            });
            last = revision;
            state.apply(key, after, revision, now, cost);
        }
        drop(state);
        self.shared.wake.send_replace(last);
    }

    /// Begins a new log when the last one is full.
    fn rotate(&mut self, salt: u64) -> io::Result<()> {
        if self.active().end < self.sizes.log {
            return Ok(());
        }
        let first = self.shared.state.read().revision() + 1;
        match recovery::create_log(&*self.files, first, salt) {
            Ok(log) => self.logs.push(log),
            Err(Error::Io(error)) => return Err(error),
            Err(error) => return Err(io::Error::other(error)),
        }
        self.measure();
        Ok(())
    }

    /// Old logs that history no longer needs, worth replacing by a new base?
    pub fn job(&self, salt: u64) -> Option<Job> {
        let state = self.shared.state.read();
        let floor = state.floor();
        let old = self.base.as_ref().map_or(0, |b| b.bytes);
        let garbage: u64 = self.logs.windows(2).filter(|w| w[1].first <= floor + 1).map(|w| w[0].end).sum();
        if garbage < self.sizes.garbage.max(old).max(self.patience) {
            return None;
        }
        let entries = state.state_at(floor, b"").ok()?;
        Some(Job { files: self.files.clone(), entries, revision: floor, salt })
    }

    /// Takes a written base into use and removes what it replaces.
    pub fn adopt(&mut self, written: Result<Written, Error>) -> io::Result<()> {
        let Written { base, moved } = match written {
            Ok(written) => written,
            Err(error) => {
                // The logs stay; try again when there is twice as much to gain.
                tracing::error!(%error, "the store was not compacted");
                self.patience = 2 * self.logs.iter().map(|l| l.end).sum::<u64>();
                return Ok(());
            }
        };
        self.patience = 0;
        let mut moved = moved.into_iter().peekable();
        while moved.peek().is_some() {
            // In pieces, so that no commit waits long for the lock.
            let mut state = self.shared.state.write();
            for entry in moved.by_ref().take(512) {
                state.relocate(&entry.key, entry.modified, entry.place);
            }
        }
        let keep = self.logs.iter().rposition(|l| l.first <= base.revision + 1).unwrap_or(0);
        for log in self.logs.drain(..keep) {
            self.files.remove(&log.data.name)?;
        }
        if let Some(old) = self.base.replace(base) {
            self.files.remove(&old.data.name)?;
        }
        self.measure();
        Ok(())
    }

    /// Marks the end of the log, so that the next start finds nothing that may be torn.
    pub fn close(&mut self) -> io::Result<()> {
        let first = self.shared.state.read().revision() + 1;
        let header = BatchHeader { length: 0, count: 0, first }.encode(self.active().salt);
        self.active().data.file.write_all_at(&header, self.active().end)?;
        self.active().data.file.sync()
    }
}
