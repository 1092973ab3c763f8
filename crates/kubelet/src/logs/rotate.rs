//! Log files that grow too large are moved away, and only so many are kept.
//!
//! ```text
//!  0.log                   what the container writes
//!  0.log.20260701-120000   moved away
//! ```

use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

/// Upstream's bounds.
pub const MAX_SIZE: u64 = 10 << 20;
pub const MAX_FILES: usize = 5;

/// The files of one log that were moved away, the oldest first.
pub fn rotated(log: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|n| n.to_str())) else {
        return Ok(Vec::new());
    };
    let prefix = format!("{name}.");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|n| n.starts_with(&prefix)) {
            found.push(entry.path());
        }
    }
    // Their names sort as their times do.
    found.sort();
    Ok(found)
}

/// Moves a log away if it is too large, and removes the oldest beyond the number that is kept. True
/// when the runtime must open it anew.
pub fn rotate(log: &Path, max_size: u64, max_files: usize, now: Timestamp) -> io::Result<bool> {
    let size = match std::fs::metadata(log) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if size < max_size {
        return Ok(false);
    }
    let old = rotated(log)?;
    let surplus = (old.len() + 2).saturating_sub(max_files.max(2));
    for path in old.iter().take(surplus) {
        std::fs::remove_file(path)?;
    }
    let stamp = jiff::fmt::strtime::format("%Y%m%d-%H%M%S", now).map_err(io::Error::other)?;
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".{stamp}"));
    std::fs::rename(log, PathBuf::from(name))?;
    Ok(true)
}

/// Removes a log with all that was moved away from it.
pub fn remove_all(log: &Path) {
    for path in rotated(log).unwrap_or_default().iter().map(PathBuf::as_path).chain([log]) {
        if let Err(error) = std::fs::remove_file(path) {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(path = %path.display(), %error, "cannot remove a log");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_are_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("0.log");
        let count = || std::fs::read_dir(dir.path()).expect("listed").count();
        assert!(!rotate(&log, 3, 3, Timestamp::UNIX_EPOCH).expect("nothing there"));
        for second in 0..5 {
            std::fs::write(&log, format!("{second}long")).expect("written");
            assert!(rotate(&log, 3, 3, Timestamp::from_second(second).expect("a time")).expect("rotated"));
            assert!(!log.exists());
        }
        assert_eq!(count(), 2, "with the new log there are three");
        std::fs::write(&log, "x").expect("written");
        assert!(!rotate(&log, 3, 3, Timestamp::UNIX_EPOCH).expect("small"));
        remove_all(&log);
        assert_eq!(count(), 0);
    }
}
