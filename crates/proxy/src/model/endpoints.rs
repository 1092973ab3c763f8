//! Which of a port's endpoints get connections: ready ones, those near by when hints say so, those
//! about to end when there are no others, those of this node where a policy says so.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use net::ruleset::Family;

use super::objects::{Endpoint, EndpointSlice, Named};
use super::settings::Here;
use super::{Endpoints, Protocol, is_of};

/// Who uses the endpoints of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    /// Some connections may go to any node.
    pub cluster: bool,
    /// Some connections stay on this node.
    pub local: bool,
}

/// Two endpoints of one address (in two slices while one moves) are one: the better of them.
fn merit(endpoint: &Endpoint) -> u8 {
    let conditions = &endpoint.conditions;
    u8::from(conditions.is_ready()) * 2 + u8::from(conditions.is_serving())
}

/// The port's endpoints in all slices, by address.
fn gather<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    (name, protocol): (&str, Protocol),
    family: Family,
) -> BTreeMap<SocketAddr, &'a Endpoint> {
    let mut all: BTreeMap<SocketAddr, &Endpoint> = BTreeMap::new();
    for slice in slices {
        let matching = slice.ports.iter().filter(|p| {
            p.name.as_deref().unwrap_or_default() == name
                && Protocol::parse(p.protocol.as_deref().unwrap_or_default()) == Some(protocol)
        });
        for port in matching.filter_map(|p| super::services::port_number(p.port?)) {
            for endpoint in &slice.endpoints {
                let Some(ip) = endpoint.address.filter(|ip| is_of(ip, family)) else { continue };
                let known = all.entry(SocketAddr::new(ip, port)).or_insert(endpoint);
                if merit(endpoint) > merit(known) {
                    *known = endpoint;
                }
            }
        }
    }
    all
}

/// What hints make of the ready endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nearness {
    Anywhere,
    SameZone,
    SameNode,
}

fn names(hints: &[Named], wanted: &str) -> bool {
    hints.iter().any(|h| h.name == wanted)
}

/// Hints count only when every ready endpoint has them and one of them is for here: otherwise some
/// endpoint would get nothing, or this node would have none.
fn nearness<'a>(ready: impl Iterator<Item = &'a Endpoint>, here: &Here) -> Nearness {
    let (mut all_nodes, mut one_node, mut all_zones, mut one_zone) = (true, false, true, false);
    for endpoint in ready {
        let (nodes, zones): (&[Named], &[Named]) =
            endpoint.hints.as_ref().map_or((&[], &[]), |h| (&h.for_nodes, &h.for_zones));
        all_nodes &= !nodes.is_empty();
        one_node |= names(nodes, &here.name);
        all_zones &= !zones.is_empty();
        one_zone |= here.zone.as_ref().is_some_and(|zone| names(zones, zone));
    }
    match (all_nodes && one_node, all_zones && one_zone) {
        (true, _) => Nearness::SameNode,
        (false, true) => Nearness::SameZone,
        (false, false) => Nearness::Anywhere,
    }
}

impl Nearness {
    fn takes(self, endpoint: &Endpoint, here: &Here) -> bool {
        let hints = endpoint.hints.as_ref();
        match self {
            Self::Anywhere => true,
            Self::SameZone => here.zone.as_ref().is_some_and(|zone| hints.is_some_and(|h| names(&h.for_zones, zone))),
            Self::SameNode => hints.is_some_and(|h| names(&h.for_nodes, &here.name)),
        }
    }
}

/// The choice for one port.
pub(super) fn choose<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    (name, protocol): (&str, Protocol),
    family: Family,
    used: Use,
    here: &Here,
) -> Endpoints {
    let all = gather(slices, (name, protocol), family);
    let is_local = |e: &Endpoint| e.node_name.as_deref() == Some(here.name.as_str());
    let is_ready = |e: &Endpoint| e.conditions.is_ready();
    let is_last = |e: &Endpoint| e.conditions.is_serving() && e.conditions.is_terminating();
    let pick = |test: &dyn Fn(&Endpoint) -> bool| -> Vec<SocketAddr> {
        all.iter().filter(|(_, e)| test(e)).map(|(address, _)| *address).collect()
    };
    let mut out = Endpoints { any: all.values().any(|e| is_ready(e) || is_last(e)), ..Endpoints::default() };
    if used.cluster {
        let near = nearness(all.values().copied().filter(|e| is_ready(e)), here);
        out.cluster = pick(&|e| is_ready(e) && near.takes(e, here));
        if out.cluster.is_empty() {
            out.cluster = pick(&is_last);
        }
    }
    if used.local {
        out.local = pick(&|e| is_local(e) && is_ready(e));
        if out.local.is_empty() {
            out.local = pick(&|e| is_local(e) && is_last(e));
        }
    }
    let chosen =
        |address: &SocketAddr| out.cluster.binary_search(address).is_ok() || out.local.binary_search(address).is_ok();
    out.here = all.iter().filter(|(a, e)| is_local(e) && chosen(a)).map(|(address, _)| *address).collect();
    if protocol == Protocol::Udp {
        out.serving = pick(&|e| e.conditions.is_ready() || e.conditions.is_serving());
    }
    out
}

/// The addresses on this node that are ready: what a load balancer's health check counts.
pub(super) fn local_ready<'a>(slices: impl Iterator<Item = &'a EndpointSlice>, family: Family, here: &Here) -> usize {
    let local = slices
        .flat_map(|s| &s.endpoints)
        .filter(|e| e.conditions.is_ready() && e.node_name.as_deref() == Some(here.name.as_str()));
    let addresses: std::collections::BTreeSet<_> =
        local.filter_map(|e| e.address).filter(|ip| is_of(ip, family)).collect();
    addresses.len()
}

#[cfg(test)]
mod tests;
