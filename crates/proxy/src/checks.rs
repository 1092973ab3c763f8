//! The ports at which load balancers ask whether this node has endpoints of a Service that keeps
//! connections on the node they come to (`healthCheckNodePort`).

use std::collections::BTreeMap;
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
use tokio::net::TcpListener;
use transport::serve::{Limits, serve_plain};
use transport::{Handler, Request, Responding, Response};

use crate::health::{Health, json};
use crate::model::{HealthCheck, NodePortAddresses};

/// The header that says how many endpoints there are.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";
/// How long until a port that somebody has is tried again.
const REOPEN: Duration = Duration::from_secs(10);

/// Tells the addresses of this host.
pub type Addresses = fn() -> io::Result<Vec<IpAddr>>;

/// The ports that are open, and those that should be.
pub struct Checks {
    health: Health,
    clock: SharedClock,
    addresses: Addresses,
    /// Where node ports answer, and with them these.
    at: NodePortAddresses,
    open: BTreeMap<Key, Open>,
    closed: BTreeMap<Key, Closed>,
    /// When those that could not be opened are tried again.
    due: Option<Instant>,
}

struct Open {
    port: u16,
    local: Arc<AtomicUsize>,
    stage: Stage,
}

/// One that is to be opened.
struct Closed {
    check: HealthCheck,
    /// What was told of why it could not be.
    told: Option<String>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.stage.stop();
    }
}

impl Checks {
    /// None yet.
    pub fn new(health: Health, clock: SharedClock, addresses: Addresses) -> Self {
        let (open, closed) = (BTreeMap::new(), BTreeMap::new());
        Self { health, clock, addresses, at: NodePortAddresses::All, open, closed, due: None }
    }

    /// Where node ports answer by now. When that changes, all ports are to be opened anew.
    pub fn place(&mut self, at: &NodePortAddresses) {
        if self.at == *at {
            return;
        }
        self.at = at.clone();
        for (key, open) in std::mem::take(&mut self.open) {
            let check = HealthCheck { port: open.port, local: open.local.load(Ordering::Relaxed) };
            self.closed.insert(key, Closed { check, told: None });
        }
        self.due = Some(self.clock.now());
    }

    /// What one Service asks for by now; a port that is not open yet is so after [`Self::try_closed`].
    pub fn set(&mut self, key: &Key, check: Option<HealthCheck>) {
        if let (Some(open), Some(check)) = (self.open.get(key), check)
            && open.port == check.port
        {
            open.local.store(check.local, Ordering::Relaxed);
            return;
        }
        // Who lets go of a port may let somebody else have it.
        let was_open = self.open.remove(key).is_some();
        let known = self.closed.remove(key);
        if let Some(check) = check {
            let same = known.is_some_and(|closed| {
                let same = closed.check.port == check.port;
                let told = closed.told.filter(|_| same);
                self.closed.insert(key.clone(), Closed { check, told });
                same
            });
            if same && !was_open {
                return;
            }
            self.closed.entry(key.clone()).or_insert(Closed { check, told: None });
        } else if !was_open {
            return;
        }
        self.due = Some(self.clock.now());
    }

    /// When there is something to be tried.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Is the port of this Service not open although it should be?
    pub fn is_closed(&self, key: &Key) -> bool {
        self.closed.contains_key(key)
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
        for (key, mut closed) in std::mem::take(&mut self.closed) {
            let listeners = match &places {
                Ok(places) => listen(places, closed.check.port).await.map_err(|error| error.to_string()),
                Err(why) => Err(why.clone()),
            };
            match listeners {
                Ok(listeners) => drop(self.open.insert(key.clone(), self.serve(&key, closed.check, listeners))),
                Err(why) => {
                    if closed.told.as_ref() != Some(&why) {
                        news.push((key.clone(), closed.check.port, why.clone()));
                        closed.told = Some(why);
                    }
                    self.closed.insert(key, closed);
                }
            }
        }
        self.due = (!self.closed.is_empty()).then(|| now + REOPEN);
        news
    }

    /// The addresses to listen at; `None` for all there are.
    fn places(&self) -> Result<Option<Vec<IpAddr>>, String> {
        let NodePortAddresses::Ranges(ranges) = &self.at else { return Ok(None) };
        let all = (self.addresses)().map_err(|error| format!("the addresses of this host are not known: {error}"))?;
        let chosen: Vec<IpAddr> = all.into_iter().filter(|ip| ranges.iter().any(|range| range.contains(ip))).collect();
        if chosen.is_empty() {
            Err("this host has no address at which node ports answer".into())
        } else {
            Ok(Some(chosen))
        }
    }

    fn serve(&self, key: &Key, check: HealthCheck, listeners: Vec<TcpListener>) -> Open {
        let (local, stage) = (Arc::new(AtomicUsize::new(check.local)), Stage::new());
        for listener in listeners {
            let handler = Check { key: key.clone(), local: local.clone(), health: self.health.clone() };
            let (clock, own) = (self.clock.clone(), stage.clone());
            stage.spawn(async move {
                // The server ends with its stage; it has no other end.
                let _ = serve_plain(listener, Arc::new(handler), Limits::default(), clock, &own).await;
            });
        }
        Open { port: check.port, local, stage }
    }
}

/// At all of these addresses; at every one of both families where the host has both.
async fn listen(places: &Option<Vec<IpAddr>>, port: u16) -> io::Result<Vec<TcpListener>> {
    let Some(places) = places else {
        let all = match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await?,
        };
        return Ok(vec![all]);
    };
    let mut listeners = Vec::with_capacity(places.len());
    for ip in places {
        listeners.push(TcpListener::bind(SocketAddr::new(*ip, port)).await?);
    }
    Ok(listeners)
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
        let opened = async {
            // Whoever waits for connections there lets go of the port in its own time.
            while checks.is_closed(&other) {
                checks.due = Some(clock.now());
                assert_eq!(checks.try_closed().await, [], "it was told");
                tokio::task::yield_now().await;
            }
        };
        clock.timeout(std::time::Duration::from_secs(20), opened).await.expect("free again");
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
        // The first address of this host is somebody's, at that port.
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.expect("a port");
        checks.set(&key, Some(HealthCheck { port, local: 3 }));
        checks.place(&ranges("127.0.0.2/32"));
        assert_eq!(checks.try_closed().await, []);
        let there = tokio::net::TcpStream::connect((Ipv4Addr::new(127, 0, 0, 2), port)).await;
        assert!(there.is_ok() && !checks.is_closed(&key));
        checks.place(&ranges("127.0.0.0/8"));
        assert_eq!(checks.try_closed().await.len(), 1, "at one of them it cannot be opened");
        checks.place(&ranges("192.0.2.0/24"));
        let news = checks.try_closed().await;
        assert!(news[0].2.contains("no address"), "{news:?}");
        drop(taken);
    }
}
