//! Kernel settings, changed through the journal so that `reset` can put them back.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::journal::{Journal, Mutation};

/// Settings a node needs: (name, value). Each has its reason in `docs/architecture.md`.
pub const NEEDED: &[(&str, &str)] = &[
    // Packets between pods, Services and the host are forwarded.
    ("net.ipv4.ip_forward", "1"),
];

fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name.replace('.', "/"))
}

/// The present value.
pub fn get(name: &str) -> io::Result<String> {
    Ok(fs::read_to_string(path(name))?.trim().to_owned())
}

/// Sets `name` to `value`, recording the old one first. Does nothing when it is right already.
pub fn set(journal: &mut Journal, name: &str, value: &str) -> io::Result<()> {
    let old = get(name)?;
    if old == value {
        return Ok(());
    }
    journal.record(Mutation::Sysctl { name: name.to_owned(), old })?;
    fs::write(path(name), value)
}

/// Those of `wanted` that are not as they should be and cannot be changed, and why. Nothing is changed.
pub fn fixed(wanted: &[(&'static str, &'static str)]) -> Vec<(&'static str, String)> {
    let is_right = |name: &str, value: &str| get(name).is_ok_and(|found| found == value);
    let wrong = wanted.iter().filter(|(name, value)| !is_right(name, value));
    wrong
        .filter_map(|(name, _)| {
            let error = fs::OpenOptions::new().write(true).open(path(name)).err()?;
            Some((*name, error.to_string()))
        })
        .collect()
}

/// Puts a value back; used by `reset`.
pub fn restore(name: &str, old: &str) -> io::Result<()> {
    fs::write(path(name), old)
}
