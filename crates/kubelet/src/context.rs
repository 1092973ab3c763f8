//! What all pods of a node share.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use machinery::quantity::Quantity;
use parking_lot::{Mutex, RwLock};
use stdx::{Rng, SharedClock};

use crate::admit::Kernel;
use crate::cgroup::Cgroups;
use crate::cluster::Cluster;
use crate::container::dns::ClusterDns;
use crate::container::downward::Place;
use crate::image::puller::Puller;
use crate::logs::rotate;
use crate::metrics::Metrics;
use crate::node::pressure::Gauge;
use crate::pod::BoundPod;
use crate::pod_addresses;
use crate::program::Programs;
use crate::report::Report;
use crate::resize::Allocations;
use crate::runtime::{Features, PodState, Runtime};
use crate::sync::crash;
use crate::users::Blocks;
use crate::volume::setup::Layout;
use crate::volume::storage::Storage;

/// Facts about the node that do not change while the kubelet runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's addresses, the preferred family first.
    pub node_ips: Vec<String>,
    /// Where container logs are.
    pub log_root: PathBuf,
    /// Where seccomp profiles of type Localhost are.
    pub seccomp_root: PathBuf,
    pub cluster_dns: ClusterDns,
    /// The node's resolver configuration.
    pub resolv_conf: PathBuf,
    /// The node's hosts file, which pods on its network see.
    pub hosts: PathBuf,
    pub node_memory: i128,
    /// What pods may ask of the kernel.
    pub kernel: Kernel,
    /// How long a container that keeps ending waits at most before it starts again.
    pub longest_back_off: Duration,
    /// How large a container's log grows, and how many files of it are kept.
    pub log_limits: (u64, usize),
    /// `containerd`.
    pub runtime_name: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node_ips: Vec::new(),
            log_root: PathBuf::new(),
            seccomp_root: PathBuf::new(),
            cluster_dns: ClusterDns::default(),
            resolv_conf: PathBuf::new(),
            hosts: PathBuf::new(),
            node_memory: 0,
            kernel: Kernel::default(),
            longest_back_off: crash::POLICY.max,
            log_limits: (rotate::MAX_SIZE, rotate::MAX_FILES),
            runtime_name: String::new(),
        }
    }
}

/// Which pod a sandbox or container belongs to, for hints that name only an id.
#[derive(Default)]
pub struct Owners {
    by_id: Mutex<HashMap<String, String>>,
    /// Ids were forgotten since somebody asked.
    forgot: AtomicBool,
}

/// More ids than this are forgotten; the next list names them again.
const MAX_OWNERS: usize = 16_384;

impl Owners {
    /// Learns the ids of a pod.
    pub fn learn(&self, uid: &str, state: &PodState) {
        let sandboxes = state.sandboxes.iter().map(|s| &s.id);
        self.learn_ids(uid, sandboxes.chain(state.containers.iter().map(|c| &c.id)));
    }

    /// The same, from a list.
    pub fn learn_ids<'a>(&self, uid: &str, ids: impl Iterator<Item = &'a String>) {
        let mut by_id = self.by_id.lock();
        if by_id.len() > MAX_OWNERS {
            by_id.clear();
            self.forgot.store(true, Ordering::Relaxed);
        }
        for id in ids {
            if !by_id.contains_key(id) {
                by_id.insert(id.clone(), uid.to_owned());
            }
        }
    }

    /// Ids of pods that are there were forgotten since this was asked last.
    pub fn has_forgotten(&self) -> bool {
        self.forgot.swap(false, Ordering::Relaxed)
    }

    /// The pod of an id.
    pub fn of(&self, id: &str) -> Option<String> {
        self.by_id.lock().get(id).cloned()
    }

    /// The pod is gone.
    pub fn forget(&self, uid: &str) {
        self.by_id.lock().retain(|_, owner| owner != uid);
    }
}

/// Shared by the pods of one node.
pub struct Context {
    pub clock: SharedClock,
    pub rng: Rng,
    pub runtime: Arc<dyn Runtime>,
    pub cluster: Arc<dyn Cluster>,
    pub storage: Arc<dyn Storage>,
    /// Who starts programs of the host.
    pub programs: Arc<dyn Programs>,
    pub report: Arc<dyn Report>,
    pub layout: Layout,
    /// `None` where the runtime alone cares for cgroups.
    pub cgroups: Option<Cgroups>,
    pub puller: Puller,
    pub settings: Settings,
    /// What stands in for limits that containers do not have.
    pub allocatable: RwLock<BTreeMap<String, Quantity>>,
    /// The node's name and labels, which volumes may be bound to.
    pub node: RwLock<(String, BTreeMap<String, String>)>,
    pub owners: Owners,
    /// What the runtime can do that not every runtime can.
    pub features: Arc<RwLock<Features>>,
    /// What pods are allocated.
    pub allocations: Allocations,
    /// What the node is short of.
    pub gauge: Arc<Gauge>,
    /// Ids of the node that stand for the users of pods.
    pub users: Blocks,
    /// What is counted.
    pub metrics: Metrics,
}

impl Context {
    /// Where a pod's logs are.
    pub fn log_directory(&self, pod: &BoundPod) -> PathBuf {
        self.settings.log_root.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid))
    }

    /// The addresses of a pod in that state.
    pub fn pod_ips(&self, pod: &BoundPod, state: &PodState) -> Vec<String> {
        if pod.host_network() {
            return self.settings.node_ips.clone();
        }
        let told = state.sandboxes.first().filter(|s| s.ready).map(|s| &*s.ips).unwrap_or_default();
        pod_addresses::sorted(told, &self.settings.node_ips)
    }

    /// Gives the classes of pods their weights.
    pub fn weigh(&self) {
        let Some(cgroups) = self.cgroups.clone() else { return };
        let pods = self.allocations.pods();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = cgroups.weigh(pods.iter().map(|p| &**p)) {
                tracing::debug!(%error, "the classes of pods keep their weights");
            }
        });
    }

    /// What downward fields show beside the pod's object.
    pub fn place(&self, pod: &BoundPod, state: &PodState) -> Place {
        Place {
            pod_ips: self.pod_ips(pod, state),
            host_ips: self.settings.node_ips.clone(),
            allocatable: self.allocatable.read().clone(),
        }
    }
}

/// Runs blocking work beside the event loop; a panic in it is an error like any other.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<T> {
    #[cfg(test)]
    let _busy = busy::Busy::enter();
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)
}

/// How much blocking work this thread's tasks wait for: while there is any, a test's clock stands still, or
/// a busy machine would make a pod miss a deadline of an hour.
#[cfg(test)]
pub mod busy {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    thread_local! {
        static WAITED_FOR: Arc<AtomicUsize> = Arc::default();
    }

    /// Work that is waited for. It may end on another thread than it began on, where there are several.
    pub struct Busy(Arc<AtomicUsize>);

    impl Busy {
        pub fn enter() -> Self {
            let count = WAITED_FOR.with(Arc::clone);
            count.fetch_add(1, Ordering::Relaxed);
            Self(count)
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// True while there is some.
    pub fn is_any() -> bool {
        WAITED_FOR.with(|count| count.load(Ordering::Relaxed) > 0)
    }
}
