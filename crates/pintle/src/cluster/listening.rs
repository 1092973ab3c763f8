//! What programs of this host listen on where others reach it: ports that no load balancer may take.

use std::collections::BTreeSet;

/// Protocols as the API spells them, and ports. What cannot be read says nothing.
pub fn look() -> BTreeSet<(String, u16)> {
    let mut out = BTreeSet::new();
    for (file, protocol) in [("tcp", "TCP"), ("tcp6", "TCP"), ("udp", "UDP"), ("udp6", "UDP")] {
        let text = std::fs::read_to_string(format!("/proc/net/{file}")).unwrap_or_default();
        out.extend(parse(&text, protocol == "TCP").map(|port| (protocol.to_owned(), port)));
    }
    out
}

/// The ports of a table of the kernel's sockets that are open to others.
fn parse(text: &str, is_tcp: bool) -> impl Iterator<Item = u16> + '_ {
    // TCP that listens, UDP that is connected to nobody.
    let state = if is_tcp { "0A" } else { "07" };
    text.lines().skip(1).filter_map(move |line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, _, is) = (words.next()?, words.next()?, words.next()?);
        let (address, port) = local.split_once(':')?;
        let is_loopback = match address.len() {
            8 => address.ends_with("7F"),
            _ => {
                address == "00000000000000000000000001000000"
                    || address.starts_with("0000000000000000FFFF0000") && address.ends_with("7F")
            }
        };
        (is == state && !is_loopback).then(|| u16::from_str_radix(port, 16).ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn what_others_reach_is_found() {
        let tcp = "  sl  local_address rem_address   st tx_queue\n\
            0: 00000000:0016 00000000:0000 0A 00000000:00000000\n\
            1: 0100007F:0CEA 00000000:0000 0A 00000000:00000000\n\
            2: 0109A8C0:01BB 0209A8C0:D431 01 00000000:00000000\n\
            3: 0109A8C0:0050 00000000:0000 0A 00000000:00000000\nnonsense\n";
        assert_eq!(parse(tcp, true).collect::<Vec<_>>(), [22, 80]);
        let tcp6 = "sl\n0: 00000000000000000000000001000000:0277 00000000000000000000000000000000:0000 0A\n\
            1: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A\n\
            2: 0000000000000000FFFF00000100007F:0050 00000000000000000000000000000000:0000 0A\n";
        assert_eq!(parse(tcp6, true).collect::<Vec<_>>(), [8080]);
        let udp = "sl\n0: 00000000:0044 00000000:0000 07\n1: 0100007F:0035 00000000:0000 07\n2: 0109A8C0:C000 0109A8C0:0035 01\n";
        assert_eq!(parse(udp, false).collect::<Vec<_>>(), [68]);
    }
}
