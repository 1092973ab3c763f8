//! Giving a volume to the pod's group, as `fsGroup` asks.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode};

use super::beneath::Dir;
use super::walk::{Visitor, walk};

/// What the group may do with files, and with directories on top.
const FILES: u32 = 0o660;
const DIRECTORIES: u32 = 0o110 | SETGID;
const SETGID: u32 = 0o2000;

/// The mode of a directory that is the group's.
pub const fn groups(mode: u32) -> u32 {
    mode | FILES | DIRECTORIES
}

/// Gives all of a directory to the group. With `only_on_mismatch` a root that is as it should be
/// stands for everything beneath it.
pub fn give(root: &Path, group: u32, only_on_mismatch: bool) -> io::Result<()> {
    let dir = Dir::open(root)?;
    let stat = rustix::fs::fstat(dir.fd())?;
    let wanted = FILES | DIRECTORIES;
    let is_given = stat.st_gid == group && Mode::from_raw_mode(stat.st_mode).bits() & wanted == wanted;
    if only_on_mismatch && is_given {
        return Ok(());
    }
    // The root last: what was broken off half way is not taken for done.
    walk(&dir, true, &mut Give(group))?;
    change(&dir, Path::new(""), &stat, group)
}

/// Gives what it visits.
struct Give(u32);

impl Visitor for Give {
    fn file(&mut self, dir: &Dir, name: &OsStr) -> io::Result<()> {
        match rustix::fs::statat(dir.fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => change(dir, Path::new(name), &stat, self.0),
            Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn directory(&mut self, dir: &Dir) -> io::Result<()> {
        change(dir, Path::new(""), &rustix::fs::fstat(dir.fd())?, self.0)
    }
}

/// Changes one file of an open directory, or the directory itself (an empty name).
fn change(dir: &Dir, name: &Path, stat: &rustix::fs::Stat, group: u32) -> io::Result<()> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let at = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    match rustix::fs::chownat(dir.fd(), name, None, Some(Gid::from_raw(group)), at) {
        Ok(()) => {}
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    if kind == FileType::Symlink {
        return Ok(());
    }
    let old = Mode::from_raw_mode(stat.st_mode).bits() & 0o7777;
    let more = if kind == FileType::Directory { FILES | DIRECTORIES } else { FILES };
    let mode = Mode::from_raw_mode(old | more);
    if name.as_os_str().is_empty() {
        return Ok(rustix::fs::fchmod(dir.fd(), mode)?);
    }
    // By descriptor: the name may have become a link since, which must not be followed.
    match dir.resolve_no_link(name) {
        Ok(file) => {
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            Ok(rustix::fs::chmod(path, mode)?)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A link by now.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn everything_is_the_groups_and_no_link_is_followed() {
        let outer = tempfile::tempdir().expect("a directory");
        let root = outer.path().join("v");
        std::fs::create_dir_all(root.join("d")).expect("made");
        std::fs::write(root.join("d/f"), "x").expect("written");
        std::fs::write(outer.path().join("other"), "x").expect("written");
        for path in [outer.path().join("other"), root.join("d/f")] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("set");
        }
        std::os::unix::fs::symlink("../other", root.join("link")).expect("linked");
        let own = std::fs::metadata(&root).expect("there").gid();
        // Only root may give files away.
        let group = if rustix::process::geteuid().is_root() { 4711 } else { own };
        give(&root, group, true).expect("given");
        let see = |path: &str| {
            let meta = std::fs::metadata(outer.path().join(path)).expect("there");
            (meta.gid(), meta.permissions().mode() & 0o7777)
        };
        assert_eq!((see("v").0, see("v").1 & 0o2770), (group, 0o2770));
        assert_eq!((see("v/d").0, see("v/d").1 & 0o2770), (group, 0o2770));
        assert_eq!(see("v/d/f"), (group, 0o660));
        assert_eq!(see("other"), (own, 0o600), "outside nothing changes");
        std::fs::set_permissions(root.join("d/f"), std::fs::Permissions::from_mode(0o600)).expect("set");
        give(&root, group, true).expect("given");
        assert_eq!(see("v/d/f"), (group, 0o600), "the root is as it should be");
        give(&root, group, false).expect("given");
        assert_eq!(see("v/d/f"), (group, 0o660));
    }

    /// Neither the stack nor the table of descriptors is as long as a path may be.
    #[test]
    fn a_tree_as_deep_as_it_likes_is_given() {
        let outer = super::super::removal::tests::roomy();
        let root = outer.path().join("v");
        std::fs::create_dir(&root).expect("made");
        super::super::removal::tests::deep(&root, 20_000, b"x");
        give(&root, std::fs::metadata(&root).expect("there").gid(), false).expect("given");
        let mut at = Dir::open(&root).expect("opened");
        for _ in 0..20_000 {
            at = at.sub(Path::new("d")).expect("opened");
        }
        assert_eq!(at.mode(Path::new("f")).expect("there"), 0o660);
        Dir::open(outer.path()).expect("opened").remove(OsStr::new("v")).expect("removed");
    }
}
