//! What is read of Pods and Namespaces.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer};

use super::{NamedPort, Protocol};

/// Lists that are absent may be `null`.
fn or_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A Namespace: its labels are in its metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Namespace {}

/// A Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pod {
    #[serde(deserialize_with = "or_empty")]
    metadata: PodMetadata,
    #[serde(deserialize_with = "or_empty")]
    pub spec: PodSpec,
    #[serde(deserialize_with = "or_empty")]
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct PodMetadata {
    #[serde(deserialize_with = "or_empty")]
    annotations: PodAnnotations,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct PodAnnotations {
    #[serde(rename = "kubernetes.io/config.mirror", deserialize_with = "or_empty")]
    mirror: Box<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    #[serde(deserialize_with = "or_empty")]
    pub node_name: Box<str>,
    #[serde(deserialize_with = "or_empty")]
    pub host_network: bool,
    #[serde(deserialize_with = "or_empty")]
    pub containers: Vec<Container>,
    #[serde(deserialize_with = "or_empty")]
    pub init_containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    #[serde(deserialize_with = "or_empty")]
    pub ports: Vec<ContainerPort>,
    #[serde(deserialize_with = "or_empty")]
    pub restart_policy: Box<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    #[serde(deserialize_with = "or_empty")]
    pub name: Box<str>,
    #[serde(deserialize_with = "or_empty")]
    pub protocol: Box<str>,
    pub container_port: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    #[serde(deserialize_with = "or_empty")]
    pub phase: Box<str>,
    #[serde(rename = "podIP", deserialize_with = "or_empty")]
    pub pod_ip: Box<str>,
    #[serde(rename = "podIPs", deserialize_with = "or_empty")]
    pub pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodIp {
    #[serde(deserialize_with = "or_empty")]
    pub ip: Box<str>,
}

impl Pod {
    /// The uid by which the runtime knows a static pod that this one shows; empty: it shows none.
    pub fn mirror(&self) -> &str {
        &self.metadata.annotations.mirror
    }

    /// Its containers have ended: its address is nobody's.
    pub fn has_ended(&self) -> bool {
        matches!(&*self.status.phase, "Succeeded" | "Failed")
    }

    /// The addresses its status tells, each once.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut out: Vec<IpAddr> = Vec::new();
        let all = self.status.pod_ips.iter().map(|ip| &*ip.ip).chain([&*self.status.pod_ip]);
        for address in all.filter_map(|text| text.parse().ok()) {
            if !out.contains(&address) {
                out.push(address);
            }
        }
        out
    }

    /// The ports its containers name, those of init containers that keep running too.
    pub fn named_ports(&self) -> Vec<(NamedPort, u16)> {
        let sidecars = self.spec.init_containers.iter().filter(|c| &*c.restart_policy == "Always");
        let ports = self.spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports);
        let mut out: Vec<_> = ports
            .filter(|port| !port.name.is_empty())
            .filter_map(|port| {
                let protocol = Protocol::parse(&port.protocol)?;
                let number = u16::try_from(port.container_port).ok().filter(|n| *n > 0)?;
                Some((NamedPort { name: port.name.to_string(), protocol }, number))
            })
            .collect();
        out.sort();
        out.dedup();
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_are_read_whatever_is_missing() {
        let empty: Pod = serde_json::from_value(json!({"spec": null, "status": {"podIPs": null}})).expect("a pod");
        assert_eq!(empty, Pod::default());
        let pod: Pod = serde_json::from_value(json!({
            "spec": {
                "containers": [{"ports": [{"name": "web", "containerPort": 80}, {"containerPort": 81},
                    {"name": "dns", "protocol": "UDP", "containerPort": 53}, {"name": "bad", "containerPort": 0}]}],
                "initContainers": [{"restartPolicy": "Always", "ports": [{"name": "side", "containerPort": 9}]},
                    {"ports": [{"name": "init", "containerPort": 10}]}],
            },
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}, {"ip": "x"}]},
        }))
        .expect("a pod");
        assert_eq!(pod.addresses(), ["10.0.0.1", "fd00::1"].map(|a| a.parse::<IpAddr>().expect("an address")));
        let named: Vec<String> =
            pod.named_ports().iter().map(|(p, n)| format!("{}/{}/{n}", p.name, p.protocol.as_str())).collect();
        assert_eq!(named, ["dns/udp/53", "side/tcp/9", "web/tcp/80"]);
        assert!(!pod.has_ended());
    }
}
