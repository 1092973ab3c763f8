//! A server in this process, over stores in memory, and the shortest way to ask it something.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod aggregated;
pub mod custom;

use std::sync::Arc;

use apiserver::{ApiServer, Config, authn};
use bytes::Bytes;
use futures::StreamExt;
use http::HeaderMap;
use http_body_util::BodyExt;
use kinds::User;
use serde_json::{Value, json};
use stdx::SharedClock;
use stdx::clock::RealClock;
use stdx::shutdown::Stage;
use transport::{Body, SharedHandler};

pub struct Server {
    pub api: Arc<ApiServer>,
    pub clock: SharedClock,
    pub stage: Stage,
    /// As a member of `system:masters`.
    pub root: Client,
}

/// Asks as one user.
#[derive(Clone)]
pub struct Client(pub SharedHandler);

/// What came back.
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

pub fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..User::default() }
}

/// What a server is made of, with everything in memory.
pub fn config(clock: &SharedClock, seed: u64) -> Config {
    let key = pki::SigningKey::generate().expect("key");
    let key = Arc::new(pki::SigningKey::from_pem(&key).expect("key"));
    let accounts = authn::service_account::Options::standard("cluster.local", key);
    let store = Arc::new(storage::Memory::new(clock.clone()));
    Config {
        version: "v1.37.1+pintle.0.1.0".into(),
        ..Config::new(store, clock.clone(), stdx::Rng::seeded(seed), accounts)
    }
}

impl Server {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let clock = RealClock::shared();
        let mut config = config(&clock, 1);
        change(&mut config);
        Self::from(config, clock).await
    }

    pub async fn from(config: Config, clock: SharedClock) -> Self {
        let stage = Stage::new();
        let api = ApiServer::start(config, &stage).await.expect("starts");
        let root = Client(api.handler(user("root", &["system:masters"])));
        Self { api, clock, stage, root }
    }

    pub fn client(&self, name: &str, groups: &[&str]) -> Client {
        Client(self.api.handler(user(name, groups)))
    }
}

impl Client {
    pub async fn send(&self, method: &str, uri: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let response = self.open(method, uri, headers, body).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.expect("body").to_bytes();
        Answer { code: head.status.as_u16(), headers: head.headers, body }
    }

    /// Without waiting for the body.
    pub async fn open(
        &self,
        method: &str,
        uri: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> transport::Response {
        let mut request = http::Request::builder().method(method).uri(uri).header("user-agent", "tests/1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(transport::full(body)).expect("request");
        self.0.call(request).await.expect("answered")
    }

    pub async fn get(&self, uri: &str) -> Answer {
        self.send("GET", uri, &[], "").await
    }

    pub async fn post(&self, uri: &str, body: &Value) -> Answer {
        self.send("POST", uri, JSON, body.to_string()).await
    }

    pub async fn put(&self, uri: &str, body: &Value) -> Answer {
        self.send("PUT", uri, JSON, body.to_string()).await
    }

    pub async fn delete(&self, uri: &str) -> Answer {
        self.send("DELETE", uri, &[], "").await
    }

    /// `kind` is `merge`, `json` or `strategic-merge`.
    pub async fn patch(&self, kind: &str, uri: &str, body: &Value) -> Answer {
        let media = format!("application/{kind}-patch+json");
        self.send("PATCH", uri, &[("content-type", &media)], body.to_string()).await
    }

    /// Starts a watch.
    pub async fn watch(&self, uri: &str) -> Watch {
        let response = self.open("GET", uri, &[], "").await;
        assert_eq!(response.status(), 200);
        Watch { body: response.into_body(), rest: Vec::new() }
    }
}

pub const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The object, when all went well.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert!((200..300).contains(&self.code), "{} {}", self.code, self.text());
        self.json()
    }

    /// `<code> <reason>: <message>` of a Status.
    pub fn failure(&self) -> String {
        let status = self.json();
        assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(self.code)), "{status}");
        let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
        format!("{} {}: {}", self.code, text("reason"), text("message"))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    pub fn warnings(&self) -> Vec<&str> {
        self.headers.get_all("warning").iter().filter_map(|v| v.to_str().ok()).collect()
    }
}

/// The events of a watch.
pub struct Watch {
    body: Body,
    rest: Vec<u8>,
}

impl Watch {
    /// The next event; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("event"));
            }
            let frame = self.body.frame().await?.expect("frame");
            self.rest.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    }

    /// The next event as `TYPE name@…`: type, name, and whatever `pointer` leads to.
    pub async fn line(&mut self, pointer: &str) -> String {
        let event = self.next().await.expect("an event");
        let at = |pointer: &str| event.pointer(pointer).map(|v| v.as_str().map_or(v.to_string(), str::to_owned));
        let name = at("/object/metadata/name").unwrap_or_default();
        let more = at(&format!("/object{pointer}")).unwrap_or_default();
        format!("{} {name} {more}", event["type"].as_str().unwrap_or_default())
    }
}

/// All frames of a body, until it ends.
pub async fn frames(body: Body) -> Vec<Bytes> {
    let frames: Vec<Bytes> = body.into_data_stream().map(|f| f.expect("frame")).collect().await;
    // HTTP/2 ends with an empty one.
    frames.into_iter().filter(|f| !f.is_empty()).collect()
}

/// A ConfigMap.
pub fn config_map(name: &str, value: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"k": value}})
}

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
