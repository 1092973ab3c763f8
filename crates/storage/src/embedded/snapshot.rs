//! Snapshots: the state at one revision in one checked file, and the way back.
//!
//! A restored store continues far above every revision its clients can have seen, so that none of
//! them sees time run backwards: all their watches and lists start anew with `410 Expired`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stdx::Rng;
use stdx::clock::Instant;

use super::files::{Files, Folder};
use super::place::Place;
use super::record::{FileKind, MAGIC};
use super::{Embedded, base, recovery, salt};
use crate::mvcc::Entries;
use crate::{Error, HistoryBounds, Revision};

/// How far a restore jumps ahead. A cluster would need a year of thirty writes a second to get there.
pub const JUMP: Revision = 1_000_000_000;

/// What a snapshot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    pub revision: Revision,
    pub keys: usize,
    pub bytes: u64,
}

/// A file's folder and name.
fn split(path: &Path) -> Result<(Arc<dyn Files>, &str), Error> {
    let name = path.file_name().and_then(|n| n.to_str());
    let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the path of a file"))?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((Arc::new(Folder::unlocked(folder)?), name))
}

impl Embedded {
    /// Saves the current state to a new file. The store goes on meanwhile. Blocks.
    pub fn save(&self, path: &Path) -> Result<Summary, Error> {
        let (files, name) = split(path)?;
        let (entries, revision) = {
            let state = self.shared.state.read();
            (state.current().clone(), state.revision())
        };
        let saved = base::write(&*files, name, &entries, (revision, salt(&self.rng)), |_| true)?;
        Ok(Summary { revision, keys: entries.len(), bytes: saved.bytes })
    }
}

/// How often a store that changes underneath is read anew.
const ATTEMPTS: usize = 5;

/// Saves the state of the store in `folder` to a new file, also while a process has it open: every
/// commit acknowledged before the call is in it. Takes no lock and changes nothing there. Blocks.
///
/// A file that compaction removed, or a new log that was listed without its predecessor, looks like
/// damage: both are gone when the folder is read again.
pub fn save(folder: &Path, path: &Path, rng: &Rng) -> Result<Summary, Error> {
    let watched = Folder::watched(folder)?;
    if !recovery::is_store(&watched)? {
        let text = format!("{} is not a store", folder.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, text).into());
    }
    let mut attempt = 1;
    let seen = loop {
        match recovery::recover(&watched, HistoryBounds::default(), 0, Instant::default()) {
            Ok(seen) => break seen,
            Err(error) if attempt == ATTEMPTS || matches!(error, Error::Format { .. }) => return Err(error),
            Err(_) => attempt += 1,
        }
    };
    let (files, name) = split(path)?;
    let (entries, revision) = (seen.state.current(), seen.state.revision());
    let saved = base::write(&*files, name, entries, (revision, salt(rng)), |_| true)?;
    Ok(Summary { revision, keys: entries.len(), bytes: saved.bytes })
}

/// Reads a snapshot. A file that never was one is not called damaged.
fn read(files: &dyn Files, name: &str) -> Result<(base::Base, Entries<Place>), Error> {
    let mut start = [0; MAGIC];
    let length = files.open(name)?.read_at(&mut start, 0)?;
    if !FileKind::Base.begins(&start[..length]) {
        return Err(Error::Corrupt("this is not a snapshot".into()));
    }
    base::read(files, name)
}

/// Reads and checks all of a snapshot. Blocks.
pub fn inspect(path: &Path) -> Result<Summary, Error> {
    let (files, name) = split(path)?;
    let (saved, entries) = read(&*files, name)?;
    Ok(Summary { revision: saved.revision, keys: entries.len(), bytes: saved.bytes })
}

/// Makes `folder` a store with the snapshot's state. A store that is there already is kept beside it;
/// the path it has now is returned. Blocks.
pub fn restore(path: &Path, folder: &Path, rng: &Rng) -> Result<(Summary, Option<PathBuf>), Error> {
    let (files, name) = split(path)?;
    let (saved, entries) = read(&*files, name)?;
    let fresh = beside(folder, "restoring")?;
    // Nobody may use the old store while it is replaced; what it still can tell, it tells.
    let old = folder.exists().then(|| Folder::lock(folder)).transpose()?;
    let told =
        old.as_ref().and_then(|old| recovery::recover(old, HistoryBounds::default(), 0, Instant::default()).ok());
    let old_revision = told.map_or(0, |told| told.state.revision());
    let revision = saved.revision.max(old_revision) + JUMP;
    {
        let fresh = Folder::lock(&fresh)?;
        base::write(&fresh, &base::name(revision), &entries, (revision, salt(rng)), |_| true)?;
        recovery::create_store(&fresh, revision, salt(rng))?;
    }
    let kept = folder.exists().then(|| beside(folder, "before-restore")).transpose()?;
    if let Some(kept) = &kept {
        fs::rename(folder, kept)?;
    }
    fs::rename(&fresh, folder)?;
    drop(old);
    if let Some(parent) = folder.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::File::open(parent)?.sync_all()?;
    }
    Ok((Summary { revision, keys: entries.len(), bytes: saved.bytes }, kept))
}

/// A free name next to `folder`.
fn beside(folder: &Path, what: &str) -> io::Result<PathBuf> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for number in 1..1000 {
        let candidate = folder.with_file_name(format!("{name}.{what}-{number}"));
        if !candidate.exists() {
            return Ok(candidate);
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("too many folders {name}.{what}-…")))
}
