//! Giving running containers what they are allocated: the pod's cgroup is raised first, then containers
//! that shrink make room for those that grow, then the pod's cgroup is what it is to be.

use super::{Outcome, Retry, Start};
use crate::container::resources;
use crate::context::blocking;
use crate::resize::change;
use crate::sync::plan::Update;

impl Start {
    /// Writes down what the pod is allocated, once.
    pub(super) async fn record(&self) {
        if std::mem::replace(&mut self.memory.lock().recorded, true) {
            return;
        }
        let (ctx, uid) = (self.ctx.clone(), self.pod.uid.clone());
        if let Err(error) = blocking(move || ctx.allocations.write(&uid)).await.and_then(|done| done) {
            // A kubelet that begins anew takes the spec for what was allocated.
            tracing::warn!(pod = %self.pod.full_name(), %error, "allocated resources not written down");
            self.memory.lock().recorded = false;
        }
    }

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
        ctx.allocations.done(&pod.uid, change::POD);
        self.memory.lock().recorded = false;
        Ok(())
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
        let set = move || if raise { cgroups.raise(&pod) } else { cgroups.ensure(&pod) };
        blocking(set).await.and_then(|done| done).map_err(|e| e.to_string())
    }
}
