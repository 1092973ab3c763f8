//! What one policy, and one choice of policies, looks like as rules; pure text.

use std::net::IpAddr;

use client::Key;
use net::ruleset::{Chain, Family, Ruleset, Set};

use super::TABLE;
use crate::model::NamedPort;
use crate::model::policy::{Direction, Peers, Policy, Ports, Protocol, hash};
use crate::model::ranges::Ranges;

/// Addresses of pods of this node that are isolated, doubled: who speaks to itself.
pub(super) const OWN: &str = "own";
/// The kernel takes names of 255 bytes.
const LONGEST: usize = 200;

/// The type of an address.
pub(super) fn address(family: Family) -> &'static str {
    match family {
        Family::Ip => "ipv4_addr",
        Family::Ip6 => "ipv6_addr",
    }
}

/// The map from an isolated pod's address to what becomes of it.
pub(super) fn pods_of(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress-pods",
        Direction::Egress => "egress-pods",
    }
}

/// The addresses of the cluster's DNS, where it is a process of nodes.
pub(super) const NAMES: &str = "names";

/// A table without policies. What is asked at `names` is judged before a service proxy translates it: who answers is
/// a process of some node, and policies speak of a pod with that address.
pub(super) fn base(family: Family, names: &[IpAddr]) -> Ruleset {
    let (ip, address) = (family.as_str(), address(family));
    let mut out = Ruleset::new(family, TABLE);
    let names: Vec<&IpAddr> = names.iter().filter(|name| name.is_ipv4() == (family == Family::Ip)).collect();
    let mut set = |name: &str, keyword, declaration| {
        out.sets.insert(name.to_owned(), Set { keyword, declaration, elements: Default::default() });
    };
    set(OWN, "set", format!("type {address} . {address}"));
    for direction in Direction::BOTH {
        set(pods_of(direction), "map", format!("type {address} : verdict"));
    }
    for (direction, side, priority) in [(Direction::Egress, "saddr", 0), (Direction::Ingress, "daddr", 1)] {
        let mut rules = vec!["ct direction reply accept".to_owned(), "ct state related accept".to_owned()];
        if family == Family::Ip6 {
            // On a bridge neighbours are found through here.
            let kinds = "nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, nd-router-advert";
            rules.push(format!("icmpv6 type {{ {kinds} }} accept"));
        }
        rules.push(format!("{ip} saddr . {ip} daddr @{OWN} accept"));
        if direction == Direction::Egress && !names.is_empty() {
            rules.push(format!("ct original {ip} daddr @{NAMES} accept"));
        }
        rules.push(format!("{ip} {side} vmap @{}", pods_of(direction)));
        let hook = format!("type filter hook forward priority {priority}");
        out.chains.insert(direction.as_str().to_owned(), Chain { hook, rules });
    }
    if !names.is_empty() {
        let elements = names.iter().map(|name| (name.to_string(), String::new())).collect();
        out.sets.insert(NAMES.into(), Set { keyword: "set", declaration: format!("type {address}"), elements });
        let judged = format!("{ip} daddr @{NAMES} {ip} saddr vmap @{}", pods_of(Direction::Egress));
        // After the kernel has looked at the connection, and before addresses are translated.
        let hook = "type filter hook prerouting priority -150".to_owned();
        out.chains.insert("egress-names".into(), Chain { hook, rules: vec![judged] });
    }
    out
}

/// The chain of a policy's rules for one direction.
pub(super) fn policy_chain(direction: Direction, key: &Key) -> String {
    let plain = format!("{}/{}/{}", direction.as_str(), key.namespace, key.name);
    if plain.len() <= LONGEST { plain } else { format!("{}/{}", direction.as_str(), hash([&*plain].into_iter())) }
}

/// The chain of pods that these policies isolate.
pub(super) fn choice_chain(direction: Direction, chains: &[String]) -> String {
    format!("{}-{}", pods_of(direction), hash(chains.iter().map(String::as_str)))
}

/// The set of networks, called by what is in it: it never changes.
pub(super) fn nets_set(nets: &Ranges, family: Family) -> String {
    let texts: Vec<String> = nets.texts(family).collect();
    format!("nets-{}", hash(texts.iter().map(String::as_str)))
}

/// The set of pods with a port of that name: their addresses with its number.
pub(super) fn port_set(port: &NamedPort) -> String {
    format!("port-{}", hash([port.protocol.as_str(), &port.name].into_iter()))
}

/// The rules of a policy for one direction and family.
pub(super) fn rules(policy: &Policy, direction: Direction, family: Family) -> Vec<String> {
    let mut out = Vec::new();
    for rule in policy.rules(direction).unwrap_or_default() {
        let ports = rule.ports.as_ref().map_or_else(|| vec![String::new()], |ports| of_ports(ports, family));
        for peer in rule.peers.as_ref().map_or_else(|| vec![String::new()], |p| of_peers(p, direction, family)) {
            out.extend(ports.iter().map(|port| format!("{peer}{port}accept")));
        }
    }
    out
}

fn of_peers(peers: &Peers, direction: Direction, family: Family) -> Vec<String> {
    let side = match direction {
        Direction::Ingress => "saddr",
        Direction::Egress => "daddr",
    };
    let ip = family.as_str();
    let nets = peers.nets(family);
    if nets.is_whole(family) {
        return vec![String::new()];
    }
    let mut out = Vec::new();
    if let Some(group) = &peers.pods {
        out.push(format!("{ip} {side} @{} ", group.name));
    }
    if !nets.is_empty() {
        out.push(format!("{ip} {side} @{} ", nets_set(nets, family)));
    }
    out
}

fn of_ports(ports: &Ports, family: Family) -> Vec<String> {
    let ip = family.as_str();
    let mut out: Vec<String> = ports.whole.iter().map(|p| format!("meta l4proto {} ", p.as_str())).collect();
    for (protocol, numbers) in &ports.numbers {
        let texts = numbers.numbers();
        match texts.as_slice() {
            [one] => out.push(format!("{} dport {one} ", protocol.as_str())),
            all => out.push(format!("{} dport {{ {} }} ", protocol.as_str(), all.join(", "))),
        }
    }
    for port in &ports.named {
        let protocol: Protocol = port.protocol;
        out.push(format!("meta l4proto {} {ip} daddr . th dport @{} ", protocol.as_str(), port_set(port)));
    }
    out
}
