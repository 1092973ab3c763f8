//! What the machine, its pods and their containers use, for whoever asks: `/stats/summary`,
//! `/metrics/resource`, `/metrics/cadvisor`.
//!
//! ```text
//!  who asks ─► Stats::gather ─► numbers (cgroups), machine (/proc), network (/proc/PID/net)   once for all
//!           └► Disks::of     ─► files counted at most once a minute, beside whoever asks
//! ```
//!
//! Nothing is read while nobody asks. A cgroup is read once for everybody who asks within a second; the
//! rate of processor time is the difference to the gathering before. What is kept is what there was at the
//! last gathering: pods that are gone leave nothing.

pub mod disk;
pub mod machine;
pub mod network;
pub mod numbers;
pub mod summary;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use stdx::SharedClock;
use stdx::clock::Instant;
use tokio::sync::Mutex;

use crate::cgroup::Cgroups;
use crate::context::blocking;
use crate::pod::BoundPod;
use crate::runtime::{Container, PodState};
use crate::sync::worker::View;
use machine::Machine;
use network::Interface;
use numbers::{Detail, Numbers};

/// What was gathered is good for so long.
const FRESH: Duration = Duration::from_secs(1);
/// What was gathered longer ago is no base for a rate.
const LONGEST: Duration = Duration::from_secs(120);

/// One cgroup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Its path below the hierarchies.
    pub cgroup: String,
    pub numbers: Numbers,
    /// Nanoseconds of processor time per second since the gathering before.
    pub rate: Option<u64>,
}

/// One running container.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerStats {
    pub container: Container,
    pub measured: Measured,
}

/// One pod that runs.
#[derive(Clone, Debug)]
pub struct PodStats {
    pub pod: Arc<BoundPod>,
    /// When its first sandbox or container that runs was made.
    pub started: Timestamp,
    pub measured: Measured,
    /// Those of its own; `None` on the node's network.
    pub interfaces: Option<Vec<Interface>>,
    pub containers: Vec<ContainerStats>,
    /// The sandbox's own cgroup, and its id.
    pub sandbox: Option<(String, Measured)>,
}

/// What was gathered at one time.
#[derive(Clone, Debug)]
pub struct Gathered {
    pub at: Timestamp,
    pub machine: Machine,
    pub node: Measured,
    /// The cgroup that holds all pods.
    pub all_pods: Measured,
    pub pods: Vec<PodStats>,
    when: Instant,
    detail: Detail,
}

/// Gathers.
pub struct Stats {
    pub node_name: String,
    clock: SharedClock,
    /// `/`, outside of tests.
    root: PathBuf,
    /// `None` where the runtime alone cares for cgroups: pods have no numbers then.
    cgroups: Option<Cgroups>,
    last: Mutex<Option<Arc<Gathered>>>,
    pub disks: disk::Disks,
}

impl Stats {
    /// Of a machine whose files are beneath `root`.
    pub fn new(node_name: &str, root: impl Into<PathBuf>, cgroups: Option<Cgroups>, clock: SharedClock) -> Self {
        let node_name = node_name.to_owned();
        Self { node_name, clock, root: root.into(), cgroups, last: Mutex::default(), disks: Default::default() }
    }

    /// What is used now, in at least that detail.
    pub async fn gather(&self, views: Vec<View>, detail: Detail) -> std::io::Result<Arc<Gathered>> {
        let mut last = self.last.lock().await;
        let now = self.clock.now();
        if let Some(known) = last.as_ref().filter(|g| now.since(g.when) < FRESH && g.detail >= detail) {
            return Ok(known.clone());
        }
        // One that is fresh, but has too little detail, is no base for a rate; neither is one of long ago,
        // whose rate would be that of hours.
        let before = last.as_ref().filter(|g| (FRESH..LONGEST).contains(&now.since(g.when))).cloned();
        let (root, cgroups, at) = (self.root.clone(), self.cgroups.clone(), self.clock.wall());
        let work = move || Gathering { root, cgroups, before, at, when: now, detail }.run(views);
        let found = Arc::new(blocking(work).await?);
        *last = Some(found.clone());
        Ok(found)
    }
}

struct Gathering {
    root: PathBuf,
    cgroups: Option<Cgroups>,
    before: Option<Arc<Gathered>>,
    at: Timestamp,
    when: Instant,
    detail: Detail,
}

impl Gathering {
    fn run(self, views: Vec<View>) -> Gathered {
        let used = self.before.as_ref().map(|b| b.used()).unwrap_or_default();
        let elapsed = self.before.as_ref().map_or(0, |b| self.when.since(b.when).as_nanos());
        let rate = |cgroup: &str, numbers: &Numbers| {
            let (now, before) = (numbers.cpu?.used, *used.get(cgroup)?);
            let grown = u128::from(now.checked_sub(before)?);
            u64::try_from(grown.checked_mul(1_000_000_000)?.checked_div(elapsed)?).ok()
        };
        let measured = |cgroup: String| {
            let hierarchies = self.cgroups.as_ref().map(Cgroups::hierarchies);
            let numbers = hierarchies.map_or_else(Numbers::default, |h| numbers::read_cgroup(h, &cgroup, self.detail));
            Measured { rate: rate(&cgroup, &numbers), cgroup, numbers }
        };
        let machine = machine::read(&self.root);
        let numbers = machine.numbers.clone();
        let node = Measured { cgroup: "/".into(), rate: rate("/", &numbers), numbers };
        let all_pods = self.cgroups.as_ref().map(|c| measured(c.all_pods())).unwrap_or_default();
        let mut pods: Vec<PodStats> = views.iter().filter_map(|view| self.pod(view, &measured)).collect();
        let key = |p: &PodStats| (p.pod.namespace.clone(), p.pod.name.clone(), p.started);
        pods.sort_by_cached_key(key);
        Gathered { at: self.at, machine, node, all_pods, pods, when: self.when, detail: self.detail }
    }

    fn pod(&self, view: &View, measured: &dyn Fn(String) -> Measured) -> Option<PodStats> {
        let (pod, seen) = (&view.pod, &*view.seen);
        let cgroups = self.cgroups.as_ref()?;
        let started = started(seen)?;
        let own = cgroups.path(pod);
        let containers = pod.all_containers().filter_map(|c| seen.container(&c.name)).filter(|c| c.may_run());
        let containers = containers.map(|container| {
            let measured = measured(cgroups.container_path(&own, &container.id));
            ContainerStats { container: container.clone(), measured }
        });
        let containers: Vec<ContainerStats> = containers.collect();
        let sandbox = seen.sandboxes.first().filter(|s| s.ready);
        let sandbox_path = sandbox.map(|s| cgroups.container_path(&own, &s.id));
        let interfaces = sandbox_path.as_ref().filter(|_| !pod.host_network()).and_then(|path| {
            let process = *numbers::processes(cgroups.hierarchies(), path).first()?;
            network::read(&self.root.join("proc"), &process.to_string())
        });
        let sandbox = sandbox.zip(sandbox_path).filter(|_| self.detail == Detail::All);
        let sandbox = sandbox.map(|(sandbox, path)| (sandbox.id.clone(), measured(path)));
        Some(PodStats { pod: pod.clone(), started, measured: measured(own), interfaces, containers, sandbox })
    }
}

/// When what runs of a pod began; `None` when nothing does.
fn started(seen: &PodState) -> Option<Timestamp> {
    let sandbox = seen.sandboxes.iter().filter(|s| s.ready).map(|s| s.created_at);
    let containers = seen.containers.iter().filter(|c| c.may_run()).map(|c| c.started_at.unwrap_or(c.created_at));
    sandbox.chain(containers).min()
}

impl Gathered {
    /// Each name's youngest pod: while one ends its namesake may have begun, and pages know names only.
    pub fn named(&self) -> impl Iterator<Item = &PodStats> + Clone {
        let same = |a: &PodStats, b: &PodStats| a.pod.namespace == b.pod.namespace && a.pod.name == b.pod.name;
        let is_last = move |at: usize, p: &PodStats| self.pods.get(at + 1).is_none_or(|next| !same(p, next));
        self.pods.iter().enumerate().filter(move |(at, p)| is_last(*at, p)).map(|(_, p)| p)
    }

    /// The processor time of every cgroup.
    fn used(&self) -> HashMap<&str, u64> {
        let pods = self.pods.iter().flat_map(|pod| {
            let containers = pod.containers.iter().map(|c| &c.measured);
            std::iter::once(&pod.measured).chain(containers).chain(pod.sandbox.as_ref().map(|(_, m)| m))
        });
        let all = [&self.node, &self.all_pods].into_iter().chain(pods);
        all.filter_map(|m| Some((m.cgroup.as_str(), m.numbers.cpu?.used))).collect()
    }
}

#[cfg(test)]
pub mod tests;
