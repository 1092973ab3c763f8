//! Giving running containers what they are allocated: the pod's cgroup is raised first, then containers
//! that shrink make room for those that grow, then the pod's cgroup is what it is to be.

use ::cri::v1;

use super::{Outcome, Retry, Start};
use crate::cgroup::{self, Allowance};
use crate::container::resources;
use crate::context::blocking;
use crate::resize::change;
use crate::sync::plan::Update;

impl Start {
    /// Resizes what the plan names.
    pub(super) async fn resize(&self) -> Outcome {
        if self.plan.update.is_empty() && !self.plan.whole {
            return Ok(());
        }
        let Err(why) = self.try_resize().await else { return Ok(()) };
        tracing::warn!(pod = %self.pod.full_name(), why, "pod not resized; trying again");
        self.mail.put(|inbox| inbox.resize_failed = Some(why));
        Err(Retry::BackOff)
    }

    async fn try_resize(&self) -> Result<(), String> {
        let (ctx, pod) = (&self.ctx, &self.pod);
        self.is_possible().await?;
        self.pod_cgroup(true).await?;
        for update in &self.plan.update {
            let Some(spec) = pod.container(&update.name) else { continue };
            let wanted = resources::linux(pod, spec, ctx.settings.node_memory);
            ctx.runtime.update_container(&update.id, wanted).await.map_err(|e| e.description().to_owned())?;
            ctx.allocations.done(&pod.uid, &update.id);
        }
        self.pod_cgroup(false).await?;
        self.tell_sandbox().await;
        ctx.allocations.done(&pod.uid, change::POD);
        self.memory.lock().recorded = false;
        Ok(())
    }

    /// Tells the runtime what the pod has as a whole: for runtimes whose sandbox is a machine of its own, and
    /// for their plugins. As upstream, it is told at best.
    async fn tell_sandbox(&self) {
        let Some(sandbox) = self.seen.sandboxes.first().filter(|s| s.ready) else { return };
        let Allowance { shares, quota, memory } = cgroup::allowance(&self.pod);
        let linux = v1::LinuxContainerResources {
            cpu_period: resources::PERIOD,
            cpu_quota: quota,
            cpu_shares: shares,
            memory_limit_in_bytes: memory,
            ..v1::LinuxContainerResources::default()
        };
        match self.ctx.runtime.update_sandbox(&sandbox.id, linux).await {
            Ok(()) => {}
            Err(error) if error.is_unimplemented() => {}
            Err(error) => tracing::warn!(pod = %self.pod.full_name(), %error, "the sandbox's resources are not told"),
        }
    }

    /// A container that uses more than it is to have is not made to end for want of it.
    async fn is_possible(&self) -> Result<(), String> {
        let mut wrong = Vec::new();
        for Update { id, name, .. } in self.plan.update.iter().filter(|u| u.shrinks) {
            let Some(limit) = self.pod.container(name).and_then(|c| self.pod.limit(c, "memory")) else { continue };
            let limit = limit.value();
            match self.ctx.runtime.memory_in_use(id).await {
                Ok(Some(used)) if i128::from(used) >= limit => wrong.push(format!(
                    "attempting to set container {name:?} memory limit ({limit}) below current usage ({used})"
                )),
                Ok(Some(_)) => {}
                Ok(None) => wrong.push(format!("missing container {name:?} memory usage")),
                Err(error) => wrong.push(error.description().to_owned()),
            }
        }
        let all = match wrong.as_slice() {
            [] => return Ok(()),
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        Err(format!("cannot decrease memory limits: {all}"))
    }

    async fn pod_cgroup(&self, raise: bool) -> Result<(), String> {
        let Some(cgroups) = self.ctx.cgroups.clone() else { return Ok(()) };
        let pod = self.pod.clone();
        let (metrics, clock) = (self.ctx.metrics.clone(), self.ctx.clock.clone());
        let set = move || if raise { cgroups.raise(&pod) } else { cgroups.ensure(&pod) };
        let counted = move || metrics.of_cgroups(&clock, "update", set);
        blocking(counted).await.and_then(|done| done).map_err(|e| e.to_string())
    }
}
