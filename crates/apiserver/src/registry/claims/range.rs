//! Which number next: pure. A range has a static band at its start, meant for numbers that people
//! choose, and a dynamic band above it, which is used up first.
//!
//! ```text
//!  10.96.0.0/12     .0.1 ─ static ─ .1.0 │ .1.1 ────────── dynamic ────────── 10.111.255.254
//!                   second, random start │ first, random start, around to its beginning
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Numbers from `first` to `last`, the first `fixed` of them in the static band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    first: u128,
    last: u128,
    fixed: u128,
}

fn band(size: u128, step: u128, most: u128) -> u128 {
    if size <= 16 { 0 } else { (size / step).clamp(16, most) }
}

impl Range {
    /// The addresses of a network that a Service can have: not its first, and in IPv4 not its last.
    pub fn of_network(network: &IpNet) -> Self {
        let (base, last) = (number(network.network()), number(network.broadcast()));
        let size = (last - base).saturating_add(1);
        let last = if network.addr().is_ipv4() { last.saturating_sub(1) } else { last };
        Self { first: base + 1, last, fixed: band(size, 16, 256) }
    }

    /// Ports, inclusive.
    pub fn of_ports((first, last): (u16, u16)) -> Self {
        let size = u128::from(last.saturating_sub(first)) + 1;
        Self { first: first.into(), last: last.into(), fixed: band(size, 32, 128) }
    }

    pub fn contains(&self, number: u128) -> bool {
        (self.first..=self.last).contains(&number)
    }

    /// Every number once, in the order in which they are given out.
    pub fn order(&self, random: u64) -> impl Iterator<Item = u128> + Send + use<> {
        let Self { first, last, fixed } = *self;
        let dynamic = first + fixed;
        let around = move |from: u128, to: u128| {
            // `to` is exclusive; an empty band gives nothing.
            let start = if to > from { from + u128::from(random) % (to - from) } else { to };
            (start..to).chain(from..start.min(to))
        };
        around(dynamic, last.saturating_add(1)).chain(around(first, dynamic.min(last.saturating_add(1))))
    }
}

/// An address as a number.
pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// The address of a number.
pub(super) fn address(number: u128, v6: bool) -> IpAddr {
    match u32::try_from(number) {
        Ok(small) if !v6 => Ipv4Addr::from(small).into(),
        _ => Ipv6Addr::from(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(network: &str, random: u64) -> String {
        let network: IpNet = network.parse().expect("parses");
        let v6 = network.addr().is_ipv6();
        let all: Vec<_> = Range::of_network(&network).order(random).map(|n| address(n, v6).to_string()).collect();
        match all.len() {
            0..=6 => all.join(" "),
            n => format!("{} {} … {} {} ({n})", all[0], all[1], all[n - 2], all[n - 1]),
        }
    }

    #[test]
    fn the_dynamic_band_comes_first() {
        for (network, random, expected) in [
            ("10.0.0.0/24", 0, "10.0.0.17 10.0.0.18 … 10.0.0.15 10.0.0.16 (254)"),
            ("10.0.0.0/24", 5, "10.0.0.22 10.0.0.23 … 10.0.0.4 10.0.0.5 (254)"),
            ("10.96.0.0/12", 0, "10.96.1.1 10.96.1.2 … 10.96.0.255 10.96.1.0 (1048574)"),
            ("10.0.0.0/28", 3, "10.0.0.4 10.0.0.5 … 10.0.0.2 10.0.0.3 (14)"),
            ("10.0.0.0/30", 1, "10.0.0.2 10.0.0.1"),
            ("10.0.0.0/31", 1, ""),
            ("fd00::/120", 0, "fd00::11 fd00::12 … fd00::f fd00::10 (255)"),
        ] {
            assert_eq!(show(network, random), expected, "{network} {random}");
        }
        let ports: Vec<_> = Range::of_ports((30000, 32767)).order(7).collect();
        assert_eq!((ports.len(), ports[0], ports[2767]), (2768, 30093, 30006));
    }

    #[test]
    fn wide_networks_are_not_counted_out() {
        let network: IpNet = "::/0".parse().expect("parses");
        let range = Range::of_network(&network);
        assert!(range.contains(u128::MAX) && !range.contains(0));
        assert_eq!(range.order(1).next(), Some(258));
    }
}
