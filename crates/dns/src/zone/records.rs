//! What one Service gives names to: decided from it and its slices, and from nothing else.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::objects::{self, Service, Slice};
use crate::wire::Name;

/// What a Service answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records {
    /// `web.default.svc.cluster.local`
    pub name: Name,
    pub target: Target,
    /// Ready endpoints, each address once.
    pub endpoints: Vec<Endpoint>,
    /// Those with a name, by the label that stands before the Service's name; several may share one.
    pub hosts: HashMap<Box<[u8]>, Vec<u32>>,
}

/// What the name of a Service stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Its own addresses, at these ports.
    Cluster(Vec<IpAddr>, Vec<Port>),
    /// Those of its endpoints.
    Headless,
    /// Another name.
    External(Name),
}

/// A port as SRV names it, in small letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: Box<[u8]>,
    pub protocol: Box<[u8]>,
    pub port: u16,
}

impl Port {
    fn of(port: &objects::Port) -> Option<Self> {
        let lower = |text: &str| text.to_ascii_lowercase().into_bytes().into_boxed_slice();
        let protocol = if port.protocol.is_empty() { "tcp" } else { &port.protocol };
        let number = u16::try_from(port.port).ok().filter(|n| *n > 0)?;
        Some(Self { name: lower(&port.name), protocol: lower(protocol), port: number })
    }

    /// True when it is what SRV asks for.
    pub fn is_named(&self, (name, protocol): (&[u8], &[u8])) -> bool {
        &*self.name == name && &*self.protocol == protocol
    }
}

/// An endpoint that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `web-0.web.default.svc.cluster.local`
    pub name: Name,
    pub address: IpAddr,
    pub ports: Arc<[Port]>,
}

/// The label of an address without a name: `10-0-0-1`.
fn dashed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string().replace('.', "-"),
        IpAddr::V6(v6) => v6.to_string().replace(':', "-"),
    }
}

/// What a Service gives names to; `None` for one that has none: an ExternalName that is an address or no name.
pub fn decide<'a>(
    (namespace, name): (&str, &str),
    service: &Service,
    slices: impl Iterator<Item = &'a Slice>,
    zone: &Name,
) -> Option<Records> {
    let spec = &service.spec;
    let labels = || [name.as_bytes(), namespace.as_bytes(), b"svc"].into_iter().chain(zone.labels());
    let own = Name::of(labels()).ok()?.lower();
    if spec.kind == "ExternalName" {
        let is_address = spec.external_name.parse::<IpAddr>().is_ok();
        let other = Name::parse(&spec.external_name).ok().filter(|other| !is_address && other.bytes().len() > 1)?;
        let target = Target::External(other);
        return Some(Records { name: own, target, endpoints: Vec::new(), hosts: HashMap::new() });
    }
    let target = if spec.cluster_ip == "None" {
        Target::Headless
    } else {
        // An older client may have written the one address alone.
        let texts =
            if spec.cluster_ips.is_empty() { std::slice::from_ref(&spec.cluster_ip) } else { &spec.cluster_ips };
        let addresses = texts.iter().filter_map(|text| text.parse().ok()).collect();
        Target::Cluster(addresses, spec.ports.iter().filter_map(Port::of).collect())
    };
    let mut out = Records { name: own, target, endpoints: Vec::new(), hosts: HashMap::new() };
    let mut seen: HashMap<(IpAddr, Name), usize> = HashMap::new();
    for slice in slices {
        let ports: Arc<[Port]> = slice.ports.iter().filter_map(Port::of).collect();
        for endpoint in slice.endpoints.iter().filter(|e| e.conditions.ready != Some(false)) {
            // What more addresses say than the first is undefined.
            let Some(address) = endpoint.addresses.first().and_then(|text| text.parse::<IpAddr>().ok()) else {
                continue;
            };
            let host = endpoint.hostname.as_deref().filter(|host| !host.is_empty());
            let host = host.map_or_else(|| dashed(address), str::to_ascii_lowercase);
            let Ok(name) = Name::of([host.as_bytes()].into_iter().chain(out.name.labels())) else { continue };
            let at = *seen.entry((address, name.clone())).or_insert_with(|| {
                let at = out.endpoints.len();
                out.endpoints.push(Endpoint { name, address, ports: ports.clone() });
                out.hosts.entry(host.into_bytes().into()).or_default().push(u32::try_from(at).unwrap_or(u32::MAX));
                at
            });
            // Ports that differ between pods make slices of their own; one pod may be in several.
            let known = &mut out.endpoints[at].ports;
            if !Arc::ptr_eq(known, &ports) && !ports.iter().all(|port| known.contains(port)) {
                *known = known.iter().chain(ports.iter().filter(|port| !known.contains(port))).cloned().collect();
            }
        }
    }
    Some(out)
}
