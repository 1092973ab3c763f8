//! The container runtime: the distribution's containerd with a root, state, socket and
//! configuration of our own. It runs in a session and cgroup of its own, so that it and every pod
//! outlive us; the next start adopts it.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use stdx::{ClockExt, SharedClock};

use crate::layout::Layout;
use crate::pause;
use crate::process::{self, ProcessId};

/// Why the runtime could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program is missing or cannot be executed.
    #[error("cannot run {program}: {source}")]
    Program { program: String, source: io::Error },
    /// It ended or did not answer in time; its log says why.
    #[error("containerd did not come up within {seconds} s; the end of {log}:\n{tail}")]
    NotUp { seconds: u64, log: PathBuf, tail: String },
    /// It did not end, although it was killed.
    #[error("containerd (pid {pid}) does not end; the kernel holds it")]
    NotDown { pid: i32 },
    /// An import failed.
    #[error("cannot import image {image}: {output}")]
    Import { image: String, output: String },
    /// A file of ours cannot be read or written.
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// What the configuration depends on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the CNI plugins are.
    pub cni_plugins: PathBuf,
    /// The process may not lower OOM scores (no CAP_SYS_RESOURCE).
    pub restrict_oom_score: bool,
    /// The name of the OCI runtime program: `runc` or `crun`.
    pub runtime: String,
}

/// containerd's configuration, pure.
pub fn render(layout: &Layout, settings: &Settings) -> String {
    let q = |path: &Path| format!("{:?}", path.display().to_string());
    format!(
        r#"# Written by pintle at every start; changes are overwritten.
version = 2
root = {root}
state = {state}
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]

[grpc]
  address = {socket}

[plugins."io.containerd.internal.v1.opt"]
  path = {opt}

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  restrict_oom_score_adj = {restrict}
  netns_mounts_under_state_dir = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {cni_bin}
    conf_dir = {cni_conf}

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "default"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.default]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.default.options]
        BinaryName = "{runtime}"
        SystemdCgroup = false

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = {registry}
"#,
        root = q(&layout.containerd_root()),
        state = q(&layout.containerd_state()),
        socket = q(&layout.containerd_socket()),
        opt = q(&layout.containerd_root().join("opt")),
        pause = pause::NAME,
        restrict = settings.restrict_oom_score,
        cni_bin = q(&settings.cni_plugins),
        cni_conf = q(&layout.cni_config()),
        runtime = settings.runtime,
        registry = q(&layout.registry_config()),
    )
}

/// True when this process lacks the capability to lower OOM scores.
pub fn lacks_resource_capability() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:")).map(str::trim);
    effective.and_then(|hex| u64::from_str_radix(hex, 16).ok()).is_some_and(|caps| caps & (1 << CAP_SYS_RESOURCE) == 0)
}

/// Whether the runtime was running already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// It ran, with the same configuration, and was left alone.
    Adopted,
    /// It was started now.
    New,
}

/// Makes sure that the runtime runs and accepts connections. Pods are not touched either way.
pub async fn ensure(layout: &Layout, settings: &Settings, clock: &SharedClock) -> Result<Started, Error> {
    let config_path = layout.containerd_config();
    let config = render(layout, settings);
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    };
    let same = fs::read_to_string(&config_path).is_ok_and(|old| old == config);
    if let Some(running) = ProcessId::load_alive(&layout.containerd_pid()) {
        if same && tokio::net::UnixStream::connect(layout.containerd_socket()).await.is_ok() {
            return Ok(Started::Adopted);
        }
        stop(running, clock).await?;
    }
    for folder in [layout.containerd_root(), layout.containerd_state(), layout.registry_config(), layout.cni_config()] {
        fs::create_dir_all(&folder).map_err(file(&folder))?;
    }
    if let Some(parent) = config_path.parent() {
        fs::create_dir_all(parent).map_err(file(parent))?;
    }
    fs::write(&config_path, &config).map_err(file(&config_path))?;
    start(layout, clock).await?;
    Ok(Started::New)
}

/// The runtime that has our pods: the one that runs or, when it was killed and left shims behind,
/// one started again over the same state. None when there is nothing to have.
pub async fn with_pods(layout: &Layout, clock: &SharedClock) -> Result<Option<ProcessId>, Error> {
    if let Some(running) = ProcessId::load_alive(&layout.containerd_pid()) {
        return Ok(Some(running));
    }
    if !has_tasks(&layout.containerd_state()) {
        return Ok(None);
    }
    start(layout, clock).await?;
    Ok(ProcessId::load_alive(&layout.containerd_pid()))
}

/// True when a namespace of the state folder has a container that was not cleaned up.
fn has_tasks(state: &Path) -> bool {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path());
    folders(&state.join("io.containerd.runtime.v2.task")).any(|namespace| folders(&namespace).next().is_some())
}

/// Starts the runtime with the configuration that is there and waits until it accepts connections.
pub(crate) async fn start(layout: &Layout, clock: &SharedClock) -> Result<(), Error> {
    const LIMIT: u64 = 30;
    let log_path = layout.containerd_log();
    let file = |path: PathBuf| move |source| Error::File { path, source };
    let log = OpenOptions::new().create(true).append(true).open(&log_path).map_err(file(log_path.clone()))?;
    let errors = log.try_clone().map_err(file(log_path.clone()))?;
    let mut command = process::detached("containerd");
    command.arg("--config").arg(layout.containerd_config());
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    let mut child = command.spawn().map_err(|source| Error::Program { program: "containerd".into(), source })?;
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    let id = ProcessId::of(pid).map_err(file(format!("/proc/{pid}/stat").into()))?;
    id.save(&layout.containerd_pid()).map_err(file(layout.containerd_pid()))?;
    let deadline = clock.now() + Duration::from_secs(LIMIT);
    let socket = layout.containerd_socket();
    loop {
        if tokio::net::UnixStream::connect(&socket).await.is_ok() {
            // Nobody waits for it: it outlives us, or ends as a child of init.
            std::thread::spawn(move || child.wait());
            return Ok(());
        }
        let ended = child.try_wait().ok().flatten().is_some();
        if ended || clock.now() >= deadline {
            let tail = tail(&log_path, 10);
            return Err(Error::NotUp { seconds: LIMIT, log: log_path, tail });
        }
        clock.sleep(Duration::from_millis(5)).await;
    }
}

fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// How long the runtime may take to end by itself, and then to be killed.
const STOP: Duration = Duration::from_secs(10);

/// Ends the runtime: SIGTERM, then SIGKILL after ten seconds. Pods keep running. Fails when
/// the kernel still holds the process ten seconds later.
pub async fn stop(process: ProcessId, clock: &SharedClock) -> Result<(), Error> {
    for signal in [Signal::TERM, Signal::KILL] {
        process.signal(signal);
        let deadline = clock.now() + STOP;
        while process.is_alive() && clock.now() < deadline {
            clock.sleep(Duration::from_millis(10)).await;
        }
        if !process.is_alive() {
            return Ok(());
        }
    }
    Err(Error::NotDown { pid: process.pid })
}

/// Imports an image archive under its own name. A second import of the same is cheap.
pub async fn import(socket: &Path, name: &str, archive: &Path) -> Result<(), Error> {
    images(socket, name, &[OsStr::new("import"), OsStr::new("--digests=false"), archive.as_os_str()]).await
}

/// Asks the kubelet never to remove an image that was imported. Runtimes from containerd 1.7 on pass it on.
pub async fn pin(socket: &Path, name: &str) -> Result<(), Error> {
    images(socket, name, &["label", name, "io.cri-containerd.pinned=pinned"].map(OsStr::new)).await
}

async fn images(socket: &Path, name: &str, args: &[&OsStr]) -> Result<(), Error> {
    let output = tokio::process::Command::new("ctr")
        .arg("--address")
        .arg(socket)
        .args(["--namespace", "k8s.io", "images"])
        .args(args)
        .output()
        .await
        .map_err(|source| Error::Program { program: "ctr".into(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Import { image: name.to_owned(), output: text })
}

/// Imports the sandbox image.
pub async fn import_pause(layout: &Layout) -> Result<(), Error> {
    let path = layout.state.join("pause.tar");
    let file = |source| Error::File { path: path.clone(), source };
    let archive = pause::image().and_then(|image| image.archive()).map_err(file)?;
    if !fs::read(&path).is_ok_and(|old| old == archive) {
        fs::write(&path, archive).map_err(file)?;
    }
    import(&layout.containerd_socket(), pause::NAME, &path).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_a_killed_runtime_left_are_seen() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let namespace = dir.path().join("io.containerd.runtime.v2.task/k8s.io");
        assert!(!has_tasks(dir.path()));
        fs::create_dir_all(&namespace).expect("made");
        assert!(!has_tasks(dir.path()));
        fs::create_dir(namespace.join("a")).expect("made");
        assert!(has_tasks(dir.path()));
    }

    #[test]
    fn the_configuration_keeps_to_our_own_paths() {
        let layout = Layout::below(Path::new("/tmp/x"));
        let settings =
            Settings { cni_plugins: "/usr/lib/cni".into(), restrict_oom_score: true, runtime: "crun".into() };
        let text = render(&layout, &settings);
        for needle in [
            "root = \"/tmp/x/state/containerd\"",
            "address = \"/tmp/x/run/containerd.sock\"",
            "restrict_oom_score_adj = true",
            "BinaryName = \"crun\"",
            "sandbox_image = \"pintle.invalid/pause:1\"",
        ] {
            assert!(text.contains(needle), "{needle} is missing from\n{text}");
        }
    }
}
