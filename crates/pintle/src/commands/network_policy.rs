//! `pintle network-policy`: the NetworkPolicies of one node's pods, alone.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use host::journal::{Journal, Mutation};
use net::nft::{Kernel, Nft};
use serde_json::json;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use transport::debug::Debug;

use crate::cluster::{address, pod_network};
use crate::commands::serving::{self, Shown};
use crate::commands::standalone::Standalone;
use crate::logging::{FromFile, Logging};
use crate::roots::Roots;

/// Carry out NetworkPolicies for the pods of this node, as a client of any API server. The plugin of `pintle
/// network` asks it for a new pod's rules; pods of other plugins have theirs once their status tells their address.
#[derive(Args, Debug)]
pub struct NetworkPolicy {
    /// The kubeconfig with the API server's address and this component's identity.
    #[arg(long, value_name = "FILE", required_unless_present = "cleanup")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    logging: Logging,
    /// The Node's name [default: the host's].
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    #[command(flatten)]
    roots: Roots,
    /// The address of the Service kube-dns, where `pintle dns` answers: policies know that as the pods that it has
    /// upstream (`k8s-app: kube-dns` in `kube-system`, port 53).
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    cluster_dns: Vec<IpAddr>,
    /// Where health and metrics are told, in plain text.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:10247")]
    metrics_bind_address: SocketAddr,
    /// Remove all rules and end.
    #[arg(long)]
    cleanup: bool,
}

/// Runs the command.
pub async fn run(args: NetworkPolicy, clock: SharedClock) -> Result<()> {
    let kernel = Arc::new(Nft::new(clock.clone()));
    if args.cleanup {
        return match kernel.apply(&policy::cleanup()).await {
            // What has none of its tools has no rules by them.
            Ok(()) | Err(net::nft::Error::Program(_)) => Ok(()),
            Err(error) => bail!(error),
        };
    }
    let layout = args.roots.layout();
    let mut journal = Journal::open(&layout.journal()).context("the journal of host changes")?;
    for folder in [&layout.state, &layout.run] {
        journal.make_folder(folder).with_context(|| folder.display().to_string())?;
    }
    for family in ["ip", "ip6"] {
        journal.record(Mutation::NftTable { family: family.into(), name: policy::TABLE.into() })?;
    }
    let _started = args.logging.start(FromFile::default(), &clock);
    let path = layout.policy_socket();
    let gate =
        policy::gate::bind(&path).with_context(|| format!("where the network plugin asks, {}", path.display()))?;
    let kubeconfig = args.kubeconfig.clone().unwrap_or_default();
    let standalone = Standalone { kubeconfig, logging: args.logging.clone() };
    let client = standalone.client("network-policy", &clock)?;
    let (registry, around) = (serving::registry(), Stage::new());
    let node_name = args.hostname_override.clone().unwrap_or_else(address::host_name);
    let shown = Shown {
        registry: registry.clone(),
        config: json!({"networkPolicy": {"HostnameOverride": node_name, "Gate": layout.policy_socket()}}),
        debug: Debug::none(),
        pages: Vec::new(),
    };
    serving::plain(args.metrics_bind_address, shown, &clock, &around).await?;
    let options = policy::Options {
        node_name,
        kernel,
        registry,
        gate: Some(gate),
        sandboxes: pod_network::sandboxes(&layout),
        records: Arc::new(move || pod_network::records(&layout)),
        unseen: Arc::new(policy::bridge::unseen),
        names: args.cluster_dns.clone(),
    };
    let component = |stage| {
        let clock = clock.clone();
        async move { policy::run(client, clock, Rng::from_os(), options, &stage).await }
    };
    let ended = standalone.run(&clock, component).await;
    around.finish(&clock, serving::DRAIN).await;
    ended
}
