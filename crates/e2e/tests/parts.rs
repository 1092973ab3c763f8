//! Parts left out, parts started alone: every component is a client that can be swapped.

use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use e2e::cluster::Cluster;
use e2e::registry::Registry;
use e2e::{images, manifests, runtime};
use host::reset::{self, Step};
use tokio::process::Child;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_scheduler_pods_wait_and_run_once_it_starts() -> Result<()> {
    let registry = Registry::start(&[images::busybox("busybox:1")?]).await?;
    let cluster = Cluster::start(&["--disable=kube-scheduler"]).await?;
    cluster.trust_registry(&registry)?;
    cluster.apply(&manifests::script("lonely", &registry.reference("busybox:1"), "sleep 1000")).await?;
    // A pod that only waits shows it: Pending, no node, and nothing moves while others do.
    cluster.kubectl(&["create", "configmap", "later"]).await?;
    let state = cluster.kubectl(&["get", "pod", "lonely", "-o", "jsonpath={.status.phase}/{.spec.nodeName}"]).await?;
    ensure!(state == "Pending/", "{state}");
    cluster
        .eventually("somebody says that nobody schedules", || async {
            let waits = cluster.kubectl(&["get", "waits"]).await?;
            let row = waits.lines().find(|l| l.contains("lonely") && l.contains("scheduler default-scheduler"));
            ensure!(row.is_some(), "{waits}");
            let why = cluster.pintle(&["why", "pod/lonely"]).await?;
            let why = String::from_utf8_lossy(&why.stdout).into_owned();
            ensure!(why.contains("no scheduler named default-scheduler has bound it"), "{why}");
            Ok(())
        })
        .await?;

    let kubeconfig = cluster.root().join("config/scheduler.kubeconfig");
    let mut scheduler = cluster
        .pintle_command(&["kube-scheduler", "--kubeconfig"])
        .arg(kubeconfig)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let waited = cluster.kubectl(&["wait", "--for=condition=Ready", "pod/lonely", "--timeout=60s"]).await;
    if let Some(status) = scheduler.try_wait()? {
        bail!("the scheduler ended with {status}");
    }
    waited?;
    Ok(())
}

/// Starts a part alone, as a client with the kubeconfig `<name>.kubeconfig`.
fn part(cluster: &Cluster, command: &str, kubeconfig: &str, flags: &[&str]) -> Result<Child> {
    let log = std::fs::File::create(cluster.root().join(format!("{command}.log")))?;
    let child = cluster
        .pintle_command(&[command, "--kubeconfig"])
        .arg(cluster.root().join("config").join(kubeconfig))
        .args(flags)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_part_runs_alone() -> Result<()> {
    let registry = Registry::start(&[images::nginx("nginx:1")?]).await?;
    let cluster = Cluster::start(&["--disable=kube-controller-manager,kube-scheduler,kubelet,kube-proxy"]).await?;
    cluster.trust_registry(&registry)?;
    let endpoint = runtime::start(cluster.root(), &cluster.clock).await?;
    let below = |name: &str| cluster.root().join("state").join(name).display().to_string();
    let (root, logs) = (below("kubelet"), below("pod-logs"));
    let parts = vec![
        part(&cluster, "kube-controller-manager", "controller-manager.kubeconfig", &[])?,
        part(&cluster, "kube-scheduler", "scheduler.kubeconfig", &[])?,
        part(
            &cluster,
            "kubelet",
            "kubelet.kubeconfig",
            &["--container-runtime-endpoint", &endpoint, "--root-dir", &root, "--pod-logs-dir", &logs],
        )?,
        part(&cluster, "kube-proxy", "proxy.kubeconfig", &["--masquerade-egress"])?,
    ];
    let manifest = manifests::web("alone", &registry.reference("nginx:1"), 2, 30081);
    // The controllers make what a pod needs first: its namespace's ServiceAccount.
    cluster.eventually("the Deployment is accepted", || cluster.apply(&manifest)).await?;
    let rolled = cluster.kubectl(&["rollout", "status", "deployment/alone", "--timeout=90s"]).await;
    let log = |name: &str| std::fs::read_to_string(cluster.root().join(format!("{name}.log"))).unwrap_or_default();
    rolled.with_context(|| format!("kubelet: {}\ncontrollers: {}", log("kubelet"), log("kube-controller-manager")))?;
    let ip = cluster.kubectl(&["get", "service", "alone", "-o", "jsonpath={.spec.clusterIP}"]).await?;
    let url = format!("http://{ip}/");
    cluster.eventually("the Service answers", || cluster.http_get(&url)).await?;

    drop(parts);
    let stopped = cluster.pintle(&["down", "--pods"]).await?;
    ensure!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    let kubeconfig = cluster.root().join("config/proxy.kubeconfig");
    let cleaned = cluster.pintle_command(&["kube-proxy", "--cleanup", "--kubeconfig"]).arg(kubeconfig).output().await?;
    ensure!(cleaned.status.success(), "{}", String::from_utf8_lossy(&cleaned.stderr));
    reset::apply(&Step::RemoveCgroup("/kubepods".into()))?;
    Ok(())
}
