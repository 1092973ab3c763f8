//! The configuration as this kubelet goes by it, for `/configz`.

use std::collections::BTreeMap;

use crate::image::rate::Rate;
use crate::node::status::binary;
use crate::node::thresholds::{Bound, Bounds, PerSignal};

/// By the names of signals.
fn by_name<T: Copy>(all: &PerSignal<T>, text: impl Fn(T) -> String) -> BTreeMap<&'static str, String> {
    all.iter().map(|(signal, value)| (signal.name(), text(value))).collect()
}

fn bounds(all: &Bounds) -> BTreeMap<&'static str, String> {
    by_name(all, |bound| match bound {
        Bound::Amount(amount) => binary(amount).to_string(),
        Bound::Share(share) => format!("{}%", share as f64 / 1000.0),
    })
}

/// What this kubelet goes by, as a document of its kind: what `/configz` shows.
pub fn show(options: &crate::Options) -> serde_json::Value {
    use std::net::{IpAddr, Ipv4Addr};
    let address = options.address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |a| a.ip());
    serde_json::json!({
        "address": address.to_string(),
        "port": options.address.map_or(0, |a| a.port()),
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": ""},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": match options.cgroup_driver {
            crate::cgroup::Driver::Cgroupfs => "cgroupfs",
            crate::cgroup::Driver::Systemd => "systemd",
        },
        "cgroupRoot": options.cgroup_root,
        "cgroupsPerQOS": options.cgroups_per_qos,
        "clusterDNS": options.cluster_dns,
        "clusterDomain": options.cluster_domain,
        "containerLogMaxFiles": options.log_limits.1,
        "containerLogMaxSize": options.log_limits.0.to_string(),
        "containerRuntimeEndpoint": options.runtime_endpoint,
        "crashLoopBackOff": {
            "maxContainerRestartPeriod": format!("{}s", options.max_container_restart_period.as_secs()),
        },
        "enableServer": options.address.is_some(),
        "enableDebugFlagsHandler": options.debug.has_level(),
        "enableProfilingHandler": options.debug.has_profiling(),
        "enableSystemLogHandler": options.node_logs.is_some(),
        "evictionHard": bounds(&options.thresholds.hard),
        "evictionMaxPodGracePeriod": options.thresholds.max_pod_grace,
        "evictionMinimumReclaim": bounds(&options.thresholds.reclaim),
        "evictionSoft": bounds(&options.thresholds.soft),
        "evictionSoftGracePeriod": by_name(&options.thresholds.soft_grace, |time| format!("{}s", time.as_secs_f64())),
        "evictionPressureTransitionPeriod": format!("{}s", options.thresholds.transition.as_secs()),
        "maxParallelImagePulls": options.images.parallel,
        "maxPods": options.max_pods,
        "podPidsLimit": options.pod_pids_limit.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX)),
        "podLogsDir": options.log_dir.display().to_string(),
        "registerWithTaints": options.taints,
        "registryBurst": options.images.rate.unwrap_or(Rate::USUAL).burst,
        "registryPullQPS": options.images.rate.map_or(0, |rate| rate.per_second),
        "resolvConf": options.resolv_conf.display().to_string(),
        "staticPodPath": options.static_pods.path.as_ref().map(|p| p.display().to_string()).unwrap_or_default(),
    })
}
