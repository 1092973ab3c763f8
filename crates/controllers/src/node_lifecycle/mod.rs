//! Nodes that stop speaking: their conditions become Unknown, taints say so, their pods not ready.
//!
//! A node speaks by renewing its Lease or changing its status. When it last spoke is counted on our
//! own monotonic clock from the moment the change was seen; a wall clock that jumps, here or there,
//! declares no node dead. Before a node is declared so, its Lease is read anew.

pub(crate) mod eviction;
mod plan;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::events::{Reference, Type};
use client::{Cached, Change, Error, Informer, Patch, Queue, Resource, Result};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::SharedClock;
use stdx::clock::Instant;

use crate::context::{Context, NODE};
use crate::views::{LeaseView, NodeView, PodView};
use crate::writer::{Writer, revision};
use plan::{Evict, Health, Pace};

const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";
const LEASES: &str = "kube-node-lease";

/// What was seen of a node's life.
#[derive(Clone, Debug)]
struct Sign {
    spoke: Instant,
    renewed: Option<Timestamp>,
    /// Heartbeats and states of its conditions, as one text to compare.
    status: String,
}

struct Controller {
    nodes: Informer<NodeView>,
    leases: Informer<LeaseView>,
    pods: Informer<PodView>,
    writer: Writer,
    clock: SharedClock,
    grace: Duration,
    startup_grace: Duration,
    signs: Mutex<HashMap<String, Sign>>,
    /// When the next node of a zone may be given up.
    turns: Mutex<HashMap<String, Instant>>,
    resource: Resource,
    pod_resource: Resource,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<String>::new(context.clock.clone());
    let controller = Arc::new(Controller {
        nodes: context.nodes(),
        leases: context.leases(),
        pods: context.pods(),
        writer: context.writer("node-controller", "node-controller"),
        clock: context.clock.clone(),
        grace: context.options.node_grace,
        startup_grace: context.options.node_startup_grace,
        signs: Mutex::new(HashMap::new()),
        turns: Mutex::new(HashMap::new()),
        resource: Resource::of::<Node>(),
        pod_resource: Resource::of::<Pod>(),
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.nodes.subscribe(move |change| own.node_changed(change, &keys));
    let (own, keys) = (controller.clone(), queue.clone());
    controller.leases.subscribe(move |change| {
        let lease = change.object();
        if matches!(change, Change::Applied { .. }) && own.note_lease(&lease.meta.name, lease.view.spec.renew_time) {
            // A node given up that speaks again is looked at; otherwise its deadline moves by itself.
            let node = own.nodes.find("", &lease.meta.name);
            if node.is_some_and(|n| plan::health(&n.view) != Health::Ready) {
                keys.add(lease.meta.name.clone());
            }
        }
    });
    let own = controller.clone();
    let ready = async move {
        own.nodes.synced().await;
        own.leases.synced().await;
        own.pods.synced().await;
    };
    controller::run(context.runner("node-lifecycle", 8), queue, controller, ready, &context.stage);
}

impl Controller {
    fn node_changed(&self, change: &Change<NodeView>, queue: &Queue<String>) {
        let node = change.object();
        let about = Reference::of(&self.resource, &node.meta);
        let name = &node.meta.name;
        match change {
            Change::Deleted(_) => {
                self.signs.lock().remove(name);
                let message = format!("Node {name} event: Removing Node {name} from Controller");
                self.writer.event_about(&about, Type::Normal, "RemovingNode", message);
            }
            Change::Applied { old, .. } => {
                if old.is_none() {
                    let message = format!("Node {name} event: Registered Node {name} in Controller");
                    self.writer.event_about(&about, Type::Normal, "RegisteredNode", message);
                }
                self.note_status(name, &node.view);
                queue.add_caused(name.clone(), self.nodes.cause(node));
            }
        }
        // How many are ready sets the pace for all.
        let was = change.old().map(|o| plan::health(&o.view));
        if was != Some(plan::health(&node.view)) || matches!(change, Change::Deleted(_)) {
            for other in self.nodes.list() {
                if !matches!(plan::health(&other.view), Health::Ready) {
                    queue.add_caused(other.meta.name.clone(), self.nodes.cause(node));
                }
            }
        }
    }

    fn sign<T>(&self, name: &str, change: impl FnOnce(&mut Sign) -> T) -> T {
        let mut signs = self.signs.lock();
        let now = self.clock.now();
        let fresh = || Sign { spoke: now, renewed: None, status: String::new() };
        change(signs.entry(name.to_owned()).or_insert_with(fresh))
    }

    /// Notes a renewal; true when it is news.
    fn note_lease(&self, name: &str, renewed: Option<Timestamp>) -> bool {
        let now = self.clock.now();
        self.sign(name, |sign| {
            let is_news = renewed.is_some() && sign.renewed != renewed;
            if is_news {
                (sign.renewed, sign.spoke) = (renewed, now);
            }
            is_news
        })
    }

    fn note_status(&self, name: &str, node: &NodeView) {
        let now = self.clock.now();
        // What we wrote ourselves is no sign of life.
        let theirs = node.status.conditions.iter().filter(|c| !c.reason.starts_with("NodeStatus"));
        let status =
            theirs.map(|c| format!("{}={}@{:?};", c.kind, c.status, c.last_heartbeat_time)).collect::<String>();
        self.sign(name, |sign| {
            if !status.is_empty() && sign.status != status {
                // A condition that only went missing was overwritten by us.
                let is_subset = status.split(';').all(|part| sign.status.contains(part));
                sign.status = status;
                if !is_subset {
                    sign.spoke = now;
                }
            }
        });
    }

    fn silent(&self, name: &str) -> Duration {
        let now = self.clock.now();
        self.sign(name, |sign| now.since(sign.spoke))
    }

    /// Declares a silent node Unknown, unless its Lease says otherwise. Gives the node as it is then.
    async fn declare_unknown(&self, node: &Cached<NodeView>, pass: &Pass) -> Result<bool> {
        let name = &node.meta.name;
        let lease = self.writer.client.api::<Lease>().namespace(LEASES).find(name).await?;
        let renewed = lease.and_then(|l| l.spec).and_then(|s| s.renew_time).map(|t| t.0);
        if self.note_lease(name, renewed) {
            return Ok(false);
        }
        let was_ready = plan::health(&node.view) == Health::Ready;
        let conditions = plan::unknown_conditions(&node.view, node.meta.creation_timestamp, self.clock.wall());
        if conditions.is_empty() {
            return Ok(true);
        }
        let patch = Patch::Strategic(json!({"metadata": {"uid": node.meta.uid}, "status": {"conditions": conditions}}));
        let written = match self.writer.patch_status(&self.resource, "", name, &patch).await {
            Ok(written) => written,
            Err(error) if error.is_not_found() => return Ok(true),
            Err(error) => return Err(error),
        };
        pass.hold(self.nodes.reached(revision(&written)));
        if was_ready {
            let about = Reference::of(&self.resource, &node.meta);
            let message = format!("Node {name} status is now: NodeNotReady");
            self.writer.event_about(&about, Type::Normal, "NodeNotReady", message);
        }
        Ok(true)
    }

    /// Nobody can reach the pods of a node that nobody hears of.
    async fn mark_pods(&self, node: &str) -> Result<()> {
        let mut failed: Option<Error> = None;
        for pod in self.pods.by_index(NODE, node) {
            if !pod.view.is_ready() {
                continue;
            }
            let condition = json!({
                "type": "Ready", "status": "False",
                "lastTransitionTime": machinery::time::rfc3339(self.clock.wall()),
            });
            let patch =
                Patch::Strategic(json!({"metadata": {"uid": pod.meta.uid}, "status": {"conditions": [condition]}}));
            let written =
                self.writer.patch_status(&self.pod_resource, &pod.meta.namespace, &pod.meta.name, &patch).await;
            match written {
                Ok(_) => {
                    let about = Reference::of(&self.pod_resource, &pod.meta);
                    self.writer.event_about(&about, Type::Warning, "NodeNotReady", "Node is not ready");
                }
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// May this node be given up now? And if not, when to ask again.
    fn turn(&self, node: &Cached<NodeView>) -> (Evict, Option<Duration>) {
        let zone = |n: &Cached<NodeView>| {
            let label = |key: &str| n.meta.labels.get(key).map_or("", String::as_str).to_owned();
            format!("{}/{}", label(REGION), label(ZONE))
        };
        let all = self.nodes.list();
        let is_ready = |n: &Cached<NodeView>| matches!(plan::health(&n.view), Health::Ready);
        if !all.iter().any(|n| is_ready(n)) {
            return (Evict::Never, None);
        }
        let own = zone(node);
        let mine: Vec<_> = all.iter().filter(|n| zone(n) == own).collect();
        let ready = mine.iter().filter(|n| is_ready(n)).count();
        let Pace::Every(every) = plan::pace(ready, mine.len() - ready, all.len()) else { return (Evict::Later, None) };
        let now = self.clock.now();
        let mut turns = self.turns.lock();
        let next = turns.entry(own).or_insert(now);
        if *next > now {
            return (Evict::Later, Some(next.since(now)));
        }
        *next = now + every;
        (Evict::Now, None)
    }
}

#[async_trait]
impl Reconcile for Controller {
    type Key = String;

    async fn reconcile(&self, name: &String, pass: &Pass) -> Result<Next> {
        let Some(node) = self.nodes.find("", name) else { return Ok(Next::Done) };
        let health = plan::health(&node.view);
        let grace = if health == Health::New { self.startup_grace } else { self.grace };
        let mut again = plan::left(self.silent(name), grace);
        if again.is_zero() && health != Health::Unreachable {
            if self.declare_unknown(&node, pass).await? {
                // The taints follow with the event of this write.
                return Ok(Next::Done);
            }
            again = plan::left(self.silent(name), grace);
        }
        // A node given up whose pods still claim to be ready: the marking was cut short. But a
        // Ready=False that the kubelet itself reports says nothing about its pods.
        if health == Health::Unreachable {
            self.mark_pods(name).await?;
        }
        let has_no_execute = node.view.spec.taints.iter().any(|t| {
            t.effect == api::taint::NO_EXECUTE
                && matches!(t.key.as_str(), api::taint::NOT_READY | api::taint::UNREACHABLE)
        });
        let needs_turn = matches!(health, Health::NotReady | Health::Unreachable);
        let (evict, wait) = match (needs_turn, has_no_execute) {
            (false, _) => (Evict::Now, None),
            // It had its turn; only when nobody is ready is it taken back.
            (true, true) => {
                let any = self.nodes.list().iter().any(|n| plan::health(&n.view) == Health::Ready);
                (if any { Evict::Later } else { Evict::Never }, None)
            }
            (true, false) => self.turn(&node),
        };
        if let Some(taints) = plan::taints(&node.view, evict, self.clock.wall()) {
            let taints = if taints.is_empty() { Value::Null } else { json!(taints) };
            // Bound to the revision: whoever else changed the taints meanwhile is not overwritten.
            let patch = Patch::Merge(json!({
                "metadata": {"resourceVersion": node.meta.revision.to_string()}, "spec": {"taints": taints},
            }));
            match self.writer.patch(&self.resource, "", name, &patch).await {
                Ok(written) => pass.hold(self.nodes.reached(revision(&written))),
                Err(error) if error.is_not_found() => return Ok(Next::Done),
                Err(error) => return Err(error),
            }
        }
        if health == Health::Unreachable {
            return Ok(wait.map_or(Next::Done, Next::After));
        }
        Ok(Next::After(wait.map_or(again, |w| w.min(again)).max(Duration::from_millis(1))))
    }

    fn all(&self) -> Vec<String> {
        self.nodes.list().iter().map(|n| n.meta.name.clone()).collect()
    }
}
