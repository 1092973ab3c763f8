//! Looking at trees that somebody else grew and may change meanwhile: by descriptor, so that no link
//! leads out; without recursion and with few directories open at a time, however deep they are.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::beneath::Dir;

/// So many directories are open at a time; one further up is found again from below.
const OPEN: usize = 64;

const NO_DIRECTORY: [Errno; 2] = [Errno::NOTDIR, Errno::LOOP];

/// What is done with what is found.
pub trait Visitor {
    /// There is a name more. An error ends the walk.
    fn found(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Something that is no directory.
    fn file(&mut self, dir: &Dir, name: &OsStr) -> io::Result<()>;
    /// A directory, whose contents come next.
    fn directory(&mut self, dir: &Dir) -> io::Result<()>;
}

/// A directory whose sub-directories are being looked at.
struct Level {
    /// Device and inode.
    id: (u64, u64),
    dir: Option<Dir>,
    /// Sub-directories that were not looked at yet.
    rest: Vec<OsString>,
}

impl Level {
    fn read(dir: Dir, visitor: &mut impl Visitor) -> io::Result<Self> {
        let mut rest = Vec::new();
        dir.each(|name, is_dir| {
            visitor.found()?;
            if is_dir {
                rest.push(name.to_owned());
                return Ok(());
            }
            visitor.file(&dir, name)
        })?;
        Ok(Self { id: dir.id()?, dir: Some(dir), rest })
    }
}

/// Visits all that is beneath a directory. Of what is mounted there nothing is seen unless `across`.
pub fn walk(top: &Dir, across: bool, visitor: &mut impl Visitor) -> io::Result<()> {
    let mut levels = vec![Level::read(top.again()?, visitor)?];
    while let Some(mut level) = levels.pop() {
        let Some(dir) = level.dir.take() else {
            return Err(io::Error::other("a directory is not open whose contents are looked at"));
        };
        let Some(name) = level.rest.pop() else {
            if let Some(parent) = levels.last_mut().filter(|parent| parent.dir.is_none()) {
                let found = dir.parent()?;
                if found.id()? != parent.id {
                    return Err(io::Error::other("directories were moved while they were looked at"));
                }
                parent.dir = Some(found);
            }
            continue;
        };
        let sub = if across { dir.sub(Path::new(&name)) } else { dir.sub_here(Path::new(&name)) };
        let sub = match sub {
            Ok(sub) => Some(sub),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices && !across => None,
            // Something else by now, maybe a link.
            Err(error) if NO_DIRECTORY.iter().any(|e| error.raw_os_error() == Some(e.raw_os_error())) => {
                visitor.file(&dir, &name)?;
                None
            }
            Err(error) => return Err(error),
        };
        level.dir = Some(dir);
        levels.push(level);
        if let Some(sub) = sub {
            visitor.directory(&sub)?;
            levels.push(Level::read(sub, visitor)?);
            if let Some(far) = levels.len().checked_sub(OPEN + 1) {
                levels[far].dir = None;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::removal::tests::{deep, roomy};
    use super::*;

    #[derive(Default)]
    struct Count {
        files: usize,
        directories: usize,
        left: Option<usize>,
    }

    impl Visitor for Count {
        fn found(&mut self) -> io::Result<()> {
            let Some(left) = &mut self.left else { return Ok(()) };
            *left = left.checked_sub(1).ok_or(io::ErrorKind::QuotaExceeded)?;
            Ok(())
        }

        fn file(&mut self, _: &Dir, _: &OsStr) -> io::Result<()> {
            self.files += 1;
            Ok(())
        }

        fn directory(&mut self, _: &Dir) -> io::Result<()> {
            self.directories += 1;
            Ok(())
        }
    }

    #[test]
    fn every_place_is_seen_once_however_deep() {
        let root = roomy();
        let top = root.path().join("top");
        for n in 0..10 {
            std::fs::create_dir_all(top.join(format!("w{n}"))).expect("made");
            deep(&top.join(format!("w{n}")), if n == 5 { 10_000 } else { 70 + n }, b"x");
        }
        std::os::unix::fs::symlink("/usr", top.join("link")).expect("linked");
        let dir = Dir::open(&top).expect("opened");
        let mut count = Count::default();
        walk(&dir, true, &mut count).expect("walked");
        let deep: usize = (0..10).map(|n| if n == 5 { 10_000 } else { 70 + n }).sum();
        assert_eq!((count.files, count.directories), (10 + 1, 10 + deep));
        let mut few = Count { left: Some(50), ..Count::default() };
        assert!(walk(&dir, false, &mut few).is_err());
        Dir::open(root.path()).expect("opened").remove(OsStr::new("top")).expect("removed");
    }
}
