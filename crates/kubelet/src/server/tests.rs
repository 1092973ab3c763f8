//! The server, asked as the API server and others would ask it.

use super::*;
use crate::runtime::{ContainerState, PodState};
use http_body_util::BodyExt;
use serde_json::{Value, json};

#[test]
fn routes() {
    assert_eq!(Route::parse("/healthz"), Some(Route::Healthz));
    assert_eq!(Route::parse("/pods"), Some(Route::Pods));
    let logs = |n: &str, p: &str, c: &str| {
        Some(Route::ContainerLogs { namespace: n.into(), pod: p.into(), container: c.into() })
    };
    assert_eq!(Route::parse("/containerLogs/ns/p/c"), logs("ns", "p", "c"));
    assert_eq!(Route::parse("/containerLogs/ns/p%2d1/c%2F.."), logs("ns", "p-1", "c/.."));
    for bad in ["/", "/containerLogs/ns/p", "/containerLogs/ns/p/c/d", "/exec/ns/p/c", "/%ff", "/%", "/pods/x"] {
        assert_eq!(Route::parse(bad), None, "{bad}");
    }
}

#[test]
fn queries() {
    let got = query(Some("follow=true&sinceTime=2026-01-01T00%3A00%3A00Z&x&a+b=%2B"));
    let pairs: Vec<(&str, &str)> = got.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(pairs, [("follow", "true"), ("sinceTime", "2026-01-01T00:00:00Z"), ("x", ""), ("a b", "+")]);
}

/// An API server that knows one token and what its user may do, and counts who asks.
struct Reviews {
    allowed: &'static [&'static str],
}

impl Handler for Reviews {
    fn call(&self, request: Request) -> Responding {
        let allowed = self.allowed;
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let bytes = transport::read(body, 1 << 20).await.map_err(|e| transport::Error::Broken(e.to_string()))?;
            let mut review: Value = serde_json::from_slice(&bytes).expect("JSON");
            review["status"] = match parts.uri.path() {
                "/apis/authentication.k8s.io/v1/tokenreviews" => match review["spec"]["token"].as_str() {
                    Some("good") => json!({"authenticated": true, "user": {"username": "alice", "groups": ["g"]}}),
                    _ => json!({"authenticated": false}),
                },
                "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
                    let wish = &review["spec"]["resourceAttributes"];
                    assert_eq!((wish["resource"].as_str(), wish["name"].as_str()), (Some("nodes"), Some("n1")));
                    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
                    let asked = format!(
                        "{} {} {}",
                        text(&review["spec"]["user"]),
                        text(&wish["verb"]),
                        text(&wish["subresource"])
                    );
                    json!({"allowed": allowed.contains(&asked.as_str())})
                }
                other => panic!("unexpected {other}"),
            };
            Ok(Response::new(transport::full(review.to_string())))
        })
    }
}

struct FakePods(Vec<watch::Sender<View>>);

impl Pods for FakePods {
    fn find(&self, namespace: &str, name: &str) -> Option<watch::Receiver<View>> {
        let is = |v: &&watch::Sender<View>| v.borrow().pod.namespace == namespace && v.borrow().pod.name == name;
        self.0.iter().find(is).map(watch::Sender::subscribe)
    }

    fn all(&self) -> Vec<View> {
        self.0.iter().map(|v| v.borrow().clone()).collect()
    }
}

struct Bench {
    server: Server,
    pods: Arc<FakePods>,
    logs: tempfile::TempDir,
    ca: Ca,
}

struct Ca {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    der: rustls::pki_types::CertificateDer<'static>,
}

fn ca() -> Ca {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("params");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let der = params.self_signed(&key).expect("signed").der().clone();
    Ca { issuer: rcgen::Issuer::new(params, key), der }
}

fn peer(ca: &Ca, name: &str) -> transport::serve::Peer {
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("params");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &ca.issuer).expect("signed").der().clone();
    transport::serve::Peer {
        address: "127.0.0.1:1".parse().expect("an address"),
        certificates: vec![certificate].into(),
    }
}

impl Bench {
    fn new(allowed: &'static [&'static str]) -> Self {
        let clock = stdx::clock::RealClock::shared();
        let (logs, ca) = (tempfile::tempdir().expect("a directory"), ca());
        let client = client::Client::new(Arc::new(Reviews { allowed }), "kubelet");
        let delegate = client::delegated::Delegate::new(client, Vec::new(), Default::default(), clock.clone());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.der.clone()).expect("a root");
        let gate = Gate::new(delegate, Some(roots.into()), "n1", clock.clone());
        let path = logs.path().join("0.log");
        std::fs::write(&path, "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stdout F two\n")
            .expect("written");
        let pod = crate::pod::tests::pod(json!({
            "metadata": {"namespace": "ns", "name": "p"},
            "spec": {"containers": [{"name": "c", "image": "x"}, {"name": "w", "image": "x"}]},
        }));
        let mut running = crate::runtime::fake::container(&pod.containers()[0], "s", ContainerState::Running, 0);
        (running.id, running.log_path) = ("cid".into(), path.display().to_string());
        let status = |name: &str, id: Option<&str>, state: Value| {
            json!({"name": name, "image": "x", "imageID": "", "ready": false, "restartCount": 0,
                   "containerID": id.map(|id| format!("containerd://{id}")), "state": state})
        };
        let status = serde_json::from_value(json!({"containerStatuses": [
            status("c", Some("cid"), json!({"running": {}})),
            status("w", None, json!({"waiting": {"reason": "ContainerCreating"}})),
        ]}));
        let seen = PodState { containers: vec![running], ..PodState::default() };
        let view = View { pod, seen: Arc::new(seen), status: Arc::new(status.expect("a status")) };
        let pods = Arc::new(FakePods(vec![watch::channel(view).0]));
        let (log_root, stage) = (logs.path().to_owned(), Stage::new());
        Self { server: Server { pods: pods.clone(), gate, clock, log_root, stage }, pods, logs, ca }
    }

    async fn ask(&self, request: http::request::Builder) -> (u16, transport::Body) {
        let response = self.server.call(request.body(transport::empty()).expect("a request")).await.expect("an answer");
        (response.status().as_u16(), response.into_body())
    }

    /// As the API server asks, by its certificate.
    async fn get(&self, path: &str) -> (u16, String) {
        let request = http::Request::get(path).extension(peer(&self.ca, "apiserver"));
        let (code, body) = self.ask(request).await;
        let text = transport::read(body, 1 << 20).await.expect("a body");
        (code, String::from_utf8(text.to_vec()).expect("text"))
    }
}

const ALL: &[&str] = &["apiserver get proxy", "alice get healthz", "alice get pods"];

#[tokio::test]
async fn nobody_is_answered_who_is_not_known_and_allowed() {
    let bench = Bench::new(ALL);
    let check = async |request: http::request::Builder, want: u16, part: &str| {
        let (code, body) = bench.ask(request).await;
        let text = transport::read(body, 1 << 20).await.expect("a body");
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(code == want && text.contains(part), "{code} {text}");
    };
    let get = |path: &str| http::Request::get(path);
    let with = |path: &str, token: &str| get(path).header("authorization", format!("Bearer {token}"));
    for path in ["/healthz", "/pods", "/nothing", "/containerLogs/ns/p/c"] {
        check(get(path), 401, "Unauthorized").await;
        check(with(path, "bad"), 401, "Unauthorized").await;
        check(get(path).extension(peer(&ca(), "apiserver")), 401, "Unauthorized").await;
    }
    check(with("/healthz", "good"), 200, "ok").await;
    check(with("/pods", "good"), 200, "\"kind\":\"PodList\"").await;
    let refusal = "Forbidden (user=alice, verb=get, resource=nodes, subresource(s)=[proxy])";
    check(with("/containerLogs/ns/p/c", "good"), 403, refusal).await;
    check(with("/nothing", "good"), 403, refusal).await;
    let trusted = || peer(&bench.ca, "apiserver");
    check(get("/nothing").extension(trusted()), 404, "404 page not found").await;
    check(get("/healthz").extension(trusted()), 200, "ok").await;
    check(http::Request::post("/healthz").extension(trusted()), 403, "verb=create").await;
    check(get("/healthz").extension(peer(&bench.ca, "bob")), 403, "subresource(s)=[healthz proxy]").await;
}

#[tokio::test]
async fn logs_and_what_is_said_in_their_place() {
    let bench = Bench::new(ALL);
    for (path, code, want) in [
        ("ns/p/c", 200, "one\ntwo\n"),
        ("ns/p/c?tailLines=1&timestamps=true", 200, "2026-01-01T00:00:00Z two\n"),
        ("ns/p/c?limitBytes=2", 200, "on"),
        ("ns/p/w", 400, "container \"w\" in pod \"p\" is waiting to start: ContainerCreating"),
        ("ns/p/c?previous=true", 400, "previous terminated container \"c\" in pod \"p\" not found"),
        ("ns/p/x", 404, "container \"x\" not found in pod \"p\"\n"),
        ("ns/q/c", 404, "pod \"q\" does not exist\n"),
        ("ns/p/c?tailLines=x", 400, "{\"message\": \"Unable to decode query.\"}"),
        ("ns/p/c?tailLines=-1", 422, "{\"message\": \"Invalid request.\"}"),
    ] {
        assert_eq!(bench.get(&format!("/containerLogs/{path}")).await, (code, want.to_owned()), "{path}");
    }
    std::fs::remove_file(bench.logs.path().join("0.log")).expect("removed");
    let (code, text) = bench.get("/containerLogs/ns/p/c").await;
    assert!(code == 400 && text.starts_with("failed to try resolving symlinks in path"), "{code} {text}");
    // A path that the runtime gives is not believed.
    let outside = tempfile::NamedTempFile::new().expect("a file");
    bench.pods.0[0].send_modify(|view| {
        let mut seen = PodState::clone(&view.seen);
        seen.containers[0].log_path = outside.path().display().to_string();
        view.seen = Arc::new(seen);
    });
    assert_eq!(bench.get("/containerLogs/ns/p/c").await.0, 400);
}

#[tokio::test]
async fn followers_are_let_go_when_the_container_ends_or_the_server_stops() {
    for stop in [false, true] {
        let bench = Bench::new(ALL);
        let path = "/containerLogs/ns/p/c?follow=true&tailLines=1";
        let (code, mut body) = bench.ask(http::Request::get(path).extension(peer(&bench.ca, "apiserver"))).await;
        assert_eq!(code, 200);
        let frame = body.frame().await.expect("a frame").expect("whole");
        assert_eq!(frame.into_data().expect("data"), "two\n");
        if stop {
            bench.server.stage.stop();
        } else {
            bench.pods.0[0].send_modify(|view| {
                let mut seen = PodState::clone(&view.seen);
                seen.containers[0].state = ContainerState::Exited;
                view.seen = Arc::new(seen);
            });
        }
        assert!(body.frame().await.is_none());
    }
}
