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
    services: Counter,
}

/// A family as labels name it.
fn label(family: Family) -> &'static str {
    match family {
        Family::Ip => "IPv4",
        Family::Ip6 => "IPv6",
    }
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
