//! Pods of two nodes that say who they are, and somebody outside, who routes Service addresses to the node `n1`, whose
//! rules are tried.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use namespaces::world::{PODS, enter, forwards, nodes, set};
pub use namespaces::world::{output, run, within};

/// The port pods serve TCP on.
pub const WEB: u16 = 8080;
/// The port pods serve UDP on.
pub const DNS: u16 = 5353;
/// How long what should come may take.
const SOON: Duration = Duration::from_secs(10);
/// How long nothing must come for.
const NEVER: Duration = Duration::from_millis(500);

/// Builds it.
pub fn build() {
    nodes();
    for (node, other, byte) in [("n1", 1, 2), ("n2", 0, 1)] {
        run(&format!("ip -n {node} route add default via 192.168.9.254"));
        run(&format!("ip -n {node} route add default via fd09::254"));
        run(&format!("ip -n {node} route add 10.244.{other}.0/24 via 192.168.9.{byte}"));
        forwards(node);
        within(node, || {
            // Whom a node has told of a shorter way nine times, it tells of no refusal any more: the kernel counts
            // both together.
            for link in ["all", "default", "eth0"] {
                set(&format!("net/ipv4/conf/{link}/send_redirects"), "0");
            }
        });
    }
    for range in ["10.96.0.0/12", "198.51.100.0/24", "203.0.113.0/24"] {
        run(&format!("ip -n out route add {range} via 192.168.9.1"));
    }
    run("ip -n out route add fd01::/112 via fd09::1");
    for (pod, node, net, byte) in PODS {
        self::pod(pod, node, net, byte);
    }
}

/// A pod that says who it is and who asks.
pub fn pod(name: &'static str, node: &str, net: u8, byte: u8) {
    namespaces::world::pod(name, node, net, byte);
    let (ready, is_ready) = mpsc::channel();
    std::thread::spawn(move || {
        enter(name);
        let listener = TcpListener::bind(("::", WEB)).expect("listens");
        let socket = UdpSocket::bind(("::", DNS)).expect("bound");
        ready.send(()).expect("somebody waits");
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(format!("{name} {}", from.ip().to_canonical()).as_bytes(), from);
            }
        });
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let Ok(from) = stream.peer_addr() else { continue };
            std::thread::spawn(move || {
                let _ = writeln!(stream, "{name} {}", from.ip().to_canonical());
                // Held until the client goes.
                let _ = stream.read(&mut [0]);
            });
        }
    });
    is_ready.recv().expect("serves");
}

/// What became of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By which pod, and whom it saw.
    Reached(String, IpAddr),
    Refused,
    /// Nothing came back.
    Dropped,
    Other(ErrorKind),
}

impl Outcome {
    fn of(text: &str) -> Self {
        let (name, from) = text.trim().split_once(' ').unwrap_or_else(|| panic!("{text:?} is no answer"));
        Self::Reached(name.into(), from.parse().expect("an address"))
    }

    fn failed(error: &std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused => Self::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Self::Dropped,
            other => Self::Other(other),
        }
    }

    /// The pod that answered.
    pub fn by(&self) -> &str {
        match self {
            Self::Reached(name, _) => name,
            other => panic!("not reached: {other:?}"),
        }
    }

    /// The source it saw.
    pub fn from(&self) -> String {
        match self {
            Self::Reached(_, from) => from.to_string(),
            other => panic!("not reached: {other:?}"),
        }
    }
}

fn tcp(from: &str, to: &str, limit: Duration) -> Outcome {
    let to: SocketAddr = to.parse().expect("an address");
    within(from, || {
        let connect = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&to, limit)?;
            stream.set_read_timeout(Some(limit))?;
            let mut text = String::new();
            let mut byte = [0];
            while stream.read(&mut byte)? == 1 && byte != *b"\n" {
                text.push(char::from(byte[0]));
            }
            Ok(text)
        };
        connect().map_or_else(|error| Outcome::failed(&error), |text| Outcome::of(&text))
    })
}

/// Connects; what should be reached or refused is.
pub fn reach(from: &str, to: &str) -> Outcome {
    tcp(from, to, SOON)
}

/// Connects; what should not be reached is waited for only a while.
pub fn attempt(from: &str, to: &str) -> Outcome {
    tcp(from, to, NEVER)
}

/// Nothing comes back.
pub fn is_dropped(from: &str, to: &str) -> bool {
    tcp(from, to, NEVER) == Outcome::Dropped
}

/// Who answers when `from` connects so often, in order, each once.
pub fn who(from: &str, to: &str, times: usize) -> Vec<String> {
    let one = || match reach(from, to) {
        Outcome::Reached(name, _) => name,
        // The kernel still knows a connection of a moment ago that was not translated, by the same port of the
        // client: for upstream's rules as for ours. The next one has another port.
        Outcome::Refused => {
            eprintln!("from {from} to {to}: refused once");
            reach(from, to).by().to_owned()
        }
        other => panic!("from {from} to {to}: {other:?}"),
    };
    let mut names: Vec<String> = (0..times).map(|_| one()).collect();
    names.sort();
    names.dedup();
    names
}

/// A client that sends to one address from one port all the time.
pub struct UdpClient {
    socket: UdpSocket,
    pub to: &'static str,
}

impl UdpClient {
    pub fn new(from: &str, to: &'static str) -> Self {
        let connect = || {
            let socket = UdpSocket::bind(("0.0.0.0", 0)).expect("bound");
            // Only a connected socket hears that it is refused.
            socket.connect(to).expect("connected");
            socket
        };
        Self { socket: within(from, connect), to }
    }

    /// Asks once and waits; a refusal of an earlier packet is not one of this.
    fn ask(&self, limit: Duration) -> Outcome {
        let _ = self.socket.take_error();
        self.socket.set_read_timeout(Some(limit)).expect("set");
        let mut buffer = [0; 64];
        match self.socket.send(b"?").and_then(|_| self.socket.recv(&mut buffer)) {
            Ok(length) => Outcome::of(&String::from_utf8_lossy(&buffer[..length])),
            Err(error) => Outcome::failed(&error),
        }
    }

    /// Asks and waits.
    pub fn reach(&self) -> Outcome {
        self.ask(SOON)
    }
}
