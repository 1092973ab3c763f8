//! What the scheduler counts, under upstream's names.

use std::time::Duration;

use stdx::metrics::{Counter, Gauge, Histogram, Registry, exponential};

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
}

impl Metrics {
    /// Counters of a profile in that registry.
    pub fn new(registry: &Registry, profile: &str) -> Self {
        let labels = ["profile", "result"];
        Self {
            profile: profile.to_owned(),
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

    /// A pod has its node, after so long in so many attempts.
    pub fn scheduled(&self, waited: Duration, attempts: u32) {
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
