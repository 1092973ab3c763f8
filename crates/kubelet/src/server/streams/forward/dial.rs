//! A connection to a port of a pod. Its socket is made in the pod's network; from then on it is like any other.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use net::namespace::Namespace;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use stdx::{ClockExt, SharedClock};
use tokio::net::{TcpSocket, TcpStream};

use crate::runtime::Network;

/// How long a pod may take to take a connection: it is on the same host.
const CONNECT: Duration = Duration::from_secs(30);

/// True when connections can be made there from here.
pub async fn reaches(network: &Network) -> bool {
    let Network::Namespace(path) = network else { return true };
    let path = path.clone();
    // Entered, not only opened: that takes more rights.
    let entered = tokio::task::spawn_blocking(move || Namespace::open(&path)?.run(|| Ok(()))).await;
    entered.is_ok_and(|entered| entered.is_ok())
}

/// Connects to the port of the loopback, of IPv4 where somebody listens there, else of IPv6.
///
/// # Errors
/// Nobody listens, in upstream's words.
pub async fn dial(network: &Network, port: u16, clock: &SharedClock) -> Result<TcpStream, String> {
    let connect = async |ip: IpAddr| connect(network, SocketAddr::new(ip, port), clock).await;
    let first = match connect(Ipv4Addr::LOCALHOST.into()).await {
        Ok(stream) => return Ok(stream),
        Err(error) => told("tcp4", Ipv4Addr::LOCALHOST.into(), port, &error),
    };
    let second = match connect(Ipv6Addr::LOCALHOST.into()).await {
        Ok(stream) => return Ok(stream),
        Err(error) => told("tcp6", Ipv6Addr::LOCALHOST.into(), port, &error),
    };
    let place = match network {
        Network::Node => String::new(),
        Network::Namespace(path) => format!(" inside namespace {:?}", path.display().to_string()),
    };
    Err(format!("failed to connect to localhost:{port}{place}, IPv4: {first} IPv6 {second}"))
}

fn told(kind: &str, ip: IpAddr, port: u16, error: &io::Error) -> String {
    format!("dial {kind} {}: {}", SocketAddr::new(ip, port), transport::once::go(error))
}

async fn connect(network: &Network, address: SocketAddr, clock: &SharedClock) -> io::Result<TcpStream> {
    let socket = match network {
        Network::Node => socket(address.ip())?,
        Network::Namespace(path) => {
            let path = path.clone();
            let made = tokio::task::spawn_blocking(move || socket_in(&path, address.ip()));
            made.await.map_err(io::Error::other)??
        }
    };
    let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let stream = clock.timeout(CONNECT, socket.connect(address)).await.map_err(late)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A socket belongs to the network that it is made in, whoever uses it.
fn socket_in(path: &Path, ip: IpAddr) -> io::Result<OwnedFd> {
    Namespace::open(path)?.run(|| socket(ip))
}

fn socket(ip: IpAddr) -> io::Result<OwnedFd> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

#[cfg(test)]
mod tests {
    use stdx::clock::RealClock;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn who_listens_on_either_family_is_reached() {
        let clock: SharedClock = RealClock::shared();
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            // A host may be without IPv6.
            let Ok(listener) = TcpListener::bind((ip, 0)).await else { continue };
            let port = listener.local_addr().expect("an address").port();
            let stream = dial(&Network::Node, port, &clock).await.expect("connected");
            assert_eq!(stream.peer_addr().expect("an address").ip(), ip);
        }
    }

    #[tokio::test]
    async fn where_nobody_listens_both_are_named() {
        let clock: SharedClock = RealClock::shared();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let why = dial(&Network::Node, port, &clock).await.expect_err("nobody");
        assert!(why.starts_with(&format!("failed to connect to localhost:{port}, IPv4: dial tcp4 127.0.0.1:{port}: ")));
        assert!(why.contains(&format!(" IPv6 dial tcp6 [::1]:{port}: ")), "{why}");
        let gone = Network::Namespace("/proc/self/status".into());
        assert!(!reaches(&gone).await && reaches(&Network::Node).await);
        let why = dial(&gone, port, &clock).await.expect_err("no namespace");
        assert!(why.contains("inside namespace \"/proc/self/status\""), "{why}");
    }
}
