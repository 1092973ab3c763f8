//! What waits for the kernel is said: the proxy against an API server in memory and a kernel that
//! takes its time.

use std::collections::VecDeque;
use std::net::SocketAddr;

use api::types::coordination::v1 as coordination;
use api::types::discovery::v1 as discovery;
use api::types::events::v1 as events;
use api::types::networking::v1 as networking;
use client::fake::Fake;
use jiff::Timestamp;
use net::conntrack::{Connections, Judge};
use net::iptables::Iptables;
use net::nft::{Error, Kernel};
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::Clock;
use stdx::clock::ManualClock;
use tokio::sync::{Notify, oneshot};

use super::*;
use crate::health::Health;
use crate::options::{DetectLocal, NodePorts};

/// A transaction, and where its answer is waited for.
type Asked = (String, oneshot::Sender<Result<(), Error>>);

/// Transactions stay with the test until it answers them.
#[derive(Default)]
struct Slow {
    asked: Mutex<VecDeque<Asked>>,
    drift: Notify,
    /// What a text may not name when it is checked; without it none is taken.
    hated: Mutex<Option<String>>,
    /// How often connections were looked at.
    cleaned: Mutex<usize>,
    /// Of which families an entry that leads nowhere was found.
    ended: Mutex<Vec<Family>>,
    /// What comes of it, the next times; nothing is found otherwise.
    finds: Mutex<VecDeque<std::io::Result<usize>>>,
    /// Who still answers somebody.
    open: Mutex<BTreeSet<SocketAddr>>,
}

#[async_trait::async_trait]
impl Kernel for Slow {
    async fn apply(&self, transaction: &str) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.asked.lock().push_back((transaction.to_owned(), answer));
        answered.await.unwrap_or(Ok(()))
    }

    async fn check(&self, text: &str) -> Result<(), Error> {
        let no = self.hated.lock().as_ref().is_none_or(|hated| text.contains(hated.as_str()));
        if no { Err(Error::Refused("Operation not supported".into())) } else { Ok(()) }
    }

    async fn sets(&self, _: Family) -> Result<String, Error> {
        Ok(String::new())
    }

    async fn changed(&self, _: &[&str]) -> std::io::Result<()> {
        self.drift.notified().await;
        Ok(())
    }
}

#[async_trait::async_trait]
impl Iptables for Slow {
    async fn save(&self, _: Family) -> Result<String, Error> {
        Ok(String::new())
    }

    async fn restore(&self, _: Family, text: &str) -> Result<(), Error> {
        self.apply(text).await
    }

    async fn check(&self, _: Family, _: &str) -> Result<(), Error> {
        Err(Error::Refused("nothing is checked here".into()))
    }
}

#[async_trait::async_trait]
impl Connections for Slow {
    async fn remove_udp(&self, family: Family, is_stale: Judge) -> std::io::Result<usize> {
        // Somebody whom the kernel sent to an endpoint of a Service that was there once.
        let ip = |v4: &str, v6: &str| (if family == Family::Ip { v4 } else { v6 }).parse().expect("an address");
        let entry = net::conntrack::Entry::new(
            ip("192.0.2.1:4000", "[2001:db8::1]:4000"),
            ip("198.51.100.7:53", "[2001:db8::7]:53"),
            ip("10.244.0.9:53", "[fd00::9]:53"),
        );
        if is_stale(&entry) {
            self.ended.lock().push(family);
        }
        *self.cleaned.lock() += 1;
        self.finds.lock().pop_front().unwrap_or(Ok(0))
    }

    async fn open_tcp(&self, endpoints: BTreeSet<SocketAddr>) -> std::io::Result<BTreeSet<SocketAddr>> {
        Ok(endpoints.intersection(&self.open.lock()).copied().collect())
    }
}

struct Bench {
    fake: Fake,
    client: Client,
    clock: ManualClock,
    kernel: Arc<Slow>,
    registry: stdx::metrics::Registry,
    stage: Stage,
}

impl Bench {
    fn start() -> Self {
        Self::with(Mode::Nftables)
    }

    fn with(mode: Mode) -> Self {
        Self::knowing(mode, vec!["10.96.0.0/12".parse().expect("a range")])
    }

    /// One that is told these ranges of Service addresses.
    fn knowing(mode: Mode, service_cidrs: Vec<ipnet::IpNet>) -> Self {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let shared: SharedClock = Arc::new(clock.clone());
        let resources = vec![
            Resource::of::<core::Service>(),
            Resource::of::<core::Node>(),
            Resource::of::<discovery::EndpointSlice>(),
            Resource::of::<networking::ServiceCIDR>(),
            Resource::of::<coordination::Lease>(),
            Resource::of::<events::Event>(),
            client::waits::resource(),
        ];
        let fake = Fake::new(resources, shared.clone(), Rng::seeded(1));
        let (client, kernel, stage) = (Client::new(fake.handler(), "test"), Arc::new(Slow::default()), Stage::new());
        let registry = stdx::metrics::Registry::default();
        let options = Options {
            node_name: "n".into(),
            service_cidrs,
            cluster_cidrs: vec!["10.244.0.0/16".parse().expect("a range")],
            mode,
            pod_interfaces: Some("veth*".into()),
            detect_local: DetectLocal::ClusterCidr,
            node_ports: NodePorts::All,
            masquerade_all: false,
            masquerade_bit: 14,
            masquerade_egress: false,
            takes_over: false,
            kernel: kernel.clone(),
            tables: kernel.clone(),
            connections: kernel.clone(),
            addresses: || Ok(Vec::new()),
            registry: registry.clone(),
            health: Health::new(shared.clone(), &registry),
        };
        let (own, inner) = (client.clone(), stage.clone());
        stage.spawn(async move { run(own, shared, Rng::seeded(2), options, &inner).await });
        Self { fake, client, clock, kernel, registry, stage }
    }

    async fn service(&self, name: &str, ip: &str) {
        let service = json!({"metadata": {"name": name, "namespace": "default"},
            "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80}]}});
        self.client.dynamic(Resource::of::<core::Service>()).namespace("default").create(&service).await.expect("made");
        let slice = json!({"metadata": {"name": format!("{name}-1"), "namespace": "default",
                "labels": {"kubernetes.io/service-name": name},
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "1970-01-01T00:00:00Z"}},
            "endpoints": [{"addresses": ["10.244.0.9"], "conditions": {"ready": true}}], "ports": [{"port": 8080}]});
        let slices = self.client.dynamic(Resource::of::<discovery::EndpointSlice>());
        slices.namespace("default").create(&slice).await.expect("made");
    }

    /// Lets tasks run and timers fire until `done` holds.
    async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..5_000 {
            if done(self) {
                return;
            }
            tokio::task::yield_now().await;
            if let Some(at) = self.clock.next_timer() {
                self.clock.advance(at.since(self.clock.now()).min(Duration::from_millis(20)));
            }
        }
        panic!("never: {what}; waits {:?}", self.waits());
    }

    /// The kernel answers the next transaction, which names `part`.
    async fn answer(&self, part: &str, answer: Result<(), Error>) {
        self.until("a transaction", |b| !b.kernel.asked.lock().is_empty()).await;
        let (text, waits) = self.kernel.asked.lock().pop_front().expect("there is one");
        assert!(text.contains(part), "{part} is not in {text}");
        waits.send(answer).expect("it is waited for");
    }

    /// Service, layer, code and text of every Wait.
    fn waits(&self) -> Vec<String> {
        let text = |w: &Value, p: &str| w.pointer(p).and_then(Value::as_str).unwrap_or_default().to_owned();
        let line = |w: &Value| {
            format!(
                "{} {} {} {}: {}",
                text(w, "/object/kind"),
                text(w, "/object/name"),
                text(w, "/layer"),
                text(w, "/code"),
                text(w, "/text")
            )
        };
        let mut lines: Vec<String> = self.fake.objects("waits.explain.pintle.dev").iter().map(line).collect();
        lines.sort();
        lines
    }
}

#[tokio::test]
async fn a_ready_endpoint_whose_rules_the_kernel_does_not_have_is_a_wait() {
    let bench = Bench::start();
    bench.answer("", Ok(())).await;
    bench.service("slow", "10.96.0.7").await;
    let slow = "Service slow proxy RulesNotInKernel: the kernel does not have this Service's present rules yet";
    bench.until("the first Wait", |b| b.waits() == [slow]).await;
    // A second Service changes while the kernel is busy with the first.
    bench.service("next", "10.96.0.8").await;
    bench.until("the second Wait", |b| b.waits().len() == 2).await;
    bench.answer("10.96.0.7", Err(Error::Refused("Operation not supported".into()))).await;
    // It may be the table that is not as it is thought to be.
    bench.answer("delete table ip kube-proxy", Err(Error::Refused("Operation not supported".into()))).await;
    let refused = "RulesNotInKernel: the kernel refused the rules: Operation not supported";
    bench
        .until("the kernel's words", |b| {
            let waits = b.waits();
            waits.len() == 2
                && waits.iter().all(|w| w.ends_with(refused) || w.starts_with("Service next"))
                && waits.iter().any(|w| w.starts_with("Service slow") && w.ends_with(refused))
        })
        .await;
    // When its time comes, everything is loaded.
    bench.answer("10.96.0.8", Ok(())).await;
    bench.until("both withdrawn", |b| b.waits().is_empty()).await;
    // What changes no rule waits for nothing.
    bench.fake.change("services", "default", "slow", |service| service["metadata"]["labels"] = json!({"a": "b"}));
    let shown = bench.clock.now() + Duration::from_secs(1);
    bench.until("a second later", |b| b.clock.now() >= shown || b.clock.next_timer().is_none()).await;
    assert!(bench.waits().is_empty(), "{:?}", bench.waits());
    assert!(bench.kernel.asked.lock().is_empty(), "nothing was sent");
    bench.stage.stop();
}

#[tokio::test]
async fn what_somebody_else_changed_is_loaded_again() {
    let bench = Bench::start();
    bench.answer("delete table ip kube-proxy", Ok(())).await;
    bench.service("web", "10.96.0.7").await;
    bench.answer("add chain ip kube-proxy tcp-endpoints-1", Ok(())).await;
    bench.kernel.drift.notify_one();
    bench.answer("delete table ip kube-proxy", Ok(())).await;
    bench.stage.stop();
}

#[tokio::test]
async fn ranges_nobody_named_are_those_the_api_names() {
    let bench = Bench::knowing(Mode::Nftables, Vec::new());
    // What belongs to nobody is somebody else's network, for all that is known.
    bench.until("the first load", |b| !b.kernel.asked.lock().is_empty()).await;
    let text = bench.kernel.asked.lock().front().map(|(text, _)| text.clone()).unwrap_or_default();
    assert!(text.contains("chain cluster-ips-check") && !text.contains("10.96.0.0/12"), "{text}");
    bench.answer("delete table ip kube-proxy", Ok(())).await;
    let range = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["172.20.0.0/16", "fd01::/112"]}});
    bench.client.dynamic(Resource::of::<networking::ServiceCIDR>()).create(&range).await.expect("made");
    bench.answer("ip daddr 172.20.0.0/16 goto reject-chain", Ok(())).await;
    bench.stage.stop();
}

#[tokio::test]
async fn connections_are_looked_at_when_udp_changes_and_after_a_start() {
    let bench = Bench::start();
    bench.answer("", Ok(())).await;
    bench.until("the first look", |b| *b.kernel.cleaned.lock() == 1).await;
    bench.service("web", "10.96.0.7").await;
    bench.answer("10.96.0.7", Ok(())).await;
    let service = |s: &mut Value| s["spec"]["ports"] = json!([{"port": 53, "protocol": "UDP"}]);
    bench.fake.change("services", "default", "web", service);
    bench.answer("udp", Ok(())).await;
    bench.until("the second look", |b| *b.kernel.cleaned.lock() == 2).await;
    bench.fake.change("services", "default", "web", |s| s["spec"]["ports"] = json!([{"port": 53}]));
    bench.answer("tcp", Ok(())).await;
    bench.until("the third look", |b| *b.kernel.cleaned.lock() == 3).await;
    bench.stage.stop();
}

#[tokio::test]
async fn connections_that_could_not_be_looked_at_and_more_than_a_few_are_looked_at_again() {
    let bench = Bench::start();
    let most = net::conntrack::AT_ONCE;
    bench.kernel.finds.lock().extend([Err(std::io::ErrorKind::OutOfMemory.into()), Ok(most), Ok(most), Ok(3)]);
    bench.answer("delete table ip kube-proxy", Ok(())).await;
    // Nothing changes any more: the failed one, the two after which there may be more, the last.
    bench.until("they are looked at", |b| *b.kernel.cleaned.lock() == 4).await;
    let much_later = bench.clock.now() + Duration::from_secs(60);
    bench.until("nothing is left to do", |b| b.clock.now() >= much_later).await;
    assert_eq!(*bench.kernel.cleaned.lock(), 4);
    bench.stage.stop();
}

#[tokio::test]
async fn a_port_of_checks_that_somebody_has_is_told_and_opened_when_it_is_free() {
    let bench = Bench::start();
    let taken = tokio::net::TcpListener::bind(("::", 0)).await.expect("a port");
    let port = taken.local_addr().expect("an address").port();
    bench.answer("delete table ip kube-proxy", Ok(())).await;
    let local = |s: &mut Value| {
        s["spec"]["type"] = json!("LoadBalancer");
        s["spec"]["externalTrafficPolicy"] = json!("Local");
        s["spec"]["healthCheckNodePort"] = json!(port);
    };
    bench.service("web", "10.96.0.7").await;
    bench.answer("10.96.0.7", Ok(())).await;
    bench.fake.change("services", "default", "web", local);
    bench.until("the Wait", |b| b.waits().iter().any(|w| w.contains("HealthCheckPortNotOpen"))).await;
    bench.until("the event", |b| !b.fake.objects("events.events.k8s.io").is_empty()).await;
    let event = &bench.fake.objects("events.events.k8s.io")[0];
    assert_eq!((&event["reason"], &event["action"]), (&json!("FailedToStartServiceHealthcheck"), &json!("Listen")));
    let note = event["note"].as_str().unwrap_or_default();
    assert!(
        note.starts_with(&format!("node n failed to start healthcheck \"default/web\" on port {port}: ")),
        "{note}"
    );
    drop(taken);
    bench.until("it is over", |b| b.waits().iter().all(|w| !w.contains("HealthCheckPortNotOpen"))).await;
    tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("it is open");
    assert_eq!(bench.fake.objects("events.events.k8s.io").len(), 1, "it was told once");
    bench.stage.stop();
}

#[tokio::test]
async fn a_service_the_kernel_refuses_is_tried_again_and_holds_up_no_other() {
    let bench = Bench::start();
    bench.answer("", Ok(())).await;
    *bench.kernel.hated.lock() = Some("10.96.0.66".into());
    bench.service("bad", "10.96.0.66").await;
    let no = || Err(Error::Refused("Operation not supported".into()));
    bench.answer("10.96.0.66", no()).await;
    // It may be the table that is not as it is thought to be: it is not, and the rest is loaded.
    bench.answer("10.96.0.66", no()).await;
    bench.answer("delete table ip kube-proxy", Ok(())).await;
    let refused = "Service bad proxy RulesNotInKernel: the kernel refused the rules: Operation not supported";
    bench.until("the Wait", |b| b.waits() == [refused]).await;
    // Its time comes in 200 ms; what else changes until then goes without it, later with it.
    bench.answer("10.96.0.66", no()).await;
    bench.answer("10.96.0.66", Ok(())).await;
    bench.until("it is over", |b| b.waits().is_empty()).await;
    bench.stage.stop();
}

#[tokio::test]
async fn rules_of_iptables_that_are_gone_are_loaded_again() {
    let bench = Bench::with(Mode::Iptables);
    bench.answer("-A KUBE-MARK-MASQ", Ok(())).await;
    // What is saved says nothing of our chains: at the next look everything is loaded.
    bench.answer("-A KUBE-MARK-MASQ", Ok(())).await;
    bench.service("web", "10.96.0.7").await;
    let told = |b: &Bench, line: &str| b.registry.page().lines().any(|l| l == line);
    let (total, last) = ("kubeproxy_sync_proxy_rules_iptables_total", "kubeproxy_sync_proxy_rules_iptables_last");
    let nat = "{ip_family=\"IPv4\",table=\"nat\"}";
    let before =
        bench.registry.page().lines().find_map(|l| l.strip_prefix(&format!("{total}{nat} "))?.parse::<u32>().ok());
    let before = before.expect("told");
    assert!(told(&bench, &format!("{last}{nat} {before}")), "all of them were written");
    // The rule that leads to the Service, two that choose, two of its endpoint.
    bench.answer("-I KUBE-SERVICES", Ok(())).await;
    bench.until("they are counted", |b| told(b, &format!("{last}{nat} 5"))).await;
    assert!(told(&bench, &format!("{total}{nat} {}", before + 5)), "{}", bench.registry.page());
    let failed = "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family=\"IPv4\"}";
    // A difference that is refused is counted, and everything is written anew.
    bench.service("next", "10.96.0.8").await;
    bench.answer("-I KUBE-SERVICES", Err(Error::Refused("Resource temporarily unavailable".into()))).await;
    bench.answer("-A KUBE-MARK-MASQ", Ok(())).await;
    bench.until("it is counted", |b| told(b, &format!("{failed} 1"))).await;
    assert!(told(&bench, &format!("{last}{nat} {}", before + 10)), "{}", bench.registry.page());
    bench.stage.stop();
}

#[tokio::test]
async fn it_is_told_what_the_kernel_has_and_how_long_that_took() {
    let bench = Bench::start();
    bench.answer("", Ok(())).await;
    bench.service("web", "10.96.0.7").await;
    let told = |b: &Bench, line: &str| b.registry.page().lines().any(|l| l == line);
    let count = "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}";
    bench.until("a transaction", |b| !b.kernel.asked.lock().is_empty()).await;
    assert!(!told(&bench, &format!("{count} 1")), "the kernel has not answered");
    bench.answer("10.96.0.7", Ok(())).await;
    let slices = bench.fake.objects("endpointslices.discovery.k8s.io");
    let revision = slices[0].pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
    let programmed = format!("kubeproxy_programmed_revision{{resource=\"endpointslices\"}} {revision}");
    bench.until("it is told", |b| told(b, &programmed) && told(b, &format!("{count} 1"))).await;
    for line in [
        "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
        "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
        "kubeproxy_sync_proxy_rules_service_changes_total 1",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total 1",
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv4\",traffic_policy=\"internal\"} 0",
    ] {
        assert!(told(&bench, line), "{line} is not in {}", bench.registry.page());
    }
    // Its endpoint is on another node.
    let local = |s: &mut Value| s["spec"]["internalTrafficPolicy"] = json!("Local");
    bench.fake.change("services", "default", "web", local);
    bench.answer("10.96.0.7", Ok(())).await;
    let lacks = "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv4\",traffic_policy=\"internal\"} 1";
    bench.until("it lacks endpoints", |b| told(b, lacks)).await;
    bench.stage.stop();
}

impl Bench {
    /// What the kubelet of the node is told to have left.
    fn left(&self) -> Vec<String> {
        let lease = self.fake.object("leases.coordination.k8s.io", api::leaving::NAMESPACE, "kube-proxy-n");
        let told = lease.as_ref().and_then(|l| machinery::meta::annotation(l, api::leaving::LEFT)).unwrap_or_default();
        told.lines().map(str::to_owned).collect()
    }

    /// The slice of a Service: pods of the last byte of their address, and whether they are about to end.
    fn endpoints(&self, name: &str, pods: &[(u8, &str, bool)]) {
        let endpoint = |(byte, node, ends): &(u8, &str, bool)| {
            json!({"addresses": [format!("10.244.0.{byte}")], "nodeName": node,
                "conditions": {"ready": !ends, "serving": true, "terminating": ends},
                "targetRef": {"kind": "Pod", "name": format!("p{byte}"), "uid": format!("uid-{byte}")}})
        };
        let all: Vec<Value> = pods.iter().map(endpoint).collect();
        self.fake.change("endpointslices.discovery.k8s.io", "default", &format!("{name}-1"), |slice| {
            slice["endpoints"] = json!(all)
        });
    }
}

#[tokio::test]
async fn the_kubelet_is_told_who_has_left_once_the_kernel_knows() {
    let bench = Bench::start();
    bench.answer("", Ok(())).await;
    for (name, ip) in [("web", "10.96.0.7"), ("other", "10.96.0.8")] {
        bench.service(name, ip).await;
        bench.answer(ip, Ok(())).await;
    }
    let wants = |s: &mut Value| s["metadata"]["annotations"] = json!({api::leaving::WANTED: "true"});
    bench.fake.change("services", "default", "web", wants);
    bench.endpoints("web", &[(1, "n", false), (2, "n", false), (3, "m", false)]);
    bench.answer("10.244.0.3", Ok(())).await;
    // Both of this node end; the kernel takes its time.
    bench.endpoints("web", &[(1, "n", true), (2, "n", true), (3, "m", false)]);
    bench.until("a transaction", |b| !b.kernel.asked.lock().is_empty()).await;
    assert_eq!(bench.left(), Vec::<String>::new(), "the kernel has not answered");
    bench.answer("10.96.0.7", Ok(())).await;
    bench.until("it is told", |b| b.left() == ["default/web/uid-1", "default/web/uid-2"]).await;
    // Who is the last one stays in the rules, and has not left; nor has one of another node.
    bench.endpoints("web", &[(3, "m", true), (4, "n", true)]);
    bench.answer("10.244.0.4", Ok(())).await;
    bench.endpoints("web", &[(3, "m", true), (4, "n", true), (5, "n", false)]);
    bench.until("a transaction", |b| !b.kernel.asked.lock().is_empty()).await;
    assert_eq!(bench.left(), ["default/web/uid-1", "default/web/uid-2"]);
    bench.answer("10.244.0.5", Ok(())).await;
    bench.until("it is told", |b| b.left() == ["default/web/uid-4"]).await;
    // Of who asks for nothing, nothing is told.
    bench.endpoints("other", &[(6, "n", true), (7, "n", false)]);
    bench.answer("10.244.0.7", Ok(())).await;
    bench.endpoints("web", &[(5, "n", true), (8, "n", false)]);
    bench.answer("10.244.0.8", Ok(())).await;
    bench.until("it is told", |b| b.left() == ["default/web/uid-5"]).await;
    bench.stage.stop();
}

#[tokio::test]
async fn who_still_answers_somebody_has_not_left_for_a_while() {
    let bench = Bench::start();
    bench.answer("", Ok(())).await;
    bench.service("web", "10.96.0.7").await;
    bench.answer("10.96.0.7", Ok(())).await;
    let wants = |s: &mut Value| s["metadata"]["annotations"] = json!({api::leaving::WANTED: "true"});
    bench.fake.change("services", "default", "web", wants);
    let at = |byte: u8| SocketAddr::from(([10, 244, 0, byte], 8080));
    bench.kernel.open.lock().extend([at(1), at(2), at(9)]);
    bench.endpoints("web", &[(1, "n", true), (2, "n", true), (3, "n", true), (4, "m", false)]);
    bench.answer("10.244.0.4", Ok(())).await;
    // Who answers nobody has left; one is done later; the other is not waited for for ever.
    bench.until("one has left", |b| b.left() == ["default/web/uid-3"]).await;
    let begun = bench.clock.now();
    bench.kernel.open.lock().remove(&at(1));
    bench.until("another has left", |b| b.left() == ["default/web/uid-1", "default/web/uid-3"]).await;
    assert!(bench.clock.now().since(begun) < Duration::from_secs(2));
    bench.until("all have left", |b| b.left().len() == 3).await;
    assert!(bench.clock.now().since(begun) >= Duration::from_secs(1));
    bench.stage.stop();
}

#[tokio::test]
async fn a_lease_that_cannot_be_written_is_tried_again() {
    let bench = Bench::start();
    bench.answer("", Ok(())).await;
    bench.service("web", "10.96.0.7").await;
    bench.answer("10.96.0.7", Ok(())).await;
    let wants = |s: &mut Value| s["metadata"]["annotations"] = json!({api::leaving::WANTED: "true"});
    bench.fake.change("services", "default", "web", wants);
    let mine = json!({"metadata": {"name": "kube-proxy-n", "namespace": api::leaving::NAMESPACE}, "spec": {"holderIdentity": "old"}});
    let leases = bench.client.dynamic(Resource::of::<coordination::Lease>()).namespace(api::leaving::NAMESPACE);
    leases.create(&mine).await.expect("made");
    for (gone, stays) in [(1, 2), (2, 3)] {
        bench.endpoints("web", &[(gone, "n", true), (stays, "n", false)]);
        bench.answer(&format!("10.244.0.{stays}"), Ok(())).await;
        bench.until("it is told", |b| b.left() == [format!("default/web/uid-{gone}")]).await;
        // Somebody else writes in between.
        let labels = |lease: &mut Value| lease["metadata"]["labels"] = json!({"a": "b"});
        bench.fake.change("leases.coordination.k8s.io", api::leaving::NAMESPACE, "kube-proxy-n", labels);
    }
    bench.stage.stop();
}

#[tokio::test]
async fn a_family_that_fails_holds_up_no_other() {
    let ranges = ["10.96.0.0/12", "fd01::/112"].map(|range| range.parse().expect("a range"));
    let bench = Bench::knowing(Mode::Nftables, ranges.into());
    bench.answer("table ip kube-proxy", Ok(())).await;
    let no = || Err(Error::Refused("Operation not supported".into()));
    bench.answer("table ip6 kube-proxy", no()).await;
    // What was to be checked was nothing; the other family goes on at once.
    bench.service("web", "10.96.0.7").await;
    bench.answer("10.96.0.7", Ok(())).await;
    bench.until("it is no Wait", |b| b.waits().is_empty()).await;
    // The family is tried again by itself, whole, and has what came meanwhile.
    bench.answer("table ip6 kube-proxy", no()).await;
    bench.answer("table ip6 kube-proxy", Ok(())).await;
    bench.service("next", "10.96.0.8").await;
    bench.answer("10.96.0.8", Ok(())).await;
    bench.stage.stop();
}

/// What went while one family took nothing is cleaned up in it when that is over.
#[tokio::test]
async fn connections_of_a_family_that_fails_are_ended_later() {
    let ranges = ["10.96.0.0/12", "fd01::/112"].map(|range| range.parse().expect("a range"));
    let bench = Bench::knowing(Mode::Nftables, ranges.into());
    let service = json!({"metadata": {"name": "dns", "namespace": "default"}, "spec": {"clusterIP": "10.96.0.7",
        "clusterIPs": ["10.96.0.7", "fd01::7"], "ipFamilies": ["IPv4", "IPv6"], "ports": [{"port": 53, "protocol": "UDP"}],
        "externalIPs": ["198.51.100.7", "2001:db8::7"]}});
    bench.answer("table ip kube-proxy", Ok(())).await;
    bench.answer("table ip6 kube-proxy", Ok(())).await;
    let services = bench.client.dynamic(Resource::of::<core::Service>()).namespace("default");
    services.create(&service).await.expect("made");
    bench.answer("10.96.0.7", Ok(())).await;
    bench.answer("fd01::7", Ok(())).await;
    bench.until("looked at", |b| *b.kernel.cleaned.lock() >= 2).await;
    // Long enough that they are looked at at once.
    let later = bench.clock.now() + CLEAN * 2;
    bench.until("a while", |b| b.clock.now() >= later).await;
    bench.kernel.ended.lock().clear();
    services.delete("dns", &client::DeleteParams::default()).await.expect("gone");
    bench.answer("10.96.0.7", Ok(())).await;
    bench.answer("fd01::7", Err(Error::Program(std::io::ErrorKind::OutOfMemory.into()))).await;
    bench.until("one is ended", |b| b.kernel.ended.lock().contains(&Family::Ip)).await;
    assert!(!bench.kernel.ended.lock().contains(&Family::Ip6));
    bench.answer("table ip6 kube-proxy", Ok(())).await;
    bench.until("and the other", |b| b.kernel.ended.lock().contains(&Family::Ip6)).await;
    bench.stage.stop();
}

/// Of a Service of both families that only one has taken, the Wait stays, and says why.
#[tokio::test]
async fn a_service_waits_for_both_families() {
    let ranges = ["10.96.0.0/12", "fd01::/112"].map(|range| range.parse().expect("a range"));
    let bench = Bench::knowing(Mode::Nftables, ranges.into());
    bench.answer("table ip kube-proxy", Ok(())).await;
    bench.answer("table ip6 kube-proxy", Ok(())).await;
    bench.service("web", "10.96.0.7").await;
    bench.answer("10.96.0.7", Ok(())).await;
    let both = |s: &mut Value| {
        s["spec"]["clusterIPs"] = json!(["10.96.0.7", "fd01::7"]);
        s["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    };
    bench.fake.change("services", "default", "web", both);
    bench.answer("fd01::7", Err(Error::Program(std::io::ErrorKind::OutOfMemory.into()))).await;
    let said = |w: &String| w.contains("RulesNotInKernel: the kernel refused the rules of one family: cannot run nft");
    bench.until("the Wait", |b| b.waits().iter().any(said)).await;
    bench.answer("table ip6 kube-proxy", Ok(())).await;
    bench.until("it is over", |b| b.waits().is_empty()).await;
    bench.stage.stop();
}

#[tokio::test]
async fn who_may_be_reached_by_one_family_has_not_left() {
    let ranges = ["10.96.0.0/12", "fd01::/112"].map(|range| range.parse().expect("a range"));
    let bench = Bench::knowing(Mode::Nftables, ranges.into());
    bench.answer("table ip kube-proxy", Ok(())).await;
    let no = || Err(Error::Refused("Operation not supported".into()));
    bench.answer("table ip6 kube-proxy", no()).await;
    bench.service("web", "10.96.0.7").await;
    bench.answer("10.96.0.7", Ok(())).await;
    let wants = |s: &mut Value| s["metadata"]["annotations"] = json!({api::leaving::WANTED: "true"});
    bench.fake.change("services", "default", "web", wants);
    bench.endpoints("web", &[(1, "n", true), (2, "n", false)]);
    bench.answer("10.244.0.2", Ok(())).await;
    bench.until("the other family", |b| !b.kernel.asked.lock().is_empty()).await;
    assert_eq!(bench.left(), Vec::<String>::new());
    bench.answer("table ip6 kube-proxy", Ok(())).await;
    bench.until("it is told", |b| b.left() == ["default/web/uid-1"]).await;
    bench.stage.stop();
}

#[tokio::test]
async fn while_somebody_changes_rules_all_the_time_services_go_on() {
    let bench = Bench::start();
    bench.answer("delete table ip kube-proxy", Ok(())).await;
    bench.kernel.drift.notify_one();
    bench.answer("delete table ip kube-proxy", Ok(())).await;
    bench.kernel.drift.notify_one();
    // The second time in a minute is answered later; what changes is not.
    let quiet = bench.clock.now() + Duration::from_millis(50);
    bench.until("it was heard", |b| b.clock.now() >= quiet).await;
    bench.service("web", "10.96.0.7").await;
    bench.until("a transaction", |b| !b.kernel.asked.lock().is_empty()).await;
    let text = bench.kernel.asked.lock().front().map(|(text, _)| text.clone()).unwrap_or_default();
    assert!(!text.contains("delete table") && text.contains("10.96.0.7"), "{text}");
    bench.answer("10.96.0.7", Ok(())).await;
    bench.answer("delete table ip kube-proxy", Ok(())).await;
    bench.stage.stop();
}
