//! What is read of Services, EndpointSlices and Nodes.

use serde::{Deserialize, Deserializer};

/// The label that names a slice's Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The API prints what is required but empty as `null`.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Service {
    #[serde(deserialize_with = "or_default")]
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    #[serde(rename = "clusterIP", deserialize_with = "or_default")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "or_default")]
    pub cluster_ips: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub external_name: String,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<Port>,
}

/// A port of a Service or of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Port {
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub protocol: String,
    /// Zero: any.
    #[serde(deserialize_with = "or_default")]
    pub port: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Slice {
    #[serde(deserialize_with = "or_default")]
    pub endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    #[serde(deserialize_with = "or_default")]
    pub addresses: Vec<Box<str>>,
    #[serde(deserialize_with = "or_default")]
    pub hostname: Option<Box<str>>,
    #[serde(deserialize_with = "or_default")]
    pub conditions: Conditions,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// What says nothing is ready. That of a Service with `publishNotReadyAddresses` is always.
    pub ready: Option<bool>,
}
