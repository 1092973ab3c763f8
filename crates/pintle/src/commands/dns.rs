//! `pintle dns`: the cluster's DNS alone, and what `up` is told of it.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use ipnet::IpNet;
use stdx::{Rng, SharedClock};

use crate::cluster::address;
use crate::commands::serving;
use crate::commands::standalone::Standalone;
use crate::logging::FromFile;

/// Where names are asked for, and where they are answered.
#[derive(Args, Clone, Debug)]
pub struct Names {
    /// A server for names that are not the cluster's, once for each [default: those of the host's resolv.conf].
    #[arg(long, value_name = "IP[:PORT]", value_delimiter = ',')]
    dns_upstream: Vec<String>,
    /// A domain with a server of its own, once for each server.
    #[arg(long, value_name = "DOMAIN=IP[:PORT]", value_delimiter = ',')]
    dns_stub_domain: Vec<String>,
    /// A file with stubDomains, upstreamNameservers, ttl and cache; flags come before it.
    #[arg(long, value_name = "FILE")]
    dns_config: Option<PathBuf>,
    /// The port on the node where names are answered. Where it is taken, any other is used: the Service kube-dns
    /// has 53 and leads there.
    #[arg(long, value_name = "PORT", default_value_t = dns::PORT)]
    dns_port: u16,
    /// The port on the node for /health, /ready and /metrics; where it is taken, any other is used.
    #[arg(long, value_name = "PORT", default_value_t = dns::METRICS_PORT)]
    dns_metrics_port: u16,
}

impl Names {
    /// What the DNS is to be told.
    pub fn options(&self, node: &str, address: IpAddr, domain: &str) -> Result<dns::Options> {
        let domain = dns::wire::Name::parse(domain).with_context(|| format!("the cluster's domain {domain:?}"))?;
        let mut options = dns::Options::new(node, address, domain);
        let file = match &self.dns_config {
            Some(path) => {
                let text = std::fs::read(path).with_context(|| path.display().to_string())?;
                dns::parse_config(&text).map_err(|why| anyhow!("{}: {why}", path.display()))?
            }
            None => dns::FileConfig::default(),
        };
        file.apply(&self.dns_upstream, &self.dns_stub_domain, &mut options).map_err(|why| anyhow!(why))?;
        options.port = self.dns_port;
        options.metrics_port = Some(self.dns_metrics_port);
        Ok(options)
    }
}

/// Run the cluster's DNS alone, on a node and as a client of any API server.
#[derive(Args, Debug)]
pub struct Dns {
    #[command(flatten)]
    standalone: Standalone,
    #[command(flatten)]
    names: Names,
    /// The Node it serves on [default: the host's name].
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// The node's address, where pods reach it [default: that of the default route].
    #[arg(long, value_name = "IP")]
    node_ip: Option<IpAddr>,
    /// The domain of the cluster's names.
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN")]
    cluster_domain: String,
    /// Where pod addresses come from: who has none of them, and is no node, is not answered.
    #[arg(long, default_value = "10.244.0.0/16", value_name = "CIDR", value_delimiter = ',')]
    cluster_cidr: Vec<IpNet>,
    /// Where Service addresses come from.
    #[arg(long, default_value = "10.96.0.0/12", value_name = "CIDR", value_delimiter = ',')]
    service_cluster_ip_range: Vec<IpNet>,
    /// The address of the Service kube-dns [default: the tenth of the first Service range].
    #[arg(long, value_name = "IP")]
    cluster_dns: Option<IpAddr>,
    /// Write neither the Service kube-dns nor a slice for it: lead questions here yourself.
    #[arg(long)]
    no_service: bool,
    /// The host's resolver configuration.
    #[arg(long, value_name = "FILE", default_value = "/etc/resolv.conf")]
    resolv_conf: PathBuf,
}

/// Runs the command.
pub async fn run(args: Dns, clock: SharedClock) -> Result<()> {
    let _said = args.standalone.logging.start(FromFile::default(), &clock);
    let client = args.standalone.client("dns", &clock)?;
    let node = args.hostname_override.clone().unwrap_or_else(address::host_name);
    let node_ip = args.node_ip.unwrap_or_else(address::outward);
    let mut options = args.names.options(&node, node_ip, &args.cluster_domain)?;
    let tenth = args.service_cluster_ip_range.first().and_then(|range| dns::cluster_ip(*range));
    let cluster_ip =
        args.cluster_dns.or(tenth).context("the Service range has no tenth address: give --cluster-dns")?;
    options.cluster_ip = Some(cluster_ip).filter(|_| !args.no_service);
    options.pod_ranges = args.cluster_cidr.clone();
    options.service_ranges = args.service_cluster_ip_range.clone();
    options.resolv_conf = args.resolv_conf.clone();
    options.registry = serving::registry();
    let component = |stage| {
        let clock = clock.clone();
        async move { dns::run(client, clock, Rng::from_os(), options, &stage).await }
    };
    args.standalone.run(&clock, component).await
}
