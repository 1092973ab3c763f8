//! The rules of node n1: Services in, rules in the kernel, as the proxy does it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::Key;
use net::conntrack::{Connections, Conntrack};
use net::iptables::Tools;
use net::nft::{Kernel, Nft};
use net::ruleset::Family;
use proxy::Mode;
use proxy::conntrack::{Expected, Gone};
use proxy::dataplane::Dataplane;
use proxy::iptables::apply::Restored;
use proxy::model::objects::{EndpointSlice, Service};
use proxy::model::{Here, LocalPods, Model, NodePortAddresses, Settings, decide};
use proxy::nftables::apply::Applied;
use serde_json::{Value, json};
use stdx::clock::RealClock;

use crate::world::{self, DNS, WEB, run, within};

/// A Service and its endpoints.
#[derive(Clone)]
pub struct Spec {
    name: &'static str,
    spec: Value,
    ingress: Value,
    endpoints: Value,
}

impl Spec {
    pub fn new(name: &'static str, spec: Value, endpoints: Value) -> Self {
        Self { name, spec, ingress: json!([]), endpoints }
    }

    pub fn with(mut self, more: Value) -> Self {
        for (key, value) in more.as_object().expect("an object") {
            self.spec[key] = value.clone();
        }
        self
    }

    pub fn ingress(mut self, ingress: Value) -> Self {
        self.ingress = ingress;
        self
    }
}

/// The endpoints of every pod.
pub fn all() -> Value {
    json!([{"addresses": ["10.244.0.2"], "nodeName": "n1"}, {"addresses": ["10.244.0.3"], "nodeName": "n1"},
        {"addresses": ["10.244.1.2"], "nodeName": "n2"}])
}

/// The endpoint of one pod.
pub fn on(pod: &str) -> Value {
    let at = ["p1", "p2", "p3"].iter().position(|p| *p == pod).expect("a pod");
    json!([all()[at]])
}

pub struct Node {
    mode: Mode,
    tables: Arc<Tools>,
    runtime: tokio::runtime::Runtime,
    kernel: Arc<Nft>,
    planes: Vec<Box<dyn Dataplane>>,
    settings: Settings,
    model: Model,
}

impl Node {
    pub fn new(mode: Mode) -> Self {
        let nets = |texts: &[&str]| texts.iter().map(|s| s.parse().expect("a network")).collect::<Vec<_>>();
        let settings = Settings {
            service_cidrs: nets(&["10.96.0.0/12", "fd01::/112"]),
            cluster_cidrs: nets(&["10.244.0.0/16", "fd00::/56"]),
            remote_pod_cidrs: nets(&["10.244.1.0/24"]),
            pod_interfaces: Some("veth*".into()),
            local_pods: LocalPods::Ranges(nets(&["10.244.0.0/16", "fd00::/56"])),
            node_ports: NodePortAddresses::All,
            masquerade_all: false,
            masquerade_bit: 14,
            node_ips: vec!["192.168.9.1".parse().expect("an address")],
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let kernel = Arc::new(Nft::new(RealClock::shared()));
        let tables = Arc::new(Tools::new(RealClock::shared()));
        let mut node = Self { mode, tables, runtime, kernel, planes: Vec::new(), settings, model: Model::new() };
        node.begin();
        node
    }

    pub fn mode(&self) -> &'static str {
        self.mode.as_str()
    }

    /// Is what is addressed to no pod refused?
    pub fn guards_pods(&self) -> bool {
        self.mode == Mode::Nftables
    }

    /// A proxy that knows nothing of the kernel.
    fn begin(&mut self) {
        let (mode, kernel, tables) = (self.mode, &self.kernel, &self.tables);
        let plane = |family| -> Box<dyn Dataplane> {
            match mode {
                Mode::Nftables => Box::new(Applied::new(kernel.clone(), family)),
                Mode::Iptables => Box::new(Restored::new(tables.clone(), family)),
            }
        };
        self.planes = [Family::Ip, Family::Ip6].map(plane).into();
    }

    pub fn ports_at(&mut self, ranges: &[&str]) {
        let ranges: Vec<_> = ranges.iter().map(|s| s.parse().expect("a network")).collect();
        self.settings.node_ports =
            if ranges.is_empty() { NodePortAddresses::All } else { NodePortAddresses::Ranges(ranges) };
    }

    pub fn masquerade_all(&mut self, all: bool) {
        self.settings.masquerade_all = all;
    }

    pub fn told_by(&mut self, ways: LocalPods) {
        self.settings.local_pods = ways;
    }

    /// These Services and no others.
    pub fn set(&mut self, specs: &[Spec]) {
        let here = Here { name: "n1".into(), zone: Some("a".into()) };
        let rules = |spec: &Spec| {
            let service = json!({"metadata": {"namespace": "default", "name": spec.name}, "spec": spec.spec,
                "status": {"loadBalancer": {"ingress": spec.ingress}}});
            let service: Service = serde_json::from_value(service).expect("a Service");
            let port = |p: &Value| {
                let number = if p["protocol"] == "UDP" { DNS } else { WEB };
                json!({"name": p["name"].as_str().unwrap_or_default(), "protocol": p["protocol"], "port": number})
            };
            let ports: Vec<Value> = spec.spec["ports"].as_array().expect("ports").iter().map(port).collect();
            let slice = json!({"endpoints": spec.endpoints, "ports": ports});
            let slice: EndpointSlice = serde_json::from_value(slice).expect("a slice");
            decide(&service, std::iter::once(&slice), &here)
        };
        let model: Model = specs.iter().map(|s| (Key::new("default", s.name), Arc::new(rules(s)))).collect();
        let keys = self.model.keys().chain(model.keys()).cloned();
        let changes: BTreeMap<_, _> = keys.map(|key| (key.clone(), model.get(&key).cloned())).collect();
        let changes: Vec<_> = changes.into_iter().collect();
        let mut gone = Gone::default();
        for (key, rules) in &changes {
            gone.replace(self.model.get(key).map(|r| &**r), rules.as_deref());
        }
        self.model = model;
        let Self { runtime, planes, settings, model, .. } = self;
        within("n1", || {
            runtime.block_on(async {
                for plane in planes {
                    let refused = plane.apply(settings, model, &changes).await.expect("taken");
                    assert!(refused.is_empty(), "{refused:?}");
                    let expected = Expected::of(model, &gone, settings, plane.family());
                    let stale = Box::new(move |entry: &net::conntrack::Entry| expected.is_stale(entry));
                    Conntrack.remove_udp(plane.family(), stale).await.expect("looked at");
                }
            });
        });
    }

    /// The proxy ends, and another begins with these Services.
    pub fn restart(&mut self, specs: &[Spec]) {
        self.begin();
        self.model = Model::new();
        self.set(specs);
    }

    /// The rules there are, without counts.
    pub fn rules(&self) -> Vec<String> {
        let program: &[&str] = match self.mode {
            Mode::Nftables => &["nft", "-s", "list", "ruleset"],
            Mode::Iptables => &["iptables-save"],
        };
        let output = within("n1", || std::process::Command::new(program[0]).args(&program[1..]).output());
        let text = String::from_utf8_lossy(&output.expect("it runs").stdout).into_owned();
        let is_rule = |line: &&str| !line.is_empty() && !line.starts_with(['#', ':']);
        let mut lines: Vec<String> = text.lines().map(str::trim).filter(is_rule).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Somebody flushes our table: do we hear of it?
    pub fn hears(&mut self) -> bool {
        let Self { mode, runtime, kernel, planes, .. } = self;
        within("n1", || {
            runtime.block_on(async {
                if *mode == Mode::Iptables {
                    assert!(planes[0].is_intact().await.expect("looked at"), "nobody has changed anything");
                    run("iptables -t nat -F KUBE-SERVICES");
                    return !planes[0].is_intact().await.expect("looked at");
                }
                // What was our own until now is not told.
                let quiet = kernel.changed(&[proxy::nftables::TABLE]);
                assert!(tokio_timeout(Duration::from_millis(200), quiet).await.is_none(), "our own change was told");
                run("nft flush table ip kube-proxy");
                let heard = kernel.changed(&[proxy::nftables::TABLE]);
                let heard = tokio_timeout(Duration::from_secs(10), heard).await.is_some_and(|heard| heard.is_ok());
                // Who hears nothing sees that it is gone.
                assert!(planes[0].is_intact().await.expect("looked at"), "the table is there");
                run("nft delete table ip kube-proxy");
                heard && !planes[0].is_intact().await.expect("looked at")
            })
        })
    }

    /// Those of these endpoints that still answer somebody.
    pub fn open(&self, endpoints: &[&str]) -> Vec<String> {
        let asked = endpoints.iter().map(|e| e.parse().expect("an endpoint")).collect();
        let runtime = &self.runtime;
        let open = within("n1", || runtime.block_on(Conntrack.open_tcp(asked)).expect("looked at"));
        open.iter().map(ToString::to_string).collect()
    }

    /// What the other mode has left is removed, as a proxy does that begins.
    pub fn look_for_others(&mut self) {
        let other = self.mode.other();
        within("n1", || self.runtime.block_on(proxy::remove(other, &*self.kernel, &*self.tables))).expect("removed");
    }

    /// All tables and rules of the node.
    pub fn listing(&self) -> String {
        within("n1", || world::output("nft list ruleset") + &world::output("iptables-save"))
    }

    /// A proxy of the other mode begins on this node.
    pub fn switch(&mut self, specs: &[Spec]) {
        let before = self.mode;
        self.mode = before.other();
        self.restart(specs);
        within("n1", || self.runtime.block_on(proxy::remove(before, &*self.kernel, &*self.tables))).expect("removed");
    }

    /// Nothing of ours is left.
    pub fn cleanup(&mut self) {
        within("n1", || {
            self.runtime.block_on(proxy::cleanup(&*self.kernel, &*self.tables)).expect("removed");
            let left = std::process::Command::new("nft").args(["list", "ruleset"]).output().expect("nft runs");
            let left = String::from_utf8_lossy(&left.stdout);
            assert!(!left.contains("KUBE") && !left.contains("kube"), "{left}");
        });
    }
}

#[allow(clippy::disallowed_methods, reason = "a test against the real kernel has real time")]
async fn tokio_timeout<T>(limit: Duration, job: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, job).await.ok()
}
