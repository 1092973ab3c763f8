//! The ports at which load balancers ask whether this node has endpoints of a Service that keeps
//! connections on the node they come to (`healthCheckNodePort`).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use client::Key;
use http::{HeaderValue, StatusCode};
use stdx::SharedClock;
use stdx::shutdown::Stage;
use tokio::net::TcpListener;
use transport::serve::{Limits, serve_plain};
use transport::{Handler, Request, Responding, Response};

use crate::health::{Health, json};
use crate::model::HealthCheck;

/// The header that says how many endpoints there are.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// The ports that are open.
pub struct Checks {
    health: Health,
    clock: SharedClock,
    open: BTreeMap<Key, Open>,
}

struct Open {
    port: u16,
    local: Arc<AtomicUsize>,
    stage: Stage,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.stage.stop();
    }
}

impl Checks {
    /// None yet.
    pub fn new(health: Health, clock: SharedClock) -> Self {
        Self { health, clock, open: BTreeMap::new() }
    }

    /// What one Service asks for by now. A port that cannot be opened is tried again when the Service
    /// changes; the words are for whoever can do something about it.
    pub async fn set(&mut self, key: &Key, check: Option<HealthCheck>) -> Result<(), String> {
        let Some(check) = check else {
            self.open.remove(key);
            return Ok(());
        };
        if let Some(open) = self.open.get(key).filter(|open| open.port == check.port) {
            open.local.store(check.local, Ordering::Relaxed);
            return Ok(());
        }
        self.open.remove(key);
        let listener = listen(check.port).await.map_err(|e| format!("cannot open port {}: {e}", check.port))?;
        let (local, stage) = (Arc::new(AtomicUsize::new(check.local)), Stage::new());
        let handler = Check { key: key.clone(), local: local.clone(), health: self.health.clone() };
        let (clock, own) = (self.clock.clone(), stage.clone());
        stage.spawn(async move {
            // The server ends with its stage; it has no other end.
            let _ = serve_plain(listener, Arc::new(handler), Limits::default(), clock, &own).await;
        });
        self.open.insert(key.clone(), Open { port: check.port, local, stage });
        Ok(())
    }
}

/// Of both families where the host has both.
async fn listen(port: u16) -> std::io::Result<TcpListener> {
    match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await,
    }
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

    #[tokio::test]
    async fn ports_are_open_while_a_service_asks_for_them() {
        let clock = stdx::clock::RealClock::shared();
        let mut checks = Checks::new(Health::new(clock.clone(), &stdx::metrics::Registry::default()), clock.clone());
        let (key, other) = (Key::new("default", "web"), Key::new("default", "other"));
        // A port that was free a moment ago.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        checks.set(&key, Some(HealthCheck { port, local: 3 })).await.expect("open");
        let text = heard(port).await.expect("an answer");
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("\"localEndpoints\": 3"), "{text}");
        checks.set(&key, Some(HealthCheck { port, local: 0 })).await.expect("the same port");
        let text = heard(port).await.expect("an answer");
        assert!(text.starts_with("HTTP/1.1 503"), "{text}");
        assert!(checks.set(&other, Some(HealthCheck { port, local: 1 })).await.is_err(), "somebody has it");
        checks.set(&key, None).await.expect("closed");
        let closed = async {
            while heard(port).await.is_some() {
                tokio::task::yield_now().await;
            }
        };
        clock.timeout(std::time::Duration::from_secs(20), closed).await.expect("closed");
        checks.set(&other, Some(HealthCheck { port, local: 1 })).await.expect("free again");
        assert!(heard(port).await.is_some());
    }
}
