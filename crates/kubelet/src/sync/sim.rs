//! A pod's task among faults: seeded orders of exits, dead sandboxes, failing calls, changed images,
//! restarts of the kubelet and deletion. A failure prints its seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1::{Container, PodStatus};
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::clock::{Clock, ManualClock};
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::mailbox::Mailbox;
use super::worker::{View, Worker};
use crate::cluster::{Cluster, Token};
use crate::container::env::Objects;
use crate::container::service_links::Service;
use crate::context::{Context, Settings, busy};
use crate::image::puller::Puller;
use crate::node::pressure::Gauge;
use crate::node::thresholds::Thresholds;
use crate::pod::BoundPod;
use crate::program::FakePrograms;
use crate::report::FakeReport;
use crate::resize::Allocations;
use crate::runtime::fake::Fake;
use crate::runtime::{ContainerState, Error};
use crate::shown::ShownStatus;
use crate::users::Blocks;
use crate::volume::files::{Needs, TokenKey};
use crate::volume::mounts::FakeMounts;
use crate::volume::setup::Layout;
use crate::volume::storage::FakeStorage;

/// An API server with one pod.
#[derive(Clone, Default)]
pub struct FakeCluster {
    pod: Arc<Mutex<Option<Value>>>,
    objects: Arc<Mutex<Objects>>,
    pub refuse: Arc<Mutex<bool>>,
    /// RuntimeClasses and their handlers.
    pub classes: Arc<Mutex<BTreeMap<String, String>>>,
    phases: Arc<Mutex<Vec<String>>>,
    /// The Services whose rules the pod is to leave first, and whether it has.
    pub leaves: Arc<Mutex<Vec<String>>>,
    pub left: Arc<watch::Sender<bool>>,
}

impl FakeCluster {
    /// The pod there is.
    pub fn set(&self, pod: Value) {
        *self.pod.lock() = Some(pod);
    }

    /// True once the pod is gone.
    pub fn is_gone(&self) -> bool {
        self.pod.lock().is_none()
    }

    /// A ConfigMap there is.
    pub fn set_config_map(&self, name: &str, map: api::types::core::v1::ConfigMap) {
        self.objects.lock().config_maps.insert(name.into(), Arc::new(map));
    }

    fn bump(value: &mut Value) {
        let revision: u64 = value["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).unwrap_or(0);
        value["metadata"]["resourceVersion"] = json!((revision + 1).to_string());
    }

    pub fn change(&self, change: impl FnOnce(&mut Value)) -> Option<Arc<BoundPod>> {
        let mut pod = self.pod.lock();
        let value = pod.as_mut()?;
        change(value);
        Self::bump(value);
        drop(pod);
        self.get()
    }

    pub fn get(&self) -> Option<Arc<BoundPod>> {
        let value = self.pod.lock().clone()?;
        BoundPod::parse(Arc::new(serde_json::from_value(value).expect("a pod")))
    }

    pub fn status(&self) -> PodStatus {
        self.get().map(|p| p.status().clone()).unwrap_or_default()
    }
}

#[async_trait]
impl Cluster for FakeCluster {
    async fn objects(&self, _: &BoundPod, _: &Needs) -> Result<Objects, client::Error> {
        Ok(self.objects.lock().clone())
    }

    fn release(&self, _: &str) {}

    async fn token(&self, _: &BoundPod, _: &TokenKey) -> Result<Token, client::Error> {
        let expires = Timestamp::from_second(3600).expect("a time");
        Ok(Token { token: "t".into(), expires })
    }

    async fn patch_status(&self, _: &BoundPod, patch: &Value) -> Result<Option<Box<ShownStatus>>, client::Error> {
        if *self.refuse.lock() {
            return Err(client::Error::Interrupted("no answer".into()));
        }
        let changed = self.change(|pod| {
            let schema = api::schema::of("", "v1", "Pod").expect("pods have a schema");
            machinery::patch::strategic(pod, patch.as_object().expect("an object"), &schema)
                .expect("the patch applies");
        });
        if let Some(phase) = changed.as_ref().and_then(|p| p.status().phase.clone()) {
            self.phases.lock().push(phase);
        }
        let shown = |pod: Arc<BoundPod>| serde_json::from_value(json!(**pod.object())).expect("a status");
        Ok(changed.map(shown))
    }

    async fn delete(&self, _: &BoundPod) -> Result<(), client::Error> {
        *self.pod.lock() = None;
        Ok(())
    }

    async fn runtime_handler(&self, class: &str) -> Result<Option<String>, client::Error> {
        Ok(self.classes.lock().get(class).cloned())
    }

    fn services(&self) -> Vec<Service> {
        Vec::new()
    }

    fn leaves_first(&self, _: &BoundPod) -> Vec<String> {
        self.leaves.lock().clone()
    }

    async fn has_left(&self, _: &BoundPod, services: &[String]) {
        assert_eq!(*services, *self.leaves.lock());
        let mut told = self.left.subscribe();
        told.wait_for(|left| *left).await.expect("told");
    }
}

pub struct Sim {
    pub clock: ManualClock,
    rng: Rng,
    pub runtime: Fake,
    pub cluster: FakeCluster,
    pub report: FakeReport,
    pub ctx: Arc<Context>,
    pub root: tempfile::TempDir,
    mounts: FakeMounts,
    pub mail: Arc<Mailbox>,
    view: watch::Receiver<View>,
    pub task: AbortOnDropHandle<()>,
}

pub const UID: &str = "u-1";

fn context(
    clock: &ManualClock,
    rng: &Rng,
    runtime: &Fake,
    cluster: &FakeCluster,
    report: &FakeReport,
    root: &std::path::Path,
    mounts: &FakeMounts,
) -> Arc<Context> {
    let shared: stdx::SharedClock = Arc::new(clock.clone());
    Arc::new(Context {
        clock: shared.clone(),
        rng: rng.clone(),
        runtime: Arc::new(runtime.clone()),
        cluster: Arc::new(cluster.clone()),
        report: Arc::new(report.clone()),
        storage: Arc::new(FakeStorage::default()),
        programs: Arc::new(FakePrograms::default()),
        layout: Layout::new(root.to_owned(), Arc::new(mounts.clone())),
        cgroups: None,
        puller: Puller::new(Arc::new(runtime.clone()), Arc::new(report.clone()), shared),
        settings: Settings {
            node_ips: vec!["192.0.2.1".into()],
            log_root: root.join("logs"),
            runtime_name: "fake".into(),
            ..Settings::default()
        },
        allocatable: Default::default(),
        node: Default::default(),
        owners: Default::default(),
        features: Default::default(),
        allocations: Allocations::open(&root.join("pods")),
        gauge: Arc::new(Gauge::new(Thresholds::none())),
        users: Blocks::open(&root.join("pods")),
        metrics: Default::default(),
    })
}

/// What pods of a node share, of fakes alone.
pub fn bare(root: &std::path::Path) -> Arc<Context> {
    let clock = ManualClock::new(Timestamp::from_second(1_000_000).expect("a time"));
    let (rng, runtime, cluster) = (Rng::seeded(1), Fake::default(), FakeCluster::default());
    context(&clock, &rng, &runtime, &cluster, &FakeReport::default(), root, &FakeMounts::default())
}

/// The node takes the pod.
fn admit(ctx: &Context, cluster: &FakeCluster) {
    if let Some(pod) = cluster.get() {
        drop(ctx.allocations.admit(&pod, |_, _, _| Ok(Vec::new())));
    }
}

impl Sim {
    pub fn new(seed: u64, spec: Value) -> Self {
        let clock = ManualClock::new(Timestamp::from_second(1_000_000).expect("a time"));
        let (rng, runtime, cluster) = (Rng::seeded(seed), Fake::default(), FakeCluster::default());
        let (report, mounts) = (FakeReport::default(), FakeMounts::default());
        let root = tempfile::tempdir().expect("a directory");
        *cluster.pod.lock() = Some(json!({
            "metadata": {"name": "web", "namespace": "default", "uid": UID, "resourceVersion": "1"}, "spec": spec
        }));
        let ctx = context(&clock, &rng, &runtime, &cluster, &report, root.path(), &mounts);
        admit(&ctx, &cluster);
        let (worker, view, mail) = Worker::new(ctx.clone(), cluster.get().expect("a pod"), None, false);
        let task = AbortOnDropHandle::new(tokio::spawn(worker.run(Stage::new())));
        Self { ctx, clock, rng, runtime, cluster, report, root, mounts, mail, view, task }
    }

    /// The kubelet dies and starts again.
    pub fn restart(&mut self) {
        self.task.abort();
        let Some(pod) = self.cluster.get() else { return };
        let (root, mounts) = (self.root.path(), &self.mounts);
        let ctx = context(&self.clock, &self.rng, &self.runtime, &self.cluster, &self.report, root, mounts);
        admit(&ctx, &self.cluster);
        let (worker, view, mail) = Worker::new(ctx.clone(), pod, None, true);
        (self.ctx, self.view, self.mail) = (ctx, view, mail);
        self.task = AbortOnDropHandle::new(tokio::spawn(worker.run(Stage::new())));
    }

    /// The watch shows the object.
    pub fn show(&self) {
        match self.cluster.get() {
            Some(pod) => self.mail.put(|inbox| inbox.pod = Some(pod)),
            None => self.mail.put(|inbox| inbox.gone = true),
        }
    }

    /// A container ends by itself, and the runtime says so.
    pub fn exit(&self, name: &str, code: i32) -> bool {
        let ended = self.runtime.exit(UID, name, code, self.clock.wall());
        self.mail.runtime();
        ended
    }

    /// The sandbox dies, and the runtime says so.
    pub fn kill_sandbox(&self) {
        self.runtime.kill_sandbox(UID, self.clock.wall());
        self.mail.runtime();
    }

    /// What must hold at any time.
    fn check(&self) {
        let seen = self.runtime.seen(UID);
        let mut running = BTreeMap::new();
        for c in seen.containers.iter().filter(|c| c.state == ContainerState::Running) {
            *running.entry(c.name.clone()).or_insert(0) += 1;
        }
        assert!(running.values().all(|n| *n == 1), "a container runs twice: {running:?}");
        let mut once = BTreeMap::new();
        for c in seen.containers.iter().filter(|c| c.name.starts_with('e') && c.started_at.is_some()) {
            *once.entry(c.name.clone()).or_insert(0) += 1;
        }
        assert!(once.values().all(|n| *n == 1), "an ephemeral container started again: {once:?}");
        let ready = seen.sandboxes.iter().filter(|s| s.ready).count();
        assert!(ready <= 1, "{ready} sandboxes");
        let phases = self.cluster.phases.lock();
        let ended = phases.iter().position(|p| p == "Succeeded" || p == "Failed").unwrap_or(phases.len());
        let phase = phases.get(ended);
        assert!(phases[ended..].iter().all(|p| Some(p) == phase), "an end was taken back: {phases:?}");
    }

    /// Lets everything happen until `done`, moving the clock to the next timer when nothing else does.
    pub async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let real = stdx::clock::RealClock::shared();
        let limit = real.now() + Duration::from_secs(20);
        loop {
            for _ in 0..200 {
                tokio::task::yield_now().await;
                self.check();
                if done(self) {
                    return;
                }
            }
            // Blocking work runs on real threads, for which virtual time waits.
            real.sleep(Duration::from_micros(200)).await;
            if done(self) {
                return;
            }
            if busy::is_any() {
                assert!(real.now() < limit, "work without end before {what}");
                continue;
            }
            if let Some(at) = self.clock.next_timer() {
                self.clock.advance(at.since(self.clock.now()));
            }
            self.show();
            assert!(
                real.now() < limit,
                "never: {what}\nseen {:?}\nstatus {:?}\nevents {:?}",
                self.runtime.seen(UID),
                self.cluster.status(),
                self.report.events.lock()
            );
        }
    }

    /// The kubelet has looked at the pod since it began.
    pub fn has_looked(&self) -> bool {
        !self.view.borrow().seen.is_empty()
    }

    pub fn runs(&self, name: &str) -> bool {
        self.runtime.seen(UID).container(name).is_some_and(|c| c.state == ContainerState::Running)
    }

    pub fn is_ready(&self) -> bool {
        let status = self.cluster.status();
        status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
    }
}

pub fn two(policy: &str) -> Value {
    json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 3,
        "containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "x:1",
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "emptyDir": {}}]})
}

#[tokio::test]
async fn a_pod_starts_and_is_deleted() {
    let sim = Sim::new(1, two("Always"));
    sim.until("ready", |s| s.is_ready()).await;
    let status = sim.cluster.status();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert!(status.pod_ip.is_some() && status.start_time.is_some());
    let events = sim.report.events.lock().clone();
    assert_eq!(
        events,
        [
            "Pulling [a] Pulling image \"x:1\"",
            "Pulled [a] Successfully pulled image \"x:1\" in 0s (0s including waiting). Image size: 7 bytes.",
            "Created [a] Container created",
            "Started [a] Container started",
            "Pulled [b] Container image \"x:1\" already present on machine and can be accessed by the pod",
            "Created [b] Container created",
            "Started [b] Container started",
        ]
        .iter()
        .map(|e| (*e).to_owned())
        .collect::<Vec<_>>()
        .into_iter()
        .fold(
            vec![
                "!MissingClusterDNS pod: \"web_default(u-1)\". kubelet does not have ClusterDNS IP configured and \
        cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy."
                    .to_owned()
            ],
            |mut all, e| {
                all.push(e);
                all
            }
        )
    );
    sim.cluster.change(|pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(3);
    });
    sim.show();
    sim.until("gone", |s| s.cluster.pod.lock().is_none() && s.task.is_finished()).await;
    assert!(sim.runtime.seen(UID).is_empty(), "nothing is left in the runtime");
    assert!(!sim.root.path().join("pods").join(UID).exists(), "nothing is left on disk");
    assert_eq!(std::fs::read_dir(sim.root.path().join("logs")).expect("listed").count(), 0);
    assert!(sim.report.events.lock().contains(&"Killing [a] Stopping container a".to_owned()));
}

#[tokio::test]
async fn a_restarted_kubelet_restarts_no_container() {
    let mut sim = Sim::new(2, two("Always"));
    sim.until("ready", |s| s.is_ready()).await;
    let before = sim.runtime.seen(UID);
    sim.runtime.take_log();
    sim.restart();
    // It has looked once its volumes are as they should be.
    sim.until("looked", |s| !s.view.borrow().seen.is_empty()).await;
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
    assert_eq!(sim.runtime.seen(UID), before);
    let log = sim.runtime.take_log();
    assert!(!log.iter().any(|l| l.starts_with("run_") || l.starts_with("create_") || l.starts_with("st")), "{log:?}");
    assert!(sim.is_ready());
}

#[tokio::test]
async fn a_crashing_container_waits_longer_and_longer() {
    let sim = Sim::new(3, two("Always"));
    sim.until("ready", |s| s.is_ready()).await;
    let exit = || assert!(sim.exit("a", 7));
    exit();
    sim.until("restarted at once", |s| s.runs("a")).await;
    let before = sim.clock.now();
    exit();
    sim.until("it waits", |s| {
        let status = s.cluster.status();
        status.container_statuses.iter().flatten().any(|c| {
            c.state.as_ref().and_then(|s| s.waiting.as_ref()).is_some_and(|w| {
                w.reason.as_deref() == Some("CrashLoopBackOff")
                    && w.message.as_deref() == Some("back-off 10s restarting failed container=a pod=web_default(u-1)")
            })
        })
    })
    .await;
    let waits = sim.report.waiting.lock().get(UID).cloned().unwrap_or_default();
    assert_eq!(waits.iter().map(|w| w.code).collect::<Vec<_>>(), ["CrashLoop"]);
    sim.until("restarted", |s| s.runs("a")).await;
    assert!(sim.clock.now().since(before) >= Duration::from_secs(10));
    sim.until("told", |s| {
        let status = s.cluster.status();
        status.container_statuses.iter().flatten().any(|c| c.name == "a" && c.restart_count == 2)
    })
    .await;
    let status = sim.cluster.status();
    let a = status.container_statuses.iter().flatten().find(|c| c.name == "a").expect("a status");
    let last = a.last_state.as_ref().and_then(|s| s.terminated.as_ref()).expect("a past end");
    assert_eq!(last.exit_code, 7);
}

#[tokio::test]
async fn a_pod_that_never_restarts_ends_with_its_containers() {
    let sim = Sim::new(4, two("Never"));
    sim.until("runs", |s| s.runs("a") && s.runs("b")).await;
    sim.exit("a", 0);
    sim.exit("b", 3);
    sim.until("failed", |s| s.cluster.status().phase.as_deref() == Some("Failed")).await;
    sim.until("the sandbox stopped", |s| s.runtime.seen(UID).sandboxes.iter().all(|s| !s.ready)).await;
    assert_eq!(sim.runtime.seen(UID).containers.len(), 2, "their logs are still wanted");
    sim.until("volumes are gone", |s| !s.root.path().join("pods").join(UID).exists()).await;
}

#[tokio::test]
async fn a_missing_object_is_named_and_found() {
    let sim = Sim::new(
        5,
        json!({"containers": [{"name": "a", "image": "x:1",
        "volumeMounts": [{"name": "v", "mountPath": "/v"}]}], "volumes": [{"name": "v", "configMap": {"name": "cm"}}]}),
    );
    sim.until("told", |s| !s.report.events.lock().is_empty()).await;
    let text = "!FailedMount MountVolume.SetUp failed for volume \"v\" : configmap \"cm\" not found";
    assert_eq!(sim.report.events.lock()[0], text);
    sim.until("waits", |s| s.report.waiting.lock().get(UID).is_some_and(|w| !w.is_empty())).await;
    let waits = sim.report.waiting.lock().get(UID).cloned().unwrap_or_default();
    assert_eq!((waits[0].code, waits[0].on.as_str()), ("Mount", "volume v"));
    sim.cluster.objects.lock().config_maps.insert("cm".into(), Arc::default());
    sim.mail.put(|inbox| inbox.objects = true);
    sim.until("ready", |s| s.is_ready()).await;
}

#[tokio::test]
async fn an_image_that_nobody_has_does_not_keep_a_pod_from_being_deleted() {
    let sim = Sim::new(6, two("Always"));
    sim.runtime.no_image("x:1");
    sim.until("told", |s| {
        let status = s.cluster.status();
        let reasons = status
            .container_statuses
            .iter()
            .flatten()
            .filter_map(|c| c.state.as_ref()?.waiting.as_ref()?.reason.clone());
        reasons.into_iter().any(|r| r == "ErrImagePull" || r == "ImagePullBackOff")
    })
    .await;
    sim.cluster.change(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    sim.show();
    sim.until("gone", |s| s.cluster.pod.lock().is_none() && s.task.is_finished()).await;
    assert!(sim.runtime.seen(UID).is_empty());
}

const CALLS: [&str; 8] = [
    "pod",
    "run_sandbox",
    "stop_sandbox",
    "create_container",
    "start_container",
    "stop_container",
    "update_container",
    "image",
];

async fn faults(seed: u64) {
    let policy = ["Always", "OnFailure"][usize::try_from(seed % 2).unwrap_or(0)];
    let cores = |n: u64| json!({"requests": {"cpu": "1m"}, "limits": {"cpu": n.to_string()}});
    let mut spec = two(policy);
    for index in 0..2 {
        spec["containers"][index]["resources"] = cores(1);
    }
    let mut sim = Sim::new(seed, spec);
    let rng = Rng::seeded(seed);
    for _ in 0..30 {
        let name = if rng.below(2) == 0 { "a" } else { "b" };
        let index = usize::from(name == "b");
        match rng.below(11) {
            0 => drop(sim.exit(name, 1)),
            1 => sim.kill_sandbox(),
            2 => {
                let call = CALLS[usize::try_from(rng.below(CALLS.len() as u64)).unwrap_or(0)];
                sim.runtime.fail(call, Error::Failed { code: "Unknown", message: "a fault".into() });
            }
            3 => CALLS.iter().for_each(|c| sim.runtime.mend(c)),
            4 => sim.restart(),
            5 => {
                let image = format!("x:{}", rng.below(3) + 1);
                sim.cluster.change(|pod| pod["spec"]["containers"][index]["image"] = json!(image));
                sim.show();
            }
            6 => *sim.cluster.refuse.lock() = true,
            7 => *sim.cluster.refuse.lock() = false,
            8 => {
                let wish = cores(rng.below(3) + 1);
                sim.cluster.change(|pod| pod["spec"]["containers"][index]["resources"] = wish);
                sim.show();
            }
            9 => {
                sim.cluster.change(|pod| {
                    let mut all = pod["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
                    all.push(json!({"name": format!("e{}", all.len()), "image": "x:1"}));
                    pod["spec"]["ephemeralContainers"] = Value::Array(all);
                });
                sim.show();
            }
            _ => sim.clock.advance(Duration::from_secs(rng.below(20))),
        }
        for _ in 0..rng.below(60) {
            tokio::task::yield_now().await;
            sim.check();
        }
    }
    CALLS.iter().for_each(|c| sim.runtime.mend(c));
    *sim.cluster.refuse.lock() = false;
    sim.show();
    // What was asked for last may not have been seen yet: the old containers may still run, ready.
    let spec = sim.cluster.get().expect("a pod");
    sim.until("healed: it runs what is asked for", |s| {
        let running = s.runtime.seen(UID);
        let is_asked = |c: &Container| {
            let cores = crate::pod::limit(c, "cpu").map_or(0, |q| q.value());
            running.container(&c.name).is_some_and(|f| {
                let quota = f.resources.as_ref().map_or(0, |r| i128::from(r.cpu_quota));
                Some(&f.image) == c.image.as_ref() && quota == cores * 100_000
            })
        };
        s.runs("a") && s.runs("b") && s.is_ready() && spec.containers().iter().all(is_asked)
    })
    .await;
    if seed.is_multiple_of(3) {
        // Deleted by force: the object is gone at once.
        *sim.cluster.pod.lock() = None;
    } else {
        sim.cluster.change(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    }
    sim.show();
    sim.until("gone", |s| s.cluster.pod.lock().is_none() && s.task.is_finished()).await;
    assert!(sim.runtime.seen(UID).is_empty());
    assert!(!sim.root.path().join("pods").join(UID).exists());
}

#[tokio::test]
async fn faults_in_any_order_heal() {
    for seed in 100..140 {
        let run = std::panic::AssertUnwindSafe(faults(seed));
        if let Err(panic) = futures::FutureExt::catch_unwind(run).await {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
