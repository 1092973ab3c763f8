//! What the runtime is told of a pod's sandbox. Pure.

use ::cri::v1;

use super::{hosts, security};
use crate::pod::{BoundPod, is_restartable_init};
use crate::runtime::labels;
use crate::users::Block;

/// What a sandbox is made of beside the pod.
pub struct Inputs<'a> {
    pub pod: &'a BoundPod,
    pub attempt: u32,
    pub dns: v1::DnsConfig,
    pub log_directory: &'a str,
    pub cgroup_parent: &'a str,
    pub cluster_domain: &'a str,
    /// The pod's users, where they are not the node's.
    pub users: Option<Block>,
}

/// The kernel's names of machines are no longer.
const MAX_NAME: usize = 64;

/// Renders the configuration; the error is the message of `FailedCreatePodSandBox`.
pub fn render(inputs: &Inputs) -> Result<v1::PodSandboxConfig, String> {
    let pod = inputs.pod;
    let metadata = v1::PodSandboxMetadata {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        attempt: inputs.attempt,
    };
    let sysctls = pod.spec().security_context.iter().flat_map(|s| s.sysctls.iter().flatten());
    let linux = v1::LinuxPodSandboxConfig {
        cgroup_parent: inputs.cgroup_parent.to_owned(),
        security_context: Some(security::sandbox(pod, inputs.users)),
        sysctls: sysctls.map(|s| (s.name.clone(), s.value.clone())).collect(),
        ..v1::LinuxPodSandboxConfig::default()
    };
    // A pod on the node's network has the node's name.
    let hostname = if pod.host_network() { String::new() } else { hostname(pod, inputs.cluster_domain)? };
    Ok(v1::PodSandboxConfig {
        metadata: Some(metadata),
        hostname,
        log_directory: inputs.log_directory.to_owned(),
        dns_config: Some(inputs.dns.clone()),
        port_mappings: if pod.host_network() { Vec::new() } else { ports(pod) },
        labels: labels::sandbox(pod),
        annotations: pod.meta().annotations.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect(),
        linux: Some(linux),
    })
}

fn hostname(pod: &BoundPod, cluster_domain: &str) -> Result<String, String> {
    let full = hosts::full_name(pod, cluster_domain).filter(|_| pod.spec().set_hostname_as_fqdn == Some(true));
    match full {
        Some(name) if name.len() > MAX_NAME => Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long ({MAX_NAME} \
             characters is the max, {} characters requested)",
            name.len()
        )),
        Some(name) => Ok(name),
        None => Ok(pod.hostname()),
    }
}

fn ports(pod: &BoundPod) -> Vec<v1::PortMapping> {
    let sidecars = pod.init_containers().iter().filter(|c| is_restartable_init(c));
    let all = sidecars.chain(pod.containers()).flat_map(|c| c.ports.iter().flatten());
    all.filter_map(|port| {
        let host_port = port.host_port.filter(|p| *p > 0)?;
        let protocol = match port.protocol.as_deref() {
            Some("UDP") => v1::Protocol::Udp,
            Some("SCTP") => v1::Protocol::Sctp,
            _ => v1::Protocol::Tcp,
        };
        Some(v1::PortMapping {
            protocol: protocol as i32,
            container_port: port.container_port,
            host_port,
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn a_sandbox_carries_its_pods_identity() {
        let pod = pod(json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [
            {"name": "c", "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081, "protocol": "UDP"}]}]}}));
        let config = render(&Inputs {
            pod: &pod,
            attempt: 2,
            dns: v1::DnsConfig::default(),
            log_directory: "/logs",
            cgroup_parent: "/kubepods/burstable/podu-1",
            cluster_domain: "cluster.local",
            users: None,
        })
        .expect("a config");
        assert_eq!(config.metadata.map(|m| (m.uid, m.attempt)), Some(("u-1".into(), 2)));
        assert_eq!((config.labels["app"].as_str(), config.labels[labels::POD_UID].as_str()), ("x", "u-1"));
        assert_eq!(
            config.port_mappings.iter().map(|p| (p.host_port, p.container_port)).collect::<Vec<_>>(),
            [(8081, 81)]
        );
        assert_eq!(config.hostname, "web");
    }

    #[test]
    fn hostnames() {
        let of = |spec: serde_json::Value| {
            let mut spec = spec;
            spec["containers"] = json!([]);
            hostname(&pod(json!({"spec": spec})), "cluster.local")
        };
        let full = "web.s.default.svc.cluster.local";
        let rows = [
            (json!({"subdomain": "s"}), Ok("web")),
            (json!({"subdomain": "s", "setHostnameAsFQDN": true}), Ok(full)),
            (json!({"setHostnameAsFQDN": true}), Ok("web")),
            (json!({"hostname": "h", "subdomain": "s"}), Ok("h")),
            (json!({"hostname": "h", "hostnameOverride": "my.own.name", "subdomain": "s"}), Ok("my.own.name")),
            (
                json!({"hostname": "a".repeat(40), "subdomain": "s", "setHostnameAsFQDN": true}),
                Err("is too long (64 characters is the max, 68 characters requested)"),
            ),
        ];
        for (spec, want) in rows {
            match (of(spec.clone()), want) {
                (Ok(found), Ok(want)) => assert_eq!(found, want, "{spec}"),
                (Err(found), Err(want)) => assert!(found.ends_with(want), "{found}"),
                (found, want) => panic!("{spec}: {found:?} instead of {want:?}"),
            }
        }
    }
}
