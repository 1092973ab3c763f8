//! Mounting, as far as volumes need it; tests put a recorder in its place.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::overlay;

/// One line of the table of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The kernel's number for it, which no other mount has while it is there.
    pub id: u64,
    pub path: PathBuf,
    /// The file system: `tmpfs`, `nfs4`.
    pub kind: String,
}

impl Mounted {
    /// A server on the network answers for it: to look at it may take for ever.
    pub fn is_remote(&self) -> bool {
        let remote = ["nfs", "cifs", "smb", "9p", "ceph", "fuse", "afs", "gluster", "lustre"];
        remote.iter().any(|kind| self.kind.starts_with(kind))
    }
}

/// The top directory of a new file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Top {
    pub mode: u32,
    pub group: Option<u32>,
}

impl Top {
    fn options(self) -> String {
        let group = self.group.map(|group| format!(",gid={group}")).unwrap_or_default();
        format!("mode={:04o}{group}", self.mode)
    }
}

/// What volumes ask of the kernel. A file system in memory is complete from its first moment on, but
/// for one bit of huge pages': that new files have the top's group.
pub trait Mounts: Send + Sync + 'static {
    /// A file system in memory at `target`, which is never swapped out where the kernel can promise it.
    fn tmpfs(&self, target: &Path, size: Option<u64>, top: Top) -> io::Result<()>;
    /// A file system of huge pages of that many bytes at `target`.
    fn huge_pages(&self, target: &Path, page: u64, top: Top) -> io::Result<()>;
    /// What is open as `source` also at `target`.
    fn bind(&self, source: BorrowedFd<'_>, target: &Path) -> io::Result<()>;
    /// File systems of the runtime's own making at `target`: its kind, source and options.
    fn mount(&self, kind: &str, source: &str, target: &Path, options: &[String]) -> io::Result<()>;
    /// Removes that very mount. One that is in use stays, and the error is `ResourceBusy`.
    fn unmount(&self, mount: &Mounted) -> io::Result<()>;
    /// Breaks off what a mount waits for on the network, so that it can be removed.
    fn abort(&self, mount: &Mounted) -> io::Result<()>;
    /// What is mounted beneath `root`, the deepest and newest first.
    fn beneath(&self, root: &Path) -> io::Result<Vec<Mounted>>;

    /// Something is mounted at `path` itself, which is no server's on the network: to ask the kernel about that
    /// very path may take for ever where it is.
    fn is_mounted_here(&self, path: &Path) -> bool {
        self.is_mounted(path)
    }

    /// Something is mounted at `path` itself.
    fn is_mounted(&self, path: &Path) -> bool {
        let parent = path.parent().unwrap_or(path);
        self.beneath(parent).is_ok_and(|found| found.iter().any(|m| m.path == path))
    }
}

/// The kernel's mounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelMounts;

impl KernelMounts {
    fn filesystem(kind: &str, source: &str, target: &Path, flags: MountFlags, options: &str) -> io::Result<()> {
        let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
        Ok(rustix::mount::mount(source, target, kind, flags, options.as_c_str())?)
    }

    fn end(mount: &Mounted, flags: UnmountFlags) -> io::Result<()> {
        let (Some(parent), Some(name)) = (mount.path.parent(), mount.path.file_name()) else {
            return Err(io::Error::other("the root is not ours to unmount"));
        };
        let parent = match rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(parent) => parent,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if !mount.is_remote() {
            let at = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
            let found = rustix::fs::statx(&parent, name, at, StatxFlags::MNT_ID)?;
            // Kernels before 5.8 do not tell.
            if found.stx_mask & StatxFlags::MNT_ID.bits() != 0 && found.stx_mnt_id != mount.id {
                return Err(io::Error::other(format!("{} is another mount by now", mount.path.display())));
            }
        }
        // Through the open parent: no link on the way can lead elsewhere.
        let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name);
        match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | flags) {
            // Not mounted any more.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Mounts for KernelMounts {
    fn tmpfs(&self, target: &Path, size: Option<u64>, top: Top) -> io::Result<()> {
        let (size, top) = (size.map(|s| format!(",size={s}")).unwrap_or_default(), top.options());
        let mount =
            |more: &str| Self::filesystem("tmpfs", "tmpfs", target, MountFlags::empty(), &format!("{top}{size}{more}"));
        match mount(",noswap") {
            // Kernels before 6.4 do not know the word.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => mount(""),
            other => other,
        }
    }

    fn huge_pages(&self, target: &Path, page: u64, top: Top) -> io::Result<()> {
        let options = format!("{},pagesize={page}", top.options());
        Self::filesystem("hugetlbfs", "nodev", target, MountFlags::empty(), &options)?;
        // Its options know all of a mode but the bit that hands on the group.
        std::fs::set_permissions(target, std::fs::Permissions::from_mode(top.mode))
    }

    fn bind(&self, source: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
        // By descriptor: the path that led to it may mean something else by now.
        let source = format!("/proc/self/fd/{}", source.as_raw_fd());
        Ok(rustix::mount::mount_bind(source, target)?)
    }

    fn mount(&self, kind: &str, source: &str, target: &Path, options: &[String]) -> io::Result<()> {
        let (flags, data) = flags(options);
        if flags.contains(MountFlags::BIND) {
            rustix::mount::mount_bind(source, target)?;
            return Ok(rustix::mount::mount_remount(target, flags, "")?);
        }
        let all = data.join(",");
        match kind {
            _ if overlay::fits(&all) => Self::filesystem(kind, source, target, flags, &all),
            "overlay" => overlay::mount(source, target, flags, &data),
            _ => Err(overlay::too_long(kind, &all)),
        }
    }

    fn unmount(&self, mount: &Mounted) -> io::Result<()> {
        Self::end(mount, UnmountFlags::empty())
    }

    fn abort(&self, mount: &Mounted) -> io::Result<()> {
        Self::end(mount, UnmountFlags::FORCE)
    }

    fn beneath(&self, root: &Path) -> io::Result<Vec<Mounted>> {
        Ok(parse(&std::fs::read_to_string("/proc/self/mountinfo")?, root))
    }

    /// One question about one path, where the whole table has a line for every mount of every pod.
    fn is_mounted_here(&self, path: &Path) -> bool {
        let at = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let told = rustix::fs::statx(rustix::fs::CWD, path, at, StatxFlags::empty());
        match told {
            Ok(found) if found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
                found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
            }
            Err(Errno::NOENT | Errno::NOTDIR) => false,
            // Kernels before 5.8 do not tell.
            _ => self.is_mounted(path),
        }
    }
}

/// Options as `mount` takes them, as flags and what is left for the file system.
fn flags(options: &[String]) -> (MountFlags, Vec<&str>) {
    let (mut flags, mut data) = (MountFlags::empty(), Vec::new());
    for option in options {
        match option.as_str() {
            "ro" => flags |= MountFlags::RDONLY,
            "bind" | "rbind" => flags |= MountFlags::BIND,
            "nosuid" => flags |= MountFlags::NOSUID,
            "nodev" => flags |= MountFlags::NODEV,
            "noexec" => flags |= MountFlags::NOEXEC,
            "rw" => {}
            other => data.push(other),
        }
    }
    (flags, data)
}

/// The mounts beneath `root` in the text of `mountinfo`.
fn parse(text: &str, root: &Path) -> Vec<Mounted> {
    let mut found: Vec<Mounted> = text
        .lines()
        .filter_map(|line| {
            let (head, tail) = line.split_once(" - ")?;
            let mut head = head.split(' ');
            let (id, path) = (head.next()?, head.nth(3)?);
            // Most lines are of other pods: they are told by their first bytes.
            if !path.contains('\\') && !path.as_bytes().starts_with(root.as_os_str().as_bytes()) {
                return None;
            }
            let (id, path) = (id.parse().ok()?, unescape(path));
            Some(Mounted { id, path, kind: tail.split(' ').next()?.to_owned() })
        })
        .filter(|m| m.path.starts_with(root) && m.path != root)
        .collect();
    // Of two at one place the later line is on top.
    found.reverse();
    found.sort_by_key(|m| std::cmp::Reverse(m.path.components().count()));
    found
}

/// The kernel writes blanks and backslashes of paths in octal.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..3).and_then(|c| std::str::from_utf8(c).ok()).and_then(|c| u8::from_str_radix(c, 8).ok());
        match code {
            Some(code) if byte == b'\\' => {
                out.push(code);
                rest = &tail[3..];
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

/// Records what was asked and mounts nothing.
#[cfg(test)]
#[derive(Clone, Default)]
pub struct FakeMounts {
    mounted: std::sync::Arc<parking_lot::Mutex<Vec<Mounted>>>,
    /// What may not be unmounted: somebody uses it.
    pub busy: std::sync::Arc<parking_lot::Mutex<Vec<PathBuf>>>,
    /// The next mount is made, and who wanted it does not live to see it.
    pub dies: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

#[cfg(test)]
impl FakeMounts {
    fn add(&self, target: &Path, kind: &str) -> io::Result<()> {
        let mut mounted = self.mounted.lock();
        let id = mounted.iter().map(|m| m.id).max().unwrap_or(0) + 1;
        mounted.push(Mounted { id, path: target.to_owned(), kind: kind.to_owned() });
        if self.dies.swap(false, std::sync::atomic::Ordering::SeqCst) {
            return Err(io::Error::other("dead"));
        }
        Ok(())
    }

    fn top(target: &Path, top: Top) -> io::Result<()> {
        // Only root may give files away.
        let _ = std::os::unix::fs::chown(target, None, top.group);
        std::fs::set_permissions(target, std::fs::Permissions::from_mode(top.mode))
    }

    /// What is mounted: kind and path beneath `root`.
    pub fn list(&self, root: &Path) -> Vec<String> {
        let shown = |m: &Mounted| format!("{} {}", m.kind, m.path.strip_prefix(root).unwrap_or(&m.path).display());
        self.mounted.lock().iter().map(shown).collect()
    }
}

#[cfg(test)]
impl Mounts for FakeMounts {
    fn tmpfs(&self, target: &Path, size: Option<u64>, top: Top) -> io::Result<()> {
        Self::top(target, top)?;
        self.add(target, &size.map_or("tmpfs".to_owned(), |s| format!("tmpfs={s}")))
    }

    fn huge_pages(&self, target: &Path, page: u64, top: Top) -> io::Result<()> {
        Self::top(target, top)?;
        self.add(target, &format!("hugetlbfs={page}"))
    }

    fn bind(&self, _: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
        self.add(target, "bind")
    }

    fn mount(&self, kind: &str, _: &str, target: &Path, _: &[String]) -> io::Result<()> {
        self.add(target, kind)
    }

    fn unmount(&self, mount: &Mounted) -> io::Result<()> {
        if self.busy.lock().contains(&mount.path) {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy));
        }
        self.mounted.lock().retain(|m| m.id != mount.id);
        Ok(())
    }

    fn abort(&self, _: &Mounted) -> io::Result<()> {
        Ok(())
    }

    fn beneath(&self, root: &Path) -> io::Result<Vec<Mounted>> {
        let mut found: Vec<_> = self.mounted.lock().iter().filter(|m| m.path.starts_with(root)).cloned().collect();
        found.sort_by_key(|m| std::cmp::Reverse(m.path.components().count()));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_mount_table() {
        assert_eq!(unescape("/a\\040b\\134c"), PathBuf::from("/a b\\c"));
        assert_eq!(unescape("/plain"), PathBuf::from("/plain"));
        assert_eq!(unescape("/ü\\"), PathBuf::from("/ü\\"));
    }

    #[test]
    fn the_deepest_and_newest_come_first() {
        let text = "21 1 8:1 / / rw - ext4 /dev/sda rw\n\
                    30 21 0:5 / /p/v rw,nosuid - tmpfs tmpfs rw\n\
                    31 30 0:6 / /p/v rw shared:3 - nfs4 host:/x rw\n\
                    32 31 0:7 / /p/v/deep\\040er rw - bogus x rw\n\
                    33 21 0:8 / /px rw - tmpfs tmpfs rw\nbroken\n";
        let found: Vec<_> = parse(text, Path::new("/p")).into_iter().map(|m| (m.id, m.kind)).collect();
        assert_eq!(found, [(32, "bogus".into()), (31, "nfs4".into()), (30, "tmpfs".into())]);
        assert!(parse(text, Path::new("/p/v")).iter().all(|m| m.id == 32), "beneath, not at");
    }

    #[test]
    fn tops_of_new_file_systems() {
        assert_eq!(Top { mode: 0o1777, group: None }.options(), "mode=1777");
        assert_eq!(Top { mode: 0o2770, group: Some(7) }.options(), "mode=2770,gid=7");
    }

    #[test]
    #[ignore = "needs root"]
    fn real_memory_is_the_groups_at_once() {
        use std::os::unix::fs::MetadataExt;
        let root = tempfile::tempdir().expect("a directory");
        let target = root.path().join("v");
        std::fs::create_dir(&target).expect("made");
        KernelMounts.tmpfs(&target, Some(4096), Top { mode: 0o2770, group: Some(4711) }).expect("mounted");
        let meta = std::fs::metadata(&target).expect("there");
        for mount in KernelMounts.beneath(root.path()).expect("read") {
            KernelMounts.unmount(&mount).expect("unmounted");
        }
        assert_eq!((meta.gid(), meta.permissions().mode() & 0o7777), (4711, 0o2770));
    }

    #[test]
    fn what_is_mounted_at_a_path() {
        let root = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::symlink("/proc", root.path().join("link")).expect("linked");
        let is = |path: &Path| [KernelMounts.is_mounted_here(path), KernelMounts.is_mounted(path)];
        assert_eq!(is(Path::new("/proc")), [true; 2]);
        for none in ["", "none", "none/deeper", "link"] {
            assert_eq!(is(&root.path().join(none)), [false; 2], "{none}");
        }
    }

    #[test]
    fn options_of_the_runtimes_mounts() {
        let options = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(flags(&options("ro rbind")), (MountFlags::RDONLY | MountFlags::BIND, vec![]));
        let overlay = options("index=off lowerdir=/a:/b ro");
        assert_eq!(flags(&overlay), (MountFlags::RDONLY, vec!["index=off", "lowerdir=/a:/b"]));
    }
}
