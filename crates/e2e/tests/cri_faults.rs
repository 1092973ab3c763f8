//! The kubelet is killed at every call to its runtime and started again: it goes on, restarts no
//! container, and leaves nothing behind. A call that hangs holds up nobody else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use cri::v1::ContainerState;
use e2e::cluster::{Cluster, PATIENCE, guard};
use e2e::cri_proxy::{Moment, Proxy};
use e2e::leaks::Host;
use e2e::registry::Registry;
use e2e::{images, manifests, runtime};
use host::layout::Layout;
use host::reset::{self, Step};
use stdx::ClockExt;
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

    /// Of the containers that ever started, by name, whether each attempt still runs; there is one sandbox.
    async fn started(&self) -> Result<Started> {
        let mut started = Started::new();
        for container in self.runtime.list_containers(None).await? {
            let status = self.runtime.container_status(&container.id).await?;
            let runs = status.state() == ContainerState::ContainerRunning;
            let metadata = status.metadata.unwrap_or_default();
            if status.started_at > 0 {
                started.entry(metadata.name).or_default().insert(metadata.attempt, runs);
            }
        }
        let sandboxes = self.runtime.list_pod_sandbox(None).await?.len();
        ensure!(sandboxes == 1, "{sandboxes} sandboxes");
        Ok(started)
    }

    /// The pods that have a running container.
    async fn running(&self) -> Result<Vec<String>> {
        let containers = self.runtime.list_containers(None).await?;
        let running = containers.into_iter().filter(|c| c.state() == ContainerState::ContainerRunning);
        Ok(running.filter_map(|c| c.labels.get("io.kubernetes.pod.name").cloned()).collect())
    }

    /// Nothing is left in the runtime.
    async fn is_empty(&self) -> Result<()> {
        let left = self.runtime.list_pod_sandbox(None).await?.len() + self.runtime.list_containers(None).await?.len();
        ensure!(left == 0, "{left} sandboxes and containers are left");
        Ok(())
    }

    fn log(&self) -> String {
        self.cluster.tail("kubelet.log")
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

/// Of each container's name, whether each attempt of it runs.
type Started = BTreeMap<String, BTreeMap<u32, bool>>;

/// Of each container's name, whether the attempts that started run, the newest last.
type Wanted = BTreeMap<String, Vec<bool>>;

/// Of what has ended only the newest is kept, and that may be one which the kubelet was killed before
/// starting: then the one before it is gone, and so is known only by the number of the next.
fn is(started: &Started, wanted: &Wanted) -> bool {
    let same = |(attempts, wanted): (&BTreeMap<u32, bool>, &Vec<bool>)| {
        let runs: Vec<bool> = attempts.values().copied().collect();
        let gone = wanted.len().saturating_sub(runs.len());
        wanted.ends_with(&runs) && attempts.keys().next().is_some_and(|first| *first as usize >= gone)
    };
    started.keys().eq(wanted.keys()) && started.values().zip(wanted.values()).all(same)
}

/// Runs the pod that `text` describes, which is to come to `wanted`, and ends it, once for each moment that
/// `walks` chooses of what was called meanwhile, killing the kubelet there.
async fn walk(node: &mut Node<'_>, text: &str, wanted: &Wanted, walks: fn(&Moment) -> bool) -> Result<()> {
    let cluster = node.cluster;
    let begin = |node: &Node<'_>| Ok(std::fs::write(node.manifest(), text)?);
    let end = |node: &Node<'_>| Ok(std::fs::remove_file(node.manifest())?);
    let begun = async |node: &Node<'_>| {
        let started = node.started().await?;
        ensure!(is(&started, wanted), "{started:?}");
        Ok(())
    };
    let ended = async |node: &Node<'_>| node.is_empty().await;
    let state = cluster.root().join("state");
    let folders = ["kubelet/pods", "pod-logs", "cni"].map(|name| state.join(name));
    let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();

    // Once undisturbed: what is called, and what the host looks like when all is over.
    node.killed.clear();
    node.through(None, begin, begun).await.with_context(|| node.log())?;
    let mut starting = moments(&node.proxy.calls());
    node.through(None, end, ended).await?;
    let mut ending = moments(&node.proxy.calls());
    let has = |moments: &[Moment], call: &str| moments.iter().any(|m| m.call == call);
    ensure!(has(&starting, "StartContainer") && has(&ending, "RemovePodSandbox"), "{starting:?} {ending:?}");
    starting.retain(walks);
    ending.retain(walks);
    let before = settled(&folders, cluster).await?;
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
}

/// A pod with all that has an order: an init container, one that stays beside the others, a main one that is
/// started again after its first end, and is probed.
fn full(image: &str) -> String {
    let stays = "trap 'exit 0' TERM; sleep 1000 & wait";
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: full}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{{name: memory, emptyDir: {{}}}}]
  initContainers:
  - {{name: first, image: {image}, command: ['true']}}
  - {{name: beside, image: {image}, restartPolicy: Always, command: [sh, -c, \"{stays}\"]}}
  containers:
  - name: main
    image: {image}
    command: [sh, -c, \"test -e /m/again || {{ touch /m/again; exit 3; }}; {stays}\"]
    readinessProbe: {{exec: {{command: ['true']}}, periodSeconds: 1}}
    volumeMounts: [{{name: memory, mountPath: /m}}]
"
    )
}

/// The runtime never answers one call: another pod runs all the same, and the one that waits can end.
async fn a_call_that_hangs(node: &mut Node<'_>, image: &str) -> Result<()> {
    let (cluster, folder) = (node.cluster, node.cluster.root().join("static"));
    node.proxy.arm(Some(Moment { call: "CreateContainer".into(), nth: 0, answered: false }));
    let write = |name: &str| {
        std::fs::write(folder.join(format!("{name}.yaml")), manifests::script(name, image, "exec sleep 1000"))
    };
    write("hangs")?;
    cluster.clock.timeout(PATIENCE, node.proxy.reached()).await.context("the call comes")?;
    write("other")?;
    let runs = async |names: &[&str], sandboxes: usize| {
        let running = node.running().await?;
        ensure!(running == names, "{running:?}");
        let found = node.runtime.list_pod_sandbox(None).await?.len();
        ensure!(found == sandboxes, "{found} sandboxes");
        Ok(())
    };
    cluster.eventually("the other one runs", || runs(&["other-n"], 2)).await?;
    std::fs::remove_file(folder.join("hangs.yaml"))?;
    cluster.eventually("the one that hangs is gone", || runs(&["other-n"], 1)).await?;
    node.proxy.arm(None);
    std::fs::remove_file(folder.join("other.yaml"))?;
    cluster.eventually("both are gone", || node.is_empty()).await
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
    let image = registry.reference("busybox:1");
    node.start()?;
    let works = async {
        let text = manifests::script("web", &image, "trap 'exit 0' TERM; sleep 1000 & wait");
        walk(&mut node, &text, &[("main".to_owned(), vec![true])].into(), |_| true).await?;
        let wanted = [("beside", vec![true]), ("first", vec![false]), ("main", vec![false, true])];
        let wanted = wanted.map(|(name, attempts)| (name.to_owned(), attempts)).into();
        // What a sandbox and a first container do is walked above.
        let news = |m: &Moment| m.call == "ExecSync" || (m.nth > 0 && CHANGES.contains(&m.call.as_str()));
        walk(&mut node, &full(&image), &wanted, news).await?;
        a_call_that_hangs(&mut node, &image).await.with_context(|| node.log()).context("a call that hangs")
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
