//! Requests and limits as the kernel's numbers. Pure.

use ::cri::v1;
use api::pod::QosClass;
use api::types::core::v1::Container;

use crate::pod::{self, BoundPod, is_restartable_init};

/// The kernel's smallest share.
pub const MIN_SHARES: i64 = 2;
/// The kernel's largest share.
pub const MAX_SHARES: i64 = 262_144;
/// The period that quotas count in, microseconds.
pub const PERIOD: i64 = 100_000;
/// The kernel refuses less.
const MIN_QUOTA: i64 = 1000;

/// `cpu.shares` of so many thousandths of a core.
pub fn shares(milli: i128) -> i64 {
    if milli <= 0 {
        return MIN_SHARES;
    }
    i64::try_from(milli * 1024 / 1000).unwrap_or(MAX_SHARES).clamp(MIN_SHARES, MAX_SHARES)
}

/// `cpu.cfs_quota_us` of so many thousandths of a core; 0 is none.
pub fn quota(milli: i128) -> i64 {
    if milli <= 0 {
        return 0;
    }
    i64::try_from(milli * i128::from(PERIOD) / 1000).unwrap_or(i64::MAX).max(MIN_QUOTA)
}

/// `cpu.weight` (cgroup v2) of so many shares.
pub fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(MIN_SHARES, MAX_SHARES) - MIN_SHARES) * 9999 / (MAX_SHARES - MIN_SHARES)
}

/// How soon the kernel kills the container's processes when memory is short.
pub fn oom_score_adj(pod: &BoundPod, container: &Container, node_memory: i128) -> i64 {
    if pod.is_node_critical() {
        return -997;
    }
    match pod.qos() {
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let own = |c: &Container| pod::request(c, "memory").map_or(0, |q| q.value());
            let mut requested = own(container);
            if pod.is_init(&container.name) && is_restartable_init(container) {
                // A sidecar goes no sooner than the containers it serves.
                requested = requested.max(pod.containers().iter().map(own).min().unwrap_or(0));
            }
            let score = 1000 - 1000 * requested.saturating_add(share_of_the_rest(pod)) / node_memory.max(1);
            i64::try_from(score).unwrap_or(3).clamp(3, 999)
        }
    }
}

/// Memory that is requested for the whole pod beyond what its containers request, for each of them.
fn share_of_the_rest(pod: &BoundPod) -> i128 {
    let whole = pod.spec().resources.as_ref().and_then(|r| pod::amount(r.requests.as_ref(), "memory"));
    let Some(whole) = whole else { return 0 };
    let sidecars = pod.init_containers().iter().filter(|c| is_restartable_init(c));
    let running: Vec<&Container> = pod.containers().iter().chain(sidecars).collect();
    let requested = running.iter().filter_map(|c| pod::request(c, "memory")).map(|q| q.value());
    let rest = whole.value().saturating_sub(requested.fold(0, i128::saturating_add));
    rest.max(0) / i128::try_from(running.len()).unwrap_or(1).max(1)
}

/// What the runtime is told of a container's resources.
pub fn linux(pod: &BoundPod, container: &Container, node_memory: i128) -> v1::LinuxContainerResources {
    let cpu_limit = pod.limit(container, "cpu").map_or(0, |q| q.milli());
    let request = pod::request(container, "cpu").map_or(0, |q| q.milli());
    let memory = pod.limit(container, "memory").map_or(0, |q| q.value());
    v1::LinuxContainerResources {
        cpu_period: PERIOD,
        cpu_quota: quota(cpu_limit),
        cpu_shares: shares(request),
        memory_limit_in_bytes: i64::try_from(memory).unwrap_or(i64::MAX),
        oom_score_adj: oom_score_adj(pod, container, node_memory),
        ..v1::LinuxContainerResources::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    #[test]
    fn numbers() {
        assert_eq!([0, 1, 2, 100, 1000, 4000].map(shares), [2, 2, 2, 102, 1024, 4096]);
        assert_eq!([0, 1, 10, 200, 1500].map(quota), [0, 1000, 1000, 20_000, 150_000]);
        assert_eq!([2, 102, 1024, 262_144].map(weight), [1, 4, 39, 10_000]);
        assert_eq!(shares(i128::MAX / 2048), MAX_SHARES);
    }

    #[test]
    fn a_pod_of_its_own_resources_lends_them_to_its_containers() {
        let memory = |amount: &str| json!({"requests": {"memory": amount}});
        let pod = pod(json!({"spec": {
            "resources": {"requests": {"memory": "5Gi"}, "limits": {"cpu": "2", "memory": "6Gi"}},
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": memory("512Mi")}],
            "containers": [{"name": "a", "resources": memory("1Gi")},
                {"name": "b", "resources": {"limits": {"cpu": "500m", "memory": "1536Mi"}}}]}}));
        // 5 Gi less 3 Gi are shared by three; the sidecar counts as the least of the others.
        let score = |name: &str| oom_score_adj(&pod, pod.container(name).expect("a container"), 10 << 30);
        assert_eq!([score("a"), score("b"), score("s")], [834, 784, 834]);
        let limits = |name: &str| {
            let found = linux(&pod, pod.container(name).expect("a container"), 10 << 30);
            (found.cpu_quota, found.memory_limit_in_bytes >> 20)
        };
        assert_eq!([limits("a"), limits("b")], [(200_000, 6144), (50_000, 1536)]);
    }

    #[test]
    fn a_node_critical_pod_goes_last() {
        let of = |class: &str| {
            let pod = pod(json!({"spec": {"priority": 2_000_001_000, "priorityClassName": class,
                "containers": [{"name": "c"}]}}));
            oom_score_adj(&pod, &pod.containers()[0], 10 << 30)
        };
        assert_eq!((of("system-node-critical"), of("system-cluster-critical")), (-997, 1000));
    }

    #[test]
    fn oom_scores() {
        let score = |resources: Value, priority: Value| {
            let class = priority.is_string().then(|| priority.clone());
            let number = if class.is_some() { json!(2_000_001_000) } else { priority };
            let pod = pod(json!({"spec": {"priority": number, "priorityClassName": class,
                "containers": [{"name": "c", "resources": resources}]}}));
            oom_score_adj(&pod, &pod.containers()[0], 10 << 30)
        };
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(score(full, json!(0)), -997);
        assert_eq!(score(json!({}), json!(0)), 1000);
        assert_eq!(score(json!({}), json!("system-node-critical")), -997);
        assert_eq!(score(json!({}), json!("system-cluster-critical")), 1000);
        assert_eq!(score(json!({"requests": {"memory": "5Gi"}}), json!(0)), 500);
        assert_eq!(score(json!({"requests": {"cpu": "1"}}), json!(0)), 999);
        assert_eq!(score(json!({"requests": {"memory": "100Gi"}}), json!(0)), 3);
    }
}
