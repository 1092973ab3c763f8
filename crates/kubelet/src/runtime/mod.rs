//! What the kubelet needs from a container runtime, and what it knows of the pods in it.
//!
//! `cri` speaks to a real one; `fake` is one in memory for tests.

pub mod cri;
#[cfg(test)]
pub mod fake;
pub mod labels;
pub mod network;
pub mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use ::cri::v1;
use async_trait::async_trait;
use jiff::Timestamp;

use crate::cgroup::Driver;
use crate::stats::disk::Used;

pub use ::cri::{Error, Result};
pub use network::Network;

/// Where a container stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
    /// The runtime lost sight of it; it may run.
    Unknown,
}

/// A container as the runtime has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    pub id: String,
    pub sandbox_id: String,
    pub name: String,
    /// How often it was started before.
    pub attempt: u32,
    /// What it was made from ([`labels::hash`]).
    pub hash: u64,
    pub state: ContainerState,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: i32,
    pub reason: String,
    /// The runtime's message and the termination message, joined.
    pub message: String,
    /// The image's name as the runtime shows it.
    pub image: String,
    /// The image it really runs: a digest reference or an id.
    pub image_ref: String,
    /// The log's full path.
    pub log_path: String,
    pub resources: Option<v1::LinuxContainerResources>,
    pub user: Option<v1::LinuxContainerUser>,
    /// Paths in it that are read-only with all that is mounted beneath them.
    pub recursive_read_only: Vec<String>,
    /// The signal that the runtime ends it with, where it tells.
    pub stop_signal: Option<String>,
    /// Names the last time it had been given other resources when it was asked for; zero when it never was.
    pub changes: u64,
}

impl Container {
    /// True when it may have processes.
    pub fn may_run(&self) -> bool {
        matches!(self.state, ContainerState::Running | ContainerState::Unknown)
    }
}

/// A sandbox as the runtime has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sandbox {
    pub id: String,
    pub attempt: u32,
    pub ready: bool,
    pub created_at: Timestamp,
    /// Its addresses; empty on the node's network.
    pub ips: Vec<String>,
    pub host_network: bool,
}

/// All of one pod in the runtime; both lists have the newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodState {
    pub sandboxes: Vec<Sandbox>,
    pub containers: Vec<Container>,
}

impl PodState {
    /// The newest container of that name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// The container of that id.
    pub fn by_id(&self, id: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.id == id)
    }

    /// A container or sandbox of that id runs.
    pub fn runs(&self, id: &str) -> bool {
        let container = self.by_id(id).is_some_and(|c| c.state == ContainerState::Running);
        container || self.sandboxes.iter().any(|s| s.id == id && s.ready)
    }

    /// A container or sandbox of that id is there, and runs no more.
    pub fn has_ended(&self, id: &str) -> bool {
        let container = self.by_id(id).is_some_and(|c| c.state == ContainerState::Exited);
        container || self.sandboxes.iter().any(|s| s.id == id && !s.ready)
    }

    /// There is a container or sandbox of that id.
    pub fn knows(&self, id: &str) -> bool {
        self.by_id(id).is_some() || self.sandboxes.iter().any(|s| s.id == id)
    }

    /// Nothing of the pod is left.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// True while anything of the pod has or may have processes.
    pub fn may_run(&self) -> bool {
        self.containers.iter().any(Container::may_run) || self.sandboxes.iter().any(|s| s.ready)
    }
}

/// One pod in a list of everything: enough to see what changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub namespace: String,
    pub name: String,
    /// Sandbox ids and whether they are ready.
    pub sandboxes: BTreeMap<String, bool>,
    /// Container ids and where they stand (as the protocol's number).
    pub containers: BTreeMap<String, i32>,
}

/// A hint that something happened to a container or sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Its id.
    pub id: String,
    pub what: Happened,
}

/// What a hint says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// Its first process runs.
    Started,
    /// Its first process has ended. The runtime's own records may say so only a little later.
    Ended,
    /// Something else.
    Other,
}

/// Who the runtime is and how it does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// `containerd`.
    pub name: String,
    /// `1.6.20`.
    pub version: String,
    /// Why the runtime is not ready.
    pub runtime_problem: Option<String>,
    /// Why its network is not ready.
    pub network_problem: Option<String>,
    pub features: Features,
}

/// What this runtime can do and not every runtime can.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The handlers it offers; the one without a name is the default one.
    pub handlers: Vec<Handler>,
    /// It keeps to `supplementalGroupsPolicy: Strict`.
    pub supplemental_groups_policy: bool,
}

/// A way of running containers, and what it can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handler {
    pub name: String,
    pub recursive_read_only: bool,
    pub user_namespaces: bool,
}

impl Features {
    /// The handler of that name, if the runtime says that it has it.
    pub fn handler(&self, name: &str) -> Option<&Handler> {
        self.handlers.iter().find(|h| h.name == name)
    }
}

/// An image in the runtime's store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub id: String,
    pub tags: Vec<String>,
    pub digests: Vec<String>,
    pub size: u64,
    /// The numeric user it runs as unless told otherwise.
    pub uid: Option<i64>,
    /// The named user it runs as unless told otherwise.
    pub username: String,
    pub pinned: bool,
}

/// What a command in a container gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    pub exit_code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// What a container has written beside its volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// The uid of its pod.
    pub pod: String,
    pub bytes: u64,
    pub inodes: u64,
}

/// One mount of an image's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewMount {
    /// `overlay`, `bind`.
    pub kind: String,
    pub source: String,
    pub options: Vec<String>,
}

/// A container runtime.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Who and how it is.
    async fn health(&self) -> Result<Health>;
    /// How it names cgroups; `None` when it does not tell.
    async fn cgroup_driver(&self) -> Result<Option<Driver>> {
        Ok(None)
    }
    /// Every pod in it by uid.
    async fn list(&self) -> Result<BTreeMap<String, Summary>>;
    /// One pod in full. What is in `known`, as it was seen before, is not asked for again while it is listed in
    /// the same state: of a container that runs, or has ended, nothing changes but what is changed from here.
    async fn pod(&self, uid: &str, known: &PodState) -> Result<PodState>;
    /// One sandbox.
    async fn sandbox(&self, id: &str) -> Result<Sandbox>;
    /// Ends processes of the runtime that it has lost sight of itself and that serve nothing; `known`
    /// is what it listed just now.
    async fn tidy(&self, known: &BTreeMap<String, Summary>);
    /// Waits for the next hint. `Unimplemented` when this runtime gives none.
    async fn hints(&self, found: tokio::sync::mpsc::Sender<Hint>) -> Result<()>;

    /// Starts a sandbox; gives its id.
    async fn run_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Result<String>;
    /// Ends what runs in a sandbox and its network.
    async fn stop_sandbox(&self, id: &str) -> Result<()>;
    /// Removes a stopped sandbox and its containers.
    async fn remove_sandbox(&self, id: &str) -> Result<()>;

    /// Creates a container; gives its id.
    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String>;
    /// Starts a created container.
    async fn start_container(&self, id: &str) -> Result<()>;
    /// Ends a container: asked first, killed after `grace`.
    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()>;
    /// Changes what a running container may use.
    async fn update_container(&self, id: &str, resources: v1::LinuxContainerResources) -> Result<()>;
    /// Tells what a sandbox's containers have together. `Unimplemented` where the runtime does not care.
    async fn update_sandbox(&self, id: &str, resources: v1::LinuxContainerResources) -> Result<()>;
    /// Bytes of memory that a container uses, where the runtime tells.
    async fn memory_in_use(&self, id: &str) -> Result<Option<u64>>;
    /// Sends a signal (the kernel's number) to a container's first process. `Unimplemented` where the
    /// runtime does not do that.
    async fn signal(&self, id: &str, signal: u32) -> Result<()>;
    /// Removes a container that ended.
    async fn remove_container(&self, id: &str) -> Result<()>;
    /// Runs a command in a container.
    async fn exec(&self, id: &str, command: &[String], timeout: Duration) -> Result<Output>;
    /// Where a command's streams are served; the command begins once somebody asks there.
    async fn exec_stream(&self, request: v1::ExecRequest) -> Result<String>;
    /// Where the streams of a container's first process are served.
    async fn attach_stream(&self, request: v1::AttachRequest) -> Result<String>;
    /// Where connections to a sandbox's ports are served; ports are named by clients that cannot do so
    /// themselves.
    async fn port_forward(&self, sandbox: &str, ports: Vec<i32>) -> Result<String>;
    /// The network of a sandbox, where its processes share it with whoever enters it. `None` where the runtime does
    /// not tell, or only it can reach them.
    async fn network(&self, _sandbox: &str) -> Result<Option<Network>> {
        Ok(None)
    }
    /// Makes the runtime open the container's log anew.
    async fn reopen_log(&self, id: &str) -> Result<()>;

    /// An image, if it is there.
    async fn image(&self, name: &str) -> Result<Option<Image>>;
    /// The directory that holds images, where the runtime tells.
    async fn image_folder(&self) -> Result<Option<PathBuf>>;
    /// All images.
    async fn images(&self) -> Result<Vec<Image>>;
    /// Ids and names of images that containers, running or ended, and sandboxes are made of.
    async fn images_in_use(&self) -> Result<BTreeSet<String>>;
    /// Fetches an image; gives its id.
    async fn pull(
        &self,
        name: &str,
        auth: Option<v1::AuthConfig>,
        sandbox: Option<v1::PodSandboxConfig>,
    ) -> Result<String>;
    /// Bytes fetched and expected over all downloads under way, where the runtime tells.
    async fn downloading(&self) -> Result<Option<(u64, u64)>>;
    /// Removes an image.
    async fn remove_image(&self, id: &str) -> Result<()>;

    /// Bytes that each running container of a pod has written beside its volumes, by its name, where the
    /// runtime tells.
    async fn written(&self, _pod: &str) -> Result<BTreeMap<String, u64>> {
        Ok(BTreeMap::new())
    }

    /// The same of every container, by its id.
    async fn layers(&self) -> Result<BTreeMap<String, Layer>> {
        Ok(BTreeMap::new())
    }
    /// The directory that holds images, and what they use there, where the runtime tells.
    async fn image_usage(&self) -> Result<Option<(PathBuf, Used)>> {
        Ok(None)
    }
    /// Writes the state of a container's processes to a file.
    async fn checkpoint(&self, _id: &str, _location: &str, _timeout: i64) -> Result<()> {
        Err(Error::Unimplemented("method CheckpointContainer not implemented".into()))
    }

    /// What is to be mounted to see an image's files, read-only and held for that volume of a pod.
    /// `None` when the runtime mounts images into containers itself.
    async fn view(&self, _image: &str, _pod: &str, _volume: &str) -> Result<Option<Vec<ViewMount>>> {
        Ok(None)
    }
    /// The views of a pod are needed no more.
    async fn remove_views(&self, _pod: &str) -> Result<()> {
        Ok(())
    }
}
