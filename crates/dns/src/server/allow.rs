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
    /// May they?
    pub fn is_allowed(&self, address: IpAddr) -> bool {
        // A socket for both families tells addresses of the older one in this form.
        let address = address.to_canonical();
        address.is_loopback() || self.nodes.contains(&address) || self.ranges.iter().any(|r| r.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_not_answered() {
        let allow = Allow {
            ranges: vec!["10.244.0.0/16".parse().expect("a range"), "fd00:1::/64".parse().expect("a range")],
            nodes: BTreeSet::from(["192.168.1.2".parse().expect("an address")]),
        };
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
