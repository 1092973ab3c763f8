//! The whole: sockets, names, other servers, and what leads questions here.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use client::Client;
use parking_lot::RwLock;
use stdx::backoff::Policy;
use stdx::metrics::Registry;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};
use tokio::net::{TcpListener, UdpSocket};
use transport::serve::{Limits, serve_plain};

use crate::http::Status;
use crate::metrics::Metrics;
use crate::names::Names;
use crate::nodes::Nodes;
use crate::options::Options;
use crate::publish::{Own, Publisher};
use crate::ready::{Ailing, Ready, tend};
use crate::resolver::Resolver;
use crate::server::{self, Allow, Front};
use crate::upstream::{Forwarder, Source};
use crate::zone::{Settings, Zone};

/// Ports that are tried when the first is taken, before it is given up: each must be free for UDP and TCP.
const TRIES: usize = 16;
/// Bytes of questions that may wait while this process does not run: some thousands. What the system gives by
/// itself is filled by a few hundred, and who asked the next one waits five seconds.
const QUEUE: usize = 4 << 20;
/// How long to wait before it is tried again to listen where that failed.
const BIND: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(30) };
/// Connections for health and metrics at once.
const SCRAPES: usize = 64;

/// Where the DNS listens.
#[derive(Debug)]
struct Sockets {
    udp: UdpSocket,
    tcp: TcpListener,
    at: (SocketAddr, SocketAddr),
}

/// Listens on the port that is asked for, or where it is taken on another one: the slice says which.
async fn listen(address: IpAddr, mut wanted: u16) -> io::Result<Sockets> {
    let mut last = None;
    for _ in 0..TRIES {
        let both = async {
            let udp = UdpSocket::bind((address, wanted)).await?;
            let tcp = TcpListener::bind(udp.local_addr()?).await?;
            // Beyond the system's limit only for who administrates the network; up to it for everybody.
            if rustix::net::sockopt::set_socket_recv_buffer_size_force(&udp, QUEUE).is_err() {
                rustix::net::sockopt::set_socket_recv_buffer_size(&udp, QUEUE)?;
            }
            let at = (udp.local_addr()?, tcp.local_addr()?);
            Ok(Sockets { udp, tcp, at })
        };
        match both.await {
            Ok(sockets) => return Ok(sockets),
            Err(error) => last = Some(error),
        }
        wanted = 0;
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
}

/// What is between sockets and answers.
struct Inside {
    front: Arc<Front>,
    nodes: Nodes,
    ready: Arc<Ready>,
    /// What is published of where this process is reached.
    own: Arc<RwLock<Own>>,
    port: u16,
    metrics_port: Option<u16>,
    registry: Registry,
    clock: SharedClock,
}

/// Answers until the stage stops. Where nothing can be listened on it is tried again, and an address that the host
/// has lost is changed for that of its Node: until then nobody is led here.
pub async fn run(client: Client, clock: SharedClock, rng: Rng, options: Options, stage: &Stage) {
    let domain = options.domain.to_string();
    let metrics = Arc::new(Metrics::new(&options.registry, &domain));
    let settings = Settings {
        domain: options.domain.clone(),
        ttl: options.ttl,
        ranges: options.pod_ranges.iter().chain(&options.service_ranges).copied().collect(),
        servers: options.cluster_ip.into_iter().collect(),
    };
    // Serials grow, also over restarts.
    let serial = u32::try_from(clock.wall().as_second().rem_euclid(i64::from(u32::MAX))).unwrap_or(0);
    let zone = Arc::new(RwLock::new(Zone::new(settings, serial)));
    let (allow, ready) = (Arc::new(RwLock::new(Allow::of(&options.pod_ranges))), Arc::new(Ready::default()));
    let own = Arc::new(RwLock::new(Own {
        node: options.node_name,
        address: options.address,
        udp: options.port,
        tcp: options.port,
        metrics: options.metrics_port,
        // Of no use to who publishes nothing.
        cluster_ip: options.cluster_ip.unwrap_or(options.address),
    }));
    let unbound = ready.ails();
    let nodes = Nodes::start(&client, (allow.clone(), ready.clone()), (&clock, &rng), stage);
    let reached = {
        let (own, cluster_ip) = (own.clone(), options.cluster_ip);
        move || {
            let own = own.read();
            let at = SocketAddr::new(own.address, own.udp);
            [at].into_iter().chain(cluster_ip.map(|ip| SocketAddr::new(ip, 53))).collect()
        }
    };
    let source = Source::new(options.upstreams, options.stubs, options.resolv_conf, reached);
    let forwarder = Forwarder::start(source, options.cache, metrics.clone(), clock.clone(), rng.clone(), stage);
    let names = Arc::new(Names::start(&client, zone.clone(), ready.clone(), (&clock, &rng), stage));
    {
        let (ready, clock) = (ready.clone(), clock.clone());
        stage.run(async move {
            let part = || {
                let names = names.clone();
                async move { names.run().await }
            };
            tend("names", Some(&ready), &clock, part).await;
        });
    }
    let resolver = Resolver::new(zone, ready.clone(), forwarder.clone());
    let hosts = server::Own::new(server::own_addresses);
    let front = Arc::new(Front::new(resolver, (allow, hosts), metrics, clock.clone()));
    let (port, metrics_port, registry) = (options.port, options.metrics_port, options.registry);
    let inside = Inside {
        front,
        nodes: nodes.clone(),
        ready: ready.clone(),
        own: own.clone(),
        port,
        metrics_port,
        registry,
        clock: clock.clone(),
    };
    let serving = async {
        tokio::select! {
            () = inside.serve(unbound) => {}
            () = stage.stopped() => {}
        }
    };
    if options.cluster_ip.is_some() {
        let publisher =
            Publisher::start(&client, own, (nodes, ready), move || forwarder.look_again(), (&clock, &rng), stage);
        futures::join!(serving, publisher.run(stage));
    } else {
        serving.await;
    }
}

/// A stage that stops when it is dropped.
struct Round(Stage);

impl Drop for Round {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Inside {
    /// Listens and answers, for ever.
    async fn serve(mut self, unbound: Ailing) {
        let (mut unbound, mut failures) = (Some(unbound), 0);
        loop {
            self.follow();
            let address = self.own.read().address;
            match listen(address, self.port).await {
                Ok(sockets) => {
                    failures = 0;
                    let round = self.answer(sockets).await;
                    drop(unbound.take());
                    while !self.follow() {
                        self.nodes.changed().await;
                    }
                    unbound = Some(self.ready.ails());
                    drop(round);
                }
                Err(error) => {
                    failures += 1;
                    tracing::error!(%address, %error, "names cannot be answered there; trying again");
                    tokio::select! {
                        () = self.clock.sleep(BIND.delay(failures)) => {}
                        () = self.nodes.changed() => {}
                    }
                }
            }
        }
    }

    /// Takes the address of our Node when the host has lost ours; true when it did.
    fn follow(&self) -> bool {
        let (node, current) = {
            let own = self.own.read();
            (own.node.clone(), own.address)
        };
        let Some(address) = self.nodes.moved(&node, current, server::own_addresses) else { return false };
        tracing::warn!(%current, %address, "the address of this node has changed");
        self.own.write().address = address;
        true
    }

    /// Begins to answer on these sockets, until what is returned is dropped.
    async fn answer(&self, sockets: Sockets) -> Round {
        let Sockets { udp, tcp, at: (udp_at, tcp_at) } = sockets;
        tracing::info!(%udp_at, "answering names");
        let round = Round(Stage::new());
        let stage = &round.0;
        let (udp, front, own_stage) = (Arc::new(udp), self.front.clone(), stage.clone());
        let (ready, clock) = (self.ready.clone(), self.clock.clone());
        stage.run(async move {
            let part = || server::serve_udp(udp.clone(), front.clone(), &own_stage);
            tend("datagrams", Some(&ready), &clock, part).await;
        });
        let (tcp, front, own_stage) = (Arc::new(tcp), self.front.clone(), stage.clone());
        let (ready, clock) = (self.ready.clone(), self.clock.clone());
        stage.run(async move {
            let part =
                || server::serve_tcp(tcp.clone(), front.clone(), server::Bounds::default(), clock.clone(), &own_stage);
            tend("connections", Some(&ready), &clock, part).await;
        });
        let status = Status { ready: self.ready.clone(), registry: self.registry.clone() };
        let metrics = match self.metrics_port {
            Some(port) => serve_status(SocketAddr::new(udp_at.ip(), port), status, &self.clock, stage).await,
            None => None,
        };
        {
            let mut own = self.own.write();
            (own.udp, own.tcp, own.metrics) = (udp_at.port(), tcp_at.port(), metrics);
        }
        self.ready.wake.notify_one();
        round
    }
}

/// Serves health and metrics, at another port where that one is taken; the port, if there is one.
async fn serve_status(at: SocketAddr, status: Status, clock: &SharedClock, stage: &Stage) -> Option<u16> {
    let listener = match TcpListener::bind(at).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((at.ip(), 0)).await,
    };
    let bound = listener.and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
    let (port, listener) = match bound {
        Ok(bound) => bound,
        Err(error) => {
            tracing::warn!(%at, %error, "health and metrics of the DNS are not served");
            return None;
        }
    };
    let (clock, own) = (clock.clone(), stage.clone());
    stage.spawn(async move {
        let limits = Limits { connections: SCRAPES, ..Limits::default() };
        if let Err(error) = serve_plain(listener, Arc::new(status), limits, clock, &own).await {
            tracing::error!(%error, "health and metrics of the DNS are no longer served");
        }
    });
    Some(port)
}

#[cfg(test)]
mod tests {
    use api::types::coordination::v1 as coordination;
    use api::types::core::v1 as core;
    use api::types::discovery::v1 as discovery;
    use client::Resource;
    use client::fake::Fake;
    use serde_json::{Value, json};
    use stdx::Clock;
    use stdx::clock::{ManualClock, RealClock};

    use super::*;
    use crate::wire::{Name, ask, kind, rcode, read};

    const SLICES: &str = "endpointslices.discovery.k8s.io";
    const LEASES: &str = "leases.coordination.k8s.io";

    struct World {
        fake: Fake,
        client: Client,
        stage: Stage,
        task: tokio::task::JoinHandle<()>,
    }

    /// An API server with a Node of that address.
    async fn cluster(address: &str) -> (Fake, Client) {
        let (clock, rng) = (RealClock::shared(), Rng::seeded(1));
        let resources = vec![
            Resource::of::<core::Node>(),
            Resource::of::<core::Service>(),
            Resource::of::<core::Namespace>(),
            Resource::of::<core::Event>(),
            Resource::of::<discovery::EndpointSlice>(),
            Resource::of::<coordination::Lease>(),
        ];
        let fake = Fake::new(resources, clock, rng);
        let client = Client::new(fake.handler(), "test");
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]},
        });
        client.dynamic(Resource::of::<core::Node>()).create(&node).await.expect("a Node");
        (fake, client)
    }

    impl World {
        fn start(cluster: (Fake, Client), address: &str) -> Self {
            Self::with(cluster, address, RealClock::shared())
        }

        fn with((fake, client): (Fake, Client), address: &str, clock: SharedClock) -> Self {
            let (stage, domain) = (Stage::new(), Name::parse("cluster.local").expect("a name"));
            let mut options = Options::new("a", address.parse().expect("an address"), domain);
            (options.port, options.metrics_port) = (0, Some(0));
            options.cluster_ip = Some([10, 96, 0, 10].into());
            options.resolv_conf = "/dev/null".into();
            let (of, own) = (client.clone(), stage.clone());
            let task = tokio::spawn(async move { run(of, clock, Rng::seeded(1), options, &own).await });
            Self { fake, client, stage, task }
        }

        async fn slice(&self, is_wanted: impl Fn(&Value) -> bool) -> Value {
            until(|| self.fake.object(SLICES, "kube-system", "kube-dns-a").filter(&is_wanted)).await
        }
    }

    async fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(found) = found() {
                return found;
            }
            tokio::task::yield_now().await;
        }
    }

    fn is_ready(slice: &Value) -> bool {
        slice["endpoints"][0]["conditions"]["ready"] == true
    }

    #[tokio::test]
    async fn who_cannot_listen_is_not_ready_tries_again_and_follows_the_node() {
        // Nobody has that address.
        let world = World::start(cluster("192.0.2.1").await, "192.0.2.1");
        let slice = world.slice(|_| true).await;
        assert_eq!((is_ready(&slice), &slice["endpoints"][0]["addresses"]), (false, &json!(["192.0.2.1"])));
        world.fake.change("nodes", "", "a", |node| node["status"]["addresses"][0]["address"] = json!("127.0.0.1"));
        let slice = world.slice(is_ready).await;
        assert_eq!(slice["endpoints"][0]["addresses"], json!(["127.0.0.1"]));
        let port = slice["ports"][0]["port"].as_u64().and_then(|port| u16::try_from(port).ok()).expect("a port");
        let asks = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        let mut message = Vec::new();
        ask(7, &Name::parse("nope.cluster.local").expect("a name"), kind::A, false, None, &mut message);
        asks.send_to(&message, ("127.0.0.1", port)).await.expect("sent");
        let mut buffer = [0; 512];
        let length = asks.recv(&mut buffer).await.expect("an answer");
        assert_eq!(read(&buffer[..length]).expect("an answer").code, rcode::NXDOMAIN);
        // It says that it lives, and takes away what it wrote when it stops.
        until(|| world.fake.object(LEASES, "kube-public", "kube-dns-a")).await;
        world.stage.stop();
        world.task.await.expect("ended");
        assert_eq!((world.fake.objects(SLICES).len(), world.fake.objects(LEASES).len()), (0, 0));
    }

    #[tokio::test]
    async fn whose_slice_has_our_name_is_told_and_not_touched() {
        let (fake, client) = cluster("127.0.0.1").await;
        let slices = client.dynamic(Resource::of::<discovery::EndpointSlice>()).namespace("kube-system");
        let other = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": [],
            "metadata": {"name": "kube-dns-a", "namespace": "kube-system"},
        });
        slices.create(&other).await.expect("a slice");
        let world = World::start((fake, client), "127.0.0.1");
        let event = until(|| world.fake.objects("events").into_iter().next()).await;
        assert_eq!((&event["reason"], &event["type"]), (&json!("DNSConflict"), &json!("Warning")));
        assert!(event["message"].as_str().is_some_and(|why| why.contains("kube-dns-a is not ours")), "{event}");
        assert_eq!(world.slice(|_| true).await["endpoints"], json!([]));
        // Once it is gone there is ours.
        world
            .client
            .dynamic(Resource::of::<discovery::EndpointSlice>())
            .namespace("kube-system")
            .delete("kube-dns-a", &client::DeleteParams::default())
            .await
            .expect("deleted");
        world.slice(is_ready).await;
        world.stage.stop();
    }
    #[tokio::test]
    async fn a_process_that_was_killed_beside_a_healthy_kubelet_is_taken_out() {
        let (fake, client) = cluster("127.0.0.1").await;
        let labels = json!({"endpointslice.kubernetes.io/managed-by": "dns.pintle.dev"});
        let meta = json!({"name": "kube-dns-b", "namespace": "kube-system", "labels": labels});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}});
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "metadata": meta,
            "endpoints": [{"addresses": ["192.0.2.2"], "nodeName": "b", "conditions": {"ready": true}}],
        });
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "kube-dns-b", "namespace": "kube-public", "labels": labels},
            "spec": {"holderIdentity": "b", "renewTime": "2026-01-01T00:00:00.000000Z"},
        });
        for (resource, object) in [
            (Resource::of::<core::Node>(), node),
            (Resource::of::<discovery::EndpointSlice>(), slice),
            (Resource::of::<coordination::Lease>(), lease),
        ] {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
            client.dynamic(resource).namespace(namespace).create(&object).await.expect("created");
        }
        let clock = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let world = World::with((fake, client), "127.0.0.1", Arc::new(clock.clone()));
        world.slice(is_ready).await;
        let other = || world.fake.object(SLICES, "kube-system", "kube-dns-b").expect("there");
        assert!(is_ready(&other()), "it has been silent for no time yet");
        while is_ready(&other()) {
            clock.advance(Duration::from_secs(10));
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
        }
        assert!(clock.now() >= stdx::clock::Instant(Duration::from_secs(40)));
        assert!(is_ready(&world.slice(|_| true).await), "ourselves we hear of");
        world.stage.stop();
    }
}
