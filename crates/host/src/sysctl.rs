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

/// And where pods have IPv6.
pub const FORWARD_V6: (&str, &str) = ("net.ipv6.conf.all.forwarding", "1");

/// Of `net.ipv4.ip_forward`, or of `net/ipv6/conf/eth0.7/accept_ra`: what holds a slash is a path already.
fn path(name: &str) -> PathBuf {
    let name = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    PathBuf::from("/proc/sys").join(name)
}

/// The present value.
pub fn get(name: &str) -> io::Result<String> {
    Ok(fs::read_to_string(path(name))?.trim().to_owned())
}

/// Where a setting of one link is. Names of links may hold dots (`eth0.7`), where those of settings hold slashes.
fn of_link(link: &str, setting: &str) -> String {
    format!("net/ipv6/conf/{link}/{setting}")
}

/// The present value of an IPv6 setting of one link.
pub fn get_of_link(link: &str, setting: &str) -> io::Result<String> {
    get(&of_link(link, setting))
}

/// Sets an IPv6 setting of one link, recording the old value first.
pub fn set_of_link(journal: &mut Journal, link: &str, setting: &str, value: &str) -> io::Result<()> {
    set(journal, &of_link(link, setting), value)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_files_also_where_a_link_has_a_dot() {
        assert_eq!(path("net.ipv4.ip_forward"), PathBuf::from("/proc/sys/net/ipv4/ip_forward"));
        let of_link = of_link("eth0.7", "accept_ra");
        assert_eq!(path(&of_link), PathBuf::from("/proc/sys/net/ipv6/conf/eth0.7/accept_ra"));
    }
}
