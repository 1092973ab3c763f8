//! `pintle kube-scheduler`: the scheduler alone.

use anyhow::Result;
use clap::Args;
use serde_json::json;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};

use crate::cluster::address;
use crate::commands::serving::{self, Secure, Shown};
use crate::commands::standalone::{LeaderElection, Standalone};
use crate::logging::FromFile;

/// Run the scheduler alone, as a client of any API server.
#[derive(Args, Debug)]
pub struct KubeScheduler {
    #[command(flatten)]
    standalone: Standalone,
    #[command(flatten)]
    election: LeaderElection,
    #[command(flatten)]
    secure: Secure,
}

/// Runs the command.
pub async fn run(args: KubeScheduler, clock: SharedClock) -> Result<()> {
    let started = args.standalone.logging.start(FromFile::default(), &clock);
    let registry = serving::registry();
    let client = args.standalone.counted("kube-scheduler", &registry, &clock)?;
    let leader = client.clone();
    let config = json!({"componentconfig": {"leaderElection": {"leaderElect": args.election.leader_elect}}});
    let around = Stage::new();
    let reader = client.clone();
    let resources: serving::Make = Box::new(move || {
        let client = reader.clone();
        Box::pin(async move { scheduler::resource_page::page(&client).await.map_err(|error| error.to_string()) })
    });
    let shown = Shown {
        registry: registry.clone(),
        config,
        debug: args.secure.profiling.debug(&started),
        pages: vec![("/metrics/resources", resources)],
    };
    args.secure.serve(("kube-scheduler", 10259), shown, &client, &clock, &around).await?;
    let elected = registry.clone();
    let options = scheduler::Options { registry, ..scheduler::Options::new(&address::host_name()) };
    let component = |stage: Stage| {
        let clock = clock.clone();
        async move { scheduler::run(client, clock, Rng::from_os(), options, &stage).await }
    };
    let ended = args.election.run(&leader, ("kube-scheduler", &elected), &clock, component).await;
    around.finish(&clock, serving::DRAIN).await;
    ended
}
