//! Addresses and networks.

use std::net::IpAddr;

use super::{Imp, no_such_overload};
use crate::meter::{Error, Meter};
use crate::value::{Out, Val};

pub const TABLE: &[(&str, Imp)] = &[
    ("string_to_ip: ip(string) -> IP", ip),
    ("cidr_ip: <CIDR>.ip() -> IP", cidr_ip),
    ("ip_family: <IP>.family() -> int", family),
    ("ip_is_canonical: ip.isCanonical(string) -> bool", is_canonical),
    ("ip_is_unspecified: <IP>.isUnspecified() -> bool", is_unspecified),
    ("ip_is_loopback: <IP>.isLoopback() -> bool", is_loopback),
    ("ip_is_link_local_multicast: <IP>.isLinkLocalMulticast() -> bool", is_link_local_multicast),
    ("ip_is_link_local_unicast: <IP>.isLinkLocalUnicast() -> bool", is_link_local_unicast),
    ("ip_is_global_unicast: <IP>.isGlobalUnicast() -> bool", is_global_unicast),
    ("is_ip: isIP(string) -> bool", is_ip),
    ("ip_to_string: string(IP) -> string", ip_text),
    ("string_to_cidr: cidr(string) -> CIDR", cidr),
    ("cidr_contains_ip_string: <CIDR>.containsIP(string) -> bool", contains_ip),
    ("cidr_contains_ip_ip: <CIDR>.containsIP(IP) -> bool", contains_ip),
    ("cidr_contains_cidr_string: <CIDR>.containsCIDR(string) -> bool", contains_cidr),
    ("cidr_contains_cidr: <CIDR>.containsCIDR(CIDR) -> bool", contains_cidr),
    ("cidr_prefix_length: <CIDR>.prefixLength() -> int", prefix_length),
    ("cidr_masked: <CIDR>.masked() -> CIDR", masked),
    ("is_cidr: isCIDR(string) -> bool", is_cidr),
    ("cidr_to_string: string(CIDR) -> string", cidr_text),
];

/// An address and how many of its bits name the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub ip: IpAddr,
    pub bits: u8,
}

/// An address as a number, and how many bits it has.
fn number(ip: IpAddr) -> (u128, u8) {
    match ip {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    }
}

impl Cidr {
    fn parse(text: &str) -> Result<Self, String> {
        let quoted = machinery::go::quote(text);
        let wrong = |why: &str| Err(format!("netip.ParsePrefix({quoted}): {why}"));
        let Some((address, bits)) = text.rsplit_once('/') else { return wrong("no '/'") };
        let ip: IpAddr = match parse_address(address) {
            Ok(ip) => ip,
            Err(why) => return wrong(&why),
        };
        if address.contains('%') {
            return wrong("IPv6 zones cannot be present in a prefix");
        }
        let shown = machinery::go::quote(bits);
        let number = bits.bytes().all(|b| b.is_ascii_digit()) && !bits.is_empty();
        if !number || (bits.len() > 1 && bits.starts_with('0')) {
            return wrong(&format!("bad bits after slash: {shown}"));
        }
        let most = if ip.is_ipv4() { 32 } else { 128 };
        match bits.parse::<u8>() {
            Ok(bits) if bits <= most => Ok(Self { ip, bits }),
            _ => wrong("prefix length out of range"),
        }
    }

    /// The address with only the network's bits.
    fn network(&self) -> u128 {
        let (value, width) = number(self.ip);
        let host = u32::from(width - self.bits);
        value.checked_shr(host).unwrap_or(0)
    }

    fn contains(&self, ip: IpAddr) -> bool {
        self.ip.is_ipv4() == ip.is_ipv4() && self.network() == (Self { ip, bits: self.bits }).network()
    }

    fn masked(&self) -> Self {
        let host = u32::from(number(self.ip).1 - self.bits);
        let value = self.network().checked_shl(host).unwrap_or(0);
        let ip = match self.ip {
            IpAddr::V4(_) => IpAddr::V4(u32::try_from(value).unwrap_or(0).into()),
            IpAddr::V6(_) => IpAddr::V6(value.into()),
        };
        Self { ip, bits: self.bits }
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.ip, self.bits)
    }
}

/// An address; why it is none is told as Go tells it, as far as both look at the same thing.
fn parse_address(text: &str) -> Result<IpAddr, String> {
    let quoted = machinery::go::quote(text);
    let address = text.split('%').next().unwrap_or("");
    address.parse().map_err(|_| {
        let why = match text.find(['.', ':', '%']).and_then(|at| text.get(at..at + 1)) {
            None => "unable to parse IP".to_owned(),
            Some("%") => "missing IPv6 address".to_owned(),
            Some(".") => v4_mistake(text),
            _ => "unable to parse IP".to_owned(),
        };
        format!("ParseAddr({quoted}): {why}")
    })
}

fn v4_mistake(text: &str) -> String {
    let mut fields = 0;
    let mut value: u32 = 0;
    let mut digits = 0;
    for (i, b) in text.bytes().enumerate() {
        let rest = || machinery::go::quote(text.get(i..).unwrap_or(""));
        match b {
            b'0'..=b'9' => {
                if digits == 1 && value == 0 {
                    return "IPv4 field has octet with leading zero".to_owned();
                }
                value = value * 10 + u32::from(b - b'0');
                digits += 1;
                if value > 255 {
                    return "IPv4 field has value >255".to_owned();
                }
            }
            b'.' => {
                if digits == 0 || i + 1 == text.len() {
                    return format!("IPv4 field must have at least one digit (at {})", rest());
                }
                if fields == 3 {
                    return "IPv4 address too long".to_owned();
                }
                fields += 1;
                value = 0;
                digits = 0;
            }
            _ => return format!("unexpected character (at {})", rest()),
        }
    }
    "IPv4 address too short".to_owned()
}

fn parse_ip(text: &str) -> Result<IpAddr, Error> {
    let quoted = machinery::go::quote(text);
    let ip = parse_address(text)
        .map_err(|why| Error::new(format!("IP Address {quoted} parse error during conversion from string: {why}")))?;
    if text.contains('%') {
        return Err(Error::new(format!("IP address {quoted} with zone value is not allowed")));
    }
    if is_mapped(ip) {
        return Err(Error::new(format!("IPv4-mapped IPv6 address {quoted} is not allowed")));
    }
    Ok(ip)
}

fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

fn parse_cidr(text: &str) -> Result<Cidr, Error> {
    let cidr = Cidr::parse(text)
        .map_err(|why| Error::new(format!("network address parse error during conversion from string: {why}")))?;
    if is_mapped(cidr.ip) {
        return Err(Error::new(format!("IPv4-mapped IPv6 address {} is not allowed", machinery::go::quote(text))));
    }
    Ok(cidr)
}

fn ip<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("ip", args)) };
    parse_ip(text).map(Val::Ip)
}

fn is_ip<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("isIP", args)) };
    Ok(Val::Bool(parse_ip(text).is_ok()))
}

fn is_canonical<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("ip.isCanonical", args)) };
    parse_ip(text).map(|ip| Val::Bool(ip.to_string() == **text))
}

fn ip_text<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Ip(ip)] = args else { return Err(no_such_overload("string", args)) };
    Ok(Val::text(ip.to_string()))
}

fn family<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Ip(ip)] = args else { return Err(no_such_overload("family", args)) };
    Ok(Val::Int(if ip.is_ipv4() { 4 } else { 6 }))
}

fn asked<'a>(args: &[Val<'a>], name: &str, holds: fn(IpAddr) -> bool) -> Out<'a> {
    let [Val::Ip(ip)] = args else { return Err(no_such_overload(name, args)) };
    Ok(Val::Bool(holds(*ip)))
}

fn is_unspecified<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    asked(args, "isUnspecified", |ip| ip.is_unspecified())
}

fn is_loopback<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    asked(args, "isLoopback", |ip| ip.is_loopback())
}

fn is_link_local_multicast<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    asked(args, "isLinkLocalMulticast", |ip| match ip {
        IpAddr::V4(v4) => matches!(v4.octets(), [224, 0, 0, _]),
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    })
}

fn link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_link_local_unicast<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    asked(args, "isLinkLocalUnicast", link_local)
}

fn is_global_unicast<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    asked(args, "isGlobalUnicast", |ip| {
        let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
        !broadcast && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && !link_local(ip)
    })
}

fn cidr<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("cidr", args)) };
    parse_cidr(text)
        .map(Val::Cidr)
        .map_err(|error| Error::new(format!("network address parse error during conversion from string: {error}")))
}

fn is_cidr<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("isCIDR", args)) };
    Ok(Val::Bool(parse_cidr(text).is_ok()))
}

fn cidr_text<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Cidr(cidr)] = args else { return Err(no_such_overload("string", args)) };
    Ok(Val::text(cidr.to_string()))
}

fn cidr_ip<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Cidr(cidr)] = args else { return Err(no_such_overload("ip", args)) };
    Ok(Val::Ip(cidr.ip))
}

fn prefix_length<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Cidr(cidr)] = args else { return Err(no_such_overload("prefixLength", args)) };
    Ok(Val::Int(i64::from(cidr.bits)))
}

fn masked<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Cidr(cidr)] = args else { return Err(no_such_overload("masked", args)) };
    Ok(Val::Cidr(cidr.masked()))
}

fn contains_ip<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let (cidr, ip) = match args {
        [Val::Cidr(cidr), Val::Ip(ip)] => (cidr, *ip),
        [Val::Cidr(cidr), Val::String(text)] => (cidr, parse_ip(text).map_err(|_| Error::no_such_overload())?),
        _ => return Err(no_such_overload("containsIP", args)),
    };
    Ok(Val::Bool(cidr.contains(ip)))
}

fn contains_cidr<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let (cidr, other) = match args {
        [Val::Cidr(cidr), Val::Cidr(other)] => (cidr, *other),
        [Val::Cidr(cidr), Val::String(text)] => (
            cidr,
            parse_cidr(text).map_err(|error| {
                Error::new(format!("network address parse error during conversion from string: {error}"))
            })?,
        ),
        _ => return Err(no_such_overload("containsCIDR", args)),
    };
    Ok(Val::Bool(cidr.bits <= other.bits && cidr.contains(other.ip)))
}
