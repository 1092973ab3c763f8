//! Parts left out, parts started alone: every component is a client that can be swapped.

#[path = "parts/metrics.rs"]
mod metrics;
#[path = "parts/profile.rs"]
mod profile;
#[path = "parts/streams.rs"]
mod streams;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use e2e::cluster::{Cluster, NEARLY_FULL_DISK, guard};
use e2e::registry::Registry;
use e2e::{images, manifests, runtime};
use host::reset::{self, Step};
use pki::Request;
use pki::layout::Purpose;
use serde_json::json;
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
    let forwards = forwarding()?;
    let registry = Registry::start(&[images::nginx("nginx:1")?]).await?;
    let cluster = Cluster::start(&["--disable=kube-controller-manager,kube-scheduler,kubelet,kube-proxy,dns"]).await?;
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
            &[
                "--container-runtime-endpoint",
                &endpoint,
                "--root-dir",
                &root,
                "--pod-logs-dir",
                &logs,
                "--cluster-dns=10.96.0.10",
                NEARLY_FULL_DISK,
            ],
        )?,
        part(&cluster, "dns", "dns.kubeconfig", &[])?,
        part(&cluster, "kube-proxy", "proxy.kubeconfig", &["--proxy-mode=nftables", "--masquerade-egress"])?,
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
    let ready = || cluster.http_get("http://10.96.0.10:9153/ready");
    cluster.eventually("the DNS is ready, and led to", ready).await.with_context(|| log("dns"))?;

    end_pods(&cluster).await?;
    drop(parts);
    clean(&cluster, forwards).await
}

/// Lets the kubelet end its pods: one that is killed leaves what they have mounted, as upstream's does, and
/// nobody else knows of it.
async fn end_pods(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["delete", "deployment", "alone", "--cascade=foreground"]).await?;
    let pods = cluster.kubectl(&["get", "pods", "-o", "name"]).await?;
    ensure!(pods.is_empty(), "{pods}");
    // One whose grace was none is gone from the API at once, and from its node only when it has ended.
    let folder = cluster.root().join("state/kubelet/pods");
    cluster
        .eventually("the kubelet has let go of every pod", || async {
            let left: Vec<_> = std::fs::read_dir(&folder)?.flatten().map(|pod| pod.file_name()).collect();
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })
        .await
}

/// Whether this host passes packets on: a part that runs alone asks for it, and nobody takes that back.
fn forwarding() -> Result<String> {
    Ok(host::sysctl::get(FORWARD)?)
}

const FORWARD: &str = "net.ipv4.ip_forward";

/// Takes down what parts that ran alone leave, as upstream's would: pods, rules, cgroups, a setting.
async fn clean(cluster: &Cluster, forwards: String) -> Result<()> {
    let stopped = cluster.pintle(&["down", "--pods"]).await?;
    ensure!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    let kubeconfig = cluster.root().join("config/proxy.kubeconfig");
    let cleaned = cluster.pintle_command(&["kube-proxy", "--cleanup", "--kubeconfig"]).arg(kubeconfig).output().await?;
    ensure!(cleaned.status.success(), "{}", String::from_utf8_lossy(&cleaned.stderr));
    reset::apply(&Step::RemoveCgroup("/kubepods".into()))?;
    reset::apply(&Step::RestoreSysctl { name: FORWARD.into(), old: forwards })?;
    Ok(())
}

/// The node's name.
const NODE: &str = "alone";
const PORT: &str = "16443";

/// Keys and certificates as an administrator brings them, and a kubeconfig for each part that names
/// its files.
fn credentials(cluster: &Cluster) -> Result<PathBuf> {
    let folder = cluster.root().join("certs");
    let layout = pki::Layout::open(&folder)?;
    let now = cluster.clock.wall();
    let ca = layout.authority(Purpose::Cluster, now)?;
    layout.token_key()?;
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let service = "10.96.0.1".parse()?;
    layout.identity("serving", &ca, &Request::api_server("cluster.local", Some(service), [loopback]), now)?;
    layout.identity("to-kubelet", &ca, &Request::client("kube-apiserver-kubelet-client", "system:masters"), now)?;
    layout.identity("kubelet", &ca, &Request::server(format!("system:node:{NODE}"), [NODE]), now)?;
    let node = format!("system:node:{NODE}");
    for (file, user, group) in [
        ("admin", "kubernetes-admin", "system:masters"),
        ("controller-manager", "system:kube-controller-manager", ""),
        ("scheduler", "system:kube-scheduler", ""),
        ("proxy", "system:kube-proxy", ""),
        ("kubelet", node.as_str(), "system:nodes"),
    ] {
        let name = format!("client-{file}");
        layout.identity(&name, &ca, &Request::client(user, group), now)?;
        let path = |suffix: &str| layout.path(&format!("{name}.{suffix}")).display().to_string();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://127.0.0.1:{PORT}"),
                "certificate-authority": layout.path("ca.crt").display().to_string(),
            }}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"client-certificate": path("crt"), "client-key": path("key")}}],
        });
        client::kubeconfig::write(&cluster.root().join("config").join(format!("{file}.kubeconfig")), &config)?;
    }
    Ok(folder)
}

/// The API server as a process of its own, with the flags upstream's has.
fn api_server(cluster: &Cluster, certs: &Path) -> Result<Child> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", certs.join(name).display());
    let log = std::fs::OpenOptions::new().create(true).append(true).open(cluster.root().join("kube-apiserver.log"))?;
    let child = cluster
        .pintle_command(&["kube-apiserver", "--secure-port", PORT, "--authorization-mode=Node,RBAC"])
        .args([
            format!("--data-dir={}", cluster.root().join("store").display()),
            format!("--cert-dir={}", cluster.root().join("made").display()),
            file("client-ca-file", "ca.crt"),
            file("tls-cert-file", "serving.crt"),
            file("tls-private-key-file", "serving.key"),
            file("service-account-signing-key-file", "sa.key"),
            file("service-account-key-file", "sa.pub"),
            file("kubelet-certificate-authority", "ca.crt"),
            file("kubelet-client-certificate", "to-kubelet.crt"),
            file("kubelet-client-key", "to-kubelet.key"),
        ])
        .args(["--service-account-issuer=https://kubernetes.default.svc.cluster.local"])
        .args(["--service-cluster-ip-range=10.96.0.0/12", "--service-node-port-range=30000-32767"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_runs_alone_beside_the_others() -> Result<()> {
    let forwards = forwarding()?;
    let registry = Registry::start(&[images::busybox("busybox:1")?, images::nginx("nginx:1")?]).await?;
    guard().await?;
    let cluster = Cluster::prepare()?;
    cluster.trust_registry(&registry)?;
    let certs = credentials(&cluster)?;
    let mut server = api_server(&cluster, &certs)?;
    let ready = || async { cluster.kubectl(&["get", "--raw", "/readyz"]).await };
    cluster.eventually("the API server is ready", ready).await.with_context(|| cluster.tail("kube-apiserver.log"))?;

    let endpoint = runtime::start(cluster.root(), &cluster.clock).await?;
    let below = |name: &str| cluster.root().join("state").join(name).display().to_string();
    let file = |name: &str| certs.join(name).display().to_string();
    let (root, logs, ca) = (below("kubelet"), below("pod-logs"), file("ca.crt"));
    let (crt, key) = (file("kubelet.crt"), file("kubelet.key"));
    // Logs that are moved away soon.
    let config = cluster.root().join("kubelet.yaml");
    let settings = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerLogMaxSize: 64Ki\n";
    std::fs::write(&config, settings)?;
    let config = config.display().to_string();
    let kubelet = [
        ["--config", config.as_str()],
        ["--container-runtime-endpoint", &endpoint],
        ["--hostname-override", NODE],
        ["--root-dir", &root],
        ["--pod-logs-dir", &logs],
        ["--client-ca-file", &ca],
        ["--tls-cert-file", &crt],
        ["--tls-private-key-file", &key],
    ];
    let kubelet = [kubelet.as_flattened(), &[NEARLY_FULL_DISK]].concat();
    let start_kubelet = || part(&cluster, "kubelet", "kubelet.kubeconfig", &kubelet);
    let mut kubelet = start_kubelet()?;
    let parts = vec![
        part(&cluster, "kube-controller-manager", "controller-manager.kubeconfig", &["--root-ca-file", &ca])?,
        part(&cluster, "kube-scheduler", "scheduler.kubeconfig", &[])?,
        part(
            &cluster,
            "kube-proxy",
            "proxy.kubeconfig",
            &["--proxy-mode=nftables", "--masquerade-egress", "--hostname-override", NODE],
        )?,
    ];
    let works = async {
        let manifest = manifests::web("alone", &registry.reference("nginx:1"), 1, 30084);
        cluster.eventually("the Deployment is accepted", || cluster.apply(&manifest)).await?;
        cluster.kubectl(&["rollout", "status", "deployment/alone", "--timeout=90s"]).await?;
        let ip = cluster.kubectl(&["get", "service", "alone", "-o", "jsonpath={.spec.clusterIP}"]).await?;
        let url = format!("http://{ip}/");
        cluster.eventually("the Service answers", || cluster.http_get(&url)).await?;
        // Over HTTPS to the kubelet's own certificate, as a client it believes.
        cluster.kubectl(&["logs", "deployment/alone"]).await?;

        let server_url = format!("https://127.0.0.1:{PORT}");
        metrics::are_read_by_prometheus(&cluster, &server_url).await.context("metrics")?;

        profile::names_functions(&cluster).await.context("a profile")?;

        let (busybox, nginx) = (registry.reference("busybox:1"), registry.reference("nginx:1"));
        let start_server = || api_server(&cluster, &certs);
        streams::World {
            cluster: &cluster,
            busybox,
            nginx,
            page: &url,
            server: &mut server,
            start_server: &start_server,
            kubelet: &mut kubelet,
            start_kubelet: &start_kubelet,
        }
        .run()
        .await
        .context("streams")?;

        // It was killed and started again: the others find it, nothing acknowledged is lost.
        cluster.kubectl(&["scale", "deployment/alone", "--replicas=2"]).await?;
        cluster.kubectl(&["rollout", "status", "deployment/alone", "--timeout=90s"]).await?;
        end_pods(&cluster).await
    };
    let works = works.await.with_context(|| {
        let names = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"];
        names.map(|name| format!("{name}:\n{}", cluster.tail(&format!("{name}.log")))).join("\n")
    });
    if let Err(error) = &works {
        // What it left may be the next to be told, instead of this.
        eprintln!("{error:?}");
    }
    drop(parts);
    drop((server, kubelet));
    clean(&cluster, forwards).await?;
    works
}
