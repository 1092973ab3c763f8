//! Packets decide: real connections between network namespaces show what rules do, whatever they
//! look like.

mod node;
mod world;

use std::process::Command;
use std::time::{Duration, Instant};

use proxy::Mode;
use proxy::model::LocalPods;

use node::{Node, Spec, all, on};
use serde_json::json;
use world::{Outcome, UdpClient, attempt, is_dropped, reach, who};

/// Set inside the test's own namespaces.
const INSIDE: &str = "PINTLE_PACKETS";
/// Names the mode in which this process changes rules until it is killed.
const CHURNS: &str = "PINTLE_PACKETS_CHURNS";
const VIP: &str = "10.96.0.10:80";

#[test]
#[ignore = "needs root: ./dev test runs it"]
#[allow(clippy::disallowed_methods, reason = "says that this process is the one inside")]
fn packets() {
    if !namespaces::is_inside(INSIDE, "packets", namespaces::Own::NetworkAndMounts) {
        return;
    }
    if let Ok(mode) = std::env::var(CHURNS) {
        churn(if mode == Mode::Nftables.as_str() { Mode::Nftables } else { Mode::Iptables });
        return;
    }
    world::build();
    for mode in [Mode::Nftables, Mode::Iptables] {
        let mut node = Node::new(mode);
        for (name, check) in CHECKS {
            println!("packets: {} {name}", node.mode());
            check(&mut node);
            node.set(&[]);
        }
        node.cleanup();
    }
}

type Check = fn(&mut Node);

const CHECKS: &[(&str, Check)] = &[
    ("cluster addresses", cluster_addresses),
    ("what nobody owns", unowned),
    ("node ports", node_ports),
    ("node ports at some addresses", node_port_addresses),
    ("external policy Local", external_local),
    ("internal policy Local", internal_local),
    ("external and balancers' addresses", outside_addresses),
    ("source ranges", source_ranges),
    ("affinity", affinity),
    ("affinity that ends", affinity_ends),
    ("UDP", udp),
    ("near and last endpoints", chosen),
    ("masquerade all", masquerade_all),
    ("ways to tell pods", local_pods),
    ("an address claimed twice", claimed_twice),
    ("both families", both_families),
    ("a pod that is gone", gone_pod),
    ("who still answers", still_answers),
    ("somebody else", somebody_else),
    ("the other mode", other_mode),
    ("a table nat of the host's own", table_of_the_hosts),
    ("killed in the middle", killed),
];

fn web(endpoints: serde_json::Value) -> Spec {
    Spec::new("web", json!({"clusterIP": "10.96.0.10", "ports": [{"port": 80}]}), endpoints)
}

fn exposed(more: serde_json::Value, endpoints: serde_json::Value) -> Spec {
    let spec = json!({"type": "NodePort", "clusterIP": "10.96.0.10", "ports": [{"port": 80, "nodePort": 30080}]});
    Spec::new("web", spec, endpoints).with(more)
}

fn cluster_addresses(node: &mut Node) {
    node.set(&[web(all())]);
    for from in ["p1", "n1", "out"] {
        assert_eq!(who(from, VIP, 60), ["p1", "p2", "p3"], "from {from}");
    }
    // A pod keeps its address, but for itself.
    for _ in 0..30 {
        let outcome = reach("p1", VIP);
        let want = if outcome.by() == "p1" { "10.244.0.1" } else { "10.244.0.2" };
        assert_eq!(outcome.from(), want, "{outcome:?}");
    }
    // Who is no pod has this node's, so that the answer comes back this way.
    node.set(&[web(on("p3"))]);
    assert_eq!(reach("out", VIP).from(), "192.168.9.1");
    node.set(&[web(on("p2"))]);
    assert_eq!(who("p1", VIP, 5), ["p2"]);
}

fn local_pods(node: &mut Node) {
    // Who is a pod keeps its address; who is not has this node's, on the way out to the pod.
    let check = |node: &mut Node, ways: LocalPods, keeps: [bool; 2]| {
        let shown = format!("{ways:?}");
        node.told_by(ways);
        node.set(&[web(on("p3"))]);
        for (from, own, keeps) in [("p1", "10.244.0.2", keeps[0]), ("p2", "10.244.0.3", keeps[1])] {
            let want = if keeps { own } else { "192.168.9.1" };
            assert_eq!(reach(from, VIP).from(), want, "from {from} by {shown}");
        }
    };
    check(node, LocalPods::Interfaces("veth".into()), [true, true]);
    check(node, LocalPods::Bridge("vethp1".into()), [true, false]);
    check(node, LocalPods::Ranges(vec!["10.244.0.3/32".parse().expect("a range")]), [false, true]);
    let two = ["10.244.0.2/32", "10.244.0.3/32"].map(|s| s.parse().expect("a range"));
    check(node, LocalPods::Ranges(two.into()), [true, true]);
    check(node, LocalPods::Unknown, [true, true]);
    node.told_by(LocalPods::Ranges(["10.244.0.0/16", "fd00::/56"].map(|s| s.parse().expect("a range")).into()));
}

fn unowned(node: &mut Node) {
    node.set(&[exposed(json!({}), json!([]))]);
    for from in ["p1", "n1", "out"] {
        assert_eq!(reach(from, VIP), Outcome::Refused, "no endpoints, from {from}");
        assert_eq!(reach(from, "192.168.9.1:30080"), Outcome::Refused, "no endpoints, from {from}");
    }
    node.set(&[web(all())]);
    for from in ["p1", "n1", "out"] {
        assert_eq!(reach(from, "10.96.0.10:81"), Outcome::Refused, "another port, from {from}");
        assert_eq!(reach(from, "10.96.7.7:80"), Outcome::Refused, "another address, from {from}");
    }
    if node.guards_pods() {
        assert_eq!(reach("p1", "10.244.0.77:80"), Outcome::Refused, "a pod that is not");
    }
}

fn node_ports(node: &mut Node) {
    node.set(&[exposed(json!({}), all())]);
    for from in ["p1", "n1", "n2", "out"] {
        assert_eq!(who(from, "192.168.9.1:30080", 60), ["p1", "p2", "p3"], "from {from}");
    }
    node.set(&[exposed(json!({}), on("p2"))]);
    assert_ne!(reach("out", "192.168.9.1:30080").from(), "192.168.9.100", "masqueraded");
    assert_eq!(who("p2", "192.168.9.1:30080", 3), ["p2"], "a pod reaches itself");
}

fn node_port_addresses(node: &mut Node) {
    node.ports_at(&["192.168.9.0/24"]);
    node.set(&[exposed(json!({}), all())]);
    assert_eq!(who("out", "192.168.9.1:30080", 1).len(), 1);
    node.ports_at(&["172.16.0.0/12"]);
    node.set(&[exposed(json!({}), all())]);
    assert_eq!(reach("out", "192.168.9.1:30080"), Outcome::Refused);
    node.ports_at(&[]);
}

fn external_local(node: &mut Node) {
    let local = json!({"externalTrafficPolicy": "Local"});
    node.set(&[exposed(local.clone(), all())]);
    assert_eq!(who("out", "192.168.9.1:30080", 40), ["p1", "p2"]);
    assert_eq!(reach("out", "192.168.9.1:30080").from(), "192.168.9.100", "who asks is seen");
    assert_eq!(who("p1", VIP, 60), ["p1", "p2", "p3"], "from within everywhere");
    node.set(&[exposed(local.clone(), on("p3"))]);
    assert!(is_dropped("out", "192.168.9.1:30080"), "another node has endpoints");
    for from in ["p1", "n1"] {
        assert_eq!(who(from, "192.168.9.1:30080", 3), ["p3"], "from {from}, as through a balancer");
    }
    node.set(&[exposed(local, json!([]))]);
    assert_eq!(reach("out", "192.168.9.1:30080"), Outcome::Refused, "no node has endpoints");
    // The same by addresses, while endpoints come and go.
    let spec = |endpoints| {
        let more = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "externalIPs": ["198.51.100.2"]});
        exposed(more, endpoints).ingress(json!([{"ip": "203.0.113.1"}]))
    };
    let addresses = ["198.51.100.2:80", "203.0.113.1:80", "192.168.9.1:30080"];
    for (endpoints, near) in [(all(), vec!["p1", "p2"]), (on("p2"), vec!["p2"]), (all(), vec!["p1", "p2"])] {
        node.set(&[spec(endpoints)]);
        for to in addresses {
            assert_eq!(who("out", to, 40), near, "to {to}");
            assert_eq!(reach("out", to).from(), "192.168.9.100", "who asks is seen, to {to}");
        }
    }
    for to in addresses {
        assert_eq!(who("p1", to, 60), ["p1", "p2", "p3"], "from a pod anywhere, to {to}");
    }
    node.set(&[spec(on("p3"))]);
    for to in addresses {
        assert!(is_dropped("out", to), "another node has endpoints, to {to}");
        assert_eq!(who("p1", to, 3), ["p3"], "to {to}");
    }
}

fn internal_local(node: &mut Node) {
    let local = json!({"internalTrafficPolicy": "Local"});
    node.set(&[exposed(local.clone(), all())]);
    assert_eq!(who("p1", VIP, 40), ["p1", "p2"]);
    assert_eq!(who("out", "192.168.9.1:30080", 60), ["p1", "p2", "p3"], "from outside everywhere");
    node.set(&[exposed(local, on("p3"))]);
    assert!(is_dropped("p1", VIP), "another node has endpoints");
}

fn outside_addresses(node: &mut Node) {
    let spec = exposed(json!({"type": "LoadBalancer", "externalIPs": ["198.51.100.2"]}), on("p2"));
    node.set(&[spec.ingress(json!([{"ip": "203.0.113.1"}, {"ip": "203.0.113.2", "ipMode": "Proxy"}]))]);
    for to in ["198.51.100.2:80", "203.0.113.1:80"] {
        for from in ["p1", "n1", "out"] {
            assert_eq!(who(from, to, 3), ["p2"], "from {from} to {to}");
        }
    }
    // What a balancer keeps for itself is not translated: it goes on to nobody.
    assert!(!matches!(attempt("p1", "203.0.113.2:80"), Outcome::Reached(..)));
}

fn source_ranges(node: &mut Node) {
    let spec = |range: &str| {
        let more = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": [range]});
        exposed(more, on("p2")).ingress(json!([{"ip": "203.0.113.1"}]))
    };
    node.set(&[spec("192.168.9.0/24")]);
    assert_eq!(who("out", "203.0.113.1:80", 3), ["p2"]);
    node.set(&[spec("192.168.7.0/24")]);
    assert!(is_dropped("out", "203.0.113.1:80"));
    assert_eq!(who("out", "192.168.9.1:30080", 1), ["p2"], "node ports are no balancer's");
}

fn affinity(node: &mut Node) {
    let sticky = || exposed(json!({"sessionAffinity": "ClientIP"}), all());
    node.set(&[sticky()]);
    for (from, to) in [("p1", VIP), ("out", "192.168.9.1:30080"), ("p2", VIP)] {
        let names = who(from, to, 20);
        assert_eq!(names.len(), 1, "from {from}");
        node.restart(&[sticky()]);
        assert_eq!(who(from, to, 20), names, "from {from}, after a restart");
    }
    // The endpoint it had goes; the client gets another and stays there.
    node.set(&[exposed(json!({"sessionAffinity": "ClientIP"}), on("p3"))]);
    assert_eq!(who("p1", VIP, 5), ["p3"]);
    // When the first is back, it stays with the second. (In iptables mode it may go back, as upstream's.)
    if node.mode() == Mode::Nftables.as_str() {
        for endpoints in [all(), on("p3"), all()] {
            node.set(&[exposed(json!({"sessionAffinity": "ClientIP"}), endpoints)]);
            assert_eq!(who("p1", VIP, 20), ["p3"]);
        }
    }
}

fn affinity_ends(node: &mut Node) {
    let config = json!({"clientIP": {"timeoutSeconds": 1}});
    node.set(&[exposed(json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}), all())]);
    let first = reach("p1", VIP).by().to_owned();
    // Each connection that finds the client known makes it known for another second: none for two.
    until("another endpoint", Duration::from_secs(60), || {
        let (pause, paused) = std::sync::mpsc::channel::<()>();
        let _ = paused.recv_timeout(Duration::from_secs(2));
        drop(pause);
        reach("p1", VIP).by() != first
    });
}

fn until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    #[allow(clippy::disallowed_methods, reason = "a test against the real kernel has real time")]
    let now = Instant::now;
    let end = now() + limit;
    while !done() {
        assert!(now() < end, "never: {what}");
    }
}

fn udp(node: &mut Node) {
    let spec = |endpoints| {
        let ports = json!([{"name": "u", "port": 53, "protocol": "UDP", "nodePort": 30053}, {"name": "t", "port": 53, "nodePort": 30054}]);
        exposed(json!({"ports": ports, "externalIPs": ["198.51.100.2"]}), endpoints)
    };
    node.set(&[spec(on("p1"))]);
    let clients = [("p2", "10.96.0.10:53"), ("out", "192.168.9.1:30053"), ("out", "198.51.100.2:53")]
        .map(|(from, to)| UdpClient::new(from, to));
    let answers = |pod: &str, when: &str| {
        for client in &clients {
            assert_eq!(client.reach().by(), pod, "{} {when}", client.to);
        }
    };
    answers("p1", "at first");
    assert_eq!(who("p2", "10.96.0.10:53", 3), ["p1"], "TCP on the same port");
    // Its endpoint goes, and the same client gets the other.
    node.set(&[spec(on("p3"))]);
    answers("p3", "after its endpoint went");
    // The last endpoint goes: refused. It comes again.
    node.set(&[spec(json!([]))]);
    assert_eq!(clients[0].reach(), Outcome::Refused);
    node.set(&[spec(on("p1"))]);
    answers("p1", "with an endpoint again");
    // The Service goes and comes back.
    node.set(&[]);
    node.set(&[spec(on("p3"))]);
    answers("p3", "with a Service again");
    // While nobody watched, the endpoint was replaced.
    node.restart(&[spec(on("p1"))]);
    answers("p1", "after a restart");
}

fn chosen(node: &mut Node) {
    let mut near = all();
    for (i, zone) in ["a", "b", "b"].iter().enumerate() {
        near[i]["hints"] = json!({"forZones": [{"name": zone}]});
    }
    node.set(&[web(near)]);
    assert_eq!(who("p2", VIP, 20), ["p1"], "the zone is a");
    // One's own node comes before one's zone.
    let mut nearest = all();
    for (i, node) in ["n2", "n1", "n2"].iter().enumerate() {
        nearest[i]["hints"] = json!({"forZones": [{"name": "a"}], "forNodes": [{"name": node}]});
    }
    node.set(&[exposed(json!({}), nearest)]);
    for (from, to) in [("p1", VIP), ("out", "192.168.9.1:30080")] {
        assert_eq!(who(from, to, 20), ["p2"], "the node is n1");
    }
    let mut last = all();
    for i in 0..3 {
        last[i]["conditions"] = json!({"ready": false, "serving": i != 1, "terminating": true});
    }
    node.set(&[web(last)]);
    assert_eq!(who("p2", VIP, 30), ["p1", "p3"], "who still answers");
}

fn masquerade_all(node: &mut Node) {
    node.masquerade_all(true);
    node.set(&[web(on("p2"))]);
    assert_ne!(reach("p1", VIP).from(), "10.244.0.2");
    node.masquerade_all(false);
}

fn claimed_twice(node: &mut Node) {
    let thief = Spec::new(
        "a-thief",
        json!({"clusterIP": "10.96.0.66", "externalIPs": ["10.96.0.10"], "ports": [{"port": 80}]}),
        on("p2"),
    );
    node.set(&[web(on("p1")), thief.clone()]);
    assert_eq!(who("p2", VIP, 5), ["p1"]);
    node.set(&[web(json!([])), thief.clone()]);
    assert_eq!(reach("p2", VIP), Outcome::Refused, "without endpoints it is still its owner's");
    node.set(&[thief]);
    assert_eq!(who("p1", VIP, 3), ["p2"], "now it is nobody else's");
}

fn both_families(node: &mut Node) {
    let spec = json!({"type": "NodePort", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd01::10"],
        "ports": [{"port": 80, "nodePort": 30080}]});
    let endpoints =
        json!([{"addresses": ["10.244.0.2"], "nodeName": "n1"}, {"addresses": ["fd00:0:0:0::3"], "nodeName": "n1"}]);
    node.set(&[Spec::new("web", spec, endpoints)]);
    assert_eq!(who("p2", VIP, 3), ["p1"]);
    assert_eq!(who("p1", "[fd01::10]:80", 3), ["p2"]);
    assert_eq!(who("p2", "[fd01::10]:80", 3), ["p2"], "itself");
    assert_eq!(who("out", "[fd09::1]:30080", 3), ["p2"]);
    assert_eq!(reach("p1", "[fd01::77]:80"), Outcome::Refused);
}

fn gone_pod(node: &mut Node) {
    if !node.guards_pods() {
        return;
    }
    world::pod("p9", "n1", 0, 9);
    node.set(&[web(json!([{"addresses": ["10.244.0.9"], "nodeName": "n1"}]))]);
    let mut stream = world::within("p1", || std::net::TcpStream::connect(VIP).expect("connected"));
    world::run("ip -n n1 link del vethp9");
    // The connection ends, it does not hang.
    let ended = world::within("p1", || {
        use std::io::Read;
        stream.set_read_timeout(Some(Duration::from_millis(100))).expect("set");
        let mut end = None;
        until("the end of the connection", Duration::from_secs(20), || {
            use std::io::Write;
            let sent: std::io::Result<()> = stream.write(b"x").and_then(|_| {
                let mut buffer = [0; 64];
                loop {
                    match stream.read(&mut buffer) {
                        Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                        Ok(_) => {}
                        Err(error) => return Err(error),
                    }
                }
            });
            end = sent.err().map(|e| e.kind()).filter(|k| *k != std::io::ErrorKind::WouldBlock);
            end.is_some()
        });
        end
    });
    assert_eq!(ended, Some(std::io::ErrorKind::ConnectionReset));
}

/// Connections that somebody still uses are seen, whatever address they were begun to.
fn still_answers(node: &mut Node) {
    node.set(&[exposed(json!({}), on("p2"))]);
    let pods = ["10.244.0.2:8080", "10.244.0.3:8080"];
    assert!(node.open(&pods).is_empty());
    for (from, to) in [("p1", VIP), ("out", "192.168.9.1:30080")] {
        let stream = world::within(from, || std::net::TcpStream::connect(to).expect("connected"));
        assert_eq!(node.open(&pods), ["10.244.0.3:8080"], "from {from} to {to}");
        drop(stream);
        until("its end", Duration::from_secs(20), || node.open(&pods).is_empty());
    }
}

fn somebody_else(node: &mut Node) {
    let spec = [web(on("p2"))];
    node.set(&spec);
    assert_eq!(who("p1", VIP, 2), ["p2"]);
    assert!(node.hears(), "somebody flushed the rules");
    assert!(!matches!(attempt("p1", VIP), Outcome::Reached(..)));
    node.restart(&spec);
    assert_eq!(who("p1", VIP, 2), ["p2"]);
}

fn other_mode(node: &mut Node) {
    // What nobody cleaned up would go on translating: the first of both that the kernel asks wins.
    node.set(&[exposed(json!({}), on("p2"))]);
    assert_eq!(who("p1", VIP, 3), ["p2"]);
    for _ in 0..2 {
        let others = if node.mode() == Mode::Nftables.as_str() { "kube-proxy" } else { "KUBE-" };
        node.switch(&[exposed(json!({}), on("p1"))]);
        for (from, to) in [("p2", VIP), ("out", "192.168.9.1:30080")] {
            assert_eq!(who(from, to, 5), ["p1"], "from {from} to {to} in mode {}", node.mode());
        }
        assert!(!node.listing().contains(others), "{others} are left: {}", node.listing());
        node.set(&[exposed(json!({}), on("p2"))]);
        assert_eq!(who("p1", VIP, 5), ["p2"]);
    }
}

/// Iptables' programs read a table `nat` in which somebody has put what they cannot say, and say so.
fn table_of_the_hosts(node: &mut Node) {
    if node.mode() == Mode::Iptables.as_str() {
        // There they and we would write into one table.
        return;
    }
    let run = |line: &str| world::within("n1", || world::run(line));
    run("nft add table ip nat");
    run("nft add set ip nat friends { type ipv4_addr ; flags interval ; elements = { 192.0.2.0/24 } ; }");
    run("nft add chain ip nat own { type nat hook prerouting priority -150 ; }");
    run("nft add rule ip nat own ip saddr @friends tcp dport 99 redirect to :98");
    let own = || world::within("n1", || world::output("nft list table ip nat"));
    let before = own();
    // The other mode's rules are looked for, as at every start, and no harm is done.
    node.look_for_others();
    node.restart(&[exposed(json!({}), all())]);
    for (from, to) in [("p1", VIP), ("out", "192.168.9.1:30080")] {
        assert_eq!(who(from, to, 60), ["p1", "p2", "p3"], "from {from} to {to}");
    }
    node.set(&[]);
    assert_eq!(own(), before);
    run("nft delete table ip nat");
}

/// One Service that stays and twenty whose endpoints come and go, some of them of every kind.
fn churning(round: usize) -> Vec<Spec> {
    let names: [&'static str; 20] =
        ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"];
    let mut specs = vec![web(on("p2"))];
    for (i, name) in names.into_iter().enumerate().filter(|(i, _)| !(i + round).is_multiple_of(3)) {
        let endpoints: Vec<_> =
            (0..(i + round) % 7).map(|e| json!({"addresses": [format!("10.244.7.{}", e + round % 5)]})).collect();
        let spec = json!({"clusterIP": format!("10.96.1.{i}"), "ports": [{"port": 80, "nodePort": 31000 + i}],
            "type": if i % 4 == 0 { "NodePort" } else { "ClusterIP" },
            "sessionAffinity": if i % 5 == 0 { "ClientIP" } else { "None" }});
        specs.push(Spec::new(name, spec, endpoints.into()));
    }
    specs
}

/// Changes rules, and says so each time, until somebody kills this process.
fn churn(mode: Mode) {
    let mut node = Node::new(mode);
    for round in 0.. {
        node.set(&churning(round));
        println!("churned");
    }
}

/// A proxy that is killed, whatever it was doing, leaves rules that work, and the next one makes of them what they
/// should be.
fn killed(node: &mut Node) {
    use std::io::{BufRead, BufReader};
    let want = |node: &mut Node| {
        node.restart(&[web(on("p2"))]);
        let rules = node.rules();
        node.set(&[]);
        rules
    };
    let fresh = want(node);
    for round in 0..8 {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["packets", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        let command = command.env(CHURNS, node.mode()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut seen = 0;
        // After as many changes as the round says it is in the middle of the next one, or just before it.
        while seen <= round {
            let line = lines.next().expect("it goes on").expect("text");
            seen += usize::from(line.ends_with("churned"));
        }
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert_eq!(who("p1", VIP, 3), ["p2"], "after a kill in round {round}");
        assert_eq!(want(node), fresh, "the next one's rules in round {round}");
    }
}
