//! The Service `kube-dns` and this process' slice of it: by these the ordinary service proxy leads questions here.

mod plan;

pub use plan::{Own, SERVICE, slice_name};

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::types::core::v1 as core;
use api::types::discovery::v1 as discovery;
use client::{Client, DeleteParams, Informer, Key, Resource};
use parking_lot::RwLock;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use stdx::backoff::Policy;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};
use tokio::sync::Notify;

use crate::server::Allow;
use plan::{Action, MANAGED_BY, MANAGER, NAMESPACE, Node, Seen, plan};

/// How long to wait before what failed is tried again.
const RETRY: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(30) };
/// For taking the slice away when the process stops.
const FAREWELL: Duration = Duration::from_secs(2);
/// The label of a Node that names its zone.
const ZONE: &str = "topology.kubernetes.io/zone";

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// What is read of a Node.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeView {
    status: NodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    #[serde(deserialize_with = "or_default")]
    addresses: Vec<Address>,
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<Condition>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

/// Keeps what is published as it should be.
pub struct Publisher {
    client: Client,
    own: Own,
    service: Informer<Value>,
    slices: Informer<Value>,
    nodes: Informer<NodeView>,
    allow: Arc<RwLock<Allow>>,
    is_ready: Arc<AtomicBool>,
    wake: Arc<Notify>,
    clock: SharedClock,
}

impl Publisher {
    /// Begins to follow what there is. `wake` is to be told when the process becomes ready.
    pub fn start(
        client: &Client,
        own: Own,
        allow: Arc<RwLock<Allow>>,
        (is_ready, wake): (Arc<AtomicBool>, Arc<Notify>),
        (clock, rng): (&SharedClock, &Rng),
        stage: &Stage,
    ) -> Self {
        let all = |resource| Informer::builder(client.clone(), resource).without_json();
        let in_namespace = |resource| all(resource).namespace(NAMESPACE);
        let service = in_namespace(Resource::of::<core::Service>()).fields(format!("metadata.name={SERVICE}")).start(
            clock.clone(),
            rng.clone(),
            stage,
        );
        let slices = in_namespace(Resource::of::<discovery::EndpointSlice>())
            .labels(format!("{MANAGED_BY}={MANAGER}"))
            .start(clock.clone(), rng.clone(), stage);
        let nodes = Informer::builder(client.clone(), Resource::of::<core::Node>()).without_json();
        let nodes: Informer<NodeView> = nodes.start(clock.clone(), rng.clone(), stage);
        let told = |wake: &Arc<Notify>| {
            let wake = wake.clone();
            move || wake.notify_one()
        };
        let (a, b, c) = (told(&wake), told(&wake), told(&wake));
        service.subscribe(move |_| a());
        slices.subscribe(move |_| b());
        nodes.subscribe(move |_| c());
        Self { client: client.clone(), own, service, slices, nodes, allow, is_ready, wake, clock: clock.clone() }
    }

    /// Publishes until the stage stops; then takes the slice away.
    pub async fn run(self, stage: &Stage) {
        tokio::select! {
            () = self.keep() => {}
            () = stage.stopped() => {}
        }
        let slices = self.client.dynamic(Resource::of::<discovery::EndpointSlice>()).namespace(NAMESPACE);
        let (name, params) = (slice_name(&self.own.node), DeleteParams::default());
        match self.clock.timeout(FAREWELL, slices.delete(&name, &params)).await {
            Ok(Err(error)) if !error.is_not_found() => tracing::debug!(%error, "our slice of kube-dns stays"),
            Err(_) => tracing::debug!("our slice of kube-dns stays: the API server did not answer"),
            Ok(_) => {}
        }
    }

    async fn keep(&self) {
        futures::join!(self.service.synced(), self.slices.synced(), self.nodes.synced());
        let mut failures = 0;
        loop {
            let seen = self.seen();
            let mut failed = false;
            for action in plan(&self.own, &seen) {
                if let Err(error) = self.apply(&action).await {
                    // Somebody else was faster; what they wrote is on its way here.
                    if !error.is_conflict() && !error.is_already_exists() && !error.is_not_found() {
                        tracing::warn!(%error, "what leads questions to this DNS cannot be written");
                    }
                    failed = true;
                }
            }
            failures = if failed { failures + 1 } else { 0 };
            if failures > 0 {
                tokio::select! {
                    () = self.clock.sleep(RETRY.delay(failures)) => {}
                    // A new Node may ask at once.
                    () = self.wake.notified() => {}
                }
            } else {
                self.wake.notified().await;
            }
        }
    }

    async fn apply(&self, action: &Action) -> client::Result<()> {
        let services = self.client.dynamic(Resource::of::<core::Service>()).namespace(NAMESPACE);
        let slices = self.client.dynamic(Resource::of::<discovery::EndpointSlice>()).namespace(NAMESPACE);
        let (informer, written) = match action {
            Action::CreateService(service) => (&self.service, services.create(service).await?),
            Action::CreateSlice(slice) => (&self.slices, slices.create(slice).await?),
            Action::UpdateSlice(slice) => (&self.slices, slices.update(slice).await?),
            Action::DeleteSlice(name) => {
                slices.delete(name, &DeleteParams::default()).await?;
                self.slices.refreshed().await;
                return Ok(());
            }
        };
        // What was just written is seen before anything is decided again. Of what is followed by a selector a
        // revision shows with the object itself.
        let revision = written["metadata"]["resourceVersion"].as_str().and_then(|r| r.parse().ok()).unwrap_or(0);
        informer.reached(revision).await;
        Ok(())
    }

    fn seen(&self) -> Seen {
        let mut seen = Seen { is_ready: self.is_ready.load(Ordering::Relaxed), ..Seen::default() };
        seen.service = self.service.get(&Key::new(NAMESPACE, SERVICE)).map(|service| service.view.clone());
        seen.slices = self.slices.list().iter().map(|s| (s.meta.name.clone(), s.view.clone())).collect();
        let mut addresses: BTreeSet<IpAddr> = BTreeSet::from([self.own.address]);
        for node in self.nodes.list() {
            let is_unknown = node.view.status.conditions.iter().any(|c| c.kind == "Ready" && c.status == "Unknown");
            let internal = node.view.status.addresses.iter().filter(|a| a.kind == "InternalIP");
            addresses.extend(internal.filter_map(|a| a.address.parse::<IpAddr>().ok()));
            let known = Node { uid: node.meta.uid.clone(), zone: node.meta.labels.get(ZONE).cloned(), is_unknown };
            seen.nodes.insert(node.meta.name.clone(), known);
        }
        // Nodes may ask, too.
        if self.allow.read().nodes != addresses {
            self.allow.write().nodes = addresses;
        }
        seen
    }
}
