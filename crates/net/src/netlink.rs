//! Netlink with the kernel's packet filter: messages and their attributes, read and written; pure but
//! for [`Socket`].
//!
//! ```text
//!  message    length 4 │ type 2 │ flags 2 │ sequence 4 │ port 4 │ family 1 │ version 1 │ resource 2 │ attributes
//!  attribute  length 2 │ type 2 │ value, filled up to 4 bytes
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::sockopt::{
    Timeout, set_socket_recv_buffer_size_force, set_socket_send_buffer_size, set_socket_send_buffer_size_force,
    set_socket_timeout,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

/// The length of a message's head, the packet filter's part included.
pub const HEAD: usize = 20;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Flags of requests.
pub const REQUEST: u16 = 1;
pub const ACKNOWLEDGE: u16 = 4;
pub const DUMP: u16 = 0x300;
/// The bit of an attribute's type that says it holds attributes.
const NESTED: u16 = 0x8000;
/// The bits of it that are no type.
const FLAGS: u16 = 0xc000;

/// One message of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Subsystem and number of the message, and its attributes.
    Body { subsystem: u8, number: u8, attributes: &'a [u8] },
    /// What was asked for is all there.
    Done,
    /// A request failed, with 0 in that it went well.
    Answer(i32),
}

fn two(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn four(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The next piece of `bytes` whose length stands in it, and the rest behind its filling.
fn cut(bytes: &[u8], length: usize, least: usize) -> Option<(&[u8], &[u8])> {
    let piece = bytes.get(..length).filter(|p| p.len() >= least)?;
    Some((piece, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The messages in one datagram. What is damaged ends it.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let (message, rest) = cut(bytes, four(bytes, 0)? as usize, 16)?;
        bytes = rest;
        let kind = two(message, 4)?;
        Some(match kind {
            DONE => Message::Done,
            ERROR => Message::Answer(i32::from_ne_bytes(message.get(16..20)?.try_into().ok()?)),
            _ => {
                let [number, subsystem] = kind.to_le_bytes();
                Message::Body { subsystem, number, attributes: message.get(HEAD..).unwrap_or_default() }
            }
        })
    })
}

/// The answers in one datagram: to the request of which number, and 0 or the error's number, negative.
pub fn answers(mut bytes: &[u8]) -> impl Iterator<Item = (u32, i32)> {
    std::iter::from_fn(move || {
        loop {
            let (message, rest) = cut(bytes, four(bytes, 0)? as usize, 16)?;
            bytes = rest;
            if two(message, 4)? == ERROR {
                return Some((four(message, 8)?, i32::from_ne_bytes(message.get(16..20)?.try_into().ok()?)));
            }
        }
    })
}

/// A request with a number, which its answer names.
pub fn sequenced(mut request: Vec<u8>, number: u32) -> Vec<u8> {
    request.splice(8..12, number.to_ne_bytes());
    request
}

/// The attributes in a message or in another attribute, with their types.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (attribute, rest) = cut(bytes, usize::from(two(bytes, 0)?), 4)?;
        bytes = rest;
        Some((two(attribute, 2)? & !FLAGS, attribute.get(4..).unwrap_or_default()))
    })
}

/// The first attribute of one type.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

/// Writes one attribute.
pub fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    out.extend(length.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Writes one attribute that holds others.
pub fn put_nested(out: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    fill(&mut inner);
    put(out, kind | NESTED, &inner);
}

/// A whole request.
pub fn request(subsystem: u8, number: u8, flags: u16, family: u8, attributes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + attributes.len());
    out.extend(u32::try_from(HEAD + attributes.len()).unwrap_or(u32::MAX).to_ne_bytes());
    out.extend(u16::from_le_bytes([number, subsystem]).to_ne_bytes());
    out.extend((REQUEST | flags).to_ne_bytes());
    out.extend([0; 8]);
    out.extend([family, 0, 0, 0]);
    out.extend(attributes);
    out
}

/// A socket to the packet filter of the network namespace of the thread that opens it.
pub struct Socket(OwnedFd);

impl Socket {
    /// For requests. A kernel that does not answer within some seconds is an error.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER))?;
        bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&fd, Timeout::Recv, Some(Duration::from_secs(5)))?;
        Ok(Self(fd))
    }

    /// Makes room for a request of that length. Without the privilege the kernel's own bound holds.
    pub fn reserve(&self, length: usize) -> io::Result<()> {
        // What is sent is counted with what the kernel adds to keep it.
        let wanted = length.saturating_mul(2).max(1 << 18);
        if set_socket_send_buffer_size_force(&self.0, wanted).is_err() {
            set_socket_send_buffer_size(&self.0, wanted)?;
        }
        Ok(())
    }

    /// Sends one request.
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        send(&self.0, request, SendFlags::empty())?;
        Ok(())
    }

    /// One datagram into `buffer`; the part of it that was filled.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        loop {
            match recv(&self.0, &mut *buffer, RecvFlags::empty()) {
                Ok((length, _)) => return Ok(buffer.get(..length).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A socket for what the kernel tells the members of one group, of which so many bytes may wait; never blocks.
pub fn listen(group: u32, bytes: usize) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER))?;
    // Without the privilege the buffer stays as it is, and more may be missed.
    let _ = set_socket_recv_buffer_size_force(&fd, bytes);
    bind(&fd, &SocketAddrNetlink::new(0, 1 << (group - 1)))?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut inner = Vec::new();
        put(&mut inner, 1, b"abcde");
        put_nested(&mut inner, 2, |out| put(out, 7, &[9]));
        let text = request(10, 15, ACKNOWLEDGE, 2, &inner);
        let all: Vec<Message> = messages(&text).collect();
        let [Message::Body { subsystem: 10, number: 15, attributes: body }] = all.as_slice() else {
            panic!("{all:?}");
        };
        assert_eq!(attribute(body, 1), Some(&b"abcde"[..]));
        assert_eq!(attribute(body, 2).and_then(|inner| attribute(inner, 7)), Some(&[9][..]));
        assert_eq!(attribute(body, 3), None);
    }

    #[test]
    fn damage_ends_a_datagram_and_nothing_else() {
        let whole = request(10, 15, 0, 2, &[]);
        for cut in 0..whole.len() {
            assert_eq!(messages(&whole[..cut]).count(), 0, "{cut}");
        }
        for bytes in [&[0_u8; 40][..], &[255; 40], &[16, 0, 0, 0, 9]] {
            assert!(messages(bytes).count() <= 1);
            assert_eq!(attributes(bytes).count(), 0);
        }
    }
}
