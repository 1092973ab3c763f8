//! How a kubelet is told to be.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1 as core;
use stdx::metrics::Registry;

use crate::cgroup::Driver;
use crate::image::collect;
use crate::image::rate::Rate;
use crate::image::verify::Verification;
use crate::logs::rotate;
use crate::node::thresholds::Thresholds;
use crate::static_pods;
use crate::sync::crash;

/// How a kubelet is told to be.
#[derive(Clone)]
pub struct Options {
    /// The name to register under the first time; later the one written down wins.
    pub node_name: String,
    /// The node's addresses, the preferred family first.
    pub node_ips: Vec<String>,
    /// Labels beside the standard ones.
    pub node_labels: BTreeMap<String, String>,
    /// Where pods' volumes and this node's identity are.
    pub root_dir: PathBuf,
    /// Where container logs are.
    pub log_dir: PathBuf,
    /// Keeps this node's cgroups apart from another's on the same machine; empty for none.
    pub cgroup_root: String,
    /// Make and remove the cgroups of pods; without, the runtime puts containers where it likes.
    pub cgroups_per_qos: bool,
    /// How cgroups are named, where the runtime does not tell.
    pub cgroup_driver: Driver,
    /// `unix:///run/…`.
    pub runtime_endpoint: String,
    /// Where to serve; `None` serves nothing.
    pub address: Option<SocketAddr>,
    /// For serving; must ask for client certificates.
    pub serving: Option<rustls::ServerConfig>,
    /// Where an API server of this process finds what is served, too.
    pub door: Option<Arc<transport::near::Door>>,
    /// How long a stream may carry nothing.
    pub stream_idle: Duration,
    /// Who signs certificates of clients that are believed.
    pub client_ca: Option<transport::trust::Trust>,
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    pub resolv_conf: PathBuf,
    pub max_pods: u32,
    /// Taints of the first registration.
    pub taints: Vec<core::Taint>,
    /// Processes that one pod may have, where there is a limit.
    pub pod_pids_limit: Option<u64>,
    /// How large a container's log grows, and how many files of it are kept.
    pub log_limits: (u64, usize),
    /// Kernel settings that pods may have beside the safe ones; a trailing `*` stands for anything.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// How long a container that keeps ending waits at most before it starts again.
    pub max_container_restart_period: Duration,
    /// Below what the node is under pressure, and what it does then.
    pub thresholds: Thresholds,
    /// How images are fetched, and who may use them.
    pub images: ImageOptions,
    /// Where manifests of static pods are.
    pub static_pods: static_pods::Options,
    /// The version to report, `v1.37.1+pintle.…`.
    pub version: String,
    /// Where the kubelet counts what it does.
    pub registry: Registry,
    /// The folder of the node's logs, which `/logs` shows; `None` shows nothing.
    pub node_logs: Option<PathBuf>,
    /// What is below `/debug`.
    pub debug: transport::debug::Debug,
}

/// How images are fetched, and who may use them.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// So many at a time.
    pub parallel: usize,
    pub verification: Verification,
    /// The configuration of plugins that know credentials, and the folder they are in.
    pub providers: Option<(PathBuf, PathBuf)>,
    /// When those that nobody uses go.
    pub collection: collect::Policy,
    /// How often one is fetched; `None` is as often as pods want.
    pub rate: Option<Rate>,
}

impl Default for ImageOptions {
    fn default() -> Self {
        let (verification, collection) = Default::default();
        Self { parallel: 5, verification, providers: None, collection, rate: None }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            node_ips: Vec::new(),
            node_labels: BTreeMap::new(),
            root_dir: "/var/lib/pintle/kubelet".into(),
            log_dir: "/var/log/pods".into(),
            cgroup_root: String::new(),
            cgroups_per_qos: true,
            cgroup_driver: Driver::default(),
            runtime_endpoint: "unix:///run/containerd/containerd.sock".into(),
            address: None,
            serving: None,
            door: None,
            stream_idle: Duration::from_secs(4 * 3600),
            client_ca: None,
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            max_pods: 110,
            taints: Vec::new(),
            pod_pids_limit: None,
            log_limits: (rotate::MAX_SIZE, rotate::MAX_FILES),
            allowed_unsafe_sysctls: Vec::new(),
            max_container_restart_period: crash::POLICY.max,
            thresholds: Thresholds::default(),
            images: ImageOptions::default(),
            static_pods: static_pods::Options::default(),
            version: concat!("v1.37.1+pintle.", env!("CARGO_PKG_VERSION")).into(),
            registry: Registry::default(),
            node_logs: Some("/var/log".into()),
            debug: transport::debug::Debug::none(),
        }
    }
}
