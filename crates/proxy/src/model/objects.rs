//! What the proxy reads of Services, EndpointSlices and Nodes.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer};

/// The label that names a slice's Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label of a Node that names its zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// The API prints lists that are required but empty as `null`.
fn null_as_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// What the proxy reads of any object's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    pub namespace: String,
    pub name: String,
    pub annotations: Annotations,
}

/// What the proxy reads of a Service's annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// Its endpoints leave the rules of their node before their pods end.
    #[serde(rename = "pintle.dev/leave-before-stop")]
    pub leaves_first: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Service {
    pub metadata: Metadata,
    pub spec: ServiceSpec,
    pub status: ServiceStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<String>,
    pub load_balancer_source_ranges: Vec<String>,
    pub session_affinity: String,
    pub session_affinity_config: SessionAffinityConfig,
    pub internal_traffic_policy: String,
    pub external_traffic_policy: String,
    pub health_check_node_port: i32,
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIp {
    pub timeout_seconds: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    pub load_balancer: LoadBalancer,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoadBalancer {
    pub ingress: Vec<Ingress>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    pub ip: String,
    pub ip_mode: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Port {
    pub name: String,
    pub protocol: String,
    pub port: i32,
    pub node_port: i32,
}

/// An EndpointSlice. There may be a hundred thousand endpoints: each holds no more than what rules
/// are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointSlice {
    pub metadata: SliceMetadata,
    #[serde(deserialize_with = "null_as_empty")]
    pub endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "null_as_empty")]
    pub ports: Vec<SlicePort>,
}

impl EndpointSlice {
    /// The ports that its endpoints answer at over TCP.
    pub fn tcp_ports(&self) -> impl Iterator<Item = u16> + '_ {
        let tcp = self.ports.iter().filter(|p| matches!(p.protocol.as_deref(), None | Some("" | "TCP")));
        tcp.filter_map(|p| super::services::port_number(p.port?))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SliceMetadata {
    pub annotations: SliceAnnotations,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SliceAnnotations {
    /// When what the slice was last changed for happened.
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub trigger_time: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Told")]
pub struct Endpoint {
    /// The first address: what more there are says nothing more. `None` for names and damage.
    pub address: Option<IpAddr>,
    pub conditions: Conditions,
    pub node_name: Option<Box<str>>,
    pub hints: Option<Box<Hints>>,
    /// The pod, where it is about to end.
    pub leaver: Option<Box<Leaver>>,
}

/// A pod that is about to end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Leaver {
    pub uid: String,
}

/// An endpoint as the API tells it.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Told {
    #[serde(deserialize_with = "first_address")]
    addresses: Option<IpAddr>,
    conditions: Conditions,
    node_name: Option<Box<str>>,
    hints: Option<Box<Hints>>,
    target_ref: Option<Box<Leaver>>,
}

impl From<Told> for Endpoint {
    fn from(told: Told) -> Self {
        let Told { addresses: address, conditions, node_name, hints, target_ref } = told;
        // Of all others nobody asks which pod they are.
        let leaver = target_ref.filter(|pod| conditions.is_terminating() && !pod.uid.is_empty());
        Self { address, conditions, node_name, hints, leaver }
    }
}

fn first_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let addresses: Option<Vec<String>> = Option::deserialize(deserializer)?;
    Ok(addresses.and_then(|a| a.first()?.parse().ok()))
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// Absent means ready.
    pub ready: Option<bool>,
    /// Absent means that it answers.
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

impl Conditions {
    /// Takes new connections.
    pub fn is_ready(&self) -> bool {
        self.ready != Some(false)
    }

    /// Answers, whether it is about to end or not.
    pub fn is_serving(&self) -> bool {
        self.serving != Some(false)
    }

    /// About to end.
    pub fn is_terminating(&self) -> bool {
        self.terminating == Some(true)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    #[serde(deserialize_with = "null_as_empty")]
    pub for_zones: Vec<Named>,
    #[serde(deserialize_with = "null_as_empty")]
    pub for_nodes: Vec<Named>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Named {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SlicePort {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<i32>,
}

/// What the proxy reads of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSpec {
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    pub taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    pub addresses: Vec<NodeAddress>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

/// What the proxy reads of a ServiceCIDR.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    pub spec: ServiceCidrSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    #[serde(deserialize_with = "null_as_empty")]
    pub cidrs: Vec<String>,
}

impl Node {
    /// The addresses other nodes reach it at.
    pub fn internal_ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.status.addresses.iter().filter(|a| a.kind == "InternalIP").filter_map(|a| a.address.parse().ok())
    }
}
