//! Programs of the host that the kubelet starts: its mount program, and plugins that know passwords.
//! None is started through a shell.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal};
use stdx::{ClockExt, SharedClock};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// More than this of what a program says is not read.
const MAX_OUTPUT: u64 = 1 << 20;

/// What is to be run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// A path, or a name that is looked for where the system keeps programs.
    pub program: PathBuf,
    pub args: Vec<String>,
    /// What its environment has beside the kubelet's own.
    pub environment: BTreeMap<String, String>,
    pub input: Vec<u8>,
}

/// What a program left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    pub output: Vec<u8>,
    pub errors: String,
}

/// Who runs programs.
#[async_trait]
pub trait Programs: Send + Sync + 'static {
    /// Runs one to its end; one that takes longer than `limit` is killed, which is `TimedOut`.
    async fn run(&self, call: Call, limit: Duration) -> io::Result<Left>;
}

/// The host.
pub struct HostPrograms {
    pub clock: SharedClock,
}

#[async_trait]
impl Programs for HostPrograms {
    async fn run(&self, call: Call, limit: Duration) -> io::Result<Left> {
        let mut command = tokio::process::Command::new(&call.program);
        command.args(&call.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // In a group of its own: what it starts itself, as `mount` does, ends with it.
        command.kill_on_drop(true).current_dir(Path::new("/")).process_group(0);
        command.envs(&call.environment);
        let mut child = command.spawn()?;
        let group = Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let talk = async {
            let write = async {
                if let Some(mut input) = input {
                    // A program that does not listen is none that fails.
                    let _ = input.write_all(&call.input).await;
                }
            };
            let ((), output, errors) = tokio::join!(write, read(output), read(errors));
            let status = child.wait().await?;
            let errors = String::from_utf8_lossy(&errors?).into_owned();
            io::Result::Ok(Left { code: status.code(), output: output?, errors })
        };
        match self.clock.timeout(limit, talk).await {
            Ok(done) => {
                group.ended();
                done
            }
            // One that hangs in the kernel ends when the kernel lets it: nobody waits for that.
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }
}

/// A program and what it started: all are killed when this is dropped before the program has ended.
struct Group(Option<Pid>);

impl Group {
    /// The program was waited for: its number may be another's by now.
    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // That there is none left is as good.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

async fn read(from: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    if let Some(from) = from {
        let mut from = from.take(MAX_OUTPUT);
        from.read_to_end(&mut out).await?;
        // Who goes on talking is not kept waiting.
        tokio::io::copy(from.get_mut(), &mut tokio::io::sink()).await?;
    }
    Ok(out)
}

/// Answers of a test, in order, and what was asked.
#[cfg(test)]
#[derive(Clone, Default)]
pub struct FakePrograms {
    pub asked: std::sync::Arc<parking_lot::Mutex<Vec<Call>>>,
    pub answers: std::sync::Arc<parking_lot::Mutex<std::collections::VecDeque<io::Result<Left>>>>,
}

#[cfg(test)]
#[async_trait]
impl Programs for FakePrograms {
    async fn run(&self, call: Call, _: Duration) -> io::Result<Left> {
        self.asked.lock().push(call);
        self.answers.lock().pop_front().unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::NotFound)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::clock::RealClock;

    fn call(script: &str, input: &str) -> Call {
        let args = vec!["-c".to_owned(), script.to_owned()];
        let environment = BTreeMap::from([("WORD".to_owned(), "said".to_owned())]);
        Call { program: "/bin/sh".into(), args, environment, input: input.into() }
    }

    #[tokio::test]
    async fn programs_are_heard_and_ended() {
        let host = HostPrograms { clock: RealClock::shared() };
        let limit = Duration::from_secs(20);
        let left = host.run(call("read x; echo $WORD $x; echo no >&2; exit 3", "it\n"), limit).await.expect("run");
        assert_eq!(left, Left { code: Some(3), output: b"said it\n".to_vec(), errors: "no\n".into() });
        let left = host.run(call("exec head -c 3000000 /dev/zero", ""), limit).await.expect("run");
        assert_eq!((left.code, left.output.len()), (Some(0), 1 << 20), "no more than the bound is kept");
        let error = host.run(call("exec sleep 600", ""), Duration::from_millis(50)).await.expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let none = Call { program: "/no/such/program".into(), ..Call::default() };
        assert_eq!(host.run(none, limit).await.expect_err("no program").kind(), io::ErrorKind::NotFound);
    }

    /// `mount` starts `mount.nfs`, which must not mount anything once the pod is gone.
    #[tokio::test]
    async fn what_a_program_started_ends_with_it() {
        let clock = RealClock::shared();
        let host = HostPrograms { clock: clock.clone() };
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("id");
        let script = format!("sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait", path.display());
        let id = || std::fs::read_to_string(&path).ok().and_then(|t| t.trim().parse::<i32>().ok());
        let runs = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", id().expect("started"))).ok();
            // Nobody may have waited for it yet.
            stat.is_some_and(|s| !s.contains(") Z ") && !s.contains(") X "))
        };
        let dropped = tokio::spawn(async move { host.run(call(&script, ""), Duration::from_secs(600)).await });
        let end = clock.now() + Duration::from_secs(20);
        while id().is_none() {
            assert!(clock.now() < end, "it starts");
            clock.sleep(Duration::from_millis(5)).await;
        }
        assert!(runs());
        dropped.abort();
        assert!(dropped.await.expect_err("broken off").is_cancelled());
        while runs() {
            assert!(clock.now() < end, "it ends");
            clock.sleep(Duration::from_millis(5)).await;
        }
    }
}
