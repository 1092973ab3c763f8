//! Undoes every change in the journal, newest first. Stopping pods and the runtime comes before and
//! is the caller's; what remains here is the host's own state.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use net::nft;

use crate::journal::Mutation;
use crate::sysctl;

/// One step of a reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Unmount(PathBuf),
    DeleteTable { family: String, name: String },
    RemoveCgroup(PathBuf),
    RestoreSysctl { name: String, old: String },
    RemoveFolder(PathBuf),
}

/// The steps, in order: mounts before the folders they are in, rules before the settings they need.
/// `mounts` are the mount points of this machine.
pub fn plan(entries: &[Mutation], mounts: &[PathBuf]) -> Vec<Step> {
    let mut steps = Vec::new();
    let folders: Vec<&PathBuf> =
        entries.iter().filter_map(|e| if let Mutation::Folder { path } = e { Some(path) } else { None }).collect();
    let mut below: Vec<&PathBuf> = mounts
        .iter()
        .filter(|m| {
            folders.iter().any(|f| m.starts_with(f)) || entries.contains(&Mutation::Mount { path: (*m).clone() })
        })
        .collect();
    below.sort_by_key(|m| std::cmp::Reverse(m.components().count()));
    steps.extend(below.into_iter().cloned().map(Step::Unmount));
    for entry in entries.iter().rev() {
        match entry {
            Mutation::NftTable { family, name } => {
                steps.push(Step::DeleteTable { family: family.clone(), name: name.clone() });
            }
            Mutation::Cgroup { path } => steps.push(Step::RemoveCgroup(path.clone())),
            Mutation::Sysctl { name, old } => {
                steps.push(Step::RestoreSysctl { name: name.clone(), old: old.clone() });
            }
            Mutation::Folder { .. } | Mutation::Mount { .. } | Mutation::Kubeconfig { .. } => {}
        }
    }
    steps.extend(folders.into_iter().rev().cloned().map(Step::RemoveFolder));
    steps
}

/// The mount points of this machine.
pub fn mounts() -> io::Result<Vec<PathBuf>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(text.lines().filter_map(|line| line.split(' ').nth(4)).map(|p| PathBuf::from(unescape(p))).collect())
}

/// mountinfo writes space, tab, newline and backslash as octal escapes.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\').then(|| tail.get(..3)).flatten();
        let code = octal.and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Carries out one step; what is gone already is fine.
pub fn apply(step: &Step) -> io::Result<()> {
    let gone = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    match step {
        Step::Unmount(path) => {
            let result = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
            match result {
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
                other => other.map_err(Into::into),
            }
        }
        Step::DeleteTable { family, name } => {
            // A table that is gone is not an error worth telling apart: deleting adds it first.
            let rules = format!("table {family} {name}\ndelete table {family} {name}\n");
            nft::run(&rules, nft::Mode::Apply).map_err(io::Error::other)
        }
        Step::RemoveCgroup(path) => hierarchies()?.iter().try_for_each(|h| {
            let relative = path.strip_prefix("/").unwrap_or(path);
            gone(remove_cgroup(&h.join(relative)))
        }),
        Step::RestoreSysctl { name, old } => gone(sysctl::restore(name, old)),
        Step::RemoveFolder(path) => gone(fs::remove_dir_all(path)),
    }
}

/// Every cgroup hierarchy that is mounted, version 1 and 2.
pub fn hierarchies() -> io::Result<Vec<PathBuf>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    let is_cgroup = |line: &&str| line.split_once(" - ").is_some_and(|(_, fs)| fs.starts_with("cgroup"));
    Ok(text.lines().filter(is_cgroup).filter_map(|l| l.split(' ').nth(4)).map(|p| PathBuf::from(unescape(p))).collect())
}

/// Removes a cgroup and those below it. cgroup folders hold files that cannot be unlinked, so only
/// the folders are removed, deepest first.
fn remove_cgroup(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_go_before_folders_and_settings_return_last_changed_first() {
        let entries = [
            Mutation::Folder { path: "/var/lib/pintle".into() },
            Mutation::Sysctl { name: "net.ipv4.ip_forward".into(), old: "0".into() },
            Mutation::NftTable { family: "ip".into(), name: "pintle-proxy".into() },
        ];
        let mounts = ["/", "/var/lib/pintle/a", "/var/lib/pintle/a/b", "/home"].map(PathBuf::from);
        assert_eq!(
            plan(&entries, &mounts),
            [
                Step::Unmount("/var/lib/pintle/a/b".into()),
                Step::Unmount("/var/lib/pintle/a".into()),
                Step::DeleteTable { family: "ip".into(), name: "pintle-proxy".into() },
                Step::RestoreSysctl { name: "net.ipv4.ip_forward".into(), old: "0".into() },
                Step::RemoveFolder("/var/lib/pintle".into()),
            ]
        );
    }

    #[test]
    fn mountinfo_escapes_are_read() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescape(r"/a\04"), r"/a\04");
    }
}
