//! The whole: sockets, names, other servers, and what leads questions here.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use client::Client;
use parking_lot::RwLock;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Notify;
use transport::serve::{Limits, serve_plain};

use crate::http::Status;
use crate::metrics::Metrics;
use crate::names::Names;
use crate::options::Options;
use crate::publish::{Own, Publisher};
use crate::resolver::Resolver;
use crate::server::{self, Allow, Front};
use crate::upstream::{Forwarder, Source};
use crate::zone::{Settings, Zone};

/// Ports that are tried when the first is taken, before it is given up: each must be free for UDP and TCP.
const TRIES: usize = 16;
/// Bytes of questions that may wait while this process does not run: some thousands. What the system gives by
/// itself is filled by a few hundred, and who asked the next one waits five seconds.
const QUEUE: usize = 4 << 20;
/// Connections for health and metrics at once.
const SCRAPES: usize = 64;

/// Where the DNS listens.
#[derive(Debug)]
pub struct Sockets {
    udp: UdpSocket,
    tcp: TcpListener,
    at: (SocketAddr, SocketAddr),
}

/// Listens on the port that is asked for, or where it is taken on another one: the slice says which.
///
/// # Errors
/// Nothing can be listened on at that address.
pub async fn listen(options: &Options) -> io::Result<Sockets> {
    let (address, mut wanted): (IpAddr, u16) = (options.address, options.port);
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

/// Answers on these sockets until the stage stops.
pub async fn run(client: Client, clock: SharedClock, rng: Rng, (options, sockets): (Options, Sockets), stage: &Stage) {
    let Sockets { udp, tcp, at: (udp_at, tcp_at) } = sockets;
    tracing::info!(%udp_at, "answering names");
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
    let allow = Allow { ranges: options.pod_ranges.clone(), nodes: [options.address].into() };
    let (allow, is_ready, wake) =
        (Arc::new(RwLock::new(allow)), Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
    let own = vec![udp_at];
    let own = own.into_iter().chain(options.cluster_ip.map(|ip| SocketAddr::new(ip, 53))).collect::<Vec<_>>();
    let source = Source::new(options.upstreams, options.stubs, options.resolv_conf, move || own.clone());
    let forwarder = Forwarder::start(source, options.cache, metrics.clone(), clock.clone(), rng.clone(), stage);
    let names = Names::start(&client, zone.clone(), is_ready.clone(), (&clock, &rng), stage);
    let resolver = Resolver::new(zone, is_ready.clone(), forwarder);
    let front = Arc::new(Front::new(
        resolver,
        (allow.clone(), server::Own::new(server::own_addresses)),
        metrics,
        clock.clone(),
    ));

    let (udp, of) = (Arc::new(udp), front.clone());
    let (clock_of, stage_of) = (clock.clone(), stage.clone());
    stage.spawn(async move { server::serve_udp(udp, of, &stage_of).await });
    let stage_of = stage.clone();
    stage.spawn(async move { server::serve_tcp(tcp, front, server::Bounds::default(), clock_of, &stage_of).await });
    let told = wake.clone();
    stage.run(async move { names.run(move || told.notify_one()).await });

    let status = Status { is_ready: is_ready.clone(), registry: options.registry };
    let metrics_at = match options.metrics_port {
        Some(port) => serve_status(SocketAddr::new(options.address, port), status, &clock, stage).await,
        None => None,
    };
    if let Some(cluster_ip) = options.cluster_ip {
        let own = Own {
            node: options.node_name,
            address: options.address,
            udp: udp_at.port(),
            tcp: tcp_at.port(),
            metrics: metrics_at,
            cluster_ip,
        };
        let publisher = Publisher::start(&client, own, allow, (is_ready, wake), (&clock, &rng), stage);
        publisher.run(stage).await;
    } else {
        stage.stopped().await;
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
