//! What the task says: the status, its writing, and what the pod waits for.

use std::time::Duration;

use api::types::core::v1::PodStatus;

use super::{Step, WRITE_RETRY, Worker, Write};
use crate::pod::BoundPod;
use crate::status::containers::whole;
use crate::status::{Inputs, conditions, generate, patch};
use crate::sync::waits;

impl Worker {
    /// Generates the status.
    pub(super) fn describe(&mut self) {
        // Volumes and records go when a pod has ended: nothing better can be said later.
        if self.generated && self.life.is_terminated() && self.cleaned {
            return;
        }
        if self.pod.has_ended() && self.life.is_terminated() && self.known.phase.is_some() && !self.generated {
            // It ended before this process began; what was said then is right.
            self.generated = true;
            self.set_status(self.known.clone());
            return;
        }
        let before = self.before();
        let now = self.ctx.clock.wall();
        let was_pending = before.phase.as_deref().is_none_or(|phase| phase == "Pending");
        let status = generate(&Inputs {
            pod: &self.pod,
            seen: &self.seen,
            verdicts: &self.verdicts,
            waiting: &self.waiting,
            actuated: &self.actuated,
            resizing: &self.resizing,
            life: &self.life,
            before: &before,
            host_ips: &self.ctx.settings.node_ips,
            runtime: &self.ctx.settings.runtime_name,
            now: whole(now),
        });
        self.set_status(status);
        // What ran when this process began was not started by it.
        if was_pending && self.generated && self.status.phase.as_deref() == Some("Running") {
            let metrics = &self.ctx.metrics;
            let since = |at: jiff::Timestamp| Duration::try_from(now.duration_since(at)).unwrap_or_default();
            if let Some(seen) = &self.status.start_time {
                metrics.pod_start.took(&[], since(seen.0));
            }
            if let Some(created) = &self.pod.meta().creation_timestamp {
                metrics.pod_start_total.took(&[], since(created.0));
                let own = self.memory.lock().tries.lock().pulling() + initialized(&self.status);
                if !keeps_state(&self.pod) {
                    metrics.pod_start_sli.took(&[], since(created.0).saturating_sub(own));
                }
            }
        }
        self.generated = true;
    }

    /// Most turns change nothing of it, and then nothing has to be compared.
    fn set_status(&mut self, status: PodStatus) {
        if self.status != status {
            self.status = status;
            self.told_all = false;
        }
    }

    /// What the status is generated from: what we said last, with what others have said since.
    fn before(&self) -> PodStatus {
        if !self.generated {
            return self.known.clone();
        }
        let owned = |c: &&api::types::core::v1::PodCondition| conditions::is_owned(&c.type_);
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
    pub(super) fn write(&mut self) {
        let early = self.write_not_before.is_some_and(|at| self.ctx.clock.now() < at);
        if self.gone || early || !matches!(self.write, Write::None) || !self.generated {
            return;
        }
        // A static pod's status is its mirror's; while there is none nobody could read it.
        let shown = if self.pod.is_static() { self.mirror.as_ref() } else { Some(&self.pod) };
        let Some(pod) = shown.cloned() else { return };
        let ctx = self.ctx.clone();
        let patch = if self.told_all { None } else { patch::patch(&pod.uid, &self.known, &self.status) };
        self.told_all = patch.is_none();
        if let Some(patch) = patch.filter(|p| self.accepted.as_ref() != Some(p)) {
            tracing::debug!(pod = %pod.full_name(), phase = ?self.status.phase, "status to be written");
            let sent = patch.clone();
            let work = self.caused(async move { ctx.cluster.patch_status(&pod, &sent).await });
            self.write = Write::Status(patch, work);
        } else if self.pod.is_deleted() && self.life.is_terminated() && self.cleaned {
            self.write = Write::Delete(self.caused(async move { ctx.cluster.delete(&pod).await }));
        }
    }

    pub(super) fn write_failed(&mut self, error: &client::Error) {
        self.write_failures = self.write_failures.saturating_add(1);
        self.write_not_before = Some(self.ctx.clock.now() + WRITE_RETRY.delay(self.write_failures));
        tracing::warn!(pod = %self.pod.full_name(), %error, "status not written; trying again");
    }

    pub(super) fn report_waits(&self) {
        let found = waits::waits(&waits::Facts {
            pod: &self.pod,
            life: &self.life,
            seen: &self.seen,
            activity: self.held.as_ref().or(self.activity.as_ref()),
            waiting: &self.waiting,
            told: &self.told,
            runtime_error: self.runtime_error.as_deref(),
            starting: matches!(self.step, Step::Start { .. }),
            cleaning: !matches!(self.step, Step::None),
        });
        self.ctx.report.waits(&self.pod, &found);
    }
}

/// How long init containers ran.
fn initialized(status: &PodStatus) -> Duration {
    let ended = status.init_container_statuses.iter().flatten().filter_map(|c| c.state.as_ref()?.terminated.as_ref());
    let took = ended.filter_map(|ended| {
        let (from, to) = (ended.started_at.as_ref()?, ended.finished_at.as_ref()?);
        Duration::try_from(to.0.duration_since(from.0)).ok()
    });
    took.sum()
}

/// Whether it mounts anything but what is made for it: how fast it starts is then not only the node's doing.
fn keeps_state(pod: &BoundPod) -> bool {
    let is_made = |v: &api::types::core::v1::Volume| {
        let files = v.secret.is_some() || v.config_map.is_some() || v.downward_api.is_some() || v.projected.is_some();
        files || v.empty_dir.is_some()
    };
    !pod.spec().volumes.iter().flatten().all(is_made)
}
