//! Neighbours that nobody has to be asked for: which Ethernet address an address has on a link, and to which
//! machine a VXLAN device sends what is for an Ethernet address.

use std::io;
use std::net::IpAddr;

use super::link::Mac;
use super::{BRIDGE, CREATE, REPLACE, Rtnl, family, four, octets, parse_address, two};
use crate::netlink::{attribute, put};

const NEW: u16 = 28;
const DELETE: u16 = 29;
const GET: u16 = 30;
const DESTINATION: u16 = 1;
const MAC: u16 = 2;
const PERMANENT: u16 = 0x80;
/// Of the device itself, not of a bridge it is part of.
const SELF: u8 = 2;

/// An address on a link, known for good.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Neighbour {
    pub link: u32,
    pub address: IpAddr,
    pub mac: Mac,
}

/// Where a VXLAN device sends what is for an Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Forward {
    pub link: u32,
    pub mac: Mac,
    pub to: IpAddr,
}

fn body(family: u8, link: u32, flags: u8, address: IpAddr, mac: Mac) -> Vec<u8> {
    let mut out = vec![family, 0, 0, 0];
    out.extend(link.to_ne_bytes());
    out.extend(PERMANENT.to_ne_bytes());
    out.extend([flags, 0]);
    put(&mut out, DESTINATION, &octets(address));
    put(&mut out, MAC, &mac);
    out
}

fn parse(body: &[u8]) -> Option<(u8, u32, IpAddr, Mac)> {
    let (family, link, state) = (*body.first()?, four(body, 4)?, two(body, 8)?);
    let attributes = body.get(12..)?;
    let address = parse_address(attribute(attributes, DESTINATION)?)?;
    let mac = attribute(attributes, MAC)?.try_into().ok()?;
    (state & PERMANENT != 0).then_some((family, link, address, mac))
}

impl Rtnl {
    /// Says which Ethernet address an address has.
    ///
    /// # Errors
    /// When the link is gone, or the kernel refuses.
    pub fn set_neighbour(&self, neighbour: &Neighbour) -> io::Result<()> {
        let Neighbour { link, address, mac } = *neighbour;
        self.change(NEW, CREATE | REPLACE, &body(family(address), link, 0, address, mac))
    }

    /// Takes that back.
    ///
    /// # Errors
    /// When nothing such was said ([`super::is_gone`]), or the kernel refuses.
    pub fn delete_neighbour(&self, neighbour: &Neighbour) -> io::Result<()> {
        let Neighbour { link, address, mac } = *neighbour;
        self.change(DELETE, 0, &body(family(address), link, 0, address, mac))
    }

    /// What was said of a link's neighbours.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn neighbours(&self, link: u32) -> io::Result<Vec<Neighbour>> {
        let found = self.list(GET, &[0; 12])?;
        let all = found.iter().filter_map(|body| parse(body));
        Ok(all.filter(|f| f.1 == link).map(|(_, link, address, mac)| Neighbour { link, address, mac }).collect())
    }

    /// Says where a VXLAN device sends what is for an Ethernet address, in the place of what was said before.
    ///
    /// # Errors
    /// When the link is gone, or the kernel refuses.
    pub fn set_forward(&self, forward: &Forward) -> io::Result<()> {
        let Forward { link, mac, to } = *forward;
        self.change(NEW, CREATE | REPLACE, &body(BRIDGE, link, SELF, to, mac))
    }

    /// Takes that back.
    ///
    /// # Errors
    /// When nothing such was said ([`super::is_gone`]), or the kernel refuses.
    pub fn delete_forward(&self, forward: &Forward) -> io::Result<()> {
        let Forward { link, mac, to } = *forward;
        self.change(DELETE, 0, &body(BRIDGE, link, SELF, to, mac))
    }

    /// What was said of where a VXLAN device sends to.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn forwards(&self, link: u32) -> io::Result<Vec<Forward>> {
        let mut head = vec![0; 12];
        head[0] = BRIDGE;
        let found = self.list(GET, &head)?;
        let all = found.iter().filter_map(|body| parse(body));
        let ours = all.filter(|f| f.0 == BRIDGE && f.1 == link);
        Ok(ours.map(|(_, link, to, mac)| Forward { link, mac, to }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let (address, mac) = (IpAddr::from([10, 244, 0, 5]), [2, 0, 0, 0, 0, 1]);
        assert_eq!(parse(&body(2, 3, 0, address, mac)), Some((2, 3, address, mac)));
        assert_eq!(parse(&[2, 0]), None);
    }
}
