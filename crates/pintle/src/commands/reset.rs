//! `pintle reset`: stops everything and removes every trace from the host.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use host::journal::{Journal, Mutation};
use host::process::ProcessId;
use host::reset::{self, Step};
use kubelet::cgroup::{Cgroups, Hierarchies};
use stdx::{ClockExt, SharedClock};

use crate::cluster::user;
use crate::commands::down::{self, Down};
use crate::roots::Roots;

/// Stop the cluster and its pods and remove every trace of them.
#[derive(Args, Debug)]
pub struct Reset {
    #[command(flatten)]
    pub roots: Roots,
}

/// Runs the command.
pub async fn run(args: Reset, clock: SharedClock) -> Result<()> {
    let layout = args.roots.layout();
    down::run(Down { roots: args.roots.clone(), pods: true }, clock.clone()).await?;
    if ProcessId::load_alive(&layout.containerd_pid()).is_some() {
        bail!("the container runtime still runs");
    }
    let journal = Journal::open(&layout.journal()).context("the journal of host changes")?;
    let mut failed = Vec::new();
    for entry in journal.entries() {
        match entry {
            Mutation::Kubeconfig { path, context } => {
                if let Err(error) = user::forget(path, context) {
                    failed.push(format!("{}: {error}", path.display()));
                }
            }
            Mutation::Cgroup { .. } => end_cgroups(&clock).await?,
            _ => {}
        }
    }
    let plan = reset::plan(journal.entries(), &layout, &reset::look(&layout).context("looking at this host")?);
    for step in plan.steps {
        if matches!(step, Step::RemoveJournal(_)) && !failed.is_empty() {
            break;
        }
        if let Err(error) = reset::apply(&step) {
            failed.push(format!("{step:?}: {error}"));
        }
    }
    for path in plan.foreign {
        println!("left in place, for it is not pintle's: {}", path.display());
    }
    if failed.is_empty() {
        println!("every trace of pintle is removed");
        return Ok(());
    }
    bail!("some traces remain; pintle reset{} tries again:\n  {}", args.roots.flags(), failed.join("\n  "))
}

/// How long the kernel may take to let go of the cgroups of pods that were ended.
const CGROUPS: Duration = Duration::from_secs(5);

/// Ends what is left in the pods' cgroups, of pods whose runtime no longer knew them, and removes
/// them. What the kernel still holds then is told by the step that removes the rest.
async fn end_cgroups(clock: &SharedClock) -> Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("the mounts of this host")?;
    let cgroups = Cgroups::new(Hierarchies::parse(&mounts), "");
    let deadline = clock.now() + CGROUPS;
    while !cgroups.remove_all() && clock.now() < deadline {
        clock.sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
