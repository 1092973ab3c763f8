//! Waits appear late, go at once, and survive errors, restarts and a server that forgot them.

use super::*;
use crate::fake::Fake;
use machinery::status::Status;
use stdx::Rng;
use stdx::clock::ManualClock;

struct Bench {
    fake: Fake,
    clock: ManualClock,
    shared: SharedClock,
    stage: Stage,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let shared: SharedClock = Arc::new(clock.clone());
        let fake = Fake::new(vec![resource()], shared.clone(), Rng::seeded(1));
        Self { fake, clock, shared, stage: Stage::new() }
    }

    fn publisher(&self) -> Publisher {
        let client = Client::new(self.fake.handler(), "test");
        Publisher::start(&client, "scheduler", |_| true, self.shared.clone(), &self.stage)
    }

    async fn settle(&self) {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    async fn pass(&self, milliseconds: u64) {
        self.settle().await;
        self.clock.advance(Duration::from_millis(milliseconds));
        self.settle().await;
    }

    fn texts(&self) -> Vec<String> {
        self.fake
            .objects("waits.explain.pintle.dev")
            .iter()
            .map(|w| w["text"].as_str().unwrap_or("").to_owned())
            .collect()
    }
}

fn pod(name: &str) -> Reference {
    Reference {
        kind: "Pod".into(),
        namespace: "default".into(),
        name: name.into(),
        uid: "u".into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_short_wait_is_never_seen() {
    let bench = Bench::new();
    let waits = bench.publisher();
    waits.publish(&pod("a"), "Unschedulable", "nodes", "0/1 nodes");
    bench.pass(99).await;
    waits.withdraw(&pod("a"), "Unschedulable");
    bench.pass(500).await;
    assert!(bench.texts().is_empty());
    assert!(!bench.fake.take_requests().iter().any(|r| r.starts_with("POST")));
}

#[tokio::test]
async fn a_long_wait_is_shown_changed_and_withdrawn_once_per_code() {
    let bench = Bench::new();
    let waits = bench.publisher();
    waits.publish(&pod("a"), "Unschedulable", "nodes", "one");
    bench.pass(100).await;
    assert_eq!(bench.texts(), ["one"]);
    waits.publish(&pod("a"), "Unschedulable", "nodes", "two");
    waits.publish(&pod("a"), "Gate", "gates", "three");
    bench.pass(100).await;
    let mut texts = bench.texts();
    texts.sort();
    assert_eq!(texts, ["three", "two"]);
    waits.withdraw_all(&pod("a"));
    bench.pass(0).await;
    assert!(bench.texts().is_empty());
}

#[tokio::test]
async fn errors_heal_and_lost_waits_come_back() {
    let bench = Bench::new();
    bench.fake.fail("POST", "waits", Status::unavailable("not yet"));
    let waits = bench.publisher();
    waits.publish(&pod("a"), "Unschedulable", "nodes", "one");
    bench.pass(100).await;
    assert!(bench.texts().is_empty());
    bench.pass(250).await;
    assert_eq!(bench.texts(), ["one"]);
    let name = bench.fake.objects("waits.explain.pintle.dev")[0]["metadata"]["name"].as_str().unwrap_or("").to_owned();
    bench.fake.remove("waits.explain.pintle.dev", "default", &name);
    bench.pass(60_000).await;
    assert_eq!(bench.texts(), ["one"]);
}

#[tokio::test]
async fn what_a_predecessor_left_goes() {
    let bench = Bench::new();
    let first = bench.publisher();
    first.publish(&pod("a"), "Unschedulable", "nodes", "one");
    first.publish(&pod("b"), "Unschedulable", "nodes", "two");
    bench.pass(100).await;
    assert_eq!(bench.texts().len(), 2);
    bench.stage.stop();
    let bench = Bench { stage: Stage::new(), ..bench };
    let second = bench.publisher();
    second.publish(&pod("b"), "Unschedulable", "nodes", "two");
    bench.pass(100).await;
    bench.pass(100).await;
    assert_eq!(bench.texts(), ["two"]);
}

#[tokio::test]
async fn a_wait_the_server_refuses_does_not_hold_up_the_others() {
    let bench = Bench::new();
    bench.fake.fail("POST", "waits", Status::bad_request("no"));
    let waits = bench.publisher();
    waits.publish(&pod("a"), "Unschedulable", "nodes", "one");
    waits.publish(&pod("b"), "Unschedulable", "nodes", "two");
    bench.pass(100).await;
    assert_eq!(bench.texts().len(), 1, "the other is shown at once");
}

#[tokio::test]
async fn nodes_leave_each_others_waits_alone() {
    let bench = Bench::new();
    let client = Client::new(bench.fake.handler(), "test");
    let start = |node: &str| Publisher::start_on_node(&client, "proxy", node, bench.shared.clone(), &bench.stage);
    let first = start("n1");
    first.publish(&pod("a"), "RulesNotInKernel", "nftables", "one");
    bench.pass(100).await;
    // Another node begins, waits for the same, and is done.
    let second = start("n2");
    second.publish(&pod("a"), "RulesNotInKernel", "nftables", "two");
    bench.pass(100).await;
    let mut texts = bench.texts();
    texts.sort();
    assert_eq!(texts, ["one", "two"]);
    let on: Vec<Value> = bench.fake.objects("waits.explain.pintle.dev").iter().map(|w| w["on"].clone()).collect();
    assert!(on.contains(&json!("nftables on node n1")) && on.contains(&json!("nftables on node n2")), "{on:?}");
    second.withdraw(&pod("a"), "RulesNotInKernel");
    bench.pass(0).await;
    assert_eq!(bench.texts(), ["one"]);
    // A successor on the same node takes away what the first has left.
    drop(first);
    let _third = start("n1");
    bench.pass(100).await;
    assert!(bench.texts().is_empty());
}
