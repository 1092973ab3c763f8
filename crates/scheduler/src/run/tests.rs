//! The whole scheduler against an API server in memory.

use super::*;
use client::fake::Fake;
use jiff::Timestamp;
use machinery::status::Status;
use serde_json::{Value, json};
use stdx::Clock;
use stdx::clock::ManualClock;

struct Test {
    fake: Fake,
    client: Client,
    clock: ManualClock,
    stage: Stage,
}

impl Test {
    fn new() -> Self {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let shared: SharedClock = Arc::new(clock.clone());
        let resources = vec![
            Resource::of::<Node>(),
            Resource::of::<Pod>(),
            Resource::of::<k8s_openapi::api::events::v1::Event>(),
            client::waits::resource(),
        ];
        let fake = Fake::new(resources, shared, Rng::seeded(1));
        let client = Client::new(fake.handler(), "test");
        Self { fake, client, clock, stage: Stage::new() }
    }

    fn start(&self) {
        let (client, clock, stage): (_, SharedClock, _) =
            (self.client.clone(), Arc::new(self.clock.clone()), self.stage.clone());
        self.stage.spawn(async move {
            run(client, clock, Rng::seeded(2), Options::new("host"), &stage).await;
        });
    }

    async fn node(&self, name: &str, cpu: &str) {
        let node = json!({"metadata": {"name": name},
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}});
        self.client.dynamic(Resource::of::<Node>()).create(&node).await.expect("created");
    }

    async fn pod(&self, name: &str, cpu: &str, priority: i32) {
        let pod = json!({"metadata": {"name": name}, "spec": {"schedulerName": "default-scheduler",
            "priority": priority,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
        self.client.dynamic(Resource::of::<Pod>()).namespace("default").create(&pod).await.expect("created");
    }

    fn get(&self, name: &str) -> Value {
        self.fake.object("pods", "default", name).unwrap_or_default()
    }

    /// Waits until `done` holds, letting tasks run and timers fire.
    async fn until(&self, what: &str, done: impl Fn() -> bool) {
        for _ in 0..5_000 {
            if done() {
                return;
            }
            tokio::task::yield_now().await;
            if let Some(at) = self.clock.next_timer() {
                let now = self.clock.now();
                self.clock.advance(at.since(now).min(Duration::from_millis(20)));
            }
        }
        panic!("never: {what}; requests {:?}; pods {:?}", self.fake.take_requests(), self.fake.objects("pods"));
    }

    fn events(&self) -> Vec<String> {
        let text = |e: &Value, p: &str| e.pointer(p).and_then(Value::as_str).unwrap_or_default().to_owned();
        let line = |e: &Value| {
            format!(
                "{} {} {}: {}",
                text(e, "/reportingController"),
                text(e, "/action"),
                text(e, "/reason"),
                text(e, "/note")
            )
        };
        self.fake.objects("events.events.k8s.io").iter().map(line).collect()
    }

    fn waits(&self) -> Vec<String> {
        let text = |w: &Value, p: &str| w.pointer(p).and_then(Value::as_str).unwrap_or_default().to_owned();
        let line = |w: &Value| {
            format!("{} {} {} on {}", text(w, "/layer"), text(w, "/object/name"), text(w, "/code"), text(w, "/on"))
        };
        self.fake.objects("waits.explain.pintle.dev").iter().map(line).collect()
    }

    async fn stop(self) {
        self.stage.stop();
    }
}

fn node_of(pod: &Value) -> &str {
    pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default()
}

#[tokio::test]
async fn a_pod_is_bound_and_the_event_says_so() {
    let test = Test::new();
    test.node("a", "4").await;
    test.start();
    test.pod("p", "1", 0).await;
    test.until("bound", || node_of(&test.get("p")) == "a").await;
    test.until("an event", || !test.events().is_empty()).await;
    assert_eq!(test.events(), ["default-scheduler Binding Scheduled: Successfully assigned default/p to a"]);
    assert_eq!(test.waits(), Vec::<String>::new());
    test.stop().await;
}

#[tokio::test]
async fn a_pod_that_fits_nowhere_is_told_why_until_it_fits() {
    let test = Test::new();
    test.start();
    test.node("a", "4").await;
    test.pod("p", "64", 0).await;
    let condition = || test.get("p").pointer("/status/conditions/0").cloned().unwrap_or_default();
    test.until("condition", || condition()["reason"] == "Unschedulable").await;
    let message = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    assert_eq!((condition()["type"].as_str(), condition()["status"].as_str()), (Some("PodScheduled"), Some("False")));
    assert_eq!(condition()["message"], message);
    test.until("event and wait", || !test.events().is_empty() && !test.waits().is_empty()).await;
    assert_eq!(test.events(), [format!("default-scheduler Scheduling FailedScheduling: {message}")]);
    assert_eq!(test.waits(), ["scheduler p Unschedulable on NodeResourcesFit on 1 of 1 nodes"]);
    test.node("b", "128").await;
    test.until("bound", || node_of(&test.get("p")) == "b").await;
    test.until("withdrawn", || test.waits().is_empty()).await;
    test.stop().await;
}

#[tokio::test]
async fn a_refused_binding_is_tried_again() {
    let test = Test::new();
    test.node("a", "4").await;
    test.fake.fail("POST", "/binding", Status::new(500, "InternalError", "no"));
    test.start();
    test.pod("p", "1", 0).await;
    test.until("bound", || node_of(&test.get("p")) == "a").await;
    test.until("events", || test.events().len() == 2).await;
    let failed =
        "default-scheduler Scheduling FailedScheduling: binding rejected: running Bind plugin \"DefaultBinder\": no";
    assert!(test.events().contains(&failed.to_owned()), "{:?}", test.events());
    test.until("withdrawn", || test.waits().is_empty()).await;
    test.stop().await;
}

#[tokio::test]
async fn a_preemptor_marks_and_deletes_its_victim_and_takes_its_place() {
    let test = Test::new();
    test.node("a", "4").await;
    test.start();
    test.pod("low", "3", 0).await;
    test.until("bound", || node_of(&test.get("low")) == "a").await;
    test.pod("high", "3", 10).await;
    test.until("deleting", || !test.get("low")["metadata"]["deletionTimestamp"].is_null()).await;
    assert_eq!(test.get("low").pointer("/status/conditions/0/reason"), Some(&json!("PreemptionByScheduler")));
    test.until("nominated", || test.get("high").pointer("/status/nominatedNodeName") == Some(&json!("a"))).await;
    // The kubelet has ended it.
    test.fake.remove("pods", "default", "low");
    test.until("bound", || node_of(&test.get("high")) == "a").await;
    test.until("event", || test.events().iter().any(|e| e.contains(" Preempting Preempted: Preempted by pod "))).await;
    test.stop().await;
}

#[tokio::test]
async fn a_scheduler_that_starts_finds_what_waits() {
    let test = Test::new();
    test.pod("p", "1", 0).await;
    test.node("a", "4").await;
    test.start();
    test.until("bound", || node_of(&test.get("p")) == "a").await;
    test.stop().await;
}
