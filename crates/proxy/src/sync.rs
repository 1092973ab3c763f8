//! The loop: what changed in the API becomes one transaction to the kernel.
//!
//! ```text
//!  dirty Services, nodes ─► model ─► pending ─► dataplane ─► kernel
//!  somebody else's change, a refused Service's time ─┘            └─► stale connections, Waits, health,
//!                                                                     endpoints that have left
//! ```

mod caches;
mod egress;
mod leaving;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1 as core;
use client::events::{Event as Told, Recorder, Reference, Source, Type};
use client::waits::Publisher;
use client::{Cached, Client, Key, Resource};
use net::nft::Error;
use net::ruleset::Family;
use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};

use crate::checks::Checks;
use crate::conntrack::{self, Expected, Gone};
use crate::dataplane::{Dataplane, Refused};
use crate::health::DELETION_TAINT;
use crate::iptables::apply::Restored;
use crate::metrics::{Extent, Metrics};
use crate::model::objects::{Node, ZONE};
use crate::model::{Here, Model, ServiceRules, Settings};
use crate::nftables::apply::Applied;
use crate::nftables::table::Change;
use crate::options::{Mode, Options};
use caches::{Caches, Dirty};
use egress::Egress;
use leaving::Leaving;
use waiting::{NOT_YET, Waiting};

/// How long to wait before what was refused is tried again.
const RETRY: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(30) };
/// How often the rules are looked at, as upstream does with iptables.
const LOOK: Duration = Duration::from_secs(30);
/// The code of the Wait of a Service whose port for load balancers' checks is not open, and the reason of the event.
const CHECK_CLOSED: &str = "HealthCheckPortNotOpen";
const CHECK_FAILED: &str = "FailedToStartServiceHealthcheck";
/// How often connections are looked at, of which there may be hundreds of thousands.
const CLEAN: Duration = Duration::from_secs(1);
/// How often what is left of what has gone is removed.
const TIDY: Duration = Duration::from_secs(10);
/// After so long without a change by somebody else the next one is mended at once.
const CALM: Duration = Duration::from_secs(60);

/// Runs until the stage stops. The rules stay.
pub async fn run(client: Client, clock: SharedClock, rng: Rng, options: Options, stage: &Stage) {
    let mut sync = Sync::start(&client, clock, rng, options, stage);
    tokio::select! {
        () = sync.run() => {}
        () = stage.stopped() => {}
    }
}

struct Sync {
    caches: Caches,
    dirty: Arc<Dirty>,
    clock: SharedClock,
    options: Options,
    waiting: Waiting,
    leaving: Leaving,
    checks: Checks,
    recorder: Recorder,
    /// Services whose port of checks could not be opened.
    unopened: BTreeMap<Key, Reference>,
    wanted: Wanted,
    state: State,
    /// This node as it was when it last had addresses.
    own: Option<Arc<Cached<Node>>>,
}

/// What the kernel should have.
struct Wanted {
    model: Model,
    here: Here,
    settings: Settings,
}

/// What of it is still to be done, and by whom.
struct State {
    /// What the kernel has not been told yet.
    pending: BTreeSet<Key>,
    /// What it refused: how often, and when to try again.
    refused: BTreeMap<Key, (u32, Instant)>,
    planes: Vec<Plane>,
    outside: Vec<Egress>,
    /// The tables of egress that are not loaded: how often that failed, and when to try again.
    outside_failed: Option<(u32, Instant)>,
    gone: Gone,
    /// Connections may lead to where nobody answers.
    stale: bool,
    /// They could not be looked at: how often, and when to try again.
    clean_failed: Option<(u32, Instant)>,
    /// When they were looked at last.
    cleaned: Option<Instant>,
    /// When what is left of what has gone was removed last.
    tidied: Instant,
    /// Families of which those are gone that led nowhere before this process began.
    reconciled: Vec<Family>,
    /// When everything is loaded again, where somebody else changes it all the time.
    reload: Option<Instant>,
    metrics: Metrics,
}

/// One family's dataplane.
struct Plane {
    rules: Box<dyn Dataplane>,
    /// The kernel took nothing: how often in a row, and when to try again. Then everything is loaded.
    failed: Option<(u32, Instant)>,
    /// What it said then.
    said: String,
}

/// Once more, and later than the time before.
fn again(failed: Option<(u32, Instant)>, now: Instant) -> Option<(u32, Instant)> {
    let times = failed.map_or(1, |(times, _)| times.saturating_add(1));
    Some((times, now + RETRY.delay(times)))
}

/// Why the loop goes on.
enum Event {
    Dirty,
    Drift,
    Due,
    /// Nobody tells of changes by others: it is time to look.
    Look,
}

impl Sync {
    fn start(client: &Client, clock: SharedClock, rng: Rng, options: Options, stage: &Stage) -> Self {
        let dirty = Arc::new(Dirty::default());
        let has_ranges = !options.service_cidrs.is_empty();
        let caches = Caches::start(client, &dirty, (&clock, &rng), has_ranges, stage);
        let waits = Publisher::start_on_node(client, "proxy", &options.node_name, clock.clone(), stage);
        let on = options.mode.as_str();
        let waiting = Waiting { waits, resource: Resource::of::<core::Service>(), on, services: BTreeMap::new() };
        let wanted = Wanted {
            model: Model::new(),
            here: Here { name: options.node_name.clone(), zone: None },
            settings: options.settings(None, std::iter::empty(), None),
        };
        let state = State {
            pending: BTreeSet::new(),
            refused: BTreeMap::new(),
            planes: Vec::new(),
            outside: Vec::new(),
            outside_failed: None,
            gone: Gone::default(),
            stale: true,
            clean_failed: None,
            cleaned: None,
            tidied: clock.now(),
            reconciled: Vec::new(),
            reload: None,
            metrics: Metrics::new(&options.registry, options.mode),
        };
        let leaving = Leaving::start(client, &options, clock.clone(), stage);
        let checks = Checks::new(options.health.clone(), clock.clone(), options.addresses);
        let source =
            Source::Series { controller: "kube-proxy".into(), instance: format!("kube-proxy-{}", options.node_name) };
        let recorder = Recorder::start(client.clone(), source, clock.clone(), rng, stage);
        let unopened = BTreeMap::new();
        Self { caches, dirty, clock, options, waiting, leaving, checks, recorder, unopened, wanted, state, own: None }
    }

    async fn run(&mut self) {
        // Until the caches are full the kernel keeps what an earlier process left there.
        self.caches.synced().await;
        self.observe_nodes();
        self.state.begin(&self.options, &self.wanted.settings);
        let (mut failures, mut drifts, mut drifted) = (0, 0, self.clock.now());
        let (started, mut triggers) = (self.clock.wall(), BTreeMap::new());
        let (mut takes_over, mut deaf) = (self.options.takes_over, false);
        loop {
            let revisions = self.caches.revisions();
            triggers.extend(self.dirty.take_triggers());
            let (services, nodes) = self.dirty.take();
            let (families, now) = (self.state.families(), self.clock.wall().as_second());
            self.state.metrics.begun(&families, self.dirty.take_counts(), now);
            self.observe(services, nodes).await;
            self.state.begin(&self.options, &self.wanted.settings);
            let families = self.state.families();
            if !self.state.pending.is_empty() {
                self.options.health.queued();
            }
            self.open_checks().await;
            let unopened_due = self.checks.due();
            let Self { caches, dirty, clock, options, wanted, state, waiting, leaving, .. } = self;
            let applied = tokio::select! {
                applied = state.apply(wanted, options, clock) => applied,
                never = waiting.follow(caches, dirty, &wanted.model, &wanted.here) => match never {},
            };
            match applied {
                Ok(refused) => {
                    failures = 0;
                    // What the other mode has left here would go on translating to endpoints that come no more.
                    if std::mem::take(&mut takes_over)
                        && let Err(error) =
                            crate::cleanup::remove(options.mode.other(), &*options.kernel, &*options.tables).await
                    {
                        tracing::warn!(%error, "the rules of the other mode cannot be removed");
                    }
                    waiting.is_over(caches, &refused, dirty, |key| state.lacks(wanted.model.get(key).map(|r| &**r)));
                    // Who may still be reached by one family has not left.
                    if state.planes.iter().all(|plane| plane.failed.is_none()) {
                        leaving.in_kernel(|key| !state.refused.contains_key(key));
                    }
                    options.health.updated();
                    // What happened before this process began took as long as that took to begin.
                    let (now, all) = (clock.wall(), std::mem::take(&mut triggers));
                    let fresh = all.into_iter().filter(|(key, _)| !refused.contains_key(key)).flat_map(|(_, at)| at);
                    let took =
                        fresh.filter(|at| *at >= started).map(|at| Duration::try_from(now - at).unwrap_or_default());
                    state.metrics.programmed(&families, &revisions, took);
                    let due = [state.due(), unopened_due].into_iter().flatten().min();
                    // What woke `follow` is still to be done.
                    if dirty.is_empty() && state.pending.is_empty() {
                        match next(dirty, clock, options, due, &mut deaf).await {
                            Event::Dirty | Event::Due => {}
                            Event::Look => state.look().await,
                            // What is to come is enough.
                            Event::Drift if state.reload.is_some() => {}
                            Event::Drift => {
                                // Somebody who does it all the time is answered less and less often; what
                                // Services change goes on meanwhile.
                                let now = clock.now();
                                drifts = if now.since(drifted) < CALM { drifts + 1 } else { 0 };
                                drifted = now;
                                tracing::warn!("somebody else changed the service rules: loading them again");
                                state.reload = Some(if drifts > 0 { now + RETRY.delay(drifts) } else { now });
                            }
                        }
                    }
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, failures, "the kernel refused the service rules");
                    waiting.refused(&error.to_string());
                    tokio::select! {
                        () = clock.sleep(RETRY.delay(failures)) => {}
                        never = waiting.follow(caches, dirty, &wanted.model, &wanted.here) => match never {},
                    }
                }
            }
        }
    }

    /// Brings the model up to date with the caches.
    async fn observe(&mut self, mut services: BTreeSet<Key>, nodes: bool) {
        if nodes && self.observe_nodes() {
            services.extend(self.caches.services.list().iter().map(|s| s.meta.key()));
        }
        let families = self.state.families();
        let Self { caches, waiting, leaving, checks, wanted, state, .. } = self;
        checks.place(&wanted.settings.node_ports);
        for key in services {
            let leavers = caches.leavers(&key, &wanted.here);
            let rules = caches.rules(&key, &wanted.here);
            leaving.observe(&key, leavers.into_iter().filter(|pod| !rules.leads_to(&pod.ip)));
            let before = wanted.model.get(&key);
            if before.map_or(rules.is_empty(), |before| **before == rules) {
                continue;
            }
            waiting.publish(caches, &key, NOT_YET);
            checks.set(&key, rules.health_check);
            let rules = Some(Arc::new(rules)).filter(|r| !r.is_empty());
            let before = match &rules {
                Some(rules) => wanted.model.insert(key.clone(), rules.clone()),
                None => wanted.model.remove(&key),
            };
            state.gone.replace(before.as_deref(), rules.as_deref());
            state.metrics.replaced(&families, before.as_deref(), rules.as_deref());
            state.stale |= before.iter().chain(&rules).any(|r| conntrack::concerns(r));
            state.refused.remove(&key);
            state.pending.insert(key);
        }
    }

    /// Opens ports of checks, and tells of those that cannot be opened.
    async fn open_checks(&mut self) {
        let Self { caches, waiting, checks, recorder, unopened, options, .. } = self;
        for (key, port, why) in checks.try_closed().await {
            tracing::warn!(%key, port, why, "load balancers cannot ask whether this node has endpoints");
            let Some(service) = caches.services.get(&key) else { continue };
            let reference = Reference::of(&waiting.resource, &service.meta);
            let node = &options.node_name;
            let message = format!("node {node} failed to start healthcheck \"{key}\" on port {port}: {why}");
            recorder.record(Told::new(reference.clone(), Type::Warning, CHECK_FAILED, message).action("Listen"));
            let text = format!("load balancers cannot ask whether this node has endpoints of it: {why}");
            waiting.waits.publish(&reference, CHECK_CLOSED, format!("port {port}"), text);
            if let Some(former) = unopened.insert(key, reference.clone())
                && former.uid != reference.uid
            {
                waiting.waits.withdraw(&former, CHECK_CLOSED);
            }
        }
        unopened.retain(|key, reference| {
            let is_closed = checks.is_closed(key);
            if !is_closed {
                waiting.waits.withdraw(reference, CHECK_CLOSED);
            }
            is_closed
        });
    }

    /// Reads the nodes again; true when other endpoints may be chosen now.
    fn observe_nodes(&mut self) -> bool {
        let nodes = self.caches.nodes.list();
        let (own, others): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|n| n.meta.name == self.options.node_name);
        let own = own.first();
        // Without its Node, or its addresses, this node is what it was.
        if let Some(node) = own.filter(|node| node.view.internal_ips().next().is_some()) {
            self.own = Some(node.clone());
        }
        let known = self.own.clone();
        let known = known.as_ref().or(own);
        let ranges = others.iter().flat_map(|n| n.view.spec.pod_cidrs.clone());
        self.wanted.settings = self.options.settings(known.map(|n| &n.view), ranges, self.caches.service_ranges());
        let leaves =
            own.is_some_and(|n| n.meta.is_deleting() || n.view.spec.taints.iter().any(|t| t.key == DELETION_TAINT));
        self.options.health.eligible(!leaves);
        self.leaving.on(own.map(|n| n.meta.uid.as_str()).unwrap_or_default());
        let zone = own.and_then(|n| n.meta.labels.get(ZONE).cloned());
        std::mem::replace(&mut self.wanted.here.zone, zone.clone()) != zone
    }
}

/// Waits for the next reason to do something.
async fn next(dirty: &Dirty, clock: &SharedClock, options: &Options, due: Option<Instant>, deaf: &mut bool) -> Event {
    let kernel = &options.kernel;
    let tables = [crate::nftables::TABLE, net::egress::TABLE];
    let drift = async {
        if let Err(error) = kernel.changed(&tables).await {
            // Once is enough; it is tried with each pass.
            if !std::mem::replace(deaf, true) {
                tracing::warn!(%error, "who else changes the rules is not heard of");
            }
            std::future::pending::<()>().await;
        }
        *deaf = false;
    };
    let due = async {
        match due {
            Some(at) => clock.sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    let look = clock.sleep(LOOK);
    tokio::select! {
        () = dirty.wake.notified() => Event::Dirty,
        () = drift => Event::Drift,
        () = due => Event::Due,
        () = look => Event::Look,
    }
}

impl State {
    /// One dataplane a family: of those that ranges and this node's addresses are of, and were before.
    fn begin(&mut self, options: &Options, settings: &Settings) {
        let kernel = &options.kernel;
        let families = settings.families();
        let plane = |family: &Family| {
            let rules: Box<dyn Dataplane> = match options.mode {
                Mode::Nftables => Box::new(Applied::new(kernel.clone(), *family)),
                Mode::Iptables => Box::new(Restored::new(options.tables.clone(), *family)),
            };
            Plane { rules, failed: None, said: String::new() }
        };
        let known = self.families();
        let new: Vec<Family> = families.into_iter().filter(|family| !known.contains(family)).collect();
        self.planes.extend(new.iter().map(plane));
        let outside = new.iter().filter(|_| options.masquerade_egress);
        self.outside.extend(outside.map(|family| Egress { family: *family, kernel: kernel.clone(), loaded: false }));
    }

    fn families(&self) -> Vec<Family> {
        self.planes.iter().map(|plane| plane.rules.family()).collect()
    }

    /// When there is something to do again that nobody tells of.
    fn due(&self) -> Option<Instant> {
        let refused = self.refused.values().map(|(_, at)| *at);
        let planes = self.planes.iter().filter_map(|plane| plane.failed);
        let failed = planes.chain(self.outside_failed).chain(self.clean_failed).map(|(_, at)| at);
        let stale = self.cleaned.filter(|_| self.stale && self.clean_failed.is_none()).map(|at| at + CLEAN);
        let untidy = self.planes.iter().any(|plane| plane.rules.is_untidy()).then_some(self.tidied + TIDY);
        refused.chain(failed).chain(self.reload).chain(stale).chain(untidy).min()
    }

    /// What the kernel said of a family whose rules of such a Service it did not take; `None` where it has them all.
    fn lacks(&self, rules: Option<&ServiceRules>) -> Option<&str> {
        let rules = rules?;
        let failed = self.planes.iter().filter(|plane| plane.failed.is_some());
        failed.filter(|plane| !rules.of(plane.rules.family()).is_empty()).map(|plane| plane.said.as_str()).next()
    }

    /// Loads everything at the next pass.
    fn forget(&mut self) {
        self.planes.iter_mut().for_each(|plane| plane.rules.forget());
        self.outside.iter_mut().for_each(|table| table.loaded = false);
    }

    /// Loads those rules again that somebody else changed.
    async fn look(&mut self) {
        for plane in &mut self.planes {
            match plane.rules.is_intact().await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::warn!("somebody else changed the service rules: loading them again");
                    plane.rules.forget();
                }
                Err(error) => tracing::warn!(%error, "the service rules cannot be looked at"),
            }
        }
    }

    /// Tells the kernel what it does not know yet.
    async fn apply(&mut self, wanted: &Wanted, options: &Options, clock: &SharedClock) -> Result<Refused, Error> {
        // Somebody is tried: where all wait, until the first may be.
        let waits: Option<Vec<Instant>> = self.planes.iter().map(|plane| plane.failed.map(|(_, at)| at)).collect();
        if let Some(first) = waits.and_then(|all| all.into_iter().min()) {
            clock.sleep_until(first).await;
        }
        let now = clock.now();
        if self.reload.take_if(|at| *at <= now).is_some() {
            self.forget();
        }
        let due = self.refused.iter().filter(|(_, (_, at))| *at <= now).map(|(key, _)| key.clone());
        self.pending.extend(due);
        let changes: Vec<Change> =
            self.pending.iter().map(|key| (key.clone(), wanted.model.get(key).cloned())).collect();
        // One family is no reason to leave the other behind: each waits for itself, and loads everything then.
        let (mut refused, mut failed, mut taken) = (Refused::new(), None, Vec::new());
        for Plane { rules: plane, failed: waits, said } in &mut self.planes {
            if waits.is_some_and(|(_, at)| at > now) {
                continue;
            }
            let (family, began) = (plane.family(), clock.now());
            let extent = if plane.needs_load(&wanted.settings) { Extent::Full } else { Extent::Partial };
            let applied = plane.apply(&wanted.settings, &wanted.model, &changes).await;
            let (took, now) = (clock.now().since(began), clock.wall().as_second());
            self.metrics.applied(family, extent, took, applied.is_ok(), now);
            if let Some(written) = plane.written() {
                self.metrics.written(family, &written);
            }
            match applied {
                Ok(no) => {
                    // What happened meanwhile has not been cleaned up for it.
                    self.stale |= waits.take().is_some();
                    refused.extend(no);
                    taken.push(family);
                }
                Err(error) => {
                    plane.forget();
                    (*waits, *said) = (again(*waits, clock.now()), error.to_string());
                    tracing::warn!(?family, %error, "the kernel takes no service rules of this family");
                    failed = Some(error);
                }
            }
        }
        if self.outside_failed.is_none_or(|(_, at)| at <= now) {
            let mut well = true;
            for table in &mut self.outside {
                if let Err(error) = table.apply(&options.cluster_cidrs).await {
                    tracing::warn!(%error, "what pods send out of the cluster is not masqueraded");
                    well = false;
                }
            }
            self.outside_failed = if well { None } else { again(self.outside_failed, clock.now()) };
        }
        if let Some(error) = failed.filter(|_| taken.is_empty()) {
            return Err(error);
        }
        self.pending.clear();
        let tried: BTreeSet<&Key> = changes.iter().map(|(key, _)| key).collect();
        self.refused.retain(|key, _| refused.contains_key(key) || !tried.contains(key));
        for (key, error) in &refused {
            let (times, at) = self.refused.entry(key.clone()).or_insert((0, now));
            *times += 1;
            *at = clock.now() + RETRY.delay(*times);
            tracing::warn!(%key, error, times, "the kernel refused a Service's rules");
        }
        self.clean(wanted, options, &taken, clock).await;
        if clock.now().since(self.tidied) >= TIDY {
            for plane in &mut self.planes {
                plane.rules.tidy().await;
            }
            self.tidied = clock.now();
        }
        Ok(refused)
    }

    /// Ends connections that lead to where nobody answers any more.
    async fn clean(&mut self, wanted: &Wanted, options: &Options, families: &[Family], clock: &SharedClock) {
        let now = clock.now();
        // What failed has a time of its own.
        let is_early = match self.clean_failed {
            Some((_, at)) => at > now,
            None => self.cleaned.is_some_and(|at| now.since(at) < CLEAN),
        };
        if !self.stale || is_early {
            return;
        }
        self.cleaned = Some(now);
        let (mut well, mut is_done) = (true, true);
        for family in families.iter().copied() {
            let began = clock.now();
            let mut settings = wanted.settings.clone();
            // What goes from now on is known; an address of the ranges that is not may be another proxy's.
            if self.reconciled.contains(&family) {
                settings.service_cidrs.clear();
            }
            let expected = Expected::of(&wanted.model, &self.gone, &settings, family);
            let is_stale = Box::new(move |entry: &net::conntrack::Entry| expected.is_stale(entry));
            match options.connections.remove_udp(family, is_stale).await {
                Ok(count) => {
                    is_done &= count < net::conntrack::AT_ONCE;
                    self.metrics.cleaned(family, clock.now().since(began), count);
                    if is_done && !self.reconciled.contains(&family) {
                        self.reconciled.push(family);
                    }
                    if count > 0 {
                        tracing::debug!(count, "connections that led nowhere are removed");
                    }
                }
                Err(error) => {
                    tracing::warn!(?family, %error, "connections of endpoints that are gone cannot be removed");
                    well = false;
                }
            }
        }
        if well {
            self.clean_failed = None;
            // Of very many the rest has its turn later.
            if is_done {
                self.stale = false;
                // Of a family that took nothing now it is cleaned when that is over.
                if families.len() == self.planes.len() {
                    self.gone = Gone::default();
                }
            }
        } else {
            self.clean_failed = again(self.clean_failed, clock.now());
        }
    }
}

#[cfg(test)]
mod tests;
