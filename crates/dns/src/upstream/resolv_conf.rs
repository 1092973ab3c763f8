//! The host's own servers, as its `resolv.conf` lists them.

use std::net::{IpAddr, SocketAddr};

/// Servers that are taken from one file.
const SERVERS: usize = 15;

/// The servers of a file, in its order, each once. Addresses of one interface (`fe80::1%eth0`) are passed over.
pub fn nameservers(text: &str) -> Vec<SocketAddr> {
    let mut out = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() != Some("nameserver") {
            continue;
        }
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
        let server = SocketAddr::new(address, 53);
        if out.len() < SERVERS && !out.contains(&server) {
            out.push(server);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_a_file() {
        let text = "# nameserver 1.1.1.1\nsearch a b\nnameserver 10.0.0.2 extra\n\tnameserver fd00::2\nnameserver\n\
                    nameserver fe80::1%eth0\nnameserver 10.0.0.2\nnameservers 9.9.9.9\noptions ndots:1";
        let texts: Vec<String> = nameservers(text).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.2:53", "[fd00::2]:53"]);
        let many: String = (0..100).map(|n| format!("nameserver 10.0.0.{n}\n")).collect();
        assert_eq!(nameservers(&many).len(), SERVERS);
    }
}
