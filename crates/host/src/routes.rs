//! Routes to single addresses: each is a pod's (CNI plugins without a bridge make one per pod), whoever's pod it is.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ipnet::IpNet;

/// An address and the link that the kernel sends its packets to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    pub link: String,
    pub address: IpAddr,
}

/// The routes of this machine to single addresses in `range`.
pub fn within(range: IpNet) -> Vec<Route> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut found = parse(&text("/proc/net/route"), &text("/proc/net/ipv6_route"));
    found.retain(|route| range.contains(&route.address));
    found
}

/// Those of them that the CNI plugin with its records in `state` gave to no pod of ours.
pub fn foreign(range: IpNet, state: &Path) -> Vec<Route> {
    let records = state.join(crate::cni::NETWORK).join("addresses");
    within(range)
        .into_iter()
        .filter(|route| records.join(route.address.to_string()).symlink_metadata().is_err())
        .collect()
}

/// Reads `/proc/net/route` and `/proc/net/ipv6_route`.
fn parse(v4: &str, v6: &str) -> Vec<Route> {
    let mut found: Vec<Route> = v4.lines().filter_map(single_v4).chain(v6.lines().filter_map(single_v6)).collect();
    found.sort();
    found
}

/// `veth1 0300F40A 00000000 0005 0 0 0 FFFFFFFF 0 0 0`: addresses are in the machine's order of bytes.
fn single_v4(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (link, destination, mask) = (fields.first()?, fields.get(1)?, fields.get(7)?);
    let address = u32::from_str_radix(destination, 16).ok()?;
    let is_single = u32::from_str_radix(mask, 16).ok()? == u32::MAX;
    let address = Ipv4Addr::from(address.to_ne_bytes());
    is_single.then(|| Route { link: (*link).to_owned(), address: address.into() })
}

/// `fd00…02 80 000…0 00 000…0 00000400 00000001 00000000 00000001 veth1`; those of the machine itself are on `lo`.
fn single_v6(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (destination, prefix, link) = (fields.first()?, fields.get(1)?, fields.get(9)?);
    let address = u128::from_str_radix(destination, 16).ok()?;
    let is_single = u8::from_str_radix(prefix, 16).ok()? == 128 && *link != "lo";
    is_single.then(|| Route { link: (*link).to_owned(), address: Ipv6Addr::from(address).into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_addresses_are_found_and_networks_are_not() {
        let little = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let line = |link: &str, address, mask: &str| {
            format!("{link}\t{}\t00000000\t0005\t0\t0\t0\t{mask}\t0\t0\t0", little(address))
        };
        let v4 = [
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT".to_owned(),
            line("eth0", [0, 0, 0, 0], "00000000"),
            line("veth1", [10, 244, 0, 3], "FFFFFFFF"),
            line("cni0", [10, 244, 1, 0], "00FFFFFF"),
        ];
        let v6 = "fd00000000000000000000000000000b 80 00000000000000000000000000000000 00 \
                  00000000000000000000000000000000 00000400 00000001 00000000 00000001 veth2\n\
                  fd00000000000000000000000000000c 80 00000000000000000000000000000000 00 \
                  00000000000000000000000000000000 00000000 00000002 00000000 80200001 lo\n\
                  fe800000000000000000000000000000 40 00000000000000000000000000000000 00 \
                  00000000000000000000000000000000 00000100 00000001 00000000 00000001 veth2\nnonsense\n";
        let route =
            |link: &str, address: &str| Route { link: link.into(), address: address.parse().expect("an address") };
        assert_eq!(parse(&v4.join("\n"), v6), [route("veth1", "10.244.0.3"), route("veth2", "fd00::b")]);
    }
}
