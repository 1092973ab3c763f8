//! Which address comes next in a range: after the last one given out, so that one that was just freed rests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => u32::from(a).into(),
        IpAddr::V6(a) => a.into(),
    }
}

fn address(number: u128, v4: bool) -> IpAddr {
    if v4 { Ipv4Addr::from(u32::try_from(number).unwrap_or_default()).into() } else { Ipv6Addr::from(number).into() }
}

/// The first and the last address that pods may have. The network's own address and the one after it stay free
/// (others take the latter for a gateway's), and of IPv4 the last; a range too small for that is used whole.
fn bounds(range: IpNet) -> (u128, u128) {
    let (first, last) = (number(range.network()), number(range.broadcast()));
    if last - first < 3 {
        return (first, last);
    }
    (first + 2, if range.addr().is_ipv4() { last - 1 } else { last })
}

/// How many addresses pods may have.
pub fn size(range: IpNet) -> u128 {
    let (first, last) = bounds(range);
    (last - first).saturating_add(1)
}

/// Every address of the range once, beginning behind `last`.
pub fn candidates(range: IpNet, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
    let v4 = range.addr().is_ipv4();
    let (low, high) = bounds(range);
    let begin = match last.filter(|l| range.contains(l)).map(number) {
        Some(last) if (low..high).contains(&last) => last + 1,
        _ => low,
    };
    (begin..=high).chain(low..begin).map(move |n| address(n, v4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(range: &str, last: Option<&str>, most: usize) -> Vec<String> {
        let last = last.map(|l| l.parse().expect("an address"));
        candidates(range.parse().expect("a range"), last).take(most).map(|a| a.to_string()).collect()
    }

    #[test]
    fn every_address_comes_once() {
        assert_eq!(all("10.0.0.0/29", None, 9), ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
        let after = ["10.0.0.6", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"];
        assert_eq!(all("10.0.0.0/29", Some("10.0.0.5"), 9), after);
        assert_eq!(all("10.0.0.0/29", Some("10.0.0.6"), 1), ["10.0.0.2"], "the last one");
        assert_eq!(all("10.0.0.0/29", Some("10.9.0.5"), 1), ["10.0.0.2"], "of another range");
        assert_eq!(all("10.0.0.4/32", None, 9), ["10.0.0.4"]);
        assert_eq!(all("10.0.0.4/31", Some("10.0.0.4"), 9), ["10.0.0.5", "10.0.0.4"]);
        assert_eq!(all("fd00::/64", Some("fd00::ffff"), 2), ["fd00::1:0", "fd00::1:1"]);
        assert_eq!(size("10.0.0.0/24".parse().expect("a range")), 253);
        assert_eq!(all("::/0", None, 1), ["::2"]);
        assert!(size("::/0".parse().expect("a range")) > 1 << 100);
    }
}
