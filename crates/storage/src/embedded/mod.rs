//! The durable store in one folder: a log of revisions of our own, an index in memory.
//!
//! ```text
//!  commit ─► writer thread ─► one write, one sync ─► state (index, history) ─► watchers, answers
//!                 │ group commit                         │ key → revisions and place
//!                 └─► now and then: a new base, away from the writer; old logs are removed
//! ```
//!
//! Values stay on disk; what is in memory is, per key, the key, three numbers and a place. Why not an
//! engine off the shelf: docs/adr/0001-own-log.md.
//!
//! Invariants:
//! - An answer follows the sync of everything it says (`crash::power_loss_at_any_instant`).
//! - No revision is published before it is durable (`crash::power_loss_at_any_instant`).
//! - Only a torn tail is cut; other damage refuses the start (`tests::damage_anywhere_is_found`).

mod base;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod disk;
mod engine;
mod files;
mod place;
mod record;
mod recovery;
pub mod snapshot;
#[cfg(test)]
mod tests;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use stdx::{Rng, SharedClock};
use tokio::sync::{Semaphore, oneshot};

use engine::{Engine, Shared, Sizes};
use files::{Files, Folder};
use place::Place;
use writer::{Message, Waiting, Writer};

use crate::mvcc::{Versioned, slice};
use crate::watch::{self, Source};
use crate::{Committed, Entry, Error, HistoryBounds, Op, Page, RangeOptions, Revision, Store, WatchStream};

pub use writer::OnFatal;

/// Commits that may wait at a time; more wait outside for their turn.
const IN_FLIGHT: usize = 1024;

/// Ranges of more entries than this are read away from the caller's thread.
const READ_INLINE: usize = 32;

/// How the store is opened.
#[derive(Clone)]
pub struct Options {
    /// The folder; it is created if need be and belongs to the store alone.
    pub path: PathBuf,
    pub history: HistoryBounds,
    pub clock: SharedClock,
    pub rng: Rng,
    /// What ends the process when the disk fails or the writer panics.
    pub on_fatal: OnFatal,
}

impl Options {
    /// The usual bounds; a failing disk aborts the process.
    pub fn new(path: impl Into<PathBuf>, clock: SharedClock, rng: Rng) -> Self {
        let on_fatal: OnFatal = Arc::new(|why| {
            tracing::error!(why, "the store cannot promise durability any more; ending the process");
            std::process::abort();
        });
        Self { path: path.into(), history: HistoryBounds::default(), clock, rng, on_fatal }
    }
}

/// The durable store.
pub struct Embedded {
    shared: Arc<Shared>,
    inbox: mpsc::Sender<Message>,
    room: Arc<Semaphore>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    rng: Rng,
}

impl Embedded {
    /// Opens the folder, creating the store if there is none. Blocks: it reads the whole log.
    pub fn open(options: Options) -> Result<Self, Error> {
        let files: Arc<dyn Files> = Arc::new(Folder::lock(&options.path)?);
        Self::start(files, options, Sizes::default())
    }

    fn start(files: Arc<dyn Files>, options: Options, sizes: Sizes) -> Result<Self, Error> {
        let Options { history, clock, rng, on_fatal, .. } = options;
        let engine = Engine::open(files, history, sizes, salt(&rng), clock.now())?;
        let (shared, (outbox, inbox)) = (engine.shared(), mpsc::channel());
        let writer = Writer {
            engine,
            inbox,
            outbox: outbox.clone(),
            clock,
            rng: rng.clone(),
            on_fatal,
            batch: Waiting::default(),
            compacting: None,
        };
        let thread = std::thread::Builder::new().name("store-writer".into()).spawn(|| writer.run())?;
        let (room, thread) = (Arc::new(Semaphore::new(IN_FLIGHT)), Mutex::new(Some(thread)));
        Ok(Self { shared, inbox: outbox, room, thread, rng })
    }

    fn refused(&self) -> Error {
        self.shared.closed().unwrap_or_else(|| Error::Closed("its writer has ended".into()))
    }
}

/// Fails when the folder holds a store that [`Embedded::open`] would refuse for its format. Changes
/// nothing, takes no lock; a folder that is not there or holds no store is fine.
pub fn check(path: &Path) -> Result<(), Error> {
    if !path.is_dir() {
        return Ok(());
    }
    recovery::check_format(&Folder::watched(path)?)
}

fn salt(rng: &Rng) -> u64 {
    let mut bytes = [0; 8];
    rng.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

fn read_all(found: Vec<(Bytes, Versioned<Place>)>) -> Result<Vec<Entry>, Error> {
    found.into_iter().map(|(key, versioned)| Place::entry(key, &versioned)).collect()
}

#[async_trait]
impl Store for Embedded {
    async fn get(&self, key: &[u8]) -> Result<Option<Entry>, Error> {
        let found = self.shared.state.read().current().get_key_value(key).map(|(k, v)| (k.clone(), v.clone()));
        found.map(|(key, versioned)| Place::entry(key, &versioned)).transpose()
    }

    async fn range(&self, prefix: &[u8], options: RangeOptions) -> Result<Page, Error> {
        let (entries, revision) = self.shared.state.read().range_source(prefix, &options)?;
        let (found, more) = slice(&entries, prefix, &options);
        let entries = if found.len() <= READ_INLINE {
            read_all(found)?
        } else {
            let read = tokio::task::spawn_blocking(|| read_all(found));
            read.await.map_err(|e| Error::Closed(format!("a read was ended: {e}")))??
        };
        Ok(Page { entries, revision, more })
    }

    async fn commit(&self, op: Op) -> Result<Committed, Error> {
        op.check_size()?;
        let permit = self.room.clone().acquire_owned().await.map_err(|_| self.refused())?;
        let (answer, answered) = oneshot::channel();
        let key = op.key().clone();
        self.inbox.send(Message::Commit { op, answer, permit }).map_err(|_| self.refused())?;
        // The writer drops what it can no longer commit.
        let result = answered.await.map_err(|_| self.refused())??;
        match result {
            Ok(committed) => Ok(committed),
            Err(found) => Err(Error::Conflict { current: found.map(|v| Place::entry(key, &v)).transpose()? }),
        }
    }

    fn watch(&self, prefix: &[u8], after: Revision) -> Result<WatchStream, Error> {
        self.shared.state.read().changes_after(prefix, after, 0)?;
        Ok(watch::stream(self.shared.clone(), self.shared.wake.subscribe(), prefix, after))
    }

    fn revision(&self) -> Revision {
        self.shared.state.read().revision()
    }

    async fn compact(&self, before: Revision) -> Result<(), Error> {
        self.shared.state.write().compact(before)
    }

    fn compacted(&self) -> Revision {
        self.shared.state.read().floor()
    }

    fn size(&self) -> u64 {
        self.shared.size.load(Ordering::Relaxed)
    }

    async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.inbox.send(Message::Close(Some(done))).is_ok() {
            // An error is the writer's end by another way, which is what was asked for.
            drop(closed.await);
        }
    }
}

impl Drop for Embedded {
    /// Ends like [`Store::close`], so that the folder can be opened again afterwards.
    fn drop(&mut self) {
        drop(self.inbox.send(Message::Close(None)));
        if let Some(thread) = self.thread.lock().take() {
            drop(thread.join());
        }
    }
}
