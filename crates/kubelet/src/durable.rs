//! Files that outlive a loss of power: what is written is whole or not there, and once it is written
//! it stays. Everything here blocks.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What a file that is being written is called until it is whole: its name and this.
pub const UNFINISHED: &str = ".new";

/// Replaces the file at `path`, readable by this user alone, and makes the folders it is in.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = folder(path)?;
    make_all(folder)?;
    replace(path, bytes, true)?;
    sync(folder)?;
    // It may have been made by who did not wait for that.
    folder.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync)
}

/// The same for what only an end of this process must not take: it is whole or not there for whoever reads it next,
/// and nobody waits for the disk. A loss of power in the next half minute may take it. What is so already is not
/// written again.
pub fn write_soon(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if std::fs::read(path).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    std::fs::create_dir_all(folder(path)?)?;
    replace(path, bytes, false)
}

fn folder(path: &Path) -> io::Result<&Path> {
    let names_no_file = || format!("{} names no file", path.display());
    let folder = path.parent().filter(|_| path.file_name().is_some());
    folder.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, names_no_file()))
}

fn replace(path: &Path, bytes: &[u8], lasts: bool) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let mut file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&unfinished)?;
    file.write_all(bytes)?;
    if lasts {
        file.sync_all()?;
    }
    std::fs::rename(&unfinished, path)
}

/// Removes a file; one that is not there is removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => path.parent().map_or(Ok(()), sync),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes the folders that are missing, each written down in the one above.
fn make_all(folder: &Path) -> io::Result<()> {
    let missing: Vec<PathBuf> = folder.ancestors().take_while(|f| !f.is_dir()).map(Path::to_owned).collect();
    for folder in missing.iter().rev() {
        std::fs::create_dir_all(folder)?;
        folder.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync)?;
    }
    Ok(())
}

fn sync(folder: &Path) -> io::Result<()> {
    std::fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_never_written_in_place() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("a/b/file");
        write(&path, b"one").expect("written");
        // What a reader has open, and what another name shows, is the old file.
        std::fs::hard_link(&path, root.path().join("old")).expect("linked");
        std::fs::write(root.path().join("a/b/file.new"), "half of what a process that ended wrote").expect("written");
        write(&path, b"two").expect("written");
        let read = |path: &Path| std::fs::read_to_string(path).expect("read");
        assert_eq!((read(&path), read(&root.path().join("old"))), ("two".into(), "one".into()));
        assert_eq!(std::fs::read_dir(root.path().join("a/b")).expect("read").count(), 1);
        write_soon(&path, b"two").expect("it is so");
        write_soon(&path, b"three").expect("written");
        let deeper = root.path().join("a/c/file");
        write_soon(&deeper, b"new").expect("written");
        assert_eq!((read(&path), read(&deeper)), ("three".into(), "new".into()));
        assert_eq!(std::fs::read_dir(root.path().join("a/b")).expect("read").count(), 1);
        assert!(write_soon(Path::new("/"), b"").is_err() && write(Path::new("/"), b"").is_err());
        remove(&path).expect("removed");
        remove(&path).expect("removed twice");
        assert!(!path.exists());
    }
}
