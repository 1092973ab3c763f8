//! What the API says of a packet, read off its documentation and nothing else: slow, plain, and independent
//! of how rules are made.

use std::net::IpAddr;

use api::meta::util::intstr::IntOrString;
use api::types::networking::v1::{NetworkPolicyPeer, NetworkPolicyPort};
use client::Key;
use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::World;
use crate::model::policy::{Direction, Protocol};
use crate::model::{Labels, Pod};

/// The first packet of a connection that passes this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// `None`: a protocol without ports.
    pub port: Option<(Protocol, u16)>,
}

/// Who has an address.
fn holder(world: &World, address: IpAddr) -> Option<(&Key, &Pod)> {
    let mut best: Option<(&Key, &Pod)> = None;
    for (key, pod) in world.pods.iter().filter(|(_, pod)| pod.addresses.contains(&address)) {
        let is_better = best.is_none_or(|(_, other)| {
            if pod.is_here != other.is_here {
                return pod.is_here;
            }
            let (told, created) = (pod.rank.told.0, pod.rank.created.0);
            let (others_told, others_created) = (other.rank.told.0, other.rank.created.0);
            if told != others_told {
                return told > others_told;
            }
            if pod.rank.is_deleting != other.rank.is_deleting {
                return other.rank.is_deleting;
            }
            // Of two alike the first by name, who was seen before.
            created > others_created
        });
        if is_better {
            best = Some((key, pod));
        }
    }
    best
}

/// Do labels satisfy a selector?
fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|e| {
            let value = labels.get(&e.key);
            let listed = value.is_some_and(|v| e.values.iter().flatten().any(|x| x == v));
            match e.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                other => panic!("{other}"),
            }
        })
}

/// Is it let through here?
pub fn is_allowed(world: &World, packet: &Packet) -> bool {
    if packet.source == packet.destination {
        return true;
    }
    let end = |address| holder(world, address).filter(|(_, pod)| pod.is_here);
    let may_leave = end(packet.source).is_none_or(|pod| may(world, Direction::Egress, pod, packet));
    let may_enter = end(packet.destination).is_none_or(|pod| may(world, Direction::Ingress, pod, packet));
    may_leave && may_enter
}

fn may(world: &World, direction: Direction, (key, pod): (&Key, &Pod), packet: &Packet) -> bool {
    let mut isolated = false;
    for (_, policy) in world.policies.iter().filter(|(k, _)| k.namespace == key.namespace) {
        let spec = policy.spec.as_ref().expect("a spec");
        if !selects(spec.pod_selector.as_ref().expect("a selector"), &pod.labels) {
            continue;
        }
        let types = spec.policy_types.clone().unwrap_or_default();
        let is_about = match direction {
            Direction::Ingress => types.is_empty() || types.iter().any(|t| t == "Ingress"),
            Direction::Egress if types.is_empty() => spec.egress.as_ref().is_some_and(|rules| !rules.is_empty()),
            Direction::Egress => types.iter().any(|t| t == "Egress"),
        };
        if !is_about {
            continue;
        }
        isolated = true;
        let rules: Vec<_> = match direction {
            Direction::Ingress => spec.ingress.iter().flatten().map(|r| (r.from.clone(), r.ports.clone())).collect(),
            Direction::Egress => spec.egress.iter().flatten().map(|r| (r.to.clone(), r.ports.clone())).collect(),
        };
        let other = if direction == Direction::Ingress { packet.source } else { packet.destination };
        for (peers, ports) in rules {
            let (peers, ports) = (peers.unwrap_or_default(), ports.unwrap_or_default());
            let is_peer = peers.is_empty() || peers.iter().any(|peer| is_peer(world, &key.namespace, peer, other));
            let is_port = ports.is_empty() || ports.iter().any(|port| is_port(world, port, packet));
            if is_peer && is_port {
                return true;
            }
        }
    }
    !isolated
}

fn is_peer(world: &World, namespace: &str, peer: &NetworkPolicyPeer, other: IpAddr) -> bool {
    if let Some(block) = &peer.ip_block {
        let holds = |net: &str| net.parse::<IpNet>().expect("a network").contains(&other);
        return holds(&block.cidr) && !block.except.iter().flatten().any(|net| holds(net));
    }
    let Some((key, pod)) = holder(world, other) else { return false };
    let inside = match &peer.namespace_selector {
        None => key.namespace == namespace,
        Some(selector) => world.namespaces.get(&key.namespace).is_some_and(|labels| selects(selector, labels)),
    };
    inside && peer.pod_selector.as_ref().is_none_or(|selector| selects(selector, &pod.labels))
}

fn is_port(world: &World, port: &NetworkPolicyPort, packet: &Packet) -> bool {
    let Some((protocol, number)) = packet.port else { return false };
    if Protocol::parse(port.protocol.as_deref().unwrap_or("TCP")) != Some(protocol) {
        return false;
    }
    match &port.port {
        None => true,
        Some(IntOrString::Int(first)) => (*first..=port.end_port.unwrap_or(*first)).contains(&number.into()),
        Some(IntOrString::String(name)) => holder(world, packet.destination).is_some_and(|(_, pod)| {
            pod.ports.iter().any(|(named, n)| named.name == *name && named.protocol == protocol && *n == number)
        }),
    }
}
