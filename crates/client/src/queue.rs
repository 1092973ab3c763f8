//! The work queue of a controller: a key is in it once, is never worked on twice at a time, and
//! waits only after it has failed.
//!
//! ```text
//!            add ──► ready ──next──► processing ──done──► (gone, or ready again if added meanwhile)
//!  add_after, retry ──► delayed ──due──▲
//! ```
//!
//! Bounded by `capacity` distinct keys. At the bound a new key is refused and remembered as an
//! overflow; the runner then asks the controller for all its keys once there is room
//! ([`Queue::take_overflow`]), so that nothing is lost.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use stdx::SharedClock;
use stdx::backoff::{Backoff, Policy};
use stdx::clock::Instant;
use stdx::delay::DelayQueue;
use stdx::metrics::{Histogram, Registry, exponential};
use tokio::sync::Notify;

use crate::causes::{self, Cause};

/// What can be a key.
pub trait Item: Hash + Eq + Clone + Send + Sync + std::fmt::Debug + 'static {}
impl<T: Hash + Eq + Clone + Send + Sync + std::fmt::Debug + 'static> Item for T {}

/// Upstream's back-off per key: 5 ms, doubled up to 1000 s.
pub const BACKOFF: Policy = Policy { initial: Duration::from_millis(5), max: Duration::from_secs(1000) };
/// Distinct keys a queue holds unless told otherwise.
pub const CAPACITY: usize = 500_000;

struct State<K> {
    ready: VecDeque<K>,
    /// Keys in `ready`, or added while in `processing`; with since when and why.
    dirty: HashMap<K, (Instant, Vec<Cause>)>,
    /// Keys that are being worked on, with since when.
    processing: HashMap<K, Instant>,
    delayed: DelayQueue<K>,
    backoff: Backoff<K>,
    overflowed: bool,
    closed: bool,
}

/// Counters of a queue, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    pub adds: AtomicU64,
    pub retries: AtomicU64,
    pub refused: AtomicU64,
}

/// A deduplicating queue with a back-off per key.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
    clock: SharedClock,
    capacity: usize,
    pub counters: Counters,
    /// How long keys waited, for whoever counts that.
    waited: OnceLock<(&'static str, Histogram)>,
}

/// How long passes and waits take, in seconds.
pub(crate) fn ends() -> Vec<f64> {
    exponential(1e-8, 10.0, 10)
}

impl<K: Item> Queue<K> {
    /// A queue with upstream's back-off and the usual capacity.
    pub fn new(clock: SharedClock) -> Arc<Self> {
        Self::with(clock, BACKOFF, CAPACITY)
    }

    /// A queue with a back-off and a capacity of its own.
    pub fn with(clock: SharedClock, backoff: Policy, capacity: usize) -> Arc<Self> {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashMap::new(),
            processing: HashMap::new(),
            delayed: DelayQueue::default(),
            backoff: Backoff::new(backoff),
            overflowed: false,
            closed: false,
        };
        let (counters, waited) = (Counters::default(), OnceLock::new());
        Arc::new(Self { state: Mutex::new(state), wake: Notify::new(), clock, capacity, counters, waited })
    }

    /// Shows in that registry, under upstream's names, what the queue does.
    pub fn measure(self: &Arc<Self>, name: &'static str, registry: &Registry) {
        let label = ["name"];
        let waited = registry.histogram(
            "workqueue_queue_duration_seconds",
            "How long in seconds an item stays in workqueue before being requested.",
            &label,
            &ends(),
        );
        if self.waited.set((name, waited)).is_err() {
            return;
        }
        let of = |value: fn(&Self) -> f64| {
            let queue = Arc::downgrade(self);
            move || queue.upgrade().map(|queue| value(&queue))
        };
        registry
            .gauge("workqueue_depth", "Current depth of workqueue", &label)
            .watch(&[name], of(|queue| queue.len() as f64));
        registry
            .counter("workqueue_adds_total", "Total number of adds handled by workqueue", &label)
            .watch(&[name], of(|queue| queue.counters.adds.load(Ordering::Relaxed) as f64));
        registry
            .counter("workqueue_retries_total", "Total number of retries handled by workqueue", &label)
            .watch(&[name], of(|queue| queue.counters.retries.load(Ordering::Relaxed) as f64));
        registry
            .gauge(
                "workqueue_unfinished_work_seconds",
                "How many seconds of work has been done that is in progress and hasn't been observed by work_duration.",
                &label,
            )
            .watch(&[name], of(|queue| queue.under_way().0.as_secs_f64()));
        registry
            .gauge(
                "workqueue_longest_running_processor_seconds",
                "How many seconds has the longest running processor for workqueue been running.",
                &label,
            )
            .watch(&[name], of(|queue| queue.under_way().1.as_secs_f64()));
    }

    /// Asks for `key` to be worked on now. False when the queue is full.
    pub fn add(&self, key: K) -> bool {
        self.insert(key, None)
    }

    /// The same, saying why.
    pub fn add_caused(&self, key: K, cause: Cause) -> bool {
        self.insert(key, Some(cause))
    }

    fn insert(&self, key: K, cause: Option<Cause>) -> bool {
        let mut state = self.state.lock();
        let added = state.insert(key, cause, self.capacity, self.clock.now());
        drop(state);
        self.counters.adds.fetch_add(1, Ordering::Relaxed);
        match added {
            Insert::Ready => self.wake.notify_one(),
            Insert::Marked => {}
            Insert::Refused => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        true
    }

    /// Asks for `key` to be worked on after `delay`, or sooner if that was asked before.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            self.add(key);
            return;
        }
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        if state.delayed.len() >= self.capacity {
            state.overflowed = true;
            return;
        }
        let earliest = state.delayed.next_due();
        let at = self.clock.now() + delay;
        state.delayed.add(key, at);
        drop(state);
        if earliest.is_none_or(|e| at < e) {
            // Sleepers must learn of the earlier time.
            self.wake.notify_waiters();
            self.wake.notify_one();
        }
    }

    /// Asks for `key` again after its back-off, which grows with every failure in a row.
    pub fn retry(&self, key: &K) -> Duration {
        let now = self.clock.now();
        let delay = self.state.lock().backoff.fail(key, now);
        self.counters.retries.fetch_add(1, Ordering::Relaxed);
        self.add_after(key.clone(), delay);
        delay
    }

    /// The key succeeded: its next failure starts the back-off anew.
    pub fn forget(&self, key: &K) {
        self.state.lock().backoff.forget(key);
    }

    /// How often the key failed in a row.
    pub fn failures(&self, key: &K) -> u32 {
        self.state.lock().backoff.failures(key)
    }

    /// The next key to work on and why it was added; `None` once closed. Call [`Queue::done`] for it.
    pub async fn next(&self) -> Option<(K, Vec<Cause>)> {
        loop {
            let notified = self.wake.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            let due = {
                let mut state = self.state.lock();
                if state.closed {
                    return None;
                }
                let now = self.clock.now();
                while let Some(key) = state.delayed.pop(now) {
                    state.insert(key, None, usize::MAX, now);
                }
                if let Some(key) = state.ready.pop_front() {
                    let (since, causes) = state.dirty.remove(&key).unwrap_or((now, Vec::new()));
                    if let Some((name, waited)) = self.waited.get() {
                        waited.took(&[name], now.since(since));
                    }
                    state.processing.insert(key.clone(), now);
                    if !state.ready.is_empty() {
                        self.wake.notify_one();
                    }
                    return Some((key, causes));
                }
                state.delayed.next_due()
            };
            match due {
                Some(at) => tokio::select! {
                    () = notified => {}
                    () = self.clock.sleep_until(at) => {}
                },
                None => notified.await,
            }
        }
    }

    /// The key given by [`Queue::next`] may be worked on again; it is, at once, if it was added
    /// meanwhile.
    pub fn done(&self, key: &K) {
        let mut state = self.state.lock();
        if state.processing.remove(key).is_some() && state.dirty.contains_key(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.wake.notify_one();
        }
    }

    /// True once after keys had to be refused and there is room again: add all keys anew.
    pub fn take_overflow(&self) -> bool {
        let mut state = self.state.lock();
        let room = state.dirty.len() < self.capacity / 2;
        room && std::mem::take(&mut state.overflowed)
    }

    /// Ends every [`Queue::next`]; what is in the queue is dropped.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.wake.notify_waiters();
        self.wake.notify_one();
    }

    /// How long keys have been worked on that still are: all together, and the longest.
    fn under_way(&self) -> (Duration, Duration) {
        let (now, state) = (self.clock.now(), self.state.lock());
        let times = state.processing.values().map(|began| now.since(*began));
        times.fold(Default::default(), |(all, longest): (Duration, Duration), time| (all + time, longest.max(time)))
    }

    /// How many keys are ready or marked.
    pub fn len(&self) -> usize {
        self.state.lock().dirty.len()
    }

    /// True when no key is ready, marked or being worked on. Delayed keys do not count.
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.dirty.is_empty() && state.processing.is_empty()
    }

    /// True when no key is ready or marked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

enum Insert {
    Ready,
    Marked,
    Refused,
}

impl<K: Item> State<K> {
    fn insert(&mut self, key: K, cause: Option<Cause>, capacity: usize, now: Instant) -> Insert {
        if self.closed {
            return Insert::Refused;
        }
        if let Some((_, causes)) = self.dirty.get_mut(&key) {
            if let Some(cause) = cause {
                causes::push(causes, cause);
            }
            return Insert::Marked;
        }
        if self.dirty.len() >= capacity {
            self.overflowed = true;
            return Insert::Refused;
        }
        self.dirty.insert(key.clone(), (now, cause.into_iter().collect()));
        if self.processing.contains_key(&key) {
            return Insert::Marked;
        }
        self.ready.push_back(key);
        Insert::Ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use stdx::clock::ManualClock;

    fn queue(capacity: usize) -> (Arc<Queue<u8>>, ManualClock) {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        (Queue::with(Arc::new(clock.clone()), BACKOFF, capacity), clock)
    }

    fn poll(queue: &Queue<u8>) -> Option<u8> {
        use futures::FutureExt;
        queue.next().now_or_never().flatten().map(|(k, _)| k)
    }

    #[test]
    fn a_key_is_not_given_out_twice_at_a_time() {
        let (queue, _) = queue(10);
        queue.add(1);
        queue.add(1);
        assert_eq!(poll(&queue), Some(1));
        queue.add(1);
        assert_eq!(poll(&queue), None);
        queue.done(&1);
        assert_eq!(poll(&queue), Some(1));
        queue.done(&1);
        assert_eq!(poll(&queue), None);
        assert!(queue.is_idle());
    }

    #[test]
    fn what_it_does_is_measured() {
        let (queue, clock) = queue(10);
        let registry = Registry::default();
        queue.measure("things", &registry);
        queue.add(1);
        queue.add(2);
        clock.advance(Duration::from_secs(2));
        assert_eq!(poll(&queue), Some(1));
        queue.retry(&1);
        queue.done(&1);
        assert_eq!(poll(&queue), Some(2));
        queue.add(3);
        clock.advance(Duration::from_secs(3));
        let page = registry.page();
        let samples = stdx::metrics::read::read(&page).expect("a page");
        let value =
            |name: &str| samples.iter().find(|s| s.name == name && s.label("name") == "things").map(|s| s.value);
        assert_eq!((value("workqueue_depth"), value("workqueue_adds_total")), (Some(1.0), Some(3.0)));
        assert_eq!(value("workqueue_retries_total"), Some(1.0));
        assert_eq!(value("workqueue_queue_duration_seconds_sum"), Some(4.0));
        assert_eq!(value("workqueue_unfinished_work_seconds"), Some(3.0));
        assert_eq!(value("workqueue_longest_running_processor_seconds"), Some(3.0));
        drop(queue);
        assert!(!registry.page().contains("workqueue_depth"), "a queue that is gone has no depth");
    }

    #[test]
    fn a_failed_key_waits_but_a_new_event_does_not() {
        let (queue, clock) = queue(10);
        queue.add(1);
        assert_eq!(poll(&queue), Some(1));
        assert_eq!(queue.retry(&1), Duration::from_millis(5));
        queue.done(&1);
        assert_eq!(poll(&queue), None);
        queue.add(1);
        assert_eq!(poll(&queue), Some(1));
        assert_eq!(queue.retry(&1), Duration::from_millis(10));
        queue.done(&1);
        clock.advance(Duration::from_millis(5));
        assert_eq!(poll(&queue), Some(1));
        queue.forget(&1);
        assert_eq!(queue.failures(&1), 0);
    }

    #[test]
    fn at_the_bound_keys_are_refused_and_remembered() {
        let (queue, _) = queue(2);
        assert!(queue.add(1) && queue.add(2));
        assert!(!queue.add(3));
        assert!(queue.add(1));
        assert!(!queue.take_overflow());
        poll(&queue);
        poll(&queue);
        assert!(queue.take_overflow());
        assert!(!queue.take_overflow());
    }

    proptest! {
        // However adds, work, failures and time mix: once everything has been worked off, each key
        // was given out at or after its last add, and never while it was being worked on.
        #[test]
        fn every_key_is_processed_after_its_last_change(steps in proptest::collection::vec((0u8..6, 0u8..4), 1..200)) {
            let (queue, clock) = queue(100);
            let mut busy: HashSet<u8> = HashSet::new();
            let mut stale: HashSet<u8> = HashSet::new();
            let take = |queue: &Queue<u8>, busy: &mut HashSet<u8>, stale: &mut HashSet<u8>| {
                let key = poll(queue)?;
                assert!(busy.insert(key), "given out twice");
                stale.remove(&key);
                Some(key)
            };
            for (op, key) in steps {
                match op {
                    0 | 1 => { queue.add(key); stale.insert(key); }
                    2 => { take(&queue, &mut busy, &mut stale); }
                    3 => if busy.remove(&key) { queue.done(&key); },
                    4 => if busy.remove(&key) { stale.insert(key); queue.retry(&key); queue.done(&key); },
                    _ => clock.advance(Duration::from_millis(7)),
                }
            }
            for key in busy.drain() { queue.done(&key); }
            clock.advance(Duration::from_secs(3600));
            while let Some(key) = take(&queue, &mut busy, &mut stale) {
                busy.remove(&key);
                queue.done(&key);
            }
            prop_assert!(stale.is_empty());
            prop_assert!(queue.is_idle());
        }
    }
}
