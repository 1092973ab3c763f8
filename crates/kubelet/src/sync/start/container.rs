//! Starting one container: its back-off, image and configuration, then the runtime's two calls.

use std::time::Duration;

use ::cri::v1;
use api::types::core::v1::Container as Spec;
use client::events::Type;

use super::{Outcome, Place, Retry, Start};
use crate::container::config;
use crate::container::env;
use crate::context::blocking;
use crate::hook;
use crate::image::policy::{Policy, go_duration};
use crate::image::puller::{Problem, Ready, Wish};
use crate::metrics::container_type;
use crate::report::Wait;
use crate::runtime::{ContainerState, labels};
use crate::volume::files;

impl Start {
    /// Starts one container.
    pub(super) async fn container(&self, spec: &Spec, place: &Place) -> Outcome {
        let name = &spec.name;
        self.go_on()?;
        self.crash_loop(spec)?;
        let ready = self.image(spec, place).await?;
        self.images_mounted(spec, place)?;
        let made = self.configure(spec, place, &ready).await;
        self.go_on()?;
        let config = match made {
            Ok(config) => config,
            Err(why) => {
                self.event(Some(name), Type::Warning, "Failed", format!("Error: {why}"));
                self.mail.waiting(name, Some(("CreateContainerConfigError", why)));
                return Err(Retry::BackOff);
            }
        };
        let (ctx, sandbox) = (&self.ctx, place.config.clone());
        let kind = container_type(&self.pod, name);
        let failed = |code: &str| ctx.metrics.started_containers_errors.inc(&[kind, code]);
        ctx.metrics.started_containers.inc(&[kind]);
        let id = match ctx.runtime.create_container(&place.id, config, sandbox).await {
            Ok(id) => id,
            Err(error) => {
                self.memory.lock().failed_creations += 1;
                let why = error.description().to_owned();
                self.event(Some(name), Type::Warning, "Failed", format!("Error: {why}"));
                failed("CreateContainerError");
                self.mail.waiting(name, Some(("CreateContainerError", why)));
                return Err(Retry::BackOff);
            }
        };
        self.passed("container created");
        self.memory.lock().failed_creations = 0;
        ctx.owners.learn_ids(&self.pod.uid, [&id].into_iter());
        self.event(Some(name), Type::Normal, "Created", "Container created".into());
        self.note_restart(spec);
        self.go_on()?;
        if let Err(error) = ctx.runtime.start_container(&id).await {
            let why = error.description().to_owned();
            self.event(Some(name), Type::Warning, "Failed", format!("Error: {why}"));
            failed("RunContainerError");
            self.mail.waiting(name, Some(("RunContainerError", why)));
            self.mail.runtime();
            return Err(Retry::BackOff);
        }
        self.passed("container started");
        self.event(Some(name), Type::Normal, "Started", "Container started".into());
        self.mail.waiting(name, None);
        self.mail.runtime();
        self.post_start(spec, &id, place).await
    }

    async fn post_start(&self, spec: &Spec, id: &str, place: &Place) -> Outcome {
        let Some(hook) = spec.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return Ok(()) };
        let ctx = &self.ctx;
        let ip = ctx.pod_ips(&self.pod, &place.state).into_iter().next().unwrap_or_default();
        // Upstream sets hooks no limit of their own; ours is generous, so that none holds a pod forever.
        let limit = Duration::from_secs(3600);
        let run = hook::run(hook, spec, id, &ip, limit, &ctx.runtime, &ctx.clock);
        let Err(why) = self.unless_halted(run).await? else { return Ok(()) };
        tracing::info!(pod = %self.pod.full_name(), container = spec.name, why, "postStart hook failed");
        self.event(Some(&spec.name), Type::Warning, "FailedPostStartHook", "PostStartHook failed".into());
        let grace = Duration::from_secs(u64::try_from(self.pod.grace_seconds()).unwrap_or(0));
        if let Err(error) = ctx.runtime.stop_container(id, grace).await {
            tracing::warn!(pod = %self.pod.full_name(), container = spec.name, %error, "cannot end a container");
        }
        self.mail.waiting(&spec.name, Some(("PostStartHookError", "PostStartHook failed".into())));
        self.mail.runtime();
        Err(Retry::BackOff)
    }

    /// Whether a container that ended may start again yet.
    fn crash_loop(&self, spec: &Spec) -> Outcome {
        let Some(last) = self.seen.container(&spec.name).filter(|c| c.state == ContainerState::Exited) else {
            return Ok(());
        };
        let now = self.ctx.clock.now();
        let key = crash_key(spec);
        let memory = self.memory.lock();
        let ended = memory.ended.get(&last.id).copied().unwrap_or(now);
        let Err(wait) = memory.crash.may_start(&key, ended, now) else { return Ok(()) };
        drop(memory);
        let (name, pod) = (&spec.name, self.pod.full_name());
        let text = format!("Back-off restarting failed container {name} in pod {pod}");
        self.event(Some(name), Type::Warning, "BackOff", text);
        let delay = go_duration(wait.delay);
        let message = format!("back-off {delay} restarting failed container={name} pod={pod}");
        self.mail.waiting(name, Some(("CrashLoopBackOff", message)));
        Err(Retry::At(wait.until))
    }

    /// A container that ended before is starting again: counts for its back-off.
    fn note_restart(&self, spec: &Spec) {
        let last = self.seen.container(&spec.name).filter(|c| c.state == ContainerState::Exited);
        let Some(last) = last else { return };
        let now = self.ctx.clock.now();
        let mut memory = self.memory.lock();
        let ended = memory.ended.get(&last.id).copied().unwrap_or(now);
        memory.crash.starts(&crash_key(spec), ended, now);
    }

    async fn image(&self, spec: &Spec, place: &Place) -> Result<Ready, Retry> {
        let image = spec.image.as_deref().unwrap_or_default();
        let pulled = self.pull(Some(&spec.name), image, Policy::of(spec), place).await?;
        pulled.map_err(|problem| {
            self.mail.waiting(&spec.name, Some((problem.reason, problem.message)));
            problem.retry.map_or(Retry::BackOff, Retry::At)
        })
    }

    /// Fetches an image for a container of the pod, or for the pod.
    pub(super) async fn pull(
        &self,
        container: Option<&str>,
        image: &str,
        policy: Policy,
        place: &Place,
    ) -> Result<Result<Ready, Problem>, Retry> {
        let wanted: Vec<String> = files::pull_secrets(&self.pod).collect();
        let secrets: Vec<_> = wanted.iter().filter_map(|n| place.objects.secrets.get(n).cloned()).collect();
        let missing: Vec<String> = wanted.into_iter().filter(|n| !place.objects.secrets.contains_key(n)).collect();
        let tries = self.memory.lock().tries.clone();
        let progress = |bytes: Option<(u64, u64)>| {
            let text = match bytes {
                Some((done, total)) if total > 0 => format!("pulling: {done} of {total} bytes"),
                Some((done, _)) => format!("pulling: {done} bytes so far"),
                None => "pulling".to_owned(),
            };
            self.mail.activity(Some(Wait { code: "ImagePull", on: format!("image {image}"), text }));
        };
        let wish = Wish {
            pod: &self.pod,
            container,
            image,
            policy,
            secrets: &secrets,
            missing_secrets: &missing,
            sandbox: &place.config,
            tries: &tries,
            progress: &progress,
        };
        let pulled = self.unless_halted(self.ctx.puller.ensure(&wish)).await;
        self.mail.activity(None);
        pulled
    }

    /// The container's configuration, with everything on disk that it refers to.
    async fn configure(&self, spec: &Spec, place: &Place, ready: &Ready) -> Result<v1::ContainerConfig, String> {
        let (ctx, pod) = (&self.ctx, &self.pod);
        let downward = ctx.place(pod, &place.state);
        let files = self.env_files(spec).await;
        let environment = env::environment(&env::Inputs {
            pod,
            container: spec,
            objects: &place.objects,
            files: &files,
            services: &ctx.cluster.services(),
            place: &downward,
        })?;
        for text in &environment.skipped {
            self.event(None, Type::Warning, "InvalidEnvironmentVariableNames", text.clone());
        }
        let attempt = self.attempt(spec).await;
        let mounts = self.mounts(spec, place, attempt, &environment, &downward.pod_ips).await?;
        config::render(&config::Inputs {
            pod,
            container: spec,
            attempt,
            image: &ready.image,
            image_ref: &ready.reference,
            environment: &environment,
            mounts: &mounts,
            target: self.target(spec)?,
            users: ctx.users.of(&pod.uid),
            node_memory: ctx.settings.node_memory,
            seccomp_root: &ctx.settings.seccomp_root,
        })
    }

    /// The container whose processes an ephemeral one is to see.
    fn target(&self, spec: &Spec) -> Result<Option<&str>, String> {
        let Some(name) = self.pod.target_of(&spec.name) else { return Ok(None) };
        let found = self.seen.container(name).map(|c| Some(c.id.as_str()));
        found.ok_or_else(|| format!("unable to find target container {name}"))
    }

    /// How often the container was started before: what the runtime knows, else what its logs and
    /// its last status tell.
    async fn attempt(&self, spec: &Spec) -> u32 {
        let extra = self.memory.lock().failed_creations.saturating_sub(1);
        let known =
            self.seen.containers.iter().filter(|c| c.name == spec.name).map(|c| c.attempt.saturating_add(1)).max();
        if let Some(known) = known {
            return known.saturating_add(extra);
        }
        let directory = self.ctx.log_directory(&self.pod).join(&spec.name);
        let from_logs = blocking(move || next_attempt(&directory)).await.unwrap_or(0);
        let status = self.pod.status();
        let reported = status.container_statuses.iter().chain(&status.init_container_statuses);
        let reported = reported.chain(&status.ephemeral_container_statuses).flatten();
        let reported = reported.filter(|s| s.name == spec.name && s.container_id.is_some()).map(|s| s.restart_count);
        let from_status = reported.max().and_then(|n| u32::try_from(n).ok()).map_or(0, |n| n.saturating_add(1));
        from_logs.max(from_status).saturating_add(extra)
    }
}

/// A container's back-off ends with its definition: its image, and what it may use.
fn crash_key(spec: &Spec) -> String {
    let resources = serde_json::to_string(&spec.resources).unwrap_or_default();
    format!("{}/{:x}/{resources}", spec.name, labels::hash(spec))
}

/// The number after the highest log in a directory.
fn next_attempt(directory: &std::path::Path) -> u32 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|e| e.file_name().to_str()?.split_once(".log")?.0.parse::<u32>().ok());
    numbers.max().map_or(0, |n| n.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_tell_how_often_a_container_started() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(next_attempt(&dir.path().join("none")), 0);
        for name in ["0.log", "3.log", "3.log.20260101-000000", "x.log"] {
            std::fs::write(dir.path().join(name), "").expect("written");
        }
        assert_eq!(next_attempt(dir.path()), 4);
    }
}
