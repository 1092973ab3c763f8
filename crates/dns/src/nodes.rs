//! The cluster's Nodes: who of them may ask, which are not heard of, and at which address ours is reached.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use api::types::core::v1 as core;
use client::{Client, Informer, Key, Resource};
use parking_lot::RwLock;
use serde::{Deserialize, Deserializer};
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use tokio::sync::watch;

use crate::publish::Node;
use crate::ready::Ready;
use crate::server::Allow;

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

impl NodeView {
    fn internal(&self) -> impl Iterator<Item = IpAddr> {
        let internal = self.status.addresses.iter().filter(|a| a.kind == "InternalIP");
        internal.filter_map(|a| a.address.parse().ok())
    }
}

/// The Nodes, followed. Clones share everything.
#[derive(Clone)]
pub struct Nodes {
    informer: Arc<Informer<NodeView>>,
    changed: watch::Receiver<()>,
}

impl Nodes {
    /// Begins to follow them: from then on they may ask.
    pub fn start(
        client: &Client,
        (allow, ready): (Arc<RwLock<Allow>>, Arc<Ready>),
        (clock, rng): (&SharedClock, &Rng),
        stage: &Stage,
    ) -> Self {
        let nodes = Informer::builder(client.clone(), Resource::of::<core::Node>()).without_json();
        let informer: Informer<NodeView> = nodes.start(clock.clone(), rng.clone(), stage);
        let (told, changed) = watch::channel(());
        informer.subscribe(move |_| {
            ready.wake.notify_one();
            told.send_replace(());
        });
        let this = Self { informer: Arc::new(informer), changed };
        let (own, clock) = (this.clone(), clock.clone());
        stage.run(async move {
            crate::ready::tend("who may ask", None, &clock, || own.clone().admit(allow.clone())).await;
        });
        this
    }

    /// Nodes may ask, from the addresses that they tell.
    async fn admit(mut self, allow: Arc<RwLock<Allow>>) {
        loop {
            let addresses = self.informer.list().iter().flat_map(|n| n.view.internal().collect::<Vec<_>>()).collect();
            if allow.read().nodes != addresses {
                allow.write().nodes = addresses;
            }
            self.changed().await;
        }
    }

    /// Ends when something has changed since it was asked last.
    pub async fn changed(&mut self) {
        if self.changed.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends when all that there is is known.
    pub async fn synced(&self) {
        self.informer.synced().await;
    }

    /// What there is.
    pub fn list(&self) -> BTreeMap<String, Node> {
        let one = |node: &Arc<client::Cached<NodeView>>| {
            let is_unknown = node.view.status.conditions.iter().any(|c| c.kind == "Ready" && c.status == "Unknown");
            let zone = node.meta.labels.get(ZONE).cloned();
            (node.meta.name.clone(), Node { uid: node.meta.uid.clone(), zone, is_unknown })
        };
        self.informer.list().iter().map(one).collect()
    }

    /// Where the process of that Node is to listen, which listens at `current`; `None`: there.
    pub fn moved(&self, name: &str, current: IpAddr, host: impl FnOnce() -> BTreeSet<IpAddr>) -> Option<IpAddr> {
        let node = self.informer.get(&Key::new("", name))?;
        let internal: Vec<IpAddr> = node.view.internal().collect();
        if internal.contains(&current) { None } else { moved(current, &internal, &host()) }
    }
}

/// An address that the host has lost is not waited for when its Node has another one that the host has.
fn moved(current: IpAddr, internal: &[IpAddr], host: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let stays = current.is_loopback() || host.contains(&current);
    internal.iter().copied().find(|address| !stays && host.contains(address))
}

#[cfg(test)]
mod tests {
    use client::fake::Fake;
    use serde_json::json;
    use stdx::clock::RealClock;

    use super::*;

    #[test]
    fn where_to_listen() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let host = BTreeSet::from([ip("10.0.0.1"), ip("10.0.0.2"), ip("fd00::1")]);
        for (current, internal, want) in [
            ("10.0.0.1", &["10.0.0.2"][..], None),
            ("10.0.0.9", &["10.0.0.2"], Some("10.0.0.2")),
            ("10.0.0.9", &["10.0.0.8", "fd00::1"], Some("fd00::1")),
            ("10.0.0.9", &["10.0.0.8"], None),
            ("10.0.0.9", &[], None),
            ("127.0.0.9", &["10.0.0.2"], None),
        ] {
            let internal: Vec<IpAddr> = internal.iter().map(|text| ip(text)).collect();
            assert_eq!(moved(ip(current), &internal, &host), want.map(ip), "{current} {internal:?}");
        }
    }

    #[tokio::test]
    async fn a_node_may_ask_as_soon_as_it_is_there() {
        let (stage, clock, rng) = (Stage::new(), RealClock::shared(), Rng::seeded(1));
        let fake = Fake::new(vec![Resource::of::<core::Node>()], clock.clone(), rng.clone());
        let allow = Arc::new(RwLock::new(Allow::default()));
        let client = Client::new(fake.handler(), "test");
        let mut nodes = Nodes::start(&client, (allow.clone(), Arc::default()), (&clock, &rng), &stage);
        nodes.synced().await;
        let asks: IpAddr = [192, 0, 2, 9].into();
        assert!(!allow.read().is_allowed(asks));
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]},
        });
        client.dynamic(Resource::of::<core::Node>()).create(&node).await.expect("created");
        nodes.changed().await;
        while !allow.read().is_allowed(asks) {
            tokio::task::yield_now().await;
        }
        stage.stop();
    }
}
