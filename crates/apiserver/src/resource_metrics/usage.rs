//! From two samples to what is used. Pure.

use std::collections::BTreeMap;

use stdx::metrics::read::Sample as Line;

/// What is younger, in milliseconds, is counted from its start also where nothing was known before.
const YOUNGEST: i64 = 15_000;

/// What the nodes told at one time, by name.
pub type Sample = BTreeMap<String, NodeSample>;

/// A namespace and a name.
type PodName = (String, String);

/// Counters of one node or container.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Point {
    /// Milliseconds since 1970.
    at: i64,
    /// Seconds of processor time since it started.
    cpu: f64,
    /// Bytes.
    memory: f64,
    /// When it started, in seconds since 1970; nought where that is not told.
    started: f64,
}

/// What one node told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeSample {
    node: Option<Point>,
    pods: BTreeMap<PodName, BTreeMap<String, Point>>,
}

/// A point that is being put together.
#[derive(Default)]
struct Parts {
    at: Option<i64>,
    cpu: Option<f64>,
    memory: Option<f64>,
    started: f64,
}

impl Parts {
    /// Nothing where a part is missing.
    fn whole(&self) -> Option<Point> {
        Some(Point { at: self.at?, cpu: self.cpu?, memory: self.memory?, started: self.started })
    }
}

impl NodeSample {
    /// From a page of `/metrics/resource`. A pod of which only a part is told is left out.
    pub fn of(lines: &[Line]) -> Self {
        let (mut node, mut pods) = (Parts::default(), BTreeMap::<PodName, BTreeMap<String, Parts>>::new());
        for line in lines {
            match line.name.as_str() {
                "node_cpu_usage_seconds_total" => (node.at, node.cpu) = (line.at, Some(line.value)),
                "node_memory_working_set_bytes" => node.memory = Some(line.value),
                "container_cpu_usage_seconds_total"
                | "container_memory_working_set_bytes"
                | "container_start_time_seconds" => {
                    let pod = (line.label("namespace").to_owned(), line.label("pod").to_owned());
                    let container = line.label("container").to_owned();
                    let parts = pods.entry(pod).or_default().entry(container).or_default();
                    match line.name.as_str() {
                        "container_cpu_usage_seconds_total" => (parts.at, parts.cpu) = (line.at, Some(line.value)),
                        "container_memory_working_set_bytes" => parts.memory = Some(line.value),
                        _ => parts.started = line.value,
                    }
                }
                _ => {}
            }
        }
        let whole = |(pod, containers): (PodName, BTreeMap<String, Parts>)| {
            let points = containers.into_iter().map(|(name, parts)| Some((name, parts.whole()?)));
            Some((pod, points.collect::<Option<_>>()?))
        };
        Self { node: node.whole(), pods: pods.into_iter().filter_map(whole).collect() }
    }
}

/// What something uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Billionths of a processor.
    pub cpu: u64,
    /// Bytes.
    pub memory: u64,
}

/// What a node uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeUsage {
    /// The end of the window, in milliseconds since 1970.
    pub at: i64,
    /// Milliseconds.
    pub window: i64,
    pub used: Used,
}

/// What a pod uses, by container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUsage {
    /// The end of the window, in milliseconds since 1970.
    pub at: i64,
    /// Milliseconds.
    pub window: i64,
    pub containers: BTreeMap<String, Used>,
}

/// What everything uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub nodes: BTreeMap<String, NodeUsage>,
    pub pods: BTreeMap<PodName, PodUsage>,
}

/// What was used between two samples. What has begun since the earlier one, or a moment ago, is counted from
/// its start; what cannot be counted is left out, and so is a pod of which one container cannot.
pub fn difference(before: &Sample, now: &Sample) -> Usage {
    let mut out = Usage::default();
    for (name, node) in now {
        let earlier = before.get(name);
        let known = earlier.and_then(|e| e.node);
        let since = known.map(|point| point.at);
        if let Some((point, window, used)) = node.node.and_then(|p| between(known, since, p)) {
            out.nodes.insert(name.clone(), NodeUsage { at: point.at, window, used });
        }
        for (pod, containers) in &node.pods {
            let known = earlier.and_then(|e| e.pods.get(pod));
            let of = |(name, point): (&String, &Point)| {
                let known = known.and_then(|k| k.get(name)).copied();
                Some((name.clone(), between(known, since, *point)?))
            };
            let Some(all) = containers.iter().map(of).collect::<Option<BTreeMap<_, _>>>() else { continue };
            // All were told at one time; the shortest window is the one of which all are known.
            let Some(at) = all.values().map(|(point, ..)| point.at).min() else { continue };
            let window = all.values().map(|(_, window, _)| *window).min().unwrap_or_default();
            let containers = all.into_iter().map(|(name, (.., used))| (name, used)).collect();
            let usage = PodUsage { at, window, containers };
            // While a pod ends its namesake may have begun elsewhere: what was told last counts.
            if out.pods.get(pod).is_none_or(|other| other.at < at) {
                out.pods.insert(pod.clone(), usage);
            }
        }
    }
    out
}

/// What was used since `before`, or since its start. `since` is the time of its node's earlier sample.
fn between(before: Option<Point>, since: Option<i64>, now: Point) -> Option<(Point, i64, Used)> {
    let before = before.filter(|b| is_base(b, &now)).or_else(|| begun(since, now))?;
    let window = now.at - before.at;
    let cpu = (now.cpu - before.cpu) / (window as f64 / 1000.0) * 1e9;
    let valid = cpu.is_finite() && now.memory.is_finite() && now.memory >= 0.0;
    // In range: what is larger is no machine's.
    valid.then(|| (now, window, Used { cpu: cpu.round() as u64, memory: now.memory as u64 }))
}

/// One that was started again counts from nought.
fn is_base(before: &Point, now: &Point) -> bool {
    before.started == now.started && before.cpu <= now.cpu && before.at < now.at
}

/// The point where it began: all that it used is of the time since. `None` for what began long ago, whose
/// average would be that of its life.
fn begun(since: Option<i64>, now: Point) -> Option<Point> {
    let at = (now.started * 1000.0) as i64;
    let is_new = now.at - at < YOUNGEST || since.is_some_and(|since| since <= at);
    (now.started > 0.0 && at < now.at && is_new).then_some(Point { at, cpu: 0.0, ..now })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::metrics::{Page, Type};

    /// A page: the node's numbers, then those of containers of pod `ns/p`.
    fn sample(at: i64, node: f64, containers: &[(&str, f64, f64, f64)]) -> Sample {
        let mut page = Page::new();
        page.family("node_cpu_usage_seconds_total", Type::Counter, "N.");
        page.sample_at("node_cpu_usage_seconds_total", &[], node, at);
        page.family("node_memory_working_set_bytes", Type::Gauge, "N.");
        page.sample_at("node_memory_working_set_bytes", &[], 1e9, at);
        type Row = (&'static str, fn(&(&str, f64, f64, f64)) -> f64);
        let rows: [Row; 3] = [
            ("container_cpu_usage_seconds_total", |c| c.1),
            ("container_memory_working_set_bytes", |c| c.2),
            ("container_start_time_seconds", |c| c.3),
        ];
        for (name, value) in rows {
            page.family(name, Type::Gauge, "C.");
            for container in containers.iter().filter(|c| !value(c).is_nan()) {
                let labels = [("container", container.0), ("namespace", "ns"), ("pod", "p")];
                page.sample_at(name, &labels, value(container), at);
            }
        }
        let lines = stdx::metrics::read::read(&page.finish()).expect("a page");
        [("n1".to_owned(), NodeSample::of(&lines))].into()
    }

    /// A window, and containers with processors and memory.
    type Shown<'a> = (i64, Vec<(&'a str, u64, u64)>);

    fn pod(usage: &Usage) -> Option<Shown<'_>> {
        let found = usage.pods.get(&("ns".to_owned(), "p".to_owned()))?;
        Some((found.window, found.containers.iter().map(|(n, u)| (n.as_str(), u.cpu, u.memory)).collect()))
    }

    #[test]
    fn rates_are_differences() {
        let before = sample(10_000, 100.0, &[("a", 5.0, 1024.0, 1.0), ("b", 7.0, 2048.0, 1.0)]);
        let now = sample(20_000, 115.0, &[("a", 6.0, 4096.0, 1.0), ("b", 7.0, 2048.0, 1.0)]);
        let usage = difference(&before, &now);
        let node = usage.nodes["n1"];
        assert_eq!(
            (node.at, node.window, node.used.cpu, node.used.memory),
            (20_000, 10_000, 1_500_000_000, 1_000_000_000)
        );
        assert_eq!(pod(&usage), Some((10_000, vec![("a", 100_000_000, 4096), ("b", 0, 2048)])));
    }

    #[test]
    fn what_is_new_counts_from_its_start_and_what_is_unknown_is_left_out() {
        let nan = f64::NAN;
        let none = Sample::default();
        let before = sample(10_000, 1.0, &[("a", 5.0, 1.0, 1.0)]);
        let (day, long_before) = (86_400_000, sample(86_300_000, 1.0, &[]));
        for (before, started, want) in [
            // An hour's work of a day ago is not what it uses now.
            (&none, 1.0, None),
            (&long_before, 1.0, None),
            (&long_before, 86_299.0, None),
            // It began since the sample before.
            (&long_before, 86_360.0, Some(40_000)),
            (&none, 86_360.0, None),
            (&none, 86_390.0, Some(10_000)),
        ] {
            let found = difference(before, &sample(day, 2.0, &[("a", 2.0, 9.0, started)]));
            assert_eq!(pod(&found).map(|(window, _)| window), want, "{started}");
        }
        for (before, container, want) in [
            // Seen for the first time, two seconds old.
            (&none, ("a", 1.0, 9.0, 18.0), Some((2000, 500_000_000))),
            // Started again since.
            (&before, ("a", 3.0, 9.0, 14.0), Some((6000, 500_000_000))),
            // Its counter went backwards, and when it started is not told.
            (&before, ("a", 3.0, 9.0, nan), None),
            // Only a part is told.
            (&before, ("a", 6.0, nan, 1.0), None),
            (&none, ("a", 6.0, 1.0, 20.0), None),
        ] {
            let found = difference(before, &sample(20_000, 2.0, &[container]));
            let got = pod(&found).map(|(window, all)| (window, all[0].1));
            assert_eq!(got, want, "{container:?}");
        }
        // Of a pod everything is told or nothing.
        let two = difference(&before, &sample(20_000, 2.0, &[("a", 6.0, 1.0, 1.0), ("b", 1.0, nan, 1.0)]));
        assert_eq!(pod(&two), None);
        assert!(difference(&before, &before).nodes.is_empty(), "no time has passed");
    }
}
