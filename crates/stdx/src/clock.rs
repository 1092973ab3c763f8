//! Injected time: a monotonic clock that timers run on, and a wall clock that only prints.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

/// A point on the monotonic clock, counted from the clock's own start. It never jumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub Duration);

impl Instant {
    /// The time from `earlier` to `self`; zero when `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, rhs: Duration) -> Instant {
        Instant(self.0.saturating_add(rhs))
    }
}

/// A boxed future that ends at a point in time.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// The two clocks a component may know. Timers, back-offs and expiry use [`Clock::now`];
/// [`Clock::wall`] is for what is written into objects and certificates.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic time.
    fn now(&self) -> Instant;
    /// Wall-clock time; it may jump and nothing may fire because it did.
    fn wall(&self) -> Timestamp;
    /// Ends when the monotonic clock has reached `at`.
    fn sleep_until(&self, at: Instant) -> Sleep;
}

/// A clock shared by the parts of one component.
pub type SharedClock = Arc<dyn Clock>;

/// The deadline of [`ClockExt::timeout`] passed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl std::fmt::Display for Elapsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("deadline has elapsed")
    }
}

impl std::error::Error for Elapsed {}

/// Conveniences over [`Clock`].
pub trait ClockExt: Clock {
    /// Ends after `duration`.
    fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Runs `future` for at most `limit`.
    fn timeout<F: Future + Send>(
        &self,
        limit: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Elapsed>> + Send {
        let sleep = self.sleep(limit);
        async move {
            tokio::select! {
                biased;
                out = future => Ok(out),
                () = sleep => Err(Elapsed),
            }
        }
    }
}

impl<C: Clock + ?Sized> ClockExt for C {}

/// The machine's clocks.
#[derive(Debug)]
pub struct RealClock {
    start: std::time::Instant,
}

impl RealClock {
    /// Starts the monotonic clock at zero.
    #[allow(clippy::disallowed_methods, reason = "this type provides the clock")]
    pub fn new() -> Self {
        Self { start: std::time::Instant::now() }
    }

    /// The machine's clock, shared.
    pub fn shared() -> SharedClock {
        Arc::new(Self::new())
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Instant {
        Instant(self.start.elapsed())
    }

    #[allow(clippy::disallowed_methods, reason = "this type provides the clock")]
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }

    #[allow(clippy::disallowed_methods, reason = "this type provides the clock")]
    fn sleep_until(&self, at: Instant) -> Sleep {
        let at = self.start + at.0;
        Box::pin(async move { tokio::time::sleep_until(at.into()).await })
    }
}

/// A clock that moves only when told to: for simulations and tests.
#[derive(Clone)]
pub struct ManualClock {
    inner: Arc<Mutex<Manual>>,
}

struct Manual {
    now: Instant,
    wall: Timestamp,
    next_id: u64,
    timers: BTreeMap<(Instant, u64), Option<Waker>>,
}

impl ManualClock {
    /// A clock that stands at zero and shows `wall`.
    pub fn new(wall: Timestamp) -> Self {
        let manual = Manual { now: Instant::default(), wall, next_id: 0, timers: BTreeMap::new() };
        Self { inner: Arc::new(Mutex::new(manual)) }
    }

    /// Moves both clocks forward and wakes what became due, in order.
    pub fn advance(&self, by: Duration) {
        let mut wakers = Vec::new();
        {
            let mut inner = self.inner.lock();
            inner.now = inner.now + by;
            inner.wall = inner.wall.saturating_add(by).unwrap_or(inner.wall);
            let now = inner.now;
            let due: Vec<_> = inner.timers.range(..=(now, u64::MAX)).map(|(k, _)| *k).collect();
            for key in due {
                if let Some(Some(waker)) = inner.timers.remove(&key) {
                    wakers.push(waker);
                }
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Sets the wall clock alone, as an administrator or NTP would.
    pub fn jump_wall(&self, to: Timestamp) {
        self.inner.lock().wall = to;
    }

    /// When the earliest sleeping timer is due.
    pub fn next_timer(&self) -> Option<Instant> {
        self.inner.lock().timers.keys().next().map(|(at, _)| *at)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.inner.lock().now
    }

    fn wall(&self) -> Timestamp {
        self.inner.lock().wall
    }

    fn sleep_until(&self, at: Instant) -> Sleep {
        Box::pin(ManualSleep { clock: self.clone(), at, id: None })
    }
}

struct ManualSleep {
    clock: ManualClock,
    at: Instant,
    id: Option<u64>,
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let clock = self.clock.clone();
        let mut inner = clock.inner.lock();
        if inner.now >= self.at {
            return Poll::Ready(());
        }
        let id = *self.id.get_or_insert_with(|| {
            inner.next_id += 1;
            inner.next_id
        });
        inner.timers.insert((self.at, id), Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.clock.inner.lock().timers.remove(&(self.at, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn manual_timers_fire_in_order_and_only_when_due() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let (tx, mut rx) = tokio::sync::mpsc::unbounded_channel();
        for seconds in [3u64, 1, 2] {
            let (clock, tx) = (clock.clone(), tx.clone());
            tokio::spawn(async move {
                clock.sleep(Duration::from_secs(seconds)).await;
                tx.send(seconds).expect("receiver lives");
            });
        }
        while clock.inner.lock().timers.len() < 3 {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_secs(2));
        assert_eq!(rx.recv().await, Some(1));
        assert_eq!(rx.recv().await, Some(2));
        assert!(rx.try_recv().is_err());
        clock.advance(Duration::from_secs(1));
        assert_eq!(rx.recv().await, Some(3));
    }

    #[tokio::test]
    async fn a_wall_clock_jump_fires_no_timer() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let limit = clock.timeout(Duration::from_secs(5), std::future::pending::<()>());
        tokio::pin!(limit);
        assert!(futures::poll!(&mut limit).is_pending());
        clock.jump_wall(Timestamp::MAX);
        assert!(futures::poll!(&mut limit).is_pending());
        clock.advance(Duration::from_secs(5));
        assert_eq!(limit.await, Err(Elapsed));
    }
}
