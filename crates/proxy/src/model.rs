//! The dataplane-neutral truth: which address and port leads to which endpoints. Built from
//! Services and EndpointSlices, sorted, comparable, and the same for every renderer.
//!
//! One Service port with its slices becomes one [`ServicePort`]:
//!
//! ```text
//!  Service web  10.96.7.1  80→http  nodePort 30080      ServicePort default/web:http
//!  Slice web-x  10.244.0.4:8080 ready        ──────►      10.96.7.1:80 and *:30080
//!               10.244.0.5:8080 not ready                 → [10.244.0.4:8080]
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Deserializer};

/// A transport protocol as rules spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// From the API's spelling; the default is TCP.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }

    /// In lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// Names one port of one Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName {
    pub namespace: String,
    pub service: String,
    /// The port's name; may be empty when it is the only one.
    pub port: String,
    pub protocol: Protocol,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service)?;
        if self.port.is_empty() { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// Where one Service port leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    pub cluster_ips: BTreeSet<IpAddr>,
    pub port: u16,
    pub node_port: Option<u16>,
    /// Endpoints that get new connections: ready ones.
    pub endpoints: BTreeSet<SocketAddr>,
}

/// Every Service port of the cluster.
pub type Model = BTreeMap<PortName, ServicePort>;

/// The ports of one Service, in their order.
pub fn of_service<'m>(
    model: &'m Model,
    namespace: &'m str,
    service: &'m str,
) -> impl Iterator<Item = (&'m PortName, &'m ServicePort)> {
    let first = PortName {
        namespace: namespace.to_owned(),
        service: service.to_owned(),
        port: String::new(),
        protocol: Protocol::Tcp,
    };
    model.range(first..).take_while(move |(name, _)| name.namespace == namespace && name.service == service)
}

/// What the proxy reads of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Service {
    pub metadata: Metadata,
    pub spec: ServiceSpec,
}

/// What the proxy reads of any object's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub labels: BTreeMap<String, String>,
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
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Port {
    pub name: String,
    pub protocol: String,
    pub port: i32,
    pub node_port: i32,
}

/// The API prints lists that are required but empty as `null`.
fn null_as_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// What the proxy reads of an EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_empty")]
    pub endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "null_as_empty")]
    pub ports: Vec<SlicePort>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    #[serde(deserialize_with = "null_as_empty")]
    pub addresses: Vec<String>,
    pub conditions: Conditions,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// Absent means ready.
    pub ready: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SlicePort {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<i32>,
}

/// The label that names a slice's Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

fn port_number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|p| *p != 0)
}

/// Names become chain names; the API server has checked them, and what it would not have let
/// through is not rendered.
fn is_plain(text: &str) -> bool {
    text.len() <= 63 && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
}

/// The ports of one Service, sorted by name. Headless Services, ExternalName and those without an address have none.
pub fn service_ports<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
) -> Vec<(PortName, ServicePort)> {
    let spec = &service.spec;
    let (namespace, name) = (&service.metadata.namespace, &service.metadata.name);
    if spec.kind == "ExternalName" || spec.cluster_ip == "None" || !is_plain(namespace) || !is_plain(name) {
        return Vec::new();
    }
    let addresses = spec.cluster_ips.iter().chain(std::iter::once(&spec.cluster_ip));
    let cluster_ips: BTreeSet<IpAddr> = addresses.filter_map(|ip| ip.parse().ok()).collect();
    if cluster_ips.is_empty() {
        return Vec::new();
    }
    let exposes_nodes = spec.kind == "NodePort" || spec.kind == "LoadBalancer";
    let mut ports: Vec<(PortName, ServicePort)> = spec
        .ports
        .iter()
        .filter_map(|port| {
            let protocol = Protocol::parse(&port.protocol)?;
            let number = port_number(port.port)?;
            is_plain(&port.name).then_some(())?;
            let endpoints = ready_endpoints(slices.clone(), &port.name, protocol);
            let node_port = if exposes_nodes { port_number(port.node_port) } else { None };
            let key =
                PortName { namespace: namespace.clone(), service: name.clone(), port: port.name.clone(), protocol };
            Some((key, ServicePort { cluster_ips: cluster_ips.clone(), port: number, node_port, endpoints }))
        })
        .collect();
    ports.sort_by(|a, b| a.0.cmp(&b.0));
    ports
}

fn ready_endpoints<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    name: &str,
    protocol: Protocol,
) -> BTreeSet<SocketAddr> {
    let mut out = BTreeSet::new();
    for slice in slices {
        let matching = slice.ports.iter().filter(|p| {
            p.name.as_deref().unwrap_or_default() == name
                && Protocol::parse(p.protocol.as_deref().unwrap_or_default()) == Some(protocol)
        });
        for port in matching.filter_map(|p| port_number(p.port?)) {
            let ready = slice.endpoints.iter().filter(|e| e.conditions.ready != Some(false));
            let addresses = ready.filter_map(|e| e.addresses.first()?.parse::<IpAddr>().ok());
            out.extend(addresses.map(|ip| SocketAddr::new(ip, port)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(spec: serde_json::Value) -> Service {
        serde_json::from_value(json!({ "metadata": { "namespace": "default", "name": "web" }, "spec": spec }))
            .expect("a Service")
    }

    fn slice(name: &str, endpoints: serde_json::Value) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": { "namespace": "default", "name": "web-1" },
            "endpoints": endpoints,
            "ports": [{ "name": name, "protocol": "TCP", "port": 8080 }],
        }))
        .expect("an EndpointSlice")
    }

    #[test]
    fn only_ready_endpoints_of_the_named_port_are_taken() {
        let service = service(json!({ "type": "NodePort", "clusterIP": "10.96.7.1", "clusterIPs": ["10.96.7.1"],
            "ports": [{ "name": "http", "port": 80, "nodePort": 30080 }, { "name": "other", "port": 81 }] }));
        let slices = [slice(
            "http",
            json!([
                { "addresses": ["10.244.0.4"], "conditions": { "ready": true } },
                { "addresses": ["10.244.0.5"], "conditions": { "ready": false } },
                { "addresses": ["10.244.0.6"] },
            ]),
        )];
        let ports = service_ports(&service, slices.iter());
        let endpoints: Vec<String> = ports[0].1.endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(endpoints, ["10.244.0.4:8080", "10.244.0.6:8080"]);
        assert_eq!(ports[0].1.node_port, Some(30080));
        assert!(ports[1].1.endpoints.is_empty());
        assert_eq!(ports[1].0.to_string(), "default/web:other");
    }

    #[test]
    fn an_empty_slice_as_the_api_prints_it_is_read() {
        let slice: EndpointSlice =
            serde_json::from_value(json!({ "metadata": { "name": "x" }, "endpoints": null, "ports": null }))
                .expect("read");
        assert!(slice.endpoints.is_empty() && slice.ports.is_empty());
    }

    #[test]
    fn headless_external_and_hostile_services_have_no_ports() {
        let ports = json!([{ "port": 80 }]);
        let none = [
            service(json!({ "clusterIP": "None", "ports": ports })),
            service(json!({ "type": "ExternalName", "clusterIP": "", "ports": ports })),
            service(json!({ "clusterIP": "", "ports": ports })),
            service(json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 0 }] })),
            service(json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 80, "name": "a } ; flush ruleset" }] })),
        ];
        for service in none {
            assert_eq!(service_ports(&service, std::iter::empty()), []);
        }
    }
}
