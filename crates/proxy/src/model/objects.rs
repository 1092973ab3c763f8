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
#[serde(default, rename_all = "camelCase")]
pub struct Endpoint {
    /// The first address: what more there are says nothing more. `None` for names and damage.
    #[serde(rename = "addresses", deserialize_with = "first_address")]
    pub address: Option<IpAddr>,
    pub conditions: Conditions,
    pub node_name: Option<Box<str>>,
    pub hints: Option<Box<Hints>>,
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
    /// Absent means as ready as `ready` says.
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
        self.serving.unwrap_or_else(|| self.is_ready())
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
