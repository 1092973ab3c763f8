//! A cluster in one process: start in order, say what is done, stop in order.
//!
//! ```text
//!  start: preflight → keys → runtime ─┐
//!                     store → API server → controllers, scheduler → kubelet, proxy → ready
//!  stop:  components → API server → store
//! ```
//!
//! The node's components run on threads of their own, so that no list or patch, however large,
//! delays a probe or a Lease.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use apiserver::authn::request_header::Headers;
use apiserver::authn::service_account;
use apiserver::bootstrap::authentication;
use apiserver::{ApiServer, aggregation};
use client::Client;
use host::containerd::{self, Started};
use host::journal::{Journal, Mutation};
use host::layout::Layout;
use host::process::ProcessId;
use host::{cni, preflight, reset, supervisor, sysctl};
use kinds::kind::ClusterOptions;
use net::conntrack::Conntrack;
use net::iptables::Tools;
use net::nft::{Kernel, Nft};
use rustls::{ClientConfig, ServerConfig};
use stdx::metrics::Registry;
use stdx::shutdown::Stage;
use stdx::trace::Sampler;
use stdx::{Rng, SharedClock};
use storage::Store;
use tokio::runtime::{Builder, Handle, Runtime};
use transport::debug::Debug;
use transport::near::{self, Near};
use transport::trust::Trust;

use crate::VERSION;
use crate::cluster::identities::{self, Identities};
use crate::cluster::kubeconfigs::Kubeconfigs;
use crate::cluster::pod_upkeep::Attachments;
use crate::cluster::preflight::{KUBELET_PORT, check, path};
use crate::cluster::{address, families, listening, next, node_ready, pod_network, pod_upkeep, snapshots};
use crate::commands::up::{Component, IMAGES_STAY, READY, Up};
use crate::commands::{certificates, serving};
use crate::logging::{self, FromFile};
use crate::progress::Progress;
use crate::signals::Signals;

/// Where load balancers ask whether this node is theirs: where they look for upstream's proxy.
const PROXY_HEALTH: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 10_256);
/// How long each stage of a stop may take.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// How long the cluster may take to be ready before the user is told what it waits for.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// A cluster that runs.
pub struct Cluster {
    args: Up,
    layout: Layout,
    clock: SharedClock,
    /// When the start began.
    started: jiff::Timestamp,
    rng: Rng,
    server: Arc<ApiServer>,
    store: Arc<storage::Embedded>,
    /// What is below `/debug` of every server.
    debug: Debug,
    /// Ends first: everything that is a client.
    components: Stage,
    /// Ends last: the API server.
    serving: Stage,
}

/// How long a thread for blocking work waits for more of it.
const IDLE_THREAD: Duration = Duration::from_secs(1);

impl Cluster {
    /// Starts the cluster, waits for SIGTERM or SIGINT, stops it.
    pub fn run_to_end(args: Up, clock: SharedClock) -> Result<()> {
        let traces = args.tracing.read("pintle")?;
        let started = args.logging.start(FromFile { tracing: traces, ..FromFile::default() }, &clock);
        // Each thread that has blocking work keeps half a megabyte of memory to itself until it ends.
        let threads = |name: &str| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(2).thread_name(name).thread_keep_alive(IDLE_THREAD).enable_all().build()
        };
        let control: Runtime = threads("pintle")?;
        // Whoever started this process may name it already: who wants to stop it is heard from now on.
        let mut signals = control.block_on(async { Signals::listen() })?;
        check(&args, &clock)?;
        let node: Runtime = threads("pintle-node")?;
        let handle = node.handle().clone();
        let result = control.block_on(async move {
            let mut progress = Progress::new(clock.clone());
            let _pid = prepare_folders(&args.roots.layout())?;
            let cluster = tokio::select! {
                cluster = Self::start(args, clock, &handle, &mut progress, started) => cluster?,
                // What was acknowledged is durable, and what was begun is done again by the next start.
                () = signals.told() => {
                    tracing::info!("told to stop while starting; pods keep running");
                    return Ok(());
                }
            };
            let started = tokio::select! {
                started = cluster.announce(&mut progress) => started,
                () = signals.told() => {
                    cluster.stop().await;
                    return Ok(());
                }
            };
            if started.is_ok() {
                signals.told().await;
            }
            cluster.stop().await;
            started
        });
        node.shutdown_timeout(STOP_LIMIT);
        result
    }

    async fn start(
        args: Up,
        clock: SharedClock,
        node: &Handle,
        progress: &mut Progress,
        mut said: logging::Started,
    ) -> Result<Self> {
        let (layout, started) = (args.roots.layout(), clock.wall());
        let mut journal = prepare_host(&layout, &args)?;
        let node_ips = families::node_addresses(&args.node_ip, &args.cluster_cidr, address::outward_of);
        let node_ip = *node_ips.first().context("an address of this node")?;
        let node_name = args.hostname_override.clone().unwrap_or_else(address::host_name);
        let identities = Identities::open(&layout.pki(), &clock)?;
        progress.done("keys and certificates");

        let runtime_endpoint = match &args.container_runtime_endpoint {
            Some(endpoint) => endpoint.clone(),
            None => format!("unix://{}", layout.containerd_socket().display()),
        };
        let runtime = async {
            if args.has(Component::Kubelet) && args.container_runtime_endpoint.is_none() {
                start_runtime(&layout, &args, &clock).await.map(Some)
            } else {
                Ok(None)
            }
        };
        let rng = Rng::from_os();
        let serving = Stage::new();
        let debug = args.profiling.debug(&said);
        let shown = (debug.clone(), said.sampler);
        // Streams go to this process' own kubelet without a network between.
        let (door, nearby) = near::pair();
        let nearby = args.has(Component::Kubelet).then_some(nearby);
        let api = start_api_server(&args, &layout, &identities, (&node_ips, nearby), (&clock, &rng), shown, &serving);
        let (runtime, (server, store)) = tokio::try_join!(runtime, api)?;
        match runtime {
            Some(Started::New) => progress.done("container runtime (containerd of our own)"),
            Some(Started::Adopted) => progress.done("container runtime (adopted, pods untouched)"),
            None => {}
        }
        progress.done(&format!("API server on {}", args.server_url()));

        let components = Stage::new();
        // What the others do while they end is told, too.
        said.export(&server.metrics.registry, &serving);
        let cluster = Self { args, layout, clock, started, rng, server, store, debug, components, serving };
        cluster.keep_kubeconfigs(&identities, &node_name)?;
        cluster.start_controllers(&identities, &node_name);
        cluster.start_scheduler();
        cluster.keep_snapshots();
        if runtime.is_some() {
            cluster.keep_runtime(node);
        }
        // Before any pod may begin: where nobody is asked there are no policies.
        if cluster.args.runs_policy() {
            cluster.start_policy(node, &node_name, &mut journal)?;
        } else {
            forget_policies(&cluster.layout, &journal, &cluster.clock).await;
        }
        if cluster.args.has(Component::Kubelet) {
            cluster.start_kubelet(&identities, node, (&node_name, door), &node_ips, &runtime_endpoint)?;
        }
        if cluster.args.has(Component::Proxy) {
            cluster.start_proxy(node, &node_name, &mut journal)?;
        }
        if cluster.args.has(Component::Dns) {
            cluster.start_dns(node, &node_name, node_ip)?;
        }
        if cluster.args.has(Component::Network) && cluster.args.has(Component::Kubelet) {
            cluster.start_network(node, &node_name, &mut journal)?;
        }
        Ok(cluster)
    }

    /// A client under an identity of its own, in process.
    fn client(&self, user: kinds::User, agent: &str) -> Client {
        Client::new(self.server.handler(user), &format!("{agent}/{VERSION}"))
    }

    /// Writes the kubeconfigs, and again whenever their certificates are renewed.
    fn keep_kubeconfigs(&self, identities: &Identities, node_name: &str) -> Result<()> {
        let (url, merge) = (self.args.server_url(), !self.args.no_user_kubeconfig);
        let files = Arc::new(Kubeconfigs::of(identities, &self.layout, node_name, &url, merge)?);
        files.write()?;
        self.components.spawn(files.keep(self.clock.clone(), self.components.clone()));
        Ok(())
    }

    fn start_controllers(&self, identities: &Identities, node_name: &str) {
        if !self.args.has(Component::Controllers) {
            return;
        }
        let options = controllers::Options {
            root_ca_pem: identities.cluster.certificate().to_owned(),
            cluster_cidrs: self.args.cluster_cidr.clone(),
            listening: Some(controllers::Listening { node: node_name.to_owned(), look: Arc::new(listening::look) }),
            registry: self.server.metrics.registry.clone(),
            ..controllers::Options::default()
        };
        let clients = Arc::new(InProcess(self.server.clone()));
        controllers::run(clients, self.clock.clone(), self.rng.clone(), options, &self.components);
        let (running, stage) = (self.server.components.begin("controller-manager"), self.components.clone());
        self.components.spawn(async move {
            stage.stopped().await;
            drop(running);
        });
    }

    fn start_scheduler(&self) {
        if !self.args.has(Component::Scheduler) {
            return;
        }
        let client = self.client(identities::component("system:kube-scheduler"), "kube-scheduler");
        let (clock, rng, stage) = (self.clock.clone(), self.rng.clone(), self.components.clone());
        let registry = self.server.metrics.registry.clone();
        let options = scheduler::Options { registry, ..scheduler::Options::new(&address::host_name()) };
        let running = self.server.components.begin("scheduler");
        self.components.spawn(async move {
            scheduler::run(client, clock, rng, options, &stage).await;
            drop(running);
        });
    }

    fn keep_snapshots(&self) {
        let (store, folder) = (self.store.clone(), self.layout.snapshots());
        let (clock, stage) = (self.clock.clone(), self.components.clone());
        self.components.spawn(async move { snapshots::keep(store, &folder, &clock, &stage).await });
    }

    /// Starts our runtime again whenever it ends while the cluster runs.
    fn keep_runtime(&self, node: &Handle) {
        let (layout, clock, stage) = (self.layout.clone(), self.clock.clone(), self.components.clone());
        let task = node.spawn(async move { supervisor::keep(&layout, &clock, &stage).await });
        self.components.spawn(async move { ended("container runtime supervisor", task.await) });
    }

    fn start_kubelet(
        &self,
        identities: &Identities,
        node: &Handle,
        (name, door): (&str, near::Door),
        addresses: &[IpAddr],
        endpoint: &str,
    ) -> Result<()> {
        let client = self.client(identities::node(name), "kubelet");
        // There is no file of the kubelet's own: flags say everything.
        let file = kubelet::config::FileConfig::default();
        let (serving, keeper) = identities.kubelet_server(name, addresses)?;
        let registry = Registry::default();
        let ends = move || keeper.identity().facts().ok().map(|facts| facts.not_after);
        // As a client it has none: it is in this process.
        certificates::show(&registry, &self.clock, || None, ends);
        let options = kubelet::Options {
            node_name: name.to_owned(),
            node_ips: addresses.iter().map(ToString::to_string).collect(),
            root_dir: self.layout.kubelet(),
            log_dir: self.layout.pod_logs(),
            runtime_endpoint: endpoint.to_owned(),
            address: Some(SocketAddr::new(anywhere(addresses), KUBELET_PORT)),
            serving: Some(serving),
            registry,
            door: Some(Arc::new(door)),
            client_ca: Some(identities.client_trust()?),
            cluster_dns: self.cluster_dns(),
            cluster_domain: self.args.cluster_domain.clone(),
            thresholds: self.args.evictions.thresholds(self.args.eviction_hard, &file)?,
            static_pods: kubelet::static_pods::Options {
                path: Some(self.args.manifests(&self.layout)),
                ..kubelet::static_pods::Options::default()
            },
            version: VERSION.to_owned(),
            debug: self.debug.clone(),
            images: self
                .args
                .images
                .options(&file, kubelet::ImageOptions { collection: IMAGES_STAY, ..Default::default() })?,
            ..kubelet::Options::default()
        };
        let (clock, rng, stage) = (self.clock.clone(), self.rng.clone(), self.components.clone());
        let task = node.spawn(async move {
            if let Err(error) = kubelet::run(Some(client), clock, rng, options, &stage).await {
                tracing::error!(%error, "the kubelet cannot run");
            }
        });
        self.components.spawn(async move { ended("kubelet", task.await) });
        Ok(())
    }

    fn start_proxy(&self, node: &Handle, name: &str, journal: &mut Journal) -> Result<()> {
        for table in [proxy::nftables::TABLE, net::egress::TABLE] {
            for family in ["ip", "ip6"] {
                journal.record(Mutation::NftTable { family: family.into(), name: table.into() })?;
            }
        }
        // What leads to no link of ours may well lead to a pod of another plugin.
        let own_network = self.args.container_runtime_endpoint.is_none() && cni::is_used(&self.layout.cni_config());
        let client = self.client(identities::component("system:kube-proxy"), "kube-proxy");
        let health = proxy::Health::new(self.clock.clone(), &self.server.metrics.registry);
        let options = proxy::Options {
            node_name: name.to_owned(),
            service_cidrs: self.args.service_cluster_ip_range.clone(),
            cluster_cidrs: self.args.cluster_cidr.clone(),
            mode: proxy::Mode::Nftables,
            pod_interfaces: own_network.then(|| "veth*".into()),
            detect_local: proxy::DetectLocal::ClusterCidr,
            node_ports: proxy::NodePorts::All,
            masquerade_all: false,
            masquerade_bit: 14,
            masquerade_egress: true,
            takes_over: false,
            kernel: Arc::new(Nft::new(self.clock.clone())),
            tables: Arc::new(Tools::new(self.clock.clone())),
            connections: Arc::new(Conntrack),
            addresses: net::rtnl::address::own_addresses,
            health: health.clone(),
            registry: self.server.metrics.registry.clone(),
        };
        let (clock, rng, stage) = (self.clock.clone(), self.rng.clone(), self.components.clone());
        let (own_clock, own_stage) = (clock.clone(), stage.clone());
        node.spawn(async move {
            // Load balancers are few: what they ask for stops no cluster.
            if let Err(error) = serving::open(PROXY_HEALTH, Arc::new(health), &own_clock, &own_stage).await {
                tracing::warn!(%error, "load balancers cannot ask how the service proxy is");
            }
        });
        let task = node.spawn(async move { proxy::run(client, clock, rng, options, &stage).await });
        self.components.spawn(async move { ended("kube-proxy", task.await) });
        Ok(())
    }

    fn start_dns(&self, node: &Handle, name: &str, address: IpAddr) -> Result<()> {
        let ranges = &self.args.service_cluster_ip_range;
        let cluster_ip = ranges.first().and_then(|range| dns::cluster_ip(*range));
        let cluster_ip = cluster_ip
            .with_context(|| format!("{ranges:?} has no tenth address for the DNS (--disable=dns leaves it out)"))?;
        let mut options = self.args.names.options(name, address, &self.args.cluster_domain)?;
        options.cluster_ip = Some(cluster_ip);
        options.pod_ranges = self.args.cluster_cidr.clone();
        options.service_ranges = ranges.clone();
        // Its own page is for everybody in the cluster; on the API server's it stands beside the others'.
        let own = options.registry.clone();
        self.server.metrics.registry.collect(move |page| own.render(page));
        let client = self.client(identities::component("system:pintle:dns"), "dns");
        let (clock, rng, stage) = (self.clock.clone(), self.rng.clone(), self.components.clone());
        let task = node.spawn(async move { dns::run(client, clock, rng, options, &stage).await });
        self.components.spawn(async move { ended("dns", task.await) });
        Ok(())
    }

    /// The address of the cluster's DNS, for pods; none when it is left out.
    fn cluster_dns(&self) -> Vec<String> {
        self.dns_address().iter().map(ToString::to_string).collect()
    }

    /// The same; a process of this program answers there.
    fn dns_address(&self) -> Option<IpAddr> {
        let address = self.args.service_cluster_ip_range.first().and_then(|range| dns::cluster_ip(*range));
        address.filter(|_| self.args.has(Component::Dns))
    }

    fn start_policy(&self, node: &Handle, name: &str, journal: &mut Journal) -> Result<()> {
        for family in ["ip", "ip6"] {
            journal.record(Mutation::NftTable { family: family.into(), name: policy::TABLE.into() })?;
        }
        let client = self.client(identities::component("system:network-policy"), "network-policy");
        let gate = {
            let _here = node.enter();
            let path = self.layout.policy_socket();
            policy::gate::bind(&path).with_context(|| format!("where the network plugin asks, {}", path.display()))?
        };
        let options = policy::Options {
            node_name: name.to_owned(),
            kernel: Arc::new(Nft::new(self.clock.clone())),
            registry: self.server.metrics.registry.clone(),
            gate: Some(gate),
            records: {
                let layout = self.layout.clone();
                Arc::new(move || pod_network::records(&layout))
            },
            sandboxes: pod_network::sandboxes(&self.layout),
            unseen: Arc::new(policy::bridge::unseen),
            names: self.dns_address().into_iter().collect(),
        };
        let (clock, rng, stage) = (self.clock.clone(), self.rng.clone(), self.components.clone());
        let task = node.spawn(async move { policy::run(client, clock, rng, options, &stage).await });
        self.components.spawn(async move { ended("network-policy", task.await) });
        Ok(())
    }

    /// Routes to the pods of nodes that join this cluster.
    fn start_network(&self, node: &Handle, name: &str, journal: &mut Journal) -> Result<()> {
        pod_network::record_routes(journal)?;
        // Who may read Services and Nodes may read Nodes.
        let client = self.client(identities::component("system:kube-proxy"), "network");
        let (layout, gate) = (self.layout.clone(), self.args.runs_policy());
        let own: network::Tell = Arc::new(move |own| pod_network::told(&layout, &layout.cni_config(), gate, own));
        let options = network::Options {
            node_name: name.to_owned(),
            mode: self.args.network_mode.told(),
            ranges: self.args.cluster_cidr.clone(),
            // Another runtime has a network of its own.
            own: self.args.container_runtime_endpoint.is_none().then_some(own),
            registry: self.server.metrics.registry.clone(),
        };
        if self.args.container_runtime_endpoint.is_none() {
            let (pods, clock) = (attachments(&self.layout, &self.args), self.clock.clone());
            let stage = self.components.clone();
            let task = node.spawn(async move { pod_upkeep::keep(pods, &clock, &stage).await });
            self.components.spawn(async move { ended("upkeep of the pod network", task.await) });
        }
        let (clock, rng, stage) = (self.clock.clone(), self.rng.clone(), self.components.clone());
        let task = node.spawn(async move { network::run(client, clock, rng, options, &stage).await });
        self.components.spawn(async move { ended("network", task.await) });
        Ok(())
    }

    /// Waits until the node is Ready and says what to type next.
    async fn announce(&self, progress: &mut Progress) -> Result<()> {
        if self.args.has(Component::Kubelet) {
            self.node_ready().await?;
            progress.done("node Ready");
        }
        progress.line(&format!("\nThe cluster is ready after {} ms. Next:", progress.total()));
        for line in next::commands(&self.args, &self.layout) {
            progress.line(&format!("  {line}"));
        }
        if let Some(path) = &self.args.ready_file {
            std::fs::write(path, "ready\n").with_context(|| path.display().to_string())?;
        }
        progress.line(READY);
        Ok(())
    }

    /// Ends when the Node of this cluster is Ready.
    async fn node_ready(&self) -> Result<()> {
        let admin = kinds::User {
            name: "kubernetes-admin".into(),
            groups: vec!["system:masters".into()],
            ..Default::default()
        };
        node_ready::wait(self.client(admin, "pintle"), self.clock.clone(), self.rng.clone(), self.started, READY_LIMIT)
            .await
    }

    /// Components, then the API server, then the store.
    async fn stop(self) {
        tracing::info!("stopping");
        if !self.components.finish(&self.clock, STOP_LIMIT).await {
            tracing::warn!("some components did not end in time");
        }
        if !self.serving.finish(&self.clock, STOP_LIMIT).await {
            tracing::warn!("some requests did not end in time");
        }
        self.store.close().await;
        tracing::info!("stopped; pods keep running");
    }
}

/// Clients of the server in this process, each under the identity it asks for.
struct InProcess(Arc<ApiServer>);

impl controllers::Identities for InProcess {
    fn component(&self) -> Client {
        let user = identities::component("system:kube-controller-manager");
        Client::new(self.0.handler(user), &format!("kube-controller-manager/{VERSION}"))
    }

    fn service_account(&self, name: &str) -> Client {
        let user = identities::service_account(name);
        Client::new(self.0.handler(user), &format!("kube-controller-manager/{VERSION}"))
    }
}

/// What an earlier start left would go on isolating pods that nobody knows any more.
async fn forget_policies(layout: &Layout, journal: &Journal, clock: &SharedClock) {
    // Where nobody listens the network plugin asks nobody.
    let gone = std::fs::remove_file(layout.policy_socket());
    if let Err(error) = gone.or_else(|e| if e.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(e) }) {
        tracing::warn!(%error, "pods will wait for network policies that nobody keeps");
    }
    let ours = |entry: &Mutation| matches!(entry, Mutation::NftTable { name, .. } if name == policy::TABLE);
    if journal.entries().iter().any(ours)
        && let Err(error) = Nft::new(clock.clone()).apply(&policy::cleanup()).await
    {
        tracing::warn!(%error, "the rules of network policies cannot be removed");
    }
}

/// A component's task that panicked is logged; the others go on.
fn ended(name: &str, result: Result<(), tokio::task::JoinError>) {
    if let Err(error) = result {
        tracing::error!(component = name, %error, "the component ended");
    }
}

/// The file that names this process while it runs. One that a killed process left names nobody.
struct PidFile(PathBuf);

impl Drop for PidFile {
    fn drop(&mut self) {
        // It may be gone with its folder.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes the folders and says who runs, before anything is started: `pintle down` finds a cluster
/// that is still starting.
fn prepare_folders(layout: &Layout) -> Result<PidFile> {
    let mut journal = Journal::open(&layout.journal()).context("the journal of host changes")?;
    for folder in [&layout.state, &layout.config, &layout.run] {
        journal.make_folder(folder).with_context(|| folder.display().to_string())?;
    }
    ProcessId::own()?.save(&layout.pid()).context("the pid file")?;
    Ok(PidFile(layout.pid()))
}

/// Cgroups, the pod network and kernel settings, each in the journal before it is changed.
fn prepare_host(layout: &Layout, args: &Up) -> Result<Journal> {
    let mut journal = Journal::open(&layout.journal()).context("the journal of host changes")?;
    if args.has(Component::Kubelet) {
        if args.pod_manifest_path.is_none() {
            std::fs::create_dir_all(layout.manifests()).context("the folder of static pods")?;
        }
        let path = PathBuf::from("/kubepods");
        let shared = reset::below_hierarchies(&path)?.iter().any(|p| p.exists());
        journal.record(if shared { Mutation::SharedCgroup { path } } else { Mutation::Cgroup { path } })?;
        if args.container_runtime_endpoint.is_none() {
            let first = families::first_ranges(&args.cluster_cidr);
            pod_network::prepare(layout, &first, &args.cluster_cidr, args.runs_policy(), &mut journal)?;
        }
    }
    if args.has(Component::Proxy) {
        for (name, value) in sysctl::NEEDED {
            sysctl::set(&mut journal, name, value).with_context(|| format!("sysctl {name}"))?;
        }
    }
    Ok(journal)
}

/// Where the kubelet listens: at every address of the host.
fn anywhere(addresses: &[IpAddr]) -> IpAddr {
    match addresses.first() {
        // Where there is IPv4, too, it is heard there as well.
        Some(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    }
}

async fn start_runtime(layout: &Layout, args: &Up, clock: &SharedClock) -> Result<Started> {
    let runtime = preflight::oci_runtime(&path()).context("neither crun nor runc is installed")?;
    let settings = containerd::Settings {
        cni_plugins: layout.cni_plugins(),
        restrict_oom_score: containerd::lacks_resource_capability(),
        runtime: runtime.to_owned(),
    };
    tracing::debug!(?settings, "container runtime");
    let mut started = containerd::ensure(layout, &settings, clock).await?;
    // One that was killed in the middle of starting pods may end once more while it takes stock of them, when it
    // has accepted connections already.
    for left in (0..IMPORTS).rev() {
        match containerd::import_pause(layout).await {
            Ok(()) => break,
            Err(error) if left == 0 => {
                return Err(error).with_context(|| format!("its log is {}", layout.containerd_log().display()));
            }
            Err(error) => tracing::warn!(%error, "the container runtime takes no image; looking whether it runs"),
        }
        if containerd::ensure(layout, &settings, clock).await? == Started::New {
            started = Started::New;
        }
    }
    pod_network::collect(&attachments(layout, args), clock).await;
    Ok(started)
}

/// How often a runtime is given the sandbox image before its start has failed.
const IMPORTS: u32 = 3;

/// The pods' network of our own runtime.
fn attachments(layout: &Layout, args: &Up) -> Attachments {
    Attachments {
        state: layout.cni_state(),
        gate: args.runs_policy().then(|| layout.policy_socket()),
        runtime: format!("unix://{}", layout.containerd_socket().display()),
    }
}

async fn start_api_server(
    args: &Up,
    layout: &Layout,
    identities: &Identities,
    (node_ips, kubelet_nearby): (&[IpAddr], Option<Near>),
    (clock, rng): (&SharedClock, &Rng),
    (debug, tracing): (Debug, Option<Sampler>),
    stage: &Stage,
) -> Result<(Arc<ApiServer>, Arc<storage::Embedded>)> {
    let ranges = &args.service_cluster_ip_range;
    let service = ranges.first().and_then(|range| range.hosts().next()).context("an empty Service range")?;
    let node_ip = *node_ips.first().context("an address of this node")?;
    let named = [node_ips, &[args.bind_address]].concat();
    let api = Api {
        store: layout.store(),
        listen: SocketAddr::new(families::listens_at(args.bind_address, node_ips), args.secure_port),
        advertised: SocketAddr::new(node_ip, args.secure_port),
        service_cidrs: ranges.clone(),
        node_ports: (30000, 32767),
        client_ca: identities.client_trust()?,
        client_ca_pem: identities.cluster.certificate().to_owned(),
        front_proxy_ca_pem: identities.front_proxy.certificate().to_owned(),
        front_proxies: None,
        read_authorities: None,
        priority_and_fairness: true,
        debug,
        tracing,
        // Pods of this machine are reached without a detour, also before the rules of their Services are there.
        aggregation: aggregation::Options { identity: Some(identities.front_proxy_client()?), to_endpoints: true },
        service_accounts: service_account::Options::standard(&args.cluster_domain, identities.tokens.clone()),
        kubelet_client: identities.kubelet_client()?,
        kubelet_nearby,
        tls: identities.api_server(&args.cluster_domain, service, named)?,
    };
    start_api(api, clock, rng, stage).await
}

/// What an API server is started from, alone or with the rest.
pub struct Api {
    /// The folder of the embedded store.
    pub store: PathBuf,
    pub listen: SocketAddr,
    /// Where members of the cluster reach it.
    pub advertised: SocketAddr,
    pub service_cidrs: Vec<ipnet::IpNet>,
    pub node_ports: (u16, u16),
    pub client_ca: Trust,
    pub client_ca_pem: String,
    pub front_proxy_ca_pem: String,
    /// Who may sign certificates of front proxies, and in which headers these say who asks; `None`: in none.
    pub front_proxies: Option<(Trust, Headers)>,
    /// Reads these two again while the server runs.
    pub read_authorities: Option<authentication::Read>,
    /// Keeps flow schemas and priority levels.
    pub priority_and_fairness: bool,
    /// What is below `/debug`.
    pub debug: Debug,
    /// Which requests begin traces, where any are told of.
    pub tracing: Option<Sampler>,
    pub aggregation: aggregation::Options,
    pub service_accounts: service_account::Options,
    pub kubelet_client: Arc<ClientConfig>,
    /// The kubelet of this process, where there is one.
    pub kubelet_nearby: Option<Near>,
    pub tls: ServerConfig,
}

/// Opens the store, starts the server and its listener. The store is to be closed last. A store
/// that cannot write any more ends the process: nothing may be acknowledged after that.
pub async fn start_api(
    api: Api,
    clock: &SharedClock,
    rng: &Rng,
    stage: &Stage,
) -> Result<(Arc<ApiServer>, Arc<storage::Embedded>)> {
    let options = storage::Options::new(&api.store, clock.clone(), rng.clone());
    let store = Arc::new(storage::Embedded::open(options).context("opening the store")?);
    let (front_proxy_ca, front_proxy_headers) = match api.front_proxies {
        Some((trust, headers)) => (Some(trust), headers),
        None => (None, Headers::standard()),
    };
    let config = apiserver::Config {
        front_proxy_ca,
        front_proxy_headers,
        priority_and_fairness: api.priority_and_fairness,
        debug: api.debug,
        tracing: api.tracing,
        options: ClusterOptions { service_cidrs: api.service_cidrs, node_ports: api.node_ports },
        client_ca: Some(api.client_ca),
        client_ca_pem: api.client_ca_pem,
        front_proxy_ca_pem: api.front_proxy_ca_pem,
        read_authorities: api.read_authorities,
        aggregation: api.aggregation,
        kubelet_client: Some(api.kubelet_client),
        kubelet_nearby: api.kubelet_nearby,
        version: VERSION.to_owned(),
        address: api.advertised.to_string(),
        ..apiserver::Config::new(store.clone(), clock.clone(), rng.clone(), api.service_accounts)
    };
    let listener = transport::serve::listen(api.listen).await.with_context(|| api.listen.to_string())?;
    let server = ApiServer::start(config, stage).await?;
    let (serving, ended) = (server.clone(), stage.clone());
    stage.spawn(async move {
        if let Err(error) = serving.serve(listener, api.tls, &ended).await {
            tracing::error!(%error, "the API server stopped serving");
        }
    });
    Ok((server, store))
}
