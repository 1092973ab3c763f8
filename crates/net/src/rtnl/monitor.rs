//! What changes by itself: links, addresses and routes of the network namespace this process is in.

use std::io;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use tokio::net::UnixDatagram;

/// The groups that are told: links, addresses and routes of both families.
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];

/// Hears of changes.
pub struct Monitor {
    /// That this socket's other end is the kernel makes no difference to how datagrams are waited for.
    socket: UnixDatagram,
}

impl Monitor {
    /// From now on.
    ///
    /// # Errors
    /// When there is no such socket to be had.
    pub fn start() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        // What does not fit is lost and said to be.
        let _ = set_socket_recv_buffer_size(&fd, 1 << 20);
        bind(&fd, &SocketAddrNetlink::new(0, GROUPS.iter().fold(0, |all, group| all | 1 << (group - 1))))?;
        Ok(Self { socket: UnixDatagram::from_std(fd.into())? })
    }

    /// Waits until something changes, or may have. Whatever else has come by then counts as one change.
    ///
    /// # Errors
    /// When the kernel tells no more.
    pub async fn changed(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        let lost = |error: &io::Error| error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error());
        match self.socket.recv(&mut buffer).await {
            Err(error) if !lost(&error) => return Err(error),
            _ => {}
        }
        loop {
            match self.socket.try_recv(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if !lost(&error) => return Err(error),
                _ => {}
            }
        }
    }
}
