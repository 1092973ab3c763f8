//! How many requests are served at once. At the bound a request is told to come back, not queued.

use std::sync::Arc;

use http::HeaderValue;
use http::header::RETRY_AFTER;
use kinds::User;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::encode;
use crate::request::RequestInfo;

/// Requests at once that change something.
const MUTATING: usize = 200;
/// Requests at once that only read.
const READING: usize = 400;
/// Watches and streams at once.
const STREAMS: usize = 20_000;

/// The places there are.
pub struct Fairness {
    mutating: Arc<Semaphore>,
    reading: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl Default for Fairness {
    fn default() -> Self {
        let places = |n| Arc::new(Semaphore::new(n));
        Self { mutating: places(MUTATING), reading: places(READING), streams: places(STREAMS) }
    }
}

/// A place, held until it is dropped.
pub struct Slot(#[allow(dead_code, reason = "held for its drop")] Option<OwnedSemaphorePermit>);

/// True for requests that go on until someone hangs up.
pub fn is_stream(info: &RequestInfo) -> bool {
    info.verb == "watch" || matches!(info.subresource.as_str(), "log" | "exec" | "attach" | "portforward" | "proxy")
}

impl Fairness {
    /// A place for the request; `None` when there is none. Health, and members of `system:masters`,
    /// are never turned away.
    pub fn admit(&self, info: &RequestInfo, user: &User) -> Option<Slot> {
        if !info.is_resource || user.groups.iter().any(|g| g == "system:masters") {
            return Some(Slot(None));
        }
        let places = match info.verb.as_str() {
            _ if is_stream(info) => &self.streams,
            "get" | "list" => &self.reading,
            _ => &self.mutating,
        };
        places.clone().try_acquire_owned().ok().map(|permit| Slot(Some(permit)))
    }
}

/// The answer when there is no place: plain text, as upstream's.
pub fn come_back() -> transport::Response {
    let mut response = encode::text(429, "Too many requests, please try again later.\n");
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_apart_and_given_back() {
        let fairness = Fairness::default();
        let request = |verb: &str| RequestInfo { is_resource: true, verb: verb.into(), ..RequestInfo::default() };
        let (nobody, root) = (User::default(), User { groups: vec!["system:masters".into()], ..User::default() });
        let held: Vec<Slot> = std::iter::from_fn(|| fairness.admit(&request("create"), &nobody)).collect();
        assert_eq!(held.len(), MUTATING);
        assert!(fairness.admit(&request("get"), &nobody).is_some());
        assert!(fairness.admit(&request("watch"), &nobody).is_some());
        assert!(fairness.admit(&request("create"), &root).is_some());
        drop(held);
        assert!(fairness.admit(&request("create"), &nobody).is_some());
    }
}
