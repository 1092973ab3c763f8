//! Every page of metrics, scraped as Prometheus does and read by its own parsers (`tests/metrics`,
//! `tests/python/metrics.py`).

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use e2e::clients;
use e2e::cluster::Cluster;
use serde_json::Value;
use tokio::process::Command;

/// What promtool says of names that are upstream's, and that people's dashboards ask for as they are.
const UPSTREAMS: &[&str] = &[
    // A count that has no unit, or one that is part of the name.
    "no unit",
    // A gauge upstream, too.
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total: non-counter",
    // Counters of upstream's first years.
    "authenticated_user_requests: counter metrics should have",
    "authentication_attempts: counter metrics should have",
    // cAdvisor's own name.
    "container_memory_failcnt: counter metrics should have",
];

/// Names that dashboards and alerts for Kubernetes ask for, by who tells them.
const WANTED: &[(&str, &[&str])] = &[
    (
        ":16443/metrics",
        &[
            "apiserver_admission_controller_admission_duration_seconds",
            "apiserver_admission_step_admission_duration_seconds",
            "apiserver_client_certificate_expiration_seconds",
            "apiserver_current_inflight_requests",
            "apiserver_longrunning_requests",
            "apiserver_request_duration_seconds",
            "apiserver_request_sli_duration_seconds",
            "apiserver_request_terminations_total",
            "apiserver_request_total",
            "apiserver_resource_objects",
            "apiserver_response_sizes",
            "apiserver_storage_objects",
            "apiserver_storage_size_bytes",
            "apiserver_watch_events_total",
            "authenticated_user_requests",
            "authentication_attempts",
            "authentication_duration_seconds",
            "authorization_attempts_total",
            "authorization_duration_seconds",
            "etcd_request_duration_seconds",
            "etcd_requests_total",
            "kubernetes_build_info",
            "process_cpu_seconds_total",
        ],
    ),
    (":16443/metrics/slis", &["kubernetes_healthcheck", "kubernetes_healthchecks_total"]),
    (
        ":10257/metrics",
        &[
            "rest_client_request_duration_seconds",
            "rest_client_requests_total",
            "workqueue_adds_total",
            "workqueue_depth",
            "workqueue_queue_duration_seconds",
            "workqueue_work_duration_seconds",
        ],
    ),
    (
        ":10259/metrics",
        &[
            "rest_client_requests_total",
            "scheduler_framework_extension_point_duration_seconds",
            "scheduler_pending_pods",
            "scheduler_plugin_execution_duration_seconds",
            "scheduler_pod_scheduling_attempts",
            "scheduler_pod_scheduling_sli_duration_seconds",
            "scheduler_queue_incoming_pods_total",
            "scheduler_schedule_attempts_total",
            "scheduler_scheduling_algorithm_duration_seconds",
            "scheduler_scheduling_attempt_duration_seconds",
        ],
    ),
    (":10259/metrics/resources", &["kube_pod_resource_request"]),
    (
        ":10250/metrics",
        &[
            "kubelet_cgroup_manager_duration_seconds",
            "kubelet_node_name",
            "kubelet_pleg_relist_duration_seconds",
            "kubelet_pod_start_duration_seconds",
            "kubelet_pod_worker_duration_seconds",
            "kubelet_running_containers",
            "kubelet_running_pods",
            "kubelet_runtime_operations_duration_seconds",
            "kubelet_runtime_operations_total",
            "rest_client_requests_total",
            "storage_operation_duration_seconds",
            "volume_manager_total_volumes",
        ],
    ),
    (
        ":10250/metrics/cadvisor",
        &[
            "container_cpu_usage_seconds_total",
            "container_memory_working_set_bytes",
            "container_network_receive_bytes_total",
            "container_network_transmit_bytes_total",
            "machine_memory_bytes",
        ],
    ),
    (
        ":10250/metrics/resource",
        &["container_cpu_usage_seconds_total", "node_memory_working_set_bytes", "pod_memory_working_set_bytes"],
    ),
    (":10250/metrics/probes", &["prober_probe_total"]),
    (
        ":10249/metrics",
        &[
            "kubeproxy_network_programming_duration_seconds",
            "kubeproxy_sync_proxy_rules_duration_seconds",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
            "rest_client_requests_total",
        ],
    ),
];

/// Scrapes all parts under the account of a scraper, as one would set it up.
pub async fn are_read_by_prometheus(cluster: &Cluster, server: &str) -> Result<()> {
    let node = cluster.node_ip().await?;
    for command in [
        "create serviceaccount scraper",
        "create clusterrole scraper --verb=get --non-resource-url=/metrics,/metrics/slis,/metrics/resources",
        "create clusterrole scraper-of-nodes --verb=get --resource=nodes/metrics",
        "create clusterrolebinding scraper --clusterrole=scraper --serviceaccount=default:scraper",
        "create clusterrolebinding scraper-of-nodes --clusterrole=scraper-of-nodes --serviceaccount=default:scraper",
    ] {
        cluster.kubectl(&command.split(' ').collect::<Vec<_>>()).await?;
    }
    let token = cluster.kubectl(&["create", "token", "scraper"]).await?;
    let folder = cluster.root().join("metrics");
    std::fs::create_dir(&folder)?;
    let file = folder.join("token");
    std::fs::write(&file, token)?;
    let mut urls = vec![format!("{server}/metrics"), format!("{server}/metrics/slis")];
    urls.extend([10257, 10259].map(|port| format!("https://127.0.0.1:{port}/metrics")));
    urls.extend(["", "/cadvisor", "/resource", "/probes"].map(|page| format!("https://{node}:10250/metrics{page}")));
    urls.push("https://127.0.0.1:10259/metrics/resources".to_owned());
    urls.push("http://127.0.0.1:10249/metrics".to_owned());
    let mut scraper = Command::new(clients::tool("metrics")?);
    let told = clients::run(cluster, scraper.arg(&file).arg(&folder).args(&urls)).await?;
    let pages = told.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    ensure!(pages.len() == 2 * urls.len(), "{told}");
    for page in &pages {
        check(page)?;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/metrics.py");
    let mut python = Command::new(clients::tool("python/bin/python")?);
    let read = clients::run(cluster, python.arg(script).arg(&folder)).await?;
    ensure!(read.lines().count() == pages.len(), "{read}");
    Ok(())
}

fn check(page: &Value) -> Result<()> {
    let url = page["url"].as_str().context("an address")?;
    let list = |key: &str| -> BTreeSet<&str> {
        page[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let lint: Vec<&str> =
        list("lint").into_iter().filter(|line| !UPSTREAMS.iter().any(|known| line.contains(known))).collect();
    ensure!(lint.is_empty(), "{url}: {lint:#?}");
    let (_, wanted) = WANTED.iter().find(|(end, _)| url.ends_with(end)).with_context(|| format!("{url}: which?"))?;
    // In OpenMetrics the family of a counter is named without its suffix.
    let is_open = page["form"] != "text/plain";
    let told: BTreeSet<&str> = list("names").into_iter().map(|name| name.trim_end_matches("_total")).collect();
    let names = wanted.iter().map(|name| name.trim_end_matches("_total"));
    let missing: Vec<&str> = names.filter(|name| !told.contains(name)).collect();
    ensure!(missing.is_empty(), "{url} (OpenMetrics: {is_open}) does not tell {missing:?}");
    Ok(())
}
