//! What pods have on the node's disk: taken away once nobody knows the pod, and not to become more than
//! it may be. Nothing here is waited for without a limit.

use std::sync::Arc;
use std::time::Duration;

use client::events::Type;
use stdx::ClockExt;
use tokio_util::sync::CancellationToken;

use super::Pods;
use crate::context::blocking;
use crate::ephemeral::{self, Exceeded};
use crate::evict;
use crate::pod::BoundPod;
use crate::sync::lifecycle::Cause;
use crate::volume::cleanup;

/// A look at what one pod uses that takes longer is broken off.
const LOOK_LIMIT: Duration = Duration::from_secs(60);

impl Pods {
    /// Removes directories, cgroups and logs of pods that nobody knows. Only once the API server
    /// has shown all pods and the runtime was listed.
    pub async fn sweep(self: &Arc<Self>) {
        let ctx = &self.ctx;
        let layout = ctx.layout.clone();
        let found = blocking(move || layout.found()).await.unwrap_or_default();
        for uid in found.into_iter().filter(|uid| !self.knows(uid)) {
            if let Err(problem) = cleanup::clean(&ctx.clock, &ctx.layout, &uid).await {
                tracing::warn!(uid, error = problem.text, "cannot remove the directory of a vanished pod");
            }
            if let Err(error) = ctx.runtime.remove_views(&uid).await {
                tracing::warn!(uid, %error, "images of a vanished pod are still held");
            }
        }
        let this = self.clone();
        if let Err(error) = blocking(move || this.sweep_records()).await {
            tracing::warn!(%error, "sweep not completed");
        }
    }

    /// Removes cgroups and logs of pods that nobody knows.
    fn sweep_records(&self) {
        let ctx = &self.ctx;
        if let Some(cgroups) = &ctx.cgroups {
            for path in cgroups.collect(|uid| self.knows(uid)) {
                tracing::debug!(path, "the kernel still holds the cgroup of a vanished pod");
            }
        }
        let logs = std::fs::read_dir(&ctx.settings.log_root).into_iter().flatten().flatten();
        for entry in logs {
            let name = entry.file_name().to_string_lossy().into_owned();
            // namespace_name_uid, as upstream names them; anything else is not ours.
            let mut parts = name.splitn(3, '_');
            let uid = (parts.next(), parts.next(), parts.next()).2;
            if uid.is_some_and(|uid| !self.knows(uid)) {
                if let Err(error) = std::fs::remove_dir_all(entry.path()) {
                    tracing::warn!(path = %entry.path().display(), %error, "cannot remove the logs of a vanished pod");
                }
            }
        }
    }

    /// Evicts the pods that use more disk than they may.
    pub async fn limit_storage(&self) {
        for pod in self.evictable().into_iter().map(|view| view.pod).filter(|pod| ephemeral::is_limited(pod)) {
            let Some(Exceeded { limit, message }) = self.storage_exceeded(&pod).await else { continue };
            let cause = Cause { reason: evict::REASON.into(), message: message.clone(), disruption: None };
            if !self.evict(&pod.uid, cause, evict::AT_ONCE) {
                continue;
            }
            tracing::info!(pod = %pod.full_name(), message, "a pod uses more disk than it may; evicting it");
            self.ctx.report.event(&pod, None, Type::Warning, evict::REASON, message);
            self.ctx.metrics.evictions.inc(&[limit]);
        }
    }

    async fn storage_exceeded(&self, pod: &Arc<BoundPod>) -> Option<Exceeded> {
        let (ctx, of) = (&self.ctx, pod.clone());
        let Some(alone) = self.looks.hold_alone(&pod.uid) else {
            tracing::warn!(pod = %pod.full_name(), "what a pod uses of the disk is still being looked at");
            return None;
        };
        let (layout, logs) = (ctx.layout.clone(), ctx.log_directory(pod));
        let stop = CancellationToken::new();
        let (stopped, _stop) = (stop.clone(), stop.drop_guard());
        let work = move || {
            let _alone = alone;
            let mut look = ephemeral::Look::new(|| stopped.is_cancelled());
            let mut usage = ephemeral::Usage::default();
            for volume in of.spec().volumes.iter().flatten().filter(|v| v.empty_dir.is_some()) {
                let path = layout.volume(&of.uid, volume);
                // What is in memory is none of the disk's.
                if !layout.mounts.is_mounted_here(&path) {
                    usage.volumes.insert(volume.name.clone(), look.used(&path)?);
                }
            }
            for container in of.all_containers() {
                usage.containers.insert(container.name.clone(), look.used(&logs.join(&container.name))?);
            }
            if look.is_full() {
                tracing::warn!(pod = %of.full_name(), "a pod has more files than are counted: it uses more than is known");
            }
            std::io::Result::Ok(usage)
        };
        let mut usage = match ctx.clock.timeout(LOOK_LIMIT, blocking(work)).await {
            Ok(Ok(Ok(usage))) => usage,
            Ok(Ok(Err(error)) | Err(error)) => {
                tracing::warn!(pod = %pod.full_name(), %error, "what a pod uses of the disk is not known");
                return None;
            }
            Err(_) => {
                tracing::warn!(pod = %pod.full_name(), "what a pod uses of the disk takes too long to find out");
                return None;
            }
        };
        for (name, bytes) in ctx.runtime.written(&pod.uid).await.unwrap_or_default() {
            *usage.containers.entry(name).or_default() += bytes;
        }
        ephemeral::exceeded(pod, &usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Runtime, Summary};
    use crate::sync::sim::{Sim, two};
    use ::cri::v1;
    use serde_json::json;
    use std::collections::BTreeMap;
    use stdx::shutdown::Stage;

    #[tokio::test]
    async fn a_pod_that_does_not_end_keeps_no_other_from_giving_back() {
        let sim = Sim::new(42, two("Always"));
        // The fake API server has one pod, and these are others.
        *sim.cluster.refuse.lock() = true;
        let adopted = BTreeMap::from([("u-stuck".to_owned(), Summary::default())]);
        let pods = Pods::new(sim.ctx.clone(), Stage::new(), adopted);
        let shown = |name: &str, revision: &str, phase: &str| {
            let metadata = json!({"name": name, "namespace": "default", "uid": format!("u-{name}"),
                "resourceVersion": revision});
            let object = json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "x"}]},
                "status": {"phase": phase}});
            pods.shown("default", name, Some(Arc::new(serde_json::from_value(object).expect("a pod"))));
        };
        for name in ["done", "stuck"] {
            let uid = format!("u-{name}");
            let metadata = v1::PodSandboxMetadata { name: name.into(), uid, namespace: "default".into(), attempt: 0 };
            let config = v1::PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
            let sandbox = sim.runtime.run_sandbox(config.clone(), "").await.expect("a sandbox");
            if name == "stuck" {
                let metadata = Some(v1::ContainerMetadata { name: "c".into(), attempt: 0 });
                let container = v1::ContainerConfig { metadata, ..Default::default() };
                let id = sim.runtime.create_container(&sandbox, container, config).await.expect("a container");
                sim.runtime.start_container(&id).await.expect("started");
            }
        }
        let door = sim.runtime.hold("stop_container");
        shown("done", "1", "Succeeded");
        shown("stuck", "1", "Running");
        sim.until("both are looked at", |_| pods.all().iter().all(|view| view.looked)).await;
        // Somebody says so; its process runs on.
        shown("stuck", "2", "Failed");
        let asked = pods.clone();
        let task = tokio::spawn(async move { asked.give_back().await });
        sim.until("what has ended is given back", |_| task.is_finished()).await;
        assert!(sim.runtime.seen("u-done").is_empty());
        assert!(sim.runtime.seen("u-stuck").may_run());
        drop(door);
    }
}
