//! What controllers read of the objects in their caches: a few hundred bytes where the whole typed
//! object takes tens of thousands. Whoever needs more decodes the bytes.

use std::collections::BTreeMap;

use client::Cached;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;

/// Nothing but metadata.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct BareView {}

/// A condition of any kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub last_transition_time: Option<Timestamp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodView {
    metadata: PodMetadata,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodMetadata {
    annotations: Option<PodAnnotations>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodAnnotations {
    #[serde(rename = "controller.kubernetes.io/pod-deletion-cost")]
    deletion_cost: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodSpec {
    pub node_name: String,
    /// The scheduler that is to care for it, unless that is the usual one.
    #[serde(rename = "schedulerName", deserialize_with = "unusual_scheduler")]
    pub scheduler: Option<Box<str>>,
    pub hostname: String,
    pub subdomain: String,
    pub tolerations: Vec<Toleration>,
    pub containers: Vec<Container>,
    pub init_containers: Vec<Container>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Container {
    pub ports: Vec<ContainerPort>,
    pub restart_policy: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContainerPort {
    pub name: String,
    pub container_port: i32,
    pub protocol: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodStatus {
    pub phase: String,
    pub conditions: Vec<Condition>,
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
    pub container_statuses: Vec<ContainerStatus>,
    pub init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodIp {
    pub ip: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContainerStatus {
    pub restart_count: i32,
}

/// The name of nearly every pod's scheduler is not kept.
fn unusual_scheduler<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<str>>, D::Error> {
    let name = Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
    Ok(name.filter(|n| !n.is_empty() && n != "default-scheduler").map(|n| n.into_owned().into_boxed_str()))
}

impl PodView {
    /// The Ready condition.
    pub(crate) fn ready(&self) -> Option<&Condition> {
        self.status.conditions.iter().find(|c| c.kind == "Ready")
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready().is_some_and(|c| c.status == "True")
    }

    /// When it becomes (or became) available; `None` while it is not ready.
    pub(crate) fn available_at(&self, min_ready_seconds: i32) -> Option<Timestamp> {
        let ready = self.ready().filter(|c| c.status == "True")?;
        let wait = jiff::SignedDuration::from_secs(min_ready_seconds.max(0).into());
        if wait.is_zero() {
            return Some(Timestamp::MIN);
        }
        let since = ready.last_transition_time?;
        Some(since.saturating_add(wait).unwrap_or(Timestamp::MAX))
    }

    /// Succeeded or Failed.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// What its owner says it costs to delete it.
    pub(crate) fn deletion_cost(&self) -> i32 {
        let cost = self.metadata.annotations.as_ref().and_then(|a| a.deletion_cost.as_deref());
        cost.and_then(|c| c.parse().ok()).unwrap_or(0)
    }

    /// Its addresses, the primary first.
    pub(crate) fn ips(&self) -> Vec<&str> {
        if self.status.pod_ips.is_empty() && !self.status.pod_ip.is_empty() {
            return vec![&self.status.pod_ip];
        }
        self.status.pod_ips.iter().map(|p| p.ip.as_str()).filter(|ip| !ip.is_empty()).collect()
    }
}

/// A pod in the cache.
pub(crate) type CachedPod = Cached<PodView>;

/// Neither finished nor being deleted.
pub(crate) fn is_active(pod: &CachedPod) -> bool {
    !pod.view.is_finished() && !pod.meta.is_deleting()
}

/// Being deleted but not finished.
pub(crate) fn is_terminating(pod: &CachedPod) -> bool {
    !pod.view.is_finished() && pod.meta.is_deleting()
}

/// What owners say about what they own: Deployments, ReplicaSets.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SelectorView {
    pub spec: SelectorSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SelectorSpec {
    pub selector: Option<LabelSelector>,
    pub replicas: Option<i32>,
}

/// A range of Service addresses.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RangeView {
    pub spec: RangeSpec,
    pub status: RangeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RangeSpec {
    pub cidrs: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RangeStatus {
    pub conditions: Vec<Condition>,
}

/// Which pods a disruption budget is about.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct BudgetView {
    pub spec: BudgetSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct BudgetSpec {
    pub selector: Option<LabelSelector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeView {
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeSpec {
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeStatus {
    pub allocatable: Allocatable,
    pub conditions: Vec<NodeCondition>,
    pub addresses: Vec<NodeAddress>,
    pub daemon_endpoints: DaemonEndpoints,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Allocatable {
    /// A quantity.
    pub cpu: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct NodeAddress {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct DaemonEndpoints {
    pub kubelet_endpoint: DaemonEndpoint,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DaemonEndpoint {
    #[serde(rename = "Port")]
    pub port: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub last_heartbeat_time: Option<Timestamp>,
    pub last_transition_time: Option<Timestamp>,
}

impl NodeView {
    pub(crate) fn condition(&self, kind: &str) -> Option<&NodeCondition> {
        self.status.conditions.iter().find(|c| c.kind == kind)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ServiceView {
    metadata: ServiceMetadata,
    pub spec: ServiceSpec,
    pub status: ServiceStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceMetadata {
    annotations: Option<ServiceAnnotations>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceAnnotations {
    #[serde(rename = "service.kubernetes.io/topology-mode")]
    topology_mode: Option<Box<str>>,
    /// What it was called before.
    #[serde(rename = "service.kubernetes.io/topology-aware-hints")]
    topology_aware_hints: Option<Box<str>>,
}

impl ServiceView {
    /// Are its endpoints to be hinted in proportion to zones?
    pub(crate) fn is_topology_auto(&self) -> bool {
        let Some(annotations) = &self.metadata.annotations else { return false };
        let mode = annotations.topology_aware_hints.as_ref().or(annotations.topology_mode.as_ref());
        matches!(mode.map(|m| &**m), Some("Auto" | "auto"))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServiceStatus {
    pub load_balancer: LoadBalancer,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LoadBalancer {
    pub ingress: Vec<Ingress>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Ingress {
    pub ip: String,
    pub hostname: String,
    pub ip_mode: Option<String>,
    pub ports: Vec<PortStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct PortStatus {
    pub port: i32,
    pub protocol: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServiceSpec {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<String>,
    pub ip_families: Vec<String>,
    pub selector: BTreeMap<String, String>,
    pub ports: Vec<ServicePort>,
    pub publish_not_ready_addresses: bool,
    pub traffic_distribution: Option<String>,
    pub load_balancer_class: Option<String>,
    pub allocate_load_balancer_node_ports: Option<bool>,
    pub external_traffic_policy: String,
    pub health_check_node_port: i32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServicePort {
    pub name: String,
    pub port: i32,
    pub node_port: i32,
    pub protocol: Option<String>,
    pub app_protocol: Option<String>,
    pub target_port: Option<IntOrString>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LeaseView {
    pub spec: LeaseSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct LeaseSpec {
    pub renew_time: Option<Timestamp>,
}

/// A CustomResourceDefinition: which resource it brings, and whether that is served.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DefinitionView {
    pub spec: DefinitionSpec,
    pub status: DefinitionStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DefinitionSpec {
    pub group: String,
    pub scope: String,
    pub names: DefinitionNames,
    pub versions: Vec<DefinitionVersion>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DefinitionNames {
    pub plural: String,
    pub kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DefinitionVersion {
    pub name: String,
    pub served: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DefinitionStatus {
    /// Null in what was just created.
    pub conditions: Option<Vec<DefinitionCondition>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DefinitionCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

/// An APIService: which version of a group it is about, whether another server answers for that, and whether
/// that can be asked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiServiceView {
    pub spec: ApiServiceSpec,
    pub status: DefinitionStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiServiceSpec {
    pub group: String,
    pub version: String,
    pub service: Option<serde::de::IgnoredAny>,
}

/// An object for tests, from its JSON.
#[cfg(test)]
pub(crate) fn cached<V: serde::de::DeserializeOwned>(object: &serde_json::Value) -> Cached<V> {
    let json = serde_json::to_vec(object).expect("a tree");
    let meta = client::object::meta(&json).expect("metadata");
    Cached { meta, view: serde_json::from_slice(&json).expect("fits the view"), json: json.into() }
}
