//! Processes that outlive us, known by pid and start time: a pid alone may have been given to
//! somebody else since.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// Closes what whoever called us left open (the lock of a script, the other end of a pipe) and
/// becomes the program. A shell can name descriptors up to 9, which is where such things are.
const LET_GO: &str = "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; exec \"$@\"";

/// A command that starts `program` in a session of its own and without what was left open to us:
/// neither a terminal that closes nor a signal to our process group reaches it, and nobody waits for
/// its end by mistake. The process has the pid of the command's child, for that leads no group.
pub fn detached(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setsid");
    command.args(["sh", "-c", LET_GO, "sh"]).arg(program);
    command
}

/// A process that cannot be mistaken for a later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: i32,
    /// Clock ticks after boot at which it started.
    pub start: u64,
}

impl ProcessId {
    /// The running process with this pid.
    pub fn of(pid: i32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let start = start_time(&stat).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat cannot be read")))?;
        Ok(Self { pid, start })
    }

    /// This process.
    pub fn own() -> io::Result<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// True while this very process runs (a zombie has ended).
    pub fn is_alive(&self) -> bool {
        let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", self.pid)) else { return false };
        start_time(&stat) == Some(self.start) && !is_zombie(&stat)
    }

    /// Sends a signal if it still runs; false when it does not.
    pub fn signal(&self, signal: Signal) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else { return false };
        self.is_alive() && rustix::process::kill_process(pid, signal).is_ok()
    }

    /// Waits until it has ended, whoever its parent is. The kernel tells (pidfd, Linux 5.3); nothing
    /// is asked again and again. An error says that the kernel cannot tell.
    ///
    /// A thread of its own sleeps in the kernel meanwhile (registering a handle with tokio is unsafe);
    /// when the caller no longer waits it sleeps on until that process or this one ends.
    pub async fn ended(&self) -> io::Result<()> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(()) };
        let handle = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // The handle may be of a later process with the same pid.
        if !self.is_alive() {
            return Ok(());
        }
        let (told, ended) = oneshot::channel();
        let wait = move || {
            let result = loop {
                match rustix::event::poll(&mut [PollFd::new(&handle, PollFlags::IN)], None) {
                    Err(rustix::io::Errno::INTR) => {}
                    other => break other,
                }
            };
            // Whoever asked may have stopped waiting.
            let _ = told.send(result);
        };
        std::thread::Builder::new().name(format!("watch-{pid}", pid = self.pid)).spawn(wait)?;
        ended.await.map_err(io::Error::other)?.map(drop).map_err(Into::into)
    }

    /// Writes it to a file, atomically.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let part = path.with_extension("part");
        fs::write(&part, serde_json::to_vec(self)?)?;
        fs::rename(part, path)
    }

    /// The process a file names, if it still runs.
    pub fn load_alive(path: &Path) -> Option<Self> {
        let id: Self = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        id.is_alive().then_some(id)
    }
}

/// Field 22 of `/proc/PID/stat`; the command name before it may hold spaces and brackets.
fn start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn is_zombie(stat: &str) -> bool {
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_with_another_start_time_is_another_process() {
        let own = ProcessId::own().expect("this process runs");
        assert!(own.is_alive());
        assert!(!ProcessId { start: own.start + 1, ..own }.is_alive());
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_told() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep runs");
        let id = ProcessId::of(i32::try_from(child.id()).expect("a pid")).expect("it runs");
        let later = ProcessId { start: id.start + 1, ..id };
        later.ended().await.expect("another process with this pid has ended already");
        let waits = tokio::spawn(async move { id.ended().await });
        child.kill().expect("killed");
        // It is not waited for: a zombie has ended.
        waits.await.expect("no panic").expect("the kernel tells");
        assert!(!id.is_alive());
        child.wait().expect("reaped");
    }

    #[test]
    fn what_outlives_us_holds_nothing_of_our_callers() {
        let mut inner = detached("ls");
        inner.arg("/proc/self/fd");
        let open = |command: &mut Command| {
            let output = command.output().expect("runs");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let mut outer = Command::new("sh");
        outer.args(["-c", "exec 7>/dev/null; exec \"$@\"", "sh"]).arg(inner.get_program()).args(inner.get_args());
        let seen = open(&mut outer);
        assert!(seen.contains(&"2".to_owned()) && !seen.contains(&"7".to_owned()), "{seen:?}");
    }

    #[test]
    fn command_names_with_brackets_do_not_confuse() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1";
        assert_eq!(start_time(stat), Some(4242));
        assert!(!is_zombie(stat));
    }
}
