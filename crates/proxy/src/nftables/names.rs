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

/// What the chain and the set of one endpoint end with.
pub fn of_endpoint(name: &PortName, endpoint: &SocketAddr) -> String {
    let ip = endpoint.ip().to_string().replace(':', ".");
    hashed(&format!("{}__{ip}/{}", plain(name), endpoint.port()))
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
        let v6 = of_endpoint(&name("p80"), &"[fd00::5]:80".parse().expect("an address"));
        assert!(v6.ends_with("-ns1/svc1/tcp/p80__fd00..5/80"), "{v6}");
        let long = PortName { namespace: "n".repeat(63), service: "s".repeat(63), ..name(&"p".repeat(63)) };
        let long = of_endpoint(&long, &"[fd00:1111:2222:3333:4444:5555:6666:7777]:65535".parse().expect("an address"));
        assert!(long.len() == 240 && long.ends_with("..."), "{long}");
    }

    #[test]
    fn base32_is_that_of_the_rfc() {
        assert_eq!(base32(b"foobar", 8), "MZXW6YTB");
        assert_eq!(base32(b"fooba", 8), "MZXW6YTB");
    }
}
