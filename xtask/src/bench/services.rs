//! What Services cost: loaded, changed and used, in both modes, in a network namespace that goes with it.
//! The API server has no part in it: objects are decided, rendered and sent as the proxy does it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use client::Key;
use net::iptables::Tools;
use net::nft::Nft;
use net::ruleset::Family;
use proxy::Mode;
use proxy::dataplane::Dataplane;
use proxy::iptables::apply::Restored;
use proxy::model::objects::{EndpointSlice, Service};
use proxy::model::{Here, LocalPods, Model, NodePortAddresses, Settings, decide};
use proxy::nftables::apply::Applied;
use serde_json::json;
use stdx::SharedClock;

use super::figures::{Figures, median, ms, percentile};
use super::process::usage;

/// Says that the namespace is there.
pub const INSIDE: &str = "--services-inside";
/// Endpoints of each Service.
const EACH: u32 = 10;
/// Where the Service that is used really leads.
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 128, 0, 1)), 8080);

/// The same of UDP, which says back what it hears.
const ECHO: SocketAddr = SocketAddr::new(SERVER.ip(), 8081);
/// The first of the node ports.
const NODE_PORTS: u32 = 20_000;

/// By what connections come to the Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ClusterIp,
    NodePort,
}

/// Runs this program once more in a namespace, where it prints its table.
pub fn outside(args: &[String]) -> Result<()> {
    let program = std::env::current_exe().context("this program")?;
    let status =
        Command::new("unshare").arg("--net").arg("--").arg(program).arg("bench").args(args).arg(INSIDE).status();
    ensure!(status.context("unshare runs")?.success(), "the benchmark in the namespace failed");
    Ok(())
}

/// All rows of both modes.
pub async fn inside(clock: &SharedClock, quick: bool, figures: &mut Figures) -> Result<()> {
    for line in ["ip link set lo up", "ip addr add 10.128.0.1/32 dev lo", "ip route add 10.96.0.0/12 dev lo"] {
        let words: Vec<&str> = line.split(' ').collect();
        ensure!(Command::new(words[0]).args(&words[1..]).status()?.success(), "{line}");
    }
    let listener = TcpListener::bind(SERVER).context("a server")?;
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let echo = UdpSocket::bind(ECHO).context("a server of UDP")?;
    std::thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((length, from)) = echo.recv_from(&mut buffer) {
            let _ = echo.send_to(buffer.get(..length).unwrap_or_default(), from);
        }
    });
    let counts: &[u32] = if quick { &[10, 1000] } else { &[10, 1000, 10_000] };
    for mode in [Mode::Nftables, Mode::Iptables] {
        for kind in [Kind::ClusterIp, Kind::NodePort] {
            for count in counts {
                // What the one before left would carry out this one's Services; the namespace is ours alone.
                ensure!(Command::new("nft").args(["flush", "ruleset"]).status()?.success(), "nft flush ruleset");
                if kind == Kind::NodePort && (*count < 1000 || mode == Mode::Iptables) {
                    continue;
                }
                let mut bench = Bench::new(mode, kind, *count, clock);
                bench.run(figures).await.with_context(|| format!("{} with {count} Services", mode.as_str()))?;
            }
        }
    }
    Ok(())
}

struct Bench {
    mode: Mode,
    /// Its programs write to the kernel's older tables.
    is_legacy: bool,
    kind: Kind,
    count: u32,
    clock: SharedClock,
    plane: Box<dyn Dataplane>,
    settings: Settings,
    model: Model,
    objects: BTreeMap<Key, (Service, EndpointSlice)>,
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number)
}

fn endpoint(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 129, 0, 0)) + number)
}

fn key(number: u32) -> Key {
    Key::new("default", format!("service-{number}"))
}

impl Bench {
    fn new(mode: Mode, kind: Kind, count: u32, clock: &SharedClock) -> Self {
        // The programs that are the same and write nftables take minutes for ten thousand Services: it comes last, for
        // nobody flushes what they leave.
        let is_legacy = mode == Mode::Iptables && count > 1000;
        let tools = if is_legacy { Tools::legacy(clock.clone()) } else { Tools::new(clock.clone()) };
        let plane: Box<dyn Dataplane> = match mode {
            Mode::Nftables => Box::new(Applied::new(Arc::new(Nft::new(clock.clone())), Family::Ip)),
            Mode::Iptables => Box::new(Restored::new(Arc::new(tools), Family::Ip)),
        };
        let nets = |text: &str| text.parse().into_iter().collect::<Vec<_>>();
        let settings = Settings {
            service_cidrs: nets("10.96.0.0/12"),
            cluster_cidrs: nets("10.128.0.0/9"),
            remote_pod_cidrs: Vec::new(),
            pod_interfaces: None,
            local_pods: LocalPods::Ranges(nets("10.128.0.0/9")),
            node_ports: NodePortAddresses::All,
            masquerade_all: false,
            masquerade_bit: 14,
            node_ips: Vec::new(),
        };
        let (clock, model, objects) = (clock.clone(), Model::new(), BTreeMap::new());
        Self { mode, is_legacy, kind, count, clock, plane, settings, model, objects }
    }

    fn named(&self, what: &str) -> String {
        let kind = match self.kind {
            Kind::ClusterIp => "Services",
            Kind::NodePort => "NodePort Services",
        };
        let mode = if self.is_legacy { "iptables-legacy" } else { self.mode.as_str() };
        format!("{mode}, {} {kind} of {EACH}: {what}", self.count)
    }

    /// A Service with these endpoints, as the API has it; the last one leads to the server.
    fn object(&mut self, number: u32, endpoints: impl Iterator<Item = Ipv4Addr>) -> Result<Key> {
        let name = key(number);
        let last = number + 1 == self.count;
        let mut ports = vec![json!({"name": "http", "port": 80})];
        let mut targets = vec![json!({"name": "http", "port": SERVER.port()})];
        if last {
            ports.push(json!({"name": "echo", "port": 53, "protocol": "UDP"}));
            targets.push(json!({"name": "echo", "port": ECHO.port(), "protocol": "UDP"}));
        }
        let mut spec = json!({"clusterIP": address(number).to_string()});
        if self.kind == Kind::NodePort {
            spec["type"] = json!("NodePort");
            ports[0]["nodePort"] = json!(NODE_PORTS + number);
        }
        spec["ports"] = json!(ports);
        let service = json!({"metadata": {"namespace": name.namespace, "name": name.name}, "spec": spec});
        let ips = endpoints.map(|ip| if last { SERVER.ip().to_string() } else { ip.to_string() });
        let mut ips: Vec<String> = ips.collect();
        ips.dedup();
        let endpoints: Vec<_> = ips.iter().map(|ip| json!({"addresses": [ip], "nodeName": "n2"})).collect();
        let slice = json!({"endpoints": endpoints, "ports": targets});
        self.objects.insert(name.clone(), (serde_json::from_value(service)?, serde_json::from_value(slice)?));
        Ok(name)
    }

    /// Decides these and brings the kernel there; how long that took.
    async fn apply(&mut self, keys: &[Key]) -> Result<Duration> {
        let begin = self.clock.now();
        let here = Here { name: "n1".into(), zone: None };
        let mut changes = Vec::with_capacity(keys.len());
        for key in keys {
            let (service, slice) = self.objects.get(key).context("a Service")?;
            let rules = Arc::new(decide(service, std::iter::once(slice), &here));
            self.model.insert(key.clone(), rules.clone());
            changes.push((key.clone(), Some(rules)));
        }
        let refused = self.plane.apply(&self.settings, &self.model, &changes).await?;
        ensure!(refused.is_empty(), "{refused:?}");
        Ok(self.clock.now().since(begin))
    }

    async fn run(&mut self, figures: &mut Figures) -> Result<()> {
        let (pid, big) = (std::process::id(), self.count >= 10_000);
        let nft = self.mode == Mode::Nftables;
        let before = usage(pid)?;
        let mut keys = Vec::new();
        for number in 0..self.count {
            let first = number * EACH;
            keys.push(self.object(number, (first..first + EACH).map(endpoint))?);
        }
        let took = self.apply(&keys).await?;
        figures.add(&self.named("loaded"), ms(took), "", None);
        if nft && self.kind == Kind::ClusterIp {
            let bytes = usage(pid)?.rss.saturating_sub(before.rss) as f64 / f64::from(self.count * EACH);
            let met = big.then_some(bytes <= 1024.0);
            figures.add(&self.named("memory an endpoint, objects included"), format!("{bytes:.0} B"), "≤ 1 KB", met);
        }
        let rounds = if nft { 200 } else { 10 };
        for (what, fewer) in [("one endpoint replaced", 0), ("one endpoint more or less", 1)] {
            let (mut times, cpu) = (Vec::new(), usage(pid)?.cpu);
            for round in 0..rounds {
                let (number, moved) = (round % (self.count - 1).max(1), round + 1_000_000);
                // Never twice as many as before.
                let again = round / (self.count - 1).max(1);
                let first = number * EACH + u32::from(again.is_multiple_of(2)) * fewer;
                let present = (first..(number + 1) * EACH - 1).map(endpoint).chain([endpoint(moved)]);
                let key = self.object(number, present)?;
                times.push(self.apply(&[key]).await?);
            }
            let cpu = (usage(pid)?.cpu - cpu) / f64::from(rounds) * 1e3;
            let worst = percentile(&mut times, 99);
            let typical = median(&mut times);
            let met = (nft && big).then_some(typical <= Duration::from_millis(10));
            let shown = format!("{} (p99 {}, CPU {cpu:.1} ms)", ms(typical), ms(worst));
            figures.add(&self.named(what), shown, if nft { "≤ 10 ms" } else { "" }, met);
        }
        self.sustained(figures).await?;
        self.connections(figures)?;
        self.packets(figures)?;
        Ok(())
    }

    /// Ten changes a transaction, one transaction after the other.
    async fn sustained(&mut self, figures: &mut Figures) -> Result<()> {
        const TOGETHER: u32 = 10;
        let rounds = if self.mode == Mode::Nftables { 200 } else { 5 };
        let begin = self.clock.now();
        for round in 0..rounds {
            let mut keys = Vec::new();
            for i in 0..TOGETHER.min(self.count - 1) {
                let number = (round * TOGETHER + i) % (self.count - 1);
                let first = number * EACH + round % 2;
                let present = (first..(number + 1) * EACH).map(endpoint);
                keys.push(self.object(number, present)?);
            }
            self.apply(&keys).await?;
        }
        let changes = f64::from(rounds * TOGETHER.min(self.count - 1));
        let rate = changes / self.clock.now().since(begin).as_secs_f64();
        let met = (self.mode == Mode::Nftables && self.count >= 10_000).then_some(rate >= 1000.0);
        let budget = if self.mode == Mode::Nftables { "≥ 1,000/s" } else { "" };
        figures.add(&self.named("changes, ten a transaction"), format!("{rate:.0}/s"), budget, met);
        Ok(())
    }

    /// Connections through the last Service, beside those without a Service.
    fn connections(&self, figures: &mut Figures) -> Result<()> {
        let node_port = u16::try_from(NODE_PORTS + self.count - 1)?;
        let vip = match self.kind {
            Kind::ClusterIp => SocketAddr::from((address(self.count - 1), 80)),
            Kind::NodePort => SocketAddr::new(SERVER.ip(), node_port),
        };
        let measure = |to: SocketAddr| -> Result<Duration> {
            let mut times = Vec::new();
            for _ in 0..1000 {
                let begin = self.clock.now();
                drop(TcpStream::connect_timeout(&to, Duration::from_secs(5)).with_context(|| format!("to {to}"))?);
                times.push(self.clock.now().since(begin));
            }
            Ok(median(&mut times))
        };
        let (bare, through) = (measure(SERVER)?, measure(vip)?);
        let shown = format!("{} (without a Service {})", ms(through), ms(bare));
        figures.add(&self.named("a connection begun"), shown, "", None);
        Ok(())
    }
    /// There and back, once by each client and by one client all the time, which the kernel knows then.
    fn packets(&self, figures: &mut Figures) -> Result<()> {
        let vip = SocketAddr::from((address(self.count - 1), 53));
        let client = |to: SocketAddr| -> Result<UdpSocket> {
            let socket = UdpSocket::bind((SERVER.ip(), 0))?;
            socket.set_read_timeout(Some(Duration::from_secs(5)))?;
            socket.connect(to)?;
            Ok(socket)
        };
        let ask = |socket: &UdpSocket| -> Result<Duration> {
            let (begin, mut buffer) = (self.clock.now(), [0; 16]);
            socket.send(b"?")?;
            socket.recv(&mut buffer).context("an answer")?;
            Ok(self.clock.now().since(begin))
        };
        let first = |to: SocketAddr| -> Result<Duration> {
            let mut times = (0..1000).map(|_| ask(&client(to)?)).collect::<Result<Vec<Duration>>>()?;
            Ok(median(&mut times))
        };
        let later = |to: SocketAddr| -> Result<Duration> {
            let socket = client(to)?;
            let mut times = (0..1000).map(|_| ask(&socket)).collect::<Result<Vec<Duration>>>()?;
            Ok(median(&mut times))
        };
        for (what, through, bare) in [
            ("the first packet of a client, and its answer", first(vip)?, first(ECHO)?),
            ("another packet of it, and its answer", later(vip)?, later(ECHO)?),
        ] {
            let shown = format!("{} (without a Service {})", ms(through), ms(bare));
            figures.add(&self.named(what), shown, "", None);
        }
        Ok(())
    }
}
