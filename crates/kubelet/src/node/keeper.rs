//! Keeps the Node's object true for as long as the kubelet runs: registers it, tells how it does,
//! renews its Lease.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::meta::apis::meta::v1::OwnerReference;
use api::types::core::v1::{Node, NodeStatus, Taint};
use client::events::Type;
use client::lease::Renewal;
use client::{Client, Patch};
use parking_lot::{Mutex, RwLock};
use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};

use super::facts::{Machine, Places};
use super::identity::Identity;
use super::pressure::{Gauge, Pressure};
pub use super::register::RegisterError;
use super::register::{self, Registered};
use super::runtime_state::{Problem, RuntimeState};
use super::status::{self, Reserved};
use super::thresholds::Thresholds;
use crate::context::blocking;
use crate::image::policy::go_duration;
use crate::relist;
use crate::report::{Report, Wait};
use crate::runtime::{Error, Features, Image, Runtime};

/// How often the machine and the runtime are looked at.
pub(crate) const LOOK: Duration = Duration::from_secs(10);
/// How often while the runtime is not ready, after it once was.
const LOOK_UNREADY: Duration = Duration::from_secs(1);
/// How often a status is written in which nothing changed but the time.
pub(crate) const REPORT: Duration = Duration::from_secs(5 * 60);
/// How the runtime is asked until it is ready for the first time: every pod waits for that.
const FIRST: Policy = Policy { initial: Duration::from_millis(10), max: Duration::from_millis(200) };
/// Looks of that sort; a runtime that needs longer is waited for in peace.
const FIRST_LOOKS: u32 = 150;
/// How long the runtime may take to tell how it is.
const ANSWER: Duration = Duration::from_secs(10);
/// A runtime that was not listed for so long is not healthy.
const LISTED_WITHIN: Duration = Duration::from_secs(180);
const RETRY: Policy = Policy { initial: Duration::from_millis(100), max: Duration::from_secs(7) };

/// What the node is told to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The preferred address first.
    pub ips: Vec<String>,
    /// Where the kubelet's server listens.
    pub port: u16,
    pub max_pods: u32,
    /// `v1.37.1+pintle.0.1.0`.
    pub version: String,
    /// Labels and taints of the first registration.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Where the identity is kept.
    pub root: PathBuf,
    pub places: Places,
    pub reserved: Reserved,
    pub thresholds: Thresholds,
}

/// What the keeper works with.
pub struct Parts {
    pub identity: Identity,
    pub settings: Settings,
    pub machine: Machine,
    pub client: Client,
    pub runtime: Arc<dyn Runtime>,
    pub report: Arc<dyn Report>,
    pub listed: Arc<Mutex<relist::Health>>,
    /// What the runtime can do, kept up to date.
    pub features: Arc<RwLock<Features>>,
    /// What the node is short of.
    pub gauge: Arc<Gauge>,
    pub clock: SharedClock,
    pub rng: Rng,
}

/// The Node of this machine as it would register now: what is known of it without an API server.
pub fn unregistered(
    identity: &Identity,
    settings: &Settings,
    machine: &Machine,
    pressure: Pressure,
    clock: &SharedClock,
) -> Node {
    let inputs = status::Inputs {
        identity,
        machine,
        addresses: &settings.ips,
        port: settings.port,
        max_pods: settings.max_pods,
        kubelet_version: &settings.version,
        reserved: settings.reserved,
        thresholds: &settings.thresholds,
        health: None,
        problems: &[],
        pressure,
        images: None,
        now: clock.wall(),
    };
    let (status, _) = status::render(&inputs, &NodeStatus::default());
    let labels = register::labels(&identity.node_name, machine.operating_system, machine.architecture);
    register::render(identity, &labels, &settings.labels, &settings.taints, status)
}

/// The one that keeps it.
pub struct Keeper {
    parts: Parts,
    runtime: RuntimeState,
    /// The node's uid; Waits name it.
    uid: String,
    /// The problems last told of.
    told: Option<Vec<Problem>>,
    was_ready: bool,
    /// Looks at a runtime that was never ready.
    looks: u32,
    /// When a status was last written.
    reported: Option<Instant>,
    is_unschedulable: bool,
}

impl Keeper {
    /// Nothing is known yet.
    pub fn new(parts: Parts) -> Self {
        Self {
            runtime: RuntimeState::default(),
            uid: String::new(),
            told: None,
            was_ready: false,
            looks: 0,
            reported: None,
            is_unschedulable: false,
            parts,
        }
    }

    fn name(&self) -> &str {
        &self.parts.identity.node_name
    }

    fn event(&self, kind: Type, reason: &str, message: String) {
        self.parts.report.node_event(kind, reason, message);
    }

    fn tell(&self, reasons: &[&'static str]) {
        for reason in reasons {
            self.event(Type::Normal, reason, format!("Node {} status is now: {reason}", self.name()));
        }
    }

    /// Registers the node, trying until the API server answers.
    ///
    /// # Errors
    /// When the node is another machine's, or the API server will never take it.
    pub async fn register(&mut self) -> Result<Node, RegisterError> {
        self.event(Type::Normal, "Starting", "Starting kubelet.".into());
        self.observe().await;
        let node = self.register_until_done().await?;
        self.event(Type::Normal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods".into());
        Ok(node)
    }

    async fn register_until_done(&mut self) -> Result<Node, RegisterError> {
        let mut failures = 0;
        loop {
            match self.try_register().await {
                Ok(node) => return Ok(node),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, "node not registered yet; trying again");
                    self.parts.clock.sleep(RETRY.delay(failures)).await;
                    self.observe().await;
                }
            }
        }
    }

    async fn try_register(&mut self) -> Result<Node, RegisterError> {
        let (status, reasons) = self.render(&NodeStatus::default(), None);
        let Parts { identity, settings, machine, client, clock, .. } = &self.parts;
        let defaults = register::labels(&identity.node_name, machine.operating_system, machine.architecture);
        let wanted = register::render(identity, &defaults, &settings.labels, &settings.taints, status);
        let Registered { node, is_new } =
            register::register(client, identity, &wanted, &defaults, clock.wall()).await?;
        // Only now: a name that the API server refuses must not stick.
        let (identity, root) = (identity.clone(), settings.root.clone());
        if let Err(error) = blocking(move || identity.keep(&root)).await.and_then(|kept| kept) {
            tracing::error!(%error, "the node's identity cannot be written down");
        }
        if is_new {
            self.reported = Some(self.parts.clock.now());
        }
        self.uid = node.metadata.uid.clone().unwrap_or_default();
        self.publish();
        // As upstream, at every start anew.
        self.tell(&reasons);
        Ok(node)
    }

    /// Keeps status and Lease until the stage stops. `node` is the node as it was registered.
    pub async fn run(mut self, mut node: Node, stage: Stage) {
        let mut stopped = std::pin::pin!(stage.stopped());
        loop {
            let owner = OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: self.name().to_owned(),
                uid: node.metadata.uid.clone().unwrap_or_default(),
                ..OwnerReference::default()
            };
            let (client, clock, rng) = (self.parts.client.clone(), self.parts.clock.clone(), self.parts.rng.clone());
            // Beside the rest, so that a slow runtime never makes the node look dead.
            let lease = Renewal::node(client, self.name(), Some(owner), clock, rng);
            node = tokio::select! {
                () = &mut stopped => return,
                () = lease.run() => return,
                next = self.keep() => next,
            };
        }
    }

    /// Keeps the status; ends when the node had to be registered anew.
    async fn keep(&mut self) -> Node {
        let clock = self.parts.clock.clone();
        let mut pressure = self.parts.gauge.changes();
        let (mut due, mut failures) = (clock.now(), 0);
        loop {
            let changed = self.observe().await;
            if changed || due <= clock.now() {
                pressure.mark_unchanged();
                let delay = match self.sync().await {
                    Ok(None) => {
                        failures = 0;
                        LOOK
                    }
                    Ok(Some(node)) => return node,
                    Err(error) => {
                        failures += 1;
                        tracing::warn!(node = self.name(), %error, "node status not written; trying again");
                        RETRY.delay(failures)
                    }
                };
                due = clock.now() + delay;
            }
            let wait = self.until_next().min(due.since(clock.now()));
            tokio::select! {
                () = clock.sleep(wait) => {}
                // Whoever ends pods has seen it: what is let in elsewhere depends on what the Node says.
                Ok(()) = pressure.changed() => due = clock.now(),
            }
        }
    }

    /// How long until the runtime is looked at again.
    fn until_next(&mut self) -> Duration {
        if self.problems().is_empty() {
            self.was_ready = true;
            return LOOK;
        }
        if self.was_ready || self.looks >= FIRST_LOOKS {
            return LOOK_UNREADY;
        }
        self.looks += 1;
        FIRST.delay(self.looks)
    }

    /// Why the node is not ready.
    fn problems(&self) -> Vec<Problem> {
        let now = self.parts.clock.now();
        let mut problems = self.runtime.problems(now);
        let listed = self.parts.listed.lock().listed;
        if let Some(ago) = listed.map(|at| now.since(at)).filter(|ago| *ago > LISTED_WITHIN) {
            let (ago, limit) = (go_duration(ago), go_duration(LISTED_WITHIN));
            let text = format!("PLEG is not healthy: pleg was last seen active {ago} ago; threshold is {limit}");
            problems.push(Problem { code: "RuntimeNotReady", text });
        }
        problems
    }

    /// Looks at the runtime; true when its problems are others than before.
    async fn observe(&mut self) -> bool {
        let clock = &self.parts.clock;
        let answer = clock.timeout(ANSWER, self.parts.runtime.health()).await;
        let answer = answer.unwrap_or_else(|_| Err(Error::DeadlineExceeded("no answer".into())));
        if let Ok(health) = &answer {
            if *self.parts.features.read() != health.features {
                self.parts.features.write().clone_from(&health.features);
            }
        }
        self.runtime.observe(answer, clock.now());
        let problems = self.problems();
        let kinds = |all: &[Problem]| all.iter().map(|p| p.code).collect::<Vec<_>>();
        // Other words for the same (a time that grows) can wait for the next regular look.
        let changed = self.told.as_ref().is_none_or(|told| kinds(told) != kinds(&problems));
        self.told = Some(problems);
        self.publish();
        changed
    }

    /// Says what the node waits for, once it is known to the API server.
    fn publish(&self) {
        if self.uid.is_empty() {
            return;
        }
        let wait =
            |problem: &Problem| Wait { code: problem.code, on: "container runtime".into(), text: problem.text.clone() };
        let waits: Vec<Wait> = self.told.iter().flatten().map(wait).collect();
        self.parts.report.node_waits(&self.uid, &waits);
    }

    fn render(&mut self, old: &NodeStatus, images: Option<&[Image]>) -> (NodeStatus, Vec<&'static str>) {
        let problems = self.problems();
        let Parts { identity, settings, machine, gauge, clock, .. } = &self.parts;
        let pressure = gauge.observe(&settings.places.levels(), clock.now()).pressure;
        let inputs = status::Inputs {
            identity,
            machine,
            addresses: &settings.ips,
            port: settings.port,
            max_pods: settings.max_pods,
            kubelet_version: &settings.version,
            reserved: settings.reserved,
            thresholds: &settings.thresholds,
            health: self.runtime.health(),
            problems: &problems,
            pressure,
            images,
            now: clock.wall(),
        };
        status::render(&inputs, old)
    }

    /// Makes the Node say what is. The node when it was gone and is registered anew.
    async fn sync(&mut self) -> Result<Option<Node>, RegisterError> {
        let api = self.parts.client.api::<Node>();
        let Some(node) = api.find(self.name()).await.map_err(|e| self.refused(e))? else {
            tracing::warn!(node = self.name(), "the Node object is gone; registering again");
            return self.try_register().await.map(Some);
        };
        let images = self.parts.runtime.images().await.ok();
        let runtime = self.parts.runtime.clone();
        self.parts.settings.places.find_images(&*runtime).await;
        // The status as it is there, not as we left it: the node controller writes it too, when it
        // hears nothing of us.
        let old = node.status.clone().unwrap_or_default();
        let (new, reasons) = self.render(&old, images.as_deref());
        let found = status::diff(&old, &new);
        let now = self.parts.clock.now();
        let is_due = self.reported.is_none_or(|at| now.since(at) >= REPORT);
        if found.is_urgent || is_due {
            let patch = Patch::Strategic(found.patch);
            api.patch_status(self.name(), &patch).await.map_err(|e| self.refused(e))?;
            self.reported = Some(now);
            self.tell(&reasons);
            let boot = old.node_info.map(|i| i.boot_id).unwrap_or_default();
            if !boot.is_empty() && boot != self.parts.machine.boot_id {
                let text = format!("Node {} has been rebooted, boot id: {}", self.name(), self.parts.machine.boot_id);
                self.event(Type::Warning, "Rebooted", text);
            }
        }
        let is_unschedulable = node.spec.and_then(|s| s.unschedulable).unwrap_or(false);
        if std::mem::replace(&mut self.is_unschedulable, is_unschedulable) != is_unschedulable {
            self.tell(&[if is_unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" }]);
        }
        Ok(None)
    }

    fn refused(&self, error: client::Error) -> RegisterError {
        RegisterError::Refused(self.name().to_owned(), error)
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
