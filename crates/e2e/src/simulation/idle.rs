//! One thread, one queue of tasks, and a main future that runs only when nothing else can.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

#[derive(Default)]
struct State {
    idle: bool,
    waker: Option<Waker>,
}

/// Tells the main future when every task waits for time to pass.
#[derive(Clone, Default)]
pub struct Idle {
    state: Arc<Mutex<State>>,
}

impl Idle {
    /// Ends when no task can run.
    pub fn reached(&self) -> impl Future<Output = ()> + Send + use<> {
        let state = self.state.clone();
        state.lock().idle = false;
        poll_fn(move |cx| {
            let mut state = state.lock();
            if std::mem::take(&mut state.idle) {
                return Poll::Ready(());
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    fn announce(&self) {
        let mut state = self.state.lock();
        if let Some(waker) = state.waker.take() {
            state.idle = true;
            drop(state);
            waker.wake();
        }
    }
}

/// Runs the future that `main` makes on a runtime of one thread without timers and without I/O:
/// whatever asks for either, instead of for an injected clock or transport, panics.
///
/// # Errors
/// When the runtime cannot be made.
pub fn run<F: Future>(main: impl FnOnce(Idle) -> F) -> std::io::Result<F::Output> {
    let idle = Idle::default();
    let parked = idle.clone();
    // Called when the queue of tasks is empty, before the thread would sleep.
    let runtime = tokio::runtime::Builder::new_current_thread().on_thread_park(move || parked.announce()).build()?;
    let out = runtime.block_on(main(idle));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use stdx::clock::{Clock, ClockExt, ManualClock};

    #[test]
    fn the_main_future_waits_until_all_others_sleep() {
        let clock = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let count = Arc::new(Mutex::new(0));
        let outcome = run(|idle| {
            let (clock, count) = (clock.clone(), count.clone());
            async move {
                for _ in 0..3 {
                    let (clock, count) = (clock.clone(), count.clone());
                    tokio::spawn(async move {
                        for _ in 0..100 {
                            tokio::task::yield_now().await;
                        }
                        *count.lock() += 1;
                        clock.sleep(Duration::from_secs(1)).await;
                        *count.lock() += 1;
                    });
                }
                idle.reached().await;
                assert_eq!(*count.lock(), 3);
                idle.reached().await;
                let now = clock.now();
                clock.advance(clock.next_timer().map_or(Duration::ZERO, |at| at.since(now)));
                idle.reached().await;
                *count.lock()
            }
        });
        assert_eq!(outcome.ok(), Some(6));
    }
}
