//! Routes of the main table.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{CREATE, EXCLUSIVE, REPLACE, Rtnl, family, four, octets, parse_address};
use crate::netlink::{attribute, put};

const NEW: u16 = 24;
const DELETE: u16 = 25;
const GET: u16 = 26;
const DESTINATION: u16 = 1;
const LINK: u16 = 4;
const GATEWAY: u16 = 5;
const SOURCE: u16 = 7;
const METRICS: u16 = 8;
const TABLE: u16 = 15;
const METRIC_MTU: u16 = 2;
const MAIN: u8 = 254;
const UNIVERSE: u8 = 0;
const ON_LINK: u8 = 253;
const UNICAST: u8 = 1;
/// The gateway is reached through the link, whatever its addresses are.
const FLAG_ON_LINK: u32 = 4;
/// Flags of a route that was made for one packet.
const FLAG_CLONED: u32 = 0x200;
/// Asks for the route itself, not for what one packet would get.
const FLAG_MATCH: u32 = 0x2000;

/// Who made a route: of those that this program makes to other nodes, ours (113). No list of such numbers has it:
/// not the kernel's, not iproute2's, and none of the programs that choose theirs (80 is Calico's, 84 OVN's, 99
/// Open/R's, 186 and more FRR's).
pub const PROTOCOL: u8 = 113;
/// Whoever configured the machine.
pub const STATIC: u8 = 4;

/// A router's announcement (`ra`).
pub const ANNOUNCED: u8 = 9;

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    pub destination: IpNet,
    /// The link's number; 0 where there is none (`unreachable`).
    pub link: u32,
    pub gateway: Option<IpAddr>,
    /// The address that packets of this machine get.
    pub source: Option<IpAddr>,
    pub protocol: u8,
    /// How large packets may be on it; the link's own where it says nothing.
    pub mtu: Option<u32>,
}

impl Route {
    /// To one machine or network that is on the link itself.
    pub fn on(link: u32, destination: IpNet, protocol: u8) -> Self {
        Self { destination, link, gateway: None, source: None, protocol, mtu: None }
    }

    /// True of a route to another node's pods that carries `protocol`: it is to a network, by a gateway. Numbers
    /// that others use, too, as earlier versions did, count only on `device`, which is nobody else's.
    pub fn leads_to_node(&self, protocol: u8, device: Option<u32>) -> bool {
        let length = self.destination.prefix_len();
        let is_network = length > 0 && length < self.destination.max_prefix_len();
        let is_alone = protocol == PROTOCOL || device == Some(self.link);
        self.protocol == protocol && self.gateway.is_some() && is_network && is_alone
    }

    /// By a gateway that is on the link.
    pub fn through(link: u32, destination: IpNet, gateway: IpAddr, protocol: u8) -> Self {
        Self { gateway: Some(gateway), ..Self::on(link, destination, protocol) }
    }
}

fn body(route: &Route) -> Vec<u8> {
    let destination = route.destination;
    let scope = if route.gateway.is_none() && destination.addr().is_ipv4() { ON_LINK } else { UNIVERSE };
    let flags = if route.gateway.is_some() { FLAG_ON_LINK } else { 0 };
    let mut out =
        vec![family(destination.addr()), destination.prefix_len(), 0, 0, MAIN, route.protocol, scope, UNICAST];
    out.extend(flags.to_ne_bytes());
    if destination.prefix_len() > 0 {
        put(&mut out, DESTINATION, &octets(destination.addr()));
    }
    if let Some(gateway) = route.gateway {
        put(&mut out, GATEWAY, &octets(gateway));
    }
    if let Some(source) = route.source {
        put(&mut out, SOURCE, &octets(source));
    }
    if let Some(mtu) = route.mtu {
        crate::netlink::put_nested(&mut out, METRICS, |out| put(out, METRIC_MTU, &mtu.to_ne_bytes()));
    }
    if route.link != 0 {
        put(&mut out, LINK, &route.link.to_ne_bytes());
    }
    out
}

fn parse(body: &[u8]) -> Option<Route> {
    let (kind, prefix, protocol) = (*body.first()?, *body.get(1)?, *body.get(5)?);
    let (table, flags, attributes) = (*body.get(4)?, four(body, 8)?, body.get(12..)?);
    let table = attribute(attributes, TABLE).and_then(|v| four(v, 0)).unwrap_or(table.into());
    if table != u32::from(MAIN) || *body.get(7)? != UNICAST || flags & FLAG_CLONED != 0 {
        return None;
    }
    let none = match kind {
        super::INET => IpAddr::from([0; 4]),
        super::INET6 => IpAddr::from([0; 16]),
        _ => return None,
    };
    let address = |kind| attribute(attributes, kind).and_then(parse_address);
    Some(Route {
        destination: IpNet::new(address(DESTINATION).unwrap_or(none), prefix).ok()?,
        link: attribute(attributes, LINK).and_then(|v| four(v, 0)).unwrap_or_default(),
        gateway: address(GATEWAY),
        source: address(SOURCE),
        protocol,
        mtu: attribute(attributes, METRICS)
            .and_then(|m| attribute(m, METRIC_MTU))
            .and_then(|v| four(v, 0))
            .filter(|mtu| *mtu > 0),
    })
}

impl Rtnl {
    /// The routes of the main table, of both families.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn routes(&self) -> io::Result<Vec<Route>> {
        let mut out = Vec::new();
        for family in [super::INET, super::INET6] {
            let mut head = vec![0; 12];
            head[0] = family;
            out.extend(self.list(GET, &head)?.iter().filter_map(|body| parse(body)));
        }
        Ok(out)
    }

    /// Makes a route that must be a new one.
    ///
    /// # Errors
    /// When its destination has one ([`super::is_there`]), or the kernel refuses.
    pub fn add_route(&self, route: &Route) -> io::Result<()> {
        self.change(NEW, CREATE | EXCLUSIVE, &body(route))
    }

    /// Makes a route, in the place of the one its destination has.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn replace_route(&self, route: &Route) -> io::Result<()> {
        self.change(NEW, CREATE | REPLACE, &body(route))
    }

    /// Removes a route.
    ///
    /// # Errors
    /// When there is none ([`super::is_gone`]), or the kernel refuses.
    pub fn delete_route(&self, route: &Route) -> io::Result<()> {
        self.change(DELETE, 0, &body(route))
    }

    /// True when a route leads to this very address alone, or it is one of this machine's.
    ///
    /// # Errors
    /// When packets to it would get no route, or the kernel does not tell.
    pub fn is_routed_alone(&self, address: IpAddr) -> io::Result<bool> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let mut body = vec![family(address), bits, 0, 0, 0, 0, 0, 0];
        body.extend(FLAG_MATCH.to_ne_bytes());
        put(&mut body, DESTINATION, &octets(address));
        Ok(self.get(GET, &body)?.is_some_and(|found| found.get(1) == Some(&bits)))
    }

    /// Which link and which address of this machine packets to `address` would get.
    ///
    /// # Errors
    /// When they would get none, or the kernel does not tell.
    pub fn route_to(&self, address: IpAddr) -> io::Result<(u32, Option<IpAddr>)> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let mut body = vec![family(address), bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        put(&mut body, DESTINATION, &octets(address));
        let found = self.get(GET, &body)?.unwrap_or_default();
        let attributes = found.get(12..).unwrap_or_default();
        let link = attribute(attributes, LINK).and_then(|v| four(v, 0)).unwrap_or_default();
        Ok((link, attribute(attributes, SOURCE).and_then(parse_address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let net = |text: &str| text.parse::<IpNet>().expect("a network");
        let mut far = Route::through(4, net("10.244.2.0/24"), [10, 88, 0, 2].into(), PROTOCOL);
        far.mtu = Some(1450);
        far.source = Some([10, 88, 0, 1].into());
        for route in [far, Route::on(3, net("10.244.0.5/32"), STATIC), Route::on(3, net("::/0"), PROTOCOL)] {
            assert_eq!(parse(&body(&route)), Some(route));
        }
        assert_eq!(parse(&[2, 24, 0, 0, MAIN]), None);
    }

    #[test]
    fn routes_of_others_are_not_ours_whatever_their_number() {
        // Calico's, Babel's, OVN's, Open/R's; the kernel's and FRR's.
        for theirs in [42, 80, 84, 99] {
            assert_ne!(PROTOCOL, theirs);
        }
        assert!(!(0..=19).contains(&PROTOCOL) && !(186..=198).contains(&PROTOCOL));
        let net = |text: &str| text.parse::<IpNet>().expect("a network");
        let by = |link, text, protocol| Route::through(link, net(text), [192, 0, 2, 1].into(), protocol);
        let device = Some(9);
        for (route, protocol, is_ours) in [
            (by(2, "10.244.1.0/24", PROTOCOL), PROTOCOL, true),
            (by(9, "10.244.1.0/24", PROTOCOL), PROTOCOL, true),
            (by(2, "10.244.1.0/24", STATIC), PROTOCOL, false),
            (by(2, "0.0.0.0/0", PROTOCOL), PROTOCOL, false),
            (by(2, "10.244.1.7/32", PROTOCOL), PROTOCOL, false),
            (Route::on(2, net("10.244.1.0/24"), PROTOCOL), PROTOCOL, false),
            // What a journal of an earlier version says: Calico's routes stay.
            (by(2, "10.244.1.0/24", 80), 80, false),
            (by(9, "10.244.1.0/24", 80), 80, true),
        ] {
            assert_eq!(route.leads_to_node(protocol, device), is_ours, "{route:?}");
        }
    }
}
