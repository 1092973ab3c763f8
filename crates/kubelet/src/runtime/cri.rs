//! The runtime behind CRI v1.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::cri::{Client, Containerd, Snapshots, TaskEventKind, v1};
use async_trait::async_trait;
use futures::StreamExt;
use futures::future::try_join_all;
use jiff::Timestamp;
use parking_lot::Mutex;
use stdx::SharedClock;
use tokio::sync::mpsc;

use super::labels;
use super::view::Views;
use super::{
    Container, ContainerState, Error, Features, Handler, Happened, Health, Hint, Image, Layer, Network, Output,
    PodState, Result, Runtime, Sandbox, Summary, ViewMount,
};
use crate::cgroup::Driver;
use crate::container::signal::Signal;
use crate::stats::disk::Used;

/// The longest termination message that is kept.
const MAX_MESSAGE: u64 = 4096;
/// The longest piece of log that stands in for one.
const MAX_MESSAGE_FROM_LOG: u64 = 2048;
const MAX_MESSAGE_LINES: usize = 80;

/// A runtime reached over its socket.
pub struct CriRuntime {
    client: Client,
    containerd: Containerd,
    views: Views,
    socket: PathBuf,
    /// When containers were last given other resources: who knows one as it was before asks for it again.
    changes: Mutex<HashMap<String, u64>>,
    /// Names the next such time: never the same twice.
    stamps: AtomicU64,
    /// Sandboxes that were stopped, network and all, and are not removed yet: to stop them again changes nothing.
    stopped: Mutex<HashSet<String>>,
}

impl CriRuntime {
    /// The runtime at `endpoint`; dials at the first call.
    pub fn new(endpoint: &str, clock: &SharedClock) -> Result<Self> {
        Self::counted(endpoint, clock, |_, _, _| {})
    }

    /// The same, whose calls are told: the operation, how long it took, and whether it failed.
    pub fn counted(
        endpoint: &str,
        clock: &SharedClock,
        told: impl Fn(&str, Duration, bool) + Send + Sync + 'static,
    ) -> Result<Self> {
        Ok(Self {
            client: Client::counted(endpoint, clock.clone(), told)?,
            containerd: Containerd::new(endpoint, clock.clone())?,
            views: Views::new(Snapshots::new(endpoint, clock.clone())?),
            socket: ::cri::socket_path(endpoint)?,
            changes: Mutex::default(),
            stamps: AtomicU64::new(1),
            stopped: Mutex::default(),
        })
    }

    async fn container(&self, listed: v1::Container, known: Option<&Container>) -> Result<Option<Container>> {
        let is_final = |c: &&Container| matches!(c.state, ContainerState::Running | ContainerState::Exited);
        // Before it is asked for: a change meanwhile makes whoever has the answer ask once more.
        let changes = self.changes.lock().get(&listed.id).copied().unwrap_or(0);
        let is_same = |k: &&Container| k.state == state(listed.state()) && k.changes == changes;
        if let Some(known) = known.filter(is_final).filter(is_same) {
            return Ok(Some(known.clone()));
        }
        match self.client.container_status(&listed.id).await {
            Ok(status) => Ok(Some(Container { changes, ..parse(&listed.pod_sandbox_id, status).await })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A sandbox that is listed as it is known, with what it has for good: its addresses.
    async fn sandbox_of(&self, listed: v1::PodSandbox, known: Option<&Sandbox>) -> Result<Option<Sandbox>> {
        let ready = listed.state() == v1::PodSandboxState::SandboxReady;
        let has_addresses = |s: &&Sandbox| s.host_network || !s.ready || !s.ips.is_empty();
        if let Some(known) = known.filter(|s| s.ready == ready).filter(has_addresses) {
            return Ok(Some(known.clone()));
        }
        match self.sandbox(&listed.id).await {
            Ok(sandbox) => Ok(Some(sandbox)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn state(state: v1::ContainerState) -> ContainerState {
    match state {
        v1::ContainerState::ContainerCreated => ContainerState::Created,
        v1::ContainerState::ContainerRunning => ContainerState::Running,
        v1::ContainerState::ContainerExited => ContainerState::Exited,
        v1::ContainerState::ContainerUnknown => ContainerState::Unknown,
    }
}

fn by_uid(uid: &str) -> HashMap<String, String> {
    HashMap::from([(labels::POD_UID.to_owned(), uid.to_owned())])
}

fn time(nanos: i64) -> Option<Timestamp> {
    (nanos > 0).then(|| Timestamp::from_nanosecond(i128::from(nanos)).ok()).flatten()
}

async fn parse(sandbox_id: &str, status: v1::ContainerStatus) -> Container {
    let state = state(status.state());
    let message = if state == ContainerState::Exited { termination_message(&status).await } else { String::new() };
    let metadata = status.metadata.unwrap_or_default();
    let number = |key: &str, radix| status.annotations.get(key).and_then(|t| u64::from_str_radix(t, radix).ok());
    let shown = status.image.map(|i| if i.user_specified_image.is_empty() { i.image } else { i.user_specified_image });
    Container {
        sandbox_id: sandbox_id.to_owned(),
        name: status.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or(metadata.name),
        attempt: number(labels::RESTART_COUNT, 10).and_then(|n| u32::try_from(n).ok()).unwrap_or(metadata.attempt),
        hash: number(labels::HASH, 16).unwrap_or(0),
        state,
        created_at: time(status.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        started_at: time(status.started_at),
        finished_at: time(status.finished_at),
        exit_code: status.exit_code,
        reason: status.reason,
        message: [status.message, message].into_iter().filter(|m| !m.is_empty()).collect::<Vec<_>>().join(": "),
        image: status.annotations.get(labels::IMAGE).cloned().or(shown).unwrap_or_default(),
        image_ref: status.image_ref,
        log_path: status.log_path,
        resources: status.resources.and_then(|r| r.linux),
        user: status.user.and_then(|u| u.linux),
        recursive_read_only: status
            .mounts
            .iter()
            .filter(|m| m.recursive_read_only)
            .map(|m| m.container_path.clone())
            .collect(),
        stop_signal: Signal::name(status.stop_signal),
        changes: 0,
        id: status.id,
    }
}

/// What a container left in its termination file, or at the end of its log when it wants that.
async fn termination_message(status: &v1::ContainerStatus) -> String {
    let Some(path) = status.annotations.get(labels::TERMINATION_PATH) else { return String::new() };
    let mount = status.mounts.iter().find(|m| m.container_path == *path);
    let file = mount.map(|m| PathBuf::from(&m.host_path));
    let from_log = status.exit_code != 0
        && status.annotations.get(labels::TERMINATION_POLICY).map(String::as_str) == Some("FallbackToLogsOnError");
    let log = from_log.then(|| PathBuf::from(&status.log_path));
    let read = tokio::task::spawn_blocking(move || {
        let text = file.map(|f| head(&f, MAX_MESSAGE)).unwrap_or_default();
        if text.is_empty() { log.map(|l| log_tail(&l)).unwrap_or_default() } else { text }
    });
    read.await.unwrap_or_default()
}

fn head(path: &Path, limit: u64) -> String {
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    // The container owns this file: it may have become a link or a pipe.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let options = std::fs::OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    let Ok(file) = options.and_then(|f| Ok((f.metadata()?.is_file(), f))) else { return String::new() };
    let mut out = Vec::new();
    if !file.0 || file.1.take(limit).read_to_end(&mut out).is_err() {
        return String::new();
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn log_tail(path: &Path) -> String {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(4 * MAX_MESSAGE_FROM_LOG)))?;
        let mut out = Vec::new();
        file.take(4 * MAX_MESSAGE_FROM_LOG).read_to_end(&mut out)?;
        Ok(out)
    };
    let raw = read().unwrap_or_default();
    let mut printer = crate::logs::line::Printer::new(crate::logs::line::Options::default());
    let mut text = Vec::new();
    raw.split(|b| *b == b'\n').for_each(|line| printer.print(line, &mut text));
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let mut tail = lines[lines.len().saturating_sub(MAX_MESSAGE_LINES)..].join("\n");
    if !tail.is_empty() {
        tail.push('\n');
    }
    let mut from = tail.len().saturating_sub(usize::try_from(MAX_MESSAGE_FROM_LOG).unwrap_or(usize::MAX));
    while !tail.is_char_boundary(from) {
        from += 1;
    }
    tail.split_off(from)
}

fn image(image: v1::Image) -> Image {
    Image {
        id: image.id,
        tags: image.repo_tags,
        digests: image.repo_digests,
        size: image.size,
        uid: image.uid.map(|v| v.value),
        username: image.username,
        pinned: image.pinned,
    }
}

#[async_trait]
impl Runtime for CriRuntime {
    async fn health(&self) -> Result<Health> {
        let version = self.client.version().await?;
        let status = self.client.status().await?;
        let mut out = Health { name: version.runtime_name, version: version.runtime_version, ..Health::default() };
        for condition in status.status.into_iter().flat_map(|s| s.conditions).filter(|c| !c.status) {
            let text = format!("{}=false reason:{} message:{}", condition.r#type, condition.reason, condition.message);
            match condition.r#type.as_str() {
                "RuntimeReady" => out.runtime_problem = Some(text),
                "NetworkReady" => out.network_problem = Some(text),
                _ => {}
            }
        }
        let handler = |h: v1::RuntimeHandler| {
            let features = h.features.unwrap_or_default();
            Handler {
                name: h.name,
                recursive_read_only: features.recursive_read_only_mounts,
                user_namespaces: features.user_namespaces,
            }
        };
        out.features = Features {
            handlers: status.runtime_handlers.into_iter().map(handler).collect(),
            supplemental_groups_policy: status.features.is_some_and(|f| f.supplemental_groups_policy),
        };
        Ok(out)
    }

    async fn cgroup_driver(&self) -> Result<Option<Driver>> {
        let config = match self.client.runtime_config().await {
            Ok(config) => config,
            Err(Error::Unimplemented(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(config.linux.map(|linux| match linux.cgroup_driver() {
            v1::CgroupDriver::Systemd => Driver::Systemd,
            v1::CgroupDriver::Cgroupfs => Driver::Cgroupfs,
        }))
    }

    async fn list(&self) -> Result<BTreeMap<String, Summary>> {
        let (sandboxes, containers) =
            tokio::try_join!(self.client.list_pod_sandbox(None), self.client.list_containers(None))?;
        let mut out: BTreeMap<String, Summary> = BTreeMap::new();
        for sandbox in sandboxes {
            let metadata = sandbox.metadata.clone().unwrap_or_default();
            let entry = out.entry(metadata.uid).or_default();
            entry.namespace = metadata.namespace;
            entry.name = metadata.name;
            entry.sandboxes.insert(sandbox.id.clone(), sandbox.state() == v1::PodSandboxState::SandboxReady);
        }
        for container in containers {
            let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
            let uid = label(labels::POD_UID);
            if uid.is_empty() {
                continue;
            }
            let entry = out.entry(uid).or_default();
            if entry.name.is_empty() {
                (entry.namespace, entry.name) = (label(labels::POD_NAMESPACE), label(labels::POD_NAME));
            }
            entry.containers.insert(container.id, container.state);
        }
        Ok(out)
    }

    async fn pod(&self, uid: &str, known: &PodState) -> Result<PodState> {
        let sandboxes = v1::PodSandboxFilter { label_selector: by_uid(uid), ..Default::default() };
        let containers = v1::ContainerFilter { label_selector: by_uid(uid), ..Default::default() };
        let (sandboxes, containers) = tokio::try_join!(
            self.client.list_pod_sandbox(Some(sandboxes)),
            self.client.list_containers(Some(containers))
        )?;
        // All at once: each is a question of its own to the runtime.
        let sandboxes = sandboxes.into_iter().map(|listed| {
            let known = known.sandboxes.iter().find(|s| s.id == listed.id);
            self.sandbox_of(listed, known)
        });
        let containers = containers.into_iter().map(|listed| {
            let known = known.by_id(&listed.id);
            self.container(listed, known)
        });
        let (sandboxes, containers) = tokio::try_join!(try_join_all(sandboxes), try_join_all(containers))?;
        let mut out = PodState {
            sandboxes: sandboxes.into_iter().flatten().collect(),
            containers: containers.into_iter().flatten().collect(),
        };
        out.sandboxes.sort_by_key(|s| std::cmp::Reverse(s.created_at));
        out.containers.sort_by_key(|c| std::cmp::Reverse((c.created_at, c.attempt)));
        Ok(out)
    }

    async fn sandbox(&self, id: &str) -> Result<Sandbox> {
        let status = self.client.pod_sandbox_status(id).await?;
        let ready = status.state() == v1::PodSandboxState::SandboxReady;
        let options = status.linux.and_then(|l| l.namespaces).and_then(|n| n.options);
        let network = status.network.unwrap_or_default();
        let more = network.additional_ips.into_iter().map(|i| i.ip);
        Ok(Sandbox {
            id: status.id,
            attempt: status.metadata.unwrap_or_default().attempt,
            ready,
            created_at: time(status.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
            // A dead sandbox may still be shown with the address it had.
            ips: std::iter::once(network.ip).chain(more).filter(|ip| ready && !ip.is_empty()).collect(),
            host_network: options.is_some_and(|o| o.network() == v1::NamespaceMode::Node),
        })
    }

    async fn tidy(&self, known: &BTreeMap<String, Summary>) {
        // Containers that went with their sandboxes.
        self.changes.lock().retain(|id, _| known.values().any(|pod| pod.containers.contains_key(id)));
        let socket = self.socket.clone();
        let look = move || ::cri::shims::end_abandoned(&socket);
        let running = match tokio::task::spawn_blocking(look).await {
            Ok(running) => running,
            Err(error) => return tracing::warn!(%error, "the runtime's processes were not looked through"),
        };
        let listed = |id: &String| known.values().any(|pod| pod.sandboxes.contains_key(id));
        for (pid, id) in running.into_iter().filter(|(_, id)| !listed(id)) {
            // A shim is younger than its container: one that runs without it has outlived it.
            if matches!(self.containerd.has_container(&id).await, Ok(false)) {
                ::cri::shims::end_shim(pid, &id, &self.socket);
            }
        }
    }

    async fn hints(&self, found: mpsc::Sender<Hint>) -> Result<()> {
        let lost = |what: &str| Error::Unavailable(format!("the stream of {what} ended"));
        match self.client.container_events().await {
            Ok(mut events) => {
                loop {
                    match events.next().await {
                        // Some servers refuse only once the stream is read.
                        Some(Err(status)) if Error::from(status.clone()).is_unimplemented() => break,
                        None => return Err(lost("container events")),
                        Some(event) => {
                            let event = event?;
                            let what = match event.container_event_type() {
                                v1::ContainerEventType::ContainerStartedEvent => Happened::Started,
                                v1::ContainerEventType::ContainerStoppedEvent => Happened::Ended,
                                _ => Happened::Other,
                            };
                            if found.send(Hint { id: event.container_id, what }).await.is_err() {
                                return Ok(());
                            }
                        }
                    }
                }
            }
            Err(Error::Unimplemented(_)) => {}
            Err(error) => return Err(error),
        }
        let mut events = self.containerd.task_events().await?;
        while let Some(event) = events.next().await {
            let event = event?;
            let what = match event.kind {
                TaskEventKind::Started => Happened::Started,
                TaskEventKind::Exited => Happened::Ended,
                TaskEventKind::OutOfMemory | TaskEventKind::Deleted => Happened::Other,
            };
            if found.send(Hint { id: event.container_id, what }).await.is_err() {
                return Ok(());
            }
        }
        Err(lost("task events"))
    }

    async fn run_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Result<String> {
        self.client.run_pod_sandbox(config, handler).await
    }

    async fn stop_sandbox(&self, id: &str) -> Result<()> {
        if self.stopped.lock().contains(id) {
            return Ok(());
        }
        self.client.stop_pod_sandbox(id).await?;
        let mut stopped = self.stopped.lock();
        // What somebody else removes is never taken out; forget in bulk.
        if stopped.len() >= 4096 {
            stopped.clear();
        }
        stopped.insert(id.to_owned());
        Ok(())
    }

    async fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.client.remove_pod_sandbox(id).await?;
        self.stopped.lock().remove(id);
        Ok(())
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String> {
        self.client.create_container(sandbox, config, sandbox_config).await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.client.start_container(id).await
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        self.client.stop_container(id, grace).await
    }

    async fn update_container(&self, id: &str, resources: v1::LinuxContainerResources) -> Result<()> {
        let done = self.client.update_container_resources(id, resources).await;
        // Also where it failed: it may have happened.
        self.changes.lock().insert(id.to_owned(), self.stamps.fetch_add(1, Ordering::Relaxed));
        done
    }

    async fn update_sandbox(&self, id: &str, resources: v1::LinuxContainerResources) -> Result<()> {
        self.client.update_pod_sandbox_resources(id, resources).await
    }

    async fn memory_in_use(&self, id: &str) -> Result<Option<u64>> {
        let filter = v1::ContainerStatsFilter { id: id.to_owned(), ..Default::default() };
        let memory = self.client.list_container_stats(Some(filter)).await?.into_iter().find_map(|s| s.memory);
        // A runtime that does not tell what is used tells what is used for good.
        Ok(memory.and_then(|m| m.usage_bytes.filter(|v| v.value > 0).or(m.working_set_bytes)).map(|v| v.value))
    }

    async fn signal(&self, id: &str, signal: u32) -> Result<()> {
        self.containerd.kill(id, signal).await
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.changes.lock().remove(id);
        self.client.remove_container(id).await
    }

    async fn exec(&self, id: &str, command: &[String], timeout: Duration) -> Result<Output> {
        let reply = self.client.exec_sync(id, command, timeout).await?;
        Ok(Output { exit_code: reply.exit_code, stdout: reply.stdout, stderr: reply.stderr })
    }

    async fn exec_stream(&self, request: v1::ExecRequest) -> Result<String> {
        self.client.exec(request).await
    }

    async fn attach_stream(&self, request: v1::AttachRequest) -> Result<String> {
        self.client.attach(request).await
    }

    async fn port_forward(&self, sandbox: &str, ports: Vec<i32>) -> Result<String> {
        self.client.port_forward(sandbox, ports).await
    }

    async fn network(&self, sandbox: &str) -> Result<Option<Network>> {
        let reply = self.client.pod_sandbox_status_in_full(sandbox).await?;
        let options = reply.status.and_then(|s| s.linux).and_then(|l| l.namespaces).and_then(|n| n.options);
        let on_node = options.is_some_and(|o| o.network() == v1::NamespaceMode::Node);
        Ok(Network::shown(on_node, reply.info.get("info").map_or("", String::as_str)))
    }

    async fn reopen_log(&self, id: &str) -> Result<()> {
        self.client.reopen_container_log(id).await
    }

    async fn image(&self, name: &str) -> Result<Option<Image>> {
        Ok(self.client.image_status(name).await?.map(image))
    }

    async fn image_folder(&self) -> Result<Option<PathBuf>> {
        let told = self.client.image_fs_info().await?.image_filesystems.into_iter().find_map(|f| f.fs_id);
        Ok(told.map(|f| f.mountpoint).filter(|p| !p.is_empty()).map(PathBuf::from))
    }

    async fn layers(&self) -> Result<BTreeMap<String, Layer>> {
        let mut out = BTreeMap::new();
        for stats in self.client.list_container_stats(None).await? {
            let (Some(attributes), Some(layer)) = (stats.attributes, stats.writable_layer) else { continue };
            let number = |v: Option<v1::UInt64Value>| v.map_or(0, |v| v.value);
            let pod = attributes.labels.get(labels::POD_UID).cloned().unwrap_or_default();
            let layer = Layer { pod, bytes: number(layer.used_bytes), inodes: number(layer.inodes_used) };
            out.insert(attributes.id, layer);
        }
        Ok(out)
    }

    async fn image_usage(&self) -> Result<Option<(PathBuf, Used)>> {
        let told = self.client.image_fs_info().await?.image_filesystems.into_iter().next();
        Ok(told.and_then(|f| {
            let folder = f.fs_id.map(|f| f.mountpoint).filter(|p| !p.is_empty())?;
            let number = |v: Option<v1::UInt64Value>| v.map_or(0, |v| v.value);
            Some((PathBuf::from(folder), Used { bytes: number(f.used_bytes), inodes: number(f.inodes_used) }))
        }))
    }

    async fn checkpoint(&self, id: &str, location: &str, timeout: i64) -> Result<()> {
        self.client.checkpoint_container(id, location, timeout).await
    }

    async fn images(&self) -> Result<Vec<Image>> {
        Ok(self.client.list_images().await?.into_iter().map(image).collect())
    }

    async fn images_in_use(&self) -> Result<BTreeSet<String>> {
        let (containers, status) = tokio::try_join!(self.client.list_containers(None), self.client.status_in_full())?;
        let named = containers.into_iter().flat_map(|c| {
            let spec = c.image.unwrap_or_default();
            [spec.image, spec.user_specified_image, c.image_ref, c.image_id]
        });
        // containerd before 1.7 does not say that it keeps the image of sandboxes for itself.
        let config = status.info.get("config").and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        let sandbox = config.as_ref().and_then(|c| c["sandboxImage"].as_str()).map(str::to_owned);
        Ok(named.chain(sandbox).filter(|name| !name.is_empty()).collect())
    }

    async fn pull(
        &self,
        name: &str,
        auth: Option<v1::AuthConfig>,
        sandbox: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        self.client.pull_image(name, auth, sandbox).await
    }

    async fn downloading(&self) -> Result<Option<(u64, u64)>> {
        match self.containerd.ingests().await {
            Ok(ingests) if ingests.is_empty() => Ok(None),
            Ok(ingests) => Ok(Some(ingests.iter().fold((0, 0), |(o, t), i| (o + i.offset, t + i.total)))),
            Err(Error::Unimplemented(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn remove_image(&self, id: &str) -> Result<()> {
        self.client.remove_image(id).await
    }

    async fn written(&self, pod: &str) -> Result<BTreeMap<String, u64>> {
        let filter = v1::ContainerStatsFilter { label_selector: by_uid(pod), ..Default::default() };
        let mut out = BTreeMap::new();
        for stats in self.client.list_container_stats(Some(filter)).await? {
            let bytes = stats.writable_layer.and_then(|l| l.used_bytes).map_or(0, |v| v.value);
            let name = stats.attributes.and_then(|a| a.labels.get(labels::CONTAINER_NAME).cloned());
            *out.entry(name.unwrap_or_default()).or_default() += bytes;
        }
        Ok(out)
    }

    async fn view(&self, image: &str, pod: &str, volume: &str) -> Result<Option<Vec<ViewMount>>> {
        self.views.view(&self.client, image, pod, volume).await
    }

    async fn remove_views(&self, pod: &str) -> Result<()> {
        self.views.remove(&self.client, pod).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_stands_in_for_a_message() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("0.log");
        let lines: String = (0..500).map(|n| format!("2026-01-01T00:00:00Z stderr F line {n}\n")).collect();
        std::fs::write(&path, lines).expect("written");
        let tail = log_tail(&path);
        assert!(tail.ends_with("line 499\n") && tail.starts_with("line 420\n"), "{tail}");
    }

    #[test]
    fn a_termination_file_that_became_something_else_is_not_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, link) = (dir.path().join("f"), dir.path().join("l"));
        std::fs::write(&file, "x".repeat(5000)).expect("written");
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        assert_eq!(head(&file, MAX_MESSAGE).len(), 4096);
        assert_eq!(head(&link, MAX_MESSAGE), "");
        assert_eq!(head(dir.path(), MAX_MESSAGE), "");
    }
}
