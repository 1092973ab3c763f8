//! What pods send out of the cluster leaves with the node's address: masquerade, in a table of its
//! own so that it reloads without the service rules.

use ipnet::IpNet;

use crate::ruleset::{Chain, Family, Ruleset};

/// The table's name.
pub const TABLE: &str = "pintle-egress";

/// Masquerade for `pods` unless the destination is one of `cluster`. Networks of the other family
/// are left out.
pub fn render(family: Family, pods: &[IpNet], cluster: &[IpNet]) -> Ruleset {
    let of_family = |net: &&IpNet| net.addr().is_ipv4() == (family == Family::Ip);
    let word = family.as_str();
    let inside: Vec<String> = cluster.iter().filter(of_family).map(ToString::to_string).collect();
    let mut rules = Vec::new();
    for net in pods.iter().filter(of_family) {
        let except =
            if inside.is_empty() { String::new() } else { format!(" {word} daddr != {{ {} }}", inside.join(", ")) };
        rules.push(format!("{word} saddr {net}{except} masquerade fully-random"));
    }
    let mut out = Ruleset::new(family, TABLE);
    let hook = "type nat hook postrouting priority 101".to_owned();
    out.chains.insert("postrouting".into(), Chain { hook, rules });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_inside_the_cluster_keeps_its_source() {
        let net = |s: &str| s.parse::<IpNet>().expect("a network");
        let rules = render(Family::Ip, &[net("10.244.0.0/24"), net("fd00::/64")], &[net("10.244.0.0/16")]);
        let want = ["ip saddr 10.244.0.0/24 ip daddr != { 10.244.0.0/16 } masquerade fully-random"];
        assert_eq!(rules.chains["postrouting"].rules, want);
    }
}
