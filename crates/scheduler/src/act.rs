//! Carries out what the loop decided: bindings, reports, preemptions. The loop does not wait for it.

use std::sync::Arc;

use client::causes::{self, Cause};
use client::events::{Event as Recorded, Recorder, Reference, Type};
use client::waits::Publisher;
use client::{Client, DeleteParams, Error, Patch};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use stdx::{Rng, SharedClock};
use tokio::sync::mpsc;

use crate::core::{Action, BindFailure, Event, Report};
use crate::laps::{Ended, Lap, Point};
use crate::metrics::{Metrics, Outcome};
use crate::pod::PodInfo;
use crate::report::Reporter;

/// A pod that no node takes.
pub const UNSCHEDULABLE: &str = "Unschedulable";
/// A pod whose gates are not removed yet.
pub const GATED: &str = "SchedulingGated";
/// A pod whose Binding failed.
pub const FAILED: &str = "SchedulerError";

/// Notes of events are cut to this many bytes.
const NOTE: usize = 1024;

/// See the module.
pub struct Actor {
    pub client: Client,
    pub clock: SharedClock,
    pub rng: Rng,
    pub scheduler_name: String,
    pub recorder: Recorder,
    pub waits: Publisher,
    pub reporter: Arc<Reporter>,
    /// Bounded by what the loop lets be in flight.
    pub outcomes: mpsc::Sender<Event>,
    pub metrics: Metrics,
}

/// A pod as events and Waits name it.
pub fn reference(pod: &PodInfo) -> Reference {
    Reference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        resource_version: if pod.revision == 0 { String::new() } else { pod.revision.to_string() },
        field_path: String::new(),
    }
}

fn cause(pod: &PodInfo) -> Cause {
    Cause { resource: "pods".into(), namespace: pod.namespace.clone(), name: pod.name.clone(), revision: pod.revision }
}

fn cut(note: &str) -> String {
    const END: &str = " ...";
    if note.len() <= NOTE {
        return note.to_owned();
    }
    let cut = (0..=NOTE - END.len()).rev().find(|i| note.is_char_boundary(*i)).unwrap_or(0);
    format!("{}{END}", &note[..cut])
}

impl Actor {
    /// Does at once what takes no time; the rest is returned, to be run beside the loop.
    pub fn begin(self: &Arc<Self>, action: Action) -> Option<impl Future<Output = ()> + Send + 'static + use<>> {
        match action {
            Action::Report { pod, report } => {
                self.report(&pod, &report);
                None
            }
            Action::Gated(pod) => {
                let text = "Scheduling is blocked due to non-empty scheduling gates";
                self.waits.publish(&reference(&pod), GATED, pod.gates.join(", "), text);
                None
            }
            Action::Withdraw(pod) => {
                self.reporter.forget(&pod.uid);
                self.waits.withdraw_all(&reference(&pod));
                None
            }
            Action::Bind { .. } | Action::Preempt { .. } | Action::ClearNomination(_) => {
                let actor = self.clone();
                Some(async move { actor.carry_out(action).await })
            }
        }
    }

    fn report(&self, pod: &Arc<PodInfo>, report: &Report) {
        let about = reference(pod);
        let code = if report.reason == FAILED { FAILED } else { UNSCHEDULABLE };
        self.waits.keep_only(&about, &[code]);
        self.waits.publish(&about, code, report.on.as_str(), report.message.as_str());
        let event = Recorded::new(about, Type::Warning, "FailedScheduling", cut(&report.message)).action("Scheduling");
        self.recorder.record(event);
        self.reporter.report(pod, report);
    }

    async fn carry_out(&self, action: Action) {
        let about = match &action {
            Action::Bind { pod, .. } | Action::Preempt { pod, .. } | Action::ClearNomination(pod) => cause(pod),
            Action::Report { .. } | Action::Gated(_) | Action::Withdraw(_) => return,
        };
        let work = async {
            match action {
                Action::Bind { pod, node } => Some(self.bind(&pod, &node).await),
                Action::Preempt { pod, node, victims } => Some(self.preempt(&pod, &node, &victims).await),
                Action::ClearNomination(pod) => {
                    self.clear_nomination(&pod).await;
                    None
                }
                Action::Report { .. } | Action::Gated(_) | Action::Withdraw(_) => None,
            }
        };
        if let Some(event) = causes::scope(&[about], &self.rng, work).await {
            // The loop has ended when nobody listens.
            let _ = self.outcomes.send(event).await;
        }
    }

    async fn bind(&self, pod: &PodInfo, node: &str) -> Event {
        let began = self.clock.now();
        self.reporter.settle(&pod.uid).await;
        let binding = json!({
            "kind": "Binding", "apiVersion": "v1",
            "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
            "target": {"kind": "Node", "name": node},
        });
        let api = self.client.api::<Pod>().namespace(&pod.namespace);
        let outcome = match api.create_subresource(&pod.name, "binding", &binding).await {
            Ok(_) => {
                let note = format!("Successfully assigned {}/{} to {node}", pod.namespace, pod.name);
                let event = Recorded::new(reference(pod), Type::Normal, "Scheduled", cut(&note)).action("Binding");
                self.recorder.record(event);
                Ok(())
            }
            Err(error) => {
                tracing::debug!(%pod, node, %error, "binding failed");
                Err(BindFailure { gone: error.is_not_found(), text: error.to_string() })
            }
        };
        let ended = if outcome.is_ok() { Outcome::Scheduled } else { Outcome::Error };
        let took = self.clock.now().since(began);
        self.metrics.attempted(ended, took);
        let ended = if outcome.is_ok() { Ended::Success } else { Ended::Error };
        let lap = |plugin| Lap { point: Point::Bind, plugin, ended, took };
        self.metrics.heard(&[lap(Some("DefaultBinder")), lap(None)]);
        Event::Bound { uid: pod.uid.clone(), outcome }
    }

    async fn preempt(&self, pod: &PodInfo, node: &str, victims: &[Arc<PodInfo>]) -> Event {
        let mut outcome = Ok(());
        for victim in victims {
            if let Err(error) = self.evict(pod, node, victim).await {
                tracing::debug!(%pod, %victim, node, %error, "preemption failed");
                outcome = Err(error.to_string());
                break;
            }
        }
        Event::Preempted { uid: pod.uid.clone(), outcome }
    }

    /// Says on the victim why it goes, then deletes it. One that is gone already is as good.
    async fn evict(&self, pod: &PodInfo, node: &str, victim: &PodInfo) -> Result<(), Error> {
        let api = self.client.api::<Pod>().namespace(&victim.namespace);
        if victim.deleting {
            return Ok(());
        }
        let mut condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": format!("{}: preempting to accommodate a higher priority pod", self.scheduler_name),
            "lastProbeTime": null, "lastTransitionTime": machinery::time::rfc3339(self.clock.wall()),
        });
        if let Some(generation) = victim.generation {
            condition["observedGeneration"] = json!(generation);
        }
        let patch = json!({"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}});
        let gone = |error: &Error| error.is_not_found() || error.is_conflict();
        match api.patch_status(&victim.name, &Patch::Strategic(patch)).await {
            Err(error) if gone(&error) => return Ok(()),
            result => drop(result?),
        }
        match api.delete(&victim.name, &DeleteParams::of_uid(&victim.uid)).await {
            Err(error) if gone(&error) => return Ok(()),
            result => drop(result?),
        }
        let note = format!("Preempted by pod {} on node {node}", pod.uid);
        let event = Recorded::new(reference(victim), Type::Normal, "Preempted", note).action("Preempting");
        self.recorder.record(event.related(reference(pod)));
        Ok(())
    }

    async fn clear_nomination(&self, pod: &PodInfo) {
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": null}});
        let api = self.client.api::<Pod>().namespace(&pod.namespace);
        if let Err(error) = api.patch_status(&pod.name, &Patch::Strategic(patch)).await {
            // The nomination is only a hint; the pod's next try writes it anew.
            tracing::debug!(%pod, %error, "nomination not cleared");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_notes_are_cut() {
        assert_eq!(cut("short"), "short");
        let long = cut(&"ä".repeat(600));
        assert!(long.len() <= NOTE && long.ends_with(" ..."));
        assert_eq!(cut(&"a".repeat(1025)).len(), 1024);
    }
}
