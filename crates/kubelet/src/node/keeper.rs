//! Keeps the Node's object in the API server: registers it, tells how it does, renews its Lease.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::meta::apis::meta::v1::OwnerReference;
use api::types::core::v1::{Node, NodeStatus};
use client::events::Type;
use client::lease::Renewal;
use client::{Client, Error, Patch};
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};

use super::facts::{self, Machine};
use super::identity::Identity;
use super::status::{self, Inputs, MACHINE_ID};
use crate::context::blocking;
use crate::relist;
use crate::report::Report;
use crate::runtime::{Health, Image, Runtime};

/// How often the machine and the runtime are looked at.
const LOOK: Duration = Duration::from_secs(10);
/// While the node is not ready, sooner.
const LOOK_SOON: Policy = Policy { initial: Duration::from_millis(50), max: Duration::from_secs(2) };
/// An unchanged status is written this often.
const REPORT: Duration = Duration::from_secs(300);
/// A runtime that was not listed for so long is not healthy.
const LISTED_WITHIN: Duration = Duration::from_secs(180);
const RETRY: Policy = Policy { initial: Duration::from_millis(100), max: Duration::from_secs(7) };

/// What the node is told to be.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub ips: Vec<String>,
    pub port: u16,
    pub max_pods: u32,
    pub version: String,
    pub labels: BTreeMap<String, String>,
    /// The directory whose disk counts.
    pub root: PathBuf,
}

/// The one that keeps it.
pub struct Keeper {
    pub identity: Identity,
    pub settings: Settings,
    pub machine: Machine,
    pub client: Client,
    pub runtime: Arc<dyn Runtime>,
    pub report: Arc<dyn Report>,
    pub listed: Arc<Mutex<relist::Health>>,
    pub clock: SharedClock,
    pub rng: Rng,
}

/// The node cannot be registered, now or ever.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Another machine has this node's name and is alive.
    #[error(
        "node {name:?} is another machine (its id is {theirs}, ours is {ours}) that renewed its Lease {seconds} s ago; \
         give this node another name"
    )]
    Taken { name: String, theirs: String, ours: String, seconds: i64 },
    /// The API server refuses it.
    #[error("node {0:?} cannot be registered: {1}")]
    Refused(String, Error),
}

/// What a look found.
struct Look {
    health: Option<Health>,
    images: Vec<Image>,
    problems: Vec<String>,
    pressure: facts::Pressure,
}

impl Keeper {
    /// Registers the node, trying until the API server answers.
    pub async fn register(&self) -> Result<Node, RegisterError> {
        let mut failures = 0;
        loop {
            match self.try_register().await {
                Ok(node) => return Ok(node),
                Err(error @ RegisterError::Taken { .. }) => return Err(error),
                Err(RegisterError::Refused(name, error)) => {
                    failures += 1;
                    if error.is_invalid() {
                        return Err(RegisterError::Refused(name, error));
                    }
                    tracing::warn!(node = name, %error, "node not registered yet; trying again");
                    self.clock.sleep(RETRY.delay(failures)).await;
                }
            }
        }
    }

    async fn try_register(&self) -> Result<Node, RegisterError> {
        let name = &self.identity.name;
        let refused = |error: Error| RegisterError::Refused(name.clone(), error);
        let nodes = self.client.api::<Node>();
        let look = self.look().await;
        let wanted = status::node(&self.inputs(&look), &self.identity.machine_id, &self.settings.labels);
        let existing = match nodes.create(&wanted).await {
            Ok(created) => return Ok(created),
            Err(error) if error.is_already_exists() => nodes.get(name).await.map_err(refused)?,
            Err(error) => return Err(refused(error)),
        };
        self.check_owner(&existing).await?;
        let mut patch = json!({"metadata": {"annotations": {MACHINE_ID: self.identity.machine_id}, "labels": {}}});
        for (key, value) in wanted.metadata.labels.unwrap_or_default() {
            patch["metadata"]["labels"][key] = Value::String(value);
        }
        nodes.patch(name, &Patch::Merge(patch)).await.map_err(refused)
    }

    /// A Node of our name that another machine registered is taken over only when that is silent.
    async fn check_owner(&self, existing: &Node) -> Result<(), RegisterError> {
        let name = &self.identity.name;
        let theirs =
            existing.metadata.annotations.as_ref().and_then(|a| a.get(MACHINE_ID)).cloned().unwrap_or_default();
        if theirs.is_empty() || theirs == self.identity.machine_id {
            return Ok(());
        }
        let leases = self.client.api::<api::types::coordination::v1::Lease>().namespace("kube-node-lease");
        let lease = leases.find(name).await.map_err(|e| RegisterError::Refused(name.clone(), e))?;
        let renewed = lease.and_then(|l| l.spec).and_then(|s| s.renew_time);
        let Some(renewed) = renewed else { return Ok(()) };
        let seconds = self.clock.wall().duration_since(renewed.0).as_secs();
        if (-40..40).contains(&seconds) {
            let ours = self.identity.machine_id.clone();
            return Err(RegisterError::Taken { name: name.clone(), theirs, ours, seconds });
        }
        tracing::warn!(node = name, theirs, "taking over the node of another machine that is silent");
        Ok(())
    }

    fn inputs<'a>(&'a self, look: &'a Look) -> Inputs<'a> {
        Inputs {
            name: &self.identity.name,
            ips: &self.settings.ips,
            port: self.settings.port,
            max_pods: self.settings.max_pods,
            version: &self.settings.version,
            machine: &self.machine,
            pressure: look.pressure,
            runtime: look.health.as_ref(),
            problems: &look.problems,
            images: &look.images,
            now: crate::status::containers::whole(self.clock.wall()),
        }
    }

    async fn look(&self) -> Look {
        let root = self.settings.root.clone();
        let pressure = blocking(move || facts::pressure(&root)).await.unwrap_or_default();
        let (health, images) = tokio::join!(self.runtime.health(), self.runtime.images());
        let mut problems = Vec::new();
        let listed = self.listed.lock().clone();
        if let Some(at) = listed.listed {
            let ago = self.clock.now().since(at);
            if ago > LISTED_WITHIN {
                let text = crate::image::policy::go_duration;
                let (ago, limit) = (text(ago), text(LISTED_WITHIN));
                problems
                    .push(format!("PLEG is not healthy: pleg was last seen active {ago} ago; threshold is {limit}"));
            }
        }
        if let Err(error) = &health {
            tracing::debug!(%error, "the runtime does not answer");
        }
        Look { health: health.ok(), images: images.unwrap_or_default(), problems, pressure }
    }

    /// Keeps status and Lease until the stage stops. `registered` is the node as it was registered.
    pub async fn run(self, registered: Node, stage: Stage) {
        let owner = OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: self.identity.name.clone(),
            uid: registered.metadata.uid.clone().unwrap_or_default(),
            ..OwnerReference::default()
        };
        let renewal =
            Renewal::node(self.client.clone(), &self.identity.name, Some(owner), self.clock.clone(), self.rng.clone());
        let stopped = stage.stopped();
        tokio::select! {
            () = renewal.run() => {}
            () = self.keep(registered.status.unwrap_or_default()) => {}
            () = stopped => {}
        }
    }

    async fn keep(&self, mut known: NodeStatus) {
        let name = &self.identity.name;
        self.report.node_event(Type::Normal, "Starting", "Starting kubelet.".into());
        // What was registered is told anew: this kubelet has only now begun.
        let mut told = NodeStatus::default();
        let mut written: Option<Instant> = None;
        let (mut failures, mut not_ready) = (0, 0);
        loop {
            let look = self.look().await;
            let status = status::status(&self.inputs(&look), &known);
            let now = self.clock.now();
            let due = written.is_none_or(|at| now.since(at) >= REPORT);
            if due || status::lasting(&status) != status::lasting(&known) {
                match self.write(&known, &status).await {
                    Ok(node) => {
                        failures = 0;
                        written = Some(now);
                        for reason in status::changes(&told, &status) {
                            let text = format!("Node {name} status is now: {reason}");
                            self.report.node_event(Type::Normal, reason, text);
                        }
                        told = status.clone();
                        known = node.status.unwrap_or_default();
                        // Our own view of what was written: the server may print amounts otherwise.
                        known.capacity = status.capacity;
                        known.allocatable = status.allocatable;
                        known.images = status.images;
                    }
                    Err(error) => {
                        failures += 1;
                        tracing::warn!(node = name, %error, "node status not written; trying again");
                        if error.is_not_found() {
                            self.restore().await;
                        }
                        self.clock.sleep(RETRY.delay(failures)).await;
                        continue;
                    }
                }
            }
            let ready =
                look.health.as_ref().is_some_and(|h| h.runtime_problem.is_none() && h.network_problem.is_none());
            not_ready = if ready { 0 } else { not_ready + 1 };
            let pause = if ready { LOOK } else { LOOK_SOON.delay(not_ready) };
            self.clock.sleep(pause).await;
        }
    }

    /// Somebody deleted the Node while its kubelet lives: it registers again.
    async fn restore(&self) {
        if let Err(error) = self.try_register().await {
            tracing::warn!(%error, "node not registered again yet");
        }
    }

    async fn write(&self, before: &NodeStatus, after: &NodeStatus) -> Result<Node, Error> {
        let tree = |status: &NodeStatus| serde_json::to_value(status).unwrap_or_default();
        let (before, after) = (tree(before), tree(after));
        let mut patch = serde_json::Map::new();
        for (key, value) in after.as_object().into_iter().flatten() {
            if before.get(key) != Some(value) {
                patch.insert(key.clone(), value.clone());
            }
        }
        if let Some(addresses) = patch.get_mut("addresses").and_then(Value::as_array_mut) {
            // Addresses merge by type, of which there may be several: replace them all.
            addresses.insert(0, json!({"$patch": "replace"}));
        }
        let body = Patch::Strategic(json!({"status": patch}));
        self.client.api::<Node>().patch_status(&self.identity.name, &body).await
    }
}
