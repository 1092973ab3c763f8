//! `/metrics`: what the server has done, in Prometheus' text form, under upstream's names.
//!
//! Labels come from what is served, never from what a client writes, and there are at most
//! [`SERIES`] of them: what is beyond is counted without saying of which resource.

pub mod admission;
pub mod identity;
pub mod storage;
pub mod watches;

use std::collections::{BTreeMap, BTreeSet};
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

/// The upper ends of the sizes' buckets, in bytes.
const SIZES: [u64; 7] = [1000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

/// What is known of one label set.
#[derive(Clone, Default)]
struct Series {
    /// Answers by their code.
    codes: BTreeMap<u16, u64>,
    /// Those of them that this server ended before they were done.
    ended: BTreeMap<u16, u64>,
    /// How many fell into each bucket; the last is for what is longer than all of them.
    buckets: [u64; BUCKETS.len() + 1],
    seconds: f64,
    /// Streams that go on.
    running: u64,
    /// How many answers were of which size, and of how many bytes all were: of what is only read.
    sizes: [u64; SIZES.len() + 1],
    bytes: u64,
}

/// Counts requests. Clones share it.
#[derive(Clone, Default)]
pub struct Metrics {
    requests: Arc<Mutex<BTreeMap<String, Series>>>,
    pub admission: Arc<admission::Admission>,
    pub identity: identity::Identity,
    pub watches: watches::Watches,
    pub storage: storage::Storage,
    /// What was asked for that will go: group, version, resource and subresource.
    deprecated: Arc<Mutex<BTreeSet<[String; 4]>>>,
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
    ended: bool,
    /// The size of the answer, where that is counted and known.
    size: Option<u64>,
}

impl Metrics {
    /// Of a server with those admission plugins, whose store is counted there.
    pub fn new(plugins: impl Iterator<Item = &'static str>, storage: storage::Storage) -> Self {
        let admission = Arc::new(admission::Admission::new(plugins));
        Self { admission, storage, ..Self::default() }
    }

    /// Something was asked for that its kind says will go. There are as many as there are such kinds.
    pub fn asked_for_deprecated(&self, info: &RequestInfo) {
        let key = [&*info.group, &*info.version, &*info.resource, subresource(info)];
        let mut all = self.deprecated.lock();
        if all.len() < SERIES && !all.iter().any(|known| known.iter().map(String::as_str).eq(key)) {
            all.insert(key.map(ToOwned::to_owned));
        }
    }

    /// A request begins.
    pub fn begin(&self, server: &ApiServer, info: &RequestInfo, query: &Query, head: &http::request::Parts) -> Running {
        let labels = labels(server, info, query, head);
        let clock = server.clock.clone();
        Running {
            metrics: self.clone(),
            began: clock.now(),
            clock,
            labels,
            code: 0,
            is_stream: false,
            ended: false,
            size: None,
        }
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

    /// This server ends it before it is done: it takes too long, or there are too many.
    pub fn ended(&mut self) {
        self.ended = true;
    }

    /// The answer is so large.
    pub fn sized(&mut self, bytes: u64) {
        self.size = Some(bytes);
    }

    /// Counts the size of an answer that comes in pieces, once it is over.
    pub fn sizes(&self) -> Sizing {
        Sizing { metrics: self.metrics.clone(), labels: self.labels.clone(), bytes: 0 }
    }
}

/// The size of an answer as far as it has come; counted when this is dropped.
pub struct Sizing {
    metrics: Metrics,
    labels: String,
    bytes: u64,
}

impl Sizing {
    /// So many bytes more have come.
    pub fn more(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }
}

impl Drop for Sizing {
    fn drop(&mut self) {
        self.metrics.with(&self.labels, |series| series.size(self.bytes));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Whose client hung up before there was an answer.
        let code = if self.code == 0 { 499 } else { self.code };
        let took = self.clock.now().since(self.began);
        self.metrics.with(&self.labels, |series| {
            series.observe(code, took);
            if self.ended {
                *series.ended.entry(code).or_default() += 1;
            }
            if let Some(bytes) = self.size {
                series.size(bytes);
            }
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

    fn size(&mut self, bytes: u64) {
        self.sizes[SIZES.partition_point(|end| *end < bytes)] += 1;
        self.bytes += bytes;
    }

    /// Adds what is known of another label set that is shown as this one.
    fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(all, more)| *all += more);
        other.codes.iter().for_each(|(code, count)| *self.codes.entry(*code).or_default() += count);
        other.ended.iter().for_each(|(code, count)| *self.ended.entry(*code).or_default() += count);
        self.seconds += other.seconds;
        self.sizes.iter_mut().zip(&other.sizes).for_each(|(all, more)| *all += more);
        self.bytes += other.bytes;
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

/// The subresource, if it is one of those that there are: clients write what they like.
fn subresource(info: &RequestInfo) -> &str {
    match info.subresource.as_str() {
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
    }
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
    let subresource = subresource(info);
    let (group, version, resource) = (&*info.group, &*info.version, &*info.resource);
    label_set(&Names { dry_run, group, resource, scope, subresource, verb, version })
}

/// Answers `/metrics`.
pub fn respond(call: &Call) -> transport::Response {
    let server = &call.server;
    let mut out = String::with_capacity(64 << 10);
    // Every request waits for this lock at its end: nothing is written under it.
    let requests = server.metrics.requests.lock().clone();
    render(&mut out, &requests);
    let (mutating, reading) = server.fairness.in_flight();
    head(&mut out, "apiserver_current_inflight_requests", "gauge", "Requests that are being served, per request kind.");
    line(&mut out, format_args!("apiserver_current_inflight_requests{{request_kind=\"mutating\"}} {mutating}"));
    line(&mut out, format_args!("apiserver_current_inflight_requests{{request_kind=\"readOnly\"}} {reading}"));
    head(&mut out, "pintle_request_panics_total", "counter", "Requests that ended in a panic.");
    line(&mut out, format_args!("pintle_request_panics_total {}", server.panics.load(Ordering::Relaxed)));
    aggregation::unavailable::render(&mut out, server);
    let mut page = Page::new();
    objects(&mut page, server);
    deprecated(&mut page, &server.metrics.deprecated.lock());
    server.metrics.storage.render(&mut page, server.cachers.durable_store().size());
    server.metrics.admission.render(&mut page);
    server.metrics.identity.render(&mut page);
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
    // As it was called before, with the group behind the resource.
    let name = "apiserver_storage_objects";
    page.family(name, Type::Gauge, "Number of stored objects split by kind; see apiserver_resource_objects.");
    for ((group, resource), count) in counts.iter().take(SERIES) {
        let resource = if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") };
        page.sample(name, &[("resource", resource.as_str())], *count as f64);
    }
}

/// What was asked for that will go.
fn deprecated(page: &mut Page, all: &BTreeSet<[String; 4]>) {
    let name = "apiserver_requested_deprecated_apis";
    let help = "Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, \
                subresource, and removed_release.";
    if !all.is_empty() {
        page.family(name, Type::Gauge, help);
    }
    for [group, version, resource, subresource] in all {
        // Nothing here has a release in which it is removed.
        let labels = [
            ("group", group.as_str()),
            ("removed_release", ""),
            ("resource", resource),
            ("subresource", subresource),
            ("version", version),
        ];
        page.sample(name, &labels, 1.0);
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
        histogram(out, SECONDS, labels, &BUCKETS, &series.buckets, series.seconds);
    }
    // Those that do not say whether it was a dry run.
    let mut merged: BTreeMap<String, Series> = BTreeMap::new();
    for (labels, series) in requests {
        let labels = ["", "All", "invalid"]
            .iter()
            .fold(labels.clone(), |labels, run| labels.replace(&format!("dry_run=\"{run}\","), ""));
        merged.entry(labels).or_default().add(series);
    }
    // Upstream leaves out what it waits for in a queue and for webhooks of admission: here there are neither.
    const OURS: &str = "apiserver_request_sli_duration_seconds";
    head(out, OURS, "histogram", "How long requests took, not counting webhooks of admission, in seconds.");
    for (labels, series) in &merged {
        histogram(out, OURS, labels, &BUCKETS, &series.buckets, series.seconds);
    }
    const ENDED: &str = "apiserver_request_terminations_total";
    head(
        out,
        ENDED,
        "counter",
        "Requests that were ended before they were done, for they took too long or were too many.",
    );
    for (labels, series) in &merged {
        for (code, count) in &series.ended {
            line(out, format_args!("{ENDED}{{code=\"{code}\",{labels}}} {count}"));
        }
    }
    const BYTES: &str = "apiserver_response_sizes";
    head(out, BYTES, "histogram", "Response size distribution in bytes, of what is read.");
    for (labels, series) in merged.iter().filter(|(_, series)| series.sizes.iter().any(|count| *count > 0)) {
        histogram(out, BYTES, labels, &SIZES, &series.sizes, series.bytes);
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

/// The samples of a histogram under labels that are written out already.
fn histogram(
    out: &mut String,
    name: &str,
    labels: &str,
    ends: &[impl std::fmt::Display],
    buckets: &[u64],
    sum: impl std::fmt::Display,
) {
    let mut below = 0;
    for (end, count) in ends.iter().zip(buckets) {
        below += count;
        line(out, format_args!("{name}_bucket{{{labels},le=\"{end}\"}} {below}"));
    }
    let all: u64 = buckets.iter().sum();
    line(out, format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {all}"));
    line(out, format_args!("{name}_sum{{{labels}}} {sum}"));
    line(out, format_args!("{name}_count{{{labels}}} {all}"));
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
        series.size(1000);
        series.size(1001);
        let labels = label_set(&Names { verb: "GET", resource: "pods", version: "v1", ..Names::default() });
        let mut out = String::new();
        let dry =
            label_set(&Names { verb: "GET", resource: "pods", version: "v1", dry_run: "All", ..Names::default() });
        let mut other = Series::default();
        other.observe(200, Duration::from_millis(5));
        render(&mut out, &BTreeMap::from([(labels.clone(), series), (dry, other)]));
        let merged = labels.replace("dry_run=\"\",", "");
        for wanted in [
            format!("apiserver_request_sli_duration_seconds_count{{{merged}}} 4"),
            format!("apiserver_response_sizes_bucket{{{merged},le=\"1000\"}} 1"),
            format!("apiserver_response_sizes_bucket{{{merged},le=\"1000000000\"}} 2"),
            format!("apiserver_response_sizes_sum{{{merged}}} 2001"),
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
    fn only_what_this_server_ended_is_a_termination() {
        let mut series = Series::default();
        // What others answered, whatever its code, and what was cut off here.
        [429, 504, 504].iter().for_each(|code| series.observe(*code, Duration::ZERO));
        series.ended.insert(504, 1);
        let mut out = String::new();
        let labels = label_set(&Names { verb: "GET", resource: "pods", subresource: "proxy", ..Names::default() });
        render(&mut out, &BTreeMap::from([(labels, series)]));
        let lines: Vec<&str> = out.lines().filter(|l| l.starts_with("apiserver_request_terminations_total{")).collect();
        assert!(matches!(lines[..], [line] if line.contains("code=\"504\"") && line.ends_with(" 1")), "{lines:?}");
        assert!(crate::fairness::come_back().extensions().get::<crate::fairness::Ended>().is_some());
    }

    #[test]
    fn a_subresource_that_is_none_is_no_label() {
        let metrics = Metrics::default();
        for subresource in ["", "status", "anything-1", "anything-2"] {
            let subresource = subresource.to_owned();
            let info = RequestInfo { resource: "endpoints".into(), subresource, ..RequestInfo::default() };
            metrics.asked_for_deprecated(&info);
        }
        let told: Vec<String> = metrics.deprecated.lock().iter().map(|key| key[3].clone()).collect();
        assert_eq!(told, ["", "other", "status"]);
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
