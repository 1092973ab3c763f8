//! Keeps the container runtime running: when it ends, however it ends, it is started again over the
//! same state, and its shims and pods go on as they were.
//!
//! ```text
//!  runs ──ended (the kernel tells)──► delay ──► start ──► runs
//!   ▲ started by us or adopted         0 s, then 1, 2, 4 … 60 s while it dies young
//! ```

use std::time::Duration;

use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};

use crate::containerd;
use crate::layout::Layout;
use crate::process::ProcessId;

/// Delays after deaths in a row; the first is answered at once.
const RETRY: Policy = Policy { initial: Duration::from_secs(1), max: Duration::from_secs(60) };
/// A runtime that ran this long was well: its death is a first one.
const WELL: Duration = Duration::from_secs(60);

/// Deaths in a row.
#[derive(Debug, Default)]
struct Deaths(u32);

impl Deaths {
    /// Counts a death after `ran` and tells how long to wait.
    fn delay(&mut self, ran: Duration) -> Duration {
        if ran >= WELL {
            self.0 = 0;
        }
        let delay = if self.0 == 0 { Duration::ZERO } else { RETRY.delay(self.0) };
        self.0 = self.0.saturating_add(1);
        delay
    }
}

/// Watches the runtime that [`containerd::ensure`] started or adopted, and starts it again whenever
/// it ends, until the stage stops. The runtime itself is left running then.
pub async fn keep(layout: &Layout, clock: &SharedClock, stage: &Stage) {
    let stopped = stage.stopped();
    tokio::select! {
        () = stopped => {}
        () = supervise(layout, clock) => {}
    }
}

async fn supervise(layout: &Layout, clock: &SharedClock) {
    let mut deaths = Deaths::default();
    let mut since: Instant = clock.now();
    loop {
        if let Some(running) = ProcessId::load_alive(&layout.containerd_pid()) {
            if let Err(error) = running.ended().await {
                tracing::error!(pid = running.pid, %error, "the container runtime cannot be watched; if it dies, the next pintle up starts it");
                return;
            }
            tracing::warn!(pid = running.pid, log = %layout.containerd_log().display(), "the container runtime ended");
        }
        let delay = deaths.delay(clock.now().since(since));
        if !delay.is_zero() {
            tracing::warn!(
                seconds = delay.as_secs(),
                "the container runtime keeps ending; waiting before it is started again"
            );
            clock.sleep(delay).await;
        }
        since = clock.now();
        match containerd::start(layout, clock).await {
            Ok(()) => tracing::info!("the container runtime was started again; pods untouched"),
            Err(error) => tracing::error!(%error, "the container runtime was not started"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_death_is_answered_at_once_and_those_in_a_row_ever_later() {
        let mut deaths = Deaths::default();
        let seconds = |ran: u64, deaths: &mut Deaths| deaths.delay(Duration::from_secs(ran)).as_secs();
        let delays: Vec<u64> = (0..9).map(|_| seconds(0, &mut deaths)).collect();
        assert_eq!(delays, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(seconds(60, &mut deaths), 0, "it had been well");
        assert_eq!(seconds(59, &mut deaths), 1);
    }
}
