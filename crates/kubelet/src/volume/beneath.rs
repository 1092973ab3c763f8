//! Directories whose contents somebody else may change: everything is done relative to an open
//! directory and resolved beneath it by the kernel, so that no link leads out of it.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};

/// An open directory.
#[derive(Debug)]
pub struct Dir(OwnedFd);

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::RDONLY);

/// The parts of a relative path without `..`; anything else is refused.
pub fn parts(path: &Path) -> io::Result<Vec<&OsStr>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidInput, format!("{} leads out of its volume", path.display()));
    path.components()
        .filter(|c| *c != Component::CurDir)
        .map(|c| if let Component::Normal(part) = c { Ok(part) } else { Err(bad()) })
        .collect()
}

impl Dir {
    /// Opens a directory of our own by its path.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(rustix::fs::open(path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?))
    }

    /// Opens a directory of the node's by its path, where links are the administrator's.
    pub fn open_followed(path: &Path) -> io::Result<Self> {
        Ok(Self(rustix::fs::open(path, DIRECTORY, Mode::empty())?))
    }

    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Opens anything beneath this directory; links within it are followed, none leads out.
    pub fn resolve(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(&self.0, path, flags, Mode::empty(), within)?)
    }

    /// Opens anything beneath this directory without following any link; one is `ELOOP`.
    pub fn resolve_no_link(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(&self.0, path, flags, Mode::empty(), within)?)
    }

    /// Opens a directory beneath this one without following any link.
    pub fn sub(&self, path: &Path) -> io::Result<Self> {
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(Self(rustix::fs::openat2(&self.0, path, DIRECTORY, Mode::empty(), within)?))
    }

    /// The same, of this very mount: what is mounted on the way is `CrossesDevices`.
    pub fn sub_here(&self, path: &Path) -> io::Result<Self> {
        Ok(Self(open_here(self.fd(), path)?))
    }

    /// The directory that this one is in now.
    pub fn parent(&self) -> io::Result<Self> {
        Ok(Self(rustix::fs::openat(&self.0, "..", DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?))
    }

    /// The same directory, open once more.
    pub fn again(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Device and inode.
    pub fn id(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(&self.0)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Makes the directories of `path` that are missing, each resolved beneath this one.
    pub fn make_all(&self, path: &Path, mode: u32) -> io::Result<()> {
        let mut made = std::path::PathBuf::new();
        for part in parts(path)? {
            let parent = if made.as_os_str().is_empty() { self.0.try_clone()? } else { self.resolve(&made)? };
            match rustix::fs::mkdirat(&parent, part, Mode::from_raw_mode(mode)) {
                // The mode is exact, whatever this process's mask.
                Ok(()) => rustix::fs::chmodat(&parent, part, Mode::from_raw_mode(mode), AtFlags::empty())?,
                Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            made.push(part);
        }
        Ok(())
    }

    /// Writes a new file with exactly this mode.
    pub fn write(&self, path: &Path, data: &[u8], mode: u32, owner: Owner) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let fd = rustix::fs::openat2(&self.0, path, flags, Mode::from_raw_mode(0o600), within)?;
        let mut file = std::fs::File::from(fd);
        file.write_all(data)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        owner.apply(file.as_fd())?;
        Ok(())
    }

    /// Reads a file without following links.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let fd = rustix::fs::openat2(&self.0, path, flags, Mode::empty(), within)?;
        let mut out = Vec::new();
        std::fs::File::from(fd).read_to_end(&mut out)?;
        Ok(out)
    }

    /// The permission bits of a file.
    pub fn mode(&self, path: &Path) -> io::Result<u32> {
        let stat = rustix::fs::statat(&self.0, path, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Mode::from_raw_mode(stat.st_mode).bits() & 0o7777)
    }

    /// Where a link points.
    pub fn link(&self, name: &str) -> io::Result<String> {
        let target = rustix::fs::readlinkat(&self.0, name, Vec::new())?;
        Ok(target.to_string_lossy().into_owned())
    }

    /// Makes a link.
    pub fn symlink(&self, target: &str, name: &str) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &self.0, name)?)
    }

    /// Renames within this directory, replacing what has the new name.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
    }

    /// Names in this directory, and whether each is a directory.
    pub fn list(&self) -> io::Result<Vec<(std::ffi::OsString, bool)>> {
        let mut out = Vec::new();
        self.each(|name, is_dir| {
            out.push((name.to_owned(), is_dir));
            Ok(())
        })?;
        Ok(out)
    }

    /// Each name in this directory, and whether it is a directory.
    pub fn each(&self, mut work: impl FnMut(&OsStr, bool) -> io::Result<()>) -> io::Result<()> {
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let is_dir = match entry.file_type() {
                FileType::Unknown => match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
                    Err(rustix::io::Errno::NOENT) => continue,
                    Err(error) => return Err(error.into()),
                },
                kind => kind == FileType::Directory,
            };
            work(name, is_dir)?;
        }
        Ok(())
    }

    /// Removes a name of this directory and all that is beneath it; a link is removed, not followed, and
    /// what is mounted is an error.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        super::removal::remove(self.fd(), name)
    }
}

/// Opens a directory beneath another and of the same mount, without following any link.
pub(super) fn open_here(dir: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | links;
    rustix::fs::openat2(dir, path, DIRECTORY, Mode::empty(), within)
}

/// Who owns what is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub user: Option<u32>,
    pub group: Option<u32>,
}

impl Owner {
    /// Gives an open file its owner; nothing is done where neither is named.
    pub fn apply(self, fd: BorrowedFd<'_>) -> io::Result<()> {
        if self.user.is_none() && self.group.is_none() {
            return Ok(());
        }
        Ok(rustix::fs::fchown(fd, self.user.map(Uid::from_raw), self.group.map(Gid::from_raw))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_link_leads_out() {
        let outer = tempfile::tempdir().expect("a directory");
        let root = outer.path().join("vol");
        std::fs::create_dir(&root).expect("made");
        std::fs::write(outer.path().join("secret"), "x").expect("written");
        std::os::unix::fs::symlink("..", root.join("up")).expect("linked");
        std::os::unix::fs::symlink("/etc", root.join("abs")).expect("linked");
        std::os::unix::fs::symlink("real", root.join("in")).expect("linked");
        std::fs::create_dir(root.join("real")).expect("made");
        let dir = Dir::open(&root).expect("opened");
        for bad in ["up/secret", "abs/passwd", "../secret", "/etc/passwd"] {
            assert!(dir.resolve(Path::new(bad)).is_err(), "{bad}");
        }
        assert!(dir.resolve(Path::new("in")).is_ok());
        dir.make_all(Path::new("in/a/b"), 0o750).expect("made");
        assert!(root.join("real/a/b").is_dir());
        assert!(dir.make_all(Path::new("up/x"), 0o750).is_err());
        assert!(dir.write(Path::new("abs/x"), b"", 0o600, Owner::default()).is_err());
        dir.remove(OsStr::new("up")).expect("removed");
        assert!(outer.path().join("secret").exists(), "only the link went");
    }

    /// A container that swaps a directory for a link out of its volume, again and again, while its
    /// path is resolved: never is anything found that is not beneath the volume.
    #[test]
    fn no_swap_in_a_race_leads_out() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let outer = tempfile::tempdir().expect("a directory");
        let root = outer.path().join("vol");
        std::fs::create_dir_all(root.join("real/deep")).expect("made");
        std::fs::create_dir_all(outer.path().join("secret/deep")).expect("made");
        std::os::unix::fs::symlink("../secret", root.join("link")).expect("linked");
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).expect("there"));
        let inside = inode(&root.join("real/deep"));
        let (dir, done) = (Dir::open(&root).expect("opened"), AtomicBool::new(false));
        let (mut found, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                while !done.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(dir.fd(), "real", dir.fd(), "link", exchange).expect("swapped");
                }
            });
            for _ in 0..20_000 {
                match dir.resolve(Path::new("real/deep")) {
                    Ok(fd) => {
                        assert_eq!(rustix::fs::fstat(fd).expect("there").st_ino, inside);
                        found += 1;
                    }
                    Err(_) => refused += 1,
                }
                // What is made is made inside, or not at all.
                let _ = dir.make_all(Path::new("real/made"), 0o700);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(!outer.path().join("secret/made").exists());
        assert_eq!(found + refused, 20_000);
    }
}
