//! What is done again and again: logs are kept from growing, pods from using more disk than they may,
//! and what vanished pods left is taken away. Each by itself: what hangs, as servers that have exports
//! do, keeps nothing else waiting.

use std::sync::Arc;
use std::time::Duration;

use stdx::{ClockExt, SharedClock};
use tokio::sync::watch;

use crate::pods::Pods;

/// How often logs and pods' disks are looked at for their size, and vanished pods' leftovers for removal.
pub(crate) const ROTATE: Duration = Duration::from_secs(10);
const SWEEP: Duration = Duration::from_secs(300);

/// Keeps logs from growing.
pub async fn rotate(pods: Arc<Pods>, clock: SharedClock) {
    loop {
        clock.sleep(ROTATE).await;
        pods.rotate_logs().await;
    }
}

/// Keeps pods from using more disk than they may.
pub async fn limit_storage(pods: Arc<Pods>, clock: SharedClock) {
    loop {
        clock.sleep(ROTATE).await;
        pods.limit_storage().await;
    }
}

/// Takes away what vanished pods left, once all that are wanted are known.
pub async fn sweep(pods: Arc<Pods>, clock: SharedClock, mut all_shown: watch::Receiver<bool>) {
    if all_shown.wait_for(|shown| *shown).await.is_err() {
        return;
    }
    loop {
        pods.sweep().await;
        clock.sleep(SWEEP).await;
    }
}
