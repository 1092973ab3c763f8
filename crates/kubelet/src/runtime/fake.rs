//! A container runtime in memory: does what it is told at once, and breaks when a test says so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ::cri::v1;
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::{
    Container, ContainerState, Error, Happened, Health, Hint, Image, Network, Output, PodState, Result, Runtime,
    Sandbox, Summary,
};
use super::{labels, labels as l};

/// A container as a test's table describes it.
pub fn container(
    spec: &api::types::core::v1::Container,
    sandbox_id: &str,
    state: ContainerState,
    exit_code: i32,
) -> Container {
    let ended = state == ContainerState::Exited;
    Container {
        id: format!("{}-{sandbox_id}", spec.name),
        sandbox_id: sandbox_id.into(),
        name: spec.name.clone(),
        attempt: 0,
        hash: labels::hash(spec),
        state,
        created_at: Timestamp::UNIX_EPOCH,
        started_at: (state != ContainerState::Created).then_some(Timestamp::UNIX_EPOCH),
        finished_at: ended.then_some(Timestamp::UNIX_EPOCH),
        exit_code,
        reason: match (ended, exit_code) {
            (false, _) => String::new(),
            (true, 0) => "Completed".into(),
            (true, _) => "Error".into(),
        },
        message: String::new(),
        image: spec.image.clone().unwrap_or_default(),
        image_ref: "sha256:1".into(),
        log_path: String::new(),
        resources: None,
        user: None,
        recursive_read_only: Vec::new(),
        stop_signal: None,
        changes: 0,
    }
}

/// Whether a call, as text, is meant.
type IsMeant = Box<dyn Fn(&str) -> bool + Send>;

#[derive(Default)]
struct World {
    next: u64,
    pods: BTreeMap<String, (Summary, PodState)>,
    images: BTreeMap<String, Image>,
    missing: BTreeSet<String>,
    failing: BTreeMap<&'static str, Error>,
    /// The next call whose text is such panics.
    panicking: Option<IsMeant>,
    /// Calls that are held back until the door opens.
    held: BTreeMap<&'static str, watch::Receiver<bool>>,
    /// Calls that wait at a door now.
    waiting: Vec<&'static str>,
    hints: Vec<mpsc::Sender<Hint>>,
    log: Vec<String>,
    /// Signals end nothing.
    deaf: bool,
    /// What each container uses of memory.
    memory: u64,
    /// Whose processes a container sees beside its own, by its name.
    targets: BTreeMap<String, String>,
    /// Where streams are served.
    streams: String,
    /// The network that sandboxes are shown in.
    network: Option<Network>,
}

/// The runtime. Clones are the same one.
#[derive(Clone, Default)]
pub struct Fake {
    world: Arc<Mutex<World>>,
}

impl Fake {
    /// Makes every call of `name` fail until [`Fake::mend`].
    pub fn fail(&self, name: &'static str, error: Error) {
        self.world.lock().failing.insert(name, error);
    }

    /// Undoes [`Fake::fail`].
    pub fn mend(&self, name: &'static str) {
        self.world.lock().failing.remove(name);
    }

    /// Makes the next call whose text is such panic, as a mistake in the caller would.
    pub fn panic_at(&self, is_meant: impl Fn(&str) -> bool + Send + 'static) {
        self.world.lock().panicking = Some(Box::new(is_meant));
    }

    /// Says that something happened to the pod.
    pub fn poke(&self, uid: &str) {
        let mut world = self.world.lock();
        let sandbox = world.pods.get(uid).and_then(|(_, pod)| pod.sandboxes.first().map(|s| s.id.clone()));
        world.hint(&sandbox.unwrap_or_default());
    }

    /// Makes calls of `name` (a sandbox, a start, an end or a pull) wait before they do their work, until
    /// something is sent: a slow runtime. Dropping the door opens it.
    pub fn hold(&self, name: &'static str) -> watch::Sender<bool> {
        let (door, held) = watch::channel(false);
        self.world.lock().held.insert(name, held);
        door
    }

    /// True while a call of `name` waits.
    pub fn is_held(&self, name: &str) -> bool {
        self.world.lock().waiting.contains(&name)
    }

    async fn held(&self, name: &'static str) {
        let Some(mut door) = self.world.lock().held.get(name).cloned() else { return };
        self.world.lock().waiting.push(name);
        // An error says that the door is gone, which opens it.
        let _ = door.wait_for(|open| *open).await;
        let mut world = self.world.lock();
        if let Some(at) = world.waiting.iter().position(|w| *w == name) {
            world.waiting.swap_remove(at);
        }
    }

    /// An image no registry has.
    pub fn no_image(&self, name: &str) {
        self.world.lock().missing.insert(name.into());
    }

    /// A registry has it after all.
    pub fn offer_image(&self, name: &str) {
        self.world.lock().missing.remove(name);
    }

    /// The newest container of that name ends by itself.
    pub fn exit(&self, uid: &str, name: &str, code: i32, at: Timestamp) -> bool {
        let mut world = self.world.lock();
        let Some((_, pod)) = world.pods.get_mut(uid) else { return false };
        let Some(c) = pod.containers.iter_mut().find(|c| c.name == name && c.state == ContainerState::Running) else {
            return false;
        };
        finish(c, code, at);
        let id = c.id.clone();
        world.hint(&id);
        true
    }

    /// The newest sandbox dies with all that runs in it.
    pub fn kill_sandbox(&self, uid: &str, at: Timestamp) {
        let mut world = self.world.lock();
        let Some((_, pod)) = world.pods.get_mut(uid) else { return };
        let Some(sandbox) = pod.sandboxes.first_mut() else { return };
        sandbox.ready = false;
        let id = sandbox.id.clone();
        for c in pod.containers.iter_mut().filter(|c| c.sandbox_id == id && c.may_run()) {
            finish(c, 137, at);
        }
        world.hint(&id);
    }

    /// What the pod looks like now.
    pub fn seen(&self, uid: &str) -> PodState {
        self.world.lock().pods.get(uid).map(|(_, p)| p.clone()).unwrap_or_default()
    }

    /// The container whose processes `name` was made to see.
    pub fn target(&self, name: &str) -> Option<String> {
        self.world.lock().targets.get(name).cloned()
    }

    /// From now on signals end no container.
    pub fn be_deaf(&self) {
        self.world.lock().deaf = true;
    }

    /// Every container uses so much memory.
    pub fn use_memory(&self, bytes: u64) {
        self.world.lock().memory = bytes;
    }

    /// Streams are served at this URL.
    pub fn serve_streams(&self, url: &str) {
        self.world.lock().streams = url.to_owned();
    }

    /// Shows sandboxes in this network.
    pub fn show_network(&self, network: Network) {
        self.world.lock().network = Some(network);
    }

    /// Calls so far, as text, and forgets them.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.world.lock().log)
    }

    fn call(&self, name: &'static str, detail: &str) -> Result<parking_lot::MutexGuard<'_, World>> {
        let mut world = self.world.lock();
        let text = format!("{name} {detail}");
        let is_time = world.panicking.as_ref().is_some_and(|is_meant| is_meant(&text));
        world.log.push(text);
        if is_time {
            world.panicking = None;
            drop(world);
            panic!("the test wants it");
        }
        match world.failing.get(name) {
            Some(error) => Err(error.clone()),
            None => Ok(world),
        }
    }
}

fn finish(c: &mut Container, code: i32, at: Timestamp) {
    c.state = ContainerState::Exited;
    c.exit_code = code;
    c.finished_at = Some(at);
    c.reason = if code == 0 { "Completed".into() } else { "Error".into() };
}

impl World {
    fn hint(&mut self, id: &str) {
        self.happened(id, Happened::Other);
    }

    fn happened(&mut self, id: &str, what: Happened) {
        self.hints.retain(|tx| tx.try_send(Hint { id: id.into(), what }).is_ok());
    }

    fn id(&mut self, prefix: &str) -> String {
        self.next += 1;
        format!("{prefix}{}", self.next)
    }

    /// A time that grows with every thing created, so that newest-first is meaningful.
    fn stamp(&self) -> Timestamp {
        Timestamp::from_second(i64::try_from(self.next).unwrap_or(0)).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    fn find(&mut self, id: &str) -> Result<&mut Container> {
        let all = self.pods.values_mut().flat_map(|(_, p)| p.containers.iter_mut());
        all.into_iter().find(|c| c.id == id).ok_or_else(|| Error::NotFound(format!("container {id:?}: not found")))
    }

    fn sandbox_of(&mut self, id: &str) -> Option<&mut PodState> {
        self.pods.values_mut().map(|(_, p)| p).find(|p| p.sandboxes.iter().any(|s| s.id == id))
    }
}

#[async_trait]
impl Runtime for Fake {
    async fn health(&self) -> Result<Health> {
        self.call("health", "").map(drop)?;
        Ok(Health { name: "fake".into(), version: "1".into(), ..Health::default() })
    }

    async fn list(&self) -> Result<BTreeMap<String, Summary>> {
        let world = self.call("list", "")?;
        Ok(world
            .pods
            .iter()
            .filter(|(_, (_, p))| !p.is_empty())
            .map(|(uid, (known, p))| {
                let mut summary = known.clone();
                summary.sandboxes = p.sandboxes.iter().map(|s| (s.id.clone(), s.ready)).collect();
                summary.containers = p.containers.iter().map(|c| (c.id.clone(), c.state as i32)).collect();
                (uid.clone(), summary)
            })
            .collect())
    }

    async fn pod(&self, uid: &str, known: &PodState) -> Result<PodState> {
        let world = self.call("pod", uid)?;
        let mut found = world.pods.get(uid).map(|(_, p)| p.clone()).unwrap_or_default();
        // As the trait allows: what is listed in the state in which it is known is what is known.
        let is_final = |c: &Container| matches!(c.state, ContainerState::Running | ContainerState::Exited);
        for now in &mut found.containers {
            let same = known.by_id(&now.id).filter(|k| is_final(k) && k.state == now.state && k.changes == now.changes);
            if let Some(same) = same {
                *now = same.clone();
            }
        }
        Ok(found)
    }

    async fn sandbox(&self, id: &str) -> Result<Sandbox> {
        let mut world = self.call("sandbox", id)?;
        let found = world.sandbox_of(id).and_then(|p| p.sandboxes.iter().find(|s| s.id == id).cloned());
        found.ok_or_else(|| Error::NotFound(format!("sandbox {id:?}: not found")))
    }

    async fn tidy(&self, _known: &BTreeMap<String, Summary>) {}

    async fn hints(&self, found: mpsc::Sender<Hint>) -> Result<()> {
        self.call("hints", "")?.hints.push(found.clone());
        found.closed().await;
        Ok(())
    }

    async fn run_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Result<String> {
        self.held("run_sandbox").await;
        let meta = config.metadata.unwrap_or_default();
        let call = format!("{} {} {handler}", meta.name, meta.attempt);
        let mut world = self.call("run_sandbox", call.trim_end())?;
        let id = world.id("sb");
        let created_at = world.stamp();
        let linux = config.linux.and_then(|l| l.security_context).and_then(|s| s.namespace_options);
        let host_network = linux.is_some_and(|n| n.network == v1::NamespaceMode::Node as i32);
        let ips = if host_network { Vec::new() } else { vec![format!("10.0.0.{}", world.next % 250 + 1)] };
        let (summary, pod) = world.pods.entry(meta.uid).or_default();
        (summary.namespace, summary.name) = (meta.namespace, meta.name);
        pod.sandboxes
            .insert(0, Sandbox { id: id.clone(), attempt: meta.attempt, ready: true, created_at, ips, host_network });
        world.happened(&id, Happened::Started);
        Ok(id)
    }

    async fn stop_sandbox(&self, id: &str) -> Result<()> {
        let mut world = self.call("stop_sandbox", id)?;
        let at = world.stamp();
        let Some(pod) = world.sandbox_of(id) else {
            return Err(Error::NotFound(format!("sandbox {id:?}: not found")));
        };
        pod.sandboxes.iter_mut().filter(|s| s.id == id).for_each(|s| s.ready = false);
        for c in pod.containers.iter_mut().filter(|c| c.sandbox_id == id && c.may_run()) {
            finish(c, 137, at);
        }
        world.hint(id);
        Ok(())
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        let mut world = self.call("remove_sandbox", id)?;
        if let Some(pod) = world.sandbox_of(id) {
            pod.sandboxes.retain(|s| s.id != id);
            pod.containers.retain(|c| c.sandbox_id != id);
        }
        Ok(())
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String> {
        let meta = config.metadata.unwrap_or_default();
        let mut world = self.call("create_container", &format!("{} {}", meta.name, meta.attempt))?;
        let id = world.id("c");
        let created_at = world.stamp();
        let log_path = format!("{}/{}", sandbox_config.log_directory, config.log_path);
        let Some(pod) = world.sandbox_of(sandbox) else {
            return Err(Error::NotFound(format!("sandbox {sandbox:?}: not found")));
        };
        if pod.containers.iter().any(|c| c.name == meta.name && c.attempt == meta.attempt) {
            let message = format!("failed to reserve container name \"{}_{}\"", meta.name, meta.attempt);
            return Err(Error::Failed { code: "Unknown", message });
        }
        let hash = config.annotations.get(l::HASH).and_then(|h| u64::from_str_radix(h, 16).ok()).unwrap_or(0);
        let image = config.image.unwrap_or_default();
        let security = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
        let target = security.and_then(|s| s.namespace_options.as_ref()).map(|n| n.target_id.clone());
        let target = target.filter(|t| !t.is_empty()).map(|t| (meta.name.clone(), t));
        pod.containers.insert(
            0,
            Container {
                id: id.clone(),
                sandbox_id: sandbox.into(),
                name: meta.name,
                attempt: meta.attempt,
                hash,
                state: ContainerState::Created,
                created_at,
                started_at: None,
                finished_at: None,
                exit_code: 0,
                reason: String::new(),
                message: String::new(),
                image: image.user_specified_image,
                image_ref: image.image,
                log_path,
                resources: config.linux.and_then(|l| l.resources),
                user: None,
                recursive_read_only: Vec::new(),
                stop_signal: None,
                changes: 0,
            },
        );
        world.targets.extend(target);
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.held("start_container").await;
        let mut world = self.call("start_container", id)?;
        let at = world.stamp();
        let c = world.find(id)?;
        c.state = ContainerState::Running;
        c.started_at = Some(at);
        world.happened(id, Happened::Started);
        Ok(())
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        self.held("stop_container").await;
        let mut world = self.call("stop_container", &format!("{id} {}", ::cri::whole_seconds(grace)))?;
        let at = world.stamp();
        let c = world.find(id)?;
        if c.may_run() {
            finish(c, 137, at);
        }
        world.hint(id);
        Ok(())
    }

    async fn update_container(&self, id: &str, resources: v1::LinuxContainerResources) -> Result<()> {
        let memory = resources.memory_limit_in_bytes >> 20;
        let text = format!("{id} {} {} {memory}", resources.cpu_shares, resources.cpu_quota);
        let mut world = self.call("update_container", &text)?;
        let found = world.find(id)?;
        found.resources = Some(resources);
        found.changes += 1;
        Ok(())
    }

    async fn update_sandbox(&self, _: &str, resources: v1::LinuxContainerResources) -> Result<()> {
        let memory = resources.memory_limit_in_bytes >> 20;
        let text = format!("{} {} {memory}", resources.cpu_shares, resources.cpu_quota);
        self.call("update_sandbox", &text).map(drop)
    }

    async fn memory_in_use(&self, id: &str) -> Result<Option<u64>> {
        let world = self.call("memory_in_use", id)?;
        Ok(Some(world.memory))
    }

    async fn signal(&self, id: &str, signal: u32) -> Result<()> {
        let mut world = self.call("signal", &format!("{id} {signal}"))?;
        let at = world.stamp();
        if !world.deaf {
            finish(world.find(id)?, 128 + i32::try_from(signal).unwrap_or(0), at);
        }
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        let mut world = self.call("remove_container", id)?;
        for (_, pod) in world.pods.values_mut() {
            pod.containers.retain(|c| c.id != id);
        }
        Ok(())
    }

    async fn exec(&self, id: &str, command: &[String], _: Duration) -> Result<Output> {
        self.call("exec", &format!("{id} {}", command.join(" "))).map(drop)?;
        Ok(Output::default())
    }

    async fn exec_stream(&self, request: v1::ExecRequest) -> Result<String> {
        let words = request.cmd.join(" ");
        self.call("exec_stream", &format!("{} {words}", request.container_id)).map(|world| world.streams.clone())
    }

    async fn attach_stream(&self, request: v1::AttachRequest) -> Result<String> {
        let detail = format!("{} tty={}", request.container_id, request.tty);
        self.call("attach_stream", &detail).map(|world| world.streams.clone())
    }

    async fn port_forward(&self, sandbox: &str, ports: Vec<i32>) -> Result<String> {
        self.call("port_forward", &format!("{sandbox} {ports:?}")).map(|world| world.streams.clone())
    }

    async fn network(&self, _: &str) -> Result<Option<Network>> {
        Ok(self.world.lock().network.clone())
    }

    async fn reopen_log(&self, id: &str) -> Result<()> {
        self.call("reopen_log", id).map(drop)
    }

    async fn image(&self, name: &str) -> Result<Option<Image>> {
        let world = self.call("image", name)?;
        Ok(world.images.get(name).or_else(|| world.images.values().find(|i| i.id == name)).cloned())
    }

    async fn image_folder(&self) -> Result<Option<std::path::PathBuf>> {
        self.call("image_folder", "").map(|_| None)
    }

    async fn images(&self) -> Result<Vec<Image>> {
        Ok(self.call("images", "")?.images.values().cloned().collect())
    }

    async fn images_in_use(&self) -> Result<BTreeSet<String>> {
        let world = self.call("images_in_use", "")?;
        let containers = world.pods.values().flat_map(|(_, pod)| &pod.containers);
        Ok(containers.map(|c| c.image_ref.clone()).collect())
    }

    async fn pull(&self, name: &str, _: Option<v1::AuthConfig>, _: Option<v1::PodSandboxConfig>) -> Result<String> {
        self.held("pull").await;
        let mut world = self.call("pull", name)?;
        if world.missing.contains(name) {
            return Err(Error::NotFound(format!("failed to pull and unpack image {name:?}: {name}: not found")));
        }
        let id = format!("sha256:{name}");
        let image = Image { id: id.clone(), tags: vec![name.into()], size: 7, ..Image::default() };
        world.images.insert(name.into(), image);
        Ok(id)
    }

    async fn downloading(&self) -> Result<Option<(u64, u64)>> {
        Ok(None)
    }

    async fn remove_image(&self, id: &str) -> Result<()> {
        self.call("remove_image", id)?.images.retain(|_, i| i.id != id);
        Ok(())
    }
}
