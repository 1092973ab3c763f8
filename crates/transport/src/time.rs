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

/// hyper polls a sleep again after its end, as tokio's own may be; ours is done with then.
struct Sleeping(parking_lot::Mutex<Option<Sleep>>);

impl Future for Sleeping {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_mut();
        if let Some(running) = sleep {
            std::task::ready!(running.as_mut().poll(cx));
            *sleep = None;
        }
        Poll::Ready(())
    }
}

impl hyper::rt::Sleep for Sleeping {}

impl hyper::rt::Timer for HyperTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Sleeping(parking_lot::Mutex::new(Some(self.clock.sleep(duration)))))
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "hyper names deadlines on the machine's clock; only the distance counts"
    )]
    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep(deadline.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use hyper::rt::Timer;

    use super::*;

    #[tokio::test]
    async fn a_sleep_that_has_ended_may_be_asked_again() {
        let timer = HyperTimer::new(stdx::clock::RealClock::shared());
        let mut sleep = timer.sleep(Duration::from_millis(1));
        for _ in 0..2 {
            std::future::poll_fn(|cx| sleep.as_mut().poll(cx)).await;
        }
    }
}
