//! A whole kubelet with a runtime and an API server in memory.

use super::*;
use crate::node::thresholds::{Bounds, Graces, Thresholds};
use crate::prepare::settle;
use crate::runtime::fake::Fake;
use crate::static_pods;
use api::types::core::v1::Node;
use client::fake::Fake as Server;
use serde_json::{Value, json};
use std::path::PathBuf;
use stdx::clock::RealClock;

struct Case {
    clock: SharedClock,
    rng: Rng,
    server: Server,
    client: Client,
    runtime: Fake,
    root: tempfile::TempDir,
    stage: Stage,
    max_pods: u32,
    thresholds: Thresholds,
}

impl Case {
    fn new() -> Self {
        use api::types::core::v1::{ConfigMap, Event, Namespace, Secret, Service};
        let clock = RealClock::shared();
        let rng = Rng::from_os();
        let resources = vec![
            Resource::of::<Node>(),
            Resource::of::<Pod>(),
            Resource::of::<ConfigMap>(),
            Resource::of::<Secret>(),
            Resource::of::<Service>(),
            Resource::of::<Event>(),
            Resource::of::<Namespace>(),
            Resource::of::<api::types::coordination::v1::Lease>(),
            client::waits::resource(),
        ];
        let server = Server::new(resources, clock.clone(), rng.clone());
        let client = Client::new(server.handler(), "kubelet");
        let (runtime, stage) = (Fake::default(), Stage::new());
        let (root, max_pods) = (tempfile::tempdir().expect("a directory"), 110);
        let thresholds = Thresholds::none();
        Self { clock, rng, server, client, runtime, root, stage, max_pods, thresholds }
    }

    fn options(&self, name: &str) -> Options {
        Options {
            node_name: name.into(),
            node_ips: vec!["192.0.2.1".into()],
            root_dir: self.root.path().join("kubelet"),
            log_dir: self.root.path().join("logs"),
            cgroups_per_qos: false,
            max_pods: self.max_pods,
            thresholds: self.thresholds,
            // How full the disk is below these tests is nothing to them.
            images: crate::options::ImageOptions {
                collection: crate::image::collect::Policy { high: 100, ..crate::image::collect::Policy::USUAL },
                ..crate::options::ImageOptions::default()
            },
            static_pods: static_pods::Options { path: Some(self.manifests()), ..static_pods::Options::default() },
            ..Options::default()
        }
    }

    fn manifests(&self) -> PathBuf {
        self.root.path().join("manifests")
    }

    /// Writes a manifest of a static pod as an editor does.
    fn write_manifest(&self, name: &str, image: &str) {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
             containers: [{{name: c, image: {image}}}]\n"
        );
        std::fs::create_dir_all(self.manifests()).expect("made");
        std::fs::write(self.manifests().join(format!("{name}.yaml")), text).expect("written");
    }

    /// Ids of the containers of a static pod that run, with their images.
    fn running(&self, name: &str) -> Vec<(String, String)> {
        let listed = futures::FutureExt::now_or_never(self.runtime.list()).expect("at once").expect("listed");
        let uids = listed.iter().filter(|(_, pod)| pod.name == format!("{name}-n1")).map(|(uid, _)| uid);
        let seen = uids.flat_map(|uid| self.runtime.seen(uid).containers);
        seen.filter(crate::runtime::Container::may_run).map(|c| (c.id, c.image)).collect()
    }

    fn mirror(&self, name: &str) -> Option<Value> {
        self.server.object("pods", "default", &format!("{name}-n1"))
    }

    fn start(&mut self, name: &str) {
        self.start_with(name, Some(self.client.clone()));
    }

    fn start_with(&mut self, name: &str, client: Option<Client>) {
        self.stage = Stage::new();
        let (runtime, clock) = (self.runtime.clone(), self.clock.clone());
        let (rng, options, stage) = (self.rng.clone(), self.options(name), self.stage.clone());
        tokio::spawn(async move {
            run_with(Arc::new(runtime), client, clock, rng, options, &stage).await.expect("it runs");
        });
    }

    async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let limit = self.clock.now() + Duration::from_secs(20);
        while !done(self) {
            assert!(self.clock.now() < limit, "never: {what}\npods {:#?}", self.server.objects("pods"));
            self.clock.sleep(Duration::from_millis(2)).await;
        }
    }

    fn pod(&self) -> Value {
        self.server.object("pods", "default", "web").unwrap_or_default()
    }
}

/// The table of mounts holds no links: a path that does is found in it never.
#[test]
fn the_directory_is_where_the_kernel_says() {
    use std::os::unix::fs::PermissionsExt;
    let outer = tempfile::tempdir().expect("a directory");
    let outer = outer.path().canonicalize().expect("there");
    std::fs::create_dir_all(outer.join("disk/pods")).expect("made");
    std::fs::set_permissions(outer.join("disk/pods"), std::fs::Permissions::from_mode(0o755)).expect("set");
    std::os::unix::fs::symlink("disk", outer.join("link")).expect("linked");
    assert_eq!(settle(&outer.join("link")).expect("made"), outer.join("disk"));
    let mode = |path: &str| std::fs::metadata(outer.join(path)).expect("there").permissions().mode() & 0o7777;
    assert_eq!(mode("disk/pods"), 0o750);
    assert_eq!(settle(&outer.join("disk/../new/deep")).expect("made"), outer.join("new/deep"));
    assert_eq!(mode("new/deep/pods"), 0o750);
    std::fs::create_dir(outer.join("split")).expect("made");
    std::os::unix::fs::symlink("../disk/pods", outer.join("split/pods")).expect("linked");
    assert!(settle(&outer.join("split")).is_err(), "mounts beneath it would not be found");
}

/// What a pod has mounted behind a link is known as mounted, and is not removed.
#[test]
fn mounts_behind_a_link_are_known() {
    let outer = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(outer.path().join("disk")).expect("made");
    std::os::unix::fs::symlink("disk", outer.path().join("link")).expect("linked");
    let layout = Layout::new(settle(&outer.path().join("link")).expect("made"), Arc::new(KernelMounts));
    let (data, bound) = (outer.path().join("data"), layout.pod("u").join("v"));
    std::fs::create_dir_all(&bound).expect("made");
    std::fs::create_dir(&data).expect("made");
    std::fs::write(data.join("precious"), "x").expect("written");
    let source = rustix::fs::open(&data, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).expect("opened");
    if layout.mounts.bind(std::os::fd::AsFd::as_fd(&source), &bound).is_err() {
        // Only root may mount.
        assert!(!rustix::process::geteuid().is_root(), "root may mount");
        return;
    }
    let is_known = layout.mounts.is_mounted(&bound);
    layout.remove("u").expect("unmounted and removed");
    assert!(is_known && data.join("precious").exists() && !layout.pod("u").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_registers_runs_its_pod_survives_a_restart_and_ends_it() {
    let mut case = Case::new();
    case.start("n1");
    case.until("the node is ready", |c| {
        let node = c.server.object("nodes", "", "n1").unwrap_or_default();
        node["status"]["conditions"]
            .as_array()
            .is_some_and(|l| l.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
    })
    .await;
    case.until("its lease is there", |c| {
        c.server.object("leases.coordination.k8s.io", "kube-node-lease", "n1").is_some()
    })
    .await;
    let pods = case.client.api::<Pod>().namespace("default");
    let wanted = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"nodeName": "n1",
        "terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "x:1",
        "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}]}]}});
    pods.create(&serde_json::from_value(wanted).expect("a pod")).await.expect("created");
    case.until("it names what is missing", |c| {
        c.pod().pointer("/status/containerStatuses/0/state/waiting/message").and_then(Value::as_str)
            == Some("configmap \"cm\" not found")
    })
    .await;
    let map = json!({"metadata": {"name": "cm", "namespace": "default"}, "data": {"k": "v"}});
    let maps = case.client.api::<api::types::core::v1::ConfigMap>().namespace("default");
    maps.create(&serde_json::from_value(map).expect("a ConfigMap")).await.expect("created");
    case.until("the pod runs", |c| c.pod()["status"]["phase"] == "Running").await;
    // What waits to be written when a kubelet ends is lost.
    let is_told = |c: &Case| c.server.objects("events").iter().any(|e| e["reason"] == "Started");
    case.until("its start is told", is_told).await;
    let uid = case.pod()["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let before = case.runtime.seen(&uid);

    // The kubelet ends and begins again under another hostname: same node, same containers.
    assert!(case.stage.finish(&case.clock, Duration::from_secs(10)).await, "it stops");
    assert_eq!(case.runtime.seen(&uid), before, "a stopped kubelet leaves its pods");
    case.start("another-name");
    case.until("reasons are told", |c| {
        c.server.objects("events").iter().filter(|e| e["reason"] == "Starting").count() == 2
    })
    .await;
    assert!(case.server.object("nodes", "", "another-name").is_none());

    pods.delete("web", &client::DeleteParams::default().grace(1)).await.expect("deleted");
    case.until("it is gone", |c| c.pod().is_null() && c.runtime.seen(&uid).is_empty()).await;
    assert_eq!(before.containers.len(), 1);
    // Events are written by a queue of their own, which may be behind what they tell of.
    for reason in ["Pulling", "Pulled", "Created", "Started", "Killing", "NodeReady", "MissingClusterDNS"] {
        case.until(reason, |c| c.server.objects("events").iter().any(|e| e["reason"] == reason)).await;
    }
    let events = case.server.objects("events");
    assert_eq!(events.iter().filter(|e| e["reason"] == "Started").count(), 1, "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_claims_is_ended() {
    use ::cri::v1;
    let mut case = Case::new();
    let metadata =
        v1::PodSandboxMetadata { name: "old".into(), uid: "u-old".into(), namespace: "default".into(), attempt: 0 };
    let config = v1::PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
    case.runtime.run_sandbox(config, "").await.expect("a sandbox");
    let root = case.root.path();
    for path in ["kubelet/pods/u-gone/volumes", "logs/default_gone_u-gone/c"] {
        std::fs::create_dir_all(root.join(path)).expect("made");
    }
    case.start("n1");
    case.until("it is gone", |c| c.runtime.seen("u-old").is_empty()).await;
    let left = |path: &str| case.root.path().join(path).exists();
    case.until("leftovers are gone", |_| !left("kubelet/pods/u-gone") && !left("logs/default_gone_u-gone")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pod_is_shown_by_a_mirror_that_comes_back() {
    let mut case = Case::new();
    case.write_manifest("web", "x:1");
    case.start("n1");
    let is_shown = |c: &Case| c.mirror("web").is_some_and(|m| m["status"]["phase"] == "Running");
    case.until("it runs and is shown", is_shown).await;
    let first = case.mirror("web").unwrap_or_default();
    let hash = first["metadata"]["annotations"]["kubernetes.io/config.hash"].clone();
    assert_eq!(first["metadata"]["annotations"]["kubernetes.io/config.mirror"], hash);
    let before = case.running("web");
    assert_eq!(before.len(), 1, "{before:?}");

    // Deleted, with grace or by force, it comes back; the pod does not notice.
    let pods = case.client.api::<Pod>().namespace("default");
    for grace in [30, 0] {
        let old = case.mirror("web").unwrap_or_default()["metadata"]["uid"].clone();
        pods.delete("web-n1", &client::DeleteParams::default().grace(grace)).await.expect("deleted");
        case.until("another mirror is there", |c| {
            c.mirror("web").is_some_and(|m| m["metadata"]["uid"] != old && m["status"]["phase"] == "Running")
        })
        .await;
    }
    assert_eq!(case.running("web"), before);

    // The next kubelet adopts it.
    assert!(case.stage.finish(&case.clock, Duration::from_secs(10)).await, "it stops");
    let mirror = case.mirror("web");
    case.start("n1");
    case.write_manifest("db", "x:1");
    case.until("another one runs", |c| c.mirror("db").is_some_and(|m| m["status"]["phase"] == "Running")).await;
    assert_eq!(case.running("web"), before, "no container was restarted");
    let shown = |mirror: Option<Value>| mirror.map(|m| (m["metadata"]["uid"].clone(), m["status"].clone()));
    assert_eq!(shown(case.mirror("web")), shown(mirror), "its mirror is the same, to the last time in it");

    // A damaged manifest ends nothing and is told; another content is another pod.
    std::fs::write(case.manifests().join("web.yaml"), "kind: Pod\nspec: [").expect("written");
    case.until("it is told", |c| c.server.objects("events").iter().any(|e| e["reason"] == "InvalidStaticPod")).await;
    assert_eq!(case.running("web").len(), 1);
    case.write_manifest("web", "x:2");
    case.until("the other one runs", |c| c.running("web").iter().all(|(_, image)| image == "x:2") && is_shown(c)).await;
    case.until("the mirror shows it", |c| {
        c.mirror("web").is_some_and(|m| {
            m["metadata"]["annotations"]["kubernetes.io/config.hash"] != hash
                && m["spec"]["containers"][0]["image"] == "x:2"
        })
    })
    .await;

    // Moved away it ends, moved back it begins.
    let (here, away) = (case.manifests().join("web.yaml"), case.root.path().join("web.yaml"));
    std::fs::rename(&here, &away).expect("moved");
    case.until("it ends", |c| c.mirror("web").is_none() && c.running("web").is_empty()).await;
    std::fs::rename(&away, &here).expect("moved");
    case.until("it begins", |c| c.running("web").len() == 1 && is_shown(c)).await;

    // One that was removed while nobody looked ends all the same.
    assert!(case.stage.finish(&case.clock, Duration::from_secs(10)).await, "it stops");
    std::fs::remove_file(&here).expect("removed");
    case.write_manifest("db", "x:2");
    case.start("n1");
    case.until("it ends", |c| c.mirror("web").is_none() && c.running("web").is_empty()).await;
    case.until("the changed one replaces its own", |c| {
        let running = c.running("db");
        running.len() == 1 && running[0].1 == "x:2"
    })
    .await;
}

/// An API server that nobody reaches.
struct Unreachable;

impl transport::Handler for Unreachable {
    fn call(&self, _: transport::Request) -> transport::Responding {
        Box::pin(async { Err(transport::Error::Connect("connection refused".into())) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn static_pods_need_no_api_server() {
    let unreachable = Client::new(Arc::new(Unreachable), "kubelet");
    for client in [None, Some(unreachable)] {
        let mut case = Case::new();
        case.write_manifest("web", "x:1");
        case.start_with("n1", client.clone());
        case.until("it runs", |c| c.running("web").len() == 1).await;
        let before = case.running("web");
        assert!(case.stage.finish(&case.clock, Duration::from_secs(10)).await, "it stops");
        case.write_manifest("db", "x:1");
        case.start_with("n1", client.clone());
        case.until("another one runs", |c| c.running("db").len() == 1).await;
        assert_eq!(case.running("web"), before, "it was adopted");
        std::fs::remove_file(case.manifests().join("web.yaml")).expect("removed");
        case.until("it ends", |c| c.running("web").is_empty()).await;
        // Without an API server nobody else can want pods; with one that is silent somebody may.
        if client.is_none() {
            assert!(case.stage.finish(&case.clock, Duration::from_secs(10)).await, "it stops");
            std::fs::remove_file(case.manifests().join("db.yaml")).expect("removed");
            case.start_with("n1", None);
            case.until("what no manifest describes ends", |c| c.running("db").is_empty()).await;
        }
        assert!(case.stage.finish(&case.clock, Duration::from_secs(10)).await, "it stops");
    }
}

/// Who said what it needs is admitted where memory is short, and ends; the others are not, and what is critical
/// stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_short_of_memory_ends_a_pod() {
    let mut case = Case::new();
    // As soft as can be: what is hard would leave no memory for pods that ask for some.
    let soft = Bounds::limits("memory.available<1Pi").expect("bounds");
    let soft_grace = Graces::graces("memory.available=0s").expect("graces");
    case.thresholds = Thresholds { soft, soft_grace, ..Thresholds::none() };
    let pods = case.client.api::<Pod>().namespace("default");
    for (name, resources) in [("web", json!({})), ("asks", json!({"requests": {"memory": "1Mi"}}))] {
        let wanted = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"nodeName": "n1",
            "terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "x:1", "resources": resources}]}});
        pods.create(&serde_json::from_value(wanted).expect("a pod")).await.expect("created");
    }
    case.write_manifest("vital", "x:1");
    case.start("n1");
    let status = |c: &Case, name: &str| c.server.object("pods", "default", name).unwrap_or_default()["status"].clone();
    let is_evicted = |c: &Case, name: &str| {
        let status = status(c, name);
        status["phase"] == "Failed" && status["reason"] == "Evicted"
    };
    case.until("the one is refused", |c| is_evicted(c, "web")).await;
    let said = status(&case, "web")["message"].clone();
    assert_eq!(said, "Pod was rejected: The node had condition: [MemoryPressure]. ");
    case.until("the other one ends", |c| is_evicted(c, "asks")).await;
    let status = status(&case, "asks");
    let said = status["message"].as_str().unwrap_or_default();
    let low = "The node was low on resource: memory. Threshold quantity: 1Pi, available: ";
    assert!(said.starts_with(low), "{said}");
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let target = conditions.iter().find(|c| c["type"] == "DisruptionTarget").cloned().unwrap_or_default();
    assert_eq!((&target["reason"], target["message"].as_str()), (&json!("TerminationByKubelet"), Some(said)));
    case.until("an event says so", |c| c.server.objects("events").iter().any(|e| e["message"] == said)).await;
    let attempted = |e: &Value| e["reason"] == "EvictionThresholdMet" && e["message"] == "Attempting to reclaim memory";
    case.until("another one, too", |c| c.server.objects("events").iter().any(attempted)).await;
    case.until("what is critical runs", |c| c.running("vital").len() == 1).await;
}

/// Pods that have ended give back what they left, then images that nobody uses go, and only then a pod ends: the
/// node is short as ever, for nothing in this test frees a petabyte.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_short_of_disk_gives_back_what_nobody_needs_first() {
    let mut case = Case::new();
    case.start("n1");
    let pods = case.client.api::<Pod>().namespace("default");
    for (name, image) in [("done", "d:1"), ("web", "x:1")] {
        let wanted = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"nodeName": "n1",
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": image}]}});
        pods.create(&serde_json::from_value(wanted).expect("a pod")).await.expect("created");
    }
    let of = |c: &Case, name: &str| c.server.object("pods", "default", name).unwrap_or_default();
    let is = |c: &Case, name: &str, phase: &str| of(c, name)["status"]["phase"] == phase;
    case.until("both run", |c| is(c, "done", "Running") && is(c, "web", "Running")).await;
    let uid = |c: &Case, name: &str| of(c, name)["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let done = uid(&case, "done");
    assert!(case.runtime.exit(&done, "c", 0, case.clock.wall()), "it runs");
    case.until("one has ended", |c| is(c, "done", "Succeeded")).await;
    case.runtime.pull("old:1", None, None).await.expect("pulled");
    let kept = case.runtime.seen(&done).containers.len();
    assert_eq!(kept, 1, "what has ended is kept for its log");

    // The next kubelet finds the node short of disk.
    assert!(case.stage.finish(&case.clock, Duration::from_secs(10)).await, "it stops");
    let soft = Bounds::limits("nodefs.available<1Pi").expect("bounds");
    let soft_grace = Graces::graces("nodefs.available=0s").expect("graces");
    case.thresholds = Thresholds { soft, soft_grace, ..Thresholds::none() };
    case.runtime.take_log();
    case.start("n1");
    case.until("the other one ends", |c| is(c, "web", "Failed")).await;
    assert_eq!(of(&case, "web")["status"]["reason"], "Evicted");
    assert!(
        of(&case, "web")["status"]["message"]
            .as_str()
            .is_some_and(|m| m.starts_with("The node was low on resource: ephemeral-storage. Threshold quantity: 1Pi"))
    );
    assert_eq!(of(&case, "done")["status"]["phase"], "Succeeded", "its object stays as it was");
    let log = case.runtime.take_log();
    let at =
        |call: &str| log.iter().position(|line| line.starts_with(call)).unwrap_or_else(|| panic!("{call}: {log:?}"));
    let removed = log.iter().filter(|line| line.starts_with("remove_image")).count();
    assert_eq!(removed, 2, "the image that only the ended pod used goes, too: {log:?}");
    assert!(at("remove_container") < at("remove_image") && at("remove_image") < at("stop_container"), "{log:?}");
    let short = |c: &Case| {
        let node = c.server.object("nodes", "", "n1").unwrap_or_default();
        let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.iter().any(|c| c["type"] == "DiskPressure" && c["status"] == "True")
    };
    case.until("the Node says so", short).await;
}

/// A static pod is critical: others end for it, and it begins when they have ended.
#[tokio::test(flavor = "multi_thread")]
async fn others_end_for_a_critical_pod() {
    let mut case = Case::new();
    case.max_pods = 1;
    // A folder that is not there yet is looked for now and then only.
    std::fs::create_dir_all(case.manifests()).expect("made");
    case.start("n1");
    let pods = case.client.api::<Pod>().namespace("default");
    let wanted = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"nodeName": "n1",
        "terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "x:1"}]}});
    pods.create(&serde_json::from_value(wanted).expect("a pod")).await.expect("created");
    case.until("the pod runs", |c| c.pod()["status"]["phase"] == "Running").await;
    let web = case.pod()["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let log = Mutex::new(Vec::<String>::new());
    let looks = |c: &Case, is: &dyn Fn(&str) -> bool| {
        let mut log = log.lock();
        log.extend(c.runtime.take_log());
        log.iter().filter(|call| is(call)).count()
    };
    let (of_web, whole) = (format!("pod {web}"), |_: &str| true);
    let is_web = |call: &str| call == of_web;
    let is_vital = |call: &str| call.starts_with("pod ") && call != of_web;
    looks(&case, &whole);
    log.lock().clear();
    // It takes a while to end, and neither task outlives that.
    let door = case.runtime.hold("stop_container");
    let other = of_web.clone();
    case.runtime.panic_at(move |call| call.starts_with("pod ") && call != other);
    case.write_manifest("vital", "x:1");
    let vital = |c: &Case| {
        let mirror = c.mirror("vital").unwrap_or_default();
        mirror["metadata"]["annotations"]["kubernetes.io/config.hash"].as_str().unwrap_or_default().to_owned()
    };
    case.until("it is shown", |c| !vital(c).is_empty()).await;
    case.until("the one ends", |c| c.runtime.is_held("stop_container")).await;
    // Something of the critical one that the runtime comes to have is looked at: its task ends, and another looks.
    let metadata = ::cri::v1::PodSandboxMetadata {
        name: "vital-n1".into(),
        uid: vital(&case),
        namespace: "default".into(),
        attempt: 0,
    };
    let config = ::cri::v1::PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
    case.runtime.run_sandbox(config, "").await.expect("a sandbox");
    case.runtime.kill_sandbox(&vital(&case), case.clock.wall());
    case.until("the critical one is looked at again", |c| looks(c, &is_vital) > 1).await;
    let before = looks(&case, &is_web);
    let own = of_web.clone();
    case.runtime.panic_at(move |call| call == own);
    case.runtime.poke(&web);
    case.until("the other one, too", |c| looks(c, &is_web) > before + 1).await;
    let own_sandbox = "run_sandbox vital-n1 1";
    assert!(!log.lock().iter().any(|line| line.starts_with(own_sandbox)), "it began too early");
    drop(door);
    case.until("the critical one runs", |c| c.mirror("vital").is_some_and(|m| m["status"]["phase"] == "Running")).await;
    let status = case.pod()["status"].clone();
    let said = ["phase", "reason", "message"].map(|key| status[key].as_str().unwrap_or_default());
    assert_eq!(said, ["Failed", "Preempting", "Preempted in order to admit critical pod"]);
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let target = conditions.iter().find(|c| c["type"] == "DisruptionTarget").cloned().unwrap_or_default();
    assert_eq!((&target["status"], &target["reason"]), (&json!("True"), &json!("TerminationByKubelet")));
    looks(&case, &whole);
    let log = log.into_inner();
    let at = |call: &str| log.iter().position(|line| line.starts_with(call)).expect(call);
    // A stop is in the log once it is done.
    assert!(at("stop_container") < at(own_sandbox), "it began too early: {log:?}");
    case.until("an event says so", |c| c.server.objects("events").iter().any(|e| e["reason"] == "Preempting")).await;

    // Nobody ends for another critical one.
    case.write_manifest("other", "x:1");
    let refused = |c: &Case| c.server.objects("events").iter().any(|e| e["reason"] == "UnexpectedAdmissionError");
    case.until("it is refused", refused).await;
    assert_eq!(case.running("vital").len(), 1);
}

/// A disk that takes nothing at the start is no end: it is told, and tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_made_is_waited_for() {
    let mut case = Case::new();
    let blocker = case.root.path().join("kubelet");
    std::fs::write(&blocker, "no directory").expect("written");
    case.start("n1");
    let told = |c: &Case| {
        let events = c.server.objects("events");
        events.iter().any(|e| {
            let about = e["message"].as_str().is_some_and(|m| m.starts_with("the kubelet's directory: "));
            about && e["reason"] == "KubeletSetupFailed" && e["involvedObject"]["name"] == "n1"
        })
    };
    case.until("it is told", told).await;
    assert!(case.server.object("nodes", "", "n1").is_none());
    std::fs::remove_file(&blocker).expect("removed");
    case.until("the node registers", |c| c.server.object("nodes", "", "n1").is_some()).await;

    // Where the Node is there already, it says so.
    assert!(case.stage.finish(&case.clock, Duration::from_secs(10)).await, "it stops");
    std::fs::rename(&blocker, case.root.path().join("away")).expect("moved");
    std::fs::write(&blocker, "no directory").expect("written");
    case.start("n1");
    let ready = |c: &Case| {
        let node = c.server.object("nodes", "", "n1").unwrap_or_default();
        let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.iter().find(|c| c["type"] == "Ready").map(|c| c["status"].clone()).unwrap_or_default()
    };
    case.until("the Node is not ready", |c| ready(c) == "False").await;
    std::fs::remove_file(&blocker).expect("removed");
    std::fs::rename(case.root.path().join("away"), &blocker).expect("moved");
    case.until("the Node is ready again", |c| ready(c) == "True").await;
}
