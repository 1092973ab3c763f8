//! The Service `kube-dns` and this process' slice of it: by these the ordinary service proxy leads questions here.

mod plan;

pub use plan::{Node, Own, SERVICE, slice_name};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::types::coordination::v1 as coordination;
use api::types::core::v1 as core;
use api::types::discovery::v1 as discovery;
use client::events::{Recorder, Reference, Source, Type};
use client::{Api, Client, DeleteParams, Informer, Key, Resource};
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};

use crate::nodes::Nodes;
use crate::ready::{Ready, tend};
use plan::{Action, Heard, LEASES, MANAGED_BY, MANAGER, NAMESPACE, SILENT, Seen, conflicts, lease, plan};

/// How long to wait before what failed is tried again.
const RETRY: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(30) };
/// For taking the slice away when the process stops.
const FAREWELL: Duration = Duration::from_secs(2);
/// How often the process says that it lives, and looks who else does.
const RENEW: Duration = Duration::from_secs(10);

/// Keeps what is published as it should be.
pub struct Publisher {
    client: Client,
    own: Arc<RwLock<Own>>,
    service: Informer<Value>,
    slices: Informer<Value>,
    leases: Informer<Value>,
    nodes: Nodes,
    ready: Arc<Ready>,
    clock: SharedClock,
    events: Recorder,
    /// Called when questions are led here from now on.
    published: Box<dyn Fn() + Send + Sync>,
    state: Mutex<State>,
    /// The name of our slice is somebody else's.
    is_name_taken: AtomicBool,
}

#[derive(Default)]
struct State {
    heard: Heard,
    /// When we said last that we live, and when we tried to.
    renewed: Option<Instant>,
    tried: Option<Instant>,
    is_published: bool,
    told: Vec<String>,
}

impl Publisher {
    /// Begins to follow what there is. `own` may change; then `ready` is to be woken.
    pub fn start(
        client: &Client,
        own: Arc<RwLock<Own>>,
        (nodes, ready): (Nodes, Arc<Ready>),
        published: impl Fn() + Send + Sync + 'static,
        (clock, rng): (&SharedClock, &Rng),
        stage: &Stage,
    ) -> Self {
        let in_namespace = |resource| Informer::builder(client.clone(), resource).without_json().namespace(NAMESPACE);
        let ours = format!("{MANAGED_BY}={MANAGER}");
        let service: Informer<Value> = in_namespace(Resource::of::<core::Service>())
            .fields(format!("metadata.name={SERVICE}"))
            .start(clock.clone(), rng.clone(), stage);
        let slices: Informer<Value> = in_namespace(Resource::of::<discovery::EndpointSlice>())
            .labels(ours.clone())
            .start(clock.clone(), rng.clone(), stage);
        // They change all the time, and are looked at now and then.
        let leases: Informer<Value> = Informer::builder(client.clone(), Resource::of::<coordination::Lease>())
            .without_json()
            .namespace(LEASES)
            .labels(ours)
            .start(clock.clone(), rng.clone(), stage);
        let (a, b) = (ready.clone(), ready.clone());
        service.subscribe(move |_| a.wake.notify_one());
        slices.subscribe(move |_| b.wake.notify_one());
        let source = Source::Core { component: "dns".into(), host: own.read().node.clone() };
        let events = Recorder::start(client.clone(), source, clock.clone(), rng.clone(), stage);
        let (published, state) = (Box::new(published), Mutex::default());
        let (client, clock, is_name_taken) = (client.clone(), clock.clone(), AtomicBool::new(false));
        Self { client, own, service, slices, leases, nodes, ready, clock, events, published, state, is_name_taken }
    }

    /// Publishes until the stage stops; then takes the slice away.
    pub async fn run(self, stage: &Stage) {
        tokio::select! {
            () = tend("what leads questions here", None, &self.clock, || self.keep()) => {}
            () = stage.stopped() => {}
        }
        let (name, params) = (slice_name(&self.own.read().node), DeleteParams::default());
        let (slices, leases) = (self.slices(), self.leases());
        let both = async { futures::join!(slices.delete(&name, &params), leases.delete(&name, &params)) };
        match self.clock.timeout(FAREWELL, both).await {
            Ok((Err(error), _)) if !error.is_not_found() => tracing::debug!(%error, "our slice of kube-dns stays"),
            Err(_) => tracing::debug!("our slice of kube-dns stays: the API server did not answer"),
            Ok(_) => {}
        }
    }

    fn slices(&self) -> Api<Value> {
        self.client.dynamic(Resource::of::<discovery::EndpointSlice>()).namespace(NAMESPACE)
    }

    fn leases(&self) -> Api<Value> {
        self.client.dynamic(Resource::of::<coordination::Lease>()).namespace(LEASES)
    }

    async fn keep(&self) {
        // What is known of others' Leases may come later, or never where nobody may read them.
        futures::join!(self.service.synced(), self.slices.synced(), self.nodes.synced());
        let mut failures = 0;
        loop {
            self.renew().await;
            let (own, seen) = (self.own.read().clone(), self.seen());
            let mut failed = false;
            for action in plan(&own, &seen) {
                if let Err(error) = self.apply(&action).await {
                    // Somebody else was faster; what they wrote is on its way here.
                    if !error.is_conflict() && !error.is_already_exists() && !error.is_not_found() {
                        tracing::warn!(%error, "what leads questions to this DNS cannot be written");
                    }
                    failed = true;
                }
            }
            self.tell(&own, &seen);
            failures = if failed { failures + 1 } else { 0 };
            // A new Node is told of at once, also while something fails.
            let pause = if failed { RETRY.delay(failures).min(RENEW) } else { RENEW };
            tokio::select! {
                () = self.clock.sleep(pause) => {}
                () = self.ready.wake.notified() => {}
            }
        }
    }

    async fn apply(&self, action: &Action) -> client::Result<()> {
        let services = self.client.dynamic(Resource::of::<core::Service>()).namespace(NAMESPACE);
        let slices = self.slices();
        let (informer, written) = match action {
            Action::CreateService(service) => (&self.service, services.create(service).await?),
            Action::CreateSlice(slice) => match slices.create(slice).await {
                Ok(written) => (&self.slices, written),
                Err(error) => {
                    if error.is_already_exists() {
                        let name = slice["metadata"]["name"].as_str().unwrap_or_default();
                        let other = slices.find(name).await?;
                        let is_ours = |other: &Value| other["metadata"]["labels"][MANAGED_BY] == MANAGER;
                        self.is_name_taken.store(other.is_some_and(|other| !is_ours(&other)), Ordering::Relaxed);
                    }
                    return Err(error);
                }
            },
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

    /// Says that this process lives, now and then.
    async fn renew(&self) {
        let (own, now) = (self.own.read().clone(), self.clock.now());
        let nodes = self.nodes.list();
        // Without its Node nobody would remove the Lease.
        let Some(node) = nodes.get(&own.node) else { return };
        if self.state.lock().tried.is_some_and(|at| now.since(at) < RENEW) {
            return;
        }
        self.state.lock().tried = Some(now);
        let wanted = lease(&own, node, &machinery::time::rfc3339_micro(self.clock.wall()));
        let name = slice_name(&own.node);
        let leases = self.leases();
        let written = match leases.find(&name).await {
            Ok(Some(mut existing)) => {
                existing["spec"] = wanted["spec"].clone();
                for part in ["labels", "ownerReferences"] {
                    existing["metadata"][part] = wanted["metadata"][part].clone();
                }
                leases.update(&existing).await
            }
            Ok(None) => leases.create(&wanted).await,
            Err(error) => Err(error),
        };
        match written {
            Ok(_) => self.state.lock().renewed = Some(now),
            Err(error) => tracing::debug!(%error, "the Lease of this DNS was not renewed"),
        }
    }

    /// Says what somebody else has, once, and when questions are led here.
    fn tell(&self, own: &Own, seen: &Seen) {
        let found = conflicts(own, seen, self.is_name_taken.load(Ordering::Relaxed));
        let slice = seen.slices.get(&slice_name(&own.node));
        let is_published = slice.is_some_and(|slice| slice["endpoints"][0]["conditions"]["ready"] == true);
        let mut state = self.state.lock();
        for why in found.iter().filter(|why| !state.told.contains(why)) {
            tracing::warn!(service = SERVICE, "{why}");
            let text = |path: &str| {
                let service = seen.service.as_ref().map(|service| &service["metadata"][path]);
                service.and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let service = Reference {
                api_version: "v1".into(),
                kind: "Service".into(),
                namespace: NAMESPACE.into(),
                name: SERVICE.into(),
                uid: text("uid"),
                ..Reference::default()
            };
            self.events.event(&service, Type::Warning, "DNSConflict", why.clone());
        }
        state.told = found;
        let is_new = is_published && !state.is_published;
        state.is_published = is_published;
        drop(state);
        if is_new {
            (self.published)();
        }
    }

    fn seen(&self) -> Seen {
        let mut seen = Seen { is_ready: self.ready.is_ready(), ..Seen::default() };
        seen.service = self.service.get(&Key::new(NAMESPACE, SERVICE)).map(|service| service.view.clone());
        seen.slices = self.slices.list().iter().map(|s| (s.meta.name.clone(), s.view.clone())).collect();
        seen.nodes = self.nodes.list();
        let (leases, now) = (self.leases.list(), self.clock.now());
        let mut state = self.state.lock();
        let mut silent = state.heard.silent(leases.iter().map(|lease| &lease.view), now);
        // Of ourselves it is known better: what counts is when others could hear of us last.
        let own = self.own.read().node.clone();
        let is_heard = state.renewed.is_none_or(|at| now.since(at) < SILENT);
        if is_heard {
            silent.remove(&own);
        }
        for node in silent {
            seen.nodes.entry(node).and_modify(|node| node.is_unknown = true);
        }
        seen
    }
}
