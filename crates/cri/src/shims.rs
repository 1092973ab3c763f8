//! Shims that containerd has forgotten. When a call that starts a task is broken off (our process was
//! killed, or gave the call up), containerd may remove the bundle of a shim that is just coming up
//! and never tell it to end: it then runs for ever, for nothing. Such a shim has a working directory
//! that was deleted, which nothing can bring back.

use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The processes among those in `proc` that are shims of the containerd at `socket`, each with the
/// id of what it runs.
pub fn running(proc: &Path, socket: &Path) -> Vec<(i32, String)> {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, id(&proc.join(pid.to_string()), socket)?))).collect()
}

/// Those that have lost their bundle, of those that [`running`] has found.
pub fn abandoned(proc: &Path, socket: &Path, running: &[(i32, String)]) -> Vec<i32> {
    let all = running.iter().map(|(pid, _)| *pid);
    all.filter(|pid| is_abandoned(&proc.join(pid.to_string()), socket)).collect()
}

/// The id a shim of this runtime was started with; `None` for every other process.
fn id(process: &Path, socket: &Path) -> Option<String> {
    // To read the words of a process takes a look into its memory; its name, of which the kernel keeps fifteen
    // letters, does not.
    // Some systems put a dot before it.
    let is_shim = |name: Vec<u8>| name.windows(14).any(|part| part == b"containerd-shi");
    if std::fs::read(process.join("comm")).is_ok_and(|name| !is_shim(name)) {
        return None;
    }
    let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
    let words: Vec<&str> = words.split(|b| *b == 0).filter_map(|w| std::str::from_utf8(w).ok()).collect();
    let program = words.first().and_then(|p| Path::new(p).file_name()).unwrap_or_default();
    let flag = |name: &str| words.windows(2).find(|w| w[0] == name).map(|w| w[1]);
    let is_ours = program.to_string_lossy().starts_with("containerd-shim-")
        && flag("-address").is_some_and(|address| Path::new(address) == socket);
    is_ours.then(|| flag("-id").unwrap_or_default().to_owned())
}

fn is_abandoned(process: &Path, socket: &Path) -> bool {
    id(process, socket).is_some()
        && std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.to_string_lossy().ends_with(" (deleted)"))
}

/// Ends them; what runs, with the id of each. Blocks for as long as a walk over all processes takes.
pub fn end_abandoned(socket: &Path) -> Vec<(i32, String)> {
    let proc = Path::new("/proc");
    let running = running(proc, socket);
    for pid in abandoned(proc, socket, &running) {
        end(pid, |process| is_abandoned(process, socket));
    }
    running
}

/// Ends the shim that was started with this id. For one whose container is gone: a bundle may be left
/// when both the kubelet and containerd died in the middle of its start.
pub fn end_shim(pid: i32, wanted: &str, socket: &Path) {
    end(pid, |process| id(process, socket).as_deref() == Some(wanted));
}

/// Ends every shim of the containerd that was at `socket`, once its pods and itself are gone. Blocks
/// for as long as a walk over all processes takes.
pub fn end_all(socket: &Path) {
    for (pid, id) in running(Path::new("/proc"), socket) {
        end_shim(pid, &id, socket);
    }
}

fn end(pid: i32, is_wanted: impl Fn(&Path) -> bool) {
    let Some(id) = Pid::from_raw(pid) else { return };
    // The process is held first and looked at again: its number may be another's by now.
    let Ok(held) = pidfd_open(id, PidfdFlags::empty()) else { return };
    let process = Path::new("/proc").join(pid.to_string());
    if is_wanted(&process) && pidfd_send_signal(&held, Signal::KILL).is_ok() {
        tracing::info!(pid, "ended a shim that containerd has forgotten");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shims_of_this_runtime_without_a_bundle() {
        let proc = tempfile::tempdir().expect("a directory");
        let process = |pid: i32, words: &[&str], cwd: &str| {
            let path = proc.path().join(pid.to_string());
            std::fs::create_dir_all(&path).expect("made");
            let name = words.first().and_then(|w| Path::new(w).file_name()).unwrap_or_default().to_string_lossy();
            let dot = if pid == 7 { "." } else { "" };
            std::fs::write(path.join("comm"), format!("{:.15}\n", format!("{dot}{name}"))).expect("written");
            std::fs::write(path.join("cmdline"), words.join("\0") + "\0").expect("written");
            std::os::unix::fs::symlink(cwd, path.join("cwd")).expect("linked");
        };
        let shim = "/usr/bin/containerd-shim-runc-v2";
        let gone = "/run/x/.abc (deleted)";
        process(1, &[shim, "-namespace", "k8s.io", "-id", "abc", "-address", "/run/c.sock"], gone);
        process(2, &[shim, "-namespace", "k8s.io", "-id", "abc", "-address", "/run/c.sock"], "/run/x/abc");
        process(3, &[shim, "-namespace", "k8s.io", "-id", "abc", "-address", "/run/other.sock"], gone);
        process(4, &["/bin/grep", "-address", "/run/c.sock"], gone);
        process(5, &[shim, "-address"], gone);
        process(6, &[], gone);
        process(7, &[shim, "-namespace", "k8s.io", "-id", "def", "-address", "/run/c.sock"], gone);
        std::fs::create_dir(proc.path().join("self")).expect("made");
        let socket = Path::new("/run/c.sock");
        let running = running(proc.path(), socket);
        let mut found = abandoned(proc.path(), socket, &running);
        found.sort_unstable();
        assert_eq!(found, [1, 7]);
    }
}
