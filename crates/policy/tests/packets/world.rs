//! A small world of network namespaces: a node with two pods whose rules are tried, a pod of another node,
//! and somebody outside.
//!
//! ```text
//!              br0 192.168.9.254 ────┬─────────────────────┬──────────────────┐
//!   n1 192.168.9.1 (rules)           │  n2 192.168.9.2     │  out 192.168.9.100
//!   ├── p1 10.244.0.2 fd00:0:0:0::2     └── p3 10.244.1.2
//!   └── p2 10.244.0.3
//! ```
//!
//! Everything is inside a network and a mount namespace of the test's own, and goes with it.

use std::collections::BTreeSet;
use std::fs::{File, write};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, recv, sendto, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The ports everybody serves TCP on.
const TCP: [u16; 3] = [8080, 8081, 9090];
/// The port everybody serves UDP on.
const UDP: u16 = 5353;
/// How long what should come may take.
const SOON: Duration = Duration::from_secs(10);
/// How long nothing must come for.
const NEVER: Duration = Duration::from_millis(400);

/// Runs a command line; true when it went well.
pub fn try_run(line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|e| panic!("{line}: {e}"));
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

pub fn run(line: &str) {
    try_run(line).unwrap_or_else(|e| panic!("{line}: {e}"));
}

/// Runs something on a thread in a namespace.
pub fn within<T: Send>(name: &str, job: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(name);
            job()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn enter(name: &str) {
    let file = File::open(format!("/run/netns/{name}")).expect("the namespace is there");
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("entered");
}

/// Builds it.
pub fn build() {
    run("mount -t tmpfs tmpfs /run");
    run("mkdir -p /run/netns");
    run("ip link set lo up");
    run("ip link add br0 type bridge");
    run("ip addr add 192.168.9.254/24 dev br0");
    run("ip link set br0 up");
    for (name, byte) in [("n1", "1"), ("n2", "2"), ("out", "100")] {
        namespace(name);
        run(&format!("ip link add l-{name} type veth peer name eth0 netns {name}"));
        run(&format!("ip link set l-{name} master br0 up"));
        run(&format!("ip -n {name} link set eth0 up"));
        run(&format!("ip -n {name} addr add 192.168.9.{byte}/24 dev eth0"));
        run(&format!("ip -n {name} addr add fd09::{byte}/64 dev eth0 nodad"));
    }
    for name in ["n1", "n2", "out"] {
        for (net, byte) in [(0, 1), (1, 2)] {
            if name != format!("n{byte}") {
                run(&format!("ip -n {name} route add 10.244.{net}.0/24 via 192.168.9.{byte}"));
                run(&format!("ip -n {name} route add fd00:0:0:{net}::/64 via fd09::{byte}"));
            }
        }
        within(name, || {
            write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwards");
            write("/proc/sys/net/ipv6/conf/all/forwarding", "1").expect("forwards");
        });
    }
    for (pod, node, net, byte) in [("p1", "n1", 0, 2), ("p2", "n1", 0, 3), ("p3", "n2", 1, 2)] {
        self::pod(pod, node, net, byte);
    }
    for name in ["n1", "n2", "out"] {
        serve(name);
    }
}

fn namespace(name: &str) {
    run(&format!("ip netns add {name}"));
    run(&format!("ip -n {name} link set lo up"));
    within(name, || write("/proc/sys/net/ipv4/ping_group_range", "0 0").expect("set"));
}

fn pod(name: &'static str, node: &str, net: u8, byte: u8) {
    namespace(name);
    run(&format!("ip -n {node} link add veth{name} type veth peer name eth0 netns {name}"));
    run(&format!("ip -n {node} link set veth{name} up"));
    run(&format!("ip -n {name} link set eth0 up"));
    for (ip, gateway, bits) in [
        (format!("10.244.{net}.{byte}"), format!("10.244.{net}.1"), 32),
        (format!("fd00:0:0:{net}::{byte}"), format!("fd00:0:0:{net}::1"), 128),
    ] {
        let v6 = if bits == 128 { " nodad" } else { "" };
        run(&format!("ip -n {node} addr add {gateway}/{bits} dev veth{name}{v6}"));
        run(&format!("ip -n {node} route add {ip}/{bits} dev veth{name}"));
        run(&format!("ip -n {name} addr add {ip}/{bits} dev eth0{v6}"));
        run(&format!("ip -n {name} route add {gateway}/{bits} dev eth0"));
        run(&format!("ip -n {name} route add default via {gateway} dev eth0"));
    }
    serve(name);
}

/// Says who asks, and then everything that is said to it.
fn serve(name: &'static str) {
    let (ready, is_ready) = mpsc::channel();
    for port in TCP {
        let ready = ready.clone();
        std::thread::spawn(move || {
            enter(name);
            let listener = TcpListener::bind(("::", port)).expect("listens");
            ready.send(()).expect("somebody waits");
            for mut stream in listener.incoming().flatten() {
                let Ok(from) = stream.peer_addr() else { continue };
                std::thread::spawn(move || {
                    let _ = writeln!(stream, "{}", from.ip().to_canonical());
                    let mut buffer = [0; 64];
                    while let Ok(length @ 1..) = stream.read(&mut buffer) {
                        let _ = stream.write_all(&buffer[..length]);
                    }
                });
            }
        });
    }
    std::thread::spawn(move || {
        enter(name);
        let socket = UdpSocket::bind(("::", UDP)).expect("bound");
        ready.send(()).expect("somebody waits");
        let mut buffer = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    (0..=TCP.len()).for_each(|_| is_ready.recv().expect("serves"));
}

/// A connection that stays.
pub struct Talk(TcpStream);

impl Talk {
    /// Connects; whom the other end saw.
    pub fn begin(from: &str, to: &str, limit: Duration) -> std::io::Result<(Self, String)> {
        let to: SocketAddr = to.parse().expect("an address");
        within(from, || {
            let mut stream = TcpStream::connect_timeout(&to, limit)?;
            stream.set_read_timeout(Some(limit))?;
            let (mut text, mut byte) = (String::new(), [0]);
            while stream.read(&mut byte)? == 1 && byte != *b"\n" {
                text.push(char::from(byte[0]));
            }
            Ok((Self(stream), text))
        })
    }

    pub fn open(from: &str, to: &str) -> Self {
        Self::begin(from, to, SOON).unwrap_or_else(|e| panic!("{from} to {to}: {e}")).0
    }

    /// Says something; is it echoed?
    fn echo(&mut self, limit: Duration) -> bool {
        self.0.set_read_timeout(Some(limit)).expect("set");
        self.0.write_all(b"x").is_ok() && matches!(self.0.read(&mut [0; 64]), Ok(1..))
    }

    pub fn goes_on(&mut self) -> bool {
        self.echo(SOON)
    }

    pub fn stands_still(&mut self) -> bool {
        !self.echo(NEVER)
    }
}

/// Everything of a list is let through.
pub fn allowed(pairs: &[(&str, &str)]) {
    for (from, to) in pairs {
        if let Some(to) = to.strip_prefix("udp:") {
            assert!(udp(from, to, SOON), "{from} to {to} (UDP) is not let through");
        } else if let Some(to) = to.strip_prefix("ping:") {
            assert!(ping(from, to, SOON), "{from} to {to} (ICMP) is not let through");
        } else {
            let talk = Talk::begin(from, to, SOON);
            assert!(talk.is_ok(), "{from} to {to} is not let through: {:?}", talk.err());
        }
    }
}

/// What was not let through since the last [`control`].
static DENIED: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());

/// Without policies everything is let through that was not: somebody is there, and answers.
pub fn control() {
    let pairs = std::mem::take(&mut *DENIED.lock().expect("no panic"));
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(from, to)| (&**from, &**to)).collect();
    allowed(&pairs);
}

/// Nothing of a list is let through.
pub fn denied(pairs: &[(&str, &str)]) {
    let owned = pairs.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned()));
    DENIED.lock().expect("no panic").extend(owned);
    std::thread::scope(|scope| {
        for (from, to) in pairs {
            scope.spawn(move || {
                let passes = match (to.strip_prefix("udp:"), to.strip_prefix("ping:")) {
                    (Some(to), _) => udp(from, to, NEVER),
                    (_, Some(to)) => ping(from, to, NEVER),
                    _ => Talk::begin(from, to, NEVER).is_ok(),
                };
                assert!(!passes, "{from} to {to} is let through");
            });
        }
    });
}

fn udp(from: &str, to: &str, limit: Duration) -> bool {
    let to: SocketAddr = to.parse().expect("an address");
    within(from, || {
        let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).expect("bound");
        socket.connect(to).expect("connected");
        socket.set_read_timeout(Some(limit)).expect("set");
        socket.send(b"?").is_ok() && socket.recv(&mut [0; 64]).is_ok()
    })
}

/// Asks by ICMP, through the kernel's sockets for that.
fn ping(from: &str, to: &str, limit: Duration) -> bool {
    let to: IpAddr = to.parse().expect("an address");
    let (family, protocol, kind) = if to.is_ipv4() {
        (AddressFamily::INET, ipproto::ICMP, 8)
    } else {
        (AddressFamily::INET6, ipproto::ICMPV6, 128)
    };
    within(from, || {
        let socket = socket(family, SocketType::DGRAM, Some(protocol)).expect("this user may ask");
        set_socket_timeout(&socket, Timeout::Recv, Some(limit)).expect("set");
        // The kernel fills in checksum and identity.
        let sent = sendto(&socket, &[kind, 0, 0, 0, 0, 0, 0, 1], SendFlags::empty(), &SocketAddr::new(to, 0));
        sent.is_ok() && recv(&socket, &mut [0; 64], RecvFlags::empty()).is_ok()
    })
}
