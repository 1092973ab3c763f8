//! The server over loopback sockets: both ways in, who is answered, and what clients cannot take.

use std::net::SocketAddr;
use std::time::Duration;

use client::Key;
use serde_json::json;
use stdx::clock::{ManualClock, RealClock};
use stdx::metrics::Registry;
use stdx::shutdown::Stage;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::*;
use crate::ready::Ready;
use crate::upstream::tests::{Fake, counting};
use crate::wire::{Edns, Message, Name, ask, kind, read};
use crate::zone::{Service, Settings, Slice, Zone, decide, tests_text as text};

struct World {
    at: SocketAddr,
    tcp_at: SocketAddr,
    zone: Arc<RwLock<Zone>>,
    registry: Registry,
    _fake: Fake,
    _stage: Stage,
}

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

/// A Service with an address, one with a hundred endpoints, and one that is a name outside.
fn names(zone: &mut Zone) {
    zone.set_namespace("default", true);
    let endpoints: Vec<_> = (0..100).map(|n| json!({"addresses": [format!("10.244.0.{n}")]})).collect();
    for (name, service, slices) in [
        ("web", json!({"spec": {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"]}}), vec![]),
        ("many", json!({"spec": {"clusterIP": "None"}}), vec![json!({"endpoints": endpoints})]),
        ("out", json!({"spec": {"type": "ExternalName", "externalName": "a.org"}}), vec![]),
        ("loop", json!({"spec": {"type": "ExternalName", "externalName": "loop.default.svc.cluster.local"}}), vec![]),
        ("alias", json!({"spec": {"type": "ExternalName", "externalName": "web.default.svc.cluster.local"}}), vec![]),
    ] {
        let service: Service = serde_json::from_value(service).expect("a Service");
        let slices: Vec<Slice> = slices.into_iter().map(|s| serde_json::from_value(s).expect("a slice")).collect();
        let domain = zone.settings().domain.clone();
        let records = decide(("default", name), &service, slices.iter(), &domain);
        zone.set(&Key::new("default", name), records);
    }
}

/// What differs between tests.
struct Setup {
    synced: bool,
    bounds: Bounds,
    clock: SharedClock,
    own: Own,
    /// Instead of one that knows everything.
    upstream: Option<SocketAddr>,
}

impl Default for Setup {
    fn default() -> Self {
        let (bounds, clock) = (Bounds::default(), RealClock::shared());
        Self { synced: true, bounds, clock, own: Own::new(BTreeSet::new), upstream: None }
    }
}

/// Who asks from 127.0.0.1 may.
fn allow() -> Arc<RwLock<Allow>> {
    let ranges = vec!["127.0.0.1/32".parse().expect("a range")];
    Arc::new(RwLock::new(Allow { ranges, nodes: BTreeSet::new() }))
}

impl World {
    async fn start(setup: Setup) -> Self {
        let Setup { synced, bounds, clock, own, upstream } = setup;
        let stage = Stage::new();
        let fake = Fake::of(&stage, [1, 1, 1, 1]).await;
        let settings = Settings { domain: name("cluster.local"), ttl: 5, ranges: Vec::new(), servers: Vec::new() };
        let mut zone = Zone::new(settings, 1);
        names(&mut zone);
        let registry = Registry::default();
        let metrics = Arc::new(Metrics::new(&registry, "cluster.local."));
        let zone = Arc::new(RwLock::new(zone));
        let ready = Arc::new(Ready::default());
        if synced {
            ready.synced();
        }
        let forwarder = counting(&stage, &[upstream.unwrap_or(fake.address)], &[], metrics.clone());
        let resolver = Resolver::new(zone.clone(), ready, forwarder);
        let front = Arc::new(Front::new(resolver, (allow(), own), metrics, clock.clone()));
        let udp = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a socket"));
        let tcp = Arc::new(TcpListener::bind("127.0.0.1:0").await.expect("a socket"));
        let (at, tcp_at) = (udp.local_addr().expect("an address"), tcp.local_addr().expect("an address"));
        let (of, stage_of) = (front.clone(), stage.clone());
        stage.spawn(async move { serve_udp(udp, of, &stage_of).await });
        let stage_of = stage.clone();
        stage.spawn(async move { serve_tcp(tcp, front, bounds, clock, &stage_of).await });
        Self { at, tcp_at, zone, registry, _fake: fake, _stage: stage }
    }

    async fn udp(&self, question: &str, kind: u16, edns: Option<Edns>) -> (Vec<u8>, Message) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        let mut out = Vec::new();
        ask(7, &name(question), kind, false, edns, &mut out);
        socket.send_to(&out, self.at).await.expect("sent");
        let mut buffer = vec![0; 65_535];
        let length = socket.recv(&mut buffer).await.expect("an answer");
        buffer.truncate(length);
        let message = read(&buffer).expect("an answer");
        (buffer, message)
    }

    async fn told(&self, question: &str, kind: u16) -> String {
        let (_, message) = self.udp(question, kind, None).await;
        let records: Vec<String> = message.answers.iter().map(text).collect();
        if records.is_empty() { rcode::text(message.code).to_owned() } else { records.join(", ") }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.tcp_at).await.expect("connected")
    }
}

async fn send(stream: &mut TcpStream, question: &str) {
    let mut out = Vec::new();
    ask(7, &name(question), kind::A, false, None, &mut out);
    let framed = [&u16::try_from(out.len()).expect("short").to_be_bytes()[..], &out].concat();
    stream.write_all(&framed).await.expect("sent");
}

async fn receive(stream: &mut TcpStream) -> Message {
    let length = stream.read_u16().await.expect("a length");
    let mut message = vec![0; length.into()];
    stream.read_exact(&mut message).await.expect("an answer");
    read(&message).expect("an answer")
}

/// Ends when the other side has closed the connection.
async fn closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}

#[tokio::test]
async fn names_of_the_cluster_and_of_others() {
    let world = World::start(Setup::default()).await;
    for (question, kind, want) in [
        ("web.default.svc.cluster.local", kind::A, "web.default.svc.cluster.local. A 10.96.0.7"),
        ("web.default.svc.cluster.local", kind::AAAA, "NOERROR"),
        ("nope.default.svc.cluster.local", kind::A, "NXDOMAIN"),
        ("a.org", kind::A, "a.org. A 1.1.1.1"),
        ("out.default.svc.cluster.local", kind::A, "out.default.svc.cluster.local. CNAME a.org., a.org. A 1.1.1.1"),
        (
            "alias.default.svc.cluster.local",
            kind::A,
            "alias.default.svc.cluster.local. CNAME web.default.svc.cluster.local., \
             web.default.svc.cluster.local. A 10.96.0.7",
        ),
        ("loop.default.svc.cluster.local", kind::A, "SERVFAIL"),
        ("a.org", kind::ANY, "a.org. TYPE13 \u{7}RFC8482\0"),
        ("a.org", kind::AXFR, "REFUSED"),
    ] {
        assert_eq!(world.told(question, kind).await, want, "{question}");
    }
    let page = world.registry.page();
    let labels = "server=\"dns://:53\",zone=\"cluster.local.\",view=\"\"";
    for line in [
        format!("coredns_dns_requests_total{{{labels},proto=\"udp\",family=\"1\",type=\"AAAA\"}} 1\n"),
        format!("coredns_dns_responses_total{{{labels},rcode=\"NXDOMAIN\",plugin=\"kubernetes\"}} 1\n"),
        format!("coredns_dns_request_duration_seconds_count{{{labels}}} 6\n"),
        "coredns_cache_hits_total{server=\"dns://:53\",type=\"success\",zones=\".\",view=\"\"} 1\n".into(),
        "coredns_cache_entries{server=\"dns://:53\",type=\"success\",zones=\".\",view=\"\"} 1\n".into(),
    ] {
        assert!(page.contains(&line), "{line}{page}");
    }
}

#[tokio::test]
async fn what_cannot_be_known_yet_is_said() {
    let world = World::start(Setup { synced: false, ..Setup::default() }).await;
    assert_eq!(world.told("web.default.svc.cluster.local", kind::A).await, "SERVFAIL");
    assert_eq!(world.told("a.org", kind::A).await, "a.org. A 1.1.1.1");
}

#[tokio::test]
async fn a_long_answer_is_cut_and_comes_whole_over_tcp() {
    let world = World::start(Setup::default()).await;
    let many = "many.default.svc.cluster.local";
    for (edns, limit) in [(None, 512), (Some(Edns { size: 4096, signatures: false }), 1232)] {
        let (bytes, message) = world.udp(many, kind::A, edns).await;
        let records = u16::from_be_bytes([bytes[6], bytes[7]]);
        assert!(message.truncated && bytes.len() <= limit && records > 20, "{limit}: {} {records}", bytes.len());
    }
    let mut stream = world.connect().await;
    send(&mut stream, many).await;
    // Another one is asked before the first is answered.
    send(&mut stream, "web.default.svc.cluster.local").await;
    assert_eq!(receive(&mut stream).await.answers.len(), 100);
    assert_eq!(receive(&mut stream).await.answers.len(), 1);
}

#[tokio::test]
async fn the_name_comes_back_as_it_was_written() {
    let world = World::start(Setup::default()).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    let mut out = Vec::new();
    ask(7, &name("web.default.svc.cluster.local"), kind::A, false, None, &mut out);
    out[13..16].copy_from_slice(b"WeB");
    socket.send_to(&out, world.at).await.expect("sent");
    let mut buffer = vec![0; 512];
    let length = socket.recv(&mut buffer).await.expect("an answer");
    assert_eq!(&buffer[12..29], b"\x03WeB\x07default\x03svc\x07");
    // Its record points there.
    assert_eq!(&buffer[length - 16..length - 14], [0xc0, 12]);
}

/// Asks for a name of the cluster from an address that nobody knows.
fn stranger(at: SocketAddr) -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind("127.0.0.2:0").expect("a socket");
    socket.set_nonblocking(true).expect("set");
    let mut out = Vec::new();
    ask(7, &name("web.default.svc.cluster.local"), kind::A, false, None, &mut out);
    socket.send_to(&out, at).expect("sent");
    socket
}

#[tokio::test]
async fn a_stranger_hears_nothing() {
    let world = World::start(Setup::default()).await;
    let socket = stranger(world.at);
    // What comes after it is answered, and it is not.
    assert_eq!(world.told("web.default.svc.cluster.local", kind::AAAA).await, "NOERROR");
    assert!(socket.recv(&mut [0; 512]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    assert!(world.registry.page().contains("pintle_dns_dropped_total{reason=\"stranger\"} 1\n"));
}

#[tokio::test]
async fn a_message_that_panics_is_lost_and_no_other() {
    let world = World::start(Setup { own: Own::new(|| panic!("on purpose")), ..Setup::default() }).await;
    for _ in 0..3 {
        stranger(world.at);
    }
    assert_eq!(world.told("web.default.svc.cluster.local", kind::AAAA).await, "NOERROR");
    assert!(world.registry.page().contains("pintle_dns_dropped_total{reason=\"panic\"} 3\n"));
}

#[tokio::test]
async fn over_tcp_nobody_waits_for_who_asked_before() {
    let slow = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    let upstream = Some(slow.local_addr().expect("an address"));
    let world = World::start(Setup { upstream, ..Setup::default() }).await;
    let mut stream = world.connect().await;
    send(&mut stream, "slow.org").await;
    send(&mut stream, "web.default.svc.cluster.local").await;
    let first = receive(&mut stream).await;
    assert_eq!(first.answers.iter().map(text).collect::<Vec<_>>(), ["web.default.svc.cluster.local. A 10.96.0.7"]);
    let mut buffer = [0; 512];
    loop {
        let (length, from) = slow.recv_from(&mut buffer).await.expect("asked");
        let query = Query::read(&buffer[..length]).expect("a question");
        if query.name.name() == name("slow.org") {
            slow.send_to(&crate::upstream::tests::answer(&query, [1, 1, 1, 1]), from).await.expect("sent");
            break;
        }
    }
    let second = receive(&mut stream).await;
    assert_eq!(second.answers.iter().map(text).collect::<Vec<_>>(), ["slow.org. A 1.1.1.1"]);
}

#[tokio::test]
async fn clients_take_so_much_and_no_more() {
    let bounds = Bounds { connections: 3, of_one: 2, patience: Duration::from_secs(8) };
    let clock = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let world = World::start(Setup { bounds, clock: Arc::new(clock.clone()), ..Setup::default() }).await;
    let (mut first, mut second) = (world.connect().await, world.connect().await);
    // Both are held: time stands still.
    for stream in [&mut first, &mut second] {
        send(stream, "web.default.svc.cluster.local").await;
        receive(stream).await;
    }
    closed(&mut world.connect().await).await;
    // One that says too much; its place is free again, for one that says what is no question, and so on.
    second.write_all(&[0xff, 0xff]).await.expect("sent");
    closed(&mut second).await;
    let mut third = world.connect().await;
    send(&mut third, "web.default.svc.cluster.local").await;
    assert_eq!(receive(&mut third).await.answers.len(), 1);
    third.write_all(&[0, 3, 1, 2, 3]).await.expect("sent");
    closed(&mut third).await;
    // One that says how much is to come, and then nothing, has its place until time has passed.
    first.write_all(&[0, 30, 1]).await.expect("sent");
    let mut fourth = world.connect().await;
    send(&mut fourth, "web.default.svc.cluster.local").await;
    assert_eq!(receive(&mut fourth).await.answers.len(), 1);
    closed(&mut world.connect().await).await;
    let passing = async {
        loop {
            clock.advance(bounds.patience);
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = closed(&mut first) => {}
        () = passing => {}
    }
}

#[tokio::test]
async fn a_change_is_answered_at_once() {
    let world = World::start(Setup::default()).await;
    world.zone.write().set(&Key::new("default", "web"), None);
    assert_eq!(world.told("web.default.svc.cluster.local", kind::A).await, "NXDOMAIN");
}

/// A server for other names that asks us: the question comes back, is known to be under way, and ends; and from
/// then on that server is asked nothing.
#[tokio::test]
async fn a_loop_ends() {
    let world = World::start(Setup::default()).await;
    let relay = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    let relay_at = relay.local_addr().expect("an address");
    // Ours, whose other server is the relay, which asks ours.
    let (registry, clock, stage) = (Registry::default(), RealClock::shared(), Stage::new());
    let metrics = Arc::new(Metrics::new(&registry, "cluster.local."));
    let forwarder = counting(&stage, &[relay_at], &[], metrics.clone());
    let ready = Arc::new(Ready::default());
    ready.synced();
    let resolver = Resolver::new(world.zone.clone(), ready, forwarder);
    let front = Arc::new(Front::new(resolver, (allow(), Own::new(BTreeSet::new)), metrics, clock));
    let udp = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a socket"));
    let (at, stage_of) = (udp.local_addr().expect("an address"), stage.clone());
    stage.spawn(async move { serve_udp(udp, front, &stage_of).await });
    let relay = Arc::new(relay);
    let stage_of = stage.clone();
    stage.run(async move {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = relay.recv_from(&mut buffer).await {
            let (relay, message) = (relay.clone(), buffer[..length].to_vec());
            stage_of.run(async move {
                let asks = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
                asks.send_to(&message, at).await.expect("sent");
                let mut buffer = [0; 2048];
                let length = asks.recv(&mut buffer).await.expect("an answer");
                relay.send_to(&buffer[..length], from).await.expect("sent");
            });
        }
    });
    let world = World { at, ..world };
    assert_eq!(world.told("a.org", kind::A).await, "SERVFAIL");
    while !registry.page().contains(&format!("pintle_dns_forward_loops_total{{to=\"{relay_at}\"}} 1")) {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.told("b.org", kind::A).await, "SERVFAIL");
    stage.stop();
}
