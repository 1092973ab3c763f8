//! The server, asked as the API server and others would ask it.

use super::*;
use crate::runtime::fake::Fake;
use crate::runtime::{ContainerState, PodState, Sandbox};
use http_body_util::BodyExt;
use serde_json::{Value, json};

#[test]
fn routes() {
    let own = |route| Some(Route::Node(route));
    assert_eq!(Route::parse("/healthz"), own(node::Route::Healthz(None)));
    assert_eq!(Route::parse("/healthz/ping"), own(node::Route::Healthz(Some("ping".into()))));
    assert_eq!(Route::parse("/pods"), own(node::Route::Pods));
    assert_eq!(Route::parse("/runningpods/"), own(node::Route::RunningPods));
    assert_eq!(Route::parse("/%6detrics/resource"), own(node::Route::Resource));
    assert_eq!(Route::parse("/logs/a/b.log"), own(node::Route::Logs("a/b.log".into())));
    let logs = |n: &str, p: &str, c: &str| {
        Some(Route::ContainerLogs { namespace: n.into(), pod: p.into(), container: c.into() })
    };
    assert_eq!(Route::parse("/containerLogs/ns/p/c"), logs("ns", "p", "c"));
    assert_eq!(Route::parse("/containerLogs/ns/p%2d1/c%2F.."), logs("ns", "p-1", "c/.."));
    let whose = |uid: Option<&str>, container: &str| Whose {
        namespace: "ns".into(),
        pod: "p".into(),
        uid: uid.map(Into::into),
        container: container.into(),
    };
    for (path, want) in [
        ("/exec/ns/p/c", Route::Stream(Verb::Exec, whose(None, "c"))),
        ("/exec/ns/p/u/c", Route::Stream(Verb::Exec, whose(Some("u"), "c"))),
        ("/attach/ns/p/c", Route::Stream(Verb::Attach, whose(None, "c"))),
        ("/portForward/ns/p", Route::Stream(Verb::PortForward, whose(None, ""))),
        ("/portForward/ns/p/u", Route::Stream(Verb::PortForward, whose(Some("u"), ""))),
        ("/run/ns/p/u/c", Route::Run(whose(Some("u"), "c"))),
    ] {
        assert_eq!(Route::parse(path), Some(want), "{path}");
    }
    let nothing = ["/", "/containerLogs/ns/p", "/containerLogs/ns/p/c/d", "/%ff", "/%", "/pods/x", "/run/ns/p"];
    for bad in nothing.into_iter().chain(["/exec/ns/p", "/exec/ns/p/u/c/x", "/portForward/ns", "/portForward/ns/p/u/x"])
    {
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

struct FakePods(Vec<watch::Sender<View>>, parking_lot::Mutex<Vec<View>>);

impl Pods for FakePods {
    fn find(&self, namespace: &str, name: &str) -> Option<watch::Receiver<View>> {
        let is = |v: &&watch::Sender<View>| v.borrow().pod.namespace == namespace && v.borrow().pod.name == name;
        self.0.iter().find(is).map(watch::Sender::subscribe)
    }

    fn all(&self) -> Vec<View> {
        self.0.iter().map(|v| v.borrow().clone()).chain(self.1.lock().clone()).collect()
    }
}

pub(super) struct Bench {
    pub(super) server: Server,
    pub(super) runtime: Fake,
    pods: Arc<FakePods>,
    logs: tempfile::TempDir,
    ca: Ca,
    _stats: tempfile::TempDir,
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

fn issue(ca: &Ca, name: &str, until: i32) -> (rcgen::Certificate, rcgen::KeyPair) {
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("params");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let key = rcgen::KeyPair::generate().expect("a key");
    (params.signed_by(&key, &ca.issuer).expect("signed"), key)
}

fn peer(ca: &Ca, name: &str) -> transport::serve::Peer {
    transport::serve::Peer {
        address: "127.0.0.1:1".parse().expect("an address"),
        certificates: vec![issue(ca, name, 4000).0.der().clone()].into(),
    }
}

impl Bench {
    pub(super) fn new(allowed: &'static [&'static str]) -> Self {
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
            "metadata": {"namespace": "ns", "name": "p", "uid": "u-0"},
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
        let sandbox = Sandbox {
            id: "sid".into(),
            attempt: 0,
            ready: true,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            ips: Vec::new(),
            host_network: false,
        };
        let seen = PodState { containers: vec![running], sandboxes: vec![sandbox] };
        let view = View {
            pod,
            seen: Arc::new(seen),
            status: Arc::new(status.expect("a status")),
            looked: true,
            cleaned: false,
        };
        let pods = Arc::new(FakePods(vec![watch::channel(view).0], Default::default()));
        let (log_root, stage, runtime) = (logs.path().to_owned(), Stage::new(), Fake::default());
        let sim = crate::sync::sim::bare(logs.path());
        let stats = crate::stats::tests::Bench::new(false);
        let about = node::About {
            ctx: sim.clone(),
            stats: stats.stats,
            config: json!({"maxPods": 110}),
            log_folder: Some(logs.path().to_owned()),
            debug: transport::debug::Debug::none().with_profiling(["kubelet".to_owned()]),
            listed: Default::default(),
        };
        *pods.1.lock() = vec![stats.view];
        let server = Server {
            pods: pods.clone(),
            gate,
            clock,
            log_root,
            stage,
            about: Arc::new(about),
            runtime: Arc::new(runtime.clone()),
            stream_idle: Duration::from_secs(3600),
        };
        Self { server, runtime, pods, logs, ca, _stats: stats.dir }
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

const ALL: &[&str] = &[
    "apiserver get proxy",
    "apiserver get metrics",
    "apiserver get stats",
    "apiserver get log",
    "apiserver create checkpoint",
    "alice get healthz",
    "alice get pods",
];

/// As a client of the same process, which shows that certificate.
async fn ask_nearby(bench: &Bench, (certificate, key): (rcgen::Certificate, rcgen::KeyPair)) -> u16 {
    let identity = transport::tls::Identity::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
    let roots = rustls::RootCertStore::empty();
    let config = transport::tls::client(&bench.server.clock, roots, Some(identity.expect("one"))).expect("TLS");
    let mut connection = http::Extensions::new();
    connection.insert(hyper::upgrade::on(http::Request::new(())));
    let takeover = transport::websocket::Takeover::of(&connection).expect("a connection");
    let (door, near) = transport::near::pair();
    let _open = door.open("n1", Arc::new(bench.server.clone()));
    let request = http::Request::post("/exec/ns/none/c?command=x").body(transport::empty()).expect("a request");
    let answering = near.call("n1", request, &config, &takeover).unwrap_or_else(|_| panic!("the door is open"));
    answering.await.expect("an answer").status().as_u16()
}

#[tokio::test]
async fn who_comes_from_the_same_process_is_judged_as_everybody() {
    let bench = Bench::new(&["apiserver create proxy"]);
    for (shown, want) in [
        // Known and allowed: told what is wrong with its request.
        (issue(&bench.ca, "apiserver", 4000), 400),
        (issue(&bench.ca, "bob", 4000), 403),
        (issue(&bench.ca, "apiserver", 2020), 401),
        (issue(&ca(), "apiserver", 4000), 401),
    ] {
        assert_eq!(ask_nearby(&bench, shown).await, want);
    }
}

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
    // Whom another says that it speaks for: nobody may.
    let forged = with("/pods", "bad").header("x-remote-user", "alice").header("x-remote-group", "system:masters");
    check(forged, 401, "Unauthorized").await;
    let forged =
        with("/exec/ns/p/c", "good").header("x-remote-user", "apiserver").header("impersonate-user", "apiserver");
    check(forged, 403, "Forbidden (user=alice").await;
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

#[tokio::test]
async fn fine_grained_permissions() {
    for (path, wanted) in [
        ("/pods", "pods proxy"),
        ("/runningpods/", "pods proxy"),
        ("/healthz/syncloop", "healthz proxy"),
        ("/configz", "configz proxy"),
        ("/metrics", "metrics"),
        ("/metrics/cadvisor", "metrics"),
        ("/stats/summary", "stats"),
        ("/logs/", "log"),
        ("/checkpoint/ns/p/c", "checkpoint"),
        ("/containerLogs/ns/p/c", "proxy"),
        // Written otherwise it is no other path.
        ("/%6detrics", "metrics"),
        ("//stats/summary", "stats"),
        ("/metricsx", "proxy"),
        ("/", "proxy"),
        ("/%zz", "proxy"),
    ] {
        let (code, why) = Bench::new(&[]).get(path).await;
        assert!(code == 403 && why.contains(&format!("subresource(s)=[{wanted}]")), "{path}: {why}");
    }
    // Who may do everything else may not look at what is used.
    assert_eq!(Bench::new(&["apiserver get proxy"]).get("/metrics/resource").await.0, 403);
    assert_eq!(Bench::new(&["apiserver get configz"]).get("/configz").await.0, 200);
}

#[tokio::test]
async fn what_is_told_of_the_node() {
    let bench = Bench::new(ALL);
    assert_eq!(bench.get("/healthz?verbose").await.1, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n");
    assert_eq!(bench.get("/healthz/syncloop").await, (200, "ok".to_owned()));
    assert_eq!(bench.get("/healthz/other").await.0, 404);
    assert_eq!(bench.get("/configz").await, (200, r#"{"kubeletconfig":{"maxPods":110}}"#.to_owned()));
    let json = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
    let running = json(bench.get("/runningpods/").await.1);
    let item = &running["items"][1];
    assert_eq!(item["metadata"], json!({"name": "p", "namespace": "ns", "uid": "u-1"}));
    assert_eq!(item["spec"]["containers"], json!([{"name": "c", "image": "i", "resources": {}}]));
    let summary = json(bench.get("/stats/summary").await.1);
    assert_eq!(summary["pods"].as_array().map(Vec::len), Some(2));
    assert!(summary["node"]["fs"]["capacityBytes"].as_u64().is_some_and(|n| n > 0), "{summary}");
    let less = json(bench.get("/stats/summary?only_cpu_and_memory=true").await.1);
    assert_eq!(less["node"].get("fs"), None);
    assert!(bench.get("/logs/").await.1.contains("<a href=\"0.log\">0.log</a>"));
    assert_eq!(bench.get("/logs/0.log").await.0, 200);
    assert_eq!(bench.get("/logs/../secret").await.0, 404);
    let mut bench = bench;
    Arc::get_mut(&mut bench.server.about).expect("nobody else's").log_folder = None;
    for path in ["/logs/", "/logs/0.log"] {
        assert_eq!(bench.get(path).await.0, 404, "switched off");
    }
}

#[tokio::test]
async fn pages_are_strictly_what_prometheus_reads() {
    let bench = Bench::new(ALL);
    let metrics = &bench.server.about.ctx.metrics;
    metrics.registry.standard(crate::metrics::BUILD, "v1.37.1");
    let pod = bench.pods.all()[0].pod.clone();
    metrics.probed(&pod, "c", crate::probe::threshold::Kind::Readiness, "failed", std::time::Duration::from_millis(7));
    let mut pages = std::collections::BTreeMap::new();
    for path in ["/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/metrics"] {
        let (code, text) = bench.get(path).await;
        assert_eq!(code, 200, "{path}: {text}");
        pages.insert(path, stdx::metrics::read::read(&text).unwrap_or_else(|bad| panic!("{path}: {bad}\n{text}")));
    }
    let value = |path: &str, name: &str, labels: &[(&str, &str)]| {
        let is = |s: &&stdx::metrics::read::Sample| s.name == name && labels.iter().all(|(l, v)| s.label(l) == *v);
        pages[path].iter().find(is).map(|s| s.value)
    };
    let container = [("container", "c"), ("namespace", "ns"), ("pod", "p")];
    for (name, want) in [
        ("container_cpu_usage_seconds_total", Some(1.0)),
        ("container_memory_working_set_bytes", Some(4000.0)),
        ("container_start_time_seconds", Some(1_799_999_999.0)),
        ("container_swap_limit_bytes", None),
    ] {
        let found = pages["/metrics/resource"].iter().filter(|s| s.name == name && s.label("container") == "c");
        assert_eq!(found.map(|s| s.value).next_back(), want, "{name}");
    }
    assert_eq!(value("/metrics/resource", "node_cpu_usage_seconds_total", &[]), Some(2.0));
    assert_eq!(value("/metrics/resource", "resource_scrape_error", &[]), Some(0.0));
    assert_eq!(value("/metrics/resource", "pod_memory_working_set_bytes", &container[1..]), Some(4000.0));
    let id = [("id", "/kubepods/besteffort/podu-1/cid"), ("container", "c"), ("name", "cid"), ("image", "i")];
    assert_eq!(value("/metrics/cadvisor", "container_memory_rss", &id), Some(1024.0));
    let sandbox = [("name", "sid"), ("pod", "p"), ("interface", "eth0")];
    assert_eq!(value("/metrics/cadvisor", "container_network_transmit_bytes_total", &sandbox), Some(20.0));
    assert_eq!(value("/metrics/cadvisor", "machine_memory_bytes", &[]), Some(102_400.0));
    let probe = [("probe_type", "Readiness"), ("result", "failed"), ("container", "c"), ("pod_uid", pod.uid.as_str())];
    assert_eq!(value("/metrics/probes", "prober_probe_total", &probe), Some(1.0));
    let request = [("method", "GET"), ("path", "metrics/cadvisor"), ("long_running", "false")];
    assert_eq!(value("/metrics", "kubelet_http_requests_total", &request), Some(1.0));
    assert!(value("/metrics", "process_resident_memory_bytes", &[]).is_some_and(|n| n > 0.0));
    metrics.forget(&pod);
    assert_eq!(bench.get("/metrics/probes").await.1, "");
    let namesake = json!({"metadata": {"namespace": "other", "name": "p", "uid": "u-2"}, "spec": {"containers": []}});
    let namesake = crate::pod::tests::pod(namesake);
    for pod in [&pod, &namesake] {
        metrics.probed(
            pod,
            "c",
            crate::probe::threshold::Kind::Readiness,
            "failed",
            std::time::Duration::from_millis(7),
        );
    }
    metrics.forget(&pod);
    let left = bench.get("/metrics/probes").await.1;
    assert!(left.contains("namespace=\"other\"") && !left.contains("namespace=\"ns\""), "{left}");
}

#[tokio::test]
async fn a_runtime_that_cannot_checkpoint_says_so() {
    let bench = Bench::new(ALL);
    let post = async |path: &str| {
        let request = http::Request::post(path).extension(peer(&bench.ca, "apiserver"));
        let (code, body) = bench.ask(request).await;
        let text = transport::read(body, 1 << 20).await.expect("a body");
        (code, String::from_utf8_lossy(&text).into_owned())
    };
    let (code, why) = post("/checkpoint/ns/p/c").await;
    assert_eq!(code, 500);
    assert!(why.starts_with("checkpointing of ns/p/c failed (rpc error: code = Unimplemented desc = "), "{why}");
    assert_eq!(post("/checkpoint/ns/q/c").await, (404, "pod does not exist".to_owned()));
    assert_eq!(post("/checkpoint/ns/p/x").await, (404, "container x does not exist".to_owned()));
    assert_eq!(post("/checkpoint/ns/p/c?timeout=x").await, (404, "cannot parse value of timeout parameter".to_owned()));
    // It is asked for by POST only.
    assert_eq!(bench.get("/checkpoint/ns/p/c").await.0, 403);
}

#[test]
fn a_request_is_in_flight_until_it_is_dropped() {
    let clock: stdx::clock::SharedClock =
        std::sync::Arc::new(stdx::clock::ManualClock::new(jiff::Timestamp::UNIX_EPOCH));
    let metrics = crate::metrics::Metrics::default();
    let shown = || {
        let page = metrics.registry.page();
        let of = |name: &str| {
            page.lines().find(|l| l.starts_with(name)).and_then(|l| l.rsplit(' ').next()).map(str::to_owned)
        };
        (of("kubelet_http_inflight_requests{"), of("kubelet_http_requests_duration_seconds_count{"))
    };
    let one = super::node::InFlight::begin(&metrics, &clock, &http::Method::GET, "/containerLogs/ns/p/c");
    assert!(one.is_stream);
    assert_eq!(shown(), (Some("1".into()), None));
    drop(one);
    assert_eq!(shown(), (Some("0".into()), Some("1".into())));
}
