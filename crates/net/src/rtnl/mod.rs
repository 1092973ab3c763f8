//! Netlink with the kernel's network stack: links, addresses, routes, neighbours and queues of the network
//! namespace of the thread that opens the socket. Requests are answered before the call returns.
//!
//! ```text
//!  message    length 4 │ type 2 │ flags 2 │ sequence 4 │ port 4 │ head of its kind │ attributes
//! ```

pub mod address;
pub mod link;
pub mod monitor;
pub mod neighbour;
pub mod queue;
pub mod route;

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

/// The length of what every message begins with.
const HEAD: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
/// In an answer: what was told changed while it was told.
const INTERRUPTED: u16 = 0x10;
/// Flags of requests that make something.
pub(crate) const REPLACE: u16 = 0x100;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;
/// How often a list that changes while it is told is asked for.
const ATTEMPTS: usize = 8;

/// Families as the kernel numbers them.
pub(crate) const INET: u8 = 2;
pub(crate) const INET6: u8 = 10;
pub(crate) const BRIDGE: u8 = 7;

/// A socket to the network namespace of the thread that opened it; it stays there.
pub struct Rtnl {
    fd: OwnedFd,
    sequence: Cell<u32>,
}

impl Rtnl {
    /// For the namespace this thread is in. A kernel that does not answer within some seconds is an error.
    ///
    /// # Errors
    /// When there is no such socket to be had.
    pub fn open() -> io::Result<Self> {
        // The network stack is the protocol of number 0.
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&fd, Timeout::Recv, Some(Duration::from_secs(10)))?;
        Ok(Self { fd, sequence: Cell::new(0) })
    }

    /// Makes or removes something.
    pub(crate) fn change(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.exchange(kind, flags | ACKNOWLEDGE, body).map(drop)
    }

    /// What the kernel says of one thing.
    pub(crate) fn get(&self, kind: u16, body: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.exchange(kind, ACKNOWLEDGE, body)?.bodies.into_iter().next())
    }

    /// What it says of all of a kind.
    pub(crate) fn list(&self, kind: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        for _ in 0..ATTEMPTS {
            let answer = self.exchange(kind, DUMP, body)?;
            if !answer.interrupted {
                return Ok(answer.bodies);
            }
        }
        Err(Errno::AGAIN.into())
    }

    fn exchange(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Answer> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        send(&self.fd, &request(kind, flags, sequence, body), SendFlags::empty())?;
        let mut answer = Answer::default();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let length = match recv(&self.fd, buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((_, length)) => length,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if answer.take(buffer.get(..length).unwrap_or_default(), sequence)? {
                return Ok(answer);
            }
        }
    }
}

fn request(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + body.len());
    out.extend(u32::try_from(HEAD + body.len()).unwrap_or(u32::MAX).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend((REQUEST | flags).to_ne_bytes());
    out.extend(sequence.to_ne_bytes());
    out.extend([0; 4]);
    out.extend(body);
    out
}

/// What has come so far.
#[derive(Debug, Default)]
struct Answer {
    bodies: Vec<Vec<u8>>,
    interrupted: bool,
}

impl Answer {
    /// Takes one datagram; true when nothing more comes.
    fn take(&mut self, mut bytes: &[u8], sequence: u32) -> io::Result<bool> {
        while let Some(length) = four(bytes, 0) {
            let length = length as usize;
            let Some(message) = bytes.get(..length).filter(|m| m.len() >= HEAD) else { break };
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            // An answer to a request that was given up.
            if four(message, 8) != Some(sequence) {
                continue;
            }
            self.interrupted |= two(message, 6).is_some_and(|flags| flags & INTERRUPTED != 0);
            let code = || message.get(16..20).and_then(|c| c.try_into().ok()).map_or(0, i32::from_ne_bytes);
            match two(message, 4) {
                Some(ERROR | DONE) if code() < 0 => return Err(io::Error::from_raw_os_error(-code())),
                Some(ERROR | DONE) => return Ok(true),
                _ => self.bodies.push(message.get(HEAD..).unwrap_or_default().to_vec()),
            }
        }
        Ok(false)
    }
}

pub(crate) fn two(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn four(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A text as the kernel writes it: up to its zero.
pub(crate) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

pub(crate) fn zero_ended(text: &str) -> Vec<u8> {
    let mut out = text.as_bytes().to_vec();
    out.push(0);
    out
}

pub(crate) fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { INET } else { INET6 }
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

pub(crate) fn parse_address(value: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(four).into());
    }
    <[u8; 16]>::try_from(value).ok().map(|sixteen| Ipv6Addr::from(sixteen).into())
}

/// True for what there is nothing of (any more): a link, an address, a route.
pub fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NODEV, Errno::SRCH, Errno::NOENT, Errno::ADDRNOTAVAIL, Errno::NXIO];
    error.raw_os_error().is_some_and(|code| gone.iter().any(|e| e.raw_os_error() == code))
}

/// True for what is there already.
pub fn is_there(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EXIST.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        request(kind, flags & !REQUEST, sequence, body)
    }

    #[test]
    fn answers_are_read_to_their_end_and_others_are_passed_over() {
        let mut answer = Answer::default();
        let mut datagram = message(16, 0, 7, b"abcd");
        datagram.extend(message(16, 0, 6, b"old!"));
        assert!(!answer.take(&datagram, 7).expect("no error"));
        assert!(answer.take(&message(DONE, INTERRUPTED, 7, &[0; 4]), 7).expect("no error"));
        assert_eq!((answer.bodies, answer.interrupted), (vec![b"abcd".to_vec()], true));
        let refused = Answer::default().take(&message(ERROR, 0, 7, &(-19_i32).to_ne_bytes()), 7);
        assert!(is_gone(&refused.expect_err("no such device")));
    }

    #[test]
    fn damage_ends_a_datagram() {
        let whole = message(16, 0, 7, b"abcd");
        for cut in 0..whole.len() {
            let mut answer = Answer::default();
            assert!(!answer.take(&whole[..cut], 7).expect("no error"));
            assert!(answer.bodies.is_empty(), "{cut}");
        }
        for bytes in [&[0_u8; 40][..], &[255; 40]] {
            assert!(!Answer::default().take(bytes, 7).expect("no error"));
        }
    }
}
