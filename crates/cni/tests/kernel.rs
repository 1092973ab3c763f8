//! The plugin as runtimes execute it, against a real kernel in a network namespace of the test's own: the
//! specification's calls, and a thousand of them at once of which many are killed.
//!
//! This program is also the plugin: where `CNI_COMMAND` is set it answers the call and ends.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use net::conntrack::{AT_ONCE, Entry, remove_udp};
use net::namespace::Namespace;
use net::ruleset::Family;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use serde_json::{Value, json};

/// Set inside the test's own namespaces.
const INSIDE: &str = "PINTLE_CNI_TEST";

#[allow(clippy::disallowed_methods, reason = "says what this process is; the plugin is told by its environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[allow(clippy::disallowed_methods, reason = "the plugin is told the time by its program, which this is")]
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[allow(clippy::disallowed_methods, reason = "says when a call is killed, and how long a test took")]
fn instant() -> Instant {
    Instant::now()
}

fn main() -> ExitCode {
    if variable("CNI_COMMAND").is_some() {
        let name = variable("PLUGIN").unwrap_or_else(|| cni::PLUGIN.into());
        let now = u64::try_from(now().as_nanos()).unwrap_or_default();
        return cni::run(&name, variable, std::io::stdin().lock(), &mut std::io::stdout().lock(), now).into();
    }
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if !wanted.iter().any(|a| a == "--ignored" || a == "--include-ignored") || wanted.iter().any(|a| a == "--list") {
        println!("the plugin on a real kernel: ignored, needs root: ./dev test runs it");
        return ExitCode::SUCCESS;
    }
    if variable(INSIDE).is_none() {
        let mut command = Command::new("unshare");
        let program = std::env::current_exe().expect("this program");
        command.args(["--net", "--mount", "--propagation", "private", "--"]).arg(program).args(&wanted);
        let status = command.env(INSIDE, "1").status().expect("unshare runs");
        return if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    run("mount -t tmpfs tmpfs /run");
    run("mkdir -p /run/netns");
    run("ip link set lo up");
    // A way out of the host, whose packets are smaller than usual.
    run("ip link add uplink type veth peer name outside");
    run("ip link set uplink mtu 1400 up");
    run("ip link set outside up");
    run("ip addr add 192.0.2.10/24 dev uplink");
    run("ip addr add 2001:db8::10/64 dev uplink nodad");
    run("ip route add default via 192.0.2.1 dev uplink");
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwards");
    std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").expect("forwards");
    // As a host has it that takes its own default route from a router's announcements.
    std::fs::write("/proc/sys/net/ipv6/conf/default/accept_ra", "2").expect("set");
    let filter = wanted.iter().find(|a| !a.starts_with('-'));
    for (name, test) in TESTS {
        if filter.is_none_or(|f| name.contains(f.as_str())) {
            let begin = instant();
            test();
            println!("test {name} ... ok ({} ms)", begin.elapsed().as_millis());
        }
    }
    ExitCode::SUCCESS
}

const TESTS: &[(&str, fn())] = &[
    ("calls_by_the_specification", calls_by_the_specification),
    ("pods_reach_each_other_and_the_host", pods_reach_each_other_and_the_host),
    ("ports_of_the_host", ports_of_the_host),
    ("networks_share_the_ports_of_the_host", networks_share_the_ports_of_the_host),
    ("networks_of_two_places_keep_their_own_ports", networks_of_two_places_keep_their_own_ports),
    ("the_table_that_all_shared_is_left_once", the_table_that_all_shared_is_left_once),
    ("what_went_to_a_port_is_forgotten_however_much_it_is", what_went_to_a_port_is_forgotten_however_much_it_is),
    ("bandwidth_is_limited", bandwidth_is_limited),
    ("a_gate_that_refuses_or_is_silent_fails_the_add", a_gate_that_refuses_or_is_silent_fails_the_add),
    ("a_range_that_is_given_out_says_so", a_range_that_is_given_out_says_so),
    ("an_address_that_leads_elsewhere_is_given_to_nobody", an_address_that_leads_elsewhere_is_given_to_nobody),
    ("what_is_left_is_collected", what_is_left_is_collected),
    ("a_disk_that_is_full", a_disk_that_is_full),
    ("a_thousand_calls_with_kills_leave_nothing", a_thousand_calls_with_kills_leave_nothing),
];

fn output(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|e| panic!("{line}: {e}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn run(line: &str) {
    output(line);
}

/// A network with its records in a folder of its own.
struct Network {
    dir: tempfile::TempDir,
    config: Value,
}

/// A container: its id, and a network namespace of that name.
#[derive(Clone, Debug)]
struct Container(String);

impl Container {
    fn new(id: &str) -> Self {
        run(&format!("ip netns add {id}"));
        Self(id.into())
    }

    fn netns(&self) -> String {
        format!("/run/netns/{}", self.0)
    }

    fn end(&self) {
        run(&format!("ip netns delete {}", self.0));
    }
}

impl Network {
    fn new(ranges: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let config = json!({
            "cniVersion": "1.1.0", "name": "n", "type": cni::PLUGIN, "dataDir": dir.path(), "ranges": ranges,
        });
        Self { dir, config }
    }

    fn with(&self, change: impl FnOnce(&mut Value)) -> Value {
        let mut config = self.config.clone();
        change(&mut config);
        config
    }

    /// The name of its tables of host ports.
    fn table(&self) -> String {
        cni::ports::table(self.dir.path())
    }

    /// What is in its folder but for what never goes.
    fn files(&self) -> Vec<String> {
        ["attachments", "addresses"]
            .iter()
            .flat_map(|folder| std::fs::read_dir(self.dir.path().join("n").join(folder)).into_iter().flatten())
            .map(|e| e.expect("an entry").path().display().to_string())
            .collect()
    }
}

fn command(call: &str, container: &Container, config: &Value) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.env("CNI_COMMAND", call).env("CNI_CONTAINERID", &container.0).env("CNI_IFNAME", "eth0");
    command.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID=u1");
    command.env("CNI_NETNS", container.netns()).env("CNI_PATH", "/opt/cni/bin");
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("the plugin runs");
    let mut stdin = child.stdin.take().expect("standard input");
    stdin.write_all(config.to_string().as_bytes()).expect("written");
    child
}

/// One call: what it says, or how it fails.
fn call(call: &str, container: &Container, config: &Value) -> Result<Value, Value> {
    let output = command(call, container, config).wait_with_output().expect("it ends");
    let value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    if output.status.success() { Ok(value) } else { Err(value) }
}

fn add(container: &Container, config: &Value) -> Value {
    call("ADD", container, config).unwrap_or_else(|e| panic!("ADD {container:?}: {e}"))
}

fn del(container: &Container, config: &Value) {
    let said = call("DEL", container, config).unwrap_or_else(|e| panic!("DEL {container:?}: {e}"));
    assert_eq!(said, Value::Null, "DEL says nothing");
}

fn address(result: &Value, at: usize) -> IpAddr {
    let text = result["ips"][at]["address"].as_str().unwrap_or_else(|| panic!("an address in {result}"));
    text.split('/').next().and_then(|t| t.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// Links, addresses, routes, neighbours that were told, and rules of this namespace.
fn kernel() -> BTreeMap<&'static str, Vec<String>> {
    let sorted = |line: &str| {
        let mut lines: Vec<String> = output(line).lines().map(|l| l.trim().to_owned()).collect();
        lines.sort();
        lines
    };
    let mut out = BTreeMap::new();
    let links = sorted("ip -o link show").into_iter().filter_map(|l| l.split(": ").nth(1).map(str::to_owned));
    out.insert("links", links.collect());
    let own = |l: &String| !l.contains("proto kernel") && !l.contains("fe80::");
    out.insert("routes", sorted("ip route show table all").into_iter().filter(own).collect());
    out.insert("neighbours", sorted("ip neigh show nud permanent"));
    out.insert("rules", sorted("nft list ruleset"));
    out
}

fn same<T: PartialEq + Debug>(now: &T, before: &T) {
    assert_eq!(now, before, "it is not as it was before");
}

fn calls_by_the_specification() {
    let network = Network::new(&["10.99.0.0/24", "fd99::/64"]);
    let before = kernel();
    let pod = Container::new("c1");
    let config = &network.config;
    assert_eq!(call("STATUS", &pod, config), Ok(Value::Null));
    let result = add(&pod, config);
    assert_eq!((&result["cniVersion"], address(&result, 0)), (&json!("1.1.0"), [10, 99, 0, 2].into()));
    assert_eq!(result["interfaces"][1]["mtu"], 1400, "as on the way out");
    assert!(output("ip -n c1 -o link show eth0").contains(" mtu 1400 "));
    // The host takes no advice from it (CVE-2020-13401), although new links of this namespace do.
    let link = result["interfaces"][0]["name"].as_str().expect("the host's end");
    for setting in ["ipv6/conf/LINK/accept_ra", "ipv6/conf/LINK/accept_redirects", "ipv4/conf/LINK/accept_redirects"] {
        let path = PathBuf::from("/proc/sys/net").join(setting.replace("LINK", link));
        assert_eq!(std::fs::read_to_string(&path).expect("a setting").trim(), "0", "{}", path.display());
    }
    // Twice: the same answer, and nothing new.
    let links = kernel();
    same(&add(&pod, config), &result);
    same(&kernel(), &links);
    let with_result = network.with(|c| c["prevResult"] = result.clone());
    assert_eq!(call("CHECK", &pod, &with_result), Ok(Value::Null));
    let others = network.with(|c| c["prevResult"] = json!({"ips": [{"address": "10.99.0.77/32"}]}));
    assert_eq!(call("CHECK", &pod, &others).expect_err("another address")["code"], 101);
    // Older versions have the same in their own form.
    let older = network.with(|c| c["cniVersion"] = "0.4.0".into());
    assert_eq!(add(&pod, &older)["ips"][0]["version"], "4");
    // What was changed since is found.
    run("ip -n c1 addr del 10.99.0.2/32 dev eth0");
    let said = call("CHECK", &pod, &with_result).expect_err("it has no address");
    assert!(said["msg"].as_str().is_some_and(|m| m.contains("10.99.0.2")), "{said}");
    // An ADD repeats what is missing, with the same address.
    same(&address(&add(&pod, config), 0), &address(&result, 0));
    assert_eq!(call("CHECK", &pod, &with_result), Ok(Value::Null));
    // Another link of the same container.
    del(&pod, config);
    del(&pod, config);
    same(&kernel(), &before);
    assert!(output("ip -n c1 -o link show").lines().count() == 1, "only its loopback");
    assert_eq!(call("CHECK", &pod, &with_result).expect_err("it was taken away")["code"], 101);
    // A namespace that went before the DEL.
    let result = add(&pod, config);
    pod.end();
    del(&pod, config);
    same(&kernel(), &before);
    let said = call("ADD", &pod, config).expect_err("no namespace");
    assert_eq!(said["code"], 3, "{said}");
    assert_eq!(network.files(), [""; 0], "{result}");
    // The container has such a link already.
    let taken = Container::new("c2");
    run("ip -n c2 link add eth0 type veth peer name other");
    let said = call("ADD", &taken, config).expect_err("it has one");
    assert_eq!((&said["code"], network.files()), (&json!(7), vec![]), "{said}");
    taken.end();
    // The loopback.
    let pod = Container::new("c3");
    let program = std::env::current_exe().expect("this program");
    let mut loopback = Command::new(program);
    loopback.envs([("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "c3"), ("CNI_IFNAME", "lo"), ("PLUGIN", "loopback")]);
    let mut child = loopback
        .env("CNI_NETNS", pod.netns())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the plugin runs");
    let text = br#"{"cniVersion": "0.3.1", "name": "cni-loopback", "type": "loopback"}"#;
    child.stdin.take().expect("standard input").write_all(text).expect("written");
    let result: Value = serde_json::from_slice(&child.wait_with_output().expect("it ends").stdout).expect("JSON");
    assert_eq!(result["ips"][0], json!({"version": "4", "address": "127.0.0.1/8", "interface": 0}), "{result}");
    pod.end();
}

/// Runs something in a pod, or on the host.
fn within<T: Send>(pod: &str, job: impl FnOnce() -> T + Send) -> T {
    if pod.is_empty() {
        return job();
    }
    let namespace = Namespace::open(Path::new(&format!("/run/netns/{pod}"))).expect("the namespace");
    namespace.run(|| Ok(job())).expect("entered")
}

/// What who is at an address says to who connects; nothing where nobody takes the connection.
fn says(from: &str, to: &str, port: u16) -> String {
    let to = SocketAddr::new(to.parse().expect("an address"), port);
    within(from, || {
        let mut said = String::new();
        if let Ok(mut stream) = TcpStream::connect_timeout(&to, Duration::from_secs(2)) {
            stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a limit");
            let _ = stream.read_to_string(&mut said);
        }
        said
    })
}

/// Says its name to who connects, as long as the test runs.
fn serve(pod: &Container, port: u16) {
    let listener = within(&pod.0, || TcpListener::bind(("::", port)).expect("listens"));
    let name = pod.0.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = (&stream).write_all(name.as_bytes());
        }
    });
}

fn pods_reach_each_other_and_the_host() {
    let network = Network::new(&["10.99.0.0/24", "fd99::/64"]);
    let before = kernel();
    let pods = ["p1", "p2"].map(Container::new);
    let results = [0, 1].map(|n| add(&pods[n], &network.config));
    pods.iter().for_each(|pod| serve(pod, 8080));
    for (at, name) in [(0, "v4"), (1, "v6")] {
        let to = address(&results[1], at).to_string();
        assert_eq!(says("p1", &to, 8080), "p2", "{name}: from pod to pod");
        assert_eq!(says("", &to, 8080), "p2", "{name}: from the host to the pod");
    }
    for pod in &pods {
        del(pod, &network.config);
        pod.end();
    }
    same(&kernel(), &before);
}

fn ports_of_the_host() {
    let network = Network::new(&["10.99.0.0/24", "fd99::/64"]);
    let before = kernel();
    let with = |ports: Value| network.with(|c| c["runtimeConfig"] = json!({ "portMappings": ports }));
    let (pod, other) = (Container::new("p1"), Container::new("p2"));
    let config = with(json!([
        {"hostPort": 8085, "containerPort": 8080, "protocol": "tcp"},
        {"hostPort": 8086, "containerPort": 8080, "protocol": "tcp", "hostIP": "192.0.2.10"},
        {"hostPort": 8087, "containerPort": 8080, "protocol": "tcp", "hostIP": "127.0.0.1"},
        {"hostPort": 8053, "containerPort": 53, "protocol": "udp"},
        {"hostPort": 8090, "containerPort": 90, "protocol": "sctp"},
    ]));
    add(&pod, &config);
    add(&other, &network.config);
    serve(&pod, 8080);
    for (from, to, port, is_reached) in [
        ("", "192.0.2.10", 8085, true),
        ("", "127.0.0.1", 8085, true),
        ("p2", "192.0.2.10", 8085, true),
        // To itself, by the host.
        ("p1", "192.0.2.10", 8085, true),
        ("", "192.0.2.10", 8086, true),
        ("", "127.0.0.1", 8086, false),
        ("", "127.0.0.1", 8087, true),
        ("", "192.0.2.10", 8087, false),
        ("p2", "192.0.2.10", 8088, false),
    ] {
        let want = if is_reached { "p1" } else { "" };
        assert_eq!(says(from, to, port), want, "from {from:?} to {to}:{port}");
    }
    let rules = output(&format!("nft list table ip {}", network.table()));
    for part in ["udp . 8053 : 10.99.0.2 . 53", "sctp . 8090 : 10.99.0.2 . 90"] {
        assert!(rules.contains(part), "{part} in {rules}");
    }
    // By IPv6, too; but no kernel takes an answer by a pod's link for ::1, and so nobody waits for one.
    assert_eq!([says("", "2001:db8::10", 8085), says("p2", "2001:db8::10", 8085)], ["p1", "p1"]);
    let own = TcpStream::connect_timeout(&"[::1]:8085".parse().expect("an address"), Duration::from_secs(5));
    assert_eq!(own.expect_err("nobody listens").kind(), std::io::ErrorKind::ConnectionRefused);
    // What is in 127.0.0.1 is not for pods.
    run("ip -n p2 route replace 127.0.0.0/8 via 169.254.1.1 dev eth0 onlink");
    let host = TcpListener::bind("127.0.0.1:8099").expect("listens");
    host.set_nonblocking(true).expect("set");
    assert_eq!(says("p2", "127.0.0.1", 8099), "");
    assert!(host.accept().is_err(), "a pod does not reach what is in 127.0.0.1");
    // A second pod with the same port has it while it is there.
    let config2 = with(json!([{"hostPort": 8085, "containerPort": 8080, "protocol": "tcp"}]));
    let third = Container::new("p3");
    add(&third, &config2);
    serve(&third, 8080);
    assert_eq!(says("", "192.0.2.10", 8085), "p3");
    del(&third, &config2);
    assert_eq!(says("", "192.0.2.10", 8085), "p1");
    del(&pod, &config);
    del(&other, &network.config);
    same(&kernel(), &before);
    [pod, other, third].iter().for_each(Container::end);
}

fn bandwidth_is_limited() {
    let network = Network::new(&["10.99.0.0/24"]);
    let pod = Container::new("p1");
    let rates = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 2_147_483_647});
    let config = network.with(|c| c["runtimeConfig"] = json!({ "bandwidth": rates }));
    let result = add(&pod, &config);
    let host = result["interfaces"][0]["name"].as_str().expect("a name");
    let queue = output(&format!("tc qdisc show dev {host}"));
    assert!(queue.contains("tbf") && queue.contains("rate 8Mbit") && queue.contains("burst 100000b"), "{queue}");
    let queue = output("ip netns exec p1 tc qdisc show dev eth0");
    assert!(queue.contains("tbf") && queue.contains("rate 16Mbit"), "{queue}");
    del(&pod, &config);
    pod.end();
}

/// Answers questions at a socket, each as `answer` says; what was asked.
fn gate(path: &Path, answers: Vec<&'static str>) -> std::thread::JoinHandle<Vec<Value>> {
    let listener = UnixListener::bind(path).expect("bound");
    std::thread::spawn(move || {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("somebody asks");
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).expect("a line");
            asked.push(serde_json::from_str(&line).expect("JSON"));
            if answer.is_empty() {
                // Says nothing until the other has gone.
                let _ = BufReader::new(&stream).read_line(&mut line);
            } else {
                stream.write_all(answer.as_bytes()).expect("written");
            }
        }
        asked
    })
}

fn a_gate_that_refuses_or_is_silent_fails_the_add() {
    let network = Network::new(&["10.99.0.0/24"]);
    let path = network.dir.path().join("gate.sock");
    let config = network.with(|c| c["gate"] = json!(path));
    let before = kernel();
    let pod = Container::new("p1");
    // Nobody keeps policies where somebody should: the rules of this pod are in no kernel.
    let said = call("ADD", &pod, &config).expect_err("nobody there");
    assert!(said["code"] == 102 && said["details"].as_str().is_some_and(|d| d.contains("network-policy")), "{said}");
    assert_eq!(call("STATUS", &pod, &config).expect_err("nobody there")["code"], 50);
    same(&kernel(), &before);
    let ok = "{\"ok\":true}\n";
    let asked = gate(&path, vec!["{\"error\":\"the pod is not known\"}\n", ok, "", ok, ok, ok]);
    let said = call("ADD", &pod, &config).expect_err("refused");
    assert_eq!((&said["code"], &said["details"]), (&json!(102), &json!("the pod is not known")), "{said}");
    let said = call("ADD", &pod, &config).expect_err("no answer");
    assert_eq!(said["code"], 102, "{said}");
    same(&kernel(), &before);
    assert_eq!(network.files(), [""; 0]);
    add(&pod, &config);
    del(&pod, &config);
    let asked = asked.join().expect("no panic");
    let ops: Vec<&str> = asked.iter().filter_map(|a| a["op"].as_str()).collect();
    assert_eq!(ops, ["add", "del", "add", "del", "add", "del"]);
    let first = &asked[0];
    assert_eq!((&first["containerID"], &first["name"], &first["uid"]), (&json!("p1"), &json!("web"), &json!("u1")));
    assert_eq!(first["addresses"].as_array().map(Vec::len), Some(1), "{first}");
    // Its keeper was killed: what is not known to be in the kernel is not.
    let said = call("ADD", &pod, &config).expect_err("nobody there");
    assert_eq!(said["code"], 102, "{said}");
    // Somebody listens and takes nobody: who asks does not wait for ever.
    std::fs::remove_file(&path).expect("removed");
    let full = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
    bind(&full, &SocketAddrUnix::new(&path).expect("an address")).expect("bound");
    listen(&full, 0).expect("listens");
    let _waits = UnixStream::connect(&path).expect("the one who may wait");
    let said = call("ADD", &pod, &config).expect_err("nobody is taken");
    assert_eq!(said["code"], 102, "{said}");
    pod.end();
}

/// Ports of the host of pods of two networks of one place are in one table: neither network takes the other's away.
fn networks_share_the_ports_of_the_host() {
    let network = Network::new(&["10.99.0.0/24"]);
    let port = |c: &mut Value, port: u16| {
        c["capabilities"] = json!({"portMappings": true});
        c["runtimeConfig"] = json!({"portMappings": [{"hostPort": port, "containerPort": 8080, "protocol": "tcp"}]});
    };
    let before = kernel();
    let first = network.with(|c| port(c, 9001));
    let second = network.with(|c| {
        port(c, 9002);
        (c["name"], c["ranges"]) = (json!("m"), json!(["10.98.0.0/24"]));
    });
    let pods = ["p1", "p2"].map(Container::new);
    add(&pods[0], &first);
    add(&pods[1], &second);
    pods.iter().for_each(|pod| serve(pod, 8080));
    assert_eq!([says("", "192.0.2.10", 9001), says("", "192.0.2.10", 9002)], ["p1", "p2"]);
    del(&pods[1], &second);
    assert_eq!([says("", "192.0.2.10", 9001), says("", "192.0.2.10", 9002)], ["p1", ""]);
    del(&pods[0], &first);
    pods.iter().for_each(Container::end);
    same(&kernel(), &before);
}

/// Two clusters on one host: neither writes the other's away, however often it writes its own.
fn networks_of_two_places_keep_their_own_ports() {
    let networks = [Network::new(&["10.99.0.0/24"]), Network::new(&["10.98.0.0/24"])];
    let before = kernel();
    let pods = ["p1", "p2"].map(Container::new);
    let configs = [9001, 9002].map(|port| json!({"portMappings": [{"hostPort": port, "containerPort": 8080}]}));
    let configs = [0, 1].map(|n| networks[n].with(|c| c["runtimeConfig"] = configs[n].clone()));
    let answers = || [says("", "192.0.2.10", 9001), says("", "192.0.2.10", 9002)];
    for n in [0, 1] {
        add(&pods[n], &configs[n]);
        serve(&pods[n], 8080);
    }
    assert_eq!(answers(), ["p1", "p2"]);
    // What is written again for any reason.
    for n in [0, 1] {
        cni::ports::restore(&cni::records::Records::of(networks[n].dir.path(), "n")).expect("written");
        assert_eq!(answers(), ["p1", "p2"]);
    }
    del(&pods[0], &configs[0]);
    assert_eq!(answers(), ["", "p2"]);
    del(&pods[1], &configs[1]);
    pods.iter().for_each(Container::end);
    same(&kernel(), &before);
}

fn what_went_to_a_port_is_forgotten_however_much_it_is() {
    let network = Network::new(&["10.99.0.0/24"]);
    let pod = Container::new("p1");
    let ports = json!({"portMappings": [{"hostPort": 8053, "containerPort": 53, "protocol": "udp"}]});
    let config = network.with(|c| c["runtimeConfig"] = ports);
    add(&pod, &config);
    for port in 20_000..30_100_u16 {
        let client = UdpSocket::bind(("192.0.2.10", port)).expect("bound");
        client.send_to(b"?", "192.0.2.10:8053").expect("sent");
    }
    let count = || {
        let found = Cell::new(0);
        let is_one = |entry: &Entry| {
            found.set(found.get() + usize::from(entry.destination.port() == 8053));
            false
        };
        remove_udp(Family::Ip, &is_one).expect("told");
        found.get()
    };
    assert!(count() > AT_ONCE, "{}", count());
    del(&pod, &config);
    assert_eq!(count(), 0);
    pod.end();
}

/// An earlier version had one table for all: where this place gets its own, that one is left to the usual place, or
/// goes, and neither is asked for again.
fn the_table_that_all_shared_is_left_once() {
    const SHARED: &str = cni::ports::TABLE;
    // Whatever this machine has there.
    run("mount -t tmpfs tmpfs /var/lib");
    let before = kernel();
    let port = |c: &mut Value, port: u16| {
        c["runtimeConfig"] = json!({"portMappings": [{"hostPort": port, "containerPort": 8080}]});
    };
    let shared = || output("nft list tables").lines().any(|line| line.ends_with(SHARED));
    let stale = || {
        run(&format!("nft add table ip {SHARED}"));
        run(&format!("nft add set ip {SHARED} any {{ type inet_service; }}"));
    };
    let pods = ["p1", "p2", "p3"].map(Container::new);
    let network = Network::new(&["10.99.0.0/24"]);
    let config = network.with(|c| port(c, 9001));
    stale();
    add(&pods[0], &config);
    assert!(!shared(), "it is nobody's");
    stale();
    cni::ports::restore(&cni::records::Records::of(network.dir.path(), "n")).expect("written");
    assert!(shared(), "what somebody made since is theirs");
    run(&format!("nft delete table ip {SHARED}"));
    // The usual place has it, and its ports stay.
    let usual = Network::new(&["10.98.0.0/24"]);
    let usual = usual.with(|c| {
        port(c, 9002);
        c["dataDir"] = json!("/var/lib/pintle/cni");
    });
    add(&pods[1], &usual);
    serve(&pods[1], 8080);
    assert!(shared());
    let other = Network::new(&["10.97.0.0/24"]);
    let third = other.with(|c| port(c, 9003));
    add(&pods[2], &third);
    assert_eq!(says("", "192.0.2.10", 9002), "p2");
    del(&pods[0], &config);
    del(&pods[1], &usual);
    del(&pods[2], &third);
    pods.iter().for_each(Container::end);
    same(&kernel(), &before);
    run("umount /var/lib");
}

fn a_range_that_is_given_out_says_so() {
    let network = Network::new(&["10.99.0.0/29"]);
    let pods: Vec<Container> = (0..6).map(|n| Container::new(&format!("p{n}"))).collect();
    pods[..5].iter().for_each(|pod| drop(add(pod, &network.config)));
    let said = call("ADD", &pods[5], &network.config).expect_err("none is left");
    assert_eq!(
        (&said["code"], &said["msg"]),
        (&json!(100), &json!("no address is left in 10.99.0.0/29: all 5 are given out"))
    );
    assert_eq!(call("STATUS", &pods[5], &network.config).expect_err("none is left")["code"], 50);
    // One whose namespace is gone gives its address to who needs it.
    pods[2].end();
    add(&pods[5], &network.config);
    pods.iter().for_each(|pod| del(pod, &network.config));
    assert_eq!(network.files(), [""; 0]);
    pods.iter().enumerate().filter(|(n, _)| *n != 2).for_each(|(_, pod)| pod.end());
}

/// As pods of another plugin have them, which an upgrade leaves running.
fn an_address_that_leads_elsewhere_is_given_to_nobody() {
    let network = Network::new(&["10.99.0.0/24", "fd99::/64"]);
    let pod = Container::new("p1");
    run("ip link add theirs type veth peer name theirs-end");
    run("ip link set theirs-end up");
    run("ip link set theirs up");
    for route in ["10.99.0.2/32", "10.99.0.3/32", "fd99::2/128"] {
        run(&format!("ip route add {route} dev theirs"));
    }
    // A route to more than one address is no pod's.
    run("ip route add 10.99.0.0/25 dev theirs");
    let result = add(&pod, &network.config);
    let want: [IpAddr; 2] = [[10, 99, 0, 4].into(), "fd99::3".parse().expect("an address")];
    assert_eq!([address(&result, 0), address(&result, 1)], want);
    del(&pod, &network.config);
    run("ip link delete theirs");
    pod.end();
}

fn what_is_left_is_collected() {
    let network = Network::new(&["10.99.0.0/24"]);
    let before = kernel();
    let pods = ["p1", "p2", "p3"].map(Container::new);
    let ports = json!({"portMappings": [{"hostPort": 8085, "containerPort": 8080, "protocol": "tcp"}]});
    let config = network.with(|c| c["runtimeConfig"] = ports);
    pods.iter().for_each(|pod| drop(add(pod, &config)));
    let valid = network.with(|c| c["cni.dev/valid-attachments"] = json!([{"containerID": "p2", "ifname": "eth0"}]));
    // Who names nothing does not say that nothing is to stay.
    assert_eq!(call("GC", &pods[0], &config), Ok(Value::Null));
    assert_eq!(network.files().len(), 6, "{:?}", network.files());
    assert_eq!(call("GC", &pods[0], &valid), Ok(Value::Null));
    assert_eq!(network.files().len(), 2, "{:?}", network.files());
    assert!(output(&format!("nft list table ip {}", network.table())).contains("10.99.0.3"));
    // Young, and there: the runtime may not tell of it yet. Gone: nobody will.
    let unknown = || {
        let known = std::collections::BTreeSet::new();
        cni::collect::unknown(network.dir.path(), "n", None, &known, UNIX_EPOCH + now()).expect("collected")
    };
    assert_eq!(unknown(), 0);
    pods[1].end();
    assert_eq!(unknown(), 1);
    assert_eq!(network.files(), [""; 0]);
    same(&kernel(), &before);
    [&pods[0], &pods[2]].iter().for_each(|pod| pod.end());
}

fn a_disk_that_is_full() {
    let network = Network::new(&["10.99.0.0/24"]);
    let before = kernel();
    let pod = Container::new("p1");
    add(&pod, &network.config);
    del(&pod, &network.config);
    let full = network.dir.path().join("full");
    std::fs::create_dir(&full).expect("made");
    // As many files as the folders of the network, and none for records.
    run(&format!("mount -t tmpfs -o size=64k,nr_inodes=5 tmpfs {}", full.display()));
    let config = network.with(|c| c["dataDir"] = json!(full));
    let said = call("ADD", &pod, &config).expect_err("no space");
    assert_eq!(said["code"], 5, "{said}");
    del(&pod, &config);
    same(&kernel(), &before);
    run(&format!("umount {}", full.display()));
    pod.end();
}

/// Numbers that look like chance, and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn a_thousand_calls_with_kills_leave_nothing() {
    const PODS: usize = 40;
    const CALLS: usize = 1000;
    const AT_ONCE: usize = 16;
    let network = Network::new(&["10.99.0.0/26", "fd99::/64"]);
    let pods: Vec<Container> = (0..PODS).map(|n| Container::new(&format!("p{n}"))).collect();
    let config = |n: usize| {
        network.with(|c| {
            if n.is_multiple_of(5) {
                let port = json!([{"hostPort": 9000 + n, "containerPort": 80, "protocol": if n.is_multiple_of(2) { "udp" } else { "tcp" }}]);
                c["runtimeConfig"] = json!({ "portMappings": port });
            }
        })
    };
    let before = kernel();
    let mut numbers = Numbers(42);
    let mut running: Vec<(Child, Option<Instant>)> = Vec::new();
    let mut killed = 0;
    for _ in 0..CALLS {
        let n = usize::try_from(numbers.below(PODS as u64)).unwrap_or(0);
        let what = if numbers.below(5) < 3 { "ADD" } else { "DEL" };
        let kill = (numbers.below(3) == 0).then(|| instant() + Duration::from_micros(numbers.below(30_000)));
        running.push((command(what, &pods[n], &config(n)), kill));
        while running.len() >= AT_ONCE {
            running.retain_mut(|(child, kill)| {
                if kill.is_some_and(|at| at <= instant()) {
                    let _ = child.kill();
                    *kill = None;
                }
                match child.try_wait().expect("it can be waited for") {
                    Some(status) => {
                        killed += usize::from(status.code().is_none());
                        false
                    }
                    None => true,
                }
            });
            std::thread::yield_now();
        }
    }
    for (mut child, _) in running {
        child.wait().expect("it ends");
    }
    assert!(killed > 50, "only {killed} calls were killed");
    // Each pod gets its network whole, and no address has two of them: their own ends say which they have.
    let mut given: Vec<IpAddr> = Vec::new();
    for (n, pod) in pods.iter().enumerate() {
        let result = add(pod, &config(n));
        for at in [0, 1] {
            let own = address(&result, at);
            assert!(output(&format!("ip -n {} -o addr show dev eth0", pod.0)).contains(&format!(" {own}/")), "{own}");
            given.push(own);
        }
    }
    given.sort();
    given.dedup();
    assert_eq!(given.len(), 2 * PODS, "{given:?}");
    // The runtime ends what it began: a DEL of each.
    let ends: Vec<Child> = pods.iter().enumerate().map(|(n, pod)| command("DEL", pod, &config(n))).collect();
    for child in ends {
        assert!(child.wait_with_output().expect("it ends").status.success());
    }
    same(&kernel(), &before);
    assert_eq!(network.files(), [""; 0]);
    for pod in &pods {
        assert_eq!(output(&format!("ip -n {} -o link show", pod.0)).lines().count(), 1, "only its loopback");
        pod.end();
    }
    let rest = |path: PathBuf| std::fs::read_dir(path).map_or(0, Iterator::count);
    assert!(rest(network.dir.path().join("n")) <= 5, "folders, two cursors and a lock");
    println!("{killed} of {CALLS} calls were killed");
}
