//! How many requests are served at once. At the bound a request is told to come back, not queued.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderValue;
use http::header::RETRY_AFTER;
use kinds::User;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::encode;
use crate::request::RequestInfo;

/// Requests at once that change something.
const MUTATING: usize = 200;
/// Requests at once that only read.
const READING: usize = 400;
/// Writes with a body over [`HEAVY_BYTES`] at once; more wait. Such a body is a hundred times its size while
/// it is worked on.
const HEAVY: usize = 8;
/// What counts as heavy.
const HEAVY_BYTES: usize = 16 * 1024;
/// Watches and streams at once.
const STREAMS: usize = 20_000;

/// The places there are.
pub struct Fairness {
    mutating: Pool,
    reading: Pool,
    streams: Pool,
    heavy: Semaphore,
}

impl Default for Fairness {
    fn default() -> Self {
        Self {
            mutating: Pool::new(MUTATING),
            reading: Pool::new(READING),
            streams: Pool::new(STREAMS),
            heavy: Semaphore::new(HEAVY),
        }
    }
}

/// Places of one sort. One user gets at most half of them, so that its slow bodies cannot keep
/// everybody else out.
struct Pool {
    free: Arc<Semaphore>,
    share: usize,
    /// How many each user holds; nobody is in here with none.
    held: Arc<Mutex<HashMap<String, usize>>>,
}

impl Pool {
    fn new(places: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(places)), share: places / 2, held: Arc::default() }
    }

    fn take(&self, user: &str) -> Option<Slot> {
        let mut held = self.held.lock();
        if held.get(user).is_some_and(|n| *n >= self.share) {
            return None;
        }
        let permit = self.free.clone().try_acquire_owned().ok()?;
        *held.entry(user.to_owned()).or_default() += 1;
        Some(Slot(Some(Held { _permit: permit, user: user.to_owned(), held: self.held.clone() })))
    }
}

/// A place, held until it is dropped.
pub struct Slot(#[allow(dead_code, reason = "held for its drop")] Option<Held>);

struct Held {
    _permit: OwnedSemaphorePermit,
    user: String,
    held: Arc<Mutex<HashMap<String, usize>>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        let left = held.get(&self.user).map_or(0, |n| n.saturating_sub(1));
        if left == 0 {
            held.remove(&self.user);
        } else {
            held.insert(self.user.clone(), left);
        }
    }
}

/// True for requests that go on until someone hangs up.
pub fn is_stream(info: &RequestInfo) -> bool {
    let looks = !info.is_resource && info.path == transport::debug::PROFILE;
    looks
        || info.verb == "watch"
        || matches!(info.subresource.as_str(), "log" | "exec" | "attach" | "portforward" | "proxy")
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
        places.take(&user.name)
    }
}

impl Fairness {
    /// Requests that are being served: those that change something, those that read. Members of
    /// `system:masters`, who are never turned away, are not among them.
    pub fn in_flight(&self) -> (usize, usize) {
        let taken = |pool: &Pool, places: usize| places.saturating_sub(pool.free.available_permits());
        (taken(&self.mutating, MUTATING), taken(&self.reading, READING))
    }

    /// Waits for a turn to work on a body of this length; short ones have it at once.
    pub async fn turn(&self, length: usize) -> Option<SemaphorePermit<'_>> {
        if length <= HEAVY_BYTES { None } else { self.heavy.acquire().await.ok() }
    }
}

/// The answer when there is no place: plain text, as upstream's.
pub fn come_back() -> transport::Response {
    let mut response = encode::text(429, "Too many requests, please try again later.\n");
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response.extensions_mut().insert(Ended);
    response
}

/// On an answer by which this server ends a request before it is done: what others answer, whatever its code, is not
/// told apart otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Ended;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn heavy_bodies_wait_for_each_other() {
        let fairness = Fairness::default();
        assert!(fairness.turn(HEAVY_BYTES).await.is_none(), "no turn needed");
        let mut held = Vec::new();
        for _ in 0..HEAVY {
            held.extend(fairness.turn(HEAVY_BYTES + 1).await);
        }
        let next = fairness.turn(HEAVY_BYTES + 1);
        let mut next = std::pin::pin!(next);
        assert!(futures::poll!(next.as_mut()).is_pending());
        held.pop();
        assert!(futures::poll!(next).is_ready());
    }

    #[test]
    fn places_are_counted_apart_and_given_back() {
        let fairness = Fairness::default();
        let request = |verb: &str| RequestInfo { is_resource: true, verb: verb.into(), ..RequestInfo::default() };
        let (nobody, root) = (User::default(), User { groups: vec!["system:masters".into()], ..User::default() });
        let other = User { name: "other".into(), ..User::default() };
        let mut held: Vec<Slot> = std::iter::from_fn(|| fairness.admit(&request("create"), &nobody)).collect();
        assert_eq!(held.len(), MUTATING / 2, "one user gets half");
        held.extend(std::iter::from_fn(|| fairness.admit(&request("create"), &other)));
        assert_eq!(held.len(), MUTATING);
        assert!(fairness.admit(&request("create"), &User { name: "third".into(), ..User::default() }).is_none());
        assert!(fairness.admit(&request("get"), &nobody).is_some());
        assert!(fairness.admit(&request("watch"), &nobody).is_some());
        assert!(fairness.admit(&request("create"), &root).is_some());
        drop(held);
        assert!(fairness.mutating.held.lock().is_empty());
        assert!(fairness.admit(&request("create"), &nobody).is_some());
    }
}
