//! What this node's routes should be, and what is to be done for it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use net::rtnl::address::Address;
use net::rtnl::link::{Link, Mac, Vxlan};
use net::rtnl::neighbour::{Forward, Neighbour};
use net::rtnl::route::{PROTOCOL, Route};

use crate::DEVICE;
use crate::nodes::Node;

/// The network's number and its UDP port (IANA's).
const NUMBER: u32 = 7437;
const PORT: u16 = 4789;
/// What VXLAN adds to a packet, below IPv4 and IPv6.
const OVERHEAD: u32 = 50;
const OVERHEAD6: u32 = 70;

/// How other nodes are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Plain routes where the other node is on this one's network, else VXLAN.
    #[default]
    Auto,
    /// Plain routes only: whatever is between the nodes knows the pods' addresses.
    Routes,
    /// VXLAN to every node: what is between them lets no addresses pass but the nodes' own.
    Vxlan,
}

/// What is on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub links: Vec<Link>,
    pub addresses: Vec<Address>,
    /// Every route of the main table.
    pub routes: Vec<Route>,
    /// What the VXLAN device was told.
    pub neighbours: Vec<Neighbour>,
    pub forwards: Vec<Forward>,
}

/// How the pods of another node are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    Direct { link: u32, gateway: IpAddr },
    Vxlan { gateway: IpAddr, source: Option<IpAddr> },
}

/// What should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub routes: BTreeMap<IpNet, Via>,
    pub device: Option<Vxlan>,
    /// Of the device: its addresses, its neighbours, and where they are.
    pub addresses: BTreeSet<IpNet>,
    pub neighbours: BTreeMap<IpAddr, Mac>,
    pub forwards: BTreeMap<Mac, IpAddr>,
    /// Nodes that cannot be reached, and why.
    pub unreached: Vec<(String, &'static str)>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    DeleteDevice,
    AddDevice(Vxlan),
    SetMtu { link: u32, mtu: u32 },
    AddAddress { link: u32, net: IpNet },
    DeleteAddress { link: u32, net: IpNet },
    SetForward(Forward),
    DeleteForward(Forward),
    SetNeighbour(Neighbour),
    DeleteNeighbour(Neighbour),
    DeleteRoute(Route),
    ReplaceRoute(Route),
    AddRoute(Route),
}

/// The Ethernet address of a node's end: it follows from the node's name (FNV-1a), so that nobody has to ask.
pub fn mac(node: &str) -> Mac {
    let hash = node
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let [_, _, _, a, b, c, d, e] = hash.to_be_bytes();
    // Locally administered, to one machine.
    [0x06, a, b, c, d, e]
}

fn overlaps(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// This machine's addresses that other nodes may be near: not those of pods' links and of our device.
fn own_addresses<'a>(seen: &'a Seen, own: Option<&'a Node>) -> impl Iterator<Item = &'a Address> {
    let is_device = |link: u32| seen.links.iter().any(|l| l.index == link && l.name == DEVICE);
    let all =
        move || seen.addresses.iter().filter(move |a| a.global && !a.net.addr().is_loopback() && !is_device(a.link));
    let named: Vec<u32> =
        all().filter(|a| own.is_some_and(|n| n.addresses.contains(&a.net.addr()))).map(|a| a.link).collect();
    // A node that was given another address and has not said so yet still has its links.
    all().filter(move |a| named.is_empty() || named.contains(&a.link))
}

/// Why a podCIDR cannot be another node's: it is nobody's word but that node's own. `cluster` are the ranges of
/// pods' addresses; where they are known, whoever chose them knew of the networks that hold a whole one.
fn refused(cidr: &IpNet, seen: &Seen, cluster: &[IpNet], taken: &[IpNet], others: &[IpAddr]) -> Option<&'static str> {
    if cidr.prefix_len() == 0 || taken.iter().any(|t| overlaps(t, cidr)) {
        return Some("its podCIDR is not its own alone");
    }
    if !cluster.is_empty() && !cluster.iter().any(|range| range.contains(cidr)) {
        return Some("its podCIDR is not of the cluster's range");
    }
    let is_device = |link: u32| seen.links.iter().any(|l| l.index == link && l.name == DEVICE);
    let is_chosen = |net: &IpNet| cluster.iter().any(|range| net.contains(range));
    let own = seen.addresses.iter().filter(|a| a.global && !is_device(a.link));
    if own
        .map(|a| (a.net.addr(), a.net.trunc()))
        .any(|(address, net)| cidr.contains(&address) || (overlaps(&net, cidr) && !is_chosen(&net)))
    {
        return Some("its podCIDR is of a network of this host");
    }
    others.iter().any(|address| cidr.contains(address)).then_some("its podCIDR has another node's InternalIP")
}

/// Decides where packets for other nodes' pods should go. `cluster` are the ranges of all pods' addresses; empty
/// where nobody says them.
pub fn plan(name: &str, nodes: &[Node], seen: &Seen, mode: Mode, cluster: &[IpNet]) -> Wanted {
    let own = nodes.iter().find(|n| n.name == name);
    let mut near: Vec<&Address> = own_addresses(seen, own).collect();
    // What the Node says of itself comes before other addresses of the same link.
    let place = |a: &Address| own.and_then(|n| n.addresses.iter().position(|own| *own == a.net.addr()));
    near.sort_by_key(|a| place(a).unwrap_or(usize::MAX));
    let mut wanted = Wanted::default();
    let mut taken: Vec<IpNet> = own.map(|n| n.pod_cidrs.clone()).unwrap_or_default();
    let own_cidrs = taken.clone();
    let (mut others, mut local): (Vec<&Node>, Option<(IpAddr, u32)>) = (Vec::new(), None);
    others.extend(nodes.iter().filter(|n| n.name != name));
    others.sort_by_key(|n| (n.created, n.name.as_str()));
    for node in &others {
        if node.pod_cidrs.is_empty() {
            continue;
        }
        if node.addresses.is_empty() {
            wanted.unreached.push((node.name.clone(), "it has no InternalIP"));
            continue;
        }
        for cidr in &node.pod_cidrs {
            // An address of the pods' own is no node's, whoever says so.
            let older = others.iter().take_while(|o| o.name != node.name).chain(&own);
            let of_nodes: Vec<IpAddr> = older
                .flat_map(|o| o.addresses.iter().copied())
                .filter(|a| !cluster.iter().any(|range| range.contains(a)))
                .collect();
            if let Some(why) = refused(cidr, seen, cluster, &taken, &of_nodes) {
                wanted.unreached.push((node.name.clone(), why));
                continue;
            }
            taken.push(*cidr);
            match via(cidr, node, &near, mode, &own_cidrs) {
                Some((via, tunnel)) => {
                    if let (Via::Vxlan { gateway, .. }, Some((from, to, link))) = (&via, tunnel) {
                        local.get_or_insert((from, link));
                        wanted.neighbours.insert(*gateway, mac(&node.name));
                        wanted.forwards.insert(mac(&node.name), to);
                    }
                    wanted.routes.insert(*cidr, via);
                }
                None => wanted.unreached.push((node.name.clone(), "no address of this node leads to it")),
            }
        }
    }
    if let Some((local, link)) = local {
        let overhead = if local.is_ipv4() { OVERHEAD } else { OVERHEAD6 };
        let mtu = seen.links.iter().find(|l| l.index == link).map_or(1500, |l| l.mtu);
        wanted.device = Some(Vxlan {
            name: DEVICE.into(),
            mac: mac(name),
            id: NUMBER,
            port: PORT,
            local,
            mtu: mtu.saturating_sub(overhead).max(1280),
        });
        wanted.addresses = own_cidrs.iter().map(|cidr| IpNet::from(cidr.network())).collect();
    }
    wanted
}

/// From which address to which, and by which link.
type Tunnel = (IpAddr, IpAddr, u32);

fn via(cidr: &IpNet, node: &Node, near: &[&Address], mode: Mode, own: &[IpNet]) -> Option<(Via, Option<Tunnel>)> {
    let v4 = cidr.addr().is_ipv4();
    let direct = || {
        node.addresses.iter().filter(|a| a.is_ipv4() == v4).find_map(|gateway| {
            let on = near.iter().find(|a| a.net.contains(gateway) && a.net.addr() != *gateway)?;
            Some((Via::Direct { link: on.link, gateway: *gateway }, None))
        })
    };
    let tunnel = || {
        // The first family that both have: the order is the Node's own.
        let (to, from) = node.addresses.iter().find_map(|to| {
            let from = near.iter().find(|a| a.net.addr().is_ipv4() == to.is_ipv4() && a.net.addr() != *to)?;
            Some((*to, from))
        })?;
        let source = own.iter().find(|o| o.addr().is_ipv4() == v4).map(IpNet::network);
        let via = Via::Vxlan { gateway: cidr.network(), source };
        Some((via, Some((from.net.addr(), to, from.link))))
    };
    match mode {
        Mode::Auto => direct().or_else(tunnel),
        Mode::Routes => direct(),
        Mode::Vxlan => tunnel(),
    }
}

/// What is to be done about the device, before anything of it can be looked at.
pub fn device(seen: &Seen, wanted: &Wanted) -> Vec<Action> {
    let found = seen.links.iter().find(|l| l.name == DEVICE);
    match (found, &wanted.device) {
        (None, None) => Vec::new(),
        (Some(_), None) => vec![Action::DeleteDevice],
        (None, Some(device)) => vec![Action::AddDevice(device.clone())],
        (Some(found), Some(device)) => {
            let is_right =
                found.kind == "vxlan" && found.up && found.mac == Some(device.mac) && found.local == Some(device.local);
            if !is_right {
                return vec![Action::DeleteDevice, Action::AddDevice(device.clone())];
            }
            if found.mtu == device.mtu {
                Vec::new()
            } else {
                vec![Action::SetMtu { link: found.index, mtu: device.mtu }]
            }
        }
    }
}

/// What is to be done about the rest, when the device is as it should be.
pub fn difference(seen: &Seen, wanted: &Wanted) -> Vec<Action> {
    let mut out = Vec::new();
    let link = seen.links.iter().find(|l| l.name == DEVICE).map(|l| l.index);
    let mut routes: BTreeMap<IpNet, Route> = BTreeMap::new();
    for (destination, via) in &wanted.routes {
        let route = match (via, link) {
            (Via::Direct { link, gateway }, _) => Route::through(*link, *destination, *gateway, PROTOCOL),
            (Via::Vxlan { gateway, source }, Some(link)) => {
                Route { source: *source, ..Route::through(link, *destination, *gateway, PROTOCOL) }
            }
            (Via::Vxlan { .. }, None) => continue,
        };
        routes.insert(*destination, route);
    }
    let ours = || seen.routes.iter().filter(|r| r.leads_to_node(PROTOCOL, link));
    out.extend(ours().filter(|r| !routes.contains_key(&r.destination)).cloned().map(Action::DeleteRoute));
    if let Some(link) = link {
        device_difference(seen, wanted, link, &mut out);
    }
    for (destination, route) in routes {
        let found = ours().find(|r| r.destination == destination);
        if found == Some(&route) {
            continue;
        }
        out.push(if found.is_some() { Action::ReplaceRoute(route) } else { Action::AddRoute(route) });
    }
    out
}

fn device_difference(seen: &Seen, wanted: &Wanted, link: u32, out: &mut Vec<Action>) {
    let addresses = || seen.addresses.iter().filter(|a| a.link == link && a.global).map(|a| a.net);
    out.extend(addresses().filter(|a| !wanted.addresses.contains(a)).map(|net| Action::DeleteAddress { link, net }));
    let absent = wanted.addresses.iter().filter(|net| addresses().all(|a| a != **net));
    out.extend(absent.map(|net| Action::AddAddress { link, net: *net }));
    let stale = seen.forwards.iter().filter(|f| wanted.forwards.get(&f.mac) != Some(&f.to));
    out.extend(stale.cloned().map(Action::DeleteForward));
    for (mac, to) in &wanted.forwards {
        let forward = Forward { link, mac: *mac, to: *to };
        if !seen.forwards.contains(&forward) {
            out.push(Action::SetForward(forward));
        }
    }
    let stale = seen.neighbours.iter().filter(|n| !wanted.neighbours.contains_key(&n.address));
    out.extend(stale.cloned().map(Action::DeleteNeighbour));
    for (address, mac) in &wanted.neighbours {
        let neighbour = Neighbour { link, address: *address, mac: *mac };
        if !seen.neighbours.contains(&neighbour) {
            out.push(Action::SetNeighbour(neighbour));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a network")
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn node(name: &str, cidrs: &[&str], addresses: &[&str]) -> Node {
        Node {
            name: name.into(),
            created: 0,
            pod_cidrs: cidrs.iter().map(|c| net(c)).collect(),
            addresses: addresses.iter().map(|a| ip(a)).collect(),
        }
    }

    fn link(index: u32, name: &str) -> Link {
        Link { index, name: name.into(), kind: String::new(), mac: None, mtu: 1500, up: true, local: None }
    }

    fn host() -> Seen {
        let address = |link, text: &str| Address { link, net: net(text), global: true };
        Seen {
            links: vec![link(2, "eth0"), link(3, "docker0")],
            addresses: vec![address(2, "192.0.2.10/24"), address(3, "172.17.0.1/16"), address(2, "2001:db8::10/64")],
            ..Seen::default()
        }
    }

    fn nodes() -> Vec<Node> {
        vec![
            node("a", &["10.244.0.0/24"], &["192.0.2.10", "2001:db8::10"]),
            node("b", &["10.244.1.0/24", "fd00:1::/64"], &["192.0.2.11", "2001:db8::11"]),
            node("c", &["10.244.2.0/24"], &["198.51.100.12"]),
            node("young", &[], &[]),
        ]
    }

    /// What the kernel would show after these actions.
    fn done(mut seen: Seen, actions: &[Action]) -> Seen {
        for action in actions {
            match action.clone() {
                Action::DeleteDevice => {
                    seen.links.retain(|l| l.name != DEVICE);
                    (seen.forwards, seen.neighbours) = (vec![], vec![]);
                    seen.routes.retain(|r| r.link != 9);
                    seen.addresses.retain(|a| a.link != 9);
                }
                Action::AddDevice(v) => seen.links.push(Link {
                    kind: "vxlan".into(),
                    mac: Some(v.mac),
                    local: Some(v.local),
                    mtu: v.mtu,
                    ..link(9, DEVICE)
                }),
                Action::SetMtu { link, mtu } => {
                    seen.links.iter_mut().filter(|l| l.index == link).for_each(|l| l.mtu = mtu);
                }
                Action::AddAddress { link, net } => seen.addresses.push(Address { link, net, global: true }),
                Action::DeleteAddress { link, net } => seen.addresses.retain(|a| (a.link, a.net) != (link, net)),
                Action::SetForward(f) => seen.forwards.push(f),
                Action::DeleteForward(f) => seen.forwards.retain(|x| *x != f),
                Action::SetNeighbour(n) => {
                    seen.neighbours.retain(|x| x.address != n.address);
                    seen.neighbours.push(n);
                }
                Action::DeleteNeighbour(n) => seen.neighbours.retain(|x| *x != n),
                Action::DeleteRoute(r) => seen.routes.retain(|x| *x != r),
                Action::ReplaceRoute(r) | Action::AddRoute(r) => {
                    seen.routes.retain(|x| x.destination != r.destination);
                    seen.routes.push(r);
                }
            }
        }
        seen
    }

    /// Does everything that is to be done, and shows that nothing is then.
    fn settle(seen: Seen, nodes: &[Node], mode: Mode) -> Seen {
        let wanted = plan("a", nodes, &seen, mode, &[]);
        let seen = done(seen.clone(), &device(&seen, &wanted));
        let seen = done(seen.clone(), &difference(&seen, &wanted));
        let wanted = plan("a", nodes, &seen, mode, &[]);
        assert_eq!(device(&seen, &wanted), []);
        assert_eq!(difference(&seen, &wanted), []);
        seen
    }

    fn shown(seen: &Seen) -> Vec<String> {
        let mut routes: Vec<&Route> = seen.routes.iter().collect();
        routes.sort();
        let gateway = |r: &Route| r.gateway.map(|g| g.to_string()).unwrap_or_default();
        routes.into_iter().map(|r| format!("{} via {} dev {}", r.destination, gateway(r), r.link)).collect()
    }

    #[test]
    fn only_the_difference_is_done() {
        let seen = settle(host(), &nodes(), Mode::Auto);
        let want = [
            "10.244.1.0/24 via 192.0.2.11 dev 2",
            "10.244.2.0/24 via 10.244.2.0 dev 9",
            "fd00:1::/64 via 2001:db8::11 dev 2",
        ];
        assert_eq!(shown(&seen), want);
        let device = seen.links.iter().find(|l| l.name == DEVICE).expect("a device");
        assert_eq!((device.mtu, device.mac, device.local), (1450, Some(mac("a")), Some(ip("192.0.2.10"))));
        assert_eq!(seen.forwards, [Forward { link: 9, mac: mac("c"), to: ip("198.51.100.12") }]);
        assert!(seen.addresses.iter().any(|a| a.link == 9 && a.net == net("10.244.0.0/32")));
        // Another address of the far node: its end is told anew, and nothing else.
        let mut changed = nodes();
        changed[2].addresses = vec![ip("198.51.100.99")];
        let wanted = plan("a", &changed, &seen, Mode::Auto, &[]);
        assert_eq!(difference(&seen, &wanted).len(), 2, "{:?}", difference(&seen, &wanted));
        // The far node moves to this network: no device any more.
        changed[2].addresses = vec![ip("192.0.2.12")];
        let seen = settle(seen, &changed, Mode::Auto);
        assert_eq!(shown(&seen)[1], "10.244.2.0/24 via 192.0.2.12 dev 2");
        assert!(seen.links.iter().all(|l| l.name != DEVICE));
        // Nodes go.
        changed.truncate(1);
        assert_eq!(shown(&settle(seen, &changed, Mode::Auto)), [""; 0]);
    }

    #[test]
    fn an_own_address_that_changes_moves_the_device() {
        let mut seen = settle(host(), &nodes(), Mode::Vxlan);
        assert_eq!(seen.forwards.len(), 2, "to every node");
        seen.addresses[0].net = net("203.0.113.10/24");
        // The Node still says the old address; its other one is on the same link.
        let seen = settle(seen, &nodes(), Mode::Vxlan);
        let device = seen.links.iter().find(|l| l.name == DEVICE).expect("a device");
        assert_eq!(device.local, Some(ip("203.0.113.10")));
    }

    #[test]
    fn what_others_made_stays() {
        let mut seen = host();
        let theirs = Route::through(2, net("10.99.0.0/24"), ip("192.0.2.1"), 4);
        seen.routes.push(theirs.clone());
        let seen = settle(seen, &nodes(), Mode::Auto);
        assert!(seen.routes.contains(&theirs));
        assert!(settle(seen, &nodes()[..1], Mode::Auto).routes.contains(&theirs));
    }

    #[test]
    fn a_node_cannot_take_what_is_not_its_own() {
        for (cidr, address) in [
            ("0.0.0.0/0", "192.0.2.66"),
            ("10.244.0.0/16", "192.0.2.66"),
            ("10.244.0.128/25", "192.0.2.66"),
            ("192.0.2.0/28", "192.0.2.66"),
        ] {
            let nodes = [nodes()[0].clone(), node("evil", &[cidr], &[address])];
            let wanted = plan("a", &nodes, &host(), Mode::Auto, &[]);
            assert!(wanted.routes.is_empty(), "{cidr}: {wanted:?}");
            assert_eq!(wanted.unreached.len(), 1);
        }
        // Of two with the same range that came at once the first by name has it.
        let nodes = [nodes()[0].clone(), nodes()[1].clone(), node("z", &["10.244.1.0/25"], &["192.0.2.66"])];
        assert_eq!(shown(&settle(host(), &nodes, Mode::Auto))[0], "10.244.1.0/24 via 192.0.2.11 dev 2");
    }

    #[test]
    fn a_forged_node_takes_nothing_of_the_hosts_and_of_older_nodes() {
        let range = [net("10.244.0.0/16"), net("fd00::/16")];
        let evil = |cidr: &str| Node { created: 9, ..node("aaa", &[cidr], &["192.0.2.66"]) };
        let of_host = "its podCIDR is of a network of this host";
        let not_of_cluster = "its podCIDR is not of the cluster's range";
        for (cidr, known, why) in [
            ("192.0.2.128/25", false, of_host),
            ("192.0.2.128/25", true, not_of_cluster),
            ("192.0.0.0/16", false, of_host),
            ("172.17.9.0/24", false, of_host),
            ("198.51.100.0/28", false, "its podCIDR has another node's InternalIP"),
            ("203.0.113.0/24", true, not_of_cluster),
            ("10.96.0.0/24", true, not_of_cluster),
            ("10.244.1.0/25", true, "its podCIDR is not its own alone"),
            ("10.244.1.0/25", false, "its podCIDR is not its own alone"),
        ] {
            let all: Vec<Node> = nodes().into_iter().chain([evil(cidr)]).collect();
            let cluster: &[IpNet] = if known { &range } else { &[] };
            let wanted = plan("a", &all, &host(), Mode::Auto, cluster);
            assert_eq!(wanted.unreached, [("aaa".to_owned(), why)], "{cidr}");
            assert_eq!(
                wanted,
                Wanted { unreached: wanted.unreached.clone(), ..plan("a", &nodes(), &host(), Mode::Auto, cluster) }
            );
        }
        // Who says that an address of somebody's pods is its own takes nothing either.
        let mut liar = node("0", &[], &["10.244.1.7"]);
        liar.created = -1;
        let all: Vec<Node> = nodes().into_iter().chain([liar]).collect();
        let wanted = plan("a", &all, &host(), Mode::Auto, &range);
        assert!(wanted.routes.contains_key(&net("10.244.1.0/24")), "{wanted:?}");
        // A cluster whose range is within the host's own network: whoever chose it was told.
        let mut seen = host();
        seen.addresses.push(Address { link: 2, net: net("10.1.2.3/8"), global: true });
        assert_eq!(plan("a", &nodes(), &seen, Mode::Auto, &range).unreached, []);
    }

    #[test]
    fn the_tunnel_is_by_the_address_that_the_node_says() {
        let mut seen = host();
        seen.links.push(Link { mtu: 9000, ..link(4, "storage") });
        let first = Address { link: 2, net: net("192.0.2.9/24"), global: true };
        seen.addresses.insert(0, first);
        let wanted = plan("a", &nodes(), &seen, Mode::Vxlan, &[]);
        let device = wanted.device.expect("a device");
        assert_eq!((device.local, device.mtu), (ip("192.0.2.10"), 1450));
    }

    #[test]
    fn plain_routes_only_leaves_out_who_is_far() {
        let wanted = plan("a", &nodes(), &host(), Mode::Routes, &[]);
        assert_eq!(wanted.unreached, [("c".to_owned(), "no address of this node leads to it")]);
        assert_eq!(wanted.device, None);
        // Somebody whose address is in the range of a bridge of this machine is not on it.
        let nodes = [nodes()[0].clone(), node("d", &["10.244.3.0/24"], &["172.17.0.9"])];
        let wanted = plan("a", &nodes, &host(), Mode::Auto, &[]);
        assert!(matches!(wanted.routes[&net("10.244.3.0/24")], Via::Vxlan { .. }));
    }
}
