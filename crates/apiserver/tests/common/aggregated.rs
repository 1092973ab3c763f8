//! A server that answers for an API of its own, as it should or as it pleases, and what registers it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use futures::StreamExt;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use pki::{Authority, Request};
use serde_json::{Value, json};
use stdx::clock::RealClock;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use tokio::net::{TcpListener, TcpStream};
use transport::once::{Dialer, Tcp};
use transport::serve::{Limits, Peer};
use transport::tls::{self, Identity};
use transport::trust::Trust;
use transport::websocket::{self, Protocols, Said, Takeover};
use transport::{Handler, Responding};

use super::{Client, Server};

pub const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// How it behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Good,
    /// Knows only the old form of discovery, and no OpenAPI.
    Old,
    /// Knows OpenAPI v2 only.
    Aged,
    /// Answers nothing, ever.
    Silent,
    /// Its documents never end.
    Endless,
    /// Its documents are of text.
    Babbling,
    /// Its documents are of resources and definitions that belong to others.
    Greedy,
}

/// Addresses of the cluster that are played by sockets of this test.
#[derive(Clone, Default)]
pub struct Plays(Arc<Mutex<HashMap<String, String>>>);

impl Dialer for Plays {
    fn dial(&self, address: &str) -> BoxFuture<'static, std::io::Result<TcpStream>> {
        match self.0.lock().get(address) {
            Some(real) => Tcp.dial(real),
            None => Box::pin(async { Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)) }),
        }
    }
}

/// The server's group and behaviour, and what it was asked.
pub struct Backend {
    pub group: String,
    pub manner: Mutex<Manner>,
    /// Requests for objects: method, path and query, headers.
    pub asked: Mutex<Vec<String>>,
    trust: Trust,
    clock: SharedClock,
}

fn endless() -> transport::Response {
    let frames = futures::stream::repeat_with(|| Ok(bytes::Bytes::from_static(&[b'['; 16 * 1024])));
    http::Response::new(transport::stream(frames))
}

impl Backend {
    fn document(&self, path: &str, accept: &str) -> Option<(String, Value)> {
        let (group, manner) = (self.group.as_str(), *self.manner.lock());
        let root = format!("/apis/{group}/v1");
        let plain = |value: Value| Some(("application/json".to_owned(), value));
        let kind = json!({"group": group, "version": "v1", "kind": "Foo"});
        if path == root {
            return plain(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/v1"),
                "resources": [{"name": "foos", "singularName": "foo", "namespaced": true, "kind": "Foo",
                    "shortNames": ["fo"], "verbs": ["create", "delete", "get", "list", "watch"]}]}));
        }
        if manner == Manner::Old || manner == Manner::Aged && path.starts_with("/openapi/v3") {
            return None;
        }
        let definition = json!({"type": "object", "description": "A foo.", "x-kubernetes-group-version-kind": [kind],
            "properties": {"size": {"type": "integer", "description": "How large it is."},
                "metadata": {"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}}});
        match path {
            "/apis" if accept.contains("v=v2") => {
                let resource = json!({"resource": "foos", "scope": "Namespaced", "singularResource": "foo",
                    "responseKind": kind, "shortNames": ["fo"], "verbs": ["create", "delete", "get", "list", "watch"]});
                let mut items = vec![json!({"metadata": {"name": group},
                    "versions": [{"version": "v1", "resources": [resource], "freshness": "Current"}]})];
                if manner == Manner::Greedy {
                    items.push(json!({"metadata": {"name": "apps"},
                        "versions": [{"version": "v1", "resources": [{"resource": "deployments"}]}]}));
                }
                let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
                    "metadata": {}, "items": items});
                Some((AGGREGATED.to_owned(), list))
            }
            "/openapi/v3" => {
                let mut paths = json!({});
                paths[format!("apis/{group}/v1")] = json!({"serverRelativeURL": format!("/openapi/v3{root}?hash=AB")});
                if manner == Manner::Greedy {
                    paths["apis/apps/v1"] = json!({"serverRelativeURL": "https://elsewhere.example.com/"});
                }
                plain(json!({ "paths": paths }))
            }
            "/openapi/v2" => {
                let mut document = json!({"swagger": "2.0", "info": {"title": "foos", "version": "v1"}, "paths": {},
                    "definitions": {"com.example.Foo": definition,
                        "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {"type": "object"}}});
                document["paths"][format!("{root}/foos")] = json!({"get": {"operationId": "listFoo",
                    "responses": {"200": {"schema": {"$ref": "#/definitions/com.example.Foo"}}}}});
                if manner == Manner::Greedy {
                    document["paths"]["/apis/apps/v1/deployments"] = json!({"get": {"operationId": "lie"}});
                    document["definitions"]["io.k8s.api.core.v1.Pod"] = json!({"description": "lie"});
                }
                plain(document)
            }
            _ if path == format!("/openapi/v3{root}") => {
                plain(json!({"openapi": "3.0.0", "components": {"schemas": {"com.example.Foo": definition}}}))
            }
            _ => None,
        }
    }

    async fn answer(self: Arc<Self>, request: transport::Request) -> transport::Response {
        let (head, body) = request.into_parts();
        let peer = head.extensions.get::<Peer>().expect("a peer").clone();
        let now = tls::unix_time(&self.clock).expect("time");
        let is_proxy = peer.certificates.first().is_some_and(|certificate| {
            let named = certificate.windows(18).any(|bytes| bytes == b"front-proxy-client");
            named && self.trust.judge_client(certificate, &[], now).is_ok()
        });
        let text = |code: u16, text: String| {
            let mut response = http::Response::new(transport::full(text));
            *response.status_mut() = http::StatusCode::from_u16(code).expect("a code");
            response
        };
        if !is_proxy {
            return text(401, "who are you?".into());
        }
        let path = head.uri.path().to_owned();
        let accept = head.headers.get("accept").and_then(|v| v.to_str().ok()).unwrap_or_default();
        let is_list = path == format!("/apis/{}/v1", self.group);
        let manner = *self.manner.lock();
        match manner {
            Manner::Silent => std::future::pending().await,
            // It seems to be there.
            Manner::Endless if path.starts_with("/openapi") || path == "/apis" => return endless(),
            Manner::Babbling if path.starts_with("/openapi") || path == "/apis" => {
                let mut response = text(200, "what ever { you [ want".repeat(1000));
                response.headers_mut().insert("content-type", AGGREGATED.parse().expect("a value"));
                return response;
            }
            _ => {}
        }
        if path.starts_with("/openapi") || path == "/apis" || is_list {
            return match self.document(&path, accept) {
                None => text(404, "404 page not found".into()),
                Some((media, document)) => {
                    let mut response = text(200, document.to_string());
                    response.headers_mut().insert("content-type", media.parse().expect("a value"));
                    response
                }
            };
        }
        let mut lines = vec![format!("{} {}", head.method, head.uri)];
        lines.extend(head.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap_or("?"))));
        let said = lines.join("\n");
        self.asked.lock().push(said.clone());
        if websocket::is_asked(&head.headers) {
            let takeover = Takeover::of(&head.extensions).expect("it can be taken over");
            let (response, _) = websocket::accept(&takeover, &head.headers, Protocols::Named).expect("accepted");
            let clock = self.clock.clone();
            let words = futures::stream::iter(["hello", "again"]).map(|word| Said::Text(word.into()));
            tokio::spawn(websocket::send(takeover, words, clock, Duration::from_secs(10)));
            return response;
        }
        if head.uri.query().is_some_and(|query| query.contains("watch=1")) {
            let event = |name: &str| {
                let object = json!({"kind": "Foo", "metadata": {"name": name}});
                Ok(bytes::Bytes::from(format!("{}\n", json!({"type": "ADDED", "object": object}))))
            };
            // It stays open after the second.
            let events = futures::stream::iter([event("a"), event("b")]).chain(futures::stream::pending());
            return http::Response::new(transport::stream(events));
        }
        if path.ends_with("/moved") {
            let mut response = text(302, String::new());
            response.headers_mut().insert("location", "https://127.0.0.1:1/".parse().expect("a value"));
            return response;
        }
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        text(200, format!("{said}\n\n{} bytes", body.len()))
    }
}

struct Door(Arc<Backend>);

impl Handler for Door {
    fn call(&self, request: transport::Request) -> Responding {
        let backend = self.0.clone();
        Box::pin(async move { Ok(backend.answer(request).await) })
    }
}

/// A server of ours, and those that answer for others.
pub struct World {
    pub server: Server,
    pub authority: Authority,
    clock: SharedClock,
    front: Authority,
    plays: Plays,
    pub serving: Stage,
}

impl World {
    pub async fn start() -> Self {
        let clock = RealClock::shared();
        let authority = Authority::generate("serving", clock.wall()).expect("authority");
        let front = Authority::generate("front-proxy-ca", clock.wall()).expect("authority");
        let issued = front.issue(&Request::client("front-proxy-client", ""), clock.wall()).expect("issued");
        let shown = Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("identity");
        let plays = Plays::default();
        let (dialer, roots) = (plays.clone(), authority.roots().expect("roots"));
        let server = Server::start_with(|config| {
            config.dialer = Arc::new(dialer);
            config.client_ca = Some(roots.into());
            config.aggregation = apiserver::aggregation::Options { identity: Some(shown), to_endpoints: false };
        })
        .await;
        Self { server, authority, clock, front, plays, serving: Stage::new() }
    }

    pub fn root(&self) -> &Client {
        &self.server.root
    }

    /// Starts a server for the group behind the address, which a Service of this name has.
    pub async fn backend(&self, name: &str, ip: &str, manner: Manner) -> Arc<Backend> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        self.plays.0.lock().insert(format!("{ip}:443"), listener.local_addr().expect("address").to_string());
        let request = Request::server(name, [format!("{name}.default.svc").as_str()]);
        let issued = self.authority.issue(&request, self.clock.wall()).expect("issued");
        let own = Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("identity");
        let config = tls::server(&self.clock, own).expect("TLS");
        let backend = Arc::new(Backend {
            group: format!("{name}.example.com"),
            manner: Mutex::new(manner),
            asked: Mutex::default(),
            trust: self.front.roots().expect("roots").into(),
            clock: self.clock.clone(),
        });
        let (handler, stage, clock) = (Arc::new(Door(backend.clone())), self.serving.clone(), self.clock.clone());
        self.serving.spawn(async move {
            drop(transport::serve::serve(listener, config, handler, Limits::default(), clock, &stage).await);
        });
        backend
    }

    /// The server is gone: nobody listens there any more.
    pub fn kill(&self, ip: &str) {
        self.plays.0.lock().remove(&format!("{ip}:443"));
    }

    pub async fn service(&self, name: &str, ip: &str) {
        let service = json!({"metadata": {"name": name},
            "spec": {"clusterIP": ip, "ports": [{"name": "https", "port": 443}]}});
        self.root().post("/api/v1/namespaces/default/services", &service).await.ok();
    }

    pub async fn endpoints(&self, name: &str) {
        let slice = json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "ports": [{"name": "https", "port": 8443}],
            "endpoints": [{"addresses": ["10.9.9.9"]}]});
        self.root().post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice).await.ok();
    }

    pub fn api_service(&self, name: &str) -> Value {
        let bundle = base64::engine::general_purpose::STANDARD.encode(self.authority.certificate());
        json!({"metadata": {"name": format!("v1.{name}.example.com")}, "spec": {
            "group": format!("{name}.example.com"), "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 10,
            "caBundle": bundle, "service": {"namespace": "default", "name": name}}})
    }

    /// Everything that belongs to a server, which is then there or not.
    pub async fn register(&self, name: &str, ip: &str) {
        self.service(name, ip).await;
        self.endpoints(name).await;
        self.root().post(API_SERVICES, &self.api_service(name)).await.ok();
    }

    /// Waits until the condition `Available` has this status and reason; its message.
    pub async fn available(&self, name: &str, status: &str, reason: &str) -> String {
        let path = format!("{API_SERVICES}/v1.{name}.example.com");
        let is_it = |value: &Value| super::custom::condition(value, "Available") == Some((status, reason));
        let value = super::custom::until(&self.server, &path, |_, value| is_it(value)).await;
        value["status"]["conditions"][0]["message"].as_str().unwrap_or_default().to_owned()
    }

    /// The group in the new form of discovery.
    pub async fn discovered(&self, name: &str) -> Value {
        let list = self.root().send("GET", "/apis", &[("accept", AGGREGATED)], "").await.ok();
        let group = format!("{name}.example.com");
        let mut items = list["items"].as_array().into_iter().flatten();
        items.find(|item| item["metadata"]["name"] == *group).cloned().unwrap_or_default()
    }

    /// Waits until what is discovered of the group is as it should be.
    pub async fn until_discovered(&self, name: &str, done: impl Fn(&Value) -> bool + Sync) -> Value {
        let ask = async {
            loop {
                let group = self.discovered(name).await;
                if done(&group) {
                    return group;
                }
                self.clock.sleep(Duration::from_millis(5)).await;
            }
        };
        let found = self.clock.timeout(Duration::from_secs(30), ask).await;
        found.unwrap_or_else(|_| panic!("{name} is not discovered"))
    }

    /// Lets somebody do everything with foos of the group.
    pub async fn allow(&self, user: &str, name: &str) {
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let rule = json!({"apiGroups": [format!("{name}.example.com")], "resources": ["*"], "verbs": ["*"]});
        let role = json!({"metadata": {"name": name}, "rules": [rule]});
        self.root().post(&format!("{rbac}/clusterroles"), &role).await.ok();
        let binding = json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]});
        self.root().post(&format!("{rbac}/clusterrolebindings"), &binding).await.ok();
    }
}
