//! The writer thread: gathers what waits, commits it with one sync, answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use stdx::clock::Instant;
use stdx::{Rng, SharedClock};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::engine::{Engine, Outcome, Refused, Shared, Written};
use super::record::{MAX_BATCH, MAX_RECORD, RECORD_HEADER};
use crate::{Committed, Error, Op, Urgency};

/// How long a relaxed commit waits for others.
const PATIENCE: Duration = Duration::from_millis(50);

/// The answer to one commit; reading the entry that refused it is left to the caller.
pub(crate) type Answer = Result<Result<Committed, Refused>, Error>;

/// What the writer is told.
pub(crate) enum Message {
    Commit {
        op: Op,
        answer: oneshot::Sender<Answer>,
        permit: OwnedSemaphorePermit,
    },
    Compacted(Result<Written, Error>),
    /// Commits what waits, then ends; the sender learns when.
    Close(Option<oneshot::Sender<()>>),
}

/// Ends the process because durability can no longer be promised. It should not return; if it does
/// (in tests) the store refuses everything from then on.
pub type OnFatal = Arc<dyn Fn(&str) + Send + Sync>;

pub(crate) struct Writer {
    pub engine: Engine,
    pub inbox: Receiver<Message>,
    /// For the results of compaction.
    pub outbox: Sender<Message>,
    pub clock: SharedClock,
    pub rng: Rng,
    pub on_fatal: OnFatal,
    pub batch: Waiting,
    /// Tells a running compaction to give up; `Some` while one runs.
    pub compacting: Option<Arc<AtomicBool>>,
}

/// Commits that wait for the same sync.
#[derive(Default)]
pub(crate) struct Waiting {
    ops: Vec<Op>,
    answers: Vec<(oneshot::Sender<Answer>, OwnedSemaphorePermit)>,
    bytes: usize,
    /// When the first of them must be committed; `None` when there is none.
    due: Option<Instant>,
}

impl Waiting {
    fn add(&mut self, op: Op, answer: oneshot::Sender<Answer>, permit: OwnedSemaphorePermit, now: Instant) {
        let (urgency, value) = match &op {
            Op::Put { urgency, value, .. } => (*urgency, value.len()),
            Op::Delete { .. } => (Urgency::Now, 0),
        };
        let due = if urgency == Urgency::Now { now } else { now + PATIENCE };
        self.due = Some(self.due.map_or(due, |d| d.min(due)));
        self.bytes += RECORD_HEADER + op.key().len() + value;
        self.ops.push(op);
        self.answers.push((answer, permit));
    }

    /// There is room for any one more operation until this is true.
    fn is_full(&self) -> bool {
        self.bytes >= MAX_BATCH - MAX_RECORD
    }
}

impl Writer {
    /// Runs until told to close, or until durability cannot be promised any more.
    pub fn run(mut self) {
        let shared = self.engine.shared();
        match catch_unwind(AssertUnwindSafe(|| self.serve())) {
            Ok(Ok(closed)) => {
                shared.shut("it was told to close");
                // The folder can be opened again by the time the one who closed it goes on.
                drop(self);
                // Whoever asked may have stopped waiting.
                closed.into_iter().for_each(|done| done.send(()).unwrap_or_default());
            }
            Ok(Err(text)) => self.fail(&shared, &text),
            Err(_) => self.fail(&shared, "the store's writer panicked"),
        }
    }

    fn fail(self, shared: &Shared, text: &str) {
        shared.shut(text);
        (self.on_fatal)(text);
    }

    fn serve(&mut self) -> Result<Vec<oneshot::Sender<()>>, String> {
        loop {
            let message = match self.batch.due {
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                // What is due now still takes along everything that is in the inbox already.
                Some(due) => self.inbox.recv_timeout(due.since(self.clock.now())),
            };
            match message {
                Ok(Message::Commit { op, answer, permit }) => {
                    self.batch.add(op, answer, permit, self.clock.now());
                    if self.batch.is_full() {
                        self.commit()?;
                    }
                }
                Ok(Message::Compacted(written)) => self.adopt(written)?,
                Ok(Message::Close(done)) => {
                    self.stop()?;
                    return Ok(done.into_iter().collect());
                }
                Err(RecvTimeoutError::Timeout) => self.commit()?,
                Err(RecvTimeoutError::Disconnected) => {
                    self.stop()?;
                    return Ok(Vec::new());
                }
            }
        }
    }

    fn adopt(&mut self, written: Result<Written, Error>) -> Result<(), String> {
        self.compacting = None;
        self.engine.adopt(written).map_err(|e| format!("removing compacted logs failed: {e}"))
    }

    fn stop(&mut self) -> Result<(), String> {
        self.commit()?;
        if let Some(cancel) = &self.compacting {
            cancel.store(true, Ordering::Relaxed);
            while let Ok(message) = self.inbox.recv() {
                // Commits that arrive now are dropped, and thereby refused.
                if let Message::Compacted(written) = message {
                    self.adopt(written)?;
                    break;
                }
            }
        }
        self.engine.close().map_err(|e| format!("closing the log failed: {e}"))
    }

    fn commit(&mut self) -> Result<(), String> {
        let Waiting { ops, answers, .. } = std::mem::take(&mut self.batch);
        if ops.is_empty() {
            return Ok(());
        }
        match self.engine.commit(ops, self.clock.now(), self.salt()) {
            Outcome::Done(results) => {
                for ((answer, _permit), result) in answers.into_iter().zip(results) {
                    // The caller may have gone away; the commit happened all the same.
                    drop(answer.send(Ok(result)));
                }
            }
            Outcome::Refused(error) => {
                for (answer, _permit) in answers {
                    let error = std::io::Error::new(error.kind(), error.to_string());
                    drop(answer.send(Err(Error::Io(error))));
                }
            }
            Outcome::Fatal(error) => return Err(format!("writing the log failed: {error}")),
        }
        self.compact()
    }

    fn salt(&self) -> u64 {
        let mut bytes = [0; 8];
        self.rng.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Starts a compaction if one is worth it and none runs.
    fn compact(&mut self) -> Result<(), String> {
        if self.compacting.is_some() {
            return Ok(());
        }
        let Some(job) = self.engine.job(self.salt()) else { return Ok(()) };
        let (outbox, cancel) = (self.outbox.clone(), Arc::new(AtomicBool::new(false)));
        self.compacting = Some(cancel.clone());
        let work = move || {
            let written = catch_unwind(AssertUnwindSafe(|| job.run(&cancel)));
            let written = written.unwrap_or_else(|_| Err(Error::Closed("the compaction panicked".into())));
            // The writer waits for this message before it ends.
            drop(outbox.send(Message::Compacted(written)));
        };
        let started = std::thread::Builder::new().name("store-compact".into()).spawn(work);
        if let Err(error) = started {
            self.adopt(Err(Error::Io(error)))?;
        }
        Ok(())
    }
}
