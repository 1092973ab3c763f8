//! A node's life against an API server in memory.

use super::*;
use client::Resource;
use client::fake::Fake as Server;
use serde_json::{Value, json};
use stdx::clock::ManualClock;

use crate::node::facts::{ImagePlace, Levels};
use crate::node::thresholds::{Bounds, Thresholds};
use crate::report::FakeReport;
use crate::runtime::fake::Fake;

struct Bench {
    server: Server,
    runtime: Fake,
    report: FakeReport,
    clock: ManualClock,
    stage: Stage,
    dir: tempfile::TempDir,
    listed: Arc<Mutex<relist::Health>>,
    gauge: Arc<Gauge>,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::new("2030-01-01T00:00:00Z".parse().expect("a time"));
        let shared: SharedClock = Arc::new(clock.clone());
        let lease = Resource::new("coordination.k8s.io", "v1", "leases", "Lease", true);
        Self {
            server: Server::new(vec![Resource::of::<Node>(), lease], shared, Rng::seeded(1)),
            runtime: Fake::default(),
            report: FakeReport::default(),
            clock,
            stage: Stage::new(),
            dir: tempfile::tempdir().expect("a directory"),
            listed: Arc::default(),
            // Of nothing else the machine that runs this test can be told to be short.
            gauge: Arc::new(Gauge::new(Thresholds::hard(Bounds::limits("pid.available<1").expect("bounds")))),
        }
    }

    fn keeper(&self) -> Keeper {
        let rng = Rng::seeded(2);
        let root = self.dir.path().to_owned();
        let places = Places { root: "/".into(), data: root.clone(), images: ImagePlace::Unknown };
        Keeper::new(Parts {
            identity: Identity::open(&root, "n1", &rng).expect("an identity"),
            settings: Settings {
                ips: vec!["10.0.0.1".into()],
                port: 10250,
                max_pods: 110,
                version: "v1.37.1+x".into(),
                labels: BTreeMap::new(),
                taints: Vec::new(),
                root,
                places: places.clone(),
                reserved: Reserved::default(),
                thresholds: Thresholds::none(),
            },
            machine: places.machine().expect("a machine"),
            client: Client::new(self.server.handler(), "kubelet"),
            runtime: Arc::new(self.runtime.clone()),
            report: Arc::new(self.report.clone()),
            listed: self.listed.clone(),
            features: Default::default(),
            gauge: self.gauge.clone(),
            clock: Arc::new(self.clock.clone()),
            rng,
        })
    }

    fn start(&self) {
        let (mut keeper, stage) = (self.keeper(), self.stage.clone());
        self.stage.spawn(async move {
            let node = keeper.register().await.expect("registered");
            Box::pin(keeper.run(node, stage)).await;
        });
    }

    /// Lets everything happen that needs no time.
    async fn settle(&self) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    async fn pass(&self, time: Duration) {
        for _ in 0..time.as_millis() / 500 {
            self.settle().await;
            self.clock.advance(Duration::from_millis(500));
        }
        self.settle().await;
    }

    fn node(&self) -> Option<Value> {
        self.server.object("nodes", "", "n1")
    }

    fn lease(&self) -> Option<Value> {
        self.server.object("leases.coordination.k8s.io", "kube-node-lease", "n1")
    }

    fn ready(&self) -> String {
        let node = self.node().unwrap_or_default();
        let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = all.iter().find(|c| c["type"] == "Ready").cloned().unwrap_or_default();
        format!("{} {}", ready["status"].as_str().unwrap_or("-"), ready["message"].as_str().unwrap_or("-"))
    }

    fn events(&self) -> Vec<String> {
        std::mem::take(&mut *self.report.events.lock())
    }

    fn waits(&self) -> Vec<&'static str> {
        self.report.waiting.lock().get("node").into_iter().flatten().map(|w| w.code).collect()
    }

    async fn until(&self, what: impl Fn(&Self) -> bool) {
        for _ in 0..5000 {
            if what(self) {
                return;
            }
            // The identity is written by a thread of its own.
            std::thread::yield_now();
            self.settle().await;
        }
        panic!("it did not come to that: {} {:?}", self.ready(), self.events());
    }
}

const REGISTERED: [&str; 6] = [
    "node Starting Starting kubelet.",
    "node NodeHasSufficientMemory Node n1 status is now: NodeHasSufficientMemory",
    "node NodeHasNoDiskPressure Node n1 status is now: NodeHasNoDiskPressure",
    "node NodeHasSufficientPID Node n1 status is now: NodeHasSufficientPID",
    "node NodeReady Node n1 status is now: NodeReady",
    "node NodeAllocatableEnforced Updated Node Allocatable limit across pods",
];

#[tokio::test]
async fn a_node_is_registered_kept_and_costs_nothing_at_rest() {
    let bench = Bench::new();
    bench.start();
    bench.until(|b| b.lease().is_some()).await;
    assert_eq!(bench.ready(), "True kubelet is posting ready status");
    assert_eq!(bench.events(), REGISTERED);
    let (node, lease) = (bench.node().expect("there"), bench.lease().expect("there"));
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
    bench.server.take_requests();
    bench.pass(Duration::from_secs(60)).await;
    let writes: Vec<String> = bench.server.take_requests().into_iter().filter(|r| !r.starts_with("GET")).collect();
    assert!(writes.iter().all(|w| w.contains("/leases/")), "{writes:?}");
    assert!((5..=7).contains(&writes.len()), "{writes:?}");
    bench.pass(Duration::from_secs(300)).await;
    let writes = bench.server.take_requests().into_iter().filter(|r| r.starts_with("PATCH")).count();
    assert_eq!(writes, 1, "one report in five minutes");
    assert_eq!(bench.events(), [""; 0]);
}

#[tokio::test]
async fn a_runtime_that_comes_late_and_goes_away_shows() {
    let bench = Bench::new();
    let down = || Error::Unavailable("no socket".into());
    bench.runtime.fail("health", down());
    bench.start();
    bench.until(|b| b.lease().is_some()).await;
    assert_eq!(bench.ready(), "False container runtime status check may not have completed yet");
    assert_eq!(bench.waits(), ["RuntimeNotReady"]);
    bench.pass(Duration::from_secs(2)).await;
    // The node is ready as soon as the runtime is.
    bench.runtime.mend("health");
    bench.events();
    bench.pass(Duration::from_millis(500)).await;
    assert_eq!(bench.ready(), "True kubelet is posting ready status");
    assert_eq!(bench.events(), REGISTERED[4..5]);
    assert_eq!(bench.waits(), [""; 0]);
    // Gone for a moment: nobody is told. Gone for long: everybody.
    bench.runtime.fail("health", down());
    bench.pass(Duration::from_secs(20)).await;
    assert!(bench.ready().starts_with("True"));
    bench.pass(Duration::from_secs(30)).await;
    assert_eq!(bench.ready(), "False container runtime is down");
    assert_eq!(bench.events(), ["node NodeNotReady Node n1 status is now: NodeNotReady"]);
    bench.runtime.mend("health");
    bench.pass(Duration::from_secs(2)).await;
    assert!(bench.ready().starts_with("True"));
    // It answers, but its pods could not be listed for long.
    bench.listed.lock().listed = Some(bench.clock_now());
    bench.pass(Duration::from_secs(200)).await;
    assert!(bench.ready().starts_with("False PLEG is not healthy: pleg was last seen active "), "{}", bench.ready());
}

impl Bench {
    fn clock_now(&self) -> Instant {
        stdx::Clock::now(&self.clock)
    }
}

#[tokio::test]
async fn an_old_node_is_adopted_and_what_others_do_to_it_is_seen() {
    let bench = Bench::new();
    let client = Client::new(bench.server.handler(), "test");
    let old: Node = serde_json::from_value(json!({
        "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "other", "mine": "x"}},
        "status": {"nodeInfo": {"architecture": "", "bootID": "before", "containerRuntimeVersion": "",
                   "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
                   "operatingSystem": "", "osImage": "", "systemUUID": ""},
                   "conditions": [{"type": "NetworkUnavailable", "status": "False"}]},
    }))
    .expect("a node");
    client.api::<Node>().create(&old).await.expect("created");
    bench.start();
    bench.until(|b| b.ready().starts_with("True")).await;
    let boot = &bench.keeper().parts.machine.boot_id;
    assert!(bench.events().contains(&format!("!node Rebooted Node n1 has been rebooted, boot id: {boot}")));
    let node = bench.node().expect("there");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert_eq!(node["metadata"]["labels"]["mine"], "x");
    assert_eq!(node["status"]["conditions"][0]["type"], "NetworkUnavailable");
    assert!(bench.dir.path().join("node.json").exists());
    // The node controller gives it up, somebody else speaks of its network; it comes back with the
    // next look, and the other's word stays.
    bench.server.change("nodes", "", "n1", |node| {
        for c in node["status"]["conditions"].as_array_mut().into_iter().flatten() {
            let status = if c["type"] == "NetworkUnavailable" { "True" } else { "Unknown" };
            c["status"] = json!(status);
        }
    });
    bench.pass(Duration::from_secs(11)).await;
    assert!(bench.ready().starts_with("True"));
    assert_eq!(bench.node().expect("there")["status"]["conditions"][0]["status"], "True");
    bench.events();
    bench.server.change("nodes", "", "n1", |node| node["spec"] = json!({"unschedulable": true}));
    bench.pass(Duration::from_secs(11)).await;
    assert_eq!(bench.events(), ["node NodeNotSchedulable Node n1 status is now: NodeNotSchedulable"]);
    // Deleted while its kubelet lives: it is registered again, and the Lease is the new one's.
    bench.server.remove("nodes", "", "n1");
    bench.server.remove("leases.coordination.k8s.io", "kube-node-lease", "n1");
    bench.pass(Duration::from_secs(11)).await;
    bench.until(|b| b.node().is_some() && b.lease().is_some()).await;
    bench.pass(Duration::from_secs(11)).await;
    // The Lease may have been made again before the Node was.
    bench
        .until(|b| {
            let uids = b.lease().zip(b.node());
            uids.is_some_and(|(l, n)| l["metadata"]["ownerReferences"][0]["uid"] == n["metadata"]["uid"])
        })
        .await;
}

/// Somebody else has seen a shortage and relieved it before the keeper's own look.
#[tokio::test]
async fn a_shortage_that_is_over_at_once_is_told() {
    let bench = Bench::new();
    bench.start();
    bench.until(|b| b.lease().is_some()).await;
    bench.events();
    let of = |b: &Bench| {
        let all = b.node().unwrap_or_default()["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.iter().find(|c| c["type"] == "PIDPressure").map(|c| c["status"].clone()).unwrap_or_default()
    };
    let levels = |free| Levels { pids: 100, pids_free: Some(free), ..Levels::default() };
    assert_eq!(of(&bench), "False");
    assert_eq!(bench.gauge.observe(&levels(0), bench.clock_now()).due.len(), 1);
    assert_eq!(bench.gauge.observe(&levels(50), bench.clock_now()).due.len(), 0);
    // Without a moment passing: nobody waits for the next regular look.
    bench.until(|b| of(b) == "True").await;
    assert_eq!(bench.events(), ["node NodeHasInsufficientPID Node n1 status is now: NodeHasInsufficientPID"]);
    bench.pass(Duration::from_secs(290)).await;
    assert_eq!(of(&bench), "True");
    bench.pass(Duration::from_secs(21)).await;
    assert_eq!(of(&bench), "False");
}

#[tokio::test]
async fn a_living_namesake_is_not_taken_over() {
    let bench = Bench::new();
    bench.start();
    bench.until(|b| b.lease().is_some()).await;
    bench.stage.stop();
    std::fs::remove_file(bench.dir.path().join("node.json")).expect("removed");
    let mut other = bench.keeper();
    other.parts.identity.machine_id = "other".into();
    let error = other.register().await.expect_err("taken");
    assert!(matches!(error, RegisterError::Taken { .. }), "{error}");
    assert!(!bench.dir.path().join("node.json").exists(), "an identity that was refused is not kept");
    bench.clock.advance(Duration::from_secs(60));
    other.register().await.expect("it is silent now");
}
