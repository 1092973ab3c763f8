//! The watch cache over a memory store: order, gaps, slowness, expiry, selectors, bookmarks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kinds::{AnyShape, config_map::ConfigMap, pod::Pod};
use machinery::{fields, labels};
use serde_json::{Value, json};
use stdx::clock::ManualClock;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use storage::{Committed, Expect, HistoryBounds, Memory, Op, Store, Urgency};

use super::*;
use crate::objects::{self, Change, Objects as _, Resource, Seen};

const SECOND: Duration = Duration::from_secs(1);
const CONFIG_MAPS: Resource = Resource { group: "", plural: "configmaps" };

struct World {
    store: Arc<Memory>,
    clock: ManualClock,
    cachers: Arc<Cachers>,
    stage: Stage,
}

impl World {
    async fn new() -> Self {
        Self::with(Limits::default()).await
    }

    async fn with(limits: Limits) -> Self {
        let clock = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let shared: SharedClock = Arc::new(clock.clone());
        let store = Arc::new(Memory::with_history(shared.clone(), HistoryBounds::default()));
        let stage = Stage::new();
        let stores = Stores { durable: store.clone(), memory: Arc::new(Memory::new(shared.clone())) };
        let kinds: [&'static dyn AnyKind; 2] = [&ConfigMap, &Pod];
        let cachers = Cachers::start(&stores, kinds, &shared, limits, &stage).await.expect("starts");
        Self { store, clock, cachers, stage }
    }

    fn maps(&self) -> &Arc<Cacher> {
        self.cachers.find("", "configmaps").expect("is cached")
    }

    fn pods(&self) -> &Arc<Cacher> {
        self.cachers.find("", "pods").expect("is cached")
    }

    async fn write(&self, key: String, value: Option<Vec<u8>>) -> Committed {
        let key: bytes::Bytes = key.into();
        let found = self.store.get(&key).await.expect("reads");
        let expect = found.map_or(Expect::Absent, |entry| Expect::At(entry.mod_revision));
        let op = match value {
            Some(value) => Op::Put { key, value: value.into(), expect, urgency: Urgency::Now },
            None => Op::Delete { key, expect },
        };
        self.store.commit(op).await.expect("commits")
    }

    async fn put(&self, shape: AnyShape<'_>, object: Value) -> u64 {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let key = shape.key(text("/metadata/namespace"), text("/metadata/name"));
        self.write(key, Some(object.to_string().into_bytes())).await.revision
    }

    async fn map(&self, namespace: &str, name: &str, tier: &str) -> u64 {
        let metadata = json!({"name": name, "namespace": namespace, "labels": {"tier": tier}});
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata});
        self.put(self.maps().kind.shape(), object).await
    }

    async fn pod(&self, name: &str, node: &str) -> u64 {
        let metadata = json!({"name": name, "namespace": "default"});
        let object = json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"nodeName": node}});
        self.put(self.pods().kind.shape(), object).await
    }

    async fn remove(&self, namespace: &str, name: &str) -> u64 {
        self.write(self.maps().kind.shape().key(namespace, name), None).await.revision
    }

    async fn settle(&self) {
        self.maps().wait_current(SECOND).await.expect("the cache follows");
    }
}

fn options() -> WatchOptions {
    WatchOptions::default()
}

fn after(revision: u64) -> WatchOptions {
    WatchOptions { after: Some(revision), ..options() }
}

fn tier(value: &str) -> Filter {
    Filter { labels: labels::Selector::parse(&format!("tier={value}")).expect("parses"), ..Filter::default() }
}

fn frame_of(event: &Delivery) -> bytes::Bytes {
    let line = || Ok(crate::encode::event::line(event.what.as_str(), &event.object.json));
    event.frame(Shared::Json, line).expect("a frame")
}

fn show(item: Option<WatchItem>) -> String {
    match item {
        None => "end".into(),
        Some(WatchItem::Event(event)) => {
            let frame: Value = serde_json::from_slice(&frame_of(&event)).expect("is JSON");
            assert_eq!(frame["type"], event.what.as_str());
            let version = frame["object"]["metadata"]["resourceVersion"].as_str().expect("has a revision");
            format!("{} {} {version}", event.what.as_str(), event.object.key)
        }
        Some(WatchItem::Bookmark { revision, initial_events_end }) => {
            format!("BOOKMARK {revision}{}", if initial_events_end { " end" } else { "" })
        }
        Some(WatchItem::Error(status)) => format!("ERROR {} {}", status.code, status.message),
    }
}

/// What is there to read now, without waiting.
fn ready(watch: &mut Watcher) -> Vec<String> {
    let mut items = Vec::new();
    while let Some(item) = watch.next().now_or_never() {
        let ended = item.is_none();
        items.push(show(item));
        if ended {
            break;
        }
    }
    items
}

fn keys(snapshot: &Snapshot) -> Vec<String> {
    snapshot.objects().values().map(|slot| format!("{}@{}", slot.object.key, slot.object.revision)).collect()
}

fn select(filter: &Filter, snapshot: &Snapshot, start: Option<&str>) -> Vec<Arc<CachedObject>> {
    let mut scan = Scan::new(filter.clone(), snapshot.clone(), start);
    let mut found = Vec::new();
    // One at a time, so that every step goes on where the one before ended.
    while !scan.is_over() {
        scan.step(1, &mut found);
    }
    found
}

#[tokio::test]
async fn reads_after_a_write_see_it() {
    let world = World::new().await;
    for i in 0..50 {
        let revision = world.map("default", "a", &i.to_string()).await;
        world.settle().await;
        let snapshot = world.maps().snapshot();
        assert_eq!((snapshot.revision, keys(&snapshot)), (revision, vec![format!("default/a@{revision}")]));
        let object = world.maps().get("default/a").expect("is there").value().expect("reads");
        assert_eq!(object["metadata"]["resourceVersion"], revision.to_string());
        assert_eq!(object["metadata"]["labels"]["tier"], i.to_string());
    }
    // Another kind's write moves this one's revision too.
    let revision = world.pod("p", "n").await;
    world.settle().await;
    assert_eq!(world.maps().snapshot().revision, revision);
    let waited = {
        let wait = world.maps().wait_for(revision + 1, SECOND);
        tokio::pin!(wait);
        assert!(futures::poll!(&mut wait).is_pending());
        world.clock.advance(SECOND);
        wait.await
    };
    let status = waited.expect_err("has not happened");
    assert_eq!((status.code, status.message.as_str()), (504, "Timeout: Too large resource version: 52, current: 51"));
}

#[tokio::test]
async fn a_cache_begins_with_what_is_stored() {
    let world = World::new().await;
    for i in 0..1200 {
        world.map("default", &format!("m{i:04}"), "x").await;
    }
    let stores = Stores { durable: world.store.clone(), memory: world.store.clone() };
    let clock: SharedClock = Arc::new(world.clock.clone());
    let kinds: [&'static dyn AnyKind; 1] = [&ConfigMap];
    let again = Cachers::start(&stores, kinds, &clock, Limits::default(), &world.stage).await.expect("starts");
    let snapshot = again.find("", "configmaps").expect("is cached").snapshot();
    assert_eq!((snapshot.revision, snapshot.objects().len()), (1200, 1200));
}

#[tokio::test]
async fn a_watch_sees_every_change_with_its_revision() {
    let world = World::new().await;
    world.map("default", "a", "x").await;
    world.settle().await;
    let mut watch = world.maps().watch(after(0)).expect("starts");
    world.map("default", "a", "y").await;
    world.pod("p", "n").await;
    world.remove("default", "a").await;
    world.settle().await;
    assert_eq!(ready(&mut watch), ["ADDED default/a 1", "MODIFIED default/a 2", "DELETED default/a 4"]);
    // A revision this server has not reached: what lies before it is not shown.
    let mut watch = world.maps().watch(after(5)).expect("starts");
    world.map("default", "b", "x").await;
    world.map("default", "c", "x").await;
    world.settle().await;
    assert_eq!(ready(&mut watch), ["ADDED default/c 6"]);
}

#[tokio::test]
async fn the_initial_state_comes_first_and_its_end_is_marked() {
    let world = World::new().await;
    for i in 0..600 {
        world.map("default", &format!("m{i:03}"), if i % 2 == 0 { "even" } else { "odd" }).await;
    }
    world.settle().await;
    let mut watch = world
        .maps()
        .watch(WatchOptions { filter: tier("odd"), marks_end: true, bookmarks: true, ..options() })
        .expect("starts");
    world.map("default", "new", "odd").await;
    world.settle().await;
    let items = ready(&mut watch);
    assert_eq!(items.len(), 302);
    assert_eq!(items[0], "ADDED default/m001 2");
    assert_eq!(items[299], "ADDED default/m599 600");
    assert_eq!(items[300], "BOOKMARK 600 end");
    assert_eq!(items[301], "ADDED default/new 601");
    // Without the marker: as a watch without a resourceVersion begins.
    let mut watch = world.maps().watch(WatchOptions { filter: tier("odd"), ..options() }).expect("starts");
    assert_eq!(ready(&mut watch).len(), 301);
}

#[tokio::test]
async fn objects_enter_and_leave_a_selector() {
    let world = World::new().await;
    let mut watch = world.maps().watch(WatchOptions { filter: tier("gold"), ..after(0) }).expect("starts");
    world.map("default", "a", "tin").await;
    world.map("default", "a", "gold").await;
    world.map("default", "a", "gold").await;
    world.map("default", "a", "tin").await;
    world.map("default", "b", "gold").await;
    world.remove("default", "b").await;
    world.settle().await;
    let seen = [
        "ADDED default/a 2",
        "MODIFIED default/a 3",
        "DELETED default/a 4",
        "ADDED default/b 5",
        "DELETED default/b 6",
    ];
    assert_eq!(ready(&mut watch), seen);
    // The same from the ring.
    let mut watch = world.maps().watch(WatchOptions { filter: tier("gold"), ..after(0) }).expect("starts");
    assert_eq!(ready(&mut watch), seen);
}

#[tokio::test]
async fn watches_by_namespace_name_and_field() {
    let world = World::new().await;
    let field = |text: &str| Filter { fields: fields::Selector::parse(text).expect("parses"), ..Filter::default() };
    let watch = |cacher: &Cacher, filter| cacher.watch(WatchOptions { filter, ..after(0) }).expect("starts");
    let mut in_a = watch(world.maps(), Filter { namespace: "a".into(), ..Filter::default() });
    let mut named = watch(world.maps(), Filter { namespace: "b".into(), name: "x".into(), ..Filter::default() });
    let mut by_name = watch(world.maps(), field("metadata.name=x"));
    let mut on_node = watch(world.pods(), field("spec.nodeName=n1"));
    let mut unassigned = watch(world.pods(), field("spec.nodeName="));
    world.map("a", "x", "").await;
    world.map("b", "x", "").await;
    world.map("b", "y", "").await;
    world.pod("p", "").await;
    world.pod("p", "n1").await;
    world.pod("q", "n2").await;
    world.pod("p", "n2").await;
    world.settle().await;
    assert_eq!(ready(&mut in_a), ["ADDED a/x 1"]);
    assert_eq!(ready(&mut named), ["ADDED b/x 2"]);
    assert_eq!(ready(&mut by_name), ["ADDED a/x 1", "ADDED b/x 2"]);
    assert_eq!(ready(&mut unassigned), ["ADDED default/p 4", "DELETED default/p 5"]);
    assert_eq!(ready(&mut on_node), ["ADDED default/p 5", "DELETED default/p 7"]);
}

#[tokio::test]
async fn a_slow_watcher_is_ended_alone() {
    let world = World::with(Limits { queue: 10, ..Limits::default() }).await;
    let mut slow = world.maps().watch(after(0)).expect("starts");
    let mut quick = world.maps().watch(after(0)).expect("starts");
    for i in 0..15 {
        let revision = world.map("default", "a", &i.to_string()).await;
        world.settle().await;
        assert!(ready(&mut quick)[0].ends_with(&format!("default/a {revision}")));
    }
    let seen = ready(&mut slow);
    assert_eq!((seen.len(), seen[9].as_str(), seen[10].as_str()), (11, "MODIFIED default/a 10", "end"));
    assert_eq!(world.maps().watchers(), 1);
    let mut resumed = world.maps().watch(after(10)).expect("resumes where it was");
    assert_eq!(ready(&mut resumed).len(), 5);
}

#[tokio::test]
async fn what_is_forgotten_has_expired() {
    let world = World::with(Limits { changes: 3, ..Limits::default() }).await;
    for i in 0..5 {
        world.map("default", &format!("m{i}"), "").await;
    }
    world.settle().await;
    let status = world.maps().watch(after(1)).err().expect("has expired");
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    assert_eq!(status.message, "too old resource version: 1 (2)");
    assert_eq!(ready(&mut world.maps().watch(after(2)).expect("starts")).len(), 3);
    let status = world.maps().snapshot_at(1).expect_err("has expired");
    assert_eq!(status.message, "The resourceVersion for the provided list is too old.");
    // By age, where nothing changes.
    world.clock.advance(Duration::from_secs(301));
    world.maps().tidy();
    assert!(world.maps().watch(after(4)).is_err());
    assert!(world.maps().watch(after(5)).is_ok());
}

#[tokio::test]
async fn a_paginated_list_goes_on_at_its_revision() {
    let world = World::with(Limits { changes: 2, ..Limits::default() }).await;
    world.map("a", "x", "").await;
    world.map("b", "y", "").await;
    world.settle().await;
    let first = world.maps().snapshot();
    world.maps().keep(&first);
    world.map("b", "y", "new").await;
    world.remove("a", "x").await;
    world.settle().await;
    assert_eq!(keys(&world.maps().snapshot_at(2).expect("undone")), ["a/x@1", "b/y@2"]);
    assert_eq!(keys(&world.maps().snapshot_at(3).expect("undone")), ["a/x@1", "b/y@3"]);
    assert_eq!(keys(&world.maps().snapshot_at(4).expect("is now")), ["b/y@3"]);
    world.map("c", "z", "").await;
    world.map("c", "z", "new").await;
    world.map("c", "z", "newer").await;
    world.settle().await;
    assert_eq!(keys(&world.maps().snapshot_at(2).expect("was kept")), ["a/x@1", "b/y@2"]);
    assert!(world.maps().snapshot_at(3).is_err());
    world.clock.advance(Duration::from_secs(301));
    world.maps().tidy();
    assert!(world.maps().snapshot_at(2).is_err());
}

#[tokio::test]
async fn lists_are_cut_by_namespace_start_and_index() {
    let world = World::new().await;
    for (name, node) in [("a", "n1"), ("b", "n2"), ("c", "n1"), ("d", "")] {
        world.pod(name, node).await;
    }
    world.pods().wait_current(SECOND).await.expect("follows");
    let snapshot = world.pods().snapshot();
    let names = |found: Vec<Arc<CachedObject>>| {
        found.iter().map(|object| object.name().to_owned()).collect::<Vec<_>>().concat()
    };
    let range =
        |namespace: &str, start: &str| names(snapshot.range(namespace, start).map(|s| s.object.clone()).collect());
    assert_eq!(range("default", ""), "abcd");
    assert_eq!(range("", ""), "abcd");
    assert_eq!(range("default", "default/b\0"), "cd");
    assert_eq!(range("defaul", ""), "");
    assert_eq!(range("default", "e/a"), "");
    assert_eq!(names(snapshot.by_field("spec.nodeName", "n1").expect("is indexed").cloned().collect()), "ac");
    let named = |name: &str| Filter { fields: fields::Selector::exact("metadata.name", name), ..Filter::default() };
    assert_eq!(names(select(&named("b"), &snapshot, None)), "b");
    assert_eq!(names(select(&Filter { namespace: "default".into(), ..named("b") }, &snapshot, None)), "b");
    assert_eq!(names(select(&Filter { namespace: "default".into(), ..named("b") }, &snapshot, Some("default/c"))), "");
    let space = Filter { fields: fields::Selector::exact("metadata.namespace", "other"), ..Filter::default() };
    assert_eq!(names(select(&space, &snapshot, None)), "");
    assert!(snapshot.by_field("status.phase", "Running").is_none());
    let on = |node: &str| Filter { fields: fields::Selector::exact("spec.nodeName", node), ..Filter::default() };
    assert_eq!(names(select(&on("n1"), &snapshot, Some("default/b"))), "c");
    assert_eq!(names(select(&on(""), &snapshot, None)), "d");
    world.pod("a", "n2").await;
    world.pods().wait_current(SECOND).await.expect("follows");
    assert_eq!(names(select(&on("n1"), &world.pods().snapshot(), None)), "c");
    assert_eq!(names(select(&on("n2"), &world.pods().snapshot(), None)), "ab");
    assert_eq!(names(select(&on("n1"), &snapshot, None)), "ac", "a snapshot does not change");
}

#[tokio::test]
async fn bookmarks_come_every_minute_and_before_the_end() {
    let world = World::new().await;
    let timeout = Some(Duration::from_secs(150));
    let mut watch = world.maps().watch(WatchOptions { bookmarks: true, timeout, ..after(0) }).expect("starts");
    let mut silent = world.maps().watch(after(0)).expect("starts");
    world.pod("p", "n").await;
    world.settle().await;
    let mut seen = Vec::new();
    for second in 1..=150 {
        world.clock.advance(SECOND);
        seen.extend(ready(&mut watch).into_iter().map(|item| format!("{second}: {item}")));
    }
    assert_eq!(seen, ["60: BOOKMARK 1", "120: BOOKMARK 1", "148: BOOKMARK 1", "150: end"]);
    assert!(ready(&mut silent).is_empty());
}

#[tokio::test]
async fn a_bookmark_never_overtakes_an_event() {
    let world = World::new().await;
    let mut watch = world.maps().watch(WatchOptions { bookmarks: true, ..after(0) }).expect("starts");
    world.map("default", "a", "").await;
    world.settle().await;
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(ready(&mut watch), ["ADDED default/a 1", "BOOKMARK 1"]);
}

#[tokio::test]
async fn watchers_share_a_frame() {
    let world = World::new().await;
    let mut watches: Vec<_> = (0..3).map(|_| world.maps().watch(after(0)).expect("starts")).collect();
    world.map("default", "a", "").await;
    world.settle().await;
    let mut frames = Vec::new();
    for watch in &mut watches {
        match watch.next().await {
            Some(WatchItem::Event(event)) => frames.push(frame_of(&event)),
            other => panic!("{}", show(other)),
        }
    }
    assert!(frames.iter().all(|frame| frame.as_ptr() == frames[0].as_ptr()));
    assert!(frames[0].ends_with(b"}\n"));
}

#[tokio::test]
async fn an_unreadable_object_is_an_error_not_an_absence() {
    let world = World::new().await;
    world.write("/registry/configmaps/default/bad".into(), Some(b"{not json".to_vec())).await;
    world.settle().await;
    let object = world.maps().get("default/bad").expect("is there");
    assert_eq!(object.value().expect_err("cannot be read").code, 500);
    let mut watch = world.maps().watch(WatchOptions { filter: tier("x"), ..options() }).expect("starts");
    let items = ready(&mut watch);
    assert!(items[0].starts_with("ERROR 500 Internal error occurred: unable to decode"), "{items:?}");
    assert_eq!(items[1], "end");
}

#[tokio::test]
async fn the_cache_begins_anew_when_the_store_forgot_too_much() {
    let clock = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let shared: SharedClock = Arc::new(clock.clone());
    let bounds = HistoryBounds { bytes: 200, age: Duration::MAX };
    let store = Arc::new(Memory::with_history(shared.clone(), bounds));
    let stores = Stores { durable: store.clone(), memory: Arc::new(Memory::new(shared.clone())) };
    let stage = Stage::new();
    let kinds: [&'static dyn AnyKind; 2] = [&ConfigMap, &Pod];
    let cachers = Cachers::start(&stores, kinds, &shared, Limits::default(), &stage).await.expect("starts");
    let world = World { store, clock, cachers, stage };
    let mut watch = world.maps().watch(after(0)).expect("starts");
    // Nobody else runs between these commits: the dispatcher is left behind.
    for i in 0..20 {
        let name = format!("m{i}");
        let commit = world.map("default", &name, "");
        commit.now_or_never().expect("the memory store does not wait");
    }
    world.settle().await;
    assert_eq!(world.maps().snapshot().objects().len(), 20);
    assert_eq!(ready(&mut watch), ["end"]);
    assert!(world.maps().watch(after(0)).is_err());
}

#[tokio::test]
async fn stopping_ends_watches() {
    let world = World::new().await;
    let mut watch = world.maps().watch(after(0)).expect("starts");
    let clock: SharedClock = Arc::new(world.clock.clone());
    assert!(world.stage.finish(&clock, SECOND).await);
    assert_eq!(show(watch.next().await), "end");
    assert_eq!(world.maps().wait_for(1, SECOND).await.expect_err("never").code, 503);
}

#[tokio::test]
async fn listers_tell_what_changed_and_wait_for_what_appears() {
    let world = World::new().await;
    world.map("default", "a", "").await;
    world.map("default", "b", "").await;
    world.cachers.settle(CONFIG_MAPS).await.expect("follows");
    let names = |changes: Vec<Change>| {
        let mut names: Vec<_> = changes
            .iter()
            .map(|change| match change {
                Change::Put(object) => format!("+{}", machinery::meta::name(object)),
                Change::Gone { name, .. } => format!("-{name}"),
            })
            .collect();
        names.sort();
        names.concat()
    };
    let mut seen = Seen::default();
    assert_eq!(names(world.cachers.changes(CONFIG_MAPS, &mut seen)), "+a+b");
    assert_eq!(names(world.cachers.changes(CONFIG_MAPS, &mut seen)), "");
    world.map("default", "b", "x").await;
    world.map("default", "c", "x").await;
    world.remove("default", "a").await;
    world.cachers.settle(CONFIG_MAPS).await.expect("follows");
    assert_eq!(names(world.cachers.changes(CONFIG_MAPS, &mut seen)), "+b+c-a");
    let mut specs = Seen::default();
    for (node, told) in [("n", "+p"), ("n", ""), ("m", "+p"), ("m", "")] {
        world.pod("p", node).await;
        world.cachers.settle(objects::PODS).await.expect("follows");
        assert_eq!(names(world.cachers.changes_of_spec(objects::PODS, &mut specs)), told, "{node}");
    }
    let lister: &dyn objects::Objects = &*world.cachers;
    assert!(lister.get(CONFIG_MAPS, "default", "c").is_some());
    assert!(lister.get(objects::NODES, "", "n").is_none(), "not served here");
    let appears = world.cachers.appears(CONFIG_MAPS, "default", "d");
    tokio::pin!(appears);
    assert!(futures::poll!(&mut appears).is_pending());
    world.map("default", "d", "").await;
    assert_eq!(machinery::meta::name(&appears.await.expect("is there")), "d");
}

/// Watchers that begin anywhere, some with a selector, rebuild exactly what a list shows.
#[tokio::test]
async fn replayed_watches_equal_the_state() {
    for seed in 0..20 {
        let rng = Rng::seeded(seed);
        let world = World::new().await;
        let mut watches: Vec<(Filter, BTreeMap<String, u64>, Watcher)> = Vec::new();
        for _ in 0..300 {
            let (namespace, name) = (format!("ns{}", rng.below(3)), format!("m{}", rng.below(6)));
            if rng.below(3) == 0 && world.maps().get(&format!("{namespace}/{name}")).is_some() {
                world.remove(&namespace, &name).await;
            } else {
                world.map(&namespace, &name, &rng.below(3).to_string()).await;
            }
            if rng.below(3) == 0 {
                // The watch begins while the cache may or may not have seen the write.
                tokio::task::yield_now().await;
            } else {
                world.settle().await;
            }
            if rng.below(10) == 0 {
                let filter = match rng.below(4) {
                    0 => Filter::default(),
                    1 => tier(&rng.below(3).to_string()),
                    2 => Filter { namespace: format!("ns{}", rng.below(3)), ..tier("1") },
                    _ => Filter { fields: fields::Selector::exact("metadata.name", "m1"), ..Filter::default() },
                };
                let snapshot = world.maps().snapshot();
                let listed = select(&filter, &snapshot, None).iter().map(|o| (o.key.to_string(), o.revision)).collect();
                let from_list = rng.below(2) == 0;
                let options = WatchOptions {
                    filter: filter.clone(),
                    after: from_list.then_some(snapshot.revision),
                    marks_end: !from_list && rng.below(2) == 0,
                    ..options()
                };
                let watch = world.maps().watch(options).expect("starts");
                watches.push((filter, if from_list { listed } else { BTreeMap::new() }, watch));
            }
            for (filter, state, watch) in &mut watches {
                if rng.below(2) == 0 {
                    replay(state, watch, seed);
                    if world.maps().revision() == world.store.revision() {
                        compare(&world, filter, state, seed);
                    }
                }
            }
        }
        world.settle().await;
        for (filter, state, watch) in &mut watches {
            replay(state, watch, seed);
            compare(&world, filter, state, seed);
        }
    }
}

fn replay(state: &mut BTreeMap<String, u64>, watch: &mut Watcher, seed: u64) {
    while let Some(item) = watch.next().now_or_never() {
        let Some(WatchItem::Event(event)) = item else { continue };
        let key = event.object.key.to_string();
        let before = match event.what {
            What::Deleted => state.remove(&key),
            What::Added | What::Modified => state.insert(key, event.object.revision),
        };
        assert_eq!(before.is_none(), event.what == What::Added, "seed {seed}: {}", event.what.as_str());
    }
}

fn compare(world: &World, filter: &Filter, state: &BTreeMap<String, u64>, seed: u64) {
    let snapshot = world.maps().snapshot();
    let listed: BTreeMap<_, _> =
        select(filter, &snapshot, None).iter().map(|object| (object.key.to_string(), object.revision)).collect();
    assert_eq!(*state, listed, "seed {seed}");
}
