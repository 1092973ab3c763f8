//! Removing trees that somebody else grew: as deep as they like, with what they like in them. Nothing
//! recurses, few directories are open at a time, and what is mounted is never entered.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir as Entries};
use rustix::io::Errno;

use super::beneath;

/// So many directories are open at a time. What lies deeper is first moved up to the top.
const DEEPEST: usize = 64;

/// A directory that is being emptied.
struct Level {
    entries: Entries,
    name: OsString,
    /// Since its listing began something of it went: another listing may find less.
    changed: bool,
}

impl Level {
    fn new(dir: OwnedFd, name: OsString) -> io::Result<Self> {
        Ok(Self { entries: Entries::new(dir)?, name, changed: false })
    }
}

/// Removes a name of an open directory and all beneath it. Links are removed, not followed; a mount is
/// an error, and what is mounted stays as it is.
pub(super) fn remove(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let Some(top) = unlink(parent, name)? else { return Ok(()) };
    let mut levels = vec![Level::new(top, name.to_owned())?];
    let mut fresh = 0;
    while let Some(level) = levels.last_mut() {
        if let Some(entry) = level.entries.read() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let found = unlink(level.entries.fd()?, name)?;
            level.changed = true;
            match found {
                None => {}
                Some(sub) if levels.len() < DEEPEST => levels.push(Level::new(sub, name.to_owned())?),
                Some(_) => {
                    let (from, to) = (&levels[DEEPEST - 1], &levels[0]);
                    move_up(from.entries.fd()?, name, to.entries.fd()?, &mut fresh)?;
                    levels[0].changed = true;
                }
            }
            continue;
        }
        let Some((level, above)) = levels.split_last_mut() else { break };
        let above = above.last().map_or(Ok(parent), |l| l.entries.fd())?;
        match rustix::fs::unlinkat(above, &level.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => drop(levels.pop()),
            // What was moved here, or what the file system passed over while names went.
            Err(Errno::NOTEMPTY | Errno::EXIST) if std::mem::take(&mut level.changed) => level.entries.rewind(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Removes a name; a directory is opened instead.
fn unlink(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<OwnedFd>> {
    let mut again = 3;
    loop {
        let refused = match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(None),
            Err(error @ (Errno::ISDIR | Errno::PERM)) => error,
            Err(error) => return Err(error.into()),
        };
        match beneath::open_here(parent, name.as_ref()) {
            Ok(dir) => return Ok(Some(dir)),
            Err(Errno::NOENT) => return Ok(None),
            // No directory (any more).
            Err(Errno::NOTDIR | Errno::LOOP) if refused == Errno::PERM || again == 0 => return Err(refused.into()),
            Err(Errno::NOTDIR | Errno::LOOP) => again -= 1,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Moves a directory to where it is less deep, under a name that nothing has there.
fn move_up(from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>, fresh: &mut u64) -> io::Result<()> {
    loop {
        *fresh += 1;
        match rustix::fs::renameat(from, name, to, format!(".deep-{fresh}")) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::beneath::Dir;
    use super::*;
    use std::path::Path;

    /// A directory in memory where there is one: a disk takes its time for so many files.
    pub fn roomy() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
    }

    /// Directories in each other, deeper than any path can say; the last holds a file.
    pub fn deep(root: &Path, depth: usize, data: &[u8]) {
        let mut at = Dir::open(root).expect("opened");
        for _ in 0..depth {
            at.make_all(Path::new("d"), 0o755).expect("made");
            at = at.sub(Path::new("d")).expect("opened");
        }
        at.write(Path::new("f"), data, 0o600, beneath::Owner::default()).expect("written");
    }

    /// By recursion this would overflow the stack of a thread, and need a descriptor a directory.
    #[test]
    fn a_tree_as_deep_as_it_likes_goes() {
        let root = roomy();
        let top = root.path().join("top");
        std::fs::create_dir(&top).expect("made");
        deep(&top, 20_000, b"x");
        // Names that an earlier walk may have left.
        std::fs::create_dir_all(top.join(".deep-1/x")).expect("made");
        std::fs::write(top.join(".deep-2"), "").expect("written");
        Dir::open(root.path()).expect("opened").remove(OsStr::new("top")).expect("removed");
        assert!(!top.exists());
    }

    #[test]
    fn a_wide_tree_goes() {
        let root = roomy();
        for n in 0..3000 {
            std::fs::create_dir_all(root.path().join(format!("top/{}/{n}", n % 7))).expect("made");
            std::fs::write(root.path().join(format!("top/f{n}")), "").expect("written");
        }
        Dir::open(root.path()).expect("opened").remove(OsStr::new("top")).expect("removed");
        assert!(!root.path().join("top").exists());
    }

    /// A file system that is mounted, be it the same one, is somebody's data.
    #[test]
    fn what_is_mounted_is_never_entered() {
        struct Mounted(std::path::PathBuf);
        impl Drop for Mounted {
            fn drop(&mut self) {
                // Of a test that failed.
                let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
            }
        }
        let root = tempfile::tempdir().expect("a directory");
        let (data, target) = (root.path().join("data"), root.path().join("top/v/bound"));
        std::fs::create_dir(&data).expect("made");
        std::fs::write(data.join("precious"), "x").expect("written");
        std::fs::create_dir_all(&target).expect("made");
        if rustix::mount::mount_bind(&data, &target).is_err() {
            // Only root may mount.
            assert!(!rustix::process::geteuid().is_root(), "root may mount");
            return;
        }
        let mounted = Mounted(target);
        let dir = Dir::open(root.path()).expect("opened");
        let error = dir.remove(OsStr::new("top")).expect_err("something is mounted");
        assert_eq!(error.kind(), io::ErrorKind::CrossesDevices);
        assert!(data.join("precious").exists());
        drop(mounted);
        dir.remove(OsStr::new("top")).expect("removed");
        assert!(data.join("precious").exists() && !root.path().join("top").exists());
    }
}
