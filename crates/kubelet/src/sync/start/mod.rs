//! Carrying out a plan: kill, cgroup, volumes, sandbox, then container after container.
//!
//! A start can be halted. It then begins nothing more: what may take long (a pull, a hook, the API
//! server) is let go at once, a call to the runtime is waited for.

mod container;
mod env_files;
mod image_volumes;
mod mounts;
mod reset;
mod resize;
mod volumes;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ::cri::v1;
use client::events::Type;
use parking_lot::Mutex;
use stdx::clock::Instant;
use tokio_util::sync::CancellationToken;

use super::crash::{self, CrashLoop};
use super::mailbox::Mailbox;
use super::plan::{Plan, Sandbox};
use super::stop;
use crate::container::env::Objects;
use crate::container::{dns, sandbox};
use crate::context::{Context, blocking};
use crate::image::puller::Problem;
use crate::image::puller::Tries;
use crate::pod::BoundPod;
use crate::report::Wait;
use crate::runtime::PodState;
use crate::unsupported;
use crate::users;
use crate::volume::files::TokenKey;
use image_volumes::ImageVolume;
use volumes::{Made, Volumes};

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
    /// The pod begins anew, but not yet: for the sake of which container, and until when.
    pub hold: Option<(String, crash::Wait)>,
    /// What the pod is allocated has been written down.
    pub recorded: bool,
    /// Its endpoints have left the rules of this node, or were waited for long enough.
    pub left: bool,
}

impl Memory {
    /// Nothing has happened yet; containers that keep ending wait at most `longest`.
    pub fn new(longest: Duration) -> Self {
        Self {
            crash: CrashLoop::new(crash::policy(longest)),
            tries: Arc::default(),
            ended: HashMap::new(),
            tokens: BTreeMap::new(),
            failed_creations: 0,
            volumes_fresh: false,
            hold: None,
            recorded: false,
            left: false,
        }
    }

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
    /// Cancelled, the step begins nothing more.
    pub halt: CancellationToken,
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
    /// The volumes by their names.
    made: BTreeMap<String, Made>,
    /// What became of the images among them.
    images: BTreeMap<String, Result<ImageVolume, Problem>>,
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
        if !self.plan.reset.is_empty() {
            return self.reset().await;
        }
        self.held()?;
        let resized = self.resize().await;
        self.claims()?;
        let ((), volumes) = tokio::join!(self.cgroup(), self.volumes());
        let volumes = volumes?;
        self.passed("volumes made");
        let mut place = Box::pin(self.sandbox(volumes)).await?;
        place.images = self.image_volumes(&place).await?;
        let ephemeral = self.plan.ephemeral.iter().filter_map(|i| pod.ephemeral_containers().nth(*i));
        let init = self.plan.init.iter().filter_map(|i| pod.init_containers().get(*i));
        let main = self.plan.start.iter().filter_map(|i| pod.containers().get(*i));
        let mut retry: Outcome = resized;
        for spec in ephemeral.chain(init).chain(main) {
            // One that cannot start does not keep the others from starting.
            retry = earlier(retry, Box::pin(self.container(spec, &place)).await);
        }
        self.mail.activity(None);
        if !place.state.containers.is_empty() {
            if let Ok(state) = ctx.runtime.pod(&pod.uid, &place.state).await {
                if let Err(error) = stop::collect(ctx, &state).await {
                    tracing::warn!(pod = %pod.full_name(), %error, "cannot remove old containers");
                }
            }
        }
        retry
    }

    /// A line for whoever measures where a start's time goes.
    fn passed(&self, what: &str) {
        tracing::debug!(pod = %self.pod.full_name(), "{what}");
    }

    /// `work`, unless the step is halted first.
    async fn unless_halted<T>(&self, work: impl Future<Output = T>) -> Result<T, Retry> {
        tokio::select! {
            biased;
            () = self.halt.cancelled() => Err(Retry::BackOff),
            done = work => Ok(done),
        }
    }

    /// Nothing more is begun once the step is halted.
    fn go_on(&self) -> Outcome {
        if self.halt.is_cancelled() { Err(Retry::BackOff) } else { Ok(()) }
    }

    /// Devices that nothing here can prepare keep the pod from starting.
    fn claims(&self) -> Outcome {
        let Some(why) = unsupported::claims(&self.pod) else { return Ok(()) };
        let text = format!("Failed to prepare dynamic resources: {why}");
        self.event(None, Type::Warning, "FailedPrepareDynamicResources", text);
        self.mail.activity(Some(Wait { code: "Devices", on: "the pod's resource claims".into(), text: why }));
        Err(Retry::BackOff)
    }

    fn event(&self, container: Option<&str>, kind: Type, reason: &str, message: String) {
        self.ctx.report.event(&self.pod, container, kind, reason, message);
    }

    /// Writes down what the pod is allocated, once, and gives it its cgroup.
    async fn cgroup(&self) {
        let (ctx, pod) = (self.ctx.clone(), self.pod.clone());
        let is_recorded = std::mem::replace(&mut self.memory.lock().recorded, true);
        let work = move || {
            let recorded = if is_recorded { Ok(()) } else { ctx.allocations.write_soon(&pod.uid) };
            let made = ctx
                .cgroups
                .as_ref()
                .map_or(Ok(()), |cgroups| ctx.metrics.of_cgroups(&ctx.clock, "create", || cgroups.ensure(&pod)));
            (recorded, made)
        };
        let (recorded, limited) = match blocking(work).await {
            Ok(done) => done,
            Err(error) => (Err(error), Ok(())),
        };
        if let Err(error) = recorded {
            // A kubelet that begins anew takes the spec for what was allocated.
            tracing::warn!(pod = %self.pod.full_name(), %error, "allocated resources not written down");
            self.memory.lock().recorded = false;
        }
        if let Err(error) = limited {
            // The containers' own limits hold all the same, so a refusal is no reason not to run.
            tracing::warn!(pod = %self.pod.full_name(), %error, "cgroup not set up");
        }
    }

    /// The sandbox to start containers in: the one there is, or a new one.
    async fn sandbox(&self, volumes: Volumes) -> Result<Place, Retry> {
        let (ctx, pod) = (&self.ctx, &self.pod);
        self.go_on()?;
        let (objects, volumes, images) = (volumes.objects, volumes.made, BTreeMap::new());
        let (attempt, changed) = match &self.plan.sandbox {
            Sandbox::Keep(id) => {
                let attempt = self.seen.sandboxes.iter().find(|s| s.id == *id).map_or(0, |s| s.attempt);
                let config = self.sandbox_config(attempt, false).await?;
                return Ok(Place { id: id.clone(), config, state: self.seen.clone(), objects, made: volumes, images });
            }
            Sandbox::Finish => return Err(Retry::BackOff),
            Sandbox::Create { attempt, changed } => (*attempt, *changed),
        };
        let handler = self.handler().await?;
        if changed {
            let text = "Pod sandbox changed, it will be killed and re-created.";
            self.event(None, Type::Normal, "SandboxChanged", text.into());
            if let Err(error) = stop::pod(ctx, pod, &self.seen, stop::seconds(pod.grace_seconds())).await {
                self.event(None, Type::Warning, "FailedKillPod", format!("error killing pod: {error}"));
                return Err(Retry::BackOff);
            }
        }
        let extra = self.memory.lock().failed_creations.saturating_sub(1);
        let attempt = attempt.saturating_add(extra);
        let config = self.sandbox_config(attempt, true).await?;
        self.mail.activity(Some(Wait {
            code: "Sandbox",
            on: "the pod's sandbox".into(),
            text: "being created".into(),
        }));
        self.go_on()?;
        let (metrics, began) = (&ctx.metrics, ctx.clock.now());
        metrics.started_pods.inc(&[]);
        let ran = ctx.runtime.run_sandbox(config.clone(), &handler).await;
        metrics.sandbox_duration.took(&[&handler], ctx.clock.now().since(began));
        match ran {
            Ok(id) => {
                self.memory.lock().failed_creations = 0;
                ctx.owners.learn_ids(&pod.uid, [&id].into_iter());
                let made = ctx.runtime.sandbox(&id).await.map_err(|_| Retry::BackOff)?;
                self.passed("sandbox runs");
                let mut state = self.seen.clone();
                state.sandboxes.insert(0, made.clone());
                self.mail.activity(None);
                self.mail.put(|inbox| inbox.made = Some(made));
                Ok(Place { id, config, state, objects, made: volumes, images })
            }
            Err(error) => {
                metrics.started_pods_errors.inc(&[]);
                metrics.sandbox_errors.inc(&[&handler]);
                self.memory.lock().failed_creations += 1;
                self.mail.runtime();
                Err(self.no_sandbox(&error.to_string()))
            }
        }
    }

    /// The handler that the pod's RuntimeClass names (the runtime's default one without), once the
    /// pod has the users it wants.
    async fn handler(&self) -> Result<String, Retry> {
        let (ctx, pod) = (&self.ctx, &self.pod);
        let handler = match pod.spec().runtime_class_name.as_deref().filter(|class| !class.is_empty()) {
            None => String::new(),
            Some(class) => match self.unless_halted(ctx.cluster.runtime_handler(class)).await? {
                Ok(Some(handler)) => handler,
                Ok(None) => {
                    return Err(self.no_sandbox(&format!("runtimeclass.node.k8s.io \"{class}\" not found")));
                }
                Err(error) => {
                    return Err(self.no_sandbox(&format!("failed to lookup RuntimeClass {class}: {error}")));
                }
            },
        };
        let own = users::wants_own(pod, &handler, &ctx.features.read());
        if own.map_err(|why| self.no_sandbox(&why))? {
            let (blocks, uid) = (ctx.users.clone(), pod.uid.clone());
            let taken = blocking(move || blocks.take(&uid)).await.and_then(|done| done);
            taken.map_err(|error| self.no_sandbox(&format!("create user namespace: {error}")))?;
        }
        Ok(handler)
    }

    fn no_sandbox(&self, why: &str) -> Retry {
        let text = format!("Failed to create pod sandbox: {why}");
        self.event(None, Type::Warning, "FailedCreatePodSandBox", text);
        self.mail.activity(Some(Wait { code: "Sandbox", on: "the pod's sandbox".into(), text: why.to_owned() }));
        Retry::BackOff
    }

    async fn sandbox_config(&self, attempt: u32, is_new: bool) -> Result<v1::PodSandboxConfig, Retry> {
        let (ctx, pod) = (&self.ctx, &self.pod);
        let (path, logs) = (ctx.settings.resolv_conf.clone(), ctx.log_directory(pod));
        let prepared = blocking(move || {
            if is_new {
                std::fs::create_dir_all(logs)?;
            }
            std::io::Result::Ok(std::fs::read_to_string(path).unwrap_or_default())
        });
        let text = prepared.await.and_then(|done| done);
        let text = text.map_err(|error| self.no_sandbox(&format!("cannot make the log directory: {error}")))?;
        let dns = dns::render(pod, &ctx.settings.cluster_dns, &dns::Resolver::parse(&text));
        if dns.missing_cluster_dns && is_new {
            self.event(None, Type::Warning, "MissingClusterDNS", dns::missing_cluster_dns(pod));
        }
        let made = sandbox::render(&sandbox::Inputs {
            pod,
            attempt,
            dns: dns.config,
            log_directory: &ctx.log_directory(pod).to_string_lossy(),
            cgroup_parent: &ctx.cgroups.as_ref().map(|c| c.parent(pod)).unwrap_or_default(),
            cluster_domain: &ctx.settings.cluster_dns.domain,
            users: ctx.users.of(&pod.uid),
        });
        made.map_err(|why| self.no_sandbox(&why))
    }
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_earlier_retry_wins() {
        let at = |s| Err(Retry::At(Instant(Duration::from_secs(s))));
        assert_eq!(earlier(Ok(()), at(3)), at(3));
        assert_eq!(earlier(at(5), at(3)), at(3));
        assert_eq!(earlier(at(5), Err(Retry::BackOff)), Err(Retry::BackOff));
        assert_eq!(earlier(Ok(()), Ok(())), Ok(()));
    }
}
