//! Which address this machine is known by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// The address packets of one family leave from, where this machine has a way out and an address that others reach.
/// As [`outward`] it sends nothing.
pub fn outward_of(v4: bool) -> Option<IpAddr> {
    let (any, to): (IpAddr, IpAddr) = if v4 {
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into())
    } else {
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
    };
    let socket = UdpSocket::bind((any, 0)).and_then(|s| s.connect((to, 9)).and_then(|()| s.local_addr()));
    socket.map(|found| found.ip()).ok().filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

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
