//! Addresses in names: `7.0.244.10.in-addr.arpa`, and `10-244-0-7`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::Name;

const V4: &[u8] = b"\x07in-addr\x04arpa\x00";
const V6: &[u8] = b"\x03ip6\x04arpa\x00";

/// The address whose name is asked for; `None` for every other name, also of a part of an address.
pub fn address(name: &[u8]) -> Option<IpAddr> {
    if let Some(mut rest) = name.strip_suffix(V4) {
        let mut octets = [0u8; 4];
        for octet in octets.iter_mut().rev() {
            let (label, after) = split(rest)?;
            // A number has one way to be written.
            let text = std::str::from_utf8(label).ok().filter(|t| t.len() == 1 || !t.starts_with(['0', '+']))?;
            *octet = text.parse().ok()?;
            rest = after;
        }
        return rest.is_empty().then(|| Ipv4Addr::from(octets).into());
    }
    let mut rest = name.strip_suffix(V6)?;
    let mut bits = 0u128;
    for at in 0..32 {
        let (label, after) = split(rest)?;
        let [digit] = label else { return None };
        bits |= u128::from(char::from(*digit).to_digit(16)?) << (4 * at);
        rest = after;
    }
    rest.is_empty().then(|| Ipv6Addr::from(bits).into())
}

fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = name.split_first()?;
    rest.split_at_checked(usize::from(*size))
}

/// The zone that an address's name belongs to.
pub fn zone(address: IpAddr) -> Name {
    let bytes = if address.is_ipv4() { V4 } else { V6 };
    Name::read(bytes, 0).map_or_else(|_| Name::root(), |(name, _)| name)
}

/// The address that a pod's label says: `10-244-0-7`, `fd00--7`.
pub fn dashed(label: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(label).ok()?;
    if !text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit()) {
        return None;
    }
    let is_v4 = text.matches('-').count() == 3 && !text.contains("--");
    if is_v4 {
        return text.replace('-', ".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    }
    text.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_names() {
        let ip6 = format!("1.{}0.0.d.f.ip6.arpa", "0.".repeat(27));
        for (text, want) in [
            ("7.0.244.10.in-addr.arpa", Some("10.244.0.7")),
            ("0.0.244.10.in-addr.arpa", Some("10.244.0.0")),
            ("07.0.244.10.in-addr.arpa", None),
            ("+7.0.244.10.in-addr.arpa", None),
            ("256.0.244.10.in-addr.arpa", None),
            ("244.10.in-addr.arpa", None),
            ("1.7.0.244.10.in-addr.arpa", None),
            ("in-addr.arpa", None),
            ("example.org", None),
            (&ip6, Some("fd00::1")),
            ("1.ip6.arpa", None),
            (&ip6.replace("f.ip6", "x.ip6"), None),
        ] {
            let name = Name::parse(text).expect("a name");
            assert_eq!(address(name.bytes()).map(|ip| ip.to_string()).as_deref(), want, "{text}");
        }
        for (label, want) in [
            ("10-244-0-7", Some("10.244.0.7")),
            ("10-244-0-700", None),
            ("10-244-0", None),
            ("fd00--7", Some("fd00::7")),
            ("--1", Some("::1")),
            ("web", None),
            ("", None),
        ] {
            assert_eq!(dashed(label.as_bytes()).map(|ip| ip.to_string()).as_deref(), want, "{label}");
        }
    }
}
