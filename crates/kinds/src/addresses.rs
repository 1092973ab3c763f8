//! Addresses and networks in fields that once took more than they take now: what is written there
//! today must be sound, what was stored before stays.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use machinery::field::{FieldErrors, Path};

use crate::check;

/// Reads an address as the fields of old did: with leading zeros, too.
pub fn read(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().filter(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))?;
        let digits = part.trim_start_matches('0');
        *octet = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets).into())
}

/// Reads a network the same way; bits beyond the prefix are kept.
pub fn read_network(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits = length.trim_start_matches('0');
    let length = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    IpNet::new(read(address)?, length).ok()
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

fn has_leading_zeros(network: &str) -> bool {
    let (address, length) = network.split_once('/').unwrap_or((network, ""));
    address.parse::<IpAddr>().is_err() || (length.len() > 1 && length.starts_with('0'))
}

/// An address. What is among `before`, the values the object already had, is not looked at.
pub fn address(text: &str, before: &[&str], path: &Path, errors: &mut FieldErrors) {
    if before.contains(&text) {
        return;
    }
    match read(text) {
        None => errors.invalid(path, text, check::IP_ADDRESS),
        Some(_) if text.parse::<IpAddr>().is_err() => errors.invalid(path, text, "must not have leading 0s"),
        Some(address) if is_mapped(address) => {
            errors.invalid(path, text, "must not be an IPv4-mapped IPv6 address");
        }
        Some(_) => {}
    }
}

/// A network, with the same regard for what was there before.
pub fn network(text: &str, before: &[&str], path: &Path, errors: &mut FieldErrors) {
    if before.contains(&text) {
        return;
    }
    match read_network(text) {
        None => errors.invalid(path, text, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
        Some(_) if has_leading_zeros(text) => {
            errors.invalid(path, text, "must not have leading 0s in IP or prefix length");
        }
        Some(net) if is_mapped(net.addr()) => errors.invalid(path, text, "must not have an IPv4-mapped IPv6 address"),
        Some(net) if net.addr() != net.network() => {
            errors.invalid(path, text, "must not have bits set beyond the prefix length");
        }
        Some(_) => {}
    }
}

/// What a client is told about an address that is taken, but not written as it should be.
pub fn address_warnings(text: &str, path: &Path) -> Option<String> {
    let address = read(text)?;
    if text.parse::<IpAddr>().is_err() || is_mapped(address) {
        let proper = address.to_canonical();
        return Some(format!("{path}: non-standard IP address {text:?} is invalid: use \"{proper}\""));
    }
    let odd = address.is_ipv6() && address.to_string() != text;
    odd.then(|| format!("{path}: IPv6 address {text:?} should be in RFC 5952 canonical format (\"{address}\")"))
}

/// What a client is told about the addresses that a load balancer reports, in the order it reports them.
pub fn balancer_warnings<'a>(reported: impl Iterator<Item = Option<&'a str>>) -> Vec<String> {
    let path = Path::new("status").child("loadBalancer").child("ingress");
    let given = reported.enumerate().filter_map(|(i, ip)| Some((i, ip.filter(|ip| !ip.is_empty())?)));
    given.filter_map(|(i, ip)| address_warnings(ip, &path.index(i))).collect()
}

/// What a client is told about a network that is taken, but not written as it should be.
pub fn network_warnings(text: &str, path: &Path) -> Vec<String> {
    let Some(net) = read_network(text) else { return Vec::new() };
    let proper = net.trunc();
    let mut out = Vec::new();
    if net.addr() != net.network() {
        let single = format!("{}/{}", net.addr(), net.max_prefix_len());
        let wrong = format!("CIDR value {text:?} is ambiguous in this context (should be \"{proper}\" or {single:?}?)");
        out.push(format!("{path}: {wrong}"));
    }
    if has_leading_zeros(text) || is_mapped(net.addr()) {
        out.push(format!("{path}: non-standard CIDR value {text:?} is invalid: use \"{proper}\""));
    }
    if out.is_empty() && net.addr().is_ipv6() && net.to_string() != text {
        out.push(format!("{path}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format (\"{net}\")"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str, check: fn(&str, &[&str], &Path, &mut FieldErrors)) -> String {
        let mut errors = FieldErrors::new();
        check(text, &["10.0.0.7/8"], &Path::new("x"), &mut errors);
        errors.0.iter().map(|error| error.detail.clone()).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn an_address_is_written_in_one_way() {
        for (text, want) in [
            ("10.0.0.1", ""),
            ("fe80::1", ""),
            ("010.0.0.1", "must not have leading 0s"),
            ("::ffff:10.0.0.1", "must not be an IPv4-mapped IPv6 address"),
            ("10.0.0", check::IP_ADDRESS),
            ("10.0.0.0.1", check::IP_ADDRESS),
            ("10.0.0.256", check::IP_ADDRESS),
            ("", check::IP_ADDRESS),
        ] {
            assert_eq!(wrong(text, address), want, "{text}");
        }
    }

    #[test]
    fn a_network_has_no_more_bits_than_its_prefix() {
        for (text, want) in [
            ("10.0.0.0/8", ""),
            ("0.0.0.0/0", ""),
            ("fd00::/8", ""),
            ("10.0.0.7/8", ""),
            ("10.0.0.8/8", "must not have bits set beyond the prefix length"),
            ("10.0.0.0/08", "must not have leading 0s in IP or prefix length"),
            ("::ffff:10.0.0.0/104", "must not have an IPv4-mapped IPv6 address"),
            ("10.0.0.0/33", "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
            ("10.0.0.0", "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
            ("10.0.0.0/", "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
        ] {
            assert_eq!(wrong(text, network), want, "{text}");
        }
    }

    #[test]
    fn what_is_taken_as_it_was_is_warned_about() {
        let path = Path::new("x");
        assert_eq!(network_warnings("10.0.0.0/8", &path), [""; 0]);
        assert_eq!(
            network_warnings("10.0.0.7/8", &path),
            [
                "x: CIDR value \"10.0.0.7/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.7/32\"?)"
            ]
        );
        assert_eq!(
            network_warnings("010.0.0.0/8", &path),
            ["x: non-standard CIDR value \"010.0.0.0/8\" is invalid: use \"10.0.0.0/8\""]
        );
        assert_eq!(
            network_warnings("FD00::/8", &path),
            ["x: IPv6 CIDR value \"FD00::/8\" should be in RFC 5952 canonical format (\"fd00::/8\")"]
        );
    }
}
