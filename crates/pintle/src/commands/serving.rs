//! What a component that runs alone serves of itself, and where.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use client::Client;
use client::component::{Component, Making};
use client::delegated::{Delegate, Times};
use pki::{Authority, Request};
use serde_json::Value;
use stdx::SharedClock;
use stdx::metrics::Registry;
use stdx::shutdown::Stage;
use transport::SharedHandler;
use transport::debug::Debug;
use transport::serve::{Limits, listen, serve, serve_plain};
use transport::tls::{self, Identity};

use crate::VERSION;
use crate::logging::Profiling;

/// Where a component serves, with TLS.
#[derive(Args, Clone, Debug)]
pub struct Secure {
    /// The address to listen on.
    #[arg(long, default_value = "0.0.0.0", value_name = "IP")]
    bind_address: IpAddr,
    /// The port to listen on, instead of the component's usual one; 0 serves nothing.
    #[arg(long, value_name = "PORT")]
    secure_port: Option<u16>,
    #[command(flatten)]
    pub profiling: Profiling,
}

/// What a component shows to whom it is allowed.
pub struct Shown {
    pub registry: Registry,
    /// What `/configz` tells.
    pub config: Value,
    pub debug: Debug,
    /// More pages of metrics, by their paths.
    pub pages: Vec<(&'static str, Make)>,
}

/// Makes a page when it is asked for.
pub type Make = Box<dyn Fn() -> Making + Send + Sync>;

/// What is being answered when a component stops may take so long.
pub const DRAIN: Duration = Duration::from_secs(2);

/// The registry of a component: what every one shows is in it.
pub fn registry() -> Registry {
    let registry = Registry::default();
    registry.standard("kubernetes_build_info", VERSION);
    registry
}

impl Secure {
    /// Serves health, metrics and configuration until the stage stops, under a certificate that is made for
    /// it, as upstream's components do without one: nobody is asked to trust it.
    pub async fn serve(
        &self,
        (name, port): (&str, u16),
        shown: Shown,
        client: &Client,
        clock: &SharedClock,
        stage: &Stage,
    ) -> Result<()> {
        let port = self.secure_port.unwrap_or(port);
        if port == 0 {
            return Ok(());
        }
        let authority = Authority::generate(&format!("{name}-ca"), clock.wall())?;
        let request = Request::server(name, ["localhost", "127.0.0.1", name]);
        let issued = authority.issue(&request, clock.wall())?;
        let identity = Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes())?;
        let tls = tls::server(clock, identity)?;
        let delegate = Delegate::new(client.clone(), Vec::new(), Times::default(), clock.clone());
        let component = Component::new(shown.registry, shown.config, shown.debug, Some(delegate));
        let with = |component: Component, (path, make)| component.with_page(path, make);
        let handler = Arc::new(shown.pages.into_iter().fold(component, with));
        let address = SocketAddr::new(self.bind_address, port);
        let listener = listen(address).await.with_context(|| format!("cannot serve on {address}"))?;
        let (clock, own) = (clock.clone(), stage.clone());
        stage.spawn(async move {
            if let Err(error) = serve(listener, tls, handler, Limits::default(), clock, &own).await {
                tracing::error!(%address, %error, "health and metrics are no longer served");
            }
        });
        Ok(())
    }
}

/// Serves health and metrics in plain text until the stage stops, to whoever reaches that address: this host.
pub async fn plain(address: SocketAddr, shown: Shown, clock: &SharedClock, stage: &Stage) -> Result<()> {
    let component = Component::new(shown.registry, shown.config, shown.debug, None);
    open(address, Arc::new(component), clock, stage).await
}

/// Serves in plain text until the stage stops, to everybody.
pub async fn open(address: SocketAddr, handler: SharedHandler, clock: &SharedClock, stage: &Stage) -> Result<()> {
    let listener = listen(address).await.with_context(|| format!("cannot serve on {address}"))?;
    let (clock, own) = (clock.clone(), stage.clone());
    stage.spawn(async move {
        if let Err(error) = serve_plain(listener, handler, Limits::default(), clock, &own).await {
            tracing::error!(%address, %error, "health and metrics are no longer served");
        }
    });
    Ok(())
}
