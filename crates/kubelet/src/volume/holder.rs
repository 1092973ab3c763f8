//! Who keeps a mount busy.

use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

use super::mounts::Mounted;

/// Names beyond these are not listed.
const MAX: usize = 3;

/// The processes that have a file of the mount open, or work in it: `process 17 (sleep)`. Empty when
/// nobody is found: another mount or the kernel itself may hold it.
pub fn holders(proc: &Path, mount: &Mounted) -> Vec<String> {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let found = pids.filter(|pid| uses(&proc.join(pid.to_string()), mount.id));
    found
        .take(MAX)
        .map(|pid| {
            let name = std::fs::read_to_string(proc.join(format!("{pid}/comm"))).unwrap_or_default();
            format!("process {pid} ({})", name.trim_end())
        })
        .collect()
}

fn uses(process: &Path, mount: u64) -> bool {
    let place = |name: &str| mount_of(&process.join(name)) == Some(mount);
    if place("cwd") || place("root") || place("exe") {
        return true;
    }
    let entries = std::fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
    let mut ids = entries.filter_map(|e| {
        let text = std::fs::read_to_string(e.path()).ok()?;
        text.lines().find_map(|l| l.strip_prefix("mnt_id:"))?.trim().parse::<u64>().ok()
    });
    ids.any(|id| id == mount)
}

/// The number of the mount that a link of the kernel's leads into; nothing on a network is asked.
fn mount_of(link: &Path) -> Option<u64> {
    let open = rustix::fs::open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(&open, "", at, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_the_root_it_works_in() {
        let id = mount_of(Path::new("/proc/self/cwd")).expect("a mount");
        let mount = Mounted { id, path: "/".into(), kind: String::new() };
        let own = format!("process {} (", std::process::id());
        assert!(uses(Path::new("/proc/self"), id));
        assert!(!uses(Path::new("/proc/self"), u64::MAX));
        let dir = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::symlink("/proc/self", dir.path().join(std::process::id().to_string())).expect("linked");
        assert!(holders(dir.path(), &mount)[0].starts_with(&own));
    }
}
