//! What the recorder writes: repeats counted on one object, retries while the server is away, the
//! causes of the pass that recorded.

use super::*;
use crate::fake::Fake;
use jiff::Timestamp;
use machinery::status::Status;
use stdx::clock::ManualClock;

struct Bench {
    fake: Fake,
    clock: ManualClock,
    recorder: Recorder,
    stage: Stage,
}

impl Bench {
    fn new(source: Source) -> Self {
        let clock = ManualClock::new(Timestamp::from_second(1).expect("in range"));
        let shared: SharedClock = Arc::new(clock.clone());
        let resources = vec![Resource::of::<CoreEvent>(), Resource::of::<SeriesEvent>()];
        let fake = Fake::new(resources, shared.clone(), Rng::seeded(1));
        let stage = Stage::new();
        let client = Client::new(fake.handler(), "test");
        let recorder = Recorder::start(client, source, shared, Rng::seeded(1), &stage);
        Self { fake, clock, recorder, stage }
    }

    async fn settle(&self) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
}

fn pod() -> Reference {
    Reference {
        kind: "Pod".into(),
        api_version: "v1".into(),
        namespace: "default".into(),
        name: "a".into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn repeats_are_counted_on_one_event() {
    let bench = Bench::new(Source::Core { component: "kubelet".into(), host: "n1".into() });
    for _ in 0..3 {
        bench.recorder.event(&pod(), Type::Warning, "BackOff", "again");
    }
    bench.recorder.event(&pod().field("spec.containers{c}"), Type::Normal, "Pulled", "there");
    bench.settle().await;
    let events = bench.fake.objects("events");
    assert_eq!(events.len(), 2);
    let repeated = events.iter().find(|e| e["reason"] == "BackOff").expect("there");
    assert_eq!((&repeated["count"], &repeated["type"]), (&json!(3), &json!("Warning")));
    assert_eq!(repeated["source"], json!({"component": "kubelet", "host": "n1"}));
    assert_eq!(repeated["reportingComponent"], "kubelet");
    bench.stage.stop();
}

#[tokio::test]
async fn a_server_that_is_away_is_tried_again() {
    let bench = Bench::new(Source::Core { component: "c".into(), host: String::new() });
    bench.fake.fail("POST", "events", Status::unavailable("away"));
    bench.recorder.event(&pod(), Type::Normal, "R", "m");
    bench.settle().await;
    assert!(bench.fake.objects("events").is_empty());
    bench.clock.advance(BETWEEN);
    bench.settle().await;
    assert_eq!(bench.fake.objects("events").len(), 1);
    // A refusal is final.
    bench.fake.fail("POST", "events", Status::new(403, "Forbidden", "no"));
    bench.recorder.event(&pod(), Type::Normal, "R", "other");
    bench.settle().await;
    bench.clock.advance(BETWEEN * 20);
    bench.settle().await;
    assert_eq!(bench.fake.objects("events").len(), 1);
}

#[tokio::test]
async fn a_series_is_one_event() {
    let bench = Bench::new(Source::Series { controller: "default-scheduler".into(), instance: "s-1".into() });
    for _ in 0..3 {
        let event = Event::new(pod(), Type::Warning, "FailedScheduling", "0/1 nodes").action("Scheduling");
        bench.recorder.record(event);
    }
    bench.settle().await;
    let events = bench.fake.objects("events.events.k8s.io");
    assert_eq!(events.len(), 1);
    assert_eq!((&events[0]["series"]["count"], &events[0]["note"]), (&json!(2), &json!("0/1 nodes")));
    assert_eq!(events[0]["reportingController"], "default-scheduler");
    bench.clock.advance(Duration::from_secs(361));
    bench.settle().await;
    assert_eq!(
        bench.fake.objects("events.events.k8s.io")[0]["series"]["count"],
        3,
        "the last count is written when it ends"
    );
}

#[tokio::test]
async fn a_flood_drops_events_and_counts_them() {
    let bench = Bench::new(Source::Core { component: "c".into(), host: String::new() });
    for n in 0..CAPACITY + 10 {
        bench.recorder.event(&pod(), Type::Normal, "R", format!("{n}"));
    }
    assert_eq!(bench.recorder.dropped(), 10);
}
