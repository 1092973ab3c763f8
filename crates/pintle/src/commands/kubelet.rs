//! `pintle kubelet`: the node agent alone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use client::kubeconfig::Connection;
use kubelet::cgroup::Driver;
use kubelet::config::FileConfig;
use kubelet::image::rate::Rate;
use kubelet::node::thresholds::Bounds;
use kubelet::static_pods::{self, url::Url};
use stdx::metrics::Registry;
use stdx::shutdown::Stage;
use stdx::trace::Sampler;
use stdx::{Rng, SharedClock};
use telemetry::line::Format;
use telemetry::otlp;
use transport::files::FileIdentity;
use transport::trust::Trust;

use crate::VERSION;
use crate::cluster::{address, families, preflight};
use crate::commands::certificates;
use crate::commands::standalone::{self, Standalone};
use crate::logging::{FromFile, Logging};

/// Run the kubelet alone: as a client of any API server, or without one for static pods only.
#[derive(Args, Debug)]
pub struct Kubelet {
    /// The kubeconfig with the API server's address and this node's identity; without it only static
    /// pods run.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    logging: Logging,
    /// A folder of manifests of static pods, or one manifest.
    #[arg(long, value_name = "PATH")]
    pod_manifest_path: Option<PathBuf>,
    /// An URL that answers with manifests of static pods.
    #[arg(long, value_name = "URL")]
    manifest_url: Option<String>,
    /// Headers to send with it (comma separated, `name:value`; repeatable).
    #[arg(long, value_name = "NAME:VALUE", value_delimiter = ',')]
    manifest_url_header: Vec<String>,
    /// How often the folder is read without being told of a change [default: 20s].
    #[arg(long, value_name = "DURATION", value_parser = static_pods::frequency)]
    file_check_frequency: Option<Duration>,
    /// How often the URL is asked [default: 20s].
    #[arg(long, value_name = "DURATION", value_parser = static_pods::frequency)]
    http_check_frequency: Option<Duration>,
    /// A file of kind KubeletConfiguration. Flags come before what it says; what this kubelet does not do
    /// is refused.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The Node's name; what was first registered wins.
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// The Node's address, or one of each family; that of the default route unless set.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    node_ip: Vec<IpAddr>,
    /// Where pods' volumes and this node's identity are kept.
    #[arg(long, default_value = "/var/lib/kubelet", value_name = "DIR")]
    root_dir: PathBuf,
    /// Where container logs are kept [default: /var/log/pods].
    #[arg(long, value_name = "DIR")]
    pod_logs_dir: Option<PathBuf>,
    /// A cgroup above the pods' own, to keep several nodes on one machine apart.
    #[arg(long, value_name = "PATH")]
    cgroup_root: Option<String>,
    /// How cgroups are named where the runtime does not tell: cgroupfs or systemd [default: cgroupfs].
    #[arg(long, value_name = "DRIVER", value_parser = Driver::parse)]
    cgroup_driver: Option<Driver>,
    /// The container runtime [default: unix:///run/containerd/containerd.sock].
    #[arg(long, value_name = "ENDPOINT")]
    container_runtime_endpoint: Option<String>,
    /// The address to serve logs and streams on [default: 0.0.0.0].
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// The port to serve logs and streams on [default: 10250].
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// The serving certificate; without it nothing is served.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Who signs certificates of clients that are believed.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// How long a stream (exec, attach, port-forward) may carry nothing; 0: for ever [default: 4h].
    #[arg(long, value_name = "DURATION", value_parser = kubelet::config::duration)]
    streaming_connection_idle_timeout: Option<Duration>,
    /// The addresses of the cluster's DNS (comma separated).
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    cluster_dns: Vec<String>,
    /// The domain of the cluster's names [default: cluster.local].
    #[arg(long, value_name = "DOMAIN")]
    cluster_domain: Option<String>,
    /// Pods this node runs at most [default: 110].
    #[arg(long, value_name = "COUNT")]
    max_pods: Option<u32>,
    /// Processes that one pod may have; -1 is without limit [default: -1].
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pod_max_pids: Option<i64>,
    /// How large a container's log grows [default: 10Mi].
    #[arg(long, value_name = "BYTES", value_parser = kubelet::config::bytes)]
    container_log_max_size: Option<u64>,
    /// How many files of a container's log are kept [default: 5].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(2..))]
    container_log_max_files: Option<u16>,
    /// The resolver configuration that pods on the node's names see [default: /etc/resolv.conf].
    #[arg(long, value_name = "FILE")]
    resolv_conf: Option<PathBuf>,
    /// Kernel settings pods may have beside the safe ones (comma separated; `*` at the end: any).
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allowed_unsafe_sysctls: Vec<String>,
    /// Below what the node reports pressure and evicts pods at once, e.g.
    /// `memory.available<100Mi,nodefs.available<10%`; what is not named is not watched. Upstream's defaults
    /// unless given.
    #[arg(long, value_name = "SIGNAL<AMOUNT", value_parser = Bounds::limits)]
    eviction_hard: Option<Bounds>,
    #[command(flatten)]
    evictions: super::evictions::Evictions,
    #[command(flatten)]
    images: super::images::Images,
}

/// Runs the command.
pub async fn run(args: Kubelet, clock: SharedClock) -> Result<()> {
    let file = match &args.config {
        Some(path) => {
            kubelet::config::parse(&std::fs::read(path)?).map_err(|why| anyhow::anyhow!("{}: {why}", path.display()))?
        }
        None => FileConfig::default(),
    };
    let traces = file.tracing.as_ref().map(|tracing| otlp::Options {
        endpoint: tracing.endpoint.clone().unwrap_or_else(|| otlp::ENDPOINT.to_owned()),
        sampler: Sampler { per_million: tracing.per_million },
        service: "kubelet".to_owned(),
    });
    let said = FromFile {
        verbosity: file.logging.verbosity,
        modules: file.logging.modules.clone(),
        format: file.logging.format.as_deref().map(Format::parse).transpose().map_err(anyhow::Error::msg)?,
        tracing: traces,
    };
    let mut started = args.logging.start(said, &clock);
    let mut options = options(&args, &file, &clock)?;
    options.debug = started.debug();
    if file.debug_flags == Some(false) {
        options.debug = options.debug.without_level();
    }
    if file.profiling == Some(false) {
        options.debug = options.debug.without_profiling();
    }
    preflight::check_runtime(&options.runtime_endpoint, &clock).await?;
    let client = match &args.kubeconfig {
        Some(kubeconfig) => {
            let standalone = Standalone { kubeconfig: kubeconfig.clone(), logging: args.logging.clone() };
            Some(standalone.counted("kubelet", &options.registry, &clock)?)
        }
        None => None,
    };
    let component = |stage: Stage| {
        let clock = clock.clone();
        started.export(&options.registry, &stage);
        async move {
            if let Err(error) = kubelet::run(client, clock, Rng::from_os(), options, &stage).await {
                tracing::error!(%error, "the kubelet cannot run");
            }
        }
    };
    standalone::run_to_end(&clock, component).await
}

/// What the kubelet is told: what a flag does not say, `file` does.
fn options(args: &Kubelet, file: &FileConfig, clock: &SharedClock) -> Result<kubelet::Options> {
    if args.pod_max_pids == Some(0) {
        bail!("--pod-max-pids=0 would let no pod run: -1 is without limit");
    }
    let defaults = kubelet::Options::default();
    let list = |flag: &[String], file: &[String]| if flag.is_empty() { file.to_vec() } else { flag.to_vec() };
    let static_pods = static_pods::Options {
        path: args.pod_manifest_path.clone().or_else(|| file.static_pod_path.clone()),
        url: match args.manifest_url.as_ref().or(file.static_pod_url.as_ref()) {
            Some(url) => {
                let headers = list(&args.manifest_url_header, &file.static_pod_url_headers);
                Some(Url::parse(url, &headers).map_err(anyhow::Error::msg)?)
            }
            None => None,
        },
        file_check: args.file_check_frequency.or(file.file_check_frequency).unwrap_or(static_pods::CHECK),
        http_check: args.http_check_frequency.or(file.http_check_frequency).unwrap_or(static_pods::CHECK),
    };
    let certificate = args.tls_cert_file.as_ref().or(file.tls_cert_file.as_ref());
    let serving = match (certificate, args.tls_private_key_file.as_ref().or(file.tls_private_key_file.as_ref())) {
        (Some(certificate), Some(key)) => {
            let identity = FileIdentity::pair(certificate, key).map_err(anyhow::Error::msg)?;
            Some((transport::tls::server(clock, identity.clone())?, identity))
        }
        _ => None,
    };
    let (serving, identity) = serving.unzip();
    let registry = Registry::default();
    // One that cannot be read is told by who connects with it, after what the node itself lacks.
    let connects = args.kubeconfig.as_ref().and_then(|file| Connection::load(file, None).ok()?.shown().ok()?);
    let client = move || certificates::end(&connects.as_ref()?.leaf()?);
    certificates::show(&registry, clock, client, move || certificates::end(&identity.as_ref()?.leaf()?));
    let client_ca = match args.client_ca_file.as_ref().or(file.client_ca_file.as_ref()) {
        Some(path) => Some(Trust::file(path).map_err(anyhow::Error::msg)?),
        None => None,
    };
    let address = args.address.or(file.address).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let port = args.port.or(file.port).unwrap_or(10250);
    let (log_size, log_files) = defaults.log_limits;
    let endpoint = args.container_runtime_endpoint.clone().or_else(|| file.container_runtime_endpoint.clone());
    let domain = args.cluster_domain.clone().or_else(|| file.cluster_domain.clone());
    Ok(kubelet::Options {
        node_name: args.hostname_override.clone().unwrap_or_else(address::host_name),
        node_ips: families::node_addresses(&args.node_ip, &[], |_| None).iter().map(ToString::to_string).collect(),
        root_dir: args.root_dir.clone(),
        log_dir: args.pod_logs_dir.clone().or_else(|| file.pod_logs_dir.clone()).unwrap_or(defaults.log_dir),
        cgroup_root: args.cgroup_root.clone().or_else(|| file.cgroup_root.clone()).unwrap_or_default(),
        cgroups_per_qos: file.cgroups_per_qos.unwrap_or(defaults.cgroups_per_qos),
        cgroup_driver: args.cgroup_driver.or(file.cgroup_driver).unwrap_or_default(),
        runtime_endpoint: endpoint.unwrap_or(defaults.runtime_endpoint),
        address: serving.is_some().then(|| SocketAddr::new(address, port)),
        serving,
        registry,
        stream_idle: match args.streaming_connection_idle_timeout {
            Some(Duration::ZERO) => Duration::from_secs(100 * 365 * 24 * 3600),
            flag => flag.or(file.streaming_connection_idle_timeout).unwrap_or(defaults.stream_idle),
        },
        client_ca,
        cluster_dns: list(&args.cluster_dns, &file.cluster_dns),
        cluster_domain: domain.unwrap_or(defaults.cluster_domain),
        resolv_conf: args.resolv_conf.clone().or_else(|| file.resolv_conf.clone()).unwrap_or(defaults.resolv_conf),
        max_pods: args.max_pods.or(file.max_pods).unwrap_or(defaults.max_pods),
        taints: file.register_with_taints.clone(),
        pod_pids_limit: args.pod_max_pids.map_or(file.pod_pids_limit, |limit| u64::try_from(limit).ok()),
        log_limits: (
            args.container_log_max_size.or(file.container_log_max_size).unwrap_or(log_size),
            args.container_log_max_files.map(usize::from).or(file.container_log_max_files).unwrap_or(log_files),
        ),
        allowed_unsafe_sysctls: list(&args.allowed_unsafe_sysctls, &file.allowed_unsafe_sysctls),
        thresholds: args
            .evictions
            .thresholds(args.eviction_hard.or(file.eviction_hard).unwrap_or(defaults.thresholds.hard), file)?,
        node_logs: defaults.node_logs.filter(|_| file.system_log_handler.unwrap_or(true)),
        images: args
            .images
            .options(file, kubelet::ImageOptions { rate: Some(Rate::USUAL), ..defaults.images.clone() })?,
        static_pods,
        version: VERSION.to_owned(),
        max_container_restart_period: file
            .max_container_restart_period
            .unwrap_or(defaults.max_container_restart_period),
        ..defaults
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use kubelet::node::thresholds::{Bound, Signal, Thresholds};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        kubelet: Kubelet,
    }

    fn of(flags: &[&str], file: &str) -> kubelet::Options {
        let line = Line::parse_from(["kubelet", "--node-ip=192.0.2.1"].iter().chain(flags));
        let file = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{file}");
        let file = kubelet::config::parse(file.as_bytes()).expect("a file");
        options(&line.kubelet, &file, &stdx::clock::RealClock::shared()).expect("options")
    }

    #[test]
    fn a_flag_leaves_the_rest_of_the_file() {
        let file = "evictionHard: {memory.available: 1Gi}\nevictionPressureTransitionPeriod: 30s\n";
        let flag = "--eviction-hard=memory.available<200Mi";
        let parsed = |text: &str, seconds| Thresholds {
            transition: Duration::from_secs(seconds),
            ..Thresholds::hard(Bounds::limits(text).expect("bounds"))
        };
        assert_eq!(of(&[flag], file).thresholds, parsed("memory.available<200Mi", 30));
        assert_eq!(of(&[], file).thresholds, parsed("memory.available<1Gi", 30));
        assert_eq!(of(&[flag], "").thresholds, parsed("memory.available<200Mi", 300));
        let usual = Thresholds::default();
        assert_eq!(of(&[], "").thresholds, usual);
        let only = of(&[], "evictionPressureTransitionPeriod: 30s").thresholds;
        assert_eq!(only, Thresholds { transition: Duration::from_secs(30), ..usual });
    }

    #[test]
    fn what_is_soft_is_taken_from_flags_and_file() {
        let file = "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}\n\
                    evictionMaxPodGracePeriod: 20\nevictionMinimumReclaim: {memory.available: 1Mi}\nregistryPullQPS: 0\n";
        let found = of(&["--eviction-soft-grace-period=memory.available=30s"], file);
        let soft = found.thresholds;
        assert_eq!(soft.soft, Bounds::limits("memory.available<1Gi").expect("bounds"));
        assert_eq!(soft.soft_grace.get(Signal::Memory), Some(Duration::from_secs(30)));
        assert_eq!((soft.max_pod_grace, soft.reclaim.get(Signal::Memory)), (20, Some(Bound::Amount(1 << 20))));
        assert_eq!(found.images.rate, None);
        let rate = |flags: &[&str]| of(flags, "registryBurst: 7").images.rate;
        assert_eq!(rate(&[]), Some(Rate { per_second: 5, burst: 7 }));
        assert_eq!(rate(&["--registry-qps=1", "--registry-burst=2"]), Some(Rate { per_second: 1, burst: 2 }));
    }

    #[test]
    fn the_nodes_logs_are_shown_unless_a_file_forbids_it() {
        assert!(of(&[], "").node_logs.is_some());
        assert!(of(&[], "enableSystemLogHandler: true").node_logs.is_some());
        assert_eq!(of(&[], "enableSystemLogHandler: false").node_logs, None);
    }
}
