//! The kernel's table of connections, as far as the service proxy needs it: UDP has no end that
//! anybody says, so that what was once translated to an endpoint stays translated to it; and who is
//! about to end may still be answering somebody.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::netlink::{ACKNOWLEDGE, DUMP, Message, Socket, attribute, messages, put, put_nested, request};
use crate::ruleset::Family;

const SUBSYSTEM: u8 = 1;
const NEW: u8 = 0;
const GET: u8 = 1;
const DELETE: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Attributes of a connection.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const PROTOCOL: u16 = 4;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
/// The attribute of a filter that says which parts count of what it says of the first direction. (For two years kernels
/// read that of the other one wrongly, and told of nothing.)
const ORIGINAL_PARTS: u16 = 1;
/// The part that is the protocol.
const PROTOCOL_NUMBER: u32 = 1 << 3;
/// So many connections are removed by one call at most; who is answered with so many calls again.
pub const AT_ONCE: usize = 10_000;
/// The bit of an attribute's type that says it holds attributes.
const NESTED: u16 = 0x8000;
/// The states of a TCP connection that neither end has begun to end: asked for, answered, established.
const OPEN: std::ops::RangeInclusive<u8> = 1..=3;

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Who began it, and whom it named.
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// Who answers: another than `destination` where addresses are translated.
    pub answers: SocketAddr,
    /// What names it to the kernel.
    handle: Vec<u8>,
}

impl Entry {
    /// One for tests of who decides about entries.
    pub fn new(source: SocketAddr, destination: SocketAddr, answers: SocketAddr) -> Self {
        Self { source, destination, answers, handle: Vec::new() }
    }
}

/// Says which connections are to go.
pub type Judge = Box<dyn Fn(&Entry) -> bool + Send>;

/// Where connections are looked at and removed.
#[async_trait::async_trait]
pub trait Connections: Send + Sync + 'static {
    /// Removes the UDP connections of one family that `is_stale` names, [`AT_ONCE`] at most; answers how many.
    async fn remove_udp(&self, family: Family, is_stale: Judge) -> io::Result<usize>;

    /// Those of `endpoints`, of any family, that answer TCP connections which neither end has begun to end.
    async fn open_tcp(&self, endpoints: BTreeSet<SocketAddr>) -> io::Result<BTreeSet<SocketAddr>>;
}

/// Those of the network namespace this process is in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conntrack;

#[async_trait::async_trait]
impl Connections for Conntrack {
    async fn remove_udp(&self, family: Family, is_stale: Judge) -> io::Result<usize> {
        tokio::task::spawn_blocking(move || remove_udp(family, &is_stale)).await.map_err(io::Error::other)?
    }

    async fn open_tcp(&self, endpoints: BTreeSet<SocketAddr>) -> io::Result<BTreeSet<SocketAddr>> {
        tokio::task::spawn_blocking(move || open_tcp(&endpoints)).await.map_err(io::Error::other)?
    }
}

fn number(family: Family) -> u8 {
    match family {
        Family::Ip => 2,
        Family::Ip6 => 10,
    }
}

const BUFFER: usize = 1 << 18;

/// Says which connections are asked for: those of one protocol. Kernels before 5.8 tell of all.
fn filter(protocol: u8) -> Vec<u8> {
    let mut out = Vec::new();
    put_nested(&mut out, ORIGINAL, |out| put_nested(out, 2, |out| put(out, 1, &[protocol])));
    put_nested(&mut out, FILTER, |out| put(out, ORIGINAL_PARTS, &PROTOCOL_NUMBER.to_ne_bytes()));
    out
}

/// Asks for every connection of one family that a filter lets through, or more.
fn each(
    socket: &Socket,
    family: Family,
    filter: &[u8],
    buffer: &mut [u8],
    mut tell: impl FnMut(&[u8]),
) -> io::Result<()> {
    socket.send(&request(SUBSYSTEM, GET, DUMP, number(family), filter))?;
    loop {
        for message in messages(socket.receive(buffer)?) {
            match message {
                Message::Done => return Ok(()),
                Message::Answer(0) => {}
                Message::Answer(error) => return Err(io::Error::from_raw_os_error(-error)),
                Message::Body { subsystem: SUBSYSTEM, number: NEW, attributes } => tell(attributes),
                Message::Body { .. } => {}
            }
        }
    }
}

/// Those of `endpoints` that answer TCP connections which neither end has begun to end.
///
/// # Errors
/// When the kernel does not tell of connections.
pub fn open_tcp(endpoints: &BTreeSet<SocketAddr>) -> io::Result<BTreeSet<SocketAddr>> {
    let (mut open, mut buffer) = (BTreeSet::new(), vec![0; BUFFER]);
    for (family, is_v4) in [(Family::Ip, true), (Family::Ip6, false)] {
        if endpoints.iter().any(|endpoint| endpoint.is_ipv4() == is_v4) {
            let socket = Socket::open()?;
            each(&socket, family, &filter(TCP), &mut buffer, |attributes| {
                open.extend(answers_openly(attributes).filter(|answers| endpoints.contains(answers)));
            })?;
        }
    }
    Ok(open)
}

/// Who answers a TCP connection that neither end has begun to end.
fn answers_openly(attributes: &[u8]) -> Option<SocketAddr> {
    let (answers, _) = tuple(attribute(attributes, REPLY)?, TCP)?;
    let state = attribute(attribute(attribute(attributes, PROTOCOL)?, 1)?, 1)?;
    state.first().is_some_and(|state| OPEN.contains(state)).then_some(answers)
}

/// Removes the UDP connections of one family that `is_stale` names, [`AT_ONCE`] at most, and waits for it; answers how
/// many.
///
/// # Errors
/// When the kernel does not tell of connections, or keeps one.
pub fn remove_udp(family: Family, is_stale: &dyn Fn(&Entry) -> bool) -> io::Result<usize> {
    let socket = Socket::open()?;
    let (mut stale, mut buffer) = (Vec::new(), vec![0; BUFFER]);
    each(&socket, family, &filter(UDP), &mut buffer, |attributes| {
        if stale.len() < AT_ONCE {
            stale.extend(read(attributes).filter(is_stale));
        }
    })?;
    let mut removed = 0;
    for entry in &stale {
        socket.send(&request(SUBSYSTEM, DELETE, ACKNOWLEDGE, number(family), &entry.handle))?;
        for message in messages(socket.receive(&mut buffer)?) {
            match message {
                Message::Answer(0) => removed += 1,
                // It ended by itself meanwhile.
                Message::Answer(error) if io::Error::from_raw_os_error(-error).kind() == io::ErrorKind::NotFound => {
                    removed += 1;
                }
                Message::Answer(error) => return Err(io::Error::from_raw_os_error(-error)),
                Message::Done | Message::Body { .. } => {}
            }
        }
    }
    Ok(removed)
}

/// A UDP connection; `None` of other protocols and damage.
fn read(attributes: &[u8]) -> Option<Entry> {
    let original = attribute(attributes, ORIGINAL)?;
    let (source, destination) = tuple(original, UDP)?;
    let (answers, _) = tuple(attribute(attributes, REPLY)?, UDP)?;
    let mut handle = Vec::new();
    put(&mut handle, ORIGINAL | NESTED, original);
    for kind in [ID, ZONE] {
        if let Some(value) = attribute(attributes, kind) {
            put(&mut handle, kind, value);
        }
    }
    Some(Entry { source, destination, answers, handle })
}

fn tuple(bytes: &[u8], of: u8) -> Option<(SocketAddr, SocketAddr)> {
    let (ip, protocol) = (attribute(bytes, 1)?, attribute(bytes, 2)?);
    if attribute(protocol, 1)? != [of] {
        return None;
    }
    let port = |kind: u16| Some(u16::from_be_bytes(attribute(protocol, kind)?.try_into().ok()?));
    let v4 = |kind: u16| Some(IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(attribute(ip, kind)?).ok()?)));
    let v6 = |kind: u16| Some(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(attribute(ip, kind)?).ok()?)));
    let address = |a: u16, b: u16| v4(a).or_else(|| v6(b));
    Some((SocketAddr::new(address(1, 3)?, port(2)?), SocketAddr::new(address(2, 4)?, port(3)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::put_nested;

    fn side(out: &mut Vec<u8>, kind: u16, protocol: u8, (source, destination): ([u8; 4], [u8; 4])) {
        put_nested(out, kind, |out| {
            put_nested(out, 1, |out| {
                put(out, 1, &source);
                put(out, 2, &destination);
            });
            put_nested(out, 2, |out| {
                put(out, 1, &[protocol]);
                put(out, 2, &1000_u16.to_be_bytes());
                put(out, 3, &53_u16.to_be_bytes());
            });
        });
    }

    #[test]
    fn udp_is_read_and_nothing_else() {
        for (protocol, is_read) in [(17, true), (6, false)] {
            let mut bytes = Vec::new();
            side(&mut bytes, ORIGINAL, protocol, ([10, 0, 0, 1], [10, 96, 0, 10]));
            side(&mut bytes, REPLY, protocol, ([10, 244, 0, 2], [10, 0, 0, 1]));
            put(&mut bytes, ID, &[1, 2, 3, 4]);
            let entry = read(&bytes);
            assert_eq!(entry.is_some(), is_read);
            let Some(entry) = entry else { continue };
            let shown = [entry.source, entry.destination, entry.answers].map(|a| a.to_string());
            assert_eq!(shown, ["10.0.0.1:1000", "10.96.0.10:53", "10.244.0.2:1000"]);
            assert_eq!(attribute(&entry.handle, ID), Some(&[1, 2, 3, 4][..]));
            assert_eq!(attribute(&entry.handle, ORIGINAL), attribute(&bytes, ORIGINAL));
        }
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn connections_that_nobody_has_begun_to_end_are_open() {
        for (protocol, state, is_open) in
            [(6, 1, true), (6, 2, true), (6, 3, true), (6, 4, false), (6, 7, false), (6, 8, false), (17, 3, false)]
        {
            let mut bytes = Vec::new();
            side(&mut bytes, ORIGINAL, protocol, ([10, 0, 0, 1], [10, 96, 0, 10]));
            side(&mut bytes, REPLY, protocol, ([10, 244, 0, 2], [10, 0, 0, 1]));
            put_nested(&mut bytes, PROTOCOL, |out| put_nested(out, 1, |out| put(out, 1, &[state])));
            let want = is_open.then(|| "10.244.0.2:1000".parse().expect("an address"));
            assert_eq!(answers_openly(&bytes), want, "protocol {protocol}, state {state}");
        }
        assert_eq!(answers_openly(&[]), None);
    }
}
