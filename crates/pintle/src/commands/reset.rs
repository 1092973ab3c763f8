//! `pintle reset`: stops everything and removes every trace from the host.

use anyhow::{Context, Result, bail};
use clap::Args;
use host::journal::{Journal, Mutation};
use host::process::ProcessId;
use host::reset;
use stdx::SharedClock;

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
    down::run(Down { roots: args.roots.clone(), pods: true }, clock).await?;
    if ProcessId::load_alive(&layout.containerd_pid()).is_some() {
        bail!("the container runtime still runs");
    }
    let journal = Journal::open(&layout.journal()).context("the journal of host changes")?;
    let mut failed = Vec::new();
    for entry in journal.entries() {
        if let Mutation::Kubeconfig { path, context } = entry {
            if let Err(error) = user::forget(path, context) {
                failed.push(format!("{}: {error}", path.display()));
            }
        }
    }
    let mounts = reset::mounts().context("the mounts of this host")?;
    for step in reset::plan(journal.entries(), &mounts) {
        if let Err(error) = reset::apply(&step) {
            failed.push(format!("{step:?}: {error}"));
        }
    }
    if failed.is_empty() {
        println!("every trace of pintle is removed");
        return Ok(());
    }
    bail!("some traces remain:\n  {}", failed.join("\n  "))
}
