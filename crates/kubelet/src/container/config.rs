//! What the runtime is told of a container. Pure.

use std::path::{Path, PathBuf};

use ::cri::v1;
use api::types::core::v1::Container;

use super::env::Environment;
use super::expand::expand;
use super::signal::Signal;
use super::{resources, security};
use crate::pod::BoundPod;
use crate::runtime::{Image, labels};
use crate::users::Block;

/// A volume, file or directory in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub source: MountSource,
    pub container: String,
    pub read_only: bool,
    /// What is mounted beneath it is read-only, too.
    pub recursive: bool,
    /// As the spec names it: `None`, `HostToContainer`, `Bidirectional`.
    pub propagation: Option<String>,
}

/// Where a mount's contents are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// On the host.
    Host(PathBuf),
    /// In an image that the runtime has.
    Image { image: String, sub_path: String },
}

impl Mount {
    /// A path of the host as it is.
    pub fn plain(host: PathBuf, container: &str) -> Self {
        let (source, container) = (MountSource::Host(host), container.to_owned());
        Self { source, container, read_only: false, recursive: false, propagation: None }
    }
}

/// What a container is made of beside the pod.
pub struct Inputs<'a> {
    pub pod: &'a BoundPod,
    pub container: &'a Container,
    pub attempt: u32,
    pub image: &'a Image,
    /// The reference to create it with.
    pub image_ref: &'a str,
    pub environment: &'a Environment,
    pub mounts: &'a [Mount],
    /// The container whose processes it sees beside its own.
    pub target: Option<&'a str>,
    /// The pod's users, where they are not the node's: files keep theirs through the mounts.
    pub users: Option<Block>,
    pub node_memory: i128,
    pub seccomp_root: &'a Path,
}

/// The log's path beneath the pod's log directory.
pub fn log_path(container: &str, attempt: u32) -> String {
    format!("{container}/{attempt}.log")
}

/// Renders the configuration; the error is the message of CreateContainerConfigError.
pub fn render(inputs: &Inputs) -> Result<v1::ContainerConfig, String> {
    let Inputs { pod, container, .. } = *inputs;
    let expanded = |words: &Option<Vec<String>>| {
        words.iter().flatten().map(|w| expand(w, |name| inputs.environment.get(name))).collect()
    };
    let image = v1::ImageSpec {
        image: inputs.image_ref.to_owned(),
        user_specified_image: container.image.clone().unwrap_or_default(),
        ..v1::ImageSpec::default()
    };
    let linux = v1::LinuxContainerConfig {
        resources: Some(resources::linux(pod, container, inputs.node_memory)),
        security_context: Some(security::container(&security::Inputs {
            pod,
            container,
            image: inputs.image,
            target: inputs.target,
            users: inputs.users,
            seccomp_root: inputs.seccomp_root,
        })?),
    };
    let pair = |(key, value): &(String, String)| v1::KeyValue { key: key.clone(), value: value.clone() };
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: container.name.clone(), attempt: inputs.attempt }),
        image: Some(image),
        command: expanded(&container.command),
        args: expanded(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: inputs.environment.variables.iter().map(pair).collect(),
        mounts: inputs.mounts.iter().map(|m| mount(m, inputs.users)).collect(),
        devices: Vec::new(),
        labels: labels::container(pod, container),
        annotations: labels::annotations(pod, container, inputs.attempt),
        log_path: log_path(&container.name, inputs.attempt),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(linux),
        stop_signal: stop_signal(container).map_or(0, |signal| signal.runtime),
    })
}

/// The signal that the container wants to be ended with.
pub fn stop_signal(container: &Container) -> Option<Signal> {
    Signal::named(container.lifecycle.as_ref()?.stop_signal.as_deref()?)
}

fn mount(mount: &Mount, users: Option<Block>) -> v1::Mount {
    let propagation = match mount.propagation.as_deref() {
        Some("HostToContainer") => v1::MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => v1::MountPropagation::PropagationBidirectional,
        _ => v1::MountPropagation::PropagationPrivate,
    };
    let (host_path, image, image_sub_path) = match &mount.source {
        MountSource::Host(path) => (path.to_string_lossy().into_owned(), None, String::new()),
        MountSource::Image { image, sub_path } => {
            let image = v1::ImageSpec { image: image.clone(), ..v1::ImageSpec::default() };
            (String::new(), Some(image), sub_path.clone())
        }
    };
    v1::Mount {
        container_path: mount.container.clone(),
        host_path,
        readonly: mount.read_only,
        recursive_read_only: mount.recursive,
        propagation: propagation as i32,
        image,
        image_sub_path,
        uid_mappings: users.map(Block::mapping).into_iter().collect(),
        gid_mappings: users.map(Block::mapping).into_iter().collect(),
        ..v1::Mount::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn commands_see_the_environment() {
        let pod = pod(json!({"spec": {"containers": [{"name": "c", "image": "i", "command": ["run", "$(X)", "$$(X)"],
            "args": ["$(NONE)"], "workingDir": "/w", "tty": true}]}}));
        let environment = Environment { variables: vec![("X".into(), "1".into())], skipped: vec![] };
        let image = MountSource::Image { image: "sha256:2".into(), sub_path: "s".into() };
        let mounts = [
            Mount { read_only: true, ..Mount::plain("/h".into(), "/c") },
            Mount { source: image, recursive: true, ..Mount::plain("/h".into(), "/i") },
        ];
        let config = render(&Inputs {
            pod: &pod,
            container: &pod.containers()[0],
            attempt: 3,
            image: &Image::default(),
            image_ref: "sha256:1",
            environment: &environment,
            mounts: &mounts,
            target: None,
            users: None,
            node_memory: 1 << 30,
            seccomp_root: Path::new("/s"),
        })
        .expect("a config");
        assert_eq!(config.command, ["run", "1", "$(X)"]);
        assert_eq!(config.args, ["$(NONE)"]);
        assert_eq!(config.log_path, "c/3.log");
        assert_eq!(config.annotations[labels::RESTART_COUNT], "3");
        assert!(config.mounts[0].readonly && config.tty);
        assert_eq!((config.mounts[0].host_path.as_str(), config.mounts[0].image.is_none()), ("/h", true));
        let image = &config.mounts[1];
        assert_eq!(image.image.as_ref().map(|i| i.image.as_str()), Some("sha256:2"));
        assert_eq!((image.host_path.as_str(), image.image_sub_path.as_str()), ("", "s"));
        assert!(image.recursive_read_only && !image.readonly);
    }
}
