//! Taking away what a pod has on disk, with a limit: somebody may work there still, and the kernel may
//! not answer about a mount.

use std::time::Duration;

use stdx::{ClockExt, SharedClock};

use super::setup::Layout;
use crate::context::blocking;

/// Volumes that are not removed by then are said to hang; their removal goes on.
const LIMIT: Duration = Duration::from_secs(30);

/// What stands in the way of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub path: String,
    pub text: String,
}

/// Removes all that a pod has on disk, once nobody makes volumes for it any more.
pub async fn clean(clock: &SharedClock, layout: &Layout, uid: &str) -> Result<(), Problem> {
    let dir = || layout.pod(uid).display().to_string();
    let (work, of) = (layout.clone(), uid.to_owned());
    let removed = async {
        layout.work.free(uid).await;
        blocking(move || work.remove(&of)).await
    };
    match clock.timeout(LIMIT, removed).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(error))) => Err(Problem { path: error.path().display().to_string(), text: error.to_string() }),
        Ok(Err(error)) => Err(Problem { path: dir(), text: error.to_string() }),
        Err(_) => {
            let path = layout.is_unmounting(uid).map_or_else(dir, |path| path.display().to_string());
            let text = format!("{path} hangs: the kernel does not end it");
            Err(Problem { path, text })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mounts::FakeMounts;
    use super::*;
    use std::sync::Arc;
    use stdx::clock::ManualClock;

    /// A set-up that was let go goes on in its thread: what it makes must not outlive the removal.
    #[test]
    fn nothing_is_removed_while_volumes_are_made() {
        // What blocks is done in order.
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.max_blocking_threads(1).build().expect("a runtime").block_on(removal_waits());
    }

    async fn removal_waits() {
        let root = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(root.path(), Arc::new(FakeMounts::default()));
        let fake = Arc::new(ManualClock::new(jiff::Timestamp::UNIX_EPOCH));
        let clock: SharedClock = fake.clone();
        std::fs::create_dir_all(layout.pod("u")).expect("made");
        let held = layout.work.hold("u");
        let mut work = Box::pin(clean(&clock, &layout, "u"));
        assert!(futures::poll!(&mut work).is_pending());
        blocking(|| ()).await.expect("done");
        assert!(layout.pod("u").exists());
        fake.advance(LIMIT);
        assert!(work.await.expect_err("it takes too long").text.contains("hangs"));
        assert!(layout.pod("u").exists());
        drop(held);
        clean(&clock, &layout, "u").await.expect("removed");
        assert!(!layout.pod("u").exists());
    }
}
