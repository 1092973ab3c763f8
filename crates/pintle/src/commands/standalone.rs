//! What every component that runs alone shares: a kubeconfig, a verbosity, a stop on a signal.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use client::events::{Recorder, Reference, Source, Type};
use client::kubeconfig::Connection;
use client::lease::{Election, Times};
use client::{Client, Key};
use stdx::metrics::Registry;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};

use crate::VERSION;
use crate::cluster::address;
use crate::logging::Logging;
use crate::signals::Signals;

/// How a component reaches the API server.
#[derive(Args, Clone, Debug)]
pub struct Standalone {
    /// The kubeconfig with the API server's address and this component's identity.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    #[command(flatten)]
    pub logging: Logging,
}

/// Runs `component` until SIGTERM or SIGINT, then until it has ended (at most 20 s).
pub async fn run_to_end<F, Fut>(clock: &SharedClock, component: F) -> Result<()>
where
    F: FnOnce(Stage) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    let mut signals = Signals::listen()?;
    let stage = Stage::new();
    stage.spawn(component(stage.clone()));
    signals.told().await;
    stage.finish(clock, Duration::from_secs(20)).await;
    Ok(())
}

impl Standalone {
    /// The connection the kubeconfig describes.
    pub fn connection(&self) -> Result<Connection> {
        Connection::load(&self.kubeconfig, None).context("the kubeconfig")
    }

    /// A client of the API server as the kubeconfig says.
    pub fn client(&self, name: &str, clock: &SharedClock) -> Result<Client> {
        Ok(Client::https(&self.connection()?, &format!("{name}/{VERSION}"), clock)?)
    }

    /// The same, whose requests are counted there.
    pub fn counted(&self, name: &str, registry: &Registry, clock: &SharedClock) -> Result<Client> {
        let host = self.connection()?.target()?.address;
        Ok(self.client(name, clock)?.counted(registry, &host, clock))
    }

    /// Runs `component` until SIGTERM or SIGINT, then until it has ended (at most 20 s).
    pub async fn run<F, Fut>(&self, clock: &SharedClock, component: F) -> Result<()>
    where
        F: FnOnce(Stage) -> Fut,
        Fut: Future<Output = ()> + Send + 'static,
    {
        run_to_end(clock, component).await
    }
}

/// Whether several processes of one component take turns.
#[derive(Args, Clone, Debug)]
pub struct LeaderElection {
    /// Do the work only while leading among all processes of this component.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub leader_elect: bool,
}

impl LeaderElection {
    /// Runs `component` while leading (at once, when no leader is asked for), until a signal.
    /// Fails when the leadership is lost: whoever started the process starts it again.
    /// Whether it leads is shown in `registry`.
    pub async fn run<F, Fut>(
        &self,
        client: &Client,
        (name, registry): (&str, &Registry),
        clock: &SharedClock,
        component: F,
    ) -> Result<()>
    where
        F: FnOnce(Stage) -> Fut,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let leads = registry.gauge(
            "leader_election_master_status",
            "Whether the reporting system is master of the relevant lease: 0 indicates backup, 1 indicates master.",
            &["name"],
        );
        let mut signals = Signals::listen()?;
        let stage = Stage::new();
        let around = Stage::new();
        let (host, rng) = (address::host_name(), Rng::from_os());
        let identity = format!("{host}_{}", rng.uuid());
        let key = Key::new("kube-system", name);
        let mut election = Election::new(client, &key, identity.clone(), Times::default(), clock.clone(), rng.clone());
        let source = Source::Core { component: name.to_owned(), host };
        let recorder = Recorder::start(client.clone(), source, clock.clone(), rng, &around);
        let about = Reference {
            api_version: "coordination.k8s.io/v1".into(),
            kind: "Lease".into(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            ..Reference::default()
        };
        if self.leader_elect {
            leads.set(&[name], 0.0);
            tokio::select! {
                () = election.acquire() => {}
                () = signals.told() => return Ok(()),
            }
            recorder.event(&about, Type::Normal, "LeaderElection", format!("{identity} became leader"));
            leads.set(&[name], 1.0);
        }
        stage.spawn(component(stage.clone()));
        let lost = tokio::select! {
            () = election.keep(), if self.leader_elect => true,
            () = signals.told() => false,
        };
        if lost {
            leads.set(&[name], 0.0);
        }
        stage.finish(clock, Duration::from_secs(20)).await;
        if self.leader_elect && !lost {
            election.release().await?;
        }
        around.finish(clock, Duration::from_secs(1)).await;
        if lost {
            bail!("leadership of {name} was lost");
        }
        Ok(())
    }
}
