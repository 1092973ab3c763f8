//! Manifests in a folder (or in one file): read at every change that the kernel tells of, and now and
//! then in any case.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use machinery::decode::MAX_BYTES;
use rustix::fs::OFlags;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

use super::manifest::{Origin, parse};
use super::set::Manifest;

/// A folder with more manifests than this is not read to its end, and that is told.
const MAX_MANIFESTS: usize = 1000;

/// Every manifest at `path`; none when there is nothing there. Names that begin with a dot, folders and
/// whatever is no plain file are passed over. Blocks.
///
/// # Errors
/// When the folder cannot be listed.
pub fn read(path: &Path, node: &str, now: Timestamp) -> io::Result<Vec<Manifest>> {
    let is_folder = match std::fs::metadata(path) {
        Ok(found) => found.is_dir(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    if !is_folder {
        return Ok(read_file(path, node, now).into_iter().collect());
    }
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        if !name.as_bytes().starts_with(b".") {
            names.insert(name);
        }
    }
    let count = names.len();
    let mut found: Vec<_> =
        names.into_iter().take(MAX_MANIFESTS).filter_map(|n| read_file(&path.join(n), node, now)).collect();
    if count > MAX_MANIFESTS {
        let why = format!("it holds {count} manifests; only the first {MAX_MANIFESTS} are read");
        found.push(Manifest { origin: Origin::File(path.to_owned()), pods: Err(why) });
    }
    Ok(found)
}

/// One file; `None` for what is no plain file, or is gone by now.
fn read_file(path: &Path, node: &str, now: Timestamp) -> Option<Manifest> {
    let origin = Origin::File(path.to_owned());
    let bytes = match content(path) {
        Ok(bytes) => bytes?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(Manifest { origin, pods: Err(error.to_string()) }),
    };
    if bytes.len() > MAX_BYTES {
        return Some(Manifest { origin, pods: Err(format!("it is longer than {MAX_BYTES} bytes")) });
    }
    let pods = parse(&bytes, &origin, node, now);
    Some(Manifest { origin, pods })
}

fn content(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // A pipe must not keep us waiting.
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut out = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut out)?;
    Ok(Some(out))
}

/// Tells of changes in a folder.
pub struct Watch {
    events: AsyncFd<OwnedFd>,
    folder: PathBuf,
    /// The only name that counts, when one file is followed and not a folder.
    only: Option<OsString>,
}

impl Watch {
    /// Follows the folder `path`, or the file in its folder.
    ///
    /// # Errors
    /// When there is none, or the kernel has no watch to give.
    pub fn on(path: &Path) -> io::Result<Self> {
        let (folder, only) = if path.is_dir() {
            (path, None)
        } else {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            (folder, path.file_name().map(OsStr::to_owned))
        };
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::CREATE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&events, folder, flags)?;
        Ok(Self { events: crate::logs::follow::registered(events)?, folder: folder.to_owned(), only })
    }

    /// Waits until something may have changed.
    ///
    /// # Errors
    /// When the folder is gone: it must be followed anew.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.events.readable().await?;
            let found = drain(self.events.get_ref(), &self.folder, self.only.as_deref())?;
            ready.clear_ready();
            if found {
                return Ok(());
            }
        }
    }
}

/// Takes in all events there are; true when one of them counts.
fn drain(events: &OwnedFd, folder: &Path, only: Option<&OsStr>) -> io::Result<bool> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(events, &mut buffer);
    let mut found = false;
    loop {
        let event = match reader.next() {
            Ok(event) => event,
            Err(rustix::io::Errno::AGAIN) => return Ok(found),
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let flags = event.events();
        if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the folder is gone"));
        }
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            found = true;
        }
        let Some(name) = event.file_name().map(|n| OsStr::from_bytes(n.to_bytes())) else { continue };
        let counts = only.map_or(!name.as_bytes().starts_with(b"."), |only| only == name);
        // A file that was only just made is still to be written: its end comes as CLOSE_WRITE. A link is whole at once.
        found |= counts && (flags != ReadFlags::CREATE || is_link(&folder.join(name)));
    }
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|m| m.is_symlink() || m.nlink() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use stdx::ClockExt;
    use stdx::clock::RealClock;

    fn manifest(name: &str) -> String {
        format!("kind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: x}}]}}\n")
    }

    fn names(path: &Path) -> Vec<String> {
        let found = read(path, "n", Timestamp::UNIX_EPOCH).expect("listed");
        let mut out = Vec::new();
        for manifest in found {
            match manifest.pods {
                Ok(pods) => out.extend(pods.iter().map(|p| p.name.clone())),
                Err(error) => out.push(format!("{}: {error}", manifest.origin)),
            }
        }
        out
    }

    #[test]
    fn plain_files_are_read_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        assert_eq!(names(&at("absent")), Vec::<String>::new());
        for (file, name) in [("b.yaml", "b"), ("a.json", "a"), (".hidden.yaml", "hidden")] {
            std::fs::write(at(file), manifest(name)).expect("written");
        }
        std::fs::create_dir(at("folder.yaml")).expect("made");
        std::fs::write(at("folder.yaml/x.yaml"), manifest("x")).expect("written");
        std::os::unix::fs::symlink(at("folder.yaml/x.yaml"), at("link.yaml")).expect("linked");
        std::os::unix::fs::symlink(at("nowhere"), at("dangling.yaml")).expect("linked");
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("made");
        assert_eq!(names(dir.path()), ["a-n", "b-n", "x-n"]);
        assert_eq!(names(&at("b.yaml")), ["b-n"]);
        std::fs::write(at("long"), vec![b'#'; MAX_BYTES + 1]).expect("written");
        assert_eq!(names(&at("long")), [format!("{}: it is longer than {MAX_BYTES} bytes", at("long").display())]);
    }

    #[tokio::test]
    async fn changes_are_told_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let clock = RealClock::shared();
        let mut watch = Watch::on(dir.path()).expect("a watch");
        let mut one = Watch::on(&at("a.yaml")).expect("a watch");
        let seconds = Duration::from_secs(20);
        macro_rules! told {
            ($watch:expr, $what:expr) => {
                clock.timeout(seconds, $watch.changed()).await.expect($what).expect("followed")
            };
        }
        std::fs::write(at(".swap"), "x").expect("written");
        std::fs::write(at("a.yaml"), manifest("a")).expect("written");
        told!(watch, "written");
        told!(one, "written");
        std::fs::write(at("b.yaml"), manifest("b")).expect("written");
        told!(watch, "written");
        std::fs::rename(at("a.yaml"), at(".away")).expect("moved");
        told!(watch, "moved away");
        told!(one, "moved away");
        std::fs::rename(at(".away"), at("a.yaml")).expect("moved");
        told!(watch, "moved back");
        std::os::unix::fs::symlink(at("a.yaml"), at("l.yaml")).expect("linked");
        told!(watch, "linked");
        std::fs::remove_file(at("a.yaml")).expect("removed");
        told!(watch, "removed");
        dir.close().expect("removed");
        let gone = async { while watch.changed().await.is_ok() {} };
        clock.timeout(seconds, gone).await.expect("the folder is gone");
    }
}
