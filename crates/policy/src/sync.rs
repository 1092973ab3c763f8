//! The loop: what changed in the API, or was told at the gate, becomes one transaction to the kernel.
//!
//! ```text
//!  dirty pods, namespaces, policies ─► changes ─► Applied ─► kernel
//!  somebody else's change, a refused policy's time ─┘          └─► gate, Waits, events
//! ```

mod caches;
mod sandboxes;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::types::networking::v1::NetworkPolicy;
use client::events::{Recorder, Reference, Source, Type};
use client::waits::Publisher;
use client::{Cached, Client, Key, Resource};
use stdx::backoff::Policy as Backoff;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};

use crate::Options;
use crate::gate::{self, Desk, Waiter};
use crate::metrics::Metrics;
use crate::model::objects;
use crate::model::policy::{self, Policy};
use crate::nftables::apply::{Applied, Refused};
use crate::nftables::table::Change;
use caches::{Caches, Dirty};
use sandboxes::Sandboxes;

/// How long to wait before what was refused is tried again.
const RETRY: Backoff = Backoff { initial: Duration::from_millis(200), max: Duration::from_secs(30) };
/// After so long without a change by somebody else the next one is mended at once.
const CALM: Duration = Duration::from_secs(60);
/// And so long at most the others wait: pods are open meanwhile.
const OPEN: Duration = Duration::from_secs(1);
/// How often the runtime's words are compared with what its plugin remembers.
const COMPARE: Duration = Duration::from_secs(60);
/// How often it is asked whether rules see what pods say to each other.
const LOOK: Duration = Duration::from_secs(60);
/// At most so many policies are named at a time as waiting for the kernel.
const NAMED: usize = 100;
/// The code of the Wait.
const NOT_IN_KERNEL: &str = "RulesNotInKernel";
/// What is waited for while the kernel has refused nothing.
const NOT_YET: &str = "the kernel does not have this NetworkPolicy's present rules yet";

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
    sandboxes: Sandboxes,
    dirty: Arc<Dirty>,
    clock: SharedClock,
    options: Options,
    metrics: Arc<Metrics>,
    telling: Telling,
    applied: Applied,
    /// Known to have changed, not carried out yet.
    pending: BTreeMap<Whose, Change>,
    /// Who is answered after this pass.
    known: Vec<Waiter>,
    /// Who asked for pods that are not known yet.
    unknown: Vec<Waiter>,
    /// What the kernel refused: how often, and when to try again.
    refused: BTreeMap<Key, (u32, Instant)>,
    /// What rules do not see was asked then, and this was the answer.
    looked: Option<(Instant, Option<String>)>,
}

/// Of one object there is one change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    Namespace(String),
    Pod(Key),
    Policy(Key),
}

impl Sync {
    fn start(client: &Client, clock: SharedClock, rng: Rng, mut options: Options, stage: &Stage) -> Self {
        let dirty = Arc::new(Dirty::default());
        {
            let mut claims = dirty.claims.lock();
            for record in (options.records)() {
                claims.add(record);
            }
        }
        let metrics = Arc::new(Metrics::new(&options.registry));
        let source = Source::Core { component: "network-policy".into(), host: options.node_name.clone() };
        let telling = Telling {
            waits: Publisher::start_on_node(client, "network-policy", &options.node_name, clock.clone(), stage),
            recorder: Recorder::start(client.clone(), source, clock.clone(), rng.clone(), stage),
            resource: Resource::of::<NetworkPolicy>(),
            waiting: BTreeMap::new(),
        };
        if let Some(listener) = options.gate.take() {
            gate::serve(listener, dirty.clone(), metrics.clone(), &clock, stage);
            let (dirty, clock, sandboxes, own) =
                (dirty.clone(), clock.clone(), options.sandboxes.clone(), stage.clone());
            stage.spawn(async move {
                tokio::select! {
                    never = compare(&dirty, &clock, &sandboxes) => match never {},
                    () = own.stopped() => {}
                }
            });
        }
        let caches = Caches::start(client, &dirty, &clock, &rng, stage);
        let applied = Applied::with_names(options.kernel.clone(), &options.names);
        Self {
            caches,
            sandboxes: Sandboxes::new(options.node_name.clone()),
            dirty,
            clock,
            options,
            metrics,
            telling,
            applied,
            pending: BTreeMap::new(),
            known: Vec::new(),
            unknown: Vec::new(),
            refused: BTreeMap::new(),
            looked: None,
        }
    }

    async fn run(&mut self) {
        // Until the caches are full the kernel keeps what an earlier process left there.
        self.caches.synced().await;
        let (mut failures, mut drifts, mut drifted) = (0, 0, self.clock.now());
        loop {
            let revisions = self.caches.revisions();
            self.observe();
            let began = self.clock.now();
            let changes: Vec<Change> = self.pending.values().cloned().collect();
            let Self { applied, telling, dirty, caches, metrics, clock, .. } = self;
            let done = if changes.is_empty() && !applied.needs_load() {
                Ok(())
            } else {
                let done = tokio::select! {
                    done = applied.change(&changes) => done,
                    never = telling.follow(caches, dirty) => match never {},
                };
                metrics.applied(clock.now().since(began), done.is_ok());
                done
            };
            self.count_refused();
            // After an error, too: the table knows what changed, and the next load carries it out.
            self.pending.clear();
            match done {
                Ok(()) => {
                    failures = 0;
                    self.finish();
                    let policies = self.applied.table().policies().len();
                    self.metrics.programmed(&revisions, policies, self.refused.len());
                    if !self.dirty.is_empty() {
                        continue;
                    }
                    let due = self.refused.values().map(|(_, at)| *at).min();
                    if next(&self.dirty, &self.clock, &self.options, due).await {
                        // Somebody who does it all the time is answered less and less often.
                        let now = self.clock.now();
                        drifts = if now.since(drifted) < CALM { drifts + 1 } else { 0 };
                        drifted = now;
                        tracing::warn!("somebody else changed the rules of network policies: loading them again");
                        self.applied.forget();
                        if drifts > 0 {
                            self.pause(RETRY.delay(drifts).min(OPEN)).await;
                        }
                    }
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, failures, "the kernel refused the rules of network policies");
                    let said = format!("the kernel refused the rules: {error}");
                    self.telling.refused(&said);
                    for waiter in self.known.drain(..) {
                        // Who asked may have gone.
                        let _ = waiter.answer.send(Err(said.clone()));
                    }
                    self.pause(RETRY.delay(failures)).await;
                }
            }
        }
    }

    async fn pause(&mut self, delay: Duration) {
        let Self { telling, caches, dirty, clock, .. } = self;
        tokio::select! {
            () = clock.sleep(delay) => {}
            never = telling.follow(caches, dirty) => match never {},
        }
    }

    /// Reads what changed.
    fn observe(&mut self) {
        let mut marks = self.dirty.take();
        for name in marks.namespaces {
            let labels = self.caches.namespaces.find("", &name).map(|ns| ns.meta.labels.clone());
            self.pending.insert(Whose::Namespace(name.clone()), Change::Namespace(name, labels));
        }
        let claims = self.dirty.claims.lock();
        // Whose pod is not known yet waits for its event; who gave up is forgotten.
        let asked = std::mem::take(&mut self.unknown).into_iter().chain(marks.waiters);
        for waiter in asked.filter(|waiter| !waiter.answer.is_closed()) {
            marks.pods.insert(waiter.key.clone());
            // What the scheduler has not bound, or bound elsewhere, cannot be here: a newer word is on its way.
            let is_its = |pod: &Arc<Cached<objects::Pod>>| {
                sandboxes::is_of(pod, &waiter.uid) && *pod.view.spec.node_name == *self.options.node_name
            };
            match self.caches.pods.get(&waiter.key).filter(is_its) {
                // A static pod begins again, whatever its mirror says of the last time.
                Some(pod) if pod.view.has_ended() && pod.view.mirror().is_empty() => {
                    // Who asked may have gone.
                    let _ = waiter.answer.send(Err(format!("pod {} has ended", waiter.key)));
                }
                Some(_) => self.known.push(waiter),
                None => self.unknown.push(waiter),
            }
        }
        self.metrics.unknown(self.unknown.len());
        for key in marks.pods {
            for (key, pod) in self.sandboxes.look(&key, self.caches.pods.get(&key).as_deref(), &claims) {
                self.pending.insert(Whose::Pod(key.clone()), Change::Pod(key, pod));
            }
        }
        drop(claims);
        let now = self.clock.now();
        let due = self.refused.iter().filter(|(_, (_, at))| *at <= now).map(|(key, _)| key.clone());
        let policies: BTreeSet<Key> = marks.policies.iter().cloned().chain(due).collect();
        for key in policies {
            let policy = self.caches.policies.get(&key).map(|p| Arc::new(policy::read(&key.namespace, &p.view)));
            // Of one that is only tried again it stays told what the kernel said.
            if let Some(policy) = policy.as_ref().filter(|_| marks.policies.contains(&key)) {
                self.telling.changed(&self.caches, &key, policy);
            }
            self.pending.insert(Whose::Policy(key.clone()), Change::Policy(key, policy));
        }
    }

    /// What was refused is tried again later and later.
    fn count_refused(&mut self) {
        let (now, closed) = (self.clock.now(), self.applied.refused());
        self.refused.retain(|key, _| closed.contains_key(key));
        for (key, error) in closed {
            let was_tried = self.pending.contains_key(&Whose::Policy(key.clone()));
            if !was_tried && self.refused.contains_key(key) {
                continue;
            }
            let (times, at) = self.refused.entry(key.clone()).or_insert((0, now));
            *times += 1;
            *at = now + RETRY.delay(*times);
            tracing::warn!(%key, error, times, "the kernel refused a policy's rules: pods it selects are isolated");
            if *times == 1 {
                self.telling.is_refused(&self.caches, key, error);
            }
        }
    }

    /// The kernel has taken everything but what it refused.
    fn finish(&mut self) {
        self.telling.is_over(&self.caches, self.applied.refused(), &self.dirty);
        for waiter in self.known.drain(..) {
            // Who asked may have gone.
            let _ = waiter.answer.send(Ok(()));
        }
        self.tell_unseen();
    }

    /// Where pods are behind a bridge there are packets that no rule sees.
    fn tell_unseen(&mut self) {
        let now = self.clock.now();
        let is_due = self.looked.as_ref().is_none_or(|(at, _)| now.since(*at) >= LOOK);
        if !is_due || self.applied.table().policies().is_empty() {
            return;
        }
        let addresses = self.applied.table().one_here();
        if addresses.is_empty() {
            return;
        }
        let found = addresses.into_iter().find_map(|address| (self.options.unseen)(address));
        let before = self.looked.replace((now, found.clone())).and_then(|(_, said)| said);
        if let Some(text) = found.filter(|text| before.as_ref() != Some(text)) {
            tracing::warn!("{text}");
            self.telling.is_unseen(&self.options.node_name, &text);
        }
    }
}

/// Forgets sandboxes whose end was not told, now and then and when there are too many.
async fn compare(dirty: &Dirty, clock: &SharedClock, sandboxes: &crate::Sandboxes) -> Infallible {
    let mut earlier = BTreeSet::new();
    loop {
        tokio::select! {
            () = clock.sleep(COMPARE) => {}
            () = dirty.full.notified() => {}
        }
        // The plugin writes down what it has before it tells of it.
        let count = dirty.claims.lock().count();
        match sandboxes().await {
            Ok(present) => {
                let gone = dirty.claims.lock().keep(&earlier, &present, count);
                earlier = present;
                if !gone.is_empty() {
                    tracing::info!(count = gone.len(), "pods are gone although nobody said so");
                }
                gone.into_iter().for_each(|key| dirty.look(key, None));
            }
            Err(error) => tracing::warn!(%error, "the records of the pod network cannot be read"),
        }
    }
}

/// Waits for the next reason to do something; true when it is that somebody else changed the rules.
async fn next(dirty: &Dirty, clock: &SharedClock, options: &Options, due: Option<Instant>) -> bool {
    let drift = async {
        if let Err(error) = options.kernel.changed(&[crate::TABLE]).await {
            tracing::warn!(%error, "who else changes the rules is not heard of");
            std::future::pending::<()>().await;
        }
    };
    let due = async {
        match due {
            Some(at) => clock.sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = dirty.wake.notified() => false,
        () = due => false,
        () = drift => true,
    }
}

/// What is told of policies: Waits while their rules are not in the kernel, events of what is wrong.
struct Telling {
    waits: Publisher,
    recorder: Recorder,
    resource: Resource,
    waiting: BTreeMap<Key, Reference>,
}

impl Telling {
    /// A policy is new or another: the kernel does not have it yet.
    fn changed(&mut self, caches: &Caches, key: &Key, policy: &Policy) {
        self.publish(caches, key, NOT_YET);
        if let (Some(first), Some(cached)) = (policy.unreadable.first(), caches.policies.get(key)) {
            let count = policy.unreadable.len();
            let text = format!("{count} of its parts cannot be read and let nothing through: {first}");
            self.recorder.event(&Reference::of(&self.resource, &cached.meta), Type::Warning, "Unreadable", text);
        }
    }

    fn publish(&mut self, caches: &Caches, key: &Key, text: &str) {
        if self.waiting.len() >= NAMED && !self.waiting.contains_key(key) {
            return;
        }
        // Of a policy that is gone there is nobody left to tell.
        let Some(policy) = caches.policies.get(key) else { return };
        let reference = Reference::of(&self.resource, &policy.meta);
        self.waits.publish(&reference, NOT_IN_KERNEL, "nftables", text);
        if let Some(former) = self.waiting.insert(key.clone(), reference.clone())
            && former.uid != reference.uid
        {
            self.waits.withdraw(&former, NOT_IN_KERNEL);
        }
    }

    /// Says of all of them what the kernel said.
    fn refused(&self, said: &str) {
        for reference in self.waiting.values() {
            self.waits.publish(reference, NOT_IN_KERNEL, "nftables", said);
        }
    }

    /// As other components of a node tell of it: its name stands for its uid.
    fn is_unseen(&self, node: &str, text: &str) {
        let about = Reference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: node.to_owned(),
            uid: node.to_owned(),
            ..Reference::default()
        };
        self.recorder.event(&about, Type::Warning, "NetworkPolicyNotSeen", text.to_owned());
    }

    fn is_refused(&self, caches: &Caches, key: &Key, error: &str) {
        let Some(policy) = caches.policies.get(key) else { return };
        let text = format!("the kernel refused the rules; pods it selects are isolated meanwhile: {error}");
        self.recorder.event(&Reference::of(&self.resource, &policy.meta), Type::Warning, "RulesRefused", text);
    }

    /// The kernel has taken everything but what it refused and what has changed meanwhile.
    fn is_over(&mut self, caches: &Caches, refused: &Refused, dirty: &Dirty) {
        for (key, error) in refused {
            self.publish(caches, key, &format!("the kernel refused the rules: {error}"));
        }
        let changed = dirty.policies();
        self.waiting.retain(|key, reference| {
            let waits = refused.contains_key(key) || changed.contains(key);
            if !waits {
                self.waits.withdraw(reference, NOT_IN_KERNEL);
            }
            waits
        });
    }

    /// Publishes what changes while the kernel is busy with, or waits for, an earlier state.
    async fn follow(&mut self, caches: &Caches, dirty: &Dirty) -> Infallible {
        loop {
            dirty.wake.notified().await;
            for key in dirty.policies() {
                self.publish(caches, &key, NOT_YET);
            }
        }
    }
}

#[cfg(test)]
mod tests;
