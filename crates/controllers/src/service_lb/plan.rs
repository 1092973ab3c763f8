//! Which Service of type LoadBalancer gets which addresses of which nodes; pure.
//!
//! ```text
//!  Services, who has something first, then the older ──► each address of each node: are all its ports free?
//!                                  yes ─► it is its own      no ─► whose the port is
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use client::Key;

/// At most so many addresses are written into one status.
pub(super) const ADDRESSES: usize = 100;

/// Whose a port is at every node, although the Services of a cluster cannot know: what administrators, load
/// balancers and other nodes reach nodes by.
fn of_nodes((protocol, port): &Port) -> Option<&'static str> {
    Some(match (protocol.as_str(), port) {
        ("TCP", 22) => "those who log in (SSH)",
        ("TCP", 2379 | 2380) => "etcd",
        ("TCP", 10_248..=10_259) => "the cluster's own components",
        ("UDP", 4789 | 8472) => "the traffic between nodes (VXLAN)",
        _ => return None,
    })
}

/// A protocol as the API spells it, and a port.
pub(super) type Port = (String, u16);

/// A Service that wants addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanting {
    pub key: Key,
    /// Seconds since 1970.
    pub created: i64,
    pub families: Vec<Family>,
    pub ports: Vec<Port>,
    /// The nodes that have endpoints of it, where only these may; `None`: any node may.
    pub only: Option<BTreeSet<String>>,
    /// What it has already: addresses, and what was given there. A port that it wants since is none of them.
    pub has: BTreeMap<IpAddr, BTreeSet<Port>>,
}

impl Wanting {
    fn has(&self, address: IpAddr, port: &Port) -> bool {
        self.has.get(&address).is_some_and(|ports| ports.contains(port))
    }

    /// It serves at something that it still wants.
    fn serves(&self) -> bool {
        self.has.values().flatten().any(|port| self.ports.contains(port))
    }

    /// May this node show it?
    fn may_be_at(&self, node: &Node) -> bool {
        node.is_ready && self.only.as_ref().is_none_or(|only| only.contains(&node.name))
    }

    /// Is there no node that may show it? Then it stays where it is: what is taken away helps nobody, and what
    /// went through these addresses would not find them again in a moment.
    fn stays(&self, nodes: &[Node]) -> bool {
        !nodes.iter().any(|node| self.may_be_at(node))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    fn is_of(self, address: &IpAddr) -> bool {
        address.is_ipv4() == (self == Self::V4)
    }
}

/// A node that may carry load balancers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub name: String,
    /// Those that are for the world where there are any, else those of the cluster; of either family.
    pub addresses: Vec<IpAddr>,
    /// It answers. One that does not carries nothing new, and what it had is kept for whose it was.
    pub is_ready: bool,
    pub kubelet: u16,
    /// What programs of the node listen on, as far as that is known.
    pub listening: BTreeSet<Port>,
}

/// Ports that are not to be had, wherever.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    /// Where the API server answers.
    pub api: BTreeSet<(IpAddr, u16)>,
    /// Ports that Services have at every node.
    pub node_ports: BTreeMap<Port, Key>,
    /// What users or other providers gave a Service, and whose it is: of two the first by name.
    pub outer: BTreeMap<(IpAddr, Port), Key>,
}

/// What becomes of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Given {
    pub addresses: Vec<IpAddr>,
    /// Why it has none; empty when it has some.
    pub why: String,
    /// A program that listens is in the way: it may end, and nobody says so.
    pub look_again: bool,
}

/// Who is in the way at one address.
enum InTheWay {
    Held(String),
    Listener(String),
}

/// Ports of addresses, and whose they are.
type Holders = BTreeMap<(IpAddr, Port), Key>;

/// Gives every Service what it can have. Who serves goes on doing so, however old the others are, and also while
/// no node of it is ready. Where only nodes with endpoints may, the others' are kept for it all the same: its
/// endpoints move, and nodes come back.
pub(super) fn plan(mut services: Vec<Wanting>, nodes: &[Node], reserved: &Reserved) -> BTreeMap<Key, Given> {
    services.sort_by(|a, b| (!a.serves(), a.created, &a.key).cmp(&(!b.serves(), b.created, &b.key)));
    let held = held(&services, nodes);
    let mut taken = Holders::new();
    let mut out = BTreeMap::new();
    for service in services {
        let mut given = Given::default();
        let stays = service.stays(nodes);
        for (node, address) in nodes.iter().flat_map(|node| of_families(&service, node)) {
            let is_shown = service.may_be_at(node) || (stays && service.has.contains_key(&address));
            if is_shown && given.addresses.len() >= ADDRESSES {
                continue;
            }
            let in_the_way = |port: &Port| in_the_way(&service, node, address, port, reserved, [&taken, &held]);
            match service.ports.iter().find_map(in_the_way) {
                None => {
                    taken.extend(service.ports.iter().map(|port| ((address, port.clone()), service.key.clone())));
                    if is_shown {
                        given.addresses.push(address);
                    }
                }
                Some(_) if !is_shown => {}
                Some(InTheWay::Held(why)) => given.why = why,
                Some(InTheWay::Listener(why)) => {
                    given.look_again = true;
                    given.why = why;
                }
            }
        }
        if !given.addresses.is_empty() {
            given.why = String::new();
        } else if given.why.is_empty() {
            given.why = match &service.only {
                Some(_) => "no node with a ready endpoint of it may carry load balancers".into(),
                None => "no node that is ready and may carry load balancers has an address of its families".into(),
            };
        }
        out.insert(service.key, given);
    }
    out
}

/// What Services have already and still want.
fn held(services: &[Wanting], nodes: &[Node]) -> Holders {
    let mut held = Holders::new();
    for service in services {
        for (_, address) in nodes.iter().flat_map(|node| of_families(service, node)) {
            for port in service.ports.iter().filter(|port| service.has(address, port)) {
                held.entry((address, port.clone())).or_insert_with(|| service.key.clone());
            }
        }
    }
    held
}

/// A node's addresses in the order of the Service's families.
fn of_families<'a>(service: &Wanting, node: &'a Node) -> Vec<(&'a Node, IpAddr)> {
    let of =
        |family: &Family| node.addresses.iter().filter(|a| family.is_of(a)).map(|a| (node, *a)).collect::<Vec<_>>();
    service.families.iter().flat_map(of).collect()
}

fn in_the_way(
    service: &Wanting,
    node: &Node,
    address: IpAddr,
    port: &Port,
    reserved: &Reserved,
    holders: [&Holders; 2],
) -> Option<InTheWay> {
    let (protocol, number) = port;
    // Mostly nobody is in the way.
    let at = || format!("port {number}/{protocol} of node {} ({address})", node.name);
    let held = |who: String| Some(InTheWay::Held(format!("{} belongs to {who}", at())));
    let place = (address, port.clone());
    let mut others = holders.into_iter().filter_map(|all| all.get(&place));
    if let Some(holder) = others.find(|holder| **holder != service.key) {
        return held(format!("Service {holder}"));
    }
    if protocol == "TCP" && reserved.api.contains(&(address, *number)) {
        return held("the API server".into());
    }
    if protocol == "TCP" && node.kubelet == *number {
        return held("the kubelet".into());
    }
    // Who has it keeps it: who took it for a node port, or listens there, came later.
    if service.has(address, port) {
        return None;
    }
    if let Some(whose) = of_nodes(port) {
        return held(whose.into());
    }
    if let Some(holder) = reserved.outer.get(&place).filter(|holder| **holder != service.key) {
        return held(format!("Service {holder} as its external address"));
    }
    if let Some(holder) = reserved.node_ports.get(port).filter(|holder| **holder != service.key) {
        return held(format!("Service {holder} as its node port"));
    }
    if node.listening.contains(port) {
        return Some(InTheWay::Listener(format!("{} belongs to a program that listens there", at())));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, addresses: &[&str]) -> Node {
        let addresses = addresses.iter().map(|a| a.parse().expect("an address")).collect();
        Node { name: name.into(), addresses, is_ready: true, kubelet: 10250, listening: BTreeSet::new() }
    }

    fn service(name: &str, created: i64, ports: &[u16]) -> Wanting {
        Wanting {
            key: Key::new("n", name),
            created,
            families: vec![Family::V4],
            ports: ports.iter().map(|p| ("TCP".to_owned(), *p)).collect(),
            ..Wanting::default()
        }
    }

    fn check(services: Vec<Wanting>, nodes: &[Node], reserved: &Reserved, want: &[&str]) {
        let shown: Vec<String> = plan(services, nodes, reserved)
            .into_iter()
            .map(|(key, given)| {
                let addresses: Vec<String> = given.addresses.iter().map(ToString::to_string).collect();
                format!("{}: {}{}", key.name, addresses.join(" "), given.why)
            })
            .collect();
        assert_eq!(shown, want);
    }

    #[test]
    fn every_node_carries_it_in_the_order_of_its_families() {
        let nodes = [node("a", &["10.0.0.1", "fd00::1"]), node("b", &["10.0.0.2"])];
        let mut both = service("x", 1, &[80]);
        both.families = vec![Family::V6, Family::V4];
        check(vec![both], &nodes, &Reserved::default(), &["x: fd00::1 10.0.0.1 10.0.0.2"]);
        let mut six = service("x", 1, &[80]);
        six.families = vec![Family::V6];
        let none = "x: no node that is ready and may carry load balancers has an address of its families";
        check(vec![six], &nodes[1..], &Reserved::default(), &[none]);
        let mut local = service("x", 1, &[80]);
        local.only = Some(BTreeSet::from(["b".to_owned()]));
        check(vec![local.clone()], &nodes, &Reserved::default(), &["x: 10.0.0.2"]);
        local.only = Some(BTreeSet::new());
        let none = "x: no node with a ready endpoint of it may carry load balancers";
        check(vec![local], &nodes, &Reserved::default(), &[none]);
    }

    #[test]
    fn the_older_has_a_port_that_two_want() {
        let nodes = [node("a", &["10.0.0.1"]), node("b", &["10.0.0.2"])];
        let no = "young: port 80/TCP of node b (10.0.0.2) belongs to Service n/old";
        let all = vec![service("young", 2, &[443, 80]), service("old", 1, &[80])];
        check(all, &nodes, &Reserved::default(), &["old: 10.0.0.1 10.0.0.2", no]);
        // Not even in part.
        let free = vec![service("young", 2, &[443, 80]), service("old", 1, &[80]), service("last", 3, &[443])];
        check(free, &nodes, &Reserved::default(), &["last: 10.0.0.1 10.0.0.2", "old: 10.0.0.1 10.0.0.2", no]);
        let mut udp = service("young", 2, &[80]);
        udp.ports[0].0 = "UDP".into();
        let all = vec![udp, service("old", 1, &[80])];
        check(all, &nodes[..1], &Reserved::default(), &["old: 10.0.0.1", "young: 10.0.0.1"]);
        // Its endpoints may be at another node tomorrow.
        let mut here = service("old", 1, &[80]);
        here.only = Some(BTreeSet::from(["a".to_owned()]));
        let all = vec![here, service("young", 2, &[80])];
        check(all, &nodes, &Reserved::default(), &["old: 10.0.0.1", no]);
    }

    #[test]
    fn what_the_node_needs_is_not_to_be_had() {
        let mut nodes = [node("a", &["10.0.0.1"])];
        nodes[0].listening.insert(("TCP".into(), 25));
        let reserved = Reserved {
            api: BTreeSet::from([("10.0.0.1".parse().expect("an address"), 6443)]),
            node_ports: BTreeMap::from([(("TCP".into(), 30080), Key::new("n", "other"))]),
            outer: BTreeMap::from([(
                ("10.0.0.1".parse().expect("an address"), ("TCP".into(), 81)),
                Key::new("n", "other"),
            )]),
        };
        for (port, who) in [
            (6443, "the API server"),
            (10250, "the kubelet"),
            (30080, "Service n/other as its node port"),
            (81, "Service n/other as its external address"),
            (25, "a program that listens there"),
            (22, "those who log in (SSH)"),
            (2380, "etcd"),
            (10256, "the cluster's own components"),
        ] {
            let want = format!("x: port {port}/TCP of node a (10.0.0.1) belongs to {who}");
            check(vec![service("x", 1, &[port])], &nodes, &reserved, &[&want]);
        }
        check(vec![service("other", 1, &[30080])], &nodes, &reserved, &["other: 10.0.0.1"]);
        // Who had it before keeps it; a port it has only since is another.
        let had = has(service("x", 1, &[25]), "10.0.0.1", &[25]);
        check(vec![had], &nodes, &reserved, &["x: 10.0.0.1"]);
        let edited = has(service("x", 1, &[25]), "10.0.0.1", &[80]);
        let want = "x: port 25/TCP of node a (10.0.0.1) belongs to a program that listens there";
        check(vec![edited], &nodes, &reserved, &[want]);
        let more = has(service("x", 1, &[80, 25]), "10.0.0.1", &[80]);
        check(vec![more], &nodes, &reserved, &[want]);
        let had = has(service("x", 1, &[30080]), "10.0.0.1", &[30080]);
        check(vec![had], &nodes, &reserved, &["x: 10.0.0.1"]);
        let had = has(service("x", 1, &[81]), "10.0.0.1", &[81]);
        check(vec![had], &nodes, &reserved, &["x: 10.0.0.1"]);
        check(vec![service("other", 1, &[81])], &nodes, &reserved, &["other: 10.0.0.1"]);
        let had = has(service("x", 1, &[10250]), "10.0.0.1", &[10250]);
        let want = "x: port 10250/TCP of node a (10.0.0.1) belongs to the kubelet";
        check(vec![had], &nodes, &reserved, &[want]);
        assert!(plan(vec![service("x", 1, &[25])], &nodes, &reserved)[&Key::new("n", "x")].look_again);
        // What people do ask for is to be had, and a number is one protocol's.
        check(vec![service("x", 1, &[80, 443, 53, 8443])], &nodes, &reserved, &["x: 10.0.0.1"]);
        let mut udp = service("x", 1, &[22]);
        udp.ports[0].0 = "UDP".into();
        check(vec![udp.clone()], &nodes, &reserved, &["x: 10.0.0.1"]);
        udp.ports[0].1 = 4789;
        let want = "x: port 4789/UDP of node a (10.0.0.1) belongs to the traffic between nodes (VXLAN)";
        check(vec![udp], &nodes, &reserved, &[want]);
    }

    #[test]
    fn nodes_that_are_not_ready_for_a_moment_take_nothing_away() {
        let mut nodes = [node("a", &["10.0.0.1"]), node("b", &["10.0.0.2"])];
        let none = Reserved::default();
        let serves = |name: &str, addresses: &[&str]| {
            addresses.iter().fold(service(name, 2, &[80]), |s, address| has(s, address, &[80]))
        };
        let young = serves("young", &["10.0.0.1", "10.0.0.2"]);
        let waits = |at: &str| format!("old: port 80/TCP of node {at} belongs to Service n/young");
        // Others carry it meanwhile, and its place is kept.
        nodes[1].is_ready = false;
        let both = |young: &Wanting| vec![young.clone(), service("old", 1, &[80])];
        check(both(&young), &nodes, &none, &[&waits("a (10.0.0.1)"), "young: 10.0.0.1"]);
        // No node is ready: it stays where it was, whoever waits; and who has nothing gets nothing.
        nodes[0].is_ready = false;
        let no = "old: no node that is ready and may carry load balancers has an address of its families";
        check(both(&young), &nodes, &none, &[no, "young: 10.0.0.1 10.0.0.2"]);
        check(both(&serves("young", &["10.0.0.2"])), &nodes, &none, &[no, "young: 10.0.0.2"]);
        // Nor does one that has lost its last endpoint lose its addresses before it has the next.
        nodes.iter_mut().for_each(|node| node.is_ready = true);
        let mut local = serves("young", &["10.0.0.2"]);
        local.only = Some(BTreeSet::new());
        check(both(&local), &nodes, &none, &[&waits("b (10.0.0.2)"), "young: 10.0.0.2"]);
        // Then it moves.
        local.only = Some(BTreeSet::from(["a".to_owned()]));
        check(both(&local), &nodes, &none, &[&waits("b (10.0.0.2)"), "young: 10.0.0.1"]);
        // A port that it wants only since is not given by a node that is not ready.
        nodes.iter_mut().for_each(|node| node.is_ready = false);
        let mut more = serves("x", &["10.0.0.1"]);
        more.ports.push(("TCP".into(), 22));
        let want = "x: port 22/TCP of node a (10.0.0.1) belongs to those who log in (SSH)";
        check(vec![more], &nodes, &none, &[want]);
    }

    fn has(mut service: Wanting, address: &str, ports: &[u16]) -> Wanting {
        let ports = ports.iter().map(|p| ("TCP".to_owned(), *p)).collect();
        service.has.insert(address.parse().expect("an address"), ports);
        service
    }

    #[test]
    fn who_serves_goes_on_serving() {
        let nodes = [node("a", &["10.0.0.1"]), node("b", &["10.0.0.2"])];
        let one = &nodes[..1];
        let none = Reserved::default();
        let no = |who: &str, port: u16, whose: &str| {
            format!("{who}: port {port}/TCP of node a (10.0.0.1) belongs to Service n/{whose}")
        };
        // The older wants what the younger has.
        let young = has(service("young", 2, &[80]), "10.0.0.1", &[80]);
        let all = vec![service("old", 1, &[80]), young.clone()];
        check(all, one, &none, &[&no("old", 80, "young"), "young: 10.0.0.1"]);
        // The older has one port and wants the younger's, too: nobody takes either meanwhile.
        let old = has(service("old", 1, &[443, 80]), "10.0.0.1", &[443]);
        let all = vec![old, young.clone(), service("eldest", 0, &[443])];
        check(all, one, &none, &[&no("eldest", 443, "old"), &no("old", 80, "young"), "young: 10.0.0.1"]);
        // What it wants no more is free.
        let mut left = young.clone();
        left.ports = vec![("TCP".into(), 81)];
        check(vec![service("old", 1, &[80]), left], one, &none, &["old: 10.0.0.1", "young: 10.0.0.1"]);
        // One whose endpoints are at one node today has the other, too, before who serves nowhere.
        let mut local = young;
        local.only = Some(BTreeSet::from(["a".to_owned()]));
        let all = vec![local.clone(), service("old", 1, &[80])];
        let want = "old: port 80/TCP of node b (10.0.0.2) belongs to Service n/young";
        check(all, &nodes, &none, &[want, "young: 10.0.0.1"]);
        // But not what somebody serves at.
        let all = vec![local, has(service("old", 1, &[80]), "10.0.0.2", &[80])];
        check(all, &nodes, &none, &["old: 10.0.0.2", "young: 10.0.0.1"]);
    }
}
