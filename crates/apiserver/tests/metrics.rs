//! What the server says of itself: the paths it answers to, and what it has done so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::Server;
use futures::FutureExt;
use pki::{Authority, Request};
use serde_json::json;
use stdx::clock::RealClock;
use stdx::shutdown::Stage;
use transport::serve::Limits;
use transport::tls::{self, Identity};
use transport::{Handler, Responding};

mod common;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// The value of a line of metrics; panics when there is none.
fn value(text: &str, name: &str, labels: &[&str]) -> f64 {
    let is_wanted = |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
    let line = text.lines().find(is_wanted).unwrap_or_else(|| panic!("no {name} {labels:?} in\n{text}"));
    line.rsplit(' ').next().and_then(|v| v.parse().ok()).expect("a number")
}

#[tokio::test]
async fn every_path_is_listed_to_who_may_see_them() {
    let server = Server::start().await;
    for path in ["/", "/index.html"] {
        let answer = server.root.get(path).await;
        assert_eq!((answer.code, answer.header("content-type")), (200, "application/json"));
        let listed = answer.json();
        let paths: Vec<&str> = listed["paths"].as_array().expect("paths").iter().filter_map(|p| p.as_str()).collect();
        for wanted in
            ["/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/healthz/ping", "/metrics", "/version"]
        {
            assert!(paths.contains(&wanted), "{wanted} is not in {paths:?}");
        }
        assert!(paths.is_sorted());
        for path in paths.iter().filter(|p| !p.contains("/open")) {
            assert_eq!(server.root.get(path).await.code, 200, "{path}");
        }
    }
    let stranger = server.client("somebody", &["system:authenticated"]);
    assert_eq!(stranger.get("/").await.code, 403);
    assert_eq!(stranger.get("/metrics").await.code, 403);
}

#[tokio::test]
async fn requests_are_counted_under_what_they_asked_for() {
    let server = Server::start().await;
    let root = &server.root;
    root.post(SECRETS, &json!({"metadata": {"name": "a"}})).await.ok();
    root.post(&format!("{SECRETS}?dryRun=All"), &json!({"metadata": {"name": "b"}})).await.ok();
    root.get(&format!("{SECRETS}/nothing")).await;
    root.get("/apis/no.such/v1/things").await;
    root.get("/no/such/path").await;
    let mut watch = root.watch(&format!("{SECRETS}?watch=1")).await;
    watch.next().await.expect("an event");

    let scrape = server.root.get("/metrics").await;
    assert!(scrape.header("content-type").starts_with("text/plain; version=0.0.4"), "{:?}", scrape.headers);
    let text = scrape.text();
    let secrets = ["resource=\"secrets\"", "version=\"v1\"", "component=\"apiserver\""];
    let of = |more: &[&'static str]| [&secrets[..], more].concat();
    let total = "apiserver_request_total";
    assert_eq!(value(&text, total, &of(&["verb=\"POST\"", "code=\"201\"", "dry_run=\"\"", "scope=\"resource\""])), 1.0);
    assert_eq!(value(&text, total, &of(&["verb=\"POST\"", "code=\"201\"", "dry_run=\"All\""])), 1.0);
    assert_eq!(value(&text, total, &of(&["verb=\"GET\"", "code=\"404\""])), 1.0);
    assert_eq!(value(&text, total, &["resource=\"\"", "verb=\"LIST\"", "code=\"404\""]), 1.0);
    assert!(!text.contains("no.such"), "a label that a client wrote");
    let running = "apiserver_longrunning_requests";
    assert_eq!(value(&text, running, &of(&["verb=\"WATCH\"", "scope=\"namespace\""])), 1.0);
    let counted = value(&text, "apiserver_request_duration_seconds_count", &of(&["verb=\"POST\"", "dry_run=\"\""]));
    assert_eq!(counted, 1.0);
    for name in [
        "apiserver_current_inflight_requests{request_kind=\"mutating\"}",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_open_fds",
    ] {
        assert!(value(&text, name, &[]) >= 0.0, "{name}");
    }
    // Each name is told once, before its values.
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert_eq!(text.matches(&format!("# TYPE {family} ")).count(), 1, "{line}");
    }

    drop(watch);
    let text = server.root.get("/metrics").await.text();
    assert!(!text.lines().any(|l| l.starts_with(running) && l.contains("secrets")), "the watch has ended");
    assert_eq!(value(&text, total, &of(&["verb=\"WATCH\"", "code=\"200\""])), 1.0);
}

#[tokio::test]
async fn indicators_of_health_are_counted_and_reset() {
    let server = Server::start().await;
    let text = server.root.get("/metrics/slis").await.text();
    assert!(!text.contains("kubernetes_healthcheck"), "nobody has asked: {text}");
    assert_eq!(server.root.get("/readyz").await.code, 200);
    assert_eq!(server.root.get("/livez").await.code, 200);
    let answer = server.root.get("/metrics/slis").await;
    assert!(answer.header("content-type").starts_with("text/plain; version=0.0.4"));
    let text = answer.text();
    for line in [
        "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.",
        "# TYPE kubernetes_healthcheck gauge",
        "kubernetes_healthcheck{name=\"ping\",type=\"livez\"} 1",
        "kubernetes_healthcheck{name=\"poststarthook/rbac/bootstrap-roles\",type=\"readyz\"} 1",
        "# TYPE kubernetes_healthchecks_total counter",
        "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"readyz\"} 1",
        "# TYPE process_start_time_seconds gauge",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    let stranger = server.client("somebody", &["system:authenticated"]);
    assert_eq!(stranger.get("/metrics/slis").await.code, 403);
    let reset = server.root.delete("/metrics/slis").await;
    assert_eq!((reset.code, reset.text().as_str()), (200, "metrics reset\n"));
    assert!(!server.root.get("/metrics/slis").await.text().contains("kubernetes_healthcheck"));
}

/// A kubelet whose node uses half a processor, and whose pod a tenth; each answer is two seconds later.
#[derive(Default)]
struct Kubelet {
    asked: AtomicU64,
}

impl Handler for Kubelet {
    fn call(&self, request: transport::Request) -> Responding {
        let n = self.asked.fetch_add(1, Ordering::Relaxed);
        let path = request.uri().path().to_owned();
        Box::pin(async move {
            assert_eq!(path, "/metrics/resource");
            let at = 1_800_000_000_000 + n * 2000;
            let labels = "{container=\"c\",namespace=\"default\",pod=\"a\"}";
            let text = format!(
                "# TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total {n} {at}\n\
                 # TYPE node_memory_working_set_bytes gauge\nnode_memory_working_set_bytes 4194304 {at}\n\
                 # TYPE container_cpu_usage_seconds_total counter\n\
                 container_cpu_usage_seconds_total{labels} {} {at}\n\
                 # TYPE container_memory_working_set_bytes gauge\n\
                 container_memory_working_set_bytes{labels} 6144 {at}\n\
                 # TYPE container_start_time_seconds gauge\ncontainer_start_time_seconds{labels} 1700000000\n",
                n as f64 / 5.0,
            );
            Ok(http::Response::new(transport::full(text)))
        })
    }
}

#[tokio::test]
async fn what_nodes_and_pods_use_is_what_kubelets_tell_twice() {
    let (clock, kubelet, serving) = (RealClock::shared(), Arc::new(Kubelet::default()), Stage::new());
    let authority = Authority::generate("test", clock.wall()).expect("authority");
    let issue = |request: &Request| {
        let issued = authority.issue(request, clock.wall()).expect("issued");
        Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("identity")
    };
    let own = issue(&Request::client("kube-apiserver-kubelet-client", "system:masters"));
    let client = Arc::new(tls::client(&clock, authority.roots().expect("roots"), Some(own)).expect("TLS"));
    let server = Server::start_with(|config| config.kubelet_client = Some(client)).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    let config = tls::server(&clock, issue(&Request::server("system:node:n1", ["n1"]))).expect("TLS");
    let (stage, handler, at) = (serving.clone(), kubelet.clone(), clock.clone());
    serving.spawn(async move {
        transport::serve::serve(listener, config, handler, Limits::default(), at, &stage).await.expect("serves");
    });
    let node = |name: &str, port: u16| {
        json!({"metadata": {"name": name, "labels": {"size": name}}, "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}})
    };
    let root = &server.root;
    root.post("/api/v1/nodes", &node("n1", port)).await.ok();
    // It cannot be reached, which costs nobody else.
    root.post("/api/v1/nodes", &node("n2", 1)).await.ok();
    root.post("/api/v1/namespaces/default/serviceaccounts", &json!({"metadata": {"name": "default"}})).await;
    for name in ["a", "b"] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        root.post("/api/v1/namespaces/default/pods", &pod).await.ok();
    }
    const API: &str = "/apis/metrics.k8s.io/v1beta1";
    let uri = format!("{API}/nodes");
    // One who goes away ends nothing, and all who ask meanwhile share one answer.
    assert!(root.get(&uri).now_or_never().is_none(), "two samples take a while");
    let all = futures::future::join_all((0..50).map(|_| root.get(&uri))).await;
    assert!(all.into_iter().all(|answer| answer.ok()["items"].as_array().map(Vec::len) == Some(1)));
    let nodes = root.get(&uri).await.ok();
    assert_eq!((&nodes["kind"], nodes["items"].as_array().map(Vec::len)), (&json!("NodeMetricsList"), Some(1)));
    let found = &nodes["items"][0];
    assert_eq!((&found["metadata"]["name"], &found["metadata"]["labels"]["size"]), (&json!("n1"), &json!("n1")));
    assert_eq!(found["usage"], json!({"cpu": "500m", "memory": "4Mi"}));
    assert_eq!((&found["window"], &found["timestamp"]), (&json!("2s"), &json!("2027-01-15T08:00:02Z")));
    let pods = root.get(&format!("{API}/pods")).await.ok();
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(1), "{pods:#}");
    let one = root.get(&format!("{API}/namespaces/default/pods/a")).await.ok();
    assert_eq!(one["containers"], json!([{"name": "c", "usage": {"cpu": "100m", "memory": "6Ki"}}]));
    for (uri, want) in [
        ("pods?labelSelector=app%3Db", 0),
        ("namespaces/default/pods?labelSelector=app%3Da", 1),
        ("namespaces/other/pods", 0),
        ("pods?fieldSelector=metadata.name%3Da", 1),
        ("nodes?labelSelector=size%3Dn2", 0),
    ] {
        let list = root.get(&format!("{API}/{uri}")).await.ok();
        assert_eq!(list["items"].as_array().map(Vec::len), Some(want), "{uri}");
    }
    assert_eq!(kubelet.asked.load(Ordering::Relaxed), 2, "all who ask soon get the same");
    for (uri, code, message) in [
        ("nodes/n2", 404, "nodemetrics.metrics.k8s.io \"n2\" not found"),
        ("namespaces/default/pods/b", 404, "podmetrics.metrics.k8s.io \"default/b\" not found"),
    ] {
        let answer = root.get(&format!("{API}/{uri}")).await;
        assert_eq!((answer.code, answer.json()["message"].as_str().unwrap_or_default()), (code, message));
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = root.send("GET", &format!("{API}/pods"), &[("accept", table)], "").await.ok();
    assert_eq!(table["rows"][0]["cells"], json!(["a", "100m", "6Ki", "2s"]));
    assert_eq!(root.post(&format!("{API}/nodes"), &json!({})).await.code, 405);
    // Who may view a namespace sees what its pods use; nodes are for those who may view everything.
    let binding = json!({"metadata": {"name": "v"}, "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"}});
    root.post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", &binding).await.ok();
    let jane = server.client("jane", &["system:authenticated"]);
    assert_eq!(jane.get(&format!("{API}/namespaces/default/pods")).await.code, 200);
    assert_eq!(jane.get(&format!("{API}/nodes")).await.code, 403);
    let registered = root.get("/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io").await.ok();
    assert_eq!(registered["spec"].get("service"), None);
    serving.stop();
}

#[tokio::test]
async fn pages_come_in_the_form_that_is_asked_for_and_a_scrape_leaves_nothing() {
    let server = Server::start().await;
    let accept = [("accept", "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3")];
    let open = server.root.send("GET", "/metrics", &accept, "").await;
    assert!(open.header("content-type").starts_with("application/openmetrics-text; version=1.0.0"));
    assert!(open.text().ends_with("# EOF\n"), "{}", open.text());
    let first = server.root.get("/metrics").await;
    assert!(first.header("content-type").starts_with("text/plain; version=0.0.4"));
    for _ in 0..200 {
        server.root.get("/metrics").await;
    }
    let last = server.root.get("/metrics").await.text();
    assert_eq!(first.text().lines().count(), last.lines().count(), "{last}");
}

#[tokio::test]
async fn admission_and_watches_are_counted() {
    let server = Server::start().await;
    let mut watch = server.root.watch("/api/v1/configmaps?watch=1").await;
    let created = common::config_map("a", "1");
    server.root.post("/api/v1/namespaces/default/configmaps", &created).await.ok();
    server.root.delete("/api/v1/namespaces/default/configmaps/a").await.ok();
    while watch.next().await.expect("an event")["type"] != "DELETED" {}
    let text = server.root.get("/metrics").await.text();
    const PLUGIN: &str = "apiserver_admission_controller_admission_duration_seconds_count";
    const STEP: &str = "apiserver_admission_step_admission_duration_seconds_count";
    let labels = ["name=\"LimitRanger\"", "operation=\"CREATE\"", "rejected=\"false\"", "type=\"admit\""];
    assert!(value(&text, PLUGIN, &labels) >= 1.0);
    assert!(value(&text, STEP, &["operation=\"DELETE\"", "type=\"validate\"", "rejected=\"false\""]) >= 1.0);
    let of = ["group=\"\"", "version=\"v1\"", "resource=\"configmaps\""];
    assert!(value(&text, "apiserver_watch_events_total", &of) >= 2.0);
    assert!(value(&text, "apiserver_watch_events_sizes_sum", &of) > 100.0);
    // A namespace that is not there is refused by a plugin.
    assert_eq!(server.root.post("/api/v1/namespaces/none/configmaps", &created).await.code, 404);
    let text = server.root.get("/metrics").await.text();
    let refused = ["name=\"NamespaceLifecycle\"", "operation=\"CREATE\"", "rejected=\"true\""];
    assert_eq!(value(&text, PLUGIN, &refused), 1.0);
}

#[tokio::test]
async fn what_is_below_debug_is_for_who_may() {
    let levels = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let to = levels.clone();
    let set = move |text: &str| {
        to.lock().push(text.to_owned());
        Ok(())
    };
    let server = Server::start_with(|config| config.debug = transport::debug::Debug::none().with_level(set)).await;
    let put = server.root.send("PUT", "/debug/flags/v", &[], "4").await;
    assert_eq!((put.code, put.text().as_str()), (200, "successfully set klog.logging.verbosity to 4\n"));
    assert_eq!(server.root.get("/debug/flags/v").await.code, 406);
    assert_eq!(server.root.get("/debug/pprof/").await.code, 404);
    let stranger = server.client("somebody", &["system:authenticated"]);
    assert_eq!(stranger.send("PUT", "/debug/flags/v", &[], "9").await.code, 403);
    assert_eq!(*levels.lock(), ["4"]);
    let without = Server::start().await;
    assert_eq!(without.root.send("PUT", "/debug/flags/v", &[], "4").await.code, 404);
}

/// A node that takes connections and says nothing.
#[tokio::test]
async fn nobody_waits_for_a_ready_node_that_keeps_silent() {
    let (clock, kubelet, serving) = (RealClock::shared(), Arc::new(Kubelet::default()), Stage::new());
    let authority = Authority::generate("test", clock.wall()).expect("authority");
    let issue = |request: &Request| {
        let issued = authority.issue(request, clock.wall()).expect("issued");
        Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("identity")
    };
    let own = issue(&Request::client("kube-apiserver-kubelet-client", "system:masters"));
    let client = Arc::new(tls::client(&clock, authority.roots().expect("roots"), Some(own)).expect("TLS"));
    let server = Server::start_with(|config| config.kubelet_client = Some(client)).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let config = tls::server(&clock, issue(&Request::server("system:node:n1", ["n1"]))).expect("TLS");
    let (stage, handler, at) = (serving.clone(), kubelet.clone(), clock.clone());
    let port = |listener: &tokio::net::TcpListener| listener.local_addr().expect("address").port();
    for (name, port) in [("n1", port(&listener)), ("n2", port(&silent))] {
        let node = json!({"metadata": {"name": name}, "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
        server.root.post("/api/v1/nodes", &node).await.ok();
    }
    serving.spawn(async move {
        transport::serve::serve(listener, config, handler, Limits::default(), at, &stage).await.expect("serves");
    });
    let uri = "/apis/metrics.k8s.io/v1beta1/nodes";
    let (nodes, accepted) = tokio::join!(server.root.get(uri), silent.accept());
    let names: Vec<_> =
        nodes.ok()["items"].as_array().into_iter().flatten().map(|n| n["metadata"]["name"].clone()).collect();
    assert_eq!(names, ["n1"]);
    // The answer came while the silent one was still being waited for by a task of the server's: its connection
    // is open. Whoever had waited for it would have given it up first.
    let (connection, _) = accepted.expect("it was asked");
    let mut said = vec![0; 16 << 10];
    connection.readable().await.expect("it was greeted");
    assert!(connection.try_read(&mut said).expect("a greeting") > 0);
    let more = connection.try_read(&mut said);
    assert!(more.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "{more:?}");
    serving.stop();
}
