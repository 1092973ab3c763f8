//! `pintle kubelet`: the node agent alone.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kubelet::cgroup::Driver;
use kubelet::node::pressure::Thresholds;
use kubelet::static_pods::{self, url::Url};
use stdx::{Rng, SharedClock};
use transport::files::FileIdentity;
use transport::trust::Trust;

use crate::VERSION;
use crate::cluster::{address, preflight};
use crate::commands::standalone::{self, Standalone};

/// Run the kubelet alone: as a client of any API server, or without one for static pods only.
#[derive(Args, Debug)]
pub struct Kubelet {
    /// The kubeconfig with the API server's address and this node's identity; without it only static
    /// pods run.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Verbosity of the log.
    #[arg(short, default_value_t = 2, value_name = "LEVEL")]
    v: u8,
    /// A folder of manifests of static pods, or one manifest.
    #[arg(long, value_name = "PATH")]
    pod_manifest_path: Option<PathBuf>,
    /// An URL that answers with manifests of static pods.
    #[arg(long, value_name = "URL")]
    manifest_url: Option<String>,
    /// Headers to send with it (comma separated, `name:value`; repeatable).
    #[arg(long, value_name = "NAME:VALUE", value_delimiter = ',')]
    manifest_url_header: Vec<String>,
    /// How often the folder is read without being told of a change.
    #[arg(long, default_value = "20s", value_name = "DURATION", value_parser = static_pods::frequency)]
    file_check_frequency: Duration,
    /// How often the URL is asked.
    #[arg(long, default_value = "20s", value_name = "DURATION", value_parser = static_pods::frequency)]
    http_check_frequency: Duration,
    /// A file of kind KubeletConfiguration (`crashLoopBackOff`; what it does not know is refused).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The Node's name; what was first registered wins.
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// The Node's address; that of the default route unless set.
    #[arg(long, value_name = "IP")]
    node_ip: Option<IpAddr>,
    /// Where pods' volumes and this node's identity are kept.
    #[arg(long, default_value = "/var/lib/kubelet", value_name = "DIR")]
    root_dir: PathBuf,
    /// Where container logs are kept.
    #[arg(long, default_value = "/var/log/pods", value_name = "DIR")]
    pod_logs_dir: PathBuf,
    /// A cgroup above the pods' own, to keep several nodes on one machine apart.
    #[arg(long, default_value = "", value_name = "PATH")]
    cgroup_root: String,
    /// How cgroups are named where the runtime does not tell: cgroupfs or systemd.
    #[arg(long, default_value = "cgroupfs", value_name = "DRIVER", value_parser = Driver::parse)]
    cgroup_driver: Driver,
    /// The container runtime.
    #[arg(long, default_value = "unix:///run/containerd/containerd.sock", value_name = "ENDPOINT")]
    container_runtime_endpoint: String,
    /// The address to serve logs on.
    #[arg(long, default_value = "0.0.0.0", value_name = "IP")]
    address: IpAddr,
    /// The port to serve logs on.
    #[arg(long, default_value_t = 10250, value_name = "PORT")]
    port: u16,
    /// The serving certificate; without it nothing is served.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Who signs certificates of clients that are believed.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// The addresses of the cluster's DNS (comma separated).
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    cluster_dns: Vec<String>,
    /// The domain of the cluster's names.
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN")]
    cluster_domain: String,
    /// Pods this node runs at most.
    #[arg(long, default_value_t = 110, value_name = "COUNT")]
    max_pods: u32,
    /// Kernel settings pods may have beside the safe ones (comma separated; `*` at the end: any).
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allowed_unsafe_sysctls: Vec<String>,
    /// Below what the node reports pressure, e.g. `memory.available<100Mi,nodefs.available<10%`; what
    /// is not named is not watched. Upstream's defaults unless given.
    #[arg(long, value_name = "SIGNAL<AMOUNT", value_parser = Thresholds::parse)]
    eviction_hard: Option<Thresholds>,
    #[command(flatten)]
    images: super::images::Images,
}

/// Runs the command.
pub async fn run(args: Kubelet, clock: SharedClock) -> Result<()> {
    preflight::check_runtime(&args.container_runtime_endpoint, &clock).await?;
    let client = match &args.kubeconfig {
        Some(kubeconfig) => Some(Standalone { kubeconfig: kubeconfig.clone(), v: args.v }.client("kubelet", &clock)?),
        None => None,
    };
    let url = match &args.manifest_url {
        Some(url) => Some(Url::parse(url, &args.manifest_url_header).map_err(anyhow::Error::msg)?),
        None => None,
    };
    let serving = match (&args.tls_cert_file, &args.tls_private_key_file) {
        (Some(certificate), Some(key)) => {
            let identity = FileIdentity::pair(certificate, key).map_err(anyhow::Error::msg)?;
            Some(transport::tls::server(&clock, identity)?)
        }
        _ => None,
    };
    let client_ca = match &args.client_ca_file {
        Some(path) => Some(Trust::file(path).map_err(anyhow::Error::msg)?),
        None => None,
    };
    let config = match &args.config {
        Some(path) => {
            kubelet::config::parse(&std::fs::read(path)?).map_err(|why| anyhow::anyhow!("{}: {why}", path.display()))?
        }
        None => kubelet::config::FileConfig::default(),
    };
    let defaults = kubelet::Options::default();
    let options = kubelet::Options {
        node_name: args.hostname_override.clone().unwrap_or_else(address::host_name),
        node_ips: vec![args.node_ip.unwrap_or_else(address::outward).to_string()],
        root_dir: args.root_dir.clone(),
        log_dir: args.pod_logs_dir.clone(),
        cgroup_root: args.cgroup_root.clone(),
        cgroup_driver: args.cgroup_driver,
        runtime_endpoint: args.container_runtime_endpoint.clone(),
        address: serving.is_some().then(|| SocketAddr::new(args.address, args.port)),
        serving,
        client_ca,
        cluster_dns: args.cluster_dns.clone(),
        cluster_domain: args.cluster_domain.clone(),
        max_pods: args.max_pods,
        allowed_unsafe_sysctls: args.allowed_unsafe_sysctls.clone(),
        thresholds: args.eviction_hard.unwrap_or_default(),
        images: args.images.options()?,
        static_pods: static_pods::Options {
            path: args.pod_manifest_path.clone(),
            url,
            file_check: args.file_check_frequency,
            http_check: args.http_check_frequency,
        },
        version: VERSION.to_owned(),
        max_container_restart_period: config
            .max_container_restart_period
            .unwrap_or(defaults.max_container_restart_period),
        ..defaults
    };
    let component = |stage| {
        let clock = clock.clone();
        async move {
            if let Err(error) = kubelet::run(client, clock, Rng::from_os(), options, &stage).await {
                tracing::error!(%error, "the kubelet cannot run");
            }
        }
    };
    standalone::run_to_end(args.v, &clock, component).await
}
