//! Which of a pod's addresses comes first: the runtime tells IPv4 first, whatever the cluster's first family is.

use std::net::IpAddr;

fn is_v4(address: &str) -> Option<bool> {
    address.parse::<IpAddr>().ok().map(|ip| ip.is_ipv4())
}

/// One address of each family, that of the node's first address first. `told` is what the runtime says.
pub fn sorted(told: &[String], node: &[String]) -> Vec<String> {
    let first = node.first().and_then(|address| is_v4(address)).unwrap_or(true);
    let of = |v4: bool| told.iter().find(|address| is_v4(address) == Some(v4)).cloned();
    [first, !first].into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_first_family_is_the_pods() {
        let list = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        for (told, node, want) in [
            (&["10.0.0.2", "fd00::2"][..], &["192.0.2.1"][..], &["10.0.0.2", "fd00::2"][..]),
            (&["10.0.0.2", "fd00::2"], &["fd01::1", "192.0.2.1"], &["fd00::2", "10.0.0.2"]),
            (&["fd00::2", "10.0.0.2"], &["192.0.2.1"], &["10.0.0.2", "fd00::2"]),
            (&["fd00::2"], &["192.0.2.1"], &["fd00::2"]),
            (&["10.0.0.2", "10.0.0.3", "nonsense"], &[], &["10.0.0.2"]),
            (&[], &["192.0.2.1"], &[]),
        ] {
            assert_eq!(sorted(&list(told), &list(node)), want, "{told:?} {node:?}");
        }
    }
}
