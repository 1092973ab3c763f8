//! Watching the runtime: its hints at once, and lists of everything as a safety net.
//!
//! With hints a list every half minute finds what a lost hint hid; without them, one every second
//! is the only way to learn that a container ended. A hint about an id that nobody knows asks for a
//! list, at most one a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use tokio::sync::mpsc;

use crate::context::Context;
use crate::pods::Pods;
use crate::runtime::{Error, Summary};

const WITH_HINTS: Duration = Duration::from_secs(30);
const WITHOUT: Duration = Duration::from_secs(1);
/// Hints that wait to be read; at the bound the stream waits.
const CAPACITY: usize = 256;
const RECONNECT: Policy = Policy { initial: Duration::from_millis(100), max: Duration::from_secs(10) };

/// When the runtime was last listed, and why it cannot be.
#[derive(Clone, Debug, Default)]
pub struct Health {
    pub listed: Option<Instant>,
    pub error: Option<String>,
}

/// A runtime that was not listed for so long is not well.
const STALE: Duration = Duration::from_secs(3 * 60);

impl Health {
    /// Whether the runtime is still being listed.
    pub fn is_recent(&self, now: Instant) -> bool {
        self.listed.is_none_or(|at| now.since(at) < STALE)
    }
}

/// Watches the runtime of one node.
pub struct Relist {
    ctx: Arc<Context>,
    pods: Arc<Pods>,
    /// The API server has shown all pods: what it did not show is an orphan.
    pub all_shown: tokio::sync::watch::Receiver<bool>,
    health: Arc<Mutex<Health>>,
}

enum Event {
    Hint(crate::runtime::Hint),
    /// The stream of hints has begun or broken.
    Stream(bool),
    Due,
}

impl Relist {
    /// Begins with the list that was taken at the start.
    pub fn new(
        ctx: Arc<Context>,
        pods: Arc<Pods>,
        all_shown: tokio::sync::watch::Receiver<bool>,
        health: Arc<Mutex<Health>>,
    ) -> Self {
        Self { ctx, pods, all_shown, health }
    }

    /// Watches until the stage stops.
    pub async fn run(mut self, stage: Stage) {
        let (streams, mut stream) = mpsc::channel(4);
        let (hints, mut hint) = mpsc::channel(CAPACITY);
        {
            let (runtime, clock) = (self.ctx.runtime.clone(), self.ctx.clock.clone());
            let stopped = stage.stopped();
            stage.spawn(async move {
                tokio::select! {
                    () = listen(runtime, clock, hints, streams) => {}
                    () = stopped => {}
                }
            });
        }
        let mut stopped = std::pin::pin!(stage.stopped());
        let mut known = BTreeMap::new();
        let (mut streaming, mut due) = (false, self.ctx.clock.now());
        let mut shown = false;
        loop {
            let event = tokio::select! {
                biased;
                () = &mut stopped => return,
                Some(began) = stream.recv() => Event::Stream(began),
                Some(hint) = hint.recv() => Event::Hint(hint),
                changed = self.all_shown.changed(), if !shown => {
                    shown = changed.is_err() || *self.all_shown.borrow();
                    Event::Due
                }
                () = self.ctx.clock.sleep_until(due) => Event::Due,
            };
            let now = self.ctx.clock.now();
            match event {
                Event::Hint(hint) => {
                    let owner = self.ctx.owners.of(&hint.id);
                    if !owner.is_some_and(|uid| self.pods.hinted(&uid, &hint)) {
                        let last = self.health.lock().listed.unwrap_or_default();
                        due = due.min((last + WITHOUT).max(now));
                    }
                    continue;
                }
                Event::Stream(began) => {
                    streaming = began;
                    // What happened before it began is not told.
                    due = now;
                    continue;
                }
                Event::Due => {}
            }
            self.list(&mut known, shown).await;
            due = self.ctx.clock.now() + if streaming { WITH_HINTS } else { WITHOUT };
        }
    }

    async fn list(&self, known: &mut BTreeMap<String, Summary>, shown: bool) {
        let (metrics, began) = (&self.ctx.metrics, self.ctx.clock.now());
        if let Some(last) = self.health.lock().listed {
            metrics.relist_interval.took(&[], began.since(last));
        }
        let found = match self.ctx.runtime.list().await {
            Ok(found) => found,
            Err(error) => {
                self.health.lock().error = Some(error.to_string());
                return;
            }
        };
        let now = self.ctx.clock.now();
        *self.health.lock() = Health { listed: Some(now), error: None };
        metrics.relist_duration.took(&[], now.since(began));
        metrics.relist_last_seen.set(&[], self.ctx.clock.wall().as_second() as f64);
        let gone = known.keys().filter(|uid| !found.contains_key(*uid));
        for uid in gone {
            self.pods.hint(uid);
        }
        for (uid, summary) in &found {
            self.ctx.owners.learn_ids(uid, summary.sandboxes.keys().chain(summary.containers.keys()));
            let cared_for = if known.get(uid) == Some(summary) { self.pods.knows(uid) } else { self.pods.hint(uid) };
            if !cared_for && shown {
                self.pods.orphan(uid, summary);
            }
        }
        self.ctx.runtime.tidy(&found).await;
        *known = found;
    }
}

/// Keeps the stream of hints open; tells when it begins and breaks.
async fn listen(
    runtime: Arc<dyn crate::runtime::Runtime>,
    clock: SharedClock,
    hints: mpsc::Sender<crate::runtime::Hint>,
    streams: mpsc::Sender<bool>,
) {
    let mut failures = 0;
    loop {
        let begun = clock.now();
        if streams.send(true).await.is_err() {
            return;
        }
        let ended = runtime.hints(hints.clone()).await;
        if streams.send(false).await.is_err() || hints.is_closed() {
            return;
        }
        match ended {
            Err(Error::Unimplemented(_)) => return,
            Err(error) => tracing::debug!(%error, "the runtime's events have ended; asking again"),
            Ok(()) => {}
        }
        failures = if clock.now().since(begun) > RECONNECT.max { 1 } else { failures + 1 };
        clock.sleep(RECONNECT.delay(failures)).await;
    }
}
