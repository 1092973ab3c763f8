//! `pintle kube-proxy`: the service proxy alone.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use net::nft::{Kernel, Nft};
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};

use crate::cluster::address;
use crate::commands::serving;
use crate::commands::standalone::Standalone;

/// The dataplanes that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Nftables,
}

/// Run the service proxy alone, as a client of any API server.
#[derive(Args, Debug)]
pub struct KubeProxy {
    #[command(flatten)]
    standalone: Standalone,
    /// How Services are carried out.
    #[arg(long, value_enum, default_value = "nftables")]
    proxy_mode: Mode,
    /// The Node's name.
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// Where pod addresses come from.
    #[arg(long, default_value = "10.244.0.0/16", value_name = "CIDR", value_delimiter = ',')]
    cluster_cidr: Vec<IpNet>,
    /// Where Service addresses come from.
    #[arg(long, default_value = "10.96.0.0/12", value_name = "CIDR", value_delimiter = ',')]
    service_cluster_ip_range: Vec<IpNet>,
    /// The interfaces of this node's pods, as an nftables pattern.
    #[arg(long, default_value = "veth*", value_name = "PATTERN")]
    pod_interfaces: String,
    /// Masquerade what pods send out of the cluster.
    #[arg(long)]
    masquerade_egress: bool,
    /// Where health is told to everybody.
    #[arg(long, default_value = "0.0.0.0:10256", value_name = "IP:PORT")]
    healthz_bind_address: SocketAddr,
    /// Where metrics are told, in plain text.
    #[arg(long, default_value = "127.0.0.1:10249", value_name = "IP:PORT")]
    metrics_bind_address: SocketAddr,
    /// Remove our rules and end.
    #[arg(long)]
    cleanup: bool,
}

/// Runs the command.
pub async fn run(args: KubeProxy, clock: SharedClock) -> Result<()> {
    let kernel = match args.proxy_mode {
        Mode::Nftables => Arc::new(Nft::new(clock.clone())),
    };
    if args.cleanup {
        return Ok(kernel.apply(&proxy::cleanup()).await?);
    }
    let client = args.standalone.client("kube-proxy", &clock)?;
    let (registry, around) = (serving::registry(), Stage::new());
    serving::plain(args.metrics_bind_address, &registry, &clock, &around).await?;
    serving::health(args.healthz_bind_address, &clock, &around).await?;
    let options = proxy::Options {
        node_name: args.hostname_override.clone().unwrap_or_else(address::host_name),
        service_cidrs: args.service_cluster_ip_range.clone(),
        cluster_cidrs: args.cluster_cidr.clone(),
        pod_interfaces: args.pod_interfaces.clone(),
        masquerade_egress: args.masquerade_egress,
        kernel,
        registry: registry.clone(),
    };
    let component = |stage| {
        let clock = clock.clone();
        async move { proxy::run(client, clock, Rng::from_os(), options, &stage).await }
    };
    let ended = args.standalone.run(&clock, component).await;
    around.finish(&clock, serving::DRAIN).await;
    ended
}
