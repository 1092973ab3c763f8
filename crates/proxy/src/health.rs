//! What the proxy tells of itself: `/healthz` for load balancers, which take a node away that is
//! late or about to be deleted, and `/livez` for who would restart the proxy.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use parking_lot::Mutex;
use stdx::SharedClock;
use stdx::clock::Instant;
use stdx::metrics::{Counter, Registry};
use transport::{Handler, Request, Responding, Response};

/// A node with this taint is about to be deleted by who scales the cluster.
pub const DELETION_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
/// Changes that wait longer for the kernel make the proxy unhealthy: two regular passes of upstream's.
const LATE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct State {
    /// When what waits for the kernel began to wait.
    queued: Option<Instant>,
    updated: Option<jiff::Timestamp>,
    ineligible: bool,
}

/// How the proxy is. Clones share it.
#[derive(Clone)]
pub struct Health {
    clock: SharedClock,
    state: Arc<Mutex<State>>,
    /// How often each path was answered, by code.
    asked: [Counter; 2],
}

impl Health {
    /// Well, for now; what is asked is counted in that registry.
    pub fn new(clock: SharedClock, registry: &Registry) -> Self {
        let counter = |path: &str| {
            let help = format!("Cumulative proxy {path} HTTP status");
            registry.counter(&format!("kubeproxy_proxy_{path}_total"), &help, &["code"])
        };
        Self { clock, state: Arc::default(), asked: [counter("healthz"), counter("livez")] }
    }

    /// Something waits for the kernel.
    pub(crate) fn queued(&self) {
        let now = self.clock.now();
        self.state.lock().queued.get_or_insert(now);
    }

    /// The kernel has everything.
    pub(crate) fn updated(&self) {
        let mut state = self.state.lock();
        (state.queued, state.updated) = (None, Some(self.clock.wall()));
    }

    /// May this node get connections from outside?
    pub(crate) fn eligible(&self, eligible: bool) {
        self.state.lock().ineligible = !eligible;
    }

    /// Is the kernel up to date?
    pub fn is_well(&self) -> bool {
        self.state.lock().queued.is_none_or(|since| self.clock.now().since(since) < LATE)
    }

    fn answer(&self, path: &str) -> (StatusCode, String) {
        let (well, now) = (self.is_well(), self.clock.wall());
        let state = self.state.lock();
        let eligible = !state.ineligible;
        let is_health = path == "/healthz";
        let good = well && (eligible || !is_health);
        let updated = if good { now } else { state.updated.unwrap_or(jiff::Timestamp::UNIX_EPOCH) };
        let code = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let node = if is_health { format!(", \"nodeEligible\": {eligible}") } else { String::new() };
        (code, format!("{{\"lastUpdated\": \"{}\",\"currentTime\": \"{}\"{node}}}", told(updated), told(now)))
    }
}

/// A time as Go prints it.
fn told(at: jiff::Timestamp) -> String {
    format!("{} +0000 UTC", at.to_string().replace('T', " ").trim_end_matches('Z'))
}

/// An answer in JSON that nobody takes for something else.
pub(crate) fn json(code: StatusCode, text: String) -> Response {
    let mut response = Response::new(transport::full(text));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(http::header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

impl Handler for Health {
    fn call(&self, request: Request) -> Responding {
        let path = request.uri().path();
        let response = if path == "/healthz" || path == "/livez" {
            let (code, text) = self.answer(path);
            let [healthz, livez] = &self.asked;
            let asked = if path == "/healthz" { healthz } else { livez };
            asked.inc(&[code.as_str()]);
            json(code, text)
        } else {
            let mut response = Response::new(transport::full("404 page not found\n"));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        };
        Box::pin(async move { Ok(response) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::clock::ManualClock;

    #[test]
    fn a_node_that_is_late_or_about_to_go_is_no_target() {
        let clock = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let registry = Registry::default();
        let health = Health::new(Arc::new(clock.clone()), &registry);
        let code = |path: &str| health.answer(path).0.as_u16();
        let codes = || [code("/healthz"), code("/livez")];
        assert_eq!(codes(), [200, 200]);
        health.queued();
        clock.advance(LATE - Duration::from_secs(1));
        health.queued();
        assert_eq!(codes(), [200, 200]);
        clock.advance(Duration::from_secs(1));
        assert_eq!(codes(), [503, 503]);
        health.updated();
        assert_eq!(codes(), [200, 200]);
        health.eligible(false);
        assert_eq!(codes(), [503, 200]);
        let want = "{\"lastUpdated\": \"1970-01-01 00:01:00 +0000 UTC\",\"currentTime\": \"1970-01-01 00:01:00 +0000 UTC\", \"nodeEligible\": false}";
        assert_eq!(health.answer("/healthz").1, want);
    }
}
