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

/// Who made a route: of those that this program makes to other nodes, ours (80).
pub const PROTOCOL: u8 = 80;
/// Whoever configured the machine.
pub const STATIC: u8 = 4;

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
}
