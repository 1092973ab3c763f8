//! `pintle network-policy`: the NetworkPolicies of one node's pods, alone.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use net::nft::{Kernel, Nft};
use serde_json::json;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use transport::debug::Debug;

use crate::cluster::address;
use crate::commands::serving::{self, Shown};
use crate::commands::standalone::Standalone;
use crate::logging::{FromFile, Logging};

/// Carry out NetworkPolicies for the pods of this node, as a client of any API server.
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
    /// Where the network plugin asks whether a new pod's rules are there; without it pods have rules once
    /// their status tells their address.
    #[arg(long, value_name = "FILE")]
    gate: Option<PathBuf>,
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
    let _started = args.logging.start(FromFile::default(), &clock);
    let kubeconfig = args.kubeconfig.clone().unwrap_or_default();
    let standalone = Standalone { kubeconfig, logging: args.logging.clone() };
    let client = standalone.client("network-policy", &clock)?;
    let (registry, around) = (serving::registry(), Stage::new());
    let node_name = args.hostname_override.clone().unwrap_or_else(address::host_name);
    let shown = Shown {
        registry: registry.clone(),
        config: json!({"networkPolicy": {"HostnameOverride": node_name, "Gate": args.gate}}),
        debug: Debug::none(),
    };
    serving::plain(args.metrics_bind_address, shown, &clock, &around).await?;
    let options = policy::Options { node_name, kernel, registry, gate: args.gate.clone(), records: Arc::new(Vec::new) };
    let component = |stage| {
        let clock = clock.clone();
        async move { policy::run(client, clock, Rng::from_os(), options, &stage).await }
    };
    let ended = standalone.run(&clock, component).await;
    around.finish(&clock, serving::DRAIN).await;
    ended
}
