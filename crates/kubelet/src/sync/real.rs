//! One pod's life in a real containerd, by hand as root:
//!
//! ```sh
//! crates/kubelet/testdata/containerd.sh start
//! cargo test -p kubelet real -- --ignored --nocapture
//! crates/kubelet/testdata/containerd.sh stop
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use stdx::clock::RealClock;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use super::mailbox::Mailbox;
use super::sim::FakeCluster;
use super::worker::{View, Worker};
use crate::cgroup::{Cgroups, Hierarchies};
use crate::context::{Context, Settings};
use crate::image::puller::Puller;
use crate::logs::follow::{Reader, Step};
use crate::logs::line::Options;
use crate::node::pressure::Gauge;
use crate::node::thresholds::Thresholds;
use crate::program::FakePrograms;
use crate::report::FakeReport;
use crate::resize::Allocations;
use crate::runtime::cri::CriRuntime;
use crate::runtime::{ContainerState, PodState, Runtime};
use crate::users::Blocks;
use crate::volume::mounts::KernelMounts;
use crate::volume::setup::Layout;
use crate::volume::storage::FakeStorage;

const ROOT: &str = "/tmp/pintle-kubelet-test";
const IMAGE: &str = "pintle.test/busybox:1";

struct Real {
    ctx: Arc<Context>,
    clock: SharedClock,
    runtime: Arc<CriRuntime>,
    cluster: FakeCluster,
    report: FakeReport,
    uid: String,
    mail: Arc<Mailbox>,
    view: watch::Receiver<View>,
    task: AbortOnDropHandle<()>,
    _hints: AbortOnDropHandle<()>,
    since: stdx::clock::Instant,
}

impl Real {
    async fn new(name: &str, spec: Value) -> Self {
        let clock = RealClock::shared();
        let rng = Rng::from_os();
        let runtime = Arc::new(CriRuntime::new(&format!("{ROOT}/c.sock"), &clock).expect("an endpoint"));
        let (cluster, report) = (FakeCluster::default(), FakeReport::default());
        let uid = rng.uuid();
        cluster.set(json!({"metadata": {"name": name, "namespace": "default", "uid": uid, "resourceVersion": "1"},
            "spec": spec}));
        let root = Path::new(ROOT).join("kubelet");
        std::fs::create_dir_all(root.join("pods")).expect("made");
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").expect("read");
        let shared: Arc<dyn Runtime> = runtime.clone();
        let ctx = Arc::new(Context {
            clock: clock.clone(),
            rng,
            runtime: shared.clone(),
            cluster: Arc::new(cluster.clone()),
            report: Arc::new(report.clone()),
            storage: Arc::new(FakeStorage::default()),
            programs: Arc::new(FakePrograms::default()),
            layout: Layout::new(root.clone(), Arc::new(KernelMounts)),
            cgroups: Some(Cgroups::new(Hierarchies::parse(&mountinfo), "pintle-kubelet-test")),
            puller: Puller::new(shared, Arc::new(report.clone()), clock.clone()),
            settings: Settings {
                node_ips: vec!["192.0.2.1".into()],
                log_root: root.join("logs"),
                runtime_name: "containerd".into(),
                resolv_conf: "/etc/resolv.conf".into(),
                hosts: "/etc/hosts".into(),
                node_memory: 1 << 34,
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
        });
        let (tx, mut rx) = mpsc::channel(64);
        let since = clock.now();
        let (worker, view, mail) = Worker::new(ctx.clone(), cluster.get().expect("a pod"), None, true);
        let (listening, told) = (runtime.clone(), mail.clone());
        let hints = tokio::spawn(async move {
            let listen = async { listening.hints(tx).await };
            let tell = async {
                while let Some(hint) = rx.recv().await {
                    told.hint(&hint);
                }
            };
            tokio::join!(listen, tell).0.expect("hints");
        });
        let task = AbortOnDropHandle::new(tokio::spawn(worker.run(Stage::new())));
        let hints = AbortOnDropHandle::new(hints);
        Self { ctx, clock, runtime, cluster, report, uid, mail, view, task, _hints: hints, since }
    }

    async fn seen(&self) -> PodState {
        self.runtime.pod(&self.uid, &PodState::default()).await.expect("a state")
    }

    async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let limit = self.clock.now() + Duration::from_secs(60);
        while !done(self) {
            self.clock.sleep(Duration::from_millis(5)).await;
            if let Some(pod) = self.cluster.get() {
                self.mail.put(|inbox| inbox.pod = Some(pod));
            } else {
                self.mail.put(|inbox| inbox.gone = true);
            }
            if self.clock.now() > limit {
                panic!(
                    "never: {what}\n{:#?}\n{:#?}\n{:#?}",
                    self.seen().await,
                    self.cluster.status(),
                    self.report.events.lock()
                );
            }
        }
        eprintln!("{:>6} ms  {what}", self.clock.now().since(self.since).as_millis());
    }

    fn is_ready(&self) -> bool {
        self.cluster.status().conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
    }

    async fn log(&self, container: &str) -> String {
        let seen = self.seen().await;
        let path = seen.container(container).expect("a container").log_path.clone();
        let mut reader =
            Reader::open(&self.ctx.settings.log_root, Path::new(&path), &Options::default()).expect("opened");
        let mut out = Vec::new();
        while reader.step(&mut out).expect("read") == Step::More {}
        reader.finish(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    async fn delete(self) {
        self.cluster.change(|pod| {
            pod["metadata"]["deletionTimestamp"] = json!(Timestamp::UNIX_EPOCH.to_string());
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(2);
        });
        self.until("gone", |s| s.cluster.get().is_none() && s.task.is_finished()).await;
        assert!(self.seen().await.is_empty());
        assert!(!self.ctx.layout.pod(&self.uid).exists());
        let cgroups = self.ctx.cgroups.as_ref().expect("cgroups").found();
        assert!(!cgroups.iter().any(|(uid, _)| *uid == self.uid), "{cgroups:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and testdata/containerd.sh"]
async fn a_pod_with_everything() {
    let mut real = Real::new(
        "all",
        json!({
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 2, "nodeName": "n1",
            "securityContext": {"fsGroup": 1234},
            "initContainers": [{"name": "i", "image": IMAGE, "args": ["-c", "echo init > /data/x"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                "args": ["-c", "cat /data/x /cm/k /etc/hosts; id; env; cat /sub/f 2>&1; cat /tok/token; httpd -f -p 80 -h /data"],
                "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}],
                "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}},
                "securityContext": {"runAsUser": 0},
                "readinessProbe": {"httpGet": {"path": "/x", "port": 80}},
                "livenessProbe": {"exec": {"command": ["/bin/test", "-e", "/data/x"]}, "periodSeconds": 1, "failureThreshold": 1},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "cm", "mountPath": "/cm"},
                    {"name": "tok", "mountPath": "/tok"}, {"name": "data", "mountPath": "/sub", "subPath": "a/b"}]}],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "cm", "configMap": {"name": "cm"}},
                {"name": "tok", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]
        }),
    )
    .await;
    let map = serde_json::from_value(json!({"data": {"k": "from-config\n"}})).expect("a ConfigMap");
    real.cluster.set_config_map("cm", map);
    real.mail.put(|inbox| inbox.objects = true);
    real.until("ready", Real::is_ready).await;
    for event in real.report.events.lock().iter() {
        eprintln!("           {event}");
    }
    let status = real.cluster.status();
    let ip = status.pod_ip.clone().expect("an address");
    assert!(ip.starts_with("10.77.77."), "{ip}");
    let log = real.log("c").await;
    for part in [
        "init\n",
        "from-config\n",
        &format!("{ip}\tall\n"),
        "uid=0(root) gid=0",
        "1234",
        &format!("IP={ip}"),
        "CPU=200",
    ] {
        assert!(log.contains(part), "{part} in\n{log}");
    }
    let memory = format!(
        "/sys/fs/cgroup/memory{}/memory.limit_in_bytes",
        real.ctx.cgroups.as_ref().expect("cgroups").parent(&real.cluster.get().expect("a pod"))
    );
    assert_eq!(std::fs::read_to_string(&memory).expect("a limit").trim(), (64 << 20).to_string());

    // The kubelet restarts: no container does.
    let before: Vec<_> = real.seen().await.containers.iter().map(|c| c.id.clone()).collect();
    real.task.abort();
    let (worker, view, mail) = Worker::new(real.ctx.clone(), real.cluster.get().expect("a pod"), None, true);
    (real.view, real.mail) = (view, mail);
    real.task = AbortOnDropHandle::new(tokio::spawn(worker.run(Stage::new())));
    real.until("adopted", |s| !s.view.borrow().seen.is_empty()).await;
    assert!(real.is_ready());
    let after: Vec<_> = real.seen().await.containers.iter().map(|c| c.id.clone()).collect();
    assert_eq!(before, after);

    // The liveness probe finds its file gone: the container restarts, its data lives on.
    let id = real.seen().await.container("c").expect("running").id.clone();
    real.runtime
        .exec(
            &id,
            &["/bin/sh".into(), "-c".into(), "rm -f /data/x || /bin/busybox rm /data/x".into()],
            Duration::from_secs(5),
        )
        .await
        .expect("done");
    real.until("restarted", |s| {
        s.mail.runtime();
        s.cluster.status().container_statuses.iter().flatten().any(|c| c.restart_count == 1)
    })
    .await;
    real.delete().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and testdata/containerd.sh"]
async fn ends_are_reported_with_their_last_words() {
    let spec = json!({"restartPolicy": "Never", "containers": [
        {"name": "ok", "image": IMAGE, "args": ["-c", "echo done > /dev/termination-log"]},
        {"name": "bad", "image": IMAGE, "args": ["-c", "echo last words; exit 3"], "terminationMessagePolicy": "FallbackToLogsOnError"},
        {"name": "none", "image": IMAGE, "command": ["/nonesuch"]}]});
    let real = Real::new("ends", spec).await;
    real.until("failed", |s| s.cluster.status().phase.as_deref() == Some("Failed")).await;
    let status = real.cluster.status();
    let end = |name: &str| {
        let status = status.container_statuses.iter().flatten().find(|c| c.name == name).expect("a status");
        let t = status.state.as_ref().and_then(|s| s.terminated.clone()).expect("an end");
        (t.exit_code, t.reason.unwrap_or_default(), t.message.unwrap_or_default())
    };
    assert_eq!(end("ok"), (0, "Completed".into(), "done\n".into()));
    assert_eq!(end("bad"), (3, "Error".into(), "last words\n".into()));
    let (code, reason, message) = end("none");
    assert_eq!((code, reason.as_str()), (128, "StartError"));
    assert!(message.contains("no such file or directory"), "{message}");
    real.delete().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and testdata/containerd.sh"]
async fn a_dead_sandbox_is_replaced() {
    let spec = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 1, "containers": [
        {"name": "c", "image": IMAGE, "args": ["-c", "sleep 1000"]}]});
    let real = Real::new("sandbox", spec).await;
    real.until("ready", Real::is_ready).await;
    let first = real.seen().await.sandboxes[0].id.clone();
    real.runtime.stop_sandbox(&first).await.expect("stopped");
    real.until("again", |s| {
        let seen = s.view.borrow().seen.clone();
        s.is_ready()
            && seen.sandboxes.first().is_some_and(|s| s.id != first)
            && seen.container("c").is_some_and(|c| c.state == ContainerState::Running)
    })
    .await;
    assert!(real.report.events.lock().iter().any(|e| e.starts_with("SandboxChanged")));
    real.delete().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and testdata/containerd.sh"]
async fn a_signal_of_its_own_ends_a_container() {
    let listens =
        "trap 'echo heard > /dev/termination-log; exit 0' USR1; trap '' TERM; touch /up; while :; do sleep 0.1; done";
    let spec = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "containers": [
        {"name": "c", "image": IMAGE, "args": ["-c", listens], "lifecycle": {"stopSignal": "SIGUSR1"},
            "startupProbe": {"exec": {"command": ["/bin/test", "-e", "/up"]}, "periodSeconds": 1},
            "livenessProbe": {"exec": {"command": ["/bin/false"]}, "periodSeconds": 1, "failureThreshold": 1}}]});
    let real = Real::new("listens", spec).await;
    real.until("it has heard it", |s| {
        let status = s.cluster.status();
        let last = status.container_statuses.iter().flatten().find_map(|c| c.last_state.as_ref()?.terminated.clone());
        last.is_some_and(|t| t.exit_code == 0 && t.message.as_deref() == Some("heard\n"))
    })
    .await;
    real.delete().await;
}
