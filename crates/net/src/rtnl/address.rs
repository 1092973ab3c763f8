//! Addresses of links.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{CREATE, REPLACE, Rtnl, family, four, octets};
use crate::netlink::{attribute, put};

const NEW: u16 = 20;
const DELETE: u16 = 21;
const GET: u16 = 22;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
/// Nobody else is asked whether the address is free.
const NO_DUPLICATES: u8 = 2;
/// Everywhere, on this link, on this machine.
const UNIVERSE: u8 = 0;
const LINK: u8 = 253;

/// An address of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub link: u32,
    /// The address and how much of it is the network's.
    pub net: IpNet,
    /// It means the same everywhere: neither loopback nor link-local.
    pub global: bool,
}

fn head(link: u32, net: IpNet, scope: u8) -> Vec<u8> {
    let mut out = vec![family(net.addr()), net.prefix_len(), NO_DUPLICATES, scope];
    out.extend(link.to_ne_bytes());
    out
}

fn body(link: u32, net: IpNet) -> Vec<u8> {
    let scope = if matches!(net.addr(), IpAddr::V4(a) if a.is_link_local()) { LINK } else { UNIVERSE };
    let mut out = head(link, net, scope);
    put(&mut out, LOCAL, &octets(net.addr()));
    put(&mut out, ADDRESS, &octets(net.addr()));
    out
}

fn parse(body: &[u8]) -> Option<Address> {
    let (prefix, scope, link) = (*body.get(1)?, *body.get(3)?, four(body, 4)?);
    let attributes = body.get(8..)?;
    let address = attribute(attributes, LOCAL).or_else(|| attribute(attributes, ADDRESS))?;
    let net = IpNet::new(super::parse_address(address)?, prefix).ok()?;
    Some(Address { link, net, global: scope == UNIVERSE })
}

impl Rtnl {
    /// Every address.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn addresses(&self) -> io::Result<Vec<Address>> {
        Ok(self.list(GET, &[0; 8])?.iter().filter_map(|body| parse(body)).collect())
    }

    /// Gives a link an address, at once usable; one that it has already stays.
    ///
    /// # Errors
    /// When the link is gone, or the kernel refuses.
    pub fn add_address(&self, link: u32, net: IpNet) -> io::Result<()> {
        self.change(NEW, CREATE | REPLACE, &body(link, net))
    }

    /// Takes one from it.
    ///
    /// # Errors
    /// When it has none such ([`super::is_gone`]), or the kernel refuses.
    pub fn delete_address(&self, link: u32, net: IpNet) -> io::Result<()> {
        self.change(DELETE, 0, &body(link, net))
    }
}

/// Every address of the links of the network namespace that this thread is in.
///
/// # Errors
/// When the kernel does not tell.
pub fn own_addresses() -> io::Result<Vec<IpAddr>> {
    Ok(Rtnl::open()?.addresses()?.into_iter().map(|address| address.net.addr()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (net, global) in [("10.244.0.5/32", true), ("fd00::5/128", true), ("169.254.0.1/16", false)] {
            let net: IpNet = net.parse().expect("a network");
            assert_eq!(parse(&body(3, net)), Some(Address { link: 3, net, global }));
        }
        assert_eq!(parse(&[2, 32, 0, 0]), None);
    }
}
