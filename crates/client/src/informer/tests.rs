//! What the cache shows after gaps, expiry, dropped watches and refusals.

use super::*;
use crate::fake::Fake;
use crate::resource::Resource;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use machinery::status::Status;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use stdx::clock::{Clock, ManualClock};

#[derive(Debug, Deserialize)]
struct View {
    #[serde(default)]
    data: std::collections::BTreeMap<String, String>,
}

struct Bench {
    fake: Fake,
    clock: ManualClock,
    stage: Stage,
    informer: Informer<View>,
    seen: Arc<Mutex<Vec<String>>>,
}

fn maps() -> Resource {
    Resource::of::<ConfigMap>()
}

fn prepare() -> (Fake, ManualClock, SharedClock, Rng) {
    let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
    let shared: SharedClock = Arc::new(clock.clone());
    let rng = Rng::seeded(1);
    (Fake::new(vec![maps()], shared.clone(), rng.clone()), clock, shared, rng)
}

impl Bench {
    fn start(setup: impl FnOnce(&Fake)) -> Self {
        let (fake, clock, shared, rng) = prepare();
        setup(&fake);
        let stage = Stage::new();
        let client = Client::new(fake.handler(), "test");
        let informer = Informer::<View>::builder(client, maps()).index_labels().start(shared, rng, &stage);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = seen.clone();
        informer.subscribe(move |change| {
            let name = &change.object().meta.name;
            sink.lock().push(match change {
                Change::Applied { old: None, .. } => format!("+{name}"),
                Change::Applied { .. } => format!("~{name}"),
                Change::Deleted(_) => format!("-{name}"),
            });
        });
        Self { fake, clock, stage, informer, seen }
    }

    async fn create(&self, name: &str) -> Value {
        let api = Client::new(self.fake.handler(), "test").dynamic(maps()).namespace("default");
        api.create(&json!({"metadata": {"name": name, "labels": {"app": name}}})).await.expect("created")
    }

    /// Lets tasks run, and time pass, until `done`.
    async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..2000 {
            for _ in 0..20 {
                if done(self) {
                    return;
                }
                tokio::task::yield_now().await;
            }
            self.clock.advance(Duration::from_millis(10));
        }
        panic!("never: {what}; seen {:?}", self.seen.lock());
    }

    fn names(&self) -> Vec<String> {
        self.informer.list().iter().map(|o| o.meta.name.clone()).collect()
    }
}

#[tokio::test]
async fn it_streams_the_list_then_follows() {
    let bench = Bench::start(|_| {});
    bench.create("a").await;
    bench.until("a", |b| b.names() == ["a"]).await;
    bench.fake.change("configmaps", "default", "a", |o| o["data"] = json!({"k": "v"}));
    bench.until("changed", |b| b.informer.find("default", "a").is_some_and(|o| o.view.data.contains_key("k"))).await;
    bench.fake.remove("configmaps", "default", "a");
    bench.until("gone", |b| b.informer.is_empty()).await;
    assert_eq!(*bench.seen.lock(), ["+a", "~a", "-a"]);
    assert_eq!(bench.fake.take_requests().iter().filter(|r| r.starts_with("WATCH")).count(), 1);
    bench.stage.stop();
}

#[tokio::test]
async fn a_dropped_watch_resumes_where_it_was() {
    let bench = Bench::start(|_| {});
    bench.create("a").await;
    bench.until("a", |b| b.names() == ["a"]).await;
    bench.fake.drop_watches();
    bench.create("b").await;
    bench.fake.remove("configmaps", "default", "a");
    bench.until("b", |b| b.names() == ["b"]).await;
    assert_eq!(*bench.seen.lock(), ["+a", "+b", "-a"]);
}

#[tokio::test]
async fn an_expired_revision_lists_anew_and_tells_what_vanished() {
    let bench = Bench::start(|_| {});
    bench.create("a").await;
    bench.create("b").await;
    bench.until("a, b", |b| b.names() == ["a", "b"]).await;
    bench.fake.drop_watches();
    bench.fake.remove("configmaps", "default", "a");
    bench.create("c").await;
    bench.fake.compact();
    bench.until("b, c", |b| b.names() == ["b", "c"]).await;
    assert_eq!(*bench.seen.lock(), ["+a", "+b", "+c", "-a"]);
}

#[tokio::test]
async fn an_object_replaced_in_a_gap_was_deleted() {
    let bench = Bench::start(|_| {});
    bench.create("a").await;
    bench.until("a", |b| b.names() == ["a"]).await;
    bench.fake.drop_watches();
    bench.fake.remove("configmaps", "default", "a");
    bench.create("a").await;
    bench.fake.compact();
    bench.until("replaced", |b| b.seen.lock().len() == 3).await;
    assert_eq!(*bench.seen.lock(), ["+a", "-a", "+a"]);
}

#[tokio::test]
async fn without_streaming_lists_it_lists_in_pages() {
    let bench = Bench::start(Fake::refuse_streaming_lists);
    bench.create("a").await;
    bench.until("a", |b| b.names() == ["a"]).await;
    bench.create("b").await;
    bench.until("b", |b| b.names() == ["a", "b"]).await;
    assert!(bench.fake.take_requests().iter().any(|r| r == "GET /api/v1/configmaps"));
}

#[tokio::test]
async fn failures_are_tried_again_after_a_while() {
    let bench = Bench::start(|fake| {
        for _ in 0..3 {
            fake.fail("WATCH", "configmaps", Status::unavailable("not yet"));
        }
    });
    bench.create("a").await;
    bench.until("a", |b| b.names() == ["a"]).await;
    assert!(bench.clock.now().0 >= Duration::from_millis(350), "back-off was not waited for");
}

#[tokio::test]
async fn barriers_end_when_the_cache_has_caught_up() {
    let bench = Bench::start(|_| {});
    bench.until("synced", |b| b.informer.has_synced()).await;
    let created = bench.create("a").await;
    let revision = machinery::meta::revision(&created).expect("a revision");
    bench.informer.reached(revision).await;
    assert_eq!(bench.names(), ["a"]);
    let gone = bench.informer.gone(Key::new("default", "a"), machinery::meta::uid(&created).to_owned());
    bench.fake.remove("configmaps", "default", "a");
    gone.await;
    assert!(bench.informer.is_empty());
    let before = bench.fake.take_requests().len();
    bench.informer.refreshed().await;
    assert!(before > 0 && bench.fake.take_requests().iter().any(|r| r.starts_with("WATCH")));
}

#[tokio::test]
async fn indexes_follow_changes() {
    let bench = Bench::start(|_| {});
    bench.create("a").await;
    bench.create("b").await;
    bench.until("both", |b| b.names().len() == 2).await;
    let select = |text: &str| {
        let selector = Selector::parse(text).expect("valid");
        bench.informer.select("default", &selector).iter().map(|o| o.meta.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(select("app=a"), ["a"]);
    assert_eq!(select("app in (a,b)"), ["a", "b"]);
    assert_eq!(select("app=none"), Vec::<String>::new());
    bench.fake.change("configmaps", "default", "a", |o| o["metadata"]["labels"] = json!({"app": "b"}));
    bench.until("relabelled", |_| select("app=b").len() == 2).await;
    assert_eq!(select("app=a"), Vec::<String>::new());
}
