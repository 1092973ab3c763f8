//! Parts left out, parts started alone: every component is a client that can be swapped.

use std::process::Stdio;

use anyhow::{Result, bail, ensure};
use e2e::cluster::Cluster;
use e2e::registry::Registry;
use e2e::{images, manifests};

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
