//! Authentication and authorization for components that serve (the kubelet): the API server is
//! asked by TokenReview and SubjectAccessReview, and its answers are remembered for a while.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use stdx::SharedClock;
use stdx::clock::Instant;
use tokio::sync::Semaphore;

use crate::client::{Call, Client};
use crate::error::{Error, Result};

/// Answers remembered at a time, of each sort; at the bound all are forgotten.
const CAPACITY: usize = 4096;
/// Bytes of a token that anybody is asked about.
const LONGEST_TOKEN: usize = 16 * 1024;
/// Tokens that are asked about at once.
const ASKING: usize = 8;

/// Who a request comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What a request wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    Resource { verb: String, group: String, resource: String, subresource: String, namespace: String, name: String },
    Path { verb: String, path: String },
}

/// How long answers are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub token: Duration,
    pub allowed: Duration,
    pub denied: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { token: s(120), allowed: s(300), denied: s(30) }
    }
}

struct Remembered<K, V> {
    entries: Mutex<HashMap<K, (V, Instant)>>,
}

impl<K: Hash + Eq, V: Clone> Remembered<K, V> {
    fn new() -> Self {
        Self { entries: Mutex::new(HashMap::new()) }
    }

    fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.entries.lock().get(key).filter(|(_, until)| now < *until).map(|(v, _)| v.clone())
    }

    fn put(&self, key: K, value: V, until: Instant, now: Instant) {
        let mut entries = self.entries.lock();
        if entries.len() >= CAPACITY {
            entries.retain(|_, (_, until)| now < *until);
            if entries.len() >= CAPACITY {
                entries.clear();
            }
        }
        entries.insert(key, (value, until));
    }
}

/// Asks the API server, remembering its answers.
pub struct Delegate {
    client: Client,
    clock: SharedClock,
    times: Times,
    audiences: Vec<String>,
    /// By a digest: tokens are secrets, and as long as whoever asks likes.
    tokens: Remembered<[u8; 32], Option<User>>,
    wishes: Remembered<(User, Wish), bool>,
    asking: Semaphore,
}

impl Delegate {
    /// A delegate with upstream's times. Empty audiences mean those of the API server.
    pub fn new(client: Client, audiences: Vec<String>, times: Times, clock: SharedClock) -> Self {
        let asking = Semaphore::new(ASKING);
        Self { client, clock, times, audiences, tokens: Remembered::new(), wishes: Remembered::new(), asking }
    }

    /// Whose token this is; `None` when the server does not know it.
    pub async fn authenticate(&self, token: &str) -> Result<Option<User>> {
        let now = self.clock.now();
        if token.len() > LONGEST_TOKEN {
            return Ok(None);
        }
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = self.tokens.get(&key, now) {
            return Ok(known);
        }
        // Strangers with ever new tokens do not take the API server's time from all else that this asks.
        let _asking = self.asking.acquire().await;
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: (!self.audiences.is_empty()).then(|| self.audiences.clone()),
            },
            ..TokenReview::default()
        };
        let answer = self.ask("/apis/authentication.k8s.io/v1/tokenreviews", &review).await?;
        let status = answer.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| User {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        });
        // An unknown token may become known; it is remembered for a moment only.
        let keep = if user.is_some() { self.times.token } else { self.times.token.min(Duration::from_secs(5)) };
        self.tokens.put(key, user.clone(), now + keep, now);
        Ok(user)
    }

    /// May the user do that?
    pub async fn authorize(&self, user: &User, wish: &Wish) -> Result<bool> {
        let now = self.clock.now();
        let key = (user.clone(), wish.clone());
        if let Some(known) = self.wishes.get(&key, now) {
            return Ok(known);
        }
        let review = review(user, wish);
        let answer = self.ask("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await?;
        let allowed = answer.status.is_some_and(|s| s.allowed && s.denied != Some(true));
        let keep = if allowed { self.times.allowed } else { self.times.denied };
        self.wishes.put(key, allowed, now + keep, now);
        Ok(allowed)
    }

    async fn ask<T: Serialize + DeserializeOwned>(&self, path: &str, body: &T) -> Result<T> {
        let body = serde_json::to_vec(body).map_err(|e| Error::Invalid(e.to_string()))?;
        let bytes = self.client.send(Call::write(http::Method::POST, path, body)).await?;
        serde_json::from_slice(&bytes).map_err(Error::decode)
    }
}

fn review(user: &User, wish: &Wish) -> SubjectAccessReview {
    let some = |s: &String| (!s.is_empty()).then(|| s.clone());
    let mut spec = SubjectAccessReviewSpec {
        user: some(&user.name),
        uid: some(&user.uid),
        groups: Some(user.groups.clone()),
        extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
        ..SubjectAccessReviewSpec::default()
    };
    match wish {
        Wish::Resource { verb, group, resource, subresource, namespace, name } => {
            spec.resource_attributes = Some(ResourceAttributes {
                verb: some(verb),
                group: some(group),
                version: Some("*".into()),
                resource: some(resource),
                subresource: some(subresource),
                namespace: some(namespace),
                name: some(name),
                ..ResourceAttributes::default()
            });
        }
        Wish::Path { verb, path } => {
            spec.non_resource_attributes = Some(NonResourceAttributes { verb: some(verb), path: some(path) });
        }
    }
    SubjectAccessReview { spec, ..SubjectAccessReview::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use stdx::clock::ManualClock;
    use transport::{Handler, Request, Responding};

    /// Knows the token `good`, allows `get`, counts what it is asked.
    struct Server(AtomicU32);

    impl Handler for Server {
        fn call(&self, request: Request) -> Responding {
            use http_body_util::BodyExt;
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                let is_token = request.uri().path().ends_with("tokenreviews");
                let body = request.into_body().collect().await.map_err(|e| transport::Error::Broken(e.to_string()))?;
                let review: serde_json::Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
                let status = if is_token && review["spec"]["token"] == "good" {
                    serde_json::json!({"authenticated": true, "user": {"username": "jane", "groups": ["g"]}})
                } else if is_token {
                    serde_json::json!({"authenticated": false})
                } else {
                    serde_json::json!({"allowed": review["spec"]["resourceAttributes"]["verb"] == "get"})
                };
                let mut answer = review;
                answer["status"] = status;
                Ok(http::Response::new(transport::full(answer.to_string())))
            })
        }
    }

    #[tokio::test]
    async fn answers_are_remembered_for_their_time() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let server = Arc::new(Server(AtomicU32::new(0)));
        let client = Client::new(server.clone(), "kubelet");
        let delegate = Delegate::new(client, Vec::new(), Times::default(), Arc::new(clock.clone()));
        let asked = || server.0.load(Ordering::Relaxed);
        let user = delegate.authenticate("good").await.expect("answered").expect("known");
        assert_eq!((user.name.as_str(), user.groups.as_slice()), ("jane", ["g".to_owned()].as_slice()));
        delegate.authenticate("good").await.expect("answered");
        assert_eq!(asked(), 1);
        assert_eq!(delegate.authenticate("bad").await.expect("answered"), None);
        clock.advance(Duration::from_secs(5));
        assert_eq!(delegate.authenticate("bad").await.expect("answered"), None);
        assert_eq!(asked(), 3, "an unknown token is asked for again soon");
        let wish = |verb: &str| Wish::Resource {
            verb: verb.into(),
            group: String::new(),
            resource: "nodes".into(),
            subresource: "proxy".into(),
            namespace: String::new(),
            name: "n1".into(),
        };
        assert!(delegate.authorize(&user, &wish("get")).await.expect("answered"));
        assert!(!delegate.authorize(&user, &wish("create")).await.expect("answered"));
        clock.advance(Duration::from_secs(31));
        delegate.authorize(&user, &wish("get")).await.expect("answered");
        assert_eq!(asked(), 5);
        delegate.authorize(&user, &wish("create")).await.expect("answered");
        assert_eq!(asked(), 6);
    }

    #[test]
    fn memory_is_bounded() {
        let remembered = Remembered::new();
        let at = |s| Instant(Duration::from_secs(s));
        for n in 0..CAPACITY * 2 {
            remembered.put(n, (), at(100), at(0));
        }
        assert!(remembered.entries.lock().len() <= CAPACITY);
    }
}
