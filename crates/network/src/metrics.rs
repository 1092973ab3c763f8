//! What is counted.

use std::time::Duration;

use stdx::metrics::{Counter, Gauge, Histogram, Registry, exponential};

/// The counters.
pub struct Metrics {
    duration: Histogram,
    failures: Counter,
    nodes: Gauge,
    unreached: Gauge,
}

impl Metrics {
    /// Counters in that registry.
    pub fn new(registry: &Registry) -> Self {
        Self {
            duration: registry.histogram(
                "pod_network_sync_duration_seconds",
                "How long it took to look at links and routes and to bring them up to date",
                &[],
                &exponential(0.0005, 2.0, 15),
            ),
            failures: registry.counter(
                "pod_network_sync_failures_total",
                "How often the kernel refused a part of what leads to other nodes' pods",
                &[],
            ),
            nodes: registry.gauge("pod_network_nodes", "Nodes that there are, this one included", &[]),
            unreached: registry.gauge(
                "pod_network_unreached_nodes",
                "Nodes whose pods cannot be reached from this one",
                &[],
            ),
        }
    }

    /// A pass is over.
    pub fn passed(&self, took: Duration, well: bool) {
        self.duration.took(&[], took);
        if !well {
            self.failures.inc(&[]);
        }
    }

    /// So many nodes there are, and so many cannot be reached.
    pub fn nodes(&self, all: usize, unreached: usize) {
        self.nodes.set(&[], all as f64);
        self.unreached.set(&[], unreached as f64);
    }
}
