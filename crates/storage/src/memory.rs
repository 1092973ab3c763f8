//! A store that forgets with its process: for tests, simulations, and kinds that live in memory only.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;
use stdx::SharedClock;
use tokio::sync::watch::Sender;

use crate::mvcc::{Change, Mvcc, Versioned, holds, slice};
use crate::watch::{self, BATCH, Batch, Source};
use crate::{Committed, Entry, Error, Event, HistoryBounds, Op, Page, RangeOptions, Revision, Store, WatchStream};

/// The whole contract but durability.
pub struct Memory {
    shared: Arc<Shared>,
    clock: SharedClock,
}

struct Shared {
    state: RwLock<State>,
    wake: Sender<Revision>,
}

struct State {
    mvcc: Mvcc<Bytes>,
    closed: bool,
}

impl Memory {
    /// An empty store at revision 0, with the usual bounds of history.
    pub fn new(clock: SharedClock) -> Self {
        Self::with_history(clock, HistoryBounds::default())
    }

    /// An empty store at revision 0.
    pub fn with_history(clock: SharedClock, bounds: HistoryBounds) -> Self {
        let mvcc = Mvcc::new(imbl::OrdMap::new(), 0, bounds);
        let state = RwLock::new(State { mvcc, closed: false });
        Self { shared: Arc::new(Shared { state, wake: Sender::new(0) }), clock }
    }
}

fn entry(key: Bytes, versioned: Versioned<Bytes>) -> Entry {
    Entry {
        key,
        value: versioned.value,
        create_revision: versioned.create,
        mod_revision: versioned.modified,
        version: versioned.version,
    }
}

fn event(change: Change<Bytes>) -> Event {
    Event {
        revision: change.revision,
        entry: change.after.map(|v| entry(change.key.clone(), v)),
        previous: change.before.map(|v| entry(change.key.clone(), v)),
        key: change.key,
    }
}

fn closed() -> Error {
    Error::Closed("it was told to close".into())
}

impl Source for Shared {
    fn read(&self, prefix: &[u8], after: Revision) -> Result<Batch, Error> {
        let (changes, reached) = self.state.read().mvcc.changes_after(prefix, after, BATCH)?;
        Ok(Batch { events: changes.into_iter().map(event).collect(), reached })
    }

    fn closed(&self) -> Option<Error> {
        self.state.read().closed.then(closed)
    }
}

#[async_trait]
impl Store for Memory {
    async fn get(&self, key: &[u8]) -> Result<Option<Entry>, Error> {
        let state = self.shared.state.read();
        Ok(state.mvcc.current().get_key_value(key).map(|(k, v)| entry(k.clone(), v.clone())))
    }

    async fn range(&self, prefix: &[u8], options: RangeOptions) -> Result<Page, Error> {
        let (entries, revision) = self.shared.state.read().mvcc.range_source(prefix, &options)?;
        let (found, more) = slice(&entries, prefix, &options);
        Ok(Page { entries: found.into_iter().map(|(k, v)| entry(k, v)).collect(), revision, more })
    }

    async fn commit(&self, op: Op) -> Result<Committed, Error> {
        op.check_size()?;
        let mut state = self.shared.state.write();
        if state.closed {
            return Err(closed());
        }
        let found = state.mvcc.current().get(op.key());
        if !holds(op.expect(), found.map(|v| v.modified)) {
            let current = found.map(|v| entry(op.key().clone(), v.clone()));
            return Err(Error::Conflict { current });
        }
        let revision = state.mvcc.revision() + 1;
        let committed = Committed {
            revision,
            create_revision: found.map_or(revision, |v| v.create),
            version: found.map_or(0, |v| v.version),
        };
        let (key, after, committed) = match op {
            Op::Put { key, value, .. } => {
                let committed = Committed { version: committed.version + 1, ..committed };
                let (create, version) = (committed.create_revision, committed.version);
                (key, Some(Versioned { value, create, modified: revision, version }), committed)
            }
            Op::Delete { .. } if found.is_none() => return Err(Error::Conflict { current: None }),
            Op::Delete { key, .. } => (key, None, committed),
        };
        let cost = after.as_ref().map_or(0, |v| v.value.len());
        state.mvcc.apply(key, after, revision, self.clock.now(), cost);
        drop(state);
        // Writers may get here in another order than they committed; the latest is what counts.
        self.shared.wake.send_modify(|r| *r = revision.max(*r));
        Ok(committed)
    }

    fn watch(&self, prefix: &[u8], after: Revision) -> Result<WatchStream, Error> {
        self.shared.state.read().mvcc.changes_after(prefix, after, 0)?;
        Ok(watch::stream(self.shared.clone(), self.shared.wake.subscribe(), prefix, after))
    }

    fn revision(&self) -> Revision {
        self.shared.state.read().mvcc.revision()
    }

    async fn compact(&self, before: Revision) -> Result<(), Error> {
        self.shared.state.write().mvcc.compact(before)
    }

    fn compacted(&self) -> Revision {
        self.shared.state.read().mvcc.floor()
    }

    fn size(&self) -> u64 {
        0
    }

    async fn close(&self) {
        self.shared.state.write().closed = true;
        self.shared.wake.send_modify(|_| ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract;

    struct Fixture;

    impl contract::Fixture for Fixture {
        fn open(&self, clock: SharedClock, bounds: HistoryBounds) -> Arc<dyn Store> {
            Arc::new(Memory::with_history(clock, bounds))
        }
    }

    contract::suite!(Fixture);
}
