//! One Service with its slices becomes what the kernel should hold for it; pure.

use std::net::IpAddr;

use ipnet::IpNet;
use net::ruleset::Family;

use super::endpoints::{Use, choose, local_ready};
use super::objects::{EndpointSlice, Service, ServiceSpec};
use super::settings::Here;
use super::{PortName, Protocol, ServicePort, ServiceRules, is_of};

/// How long a client stays with its endpoint when nobody says.
const AFFINITY: u32 = 10_800;

/// Where a load balancer asks whether this node has endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    /// So many are ready here.
    pub local: usize,
}

pub(super) fn port_number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|p| *p != 0)
}

/// Names become chain names; the API server has checked them, and what it would not have let
/// through is not rendered.
fn is_plain(text: &str) -> bool {
    text.len() <= 63 && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
}

/// Addresses of one family, sorted, each once; what is none is left out.
fn addresses<'a>(texts: impl Iterator<Item = &'a String>, family: Family) -> Vec<IpAddr> {
    let mut out: Vec<IpAddr> =
        texts.filter_map(|t| t.parse().ok()).filter(|ip: &IpAddr| is_of(ip, family) && !ip.is_unspecified()).collect();
    out.sort();
    out.dedup();
    out
}

/// What is true of every port of a Service, in one family.
struct Common {
    cluster_ip: IpAddr,
    external_ips: Vec<IpAddr>,
    load_balancer_ips: Vec<IpAddr>,
    source_ranges: Vec<IpNet>,
    affinity: Option<u32>,
}

impl Common {
    fn of(service: &Service, family: Family) -> Option<Self> {
        let spec = &service.spec;
        let own = spec.cluster_ips.iter().chain(std::iter::once(&spec.cluster_ip));
        let cluster_ip = own.filter_map(|ip| ip.parse().ok()).find(|ip| is_of(ip, family))?;
        let ingress = service.status.load_balancer.ingress.iter();
        let vips = ingress.filter(|i| i.ip_mode.as_deref() != Some("Proxy")).map(|i| &i.ip);
        let is_balanced = spec.kind == "LoadBalancer";
        let ranges = spec.load_balancer_source_ranges.iter().filter_map(|r| r.trim().parse::<IpNet>().ok());
        let mut source_ranges: Vec<IpNet> =
            ranges.filter(|r| is_balanced && is_of(&r.addr(), family)).map(|r| r.trunc()).collect();
        source_ranges.sort();
        source_ranges.dedup();
        let seconds = spec.session_affinity_config.client_ip.as_ref().and_then(|c| c.timeout_seconds);
        let seconds = seconds.and_then(|s| u32::try_from(s).ok()).filter(|s| *s > 0).unwrap_or(AFFINITY);
        Some(Self {
            cluster_ip,
            external_ips: addresses(spec.external_ips.iter(), family),
            load_balancer_ips: if is_balanced { addresses(vips, family) } else { Vec::new() },
            source_ranges,
            affinity: (spec.session_affinity == "ClientIP").then_some(seconds),
        })
    }
}

fn exposes_nodes(spec: &ServiceSpec) -> bool {
    spec.kind == "NodePort" || spec.kind == "LoadBalancer"
}

fn is_external_local(spec: &ServiceSpec) -> bool {
    spec.external_traffic_policy == "Local" && (exposes_nodes(spec) || !spec.external_ips.is_empty())
}

/// What one Service asks of the kernel of this node. Headless Services, `ExternalName` and those
/// without an address ask for nothing.
pub fn decide<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    here: &Here,
) -> ServiceRules {
    let (spec, names) = (&service.spec, [&service.metadata.namespace, &service.metadata.name]);
    if spec.kind == "ExternalName" || spec.cluster_ip == "None" || !names.iter().all(|n| is_plain(n)) {
        return ServiceRules::default();
    }
    let v4 = ports(service, slices.clone(), Family::Ip, here);
    let v6 = ports(service, slices.clone(), Family::Ip6, here);
    let checked = spec.kind == "LoadBalancer" && is_external_local(spec);
    let port = port_number(spec.health_check_node_port).filter(|_| checked && !(v4.is_empty() && v6.is_empty()));
    // Of two families the Service's first says how many there are.
    let family = if v4.is_empty() || spec.cluster_ip.contains(':') { Family::Ip6 } else { Family::Ip };
    let health_check = port.map(|port| HealthCheck { port, local: local_ready(slices, family, here) });
    ServiceRules { v4, v6, health_check }
}

fn ports<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    family: Family,
    here: &Here,
) -> Vec<(PortName, ServicePort)> {
    let spec = &service.spec;
    let Some(common) = Common::of(service, family) else { return Vec::new() };
    let mut out: Vec<(PortName, ServicePort)> = Vec::new();
    for port in &spec.ports {
        let Some(protocol) = Protocol::parse(&port.protocol) else { continue };
        let Some(number) = port_number(port.port).filter(|_| is_plain(&port.name)) else { continue };
        let name = PortName {
            namespace: service.metadata.namespace.clone(),
            service: service.metadata.name.clone(),
            port: port.name.clone(),
            protocol,
        };
        let mut rules = ServicePort {
            cluster_ip: common.cluster_ip,
            port: number,
            node_port: port_number(port.node_port).filter(|_| exposes_nodes(spec)),
            external_ips: common.external_ips.clone(),
            load_balancer_ips: common.load_balancer_ips.clone(),
            source_ranges: common.source_ranges.clone(),
            affinity: common.affinity,
            internal_local: spec.internal_traffic_policy == "Local",
            external_local: is_external_local(spec),
            endpoints: Default::default(),
        };
        // What comes from pods of this node to an outside address goes anywhere, whatever the
        // policy: to its load balancer and back it would, too.
        let used = Use {
            cluster: !rules.internal_local || rules.is_external(),
            local: rules.internal_local || (rules.external_local && rules.is_external()),
        };
        rules.endpoints = choose(slices.clone(), (&port.name, protocol), family, used, here);
        out.push((name, rules));
    }
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out.dedup_by(|a, b| a.0 == b.0);
    out
}

#[cfg(test)]
mod tests;
