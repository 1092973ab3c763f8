//! Carrying out a plan: kill, cgroup, volumes, sandbox, then container after container.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::cri::v1;
use api::types::core::v1::{Container as Spec, Volume};
use client::events::Type;
use parking_lot::Mutex;
use stdx::clock::Instant;

use super::crash::{self, CrashLoop};
use super::mailbox::Mailbox;
use super::plan::{Plan, Sandbox};
use super::stop;
use crate::container::config::{self, Mount};
use crate::container::env::{self, Environment, Objects};
use crate::container::{dns, hosts, sandbox};
use crate::context::{Context, blocking};
use crate::hook;
use crate::image::policy::go_duration;
use crate::image::puller::{Ready, Tries, Wish};
use crate::pod::BoundPod;
use crate::report::Wait;
use crate::runtime::{ContainerState, PodState, labels};
use crate::volume::atomic::Payload;
use crate::volume::files::{self, Needs, TokenKey};

/// What a pod remembers between steps.
pub struct Memory {
    pub crash: CrashLoop,
    pub tries: Arc<Mutex<Tries>>,
    /// When each container was first seen to have ended.
    pub ended: HashMap<String, Instant>,
    /// Tokens, and when each is to be renewed.
    pub tokens: BTreeMap<TokenKey, (String, Instant)>,
    /// Sandboxes and containers that could not be created in a row: their names may be taken by
    /// ones the runtime does not show.
    pub failed_creations: u32,
    /// The volumes are as the objects say.
    pub volumes_fresh: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            crash: CrashLoop::new(crash::POLICY),
            tries: Arc::default(),
            ended: HashMap::new(),
            tokens: BTreeMap::new(),
            failed_creations: 0,
            volumes_fresh: false,
        }
    }
}

impl Memory {
    /// When the first token is to be renewed.
    pub fn next_renewal(&self) -> Option<Instant> {
        self.tokens.values().map(|(_, at)| *at).min()
    }
}

/// Why a step could not be completed, and when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After the pod's own back-off.
    BackOff,
    /// At a time.
    At(Instant),
}

/// What became of a step.
pub type Outcome = Result<(), Retry>;

/// One step.
pub struct Start {
    pub ctx: Arc<Context>,
    pub pod: Arc<BoundPod>,
    pub plan: Plan,
    pub seen: PodState,
    pub mail: Arc<Mailbox>,
    pub memory: Arc<Mutex<Memory>>,
}

/// A prepared sandbox.
struct Place {
    id: String,
    config: v1::PodSandboxConfig,
    state: PodState,
    objects: Objects,
}

impl Start {
    /// Carries the plan out as far as it goes.
    pub async fn run(self) -> Outcome {
        let (ctx, pod) = (&self.ctx, &self.pod);
        if let Err(error) = Box::pin(stop::condemned(ctx, pod, &self.seen, &self.plan.kill)).await {
            self.event(None, Type::Warning, "FailedKillPod", format!("error killing pod: {error}"));
            return Err(Retry::BackOff);
        }
        if !self.plan.kill.is_empty() {
            self.mail.runtime();
        }
        self.cgroup().await;
        let objects = self.volumes().await?;
        let place = Box::pin(self.sandbox(objects)).await?;
        let init = self.plan.init.iter().filter_map(|i| pod.init_containers().get(*i));
        let main = self.plan.start.iter().filter_map(|i| pod.containers().get(*i));
        let mut retry: Outcome = Ok(());
        for spec in init.chain(main) {
            // One that cannot start does not keep the others from starting.
            retry = earlier(retry, Box::pin(self.container(spec, &place)).await);
        }
        self.mail.activity(None);
        if !place.state.containers.is_empty() {
            if let Ok(state) = ctx.runtime.pod(&pod.uid).await {
                if let Err(error) = stop::collect(ctx, &state).await {
                    tracing::warn!(pod = %pod.full_name(), %error, "cannot remove old containers");
                }
            }
        }
        retry
    }

    fn event(&self, container: Option<&str>, kind: Type, reason: &str, message: String) {
        self.ctx.report.event(&self.pod, container, kind, reason, message);
    }

    async fn cgroup(&self) {
        let Some(cgroups) = self.ctx.cgroups.clone() else { return };
        let pod = self.pod.clone();
        // The containers' own limits hold all the same, so a refusal is no reason not to run.
        match blocking(move || cgroups.ensure(&pod)).await.and_then(|done| done) {
            Ok(()) => {}
            Err(error) => tracing::warn!(pod = %self.pod.full_name(), %error, "cgroup not set up"),
        }
    }

    /// Makes the volumes what the objects say; gives the objects.
    async fn volumes(&self) -> Result<Objects, Retry> {
        let (ctx, pod) = (&self.ctx, &self.pod);
        let needs = files::needs(pod);
        let objects = match ctx.cluster.objects(pod, &needs).await {
            Ok(objects) => objects,
            Err(error) => {
                let text = format!("cannot read the pod's ConfigMaps and Secrets: {error}");
                self.mail.activity(Some(Wait { code: "Objects", on: "the API server".into(), text }));
                return Err(Retry::BackOff);
            }
        };
        // Until told otherwise; a change that comes in while we work makes it stale again.
        self.memory.lock().volumes_fresh = true;
        self.tokens(&needs).await;
        let used = |volume: &&Volume| {
            pod.all_containers().any(|c| c.volume_mounts.iter().flatten().any(|m| m.name == volume.name))
        };
        let group = pod.spec().security_context.as_ref().and_then(|s| s.fs_group);
        let group = group.and_then(|g| u32::try_from(g).ok());
        for volume in pod.spec().volumes.iter().flatten().filter(used) {
            let made = match self.payload(volume, &objects) {
                Ok(payload) => {
                    let (layout, uid, volume) = (ctx.layout.clone(), pod.uid.clone(), volume.clone());
                    let version = self.version();
                    let work = move || layout.set_up(&uid, &volume, payload.as_ref(), &version, group);
                    blocking(work).await.unwrap_or_else(|e| Err(e.to_string()))
                }
                Err(why) => Err(why),
            };
            if let Err(why) = made {
                let name = &volume.name;
                let text = format!("MountVolume.SetUp failed for volume \"{name}\" : {why}");
                self.event(None, Type::Warning, "FailedMount", text);
                self.mail.activity(Some(Wait { code: "Mount", on: format!("volume {name}"), text: why }));
                self.memory.lock().volumes_fresh = false;
                return Err(Retry::BackOff);
            }
        }
        Ok(objects)
    }

    fn payload(&self, volume: &Volume, objects: &Objects) -> Result<Option<Payload>, String> {
        if !files::is_files(volume) {
            return Ok(None);
        }
        let tokens = self.memory.lock().tokens.iter().map(|(k, (t, _))| (k.clone(), t.clone())).collect();
        let place = self.ctx.place(&self.pod, &self.seen);
        files::render(volume, &files::Inputs { pod: &self.pod, objects, tokens: &tokens, place: &place }).map(Some)
    }

    /// A name for this state of a volume that was not used before.
    fn version(&self) -> String {
        let wall = self.ctx.clock.wall();
        let stamp = jiff::fmt::strtime::format("%Y_%m_%d_%H_%M_%S", wall).unwrap_or_default();
        format!("{stamp}.{}", self.ctx.rng.below(u64::from(u32::MAX)))
    }

    /// Fetches the tokens that are missing or due. One that cannot be renewed serves on; one that
    /// cannot be had shows as a volume that cannot be made.
    async fn tokens(&self, needs: &Needs) {
        let clock = &self.ctx.clock;
        self.memory.lock().tokens.retain(|key, _| needs.tokens.contains(key));
        for key in &needs.tokens {
            let known = self.memory.lock().tokens.get(key).cloned();
            if known.as_ref().is_some_and(|(_, renew)| clock.now() < *renew) {
                continue;
            }
            match self.ctx.cluster.token(&self.pod, key).await {
                Ok(token) => {
                    let life = token.expires.duration_since(clock.wall()).unsigned_abs();
                    // At 80 % of its life, and daily.
                    let renew = clock.now() + (life.mul_f64(0.8)).min(Duration::from_secs(86_400));
                    self.memory.lock().tokens.insert(key.clone(), (token.token, renew));
                }
                Err(error) => {
                    tracing::warn!(pod = %self.pod.full_name(), audience = key.audience, %error, "no token");
                    if let Some((token, _)) = known {
                        let again = clock.now() + Duration::from_secs(10);
                        self.memory.lock().tokens.insert(key.clone(), (token, again));
                    } else {
                        let on = "a service account token".to_owned();
                        self.mail.activity(Some(Wait { code: "Token", on, text: error.to_string() }));
                    }
                }
            }
        }
    }

    /// The sandbox to start containers in: the one there is, or a new one.
    async fn sandbox(&self, objects: Objects) -> Result<Place, Retry> {
        let (ctx, pod) = (&self.ctx, &self.pod);
        let (attempt, changed) = match &self.plan.sandbox {
            Sandbox::Keep(id) => {
                let attempt = self.seen.sandboxes.iter().find(|s| s.id == *id).map_or(0, |s| s.attempt);
                let config = self.sandbox_config(attempt, false).await;
                return Ok(Place { id: id.clone(), config, state: self.seen.clone(), objects });
            }
            Sandbox::Finish => return Err(Retry::BackOff),
            Sandbox::Create { attempt, changed } => (*attempt, *changed),
        };
        if changed {
            let text = "Pod sandbox changed, it will be killed and re-created.";
            self.event(None, Type::Normal, "SandboxChanged", text.into());
            if let Err(error) = stop::pod(ctx, pod, &self.seen, pod.grace_seconds()).await {
                self.event(None, Type::Warning, "FailedKillPod", format!("error killing pod: {error}"));
                return Err(Retry::BackOff);
            }
        }
        let extra = self.memory.lock().failed_creations.saturating_sub(1);
        let attempt = attempt.saturating_add(extra);
        let config = self.sandbox_config(attempt, true).await;
        let directory = PathBuf::from(&config.log_directory);
        if let Err(error) = blocking(move || std::fs::create_dir_all(directory)).await.and_then(|done| done) {
            return Err(self.no_sandbox(&format!("cannot make the log directory: {error}")));
        }
        self.mail.activity(Some(Wait {
            code: "Sandbox",
            on: "the pod's sandbox".into(),
            text: "being created".into(),
        }));
        let handler = pod.spec().runtime_class_name.as_deref().unwrap_or_default();
        match ctx.runtime.run_sandbox(config.clone(), handler).await {
            Ok(id) => {
                self.memory.lock().failed_creations = 0;
                let state = ctx.runtime.pod(&pod.uid).await.map_err(|_| Retry::BackOff)?;
                ctx.owners.learn(&pod.uid, &state);
                self.mail.activity(None);
                self.mail.runtime();
                Ok(Place { id, config, state, objects })
            }
            Err(error) => {
                self.memory.lock().failed_creations += 1;
                self.mail.runtime();
                Err(self.no_sandbox(&error.to_string()))
            }
        }
    }

    fn no_sandbox(&self, why: &str) -> Retry {
        let text = format!("Failed to create pod sandbox: {why}");
        self.event(None, Type::Warning, "FailedCreatePodSandBox", text);
        self.mail.activity(Some(Wait { code: "Sandbox", on: "the pod's sandbox".into(), text: why.to_owned() }));
        Retry::BackOff
    }

    async fn sandbox_config(&self, attempt: u32, is_new: bool) -> v1::PodSandboxConfig {
        let (ctx, pod) = (&self.ctx, &self.pod);
        let path = ctx.settings.resolv_conf.clone();
        let text = blocking(move || std::fs::read_to_string(path)).await.and_then(|text| text).unwrap_or_default();
        let dns = dns::render(pod, &ctx.settings.cluster_dns, &dns::Resolver::parse(&text));
        if dns.missing_cluster_dns && is_new {
            self.event(None, Type::Warning, "MissingClusterDNS", dns::missing_cluster_dns(pod));
        }
        sandbox::render(&sandbox::Inputs {
            pod,
            attempt,
            dns: dns.config,
            log_directory: &ctx.log_directory(pod).to_string_lossy(),
            cgroup_parent: &ctx.cgroups.as_ref().map(|c| c.parent(pod)).unwrap_or_default(),
            cluster_domain: &ctx.settings.cluster_dns.domain,
            seccomp_root: &ctx.settings.seccomp_root,
        })
    }

    /// Starts one container.
    async fn container(&self, spec: &Spec, place: &Place) -> Outcome {
        let name = &spec.name;
        self.crash_loop(spec)?;
        let ready = self.image(spec, place).await?;
        let made = self.configure(spec, place, &ready).await;
        let config = match made {
            Ok(config) => config,
            Err(why) => {
                self.event(Some(name), Type::Warning, "Failed", format!("Error: {why}"));
                self.mail.waiting(name, Some(("CreateContainerConfigError", why)));
                return Err(Retry::BackOff);
            }
        };
        let (ctx, sandbox) = (&self.ctx, place.config.clone());
        let id = match ctx.runtime.create_container(&place.id, config, sandbox).await {
            Ok(id) => id,
            Err(error) => {
                self.memory.lock().failed_creations += 1;
                let why = error.description().to_owned();
                self.event(Some(name), Type::Warning, "Failed", format!("Error: {why}"));
                self.mail.waiting(name, Some(("CreateContainerError", why)));
                return Err(Retry::BackOff);
            }
        };
        self.memory.lock().failed_creations = 0;
        ctx.owners.learn_ids(&self.pod.uid, [&id].into_iter());
        self.event(Some(name), Type::Normal, "Created", "Container created".into());
        self.note_restart(spec);
        if let Err(error) = ctx.runtime.start_container(&id).await {
            let why = error.description().to_owned();
            self.event(Some(name), Type::Warning, "Failed", format!("Error: {why}"));
            self.mail.waiting(name, Some(("RunContainerError", why)));
            self.mail.runtime();
            return Err(Retry::BackOff);
        }
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
        let Err(why) = hook::run(hook, spec, id, &ip, limit, &ctx.runtime, &ctx.clock).await else { return Ok(()) };
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
        let wanted: Vec<String> = files::pull_secrets(&self.pod).collect();
        let secrets: Vec<_> = wanted.iter().filter_map(|n| place.objects.secrets.get(n).cloned()).collect();
        let missing: Vec<String> = wanted.into_iter().filter(|n| !place.objects.secrets.contains_key(n)).collect();
        let image = spec.image.clone().unwrap_or_default();
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
            container: spec,
            secrets: &secrets,
            missing_secrets: &missing,
            sandbox: &place.config,
            tries: &tries,
            progress: &progress,
        };
        let pulled = self.ctx.puller.ensure(&wish).await;
        self.mail.activity(None);
        pulled.map_err(|problem| {
            self.mail.waiting(&spec.name, Some((problem.reason, problem.message)));
            problem.retry.map_or(Retry::BackOff, Retry::At)
        })
    }

    /// The container's configuration, with everything on disk that it refers to.
    async fn configure(&self, spec: &Spec, place: &Place, ready: &Ready) -> Result<v1::ContainerConfig, String> {
        let (ctx, pod) = (&self.ctx, &self.pod);
        let downward = ctx.place(pod, &place.state);
        let environment = env::environment(&env::Inputs {
            pod,
            container: spec,
            objects: &place.objects,
            services: &ctx.cluster.services(),
            place: &downward,
        })?;
        for text in &environment.skipped {
            self.event(None, Type::Warning, "InvalidEnvironmentVariableNames", text.clone());
        }
        let attempt = self.attempt(spec).await;
        let mounts = self.mounts(spec, attempt, &environment, &downward.pod_ips).await?;
        config::render(&config::Inputs {
            pod,
            container: spec,
            attempt,
            image: &ready.image,
            image_ref: &ready.reference,
            environment: &environment,
            mounts: &mounts,
            node_memory: ctx.settings.node_memory,
            seccomp_root: &ctx.settings.seccomp_root,
        })
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
        let reported = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let reported = reported.filter(|s| s.name == spec.name && s.container_id.is_some()).map(|s| s.restart_count);
        let from_status = reported.max().and_then(|n| u32::try_from(n).ok()).map_or(0, |n| n.saturating_add(1));
        from_logs.max(from_status).saturating_add(extra)
    }

    async fn mounts(
        &self,
        spec: &Spec,
        attempt: u32,
        environment: &Environment,
        pod_ips: &[String],
    ) -> Result<Vec<Mount>, String> {
        let (ctx, pod) = (&self.ctx, self.pod.clone());
        let (layout, settings) = (ctx.layout.clone(), ctx.settings.clone());
        let log_directory = ctx.log_directory(&pod).join(&spec.name);
        let (spec, environment, ips) = (spec.clone(), environment.clone(), pod_ips.to_vec());
        let unique = ctx.rng.below(u64::from(u32::MAX));
        blocking(move || {
            let text = |error: std::io::Error| error.to_string();
            std::fs::create_dir_all(&log_directory).map_err(text)?;
            let mut out = Vec::new();
            for (index, mount) in spec.volume_mounts.iter().flatten().enumerate() {
                let volumes = pod.spec().volumes.as_deref().unwrap_or_default();
                let Some(volume) = volumes.iter().find(|v| v.name == mount.name) else {
                    return Err(format!("volume \"{}\" not found", mount.name));
                };
                let sub = match (&mount.sub_path, &mount.sub_path_expr) {
                    (_, Some(expr)) if !expr.is_empty() => {
                        let known = |name: &str| environment.get(name).is_some();
                        if let Some(name) = crate::container::expand::first_unknown(expr, known) {
                            return Err(format!("missing value for \"{name}\""));
                        }
                        Some(crate::container::expand::expand(expr, |name| environment.get(name)))
                    }
                    (Some(path), _) if !path.is_empty() => Some(path.clone()),
                    _ => None,
                };
                let host = match sub {
                    None => layout.volume(&pod.uid, volume),
                    Some(sub) => {
                        layout.sub_path(&pod.uid, volume, &sub, &format!("{}/{index}", spec.name)).map_err(|e| {
                            tracing::warn!(pod = %pod.full_name(), volume = mount.name, error = %e, "no subPath");
                            format!(
                                "failed to prepare subPath for volumeMount \"{}\" of container \"{}\"",
                                mount.name, spec.name
                            )
                        })?
                    }
                };
                out.push(Mount {
                    host,
                    container: mount.mount_path.clone(),
                    // What is made from objects is ours to change, not the container's.
                    read_only: mount.read_only.unwrap_or(false) || files::is_files(volume),
                    propagation: mount.mount_propagation.clone(),
                });
            }
            let has = |path: &str| out.iter().any(|m: &Mount| m.container == path);
            if !has("/etc/hosts") {
                let node_hosts = std::fs::read_to_string(&settings.hosts).unwrap_or_default();
                let content = hosts::render(&pod, &ips, &settings.cluster_dns.domain, &node_hosts);
                let host = layout.hosts(&pod.uid, &content).map_err(text)?;
                out.push(Mount { host, container: "/etc/hosts".into(), read_only: false, propagation: None });
            }
            let path = spec.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".into());
            if !path.is_empty() && !out.iter().any(|m: &Mount| m.container == path) {
                let name = format!("{attempt}-{unique:08x}");
                let host = layout.termination_log(&pod.uid, &spec.name, &name).map_err(text)?;
                out.push(Mount { host, container: path, read_only: false, propagation: None });
            }
            Ok(out)
        })
        .await
        .unwrap_or_else(|e| Err(e.to_string()))
    }
}

/// A container's back-off ends with its definition.
fn crash_key(spec: &Spec) -> String {
    format!("{}/{:x}", spec.name, labels::hash(spec))
}

/// The number after the highest log in a directory.
fn next_attempt(directory: &std::path::Path) -> u32 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|e| e.file_name().to_str()?.split_once(".log")?.0.parse::<u32>().ok());
    numbers.max().map_or(0, |n| n.saturating_add(1))
}

/// The earlier of two retries.
fn earlier(a: Outcome, b: Outcome) -> Outcome {
    match (a, b) {
        (Ok(()), other) | (other, Ok(())) => other,
        (Err(Retry::At(a)), Err(Retry::At(b))) => Err(Retry::At(a.min(b))),
        _ => Err(Retry::BackOff),
    }
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

    #[test]
    fn the_earlier_retry_wins() {
        let at = |s| Err(Retry::At(Instant(Duration::from_secs(s))));
        assert_eq!(earlier(Ok(()), at(3)), at(3));
        assert_eq!(earlier(at(5), at(3)), at(3));
        assert_eq!(earlier(at(5), Err(Retry::BackOff)), Err(Retry::BackOff));
        assert_eq!(earlier(Ok(()), Ok(())), Ok(()));
    }
}
