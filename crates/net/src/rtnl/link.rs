//! Links: pairs of virtual Ethernet, VXLAN devices, what there is, up and away.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::{CREATE, EXCLUSIVE, Rtnl, four, octets, text, zero_ended};
use crate::netlink::{attribute, put, put_nested};

const NEW: u16 = 16;
const DELETE: u16 = 17;
const GET: u16 = 18;
/// Attributes of a link.
const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const MTU: u16 = 4;
const INFO: u16 = 18;
const NAMESPACE: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
const VXLAN_ID: u16 = 1;
const VXLAN_LOCAL: u16 = 4;
const VXLAN_LEARNING: u16 = 7;
const VXLAN_PORT: u16 = 15;
const VXLAN_LOCAL6: u16 = 17;
const UP: u32 = 1;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// One link of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `veth`, `vxlan`, `bridge`; empty for hardware.
    pub kind: String,
    pub mac: Option<Mac>,
    pub mtu: u32,
    pub up: bool,
    /// Of a VXLAN device: the address it sends from.
    pub local: Option<IpAddr>,
}

/// A pair of virtual Ethernet, one end here and one in another namespace. The end here is up at once, the
/// other only when somebody there takes it up.
#[derive(Clone, Copy, Debug)]
pub struct Veth<'a> {
    pub name: &'a str,
    pub mac: Mac,
    pub peer: &'a str,
    pub peer_mac: Mac,
    pub namespace: BorrowedFd<'a>,
    pub mtu: u32,
}

/// A VXLAN device that learns nothing: its neighbours are told to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vxlan {
    pub name: String,
    pub mac: Mac,
    /// The network's number.
    pub id: u32,
    /// The UDP port.
    pub port: u16,
    /// The address it sends from.
    pub local: IpAddr,
    pub mtu: u32,
}

fn head(index: u32, flags: u32) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.extend(index.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out
}

fn parse(body: &[u8]) -> Option<Link> {
    let (index, flags) = (four(body, 4)?, four(body, 8)?);
    let attributes = body.get(16..)?;
    let info = attribute(attributes, INFO).unwrap_or_default();
    let data = attribute(info, INFO_DATA).unwrap_or_default();
    let kind = attribute(info, INFO_KIND).map(text).unwrap_or_default();
    let local = (kind == "vxlan")
        .then(|| attribute(data, VXLAN_LOCAL).or_else(|| attribute(data, VXLAN_LOCAL6)))
        .flatten()
        .and_then(super::parse_address);
    Some(Link {
        index,
        name: text(attribute(attributes, NAME)?),
        kind,
        mac: attribute(attributes, ADDRESS).and_then(|v| v.try_into().ok()),
        mtu: attribute(attributes, MTU).and_then(|v| four(v, 0)).unwrap_or_default(),
        up: flags & UP != 0,
        local,
    })
}

impl Rtnl {
    /// Every link.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn links(&self) -> io::Result<Vec<Link>> {
        Ok(self.list(GET, &head(0, 0))?.iter().filter_map(|body| parse(body)).collect())
    }

    /// The link of that name, if there is one.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn link(&self, name: &str) -> io::Result<Option<Link>> {
        let mut body = head(0, 0);
        put(&mut body, NAME, &zero_ended(name));
        match self.get(GET, &body) {
            Ok(found) => Ok(found.and_then(|body| parse(&body))),
            Err(error) if super::is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The link of that number, if there is one.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn link_of(&self, index: u32) -> io::Result<Option<Link>> {
        match self.get(GET, &head(index, 0)) {
            Ok(found) => Ok(found.and_then(|body| parse(&body))),
            Err(error) if super::is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a pair.
    ///
    /// # Errors
    /// When the name is taken ([`super::is_there`]), or the kernel refuses.
    pub fn add_veth(&self, veth: &Veth) -> io::Result<()> {
        let mut body = head(0, 0);
        put(&mut body, NAME, &zero_ended(veth.name));
        put(&mut body, ADDRESS, &veth.mac);
        put(&mut body, MTU, &veth.mtu.to_ne_bytes());
        put_nested(&mut body, INFO, |out| {
            put(out, INFO_KIND, &zero_ended("veth"));
            put_nested(out, INFO_DATA, |out| {
                put_nested(out, VETH_PEER, |out| {
                    out.extend(head(0, 0));
                    put(out, NAME, &zero_ended(veth.peer));
                    put(out, ADDRESS, &veth.peer_mac);
                    put(out, MTU, &veth.mtu.to_ne_bytes());
                    put(out, NAMESPACE, &veth.namespace.as_raw_fd().to_ne_bytes());
                });
            });
        });
        self.change(NEW, CREATE | EXCLUSIVE, &body)
    }

    /// Makes a VXLAN device, and takes it up.
    ///
    /// # Errors
    /// When the name is taken ([`super::is_there`]), or the kernel refuses.
    pub fn add_vxlan(&self, vxlan: &Vxlan) -> io::Result<()> {
        let mut body = head(0, UP);
        put(&mut body, NAME, &zero_ended(&vxlan.name));
        put(&mut body, ADDRESS, &vxlan.mac);
        put(&mut body, MTU, &vxlan.mtu.to_ne_bytes());
        put_nested(&mut body, INFO, |out| {
            put(out, INFO_KIND, &zero_ended("vxlan"));
            put_nested(out, INFO_DATA, |out| {
                put(out, VXLAN_ID, &vxlan.id.to_ne_bytes());
                let local = if vxlan.local.is_ipv4() { VXLAN_LOCAL } else { VXLAN_LOCAL6 };
                put(out, local, &octets(vxlan.local));
                put(out, VXLAN_PORT, &vxlan.port.to_be_bytes());
                put(out, VXLAN_LEARNING, &[0]);
            });
        });
        self.change(NEW, CREATE | EXCLUSIVE, &body)
    }

    /// Whether this kernel has that kind of link; nothing is made.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn knows_kind(&self, kind: &str) -> io::Result<bool> {
        let mut body = head(0, 0);
        // No kind takes such an address; whether there is the kind comes first.
        put(&mut body, ADDRESS, &[0; 3]);
        put_nested(&mut body, INFO, |out| put(out, INFO_KIND, &zero_ended(kind)));
        match self.change(NEW, CREATE | EXCLUSIVE, &body) {
            Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => Ok(false),
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(true),
            Err(error) => Err(error),
            Ok(()) => Err(io::Error::other(format!("a {kind} link was made"))),
        }
    }

    /// Takes a link up.
    ///
    /// # Errors
    /// When it is gone, or the kernel refuses.
    pub fn set_up(&self, index: u32) -> io::Result<()> {
        self.change(NEW, 0, &head(index, UP))
    }

    /// Sets how large its packets may be, in bytes.
    ///
    /// # Errors
    /// When it is gone, or the kernel refuses.
    pub fn set_mtu(&self, index: u32, mtu: u32) -> io::Result<()> {
        let mut body = head(index, 0);
        // Flags and their mask are zero: nothing else of the link changes.
        put(&mut body, MTU, &mtu.to_ne_bytes());
        self.change(NEW, 0, &body)
    }

    /// Removes a link by its name, and with it its other end, addresses, routes and neighbours; false when
    /// there was none.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn delete_link(&self, name: &str) -> io::Result<bool> {
        let mut body = head(0, 0);
        put(&mut body, NAME, &zero_ended(name));
        match self.change(DELETE, 0, &body) {
            Ok(()) => Ok(true),
            Err(error) if super::is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read_and_damage_is_nothing() {
        let mut body = head(7, UP);
        put(&mut body, NAME, b"veth1\0");
        put(&mut body, ADDRESS, &[2, 0, 0, 0, 0, 1]);
        put(&mut body, MTU, &1450_u32.to_ne_bytes());
        put_nested(&mut body, INFO, |out| put(out, INFO_KIND, b"veth\0"));
        let want = Link {
            index: 7,
            name: "veth1".into(),
            kind: "veth".into(),
            mac: Some([2, 0, 0, 0, 0, 1]),
            mtu: 1450,
            up: true,
            local: None,
        };
        assert_eq!(parse(&body), Some(want));
        (0..20).for_each(|cut| assert_eq!(parse(&body[..cut]), None));
    }
}
