//! `pintle snapshot save|inspect|restore`: the whole state of a cluster in one checked file.
//!
//! Saving reads the store's own files, which only root can: it needs no API server, works while one
//! runs or does not, and opens no way to all Secrets at once over the network. Restoring replaces
//! the store of a cluster that does not run; its pods go on meanwhile.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use host::process::ProcessId;
use stdx::Rng;
use storage::snapshot::{self, Summary};

use crate::roots::Roots;

/// Save the state of the cluster, look at a saved one, go back to it.
#[derive(Args, Debug)]
pub struct Snapshot {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    roots: Roots,
    /// The folder of the store, when it is not below --state-dir (`pintle kube-apiserver --data-dir`).
    #[arg(long, value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Save the state to a new file; the cluster may run.
    Save {
        /// Where to; it must not be there yet.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Read all of a snapshot and say what is in it.
    Inspect {
        /// The snapshot.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Make a snapshot the state of the cluster, which must be stopped. The state before is kept.
    Restore {
        /// The snapshot.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

fn told(summary: &Summary) -> String {
    let Summary { revision, keys, bytes } = summary;
    format!("{keys} objects at revision {revision}, {bytes} bytes")
}

/// Runs the command.
pub fn run(args: &Snapshot) -> Result<()> {
    let store = args.data_dir.clone().unwrap_or_else(|| args.roots.layout().store());
    match &args.action {
        Action::Save { file } => save(&store, file),
        Action::Inspect { file } => {
            let summary = snapshot::inspect(file).with_context(|| file.display().to_string())?;
            println!("{}: {}", file.display(), told(&summary));
            Ok(())
        }
        Action::Restore { file } => restore(args, &store, file),
    }
}

fn save(store: &Path, file: &Path) -> Result<()> {
    if file.exists() {
        bail!("{} exists already; a snapshot is written to a new file", file.display());
    }
    let summary = snapshot::save(store, file, &Rng::from_os()).context("saving the store")?;
    println!("saved {} to {}", told(&summary), file.display());
    Ok(())
}

fn restore(args: &Snapshot, store: &Path, file: &Path) -> Result<()> {
    let flags = args.roots.flags();
    // Of a store elsewhere its lock alone tells.
    if args.data_dir.is_none() {
        if let Some(running) = ProcessId::load_alive(&args.roots.layout().pid()) {
            bail!("the cluster runs (pid {}); stop it first with pintle down{flags}", running.pid);
        }
    }
    let (summary, kept) = snapshot::restore(file, store, &Rng::from_os())
        .with_context(|| format!("nothing was restored from {}", file.display()))?;
    println!("restored {} from {}", told(&summary), file.display());
    if let Some(kept) = kept {
        println!("the state before is kept in {}", kept.display());
    }
    Ok(())
}
