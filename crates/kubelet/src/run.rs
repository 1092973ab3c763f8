//! Wiring: from a client and options to a running kubelet.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1::{self as core, Pod};
use client::delegated::{Delegate, Times};
use client::events::{Recorder, Source};
use client::waits::Publisher;
use client::{Client, Informer, Key, Resource};
use parking_lot::{Mutex, RwLock};
use stdx::backoff::Policy;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};
use tokio::sync::{Notify, watch};

use crate::admit::{Kernel, Place};
use crate::cgroup::{Cgroups, Driver, Hierarchies};
use crate::cluster::{ApiCluster, Cluster, NoCluster, OnChange};
use crate::container::dns::{ClusterDns, MISSING_CLUSTER_DNS};
use crate::context::{Context, Settings};
use crate::evict::Evictor;
use crate::image::collector::{Collector, Relief};
use crate::image::provider::Providers;
use crate::image::puller::Puller;
use crate::image::records::Records;
use crate::metrics::{self, Metrics};
use crate::node::pressure::Gauge;
use crate::node::{self, keeper};
use crate::options::Options;
use crate::pods::Pods;
use crate::prepare::{self, Prepared};
use crate::program::{HostPrograms, Programs};
use crate::relist::{self, Relist};
use crate::report::{ApiReport, LogReport, Report};
use crate::resize::Allocations;
use crate::runtime::cri::CriRuntime;
use crate::runtime::{Features, Health, Runtime};
use crate::server::{Server, auth::Gate, node::About};
use crate::shown::ShownPod;
use crate::static_pods::Sources;
use crate::static_pods::mirror::Mirrors;
use crate::stats::Stats;
use crate::sysctl;
use crate::upkeep;
use crate::users::Blocks;
use crate::volume::mounts::KernelMounts;
use crate::volume::setup::Layout;
use crate::volume::storage::{ApiStorage, NoStorage, Storage};

/// Why a kubelet cannot run at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime's endpoint is none.
    #[error(transparent)]
    Runtime(#[from] crate::runtime::Error),
    /// The plugins that know credentials cannot be used.
    #[error("credential providers: {0}")]
    Providers(String),
    /// Pods may not be allowed a kernel setting.
    #[error("{0}")]
    Sysctl(String),
    /// The node cannot be registered.
    #[error(transparent)]
    Register(#[from] keeper::RegisterError),
    /// It cannot serve.
    #[error("cannot serve on {address}: {error}")]
    Serve { address: SocketAddr, error: std::io::Error },
    /// The authorities for client certificates are unusable.
    #[error("client certificates cannot be judged: {0}")]
    ClientCa(#[from] rustls::server::VerifierBuilderError),
}

const RETRY: Policy = Policy { initial: Duration::from_millis(50), max: Duration::from_secs(2) };

/// Runs a kubelet until the stage stops. Pods run on. Without a client it runs static pods only.
pub async fn run(
    client: Option<Client>,
    clock: SharedClock,
    rng: Rng,
    options: Options,
    stage: &Stage,
) -> Result<(), Error> {
    let runtime: Arc<dyn Runtime> =
        Arc::new(CriRuntime::counted(&options.runtime_endpoint, &clock, metrics::operations(&options.registry))?);
    run_with(runtime, client, clock, rng, options, stage).await
}

/// The same with a runtime of the caller's.
pub async fn run_with(
    runtime: Arc<dyn Runtime>,
    client: Option<Client>,
    clock: SharedClock,
    rng: Rng,
    options: Options,
    stage: &Stage,
) -> Result<(), Error> {
    let stopped = stage.stopped();
    let work = Box::pin(serve(runtime, client, clock, rng, options, stage));
    tokio::select! {
        result = work => result,
        () = stopped => Ok(()),
    }
}

async fn serve(
    runtime: Arc<dyn Runtime>,
    client: Option<Client>,
    clock: SharedClock,
    rng: Rng,
    mut options: Options,
    stage: &Stage,
) -> Result<(), Error> {
    let Prepared { root, identity, places, machine } =
        prepare::until_prepared(client.as_ref(), &clock, &rng, &options).await;
    options.root_dir = root;
    let sysctls = sysctl::Allowed::new(&machine.kernel, &options.allowed_unsafe_sysctls).map_err(Error::Sysctl)?;
    let disks = places.clone();
    let settings = keeper::Settings {
        ips: options.node_ips.clone(),
        port: options.address.map_or(10250, |a| a.port()),
        max_pods: options.max_pods,
        version: options.version.clone(),
        labels: options.node_labels.clone(),
        taints: options.taints.clone(),
        root: options.root_dir.clone(),
        places,
        reserved: Default::default(),
        thresholds: options.thresholds,
    };
    // What this machine is, before any API server has said what the node is.
    let gauge = Arc::new(Gauge::new(options.thresholds));
    let pressure = gauge.observe(&settings.places.levels(), clock.now()).pressure;
    let alone = Place::of(&keeper::unregistered(&identity, &settings, &machine, pressure, &clock));
    let node_name = identity.node_name.clone();

    let (known, own) = (Arc::new(OnceSlot::default()), Arc::new(OnceSlot::default()));
    let server = client.map(|client| {
        let on_change: OnChange = {
            let known: Arc<OnceSlot> = known.clone();
            Arc::new(move |uid| {
                if let Some(pods) = known.get() {
                    pods.objects_changed(uid);
                }
            })
        };
        let told = on_change.clone();
        let cluster = Arc::new(ApiCluster::start(client.clone(), clock.clone(), rng.clone(), stage, told));
        let storage = Arc::new(ApiStorage::new(client.clone(), clock.clone(), rng.clone(), stage, on_change));
        (client, cluster, storage)
    });
    let report: Arc<dyn Report> = match &server {
        Some((client, ..)) => Arc::new(ApiReport {
            recorder: Recorder::start(
                client.clone(),
                Source::Core { component: "kubelet".into(), host: node_name.clone() },
                clock.clone(),
                rng.clone(),
                stage,
            ),
            waits: waits(client, &node_name, &own, &clock, stage),
            node: node::reference(&node_name),
            said: Default::default(),
        }),
        None => Arc::new(LogReport),
    };
    let programs: Arc<dyn Programs> = Arc::new(HostPrograms { clock: clock.clone() });
    let providers = match (&options.images.providers, &server) {
        (Some((config, folder)), Some((_, cluster, _))) => {
            let loaded = Providers::load(config, folder, programs.clone(), cluster.clone(), clock.clone());
            Some(loaded.map_err(Error::Providers)?)
        }
        (Some(_), None) => return Err(Error::Providers("they need an API server".into())),
        (None, _) => None,
    };
    let (cluster, storage): (Arc<dyn Cluster>, Arc<dyn Storage>) = match &server {
        Some((_, cluster, storage)) => (cluster.clone(), storage.clone()),
        None => (Arc::new(NoCluster), Arc::new(NoStorage)),
    };
    let listed = Arc::new(Mutex::new(relist::Health::default()));
    let features = Arc::new(RwLock::new(Features::default()));
    let keeper = server.as_ref().map(|(client, ..)| {
        keeper::Keeper::new(keeper::Parts {
            identity,
            settings,
            machine: machine.clone(),
            client: client.clone(),
            runtime: runtime.clone(),
            report: report.clone(),
            listed: listed.clone(),
            features: features.clone(),
            gauge: gauge.clone(),
            clock: clock.clone(),
            rng: rng.clone(),
        })
    });

    // The node registers while the runtime is asked what it holds; static pods wait for the latter only.
    let on_node = async {
        let (health, adopted, records) = first_look(&runtime, &options, &clock).await;
        features.write().clone_from(&health.features);
        let driver = cgroup_driver(&*runtime, options.cgroup_driver).await;
        let ctx = Arc::new(Context {
            clock: clock.clone(),
            rng: rng.clone(),
            runtime: runtime.clone(),
            cluster,
            report: report.clone(),
            storage,
            programs,
            layout: Layout::new(&options.root_dir, Arc::new(KernelMounts)),
            cgroups: options.cgroups_per_qos.then(|| {
                Cgroups::new(hierarchies(), &options.cgroup_root).with_driver(driver).with_pids(options.pod_pids_limit)
            }),
            puller: Puller::new(runtime.clone(), report.clone(), clock.clone())
                .with(options.images.parallel, records, providers)
                .at_rate(options.images.rate),
            settings: Settings {
                node_ips: options.node_ips.clone(),
                log_root: options.log_dir.clone(),
                seccomp_root: options.root_dir.join("seccomp"),
                cluster_dns: ClusterDns {
                    servers: options.cluster_dns.clone(),
                    domain: options.cluster_domain.clone(),
                },
                resolv_conf: options.resolv_conf.clone(),
                hosts: "/etc/hosts".into(),
                node_memory: i128::from(machine.memory),
                kernel: Kernel { sysctls, apparmor: machine.apparmor },
                longest_back_off: options.max_container_restart_period,
                log_limits: options.log_limits,
                runtime_name: health.name,
            },
            allocatable: Default::default(),
            node: Default::default(),
            owners: Default::default(),
            features: features.clone(),
            allocations: Allocations::open(&options.root_dir.join("pods")),
            gauge,
            users: Blocks::open(&options.root_dir.join("pods")),
            metrics: Metrics::new(options.registry.clone()),
        });
        let pods = Pods::new(ctx.clone(), stage.clone(), adopted);
        ctx.metrics.follow(&pods, &node_name);
        ctx.metrics.registry.standard(crate::metrics::BUILD, &options.version);
        ctx.allocatable.write().clone_from(&alone.allocatable);
        *ctx.node.write() = (alone.name.clone(), alone.labels.clone());
        pods.set_place(alone);
        known.set(&pods);
        own.set(&pods);
        let (static_options, at) = (options.static_pods.clone(), clock.clone());
        let sources = Sources::new(static_options, &node_name, pods.clone(), report.clone(), at);
        let (all_shown, shown) = watch::channel(false);
        let relist = Relist::new(ctx.clone(), pods.clone(), shown, listed.clone());
        let read = sources.ready();
        let (following, listing) = (stage.clone(), stage.clone());
        stage.spawn(async move { sources.run(following).await });
        stage.spawn(async move { relist.run(listing).await });
        // Each by itself: what hangs, as servers that have exports do, keeps nothing else waiting.
        stage.run(upkeep::rotate(pods.clone(), clock.clone()));
        stage.run(upkeep::limit_storage(pods.clone(), clock.clone()));
        stage.run(upkeep::sweep(pods.clone(), clock.clone(), all_shown.subscribe()));
        let (relief, asked) = Relief::new();
        let (policy, max_grace) = (options.images.collection, options.thresholds.max_pod_grace);
        let collector = Collector::new(ctx.clone(), pods.clone(), policy, disks.clone());
        stage.run(collector.run(all_shown.subscribe(), asked));
        let stats = Stats::new(&node_name, "/", ctx.cgroups.clone(), clock.clone());
        let evictor = Evictor::new(ctx.clone(), pods.clone(), stats, disks, max_grace, relief);
        stage.run(evictor.run(all_shown.subscribe()));
        Local { ctx, pods, read, all_shown }
    };
    let Some((client, cluster, _)) = server else {
        let mut node = on_node.await;
        if options.address.is_some() {
            tracing::warn!("nothing is served: without an API server nobody can say who may ask");
        }
        node.claimed(None).await;
        return std::future::pending().await;
    };
    let Some(mut keeper) = keeper else { return Ok(()) };
    let (registered, mut node) = tokio::join!(keeper.register(), on_node);
    let registered = registered?;
    let (ctx, pods) = (node.ctx.clone(), node.pods.clone());
    pods.set_node_uid(registered.metadata.uid.as_deref().unwrap_or_default());
    pods.set_place(Place::of(&registered));
    if options.cluster_dns.is_empty() {
        report.node_event(client::events::Type::Warning, "MissingClusterDNS", MISSING_CLUSTER_DNS.into());
    }
    follow_node(&client, &node_name, &ctx, &pods, &clock, &rng, stage);
    let mirrors = Mirrors::new(pods.clone(), client.clone(), report.clone(), clock.clone(), node_name.clone());
    {
        let (mirroring, keeping) = (stage.clone(), stage.clone());
        stage.spawn(async move { mirrors.run(mirroring).await });
        stage.spawn(Box::pin(keeper.run(registered, keeping)));
    }
    // Services are variables of every container: none of the API server's pods starts before they are known.
    cluster.synced().await;
    let (api_shown, api) = watch::channel(false);
    let about = About {
        ctx: ctx.clone(),
        stats: Stats::new(&node_name, "/", ctx.cgroups.clone(), clock.clone()),
        config: crate::config::show(&options),
        log_folder: options.node_logs.clone(),
        debug: options.debug.clone(),
        listed,
    };
    let served = listen(&client, &options, &node_name, &pods, about, &clock, stage);
    let followed = async {
        follow_pods(&client, &node_name, &pods, api_shown, &clock, &rng, stage).await;
        Ok(())
    };
    let kept = async {
        node.claimed(Some(api)).await;
        Ok(())
    };
    tokio::try_join!(served, followed, kept).map(drop)
}

/// What runs on the node whether there is an API server or not.
struct Local {
    ctx: Arc<Context>,
    pods: Arc<Pods>,
    /// All manifests of static pods were read.
    read: watch::Receiver<bool>,
    all_shown: watch::Sender<bool>,
}

impl Local {
    /// Ends, once everybody who may want pods has said which, those that nobody wants.
    async fn claimed(&mut self, api: Option<watch::Receiver<bool>>) {
        for receiver in std::iter::once(&mut self.read).chain(api.clone().as_mut()) {
            if receiver.wait_for(|known| *known).await.is_err() {
                return;
            }
        }
        for (uid, summary) in self.pods.unclaimed() {
            self.pods.orphan(&uid, &summary);
        }
        // Nobody listening is no failure: the relist may have ended first.
        self.all_shown.send_replace(true);
    }
}

/// Set once, when what it names exists.
#[derive(Default)]
struct OnceSlot {
    pods: std::sync::OnceLock<std::sync::Weak<Pods>>,
}

impl OnceSlot {
    fn set(&self, pods: &Arc<Pods>) {
        // Only ever set here, once.
        let _ = self.pods.set(Arc::downgrade(pods));
    }

    fn get(&self) -> Option<Arc<Pods>> {
        self.pods.get()?.upgrade()
    }
}

/// A kubelet's Waits are those of its node and of its node's pods; until it knows its pods it claims
/// none of theirs.
fn waits(client: &Client, node: &str, own: &Arc<OnceSlot>, clock: &SharedClock, stage: &Stage) -> Publisher {
    let (own, node) = (own.clone(), node.to_owned());
    let is_own = move |wait: &serde_json::Value| {
        let text = |pointer: &str| wait.pointer(pointer).and_then(serde_json::Value::as_str).unwrap_or_default();
        let is_node = text("/object/kind") == "Node" && text("/object/name") == node;
        is_node || own.get().is_some_and(|pods| pods.knows(text("/object/uid")))
    };
    Publisher::start(client, "kubelet", is_own, clock.clone(), stage)
}

/// Asks the runtime who it is and what it holds, until it answers.
async fn first_look(
    runtime: &Arc<dyn Runtime>,
    options: &Options,
    clock: &SharedClock,
) -> (Health, BTreeMap<String, crate::runtime::Summary>, Records) {
    let mut failures = 0;
    loop {
        let asked = async { tokio::try_join!(runtime.health(), runtime.list(), runtime.images()) };
        match asked.await {
            Ok((health, list, images)) => {
                let policy = options.images.verification.clone();
                let records = Records::open(&options.root_dir, policy.clone(), &images, clock.wall());
                let records = records.unwrap_or_else(|error| {
                    tracing::error!(%error, "who fetched which image is not known; it is kept in memory only");
                    Records::in_memory(policy)
                });
                return (health, list, records);
            }
            Err(error) => {
                failures += 1;
                tracing::info!(%error, "waiting for the container runtime");
                clock.sleep(RETRY.delay(failures)).await;
            }
        }
    }
}

/// The runtime's own word on how cgroups are named, else what the kubelet was told.
async fn cgroup_driver(runtime: &dyn Runtime, told: Driver) -> Driver {
    match runtime.cgroup_driver().await {
        Ok(Some(driver)) => driver,
        Ok(None) => told,
        Err(error) => {
            tracing::warn!(%error, fallback = ?told, "the runtime does not say how it names cgroups");
            told
        }
    }
}

fn hierarchies() -> Hierarchies {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    Hierarchies::parse(&text)
}

/// Follows the node's own object: labels and taints decide which pods it may run.
fn follow_node(
    client: &Client,
    name: &str,
    ctx: &Arc<Context>,
    pods: &Arc<Pods>,
    clock: &SharedClock,
    rng: &Rng,
    stage: &Stage,
) {
    let node = Informer::<core::Node>::builder(client.clone(), Resource::of::<core::Node>())
        .fields(format!("metadata.name={name}"))
        .without_json()
        .start(clock.clone(), rng.clone(), stage);
    let (ctx, pods) = (ctx.clone(), pods.clone());
    node.subscribe(move |change| {
        let mut node = change.object().view.clone();
        node.metadata.name.get_or_insert_with(|| change.object().meta.name.clone());
        // A Node that is made anew is another one, and its mirror pods are to be its own.
        pods.set_node_uid(&change.object().meta.uid);
        let place = Place::of(&node);
        if !place.allocatable.is_empty() {
            ctx.allocatable.write().clone_from(&place.allocatable);
        }
        *ctx.node.write() = (place.name.clone(), place.labels.clone());
        pods.set_place(place);
    });
}

/// Follows the pods bound to this node.
async fn follow_pods(
    client: &Client,
    name: &str,
    pods: &Arc<Pods>,
    shown: watch::Sender<bool>,
    clock: &SharedClock,
    rng: &Rng,
    stage: &Stage,
) {
    let informer = Informer::<ShownPod>::builder(client.clone(), Resource::of::<Pod>())
        .fields(format!("spec.nodeName={name}"))
        .without_json()
        .start(clock.clone(), rng.clone(), stage);
    // Names whose pod changed; the newest state is looked up when its turn comes.
    let changed: Arc<Changed> = Arc::default();
    let told = changed.clone();
    informer.subscribe(move |change| {
        let meta = &change.object().meta;
        told.0.lock().insert((meta.namespace.clone(), meta.name.clone()));
        told.1.notify_one();
    });
    let synced = informer.synced();
    let mut synced = std::pin::pin!(synced);
    let mut all = false;
    loop {
        tokio::select! {
            () = changed.1.notified() => {}
            () = &mut synced, if !all => all = true,
        }
        let names = std::mem::take(&mut *changed.0.lock());
        for (namespace, name) in names {
            let cached = informer.get(&Key::new(&namespace, &name));
            pods.shown(&namespace, &name, cached.map(|c| c.view.0.clone()));
        }
        if all && !*shown.borrow() {
            // Whoever listened may have ended first.
            shown.send_replace(true);
        }
    }
}

/// Namespaces and names, and a bell.
type Changed = (Mutex<std::collections::BTreeSet<(String, String)>>, Notify);

async fn listen(
    client: &Client,
    options: &Options,
    node: &str,
    pods: &Arc<Pods>,
    about: About,
    clock: &SharedClock,
    stage: &Stage,
) -> Result<(), Error> {
    let (Some(address), Some(tls)) = (options.address, options.serving.clone()) else {
        return std::future::pending().await;
    };
    let failed = |error| Error::Serve { address, error };
    let listener = transport::serve::listen(address).await.map_err(failed)?;
    let delegate = Delegate::new(client.clone(), Vec::new(), Times::default(), clock.clone());
    let gate = Gate::new(delegate, options.client_ca.clone(), node, clock.clone());
    let server = Server {
        pods: pods.clone(),
        gate,
        clock: clock.clone(),
        log_root: options.log_dir.clone(),
        stage: stage.clone(),
        runtime: about.ctx.runtime.clone(),
        about: Arc::new(about),
        stream_idle: options.stream_idle,
    };
    let handler: transport::SharedHandler = Arc::new(server);
    let open = options.door.as_ref().map(|door| door.open(node, handler.clone()));
    let limits = transport::serve::Limits::default();
    let mut serving = std::pin::pin!(transport::serve::serve(listener, tls, handler, limits, clock.clone(), stage));
    tokio::select! {
        served = &mut serving => return served.map_err(failed),
        () = stage.stopped() => {}
    }
    // Nobody comes in any more, by neither way; who is in is served to the end.
    drop(open);
    serving.await.map_err(failed)
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
