//! What the proxy counts, under upstream's names.

use std::time::Duration;

use net::ruleset::Family;
use stdx::metrics::{Counter, Gauge, Histogram, Registry, exponential};

/// The counters.
pub struct Metrics {
    duration: Histogram,
    last: Gauge,
    queued: Gauge,
    failures: Counter,
    programmed: Gauge,
    programming: Histogram,
    services: Counter,
}

/// A family as labels name it.
fn label(family: Family) -> &'static str {
    match family {
        Family::Ip => "IPv4",
        Family::Ip6 => "IPv6",
    }
}

/// Upstream's: quarters of a second, seconds, then coarser up to five minutes.
fn programming_ends() -> Vec<f64> {
    let steps = |first: u16, step: usize, count: usize| (0..count).map(move |i| f64::from(first) + (i * step) as f64);
    [0.25, 0.5].into_iter().chain(steps(1, 1, 59)).chain(steps(60, 5, 12)).chain(steps(120, 30, 7)).collect()
}

impl Metrics {
    /// Counters in that registry.
    pub fn new(registry: &Registry) -> Self {
        let labels = ["ip_family"];
        Self {
            duration: registry.histogram(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds",
                &labels,
                &exponential(0.001, 2.0, 15),
            ),
            last: registry.gauge(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "The last time proxy rules were successfully synced",
                &labels,
            ),
            queued: registry.gauge(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "The last time a sync of proxy rules was queued",
                &[],
            ),
            failures: registry.counter(
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                "Cumulative proxy nftables sync failures",
                &labels,
            ),
            programmed: registry.gauge(
                "kubeproxy_programmed_revision",
                "Everything up to this revision is in the kernel, but for Services that it refuses",
                &["resource"],
            ),
            programming: registry.histogram(
                "kubeproxy_network_programming_duration_seconds",
                "In Cluster Network Programming Latency in seconds",
                &[],
                &programming_ends(),
            ),
            services: registry.counter(
                "kubeproxy_sync_proxy_rules_service_changes_total",
                "Cumulative proxy rules Service changes",
                &[],
            ),
        }
    }

    /// So many Services are to be brought up to date, at that time in seconds since 1970.
    pub fn begun(&self, services: usize, now: i64) {
        self.queued.set(&[], now as f64);
        self.services.add(&[], services as f64);
    }

    /// The kernel has everything up to these revisions, and what happened so long ago.
    pub fn programmed(&self, revisions: &[(&'static str, u64)], took: impl Iterator<Item = Duration>) {
        for (resource, revision) in revisions {
            self.programmed.set(&[resource], *revision as f64);
        }
        took.for_each(|took| self.programming.took(&[], took));
    }

    /// The kernel has taken, or refused, a family's rules.
    pub fn applied(&self, family: Family, took: Duration, well: bool, now: i64) {
        let family = [label(family)];
        self.duration.took(&family, took);
        if well {
            self.last.set(&family, now as f64);
        } else {
            self.failures.inc(&family);
        }
    }
}
