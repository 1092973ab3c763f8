//! Ranges of addresses as sets of numbers: the kernel takes no ranges of one set that overlap, and the
//! `nft` of today's distributions does not merge them well, so that ours never do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use net::ruleset::Family;

/// The first and the last address, as numbers.
pub type Range = (u128, u128);

/// Disjoint ranges in order, with room between any two.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ranges(Vec<Range>);

/// The number of an address in its family.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// The family of an address.
pub fn family(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::Ip } else { Family::Ip6 }
}

/// The highest number of a family.
fn last(family: Family) -> u128 {
    if family == Family::Ip { u32::MAX.into() } else { u128::MAX }
}

impl Ranges {
    /// All of these, in any order, overlapping or not.
    pub fn union(ranges: impl IntoIterator<Item = Range>) -> Self {
        let mut all: Vec<Range> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        all.sort_unstable();
        let mut out: Vec<Range> = Vec::new();
        for (first, last) in all {
            match out.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => out.push((first, last)),
            }
        }
        Self(out)
    }

    /// The addresses of a network.
    pub fn network(net: IpNet) -> Range {
        (number(net.network()), number(net.broadcast()))
    }

    /// What of one range is in none of these.
    pub fn without(&self, (first, last): Range) -> Vec<Range> {
        let (mut out, mut from) = (Vec::new(), first);
        for (a, b) in self.0.iter().filter(|(a, b)| *a <= last && *b >= first) {
            if *a > from {
                out.push((from, a - 1));
            }
            match b.checked_add(1) {
                Some(next) => from = next,
                None => return out,
            }
        }
        if from <= last {
            out.push((from, last));
        }
        out
    }

    /// No address at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every address of a family.
    pub fn is_whole(&self, family: Family) -> bool {
        self.0 == [(0, last(family))]
    }

    /// As rules spell them.
    pub fn texts(&self, family: Family) -> impl Iterator<Item = String> + '_ {
        let text = move |number: u128| match family {
            Family::Ip => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).to_string(),
            Family::Ip6 => Ipv6Addr::from(number).to_string(),
        };
        self.0.iter().map(move |(a, b)| if a == b { text(*a) } else { format!("{}-{}", text(*a), text(*b)) })
    }

    /// Ports as rules spell them.
    pub fn numbers(&self) -> Vec<String> {
        self.0.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Range {
        Ranges::network(text.parse().expect("a network"))
    }

    fn shown(ranges: &Ranges, family: Family) -> String {
        ranges.texts(family).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_overlaps_or_touches_is_one() {
        let all = Ranges::union(["10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8", "9.0.0.1/32", "10.0.0.0/8"].map(net));
        assert_eq!(shown(&all, Family::Ip), "9.0.0.1 10.0.0.0-11.255.255.255");
        let everything = Ranges::union(["0.0.0.0/1", "128.0.0.0/1"].map(net));
        assert!(everything.is_whole(Family::Ip) && !everything.is_whole(Family::Ip6));
        assert!(Ranges::union(["::/1", "8000::/1"].map(net)).is_whole(Family::Ip6));
    }

    #[test]
    fn exceptions_are_taken_out_wherever_they_are() {
        for (whole, except, want) in [
            ("10.0.0.0/24", vec!["10.0.0.0/25"], "10.0.0.128-10.0.0.255"),
            ("10.0.0.0/24", vec!["10.0.0.255/32", "10.0.0.7/32"], "10.0.0.0-10.0.0.6 10.0.0.8-10.0.0.254"),
            ("10.0.0.0/24", vec!["10.0.0.0/8"], ""),
            ("10.0.0.0/24", vec!["192.168.0.0/16"], "10.0.0.0-10.0.0.255"),
            ("10.0.0.0/24", vec!["10.0.0.0/25", "10.0.0.64/26"], "10.0.0.128-10.0.0.255"),
            ("0.0.0.0/0", vec!["255.0.0.0/8"], "0.0.0.0-254.255.255.255"),
        ] {
            let ranges = Ranges::union(except.into_iter().map(net));
            assert_eq!(shown(&Ranges::union(ranges.without(net(whole))), Family::Ip), want, "{whole}");
        }
        let left = Ranges::union([net("ff00::/8")]).without(net("::/0"));
        let want = "::-feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        assert_eq!(shown(&Ranges::union(left), Family::Ip6), want);
    }
}
