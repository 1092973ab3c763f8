//! The suite every implementation of [`Store`] passes. `contract::suite!(Fixture)` makes one test of
//! each rule; the comments of [`Store`] are the rules.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use stdx::SharedClock;
use stdx::clock::ManualClock;

use crate::{
    Committed, Entry, Error, Event, Expect, HistoryBounds, MAX_KEY, MAX_VALUE, Op, Page, RangeOptions, Revision,
    Signal, Store, Urgency, WatchStream,
};

/// Makes empty stores.
pub trait Fixture {
    fn open(&self, clock: SharedClock, bounds: HistoryBounds) -> Arc<dyn Store>;
}

/// One `#[tokio::test]` per rule of the contract.
macro_rules! suite {
    ($fixture:expr) => {
        $crate::contract::suite!($fixture;
            an_empty_store_is_at_revision_zero
            compare_and_swap
            versions_restart_after_a_delete
            ranges_have_prefix_start_and_limit
            a_range_shows_the_past
            a_watch_delivers_everything_once_in_order
            a_watch_reports_progress_for_other_prefixes
            a_watch_starts_in_the_past
            history_is_compacted_on_demand
            history_is_compacted_by_bytes
            history_is_compacted_by_age
            a_watcher_that_history_left_behind_ends
            sizes_are_bounded
            writers_in_parallel_get_each_revision_once
            a_cancelled_commit_leaves_the_store_usable
            closing_ends_watches_and_refuses_commits
            relaxed_commits_keep_their_order
        );
    };
    ($fixture:expr; $($rule:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $rule() {
                $crate::contract::$rule(&$fixture).await;
            }
        )*
    };
}
pub(crate) use suite;

/// A put with the expectation.
pub fn put(key: &str, value: &str, expect: Expect) -> Op {
    let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes()));
    Op::Put { key, value, expect, urgency: Urgency::Now }
}

/// A delete of the entry last written at `revision`.
pub fn delete(key: &str, revision: Revision) -> Op {
    Op::Delete { key: Bytes::copy_from_slice(key.as_bytes()), expect: Expect::At(revision) }
}

fn clock() -> ManualClock {
    ManualClock::new(jiff::Timestamp::UNIX_EPOCH)
}

fn open(fixture: &dyn Fixture) -> Arc<dyn Store> {
    fixture.open(Arc::new(clock()), HistoryBounds::default())
}

async fn fill(store: &dyn Store, ops: impl IntoIterator<Item = Op>) -> Vec<Committed> {
    let mut done = Vec::new();
    for op in ops {
        done.push(store.commit(op).await.expect("commits"));
    }
    done
}

fn text(page: &Page) -> String {
    let show = |e: &Entry| format!("{}={}", String::from_utf8_lossy(&e.key), String::from_utf8_lossy(&e.value));
    page.entries.iter().map(show).collect::<Vec<_>>().join(" ")
}

/// Events until the watch has nothing more to say about revisions up to `until`.
pub async fn drain(watch: &mut WatchStream, until: Revision) -> Vec<Event> {
    let mut events = Vec::new();
    let mut reached = 0;
    while reached < until {
        match watch.next().await.expect("the watch goes on").expect("without an error") {
            Signal::Event(event) => {
                assert!(event.revision > reached, "revision {} after {reached}", event.revision);
                reached = event.revision;
                events.push(event);
            }
            Signal::Progress(revision) => reached = revision,
        }
    }
    events
}

pub async fn an_empty_store_is_at_revision_zero(fixture: &dyn Fixture) {
    let store = open(fixture);
    assert_eq!((store.revision(), store.compacted()), (0, 0));
    assert_eq!(store.get(b"a").await.expect("reads"), None);
    assert_eq!(store.range(b"", RangeOptions::default()).await.expect("reads"), Page::default());
}

pub async fn compare_and_swap(fixture: &dyn Fixture) {
    let store = open(fixture);
    let first = store.commit(put("a", "1", Expect::Absent)).await.expect("creates");
    assert_eq!(first, Committed { revision: 1, create_revision: 1, version: 1 });
    match store.commit(put("a", "2", Expect::Absent)).await {
        Err(Error::Conflict { current: Some(entry) }) => {
            assert_eq!((entry.mod_revision, &entry.value[..]), (1, &b"1"[..]))
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(store.commit(put("b", "2", Expect::At(1))).await, Err(Error::Conflict { current: None })));
    assert!(matches!(store.commit(delete("b", 1)).await, Err(Error::Conflict { current: None })));
    let second = store.commit(put("a", "2", Expect::At(1))).await.expect("updates");
    assert_eq!(second, Committed { revision: 2, create_revision: 1, version: 2 });
    assert!(matches!(store.commit(put("a", "3", Expect::At(1))).await, Err(Error::Conflict { current: Some(_) })));
    assert_eq!(store.revision(), 2, "a refused commit takes no revision");
    let entry = store.get(b"a").await.expect("reads").expect("is there");
    let expected = Entry { key: "a".into(), value: "2".into(), create_revision: 1, mod_revision: 2, version: 2 };
    assert_eq!(entry, expected);
    let third = store.commit(delete("a", 2)).await.expect("deletes");
    assert_eq!(third, Committed { revision: 3, create_revision: 1, version: 2 });
    assert_eq!(store.get(b"a").await.expect("reads"), None);
}

pub async fn versions_restart_after_a_delete(fixture: &dyn Fixture) {
    let store = open(fixture);
    fill(&*store, [put("a", "1", Expect::Absent), put("a", "2", Expect::At(1)), delete("a", 2)]).await;
    let again = store.commit(put("a", "3", Expect::Absent)).await.expect("creates again");
    assert_eq!(again, Committed { revision: 4, create_revision: 4, version: 1 });
}

pub async fn ranges_have_prefix_start_and_limit(fixture: &dyn Fixture) {
    let store = open(fixture);
    let keys = ["p/a/1", "p/a/2", "p/b/1", "pq/1", "o/1", "p/\u{10ffff}"];
    fill(&*store, keys.map(|k| put(k, "x", Expect::Absent))).await;
    let range = async |prefix: &str, start: Option<&str>, limit| {
        let start = start.map(|s| Bytes::copy_from_slice(s.as_bytes()));
        let options = RangeOptions { limit, start, revision: None };
        let page = store.range(prefix.as_bytes(), options).await.expect("reads");
        assert_eq!(page.revision, 6);
        (page.entries.iter().map(|e| String::from_utf8_lossy(&e.key).into_owned()).collect::<Vec<_>>(), page.more)
    };
    assert_eq!(range("p/a/", None, 0).await, (vec!["p/a/1".into(), "p/a/2".into()], false));
    assert_eq!(range("p/", None, 2).await, (vec!["p/a/1".into(), "p/a/2".into()], true));
    assert_eq!(range("p/", Some("p/a/2"), 2).await, (vec!["p/a/2".into(), "p/b/1".into()], true));
    assert_eq!(range("p/", Some("p/a/2\0"), 2).await, (vec!["p/b/1".into(), "p/\u{10ffff}".into()], false));
    assert_eq!(range("p/", Some("a"), 1).await, (vec!["p/a/1".into()], true));
    assert_eq!(range("p/", Some("q"), 1).await, (vec![], false));
    assert_eq!(range("", None, 0).await.0.len(), 6);
}

pub async fn a_range_shows_the_past(fixture: &dyn Fixture) {
    let store = open(fixture);
    fill(
        &*store,
        [put("a", "1", Expect::Absent), put("b", "2", Expect::Absent), delete("a", 1), put("b", "4", Expect::At(2))],
    )
    .await;
    let at = async |revision| {
        let options = RangeOptions { revision: Some(revision), ..RangeOptions::default() };
        let page = store.range(b"", options).await?;
        assert_eq!(page.revision, revision);
        Ok::<_, Error>(text(&page))
    };
    assert_eq!(at(1).await.expect("known"), "a=1");
    assert_eq!(at(2).await.expect("known"), "a=1 b=2");
    assert_eq!(at(3).await.expect("known"), "b=2");
    assert_eq!(at(4).await.expect("known"), "b=4");
    assert!(matches!(at(5).await, Err(Error::Future { asked: 5, current: 4 })));
}

pub async fn a_watch_delivers_everything_once_in_order(fixture: &dyn Fixture) {
    let store = open(fixture);
    let mut watch = store.watch(b"k/", 0).expect("starts");
    assert!(watch.next().now_or_never().is_none(), "nothing has happened");
    let done = fill(&*store, [put("k/a", "1", Expect::Absent), put("k/a", "2", Expect::At(1)), delete("k/a", 2)]).await;
    let events = drain(&mut watch, 3).await;
    let entry = |value: &'static str, mod_revision, version| {
        Some(Entry { key: "k/a".into(), value: value.into(), create_revision: 1, mod_revision, version })
    };
    let key = || Bytes::from("k/a");
    let expected = [
        Event { revision: 1, key: key(), entry: entry("1", 1, 1), previous: None },
        Event { revision: 2, key: key(), entry: entry("2", 2, 2), previous: entry("1", 1, 1) },
        Event { revision: 3, key: key(), entry: None, previous: entry("2", 2, 2) },
    ];
    assert_eq!(events, expected);
    assert_eq!(done.last().map(|c| c.revision), Some(3));
    assert!(watch.next().now_or_never().is_none(), "nothing more has happened");
}

pub async fn a_watch_reports_progress_for_other_prefixes(fixture: &dyn Fixture) {
    let store = open(fixture);
    let mut watch = store.watch(b"k/", 0).expect("starts");
    fill(&*store, [put("k/a", "1", Expect::Absent), put("other", "1", Expect::Absent)]).await;
    assert_eq!(drain(&mut watch, 2).await.len(), 1);
}

pub async fn a_watch_starts_in_the_past(fixture: &dyn Fixture) {
    let store = open(fixture);
    fill(&*store, (0..1000).map(|i| put(&format!("k/{i}"), "x", Expect::Absent))).await;
    let mut watch = store.watch(b"k/", 400).expect("starts");
    let events = drain(&mut watch, 1000).await;
    assert_eq!(events.iter().map(|e| e.revision).collect::<Vec<_>>(), (401..=1000).collect::<Vec<_>>());
    assert!(matches!(store.watch(b"k/", 1001), Err(Error::Future { asked: 1001, current: 1000 })));
}

pub async fn history_is_compacted_on_demand(fixture: &dyn Fixture) {
    let store = open(fixture);
    fill(&*store, [put("a", "1", Expect::Absent), put("a", "2", Expect::At(1)), put("b", "3", Expect::Absent)]).await;
    store.compact(2).await.expect("compacts");
    assert_eq!(store.compacted(), 2);
    assert!(matches!(store.watch(b"", 1), Err(Error::Compacted { asked: 1, oldest: 2 })));
    let past = RangeOptions { revision: Some(1), ..RangeOptions::default() };
    assert!(matches!(store.range(b"", past).await, Err(Error::Compacted { asked: 1, oldest: 2 })));
    assert_eq!(drain(&mut store.watch(b"", 2).expect("starts"), 3).await.len(), 1);
    assert_eq!(text(&store.range(b"", RangeOptions::default()).await.expect("reads")), "a=2 b=3");
    store.compact(1).await.expect("an older compaction changes nothing");
    assert_eq!(store.compacted(), 2);
    assert!(matches!(store.compact(4).await, Err(Error::Future { .. })));
}

pub async fn history_is_compacted_by_bytes(fixture: &dyn Fixture) {
    let store = fixture.open(Arc::new(clock()), HistoryBounds { bytes: 4000, age: Duration::MAX });
    fill(&*store, (0..100).map(|i| put(&format!("k/{i:03}"), &"x".repeat(95), Expect::Absent))).await;
    assert_eq!(store.compacted(), 60);
    assert_eq!(store.range(b"", RangeOptions::default()).await.expect("reads").entries.len(), 100);
}

pub async fn history_is_compacted_by_age(fixture: &dyn Fixture) {
    let clock = clock();
    let bounds = HistoryBounds { bytes: usize::MAX, age: Duration::from_secs(10) };
    let store = fixture.open(Arc::new(clock.clone()), bounds);
    fill(&*store, [put("a", "1", Expect::Absent), put("b", "1", Expect::Absent)]).await;
    clock.advance(Duration::from_secs(11));
    fill(&*store, [put("c", "1", Expect::Absent)]).await;
    assert_eq!(store.compacted(), 2);
}

pub async fn a_watcher_that_history_left_behind_ends(fixture: &dyn Fixture) {
    let store = open(fixture);
    let mut watch = store.watch(b"", 0).expect("starts");
    fill(&*store, (0..5).map(|i| put(&format!("{i}"), "x", Expect::Absent))).await;
    store.compact(4).await.expect("compacts");
    match watch.next().await {
        Some(Err(Error::Compacted { .. } | Error::Slow { .. })) => {}
        other => panic!("{other:?}"),
    }
    assert!(watch.next().await.is_none());
}

pub async fn sizes_are_bounded(fixture: &dyn Fixture) {
    let store = open(fixture);
    let long = "k".repeat(MAX_KEY + 1);
    assert!(matches!(store.commit(put(&long, "", Expect::Absent)).await, Err(Error::TooLarge { .. })));
    let large = "v".repeat(MAX_VALUE + 1);
    assert!(matches!(store.commit(put("k", &large, Expect::Absent)).await, Err(Error::TooLarge { .. })));
    store.commit(put("k", &large[1..], Expect::Absent)).await.expect("the largest value fits");
    store.commit(put("", "", Expect::Absent)).await.expect("empty keys and values are values");
    assert_eq!(store.get(b"k").await.expect("reads").map(|e| e.value.len()), Some(MAX_VALUE));
    assert_eq!(store.get(b"").await.expect("reads").map(|e| e.value.len()), Some(0));
}

pub async fn writers_in_parallel_get_each_revision_once(fixture: &dyn Fixture) {
    let store = open(fixture);
    let mut watch = store.watch(b"", 0).expect("starts");
    let write = |writer: usize| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut taken = BTreeMap::new();
            let mut last = None;
            for i in 0..50 {
                // Half of the writes fight over one key.
                let key = if i % 2 == 0 { "shared".to_owned() } else { format!("own/{writer}") };
                let expect = match (i % 2, last) {
                    (0, _) => store
                        .get(key.as_bytes())
                        .await
                        .expect("reads")
                        .map_or(Expect::Absent, |e| Expect::At(e.mod_revision)),
                    (_, None) => Expect::Absent,
                    (_, Some(revision)) => Expect::At(revision),
                };
                match store.commit(put(&key, &format!("{writer}/{i}"), expect)).await {
                    Ok(done) => {
                        // Rule 3: an acknowledged commit is seen by the next read.
                        let seen = store.get(key.as_bytes()).await.expect("reads").expect("is there");
                        assert!(seen.mod_revision >= done.revision && store.revision() >= done.revision);
                        if i % 2 == 1 {
                            last = Some(done.revision);
                        }
                        assert_eq!(taken.insert(done.revision, format!("{writer}/{i}")), None);
                    }
                    Err(Error::Conflict { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            taken
        })
    };
    let mut all = BTreeMap::new();
    for task in (0..8).map(write).collect::<Vec<_>>() {
        let taken = task.await.expect("runs");
        let (before, more) = (all.len(), taken.len());
        all.extend(taken);
        assert_eq!(all.len(), before + more, "no revision is given twice");
    }
    let events = drain(&mut watch, store.revision()).await;
    let seen: BTreeMap<_, _> = events
        .iter()
        .map(|e| {
            (e.revision, e.entry.as_ref().map(|e| String::from_utf8_lossy(&e.value).into_owned()).unwrap_or_default())
        })
        .collect();
    assert_eq!(seen, all, "the watch saw exactly what was acknowledged");
    assert_eq!(all.keys().copied().collect::<Vec<_>>(), (1..=store.revision()).collect::<Vec<_>>());
}

pub async fn a_cancelled_commit_leaves_the_store_usable(fixture: &dyn Fixture) {
    let store = open(fixture);
    for i in 0..20 {
        let key = format!("k/{i}");
        let op = put(&key, "x", Expect::Absent);
        let _ = store.commit(op).now_or_never();
        let now = store.commit(put(
            "after",
            "y",
            store.get(b"after").await.expect("reads").map_or(Expect::Absent, |e| Expect::At(e.mod_revision)),
        ));
        now.await.expect("commits");
    }
    let revision = store.revision();
    let events = drain(&mut store.watch(b"", 0).expect("starts"), revision).await;
    assert_eq!(events.len() as u64, revision, "every revision has one event");
}

pub async fn closing_ends_watches_and_refuses_commits(fixture: &dyn Fixture) {
    let store = open(fixture);
    let mut watch = store.watch(b"", 0).expect("starts");
    fill(&*store, [put("a", "1", Expect::Absent)]).await;
    store.close().await;
    assert!(matches!(watch.next().await, Some(Ok(Signal::Event(_)))), "what was committed is delivered");
    assert!(matches!(watch.next().await, Some(Err(Error::Closed(_)))));
    assert!(watch.next().await.is_none());
    assert!(matches!(store.commit(put("b", "1", Expect::Absent)).await, Err(Error::Closed(_))));
    store.close().await;
}

pub async fn relaxed_commits_keep_their_order(fixture: &dyn Fixture) {
    let store = open(fixture);
    let relaxed = |key: &str, expect| match put(key, "x", expect) {
        Op::Put { key, value, expect, .. } => Op::Put { key, value, expect, urgency: Urgency::Relaxed },
        other => other,
    };
    let slow = store.commit(relaxed("lease", Expect::Absent));
    let fast = store.commit(put("pod", "x", Expect::Absent));
    let (slow, fast) = futures::join!(slow, fast);
    assert_eq!((slow.expect("commits").revision, fast.expect("commits").revision), (1, 2));
    // Alone, it waits for nobody for ever.
    assert_eq!(store.commit(relaxed("lease", Expect::At(1))).await.expect("commits").revision, 3);
}
