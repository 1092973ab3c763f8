//! A directory of files that changes as a whole: readers see all of the old or all of the new.
//!
//! ```text
//!  token     → ..data/token            what the pod opens
//!  ..data    → ..2026_07_01_12_00_00.17  swapped by one rename
//!  ..2026_07_01_12_00_00.17/token       the files
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::Path;

use super::beneath::{Dir, Owner, parts};

/// One file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// Its owner's uid where that differs from the volume's.
    pub user: Option<u32>,
}

/// The files by their paths in the volume.
pub type Payload = BTreeMap<String, File>;

const DATA: &str = "..data";
const NEXT: &str = "..data_tmp";

/// Makes `root` hold exactly `payload`. `version` names the new directory and must not have been
/// used before. False when it already was so.
pub fn write(root: &Path, payload: &Payload, version: &str, group: Option<u32>) -> io::Result<bool> {
    for path in payload.keys() {
        check(path)?;
    }
    let dir = Dir::open(root)?;
    let old = dir.link(DATA).ok();
    if let Some(old) = &old {
        if is_same(&dir, old, payload) {
            links(&dir, payload)?;
            return Ok(false);
        }
    }
    let name = format!("..{version}");
    dir.remove(OsStr::new(&name))?;
    dir.make_all(Path::new(&name), 0o755)?;
    let new = dir.sub(Path::new(&name))?;
    Owner { user: None, group }.apply(new.fd())?;
    for (path, file) in payload {
        if let Some(parent) = Path::new(path).parent() {
            new.make_all(parent, 0o755)?;
        }
        new.write(Path::new(path), &file.data, file.mode, Owner { user: file.user, group })?;
    }
    dir.remove(OsStr::new(NEXT))?;
    dir.symlink(&name, NEXT)?;
    dir.rename(NEXT, DATA)?;
    links(&dir, payload)?;
    // Versions that were left behind by a crash go with the old one.
    for (entry, is_dir) in dir.list()? {
        if is_dir && entry != OsStr::new(&name) && entry.to_string_lossy().starts_with("..") {
            dir.remove(&entry)?;
        }
    }
    Ok(true)
}

/// A path that stays within the volume and does not collide with our own names.
fn check(path: &str) -> io::Result<()> {
    let parts = parts(Path::new(path))?;
    let first = parts.first().map(|p| p.to_string_lossy());
    if path.len() > 4096 || first.is_none_or(|f| f.starts_with("..")) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{path:?} is no path of a file in a volume")));
    }
    Ok(())
}

fn is_same(dir: &Dir, version: &str, payload: &Payload) -> bool {
    let Ok(data) = dir.sub(Path::new(version)) else { return false };
    let mut found = BTreeSet::new();
    if collect(&data, "", &mut found).is_err() || found.len() != payload.len() {
        return false;
    }
    payload.iter().all(|(path, file)| {
        found.contains(path)
            && data.mode(Path::new(path)).is_ok_and(|m| m == file.mode)
            && data.read(Path::new(path)).is_ok_and(|d| d == file.data)
    })
}

fn collect(dir: &Dir, prefix: &str, found: &mut BTreeSet<String>) -> io::Result<()> {
    for (name, is_dir) in dir.list()? {
        let path = format!("{prefix}{}", name.to_string_lossy());
        if is_dir {
            collect(&dir.sub(Path::new(&name))?, &format!("{path}/"), found)?;
        } else {
            found.insert(path);
        }
    }
    Ok(())
}

/// The names that the pod sees: one link per first part of a path.
fn links(dir: &Dir, payload: &Payload) -> io::Result<()> {
    let wanted: BTreeSet<&str> = payload.keys().map(|p| p.split('/').next().unwrap_or(p)).collect();
    for name in &wanted {
        let target = format!("{DATA}/{name}");
        if dir.link(name).is_ok_and(|t| t == target) {
            continue;
        }
        dir.remove(OsStr::new(name))?;
        dir.symlink(&target, name)?;
    }
    for (name, _) in dir.list()? {
        let text = name.to_string_lossy();
        if !text.starts_with("..") && !wanted.contains(&*text) {
            dir.remove(&name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |data: &str| File { data: data.into(), mode: 0o640, user: None };
        files.iter().map(|(path, data)| ((*path).to_owned(), file(data))).collect()
    }

    #[test]
    fn a_volume_changes_as_a_whole() {
        let root = tempfile::tempdir().expect("a directory");
        let read = |path: &str| std::fs::read_to_string(root.path().join(path)).ok();
        let first = payload(&[("a", "1"), ("d/b", "2")]);
        assert!(write(root.path(), &first, "v1", None).expect("written"));
        assert_eq!((read("a").as_deref(), read("d/b").as_deref()), (Some("1"), Some("2")));
        assert_eq!(std::fs::read_link(root.path().join("a")).expect("a link").to_string_lossy(), "..data/a");
        assert!(!write(root.path(), &first, "v2", None).expect("unchanged"));
        assert_eq!(std::fs::read_link(root.path().join("..data")).expect("a link").to_string_lossy(), "..v1");
        let second = payload(&[("a", "3"), ("c", "4")]);
        assert!(write(root.path(), &second, "v3", None).expect("written"));
        assert_eq!((read("a").as_deref(), read("c").as_deref(), read("d/b")), (Some("3"), Some("4"), None));
        let mut names: Vec<_> =
            std::fs::read_dir(root.path()).expect("listed").flatten().map(|e| e.file_name()).collect();
        names.sort();
        assert_eq!(names, ["..data", "..v3", "a", "c"]);
    }

    #[test]
    fn an_interrupted_write_is_finished_by_the_next() {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("..v0")).expect("made");
        std::fs::write(root.path().join("..v0/half"), "").expect("written");
        std::os::unix::fs::symlink("..v0", root.path().join("..data_tmp")).expect("linked");
        assert!(write(root.path(), &payload(&[("a", "1")]), "v0", None).expect("written"));
        assert!(root.path().join("a").exists() && !root.path().join("..data_tmp").exists());
    }

    #[test]
    fn paths_that_leave_are_refused() {
        let root = tempfile::tempdir().expect("a directory");
        for bad in ["../a", "/a", "a/../../b", "..data", "", "..x/y"] {
            assert!(write(root.path(), &payload(&[(bad, "1")]), "v", None).is_err(), "{bad}");
        }
    }
}
