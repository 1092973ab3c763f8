//! `pintle network`: routes to other nodes' pods, and the configuration of this node's own, alone.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use host::journal::Journal;
use host::sysctl;
use network::Own;
use stdx::{Rng, SharedClock};

use crate::cluster::{address, pod_network};
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
    /// How other nodes are reached.
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
        pod_network::record(&mut journal)?;
        let program = std::env::current_exe().context("where this program is")?;
        pod_network::link(&layout, args.cni_bin_dir.as_deref(), &program, &mut journal)?;
        let (folder, layout) = (args.cni_conf_dir.clone().unwrap_or_else(|| layout.cni_config()), layout.clone());
        Some(Arc::new(move |own: &Own| pod_network::told(&layout, &folder, own)))
    };
    let options = network::Options {
        node_name: args.hostname_override.clone().unwrap_or_else(address::host_name),
        mode: args.mode.told(),
        ranges: args.cluster_cidr.clone(),
        own,
    };
    let component = |stage| {
        let clock = clock.clone();
        async move { network::run(client, clock, Rng::from_os(), options, &stage).await }
    };
    args.standalone.run(&clock, component).await
}
