//! Records, as they are decided on; names within them are whole.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Name, kind};

/// One record of class IN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub name: Name,
    /// Seconds for which it may be kept.
    pub ttl: u32,
    pub data: Data,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    A(Ipv4Addr),
    Aaaa(Ipv6Addr),
    Cname(Name),
    Ns(Name),
    Ptr(Name),
    Soa(Soa),
    Srv {
        priority: u16,
        weight: u16,
        port: u16,
        target: Name,
    },
    /// One text of at most 255 bytes.
    Txt(Box<str>),
    /// A record of a type that is not looked into; names in it are whole.
    Other {
        kind: u16,
        data: Box<[u8]>,
    },
}

/// Who is responsible for a zone, and how long it is believed that a name does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Soa {
    pub primary: Name,
    pub mailbox: Name,
    pub serial: u32,
    pub refresh: u32,
    pub retry: u32,
    pub expire: u32,
    pub minimum: u32,
}

impl Record {
    /// An address of a name.
    pub fn address(name: Name, ttl: u32, address: IpAddr) -> Self {
        let data = match address {
            IpAddr::V4(v4) => Data::A(v4),
            IpAddr::V6(v6) => Data::Aaaa(v6),
        };
        Self { name, ttl, data }
    }

    /// Its type.
    pub fn kind(&self) -> u16 {
        match &self.data {
            Data::A(_) => kind::A,
            Data::Aaaa(_) => kind::AAAA,
            Data::Cname(_) => kind::CNAME,
            Data::Ns(_) => kind::NS,
            Data::Ptr(_) => kind::PTR,
            Data::Soa(_) => kind::SOA,
            Data::Srv { .. } => kind::SRV,
            Data::Txt(_) => kind::TXT,
            Data::Other { kind, .. } => *kind,
        }
    }
}
