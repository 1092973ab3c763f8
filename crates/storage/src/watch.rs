//! A watch as a cursor into history.
//!
//! A watcher holds a position, not a queue: when it is behind, it reads the next changes from the
//! store's history, and when history has moved past its position it ends with
//! [`Error::Compacted`]. So a slow watcher costs nothing and slows nobody.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use tokio::sync::watch::Receiver;

use crate::{Error, Event, Revision, Signal, WatchStream};

/// Changes read in one go: bounds what a watcher holds in memory.
pub(crate) const BATCH: usize = 128;

/// Events of a prefix, complete up to `reached`.
pub(crate) struct Batch {
    pub events: Vec<Event>,
    pub reached: Revision,
}

/// What a watch reads from.
pub(crate) trait Source: Send + Sync + 'static {
    /// At most [`BATCH`] events of `prefix` after `after`.
    fn read(&self, prefix: &[u8], after: Revision) -> Result<Batch, Error>;

    /// Why the store will commit nothing more, once that is so.
    fn closed(&self) -> Option<Error>;
}

struct Cursor<S> {
    source: Arc<S>,
    /// Changes whenever there may be something to read.
    wake: Receiver<Revision>,
    prefix: Bytes,
    after: Revision,
    ready: VecDeque<Signal>,
    ended: bool,
}

impl<S: Source> Cursor<S> {
    async fn next(&mut self) -> Option<Result<Signal, Error>> {
        loop {
            if let Some(signal) = self.ready.pop_front() {
                return Some(Ok(signal));
            }
            if self.ended {
                return None;
            }
            self.wake.mark_unchanged();
            // Looked at before reading, so that what was committed before the close is delivered.
            let closed = self.source.closed();
            match self.source.read(&self.prefix, self.after) {
                Ok(batch) if batch.reached > self.after => self.take(batch),
                Ok(_) => match closed {
                    Some(error) => return self.end(error),
                    None => {
                        if self.wake.changed().await.is_err() {
                            return self.end(Error::Closed("the store is gone".into()));
                        }
                    }
                },
                Err(error) => return self.end(error),
            }
        }
    }

    fn take(&mut self, batch: Batch) {
        let last = batch.events.last().map_or(0, |e| e.revision);
        self.ready.extend(batch.events.into_iter().map(Signal::Event));
        if batch.reached > last {
            self.ready.push_back(Signal::Progress(batch.reached));
        }
        self.after = batch.reached;
    }

    fn end(&mut self, error: Error) -> Option<Result<Signal, Error>> {
        self.ended = true;
        Some(Err(error))
    }
}

/// The stream of a watch over `source`.
pub(crate) fn stream<S: Source>(
    source: Arc<S>,
    wake: Receiver<Revision>,
    prefix: &[u8],
    after: Revision,
) -> WatchStream {
    let prefix = Bytes::copy_from_slice(prefix);
    let cursor = Cursor { source, wake, prefix, after, ready: VecDeque::new(), ended: false };
    Box::pin(stream::unfold(cursor, |mut cursor| async move { cursor.next().await.map(|item| (item, cursor)) }))
}
