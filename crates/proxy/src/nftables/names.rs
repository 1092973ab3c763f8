//! The names of tables, sets and chains: those that who knows kube-proxy looks for.

use std::net::SocketAddr;

use sha2::{Digest, Sha256};

use crate::model::PortName;

/// The table's name, in either family.
pub const TABLE: &str = "kube-proxy";
/// What the table was called before it had upstream's name.
pub const FORMER_TABLE: &str = "pintle-proxy";

pub const SERVICE_IPS: &str = "service-ips";
pub const SERVICE_NODEPORTS: &str = "service-nodeports";
pub const NO_ENDPOINT_SERVICES: &str = "no-endpoint-services";
pub const NO_ENDPOINT_NODEPORTS: &str = "no-endpoint-nodeports";
pub const FIREWALL_IPS: &str = "firewall-ips";
pub const CLUSTER_IPS: &str = "cluster-ips";
pub const NODEPORT_IPS: &str = "nodeport-ips";
pub const HAIRPIN: &str = "hairpin-connections";
pub const REJECT: &str = "reject-chain";
/// What every name of an affinity set begins with.
pub const AFFINITY: &str = "affinity-";

/// The kernel takes names of 255 bytes; what is longer is cut, and the hash before it keeps it apart.
const LONGEST: usize = 240;

/// Base 32 as RFC 4648 has it.
pub(crate) fn base32(bytes: &[u8], letters: usize) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |b| (b >> (7 - at % 8)) & 1);
    let letter = |at: usize| (0..5).fold(0_usize, |value, i| value << 1 | usize::from(bit(at * 5 + i)));
    (0..letters).map(|at| char::from(ALPHABET[letter(at)])).collect()
}

fn hashed(name: &str) -> String {
    let hash = base32(&Sha256::digest(name.as_bytes()), 8);
    let whole = format!("{hash}-{name}");
    // Names are ASCII: they are checked before they come here.
    if whole.len() <= LONGEST { whole } else { format!("{}...", whole.get(..LONGEST - 3).unwrap_or(&hash)) }
}

fn plain(name: &PortName) -> String {
    format!("{}/{}/{}/{}", name.namespace, name.service, name.protocol.as_str(), name.port)
}

/// What chains of a Service port end with.
pub fn of_port(name: &PortName) -> String {
    hashed(&plain(name))
}

/// The set of who has which endpoint of a Service port.
pub fn of_affinity(name: &PortName) -> String {
    format!("{AFFINITY}{}", of_port(name))
}

/// The number of one endpoint of a Service port among those that clients stay with. That two of one port have the same,
/// once in ten thousand where there are a thousand, sends those of the one to the other with their second connection.
pub fn number(name: &PortName, endpoint: &SocketAddr) -> u32 {
    let text = format!("{}__{}/{}", plain(name), endpoint.ip(), endpoint.port());
    let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Protocol;

    #[test]
    fn names_are_those_kube_proxy_gives() {
        let name = |port: &str| PortName {
            namespace: "ns1".into(),
            service: "svc1".into(),
            port: port.into(),
            protocol: Protocol::Tcp,
        };
        assert_eq!(of_port(&name("p80")), "ULMVA6XW-ns1/svc1/tcp/p80");
        let long = PortName { namespace: "n".repeat(63), service: "s".repeat(63), ..name(&"p".repeat(63)) };
        assert!(of_port(&long).len() <= 240, "{}", of_port(&long));
        let long = PortName { namespace: "n".repeat(63), service: "s".repeat(163), ..long };
        assert!(of_port(&long).len() == 240 && of_port(&long).ends_with("..."), "{}", of_port(&long));
    }

    #[test]
    fn endpoints_have_numbers_of_their_own() {
        let name = |port: &str| PortName {
            namespace: "ns1".into(),
            service: "svc1".into(),
            port: port.into(),
            protocol: Protocol::Tcp,
        };
        let endpoints = ["10.0.0.1:80", "10.0.0.1:81", "10.0.0.2:80", "[fd00::1]:80"].map(|e| e.parse().expect("one"));
        let numbers: std::collections::BTreeSet<u32> =
            ["a", "b"].iter().flat_map(|port| endpoints.iter().map(|e| number(&name(port), e))).collect();
        assert_eq!(numbers.len(), 8, "{numbers:?}");
    }

    #[test]
    fn base32_is_that_of_the_rfc() {
        assert_eq!(base32(b"foobar", 8), "MZXW6YTB");
        assert_eq!(base32(b"fooba", 8), "MZXW6YTB");
    }
}
