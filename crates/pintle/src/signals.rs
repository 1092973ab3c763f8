//! The signals that tell a process to stop in order.

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT, caught from when this is made.
pub struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    /// Catches the signals from now on.
    pub fn listen() -> Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Ends when one has come, also if that was before the call.
    pub async fn told(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}
