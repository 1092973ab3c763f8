//! What the kubelet needs of the machine before anything else: a directory it can write to. A disk that
//! takes nothing is told and tried again: pods that run go on whatever the kubelet finds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::types::core::v1::Node;
use client::events::{Recorder, Source, Type};
use client::{Client, Patch};
use serde_json::json;
use stdx::backoff::Policy;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};

use crate::context::blocking;
use crate::node::facts::{ImagePlace, Machine, Places};
use crate::node::{self, Identity};
use crate::options::Options;

/// How often it is tried.
const RETRY: Policy = Policy { initial: Duration::from_millis(500), max: Duration::from_secs(10) };
/// Upstream's reason for a kubelet that cannot set itself up.
const REASON: &str = "KubeletSetupFailed";

/// What was found and made.
pub struct Prepared {
    /// The kubelet's directory as the kernel tells it.
    pub root: PathBuf,
    pub identity: Identity,
    pub places: Places,
    pub machine: Machine,
}

/// Makes and finds it.
fn prepare(root: &Path, logs: &Path, name: &str, rng: &Rng) -> Result<Prepared, String> {
    let said = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let root = settle(root).map_err(said("the kubelet's directory"))?;
    let identity = Identity::open(&root, name, rng).map_err(said("the node's identity"))?;
    std::fs::create_dir_all(logs).map_err(said("the directory of logs"))?;
    let places = Places { root: "/".into(), data: root.clone(), images: ImagePlace::Unknown };
    let machine = places.machine().map_err(said("the machine"))?;
    Ok(Prepared { root, identity, places, machine })
}

/// The same, tried until it succeeds; meanwhile events say why not, and the Node, where it is known to be
/// this machine, that it is not ready.
pub async fn until_prepared(client: Option<&Client>, clock: &SharedClock, rng: &Rng, options: &Options) -> Prepared {
    let stage = Stage::new();
    let (mut failures, mut told) = (0, None);
    let mut recorder = None;
    loop {
        let (root, logs) = (options.root_dir.clone(), options.log_dir.clone());
        let (name, ids) = (options.node_name.clone(), rng.clone());
        let result = blocking(move || prepare(&root, &logs, &name, &ids)).await;
        let why = match result {
            Ok(Ok(prepared)) => {
                stage.finish(clock, Duration::from_secs(1)).await;
                return prepared;
            }
            Ok(Err(why)) => why,
            Err(error) => error.to_string(),
        };
        failures += 1;
        if told.as_ref() != Some(&why) {
            tracing::error!(why, "the kubelet cannot begin; trying again");
            if let Some(client) = client {
                let source = Source::Core { component: "kubelet".into(), host: options.node_name.clone() };
                let start = || Recorder::start(client.clone(), source, clock.clone(), rng.clone(), &stage);
                let about = node::reference(&options.node_name);
                recorder.get_or_insert_with(start).event(&about, Type::Warning, REASON, why.clone());
            }
        }
        if let Some(client) = client {
            if let Err(error) = tell_node(client, &options.node_name, &why, clock).await {
                tracing::debug!(%error, "the Node does not say that its kubelet cannot begin");
            }
        }
        told = Some(why);
        clock.sleep(RETRY.delay(failures)).await;
    }
}

/// Makes the Node say that it is not ready. One that another machine registered under this name is left
/// alone: which one this is stands in the directory that cannot be read, but not every machine has
/// booted as this one has.
async fn tell_node(client: &Client, name: &str, why: &str, clock: &SharedClock) -> Result<(), client::Error> {
    let api = client.api::<Node>();
    let Some(status) = api.find(name).await?.and_then(|node| node.status) else { return Ok(()) };
    let boot = blocking(|| std::fs::read_to_string("/proc/sys/kernel/random/boot_id")).await.and_then(|read| read);
    let boot = boot.unwrap_or_default();
    if boot.trim().is_empty() || status.node_info.as_ref().is_none_or(|info| info.boot_id != boot.trim()) {
        return Ok(());
    }
    let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
    let message = format!("[{why}]");
    if ready.is_some_and(|c| c.status == "False" && c.message.as_deref() == Some(&message)) {
        return Ok(());
    }
    let now = clock.wall().to_string();
    let mut condition = json!({"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": message,
        "lastHeartbeatTime": now});
    if ready.is_none_or(|c| c.status != "False") {
        condition["lastTransitionTime"] = json!(now);
    }
    api.patch_status(name, &Patch::Strategic(json!({"status": {"conditions": [condition]}}))).await.map(drop)
}

/// Makes the kubelet's directory; gives its path as the kernel tells it in its table of mounts, without
/// links, wherever this process works from. What pods have is for nobody else to look at.
pub fn settle(root: &Path) -> std::io::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(root)?;
    let root = std::fs::canonicalize(root)?;
    let pods = root.join("pods");
    std::fs::create_dir_all(&pods)?;
    if std::fs::symlink_metadata(&pods)?.is_symlink() {
        return Err(std::io::Error::other(format!("{} must be a directory, not a link", pods.display())));
    }
    // Also the proof that something can be written here.
    std::fs::set_permissions(&pods, std::fs::Permissions::from_mode(0o750))?;
    Ok(root)
}
