//! `/metrics/resource` and `/metrics/cadvisor`: what is used, as Prometheus reads it. Only what there is at
//! the time is on a page: what is gone leaves no series.

use stdx::metrics::{Page, Type};

use crate::stats::network::{Direction, Interface};
use crate::stats::numbers::{Numbers, Waiting};
use crate::stats::{Gathered, Measured, PodStats};

const NANOS: f64 = 1e9;

type Value = fn(&Numbers) -> Option<f64>;

fn cpu_seconds(numbers: &Numbers) -> Option<f64> {
    Some(numbers.cpu?.used as f64 / NANOS)
}

fn working_set(numbers: &Numbers) -> Option<f64> {
    Some(numbers.memory?.working_set() as f64)
}

fn swap(numbers: &Numbers) -> Option<f64> {
    Some(numbers.memory?.swap as f64)
}

/// `/metrics/resource`: what metrics-server and autoscalers go by. `None` when it could not be gathered.
pub fn resource(gathered: Option<&Gathered>) -> String {
    let mut page = Page::new();
    if let Some(gathered) = gathered {
        resources(&mut page, gathered);
    }
    page.single(
        "resource_scrape_error",
        Type::Gauge,
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
        f64::from(u8::from(gathered.is_none())),
    );
    page.finish()
}

fn resources(page: &mut Page, gathered: &Gathered) {
    let at = gathered.at.as_millisecond();
    let containers: [(&str, Type, &str, Value); 4] = [
        (
            "container_cpu_usage_seconds_total",
            Type::Counter,
            "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
            cpu_seconds,
        ),
        (
            "container_memory_working_set_bytes",
            Type::Gauge,
            "[STABLE] Current working set of the container in bytes",
            working_set,
        ),
        (
            "container_swap_usage_bytes",
            Type::Gauge,
            "[ALPHA] Current amount of the container swap usage in bytes",
            swap,
        ),
        (
            "container_swap_limit_bytes",
            Type::Gauge,
            "[ALPHA] Current amount of the container swap limit in bytes",
            |n| n.memory?.swap_limit.map(|l| l as f64),
        ),
    ];
    for (name, kind, help, value) in containers {
        let all = gathered.named().flat_map(|p| p.containers.iter().map(move |c| (p, c)));
        let found = all.filter_map(|(p, c)| Some((p, c, value(&c.measured.numbers)?)));
        let mut found = found.peekable();
        if found.peek().is_some() {
            page.family(name, kind, help);
        }
        for (pod, container, value) in found {
            let name_of = &container.container.name;
            let labels = [("container", name_of.as_str()), ("namespace", &pod.pod.namespace), ("pod", &pod.pod.name)];
            page.sample_at(name, &labels, value, at);
        }
    }
    let name = "container_start_time_seconds";
    page.family(name, Type::Gauge, "[STABLE] Start time of the container since unix epoch in seconds");
    for (pod, container) in gathered.named().flat_map(|p| p.containers.iter().map(move |c| (p, &c.container))) {
        let Some(started) = container.started_at else { continue };
        let labels =
            [("container", container.name.as_str()), ("namespace", &pod.pod.namespace), ("pod", &pod.pod.name)];
        page.sample(name, &labels, started.as_nanosecond() as f64 / NANOS);
    }
    let node: [(&str, Type, &str, Value); 3] = [
        (
            "node_cpu_usage_seconds_total",
            Type::Counter,
            "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
            cpu_seconds,
        ),
        (
            "node_memory_working_set_bytes",
            Type::Gauge,
            "[STABLE] Current working set of the node in bytes",
            working_set,
        ),
        ("node_swap_usage_bytes", Type::Gauge, "[ALPHA] Current swap usage of the node in bytes", swap),
    ];
    for (name, kind, help, value) in node {
        if let Some(value) = value(&gathered.node.numbers) {
            page.family(name, kind, help);
            page.sample_at(name, &[], value, at);
        }
    }
    let pods: [(&str, Type, &str, Value); 3] = [
        (
            "pod_cpu_usage_seconds_total",
            Type::Counter,
            "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
            cpu_seconds,
        ),
        ("pod_memory_working_set_bytes", Type::Gauge, "[STABLE] Current working set of the pod in bytes", working_set),
        ("pod_swap_usage_bytes", Type::Gauge, "[ALPHA] Current amount of the pod swap usage in bytes", swap),
    ];
    for (name, kind, help, value) in pods {
        let found = gathered.named().filter_map(|p| Some((p, value(&p.measured.numbers)?)));
        let mut found = found.peekable();
        if found.peek().is_some() {
            page.family(name, kind, help);
        }
        for (pod, value) in found {
            page.sample_at(name, &[("namespace", &pod.pod.namespace), ("pod", &pod.pod.name)], value, at);
        }
    }
}

/// One cgroup with the labels that cAdvisor gives it.
struct Row<'a> {
    measured: &'a Measured,
    container: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
    /// When it was started, in seconds since 1970.
    started: Option<f64>,
}

impl<'a> Row<'a> {
    fn labels(&self) -> [(&'a str, &'a str); 6] {
        [
            ("container", self.container),
            ("id", &self.measured.cgroup),
            ("image", self.image),
            ("name", self.name),
            ("namespace", self.namespace),
            ("pod", self.pod),
        ]
    }
}

fn seconds(at: jiff::Timestamp) -> f64 {
    at.as_nanosecond() as f64 / NANOS
}

fn rows(gathered: &Gathered) -> Vec<Row<'_>> {
    let bare = |measured| {
        let none = "";
        Row { measured, container: none, image: none, name: none, namespace: none, pod: none, started: None }
    };
    let mut out = vec![bare(&gathered.node)];
    if !gathered.all_pods.cgroup.is_empty() {
        out.push(bare(&gathered.all_pods));
    }
    for stats in &gathered.pods {
        let of = |measured| Row { namespace: &stats.pod.namespace, pod: &stats.pod.name, ..bare(measured) };
        out.push(Row { started: Some(seconds(stats.started)), ..of(&stats.measured) });
        if let Some((id, measured)) = &stats.sandbox {
            out.push(Row { name: id, started: Some(seconds(stats.started)), ..of(measured) });
        }
        for c in &stats.containers {
            let started = c.container.started_at.map(seconds);
            let (container, image, name) = (&c.container.name, &c.container.image, &c.container.id);
            out.push(Row { container, image, name, started, ..of(&c.measured) });
        }
    }
    out
}

/// `/metrics/cadvisor`: every cgroup of the node's pods in full, under cAdvisor's names.
pub fn cadvisor(gathered: &Gathered) -> String {
    let mut page = Page::new();
    let rows = rows(gathered);
    let at = gathered.at.as_millisecond();
    for (name, kind, help, value) in PLAIN {
        family(&mut page, &rows, (name, *kind, help), at, |row| value(&row.measured.numbers));
    }
    type Pressed = (&'static str, &'static str, fn(&Numbers) -> Option<Waiting>);
    let pressed: [Pressed; 3] = [
        ("cpu", "CPU", |n| n.pressure.cpu),
        ("io", "I/O", |n| n.pressure.io),
        ("memory", "memory", |n| n.pressure.memory),
    ];
    for (what, shown, waiting) in pressed {
        let total = |micros: u64| micros as f64 / 1e6;
        let name = format!("container_pressure_{what}_waiting_seconds_total");
        let help = format!("Total time duration tasks in the container have waited due to {shown} congestion.");
        family(&mut page, &rows, (&name, Type::Counter, &help), at, |r| {
            waiting(&r.measured.numbers).map(|w| total(w.some.total))
        });
        let name = format!("container_pressure_{what}_stalled_seconds_total");
        let help =
            format!("Total time duration no tasks in the container could make progress due to {shown} congestion.");
        family(&mut page, &rows, (&name, Type::Counter, &help), at, |r| {
            waiting(&r.measured.numbers).map(|w| total(w.full.total))
        });
    }
    let start =
        ("container_start_time_seconds", Type::Gauge, "Start time of the container since unix epoch in seconds.");
    family(&mut page, &rows, start, at, |row| row.started);
    let seen = ("container_last_seen", Type::Gauge, "Last time a container was seen by the exporter");
    family(&mut page, &rows, seen, at, |_| Some(gathered.at.as_second() as f64));
    faults(&mut page, &rows, at);
    devices(&mut page, &rows, at);
    interfaces(&mut page, gathered, at);
    let machine = &gathered.machine;
    for (name, help, value) in [
        ("machine_cpu_cores", "Number of logical CPU cores.", machine.cpus),
        ("machine_memory_bytes", "Amount of memory installed on the machine.", machine.memory),
        ("machine_swap_bytes", "Amount of swap memory available on the machine.", machine.swap),
    ] {
        page.single(name, Type::Gauge, help, value as f64);
    }
    page.single(
        "machine_scrape_error",
        Type::Gauge,
        "1 if there was an error while getting machine metrics, 0 otherwise.",
        0.0,
    );
    page.single(
        "container_scrape_error",
        Type::Gauge,
        "1 if there was an error while getting container metrics, 0 otherwise",
        0.0,
    );
    page.finish()
}

fn family(
    page: &mut Page,
    rows: &[Row<'_>],
    (name, kind, help): (&str, Type, &str),
    at: i64,
    value: impl Fn(&Row<'_>) -> Option<f64>,
) {
    let mut begun = false;
    for row in rows {
        let Some(value) = value(row) else { continue };
        if !std::mem::replace(&mut begun, true) {
            page.family(name, kind, help);
        }
        page.sample_at(name, &row.labels(), value, at);
    }
}

const PLAIN: &[(&str, Type, &str, Value)] = &[
    ("container_cpu_cfs_periods_total", Type::Counter, "Number of elapsed enforcement period intervals.", |n| {
        n.limits.quota?;
        Some(n.cpu?.periods as f64)
    }),
    ("container_cpu_cfs_throttled_periods_total", Type::Counter, "Number of throttled period intervals.", |n| {
        n.limits.quota?;
        Some(n.cpu?.throttled_periods as f64)
    }),
    ("container_cpu_cfs_throttled_seconds_total", Type::Counter, "Total time the container has been throttled.", |n| {
        n.limits.quota?;
        Some(n.cpu?.throttled as f64 / NANOS)
    }),
    ("container_cpu_usage_seconds_total", Type::Counter, "Cumulative cpu time consumed in seconds.", cpu_seconds),
    ("container_cpu_user_seconds_total", Type::Counter, "Cumulative user cpu time consumed in seconds.", |n| {
        Some(n.cpu?.user as f64 / NANOS)
    }),
    ("container_cpu_system_seconds_total", Type::Counter, "Cumulative system cpu time consumed in seconds.", |n| {
        Some(n.cpu?.system as f64 / NANOS)
    }),
    ("container_memory_cache", Type::Gauge, "Number of bytes of page cache memory.", |n| Some(n.memory?.cache as f64)),
    ("container_memory_failcnt", Type::Counter, "Number of memory usage hits limits", |n| {
        Some(n.memory?.refused as f64)
    }),
    ("container_memory_mapped_file", Type::Gauge, "Size of memory mapped files in bytes.", |n| {
        Some(n.memory?.mapped as f64)
    }),
    ("container_memory_max_usage_bytes", Type::Gauge, "Maximum memory usage recorded in bytes", |n| {
        Some(n.memory?.most as f64)
    }),
    ("container_memory_rss", Type::Gauge, "Size of RSS in bytes.", |n| Some(n.memory?.rss as f64)),
    ("container_memory_swap", Type::Gauge, "Container swap usage in bytes.", swap),
    ("container_memory_usage_bytes", Type::Gauge, "Current memory usage in bytes, whenever it was last used", |n| {
        Some(n.memory?.used as f64)
    }),
    ("container_memory_working_set_bytes", Type::Gauge, "Current working set in bytes.", working_set),
    ("container_processes", Type::Gauge, "Number of processes running inside the container.", |n| {
        n.processes.map(|p| p as f64)
    }),
    ("container_spec_cpu_period", Type::Gauge, "CPU period of the container.", |n| n.limits.period.map(|p| p as f64)),
    ("container_spec_cpu_quota", Type::Gauge, "CPU quota of the container.", |n| n.limits.quota.map(|q| q as f64)),
    ("container_spec_cpu_shares", Type::Gauge, "CPU share of the container.", |n| n.limits.shares.map(|s| s as f64)),
    ("container_spec_memory_limit_bytes", Type::Gauge, "Memory limit for the container.", |n| {
        // Without a limit it is nought.
        Some(n.memory?.limit.unwrap_or(0) as f64)
    }),
    ("container_threads_max", Type::Gauge, "Maximum number of threads allowed inside the container.", |n| {
        n.limits.processes.map(|p| p as f64)
    }),
];

fn faults(page: &mut Page, rows: &[Row<'_>], at: i64) {
    let name = "container_memory_failures_total";
    page.family(name, Type::Counter, "Cumulative count of memory allocation failures.");
    for row in rows {
        let Some(memory) = row.measured.numbers.memory else { continue };
        for (kind, count) in [("pgfault", memory.faults), ("pgmajfault", memory.major_faults)] {
            let labels = [&row.labels()[..], &[("failure_type", kind), ("scope", "hierarchy")]].concat();
            page.sample_at(name, &labels, count as f64, at);
        }
    }
}

fn devices(page: &mut Page, rows: &[Row<'_>], at: i64) {
    type Ways = [(&'static str, &'static str, fn(&(String, u64, u64)) -> u64); 2];
    let ways: Ways = [
        ("container_fs_reads_bytes_total", "Cumulative count of bytes read", |d| d.1),
        ("container_fs_writes_bytes_total", "Cumulative count of bytes written", |d| d.2),
    ];
    for (name, help, value) in ways {
        if rows.iter().all(|row| row.measured.numbers.io.is_empty()) {
            continue;
        }
        page.family(name, Type::Counter, help);
        for row in rows {
            for device in &row.measured.numbers.io {
                let labels = [&row.labels()[..], &[("device", device.0.as_str())]].concat();
                page.sample_at(name, &labels, value(device) as f64, at);
            }
        }
    }
}

fn interfaces(page: &mut Page, gathered: &Gathered, at: i64) {
    let node: &[Interface] = &gathered.machine.interfaces;
    let with = |p: &PodStats| p.interfaces.as_ref().is_some_and(|i| !i.is_empty());
    if node.is_empty() && !gathered.pods.iter().any(with) {
        return;
    }
    type Part = (&'static str, fn(&Direction) -> u64);
    let parts: [Part; 4] = [
        ("bytes", |d| d.bytes),
        ("errors", |d| d.errors),
        ("packets_dropped", |d| d.dropped),
        ("packets", |d| d.packets),
    ];
    for (way, of) in [("receive", (|i| &i.received) as fn(&Interface) -> &Direction), ("transmit", |i| &i.sent)] {
        for (part, value) in parts {
            let name = format!("container_network_{way}_{part}_total");
            page.family(&name, Type::Counter, &format!("Cumulative count of network {way} {}", part.replace('_', " ")));
            for interface in node {
                let none = Row {
                    measured: &gathered.node,
                    container: "",
                    image: "",
                    name: "",
                    namespace: "",
                    pod: "",
                    started: None,
                };
                let labels = [&none.labels()[..], &[("interface", interface.name.as_str())]].concat();
                page.sample_at(&name, &labels, value(of(interface)) as f64, at);
            }
            for pod in &gathered.pods {
                let Some((id, measured)) = &pod.sandbox else { continue };
                let row = Row {
                    measured,
                    container: "",
                    image: "",
                    name: id,
                    namespace: &pod.pod.namespace,
                    pod: &pod.pod.name,
                    started: None,
                };
                for interface in pod.interfaces.iter().flatten() {
                    let labels = [&row.labels()[..], &[("interface", interface.name.as_str())]].concat();
                    page.sample_at(&name, &labels, value(of(interface)) as f64, at);
                }
            }
        }
    }
}
