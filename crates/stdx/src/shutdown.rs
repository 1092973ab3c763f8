//! An ordered stop: stages end one after another, each waiting for its tasks.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

use crate::clock::{ClockExt, SharedClock};

/// One stage of a process: its tasks learn from `token` that they should end.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    token: CancellationToken,
    tasks: TaskTracker,
}

impl Stage {
    /// A running stage without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends when the stage has been told to stop.
    pub fn stopped(&self) -> WaitForCancellationFutureOwned {
        self.token.clone().cancelled_owned()
    }

    /// True once the stage has been told to stop.
    pub fn is_stopped(&self) -> bool {
        self.token.is_cancelled()
    }

    /// A token for libraries that want one; it is cancelled with the stage.
    pub fn token(&self) -> CancellationToken {
        self.token.child_token()
    }

    /// Runs `task`, which must watch [`Stage::stopped`] itself, as part of the stage.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        drop(self.tasks.spawn(task));
    }

    /// Runs `task`, which may go on for ever, as part of the stage: it is dropped where it stands when the stage
    /// is told to stop.
    pub fn run<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stopped = self.stopped();
        self.spawn(async move {
            tokio::select! {
                biased;
                () = stopped => {}
                () = task => {}
            }
        });
    }

    /// Tells the stage to stop; does not wait.
    pub fn stop(&self) {
        self.token.cancel();
    }

    /// Tells the stage to stop and waits for its tasks, at most `limit`. False when some remain.
    pub async fn finish(&self, clock: &SharedClock, limit: Duration) -> bool {
        self.token.cancel();
        self.tasks.close();
        clock.timeout(limit, self.tasks.wait()).await.is_ok()
    }
}
