//! Making a pod's volumes and the directory that holds them, and removing both without a trace.
//! Everything here blocks; callers run it beside their event loop.
//!
//! ```text
//!  <root>/pods/<uid>/volumes/kubernetes.io~<kind>/<name>
//!                   /volume-subpaths/<volume>/<container>/<n>     bound pieces of volumes
//!                   /containers/<container>/<n>                   termination messages
//!                   /etc-hosts
//! ```

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::types::core::v1 as core;
use rustix::fs::{AtFlags, Gid, Mode};

use super::atomic::{self, Payload};
use super::beneath::Dir;
use super::files::is_private;
use super::mounts::Mounts;

/// The directories of one node's pods.
#[derive(Clone)]
pub struct Layout {
    pub root: PathBuf,
    pub mounts: Arc<dyn Mounts>,
}

impl Layout {
    /// A pod's directory.
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// Where a volume of the pod is on the node.
    pub fn volume(&self, uid: &str, volume: &core::Volume) -> PathBuf {
        if let Some(host) = &volume.host_path {
            return PathBuf::from(&host.path);
        }
        self.pod(uid).join("volumes").join(format!("kubernetes.io~{}", kind(volume))).join(&volume.name)
    }

    /// The uids that have a directory.
    pub fn found(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join("pods"));
        let names = entries.into_iter().flatten().flatten().map(|e| e.file_name());
        names.filter_map(|n| n.into_string().ok()).collect()
    }

    /// Makes a volume ready. `payload` is what a volume of files holds; `version` names this state
    /// of it.
    pub fn set_up(
        &self,
        uid: &str,
        volume: &core::Volume,
        payload: Option<&Payload>,
        version: &str,
        group: Option<u32>,
    ) -> Result<(), String> {
        let path = self.volume(uid, volume);
        if let Some(host) = &volume.host_path {
            return host_path(&path, host.type_.as_deref().unwrap_or_default());
        }
        let text = |error: io::Error| error.to_string();
        if let Some(empty) = &volume.empty_dir {
            return self.empty_dir(&path, empty, group).map_err(text);
        }
        let Some(payload) = payload else {
            return Err(format!("volumes of kind {} are not supported by this kubelet", kind(volume)));
        };
        self.directory(&path, 0o755).map_err(text)?;
        if is_private(volume) && !self.is_mounted(&path) {
            self.mounts.tmpfs(&path, None).map_err(text)?;
        }
        atomic::write(&path, payload, version, group).map(drop).map_err(text)
    }

    fn is_mounted(&self, path: &Path) -> bool {
        let parent = path.parent().unwrap_or(path);
        self.mounts.beneath(parent).is_ok_and(|found| found.iter().any(|p| p == path))
    }

    fn directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        std::fs::create_dir_all(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
    }

    fn empty_dir(&self, path: &Path, empty: &core::EmptyDirVolumeSource, group: Option<u32>) -> io::Result<()> {
        if path.is_dir() && (empty.medium.as_deref() != Some("Memory") || self.is_mounted(path)) {
            // It is the pod's by now; nothing in it is touched again.
            return Ok(());
        }
        std::fs::create_dir_all(path)?;
        if empty.medium.as_deref() == Some("Memory") {
            let size = empty.size_limit.as_ref().and_then(|q| q.0.parse::<machinery::quantity::Quantity>().ok());
            self.mounts.tmpfs(path, size.and_then(|q| u64::try_from(q.value()).ok()).filter(|s| *s > 0))?;
        }
        let mode = empty.mode.and_then(|m| u32::try_from(m).ok()).map_or(0o777, |m| m & 0o7777);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        if let Some(group) = group {
            rustix::fs::chown(path, None, Some(Gid::from_raw(group)))?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode | 0o2770))?;
        }
        Ok(())
    }

    /// Binds a piece of a volume where the runtime can be pointed at it, whatever its path means
    /// later. What is missing is made as a directory.
    pub fn sub_path(&self, uid: &str, volume: &core::Volume, sub: &str, name: &str) -> io::Result<PathBuf> {
        let root = Dir::open(&self.volume(uid, volume))?;
        let sub = Path::new(sub);
        let source = match root.resolve(sub) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mode = Mode::from_raw_mode(rustix::fs::fstat(root.fd())?.st_mode).bits() & 0o7777;
                root.make_all(sub, mode)?;
                root.resolve(sub)?
            }
            Err(error) => return Err(error),
        };
        let target = self.pod(uid).join("volume-subpaths").join(&volume.name).join(name);
        if self.is_mounted(&target) {
            self.mounts.unmount(&target)?;
        }
        let stat = rustix::fs::statat(&source, "", AtFlags::EMPTY_PATH)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            std::fs::create_dir_all(&target)?;
        } else {
            std::fs::create_dir_all(target.parent().unwrap_or(&target))?;
            std::fs::OpenOptions::new().create(true).append(true).open(&target)?;
        }
        self.mounts.bind(std::os::fd::AsFd::as_fd(&source), &target)?;
        Ok(target)
    }

    /// An empty file for a container's last words.
    pub fn termination_log(&self, uid: &str, container: &str, name: &str) -> io::Result<PathBuf> {
        let dir = self.pod(uid).join("containers").join(container);
        std::fs::create_dir_all(&dir)?;
        let path = dir.join(name);
        std::fs::write(&path, "")?;
        // Whatever user the container runs as may write it.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        Ok(path)
    }

    /// The pod's `/etc/hosts`.
    pub fn hosts(&self, uid: &str, text: &str) -> io::Result<PathBuf> {
        let dir = self.pod(uid);
        std::fs::create_dir_all(&dir)?;
        let path = dir.join("etc-hosts");
        // In place: containers have this very file mounted.
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return Ok(path);
        }
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
        Ok(path)
    }

    /// Unmounts all of a pod and removes its directory. Nothing is removed while anything is still
    /// mounted beneath it: it might be somebody's data.
    pub fn remove(&self, uid: &str) -> io::Result<()> {
        let dir = self.pod(uid);
        for target in self.mounts.beneath(&dir)? {
            self.mounts.unmount(&target)?;
        }
        if let Some(left) = self.mounts.beneath(&dir)?.first() {
            return Err(io::Error::other(format!("{} is still mounted", left.display())));
        }
        match Dir::open(&self.root.join("pods")) {
            Ok(pods) => pods.remove(std::ffi::OsStr::new(uid)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The plugin's name, as upstream's directories have it.
pub fn kind(volume: &core::Volume) -> &'static str {
    match volume {
        v if v.config_map.is_some() => "configmap",
        v if v.secret.is_some() => "secret",
        v if v.projected.is_some() => "projected",
        v if v.downward_api.is_some() => "downward-api",
        v if v.empty_dir.is_some() => "empty-dir",
        v if v.host_path.is_some() => "host-path",
        v if v.persistent_volume_claim.is_some() => "persistentVolumeClaim",
        v if v.ephemeral.is_some() => "ephemeral",
        v if v.csi.is_some() => "csi",
        v if v.nfs.is_some() => "nfs",
        v if v.iscsi.is_some() => "iscsi",
        v if v.image.is_some() => "image",
        _ => "unknown",
    }
}

fn host_path(path: &Path, kind: &str) -> Result<(), String> {
    let bad = |what: &str| format!("hostPath type check failed: {} is not {what}", path.display());
    let found = std::fs::metadata(path).ok();
    let is = |test: fn(&std::fs::FileType) -> bool| found.as_ref().is_some_and(|m| test(&m.file_type()));
    let fits = match kind {
        "" => return Ok(()),
        "DirectoryOrCreate" if found.is_none() => {
            return std::fs::create_dir_all(path).map_err(|e| e.to_string());
        }
        "FileOrCreate" if found.is_none() => {
            let made = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
            return made.map(drop).map_err(|e| e.to_string());
        }
        "Directory" | "DirectoryOrCreate" => (is(std::fs::FileType::is_dir), "a directory"),
        "File" | "FileOrCreate" => (is(std::fs::FileType::is_file), "a file"),
        "Socket" => (is(|t| t.is_socket()), "a socket file"),
        "CharDevice" => (is(|t| t.is_char_device()), "a character device"),
        "BlockDevice" => (is(|t| t.is_block_device()), "a block device"),
        other => return Err(format!("{other} is an invalid volume type")),
    };
    if fits.0 { Ok(()) } else { Err(bad(fits.1)) }
}

#[cfg(test)]
mod tests {
    use super::super::mounts::FakeMounts;
    use super::*;
    use serde_json::{Value, json};

    fn layout(root: &Path) -> Layout {
        Layout { root: root.to_owned(), mounts: Arc::new(FakeMounts::default()) }
    }

    fn volume(value: Value) -> core::Volume {
        let mut value = value;
        value["name"] = json!("v");
        serde_json::from_value(value).expect("a volume")
    }

    #[test]
    fn an_empty_directory_keeps_what_is_in_it() {
        let root = tempfile::tempdir().expect("a directory");
        let layout = layout(root.path());
        let empty = volume(json!({"emptyDir": {}}));
        layout.set_up("u", &empty, None, "1", None).expect("made");
        let path = layout.volume("u", &empty);
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o7777, 0o777);
        std::fs::write(path.join("x"), "1").expect("written");
        layout.set_up("u", &empty, None, "2", None).expect("made");
        assert!(path.join("x").exists());
        let sub = layout.sub_path("u", &empty, "a/b", "c-0").expect("bound");
        assert!(sub.is_dir() && path.join("a/b").is_dir());
        assert!(layout.sub_path("u", &empty, "../..", "c-1").is_err());
        assert!(layout.sub_path("u", &empty, "x", "c-2").expect("bound").is_file());
        assert_eq!(layout.found(), ["u"]);
        layout.remove("u").expect("removed");
        layout.remove("u").expect("removing twice is fine");
        assert!(!layout.pod("u").exists());
    }

    #[test]
    fn secrets_go_to_memory() {
        let root = tempfile::tempdir().expect("a directory");
        let layout = layout(root.path());
        let secret = volume(json!({"secret": {"secretName": "s"}}));
        let file = atomic::File { data: b"x".to_vec(), mode: 0o400, user: None };
        let payload = [("k".to_owned(), file)].into();
        layout.set_up("u", &secret, Some(&payload), "1", None).expect("made");
        let path = layout.volume("u", &secret);
        assert_eq!(layout.mounts.beneath(root.path()).expect("listed"), std::slice::from_ref(&path));
        assert_eq!(std::fs::read_to_string(path.join("k")).expect("there"), "x");
        layout.set_up("u", &secret, Some(&payload), "2", None).expect("made");
        assert_eq!(layout.mounts.beneath(root.path()).expect("listed").len(), 1);
        layout.remove("u").expect("removed");
        assert!(layout.mounts.beneath(root.path()).expect("listed").is_empty());
    }

    #[test]
    fn host_paths_are_what_they_should_be() {
        let root = tempfile::tempdir().expect("a directory");
        let layout = layout(root.path());
        let at = |name: &str| root.path().join(name).to_string_lossy().into_owned();
        let try_it = |name: &str, kind: &str| {
            layout.set_up("u", &volume(json!({"hostPath": {"path": at(name), "type": kind}})), None, "1", None)
        };
        assert_eq!(
            try_it("d", "Directory"),
            Err(format!("hostPath type check failed: {} is not a directory", at("d")))
        );
        assert_eq!(try_it("d", "DirectoryOrCreate"), Ok(()));
        assert_eq!(try_it("d", "Directory"), Ok(()));
        assert_eq!(try_it("f", "FileOrCreate"), Ok(()));
        assert_eq!(try_it("f", "Socket"), Err(format!("hostPath type check failed: {} is not a socket file", at("f"))));
        assert_eq!(try_it("none", ""), Ok(()));
    }

    #[test]
    fn unknown_kinds_are_named() {
        let root = tempfile::tempdir().expect("a directory");
        let claim = volume(json!({"persistentVolumeClaim": {"claimName": "c"}}));
        assert_eq!(
            layout(root.path()).set_up("u", &claim, None, "1", None),
            Err("volumes of kind persistentVolumeClaim are not supported by this kubelet".into())
        );
    }
}
