//! The server itself: what it is made of, how it starts, and its two doors, in process and network.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kinds::kind::ClusterOptions;
use kinds::{SharedKind, User};
use machinery::status;
use stdx::SharedClock;
use stdx::shutdown::Stage;
use stdx::trace::Sampler;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::WaitForCancellationFutureOwned;
use transport::debug::Debug;
use transport::near::Near;
use transport::once::Dialer;
use transport::{Handler, SharedHandler};

use crate::admission::Plugin;
use crate::aggregation::{self, Aggregation};
use crate::audit::causes::Journal;
use crate::authn::Authenticator;
use crate::authn::in_process::{InProcess, InProcessAuthenticator};
use crate::authn::request_header::{Headers, RequestHeader};
use crate::authn::service_account;
use crate::authn::x509::X509;
use crate::authz::Authorizer;
use crate::bootstrap::authentication::{self, Authorities};
use crate::bootstrap::{self, aggregation as roles, flow_control};
use crate::cacher::{Cachers, Limits, Stores};
use crate::chain;
use crate::components::Components;
use crate::crd;
use crate::discovery::Discovery;
use crate::fairness::Fairness;
use crate::health::{Check, Health};
use crate::metrics::Metrics;
use crate::metrics::storage::Storage;
use crate::openapi::OpenApi;
use crate::quota::{self, Quotas};
use crate::registry::catalogue::Catalogue;
use crate::registry::claims::repair::Repair;
use crate::registry::claims::{Claims, wake};
use crate::resource_metrics::ResourceMetrics;
use crate::security::Security;

/// What an API server is made of.
pub struct Config {
    /// The durable store.
    pub store: Arc<dyn storage::Store>,
    /// For kinds that die with the process.
    pub memory: Arc<dyn storage::Store>,
    pub clock: SharedClock,
    pub rng: stdx::Rng,
    pub options: ClusterOptions,
    /// Bounds of the watch cache.
    pub limits: Limits,
    /// Who may sign client certificates; none: certificates are not looked at.
    pub client_ca: Option<transport::trust::Trust>,
    /// Who may sign certificates of front proxies, which say in these headers who asks; none: headers say nothing.
    pub front_proxy_ca: Option<transport::trust::Trust>,
    pub front_proxy_headers: Headers,
    /// How ServiceAccount tokens are issued and checked.
    pub service_accounts: service_account::Options,
    /// How to dial kubelets (`pods/log`); none: they cannot be reached.
    pub kubelet_client: Option<Arc<rustls::ClientConfig>>,
    /// The kubelet of this process, where there is one: streams go to it without a network between.
    pub kubelet_nearby: Option<Near>,
    /// How kubelets, pods and Services are reached to pass requests on to them.
    pub dialer: Arc<dyn Dialer>,
    /// `v1.37.1+pintle.0.1.0`.
    pub version: String,
    /// Where clients outside reach the server: `10.0.0.1:6443`.
    pub address: String,
    /// Who signs client certificates and those of front proxies, PEM, as servers that extend the
    /// API read it; may be empty.
    pub client_ca_pem: String,
    pub front_proxy_ca_pem: String,
    /// Reads these two again while the server runs; none: they stay as they are.
    pub read_authorities: Option<authentication::Read>,
    /// How servers that answer for APIs of their own are reached.
    pub aggregation: aggregation::Options,
    /// Keeps flow schemas and priority levels; without it they are what others make of them.
    pub priority_and_fairness: bool,
    /// What is below `/debug`.
    pub debug: Debug,
    /// Which requests begin traces; none: traces are passed on, and told of nowhere.
    pub tracing: Option<Sampler>,
}

impl Config {
    /// What a server cannot do without; the rest is what a cluster has when nobody says anything, reached
    /// by nobody but this process. Kinds that die with it are kept in memory.
    pub fn new(
        store: Arc<dyn storage::Store>,
        clock: SharedClock,
        rng: stdx::Rng,
        service_accounts: service_account::Options,
    ) -> Self {
        Self {
            store,
            memory: Arc::new(storage::Memory::new(clock.clone())),
            clock,
            rng,
            options: ClusterOptions::default(),
            limits: Limits::default(),
            client_ca: None,
            front_proxy_ca: None,
            front_proxy_headers: Headers::standard(),
            service_accounts,
            kubelet_client: None,
            kubelet_nearby: None,
            dialer: Arc::new(transport::once::Tcp),
            version: "v1.37.1".to_owned(),
            address: "127.0.0.1:6443".to_owned(),
            client_ca_pem: String::new(),
            front_proxy_ca_pem: String::new(),
            read_authorities: None,
            aggregation: aggregation::Options::default(),
            priority_and_fairness: true,
            debug: Debug::none(),
            tracing: None,
        }
    }
}

/// The API server.
pub struct ApiServer {
    pub clock: SharedClock,
    pub rng: stdx::Rng,
    pub options: ClusterOptions,
    pub version: String,
    pub catalogue: Catalogue,
    pub cachers: Arc<Cachers>,
    pub security: Security,
    pub claims: Arc<Claims>,
    pub quotas: Quotas,
    pub journal: Journal,
    pub health: Health,
    pub fairness: Fairness,
    /// Those that run in this process beside the server.
    pub components: Components,
    pub discovery: Discovery,
    pub openapi: OpenApi,
    pub metrics: Metrics,
    pub aggregation: Aggregation,
    /// What nodes and pods use.
    pub resource_metrics: ResourceMetrics,
    /// Requests that panicked.
    pub panics: AtomicU64,
    pub debug: Debug,
    /// Which requests begin traces, where any are told of.
    pub tracing: Option<Sampler>,
    authenticators: Vec<Arc<dyn Authenticator>>,
    front_proxy_headers: Headers,
    kubelet_client: Option<Arc<rustls::ClientConfig>>,
    kubelet_nearby: Option<Near>,
    dialer: Arc<dyn Dialer>,
    stage: Stage,
}

impl ApiServer {
    /// Starts the parts; returns when every cache holds the store's state and what a cluster needs
    /// from the beginning is there.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn start(config: Config, stage: &Stage) -> status::Result<Arc<Self>> {
        let asked = Storage::new();
        let durable = asked.measure(config.store, &config.clock);
        let stores = Stores { durable, memory: config.memory };
        let cachers = Cachers::start(&stores, kinds::stored(), &config.clock, config.limits, stage).await?;
        let (clock, rng) = (config.clock.clone(), config.rng.clone());
        let claims = Claims::new(stores.durable.clone(), cachers.clone(), clock.clone(), rng.clone(), &config.options);
        let claims = Arc::new(claims);
        let security = Security::new(cachers.clone(), config.service_accounts, clock, rng);
        let metrics = Metrics::new(security.plugins.iter().map(|plugin| plugin.name()), asked);
        let mut authenticators: Vec<Arc<dyn Authenticator>> = vec![Arc::new(InProcessAuthenticator)];
        if let Some(trust) = config.front_proxy_ca {
            let headers = config.front_proxy_headers.clone();
            authenticators.push(Arc::new(RequestHeader::new(trust, headers, config.clock.clone())));
        }
        if let Some(trust) = config.client_ca {
            let x509 = X509::new(trust, config.clock.clone());
            x509.show(&metrics.registry);
            authenticators.push(Arc::new(x509));
        }
        authenticators.push(security.tokens.clone());
        let bootstrapped = Arc::new(AtomicBool::new(false));
        let built_in = || kinds::ALL.iter().copied().map(SharedKind::from);
        let openapi = OpenApi::new(built_in(), config.version.as_str(), config.clock.clone());
        let server = Arc::new(Self {
            clock: config.clock,
            rng: config.rng,
            options: config.options,
            version: config.version,
            catalogue: Catalogue::new(kinds::ALL, &cachers, &stores),
            cachers,
            security,
            claims,
            quotas: Quotas::default(),
            journal: Journal::default(),
            health: health(&bootstrapped, stage),
            fairness: Fairness::default(),
            components: Components::default(),
            metrics,
            aggregation: Aggregation::new(config.aggregation),
            resource_metrics: ResourceMetrics::default(),
            openapi,
            discovery: Discovery::new(built_in(), config.address.clone()),
            panics: AtomicU64::new(0),
            debug: config.debug,
            tracing: config.tracing,
            authenticators,
            front_proxy_headers: config.front_proxy_headers.clone(),
            kubelet_client: config.kubelet_client,
            kubelet_nearby: config.kubelet_nearby,
            dialer: config.dialer,
            stage: stage.clone(),
        });
        let wanted = bootstrap::Options {
            service_cidrs: server.options.service_cidrs.clone(),
            endpoint: config.address.parse().ok(),
            now: server.clock.wall(),
        };
        let own = server.handler(bootstrap::myself());
        bootstrap::run(&own, &server.security.objects, &wanted).await?;
        server.repair_claims(&own, stage);
        let authorities = Authorities { client_ca: config.client_ca_pem, front_proxy_ca: config.front_proxy_ca_pem };
        let headers = config.front_proxy_headers;
        let keeper = authentication::Keeper {
            handler: own.clone(),
            objects: server.security.objects.clone(),
            cachers: server.cachers.clone(),
            clock: server.clock.clone(),
            read: config.read_authorities.unwrap_or_else(|| Arc::new(move || Some(authorities.clone()))),
            headers,
        };
        keeper.settle().await?;
        stage.run(keeper.run());
        let keeper = flow_control::Keeper {
            handler: own,
            objects: server.security.objects.clone(),
            cachers: server.cachers.clone(),
            clock: server.clock.clone(),
        };
        if config.priority_and_fairness {
            stage.run(keeper.run());
        }
        let (door, rbac) = (server.handler(roles::user()), server.security.rbac.clone());
        roles::settle(&door, &rbac).await;
        stage.run(roles::run(door, rbac, server.cachers.clone(), server.clock.clone()));
        crd::start(&server).await?;
        aggregation::start(&server).await?;
        stage.spawn(quota::run(server.clone(), stage.clone()));
        bootstrapped.store(true, Ordering::Release);
        Ok(server)
    }

    /// Repairs claims from now on.
    fn repair_claims(&self, own: &SharedHandler, stage: &Stage) {
        let Some(kind) = kinds::find("", "v1", "services") else { return };
        let touched = Arc::new(Notify::new());
        let repair = Repair { claims: self.claims.clone(), kind, door: own.clone(), touched: touched.clone() };
        stage.spawn(repair.run(stage.clone()));
        stage.spawn(wake::run(self.cachers.clone(), touched, self.clock.clone(), stage.clone()));
    }

    /// The door for components of this process: the same chain, with the identity given.
    pub fn handler(self: &Arc<Self>, user: User) -> SharedHandler {
        Arc::new(Door { server: self.clone(), user: Some(user) })
    }

    /// The door to the network. Returns when the stage has stopped and requests have ended.
    ///
    /// # Errors
    /// As [`transport::serve::serve`].
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

    /// Those who say who asks, in order.
    pub fn authenticators(&self) -> &[Arc<dyn Authenticator>] {
        &self.authenticators
    }

    /// In which headers front proxies say who asks.
    pub fn front_proxy_headers(&self) -> &Headers {
        &self.front_proxy_headers
    }

    /// Says who may.
    pub fn authorizer(&self) -> &dyn Authorizer {
        &*self.security.authorizer
    }

    /// Those who may change or refuse a write, in order.
    pub fn plugins(&self) -> &[Arc<dyn Plugin>] {
        &self.security.plugins
    }

    /// How kubelets are dialled.
    pub fn kubelet_client(&self) -> Option<&rustls::ClientConfig> {
        self.kubelet_client.as_deref()
    }

    /// The kubelet of this process, where there is one.
    pub fn kubelet_nearby(&self) -> Option<&Near> {
        self.kubelet_nearby.as_ref()
    }

    /// How others are reached.
    pub fn dialer(&self) -> &dyn Dialer {
        &*self.dialer
    }

    /// What runs as long as the server does.
    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// True once the server is to stop.
    pub fn is_stopping(&self) -> bool {
        self.stage.is_stopped()
    }

    /// Ends when the server is to stop: watches and streams end then.
    pub fn stopped(&self) -> WaitForCancellationFutureOwned {
        self.stage.stopped()
    }
}

/// The checks, under upstream's names and in its order.
fn health(bootstrapped: &Arc<AtomicBool>, stage: &Stage) -> Health {
    let stopping = stage.clone();
    let checks = vec![
        Check::new("ping", || true),
        Check::new("log", || true),
        Check::new("etcd", || true),
        Check::new("etcd-readiness", || true).ready_only(),
        Check::new("informer-sync", || true).ready_only(),
        Check::done("poststarthook/start-system-namespaces-controller", bootstrapped),
        Check::done("poststarthook/start-service-ip-repair-controllers", bootstrapped),
        Check::done("poststarthook/rbac/bootstrap-roles", bootstrapped),
        Check::done("poststarthook/scheduling/bootstrap-system-priority-classes", bootstrapped),
        Check::done("poststarthook/start-kubernetes-service-cidr-controller", bootstrapped),
        Check::done("autoregister-completion", bootstrapped),
        Check::new("shutdown", move || !stopping.is_stopped()).ready_only(),
    ];
    Health::new(checks)
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
