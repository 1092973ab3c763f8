//! What Service ports share: chains that give each connection one of so many endpoints, and the maps
//! they draw from; pure.
//!
//! ```text
//!  service-ips             10.96.7.1 . tcp . 80 : goto tcp-endpoints-2
//!  service-endpoints-tcp   10.96.7.1 . 80 . 0   : 10.244.0.4 . 8080
//!                          10.96.7.1 . 80 . 1   : 10.244.1.9 . 8080
//!
//!  service-ips             192.0.2.9 . tcp . 80 : goto external-tcp-endpoints-2
//!  service-endpoints-tcp   192.0.2.9 . 80 . 0   : 10.244.0.4 . 8080, …
//!
//!  service-nodeports       tcp . 30080          : goto nodeport-tcp-endpoints-2-local-1
//!  nodeport-endpoints-tcp  30080 . 0            : 10.244.0.4 . 8080, …
//!  local-nodeport-…-tcp    30080 . 0            : 10.244.0.4 . 8080     (those of this node)
//! ```
//!
//! The kernel looks at every chain that can be reached whenever a rule changes, and takes the longer
//! for a new set the more there are. With chains and sets of all Services together a change of
//! endpoints is one of elements, which it looks at alone.

use std::net::SocketAddr;
use std::sync::Arc;

use net::ruleset::{Chain, Family};

use super::base::local_pods;
use crate::model::{Protocol, Settings};

/// By what a connection comes to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// The Service's own address.
    Own,
    /// An external address, or a load balancer's.
    External,
    NodePort,
}

/// Which endpoints connections go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Balanced {
    pub way: Way,
    pub endpoints: Arc<[SocketAddr]>,
    /// Those of this node, where connections from outside stay here; they may be none.
    pub near: Option<Arc<[SocketAddr]>>,
}

/// For how many endpoints there is a chain that so many can share: for more than four, the next multiple of a quarter
/// of the power of two below, which is a quarter more at most. Who draws one that is not there draws again. Then most
/// Services that gain or lose an endpoint stay with their chain: elements that say where to go on make the kernel look
/// at the whole table.
fn room(endpoints: usize) -> usize {
    if endpoints <= EXACT {
        return endpoints;
    }
    let below = endpoints.next_power_of_two() / 2;
    endpoints.next_multiple_of((below / 4).max(2))
}

/// Up to so many endpoints have a chain of just as many.
const EXACT: usize = 4;
/// So often is drawn where there may be fewer: of five draws four at least find one, and of ten thousand connections
/// less than one goes to the first endpoint for want of luck.
const DRAWS: usize = 6;

/// What names a shared chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    protocol: Protocol,
    way: Way,
    /// So many at most, and not [fewer](room) than four fifths of it.
    endpoints: usize,
    near: Option<usize>,
}

/// The maps of one protocol, each from who is asked and a number drawn to an endpoint.
struct Maps {
    protocol: Protocol,
    /// By address and port: of any node, of this one.
    by_address: [&'static str; 2],
    /// By node port.
    by_port: [&'static str; 2],
}

static MAPS: [Maps; 3] = [
    Maps {
        protocol: Protocol::Tcp,
        by_address: ["service-endpoints-tcp", "local-endpoints-tcp"],
        by_port: ["nodeport-endpoints-tcp", "local-nodeport-endpoints-tcp"],
    },
    Maps {
        protocol: Protocol::Udp,
        by_address: ["service-endpoints-udp", "local-endpoints-udp"],
        by_port: ["nodeport-endpoints-udp", "local-nodeport-endpoints-udp"],
    },
    Maps {
        protocol: Protocol::Sctp,
        by_address: ["service-endpoints-sctp", "local-endpoints-sctp"],
        by_port: ["nodeport-endpoints-sctp", "local-nodeport-endpoints-sctp"],
    },
];

/// Those that are asked by addresses.
pub(super) fn maps_by_address() -> impl Iterator<Item = &'static str> {
    MAPS.iter().flat_map(|maps| maps.by_address)
}

/// Those that are asked by node ports.
pub(super) fn maps_by_port() -> impl Iterator<Item = &'static str> {
    MAPS.iter().flat_map(|maps| maps.by_port)
}

/// How one of these maps is declared; `None` when it is none of them.
pub(super) fn declaration(map: &str, family: Family) -> Option<String> {
    let found = MAPS.iter().find(|maps| maps.by_address.contains(&map) || maps.by_port.contains(&map))?;
    // Numbers as `numgen` gives them have no name among types, and `nft` mistrusts a port of any
    // protocol beside one of a certain one: hence maps of each.
    let (ip, port) = (family.as_str(), format!("{} dport", found.protocol.as_str()));
    let key = if found.by_port.contains(&map) { port.clone() } else { format!("{ip} daddr . {port}") };
    Some(format!("typeof {key} . numgen random mod 2 : {ip} daddr . {port}"))
}

/// An element: its map, its key and its value.
type Element = (&'static str, String, String);

impl Balanced {
    /// The chain that draws for it.
    pub fn kind(&self, protocol: Protocol) -> Kind {
        let near = self.near.as_ref().map(|near| room(near.len()));
        Kind { protocol, way: self.way, endpoints: room(self.endpoints.len()), near }
    }

    /// What is drawn: elements of maps, for the element of `service-ips` or `service-nodeports` with that key.
    pub fn elements(&self, key: &str, protocol: Protocol) -> impl Iterator<Item = Element> {
        let word = protocol.as_str();
        let at = match self.way {
            Way::NodePort => key.replacen(&format!("{word} . "), "", 1),
            Way::Own | Way::External => key.replacen(&format!(" . {word} . "), " . ", 1),
        };
        let [any, here] = self.kind(protocol).maps();
        let near = self.near.as_deref().unwrap_or_default();
        [(any, &*self.endpoints), (here, near)].into_iter().flat_map(move |(map, endpoints)| {
            let at = at.clone();
            let element = move |(number, endpoint): (usize, &SocketAddr)| {
                (map, format!("{at} . {number}"), format!("{} . {}", endpoint.ip(), endpoint.port()))
            };
            endpoints.iter().enumerate().map(element)
        })
    }
}

impl Kind {
    /// Where it draws from: endpoints of any node, and of this one.
    fn maps(self) -> [&'static str; 2] {
        let [tcp, udp, sctp] = &MAPS;
        let maps = match self.protocol {
            Protocol::Tcp => tcp,
            Protocol::Udp => udp,
            Protocol::Sctp => sctp,
        };
        if self.way == Way::NodePort { maps.by_port } else { maps.by_address }
    }

    /// The chain's name.
    pub fn name(self) -> String {
        let way = match self.way {
            Way::Own => "",
            Way::External => "external-",
            Way::NodePort => "nodeport-",
        };
        let near = self.near.map(|near| format!("-local-{near}")).unwrap_or_default();
        format!("{way}{}-endpoints-{}{near}", self.protocol.as_str(), self.endpoints)
    }

    /// The rules that draw one of so many.
    fn pick(self, map: &str, endpoints: usize, family: Family) -> Vec<String> {
        let (ip, word) = (family.as_str(), self.protocol.as_str());
        let key = match self.way {
            Way::NodePort => format!("{word} dport"),
            Way::Own | Way::External => format!("{ip} daddr . {word} dport"),
        };
        let draw = |of: usize| {
            format!("meta l4proto {word} dnat {ip} addr . port to {key} . numgen random mod {of} map @{map}")
        };
        match endpoints {
            0 => Vec::new(),
            1 => vec![draw(1)],
            // Who comes here while the number changes may draw one that is gone; the first is there.
            many => {
                let times = if many <= EXACT { 1 } else { DRAWS };
                std::iter::repeat_n(draw(many), times).chain([draw(1)]).collect()
            }
        }
    }

    /// The chain.
    pub fn chain(self, settings: &Settings, family: Family) -> Chain {
        let mark = format!("meta mark set meta mark | {}", settings.mark());
        let [any, here] = self.maps();
        let anywhere = self.pick(any, self.endpoints, family);
        let mut rules = Vec::new();
        match (self.way, self.near) {
            (Way::Own, _) if settings.masquerade_all => rules.push(mark),
            (Way::Own, _) => rules.extend(local_pods(settings, family).map(|(_, foreign)| format!("{foreign} {mark}"))),
            (Way::External | Way::NodePort, None) => rules.push(mark),
            (Way::External | Way::NodePort, Some(near)) => {
                // What pods and this node send is for any endpoint: out to a load balancer and back
                // it would be, too. The node's own source may be the address itself.
                if let Some((local, _)) = local_pods(settings, family) {
                    rules.extend(anywhere.iter().map(|pick| format!("{local} {pick}")));
                }
                rules.push(format!("fib saddr type local {mark}"));
                rules.extend(anywhere.iter().map(|pick| format!("fib saddr type local {pick}")));
                rules.extend(self.pick(here, near, family));
                return Chain { hook: String::new(), rules };
            }
        }
        rules.extend(anywhere);
        Chain { hook: String::new(), rules }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_all_and_little_more() {
        for (endpoints, want) in [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 3),
            (4, 4),
            (5, 6),
            (7, 8),
            (8, 8),
            (9, 10),
            (17, 20),
            (32, 32),
            (33, 40),
            (1000, 1024),
        ] {
            assert_eq!(room(endpoints), want, "{endpoints}");
        }
        for endpoints in 1..10_000 {
            let room = room(endpoints);
            assert!(room >= endpoints && room * 4 <= endpoints * 5, "{endpoints}: {room}");
            assert!(room == super::room(room), "{room} is a room of its own");
        }
    }
}
