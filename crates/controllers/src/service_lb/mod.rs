//! Services of type LoadBalancer get addresses of the cluster's own nodes: the service proxy of each node
//! translates what comes to them, and no pod helps.
//!
//! ```text
//!  Services of our class, nodes, endpoints ─► plan: who gets which address ─► status.loadBalancer
//!                                                └─► why not: a Wait and an event that name the holder
//! ```
//!
//! Ours are Services without a class and those of class [`CLASS`]. Of others it is said that they wait for
//! somebody else. What one has another cannot have, so one pass plans for all and writes what differs.
//!
//! The status tells the ports with each address: they are what was looked at before it was given, and what a
//! Service keeps against who comes later. No finalizer is set: a Service that is gone has nothing to take back.

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::events::{Reference, Type};
use client::waits::Publisher;
use client::{Cached, Change, Informer, Key, Patch, Queue, Resource, Result};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::context::Context;
use crate::views::{BareView, Ingress, NodeView, PortStatus, ServiceView};
use crate::writer::{Writer, revision};
use plan::{Family, Given, Node, Port, Reserved, Wanting};

/// The class of Services that say they want what this controller gives.
const CLASS: &str = "pintle.dev/node-addresses";
/// Earlier versions set it.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Nodes with this label carry none.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Nodes with this taint are about to go.
const LEAVES: &str = "ToBeDeletedByClusterAutoscaler";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The code of the Wait.
const WAIT: &str = "NoLoadBalancer";
/// When what listens is looked at again.
const LOOK: Duration = Duration::from_secs(30);

/// What programs of one node listen on. Asked now and then.
#[derive(Clone)]
pub struct Listening {
    pub node: String,
    /// Protocols as the API spells them, and ports.
    pub look: Arc<dyn Fn() -> BTreeSet<(String, u16)> + Send + Sync>,
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").field("node", &self.node).finish_non_exhaustive()
    }
}

struct Controller {
    services: Informer<ServiceView>,
    nodes: Informer<NodeView>,
    slices: Informer<BareView>,
    writer: Writer,
    resource: Resource,
    waits: Publisher,
    listening: Option<Listening>,
    /// What was last said of each Service.
    said: Mutex<BTreeMap<Key, Said>>,
}

/// What was said of a Service.
#[derive(Clone, Debug)]
struct Said {
    about: Reference,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// It has addresses.
    Has,
    /// Why it has none.
    Lacks(String),
    /// It waits for another provider, or has what that one gave.
    Others,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<()>::new(context.clock.clone());
    let controller = Arc::new(Controller {
        services: context.services(),
        nodes: context.nodes(),
        slices: context.slices(),
        writer: context.writer("service-controller", "service-controller"),
        resource: Resource::of::<Service>(),
        waits: context.waits(),
        listening: context.options.listening.clone(),
        said: Mutex::default(),
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.services.subscribe(move |change| own.service_changed(change, &keys));
    let (own, keys) = (controller.clone(), queue.clone());
    controller.nodes.subscribe(move |change| {
        let seen = |node: &Cached<NodeView>| (may_carry(node), node_of(node));
        let is_same = matches!(change, Change::Applied { old: Some(old), new } if !Arc::ptr_eq(old, new) && seen(old) == seen(new));
        if !is_same {
            keys.add_caused((), own.nodes.cause(change.object()));
        }
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.slices.subscribe(move |change| {
        let slice = change.object();
        let Some(name) = slice.meta.labels.get(SERVICE_NAME) else { return };
        let key = Key::new(slice.meta.namespace.clone(), name.clone());
        let is_api = key == Key::new("default", "kubernetes");
        let matters = |s: &Cached<ServiceView>| is_ours(&s.view) && is_local(&s.view);
        if is_api || own.services.get(&key).is_some_and(|s| matters(&s)) {
            keys.add_caused((), own.slices.cause(slice));
        }
    });
    let own = controller.clone();
    let ready = async move {
        own.services.synced().await;
        own.nodes.synced().await;
        own.slices.synced().await;
    };
    controller::run(context.runner("service-lb", 1), queue, controller, ready, &context.stage);
}

/// Asks for a load balancer.
fn wants(service: &ServiceView) -> bool {
    service.spec.kind == "LoadBalancer"
}

/// Asks for one, and for ours.
fn is_ours(service: &ServiceView) -> bool {
    wants(service) && matches!(service.spec.load_balancer_class.as_deref(), None | Some("" | CLASS))
}

/// Only nodes with endpoints may carry it.
fn is_local(service: &ServiceView) -> bool {
    service.spec.external_traffic_policy == "Local"
}

/// On what a Service of another class waits, and what that means.
fn waits_for_others(service: &ServiceView) -> (String, String) {
    let class = service.spec.load_balancer_class.as_deref().unwrap_or_default();
    let text = format!("no provider of the class {class} has given the Service an address; {}", meanwhile(service));
    (format!("load balancer class {class}"), text)
}

fn meanwhile(service: &ServiceView) -> &'static str {
    match service.spec.allocate_load_balancer_node_ports {
        Some(false) => "its cluster address works meanwhile",
        _ => "its cluster address and node ports work meanwhile",
    }
}

/// May it carry load balancers, as far as its administrators are concerned?
fn may_carry(node: &Cached<NodeView>) -> bool {
    let leaves = node.meta.is_deleting() || node.view.spec.taints.iter().any(|t| t.key == LEAVES);
    !leaves && !node.meta.labels.contains_key(EXCLUDED)
}

fn node_of(node: &Cached<NodeView>) -> Node {
    let of = |kind: &str| -> Vec<IpAddr> {
        let all = node.view.status.addresses.iter().filter(|a| a.kind == kind);
        all.filter_map(|a| a.address.parse().ok()).collect()
    };
    // Those that reach furthest first. Where an outer one is translated on the way, what comes to it comes to an
    // inner one, which the node must know as the load balancer's, too.
    let mut addresses = of("ExternalIP");
    let inner: Vec<IpAddr> = of("InternalIP").into_iter().filter(|a| !addresses.contains(a)).collect();
    addresses.extend(inner);
    let kubelet = u16::try_from(node.view.status.daemon_endpoints.kubelet_endpoint.port).unwrap_or(0);
    let is_ready = node.view.condition("Ready").is_some_and(|c| c.status == "True");
    Node { name: node.meta.name.clone(), addresses, is_ready, kubelet, listening: BTreeSet::new() }
}

/// Every address of the node that has this one: an API server tells one and answers at all.
fn all_of_its_node(address: IpAddr, nodes: &[Node]) -> Vec<IpAddr> {
    let node = nodes.iter().find(|node| node.addresses.contains(&address));
    node.map_or_else(|| vec![address], |node| node.addresses.clone())
}

fn ports(service: &ServiceView) -> Vec<Port> {
    let all = service.spec.ports.iter();
    all.filter_map(|p| Some((protocol(p.protocol.as_deref()), u16::try_from(p.port).ok()?))).collect()
}

fn protocol(text: Option<&str>) -> String {
    text.filter(|p| !p.is_empty()).unwrap_or("TCP").to_owned()
}

/// Ports a Service has at every node.
fn node_ports(service: &ServiceView) -> impl Iterator<Item = Port> + '_ {
    let ports = service.spec.ports.iter().map(|p| (protocol(p.protocol.as_deref()), p.node_port));
    let check = ("TCP".to_owned(), service.spec.health_check_node_port);
    ports.chain([check]).filter_map(|(p, n)| Some((p, u16::try_from(n).ok().filter(|n| *n > 0)?)))
}

/// Addresses at which a Service answers although this controller gave it none: those that users name, and another
/// provider's.
fn outer(service: &ServiceView) -> impl Iterator<Item = IpAddr> + '_ {
    let given = service.status.load_balancer.ingress.iter().map(|i| &i.ip);
    let given = given.filter(|_| wants(service) && !is_ours(service));
    service.spec.external_ips.iter().chain(given).filter_map(|ip| ip.parse().ok())
}

/// What a Service has, and which ports were looked at before it was given.
fn had(service: &ServiceView) -> BTreeMap<IpAddr, BTreeSet<Port>> {
    let of = |i: &Ingress| {
        let ports = i.ports.iter().filter_map(|p| Some((p.protocol.clone(), u16::try_from(p.port).ok()?)));
        Some((i.ip.parse().ok()?, ports.collect()))
    };
    service.status.load_balancer.ingress.iter().filter_map(of).collect()
}

/// What the status says of what was given.
fn shown(given: &Given, ports: &[Port]) -> Vec<Ingress> {
    let ports: Vec<PortStatus> =
        ports.iter().map(|(protocol, port)| PortStatus { port: (*port).into(), protocol: protocol.clone() }).collect();
    let of = |ip: &IpAddr| Ingress {
        ip: ip.to_string(),
        ip_mode: Some("VIP".into()),
        ports: ports.clone(),
        ..Ingress::default()
    };
    given.addresses.iter().map(of).collect()
}

/// What of a Service decides about itself and others.
fn facts(service: &Cached<ServiceView>) -> impl PartialEq {
    let view = &service.view;
    let spec = (view.spec.kind.clone(), view.spec.load_balancer_class.clone(), view.spec.ip_families.clone());
    let ports = (ports(view), node_ports(view).collect::<Vec<_>>(), is_local(view));
    (spec, ports, outer(view).collect::<Vec<_>>(), service.meta.is_deleting(), service.meta.uid.clone())
}

impl Controller {
    fn service_changed(&self, change: &Change<ServiceView>, keys: &Queue<()>) {
        let service = change.object();
        let is_same = matches!(change, Change::Applied { old: Some(old), new } if !Arc::ptr_eq(old, new) && facts(old) == facts(new));
        let is_in_the_way =
            |s: &Cached<ServiceView>| node_ports(&s.view).next().is_some() || outer(&s.view).next().is_some();
        let concerns = |s: &Cached<ServiceView>| {
            wants(&s.view) || s.meta.has_finalizer(FINALIZER) || (!is_same && is_in_the_way(s))
        };
        if concerns(service) || change.old().is_some_and(|old| concerns(old)) {
            keys.add_caused((), self.services.cause(service));
        }
    }

    fn wanting(&self, service: &Cached<ServiceView>) -> Wanting {
        let view = &service.view;
        let family = |text: &String| if text == "IPv6" { Family::V6 } else { Family::V4 };
        let mut families: Vec<Family> = view.spec.ip_families.iter().map(family).collect();
        if families.is_empty() {
            families.push(Family::V4);
        }
        let key = service.meta.key();
        Wanting {
            created: service.meta.creation_timestamp.map_or(0, |at| at.as_second()),
            families,
            ports: ports(view),
            only: is_local(view).then(|| self.nodes_of(&key)),
            has: had(view),
            key,
        }
    }

    fn slices_of(&self, key: &Key) -> Vec<EndpointSlice> {
        let labels = BTreeMap::from([(SERVICE_NAME.to_owned(), key.name.clone())]);
        let selector = machinery::labels::Selector::from_labels(&labels);
        let all = self.slices.select(&key.namespace, &selector);
        // One that cannot be read says nothing.
        all.iter().filter_map(|slice| slice.decode().ok()).collect()
    }

    /// The nodes that have a ready endpoint.
    fn nodes_of(&self, key: &Key) -> BTreeSet<String> {
        let ready =
            |e: &k8s_openapi::api::discovery::v1::Endpoint| e.conditions.as_ref().and_then(|c| c.ready) != Some(false);
        let all = self.slices_of(key).into_iter().flat_map(|slice| slice.endpoints.unwrap_or_default());
        all.filter(ready).filter_map(|e| e.node_name).collect()
    }

    fn plan(&self, services: &[Arc<Cached<ServiceView>>]) -> BTreeMap<Key, Given> {
        let wanting = services.iter().filter(|s| is_ours(&s.view) && !s.meta.is_deleting());
        let mut nodes: Vec<Node> =
            self.nodes.list().iter().filter(|node| may_carry(node)).map(|node| node_of(node)).collect();
        if let Some(listening) = &self.listening
            && let Some(node) = nodes.iter_mut().find(|node| node.name == listening.node)
        {
            node.listening = (listening.look)();
        }
        let mut reserved = Reserved::default();
        for slice in self.slices_of(&Key::new("default", "kubernetes")) {
            let ports: Vec<u16> = slice.ports.iter().flatten().filter_map(|p| u16::try_from(p.port?).ok()).collect();
            let addresses =
                slice.endpoints.iter().flatten().flat_map(|e| &e.addresses).filter_map(|a| a.parse::<IpAddr>().ok());
            let at_node = addresses.flat_map(|address| all_of_its_node(address, &nodes));
            reserved.api.extend(at_node.flat_map(|a| ports.iter().map(move |p| (a, *p))));
        }
        for service in services {
            let (view, key) = (&service.view, service.meta.key());
            reserved.node_ports.extend(node_ports(view).map(|port| (port, key.clone())));
            for place in outer(view).flat_map(|a| ports(view).into_iter().map(move |port| (a, port))) {
                let holder = reserved.outer.entry(place).or_insert_with(|| key.clone());
                *holder = (*holder).clone().min(key.clone());
            }
        }
        plan::plan(wanting.map(|s| self.wanting(s)).collect(), &nodes, &reserved)
    }

    async fn write(&self, service: &Cached<ServiceView>, patch: Value, pass: &Pass) -> Result<()> {
        let (namespace, name) = (&service.meta.namespace, &service.meta.name);
        match self.writer.patch_status(&self.resource, namespace, name, &Patch::Merge(patch)).await {
            Ok(object) => pass.hold(self.services.reached(revision(&object))),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Gives a Service of ours what the plan says.
    async fn give(&self, service: &Cached<ServiceView>, given: &Given, pass: &Pass) -> Result<()> {
        let (view, key) = (&service.view, service.meta.key());
        let about = Reference::of(&self.resource, &service.meta);
        let (wanted, present) = (shown(given, &ports(view)), &view.status.load_balancer.ingress);
        if present.is_empty() && self.said.lock().get(&key).is_none_or(|said| said.about.uid != about.uid) {
            self.writer.event_about(&about, Type::Normal, "EnsuringLoadBalancer", "Ensuring load balancer");
        }
        if given.addresses.is_empty() {
            let text = format!("{}; {}", given.why, meanwhile(view));
            self.waits.publish(&about, WAIT, "service-lb-controller", text);
            let lacks = What::Lacks(given.why.clone());
            if self.say(key, &about, lacks.clone()) != Some(lacks) {
                let text = format!("Error syncing load balancer: {}", given.why);
                self.writer.event_about(&about, Type::Warning, "SyncLoadBalancerFailed", text);
            }
        } else {
            self.waits.withdraw(&about, WAIT);
            self.say(key, &about, What::Has);
        }
        if wanted == *present {
            return Ok(());
        }
        let list: Vec<Value> = wanted
            .iter()
            .map(|i| {
                let ports: Vec<Value> =
                    i.ports.iter().map(|p| json!({"port": p.port, "protocol": p.protocol})).collect();
                json!({"ip": i.ip, "ipMode": i.ip_mode, "ports": ports})
            })
            .collect();
        let ingress = if list.is_empty() { Value::Null } else { list.into() };
        self.write(service, json!({"status": {"loadBalancer": {"ingress": ingress}}}), pass).await?;
        if present.is_empty() {
            self.writer.event_about(&about, Type::Normal, "EnsuredLoadBalancer", "Ensured load balancer");
        } else if !wanted.is_empty() {
            let text = "Updated load balancer with new hosts";
            self.writer.event_about(&about, Type::Normal, "UpdatedLoadBalancer", text);
        }
        Ok(())
    }

    /// Remembers what is said of a Service; what was said before.
    fn say(&self, key: Key, about: &Reference, what: What) -> Option<What> {
        let former = self.said.lock().insert(key, Said { about: about.clone(), what })?;
        if former.about.uid == about.uid {
            return Some(former.what);
        }
        self.waits.withdraw(&former.about, WAIT);
        None
    }

    /// Another provider's are its own.
    fn leave(&self, service: &Cached<ServiceView>) {
        let about = Reference::of(&self.resource, &service.meta);
        self.say(service.meta.key(), &about, What::Others);
        if service.view.status.load_balancer.ingress.is_empty() {
            let (on, text) = waits_for_others(&service.view);
            self.waits.publish(&about, WAIT, on, text);
        } else {
            self.waits.withdraw(&about, WAIT);
        }
    }

    /// Takes back what a Service has that asks for none, and what an earlier version set.
    async fn clean(&self, service: &Cached<ServiceView>, pass: &Pass) -> Result<()> {
        let view = &service.view;
        let mut patch = json!({});
        if service.meta.has_finalizer(FINALIZER) && (!wants(view) || is_ours(view)) {
            let finalizers: Vec<&String> = service.meta.finalizers.iter().filter(|f| *f != FINALIZER).collect();
            patch["metadata"] = json!({"finalizers": finalizers, "resourceVersion": service.meta.revision.to_string()});
        }
        if !wants(view) && !view.status.load_balancer.ingress.is_empty() {
            patch["status"] = json!({"loadBalancer": {"ingress": null}});
        }
        if patch == json!({}) { Ok(()) } else { self.write(service, patch, pass).await }
    }

    /// Forgets the Services that are not these any more.
    fn forget(&self, kept: &BTreeSet<Key>) {
        let mut said = self.said.lock();
        said.retain(|key, said| {
            let stays = kept.contains(key);
            if !stays {
                self.waits.withdraw(&said.about, WAIT);
            }
            if !stays && said.what == What::Has {
                let event = |reason, text| self.writer.event_about(&said.about, Type::Normal, reason, text);
                event("DeletingLoadBalancer", "Deleting load balancer");
                event("DeletedLoadBalancer", "Deleted load balancer");
            }
            stays
        });
    }
}

#[async_trait]
impl Reconcile for Controller {
    type Key = ();

    async fn reconcile(&self, (): &(), pass: &Pass) -> Result<Next> {
        let services = self.services.list();
        let plan = self.plan(&services);
        let (mut kept, mut failed) = (BTreeSet::new(), Ok(()));
        for service in &services {
            let key = service.meta.key();
            let mut done = self.clean(service, pass).await;
            if wants(&service.view) && !service.meta.is_deleting() {
                match plan.get(&key) {
                    // What it wrote first is not known yet.
                    Some(given) if done.is_ok() => done = self.give(service, given, pass).await,
                    Some(_) => {}
                    None => self.leave(service),
                }
                kept.insert(key);
            }
            // One that cannot be written keeps nobody else waiting.
            if done.is_err() && failed.is_ok() {
                failed = done;
            }
        }
        self.forget(&kept);
        failed?;
        Ok(if plan.values().any(|given| given.look_again) { Next::After(LOOK) } else { Next::Done })
    }

    fn all(&self) -> Vec<()> {
        vec![()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::cached;

    fn service(spec: Value) -> Cached<ServiceView> {
        cached(&json!({"metadata": {"name": "s", "namespace": "n"}, "spec": spec}))
    }

    #[test]
    fn classes_of_others_are_left_to_them() {
        for (spec, want) in [
            (json!({"type": "LoadBalancer"}), (true, true)),
            (json!({"type": "LoadBalancer", "loadBalancerClass": ""}), (true, true)),
            (json!({"type": "LoadBalancer", "loadBalancerClass": CLASS}), (true, true)),
            (json!({"type": "LoadBalancer", "loadBalancerClass": "x.example/y"}), (true, false)),
            (json!({"type": "NodePort"}), (false, false)),
        ] {
            let service = service(spec.clone());
            assert_eq!((wants(&service.view), is_ours(&service.view)), want, "{spec}");
        }
        let other = service(
            json!({"type": "LoadBalancer", "loadBalancerClass": "x.example/y", "allocateLoadBalancerNodePorts": false}),
        );
        let text = "no provider of the class x.example/y has given the Service an address; its cluster address works \
                    meanwhile";
        assert_eq!(waits_for_others(&other.view), ("load balancer class x.example/y".to_owned(), text.to_owned()));
    }

    #[test]
    fn addresses_that_others_gave_are_known() {
        let shown = |spec: Value| {
            let one: Cached<ServiceView> = cached(&json!({"metadata": {"name": "s", "namespace": "n"}, "spec": spec,
                "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"hostname": "lb.example"}]}}}));
            outer(&one.view).map(|a| a.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(shown(json!({"type": "ClusterIP", "externalIPs": ["192.0.2.9", "no"]})), ["192.0.2.9"]);
        assert_eq!(shown(json!({"type": "LoadBalancer"})), [""; 0], "that one is ours");
        let other = json!({"type": "LoadBalancer", "loadBalancerClass": "x.example/y", "externalIPs": ["fd00::9"]});
        assert_eq!(shown(other), ["fd00::9", "192.0.2.1"]);
    }

    #[test]
    fn what_was_given_is_remembered_with_its_ports() {
        let mut one =
            service(json!({"type": "LoadBalancer", "ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}]}));
        let address: IpAddr = "192.0.2.1".parse().expect("an address");
        let given = Given { addresses: vec![address], ..Given::default() };
        one.view.status.load_balancer.ingress = shown(&given, &ports(&one.view));
        // The ports are another's now; what was looked at are these.
        one.view.spec.ports.clear();
        let want = BTreeSet::from([("TCP".to_owned(), 80), ("UDP".to_owned(), 53)]);
        assert_eq!(had(&one.view), BTreeMap::from([(address, want)]));
        let bare = cached::<ServiceView>(&json!({"metadata": {"name": "s", "namespace": "n"},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}));
        assert_eq!(had(&bare.view), BTreeMap::from([(address, BTreeSet::new())]));
    }

    #[test]
    fn nodes_that_stay_carry_what_reaches_furthest() {
        let node = |labels: Value, taints: Value, ready: &str| -> Cached<NodeView> {
            cached(&json!({"metadata": {"name": "a", "labels": labels}, "spec": {"taints": taints}, "status": {
                "conditions": [{"type": "Ready", "status": ready}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "a"},
                    {"type": "InternalIP", "address": "fd00::1"}, {"type": "ExternalIP", "address": "192.0.2.1"}]}}))
        };
        let plain = node(json!({}), json!([]), "True");
        assert!(may_carry(&plain));
        let unknown = node(json!({}), json!([]), "Unknown");
        assert!(may_carry(&unknown) && !node_of(&unknown).is_ready && node_of(&plain).is_ready);
        assert!(!may_carry(&node(json!({EXCLUDED: ""}), json!([]), "True")));
        assert!(!may_carry(&node(json!({}), json!([{"key": LEAVES, "effect": "NoSchedule"}]), "True")));
        let node = node_of(&plain);
        // The API server tells one of them.
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert_eq!(all_of_its_node(address("10.0.0.1"), std::slice::from_ref(&node)), node.addresses);
        assert_eq!(all_of_its_node(address("10.0.0.9"), std::slice::from_ref(&node)), [address("10.0.0.9")]);
        let shown: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
        assert_eq!((shown, node.kubelet), (["192.0.2.1", "10.0.0.1", "fd00::1"].map(str::to_owned).to_vec(), 10250));
    }
}
