//! What the scheduler counts, under upstream's names.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use stdx::metrics::hot::Hot;
use stdx::metrics::{Counter, Gauge, Histogram, Page, Registry, Type, exponential};

use crate::laps::{Ended, Lap, Point};

/// The upper ends of the buckets for what is done in a whole part of a decision, and by one plugin.
static POINTS: LazyLock<Vec<f64>> = LazyLock::new(|| exponential(0.0001, 2.0, 12));
static PLUGINS: LazyLock<Vec<f64>> = LazyLock::new(|| exponential(0.00001, 1.5, 20));

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Scheduled,
    Unschedulable,
    Error,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Unschedulable => "unschedulable",
            Self::Error => "error",
        }
    }
}

/// How many pods wait, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
}

/// The counters. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    profile: String,
    attempts: Counter,
    attempt_duration: Histogram,
    algorithm_duration: Histogram,
    pending: Gauge,
    preemption_attempts: Counter,
    preemption_victims: Histogram,
    waited: Histogram,
    tries: Histogram,
    incoming: Counter,
    laps: Arc<Mutex<Laps>>,
}

/// How long parts and plugins took. As many label sets as there are plugins and parts.
#[derive(Default)]
struct Laps(BTreeMap<(Option<&'static str>, Point, Ended), Hot>);

impl Laps {
    fn heard(&mut self, lap: &Lap) {
        let ends = if lap.plugin.is_some() { &PLUGINS } else { &POINTS };
        let hot = self.0.entry((lap.plugin, lap.point, lap.ended)).or_insert_with(|| Hot::new(ends));
        hot.observe(lap.took.as_secs_f64());
    }

    fn render(&self, page: &mut Page, profile: &str) {
        // Those without a plugin come first.
        let (points, plugins): (Vec<_>, Vec<_>) = self.0.iter().partition(|((plugin, ..), _)| plugin.is_none());
        if !points.is_empty() {
            let name = "scheduler_framework_extension_point_duration_seconds";
            page.family(name, Type::Histogram, "Latency for running all plugins of a specific extension point.");
            for ((_, point, ended), hot) in points {
                let labels = [("extension_point", point.name()), ("profile", profile), ("status", ended.name())];
                hot.render(page, name, &labels);
            }
        }
        if !plugins.is_empty() {
            let name = "scheduler_plugin_execution_duration_seconds";
            let help = "Duration for running a plugin at a specific extension point, of some pods and nodes.";
            page.family(name, Type::Histogram, help);
            for ((plugin, point, ended), hot) in plugins {
                let plugin = plugin.unwrap_or_default();
                let labels = [("extension_point", point.name()), ("plugin", plugin), ("status", ended.name())];
                hot.render(page, name, &labels);
            }
        }
    }
}

impl Metrics {
    /// Counters of a profile in that registry.
    pub fn new(registry: &Registry, profile: &str) -> Self {
        let labels = ["profile", "result"];
        let laps = Arc::<Mutex<Laps>>::default();
        let (told, name) = (laps.clone(), profile.to_owned());
        registry.collect(move |page| told.lock().render(page, &name));
        Self {
            profile: profile.to_owned(),
            laps,
            tries: registry.histogram(
                "scheduler_pod_scheduling_attempts",
                "Number of attempts to successfully schedule a pod.",
                &[],
                &exponential(1.0, 2.0, 5),
            ),
            incoming: registry.counter(
                "scheduler_queue_incoming_pods_total",
                "Number of pods added to scheduling queues by event and queue type.",
                &["event", "queue"],
            ),
            attempts: registry.counter(
                "scheduler_schedule_attempts_total",
                "Number of attempts to schedule pods, by the result.",
                &labels,
            ),
            attempt_duration: registry.histogram(
                "scheduler_scheduling_attempt_duration_seconds",
                "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
                &labels,
                &exponential(0.001, 2.0, 15),
            ),
            algorithm_duration: registry.histogram(
                "scheduler_scheduling_algorithm_duration_seconds",
                "Scheduling algorithm latency in seconds",
                &[],
                &exponential(0.001, 2.0, 15),
            ),
            pending: registry.gauge(
                "scheduler_pending_pods",
                "Number of pending pods, by what they wait for.",
                &["queue"],
            ),
            preemption_attempts: registry.counter(
                "scheduler_preemption_attempts_total",
                "Total preemption attempts in the cluster till now",
                &[],
            ),
            preemption_victims: registry.histogram(
                "scheduler_preemption_victims",
                "Number of selected preemption victims",
                &[],
                &exponential(1.0, 2.0, 7),
            ),
            waited: registry.histogram(
                "scheduler_pod_scheduling_sli_duration_seconds",
                "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might \
                 involve multiple scheduling attempts.",
                &["attempts"],
                &exponential(0.01, 2.0, 20),
            ),
        }
    }

    /// An attempt has ended.
    pub fn attempted(&self, outcome: Outcome, took: Duration) {
        let labels = [self.profile.as_str(), outcome.name()];
        self.attempts.inc(&labels);
        self.attempt_duration.took(&labels, took);
    }

    /// A node was chosen, or none was found.
    pub fn decided(&self, took: Duration) {
        self.algorithm_duration.took(&[], took);
    }

    /// Room is made by so many.
    pub fn preempts(&self, victims: usize) {
        self.preemption_attempts.inc(&[]);
        self.preemption_victims.observe(&[], victims as f64);
    }

    /// Parts of a decision took so long.
    pub fn heard(&self, laps: &[Lap]) {
        let mut all = self.laps.lock();
        laps.iter().for_each(|lap| all.heard(lap));
    }

    /// So many pods came to wait, for that event and in that queue.
    pub fn came(&self, event: &str, queue: &str, count: u64) {
        self.incoming.add(&[event, queue], count as f64);
    }

    /// A pod has its node, after so long in so many attempts.
    pub fn scheduled(&self, waited: Duration, attempts: u32) {
        self.tries.observe(&[], f64::from(attempts));
        // As upstream, many attempts are one label.
        let attempts = if attempts > 15 { "15+".to_owned() } else { attempts.to_string() };
        self.waited.took(&[&attempts], waited);
    }

    /// So many wait now.
    pub fn waiting(&self, pending: Pending) {
        let Pending { active, backoff, unschedulable, gated } = pending;
        for (queue, count) in
            [("active", active), ("backoff", backoff), ("unschedulable", unschedulable), ("gated", gated)]
        {
            self.pending.set(&[queue], count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_plugins_are_told_under_upstreams_names() {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry, "default-scheduler");
        assert_eq!(registry.page(), "");
        let took = Duration::from_micros(20);
        metrics.heard(&[
            Lap { point: Point::Filter, plugin: Some("NodePorts"), ended: Ended::Unschedulable, took },
            Lap { point: Point::Filter, plugin: None, ended: Ended::Success, took },
        ]);
        metrics.scheduled(took, 3);
        metrics.came("UnschedulablePodAdd", "active", 2);
        let page = registry.page();
        for want in [
            "scheduler_framework_extension_point_duration_seconds_bucket{extension_point=\"Filter\",profile=\"default-scheduler\",status=\"Success\",le=\"0.0001\"} 1",
            "scheduler_plugin_execution_duration_seconds_count{extension_point=\"Filter\",plugin=\"NodePorts\",status=\"Unschedulable\"} 1",
            "scheduler_plugin_execution_duration_seconds_bucket{extension_point=\"Filter\",plugin=\"NodePorts\",status=\"Unschedulable\",le=\"0.00001\"} 0",
            "scheduler_pod_scheduling_attempts_bucket{le=\"4\"} 1",
            "scheduler_queue_incoming_pods_total{event=\"UnschedulablePodAdd\",queue=\"active\"} 2",
        ] {
            assert!(page.lines().any(|line| line == want), "{want} is not in\n{page}");
        }
    }
}
