//! IPv4 and IPv6 side by side: the ranges of a cluster, one of each family at most, and the node's own addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, bail};
use ipnet::IpNet;

use crate::cluster::address;

/// Checks what a flag says: one range, or one of each family.
///
/// # Errors
/// Names the flag and what would be right.
pub fn check(flag: &str, ranges: &[IpNet]) -> Result<()> {
    match ranges {
        [_] => Ok(()),
        [a, b] if a.addr().is_ipv4() != b.addr().is_ipv4() => Ok(()),
        [a, b] => bail!("{flag}: {a} and {b} are of one family; give one range, or one of each family"),
        _ => bail!("{flag}: give one range, or one of each family"),
    }
}

/// Services and pods must be of one family first: what has one family only is of that one.
///
/// # Errors
/// Says which flag to turn round.
pub fn check_order(pods: &[IpNet], services: &[IpNet]) -> Result<()> {
    let first = |ranges: &[IpNet]| ranges.first().map(|range| range.addr().is_ipv4());
    if first(pods) == first(services) {
        return Ok(());
    }
    bail!("--cluster-cidr and --service-cluster-ip-range must begin with ranges of the same family")
}

/// The node's first address is of that family, too: what has one address only, the API server's Service among them,
/// would lead nowhere.
///
/// # Errors
/// Says how to give it one.
pub fn check_node(node: &[IpAddr], pods: &[IpNet]) -> Result<()> {
    let (Some(address), Some(range)) = (node.first(), pods.first()) else { return Ok(()) };
    if address.is_ipv4() == range.addr().is_ipv4() {
        return Ok(());
    }
    let family = if range.addr().is_ipv4() { "IPv4" } else { "IPv6" };
    bail!(
        "--cluster-cidr begins with {range}, and this node's first address is {address}: name one of {family} first with \
         --node-ip, or give this host one and a default route by {family}"
    )
}

/// Where the API server listens: who says every IPv4 address means every address, and where the node has IPv6 first
/// that family must be had.
pub fn listens_at(said: IpAddr, node: &[IpAddr]) -> IpAddr {
    match (said, node.first()) {
        (IpAddr::V4(Ipv4Addr::UNSPECIFIED), Some(IpAddr::V6(_))) => Ipv6Addr::UNSPECIFIED.into(),
        _ => said,
    }
}

/// The pod ranges of the only node: of each of the cluster's the first that the node controller gives.
pub fn first_ranges(cluster: &[IpNet]) -> Vec<IpNet> {
    let first = |range: &IpNet| {
        let prefix = if range.addr().is_ipv4() { 24 } else { 64 };
        range.subnets(prefix).ok().and_then(|mut all| all.next()).unwrap_or(*range)
    };
    cluster.iter().map(first).collect()
}

/// The addresses this node is known by: what was given, else one for each family of the pods' ranges as far as this
/// host has one. `outward` tells from which address packets of a family leave.
pub fn node_addresses(given: &[IpAddr], pods: &[IpNet], outward: impl Fn(bool) -> Option<IpAddr>) -> Vec<IpAddr> {
    if !given.is_empty() {
        return given.to_vec();
    }
    let mut found: Vec<IpAddr> = pods.iter().filter_map(|range| outward(range.addr().is_ipv4())).collect();
    if found.is_empty() {
        found.push(address::outward());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().expect("a network")).collect()
    }

    #[test]
    fn one_range_of_each_family_at_most() {
        for (ranges, good) in [
            (&["10.244.0.0/16"][..], true),
            (&["fd00::/56"], true),
            (&["10.244.0.0/16", "fd00::/56"], true),
            (&["fd00::/56", "10.244.0.0/16"], true),
            (&[], false),
            (&["10.244.0.0/16", "10.245.0.0/16"], false),
            (&["10.244.0.0/16", "fd00::/56", "fd01::/56"], false),
        ] {
            assert_eq!(check("--cluster-cidr", &nets(ranges)).is_ok(), good, "{ranges:?}");
        }
        let (both, six) = (nets(&["10.244.0.0/16", "fd00::/56"]), nets(&["fd01::/112"]));
        assert!(check_order(&both, &both).is_ok() && check_order(&six, &six).is_ok());
        assert!(check_order(&both, &six).is_err());
    }

    #[test]
    fn the_node_is_of_the_first_family() {
        let ips = |texts: &[&str]| texts.iter().map(|t| t.parse().expect("an address")).collect::<Vec<IpAddr>>();
        let (both, six) = (nets(&["10.244.0.0/16", "fd00::/56"]), nets(&["fd00::/56", "10.244.0.0/16"]));
        for (node, pods, good) in [
            (&["192.0.2.1"][..], &both, true),
            (&["192.0.2.1", "fd01::1"], &both, true),
            (&["fd01::1", "192.0.2.1"], &both, false),
            (&["fd01::1"], &six, true),
            (&["192.0.2.1"], &six, false),
        ] {
            assert_eq!(check_node(&ips(node), pods).is_ok(), good, "{node:?} {pods:?}");
        }
        let at = |said: &str, node: &[&str]| listens_at(said.parse().expect("an address"), &ips(node)).to_string();
        assert_eq!([at("0.0.0.0", &["fd01::1"]), at("0.0.0.0", &["192.0.2.1", "fd01::1"])], ["::", "0.0.0.0"]);
        assert_eq!([at("127.0.0.1", &["fd01::1"]), at("::", &["192.0.2.1"])], ["127.0.0.1", "::"]);
        let said = check_node(&ips(&["192.0.2.1"]), &six).expect_err("refused").to_string();
        assert!(said.contains("fd00::/56") && said.contains("one of IPv6 first with --node-ip"), "{said}");
    }

    #[test]
    fn the_first_node_has_the_first_of_each() {
        let first = first_ranges(&nets(&["10.244.0.0/16", "fd00:10:244::/56", "10.9.9.0/28"]));
        assert_eq!(first, nets(&["10.244.0.0/24", "fd00:10:244::/64", "10.9.9.0/28"]));
    }

    #[test]
    fn a_node_has_an_address_of_each_family_that_pods_have() {
        let (four, six): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 2].into());
        let host = |v4: bool| Some(if v4 { four } else { six });
        let both = nets(&["10.244.0.0/16", "fd00::/56"]);
        assert_eq!(node_addresses(&[], &both, host), [four, six]);
        assert_eq!(node_addresses(&[], &both[..1], host), [four]);
        assert_eq!(node_addresses(&[six], &both, host), [six], "what was given");
        assert_eq!(node_addresses(&[], &both, |v4| v4.then_some(four)), [four], "a host without IPv6");
    }
}
