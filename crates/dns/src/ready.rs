//! Whether this process can answer, and the tasks without which it cannot: one that panics or ends is begun again,
//! and until it lives nobody is led here.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures::FutureExt;
use stdx::backoff::Policy;
use stdx::{ClockExt, SharedClock};
use tokio::sync::Notify;

/// How long to wait before what ended is begun again.
const AGAIN: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(30) };
/// What has lived for that long after it was begun again is well.
const WELL: Duration = Duration::from_secs(1);

/// Whether this process can answer.
#[derive(Debug, Default)]
pub struct Ready {
    synced: AtomicBool,
    /// Parts that do not work now.
    ailing: AtomicU32,
    /// Told when something may have changed that is to be published.
    pub wake: Notify,
}

/// A part does not work, until this is dropped.
pub struct Ailing(Arc<Ready>);

impl Drop for Ailing {
    fn drop(&mut self) {
        self.0.ailing.fetch_sub(1, Ordering::Relaxed);
        self.0.wake.notify_one();
    }
}

impl Ready {
    /// Names are known, and every part works.
    pub fn is_ready(&self) -> bool {
        self.is_synced() && self.ailing.load(Ordering::Relaxed) == 0
    }

    /// The zone holds what there was when the process began.
    pub fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Relaxed)
    }

    /// It does now.
    pub fn synced(&self) {
        self.synced.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// A part does not work, for as long as what is returned is held.
    pub fn ails(self: &Arc<Self>) -> Ailing {
        self.ailing.fetch_add(1, Ordering::Relaxed);
        self.wake.notify_one();
        Ailing(self.clone())
    }
}

/// Runs what must not end, for ever: what panics or ends is begun again after a while. With `ready` nobody is led
/// here meanwhile.
pub async fn tend<F: Future<Output = ()>>(
    what: &str,
    ready: Option<&Arc<Ready>>,
    clock: &SharedClock,
    mut begin: impl FnMut() -> F,
) {
    let (mut ailing, mut failures) = (None, 0);
    loop {
        let began = clock.now();
        let mut task = std::pin::pin!(AssertUnwindSafe(async { begin().await }).catch_unwind());
        let is_well = tokio::select! {
            biased;
            _ = &mut task => false,
            () = clock.sleep(WELL) => true,
        };
        if is_well {
            drop(ailing.take());
            let _ = task.await;
        }
        if clock.now().since(began) >= AGAIN.max {
            failures = 0;
        }
        failures += 1;
        tracing::error!(what, failures, "a part of the DNS ended; it is begun again");
        if ailing.is_none() {
            ailing = ready.map(Ready::ails);
        }
        clock.sleep(AGAIN.delay(failures)).await;
    }
}

#[cfg(test)]
mod tests {
    use stdx::clock::RealClock;
    use stdx::shutdown::Stage;
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_part_that_panics_is_begun_again_and_nobody_is_led_here_meanwhile() {
        let (stage, ready) = (Stage::new(), Arc::new(Ready::default()));
        ready.synced();
        assert!(ready.is_ready());
        let (told, mut begun) = mpsc::unbounded_channel();
        let (own, clock) = (ready.clone(), RealClock::shared());
        stage.run(async move {
            let mut times = 0;
            let part = || {
                times += 1;
                let (times, told, own) = (times, told.clone(), own.clone());
                async move {
                    told.send((times, own.is_ready())).expect("heard");
                    match times {
                        1 => panic!("on purpose"),
                        2 => {}
                        _ => std::future::pending().await,
                    }
                }
            };
            tend("a part", Some(&own), &clock, part).await;
        });
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(begun.recv().await.expect("begun"));
        }
        assert_eq!(seen, [(1, true), (2, false), (3, false)]);
        while !ready.is_ready() {
            ready.wake.notified().await;
        }
        stage.stop();
    }
}
