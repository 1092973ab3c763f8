//! The embedded store as a whole: the contract, restarts, damage, failing disks, snapshots.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use stdx::clock::{Instant, ManualClock, RealClock};
use stdx::{Rng, SharedClock};

use super::disk::Disk;
use super::engine::{Engine, Outcome, Sizes};
use super::files::Files;
use super::{Embedded, Options, snapshot};
use crate::contract::{self, delete, drain, put};
use crate::{Error, Expect, HistoryBounds, Op, RangeOptions, Signal, Store, Urgency};

struct Fixture {
    root: tempfile::TempDir,
    number: AtomicU64,
}

impl Fixture {
    fn new() -> Self {
        Self { root: tempfile::tempdir().expect("a folder"), number: AtomicU64::new(0) }
    }
}

impl contract::Fixture for Fixture {
    fn open(&self, clock: SharedClock, bounds: HistoryBounds) -> Arc<dyn Store> {
        let path = self.root.path().join(self.number.fetch_add(1, Ordering::Relaxed).to_string());
        let options = Options { history: bounds, ..Options::new(path, clock, Rng::seeded(1)) };
        Arc::new(Embedded::open(options).expect("opens"))
    }
}

contract::suite!(Fixture::new());

fn options(path: PathBuf) -> Options {
    Options::new(path, RealClock::shared(), Rng::seeded(1))
}

/// A store on `disk` whose end is told to the flag.
fn on_disk(disk: &Disk) -> (Embedded, Arc<AtomicBool>) {
    let died = Arc::new(AtomicBool::new(false));
    let flag = died.clone();
    let clock = Arc::new(ManualClock::new(jiff::Timestamp::UNIX_EPOCH));
    let mut options = Options::new("", clock, Rng::seeded(1));
    options.on_fatal = Arc::new(move |_| flag.store(true, Ordering::SeqCst));
    let sizes = Sizes { log: 4 << 10, garbage: 8 << 10 };
    options.history.bytes = 4 << 10;
    (Embedded::start(Arc::new(disk.clone()), options, sizes).expect("opens"), died)
}

async fn keys(store: &dyn Store) -> Vec<String> {
    let page = store.range(b"", RangeOptions::default()).await.expect("reads");
    page.entries.iter().map(|e| String::from_utf8_lossy(&e.key).into_owned()).collect()
}

#[tokio::test]
async fn a_restart_keeps_entries_history_and_revisions() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("deep/store");
    let store = Embedded::open(options(path.clone())).expect("opens");
    for op in
        [put("a", "1", Expect::Absent), put("b", "2", Expect::Absent), put("a", "3", Expect::At(1)), delete("b", 2)]
    {
        store.commit(op).await.expect("commits");
    }
    let before = drain(&mut store.watch(b"", 0).expect("starts"), 4).await;
    store.close().await;
    let store = Embedded::open(options(path.clone())).expect("opens again while the old handle lives");
    assert_eq!((store.revision(), store.compacted()), (4, 0));
    assert_eq!(drain(&mut store.watch(b"", 0).expect("starts"), 4).await, before);
    let entry = store.get(b"a").await.expect("reads").expect("is there");
    assert_eq!((entry.create_revision, entry.mod_revision, entry.version), (1, 3, 2));
    assert_eq!(store.commit(put("b", "5", Expect::Absent)).await.expect("commits").revision, 5);
    drop(store);
    assert_eq!(Embedded::open(options(path)).expect("opens").revision(), 5);
}

#[tokio::test]
async fn a_folder_has_one_process() {
    let root = tempfile::tempdir().expect("a folder");
    let store = Embedded::open(options(root.path().to_owned())).expect("opens");
    match Embedded::open(options(root.path().to_owned())) {
        Err(Error::Io(error)) => assert!(error.to_string().contains("in use by another process"), "{error}"),
        Ok(_) => panic!("opened twice"),
        Err(error) => panic!("{error}"),
    }
    drop(store);
    Embedded::open(options(root.path().to_owned())).expect("opens");
}

#[tokio::test]
async fn a_newer_format_is_refused() {
    let root = tempfile::tempdir().expect("a folder");
    assert!(super::check(&root.path().join("none")).is_ok() && super::check(root.path()).is_ok());
    drop(Embedded::open(options(root.path().to_owned())).expect("opens"));
    assert!(super::check(root.path()).is_ok());
    std::fs::write(root.path().join("format"), "pintle store, format 2\n").expect("writes");
    assert!(matches!(super::check(root.path()), Err(Error::Format { found: 2, known: 1 })));
    let error = Embedded::open(options(root.path().to_owned())).err().expect("refuses");
    assert_eq!(error.to_string(), "the store has format 2, this version knows 1: use a newer pintle");
}

/// A closed store of several logs and a base.
fn worn_disk() -> (Disk, Vec<(Bytes, u64)>) {
    let disk = Disk::default();
    let sizes = Sizes { log: 2 << 10, garbage: 4 << 10 };
    let bounds = HistoryBounds { bytes: 3 << 10, age: Duration::MAX };
    let mut engine = Engine::open(Arc::new(disk.clone()), bounds, sizes, 7, Instant::default()).expect("opens");
    for number in 0..60_u64 {
        let key = format!("key/{}", number % 7);
        let found = engine.shared().state.read().current().get(key.as_bytes()).map(|v| v.modified);
        let expect = found.map_or(Expect::Absent, Expect::At);
        let op = Op::Put { key: key.into(), value: vec![number as u8; 150].into(), expect, urgency: Urgency::Now };
        assert!(matches!(engine.commit(vec![op], Instant::default(), number), Outcome::Done(_)));
        if let Some(job) = engine.job(number) {
            engine.adopt(job.run(&AtomicBool::new(false))).expect("adopts");
        }
    }
    engine.close().expect("closes");
    let state = engine.shared().state.read().current().iter().map(|(k, v)| (k.clone(), v.modified)).collect();
    (disk, state)
}

#[test]
fn damage_anywhere_is_found() {
    let (disk, expected) = worn_disk();
    let names = disk.list().expect("lists");
    assert!(names.iter().any(|n| n.starts_with("base-")) && names.iter().filter(|n| n.starts_with("log-")).count() > 1);
    let (mut refused, mut harmless) = (0, 0);
    for name in names {
        for bit in (0..disk.size(&name) * 8).step_by(61) {
            let damaged = disk.copy();
            damaged.flip(&name, bit);
            let sizes = Sizes::default();
            match Engine::open(Arc::new(damaged), HistoryBounds::default(), sizes, 8, Instant::default()) {
                Err(Error::Corrupt(text)) => {
                    refused += 1;
                    assert!(text.contains(&name) && text.contains("pintle snapshot restore"), "{text}");
                }
                Err(Error::Format { .. }) => refused += 1,
                Err(error) => panic!("{name} bit {bit}: {error}"),
                Ok(engine) => {
                    // Padding, or the mark of an orderly close.
                    harmless += 1;
                    let shared = engine.shared();
                    let state = shared.state.read();
                    let found: Vec<_> = state.current().iter().map(|(k, v)| (k.clone(), v.modified)).collect();
                    assert_eq!(found, expected, "{name} bit {bit}");
                }
            }
        }
    }
    assert!(refused > 20 * harmless, "{refused} refused, {harmless} harmless");
}

#[test]
fn a_missing_file_is_found() {
    let (disk, _) = worn_disk();
    let names = disk.list().expect("lists");
    let newest = names.iter().rfind(|n| n.starts_with("log-")).cloned();
    for name in names.iter().filter(|n| Some(*n) != newest.as_ref()) {
        let damaged = disk.copy();
        damaged.remove(name).expect("removes");
        let opened = Engine::open(Arc::new(damaged), HistoryBounds::default(), Sizes::default(), 8, Instant::default());
        assert!(matches!(opened, Err(Error::Corrupt(_))), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sync_serves_everyone_who_waits() {
    let disk = Disk::default();
    let (store, _) = on_disk(&disk);
    let store = Arc::new(store);
    disk.hold_syncs(true);
    let before = disk.syncs();
    let commits: Vec<_> = (0..100)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(put(&format!("k/{i}"), "x", Expect::Absent)).await })
        })
        .collect();
    // All of them are on their way; the first may be in a sync of its own.
    while store.room.available_permits() > super::IN_FLIGHT - 100 {
        tokio::task::yield_now().await;
    }
    disk.hold_syncs(false);
    let mut revisions = BTreeSet::new();
    for commit in commits {
        revisions.insert(commit.await.expect("runs").expect("commits").revision);
    }
    assert_eq!(revisions, (1..=100).collect());
    // A batch that filled a log begins the next one with two syncs of its own.
    assert!(disk.syncs() - before < 10, "{} syncs", disk.syncs() - before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_acknowledges_nothing_and_ends_the_process() {
    let disk = Disk::default();
    let (store, died) = on_disk(&disk);
    store.commit(put("a", "1", Expect::Absent)).await.expect("commits");
    let mut watch = store.watch(b"", 1).expect("starts");
    disk.fail_syncs(true);
    assert!(matches!(store.commit(put("b", "1", Expect::Absent)).await, Err(Error::Closed(_))));
    assert!(matches!(watch.next().await, Some(Err(Error::Closed(_)))), "it was never published");
    assert!(matches!(store.commit(put("c", "1", Expect::Absent)).await, Err(Error::Closed(_))));
    assert_eq!(keys(&store).await, ["a"]);
    drop(store);
    assert!(died.load(Ordering::SeqCst));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_and_recovers() {
    let disk = Disk::default();
    let (store, died) = on_disk(&disk);
    store.commit(put("a", "1", Expect::Absent)).await.expect("commits");
    disk.fail_writes(true);
    assert!(matches!(store.commit(put("b", "1", Expect::Absent)).await, Err(Error::Io(_))));
    assert_eq!(store.revision(), 1);
    disk.fail_writes(false);
    assert_eq!(store.commit(put("c", "1", Expect::Absent)).await.expect("commits").revision, 2);
    drop(store);
    let (store, _) = on_disk(&disk.after_power_loss(&Rng::seeded(3)));
    assert_eq!(keys(&store).await, ["a", "c"]);
    assert!(!died.load(Ordering::SeqCst));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_logs_are_replaced_while_readers_go_on() {
    let disk = Disk::default();
    let (store, died) = on_disk(&disk);
    let mut watch = store.watch(b"", 0).expect("starts");
    let mut count = 0;
    // At least 100 kB are written, and then until compaction, which runs beside, has caught up.
    while count < 400 || store.size() > 50_000 {
        let value = format!("{count:0200}");
        let expect = if count == 0 { Expect::Absent } else { Expect::At(count) };
        count = store.commit(put("k", &value, expect)).await.expect("commits").revision;
        match watch.next().await {
            Some(Ok(Signal::Event(event))) => assert_eq!(event.revision, count),
            other => panic!("{other:?}"),
        }
        let entry = store.get(b"k").await.expect("reads").expect("is there");
        assert_eq!(entry.value, value.as_bytes());
    }
    store.close().await;
    assert_eq!(store.get(b"k").await.expect("still reads").map(|e| e.version), Some(count));
    drop(store);
    let (store, _) = on_disk(&disk);
    assert_eq!((store.revision(), keys(&store).await), (count, vec!["k".to_owned()]));
    assert!(!died.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_value_damaged_at_rest_is_reported_not_absent() {
    let disk = Disk::default();
    let (store, _) = on_disk(&disk);
    store.commit(put("a", &"v".repeat(100), Expect::Absent)).await.expect("commits");
    disk.flip("log-00000000000000000001", (48 + 24 + 60) * 8);
    match store.get(b"a").await {
        Err(Error::Corrupt(text)) => assert!(text.contains("revision 1 of a"), "{text}"),
        other => panic!("{other:?}"),
    }
}

/// Saves again and again while a writer commits and compaction replaces the files underneath.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_in_use_is_saved_whole() {
    const KEYS: u64 = 40;
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("store");
    let files: Arc<dyn Files> = Arc::new(super::Folder::lock(&folder).expect("a folder"));
    let mut options = options(folder.clone());
    options.history.bytes = 4 << 10;
    let sizes = Sizes { log: 4 << 10, garbage: 8 << 10 };
    let store = Arc::new(Embedded::start(files, options, sizes).expect("opens"));
    let acknowledged = Arc::new(AtomicU64::new(0));
    let (writes, told) = (store.clone(), acknowledged.clone());
    let writer = tokio::spawn(async move {
        let mut last = vec![Expect::Absent; KEYS as usize];
        for number in 0..3000 {
            let key = (number % KEYS) as usize;
            let value = Bytes::from(vec![b'v'; 100]);
            let op = Op::Put { key: format!("k{key:02}").into(), value, expect: last[key], urgency: Urgency::Now };
            let done = writes.commit(op).await.expect("commits");
            last[key] = Expect::At(done.revision);
            told.store(done.revision, Ordering::SeqCst);
        }
    });
    let mut saved = Vec::new();
    while !writer.is_finished() {
        let before = acknowledged.load(Ordering::SeqCst);
        let path = dir.path().join(format!("snapshot-{}", saved.len()));
        let (from, to) = (folder.clone(), path.clone());
        let summary = tokio::task::spawn_blocking(move || snapshot::save(&from, &to, &Rng::seeded(3)));
        let summary = summary.await.expect("no panic").expect("saves");
        assert!(summary.revision >= before, "revision {} was acknowledged before {summary:?}", before);
        assert_eq!(summary.keys as u64, summary.revision.min(KEYS), "{summary:?}");
        assert_eq!(snapshot::inspect(&path).expect("is whole"), summary);
        saved.push(summary.revision);
    }
    writer.await.expect("no panic");
    assert!(saved.windows(2).all(|w| w[0] <= w[1]) && saved.len() > 1, "{saved:?}");
    assert!(snapshot::save(dir.path(), &dir.path().join("none"), &Rng::seeded(3)).is_err(), "not a store");
}

#[tokio::test]
async fn a_snapshot_restores_the_state_and_jumps_ahead() {
    let root = tempfile::tempdir().expect("a folder");
    let (folder, saved) = (root.path().join("store"), root.path().join("saved"));
    let store = Embedded::open(options(folder.clone())).expect("opens");
    for op in [put("a", "1", Expect::Absent), put("b", "2", Expect::Absent), delete("a", 1)] {
        store.commit(op).await.expect("commits");
    }
    let summary = store.save(&saved).expect("saves");
    assert_eq!((summary.revision, summary.keys), (3, 1));
    store.commit(put("later", "4", Expect::Absent)).await.expect("commits");
    assert!(matches!(snapshot::restore(&saved, &folder, &Rng::seeded(2)), Err(Error::Io(_))), "it is in use");
    drop(store);
    assert_eq!(snapshot::inspect(&saved).expect("is whole"), summary);
    let (restored, kept) = snapshot::restore(&saved, &folder, &Rng::seeded(2)).expect("restores");
    assert_eq!(restored.revision, 4 + snapshot::JUMP);
    assert!(kept.is_some_and(|path| path.join("format").is_file()));
    let store = Embedded::open(options(folder.clone())).expect("opens");
    assert_eq!(keys(&store).await, ["b"]);
    assert!(matches!(store.watch(b"", 3), Err(Error::Compacted { .. })));
    let next = store.commit(put("c", "5", Expect::Absent)).await.expect("commits");
    assert_eq!(next.revision, restored.revision + 1);
    drop(store);
    assert_eq!(Embedded::open(options(folder.clone())).expect("opens").revision(), next.revision);

    let mut bytes = std::fs::read(&saved).expect("reads");
    let middle = bytes.len() - 30;
    bytes[middle] ^= 1;
    std::fs::write(&saved, bytes).expect("writes");
    let damaged = snapshot::inspect(&saved).expect_err("is damaged").to_string();
    assert!(damaged.contains("is damaged"), "{damaged}");
    std::fs::write(&saved, "kind: Deployment\n").expect("writes");
    let other = snapshot::restore(&saved, &folder, &Rng::seeded(2)).expect_err("is none").to_string();
    assert_eq!(other, "this is not a snapshot");
}
