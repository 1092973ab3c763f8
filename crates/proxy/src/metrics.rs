//! What the proxy counts, under upstream's names.

use std::collections::BTreeMap;
use std::time::Duration;

use net::ruleset::Family;
use stdx::metrics::{Counter, Gauge, Histogram, Registry, exponential};

use crate::dataplane::Written;
use crate::model::{ServiceRules, Target};
use crate::options::Mode;

/// What has been brought to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Everything.
    Full,
    /// What changed.
    Partial,
}

/// How many Service ports keep connections on this node, which has no endpoint of theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lacking {
    pub internal: usize,
    pub external: usize,
}

impl Lacking {
    /// Those of one Service.
    pub fn of(rules: &ServiceRules, family: Family) -> Self {
        let lacks = |target: Target| target == Target::Drop;
        let ports = || rules.of(family).iter().map(|(_, port)| port);
        Self {
            internal: ports().filter(|p| p.internal_local && lacks(p.internal())).count(),
            external: ports().filter(|p| p.external_local && p.is_external() && lacks(p.external())).count(),
        }
    }
}

/// The counters.
pub struct Metrics {
    duration: Histogram,
    full: Histogram,
    partial: Histogram,
    last: Gauge,
    queued: Gauge,
    failures: Counter,
    programmed: Gauge,
    programming: Histogram,
    services: Counter,
    services_pending: Gauge,
    endpoints: Counter,
    endpoints_pending: Gauge,
    lacking: Gauge,
    /// Of iptables only.
    restores: Option<Restores>,
    connections: Counter,
    reconciling: Histogram,
    /// Of what is counted when it changes, what it was.
    lack: BTreeMap<&'static str, Lacking>,
}

/// What is counted of rules that are written one by one.
struct Restores {
    total: Gauge,
    last: Gauge,
    failed: Counter,
}

impl Restores {
    fn new(registry: &Registry) -> Self {
        let labels = ["ip_family", "table"];
        let gauge = |name: &str, help: &str| registry.gauge(name, help, &labels);
        Self {
            total: gauge(
                "kubeproxy_sync_proxy_rules_iptables_total",
                "Total number of iptables rules owned by kube-proxy",
            ),
            last: gauge(
                "kubeproxy_sync_proxy_rules_iptables_last",
                "Number of iptables rules written by kube-proxy in last sync",
            ),
            failed: registry.counter(
                "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
                "Cumulative proxy iptables partial restore failures",
                &["ip_family"],
            ),
        }
    }
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
    /// Counters in that registry, as one mode has them.
    pub fn new(registry: &Registry, mode: Mode) -> Self {
        let family = ["ip_family"];
        let seconds = exponential(0.001, 2.0, 15);
        let histogram = |name: &str, help: &str| registry.histogram(name, help, &family, &seconds);
        let (failed, help) = match mode {
            Mode::Nftables => ("nftables_sync_failures_total", "Cumulative proxy nftables sync failures"),
            Mode::Iptables => ("iptables_restore_failures_total", "Cumulative proxy iptables restore failures"),
        };
        Self {
            duration: histogram("kubeproxy_sync_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds"),
            full: histogram(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for full resyncs",
            ),
            partial: histogram(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for partial resyncs",
            ),
            last: registry.gauge(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "The last time proxy rules were successfully synced",
                &family,
            ),
            queued: registry.gauge(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "The last time a sync of proxy rules was queued",
                &family,
            ),
            failures: registry.counter(&format!("kubeproxy_sync_proxy_rules_{failed}"), help, &family),
            programmed: registry.gauge(
                "kubeproxy_programmed_revision",
                "Everything up to this revision is in the kernel, but for Services that it refuses",
                &["resource"],
            ),
            programming: registry.histogram(
                "kubeproxy_network_programming_duration_seconds",
                "In Cluster Network Programming Latency in seconds",
                &family,
                &programming_ends(),
            ),
            services: registry.counter(
                "kubeproxy_sync_proxy_rules_service_changes_total",
                "Cumulative proxy rules Service changes",
                &[],
            ),
            services_pending: registry.gauge(
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Pending proxy rules Service changes",
                &[],
            ),
            endpoints: registry.counter(
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                "Cumulative proxy rules Endpoint changes",
                &[],
            ),
            endpoints_pending: registry.gauge(
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "Pending proxy rules Endpoint changes",
                &[],
            ),
            lacking: registry.gauge(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                "Number of services with a Local traffic policy and no endpoints",
                &["ip_family", "traffic_policy"],
            ),
            restores: (mode == Mode::Iptables).then(|| Restores::new(registry)),
            connections: registry.counter(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Cumulative conntrack flows deleted by conntrack reconciler",
                &family,
            ),
            reconciling: histogram(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "ReconcileConntrackFlowsLatency latency in seconds",
            ),
            lack: BTreeMap::new(),
        }
    }

    /// So many Services and slices have changed, at that time in seconds since 1970.
    pub fn begun(&self, families: &[Family], (services, slices): (u64, u64), now: i64) {
        families.iter().for_each(|family| self.queued.set(&[label(*family)], now as f64));
        self.services.add(&[], services as f64);
        self.services_pending.set(&[], services as f64);
        self.endpoints.add(&[], slices as f64);
        self.endpoints_pending.set(&[], slices as f64);
    }

    /// The kernel has everything up to these revisions, and what happened so long ago.
    pub fn programmed(
        &self,
        families: &[Family],
        revisions: &[(&'static str, u64)],
        took: impl Iterator<Item = Duration>,
    ) {
        for (resource, revision) in revisions {
            self.programmed.set(&[resource], *revision as f64);
        }
        self.services_pending.set(&[], 0.0);
        self.endpoints_pending.set(&[], 0.0);
        for took in took {
            families.iter().for_each(|family| self.programming.took(&[label(*family)], took));
        }
    }

    /// The kernel has taken, or refused, a family's rules.
    pub fn applied(&self, family: Family, extent: Extent, took: Duration, well: bool, now: i64) {
        let family = [label(family)];
        self.duration.took(&family, took);
        match extent {
            Extent::Full => self.full.took(&family, took),
            Extent::Partial => self.partial.took(&family, took),
        }
        if well {
            self.last.set(&family, now as f64);
        } else {
            self.failures.inc(&family);
        }
    }

    /// A family's rules have been written one by one.
    pub fn written(&self, family: Family, written: &Written) {
        let Some(restores) = &self.restores else { return };
        for rules in &written.tables {
            restores.total.set(&[label(family), rules.table], rules.total as f64);
            restores.last.set(&[label(family), rules.table], rules.last as f64);
        }
        restores.failed.add(&[label(family)], written.failed as f64);
    }

    /// A Service asks for something else than before.
    pub fn replaced(&mut self, families: &[Family], before: Option<&ServiceRules>, after: Option<&ServiceRules>) {
        for family in families {
            let of = |rules: Option<&ServiceRules>| rules.map(|r| Lacking::of(r, *family)).unwrap_or_default();
            let (before, after) = (of(before), of(after));
            let lack = self.lack.entry(label(*family)).or_default();
            lack.internal = (lack.internal + after.internal).saturating_sub(before.internal);
            lack.external = (lack.external + after.external).saturating_sub(before.external);
            self.lacking.set(&[label(*family), "internal"], lack.internal as f64);
            self.lacking.set(&[label(*family), "external"], lack.external as f64);
        }
    }

    /// Connections that led nowhere are removed, so many.
    pub fn cleaned(&self, family: Family, took: Duration, count: usize) {
        self.connections.add(&[label(family)], count as f64);
        self.reconciling.took(&[label(family)], took);
    }
}
