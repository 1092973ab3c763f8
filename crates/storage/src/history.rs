//! How much of the past a store keeps: bounded by bytes and by time, whichever is reached first.

use std::time::Duration;

/// The bounds of history. Watches and ranges older than what is kept get [`crate::Error::Compacted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryBounds {
    /// Keys and values of at most so many bytes; the newest change is always kept.
    pub bytes: usize,
    /// No change is kept longer than this (checked when something is committed).
    pub age: Duration,
}

impl Default for HistoryBounds {
    /// Five minutes, as an upstream cluster compacts its etcd, and 16 MiB.
    fn default() -> Self {
        Self { bytes: 16 << 20, age: Duration::from_secs(300) }
    }
}
