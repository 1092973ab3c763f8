//! What every component that runs alone shares: a kubeconfig, a verbosity, a stop on a signal.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use client::Client;
use client::kubeconfig::Connection;
use stdx::SharedClock;
use stdx::shutdown::Stage;

use crate::{VERSION, logging};

/// How a component reaches the API server.
#[derive(Args, Clone, Debug)]
pub struct Standalone {
    /// The kubeconfig with the API server's address and this component's identity.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    /// Verbosity of the log.
    #[arg(short, default_value_t = 2, value_name = "LEVEL")]
    pub v: u8,
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

    /// Runs `component` until SIGTERM or SIGINT, then until it has ended (at most 20 s).
    pub async fn run<F, Fut>(&self, clock: &SharedClock, component: F) -> Result<()>
    where
        F: FnOnce(Stage) -> Fut,
        Fut: Future<Output = ()> + Send + 'static,
    {
        logging::start(self.v);
        let stage = Stage::new();
        stage.spawn(component(stage.clone()));
        wait_for_signal().await?;
        stage.finish(clock, Duration::from_secs(20)).await;
        Ok(())
    }
}

/// Ends on SIGTERM or SIGINT.
pub async fn wait_for_signal() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}
