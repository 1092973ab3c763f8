//! A revisioned key-value store with compare-and-swap and watch.
//!
//! ```text
//!            commit(op)                    watch(prefix, after)
//!  writers ────────────► one sequence of ─────────────────────► events, each revision once, in order
//!                         revisions 1, 2, 3, …
//!            get, range ◄── current state, or the state at a revision still in history
//! ```
//!
//! The store sees keys and bytes. Nothing here knows a Kubernetes kind.
//!
//! # Invariants
//!
//! * No power loss loses what was acknowledged, or prevents a start. [src/embedded/crash.rs:
//!   power_loss_at_any_instant]
//! * Damage is found and named. [src/embedded/tests.rs: damage_anywhere_is_found]
//! * A store in use is saved whole, with all that was acknowledged. [src/embedded/tests.rs:
//!   a_store_in_use_is_saved_whole]
//! * Both stores keep one contract. [src/contract.rs: run]

#[cfg(test)]
pub mod contract;
mod embedded;
mod history;
mod memory;
mod mvcc;
mod watch;

pub use embedded::{Embedded, OnFatal, Options, check, snapshot};
pub use history::HistoryBounds;
pub use memory::Memory;

use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;

/// A point in the store's one sequence of commits. 0 is "before the first".
pub type Revision = u64;

/// A key with its current (or, in history, its then) value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Bytes,
    pub value: Bytes,
    /// The commit that created the key (again, after a delete).
    pub create_revision: Revision,
    /// The commit that last wrote the key.
    pub mod_revision: Revision,
    /// How often the key was written since it was created; 1 at creation.
    pub version: u64,
}

/// What must hold of a key for a commit to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key does not exist.
    Absent,
    /// The key exists and was last written by this commit.
    At(Revision),
}

/// The longest key.
pub const MAX_KEY: usize = 4 << 10;

/// The largest value: the largest request body with room for what the server adds.
pub const MAX_VALUE: usize = 4 << 20;

/// How soon a commit must be acknowledged. It is equally durable either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Urgency {
    /// With the very next fsync.
    #[default]
    Now,
    /// May wait (at most 50 ms) for an fsync that others need anyway: Leases and Events.
    Relaxed,
}

/// One commit: one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Put { key: Bytes, value: Bytes, expect: Expect, urgency: Urgency },
    Delete { key: Bytes, expect: Expect },
}

impl Op {
    /// The key it changes.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// What must hold of the key.
    pub fn expect(&self) -> Expect {
        match self {
            Self::Put { expect, .. } | Self::Delete { expect, .. } => *expect,
        }
    }

    pub(crate) fn check_size(&self) -> Result<(), Error> {
        if self.key().len() > MAX_KEY {
            return Err(Error::TooLarge { bytes: self.key().len(), limit: MAX_KEY });
        }
        match self {
            Self::Put { value, .. } if value.len() > MAX_VALUE => {
                Err(Error::TooLarge { bytes: value.len(), limit: MAX_VALUE })
            }
            Self::Put { .. } | Self::Delete { .. } => Ok(()),
        }
    }
}

/// An acknowledged commit. It is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub revision: Revision,
    /// `create_revision` of the entry after a Put, before a Delete.
    pub create_revision: Revision,
    pub version: u64,
}

/// Which keys a range returns.
#[derive(Clone, Debug, Default)]
pub struct RangeOptions {
    /// The state at this revision; `None` for the current one.
    pub revision: Option<Revision>,
    /// At most so many entries; 0 for all.
    pub limit: usize,
    /// Keys from this one on (inclusive), instead of from the prefix's first.
    pub start: Option<Bytes>,
}

/// A part of a range, in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub entries: Vec<Entry>,
    /// The revision whose state this is.
    pub revision: Revision,
    /// True when keys remain after the last one.
    pub more: bool,
}

/// What happened to a key at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The revision of the commit; events of a stream have growing revisions.
    pub revision: Revision,
    pub key: Bytes,
    /// The entry after a Put; `None` for a Delete.
    pub entry: Option<Entry>,
    /// The entry before; `None` at creation.
    pub previous: Option<Entry>,
}

/// One item of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "nearly every item is an event")]
pub enum Signal {
    Event(Event),
    /// Every event up to and including this revision has been delivered.
    Progress(Revision),
}

/// Ordered and complete: after an item at revision N the stream has delivered every event of its
/// prefix up to N. It ends with an error when it can no longer keep that promise.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<Signal, Error>> + Send>>;

/// Why the store refused or failed. Each variant says whether the caller may try again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The expectation did not hold; read again and decide anew.
    #[error("the key is not as expected (found revision {})", .current.as_ref().map_or(0, |e| e.mod_revision))]
    Conflict { current: Option<Entry> },
    /// History no longer reaches back to the revision asked for; list again.
    #[error("revision {asked} has been compacted (oldest is {oldest})")]
    Compacted { asked: Revision, oldest: Revision },
    /// The revision has not happened; wait or ask for an earlier one.
    #[error("revision {asked} is in the future (current is {current})")]
    Future { asked: Revision, current: Revision },
    /// The watcher fell behind its bounded queue; watch again from the last revision seen.
    #[error("the watcher was too slow and has been dropped at revision {at}")]
    Slow { at: Revision },
    /// Key or value exceed the store's bounds; final.
    #[error("key or value too large: {bytes} bytes, limit is {limit}")]
    TooLarge { bytes: usize, limit: usize },
    /// A record cannot be read; the text names it and the restore command. Final.
    #[error("{0}")]
    Corrupt(String),
    /// The folder was written by a newer version; final for this one.
    #[error("the store has format {found}, this version knows {known}: use a newer pintle")]
    Format { found: u32, known: u32 },
    /// The store is closing or has failed for good; the process should end.
    #[error("the store is closed: {0}")]
    Closed(String),
    /// The disk failed; nothing was acknowledged.
    #[error("storage I/O failed: {0}")]
    Io(#[from] std::io::Error),
}

/// The contract, kept by one suite that every implementation passes:
///
/// 1. Commits have one order; each takes the next revision. Revisions are never reused and never go
///    backwards, also after a crash.
/// 2. A commit is acknowledged only when it is durable; one that was not acknowledged either
///    happened wholly or not at all.
/// 3. `get` and `range` without a revision see every commit acknowledged before the call.
/// 4. A watch after revision N delivers every event of its prefix after N, once, in order, or ends
///    with [`Error::Compacted`] or [`Error::Slow`].
/// 5. A cancelled call leaves the store consistent: the commit may or may not have happened.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The current entry of `key`.
    async fn get(&self, key: &[u8]) -> Result<Option<Entry>, Error>;

    /// The entries whose key starts with `prefix`, in key order.
    async fn range(&self, prefix: &[u8], options: RangeOptions) -> Result<Page, Error>;

    /// Commits one change if its expectation holds.
    async fn commit(&self, op: Op) -> Result<Committed, Error>;

    /// Events of keys that start with `prefix`, after revision `after`, which must have happened.
    fn watch(&self, prefix: &[u8], after: Revision) -> Result<WatchStream, Error>;

    /// The last acknowledged revision.
    fn revision(&self) -> Revision;

    /// Forgets history before `before`: afterwards `before` is the oldest revision whose state can be
    /// read and the oldest a watch may start after. Current entries stay.
    async fn compact(&self, before: Revision) -> Result<(), Error>;

    /// The oldest revision a watch may start after.
    fn compacted(&self) -> Revision;

    /// Bytes on disk (0 in memory).
    fn size(&self) -> u64;

    /// Acknowledges what is pending, then refuses everything.
    async fn close(&self);
}
