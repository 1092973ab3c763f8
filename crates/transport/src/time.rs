//! The injected clock as hyper's timer, so that no library decides when something is late.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use stdx::clock::Sleep;
use stdx::{ClockExt, SharedClock};

/// Drives hyper's time-outs by a [`stdx::Clock`].
#[derive(Clone)]
pub struct HyperTimer {
    clock: SharedClock,
}

impl HyperTimer {
    /// A timer on `clock`.
    pub fn new(clock: SharedClock) -> Self {
        Self { clock }
    }
}

struct Sleeping(parking_lot::Mutex<Sleep>);

impl Future for Sleeping {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.get_mut().as_mut().poll(cx)
    }
}

impl hyper::rt::Sleep for Sleeping {}

impl hyper::rt::Timer for HyperTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Sleeping(parking_lot::Mutex::new(self.clock.sleep(duration))))
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "hyper names deadlines on the machine's clock; only the distance counts"
    )]
    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep(deadline.saturating_duration_since(Instant::now()))
    }
}
