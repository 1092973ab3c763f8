//! What pods use of file systems: their volumes, logs and writable layers.
//!
//! Counting files costs what there are files, so it is done at most once a minute for a pod, only when
//! somebody asks, and beside whoever asks: an answer has what was counted last.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1 as core;
use jiff::Timestamp;
use parking_lot::Mutex;
use stdx::clock::Instant;
use stdx::{ClockExt, SharedClock};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::context::{Context, blocking};
use crate::ephemeral::Look;
use crate::node::facts::{self, Disk};
use crate::pod::BoundPod;
use crate::runtime::Layer;
use crate::volume::held::Holds;
use crate::volume::source;

/// What was counted is good for so long.
const AGE: Duration = Duration::from_secs(60);
/// A look at one pod that takes longer is broken off.
const LOOK_LIMIT: Duration = Duration::from_secs(60);
/// So long an answer waits for what was never counted before.
const PATIENCE: Duration = Duration::from_millis(500);

/// Bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub bytes: u64,
    pub inodes: u64,
}

impl Used {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), inodes: self.inodes.saturating_add(other.inodes) }
    }
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    /// The claim it comes from.
    pub claim: Option<String>,
    pub used: Used,
    pub of: Disk,
    /// It counts as the pod's own use of the node's disk.
    pub ephemeral: bool,
}

/// One pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDisk {
    pub at: Timestamp,
    pub volumes: Vec<Volume>,
    /// By container.
    pub logs: BTreeMap<String, Used>,
    /// By the id of the container.
    pub layers: BTreeMap<String, Layer>,
    /// The runtime has told the layers, or cannot.
    pub whole: bool,
}

impl PodDisk {
    /// What counts against the pod's limits.
    pub fn ephemeral(&self) -> Used {
        let volumes = self.volumes.iter().filter(|v| v.ephemeral).map(|v| v.used);
        let layers = self.layers.values().map(|l| Used { bytes: l.bytes, inodes: l.inodes });
        volumes.chain(self.logs.values().copied()).chain(layers).fold(Used::default(), Used::plus)
    }
}

/// What was counted last and when, by uid.
type Known = HashMap<String, (Instant, Arc<PodDisk>)>;

/// What was counted last.
#[derive(Clone, Default)]
pub struct Disks {
    known: Arc<Mutex<Known>>,
    looks: Holds,
}

impl Disks {
    /// What is known of these pods; what is too old is counted anew meanwhile. Others are forgotten.
    pub async fn of(&self, ctx: &Arc<Context>, pods: &[Arc<BoundPod>]) -> HashMap<String, Arc<PodDisk>> {
        let now = ctx.clock.now();
        let (mut due, mut unknown) = (Vec::new(), false);
        {
            let mut known = self.known.lock();
            known.retain(|uid, _| pods.iter().any(|p| p.uid == *uid));
            for pod in pods {
                match known.get(&pod.uid) {
                    Some((at, _)) if now.since(*at) < AGE => {}
                    found => {
                        unknown |= found.is_none();
                        due.push(pod.clone());
                    }
                }
            }
        }
        if !due.is_empty() {
            let (this, of) = (self.clone(), ctx.clone());
            let (counted, heard) = oneshot::channel();
            // It goes on when its time is over here.
            tokio::spawn(async move { this.count(&of, due, counted).await });
            if unknown {
                // Who asks gets what is known by then.
                let _ = ctx.clock.timeout(PATIENCE, heard).await;
            }
        }
        self.known.lock().iter().map(|(uid, (_, disk))| (uid.clone(), disk.clone())).collect()
    }

    /// Files first, of which `counted` hears; the runtime takes longer to tell what containers wrote, since it asks
    /// after each of them.
    async fn count(&self, ctx: &Arc<Context>, pods: Vec<Arc<BoundPod>>, counted: oneshot::Sender<()>) {
        let Some(_alone) = self.looks.hold_alone("") else { return };
        self.count_files(ctx, pods).await;
        drop(counted);
        let layers = ctx.runtime.layers().await;
        if let Err(error) = &layers {
            tracing::debug!(%error, "the runtime does not tell what containers wrote");
        }
        complete(&mut self.known.lock(), layers.ok().as_ref());
    }

    async fn count_files(&self, ctx: &Arc<Context>, pods: Vec<Arc<BoundPod>>) {
        for pod in pods {
            let Some(held) = self.looks.hold_alone(&pod.uid) else { continue };
            let claims = claims(ctx, &pod).await;
            let (layout, logs, of, clock) =
                (ctx.layout.clone(), ctx.log_directory(&pod), pod.clone(), ctx.clock.clone());
            let stop = CancellationToken::new();
            let (stopped, _stop) = (stop.clone(), stop.drop_guard());
            // What containers wrote is as it was until the runtime has told it anew.
            let before = self.known.lock().get(&pod.uid).map(|(_, disk)| (disk.layers.clone(), disk.whole));
            let (layers, whole) = before.unwrap_or_default();
            let work = move || {
                let _held = held;
                let mut found = PodDisk { at: clock.wall(), layers, whole, ..PodDisk::default() };
                for volume in of.spec().volumes.iter().flatten() {
                    found.volumes.extend(look_at(&layout, &of, volume, &claims, &stopped));
                }
                let mut look = Look::new(|| stopped.is_cancelled());
                for container in of.all_containers() {
                    if let Ok(used) = used(&mut look, &logs.join(&container.name)) {
                        found.logs.insert(container.name.clone(), used);
                    }
                }
                found
            };
            match ctx.clock.timeout(LOOK_LIMIT, blocking(work)).await {
                Ok(Ok(found)) => {
                    let found = (ctx.clock.now(), Arc::new(found));
                    self.known.lock().insert(pod.uid.clone(), found);
                }
                Ok(Err(error)) => tracing::warn!(pod = %pod.full_name(), %error, "what a pod uses is not known"),
                Err(_) => tracing::warn!(pod = %pod.full_name(), "what a pod uses takes too long to find out"),
            }
        }
    }
}

/// Adds what the runtime told of layers; where it told nothing, what was known stays.
fn complete(known: &mut Known, layers: Option<&BTreeMap<String, Layer>>) {
    for (uid, (_, disk)) in known {
        let disk = Arc::make_mut(disk);
        disk.whole = true;
        if let Some(layers) = layers {
            let own = layers.iter().filter(|(_, layer)| layer.pod == *uid);
            disk.layers = own.map(|(id, layer)| (id.clone(), layer.clone())).collect();
        }
    }
}

fn used<S: Fn() -> bool>(look: &mut Look<S>, path: &Path) -> std::io::Result<Used> {
    let before = look.inodes();
    let bytes = look.used(path)?;
    Ok(Used { bytes, inodes: look.inodes() - before })
}

/// The volumes that the pod's claims are bound to, by the name of the claim.
async fn claims(ctx: &Context, pod: &BoundPod) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for name in pod.spec().volumes.iter().flatten().filter_map(claim_of(pod)) {
        if let Ok(Some(claim)) = ctx.storage.claim(&pod.namespace, &name).await {
            if let Some(volume) = claim.spec.and_then(|s| s.volume_name) {
                out.insert(name, volume);
            }
        }
    }
    out
}

/// The name of the claim behind a volume.
fn claim_of(pod: &BoundPod) -> impl Fn(&core::Volume) -> Option<String> + '_ {
    |volume| {
        let own = || volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name, volume.name));
        volume.persistent_volume_claim.as_ref().map(|c| c.claim_name.clone()).or_else(own)
    }
}

/// What is used of a volume; `None` for one whose use is not the pod's: a folder of the host.
fn look_at(
    layout: &crate::volume::setup::Layout,
    pod: &BoundPod,
    volume: &core::Volume,
    claims: &BTreeMap<String, String>,
    stopped: &CancellationToken,
) -> Option<Volume> {
    let claim = claim_of(pod)(volume);
    let path = match &claim {
        Some(name) => folder_of(&layout.pod(&pod.uid), claims.get(name)?)?,
        None if source::kind(volume) == "host-path" => return None,
        None => layout.volume(&pod.uid, volume),
    };
    let of = facts::disk(&path).ok()?;
    let is_mounted = layout.mounts.is_mounted(&path);
    let used = if is_mounted {
        // A file system of its own says itself what is used of it.
        Used { bytes: of.capacity.saturating_sub(of.available), inodes: of.inodes.saturating_sub(of.inodes_free) }
    } else {
        used(&mut Look::new(|| stopped.is_cancelled()), &path).ok()?
    };
    let on_disk = !is_mounted && claim.is_none();
    Some(Volume { name: volume.name.clone(), claim, used, of, ephemeral: on_disk && volume.empty_dir.is_some() })
}

/// The folder of a bound volume, whatever its kind.
fn folder_of(pod: &Path, volume: &str) -> Option<PathBuf> {
    let kinds = std::fs::read_dir(pod.join("volumes")).ok()?;
    kinds.flatten().map(|kind| kind.path().join(volume)).find(|path| path.is_dir())
}

/// Where the images are, what is free there, and what they use.
pub async fn images(ctx: &Context, clock: &SharedClock) -> Option<(Used, Disk)> {
    let asked = async {
        let (folder, used) = ctx.runtime.image_usage().await.ok()??;
        let of = blocking(move || facts::disk(&folder)).await.ok()?.ok()?;
        Some((used, of))
    };
    clock.timeout(PATIENCE, asked).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_tells_nothing_takes_nothing_away() {
        let layer = |pod: &str, bytes| Layer { pod: pod.to_owned(), bytes, inodes: 1 };
        let mut known = Known::new();
        known.insert("a".to_owned(), (Instant::default(), Arc::default()));
        known.insert("b".to_owned(), (Instant::default(), Arc::default()));
        let told = BTreeMap::from([("c1".to_owned(), layer("a", 5)), ("c2".to_owned(), layer("a", 7))]);
        complete(&mut known, Some(&told));
        let seen = |known: &Known, uid: &str| (known[uid].1.ephemeral().bytes, known[uid].1.whole);
        assert_eq!((seen(&known, "a"), seen(&known, "b")), ((12, true), (0, true)));
        // It fails: what is new goes on without layers, and what was known stays.
        known.insert("n".to_owned(), (Instant::default(), Arc::default()));
        complete(&mut known, None);
        assert_eq!((seen(&known, "a"), seen(&known, "n")), ((12, true), (0, true)));
        complete(&mut known, Some(&BTreeMap::new()));
        assert_eq!(seen(&known, "a"), (0, true));
    }
}
