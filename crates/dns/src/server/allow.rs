//! Who is answered: pods and the cluster's nodes. Everybody else gets silence, so that nobody can have answers
//! sent to others, or look around in the cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

/// Who may ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    /// Where pods' addresses come from.
    pub ranges: Vec<IpNet>,
    /// Addresses of nodes.
    pub nodes: BTreeSet<IpAddr>,
}

impl Allow {
    /// Pods of these ranges, and processes of this host; Nodes are told later.
    pub fn of(ranges: &[IpNet]) -> Self {
        let own = ["127.0.0.0/8", "::1/128"].into_iter().filter_map(|text| text.parse().ok());
        Self { ranges: ranges.iter().copied().chain(own).collect(), nodes: BTreeSet::new() }
    }

    /// May they?
    pub fn is_allowed(&self, address: IpAddr) -> bool {
        // A socket for both families tells addresses of the older one in this form.
        let address = address.to_canonical();
        self.nodes.contains(&address) || self.ranges.iter().any(|r| r.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_not_answered() {
        let mut allow = Allow::of(&["10.244.0.0/16", "fd00:1::/64"].map(|range| range.parse().expect("a range")));
        allow.nodes.insert("192.168.1.2".parse().expect("an address"));
        for (address, want) in [
            ("10.244.255.1", true),
            ("::ffff:10.244.0.1", true),
            ("10.245.0.1", false),
            ("fd00:1::9", true),
            ("fd00:2::9", false),
            ("192.168.1.2", true),
            ("192.168.1.3", false),
            ("127.0.0.1", true),
            ("::1", true),
            ("8.8.8.8", false),
        ] {
            assert_eq!(allow.is_allowed(address.parse().expect("an address")), want, "{address}");
        }
    }
}
