//! What happens to pods after they run, and what is said of those that do not: logs, watched events,
//! faults of the node, the Waits of every broken state, and streams. Real kubectl.

#[path = "pods/streams.rs"]
mod streams;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::registry::{BEGINNING, Registry};
use e2e::{clients, images, manifests};
use serde_json::Value;
use stdx::ClockExt;
use stdx::metrics::read::{Sample, read};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

struct World {
    cluster: Cluster,
    registry: Registry,
    busybox: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_and_their_troubles() -> Result<()> {
    let images = [
        images::busybox("busybox:1")?,
        images::busybox("slow:1")?,
        images::nginx("nginx:1")?,
        images::program("probed:1", &clients::tool("probed")?, &[])?,
    ];
    let registry = Registry::start(&images).await?;
    let cluster = Cluster::start(&[]).await?;
    cluster.trust_registry(&registry)?;
    let busybox = registry.reference("busybox:1");
    let world = World { cluster, registry, busybox };
    a_pull_says_how_far_it_is(&world).await.context("a pull says how far it is")?;
    events_arrive_while_they_are_watched(&world).await.context("events arrive while they are watched")?;
    logs_are_followed_and_cut(&world).await.context("logs are followed and cut")?;
    the_previous_log_is_kept(&world).await.context("the previous log is kept")?;
    broken_pods_say_why(&world).await.context("broken pods say why")?;
    refused_pods_say_why(&world).await.context("refused pods say why")?;
    a_changed_config_map_arrives(&world).await.context("a changed ConfigMap arrives")?;
    what_is_used_is_told(&world).await.context("what is used is told")?;
    a_container_without_memory_is_told_so(&world).await.context("a container without memory is told so")?;
    a_dead_shim_is_survived(&world).await.context("a dead shim is survived")?;
    deadlines_in_a_mass_start(&world).await.context("deadlines in a mass start")?;
    probes_ask_over_tls_and_grpc(&world).await.context("probes ask over TLS and gRPC")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_reach_pods_and_end() -> Result<()> {
    streams::all().await
}

/// A command whose output is read line by line.
struct Follower {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(world: &World, args: &[&str]) -> Result<Self> {
        let mut child = world.cluster.kubectl_command(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("its output")?;
        Ok(Self { child, lines: BufReader::new(output).lines() })
    }

    /// The next line that has all these parts.
    async fn until(&mut self, world: &World, parts: &[&str]) -> Result<String> {
        let mut seen = Vec::new();
        let found = world.cluster.clock.timeout(PATIENCE, async {
            while let Some(line) = self.lines.next_line().await? {
                if parts.iter().all(|part| line.contains(part)) {
                    return Ok(line);
                }
                seen.push(line);
            }
            bail!("the output ended")
        });
        let found = found.await.unwrap_or_else(|_| bail!("it does not come"));
        found.with_context(|| format!("a line with {parts:?} after {seen:#?}"))
    }

    /// Lines that have all parts of each of these, in any order.
    async fn until_all(&mut self, world: &World, wanted: &[[&str; 2]]) -> Result<()> {
        let mut missing = wanted.to_vec();
        while !missing.is_empty() {
            let line = self.until(world, &[]).await.with_context(|| format!("still missing: {missing:?}"))?;
            missing.retain(|parts| !parts.iter().all(|part| line.contains(part)));
        }
        Ok(())
    }

    /// Everything up to the command's own end, which must be a good one.
    async fn rest(mut self, world: &World) -> Result<Vec<String>> {
        let all = async {
            let mut rest = Vec::new();
            while let Some(line) = self.lines.next_line().await? {
                rest.push(line);
            }
            let status = self.child.wait().await?;
            ensure!(status.success(), "{status} after {rest:#?}");
            Ok(rest)
        };
        world.cluster.clock.timeout(PATIENCE, all).await.context("the command does not end by itself")?
    }
}

/// The Waits about a pod.
async fn waits(cluster: &Cluster, pod: &str) -> Result<Vec<Value>> {
    let list = cluster.json(&["get", "waits", "-A"]).await?;
    let all = list["items"].as_array().cloned().unwrap_or_default();
    Ok(all.into_iter().filter(|w| w["object"]["kind"] == "Pod" && w["object"]["name"] == pod).collect())
}

/// Waits until the pod's Wait of that layer and code names `on` and says `text`, in `get waits` and in
/// `pintle why`.
async fn says(world: &World, pod: &str, layer: &str, code: &str, on: &str, text: &str) -> Result<()> {
    let cluster = &world.cluster;
    cluster
        .eventually(&format!("pod {pod} waits on {on}"), || async {
            let all = waits(cluster, pod).await?;
            let wait = all.iter().find(|w| w["layer"] == layer && w["code"] == code);
            let wait = wait.with_context(|| format!("no Wait {layer}/{code} among {all:#?}"))?;
            let has = |key: &str, part: &str| wait[key].as_str().is_some_and(|t| t.contains(part));
            ensure!(has("on", on) && has("text", text), "{wait:#}");
            let table = cluster.kubectl(&["get", "waits"]).await?;
            let row = table.lines().find(|l| l.contains(layer) && l.contains(pod));
            ensure!(row.is_some_and(|r| r.contains(on)), "{table}");
            let why = cluster.pintle(&["why", &format!("pod/{pod}")]).await?;
            let why = String::from_utf8_lossy(&why.stdout).into_owned();
            // Long lines are wrapped.
            let flat = why.split_whitespace().collect::<Vec<_>>().join(" ");
            ensure!(flat.contains(on) && flat.contains(text), "{why}");
            Ok(())
        })
        .await
}

async fn a_pull_says_how_far_it_is(world: &World) -> Result<()> {
    world.registry.hold();
    let image = world.registry.reference("slow:1");
    let far = format!("pulling: {BEGINNING} of ");
    world.cluster.apply(&manifests::script("pulls", &image, "sleep 1000")).await?;
    says(world, "pulls", "kubelet", "ImagePull", &format!("image {image}"), &far).await?;
    world.registry.release();
    world.cluster.kubectl(&["wait", "--for=condition=Ready", "pod/pulls", "--timeout=60s"]).await?;
    ensure!(waits(&world.cluster, "pulls").await?.is_empty(), "a pod that runs waits for nothing");
    remove(world, "pulls").await
}

async fn remove(world: &World, pod: &str) -> Result<()> {
    world.cluster.kubectl(&["delete", "pod", pod, "--grace-period=1"]).await.map(drop)
}

async fn events_arrive_while_they_are_watched(world: &World) -> Result<()> {
    let mut watch = Follower::start(world, &["get", "events", "--watch"])?;
    let image = world.registry.reference("nginx:1");
    // The first event shows that the watch has begun; the deployment comes only then.
    world.cluster.apply(&manifests::script("first", &world.busybox, "exit 0")).await?;
    watch.until(world, &["pod/first"]).await?;
    let manifest = manifests::web("watched", &image, 1, 30081);
    world.cluster.apply(manifest.split("---").next().unwrap_or_default()).await?;
    // Several components tell of it, each by a queue of its own: nothing orders what one says and another.
    let told = ["Scheduled", "Pulling", "Pulled", "Created", "Started"].map(|reason| [reason, "pod/watched-"]);
    let made = [["ScalingReplicaSet", "deployment/watched"], ["SuccessfulCreate", "replicaset/watched-"]];
    watch.until_all(world, &[&made[..], &told[..]].concat()).await?;
    world.cluster.kubectl(&["delete", "deployment", "watched"]).await?;
    watch.until(world, &["Killing", "pod/watched-"]).await?;
    watch.child.kill().await?;
    remove(world, "first").await
}

/// A file that a container waits for: a pod's script goes on when the test says so.
struct Gate(PathBuf);

impl Gate {
    fn new(world: &World, name: &str) -> Result<Self> {
        let folder = world.cluster.root().join("gates").join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    fn open(&self, name: &str) -> Result<()> {
        Ok(std::fs::write(self.0.join(name), "")?)
    }

    /// The pod with the gate mounted at `/gate`.
    fn mounted(&self, manifest: &str) -> String {
        let folder = self.0.display();
        format!(
            "{manifest}    volumeMounts: [{{name: gate, mountPath: /gate}}]\n  restartPolicy: Never\n  volumes:\n  \
             - name: gate\n    hostPath: {{path: {folder}, type: Directory}}\n"
        )
    }
}

async fn logs_are_followed_and_cut(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let gate = Gate::new(world, "logs")?;
    let script = "echo one; echo two; until [ -e /gate/go ]; do sleep 0.1; done; echo three; echo four";
    cluster.apply(&gate.mounted(&manifests::script("talks", &world.busybox, script))).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/talks", "--timeout=60s"]).await?;

    let mut follower = Follower::start(world, &["logs", "-f", "talks"])?;
    ensure!(follower.until(world, &[]).await? == "one", "from the beginning");
    ensure!(follower.until(world, &[]).await? == "two", "in order");
    // Age is counted in whole seconds: soon both lines are older than one.
    cluster
        .eventually("--since leaves out what is older", || async {
            let recent = cluster.kubectl(&["logs", "talks", "--since=1s"]).await?;
            ensure!(recent.is_empty(), "{recent}");
            Ok(())
        })
        .await?;
    ensure!(cluster.kubectl(&["logs", "talks", "--since=1h"]).await? == "one\ntwo\n");
    gate.open("go")?;
    let rest = follower.rest(world).await.context("logs -f ends when the container does")?;
    ensure!(rest == ["three", "four"], "{rest:?}");

    ensure!(cluster.kubectl(&["logs", "talks"]).await? == "one\ntwo\nthree\nfour\n");
    ensure!(cluster.kubectl(&["logs", "talks", "--tail=2"]).await? == "three\nfour\n");
    ensure!(cluster.kubectl(&["logs", "talks", "--tail=0"]).await?.is_empty());
    ensure!(cluster.kubectl(&["logs", "talks", "--limit-bytes=5"]).await? == "one\nt");
    let stamped = cluster.kubectl(&["logs", "talks", "--timestamps"]).await?;
    let stamps: Vec<(&str, &str)> = stamped.lines().filter_map(|l| l.split_once(' ')).collect();
    ensure!(stamps.iter().map(|(_, text)| *text).eq(["one", "two", "three", "four"]), "{stamped}");
    ensure!(stamps.iter().all(|(stamp, _)| stamp.parse::<jiff::Timestamp>().is_ok()), "{stamped}");
    ensure!(stamps.is_sorted_by(|a, b| a.0 <= b.0), "{stamped}");
    // From the moment of a line on, that line included.
    let third = format!("--since-time={}", stamps[2].0);
    ensure!(cluster.kubectl(&["logs", "talks", &third]).await? == "three\nfour\n");
    let none = cluster.kubectl_fails(&["logs", "talks", "--previous"]).await?;
    ensure!(none.contains("previous terminated container \"main\" in pod \"talks\" not found"), "{none}");
    remove(world, "talks").await
}

async fn the_previous_log_is_kept(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let script = "echo life >> /data/lives; n=$(wc -l < /data/lives); echo life $n; [ $n -gt 1 ] && sleep 1000; exit 3";
    let manifest = format!(
        "{}    volumeMounts: [{{name: data, mountPath: /data}}]\n  volumes: [{{name: data, emptyDir: {{}}}}]\n",
        manifests::script("reborn", &world.busybox, script)
    );
    cluster.apply(&manifest).await?;
    cluster
        .eventually("its second life", || async {
            let now = cluster.kubectl(&["logs", "reborn"]).await?;
            ensure!(now == "life 2\n", "{now}");
            let before = cluster.kubectl(&["logs", "reborn", "--previous"]).await?;
            ensure!(before == "life 1\n", "{before}");
            Ok(())
        })
        .await?;
    let last = cluster.json(&["get", "pod", "reborn"]).await?;
    ensure!(last.pointer("/status/containerStatuses/0/lastState/terminated/exitCode") == Some(&3.into()), "{last:#}");
    remove(world, "reborn").await
}

async fn broken_pods_say_why(world: &World) -> Result<()> {
    let (cluster, image) = (&world.cluster, &world.busybox);
    let sleeps = |name: &str| manifests::script(name, image, "sleep 1000");

    let missing = world.registry.reference("busybox:nowhere");
    cluster.apply(&manifests::script("badtag", &missing, "true")).await?;
    says(world, "badtag", "kubelet", "ImagePull", &format!("image {missing}"), "not found").await?;

    cluster
        .apply(&sleeps("huge").replace("    image:", "    resources: {requests: {cpu: \"64\"}}\n    image:"))
        .await?;
    let text = "0/1 nodes are available: 1 Insufficient cpu.";
    says(world, "huge", "scheduler", "Unschedulable", "NodeResourcesFit on 1 of 1 nodes", text).await?;

    let probe = "    readinessProbe: {exec: {command: [sh, -c, \"echo not yet; exit 1\"]}, periodSeconds: 1}\n";
    cluster.apply(&format!("{}{probe}", sleeps("unready"))).await?;
    says(world, "unready", "kubelet", "Probe", "readiness probe of container main", "not yet").await?;

    let mount = "    volumeMounts: [{name: settings, mountPath: /settings}]\n  volumes:\n  - name: settings\n    \
                 configMap: {name: absent}\n";
    cluster.apply(&format!("{}{mount}", sleeps("mountless"))).await?;
    says(world, "mountless", "kubelet", "Mount", "volume settings", "configmap \"absent\" not found").await?;

    cluster.apply(&manifests::script("crashes", image, "exit 7")).await?;
    says(world, "crashes", "kubelet", "CrashLoop", "container main", "restarting failed container=main").await?;

    let class = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: other}\nhandler: other\n---\n";
    cluster.apply(&format!("{class}{}  runtimeClassName: other\n", sleeps("classless"))).await?;
    let text = "no runtime for \"other\" is configured";
    says(world, "classless", "kubelet", "Sandbox", "the pod's sandbox", text).await?;

    // What was missing comes, and the Wait goes.
    cluster.kubectl(&["create", "configmap", "absent"]).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/mountless", "--timeout=60s"]).await?;
    cluster
        .eventually("the Wait is withdrawn", || async {
            let left = waits(cluster, "mountless").await?;
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        })
        .await?;
    for pod in ["badtag", "huge", "unready", "mountless", "crashes", "classless"] {
        remove(world, pod).await?;
        let left = cluster.eventually("no Wait is left", || async {
            let left = waits(cluster, pod).await?;
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        });
        left.await.with_context(|| format!("after pod {pod}"))?;
    }
    Ok(())
}

async fn refused_pods_say_why(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let sysctl = "  securityContext: {sysctls: [{name: kernel.msgmax, value: \"65536\"}]}\n";
    cluster.apply(&format!("{}{sysctl}", manifests::script("unsafe", &world.busybox, "true"))).await?;
    cluster
        .eventually("the pod is refused", || async {
            let pod = cluster.json(&["get", "pod", "unsafe"]).await?;
            let status = &pod["status"];
            ensure!(status["phase"] == "Failed" && status["reason"] == "SysctlForbidden", "{status:#}");
            let message = "Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted";
            ensure!(status["message"] == message, "{status:#}");
            let fields = "involvedObject.name=unsafe,reason=SysctlForbidden";
            let event = ["get", "events", "--field-selector", fields, "-o", "jsonpath={.items[0].message}"];
            let event = cluster.kubectl(&event).await?;
            ensure!(event == "forbidden sysctl: \"kernel.msgmax\" not allowlisted", "{event}");
            Ok(())
        })
        .await?;
    remove(world, "unsafe").await
}

async fn a_changed_config_map_arrives(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    cluster.kubectl(&["create", "configmap", "live", "--from-literal=word=before"]).await?;
    let script =
        "last=; while :; do now=$(cat /live/word); [ \"$now\" = \"$last\" ] || echo $now; last=$now; sleep 0.1; done";
    let mount =
        "    volumeMounts: [{name: live, mountPath: /live}]\n  volumes: [{name: live, configMap: {name: live}}]\n";
    cluster.apply(&format!("{}{mount}", manifests::script("reads", &world.busybox, script))).await?;
    let logs = |want: &'static str| {
        cluster.eventually("the container reads it", move || async move {
            let log = cluster.kubectl(&["logs", "reads"]).await?;
            ensure!(log == want, "{log:?} instead of {want:?}");
            Ok(())
        })
    };
    logs("before\n").await?;
    cluster.kubectl(&["patch", "configmap", "live", "-p", "{\"data\":{\"word\":\"after\"}}"]).await?;
    logs("before\nafter\n").await?;
    let restarts = ["get", "pod", "reads", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"];
    ensure!(cluster.kubectl(&restarts).await? == "0", "the container was not restarted");
    remove(world, "reads").await
}

/// A page of metrics that every reader of Prometheus' form understands.
async fn page(cluster: &Cluster, path: &str) -> Result<Vec<Sample>> {
    let text = cluster.kubectl(&["get", "--raw", path]).await?;
    read(&text).map_err(|bad| anyhow::anyhow!("{path}: {bad}\n{text}"))
}

/// `kubectl top` with nothing installed, and what the kubelet and the API server tell of themselves.
async fn what_is_used_is_told(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let script = "head -c 30000000 /dev/zero > /dev/shm/x; while :; do :; done";
    cluster.apply(&manifests::script("burns", &world.busybox, script)).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/burns", "--timeout=60s"]).await?;
    let top = cluster
        .eventually("kubectl top tells what a pod uses", || async {
            let top = cluster.kubectl(&["top", "pod", "--containers", "--no-headers"]).await?;
            let row = top.lines().find(|l| l.starts_with("burns")).with_context(|| format!("burns is not in {top}"))?;
            let cells: Vec<String> = row.split_whitespace().map(str::to_owned).collect();
            let number = |text: &str, unit: &str| text.strip_suffix(unit).and_then(|n| n.parse::<u64>().ok());
            let (cpu, memory) = (number(&cells[2], "m"), number(&cells[3], "Mi"));
            ensure!(cpu.is_some_and(|m| m > 20) && memory.is_some_and(|m| (28..200).contains(&m)), "{top}");
            Ok(cells)
        })
        .await?;
    ensure!(top.len() == 4, "{top:?}");
    let nodes = cluster.kubectl(&["top", "node", "--no-headers"]).await?;
    let cells: Vec<&str> = nodes.split_whitespace().collect();
    ensure!(cells.len() == 5 && cells[1].ends_with('m') && cells[4].ends_with('%'), "{nodes}");
    let none = cluster.kubectl_fails(&["top", "pod", "absent"]).await?;
    ensure!(none.contains("pods \"absent\" not found") || none.contains("not found"), "{none}");
    let table = cluster.kubectl(&["get", "pods.v1beta1.metrics.k8s.io", "burns"]).await?;
    ensure!(table.starts_with("NAME    CPU"), "{table}");

    let node =
        cluster.json(&["get", "nodes"]).await?["items"][0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let kubelet = |path: &str| format!("/api/v1/nodes/{node}/proxy{path}");
    let resource = page(cluster, &kubelet("/metrics/resource")).await?;
    let of_pod = |s: &&Sample| s.label("pod") == "burns";
    for name in ["container_cpu_usage_seconds_total", "container_start_time_seconds", "pod_memory_working_set_bytes"] {
        let found = resource.iter().filter(of_pod).find(|s| s.name == name);
        ensure!(found.is_some_and(|s| s.value > 0.0), "{name}: {found:?}");
    }
    let cadvisor = page(cluster, &kubelet("/metrics/cadvisor")).await?;
    for name in ["container_memory_rss", "container_cpu_usage_seconds_total", "container_network_receive_bytes_total"] {
        ensure!(cadvisor.iter().filter(of_pod).any(|s| s.name == name), "no {name} of the pod");
    }
    page(cluster, &kubelet("/metrics/probes")).await?;
    let own = page(cluster, &kubelet("/metrics")).await?;
    let value = |name: &str| own.iter().filter(|s| s.name == name).map(|s| s.value).sum::<f64>();
    ensure!(value("kubelet_running_pods") >= 1.0 && value("kubelet_started_containers_total") >= 1.0, "{own:#?}");
    let runs =
        |s: &&Sample| s.name == "kubelet_runtime_operations_total" && s.label("operation_type") == "run_podsandbox";
    ensure!(own.iter().find(runs).is_some_and(|s| s.value >= 1.0), "the runtime's operations are not counted");
    let server = page(cluster, "/metrics").await?;
    ensure!(server.iter().any(|s| s.name == "apiserver_request_total"), "requests are not counted");

    let summary: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", &kubelet("/stats/summary")]).await?)?;
    let pods = summary["pods"].as_array().cloned().unwrap_or_default();
    let pod = pods.iter().find(|p| p["podRef"]["name"] == "burns").with_context(|| format!("{summary:#}"))?;
    for path in [
        "/memory/workingSetBytes",
        "/network/interfaces/0/name",
        "/containers/0/cpu/usageCoreNanoSeconds",
        "/containers/0/logs/capacityBytes",
        "/ephemeral-storage/capacityBytes",
        "/process_stats/process_count",
    ] {
        ensure!(pod.pointer(path).is_some_and(|v| *v != 0), "{path} of {pod:#}");
    }
    let health = cluster.kubectl(&["get", "--raw", &kubelet("/healthz")]).await?;
    ensure!(health == "ok", "{health}");
    let config: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", &kubelet("/configz")]).await?)?;
    ensure!(config["kubeletconfig"]["maxPods"] == 110, "{config:#}");
    ensure!(cluster.kubectl(&["get", "--raw", &kubelet("/logs/")]).await?.starts_with("<pre>"), "the node's logs");
    remove(world, "burns").await
}

async fn a_container_without_memory_is_told_so(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    // One process that wants more than it may have.
    let script = "exec dd if=/dev/zero of=/dev/null bs=256M count=1";
    let manifest = manifests::script("hungry", &world.busybox, script)
        .replace("    image:", "    resources: {limits: {memory: 32Mi}}\n    image:");
    cluster.apply(&format!("{manifest}  restartPolicy: Never\n")).await?;
    cluster
        .eventually("it ends for want of memory", || async {
            let pod = cluster.json(&["get", "pod", "hungry"]).await?;
            let end = pod.pointer("/status/containerStatuses/0/state/terminated").cloned().unwrap_or_default();
            ensure!(end["reason"] == "OOMKilled" && end["exitCode"] == 137, "{:#}", pod["status"]);
            ensure!(pod["status"]["phase"] == "Failed", "{:#}", pod["status"]);
            Ok(())
        })
        .await?;
    remove(world, "hungry").await
}

/// The process with that command line, and its parent.
fn process(marker: &str) -> Result<(u32, u32)> {
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let Some(pid) = path.file_name().and_then(|n| n.to_str()?.parse::<u32>().ok()) else { continue };
        // A process may have gone since it was listed.
        let words = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|b| *b == 0).filter(|w| !w.is_empty()).collect();
        if words.join(&b' ') == marker.as_bytes() {
            return Ok((pid, parent(&path)?));
        }
    }
    bail!("no process runs {marker}")
}

fn parent(process: &Path) -> Result<u32> {
    let status = std::fs::read_to_string(process.join("status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("PPid:")).context("a parent")?;
    Ok(line.trim().parse()?)
}

/// Thirty pods at once whose time is over before, while or after their container starts: each is told
/// with what became of it.
async fn deadlines_in_a_mass_start(world: &World) -> Result<()> {
    let (cluster, count) = (&world.cluster, 30);
    let pod = |n: usize| {
        let deadline = 1 + n % 3;
        let script = manifests::script(&format!("short-{n}"), &world.busybox, "sleep 1000")
            .replace("metadata:\n", "metadata:\n  labels: {app: short}\n");
        format!("{script}  activeDeadlineSeconds: {deadline}\n  restartPolicy: Never\n")
    };
    cluster.apply(&(0..count).map(pod).collect::<Vec<_>>().join("---\n")).await?;
    cluster
        .eventually("every pod has ended", || async {
            let pods = cluster.json(&["get", "pods", "-l", "app=short"]).await?;
            let pods = pods["items"].as_array().cloned().unwrap_or_default();
            ensure!(pods.len() == count, "{} pods", pods.len());
            for pod in &pods {
                let status = &pod["status"];
                ensure!(status["phase"] == "Failed" && status["reason"] == "DeadlineExceeded", "{status:#}");
            }
            Ok(())
        })
        .await?;
    let names = "jsonpath={range .items[*]}{.involvedObject.name}/{end}";
    let started = cluster.kubectl(&["get", "events", "--field-selector", "reason=Started", "-o", names]).await?;
    let pods = cluster.json(&["get", "pods", "-l", "app=short"]).await?;
    for pod in pods["items"].as_array().into_iter().flatten() {
        for container in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
            let state = &container["state"];
            ensure!(state["running"].is_null(), "a container runs on: {container:#}");
            // As upstream has it, this reason stands for a container that never ran.
            let ran = started.contains(&format!("{}/", pod["metadata"]["name"].as_str().unwrap_or_default()));
            ensure!(!ran || state["terminated"]["reason"] != "ContainerStatusUnknown", "{container:#}");
        }
    }
    cluster.kubectl(&["delete", "pods", "-l", "app=short", "--grace-period=1"]).await.map(drop)
}

async fn a_dead_shim_is_survived(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let marker = "sleep 86399";
    cluster.apply(&manifests::script("orphaned", &world.busybox, &format!("exec {marker}"))).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/orphaned", "--timeout=60s"]).await?;
    let before = cluster.json(&["get", "pod", "orphaned"]).await?;
    let (pid, shim) = process(marker)?;
    let name = std::fs::read_to_string(format!("/proc/{shim}/cmdline"))?;
    ensure!(name.contains("containerd-shim"), "the parent of {pid} is {name:?}");
    tokio::process::Command::new("kill").args(["-9", &shim.to_string()]).status().await?;
    cluster
        .eventually("the pod recovers", || async {
            let pod = cluster.json(&["get", "pod", "orphaned"]).await?;
            let status = &pod["status"]["containerStatuses"][0];
            ensure!(status["containerID"] != before["status"]["containerStatuses"][0]["containerID"], "{status:#}");
            ensure!(status["ready"] == true && status["restartCount"] == 1, "{status:#}");
            let end = &status["lastState"]["terminated"];
            ensure!(end["exitCode"].as_i64().is_some_and(|code| code != 0), "{status:#}");
            let (now, _) = process(marker)?;
            ensure!(now != pid, "the old process {pid} runs on");
            Ok(())
        })
        .await?;
    remove(world, "orphaned").await
}

/// A server that is asked over HTTPS (with a header, whatever its certificate) whether it lives and over
/// gRPC whether it is ready, in a pod that somebody else has to call ready, too.
async fn probes_ask_over_tls_and_grpc(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let https = "{scheme: HTTPS, path: /live, port: 8443, httpHeaders: [{name: X-Probe, value: 'yes'}]}";
    let manifest = format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: probed}}
spec:
  terminationGracePeriodSeconds: 1
  readinessGates: [{{conditionType: example.com/gate}}]
  containers:
  - name: main
    image: {}
    startupProbe: {{httpGet: {https}, periodSeconds: 1, failureThreshold: 30}}
    livenessProbe: {{httpGet: {https}, periodSeconds: 1, failureThreshold: 1}}
    readinessProbe: {{grpc: {{port: 9090, service: named}}, periodSeconds: 1, failureThreshold: 1}}
",
        world.registry.reference("probed:1")
    );
    cluster.apply(&manifest).await?;
    let is = async |what: &str, ready: &str, containers: &str, reason: &str| {
        let look = || async {
            let pod = cluster.json(&["get", "pod", "probed"]).await?;
            let all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let of = |kind: &str| all.iter().find(|c| c["type"] == kind).cloned().unwrap_or_default();
            let (own, theirs) = (of("Ready"), of("ContainersReady"));
            ensure!(own["status"] == ready && theirs["status"] == containers, "{all:#?}");
            ensure!(own["reason"].as_str().unwrap_or_default() == reason, "{own:#}");
            Ok(pod)
        };
        cluster.eventually(what, look).await
    };
    let pod = is("its gate is closed", "False", "True", "ReadinessGatesNotReady").await?;
    let ip = pod["status"]["podIP"].as_str().context("an address")?.to_owned();
    let open = "{\"status\":{\"conditions\":[{\"type\":\"example.com/gate\",\"status\":\"True\"}]}}";
    cluster.kubectl(&["patch", "pod", "probed", "--subresource=status", "-p", open]).await?;
    is("its gate is open", "True", "True", "").await?;
    let tell = async |path: &str| cluster.http_get(&format!("http://{ip}:8080/{path}")).await;
    tell("grpc/bad").await?;
    is("it is not ready", "False", "False", "ContainersNotReady").await?;
    tell("grpc/good").await?;
    is("it is ready again", "True", "True", "").await?;
    tell("https/bad").await?;
    let restarted = || async {
        let pod = cluster.json(&["get", "pod", "probed"]).await?;
        ensure!(pod["status"]["containerStatuses"][0]["restartCount"] == 1, "{:#}", pod["status"]);
        Ok(())
    };
    cluster.eventually("it is restarted", restarted).await?;
    is("it is ready once more", "True", "True", "").await?;
    for message in [
        "Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")",
        "Liveness probe failed: HTTP probe failed with statuscode: 500",
    ] {
        let events = cluster.kubectl(&["get", "events", "--field-selector", "involvedObject.name=probed"]).await?;
        ensure!(events.contains(message), "{events}");
    }
    remove(world, "probed").await
}
