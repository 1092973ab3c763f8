//! What is counted.

use std::time::Duration;

use stdx::metrics::{Counter, Gauge, Histogram, Registry, exponential};

/// The counters.
pub struct Metrics {
    duration: Histogram,
    failures: Counter,
    policies: Gauge,
    refused: Gauge,
    programmed: Gauge,
    gate: Histogram,
    unknown: Gauge,
}

impl Metrics {
    /// Counters in that registry.
    pub fn new(registry: &Registry) -> Self {
        let ends = exponential(0.001, 2.0, 15);
        Self {
            duration: registry.histogram(
                "network_policy_sync_duration_seconds",
                "How long it took to bring the kernel's rules up to date",
                &[],
                &ends,
            ),
            failures: registry.counter(
                "network_policy_sync_failures_total",
                "How often the kernel refused rules that are no policy's fault, or said nothing",
                &[],
            ),
            policies: registry.gauge("network_policy_policies", "NetworkPolicies that there are", &[]),
            refused: registry.gauge(
                "network_policy_refused_policies",
                "NetworkPolicies whose rules the kernel refuses: pods they select are isolated",
                &[],
            ),
            programmed: registry.gauge(
                "network_policy_programmed_revision",
                "Everything up to this revision is in the kernel",
                &["resource"],
            ),
            gate: registry.histogram(
                "network_policy_gate_duration_seconds",
                "How long the network plugin waited for a new pod's rules",
                &["result"],
                &ends,
            ),
            unknown: registry.gauge(
                "network_policy_gate_unknown_pods",
                "New sandboxes whose pod the API has not told of yet",
                &[],
            ),
        }
    }

    /// So many wait at the gate for the API to tell of their pod.
    pub fn unknown(&self, count: usize) {
        self.unknown.set(&[], count as f64);
    }

    /// The kernel has taken, or refused, what was changed.
    pub fn applied(&self, took: Duration, well: bool) {
        self.duration.took(&[], took);
        if !well {
            self.failures.inc(&[]);
        }
    }

    /// The kernel has everything up to these revisions.
    pub fn programmed(&self, revisions: &[(&'static str, u64)], policies: usize, refused: usize) {
        for (resource, revision) in revisions {
            self.programmed.set(&[resource], *revision as f64);
        }
        self.policies.set(&[], policies as f64);
        self.refused.set(&[], refused as f64);
    }

    /// The plugin was answered.
    pub fn answered(&self, took: Duration, well: bool) {
        self.gate.took(&[if well { "ok" } else { "error" }], took);
    }
}
