//! What the task does: lets the life of the pod advance and begins the step that is due.

use std::sync::Arc;
use std::time::Duration;

use client::Cause as WriteCause;
use stdx::clock::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::{Step, Work, Worker};
use crate::context::{Context, blocking};
use crate::pod::BoundPod;
use crate::report::Wait;
use crate::runtime::PodState;
use crate::sync::lifecycle::{Cause, Facts, Phase};
use crate::sync::mailbox::Mailbox;
use crate::sync::plan::{Plan, Sandbox};
use crate::sync::start::Start;
use crate::sync::{leave, stop, waits};
use crate::volume::cleanup::{self, Problem};

/// A start that was told to go no further has at least so long to end.
const MIN_END: Duration = Duration::from_secs(2);

impl Worker {
    pub(super) fn advance(&mut self, plan: &Plan) {
        let deleted = self.pod.is_deleted().then(|| self.pod.grace_seconds());
        let spec_grace = self.pod.spec().termination_grace_period_seconds.unwrap_or(30);
        let overdue = self.deadline.is_some_and(|at| self.ctx.clock.now() >= at).then(|| {
            let message = "Pod was active on the node longer than the specified deadline";
            (Cause { reason: "DeadlineExceeded".into(), message: message.into(), disruption: None }, spec_grace)
        });
        let facts = Facts {
            deleted,
            gone: self.gone,
            done: self.pod.has_ended() || plan.sandbox == Sandbox::Finish,
            eviction: self.eviction.clone().or(overdue),
            rejected: self.rejected.clone(),
            // What a start under way has made, or an older look does not show, may run.
            may_run: self.seen.may_run() || self.stale || matches!(self.step, Step::Start { .. }),
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
    pub(super) fn begin(&mut self, plan: Plan) {
        match (&self.life, &mut self.step) {
            (Phase::Terminating { grace, .. }, Step::Start { .. }) => return self.halt(*grace),
            // An end under way is given up for a quicker one.
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
                if self.held.is_some() || plan.sandbox == Sandbox::Finish || (plan.is_idle() && fresh) {
                    return;
                }
                let halt = CancellationToken::new();
                let start = Start {
                    halt: halt.clone(),
                    ctx,
                    pod,
                    plan,
                    seen: PodState::clone(&seen),
                    mail: self.mail.clone(),
                    memory: self.memory.clone(),
                };
                let work = self.caused(start.run().instrument(self.span("syncPod")));
                let operation = if std::mem::replace(&mut self.has_begun, true) { "sync" } else { "create" };
                self.step_begins(operation);
                self.step = Step::Start { work, halt, give_up: None };
            }
            Phase::Terminating { grace, .. } => {
                let (memory, mail) = (self.memory.clone(), self.mail.clone());
                let work = async move {
                    let left = leave::first(&ctx, &pod, &seen, stop::seconds(grace), &memory, &mail).await;
                    stop::pod(&ctx, &pod, &seen, left).await.map_err(|e| e.to_string())
                };
                self.step_begins("kill");
                self.step = Step::Stop(grace, self.caused(work.instrument(self.span("syncTerminatingPod"))));
            }
            Phase::Terminated { .. } => {
                if seen.containers.iter().any(crate::runtime::Container::may_run) {
                    // It appeared after all: a call that was given up came to its end in the runtime.
                    let work =
                        async move { stop::pod(&ctx, &pod, &seen, Duration::ZERO).await.map_err(|e| e.to_string()) };
                    self.step_begins("kill");
                    self.step = Step::Stop(0, self.caused(work));
                } else if !self.cleaned {
                    self.probers.clear();
                    self.step = Step::Clean(Box::pin(clean(ctx, pod, seen, self.mail.clone())));
                } else if (self.gone || self.gives_all_back()) && !seen.is_empty() {
                    self.step = Step::Clean(Box::pin(remove(ctx, pod, seen)));
                }
            }
        }
    }

    /// A pod that ended because the node is short leaves no containers and no logs, once the API has its status;
    /// nor does any that has ended where the node is short of disk.
    fn gives_all_back(&self) -> bool {
        let is_evicted = self.status.reason.as_deref() == Some(crate::evict::REASON);
        self.pod.has_ended() && (is_evicted || self.gives_back)
    }

    /// Tells a start under way to go no further. Calls to the runtime are not broken off: one that
    /// was may still come to its end there, after everybody has looked.
    fn halt(&mut self, grace: i64) {
        let now = self.ctx.clock.now();
        if let Step::Start { halt, give_up, .. } = &mut self.step {
            halt.cancel();
            let end = now + Duration::from_secs(u64::try_from(grace).unwrap_or(0)).max(MIN_END);
            *give_up = Some(give_up.map_or(end, |at| at.min(end)));
        }
    }

    /// A step of the pod as a trace.
    fn span(&self, name: &'static str) -> Span {
        let (pod, uid) = (self.pod.full_name(), self.pod.uid.as_str());
        tracing::debug_span!(target: "trace", "pod", "otel.name" = name, "k8s.pod" = %pod, "k8s.pod.uid" = uid)
    }

    /// Every write of a step names the pod as its cause.
    pub(super) fn caused<F: Future + Send + 'static>(&self, work: F) -> Work<F::Output> {
        let cause = WriteCause {
            resource: "pods".into(),
            namespace: self.pod.namespace.clone(),
            name: self.pod.name.clone(),
            revision: self.pod.revision(),
        };
        let rng = self.ctx.rng.clone();
        Box::pin(async move { client::causes::scope(&[cause], &rng, work).await })
    }
}

/// When the pod has been active for as long as it may be.
pub(super) fn deadline(ctx: &Context, pod: &BoundPod) -> Option<Instant> {
    let seconds = u64::try_from(pod.spec().active_deadline_seconds?).ok()?;
    let started = pod.status().start_time.as_ref();
    let active = started.and_then(|t| Duration::try_from(ctx.clock.wall().duration_since(t.0)).ok());
    Some(ctx.clock.now() + Duration::from_secs(seconds).saturating_sub(active.unwrap_or_default()))
}

/// Removes what a pod that ended had on the node beside its containers' records and logs.
async fn clean(ctx: Arc<Context>, pod: Arc<BoundPod>, seen: Arc<PodState>, mail: Arc<Mailbox>) -> Result<(), String> {
    // Sandboxes that ended by themselves still hold their network.
    stop::sandboxes(&ctx, &seen).await.map_err(|e| e.to_string())?;
    ctx.cluster.release(&pod.uid);
    ctx.storage.release(&pod.uid);
    if let Err(Problem { path, text }) = cleanup::clean(&ctx.clock, &ctx.layout, &pod.uid).await {
        mail.activity(Some(Wait { code: waits::UNMOUNT, on: path, text: text.clone() }));
        return Err(format!("volumes not removed: {text}"));
    }
    mail.activity(None);
    ctx.users.give_back(&pod.uid);
    if pod.spec().volumes.iter().flatten().any(|v| v.image.is_some()) {
        ctx.runtime.remove_views(&pod.uid).await.map_err(|e| format!("images are still held: {e}"))?;
    }
    let Some(cgroups) = ctx.cgroups.clone() else { return Ok(()) };
    let removed = move || ctx.metrics.of_cgroups(&ctx.clock, "destroy", || cgroups.remove(&pod));
    match blocking(removed).await {
        Ok(true) => Ok(()),
        Ok(false) => Err("the kernel still holds a cgroup of the pod".to_owned()),
        Err(error) => Err(error.to_string()),
    }
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
