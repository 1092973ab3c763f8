//! The kubeconfig of the user who started us: a context `pintle` is merged into it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use client::kubeconfig::{self, Entry};
use host::journal::{Journal, Mutation};

/// The context's name.
pub const CONTEXT: &str = "pintle";

/// Where the user keeps it: the first file of KUBECONFIG, else `.kube/config` at home. Under sudo
/// it is the calling user's.
#[allow(clippy::disallowed_methods, reason = "where the kubeconfig is, is said by the environment")]
fn path() -> Option<PathBuf> {
    if let Ok(list) = std::env::var("KUBECONFIG") {
        if let Some(first) = list.split(':').find(|p| !p.is_empty()) {
            return Some(first.into());
        }
    }
    let home = std::env::var("SUDO_USER")
        .ok()
        .and_then(|user| home_of(&user))
        .or_else(|| std::env::var("HOME").ok().map(PathBuf::from))?;
    Some(home.join(".kube/config"))
}

fn home_of(user: &str) -> Option<PathBuf> {
    let accounts = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = accounts.lines().find(|l| l.split(':').next() == Some(user))?;
    line.split(':').nth(5).filter(|h| !h.is_empty()).map(PathBuf::from)
}

/// Merges the entry, records it for `reset`, and leaves the file with the owner it had, a new one with its folder's.
pub fn merge_kubeconfig(entry: &Entry, journal: &mut Journal) -> Result<()> {
    let Some(path) = path() else { return Ok(()) };
    let folder = path.parent().map(PathBuf::from).unwrap_or_default();
    let fresh = !folder.exists();
    let owner = owner_of(&path)?;
    journal.record(Mutation::Kubeconfig { path: path.clone(), context: CONTEXT.into() })?;
    let old = if path.exists() { kubeconfig::load(&path)? } else { serde_json::Value::Null };
    let merged = kubeconfig::merge(old, entry, false);
    kubeconfig::write(&path, &merged).with_context(|| path.display().to_string())?;
    let (uid, gid) = (Some(owner.uid()), Some(owner.gid()));
    std::os::unix::fs::chown(&path, uid, gid)?;
    if fresh {
        std::os::unix::fs::chown(&folder, uid, gid)?;
    }
    Ok(())
}

/// Who has the file; of one that is not there, who has the nearest folder that is.
fn owner_of(path: &Path) -> std::io::Result<std::fs::Metadata> {
    let absolute = std::path::absolute(path)?;
    let there = absolute.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    std::fs::metadata(there)
}

/// Takes our context out of the file again; a file that is gone is fine.
pub fn forget(path: &Path, context: &str) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let names = Entry { cluster: context.into(), user: context.into(), context: context.into(), ..Entry::default() };
    let owner = std::fs::metadata(path)?;
    kubeconfig::write(path, &kubeconfig::remove(kubeconfig::load(path)?, &names))?;
    std::os::unix::fs::chown(path, Some(owner.uid()), Some(owner.gid()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_that_exists_owns() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join(".kube/config");
        let inode = |path: &Path| owner_of(path).expect("an owner").ino();
        let of = |path: &Path| std::fs::metadata(path).expect("is there").ino();
        assert_eq!(inode(&file), of(dir.path()));
        std::fs::create_dir(dir.path().join(".kube")).expect("made");
        assert_eq!(inode(&file), of(&dir.path().join(".kube")));
        std::fs::write(&file, "").expect("written");
        assert_eq!(inode(&file), of(&file));
    }
}
