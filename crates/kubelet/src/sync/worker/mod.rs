//! The task of one pod, from its binding to its last trace.
//!
//! One turn: take what came in, look at the runtime if it may have changed, let the life advance,
//! begin what the life and the plan ask for, generate the status, begin to write it. Then wait for
//! whichever comes first: news, the end of the step or of the write under way, a time that was set.
//! A step never blocks a turn, so a pod that pulls an image is still deleted at once: a start under
//! way is told to go no further, and what it leaves is looked at when it has ended, not before.

mod act;
mod look;
mod resize;
mod tell;

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1::PodStatus;
use parking_lot::Mutex;
use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::lifecycle::{Cause, Phase};
use super::mailbox::Mailbox;
use super::plan::{Verdicts, plan};
use super::start::{Memory, Outcome, Retry};
use crate::context::Context;
use crate::pod::BoundPod;
use crate::probe::prober::Told;
use crate::probe::threshold::Kind;
use crate::report::Wait;
use crate::resize::{Actuated, Resizing};
use crate::runtime::PodState;
use crate::shown::ShownStatus;
use crate::status::containers::Waiting;

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
    /// `seen` is what the runtime said at least once.
    pub looked: bool,
    /// Its volumes and cgroups are gone.
    pub cleaned: bool,
}

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is being done.
enum Step {
    None,
    Start {
        work: Work<Outcome>,
        /// Cancelled, it begins nothing more and ends with the call under way.
        halt: CancellationToken,
        /// When a halted start is given up, call and all: only a runtime that hangs comes this far.
        give_up: Option<Instant>,
    },
    /// Ending everything within so many seconds.
    Stop(i64, Work<Result<(), String>>),
    /// Removing volumes and cgroups; then, when the object is gone, everything.
    Clean(Work<Result<(), String>>),
}

enum Write {
    None,
    Status(serde_json::Value, Work<Result<Option<Box<ShownStatus>>, client::Error>>),
    Delete(Work<Result<(), client::Error>>),
}

/// What woke the task.
enum Event {
    Stopped,
    News,
    Started(Outcome),
    Ended(Result<(), String>),
    Cleaned(Result<(), String>),
    Wrote(Result<Option<Box<ShownStatus>>, client::Error>),
    Deleted(Result<(), client::Error>),
    Time,
}

/// The task.
pub struct Worker {
    ctx: Arc<Context>,
    mail: Arc<Mailbox>,
    view: watch::Sender<View>,
    /// The pod as it is allocated.
    pod: Arc<BoundPod>,
    /// For a static pod, the object that shows it; its status is written there.
    mirror: Option<Arc<BoundPod>>,
    /// The pod as its spec wishes it to be.
    wish: Arc<BoundPod>,
    gone: bool,
    life: Phase,
    rejected: Option<Cause>,
    eviction: Option<(Cause, i64)>,
    /// It leaves no records and logs once it has ended.
    gives_back: bool,
    /// Nothing begins before that is over.
    held: Option<Wait>,
    /// When `activeDeadlineSeconds` has passed.
    deadline: Option<Instant>,
    seen: Arc<PodState>,
    /// `seen` may be out of date; it was never right before the first look.
    stale: bool,
    looked: bool,
    /// When `seen` was seen.
    looked_at: Option<Instant>,
    /// Between which looks containers that run have started; before the first, nobody looked.
    started: HashMap<String, (Option<Instant>, Instant)>,
    runtime_error: Option<String>,
    /// What was reported to have ended and the runtime still shows as running, and how often that
    /// was looked at: its events run ahead of its records.
    ending: HashMap<String, u32>,
    /// When to look again for that.
    look_again: Option<Instant>,
    /// What containers have that is not what they are allocated.
    actuated: Actuated,
    resizing: Resizing,
    verdicts: Verdicts,
    told: BTreeMap<(String, Kind), Told>,
    probers: HashMap<(String, Kind), AbortOnDropHandle<()>>,
    waiting: Waiting,
    activity: Option<Wait>,
    memory: Arc<Mutex<Memory>>,
    step: Step,
    /// What a start or an end under way counts as, and since when it is.
    step_began: Option<(&'static str, Instant)>,
    /// The first start has begun.
    has_begun: bool,
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
    /// What the API server has was compared with what it should have since either changed, and says the same.
    told_all: bool,
}

impl Worker {
    /// A task for `pod`; `rejected` says why the node does not take it. `may_be_there`: the runtime may have
    /// something of it already, which is looked for before anything else.
    pub fn new(
        ctx: Arc<Context>,
        pod: Arc<BoundPod>,
        rejected: Option<Cause>,
        may_be_there: bool,
    ) -> (Self, watch::Receiver<View>, Arc<Mailbox>) {
        let seen = Arc::new(PodState::default());
        let known = pod.status().clone();
        let first = View {
            pod: pod.clone(),
            seen: seen.clone(),
            status: Arc::new(known.clone()),
            looked: !may_be_there,
            cleaned: false,
        };
        let (view, receiver) = watch::channel(first);
        let mail = Arc::new(Mailbox::default());
        let deadline = act::deadline(&ctx, &pod);
        let wish = pod;
        let pod = ctx.allocations.applied(&wish);
        let worker = Self {
            mail: mail.clone(),
            view,
            mirror: None,
            gone: false,
            life: Phase::Running,
            rejected,
            eviction: None,
            gives_back: false,
            held: None,
            deadline,
            seen,
            stale: may_be_there,
            looked: !may_be_there,
            looked_at: (!may_be_there).then(|| ctx.clock.now()),
            started: HashMap::new(),
            runtime_error: None,
            ending: HashMap::new(),
            look_again: None,
            actuated: Actuated::new(),
            resizing: Resizing::of(&known),
            verdicts: Verdicts::new(),
            told: BTreeMap::new(),
            probers: HashMap::new(),
            waiting: Waiting::new(),
            activity: None,
            memory: Arc::new(Mutex::new(Memory::new(ctx.settings.longest_back_off))),
            step: Step::None,
            step_began: None,
            has_begun: false,
            failures: 0,
            not_before: None,
            cleaned: false,
            write: Write::None,
            write_failures: 0,
            write_not_before: None,
            accepted: None,
            known_revision: pod.revision(),
            status: known.clone(),
            known,
            generated: false,
            told_all: false,
            ctx,
            pod,
            wish,
        };
        (worker, receiver, mail)
    }

    /// Runs until nothing of the pod is left, or until the stage stops: then the pod runs on.
    pub async fn run(mut self, stage: Stage) {
        let stopped = stage.stopped();
        let mut stopped = std::pin::pin!(stopped);
        let mut is_news = false;
        while self.turn(is_news).await {
            let event = self.next(&mut stopped).await;
            is_news = matches!(event, Event::News);
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
                    Step::Start { work, .. } => Event::Started(work.await),
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
        let give_up = if let Step::Start { give_up, .. } = &self.step { *give_up } else { None };
        [step, write, renewal, deadline, retry, give_up, self.look_again].into_iter().flatten().min()
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
                if matches!(&self.step, Step::Start { give_up: Some(at), .. } if *at <= now) {
                    tracing::warn!(pod = %self.pod.full_name(), "the runtime does not end a start; giving it up");
                    self.step_took();
                    self.end_start();
                }
            }
            Event::Started(_) if !self.life.is_running() => {
                self.step_took();
                self.end_start();
            }
            Event::Started(outcome) => {
                self.step_took();
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
                if !cleaning {
                    self.step_took();
                }
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
                    Ok(Some(shown)) => {
                        tracing::debug!(pod = %self.pod.full_name(), "status written");
                        self.write_failures = 0;
                        if let Write::Status(patch, _) = written {
                            self.accepted = Some(patch);
                        }
                        let (revision, status) = shown.split();
                        self.learn(revision, || status);
                    }
                    // Of a static pod only the mirror is gone: the next one is told of.
                    Ok(None) if self.pod.is_static() => self.mirror = None,
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

    /// A start or an end begins. An end that takes the place of a slower one has begun with that.
    fn step_begins(&mut self, operation: &'static str) {
        let before = self.step_began.take().filter(|(before, _)| *before == operation);
        self.step_began = before.or_else(|| Some((operation, self.ctx.clock.now())));
    }

    /// A start or an end has come to its end, or is given up: how long it took. Upstream counts every look at a pod,
    /// also one that finds nothing to do.
    fn step_took(&mut self) {
        if let Some((operation, began)) = self.step_began.take() {
            self.ctx.metrics.worker_duration.took(&[operation], self.ctx.clock.now().since(began));
        }
    }

    /// A start that was not to go on is over: whatever it left is seen at the next look.
    fn end_start(&mut self) {
        self.step = Step::None;
        self.stale = true;
        self.activity = None;
        self.settle();
    }

    fn settle(&mut self) {
        self.failures = 0;
        self.not_before = None;
    }

    fn back_off(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(self.ctx.clock.now() + RETRY.delay(self.failures));
    }

    /// The API server's newest view of the pod, wherever it came from.
    fn learn(&mut self, revision: u64, status: impl FnOnce() -> PodStatus) {
        if revision >= self.known_revision {
            self.known_revision = revision;
            let status = status();
            // Most of what the API server shows is what it has answered already.
            if self.known != status {
                self.known = status;
                self.told_all = false;
            }
        }
    }

    /// The object that shows a static pod has changed. The first may be of an earlier kubelet, which
    /// knew since when things are as they are.
    fn mirrored(&mut self, mirror: Option<Arc<BoundPod>>) {
        if let Some(mirror) = &mirror {
            self.learn(mirror.revision(), || mirror.status().clone());
            if self.mirror.is_none() && mirror.status().conditions.as_ref().is_some_and(|c| !c.is_empty()) {
                self.generated = false;
                if self.looked {
                    self.adopt();
                }
            }
        }
        self.mirror = mirror;
    }

    /// Takes in what was put in. True when that is nothing but what the step under way waits for.
    fn read_mail(&mut self) -> bool {
        let inbox = self.mail.take();
        let is_activity_alone = inbox.is_activity_alone();
        if let Some(pod) = inbox.pod {
            if !pod.is_static() {
                self.learn(pod.revision(), || pod.status().clone());
            }
            let files = |p: &BoundPod| (p.meta().labels.clone(), p.meta().annotations.clone());
            if files(&pod) != files(&self.pod) {
                self.memory.lock().volumes_fresh = false;
            }
            if pod.spec() != self.wish.spec() {
                // The user has changed something: what failed before may work now.
                self.settle();
            }
            // Only what is asked for moves the deadline: the wall clock may have been set since.
            let asked = pod.spec().active_deadline_seconds != self.pod.spec().active_deadline_seconds;
            self.set_pod(pod);
            if asked {
                self.deadline = act::deadline(&self.ctx, &self.pod);
            }
        }
        if let Some(mirror) = inbox.mirror {
            self.mirrored(mirror);
        }
        self.gone |= inbox.gone;
        self.hear(inbox.runtime, inbox.made, &inbox.started, inbox.ended);
        if inbox.objects {
            self.memory.lock().volumes_fresh = false;
            self.settle();
        }
        if let Some(eviction) = inbox.evict {
            self.eviction.get_or_insert(eviction);
        }
        self.gives_back |= inbox.give_back;
        if let Some(held) = inbox.held {
            self.held = held;
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
        if let Some(why) = inbox.resize_failed {
            self.resize_failed(why);
        }
        if let Some(activity) = inbox.activity {
            self.activity = activity;
        }
        is_activity_alone
    }

    fn waits_to_begin(&self) -> bool {
        self.not_before.is_some_and(|at| self.ctx.clock.now() < at)
    }

    /// One turn, after news or something else. False when nothing of the pod is left.
    async fn turn(&mut self, is_news: bool) -> bool {
        let is_activity_alone = self.read_mail();
        let is_starting = matches!(self.step, Step::Start { .. });
        if is_news && is_activity_alone && is_starting && self.looked && !self.stale {
            // All else is as the last turn left it: half of a start's turns are such.
            self.report_waits();
            return true;
        }
        self.look().await;
        if !self.looked {
            self.report_waits();
            return true;
        }
        self.resize().await;
        let plan = plan(&self.pod, &self.seen, &self.verdicts, &self.actuated);
        self.advance(&plan);
        self.probe();
        self.describe();
        self.begin(plan);
        self.report_waits();
        self.write();
        self.view.send_if_modified(|view| {
            let changed = !Arc::ptr_eq(&view.seen, &self.seen)
                || !Arc::ptr_eq(&view.pod, &self.pod)
                || *view.status != self.status
                || view.cleaned != self.cleaned;
            if changed {
                *view = View {
                    pod: self.pod.clone(),
                    seen: self.seen.clone(),
                    status: Arc::new(self.status.clone()),
                    looked: self.looked,
                    cleaned: self.cleaned,
                };
            }
            changed
        });
        !self.is_over()
    }

    /// Everything has been removed.
    fn is_over(&self) -> bool {
        self.gone && self.cleaned && self.seen.is_empty() && !self.stale && matches!(self.step, Step::None)
    }
}
