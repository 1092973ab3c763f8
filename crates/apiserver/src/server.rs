//! The server itself: what it is made of, how it starts, and its two doors, in process and network.

use std::sync::Arc;

use kinds::User;
use kinds::kind::ClusterOptions;
use machinery::status;
use stdx::SharedClock;
use stdx::shutdown::Stage;
use tokio::net::TcpListener;
use transport::{Handler, SharedHandler};

use crate::audit::causes::Journal;
use crate::authn::in_process::InProcess;
use crate::chain;
use crate::registry::catalogue::Catalogue;

/// What an API server is made of.
pub struct Config {
    /// The durable store.
    pub store: Arc<dyn storage::Store>,
    /// For kinds that die with the process.
    pub memory: Arc<dyn storage::Store>,
    pub clock: SharedClock,
    pub rng: stdx::Rng,
    pub options: ClusterOptions,
    /// Who may sign client certificates; none: certificates are not looked at.
    pub client_ca: Option<Arc<rustls::RootCertStore>>,
    /// How to dial kubelets (`pods/log`); none: they cannot be reached.
    pub kubelet_client: Option<Arc<rustls::ClientConfig>>,
    /// `v1.37.1+pintle.0.1.0`.
    pub version: String,
}

/// The API server.
pub struct ApiServer {
    pub clock: SharedClock,
    pub rng: stdx::Rng,
    pub options: ClusterOptions,
    pub catalogue: Catalogue,
    pub journal: Journal,
}

impl ApiServer {
    /// Starts the parts; returns when every cache holds the store's state.
    pub async fn start(config: Config, _stage: &Stage) -> status::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            clock: config.clock,
            rng: config.rng,
            options: config.options,
            catalogue: Catalogue::default(),
            journal: Journal::default(),
        }))
    }

    /// The door for components of this process: the same chain, with the identity given.
    pub fn handler(self: &Arc<Self>, user: User) -> SharedHandler {
        Arc::new(Door { server: self.clone(), user: Some(user) })
    }

    /// The door to the network. Returns when the stage has stopped and requests have ended.
    pub async fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        tls: rustls::ServerConfig,
        stage: &Stage,
    ) -> std::io::Result<()> {
        let handler: SharedHandler = Arc::new(Door { server: self.clone(), user: None });
        transport::serve::serve(listener, tls, handler, transport::serve::Limits::default(), self.clock.clone(), stage)
            .await
    }
}

/// One way in: with an identity (in process) or without (network).
struct Door {
    server: Arc<ApiServer>,
    user: Option<User>,
}

impl Handler for Door {
    fn call(&self, mut request: transport::Request) -> transport::Responding {
        request.extensions_mut().remove::<InProcess>();
        if let Some(user) = &self.user {
            request.extensions_mut().insert(InProcess(user.clone()));
        }
        let server = self.server.clone();
        Box::pin(async move { Ok(chain::handle(server, request).await) })
    }
}
