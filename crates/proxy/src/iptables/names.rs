//! The names of chains: those that who knows kube-proxy looks for.

use std::net::SocketAddr;

use sha2::{Digest, Sha256};

use crate::model::PortName;
use crate::nftables::names::base32;

pub const SERVICES: &str = "KUBE-SERVICES";
pub const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub const NODEPORTS: &str = "KUBE-NODEPORTS";
pub const POSTROUTING: &str = "KUBE-POSTROUTING";
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub const FORWARD: &str = "KUBE-FORWARD";
pub const FIREWALL: &str = "KUBE-PROXY-FIREWALL";
/// Marks what no pod of this node sent, where pods have several ranges.
pub const MARK_FOREIGN: &str = "KUBE-MARK-FOREIGN";
/// What names of chains of Services begin with.
pub const OF_SERVICES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"];

fn hash(text: &str) -> String {
    base32(&Sha256::digest(text.as_bytes()), 16)
}

/// What chains of a Service port end with.
pub fn of_port(name: &PortName) -> String {
    hash(&format!("{name}{}", name.protocol.as_str()))
}

/// What the chain of one endpoint ends with.
pub fn of_endpoint(name: &PortName, endpoint: &SocketAddr) -> String {
    hash(&format!("{name}{}{endpoint}", name.protocol.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Protocol;

    #[test]
    fn names_are_those_kube_proxy_gives() {
        let name = |service: &str, port: &str| PortName {
            namespace: "default".into(),
            service: service.into(),
            port: port.into(),
            protocol: Protocol::Tcp,
        };
        // The best known chain there is: every cluster has it.
        assert_eq!(of_port(&name("kubernetes", "https")), "NPX46M4PTMTKRN6Y");
    }
}
