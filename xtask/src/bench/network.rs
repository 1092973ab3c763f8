//! What a pod's network costs: one ADD and one DEL as the runtime waits for them, and how fast packets go from
//! pod to pod beside a bare pair of virtual Ethernet. All of it is in network namespaces of its own.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use net::namespace::Namespace;
use serde_json::{Value, json};
use stdx::SharedClock;

use super::figures::Figures;

/// How many namespaces there are: a node, two pods, two ends of a bare pair.
const NAMES: [&str; 5] = ["node", "pod-a", "pod-b", "bare-a", "bare-b"];

/// A namespace of this run; it goes with it.
struct Space(String);

impl Space {
    fn new(name: &str) -> Result<Self> {
        let name = format!("pintle-bench-{name}");
        // One that a run left that was killed.
        let _ = Command::new("ip").args(["netns", "delete", &name]).stderr(Stdio::null()).status();
        ip(&format!("netns add {name}"))?;
        ip(&format!("-n {name} link set lo up"))?;
        Ok(Self(name))
    }

    fn path(&self) -> String {
        format!("/run/netns/{}", self.0)
    }

    fn run<T: Send>(&self, job: impl FnOnce() -> std::io::Result<T> + Send) -> Result<T> {
        Ok(Namespace::open(Path::new(&self.path()))?.run(job)?)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // It is empty, or goes with its links.
        let _ = ip(&format!("netns delete {}", self.0));
    }
}

fn ip(line: &str) -> Result<()> {
    let output = Command::new("ip").args(line.split_whitespace()).output()?;
    ensure!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// The plugin's program under its own name, and its network.
struct Plugin<'a> {
    node: &'a Space,
    program: std::path::PathBuf,
    config: String,
}

impl Plugin<'_> {
    /// One call; what it answers.
    fn call(&self, command: &str, pod: &Space) -> Result<Value> {
        let output = self.node.run(|| {
            let mut child = Command::new(&self.program)
                .env("CNI_COMMAND", command)
                .env("CNI_CONTAINERID", &pod.0)
                .env("CNI_NETNS", pod.path())
                .env("CNI_IFNAME", "eth0")
                .env("CNI_PATH", "/")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            child.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?.write_all(self.config.as_bytes())?;
            child.wait_with_output()
        })?;
        ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stdout));
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }
}

fn address(result: &Value) -> Result<IpAddr> {
    let text = result["ips"][0]["address"].as_str().context("an address")?;
    Ok(text.split('/').next().unwrap_or_default().parse()?)
}

/// Bytes a second from one namespace to an address of another.
fn throughput(from: &Space, to: &Space, address: IpAddr, clock: &SharedClock, limit: Duration) -> Result<f64> {
    let listener = to.run(|| TcpListener::bind(SocketAddr::new(address, 9000)))?;
    let reader = std::thread::spawn(move || -> std::io::Result<u64> {
        let (mut stream, _) = listener.accept()?;
        let (mut buffer, mut total) = (vec![0; 1 << 20], 0);
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(total),
                length => total += length as u64,
            }
        }
    });
    let mut stream =
        from.run(|| TcpStream::connect_timeout(&SocketAddr::new(address, 9000), Duration::from_secs(5)))?;
    let (buffer, begin) = (vec![0; 1 << 17], clock.now());
    while clock.now().since(begin) < limit {
        stream.write_all(&buffer)?;
    }
    drop(stream);
    let total = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
    Ok(total as f64 / clock.now().since(begin).as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Measures and writes down.
pub fn run(clock: &SharedClock, quick: bool, figures: &mut Figures) -> Result<()> {
    let [node, a, b, bare_a, bare_b] = NAMES.map(Space::new);
    let (node, a, b, bare_a, bare_b) = (node?, a?, b?, bare_a?, bare_b?);
    node.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))?;
    let dir = tempfile::tempdir()?;
    let program = dir.path().join("pintle-cni");
    std::os::unix::fs::symlink(e2e::cluster::binary()?, &program)?;
    let config = json!({
        "cniVersion": "1.0.0", "name": "bench", "type": "pintle-cni", "dataDir": dir.path(), "ranges": ["10.98.0.0/24"],
    });
    let plugin = Plugin { node: &node, program, config: config.to_string() };
    let (mut adds, mut dels) = (Vec::new(), Vec::new());
    for _ in 0..if quick { 10 } else { 50 } {
        for (command, times) in [("ADD", &mut adds), ("DEL", &mut dels)] {
            let begin = clock.now();
            plugin.call(command, &a)?;
            times.push(clock.now().since(begin).as_secs_f64() * 1000.0);
        }
    }
    let (add, del) = (median(adds), median(dels));
    let text = format!("{add:.1} / {del:.1} ms");
    figures.add(
        "network of a pod: ADD / DEL of the CNI plugin, its process included",
        text,
        "ADD ≤ 10 ms",
        Some(add <= 10.0),
    );

    plugin.call("ADD", &a)?;
    let to = address(&plugin.call("ADD", &b)?)?;
    ip(&format!("-n {} link add eth0 type veth peer name eth0 netns {}", bare_a.0, bare_b.0))?;
    for (space, own) in [(&bare_a, "10.98.1.1"), (&bare_b, "10.98.1.2")] {
        ip(&format!("-n {} address add {own}/24 dev eth0", space.0))?;
        ip(&format!("-n {} link set eth0 up", space.0))?;
    }
    let (mut pods, mut bare) = (Vec::new(), Vec::new());
    let limit = Duration::from_millis(if quick { 500 } else { 2000 });
    for _ in 0..if quick { 3 } else { 7 } {
        bare.push(throughput(&bare_a, &bare_b, [10, 98, 1, 2].into(), clock, limit)?);
        pods.push(throughput(&a, &b, to, clock, limit)?);
    }
    let (pods, bare) = (median(pods) / 1e9, median(bare) / 1e9);
    let share = pods / bare * 100.0;
    let text = format!("{pods:.2} / {bare:.2} GB/s ({share:.0} %)");
    figures.add("TCP from pod to pod / over a bare pair of veth", text, "≥ 97 %", Some(share >= 97.0));
    plugin.call("DEL", &a)?;
    plugin.call("DEL", &b)?;
    Ok(())
}
