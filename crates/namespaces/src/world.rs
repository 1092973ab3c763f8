//! A small world of network namespaces: nodes on one bridge, the links of their pods, and somebody outside.
//!
//! ```text
//!              br0 192.168.9.254 ────┬─────────────────────┬──────────────────┐
//!   n1 192.168.9.1                   │  n2 192.168.9.2     │  out 192.168.9.100
//!   ├── p1 10.244.0.2 fd00:0:0:0::2     └── p3 10.244.1.2
//!   └── p2 10.244.0.3
//! ```
//!
//! Everything is inside a network and a mount namespace of the test's own: nothing of it is seen on the host, and all
//! of it goes with the test.

use std::fs::{File, write};
use std::os::fd::AsFd;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The pods: their names, their nodes, and the parts of their addresses.
pub const PODS: [(&str, &str, u8, u8); 3] = [("p1", "n1", 0, 2), ("p2", "n1", 0, 3), ("p3", "n2", 1, 2)];

/// Runs a command line; what it says.
///
/// # Panics
/// When it cannot be run.
pub fn try_output(line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [program, args @ ..] = words.as_slice() else { return Err("an empty line".into()) };
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{line}: {error}"));
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(said(&output.stdout)) } else { Err(said(&output.stderr)) }
}

/// The same of one that goes well.
///
/// # Panics
/// When it does not.
pub fn output(line: &str) -> String {
    try_output(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// The same of one that says nothing.
///
/// # Panics
/// When it does not go well.
pub fn run(line: &str) {
    output(line);
}

/// Sets a parameter of the kernel, of the namespace this thread is in.
///
/// # Panics
/// When it cannot be set.
pub fn set(parameter: &str, value: &str) {
    write(format!("/proc/sys/{parameter}"), value).unwrap_or_else(|error| panic!("{parameter}: {error}"));
}

/// Runs something on a thread in a namespace.
///
/// # Panics
/// When it does.
pub fn within<T: Send>(name: &str, job: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(name);
            job()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Moves this thread into a namespace.
///
/// # Panics
/// When there is none of that name.
pub fn enter(name: &str) {
    let moved = File::open(format!("/run/netns/{name}"))
        .and_then(|file| Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?));
    moved.unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Builds the nodes and who is outside, which reach each other; pods and routes are the test's.
pub fn nodes() {
    run("mount -t tmpfs tmpfs /run");
    run("mkdir -p /run/netns");
    run("ip link set lo up");
    run("ip link add br0 type bridge");
    run("ip addr add 192.168.9.254/24 dev br0");
    run("ip addr add fd09::254/64 dev br0 nodad");
    run("ip link set br0 up");
    for (name, byte) in [("n1", "1"), ("n2", "2"), ("out", "100")] {
        namespace(name);
        run(&format!("ip link add l-{name} type veth peer name eth0 netns {name}"));
        run(&format!("ip link set l-{name} master br0 up"));
        run(&format!("ip -n {name} link set eth0 up"));
        run(&format!("ip -n {name} addr add 192.168.9.{byte}/24 dev eth0"));
        run(&format!("ip -n {name} addr add fd09::{byte}/64 dev eth0 nodad"));
    }
}

/// Makes this node, or whoever it is, send on what is not for itself.
pub fn forwards(name: &str) {
    within(name, || {
        set("net/ipv4/ip_forward", "1");
        set("net/ipv6/conf/all/forwarding", "1");
    });
}

fn namespace(name: &str) {
    run(&format!("ip netns add {name}"));
    run(&format!("ip -n {name} link set lo up"));
}

/// Builds a pod of a node: `10.244.NET.BYTE` and `fd00:0:0:NET::BYTE`.
pub fn pod(name: &str, node: &str, net: u8, byte: u8) {
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
}
