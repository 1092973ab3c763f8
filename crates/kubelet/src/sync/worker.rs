//! The task of one pod, from its binding to its last trace.
//!
//! One turn: take what came in, look at the runtime if it may have changed, let the life advance,
//! begin what the life and the plan ask for, generate the status, begin to write it. Then wait for
//! whichever comes first: news, the end of the step or of the write under way, a time that was set.
//! A step never blocks a turn, so a pod that pulls an image is still deleted at once.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1::{Pod, PodStatus};
use client::Cause as WriteCause;
use parking_lot::Mutex;
use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::lifecycle::{Cause, Facts, Phase};
use super::mailbox::Mailbox;
use super::plan::{Plan, Sandbox, Verdicts, plan};
use super::start::{Memory, Outcome, Retry, Start};
use super::{stop, waits};
use crate::context::{Context, blocking};
use crate::pod::BoundPod;
use crate::probe::Target;
use crate::probe::prober::{Prober, Told};
use crate::probe::threshold::{Kind, Verdict};
use crate::runtime::{Container, ContainerState, PodState};
use crate::status::containers::{Waiting, whole};
use crate::status::{Inputs, conditions, generate, patch};

/// Failed steps and reads are tried again with these delays; never the first time.
const RETRY: Policy = Policy { initial: Duration::from_millis(500), max: Duration::from_secs(10) };
/// An end that was reported and does not show yet is looked for with these delays, so often.
const LOOK_AGAIN: Policy = Policy { initial: Duration::from_millis(2), max: Duration::from_millis(500) };
const MAX_LOOKS: u32 = 20;
/// Status writes and deletions, too.
const WRITE_RETRY: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(10) };

/// What others may see of a pod at any time.
#[derive(Clone, Debug)]
pub struct View {
    pub pod: Arc<BoundPod>,
    pub seen: Arc<PodState>,
    pub status: Arc<PodStatus>,
}

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is being done.
enum Step {
    None,
    Start(Work<Outcome>),
    /// Ending everything within so many seconds.
    Stop(i64, Work<Result<(), String>>),
    /// Removing volumes and cgroups; then, when the object is gone, everything.
    Clean(Work<Result<(), String>>),
}

enum Write {
    None,
    Status(serde_json::Value, Work<Result<Option<Arc<Pod>>, client::Error>>),
    Delete(Work<Result<(), client::Error>>),
}

/// What woke the task.
enum Event {
    Stopped,
    News,
    Started(Outcome),
    Ended(Result<(), String>),
    Cleaned(Result<(), String>),
    Wrote(Result<Option<Arc<Pod>>, client::Error>),
    Deleted(Result<(), client::Error>),
    Time,
}

/// The task.
pub struct Worker {
    ctx: Arc<Context>,
    mail: Arc<Mailbox>,
    view: watch::Sender<View>,
    pod: Arc<BoundPod>,
    gone: bool,
    life: Phase,
    rejected: Option<Cause>,
    eviction: Option<(Cause, i64)>,
    /// When `activeDeadlineSeconds` has passed.
    deadline: Option<Instant>,
    seen: Arc<PodState>,
    /// `seen` may be out of date; it was never right before the first look.
    stale: bool,
    looked: bool,
    runtime_error: Option<String>,
    /// What was reported to have ended and the runtime still shows as running, and how often that
    /// was looked at: its events run ahead of its records.
    ending: HashMap<String, u32>,
    /// When to look again for that.
    look_again: Option<Instant>,
    verdicts: Verdicts,
    told: BTreeMap<(String, Kind), Told>,
    probers: HashMap<(String, Kind), AbortOnDropHandle<()>>,
    waiting: Waiting,
    activity: Option<crate::report::Wait>,
    memory: Arc<Mutex<Memory>>,
    step: Step,
    failures: u32,
    /// No step begins before.
    not_before: Option<Instant>,
    /// Volumes and cgroups are gone.
    cleaned: bool,
    write: Write,
    write_failures: u32,
    write_not_before: Option<Instant>,
    /// The last patch that was accepted: what the server makes of it is its own affair.
    accepted: Option<serde_json::Value>,
    /// The status the API server has, and of which revision.
    known: PodStatus,
    known_revision: u64,
    /// The status as it should be.
    status: PodStatus,
    /// The status as it should be has been generated at least once.
    generated: bool,
}

impl Worker {
    /// A task for `pod`; `rejected` says why the node does not take it.
    pub fn new(
        ctx: Arc<Context>,
        pod: Arc<BoundPod>,
        rejected: Option<Cause>,
    ) -> (Self, watch::Receiver<View>, Arc<Mailbox>) {
        let seen = Arc::new(PodState::default());
        let known = pod.status().clone();
        let first = View { pod: pod.clone(), seen: seen.clone(), status: Arc::new(known.clone()) };
        let (view, receiver) = watch::channel(first);
        let mail = Arc::new(Mailbox::default());
        let deadline = deadline(&ctx, &pod);
        let worker = Self {
            mail: mail.clone(),
            view,
            gone: false,
            life: Phase::Running,
            rejected,
            eviction: None,
            deadline,
            seen,
            stale: true,
            looked: false,
            runtime_error: None,
            ending: HashMap::new(),
            look_again: None,
            verdicts: Verdicts::new(),
            told: BTreeMap::new(),
            probers: HashMap::new(),
            waiting: Waiting::new(),
            activity: None,
            memory: Arc::default(),
            step: Step::None,
            failures: 0,
            not_before: None,
            cleaned: false,
            write: Write::None,
            write_failures: 0,
            write_not_before: None,
            accepted: None,
            known_revision: client::object::revision_of(&**pod.object()),
            status: known.clone(),
            known,
            generated: false,
            ctx,
            pod,
        };
        (worker, receiver, mail)
    }

    /// Runs until nothing of the pod is left, or until the stage stops: then the pod runs on.
    pub async fn run(mut self, stage: Stage) {
        let stopped = stage.stopped();
        let mut stopped = std::pin::pin!(stopped);
        while self.turn().await {
            let event = self.next(&mut stopped).await;
            if !self.handle(event) {
                return;
            }
        }
        self.ctx.report.waits(&self.pod, &[]);
        self.ctx.owners.forget(&self.pod.uid);
    }

    /// Waits for the first thing to happen.
    async fn next(&mut self, stopped: &mut (impl Future<Output = ()> + Unpin)) -> Event {
        let wake = self.wake_at();
        let clock = self.ctx.clock.clone();
        let time = async move {
            match wake {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let mail = self.mail.clone();
        tokio::select! {
            biased;
            () = stopped => Event::Stopped,
            event = async {
                match &mut self.step {
                    Step::None => std::future::pending().await,
                    Step::Start(work) => Event::Started(work.await),
                    Step::Stop(_, work) => Event::Ended(work.await),
                    Step::Clean(work) => Event::Cleaned(work.await),
                }
            } => event,
            event = async {
                match &mut self.write {
                    Write::None => std::future::pending().await,
                    Write::Status(_, work) => Event::Wrote(work.await),
                    Write::Delete(work) => Event::Deleted(work.await),
                }
            } => event,
            () = mail.filled() => Event::News,
            () = time => Event::Time,
        }
    }

    /// The first time that was set.
    fn wake_at(&self) -> Option<Instant> {
        let step = matches!(self.step, Step::None).then_some(self.not_before).flatten();
        let write = matches!(self.write, Write::None).then_some(self.write_not_before).flatten();
        let running = self.life.is_running();
        let renewal = if running { self.memory.lock().next_renewal() } else { None };
        let deadline = self.deadline.filter(|_| running);
        let retry = self.not_before.filter(|_| self.runtime_error.is_some());
        [step, write, renewal, deadline, retry, self.look_again].into_iter().flatten().min()
    }

    /// Takes in what happened. False when the task is to end.
    fn handle(&mut self, event: Event) -> bool {
        let now = self.ctx.clock.now();
        match event {
            Event::Stopped => return false,
            Event::News => {}
            Event::Time => {
                // A time that has come is done with.
                self.not_before = self.not_before.filter(|at| *at > now);
                self.write_not_before = self.write_not_before.filter(|at| *at > now);
                if self.look_again.is_some_and(|at| at <= now) {
                    self.look_again = None;
                    self.stale = true;
                }
            }
            Event::Started(outcome) => {
                self.step = Step::None;
                self.stale = true;
                match outcome {
                    Ok(()) => self.settle(),
                    Err(Retry::BackOff) => self.back_off(),
                    Err(Retry::At(at)) => {
                        self.failures = 0;
                        self.not_before = Some(at);
                    }
                }
            }
            Event::Ended(result) | Event::Cleaned(result) => {
                let cleaning = matches!(self.step, Step::Clean(_));
                self.step = Step::None;
                self.stale = true;
                match result {
                    Ok(()) => {
                        self.cleaned |= cleaning;
                        self.settle();
                    }
                    Err(error) => {
                        tracing::warn!(pod = %self.pod.full_name(), error, "pod not ended yet; trying again");
                        self.back_off();
                    }
                }
            }
            Event::Wrote(result) => {
                let written = std::mem::replace(&mut self.write, Write::None);
                match result {
                    Ok(Some(pod)) => {
                        self.write_failures = 0;
                        if let Write::Status(patch, _) = written {
                            self.accepted = Some(patch);
                        }
                        self.learn(&pod);
                    }
                    Ok(None) => self.gone = true,
                    Err(error) => self.write_failed(&error),
                }
            }
            Event::Deleted(result) => {
                self.write = Write::None;
                match result {
                    Ok(()) => self.gone = true,
                    Err(error) => self.write_failed(&error),
                }
            }
        }
        true
    }

    fn settle(&mut self) {
        self.failures = 0;
        self.not_before = None;
    }

    fn back_off(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(self.ctx.clock.now() + RETRY.delay(self.failures));
    }

    fn write_failed(&mut self, error: &client::Error) {
        self.write_failures = self.write_failures.saturating_add(1);
        self.write_not_before = Some(self.ctx.clock.now() + WRITE_RETRY.delay(self.write_failures));
        tracing::warn!(pod = %self.pod.full_name(), %error, "status not written; trying again");
    }

    /// The API server's newest view of the pod, wherever it came from.
    fn learn(&mut self, object: &Pod) {
        let revision = client::object::revision_of(object);
        if revision >= self.known_revision {
            self.known_revision = revision;
            self.known = object.status.clone().unwrap_or_default();
        }
    }

    fn read_mail(&mut self) {
        let inbox = self.mail.take();
        if let Some(pod) = inbox.pod {
            self.learn(pod.object());
            let files = |p: &BoundPod| (p.meta().labels.clone(), p.meta().annotations.clone());
            if files(&pod) != files(&self.pod) {
                self.memory.lock().volumes_fresh = false;
            }
            if pod.spec() != self.pod.spec() {
                // The user has changed something: what failed before may work now.
                self.settle();
            }
            self.pod = pod;
            self.deadline = deadline(&self.ctx, &self.pod);
        }
        self.gone |= inbox.gone;
        self.stale |= inbox.runtime;
        self.ending.extend(inbox.ended.into_iter().map(|id| (id, 0)));
        if inbox.objects {
            self.memory.lock().volumes_fresh = false;
            self.settle();
        }
        if let Some(eviction) = inbox.evict {
            self.eviction.get_or_insert(eviction);
        }
        for (key, told) in inbox.told {
            // No verdict yet is no reason to forget what held before this process began.
            if let Some(verdict) = told.verdict {
                self.verdicts.insert(key.clone(), verdict);
            }
            self.told.insert(key, told);
        }
        for (container, why) in inbox.waiting {
            match why {
                Some(why) => drop(self.waiting.insert(container, why)),
                None => drop(self.waiting.remove(&container)),
            }
        }
        if let Some(activity) = inbox.activity {
            self.activity = activity;
        }
    }

    /// Looks at the runtime, if it may have changed.
    async fn look(&mut self) {
        if !self.stale || (self.runtime_error.is_some() && self.waits_to_begin()) {
            return;
        }
        match self.ctx.runtime.pod(&self.pod.uid).await {
            Ok(state) => {
                self.stale = false;
                if self.runtime_error.take().is_some() {
                    self.settle();
                }
                self.ctx.owners.learn(&self.pod.uid, &state);
                self.note_ends(&state);
                self.seen = Arc::new(state);
                if !std::mem::replace(&mut self.looked, true) {
                    self.adopt();
                }
                let alive = |id: &str| self.seen.by_id(id).is_some_and(|c| c.state == ContainerState::Running);
                self.verdicts.retain(|(id, _), _| alive(id));
                self.told.retain(|(id, _), _| alive(id));
                self.expect_ends();
            }
            Err(error) => {
                self.runtime_error = Some(error.to_string());
                self.back_off();
            }
        }
    }

    fn waits_to_begin(&self) -> bool {
        self.not_before.is_some_and(|at| self.ctx.clock.now() < at)
    }

    /// Sees to it that ends that were reported are found in the runtime's records, soon.
    fn expect_ends(&mut self) {
        let seen = self.seen.clone();
        let runs = |id: &str| {
            seen.by_id(id).is_some_and(|c| c.state == ContainerState::Running)
                || seen.sandboxes.iter().any(|s| s.id == id && s.ready)
        };
        self.ending.retain(|id, looks| runs(id) && *looks < MAX_LOOKS);
        self.ending.values_mut().for_each(|looks| *looks += 1);
        let looks = self.ending.values().min().copied();
        self.look_again = looks.map(|n| self.ctx.clock.now() + LOOK_AGAIN.delay(n));
    }

    /// Notes when containers ended, on the clock that delays run on.
    fn note_ends(&self, state: &PodState) {
        let (now, wall) = (self.ctx.clock.now(), self.ctx.clock.wall());
        let ended = |c: &&Container| c.state == ContainerState::Exited;
        let mut memory = self.memory.lock();
        let mut ends = HashMap::new();
        for container in state.containers.iter().filter(ended) {
            let at = memory.ended.get(&container.id).copied().unwrap_or_else(|| {
                // The wall clock is asked once, when the end is first seen.
                let ago = container
                    .finished_at
                    .map_or(Duration::ZERO, |t| Duration::try_from(wall.duration_since(t)).unwrap_or_default());
                Instant(now.0.saturating_sub(ago))
            });
            ends.insert(container.id.clone(), at);
        }
        memory.ended = ends;
    }

    /// The first look at a pod that may have been running before this process: what was reported
    /// ready stays ready until a probe says otherwise.
    fn adopt(&mut self) {
        let reported = self.known.container_statuses.iter().chain(&self.known.init_container_statuses).flatten();
        for status in reported {
            let Some(id) = status.container_id.as_deref().and_then(|id| id.split_once("://")).map(|(_, id)| id) else {
                continue;
            };
            if self.seen.by_id(id).is_none_or(|c| c.state != ContainerState::Running) {
                continue;
            }
            let mut set = |kind| self.verdicts.insert((id.to_owned(), kind), Verdict::Success);
            if status.started == Some(true) {
                set(Kind::Startup);
            }
            if status.ready {
                set(Kind::Readiness);
            }
        }
    }

    /// One turn. False when nothing of the pod is left.
    async fn turn(&mut self) -> bool {
        self.read_mail();
        self.look().await;
        if !self.looked {
            self.report_waits();
            return true;
        }
        let plan = plan(&self.pod, &self.seen, &self.verdicts);
        self.advance(&plan);
        self.probe();
        self.describe();
        self.begin(plan);
        self.report_waits();
        self.write();
        self.view.send_if_modified(|view| {
            let changed = !Arc::ptr_eq(&view.seen, &self.seen)
                || !Arc::ptr_eq(&view.pod, &self.pod)
                || *view.status != self.status;
            if changed {
                *view = View { pod: self.pod.clone(), seen: self.seen.clone(), status: Arc::new(self.status.clone()) };
            }
            changed
        });
        !self.is_over()
    }

    /// Everything has been removed.
    fn is_over(&self) -> bool {
        self.gone && self.cleaned && self.seen.is_empty() && !self.stale && matches!(self.step, Step::None)
    }

    fn advance(&mut self, plan: &Plan) {
        let deleted = self.pod.is_deleted().then(|| self.pod.grace_seconds());
        let spec_grace = self.pod.spec().termination_grace_period_seconds.unwrap_or(30);
        let overdue = self.deadline.is_some_and(|at| self.ctx.clock.now() >= at).then(|| {
            let message = "Pod was active on the node longer than the specified deadline";
            (Cause { reason: "DeadlineExceeded".into(), message: message.into() }, spec_grace)
        });
        let facts = Facts {
            deleted,
            gone: self.gone,
            done: self.pod.has_ended() || plan.sandbox == Sandbox::Finish,
            eviction: self.eviction.clone().or(overdue),
            rejected: self.rejected.clone(),
            may_run: self.seen.may_run(),
            spec_grace,
        };
        let next = self.life.clone().next(&facts);
        if next != self.life {
            tracing::debug!(pod = %self.pod.full_name(), from = ?self.life, to = ?next, "pod lives on");
            self.life = next;
            self.settle();
        }
    }

    /// Begins what is to be done, unless something is under way or it is too early.
    fn begin(&mut self, plan: Plan) {
        match (&self.life, &self.step) {
            // A start under way is given up for an end; an end under way for a quicker one.
            (Phase::Terminating { .. }, Step::Start(_)) => {
                self.step = Step::None;
                self.activity = None;
                // It may have left something behind: look again before anything else.
                self.mail.runtime();
                return;
            }
            (Phase::Terminating { grace, .. }, Step::Stop(before, _)) if grace < before => self.step = Step::None,
            (_, Step::None) => {}
            _ => return,
        }
        if self.stale || self.runtime_error.is_some() || self.waits_to_begin() {
            return;
        }
        let (ctx, pod, seen) = (self.ctx.clone(), self.pod.clone(), self.seen.clone());
        match self.life.clone() {
            Phase::Running => {
                let renewal = self.memory.lock().next_renewal().is_some_and(|at| ctx.clock.now() >= at);
                let fresh = self.memory.lock().volumes_fresh && !renewal;
                if plan.sandbox == Sandbox::Finish || (plan.is_idle() && fresh) {
                    return;
                }
                let start = Start {
                    ctx,
                    pod,
                    plan,
                    seen: PodState::clone(&seen),
                    mail: self.mail.clone(),
                    memory: self.memory.clone(),
                };
                self.step = Step::Start(self.caused(start.run()));
            }
            Phase::Terminating { grace, .. } => {
                let work = async move { stop::pod(&ctx, &pod, &seen, grace).await.map_err(|e| e.to_string()) };
                self.step = Step::Stop(grace, self.caused(work));
            }
            Phase::Terminated { .. } => {
                if !self.cleaned {
                    self.probers.clear();
                    self.step = Step::Clean(Box::pin(clean(ctx, pod, seen)));
                } else if self.gone && !seen.is_empty() {
                    self.step = Step::Clean(Box::pin(remove(ctx, pod, seen)));
                }
            }
        }
    }

    /// Every write of a step names the pod as its cause.
    fn caused<F: Future + Send + 'static>(&self, work: F) -> Work<F::Output> {
        let cause = WriteCause {
            resource: "pods".into(),
            namespace: self.pod.namespace.clone(),
            name: self.pod.name.clone(),
            revision: client::object::revision_of(&**self.pod.object()),
        };
        let rng = self.ctx.rng.clone();
        Box::pin(async move { client::causes::scope(&[cause], &rng, work).await })
    }

    /// Keeps one prober per probe of every running container, as far as their turn has come.
    fn probe(&mut self) {
        let mut wanted = Vec::new();
        if !self.life.is_terminated() {
            for spec in self.pod.all_containers() {
                let running = self.seen.container(&spec.name).filter(|c| c.state == ContainerState::Running);
                let Some(found) = running else { continue };
                let verdict = |kind| self.verdicts.get(&(found.id.clone(), kind)).copied();
                let started = spec.startup_probe.is_none() || verdict(Kind::Startup) == Some(Verdict::Success);
                let alive = verdict(Kind::Liveness) != Some(Verdict::Failure);
                let running = self.life.is_running();
                let kinds = [
                    (Kind::Startup, &spec.startup_probe, !started && verdict(Kind::Startup).is_none() && running),
                    (Kind::Liveness, &spec.liveness_probe, started && alive && running),
                    // A pod that ends is still asked whether it serves.
                    (Kind::Readiness, &spec.readiness_probe, started),
                ];
                for (kind, probe, due) in kinds {
                    if let Some(probe) = probe.as_ref().filter(|_| due) {
                        wanted.push((kind, probe.clone(), spec.clone(), found.clone()));
                    }
                }
            }
        }
        let keys: Vec<_> = wanted.iter().map(|(kind, _, _, found)| (found.id.clone(), *kind)).collect();
        self.probers.retain(|key, _| keys.contains(key));
        let ip = self.ctx.pod_ips(&self.pod, &self.seen).into_iter().next().unwrap_or_default();
        for (kind, probe, container, found) in wanted {
            let key = (found.id.clone(), kind);
            if self.probers.contains_key(&key) {
                continue;
            }
            let since = found.started_at.map(|t| self.ctx.clock.wall().duration_since(t));
            let prober = Prober {
                kind,
                target: Target { probe, container, container_id: found.id, ip: ip.clone() },
                pod: self.pod.clone(),
                running_for: since.and_then(|d| Duration::try_from(d).ok()).unwrap_or_default(),
                runtime: self.ctx.runtime.clone(),
                report: self.ctx.report.clone(),
                clock: self.ctx.clock.clone(),
            };
            let mail = self.mail.clone();
            let told = move |told: Told| {
                mail.put(|inbox| drop(inbox.told.insert((told.container_id.clone(), told.kind), told)));
            };
            self.probers.insert(key, AbortOnDropHandle::new(tokio::spawn(prober.run(told))));
        }
    }

    /// Generates the status.
    fn describe(&mut self) {
        // Volumes and records go when a pod has ended: nothing better can be said later.
        if self.generated && self.life.is_terminated() && self.cleaned {
            return;
        }
        if self.pod.has_ended() && self.life.is_terminated() && self.known.phase.is_some() && !self.generated {
            // It ended before this process began; what was said then is right.
            self.generated = true;
            self.status = self.known.clone();
            return;
        }
        let before = self.before();
        let now = self.ctx.clock.wall();
        self.status = generate(&Inputs {
            pod: &self.pod,
            seen: &self.seen,
            verdicts: &self.verdicts,
            waiting: &self.waiting,
            life: &self.life,
            before: &before,
            host_ips: &self.ctx.settings.node_ips,
            runtime: &self.ctx.settings.runtime_name,
            now: whole(now),
        });
        self.generated = true;
    }

    /// What the status is generated from: what we said last, with what others have said since.
    fn before(&self) -> PodStatus {
        if !self.generated {
            return self.known.clone();
        }
        let owned = |c: &&api::types::core::v1::PodCondition| conditions::OWNED.contains(&c.type_.as_str());
        let others = self.known.conditions.iter().flatten().filter(|c| !owned(c)).cloned();
        let ours = self.status.conditions.iter().flatten().filter(owned).cloned();
        PodStatus {
            conditions: Some(others.chain(ours).collect()),
            qos_class: self.known.qos_class.clone().or_else(|| self.status.qos_class.clone()),
            resource_claim_statuses: self.known.resource_claim_statuses.clone(),
            ..self.status.clone()
        }
    }

    /// Begins to write what the API server does not know yet; a pod that has ended and is to be
    /// deleted leaves the API once it knows everything.
    fn write(&mut self) {
        let early = self.write_not_before.is_some_and(|at| self.ctx.clock.now() < at);
        if self.gone || early || !matches!(self.write, Write::None) || !self.generated {
            return;
        }
        let (ctx, pod) = (self.ctx.clone(), self.pod.clone());
        let patch = patch::patch(&self.pod.uid, &self.known, &self.status);
        if let Some(patch) = patch.filter(|p| self.accepted.as_ref() != Some(p)) {
            let sent = patch.clone();
            let work = self.caused(async move { ctx.cluster.patch_status(&pod, &sent).await });
            self.write = Write::Status(patch, work);
        } else if self.pod.is_deleted() && self.life.is_terminated() && self.cleaned {
            self.write = Write::Delete(self.caused(async move { ctx.cluster.delete(&pod).await }));
        }
    }

    fn report_waits(&self) {
        let found = waits::waits(&waits::Facts {
            pod: &self.pod,
            life: &self.life,
            seen: &self.seen,
            activity: self.activity.as_ref(),
            waiting: &self.waiting,
            told: &self.told,
            runtime_error: self.runtime_error.as_deref(),
        });
        self.ctx.report.waits(&self.pod, &found);
    }
}

/// When the pod has been active for as long as it may be.
fn deadline(ctx: &Context, pod: &BoundPod) -> Option<Instant> {
    let seconds = u64::try_from(pod.spec().active_deadline_seconds?).ok()?;
    let started = pod.status().start_time.as_ref();
    let active = started.and_then(|t| Duration::try_from(ctx.clock.wall().duration_since(t.0)).ok());
    Some(ctx.clock.now() + Duration::from_secs(seconds).saturating_sub(active.unwrap_or_default()))
}

/// Removes what a pod that ended had on the node beside its containers' records and logs.
async fn clean(ctx: Arc<Context>, pod: Arc<BoundPod>, seen: Arc<PodState>) -> Result<(), String> {
    // Sandboxes that ended by themselves still hold their network.
    stop::sandboxes(&ctx, &seen).await.map_err(|e| e.to_string())?;
    ctx.cluster.release(&pod.uid);
    let (layout, cgroups) = (ctx.layout.clone(), ctx.cgroups.clone());
    let work = move || {
        layout.remove(&pod.uid).map_err(|e| format!("volumes not removed: {e}"))?;
        match cgroups {
            Some(cgroups) if !cgroups.remove(&pod) => Err("the kernel still holds a cgroup of the pod".to_owned()),
            _ => Ok(()),
        }
    };
    blocking(work).await.unwrap_or_else(|e| Err(e.to_string()))
}

/// Removes the last traces.
async fn remove(ctx: Arc<Context>, pod: Arc<BoundPod>, seen: Arc<PodState>) -> Result<(), String> {
    stop::remove(&ctx, &seen).await.map_err(|e| e.to_string())?;
    let logs = ctx.log_directory(&pod);
    let removed = blocking(move || std::fs::remove_dir_all(logs)).await.and_then(|done| done);
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("logs not removed: {error}")),
        _ => Ok(()),
    }
}
