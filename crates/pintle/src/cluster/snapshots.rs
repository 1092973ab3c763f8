//! Snapshots on a schedule, kept beside the store: what `pintle snapshot restore` goes back to when
//! nobody thought of saving.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use storage::{Embedded, Store};

/// From one to the next.
const EVERY: Duration = Duration::from_secs(12 * 3600);
/// A start has better things to do first.
const AT_LEAST: Duration = Duration::from_secs(300);
/// So many are kept, the newest.
const KEPT: usize = 5;
const PREFIX: &str = "snapshot-";

/// Takes snapshots into `folder` until the stage stops. A failure is logged, and the next is taken
/// when it is due.
pub async fn keep(store: Arc<Embedded>, folder: &Path, clock: &SharedClock, stage: &Stage) {
    let stopped = stage.stopped();
    tokio::pin!(stopped);
    loop {
        let wait = due(newest(folder), clock.wall());
        tokio::select! {
            () = &mut stopped => return,
            () = clock.sleep(wait) => {}
        }
        let (from, to) = (store.clone(), folder.to_owned());
        match tokio::task::spawn_blocking(move || take(&from, &to)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(error = format!("{error:#}"), "no snapshot was taken"),
            Err(error) => tracing::error!(%error, "taking a snapshot panicked"),
        }
    }
}

/// When the newest was taken.
fn newest(folder: &Path) -> Option<Timestamp> {
    let newest = ours(folder).pop()?;
    let modified = std::fs::metadata(folder.join(newest)).and_then(|m| m.modified()).ok()?;
    Timestamp::try_from(modified).ok()
}

/// How long to wait, given when the newest was taken. A clock that was set back makes none late.
fn due(newest: Option<Timestamp>, now: Timestamp) -> Duration {
    let Some(newest) = newest else { return AT_LEAST };
    let age = Duration::try_from(now.duration_since(newest)).unwrap_or_default();
    EVERY.saturating_sub(age).max(AT_LEAST)
}

/// The names in the folder, oldest first: they hold the revision with leading zeros.
fn ours(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with(PREFIX));
    names.sort_unstable();
    names
}

fn take(store: &Embedded, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let path = folder.join(format!("{PREFIX}{:020}", store.revision()));
    let summary = store.save(&path).with_context(|| path.display().to_string())?;
    tracing::info!(path = %path.display(), revision = summary.revision, keys = summary.keys, "snapshot taken");
    let names = ours(folder);
    for old in &names[..names.len().saturating_sub(KEPT)] {
        std::fs::remove_file(folder.join(old)).with_context(|| old.clone())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::Rng;
    use stdx::clock::RealClock;
    use storage::{Expect, Op, Options, Urgency};

    #[test]
    fn one_is_due_half_a_day_after_the_newest_and_never_at_once() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let now = at("2026-11-29T12:00:00Z");
        let hours = |newest: Option<&str>| due(newest.map(at), now).as_secs_f64() / 3600.0;
        assert!(hours(Some("2026-11-29T11:00:00Z")) > 10.9);
        assert_eq!(due(Some(at("2026-11-28T11:00:00Z")), now), AT_LEAST);
        assert_eq!(due(None, now), AT_LEAST);
        assert_eq!(due(Some(at("2027-01-01T00:00:00Z")), now), EVERY);
    }

    #[tokio::test]
    async fn the_newest_are_kept_and_can_be_gone_back_to() {
        let dir = tempfile::tempdir().expect("a folder");
        let options = Options::new(dir.path().join("store"), RealClock::shared(), Rng::seeded(1));
        let store = Embedded::open(options).expect("opens");
        let folder = dir.path().join("snapshots");
        for number in 0..KEPT + 3 {
            let key = format!("k{number}").into();
            let op = Op::Put { key, value: "v".into(), expect: Expect::Absent, urgency: Urgency::Now };
            store.commit(op).await.expect("commits");
            take(&store, &folder).expect("taken");
        }
        let names = ours(&folder);
        assert_eq!(names.len(), KEPT);
        let last = storage::snapshot::inspect(&folder.join(&names[KEPT - 1])).expect("is whole");
        assert_eq!(last.keys, KEPT + 3);
        assert!(newest(&folder).is_some());
    }
}
