//! Which address this machine is known by.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

/// The address packets to the outside leave from. Connecting a datagram socket sends nothing: the
/// kernel only looks up the route. A machine without a default route is known by its loopback
/// address, which its own pods cannot reach.
pub fn outward() -> IpAddr {
    // Reserved for documentation; no host has it.
    const ANYWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let address = socket.and_then(|s| s.connect(ANYWHERE).and_then(|()| s.local_addr())).map(|a| a.ip());
    match address {
        Ok(ip) if !ip.is_unspecified() => ip,
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    }
}

/// The machine's name, in the form a Node may have.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    let plain = plain.trim_matches(['-', '.']);
    if plain.is_empty() { "localhost".into() } else { plain.chars().take(253).collect() }
}
