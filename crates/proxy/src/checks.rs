//! The ports at which load balancers ask whether this node has endpoints of a Service that keeps
//! connections on the node they come to (`healthCheckNodePort`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use client::Key;
use http::{HeaderValue, StatusCode};
use stdx::SharedClock;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use transport::serve::{Limits, listen, serve_plain};
use transport::{Handler, Request, Responding, Response};

use crate::health::{Health, json};
use crate::model::{HealthCheck, NodePortAddresses};

/// The header that says how many endpoints there are.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";
/// How long until a port that somebody has is tried again.
const REOPEN: Duration = Duration::from_secs(10);

/// How long whoever serves at a port of ours may take to let go of it, and how often that is tried meanwhile.
const LETS_GO: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_millis(50);

/// Tells the addresses of this host.
pub type Addresses = fn() -> io::Result<Vec<IpAddr>>;

/// Where one listens; `None` is every address.
type Place = Option<IpAddr>;

/// The ports that are open, and those that should be.
pub struct Checks {
    health: Health,
    clock: SharedClock,
    addresses: Addresses,
    /// Where node ports answer, and with them these.
    at: NodePortAddresses,
    ports: BTreeMap<Key, Port>,
    /// When those that could not be opened are tried again.
    due: Option<Instant>,
    /// Until then somebody of ours may still hold what was closed.
    lets_go: Option<Instant>,
}

struct Port {
    number: u16,
    local: Arc<AtomicUsize>,
    open: BTreeMap<Place, Serving>,
    /// It is so wherever it should be.
    whole: bool,
    /// What was told of why it could not be.
    told: Option<String>,
}

/// A server, for as long as this is held.
struct Serving(Stage);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Checks {
    /// None yet.
    pub fn new(health: Health, clock: SharedClock, addresses: Addresses) -> Self {
        let (at, ports) = (NodePortAddresses::All, BTreeMap::new());
        Self { health, clock, addresses, at, ports, due: None, lets_go: None }
    }

    /// Where node ports answer by now.
    pub fn place(&mut self, at: &NodePortAddresses) {
        if self.at != *at {
            self.at = at.clone();
            self.ports.values_mut().for_each(|port| port.whole = false);
            self.due = Some(self.clock.now());
        }
    }

    /// What one Service asks for by now; a port that is not open yet is so after [`Self::try_closed`].
    pub fn set(&mut self, key: &Key, check: Option<HealthCheck>) {
        let (now, known) = (self.clock.now(), self.ports.remove(key));
        let mut closed = false;
        match (known, check) {
            (Some(port), Some(check)) if port.number == check.port => {
                port.local.store(check.local, Ordering::Relaxed);
                self.ports.insert(key.clone(), port);
                return;
            }
            (Some(port), _) => closed = !port.open.is_empty(),
            (None, None) => return,
            (None, Some(_)) => {}
        }
        if let Some(HealthCheck { port: number, local }) = check {
            let (local, open) = (Arc::new(AtomicUsize::new(local)), BTreeMap::new());
            self.ports.insert(key.clone(), Port { number, local, open, whole: false, told: None });
        }
        // Who lets go of a port may let somebody else have it.
        if closed {
            self.lets_go = Some(now + LETS_GO);
        }
        self.due = Some(now);
    }

    /// When there is something to be tried.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Is the port of this Service not open everywhere, although it should be?
    pub fn is_closed(&self, key: &Key) -> bool {
        self.ports.get(key).is_some_and(|port| !port.whole)
    }

    /// Opens what is to be open, if it is time. Answers which cannot be, for reasons that were not told before: the
    /// Service, the port, and words for whoever can do something about it.
    pub async fn try_closed(&mut self) -> Vec<(Key, u16, String)> {
        let now = self.clock.now();
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let places = self.places();
        let mut news = Vec::new();
        // What goes, goes first.
        for port in self.ports.values_mut() {
            let before = port.open.len();
            port.open.retain(|place, _| places.as_ref().is_ok_and(|places| places.contains(place)));
            if port.open.len() < before {
                self.lets_go = Some(now + LETS_GO);
            }
        }
        let waits = self.lets_go.is_some_and(|until| until > now);
        for (key, port) in self.ports.iter_mut().filter(|(_, port)| !port.whole) {
            let failed = match &places {
                Ok(places) => {
                    open(key, port, places, (&self.health, &self.clock)).await.map_err(|e| e.to_string()).err()
                }
                Err(why) => Some(why.clone()),
            };
            match failed {
                None => (port.whole, port.told) = (true, None),
                Some(_) if waits => {}
                Some(why) => {
                    if port.told.as_ref() != Some(&why) {
                        news.push((key.clone(), port.number, why.clone()));
                        port.told = Some(why);
                    }
                }
            }
        }
        let pause = if waits { SOON } else { REOPEN };
        self.due = self.ports.values().any(|port| !port.whole).then(|| now + pause);
        news
    }

    /// The addresses to listen at.
    fn places(&self) -> Result<BTreeSet<Place>, String> {
        let NodePortAddresses::Ranges(ranges) = &self.at else { return Ok([None].into()) };
        let all = (self.addresses)().map_err(|error| format!("the addresses of this host are not known: {error}"))?;
        // One that means something on one link only is nobody's to ask at.
        let is_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let chosen = all.into_iter().filter(|ip| !is_local(ip) && ranges.iter().any(|range| range.contains(ip)));
        let chosen: BTreeSet<Place> = chosen.map(Some).collect();
        if chosen.is_empty() { Err("this host has no address at which node ports answer".into()) } else { Ok(chosen) }
    }
}

/// Opens a port wherever it is not yet, as far as it can be; the first error.
async fn open(
    key: &Key,
    port: &mut Port,
    places: &BTreeSet<Place>,
    (health, clock): (&Health, &SharedClock),
) -> io::Result<()> {
    let mut failed = Ok(());
    for place in places {
        if port.open.contains_key(place) {
            continue;
        }
        let at = SocketAddr::new(place.unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port.number);
        let listened = match listen(at).await {
            // A host without IPv6.
            Err(_) if place.is_none() => listen((Ipv4Addr::UNSPECIFIED, port.number).into()).await,
            listened => listened,
        };
        match listened {
            Ok(listener) => {
                let stage = Stage::new();
                let handler = Check { key: key.clone(), local: port.local.clone(), health: health.clone() };
                let (clock, own) = (clock.clone(), stage.clone());
                stage.spawn(async move {
                    // The server ends with its stage; it has no other end.
                    let _ = serve_plain(listener, Arc::new(handler), Limits::default(), clock, &own).await;
                });
                port.open.insert(*place, Serving(stage));
            }
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    failed
}

struct Check {
    key: Key,
    local: Arc<AtomicUsize>,
    health: Health,
}

impl Check {
    fn answer(&self) -> Response {
        let (local, well) = (self.local.load(Ordering::Relaxed), self.health.is_well());
        let code = if local > 0 && well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let Key { namespace, name } = &self.key;
        let text = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\t\"localEndpoints\": {local},\n\t\"serviceProxyHealthy\": {well}\n}}"
        );
        let mut response = json(code, text);
        response.headers_mut().insert(WEIGHT, HeaderValue::from(local));
        response
    }
}

impl Handler for Check {
    fn call(&self, _: Request) -> Responding {
        let response = self.answer();
        Box::pin(async move { Ok(response) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use stdx::ClockExt;
    use stdx::clock::ManualClock;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_node_without_endpoints_of_its_own_is_no_target() {
        let clock = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let health = Health::new(Arc::new(clock.clone()), &stdx::metrics::Registry::default());
        let local = Arc::new(AtomicUsize::new(2));
        let check = Check { key: Key::new("default", "web"), local: local.clone(), health: health.clone() };
        let response = check.answer();
        assert_eq!((response.status().as_u16(), response.headers()[WEIGHT].to_str().ok()), (200, Some("2")));
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let want = "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}";
        assert_eq!(String::from_utf8_lossy(&body), want);
        local.store(0, Ordering::Relaxed);
        assert_eq!(check.answer().status().as_u16(), 503);
        local.store(1, Ordering::Relaxed);
        health.queued();
        clock.advance(std::time::Duration::from_secs(600));
        assert_eq!(check.answer().status().as_u16(), 503, "what the kernel has is old");
    }

    /// What a load balancer hears at that port; `None` when nobody is there.
    async fn heard(port: u16) -> Option<String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n").await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        Some(text)
    }

    /// What tells of addresses that hosts have.
    fn loopback() -> io::Result<Vec<IpAddr>> {
        Ok([[127, 0, 0, 1], [127, 0, 0, 2]].map(IpAddr::from).into())
    }

    fn checks(clock: &SharedClock) -> Checks {
        let health = Health::new(clock.clone(), &stdx::metrics::Registry::default());
        Checks::new(health, clock.clone(), loopback)
    }

    /// Whoever waits for connections at a port lets go of it in its own time, of which nobody is told.
    async fn until_open(checks: &mut Checks, key: &Key) {
        let clock = checks.clock.clone();
        let opened = async {
            while checks.is_closed(key) {
                if let Some(due) = checks.due() {
                    clock.sleep_until(due).await;
                }
                assert_eq!(checks.try_closed().await, []);
            }
        };
        clock.timeout(std::time::Duration::from_secs(20), opened).await.expect("opened");
    }

    /// A port that was free a moment ago.
    async fn free() -> u16 {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        free.local_addr().expect("an address").port()
    }

    #[tokio::test]
    async fn ports_are_open_while_a_service_asks_for_them() {
        let clock = stdx::clock::RealClock::shared();
        let (mut checks, port) = (checks(&clock), free().await);
        let (key, other) = (Key::new("default", "web"), Key::new("default", "other"));
        checks.set(&key, Some(HealthCheck { port, local: 3 }));
        assert_eq!(checks.try_closed().await, []);
        let text = heard(port).await.expect("an answer");
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("\"localEndpoints\": 3"), "{text}");
        checks.set(&key, Some(HealthCheck { port, local: 0 }));
        assert_eq!(checks.due(), None, "it is the same port");
        let text = heard(port).await.expect("an answer");
        assert!(text.starts_with("HTTP/1.1 503"), "{text}");
        checks.set(&other, Some(HealthCheck { port, local: 1 }));
        let news = checks.try_closed().await;
        assert!(matches!(news.as_slice(), [(key, at, _)] if *key == other && *at == port), "somebody has it: {news:?}");
        assert!(checks.is_closed(&other) && !checks.is_closed(&key));
        checks.set(&key, None);
        until_open(&mut checks, &other).await;
        assert_eq!(checks.due(), None);
        let text = heard(port).await.expect("an answer");
        assert!(text.contains("\"localEndpoints\": 1"), "{text}");
    }

    #[tokio::test]
    async fn what_could_not_be_opened_is_told_once_and_tried_again() {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let clock: SharedClock = Arc::new(manual.clone());
        let taken = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).await.expect("a port");
        let (mut checks, port) = (checks(&clock), taken.local_addr().expect("an address").port());
        let key = Key::new("default", "web");
        checks.set(&key, Some(HealthCheck { port, local: 3 }));
        assert_eq!(checks.try_closed().await.len(), 1);
        assert_eq!(checks.due(), Some(clock.now() + REOPEN));
        // Before its time nobody tries, also when its endpoints change.
        drop(taken);
        checks.set(&key, Some(HealthCheck { port, local: 4 }));
        assert_eq!(checks.try_closed().await, []);
        assert!(checks.is_closed(&key));
        manual.advance(REOPEN);
        assert_eq!(checks.try_closed().await, []);
        assert!(!checks.is_closed(&key) && checks.due().is_none());
        let text = heard(port).await.expect("an answer");
        assert!(text.contains("\"localEndpoints\": 4"), "{text}");
    }

    #[tokio::test]
    async fn ports_are_open_where_node_ports_answer() {
        let clock = stdx::clock::RealClock::shared();
        let (mut checks, port) = (checks(&clock), free().await);
        let ranges = |text: &str| NodePortAddresses::Ranges(vec![text.parse().expect("a range")]);
        let key = Key::new("default", "web");
        let at = |byte: u8| std::net::SocketAddr::from(([127, 0, 0, byte], port));
        let reached = async |byte: u8| tokio::net::TcpStream::connect(at(byte)).await.is_ok();
        checks.set(&key, Some(HealthCheck { port, local: 3 }));
        assert_eq!(checks.try_closed().await, []);
        // From everywhere to one address, to two of which one stays, to the other, and back.
        for (place, first, second) in [
            (ranges("127.0.0.2/32"), false, true),
            (ranges("127.0.0.0/8"), true, true),
            (ranges("127.0.0.1/32"), true, false),
            (NodePortAddresses::All, true, true),
        ] {
            checks.place(&place);
            assert_eq!(checks.try_closed().await, [], "{place:?}");
            until_open(&mut checks, &key).await;
            assert!(reached(1).await == first || !first, "{place:?}");
            assert!(reached(2).await == second || !second, "{place:?}");
        }
        checks.place(&ranges("192.0.2.0/24"));
        checks.try_closed().await;
        checks.lets_go = None;
        checks.due = Some(clock.now());
        let news = checks.try_closed().await;
        assert!(news[0].2.contains("no address"), "{news:?}");
        // At one of two it is somebody's; at the other it is open.
        let closed = async {
            while reached(1).await {
                tokio::task::yield_now().await;
            }
        };
        clock.timeout(std::time::Duration::from_secs(20), closed).await.expect("closed");
        let taken = TcpListener::bind(at(1)).await.expect("free");
        checks.place(&ranges("127.0.0.0/8"));
        assert_eq!(checks.try_closed().await.len(), 1, "it is told");
        assert!(checks.is_closed(&key) && reached(2).await);
        drop(taken);
    }
}
