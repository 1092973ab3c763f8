//! The loop: takes in what changed, tries pods, starts what was decided.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use client::events::{Recorder, Source};
use client::waits::Publisher;
use client::{Client, Informer, Resource, controller};
use k8s_openapi::api::core::v1::{Node, Pod};
use stdx::clock::Instant;
use stdx::metrics::Registry;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use tokio::sync::mpsc;

use crate::act::Actor;
use crate::core::{Action, Core, Event};
use crate::laps::Stopwatch;
use crate::mailbox::{Mailbox, PodView};
use crate::metrics::{Metrics, Outcome};
use crate::node::NodeFacts;
use crate::plugins::Profile;
use crate::pod::Uid;
use crate::report::Reporter;

/// Bindings and preemptions under way at a time; at the bound no further pod is tried.
const IN_FLIGHT: usize = 256;
/// Reports written at a time.
const REPORTERS: usize = 4;
/// An answer that takes longer is no answer.
const LIMIT: Duration = Duration::from_secs(60);

/// How the scheduler runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Pods with this `spec.schedulerName` are ours.
    pub scheduler_name: String,
    /// `reportingInstance` of events; the host makes it unique.
    pub instance: String,
    /// Where the scheduler counts what it does.
    pub registry: Registry,
}

impl Default for Options {
    /// The scheduler of pods that name none, alone in its cluster.
    fn default() -> Self {
        let scheduler_name = "default-scheduler".to_owned();
        Self { instance: scheduler_name.clone(), scheduler_name, registry: Registry::default() }
    }
}

impl Options {
    /// The scheduler of pods that name none, on this host.
    pub fn new(hostname: &str) -> Self {
        let scheduler_name = "default-scheduler".to_owned();
        Self { instance: format!("{scheduler_name}-{hostname}"), scheduler_name, registry: Registry::default() }
    }
}

/// Schedules until the stage stops.
pub async fn run(client: Client, clock: SharedClock, rng: Rng, options: Options, stage: &Stage) {
    let client = client.with_timeout(clock.clone(), LIMIT);
    let nodes = Informer::<NodeFacts>::builder(client.clone(), Resource::of::<Node>()).without_json();
    let nodes = nodes.start(clock.clone(), rng.clone(), stage);
    // Finished pods hold nothing; one that finishes is told as deleted.
    let pods = Informer::<PodView>::builder(client.clone(), Resource::of::<Pod>())
        .fields("status.phase!=Succeeded,status.phase!=Failed")
        .without_json()
        .start(clock.clone(), rng.clone(), stage);
    let mailbox = Arc::new(Mailbox::default());
    mailbox.subscribe(&nodes, &pods);

    let source = Source::Series { controller: options.scheduler_name.clone(), instance: options.instance };
    let reporter = Reporter::new(client.clone(), clock.clone());
    let reporting = controller::Options {
        name: "scheduler-status",
        workers: REPORTERS,
        clock: clock.clone(),
        rng: rng.clone(),
        metrics: options.registry.clone(),
    };
    let metrics = Metrics::new(&options.registry, &options.scheduler_name);
    controller::run(reporting, reporter.queue.clone(), reporter.clone(), std::future::ready(()), stage);
    let (outcomes, returned) = mpsc::channel(IN_FLIGHT);
    let actor = Arc::new(Actor {
        recorder: Recorder::start(client.clone(), source, clock.clone(), rng.clone(), stage),
        waits: Publisher::start(&client, "scheduler", |_| true, clock.clone(), stage),
        reporter,
        scheduler_name: options.scheduler_name.clone(),
        clock: clock.clone(),
        rng: rng.clone(),
        outcomes,
        client,
        metrics: metrics.clone(),
    });
    let synced = async {
        nodes.synced().await;
        pods.synced().await;
    };
    let core = Core::new(options.scheduler_name, Profile::default(), rng);
    let scheduling = Loop {
        core,
        laps: Stopwatch::new(clock.clone()),
        clock,
        mailbox,
        actor,
        returned,
        in_flight: 0,
        binding: HashMap::new(),
        metrics,
        stage: stage.clone(),
    };
    tokio::select! {
        () = scheduling.run(synced) => {}
        () = stage.stopped() => {}
    }
}

struct Loop {
    core: Core,
    laps: Stopwatch,
    clock: SharedClock,
    mailbox: Arc<Mailbox>,
    actor: Arc<Actor>,
    returned: mpsc::Receiver<Event>,
    in_flight: usize,
    /// Pods whose Bindings are under way: when that was decided, how long they had waited, in how many attempts.
    binding: HashMap<Uid, (Instant, Duration, u32)>,
    metrics: Metrics,
    stage: Stage,
}

impl Loop {
    async fn run(mut self, synced: impl Future<Output = ()>) {
        synced.await;
        self.take_in();
        self.handle(Event::Synced);
        loop {
            self.take_in();
            if self.in_flight < IN_FLIGHT {
                let began = self.clock.now();
                self.laps.begin(began);
                if let Some(actions) = self.core.step(began, &mut self.laps) {
                    self.metrics.heard(self.laps.laps());
                    self.decided(&actions, began);
                    actions.into_iter().for_each(|action| self.begin(action));
                    // Decisions follow each other without a pause; others want to run too.
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            self.wait().await;
        }
    }

    /// Counts a try: one that found no node has ended with that, another one ends with its Binding.
    fn decided(&mut self, actions: &[Action], began: Instant) {
        let took = self.clock.now().since(began);
        if !actions.is_empty() {
            self.metrics.decided(took);
        }
        for action in actions {
            match action {
                Action::Report { .. } => self.metrics.attempted(Outcome::Unschedulable, took),
                Action::Preempt { victims, .. } => self.metrics.preempts(victims.len()),
                // Its cache may show that it is bound before its Binding is answered.
                Action::Bind { pod, .. } => {
                    if let Some((waited, attempts)) = self.core.waited(&pod.uid, began) {
                        self.binding.insert(pod.uid.clone(), (began, waited, attempts));
                    }
                }
                _ => {}
            }
        }
    }

    /// Everything that has come in since.
    fn take_in(&mut self) {
        for event in self.mailbox.take() {
            self.handle(event);
        }
        while let Ok(event) = self.returned.try_recv() {
            self.answer(event);
        }
    }

    fn answer(&mut self, event: Event) {
        if let Event::Bound { uid, outcome } = &event {
            let decided = self.binding.remove(uid).filter(|_| outcome.is_ok());
            if let Some((at, waited, attempts)) = decided {
                self.metrics.scheduled(waited + self.clock.now().since(at), attempts);
            }
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        self.handle(event);
    }

    fn handle(&mut self, event: Event) {
        let actions = self.core.handle(event, self.clock.now());
        actions.into_iter().for_each(|action| self.begin(action));
    }

    fn begin(&mut self, action: crate::core::Action) {
        let counts = !matches!(action, crate::core::Action::ClearNomination(_));
        if let Some(work) = self.actor.begin(action) {
            self.in_flight += usize::from(counts);
            let stopped = self.stage.stopped();
            self.stage.spawn(async move {
                tokio::select! {
                    () = work => {}
                    () = stopped => {}
                }
            });
        }
    }

    /// Ends when there may be something to do.
    async fn wait(&mut self) {
        self.metrics.waiting(self.core.pending());
        for ((event, queue), count) in self.core.take_incoming() {
            self.metrics.came(event, queue, count);
        }
        let full = self.in_flight >= IN_FLIGHT;
        let due: Option<Instant> = self.core.next_due().filter(|_| !full);
        let timer = async {
            match due {
                Some(at) => self.clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.mailbox.news() => {}
            event = self.returned.recv() => {
                if let Some(event) = event {
                    self.answer(event);
                }
            }
            () = timer => {}
        }
    }
}

#[cfg(test)]
mod tests;
