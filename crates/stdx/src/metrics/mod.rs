//! What a component counts: counters, gauges and histograms under names, with a bounded number of label
//! sets each, and pages of them in Prometheus' text form.
//!
//! A [`Registry`] belongs to one component; clones share it. What is registered twice under one name is
//! one family. What is known only when it is asked for (how many there are of something) is written by a
//! collector.

pub mod hot;
pub mod open;
pub mod process;
pub mod read;
pub mod text;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use open::Form;
pub use text::{MEDIA_TYPE, Page, Type};

/// Label sets of one family that are told apart; what is beyond is counted under empty labels.
pub const SERIES: usize = 1024;

/// Durations in seconds as most clients of Prometheus cut them.
pub const SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// So many bucket ends, each `factor` times the one before.
pub fn exponential(first: f64, factor: f64, count: u16) -> Vec<f64> {
    (0..count).map(|n| first * factor.powi(i32::from(n))).collect()
}

type Collector = Box<dyn Fn(&mut Page) + Send + Sync>;
/// Tells a value when a page is asked for; `None` once what it tells of is gone.
type Watch = Box<dyn Fn() -> Option<f64> + Send + Sync>;

/// The families of one component.
#[derive(Clone, Default)]
pub struct Registry {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    families: Mutex<BTreeMap<String, Arc<Family>>>,
    collectors: Mutex<Vec<Collector>>,
}

struct Family {
    name: String,
    kind: Type,
    help: String,
    labels: Vec<String>,
    /// The upper ends of a histogram's buckets.
    ends: Vec<f64>,
    series: Mutex<SeriesSet>,
    /// Label sets whose values are asked for.
    watched: Mutex<Vec<(Vec<String>, Watch)>>,
}

#[derive(Clone, Default)]
struct Series {
    /// Of a histogram, the sum.
    value: f64,
    /// How many fell into each bucket; the last is for what is longer than all of them.
    buckets: Vec<u64>,
}

/// Label sets in the order of their values, and what is known of each. A set that is there is found without
/// making a text of what it is looked up by: it is, at every request.
#[derive(Default)]
struct SeriesSet(Vec<(Vec<String>, Series)>);

impl SeriesSet {
    /// Where a set of `count` values is, or would be; labels that are not said are empty.
    fn find(&self, labels: &[&str], count: usize) -> Result<usize, usize> {
        let wanted = || labels.iter().copied().chain(std::iter::repeat("")).take(count);
        self.0.binary_search_by(|(values, _)| values.iter().map(String::as_str).cmp(wanted()))
    }

    fn get(&self, labels: &[&str], count: usize) -> Option<&Series> {
        self.find(labels, count).ok().map(|at| &self.0[at].1)
    }
}

impl Family {
    fn with(&self, labels: &[&str], change: impl FnOnce(&mut Series)) {
        let (mut series, count) = (self.series.lock(), self.labels.len());
        let mut place = series.find(labels, count);
        let mut labels = labels;
        if place.is_err() && series.0.len() >= SERIES {
            labels = &[];
            place = series.find(labels, count);
        }
        let at = place.unwrap_or_else(|at| {
            let mut values: Vec<String> = labels.iter().take(count).map(|label| (*label).to_owned()).collect();
            values.resize(count, String::new());
            let buckets = if self.kind == Type::Histogram { self.ends.len() + 1 } else { 0 };
            series.0.insert(at, (values, Series { value: 0.0, buckets: vec![0; buckets] }));
            at
        });
        change(&mut series.0[at].1);
    }

    /// Asks for a value whenever a page is written. At the bound nothing more is asked for.
    fn watch(&self, labels: &[&str], value: impl Fn() -> Option<f64> + Send + Sync + 'static) {
        let mut watched = self.watched.lock();
        watched.retain(|(_, value)| value().is_some());
        if watched.len() < SERIES {
            watched.push((labels.iter().map(|l| (*l).to_owned()).collect(), Box::new(value)));
        }
    }

    fn render(&self, page: &mut Page) {
        let mut told: BTreeMap<Vec<String>, Series> = self.series.lock().0.iter().cloned().collect();
        for (labels, value) in &*self.watched.lock() {
            if let Some(value) = value() {
                told.entry(labels.clone()).or_default().value += value;
            }
        }
        let series = &told;
        if series.is_empty() {
            return;
        }
        page.family(&self.name, self.kind, &self.help);
        for (values, series) in series {
            let labels: Vec<(&str, &str)> =
                self.labels.iter().map(String::as_str).zip(values.iter().map(String::as_str)).collect();
            if self.kind != Type::Histogram {
                page.sample(&self.name, &labels, series.value);
                continue;
            }
            page.histogram(&self.name, &labels, &self.ends, &series.buckets, series.value);
        }
    }

    fn forget(&self, labels: &[(&str, &str)]) {
        let at = |label: &str| self.labels.iter().position(|l| l == label);
        let wanted: Option<Vec<(usize, &str)>> = labels.iter().map(|(l, value)| Some((at(l)?, *value))).collect();
        let Some(wanted) = wanted else { return };
        let is_meant = |values: &[String]| wanted.iter().all(|(at, value)| values.get(*at).is_some_and(|v| v == value));
        self.series.lock().0.retain(|(values, _)| !is_meant(values));
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registry of {}", self.inner.families.lock().len())
    }
}

impl Registry {
    fn family(&self, name: &str, kind: Type, help: &str, labels: &[&str], ends: &[f64]) -> Arc<Family> {
        let make = || {
            Arc::new(Family {
                name: name.to_owned(),
                kind,
                help: help.to_owned(),
                labels: labels.iter().map(|l| (*l).to_owned()).collect(),
                ends: ends.to_vec(),
                series: Mutex::default(),
                watched: Mutex::default(),
            })
        };
        let mut families = self.inner.families.lock();
        let known = families.entry(name.to_owned()).or_insert_with(make);
        // Of another kind or with other labels it is counted, but not shown: a page has a name once.
        if known.kind == kind && known.labels == labels { known.clone() } else { make() }
    }

    /// What only grows.
    pub fn counter(&self, name: &str, help: &str, labels: &[&str]) -> Counter {
        Counter(self.family(name, Type::Counter, help, labels, &[]))
    }

    /// What grows and shrinks.
    pub fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> Gauge {
        Gauge(self.family(name, Type::Gauge, help, labels, &[]))
    }

    /// How often what amounts were seen; `ends` are the upper ends of the buckets.
    pub fn histogram(&self, name: &str, help: &str, labels: &[&str], ends: &[f64]) -> Histogram {
        Histogram(self.family(name, Type::Histogram, help, labels, ends))
    }

    /// Writes families of its own whenever a page is asked for.
    pub fn collect(&self, collector: impl Fn(&mut Page) + Send + Sync + 'static) {
        self.inner.collectors.lock().push(Box::new(collector));
    }

    /// The build, under that name, and the process: what every component shows.
    pub fn standard(&self, build: &'static str, version: &str) {
        let version = version.to_owned();
        self.collect(move |page| process::build(page, build, &version));
        self.collect(process::render);
    }

    /// Writes everything.
    pub fn render(&self, page: &mut Page) {
        let families: Vec<Arc<Family>> = self.inner.families.lock().values().cloned().collect();
        families.iter().for_each(|family| family.render(page));
        self.inner.collectors.lock().iter().for_each(|collector| collector(page));
    }

    /// The whole page.
    pub fn page(&self) -> String {
        let mut page = Page::new();
        self.render(&mut page);
        page.finish()
    }
}

/// What only grows.
#[derive(Clone)]
pub struct Counter(Arc<Family>);

impl Counter {
    /// One more; `labels` in the order they were registered in.
    pub fn inc(&self, labels: &[&str]) {
        self.add(labels, 1.0);
    }

    /// So much more. What is not positive is nothing.
    pub fn add(&self, labels: &[&str], amount: f64) {
        self.0.with(labels, |series| series.value += amount.max(0.0));
    }

    /// Drops every label set in which all of `labels` have those values: what they stand for is gone.
    pub fn forget(&self, labels: &[(&str, &str)]) {
        self.0.forget(labels);
    }

    /// Asks somebody else who counts, whenever a page is written, until they are gone.
    pub fn watch(&self, labels: &[&str], value: impl Fn() -> Option<f64> + Send + Sync + 'static) {
        self.0.watch(labels, value);
    }

    /// What was counted so far.
    pub fn value(&self, labels: &[&str]) -> f64 {
        self.0.series.lock().get(labels, self.0.labels.len()).map_or(0.0, |series| series.value)
    }
}

/// What grows and shrinks.
#[derive(Clone)]
pub struct Gauge(Arc<Family>);

impl Gauge {
    /// It is so much now.
    pub fn set(&self, labels: &[&str], value: f64) {
        self.0.with(labels, |series| series.value = value);
    }

    /// Asks how much it is whenever a page is written, until what it tells of is gone.
    pub fn watch(&self, labels: &[&str], value: impl Fn() -> Option<f64> + Send + Sync + 'static) {
        self.0.watch(labels, value);
    }

    /// It is so much more now, or less.
    pub fn add(&self, labels: &[&str], amount: f64) {
        self.0.with(labels, |series| series.value += amount);
    }

    /// Drops every label set in which all of `labels` have those values: what they stand for is gone.
    pub fn forget(&self, labels: &[(&str, &str)]) {
        self.0.forget(labels);
    }
}

/// How often what amounts were seen.
#[derive(Clone)]
pub struct Histogram(Arc<Family>);

impl Histogram {
    /// An amount was seen.
    pub fn observe(&self, labels: &[&str], amount: f64) {
        let at = self.0.ends.partition_point(|end| *end < amount);
        self.0.with(labels, |series| {
            series.value += amount;
            series.buckets[at] += 1;
        });
    }

    /// A duration was seen; it is counted in seconds.
    pub fn took(&self, labels: &[&str], duration: Duration) {
        self.observe(labels, duration.as_secs_f64());
    }

    /// Drops every label set in which all of `labels` have those values: what they stand for is gone.
    pub fn forget(&self, labels: &[(&str, &str)]) {
        self.0.forget(labels);
    }

    /// How many amounts were seen.
    pub fn count(&self, labels: &[&str]) -> u64 {
        let series = self.0.series.lock();
        series.get(labels, self.0.labels.len()).map_or(0, |series| series.buckets.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_what_was_counted() {
        let registry = Registry::default();
        let asked = registry.counter("asked_total", "Asked.", &["who"]);
        asked.inc(&["b"]);
        asked.add(&["a"], 2.0);
        registry.counter("asked_total", "Asked.", &["who"]).inc(&["a"]);
        let took = registry.histogram("took_seconds", "Took.", &["who"], &[0.5, 1.0]);
        [0.5, 0.6, 7.0].iter().for_each(|s| took.observe(&["a"], *s));
        registry.gauge("never", "Nothing is known of it.", &[]);
        registry.gauge("depth", "Depth.", &[]).set(&[], -1.5);
        registry.collect(|page| page.single("found", Type::Gauge, "Found.", 9.0));
        assert_eq!(
            registry.page(),
            "# HELP asked_total Asked.\n# TYPE asked_total counter\nasked_total{who=\"a\"} 3\nasked_total{who=\"b\"} 1\n\
             # HELP depth Depth.\n# TYPE depth gauge\ndepth -1.5\n\
             # HELP took_seconds Took.\n# TYPE took_seconds histogram\n\
             took_seconds_bucket{who=\"a\",le=\"0.5\"} 1\ntook_seconds_bucket{who=\"a\",le=\"1\"} 2\n\
             took_seconds_bucket{who=\"a\",le=\"+Inf\"} 3\ntook_seconds_sum{who=\"a\"} 8.1\ntook_seconds_count{who=\"a\"} 3\n\
             # HELP found Found.\n# TYPE found gauge\nfound 9\n"
        );
        asked.forget(&[("who", "a")]);
        assert_eq!((asked.value(&["a"]), asked.value(&["b"]), took.count(&["a"])), (0.0, 1.0, 3));
        let both = registry.counter("both_total", "Both.", &["pod", "namespace"]);
        [["web", "a"], ["web", "b"]].iter().for_each(|labels| both.inc(labels));
        both.forget(&[("pod", "web"), ("other", "a")]);
        both.forget(&[("pod", "web"), ("namespace", "a")]);
        assert_eq!((both.value(&["web", "a"]), both.value(&["web", "b"])), (0.0, 1.0));
    }

    #[test]
    fn label_sets_are_bounded() {
        let registry = Registry::default();
        let counter = registry.counter("c_total", "C.", &["a", "b"]);
        (0..SERIES + 10).for_each(|n| counter.inc(&[&n.to_string(), "x"]));
        assert_eq!(counter.0.series.lock().0.len(), SERIES + 1);
        assert_eq!(counter.value(&["", ""]), 10.0);
        // Those that are known go on.
        counter.inc(&["3", "x"]);
        assert_eq!(counter.value(&["3", "x"]), 2.0);
    }

    #[test]
    fn what_is_gone_is_not_asked_for() {
        let registry = Registry::default();
        let depth = registry.gauge("depth", "Depth.", &["name"]);
        let (a, b) = (Arc::new(3), Arc::new(4));
        for (name, of) in [("a", &a), ("b", &b)] {
            let of = Arc::downgrade(of);
            depth.watch(&[name], move || of.upgrade().map(|n| f64::from(*n)));
        }
        drop(a);
        let page = registry.page();
        assert_eq!(page.lines().last(), Some("depth{name=\"b\"} 4"));
        assert_eq!(page.lines().count(), 3);
    }

    #[test]
    fn a_name_stands_on_a_page_once() {
        let registry = Registry::default();
        registry.counter("x_total", "X.", &["a"]).inc(&["1"]);
        registry.gauge("x_total", "X.", &["a"]).set(&["1"], 7.0);
        registry.counter("x_total", "X.", &["b"]).inc(&["1"]);
        assert_eq!(registry.page().lines().count(), 3);
    }

    #[test]
    fn ends_grow() {
        assert_eq!(exponential(0.5, 2.0, 4), [0.5, 1.0, 2.0, 4.0]);
    }
}
