//! `pintle kube-scheduler`: the scheduler alone.

use anyhow::Result;
use clap::Args;
use stdx::{Rng, SharedClock};

use crate::cluster::address;
use crate::commands::standalone::Standalone;

/// Run the scheduler alone, as a client of any API server.
#[derive(Args, Debug)]
pub struct KubeScheduler {
    #[command(flatten)]
    standalone: Standalone,
}

/// Runs the command.
pub async fn run(args: KubeScheduler, clock: SharedClock) -> Result<()> {
    let client = args.standalone.client("kube-scheduler", &clock)?;
    let options = scheduler::Options::new(&address::host_name());
    let component = |stage| {
        let clock = clock.clone();
        async move { scheduler::run(client, clock, Rng::from_os(), options, &stage).await }
    };
    args.standalone.run(&clock, component).await
}
