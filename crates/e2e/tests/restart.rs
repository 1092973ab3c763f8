//! The process stops, is killed, and starts again: pods and Services go on, nothing acknowledged is
//! lost, no container is restarted.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, guard};
use e2e::leaks::Host;
use e2e::registry::Registry;
use e2e::{images, manifests, runtime};
use host::layout::Layout;
use host::process::ProcessId;
use serde_json::Value;
use stdx::{ClockExt, Rng};

/// Container ids of the pods, sorted: a restart would change one.
async fn containers(cluster: &Cluster) -> Result<Vec<String>> {
    let list = cluster.json(&["get", "pods", "-l", "app=web"]).await?;
    let pods = list["items"].as_array().cloned().unwrap_or_default();
    let mut ids: Vec<String> = pods
        .iter()
        .map(|p| {
            let id = p.pointer("/status/containerStatuses/0/containerID").and_then(Value::as_str);
            let count = p.pointer("/status/containerStatuses/0/restartCount").cloned().unwrap_or_default();
            format!("{}#{count}", id.unwrap_or_default())
        })
        .collect();
    ids.sort();
    Ok(ids)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_and_services_outlive_the_process() -> Result<()> {
    let registry = Registry::start(&[images::nginx("nginx:1")?]).await?;
    let mut cluster = Cluster::start(&[]).await?;
    cluster.trust_registry(&registry)?;
    cluster.apply(&manifests::web("web", &registry.reference("nginx:1"), 2, 30080)).await?;
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await?;
    let ip = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]).await?;
    let node = cluster.node_ip().await?;
    let urls = [format!("http://{ip}/"), format!("http://{node}:30080/")];
    for url in &urls {
        cluster.eventually("the Service answers", || cluster.http_get(url)).await?;
    }
    let before = containers(&cluster).await?;
    ensure!(before.len() == 2, "{before:?}");

    cluster.stop().await.context("an orderly stop")?;
    for url in &urls {
        cluster.http_get(url).await.context("the Service answers while nothing of ours runs")?;
    }
    cluster.up(&[]).await.context("a second up")?;
    ensure!(containers(&cluster).await? == before, "containers were restarted by a stop and start");

    // Killed at a random moment while a writer counts what was acknowledged.
    let rng = Rng::from_os();
    let mut acknowledged = 0;
    for round in 0..5 {
        let deadline = cluster.clock.now() + Duration::from_millis(200 + rng.below(800));
        while cluster.clock.now() < deadline {
            cluster.kubectl(&["create", "configmap", &format!("kept-{acknowledged}")]).await?;
            acknowledged += 1;
        }
        let scale = if round % 2 == 0 { "3" } else { "2" };
        cluster.kubectl(&["scale", "deployment/web", &format!("--replicas={scale}")]).await?;
        cluster.kill().await?;
        cluster.http_get(&urls[0]).await.context("the Service answers after a kill")?;
        cluster.up(&[]).await.with_context(|| format!("start after kill {round}"))?;
        let list = cluster.kubectl(&["get", "configmaps", "-o", "name"]).await?;
        let kept = list.lines().filter(|l| l.contains("/kept-")).count();
        ensure!(kept == acknowledged, "{kept} of {acknowledged} acknowledged writes are there");
        cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]).await?;
        let after = containers(&cluster).await?;
        let alive = before.iter().filter(|id| after.contains(id)).count();
        ensure!(alive == before.len(), "a container was restarted: {before:?} became {after:?}");
    }
    Ok(())
}

/// After the runtime below `root` died: it is another one, more pods start on it (which also shows
/// that the Node is Ready), and those that ran before are the same containers.
async fn recovers(cluster: &Cluster, replicas: usize, before: &[String]) -> Result<()> {
    cluster.kubectl(&["scale", "deployment/web", &format!("--replicas={replicas}")]).await?;
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "node", "--all", "--timeout=60s"]).await?;
    let after = containers(cluster).await?;
    ensure!(after.len() == replicas, "{after:?}");
    ensure!(before.iter().all(|id| after.contains(id)), "a container was restarted: {before:?} became {after:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_dies_is_started_again() -> Result<()> {
    let registry = Registry::start(&[images::nginx("nginx:1")?]).await?;
    let mut cluster = Cluster::start(&[]).await?;
    cluster.trust_registry(&registry)?;
    cluster.apply(&manifests::web("web", &registry.reference("nginx:1"), 1, 30082)).await?;
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await?;
    let before = containers(&cluster).await?;
    let runs = |killed: ProcessId| {
        let pid = Layout::below(cluster.root()).containerd_pid();
        async move {
            let now = ProcessId::load_alive(&pid).context("no runtime runs")?;
            ensure!(now != killed, "it is the one that was killed");
            Ok(())
        }
    };
    // Once as a child of this process, once more although that was moments ago.
    for replicas in [2, 3] {
        let killed = runtime::kill(cluster.root()).await?;
        cluster.eventually("the runtime runs again", || runs(killed)).await?;
        recovers(&cluster, replicas, &before).await?;
    }
    // Under load: in the middle of other starts, with the kubelet going on.
    let socket = Layout::below(cluster.root()).containerd_socket();
    let shims = || cri::shims::running(Path::new("/proc"), &socket).len();
    let before_load = shims();
    cluster.kubectl(&["scale", "deployment/web", "--replicas=9"]).await?;
    let begun = || async {
        ensure!(shims() > before_load, "no shim yet");
        Ok(())
    };
    cluster.eventually("a sandbox is begun", begun).await?;
    let killed = runtime::kill(cluster.root()).await?;
    cluster.eventually("the runtime runs again", || runs(killed)).await?;
    recovers(&cluster, 9, &before).await?;

    let log = cluster.log_tail();
    ensure!(log.contains("the container runtime was started again"), "it is not in the log: {log}");

    // Adopted: it is no child of the process that watches it.
    cluster.stop().await?;
    let before = {
        cluster.up(&[]).await?;
        containers(&cluster).await?
    };
    let killed = runtime::kill(cluster.root()).await?;
    let pid = Layout::below(cluster.root()).containerd_pid();
    let other = || async { ProcessId::load_alive(&pid).filter(|now| *now != killed).context("no other runtime runs") };
    cluster.eventually("an adopted runtime runs again", other).await?;
    recovers(&cluster, 10, &before).await?;

    // One that died while nothing of ours ran is started by the next `up`.
    cluster.stop().await?;
    runtime::kill(cluster.root()).await?;
    let before = {
        cluster.up(&[]).await?;
        containers(&cluster).await?
    };
    recovers(&cluster, 11, &before).await
}

/// Both die while pods are being started, at every moment of it: what the runtime had begun and
/// nobody remembers is ended by the next start, and nothing is left behind when the pods are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_shim_is_forgotten_when_both_die_in_the_middle_of_a_start() -> Result<()> {
    let registry = Registry::start(&[images::busybox("busybox:1")?]).await?;
    let mut cluster = Cluster::start(&[]).await?;
    cluster.trust_registry(&registry)?;
    let image = registry.reference("busybox:1");
    cluster.apply(&manifests::script("first", &image, "sleep 1000")).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/first", "--timeout=60s"]).await?;
    let (socket, rng) = (Layout::below(cluster.root()).containerd_socket(), Rng::from_os());
    let shims = || cri::shims::running(Path::new("/proc"), &socket);
    for round in 0..8 {
        let manifests: Vec<String> =
            (0..4).map(|n| manifests::script(&format!("p{round}-{n}"), &image, "sleep 1000")).collect();
        // On a busy machine all of them are there when the command has ended; and of an earlier round some end only now.
        let before: Vec<String> = shims().into_iter().map(|(_, id)| id).collect();
        cluster.apply(&manifests.join("---\n")).await?;
        // A shim of this round is there, and somewhere between its beginning and its record.
        let begun = || async {
            ensure!(shims().iter().any(|(_, id)| !before.contains(id)), "no shim yet");
            Ok(())
        };
        cluster.eventually("a sandbox is begun", begun).await?;
        cluster.clock.sleep(Duration::from_millis(rng.below(60))).await;
        cluster.kill().await?;
        runtime::kill(cluster.root()).await?;
        cluster.up(&[]).await.with_context(|| format!("start after round {round}"))?;
        cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=80s"]).await?;
    }
    let client = cri::Client::new(&format!("unix://{}", socket.display()), cluster.clock.clone())?;
    let known = || async {
        let known: Vec<String> = client.list_pod_sandbox(None).await?.into_iter().map(|s| s.id).collect();
        let lost: Vec<_> = shims().into_iter().filter(|(_, id)| !known.contains(id)).collect();
        ensure!(lost.is_empty(), "shims that the runtime does not know: {lost:?}");
        Ok(())
    };
    cluster.eventually("the runtime knows every shim", known).await?;
    cluster.kubectl(&["delete", "pods", "--all", "--grace-period=1"]).await?;
    let none = || async {
        ensure!(shims().is_empty(), "{:?}", shims());
        Ok(())
    };
    cluster.eventually("no shim is left", none).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_of_others_is_left_to_them_and_found_again() -> Result<()> {
    let registry = Registry::start(&[images::nginx("nginx:1")?]).await?;
    let theirs = tempfile::Builder::new().prefix("pintle-runtime-").tempdir()?;
    registry.trusted_below(theirs.path())?;
    guard().await?;
    let mut cluster = Cluster::prepare()?;
    let endpoint = runtime::start(theirs.path(), &cluster.clock).await?;
    let pid = Layout::below(theirs.path()).containerd_pid();
    let result = async {
        cluster.up(&["--container-runtime-endpoint", &endpoint]).await?;
        cluster.apply(&manifests::web("web", &registry.reference("nginx:1"), 1, 30083)).await?;
        cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await?;
        let before = containers(&cluster).await?;
        runtime::kill(theirs.path()).await?;
        cluster.kubectl(&["scale", "deployment/web", "--replicas=2"]).await?;
        // The kubelet has tried: it says on what the new pod waits.
        let waits = || async {
            let waits = cluster.kubectl(&["get", "waits", "-A"]).await?;
            ensure!(waits.contains("kubelet"), "{waits}");
            Ok(())
        };
        cluster.eventually("a Wait names the kubelet", waits).await?;
        ensure!(ProcessId::load_alive(&pid).is_none(), "a runtime that is not ours was started");
        runtime::start(theirs.path(), &cluster.clock).await?;
        recovers(&cluster, 2, &before).await
    };
    let result = result.await;
    // The runtime is the test's, and so are its pods' ends.
    cluster.stop().await?;
    let roots = ["state", "config", "run"].map(|n| format!("--{n}-dir={}", theirs.path().join(n).display()));
    let ended = cluster.pintle_command(&["down", "--pods"]).args(roots).output().await?;
    ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    result
}

const HOST_PORT: u16 = 18_085;

/// A pod whose port is one of the host's: the CNI plugin makes rules for it.
fn on_a_port_of_the_host(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {image}
    command: [sh, -c, 'mkdir /w; echo come in > /w/index.html; exec httpd -f -p 8080 -h /w']
    ports: [{{containerPort: 8080, hostPort: {HOST_PORT}}}]
"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_leaves_the_host_as_it_was() -> Result<()> {
    // Where a cluster of the standard folders would be, and what CNI plugins keep unless told otherwise.
    let folders = ["/etc/pintle", "/run/pintle", "/var/lib/pintle", "/var/lib/cni", "/var/log/pods"].map(Path::new);
    let before = Host::look(&folders)?;
    let registry = Registry::start(&[images::busybox("busybox:1")?]).await?;
    let cluster = Cluster::start(&[]).await?;
    cluster.trust_registry(&registry)?;
    let script = manifests::script("trace", &registry.reference("busybox:1"), "sleep 1000");
    std::fs::write(Layout::below(cluster.root()).manifests().join("trace.yaml"), script.replace("trace", "static"))?;
    cluster.apply(&script).await?;
    cluster.apply(&manifests::web("gone", &registry.reference("busybox:1"), 0, 30085)).await?;
    cluster.apply(&on_a_port_of_the_host("door", &registry.reference("busybox:1"))).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/trace", "pod/door", "--timeout=60s"]).await?;
    let url = format!("http://{}:{HOST_PORT}/", cluster.node_ip().await?);
    let page = cluster.eventually("the port of the host answers", || cluster.http_get(&url)).await?;
    ensure!(page.trim() == "come in", "{page}");
    let (root, clock) = (cluster.root().to_owned(), cluster.clock.clone());
    drop(cluster);
    ensure!(!root.exists(), "the cluster's folder is left");
    before.returns(&folders, &clock).await
}
