//! What waits for the kernel is said: the proxy against an API server in memory and a kernel that
//! takes its time.

use std::collections::VecDeque;

use client::fake::Fake;
use jiff::Timestamp;
use net::nft::Error;
use serde_json::{Value, json};
use stdx::Clock;
use stdx::clock::ManualClock;
use tokio::sync::oneshot;

use super::*;

/// A transaction, and where its answer is waited for.
type Asked = (String, oneshot::Sender<Result<(), Error>>);

/// Transactions stay with the test until it answers them.
#[derive(Default)]
struct Slow {
    asked: Mutex<VecDeque<Asked>>,
}

#[async_trait::async_trait]
impl Kernel for Slow {
    async fn apply(&self, transaction: &str) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.asked.lock().push_back((transaction.to_owned(), answer));
        answered.await.unwrap_or(Ok(()))
    }
}

struct Bench {
    fake: Fake,
    client: Client,
    clock: ManualClock,
    kernel: Arc<Slow>,
    stage: Stage,
}

impl Bench {
    fn start() -> Self {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let shared: SharedClock = Arc::new(clock.clone());
        let resources = vec![
            Resource::of::<core::Service>(),
            Resource::of::<core::Node>(),
            Resource::of::<discovery::EndpointSlice>(),
            client::waits::resource(),
        ];
        let fake = Fake::new(resources, shared.clone(), Rng::seeded(1));
        let (client, kernel, stage) = (Client::new(fake.handler(), "test"), Arc::new(Slow::default()), Stage::new());
        let options = Options {
            node_name: "n".into(),
            service_cidrs: vec!["10.96.0.0/12".parse().expect("a range")],
            cluster_cidrs: vec!["10.244.0.0/16".parse().expect("a range")],
            pod_interfaces: "veth*".into(),
            masquerade_egress: false,
            kernel: kernel.clone(),
            registry: Default::default(),
        };
        let (own, inner) = (client.clone(), stage.clone());
        stage.spawn(async move { run(own, shared, Rng::seeded(2), options, &inner).await });
        Self { fake, client, clock, kernel, stage }
    }

    async fn service(&self, name: &str, ip: &str) {
        let service = json!({"metadata": {"name": name, "namespace": "default"},
            "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80}]}});
        self.client.dynamic(Resource::of::<core::Service>()).namespace("default").create(&service).await.expect("made");
        let slice = json!({"metadata": {"name": format!("{name}-1"), "namespace": "default",
                "labels": {"kubernetes.io/service-name": name}},
            "endpoints": [{"addresses": ["10.244.0.9"], "conditions": {"ready": true}}], "ports": [{"port": 8080}]});
        let slices = self.client.dynamic(Resource::of::<discovery::EndpointSlice>());
        slices.namespace("default").create(&slice).await.expect("made");
    }

    /// Lets tasks run and timers fire until `done` holds.
    async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..5_000 {
            if done(self) {
                return;
            }
            tokio::task::yield_now().await;
            if let Some(at) = self.clock.next_timer() {
                self.clock.advance(at.since(self.clock.now()).min(Duration::from_millis(20)));
            }
        }
        panic!("never: {what}; waits {:?}", self.waits());
    }

    /// The kernel answers the next transaction, which names `part`.
    async fn answer(&self, part: &str, answer: Result<(), Error>) {
        self.until("a transaction", |b| !b.kernel.asked.lock().is_empty()).await;
        let (text, waits) = self.kernel.asked.lock().pop_front().expect("there is one");
        assert!(text.contains(part), "{part} is not in {text}");
        waits.send(answer).expect("it is waited for");
    }

    /// Service, layer, code and text of every Wait.
    fn waits(&self) -> Vec<String> {
        let text = |w: &Value, p: &str| w.pointer(p).and_then(Value::as_str).unwrap_or_default().to_owned();
        let line = |w: &Value| {
            format!(
                "{} {} {} {}: {}",
                text(w, "/object/kind"),
                text(w, "/object/name"),
                text(w, "/layer"),
                text(w, "/code"),
                text(w, "/text")
            )
        };
        let mut lines: Vec<String> = self.fake.objects("waits.explain.pintle.dev").iter().map(line).collect();
        lines.sort();
        lines
    }
}

#[tokio::test]
async fn a_ready_endpoint_whose_rules_the_kernel_does_not_have_is_a_wait() {
    let bench = Bench::start();
    bench.answer("", Ok(())).await;
    bench.service("slow", "10.96.0.7").await;
    let slow = "Service slow proxy RulesNotInKernel: the kernel does not have this Service's present rules yet";
    bench.until("the first Wait", |b| b.waits() == [slow]).await;
    // A second Service changes while the kernel is busy with the first.
    bench.service("next", "10.96.0.8").await;
    bench.until("the second Wait", |b| b.waits().len() == 2).await;
    bench.answer("10.96.0.7", Err(Error::Refused("Operation not supported".into()))).await;
    let refused = "RulesNotInKernel: the kernel refused the rules: Operation not supported";
    bench
        .until("the kernel's words", |b| {
            let waits = b.waits();
            waits.len() == 2
                && waits.iter().all(|w| w.ends_with(refused) || w.starts_with("Service next"))
                && waits.iter().any(|w| w.starts_with("Service slow") && w.ends_with(refused))
        })
        .await;
    bench.answer("10.96.0.8", Ok(())).await;
    bench.until("both withdrawn", |b| b.waits().is_empty()).await;
    // What changes no rule waits for nothing.
    bench.fake.change("services", "default", "slow", |service| service["metadata"]["labels"] = json!({"a": "b"}));
    let shown = bench.clock.now() + Duration::from_secs(1);
    bench.until("a second later", |b| b.clock.now() >= shown || b.clock.next_timer().is_none()).await;
    assert!(bench.waits().is_empty(), "{:?}", bench.waits());
    assert!(bench.kernel.asked.lock().is_empty(), "nothing was sent");
    bench.stage.stop();
}
