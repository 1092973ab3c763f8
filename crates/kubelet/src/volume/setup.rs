//! Making a pod's volumes and the directory that holds them, and removing both without a trace.
//! Everything here blocks; callers run it beside their event loop.
//!
//! ```text
//!  <root>/pods/<uid>/volumes/kubernetes.io~<kind>/<name>
//!                   /volume-subpaths/<volume>/<container>/<n>     bound pieces of volumes
//!                   /containers/<container>-<n>                   termination messages
//!                   /etc-hosts
//! ```

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::types::core::v1 as core;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode};

use super::beneath::Dir;
use super::empty_dir::Medium;
use super::held::Holds;
use super::mounts::{Mounted, Mounts, Top};
use super::source::{Source, Wanted, kind};
use super::{atomic, holder, host_path, ownership};

/// The directories of one node's pods.
#[derive(Clone)]
pub struct Layout {
    pub root: PathBuf,
    pub mounts: Arc<dyn Mounts>,
    /// Mounts that are being removed: one that hangs is not waited for twice.
    unmounting: Arc<Mutex<BTreeSet<PathBuf>>>,
    /// The uids of pods in whose directories something is being made, maybe for nobody any more: they are
    /// not removed meanwhile.
    pub work: Holds,
    /// The uids of pods whose directories are being removed: one at a time removes one.
    removing: Holds,
}

/// What the pod's security context asks of its volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub group: Option<u32>,
    /// `OnRootMismatch`.
    pub only_on_mismatch: bool,
}

/// Why a pod's directory cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// A mount is in use.
    #[error("{} is busy{}", .path.display(), .by)]
    Busy { path: PathBuf, by: String },
    /// The kernel has not answered about a mount since somebody began to remove it.
    #[error("{} hangs: the kernel does not end it", .0.display())]
    Hung(PathBuf),
    /// Somebody began to remove it and has not come to an end.
    #[error("{} is still being removed", .0.display())]
    Removing(PathBuf),
    #[error("{}: {error}", .path.display())]
    Disk { path: PathBuf, error: io::Error },
}

impl RemoveError {
    /// What stands in the way.
    pub fn path(&self) -> &Path {
        match self {
            Self::Busy { path, .. } | Self::Hung(path) | Self::Removing(path) | Self::Disk { path, .. } => path,
        }
    }
}

impl Layout {
    /// Beneath `root`.
    pub fn new(root: impl Into<PathBuf>, mounts: Arc<dyn Mounts>) -> Self {
        Self {
            root: root.into(),
            mounts,
            unmounting: Arc::default(),
            work: Holds::default(),
            removing: Holds::default(),
        }
    }

    /// A pod's directory.
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// Where a volume of the pod's own is on the node.
    pub fn volume(&self, uid: &str, volume: &core::Volume) -> PathBuf {
        if let Some(host) = &volume.host_path {
            return PathBuf::from(&host.path);
        }
        self.folder(uid, kind(volume), &volume.name)
    }

    /// Where a volume is on the node.
    pub fn place(&self, uid: &str, wanted: &Wanted) -> PathBuf {
        match &wanted.source {
            Source::Host { path, .. } => path.clone(),
            source => self.folder(uid, source.kind(), &wanted.shown),
        }
    }

    fn folder(&self, uid: &str, kind: &str, name: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(format!("kubernetes.io~{kind}")).join(name)
    }

    /// The uids that have a directory.
    pub fn found(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join("pods"));
        let names = entries.into_iter().flatten().flatten().map(|e| e.file_name());
        names.filter_map(|n| n.into_string().ok()).collect()
    }

    /// Makes a volume ready. `version` names this state of its files. What others mount (an export, an
    /// image) only gets its directory.
    pub fn set_up(&self, uid: &str, wanted: &Wanted, version: &str, owner: Owner) -> Result<(), String> {
        let path = self.place(uid, wanted);
        let text = |error: io::Error| error.to_string();
        match &wanted.source {
            Source::Host { path, kind } => host_path::check(path, kind),
            Source::Empty { medium, mode } => self.empty_dir(&path, *medium, *mode, owner).map_err(text),
            Source::Files { payload, private, .. } => {
                self.directory(&path, 0o755).map_err(text)?;
                if *private {
                    if !self.mounts.is_mounted_here(&path) {
                        self.mounts.tmpfs(&path, None, Top { mode: 0o755, group: None }).map_err(text)?;
                    }
                    // Of the file system itself: an earlier kubelet left it to everybody.
                    self.directory(&path, 0o755).map_err(text)?;
                }
                atomic::write(&path, payload, version, owner.group).map(drop).map_err(text)
            }
            Source::Local { path: source } => self.local(source, &path, owner),
            Source::Nfs { .. } | Source::Image(_) => {
                // What is mounted is not looked at: its server may not answer.
                if self.mounts.is_mounted(&path) { Ok(()) } else { self.directory(&path, 0o750).map_err(text) }
            }
        }
    }

    fn directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        std::fs::create_dir_all(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
    }

    fn empty_dir(&self, path: &Path, medium: Medium, mode: u32, owner: Owner) -> io::Result<()> {
        if path.is_dir() && (medium == Medium::Disk || self.mounts.is_mounted_here(path)) {
            // It is the pod's by now; nothing in it is touched again.
            return Ok(());
        }
        // It appears in its place only once it is as it should be: what is there is complete.
        let top = Top { mode: owner.group.map_or(mode, |_| ownership::groups(mode)), group: owner.group };
        let made = match medium {
            Medium::Disk => unfinished(path),
            Medium::Memory { size } => {
                std::fs::create_dir_all(path)?;
                return self.mounts.tmpfs(path, size, top);
            }
            Medium::HugePages { page } => {
                std::fs::create_dir_all(path)?;
                return self.mounts.huge_pages(path, page, top);
            }
        };
        std::fs::create_dir_all(&made)?;
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(mode))?;
        if let Some(group) = owner.group {
            ownership::give(&made, group, false)?;
        }
        std::fs::rename(&made, path)
    }

    /// A directory of the node as a mount of the pod's own.
    fn local(&self, source: &Path, path: &Path, owner: Owner) -> Result<(), String> {
        if self.mounts.is_mounted(path) {
            return Ok(());
        }
        let at = source.display();
        let parts = source.components().any(|c| c == std::path::Component::ParentDir);
        if parts || !source.is_absolute() {
            return Err(format!("invalid path: {at} must not contain '..'"));
        }
        let open = rustix::fs::open(source, rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC, Mode::empty());
        let open = open.map_err(|_| format!("path \"{at}\" does not exist"))?;
        let stat = rustix::fs::fstat(&open).map_err(|e| e.to_string())?;
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            return Err(format!("local volumes that are no directories are not supported by this kubelet: {at}"));
        }
        self.bind_given(std::os::fd::AsFd::as_fd(&open), path, owner).map_err(|error| error.to_string())
    }

    /// Binds a directory at `path`, after it was given to the group: what is mounted there is complete.
    fn bind_given(&self, source: BorrowedFd<'_>, path: &Path, owner: Owner) -> io::Result<()> {
        if let Some(group) = owner.group {
            // Through a mount of its own beside the place: what others have mounted within the source
            // is no part of the volume and stays as it is.
            let beside = unfinished(path);
            self.unmount_at(&beside)?;
            self.directory(&beside, 0o750)?;
            self.mounts.bind(source, &beside)?;
            let given = ownership::give(&beside, group, owner.only_on_mismatch);
            let away = self.unmount_at(&beside).and_then(|()| std::fs::remove_dir(&beside));
            if let Err(error) = away {
                tracing::debug!(path = %beside.display(), %error, "a mount stays until its pod goes");
            }
            given?;
        }
        self.directory(path, 0o750)?;
        self.mounts.bind(source, path)
    }

    fn unmount_at(&self, path: &Path) -> io::Result<()> {
        let found = self.mounts.beneath(path.parent().unwrap_or(path))?;
        found.iter().filter(|m| m.path == path).try_for_each(|m| self.mounts.unmount(m))
    }

    /// Binds a piece of a volume at `root` where the runtime can be pointed at it, whatever its path
    /// means later. What is missing is made as a directory.
    pub fn sub_path(&self, uid: &str, volume: &str, root: &Path, sub: &str, name: &str) -> io::Result<PathBuf> {
        let root = Dir::open_followed(root)?;
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
        let target = self.pod(uid).join("volume-subpaths").join(volume).join(name);
        let parent = target.parent().unwrap_or(&target);
        self.unmount_at(&target)?;
        let stat = rustix::fs::statat(&source, "", AtFlags::EMPTY_PATH)?;
        let is_dir = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
        // What was bound before may have been a directory and be a file now, or the other way round.
        if std::fs::symlink_metadata(&target).is_ok_and(|m| m.is_dir() != is_dir) {
            Dir::open(parent)?.remove(target.file_name().unwrap_or_default())?;
        }
        if is_dir {
            std::fs::create_dir_all(&target)?;
        } else {
            std::fs::create_dir_all(parent)?;
            std::fs::OpenOptions::new().create(true).append(true).open(&target)?;
        }
        self.mounts.bind(std::os::fd::AsFd::as_fd(&source), &target)?;
        Ok(target)
    }

    /// An empty file for a container's last words.
    pub fn termination_log(&self, uid: &str, container: &str, name: &str) -> io::Result<PathBuf> {
        // One directory for all of them: each costs the disk more than the file in it.
        let dir = self.pod(uid).join("containers");
        std::fs::create_dir_all(&dir)?;
        let path = dir.join(format!("{container}-{name}"));
        let file = std::fs::File::create(&path)?;
        // Whatever user the container runs as may write it.
        file.set_permissions(std::fs::Permissions::from_mode(0o666))?;
        Ok(path)
    }

    /// The pod's `/etc/hosts`.
    pub fn hosts(&self, uid: &str, text: &str) -> io::Result<PathBuf> {
        let dir = self.pod(uid);
        std::fs::create_dir_all(&dir)?;
        let path = dir.join("etc-hosts");
        // In place: containers have this very file mounted.
        // And they may have written anything there, of any length.
        if is_text(&path, text) {
            return Ok(path);
        }
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
        Ok(path)
    }

    /// Unmounts all of a pod and removes its directory. Nothing is removed while anything is still
    /// mounted beneath it: it might be somebody's data.
    pub fn remove(&self, uid: &str) -> Result<(), RemoveError> {
        let dir = self.pod(uid);
        let disk = |error: io::Error| RemoveError::Disk { path: dir.clone(), error };
        let mounted = self.mounts.beneath(&dir).map_err(disk)?;
        mounted.iter().try_for_each(|mount| self.unmount(mount))?;
        // The table of all mounts is long: each place is asked about itself, but for what may not answer. What
        // has been mounted elsewhere meanwhile is not entered either, and its removal fails.
        let left = if mounted.iter().any(Mounted::is_remote) {
            self.mounts.beneath(&dir).map_err(disk)?.into_iter().next().map(|left| left.path)
        } else {
            mounted.into_iter().map(|mount| mount.path).find(|path| self.mounts.is_mounted_here(path))
        };
        if let Some(path) = left {
            return Err(RemoveError::Busy { path, by: String::new() });
        }
        let Some(_alone) = self.removing.hold_alone(uid) else { return Err(RemoveError::Removing(dir)) };
        match Dir::open(&self.root.join("pods")) {
            Ok(pods) => pods.remove(std::ffi::OsStr::new(uid)).map_err(disk),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(disk(error)),
        }
    }

    /// Removes one mount. One that somebody else has been waiting for is broken off, not waited for.
    fn unmount(&self, mount: &Mounted) -> Result<(), RemoveError> {
        if !self.unmounting.lock().insert(mount.path.clone()) {
            if let Err(error) = self.mounts.abort(mount) {
                tracing::debug!(path = %mount.path.display(), %error, "a mount that hangs is not broken off");
            }
            return Err(RemoveError::Hung(mount.path.clone()));
        }
        let done = self.mounts.unmount(mount);
        self.unmounting.lock().remove(&mount.path);
        done.map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => {
                let holders = holder::holders(Path::new("/proc"), mount);
                let by = if holders.is_empty() { String::new() } else { format!(": {} uses it", holders.join(", ")) };
                RemoveError::Busy { path: mount.path.clone(), by }
            }
            _ => RemoveError::Disk { path: mount.path.clone(), error },
        })
    }

    /// A mount of the pod's that is being removed just now.
    pub fn is_unmounting(&self, uid: &str) -> Option<PathBuf> {
        let dir = self.pod(uid);
        self.unmounting.lock().iter().find(|p| p.starts_with(&dir)).cloned()
    }
}

/// Where what is to be at `path` is made; no volume has such a name.
fn unfinished(path: &Path) -> PathBuf {
    path.with_file_name(format!("..{}", path.file_name().unwrap_or_default().to_string_lossy()))
}

/// The file holds exactly the text; no more of it is read than that takes.
fn is_text(path: &Path, text: &str) -> bool {
    let same = || -> io::Result<bool> {
        let file = std::fs::File::open(path)?;
        let len = text.len() as u64;
        if file.metadata()?.len() != len {
            return Ok(false);
        }
        let mut old = Vec::with_capacity(text.len());
        file.take(len + 1).read_to_end(&mut old)?;
        Ok(old == text.as_bytes())
    };
    same().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::super::mounts::FakeMounts;
    use super::*;

    fn layout(root: &Path) -> (Layout, FakeMounts) {
        let mounts = FakeMounts::default();
        (Layout::new(root, Arc::new(mounts.clone())), mounts)
    }

    fn wanted(source: Source) -> Wanted {
        Wanted { volume: "v".into(), shown: "v".into(), source, read_only: false }
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("there").permissions().mode() & 0o7777
    }

    #[test]
    fn an_empty_directory_keeps_what_is_in_it() {
        let root = tempfile::tempdir().expect("a directory");
        let (layout, _) = layout(root.path());
        let empty = wanted(Source::Empty { medium: Medium::Disk, mode: 0o777 });
        layout.set_up("u", &empty, "1", Owner::default()).expect("made");
        let path = layout.place("u", &empty);
        assert_eq!(mode(&path), 0o777);
        std::fs::write(path.join("x"), "1").expect("written");
        layout.set_up("u", &empty, "2", Owner::default()).expect("made");
        assert!(path.join("x").exists());
        let sub = |sub: &str, name: &str| layout.sub_path("u", "v", &path, sub, name);
        assert!(sub("a/b", "c-0").expect("bound").is_dir() && path.join("a/b").is_dir());
        assert!(sub("../..", "c-1").is_err());
        assert!(sub("x", "c-2").expect("bound").is_file());
        std::fs::remove_file(path.join("x")).expect("removed");
        std::fs::create_dir(path.join("x")).expect("made");
        assert!(sub("x", "c-2").expect("bound anew").is_dir());
        assert_eq!(layout.found(), ["u"]);
        layout.remove("u").expect("removed");
        layout.remove("u").expect("removing twice is fine");
        assert!(!layout.pod("u").exists());
    }

    #[test]
    fn what_is_in_memory_is_mounted_once() {
        let root = tempfile::tempdir().expect("a directory");
        let (layout, mounts) = layout(root.path());
        let file = atomic::File { data: b"x".to_vec(), mode: 0o400, user: None };
        let payload: atomic::Payload = [("k".to_owned(), file)].into();
        let secret = |name: &str| Wanted {
            shown: name.into(),
            ..wanted(Source::Files { kind: "secret", payload: payload.clone(), private: true })
        };
        let of = |name: &str, medium| Wanted { shown: name.into(), ..wanted(Source::Empty { medium, mode: 0o1750 }) };
        let all =
            [secret("s"), of("m", Medium::Memory { size: Some(7) }), of("h", Medium::HugePages { page: 2 << 20 })];
        for round in ["1", "2"] {
            all.iter().for_each(|w| layout.set_up("u", w, round, Owner::default()).expect("made"));
            assert_eq!(mode(&layout.place("u", &all[0])), 0o755, "the mount's own root, not only what it covers");
            let at = "pods/u/volumes/kubernetes.io~";
            assert_eq!(
                mounts.list(root.path()),
                [
                    format!("tmpfs {at}secret/s"),
                    format!("tmpfs=7 {at}empty-dir/m"),
                    format!("hugetlbfs=2097152 {at}empty-dir/h")
                ]
            );
        }
        assert_eq!(std::fs::read_to_string(layout.place("u", &all[0]).join("k")).expect("there"), "x");
        assert_eq!(mode(&layout.place("u", &all[1])), 0o1750);
        layout.remove("u").expect("removed");
        assert!(mounts.list(root.path()).is_empty());
    }

    #[test]
    fn local_volumes_are_mounts_of_the_pods_own() {
        let root = tempfile::tempdir().expect("a directory");
        let (layout, mounts) = layout(root.path());
        let disk = root.path().join("disk");
        let local = |path: &Path| wanted(Source::Local { path: path.to_owned() });
        let set_up = |path: &Path| layout.set_up("u", &local(path), "1", Owner::default());
        assert_eq!(set_up(&disk), Err(format!("path \"{}\" does not exist", disk.display())));
        let up = disk.join("..");
        assert_eq!(set_up(&up), Err(format!("invalid path: {} must not contain '..'", up.display())));
        std::fs::write(&disk, "").expect("written");
        let why = "local volumes that are no directories are not supported by this kubelet";
        assert_eq!(set_up(&disk), Err(format!("{why}: {}", disk.display())));
        std::fs::remove_file(&disk).expect("removed");
        std::fs::create_dir(&disk).expect("made");
        set_up(&disk).expect("made");
        set_up(&disk).expect("made");
        assert_eq!(mounts.list(root.path()), ["bind pods/u/volumes/kubernetes.io~local-volume/v"]);
        layout.remove("u").expect("removed");
        assert!(disk.is_dir());
    }

    #[test]
    fn what_is_mounted_is_complete_whenever_the_kubelet_dies() {
        let root = tempfile::tempdir().expect("a directory");
        let (layout, mounts) = layout(root.path());
        let disk = root.path().join("disk");
        std::fs::create_dir(&disk).expect("made");
        let own = std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(&disk).expect("there"));
        let owner = Owner { group: Some(own), only_on_mismatch: false };
        let local = wanted(Source::Local { path: disk });
        let path = layout.place("u", &local);
        let dies = || mounts.dies.store(true, std::sync::atomic::Ordering::SeqCst);
        dies();
        layout.set_up("u", &local, "1", owner).expect_err("dead before it was given");
        assert!(!layout.mounts.is_mounted(&path));
        assert_eq!(mounts.list(root.path()), ["bind pods/u/volumes/kubernetes.io~local-volume/..v"]);
        layout.set_up("u", &local, "1", owner).expect("made");
        assert_eq!(mounts.list(root.path()), ["bind pods/u/volumes/kubernetes.io~local-volume/v"]);
        assert!(!unfinished(&path).exists());
        let memory = wanted(Source::Empty { medium: Medium::Memory { size: None }, mode: 0o777 });
        dies();
        layout.set_up("u", &memory, "1", owner).expect_err("dead as soon as it was mounted");
        layout.set_up("u", &memory, "1", owner).expect("there");
        assert_eq!(mode(&layout.place("u", &memory)), 0o2777);
    }

    #[test]
    #[ignore = "needs root"]
    fn real_local_volumes_are_given_without_what_others_mounted() {
        use std::os::unix::fs::MetadataExt;
        let root = tempfile::tempdir().expect("a directory");
        let kernel = super::super::mounts::KernelMounts;
        let layout = Layout::new(root.path(), Arc::new(kernel));
        let disk = root.path().join("disk");
        std::fs::create_dir_all(disk.join("other")).expect("made");
        std::fs::write(disk.join("file"), "").expect("written");
        kernel.tmpfs(&disk.join("other"), None, Top { mode: 0o700, group: None }).expect("mounted");
        let owner = Owner { group: Some(4711), only_on_mismatch: true };
        let local = wanted(Source::Local { path: disk.clone() });
        layout.set_up("u", &local, "1", owner).expect("made");
        let group = |path: PathBuf| std::fs::metadata(path).expect("there").gid();
        let path = layout.place("u", &local);
        let found = [group(path.join("file")), group(path.clone()), group(disk.join("other"))];
        let mounted = kernel.beneath(&layout.pod("u")).expect("read");
        layout.remove("u").expect("removed");
        layout.unmount_at(&disk.join("other")).expect("unmounted");
        assert_eq!((found, mounted.len(), disk.join("file").exists()), ([4711, 4711, 0], 1, true));
    }

    #[test]
    fn what_is_busy_stays_and_is_named() {
        let root = tempfile::tempdir().expect("a directory");
        let (layout, mounts) = layout(root.path());
        let memory = wanted(Source::Empty { medium: Medium::Memory { size: None }, mode: 0o777 });
        layout.set_up("u", &memory, "1", Owner::default()).expect("made");
        let path = layout.place("u", &memory);
        std::fs::write(path.join("data"), "x").expect("written");
        mounts.busy.lock().push(path.clone());
        let error = layout.remove("u").expect_err("it is busy");
        assert_eq!((error.path(), error.to_string()), (&*path, format!("{} is busy", path.display())));
        assert!(path.join("data").exists(), "nothing is removed");
        // Somebody waits for it already: it is not waited for again.
        layout.unmounting.lock().insert(path.clone());
        assert_eq!(layout.is_unmounting("u"), Some(path.clone()));
        assert!(matches!(layout.remove("u"), Err(RemoveError::Hung(p)) if p == path));
        layout.unmounting.lock().clear();
        mounts.busy.lock().clear();
        layout.remove("u").expect("removed");
    }

    #[test]
    fn one_removal_at_a_time() {
        let root = tempfile::tempdir().expect("a directory");
        let (layout, _) = layout(root.path());
        std::fs::create_dir_all(layout.pod("u").join("x")).expect("made");
        let other = layout.removing.hold_alone("u").expect("free");
        assert!(matches!(layout.remove("u"), Err(RemoveError::Removing(_))));
        assert!(layout.pod("u").join("x").exists());
        drop(other);
        layout.remove("u").expect("removed");
    }

    /// The pod may have made a terabyte of holes of it.
    #[test]
    fn hosts_are_what_they_should_be_however_long_they_are() {
        let root = tempfile::tempdir().expect("a directory");
        let (layout, _) = layout(root.path());
        let path = layout.hosts("u", "a\n").expect("written");
        let changed = || std::fs::metadata(&path).expect("there").modified().expect("known");
        let before = changed();
        layout.hosts("u", "a\n").expect("written");
        assert_eq!(changed(), before);
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
        file.set_len(1 << 40).expect("a hole");
        layout.hosts("u", "a\n").expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "a\n");
        std::fs::write(&path, "b\n").expect("written");
        layout.hosts("u", "a\n").expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "a\n");
    }
}
