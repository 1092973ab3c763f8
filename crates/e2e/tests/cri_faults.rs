//! The kubelet is killed at every call to its runtime and started again: it goes on, restarts no
//! container, and leaves nothing behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use cri::v1::ContainerState;
use e2e::cluster::{Cluster, guard};
use e2e::cri_proxy::{Moment, Proxy};
use e2e::leaks::Host;
use e2e::registry::Registry;
use e2e::{images, manifests, runtime};
use host::layout::Layout;
use host::reset::{self, Step};
use tokio::process::Child;

/// Calls that change something: the kubelet is killed before and after each of them. Of the others once
/// each is enough.
const CHANGES: &[&str] = &[
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
];

/// The moments that a record of calls has.
fn moments(calls: &[String]) -> Vec<Moment> {
    let (mut counts, mut out) = (BTreeMap::<&str, usize>::new(), Vec::new());
    for call in calls {
        let count = counts.entry(call).or_default();
        let nth = std::mem::replace(count, *count + 1);
        let is_change = CHANGES.contains(&call.as_str());
        if is_change || nth == 0 {
            out.push(Moment { call: call.clone(), nth, answered: false });
        }
        if is_change {
            out.push(Moment { call: call.clone(), nth, answered: true });
        }
    }
    out
}

struct Node<'a> {
    cluster: &'a Cluster,
    runtime: cri::Client,
    proxy: Proxy,
    socket: PathBuf,
    kubelet: Option<Child>,
    /// Moments that came, at which it was killed.
    killed: Vec<Moment>,
}

impl Node<'_> {
    fn manifest(&self) -> PathBuf {
        self.cluster.root().join("static/web.yaml")
    }

    fn start(&mut self) -> Result<()> {
        let root = self.cluster.root();
        let path = |name: &str| root.join(name).display().to_string();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(root.join("kubelet.log"))?;
        let endpoint = format!("unix://{}", self.socket.display());
        let child = self
            .cluster
            .pintle_command(&["kubelet", "--container-runtime-endpoint", &endpoint, "--hostname-override=n"])
            .args(["--root-dir", &path("state/kubelet"), "--pod-logs-dir", &path("state/pod-logs")])
            .args(["--pod-manifest-path", &path("static")])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        self.kubelet = Some(child);
        Ok(())
    }

    async fn kill(&mut self) -> Result<()> {
        self.kubelet.take().context("a kubelet runs")?.kill().await?;
        Ok(())
    }

    /// The one container runs and it is the only one that ever did, in the only sandbox.
    async fn runs(&self) -> Result<String> {
        let containers = self.runtime.list_containers(None).await?;
        let mut started = Vec::new();
        for container in &containers {
            let status = self.runtime.container_status(&container.id).await?;
            if status.started_at > 0 {
                started.push((container.id.clone(), status.state() == ContainerState::ContainerRunning));
            }
        }
        let sandboxes = self.runtime.list_pod_sandbox(None).await?.len();
        let [(id, true)] = started.as_slice() else {
            anyhow::bail!("{started:?} of {} containers, {sandboxes} sandboxes", containers.len())
        };
        ensure!(sandboxes == 1, "{sandboxes} sandboxes");
        Ok(id.clone())
    }

    /// Does `change`, kills the kubelet at `moment` (or when `done` without having come there), starts
    /// another one and waits until it is done.
    async fn through<F>(
        &mut self,
        moment: Option<&Moment>,
        change: impl FnOnce(&Self) -> Result<()>,
        done: F,
    ) -> Result<()>
    where
        F: AsyncFn(&Self) -> Result<()>,
    {
        self.proxy.arm(moment.cloned());
        change(self)?;
        if let Some(moment) = moment {
            let finished = self.cluster.eventually("it is done", || done(self));
            let reached = tokio::select! {
                () = self.proxy.reached() => true,
                finished = finished => finished.map(|()| false)?,
            };
            self.killed.extend(reached.then(|| moment.clone()));
            self.kill().await?;
            self.proxy.arm(None);
            self.start()?;
        }
        self.cluster.eventually("it is done by the next kubelet", || done(self)).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_killed_at_any_call_goes_on() -> Result<()> {
    let registry = Registry::start(&[images::busybox("busybox:1")?]).await?;
    guard().await?;
    let cluster = Cluster::prepare()?;
    cluster.trust_registry(&registry)?;
    let endpoint = runtime::start(cluster.root(), &cluster.clock).await?;
    let real = Layout::below(cluster.root()).containerd_socket();
    let socket = cluster.root().join("recorded.sock");
    std::fs::create_dir_all(cluster.root().join("static"))?;
    let mut node = Node {
        cluster: &cluster,
        runtime: cri::Client::new(&endpoint, cluster.clock.clone())?,
        proxy: Proxy::start(&real, &socket)?,
        socket,
        kubelet: None,
        killed: Vec::new(),
    };
    let script = "trap 'exit 0' TERM; sleep 1000 & wait";
    let text = manifests::script("web", &registry.reference("busybox:1"), script);
    let begin = |node: &Node<'_>| Ok(std::fs::write(node.manifest(), &text)?);
    let end = |node: &Node<'_>| Ok(std::fs::remove_file(node.manifest())?);
    let begun = async |node: &Node<'_>| node.runs().await.map(drop);
    let ended = async |node: &Node<'_>| {
        let left = node.runtime.list_pod_sandbox(None).await?.len() + node.runtime.list_containers(None).await?.len();
        ensure!(left == 0, "{left} sandboxes and containers are left");
        Ok(())
    };
    let state = cluster.root().join("state");
    let folders = ["kubelet/pods", "pod-logs", "cni"].map(|name| state.join(name));
    let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();

    // Once undisturbed: what is called, and what the host looks like when all is over.
    node.start()?;
    let works = async {
        node.through(None, begin, begun).await?;
        let starting = moments(&node.proxy.calls());
        node.through(None, end, ended).await?;
        let ending = moments(&node.proxy.calls());
        let has = |moments: &[Moment], call: &str| moments.iter().any(|m| m.call == call);
        ensure!(has(&starting, "StartContainer") && has(&ending, "RemovePodSandbox"), "{starting:?} {ending:?}");
        let before = settled(&folders, &cluster).await?;
        for index in 0..starting.len().max(ending.len()) {
            let (start, stop) = (starting.get(index), ending.get(index));
            let name = |m: Option<&Moment>| m.map_or("undisturbed".to_owned(), ToString::to_string);
            let what = format!("killed {}, then {}", name(start), name(stop));
            let round = async {
                node.through(start, begin, begun).await?;
                node.through(stop, end, ended).await?;
                before.returns(&folders, &cluster.clock).await
            };
            round.await.with_context(|| format!("{what}\n{}", cluster.tail("kubelet.log")))?;
        }
        // What is read may be read once more or less; what is done is done every time.
        let missed: Vec<_> = starting.iter().chain(&ending).filter(|m| !node.killed.contains(m)).collect();
        ensure!(missed.iter().all(|m| !CHANGES.contains(&m.call.as_str())), "never came: {missed:?}");
        eprintln!("killed at {} moments, {} did not come again", node.killed.len(), missed.len());
        Ok(())
    };
    let works: Result<()> = works.await;
    drop(node);
    let stopped = cluster.pintle(&["down", "--pods"]).await?;
    ensure!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    reset::apply(&Step::RemoveCgroup("/kubepods".into()))?;
    works
}

/// The host once nothing of the pod is left on it.
async fn settled(folders: &[&Path], cluster: &Cluster) -> Result<Host> {
    cluster
        .eventually("nothing is left of the pod", || async {
            let pods = std::fs::read_dir(folders[0])?.count() + std::fs::read_dir(folders[1])?.count();
            ensure!(pods == 0, "{pods} folders are left");
            let shims = cri::shims::running(Path::new("/proc"), &Layout::below(cluster.root()).containerd_socket());
            ensure!(shims.is_empty(), "{shims:?}");
            Ok(())
        })
        .await?;
    Host::look(folders)
}
