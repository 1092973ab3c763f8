//! The pod's volumes: what they refer to is read, then each is made.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::affinity::NodeFacts;
use api::types::certificates::v1::ClusterTrustBundle;
use api::types::core::v1::Volume;
use client::events::Type;
use stdx::ClockExt;

use super::{Retry, Start};
use crate::container::env::Objects;
use crate::context::blocking;
use crate::program::{Call, Left};
use crate::report::Wait;
use crate::volume::claim::{self, Problem};
use crate::volume::empty_dir;
use crate::volume::files::{self, Needs};
use crate::volume::setup::Owner;
use crate::volume::source::{self, Source, Wanted};

/// What the mount program may take: a server that is starting answers within this.
const MOUNT_LIMIT: Duration = Duration::from_secs(120);
/// Bundles of authorities that are not known by then are not waited for.
const BUNDLES_LIMIT: Duration = Duration::from_secs(5);

/// The pod's volumes with what they were made from.
pub(super) struct Volumes {
    pub objects: Objects,
    pub made: BTreeMap<String, Made>,
}

/// A volume that is there.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub host: PathBuf,
    /// No container may write to it.
    pub read_only: bool,
}

/// Why a volume is not there.
struct Failure {
    /// The event's text.
    event: String,
    wait: Wait,
}

impl Failure {
    /// A step of making a volume that is called `shown`.
    fn mount(shown: &str, step: &str, why: String) -> Self {
        let event = format!("{step} for volume \"{shown}\" : {why}");
        Self { event, wait: Wait { code: "Mount", on: format!("volume {shown}"), text: why } }
    }

    fn set_up(shown: &str, why: String) -> Self {
        Self::mount(shown, "MountVolume.SetUp failed", why)
    }

    /// A claim that the volume stands for.
    fn claim(volume: &str, claim: &str, why: String) -> Self {
        let event = format!(
            "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to \
             process volumes=[{volume}]: {why}"
        );
        Self { event, wait: Wait { code: "Claim", on: format!("persistentvolumeclaim {claim}"), text: why } }
    }
}

/// What volumes of files are made from beside the pod.
struct Contents<'a> {
    objects: &'a Objects,
    bundles: Option<Vec<Arc<ClusterTrustBundle>>>,
}

impl Start {
    /// Makes the volumes what the objects say; gives the objects.
    pub(super) async fn volumes(&self) -> Result<Volumes, Retry> {
        let (ctx, pod) = (&self.ctx, &self.pod);
        let needs = files::needs(pod);
        let bundles = async {
            if !needs.bundles {
                return Some(Vec::new());
            }
            ctx.clock.timeout(BUNDLES_LIMIT, ctx.storage.bundles(&pod.uid)).await.ok()
        };
        let asked = async { tokio::join!(ctx.cluster.objects(pod, &needs), bundles, self.tokens(&needs)) };
        let (objects, bundles, ()) = self.unless_halted(asked).await?;
        let objects = match objects {
            Ok(objects) => objects,
            Err(error) => {
                let text = format!("cannot read the pod's ConfigMaps and Secrets: {error}");
                self.mail.activity(Some(Wait { code: "Objects", on: "the API server".into(), text }));
                return Err(Retry::BackOff);
            }
        };
        // Until told otherwise; a change that comes in while we work makes it stale again.
        self.memory.lock().volumes_fresh = true;
        let contents = Contents { objects: &objects, bundles };
        let made = self.unless_halted(self.set_up(&contents)).await?;
        match made {
            Ok(made) => Ok(Volumes { objects, made }),
            Err(failure) => {
                self.event(None, Type::Warning, "FailedMount", failure.event);
                self.mail.activity(Some(failure.wait));
                self.memory.lock().volumes_fresh = false;
                Err(Retry::BackOff)
            }
        }
    }

    /// Makes the volumes that containers use, those of this node in one piece of blocking work. Each is
    /// tried, whatever became of the others; the error is the first that cannot be made.
    async fn set_up(&self, contents: &Contents<'_>) -> Result<BTreeMap<String, Made>, Failure> {
        let (ctx, pod) = (&self.ctx, &self.pod);
        let used = |volume: &&Volume| {
            pod.all_containers().any(|c| {
                let mounts = c.volume_mounts.iter().flatten().map(|m| &m.name);
                mounts.chain(c.volume_devices.iter().flatten().map(|d| &d.name)).any(|n| *n == volume.name)
            })
        };
        let (mut all, mut failed) = (Vec::new(), None);
        for volume in pod.spec().volumes.iter().flatten().filter(used) {
            match self.wanted(volume, contents).await {
                Ok(wanted) => all.push(wanted),
                Err(failure) => drop(failed.get_or_insert(failure)),
            }
        }
        let (layout, uid, version, owner) = (ctx.layout.clone(), pod.uid.clone(), self.version(), self.owner());
        let remote = |w: &&Wanted| matches!(w.source, Source::Nfs { .. } | Source::Local { .. } | Source::Host { .. });
        if let Some(slow) = all.iter().find(remote) {
            // A look at a disk or a server may take for ever.
            let text = "it is being looked at".to_owned();
            self.mail.activity(Some(Wait { code: "Mount", on: format!("volume {}", slow.shown), text }));
        }
        let held = layout.work.hold(&uid);
        let (clock, metrics) = (ctx.clock.clone(), ctx.metrics.clone());
        let work = move || {
            // To the end, even if nobody waits for that any more.
            let _held = held;
            let done = |w: &Wanted| {
                let began = clock.now();
                let made = layout.set_up(&uid, w, &version, owner);
                metrics.volume_set_up(w.source.kind(), clock.now().since(began), made.is_ok());
                (layout.place(&uid, w), made)
            };
            all.into_iter().map(|w| (done(&w), w)).collect::<Vec<_>>()
        };
        let done = blocking(work).await.map_err(|e| Failure::set_up("of the pod", e.to_string()))?;
        let mut made = BTreeMap::new();
        for ((host, result), wanted) in done {
            let result = match (result, &wanted.source) {
                (Ok(()), Source::Nfs { server, path, options }) => {
                    self.mount_export(&wanted.shown, &export(server, path), options, &host).await
                }
                (result, _) => result,
            };
            match result {
                Ok(()) => {
                    made.insert(wanted.volume, Made { host, read_only: wanted.read_only });
                }
                Err(why) => drop(failed.get_or_insert(Failure::set_up(&wanted.shown, why))),
            }
        }
        self.mail.activity(None);
        failed.map_or(Ok(made), Err)
    }

    fn owner(&self) -> Owner {
        let security = self.pod.spec().security_context.as_ref();
        let policy = security.and_then(|s| s.fs_group_change_policy.as_deref());
        Owner {
            group: security.and_then(|s| s.fs_group).and_then(|g| u32::try_from(g).ok()),
            only_on_mismatch: policy == Some("OnRootMismatch"),
        }
    }

    /// What a volume is to be, or why it cannot be.
    async fn wanted(&self, volume: &Volume, contents: &Contents<'_>) -> Result<Wanted, Failure> {
        let name = &volume.name;
        if let Some(used) = claim::of(&self.pod, volume) {
            return self.claimed(name, &used).await;
        }
        let failed = |why| Failure::set_up(name, why);
        let of = |source, read_only| Wanted { volume: name.clone(), shown: name.clone(), source, read_only };
        if files::is_files(volume) {
            let payload = self.payload(volume, contents).map_err(failed)?;
            let (kind, private) = (source::kind(volume), files::is_private(volume));
            // What is made from objects is ours to change, not the container's.
            return Ok(of(Source::Files { kind, payload, private }, true));
        }
        if let Some(empty) = &volume.empty_dir {
            let allocatable = self.ctx.allocatable.read().get("memory").and_then(|q| u64::try_from(q.value()).ok());
            let medium = empty_dir::medium(&self.pod, empty, allocatable).map_err(failed)?;
            return Ok(of(Source::Empty { medium, mode: empty_dir::mode(empty) }, false));
        }
        if let Some(host) = &volume.host_path {
            let kind = host.type_.clone().unwrap_or_default();
            return Ok(of(Source::Host { path: PathBuf::from(&host.path), kind }, false));
        }
        if let Some(nfs) = &volume.nfs {
            let read_only = nfs.read_only == Some(true);
            return Ok(of(source::nfs(nfs, &[], read_only), read_only));
        }
        if let Some(image) = &volume.image {
            return Ok(of(Source::Image(image.clone()), true));
        }
        Err(failed(format!("volumes of kind {} are not supported by this kubelet", source::kind(volume))))
    }

    /// The volume that a claim is bound to.
    async fn claimed(&self, volume: &str, used: &claim::Use) -> Result<Wanted, Failure> {
        let (ctx, pod) = (&self.ctx, &self.pod);
        let place = format!("{}/{}", pod.namespace, used.claim);
        let unread = |what: &str, error: client::Error| {
            let why = format!("error processing PVC {place}: failed to fetch {what} from API server: {error}");
            Failure::claim(volume, &used.claim, why)
        };
        let failed = |problem| match problem {
            Problem::Claim(why) => Failure::claim(volume, &used.claim, why),
            Problem::Volume { name, step, why } => Failure::mount(&name, step, why),
        };
        let claim = ctx.storage.claim(&pod.namespace, &used.claim).await.map_err(|e| unread("PVC", e))?;
        let name = claim::volume_name(pod, used, claim.as_ref()).map_err(failed)?;
        let found = ctx.storage.volume(&name).await.map_err(|e| unread(&format!("PV {name}"), e))?;
        let (node, labels) = ctx.node.read().clone();
        let look = claim::Look { pod, used, volume, node: NodeFacts { name: &node, labels: &labels } };
        claim::wanted(&look, &claim.unwrap_or_default(), &name, found.as_ref()).map_err(failed)
    }

    /// Mounts what a server exports, unless that is done.
    async fn mount_export(
        &self,
        shown: &str,
        export: &str,
        options: &[String],
        target: &std::path::Path,
    ) -> Result<(), String> {
        let (layout, at) = (self.ctx.layout.clone(), target.to_owned());
        if blocking(move || layout.mounts.is_mounted(&at)).await.unwrap_or(false) {
            return Ok(());
        }
        let text = format!("{export} is being mounted");
        self.mail.activity(Some(Wait { code: "Mount", on: format!("volume {shown}"), text }));
        let mut args = vec!["-t".to_owned(), "nfs".to_owned()];
        if !options.is_empty() {
            args.extend(["-o".to_owned(), options.join(",")]);
        }
        args.extend(["--".to_owned(), export.to_owned(), target.to_string_lossy().into_owned()]);
        let call = Call { program: "mount".into(), args: args.clone(), ..Call::default() };
        let ended = match self.ctx.programs.run(call, MOUNT_LIMIT).await {
            Ok(Left { code: Some(0), .. }) => return Ok(()),
            Ok(Left { code: Some(code), errors, .. }) => (format!("exit status {code}"), errors),
            Ok(Left { errors, .. }) => ("signal: killed".to_owned(), errors),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                ("exec: \"mount\": executable file not found in $PATH".to_owned(), String::new())
            }
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                (format!("no answer within {} s", MOUNT_LIMIT.as_secs()), String::new())
            }
            Err(error) => (error.to_string(), String::new()),
        };
        let (why, output) = (ended.0, ended.1);
        let args = args.join(" ");
        Err(format!("mount failed: {why}\nMounting command: mount\nMounting arguments: {args}\nOutput: {output}\n"))
    }

    fn payload(&self, volume: &Volume, contents: &Contents<'_>) -> Result<crate::volume::atomic::Payload, String> {
        if let Some(why) = files::unsupported(volume) {
            return Err(why);
        }
        let tokens = self.memory.lock().tokens.iter().map(|(k, (t, _))| (k.clone(), t.clone())).collect();
        let place = self.ctx.place(&self.pod, &self.seen);
        let (objects, bundles) = (contents.objects, contents.bundles.as_deref());
        let inputs = files::Inputs { pod: &self.pod, objects, tokens: &tokens, bundles, place: &place };
        files::render(volume, &inputs)
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
}

/// A server's path as the mount program takes it.
fn export(server: &str, path: &str) -> String {
    if server.contains(':') && !server.starts_with('[') {
        format!("[{server}]:{path}")
    } else {
        format!("{server}:{path}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_of_servers() {
        assert_eq!(export("nfs.example", "/x"), "nfs.example:/x");
        assert_eq!(export("fd00::1", "/x"), "[fd00::1]:/x");
    }
}
