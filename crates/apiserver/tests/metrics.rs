//! What the server says of itself: the paths it answers to, and what it has done so far.

use common::Server;
use serde_json::json;

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
