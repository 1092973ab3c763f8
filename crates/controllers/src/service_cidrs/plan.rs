//! Whether a range of Service addresses may go: pure.

use std::net::IpAddr;

use ipnet::IpNet;

/// A range as the cache has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub name: String,
    pub networks: Vec<IpNet>,
}

impl Range {
    fn contains(&self, address: &IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }
}

/// True when `range` may go: others contain it whole, or none of the addresses in use is in it alone.
/// `others` are all ranges but this one.
pub(super) fn may_go(range: &Range, others: &[Range], used: impl Iterator<Item = IpAddr>) -> bool {
    let covered = |network: &IpNet| others.iter().any(|other| other.networks.iter().any(|n| n.contains(network)));
    if !range.networks.is_empty() && range.networks.iter().all(covered) {
        return true;
    }
    let mut alone = used.filter(|address| range.contains(address) && !others.iter().any(|o| o.contains(address)));
    alone.next().is_none()
}

/// True when two ranges have addresses in common.
pub(super) fn overlap(a: &Range, b: &Range) -> bool {
    a.networks.iter().any(|a| b.networks.iter().any(|b| a.contains(b) || b.contains(a)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(name: &str, networks: &[&str]) -> Range {
        Range { name: name.into(), networks: networks.iter().map(|n| n.parse().expect("a network")).collect() }
    }

    #[test]
    fn a_range_stays_while_it_is_needed() {
        let own = range("own", &["10.1.0.0/24", "fd00::/120"]);
        let wide = range("wide", &["10.0.0.0/8"]);
        let both = range("both", &["10.0.0.0/8", "fd00::/64"]);
        let half = range("half", &["10.1.0.0/25"]);
        for (others, used, want) in [
            (vec![], vec![], true),
            (vec![], vec!["10.1.0.5"], false),
            (vec![], vec!["10.2.0.5"], true),
            (vec![wide.clone()], vec!["10.1.0.5"], true),
            (vec![wide], vec!["fd00::5"], false),
            (vec![both], vec!["10.1.0.5", "fd00::5"], true),
            (vec![half.clone()], vec!["10.1.0.5"], true),
            (vec![half], vec!["10.1.0.200"], false),
        ] {
            let addresses = used.iter().map(|a| a.parse().expect("an address"));
            assert_eq!(may_go(&own, &others, addresses), want, "{others:?} {used:?}");
        }
    }

    #[test]
    fn ranges_overlap_when_one_contains_the_other() {
        let (a, b, c) = (range("a", &["10.1.0.0/24"]), range("b", &["10.1.0.0/16"]), range("c", &["10.2.0.0/16"]));
        assert!(overlap(&a, &b) && overlap(&b, &a) && !overlap(&a, &c));
    }
}
