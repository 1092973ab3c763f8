//! `/metrics`: what the server has done, in Prometheus' text form, under upstream's names.
//!
//! Labels come from what is served, never from what a client writes, and there are at most
//! [`SERIES`] of them: what is beyond is counted without saying of which resource.

pub mod admission;
pub mod watches;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use parking_lot::Mutex;
use stdx::SharedClock;
use stdx::clock::Instant;
use stdx::metrics::{Form, Page, Registry, Type, process};

use crate::aggregation;
use crate::chain::Call;
use crate::encode;
use crate::request::{Query, RequestInfo};
use crate::server::ApiServer;
use crate::verbs::patch;

/// Label sets that are told apart.
const SERIES: usize = 4096;
/// The upper ends of the durations' buckets, in seconds.
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// What is known of one label set.
#[derive(Default)]
struct Series {
    /// Answers by their code.
    codes: BTreeMap<u16, u64>,
    /// How many fell into each bucket; the last is for what is longer than all of them.
    buckets: [u64; BUCKETS.len() + 1],
    seconds: f64,
    /// Streams that go on.
    running: u64,
}

/// Counts requests. Clones share it.
#[derive(Clone, Default)]
pub struct Metrics {
    requests: Arc<Mutex<BTreeMap<String, Series>>>,
    pub admission: Arc<admission::Admission>,
    pub watches: watches::Watches,
    /// Of the components that run in this process beside the server: its page shows what they count, too.
    pub registry: Registry,
}

/// A request that is being served; its end is counted when this is dropped or told its code.
pub struct Running {
    metrics: Metrics,
    clock: SharedClock,
    labels: String,
    began: Instant,
    code: u16,
    is_stream: bool,
}

impl Metrics {
    /// Of a server with those admission plugins.
    pub fn new(plugins: impl Iterator<Item = &'static str>) -> Self {
        Self { admission: Arc::new(admission::Admission::new(plugins)), ..Self::default() }
    }

    /// A request begins.
    pub fn begin(&self, server: &ApiServer, info: &RequestInfo, query: &Query, head: &http::request::Parts) -> Running {
        let labels = labels(server, info, query, head);
        let clock = server.clock.clone();
        Running { metrics: self.clone(), began: clock.now(), clock, labels, code: 0, is_stream: false }
    }

    fn with(&self, labels: &str, change: impl FnOnce(&mut Series)) {
        let mut requests = self.requests.lock();
        if let Some(series) = requests.get_mut(labels) {
            return change(series);
        }
        let labels = if requests.len() < SERIES { labels.to_owned() } else { label_set(&Names::default()) };
        change(requests.entry(labels).or_default());
    }
}

impl Running {
    /// The answer has begun. What is a stream goes on until its body is dropped with this.
    pub fn answered(&mut self, code: u16, is_stream: bool) {
        (self.code, self.is_stream) = (code, is_stream);
        if is_stream {
            self.metrics.with(&self.labels, |series| series.running += 1);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Whose client hung up before there was an answer.
        let code = if self.code == 0 { 499 } else { self.code };
        let took = self.clock.now().since(self.began);
        self.metrics.with(&self.labels, |series| {
            series.observe(code, took);
            if self.is_stream {
                series.running = series.running.saturating_sub(1);
            }
        });
    }
}

impl Series {
    fn observe(&mut self, code: u16, took: Duration) {
        let seconds = took.as_secs_f64();
        *self.codes.entry(code).or_default() += 1;
        self.buckets[BUCKETS.partition_point(|end| *end < seconds)] += 1;
        self.seconds += seconds;
    }
}

/// What a request is counted under.
#[derive(Default)]
struct Names<'a> {
    dry_run: &'a str,
    group: &'a str,
    resource: &'a str,
    scope: &'a str,
    subresource: &'a str,
    verb: &'a str,
    version: &'a str,
}

fn label_set(names: &Names) -> String {
    let Names { dry_run, group, resource, scope, subresource, verb, version } = names;
    format!(
        "component=\"apiserver\",dry_run=\"{dry_run}\",group=\"{group}\",resource=\"{resource}\",scope=\"{scope}\",\
         subresource=\"{subresource}\",verb=\"{verb}\",version=\"{version}\""
    )
}

fn labels(server: &ApiServer, info: &RequestInfo, query: &Query, head: &http::request::Parts) -> String {
    let is_apply = patch::is_apply(head.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()));
    let dry_run = match query.text("dryRun") {
        None => "",
        Some("All") => "All",
        Some(_) => "invalid",
    };
    let verb = match info.verb.as_str() {
        "get" if head.method == http::Method::HEAD => "HEAD",
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" => "POST",
        "update" => "PUT",
        "patch" if is_apply => "APPLY",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        _ => "other",
    };
    if !info.is_resource {
        let first = info.path.trim_start_matches('/').split('/').next().unwrap_or_default();
        const KNOWN: [&str; 7] = ["healthz", "livez", "readyz", "metrics", "openapi", "version", "apis"];
        let path = KNOWN.iter().find(|known| **known == first).map(|known| format!("/{known}")).unwrap_or_default();
        return label_set(&Names { verb, subresource: &path, ..Names::default() });
    }
    if server.catalogue.find(&info.group, &info.version, &info.resource).is_none() {
        return label_set(&Names { verb, dry_run, ..Names::default() });
    }
    let scope = match info {
        _ if !info.name.is_empty() || info.verb == "create" => "resource",
        _ if !info.namespace.is_empty() => "namespace",
        _ => "cluster",
    };
    let subresource = match info.subresource.as_str() {
        known @ (""
        | "status"
        | "scale"
        | "log"
        | "binding"
        | "eviction"
        | "exec"
        | "attach"
        | "portforward"
        | "proxy"
        | "token"
        | "finalize"
        | "approval"
        | "resize"
        | "ephemeralcontainers") => known,
        _ => "other",
    };
    let (group, version, resource) = (&*info.group, &*info.version, &*info.resource);
    label_set(&Names { dry_run, group, resource, scope, subresource, verb, version })
}

/// Answers `/metrics`.
pub fn respond(call: &Call) -> transport::Response {
    let server = &call.server;
    let mut out = String::with_capacity(64 << 10);
    render(&mut out, &server.metrics.requests.lock());
    let (mutating, reading) = server.fairness.in_flight();
    head(&mut out, "apiserver_current_inflight_requests", "gauge", "Requests that are being served, per request kind.");
    line(&mut out, format_args!("apiserver_current_inflight_requests{{request_kind=\"mutating\"}} {mutating}"));
    line(&mut out, format_args!("apiserver_current_inflight_requests{{request_kind=\"readOnly\"}} {reading}"));
    head(&mut out, "pintle_request_panics_total", "counter", "Requests that ended in a panic.");
    line(&mut out, format_args!("pintle_request_panics_total {}", server.panics.load(Ordering::Relaxed)));
    aggregation::unavailable::render(&mut out, server);
    let mut page = Page::new();
    objects(&mut page, server);
    server.metrics.admission.render(&mut page);
    server.metrics.watches.render(&mut page);
    process::build(&mut page, "kubernetes_build_info", &server.version);
    process::render(&mut page);
    server.metrics.registry.render(&mut page);
    text(call, out + &page.finish())
}

/// How many objects there are of each resource that is kept.
fn objects(page: &mut Page, server: &ApiServer) {
    let name = "apiserver_resource_objects";
    page.family(name, Type::Gauge, "[ALPHA] Number of stored objects split by kind.");
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let built_in = kinds::stored().map(kinds::SharedKind::from);
    for kind in built_in.chain(server.catalogue.custom_kinds()) {
        let shape = kind.shape();
        let found = server.catalogue.find(shape.group, shape.version, shape.plural);
        if let Some(cacher) = found.as_ref().and_then(|resource| resource.cacher().ok()) {
            counts.insert((shape.group.to_owned(), shape.plural.to_owned()), cacher.snapshot().objects().len());
        }
    }
    for ((group, resource), count) in counts.iter().take(SERIES) {
        page.sample(name, &[("group", group), ("resource", resource)], *count as f64);
    }
}

/// When the process started.
pub fn start_time() -> String {
    let mut page = Page::new();
    process::start_time(&mut page);
    page.finish()
}

/// A page in the form of Prometheus that is asked for.
pub fn text(call: &Call, text: String) -> transport::Response {
    let form = Form::asked(call.header(http::header::ACCEPT));
    let mut response = encode::text(200, form.write(text));
    let media = http::HeaderValue::from_static(form.media_type());
    response.headers_mut().insert(CONTENT_TYPE, media);
    response
}

fn render(out: &mut String, requests: &BTreeMap<String, Series>) {
    head(out, "apiserver_longrunning_requests", "gauge", "Watches and streams that go on.");
    for (labels, series) in requests.iter().filter(|(_, s)| s.running > 0) {
        line(out, format_args!("apiserver_longrunning_requests{{{labels}}} {}", series.running));
    }
    const SECONDS: &str = "apiserver_request_duration_seconds";
    head(out, SECONDS, "histogram", "How long requests took, in seconds.");
    for (labels, series) in requests {
        let mut below = 0;
        for (end, count) in BUCKETS.iter().zip(&series.buckets) {
            below += count;
            line(out, format_args!("{SECONDS}_bucket{{{labels},le=\"{end}\"}} {below}"));
        }
        let all: u64 = series.buckets.iter().sum();
        line(out, format_args!("{SECONDS}_bucket{{{labels},le=\"+Inf\"}} {all}"));
        line(out, format_args!("{SECONDS}_sum{{{labels}}} {}", series.seconds));
        line(out, format_args!("{SECONDS}_count{{{labels}}} {all}"));
    }
    head(
        out,
        "apiserver_request_total",
        "counter",
        "Requests that were answered, by what they asked for and the code.",
    );
    for (labels, series) in requests {
        for (code, count) in &series.codes {
            line(out, format_args!("apiserver_request_total{{code=\"{code}\",{labels}}} {count}"));
        }
    }
}

pub(crate) fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    line(out, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
}

pub(crate) fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing into a String does not fail.
    let _ = out.write_fmt(text);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_durations_are_written_as_prometheus_reads_them() {
        let mut series = Series { running: 2, ..Series::default() };
        series.observe(200, Duration::from_millis(5));
        series.observe(200, Duration::from_millis(6));
        series.observe(404, Duration::from_secs(61));
        let labels = label_set(&Names { verb: "GET", resource: "pods", version: "v1", ..Names::default() });
        let mut out = String::new();
        render(&mut out, &BTreeMap::from([(labels.clone(), series)]));
        for wanted in [
            format!("apiserver_request_total{{code=\"200\",{labels}}} 2"),
            format!("apiserver_request_total{{code=\"404\",{labels}}} 1"),
            format!("apiserver_request_duration_seconds_bucket{{{labels},le=\"0.005\"}} 1"),
            format!("apiserver_request_duration_seconds_bucket{{{labels},le=\"0.025\"}} 2"),
            format!("apiserver_request_duration_seconds_bucket{{{labels},le=\"60\"}} 2"),
            format!("apiserver_request_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 3"),
            format!("apiserver_request_duration_seconds_count{{{labels}}} 3"),
            format!("apiserver_longrunning_requests{{{labels}}} 2"),
        ] {
            assert!(out.lines().any(|l| l == wanted), "{wanted} is not in\n{out}");
        }
    }

    #[test]
    fn label_sets_are_bounded() {
        let metrics = Metrics::default();
        for n in 0..SERIES + 10 {
            metrics.with(&format!("resource=\"r{n}\""), |series| series.observe(200, Duration::ZERO));
        }
        let requests = metrics.requests.lock();
        assert_eq!(requests.len(), SERIES + 1);
        assert_eq!(requests[&label_set(&Names::default())].codes[&200], 10);
    }
}
