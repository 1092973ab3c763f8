//! The only watch–queue–retry loop.
//!
//! A controller subscribes its queue to informers and hands a [`Reconcile`] to [`run`]. For each
//! key a pass observes (caches only), plans (a pure function) and applies. What the pass wrote it
//! passes to [`Pass::hold`] as a future that ends when the caches have caught up; until then the key
//! is not given out again, so a pass never decides on a state older than its own writes.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use stdx::metrics::{Histogram, Registry};
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};

use crate::causes::{self, Cause};
use crate::error::Error;
use crate::queue::{self, Item, Queue};

/// A key waits at most this long for caches to catch up with its writes; then it goes on with what
/// they hold, as it would after a restart.
pub const HOLD_LIMIT: Duration = Duration::from_secs(300);

/// What a pass wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing until something changes.
    Done,
    /// Another pass after this long, whatever happens: a deadline lies there.
    After(Duration),
}

/// One pass over one key.
pub struct Pass {
    /// Why the key was queued.
    pub causes: Vec<Cause>,
    /// How often the key failed in a row before this pass.
    pub failures: u32,
    holds: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl Pass {
    /// A pass outside a runner, for tests.
    pub fn new(causes: Vec<Cause>, failures: u32) -> Self {
        Self { causes, failures, holds: Mutex::new(Vec::new()) }
    }

    /// Holds the key back until `caught_up` ends: [`Informer::reached`](crate::Informer::reached),
    /// [`Informer::gone`](crate::Informer::gone) or [`Informer::refreshed`](crate::Informer::refreshed).
    pub fn hold<F: Future<Output = ()> + Send + 'static>(&self, caught_up: F) {
        self.holds.lock().push(Box::pin(caught_up));
    }
}

/// What a controller does with a key.
#[async_trait]
pub trait Reconcile: Send + Sync + 'static {
    /// What it works on, usually [`Key`](crate::Key).
    type Key: Item;

    /// Brings the world closer to what the object named by `key` asks for. May be cut off at any
    /// await; the next pass decides anew.
    async fn reconcile(&self, key: &Self::Key, pass: &Pass) -> Result<Next, Error>;

    /// Every key there is, for when the queue had to refuse some.
    fn all(&self) -> Vec<Self::Key> {
        Vec::new()
    }
}

/// How a controller runs.
#[derive(Clone)]
pub struct Options {
    /// For logs and metrics.
    pub name: &'static str,
    /// How many keys are worked on at a time.
    pub workers: usize,
    pub clock: SharedClock,
    pub rng: Rng,
    /// Where the queue and its passes are counted.
    pub metrics: Registry,
}

/// Counters of a running controller, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    pub passes: AtomicU64,
    pub failures: AtomicU64,
    pub panics: AtomicU64,
}

/// Starts the workers once `ready` ends (usually: the caches have synced). They end with the stage.
pub fn run<R: Reconcile>(
    options: Options,
    queue: Arc<Queue<R::Key>>,
    reconcile: Arc<R>,
    ready: impl Future<Output = ()> + Send + 'static,
    stage: &Stage,
) -> Arc<Counters> {
    let counters = Arc::new(Counters::default());
    queue.measure(options.name, &options.metrics);
    let took = options.metrics.histogram(
        "workqueue_work_duration_seconds",
        "How long in seconds processing an item from workqueue takes.",
        &["name"],
        &queue::ends(),
    );
    let (out, own) = (counters.clone(), stage.clone());
    stage.spawn(async move {
        tokio::select! {
            () = ready => {}
            () = own.stopped() => return,
        }
        for _ in 0..options.workers.max(1) {
            let worker = Worker {
                options: options.clone(),
                queue: queue.clone(),
                reconcile: reconcile.clone(),
                counters: counters.clone(),
                took: took.clone(),
                stage: own.clone(),
            };
            own.spawn(worker.run());
        }
        own.stopped().await;
        queue.close();
    });
    out
}

struct Worker<R: Reconcile> {
    options: Options,
    queue: Arc<Queue<R::Key>>,
    reconcile: Arc<R>,
    counters: Arc<Counters>,
    took: Histogram,
    stage: Stage,
}

impl<R: Reconcile> Worker<R> {
    async fn run(self) {
        loop {
            let next = tokio::select! {
                biased;
                () = self.stage.stopped() => None,
                next = self.queue.next() => next,
            };
            let Some((key, causes)) = next else { return };
            let stopped = self.stage.stopped();
            tokio::select! {
                biased;
                () = self.pass(key, causes) => {}
                () = stopped => return,
            }
            if self.queue.take_overflow() {
                for key in self.reconcile.all() {
                    self.queue.add(key);
                }
            }
        }
    }

    async fn pass(&self, key: R::Key, causes: Vec<Cause>) {
        self.counters.passes.fetch_add(1, Ordering::Relaxed);
        let pass = Pass::new(causes, self.queue.failures(&key));
        let work = AssertUnwindSafe(self.reconcile.reconcile(&key, &pass)).catch_unwind();
        let began = self.options.clock.now();
        let ended = causes::scope(&pass.causes, &self.options.rng, work).await;
        self.took.took(&[self.options.name], self.options.clock.now().since(began));
        match ended {
            Ok(Ok(next)) => {
                self.queue.forget(&key);
                if let Next::After(delay) = next {
                    self.queue.add_after(key.clone(), delay);
                }
            }
            Ok(Err(error)) => {
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
                let delay = self.queue.retry(&key);
                let controller = self.options.name;
                // A conflict means that the cache was a moment behind: ordinary.
                if error.is_conflict() {
                    tracing::debug!(controller, ?key, %error, ?delay, "conflict; trying again");
                } else {
                    tracing::warn!(controller, ?key, %error, ?delay, "pass failed; trying again");
                }
            }
            Err(_) => {
                self.counters.panics.fetch_add(1, Ordering::Relaxed);
                let delay = self.queue.retry(&key);
                tracing::error!(controller = self.options.name, ?key, ?delay, "pass panicked; trying again");
            }
        }
        let holds = pass.holds.into_inner();
        if holds.is_empty() {
            self.queue.done(&key);
            return;
        }
        let (queue, clock, stage) = (self.queue.clone(), self.options.clock.clone(), self.stage.clone());
        let name = self.options.name;
        self.stage.spawn(async move {
            tokio::select! {
                _ = join_all(holds) => {}
                () = clock.sleep(HOLD_LIMIT) => {
                    tracing::warn!(controller = name, ?key, "caches did not catch up with the key's own writes");
                }
                () = stage.stopped() => return,
            }
            queue.done(&key);
        });
    }
}

#[cfg(test)]
mod tests;
