//! `pintle kube-controller-manager`: the controllers alone.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use ipnet::IpNet;
use serde_json::json;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};

use crate::commands::serving::{self, Secure, Shown};
use crate::commands::standalone::{LeaderElection, Standalone};
use crate::logging::FromFile;

/// Run the controllers alone, as a client of any API server.
#[derive(Args, Debug)]
pub struct KubeControllerManager {
    #[command(flatten)]
    standalone: Standalone,
    #[command(flatten)]
    election: LeaderElection,
    #[command(flatten)]
    secure: Secure,
    /// The bundle published as kube-root-ca.crt in every namespace.
    #[arg(long, value_name = "FILE")]
    root_ca_file: Option<PathBuf>,
    /// Where nodes get their pod ranges from.
    #[arg(long, default_value = "10.244.0.0/16", value_name = "CIDR", value_delimiter = ',')]
    cluster_cidr: Vec<IpNet>,
    /// Which controllers run: `*` for all, `name` for one, `-name` for not this one.
    #[arg(long, default_value = "*", value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true)]
    controllers: Vec<String>,
}

/// The names that do not run, of all there are.
fn disabled(list: &[String]) -> Result<std::collections::BTreeSet<String>> {
    let all: Vec<&str> = controllers::names().collect();
    for name in list.iter().map(|n| n.trim_start_matches('-')).filter(|n| *n != "*") {
        if !all.contains(&name) {
            bail!("no such controller: {name} (there are {})", all.join(", "));
        }
    }
    let has = |name: &str| list.iter().any(|n| n == name);
    let runs = |name: &str| has(name) || (has("*") && !has(&format!("-{name}")));
    Ok(all.into_iter().filter(|n| !runs(n)).map(str::to_owned).collect())
}

/// Runs the command.
pub async fn run(args: KubeControllerManager, clock: SharedClock) -> Result<()> {
    let started = args.standalone.logging.start(FromFile::default(), &clock);
    let registry = serving::registry();
    let client = args.standalone.counted("kube-controller-manager", &registry, &clock)?;
    let root_ca_pem = match &args.root_ca_file {
        Some(path) => std::fs::read_to_string(path).with_context(|| path.display().to_string())?,
        None => String::from_utf8(args.standalone.connection()?.ca_pem).context("the kubeconfig's authority")?,
    };
    let options = controllers::Options {
        registry: registry.clone(),
        disabled: disabled(&args.controllers)?,
        root_ca_pem,
        cluster_cidrs: args.cluster_cidr.clone(),
        ..controllers::Options::default()
    };
    let bare = args.standalone.connection()?.anonymous().dial(&clock)?;
    let component = client.clone();
    let identities = Arc::new(controllers::TokenIdentities { component, bare, clock: clock.clone() });
    let run = |stage: Stage| {
        controllers::run(identities, clock.clone(), Rng::from_os(), options, &stage);
        async move { stage.stopped().await }
    };
    let config = json!({"kubecontrollermanager.config.k8s.io": {"Generic": {
        "LeaderElection": {"LeaderElect": args.election.leader_elect}, "Controllers": args.controllers}}});
    let around = Stage::new();
    let elected = registry.clone();
    let shown = Shown { registry, config, debug: args.secure.profiling.debug(&started), pages: Vec::new() };
    args.secure.serve(("kube-controller-manager", 10257), shown, &client, &clock, &around).await?;
    let ended = args.election.run(&client, ("kube-controller-manager", &elected), &clock, run).await;
    around.finish(&clock, serving::DRAIN).await;
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_what_runs() {
        let list = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(disabled(&list(&["*"])).expect("valid").is_empty());
        let one = disabled(&list(&["*", "-deployment-controller"])).expect("valid");
        assert_eq!(one.into_iter().collect::<Vec<_>>(), ["deployment-controller"]);
        let all = controllers::names().count();
        assert_eq!(disabled(&list(&["deployment-controller"])).expect("valid").len(), all - 1);
        assert!(disabled(&list(&["nonsense"])).is_err());
    }
}
