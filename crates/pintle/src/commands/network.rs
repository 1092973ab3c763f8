//! `pintle network`: routes to other nodes' pods, and the configuration of this node's own, alone.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use host::journal::Journal;
use host::sysctl;
use network::Own;
use serde_json::json;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use transport::debug::Debug;

use crate::cluster::pod_upkeep::{self, Attachments};
use crate::cluster::{address, pod_network};
use crate::commands::serving::{self, Shown};
use crate::commands::standalone::Standalone;
use crate::logging::FromFile;
use crate::roots::Roots;

/// How other nodes are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Plain routes where the other node is on this one's network, else VXLAN.
    Auto,
    /// Plain routes only.
    Routes,
    /// VXLAN to every node.
    Vxlan,
}

impl Mode {
    /// As the component calls it.
    pub fn told(self) -> network::Mode {
        match self {
            Self::Auto => network::Mode::Auto,
            Self::Routes => network::Mode::Routes,
            Self::Vxlan => network::Mode::Vxlan,
        }
    }
}

/// Keep the pod network of a node that was joined by hand: routes to other nodes' pods, and the CNI plugin with
/// its configuration for this node's own. It runs beside `pintle kubelet` and `pintle kube-proxy`.
#[derive(Args, Debug)]
pub struct Network {
    #[command(flatten)]
    standalone: Standalone,
    #[command(flatten)]
    roots: Roots,
    /// The Node's name [default: the host's].
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// How other nodes are reached; every node must be told the same.
    #[arg(long, value_enum, default_value = "auto", value_name = "MODE")]
    mode: Mode,
    /// The cluster's ranges of pods' addresses: a Node that says another is not believed.
    #[arg(long, value_delimiter = ',', value_name = "CIDR,...")]
    cluster_cidr: Vec<ipnet::IpNet>,
    /// Where the container runtime looks for CNI configurations [default: cni in the folder of the
    /// configuration].
    #[arg(long, value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// Where it looks for CNI plugins [default: cni/bin in the folder of the state].
    #[arg(long, value_name = "DIR")]
    cni_bin_dir: Option<PathBuf>,
    /// Keep routes only: the pods of this node have another CNI plugin.
    #[arg(long)]
    no_cni: bool,
    /// The container runtime: what belongs to no pod that it knows is taken away.
    #[arg(long, default_value = "unix:///run/containerd/containerd.sock", value_name = "ENDPOINT")]
    container_runtime_endpoint: String,
    /// Where health and metrics are told, in plain text.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:10246")]
    metrics_bind_address: SocketAddr,
    /// Start pods without asking `pintle network-policy`. Unless this is given it is asked before each pod's first
    /// packet, and where it does not run no pod gets a network.
    #[arg(long)]
    no_network_policy: bool,
}

/// Runs the command.
pub async fn run(args: Network, clock: SharedClock) -> Result<()> {
    let _started = args.standalone.logging.start(FromFile::default(), &clock);
    let client = args.standalone.client("network", &clock)?;
    let layout = args.roots.layout();
    let mut journal = Journal::open(&layout.journal()).context("the journal of host changes")?;
    for folder in [&layout.state, &layout.config, &layout.run] {
        journal.make_folder(folder).with_context(|| folder.display().to_string())?;
    }
    pod_network::record_routes(&mut journal)?;
    for (name, value) in sysctl::NEEDED {
        sysctl::set(&mut journal, name, value).with_context(|| format!("sysctl {name}"))?;
    }
    let own: Option<network::Tell> = if args.no_cni {
        None
    } else {
        pod_network::record(&layout, &mut journal)?;
        let program = std::env::current_exe().context("where this program is")?;
        pod_network::link(&layout, args.cni_bin_dir.as_deref(), &program, &mut journal)?;
        let (folder, layout) = (args.cni_conf_dir.clone().unwrap_or_else(|| layout.cni_config()), layout.clone());
        let gate = !args.no_network_policy;
        Some(Arc::new(move |own: &Own| pod_network::told(&layout, &folder, gate, own)))
    };
    let registry = serving::registry();
    let options = network::Options {
        node_name: args.hostname_override.clone().unwrap_or_else(address::host_name),
        mode: args.mode.told(),
        ranges: args.cluster_cidr.clone(),
        own,
        registry: registry.clone(),
    };
    let around = Stage::new();
    let config = json!({"network": {"HostnameOverride": options.node_name, "Mode": format!("{:?}", args.mode)}});
    let shown = Shown { registry, config, debug: Debug::none(), pages: Vec::new() };
    serving::plain(args.metrics_bind_address, shown, &clock, &around).await?;
    let pods = (!args.no_cni).then(|| Attachments {
        state: layout.cni_state(),
        gate: (!args.no_network_policy).then(|| layout.policy_socket()),
        runtime: args.container_runtime_endpoint.clone(),
    });
    let component = |stage: Stage| {
        let clock = clock.clone();
        let (upkeep, own) = (stage.clone(), clock.clone());
        if let Some(pods) = pods {
            stage.spawn(async move { pod_upkeep::keep(pods, &own, &upkeep).await });
        }
        async move { network::run(client, clock, Rng::from_os(), options, &stage).await }
    };
    let ended = args.standalone.run(&clock, component).await;
    around.finish(&clock, serving::DRAIN).await;
    ended
}
