//! What the kubelet counts of its own work, under upstream's names: `/metrics` and `/metrics/probes`.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use stdx::SharedClock;
use stdx::metrics::{Counter, Gauge, Histogram, Page, Registry, SECONDS, Type, exponential};

use crate::pods::Pods;
use crate::probe::threshold::Kind;
use crate::runtime::ContainerState;
use crate::sync::worker::View;
use crate::volume::source;

/// The name under which the build is told.
pub const BUILD: &str = "kubernetes_build_info";

/// How long pods take to start, in seconds.
const STARTUP: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
/// How long pulls take, in seconds.
const PULL: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];

/// How long volumes take, in seconds.
const STORAGE: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// The counters. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    /// What `/metrics` shows.
    pub registry: Registry,
    /// What `/metrics/probes` shows.
    pub probes: Registry,
    pub started_pods: Counter,
    pub started_pods_errors: Counter,
    pub started_containers: Counter,
    pub started_containers_errors: Counter,
    pub sandbox_duration: Histogram,
    pub sandbox_errors: Counter,
    pub pod_start: Histogram,
    pub pod_start_total: Histogram,
    pub pod_start_sli: Histogram,
    pub relist_duration: Histogram,
    pub relist_interval: Histogram,
    pub relist_last_seen: Gauge,
    /// How long a pod's worker took for a turn, by what it had to do.
    pub worker_duration: Histogram,
    pub cgroup_duration: Histogram,
    pub storage_duration: Histogram,
    pub evictions: Counter,
    pub admission_rejections: Counter,
    pub http_requests: Counter,
    pub http_duration: Histogram,
    pub http_inflight: Gauge,
    probe_total: Counter,
    probe_duration: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(Registry::default())
    }
}

impl Metrics {
    /// Counters in that registry.
    pub fn new(registry: Registry) -> Self {
        let probes = Registry::default();
        let r = &registry;
        let requests = ["method", "path", "server_type", "long_running"];
        Self {
            started_pods: r.counter("kubelet_started_pods_total", "Cumulative number of pods started", &[]),
            started_pods_errors: r.counter(
                "kubelet_started_pods_errors_total",
                "Cumulative number of errors when starting pods",
                &[],
            ),
            started_containers: r.counter(
                "kubelet_started_containers_total",
                "Cumulative number of containers started",
                &["container_type"],
            ),
            started_containers_errors: r.counter(
                "kubelet_started_containers_errors_total",
                "Cumulative number of errors when starting containers",
                &["container_type", "code"],
            ),
            sandbox_duration: r.histogram(
                "kubelet_run_podsandbox_duration_seconds",
                "Duration in seconds of the run_podsandbox operations, by the handler of the RuntimeClass.",
                &["runtime_handler"],
                &SECONDS,
            ),
            sandbox_errors: r.counter(
                "kubelet_run_podsandbox_errors_total",
                "Cumulative number of the run_podsandbox operations that failed, by the handler of the RuntimeClass.",
                &["runtime_handler"],
            ),
            pod_start: r.histogram(
                "kubelet_pod_start_duration_seconds",
                "Duration in seconds from the kubelet seeing a pod for the first time to the pod running.",
                &[],
                &STARTUP,
            ),
            pod_start_total: r.histogram(
                "kubelet_pod_start_total_duration_seconds",
                "Duration in seconds from the creation of a pod to the pod running, images and init containers \
                 included.",
                &[],
                &STARTUP,
            ),
            pod_start_sli: r.histogram(
                "kubelet_pod_start_sli_duration_seconds",
                "Duration in seconds to start a pod, excluding time to pull images and run init containers.",
                &[],
                &STARTUP,
            ),
            relist_duration: r.histogram(
                "kubelet_pleg_relist_duration_seconds",
                "Duration in seconds of listing what the runtime holds.",
                &[],
                &SECONDS,
            ),
            relist_interval: r.histogram(
                "kubelet_pleg_relist_interval_seconds",
                "Seconds between two lists of what the runtime holds.",
                &[],
                &exponential(0.25, 2.0, 12),
            ),
            relist_last_seen: r.gauge(
                "kubelet_pleg_last_seen_seconds",
                "When the runtime was listed last, in seconds since 1970.",
                &[],
            ),
            worker_duration: r.histogram(
                "kubelet_pod_worker_duration_seconds",
                "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
                &["operation_type"],
                &SECONDS,
            ),
            cgroup_duration: r.histogram(
                "kubelet_cgroup_manager_duration_seconds",
                "Duration in seconds for cgroup manager operations. Broken down by method.",
                &["operation_type"],
                &SECONDS,
            ),
            storage_duration: r.histogram(
                "storage_operation_duration_seconds",
                "Storage operation duration",
                &["migrated", "operation_name", "status", "volume_plugin"],
                &STORAGE,
            ),
            evictions: r.counter(
                "kubelet_evictions",
                "Cumulative number of pod evictions by the signal that led to them.",
                &["eviction_signal"],
            ),
            admission_rejections: r.counter(
                "kubelet_admission_rejections_total",
                "Cumulative number of pods that the kubelet refused to run, by the reason.",
                &["reason"],
            ),
            http_requests: r.counter(
                "kubelet_http_requests_total",
                "Number of the http requests received since the server started",
                &requests,
            ),
            http_duration: r.histogram(
                "kubelet_http_requests_duration_seconds",
                "Duration in seconds to serve http requests",
                &requests,
                &SECONDS,
            ),
            http_inflight: r.gauge("kubelet_http_inflight_requests", "Number of the inflight http requests", &requests),
            probe_total: probes.counter(
                "prober_probe_total",
                "Cumulative number of a liveness, readiness or startup probe for a container by result.",
                &["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
            ),
            probe_duration: probes.histogram(
                "prober_probe_duration_seconds",
                "Duration in seconds for a probe response.",
                &["probe_type", "container", "pod", "namespace"],
                &SECONDS,
            ),
            registry,
            probes,
        }
    }

    /// A probe of a container was answered.
    pub fn probed(&self, pod: &crate::pod::BoundPod, container: &str, kind: Kind, result: &str, took: Duration) {
        let kind = kind.title();
        self.probe_total.inc(&[kind, result, container, &pod.name, &pod.namespace, &pod.uid]);
        self.probe_duration.took(&[kind, container, &pod.name, &pod.namespace], took);
    }

    /// Does something to cgroups, and counts how long that took.
    pub fn of_cgroups<T>(&self, clock: &SharedClock, operation: &str, work: impl FnOnce() -> T) -> T {
        let began = clock.now();
        let done = work();
        self.cgroup_duration.took(&[operation], clock.now().since(began));
        done
    }

    /// A volume of that plugin was set up, or not.
    pub fn volume_set_up(&self, plugin: &str, took: Duration, well: bool) {
        let status = if well { "success" } else { "fail-unknown" };
        let plugin = format!("kubernetes.io/{plugin}");
        self.storage_duration.took(&["false", "volume_mount", status, &plugin], took);
    }

    /// A pod is gone.
    pub fn forget(&self, pod: &crate::pod::BoundPod) {
        self.probe_total.forget(&[("pod_uid", &pod.uid)]);
        // A namesake in another namespace goes on counting.
        self.probe_duration.forget(&[("pod", &pod.name), ("namespace", &pod.namespace)]);
    }

    /// Counts calls of the runtime.
    pub fn runtime_operations(&self) -> impl Fn(&str, Duration, bool) + Send + Sync + 'static + use<> {
        operations(&self.registry)
    }

    /// Counts, whenever a page is asked for, the pods there are.
    pub fn follow(&self, pods: &Arc<Pods>, node: &str) {
        let (pods, node): (Weak<Pods>, String) = (Arc::downgrade(pods), node.to_owned());
        self.registry.collect(move |page| {
            page.family("kubelet_node_name", Type::Gauge, "The node's name. The count is always 1.");
            page.sample("kubelet_node_name", &[("node", &node)], 1.0);
            if let Some(pods) = pods.upgrade() {
                count(page, &pods.all());
            }
        });
    }
}

/// Counts calls of the runtime in that registry.
pub fn operations(registry: &Registry) -> impl Fn(&str, Duration, bool) + Send + Sync + 'static + use<> {
    let label = ["operation_type"];
    let total = registry.counter(
        "kubelet_runtime_operations_total",
        "Cumulative number of runtime operations by operation type.",
        &label,
    );
    let errors = registry.counter(
        "kubelet_runtime_operations_errors_total",
        "Cumulative number of runtime operation errors by operation type.",
        &label,
    );
    let duration = registry.histogram(
        "kubelet_runtime_operations_duration_seconds",
        "Duration in seconds of runtime operations. Broken down by operation type.",
        &label,
        &exponential(0.005, 2.5, 14),
    );
    move |operation, took, failed| {
        total.inc(&[operation]);
        duration.took(&[operation], took);
        if failed {
            errors.inc(&[operation]);
        }
    }
}

fn count(page: &mut Page, views: &[View]) {
    let ended = |v: &&View| matches!(v.status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let of = |is_static: bool, only_active: bool| {
        let wanted = |v: &&View| v.pod.is_static() == is_static && !(only_active && ended(v));
        views.iter().filter(wanted).count() as f64
    };
    for (name, help, active) in [
        ("kubelet_desired_pods", "The number of pods the kubelet is being instructed to run.", false),
        ("kubelet_active_pods", "The number of pods that count when new pods are admitted.", true),
    ] {
        page.family(name, Type::Gauge, help);
        page.sample(name, &[("static", "")], of(false, active));
        page.sample(name, &[("static", "true")], of(true, active));
    }
    let mirrors = of(true, false);
    page.single("kubelet_mirror_pods", Type::Gauge, "The number of mirror pods that are to be there.", mirrors);
    let running = views.iter().filter(|v| v.seen.sandboxes.iter().any(|s| s.ready)).count() as f64;
    volumes(page, views);
    page.single("kubelet_running_pods", Type::Gauge, "Number of pods that have a running pod sandbox", running);
    let containers = || views.iter().flat_map(|v| &v.seen.containers);
    page.family("kubelet_running_containers", Type::Gauge, "Number of containers, by their state.");
    for (name, state) in [
        ("created", ContainerState::Created),
        ("exited", ContainerState::Exited),
        ("running", ContainerState::Running),
        ("unknown", ContainerState::Unknown),
    ] {
        let number = containers().filter(|c| c.state == state).count() as f64;
        page.sample("kubelet_running_containers", &[("container_state", name)], number);
    }
}

/// The volumes of pods: those that are to be there, and those of pods that run.
fn volumes(page: &mut Page, views: &[View]) {
    let name = "volume_manager_total_volumes";
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for view in views {
        let runs = view.seen.sandboxes.iter().any(|sandbox| sandbox.ready);
        let ended = matches!(view.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        for volume in view.pod.spec().volumes.iter().flatten() {
            let plugin = source::kind(volume);
            // No sandbox is begun before its pod's volumes are there.
            for (state, counted) in [("desired_state_of_world", !ended), ("actual_state_of_world", runs)] {
                if counted {
                    *counts.entry((plugin, state)).or_default() += 1;
                }
            }
        }
    }
    if !counts.is_empty() {
        page.family(name, Type::Gauge, "Number of volumes in Volume Manager");
    }
    for ((plugin, state), count) in counts {
        page.sample(name, &[("plugin_name", &format!("kubernetes.io/{plugin}")), ("state", state)], count as f64);
    }
}

/// Counts pulls in that registry.
pub fn image_pulls(registry: &Registry) -> Histogram {
    registry.histogram(
        "kubelet_image_pull_duration_seconds",
        "Duration in seconds to pull an image.",
        &["image_size_in_bytes"],
        &PULL,
    )
}

/// How large an image is, as upstream tells sizes apart.
pub fn image_size(bytes: u64) -> &'static str {
    const MI: u64 = 1 << 20;
    const GI: u64 = 1 << 30;
    // The sizes from which on a name holds, the largest first.
    const NAMES: [(u64, &str); 12] = [
        (100 * GI, "GT100GB"),
        (60 * GI, "60GB-100GB"),
        (40 * GI, "40GB-60GB"),
        (30 * GI, "30GB-40GB"),
        (20 * GI, "20GB-30GB"),
        (10 * GI, "10GB-20GB"),
        (5 * GI, "5GB-10GB"),
        (GI, "1GB-5GB"),
        (500 * MI, "500MB-1GB"),
        (100 * MI, "100MB-500MB"),
        (10 * MI, "10MB-100MB"),
        (0, "0-10MB"),
    ];
    NAMES.iter().find(|(from, _)| bytes > *from).map_or("N/A", |(_, name)| name)
}

/// What kind of container it is, as upstream names it.
pub fn container_type(pod: &crate::pod::BoundPod, name: &str) -> &'static str {
    if pod.is_ephemeral(name) {
        "ephemeral_container"
    } else if pod.is_init(name) {
        "init_container"
    } else {
        "container"
    }
}

#[cfg(test)]
mod tests {
    use super::image_size;

    #[test]
    fn sizes_of_images_have_upstreams_names() {
        for (bytes, want) in [
            (0, "N/A"),
            (1, "0-10MB"),
            (10 << 20, "0-10MB"),
            ((10 << 20) + 1, "10MB-100MB"),
            (1 << 30, "500MB-1GB"),
            ((1 << 30) + 1, "1GB-5GB"),
            (u64::MAX, "GT100GB"),
        ] {
            assert_eq!(image_size(bytes), want, "{bytes}");
        }
    }
}
