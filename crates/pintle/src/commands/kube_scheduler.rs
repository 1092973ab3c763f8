//! `pintle kube-scheduler`: the scheduler alone.

use anyhow::Result;
use clap::Args;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};

use crate::cluster::address;
use crate::commands::standalone::{LeaderElection, Standalone};
use crate::logging;

/// Run the scheduler alone, as a client of any API server.
#[derive(Args, Debug)]
pub struct KubeScheduler {
    #[command(flatten)]
    standalone: Standalone,
    #[command(flatten)]
    election: LeaderElection,
}

/// Runs the command.
pub async fn run(args: KubeScheduler, clock: SharedClock) -> Result<()> {
    logging::start(args.standalone.v);
    let client = args.standalone.client("kube-scheduler", &clock)?;
    let leader = client.clone();
    let options = scheduler::Options::new(&address::host_name());
    let component = |stage: Stage| {
        let clock = clock.clone();
        async move { scheduler::run(client, clock, Rng::from_os(), options, &stage).await }
    };
    args.election.run(&leader, "kube-scheduler", &clock, component).await
}
