//! Starting a pod anew in its sandbox, because the end of a container asks for it: all containers go,
//! and the next plan finds a pod that has yet to begin.

use client::events::Type;

use super::{Outcome, Retry, Start};
use crate::image::policy::go_duration;
use crate::runtime::{Container, ContainerState};
use crate::sync::stop;

impl Start {
    /// Ends and removes the containers that the plan names. Their logs stay.
    pub(super) async fn reset(&self) -> Outcome {
        let (ctx, pod) = (&self.ctx, &self.pod);
        let found: Vec<&Container> = self.plan.reset.iter().filter_map(|id| self.seen.by_id(id)).collect();
        let source = found.iter().rev().find(|c| {
            let spec = pod.container(&c.name);
            c.state == ContainerState::Exited && spec.is_some_and(|s| pod.restarts_all_after(s, c.exit_code))
        });
        if let Err(error) = stop::at_once(ctx, pod, &found).await {
            self.event(None, Type::Warning, "FailedKillPod", format!("error killing pod: {error}"));
            self.mail.runtime();
            return Err(Retry::BackOff);
        }
        // Counted once it has happened: the first time a pod begins anew at once.
        if let Some(source) = source {
            let now = ctx.clock.now();
            let mut memory = self.memory.lock();
            let ended = memory.ended.get(&source.id).copied().unwrap_or(now);
            let key = format!("{}/{}", self.pod.uid, source.name);
            memory.hold = memory.crash.may_start(&key, ended, now).err().map(|wait| (source.name.clone(), wait));
            memory.crash.starts(&key, ended, now);
        }
        self.mail.runtime();
        Ok(())
    }

    /// A pod that keeps asking to begin anew waits longer and longer before it does.
    pub(super) fn held(&self) -> Outcome {
        let Some((name, wait)) = self.memory.lock().hold.clone() else { return Ok(()) };
        if self.ctx.clock.now() >= wait.until {
            self.memory.lock().hold = None;
            return Ok(());
        }
        let (delay, pod) = (go_duration(wait.delay), self.pod.full_name());
        let message = format!("back-off {delay} restarting failed container={name} pod={pod}");
        self.mail.waiting(&name, Some(("CrashLoopBackOff", message)));
        Err(Retry::At(wait.until))
    }
}
