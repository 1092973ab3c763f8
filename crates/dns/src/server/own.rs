//! Addresses of this host, as the kernel lists them: processes of the node ask from any of them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where the kernel lists routes of IPv4, among them those to itself, and addresses of IPv6.
const ROUTES: &str = "/proc/self/net/fib_trie";
const ADDRESSES: &str = "/proc/self/net/if_inet6";

/// The addresses of this host now. A family that cannot be read has none.
pub fn look() -> BTreeSet<IpAddr> {
    let text = |path| std::fs::read_to_string(path).unwrap_or_default();
    parse(&text(ROUTES), &text(ADDRESSES))
}

/// The addresses in these two texts. What cannot be read is passed over.
fn parse(routes: &str, addresses: &str) -> BTreeSet<IpAddr> {
    let mut out = BTreeSet::new();
    let mut leaf = None;
    for line in routes.lines() {
        let line = line.trim_start();
        if let Some(text) = line.strip_prefix("|-- ") {
            leaf = text.trim().parse::<Ipv4Addr>().ok();
        } else if line.trim_end() == "/32 host LOCAL" {
            out.extend(leaf.map(IpAddr::V4));
        }
    }
    for line in addresses.lines() {
        let digits = line.split_whitespace().next().filter(|text| text.len() == 32);
        let bits = digits.and_then(|text| u128::from_str_radix(text, 16).ok());
        out.extend(bits.map(|bits| IpAddr::V6(Ipv6Addr::from(bits))));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_lists() {
        let routes = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                      Local:\n     +-- 127.0.0.0/8 2 0 2\n        |-- 127.0.0.0\n           /8 host LOCAL\n\
                      \x20       |-- 127.0.0.1\n           /32 host LOCAL\n        |-- 192.168.1.2\n           /32 host LOCAL\n\
                      \x20       |-- 192.168.1.255\n           /32 link BROADCAST\n        |-- nonsense\n           /32 host LOCAL\n";
        let addresses = "00000000000000000000000000000001 01 80 10 80       lo\nfd000000000000000000000000000009 02 40 00 80 eth0\nx\n";
        let texts: Vec<String> = parse(routes, addresses).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["127.0.0.1", "192.168.1.2", "::1", "fd00::9"]);
    }
}
