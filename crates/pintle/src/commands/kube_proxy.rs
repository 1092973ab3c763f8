//! `pintle kube-proxy`: the service proxy alone.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use net::conntrack::Conntrack;
use net::iptables::Tools;
use net::nft::Nft;
use proxy::config::{FileConfig, Plane};
use proxy::{DetectLocal, Health, NodePorts};
use serde_json::json;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use transport::debug::Debug;

use crate::cluster::address;
use crate::commands::serving::{self, Shown};
use crate::commands::standalone::Standalone;
use crate::logging::{FromFile, Logging};
use telemetry::line::Format;

/// The dataplanes that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Iptables,
    Nftables,
}

/// Upstream's ways to tell pods of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LocalMode {
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    #[value(name = "NodeCIDR")]
    NodeCidr,
    #[value(name = "BridgeInterface")]
    BridgeInterface,
    #[value(name = "InterfaceNamePrefix")]
    InterfaceNamePrefix,
}

/// A pattern is what names begin with and a star, or a name.
fn pattern(text: &str) -> Result<String, String> {
    proxy::interface(text.strip_suffix('*').unwrap_or(text)).map(|_| text.to_owned())
}

/// Run the service proxy alone, as a client of any API server. Flags come before the file.
#[derive(Args, Debug)]
pub struct KubeProxy {
    /// The kubeconfig with the API server's address and the proxy's identity [default: the file's].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    logging: Logging,
    /// A file of kind KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How Services are carried out [default: iptables, as upstream].
    #[arg(long, value_enum)]
    proxy_mode: Option<Mode>,
    /// The Node's name [default: the host's].
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// Where pod addresses come from [default: nobody knows, and nobody is told from pods by it].
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    cluster_cidr: Vec<IpNet>,
    /// Where Service addresses come from: what no Service owns there is refused
    /// [default: what the cluster's ServiceCIDRs say].
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    service_cluster_ip_range: Vec<IpNet>,
    /// The interfaces of this node's pods, as an nftables pattern (veth*): what is addressed to a pod and
    /// would leave by another is refused at once. Of nftables only.
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    pod_interfaces: Option<String>,
    /// How pods of this node are told from everybody else [default: ClusterCIDR].
    #[arg(long, value_enum, value_name = "MODE")]
    detect_local_mode: Option<LocalMode>,
    /// The interface of this node's pods, for BridgeInterface.
    #[arg(long, value_name = "NAME", value_parser = proxy::interface, required_if_eq("detect_local_mode", "BridgeInterface"))]
    pod_bridge_interface: Option<String>,
    /// What names of interfaces of this node's pods begin with, for InterfaceNamePrefix.
    #[arg(long, value_name = "PREFIX", value_parser = proxy::interface, required_if_eq("detect_local_mode", "InterfaceNamePrefix"))]
    pod_interface_name_prefix: Option<String>,
    /// At which of this node's addresses node ports answer: ranges, or "primary" for those the Node names
    /// [default: all with iptables, primary with nftables].
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    nodeport_addresses: Vec<String>,
    /// Masquerade everything that is sent to a Service address.
    #[arg(long)]
    masquerade_all: bool,
    /// The bit of the packet mark that asks for masquerade [default: 14].
    #[arg(long, value_name = "BIT", value_parser = clap::value_parser!(u8).range(0..32))]
    iptables_masquerade_bit: Option<u8>,
    /// Masquerade what pods send out of the cluster.
    #[arg(long)]
    masquerade_egress: bool,
    /// Where health is told to everybody; empty for nowhere [default: 0.0.0.0:10256].
    #[arg(long, value_name = "IP[:PORT]", value_parser = |text: &str| place(text, HEALTH_PORT))]
    healthz_bind_address: Option<Place>,
    /// Where metrics are told, in plain text; empty for nowhere [default: 127.0.0.1:10249].
    #[arg(long, value_name = "IP[:PORT]", value_parser = |text: &str| place(text, METRICS_PORT))]
    metrics_bind_address: Option<Place>,
    /// Serve /debug/pprof/ and /debug/flags/v where metrics are told, to whoever reaches that address.
    #[arg(long)]
    profiling: bool,
    /// Remove the rules of both modes and end.
    #[arg(long)]
    cleanup: bool,
}

/// What flags and file say together.
struct Told {
    kubeconfig: PathBuf,
    mode: proxy::Mode,
    name: String,
    cluster_cidrs: Vec<IpNet>,
    detect_local: DetectLocal,
    node_ports: NodePorts,
    masquerade_all: bool,
    masquerade_bit: u8,
    healthz: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
}

/// Where something listens; `None` for nowhere. In a struct: clap takes an `Option` for a flag that may
/// be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(Option<SocketAddr>);

const HEALTH_PORT: u16 = 10_256;
const METRICS_PORT: u16 = 10_249;

/// An address, with a port or without.
fn place(text: &str, usual: u16) -> Result<Place, String> {
    if text.is_empty() {
        return Ok(Place(None));
    }
    let whole = text.parse().or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, usual)));
    let whole = whole.map_err(|_| format!("{text:?} is no address, nor one with a port"))?;
    Ok(Place(Some(whole).filter(|at| at.port() != 0)))
}

impl KubeProxy {
    fn local_flag(&self) -> Option<DetectLocal> {
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        Some(match self.detect_local_mode? {
            LocalMode::ClusterCidr => DetectLocal::ClusterCidr,
            LocalMode::NodeCidr => DetectLocal::NodeCidr,
            LocalMode::BridgeInterface => DetectLocal::Bridge(name(&self.pod_bridge_interface)),
            LocalMode::InterfaceNamePrefix => DetectLocal::Interfaces(name(&self.pod_interface_name_prefix)),
        })
    }

    fn told(&self, file: &FileConfig) -> Result<Told, String> {
        let said = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
        let address = |flag: Option<Place>, field: &Option<String>, usual: &str, port: u16| {
            let text = said(field).unwrap_or_else(|| usual.to_owned());
            flag.map_or_else(|| place(&text, port), Ok).map(|Place(at)| at)
        };
        let mode = match (self.proxy_mode, said(&file.mode).as_deref()) {
            (Some(Mode::Iptables), _) | (None, None | Some("iptables")) => proxy::Mode::Iptables,
            (Some(Mode::Nftables), _) | (None, Some("nftables")) => proxy::Mode::Nftables,
            (None, Some(other)) => return Err(format!("mode: {other:?} is none of iptables and nftables")),
        };
        let plane = match mode {
            proxy::Mode::Iptables => file.iptables.clone(),
            proxy::Mode::Nftables => file.nftables.clone(),
        };
        let plane: Plane = plane.unwrap_or_default();
        let masquerade_bit = self.iptables_masquerade_bit.or(plane.masquerade_bit).unwrap_or(14);
        if masquerade_bit > 31 {
            return Err(format!("masqueradeBit: {masquerade_bit} is more than 31"));
        }
        let kubeconfig = file.client_connection.as_ref().map(|c| PathBuf::from(&c.kubeconfig));
        let kubeconfig = self.kubeconfig.clone().or(kubeconfig).filter(|path| !path.as_os_str().is_empty());
        let usual = match mode {
            proxy::Mode::Iptables => NodePorts::All,
            proxy::Mode::Nftables => NodePorts::Primary,
        };
        let node_ports = if self.nodeport_addresses.is_empty() {
            file.node_ports()?.unwrap_or(usual)
        } else {
            NodePorts::parse(&self.nodeport_addresses)?
        };
        let cluster_cidrs = match (self.cluster_cidr.clone(), file.cluster_cidrs()?) {
            (flag, _) if !flag.is_empty() => flag,
            (_, said) if !said.is_empty() => said,
            _ => Vec::new(),
        };
        Ok(Told {
            kubeconfig: kubeconfig
                .ok_or("--kubeconfig, or clientConnection.kubeconfig, must say where the API server is")?,
            mode,
            name: self.hostname_override.clone().or(said(&file.hostname_override)).unwrap_or_else(address::host_name),
            cluster_cidrs,
            detect_local: self.local_flag().or(file.local()?).unwrap_or(DetectLocal::ClusterCidr),
            node_ports,
            masquerade_all: self.masquerade_all || plane.masquerade_all,
            masquerade_bit,
            healthz: address(self.healthz_bind_address, &file.healthz_bind_address, "0.0.0.0", HEALTH_PORT)?,
            metrics: address(self.metrics_bind_address, &file.metrics_bind_address, "127.0.0.1", METRICS_PORT)?,
        })
    }
}

/// Runs the command.
pub async fn run(args: KubeProxy, clock: SharedClock) -> Result<()> {
    let (kernel, tables) = (Arc::new(Nft::new(clock.clone())), Arc::new(Tools::new(clock.clone())));
    if args.cleanup {
        return Ok(proxy::cleanup(&*kernel, &*tables).await?);
    }
    let file = match &args.config {
        Some(path) => {
            let text = std::fs::read(path).with_context(|| path.display().to_string())?;
            proxy::config::parse(&text).map_err(|why| anyhow!("{}: {why}", path.display()))?
        }
        None => FileConfig::default(),
    };
    let told = args.told(&file).map_err(|why| anyhow!(why))?;
    let said = FromFile {
        verbosity: Some(file.logging.verbosity).filter(|v| *v > 0),
        modules: file.logging.vmodule.iter().flatten().map(|m| (m.file_pattern.clone(), m.verbosity)).collect(),
        format: match file.logging.format.as_str() {
            "" => None,
            format => Some(Format::parse(format).map_err(|why| anyhow!("logging.format: {why}"))?),
        },
        tracing: None,
    };
    let started = args.logging.start(said, &clock);
    let profiling = args.profiling || file.enable_profiling;
    let standalone = Standalone { kubeconfig: told.kubeconfig, logging: args.logging.clone() };
    let (registry, around) = (serving::registry(), Stage::new());
    let client = standalone.counted("kube-proxy", &registry, &clock)?;
    let ranges: Vec<String> = told.cluster_cidrs.iter().map(ToString::to_string).collect();
    let shown = Shown {
        registry: registry.clone(),
        config: json!({"kubeproxy.config.k8s.io": {
            "Mode": match told.mode {
                proxy::Mode::Iptables => "iptables",
                proxy::Mode::Nftables => "nftables",
            },
            "ClusterCIDR": ranges.join(","),
            "HostnameOverride": told.name,
            "HealthzBindAddress": told.healthz.map(|at| at.to_string()).unwrap_or_default(),
            "MetricsBindAddress": told.metrics.map(|at| at.to_string()).unwrap_or_default(),
            "EnableProfiling": profiling,
        }}),
        debug: if profiling { started.debug() } else { Debug::none() },
        pages: Vec::new(),
    };
    if let Some(at) = told.metrics {
        serving::plain(at, shown, &clock, &around).await?;
    }
    let health = Health::new(clock.clone(), &registry);
    if let Some(at) = told.healthz {
        serving::open(at, Arc::new(health.clone()), &clock, &around).await?;
    }
    if told.cluster_cidrs.is_empty() && told.detect_local == DetectLocal::ClusterCidr {
        tracing::warn!("without a cluster CIDR nobody is told from pods of this node: nothing is masqueraded for it");
    }
    let options = proxy::Options {
        node_name: told.name,
        mode: told.mode,
        service_cidrs: args.service_cluster_ip_range.clone(),
        cluster_cidrs: told.cluster_cidrs,
        pod_interfaces: args.pod_interfaces.clone(),
        detect_local: told.detect_local,
        node_ports: told.node_ports,
        masquerade_all: told.masquerade_all,
        masquerade_bit: told.masquerade_bit,
        masquerade_egress: args.masquerade_egress,
        takes_over: true,
        kernel,
        tables,
        connections: Arc::new(Conntrack),
        addresses: net::rtnl::address::own_addresses,
        registry: registry.clone(),
        health,
    };
    let component = |stage| {
        let clock = clock.clone();
        async move {
            for name in file.idle() {
                tracing::warn!(name, "this field of the configuration changes nothing here");
            }
            proxy::run(client, clock, Rng::from_os(), options, &stage).await;
        }
    };
    let ended = standalone.run(&clock, component).await;
    around.finish(&clock, serving::DRAIN).await;
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_may_leave_out_its_port() {
        for (text, want) in [
            ("", Ok(None)),
            ("0.0.0.0", Ok(Some("0.0.0.0:10256"))),
            ("127.0.0.1:80", Ok(Some("127.0.0.1:80"))),
            ("::", Ok(Some("[::]:10256"))),
            ("[::1]:80", Ok(Some("[::1]:80"))),
            ("0.0.0.0:0", Ok(None)),
            ("here", Err(())),
            ("10.0.0.1:many", Err(())),
        ] {
            let got = place(text, HEALTH_PORT).map(|Place(at)| at).map_err(|_| ());
            assert_eq!(got, want.map(|at| at.map(|at| at.parse().expect("an address"))), "{text:?}");
        }
    }
}
