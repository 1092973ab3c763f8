//! The only door to the kernel's rules: a transaction as text to `nft -f -`, all or nothing.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stdx::{ClockExt, SharedClock};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::monitor::{Maker, Monitor, Own};
use crate::nf_tables;
use crate::ruleset::{Family, Transaction};

/// Why a transaction did not happen. The kernel's state is as before in every case but `TimedOut`,
/// after which it is unknown: load the whole table.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `nft` cannot be run; final until it is installed.
    #[error("cannot run nft: {0}")]
    Program(#[from] std::io::Error),
    /// The kernel or the parser refused; the text says which object.
    #[error("{0}")]
    Refused(String),
    /// No answer in time; try a full load.
    #[error("the program that changes rules did not answer within {0:?}")]
    TimedOut(Duration),
}

/// Something that applies transactions: the kernel, or a recorder in tests.
#[async_trait::async_trait]
pub trait Kernel: Send + Sync + 'static {
    /// Applies `transaction` whole, or fails and changes nothing.
    async fn apply(&self, transaction: &str) -> Result<(), Error>;

    /// Applies a difference whole, or fails and changes nothing.
    async fn change(&self, change: Transaction) -> Result<(), Error> {
        self.change_all(vec![change]).await
    }

    /// Applies differences of several tables together, or fails and changes nothing.
    async fn change_all(&self, changes: Vec<Transaction>) -> Result<(), Error> {
        self.apply(&changes.iter().map(Transaction::text).collect::<String>()).await
    }

    /// Asks whether the kernel would take `transaction`; nothing changes.
    async fn check(&self, transaction: &str) -> Result<(), Error>;

    /// The sets of one family's tables with what is in them, as JSON.
    async fn sets(&self, family: Family) -> Result<String, Error>;

    /// A set of a table with what is in it, as JSON.
    async fn elements(&self, _family: Family, _table: &str, _set: &str) -> Result<String, Error> {
        Ok(String::new())
    }

    /// Is there a table of that name?
    async fn has_table(&self, _family: Family, _table: &str) -> Result<bool, Error> {
        Ok(true)
    }

    /// Waits until somebody else changes one of these tables. Changes before the first call are missed.
    async fn changed(&self, tables: &[&str]) -> std::io::Result<()>;
}

/// The kernel of the network namespace this process is in.
pub struct Nft {
    clock: SharedClock,
    own: Own,
    monitor: tokio::sync::Mutex<Option<Monitor>>,
    /// It has failed, and what happened since is not known.
    was_deaf: AtomicBool,
    sender: Arc<Mutex<nf_tables::Sender>>,
}

impl Nft {
    /// Uses the `nft` program found in PATH.
    pub fn new(clock: SharedClock) -> Self {
        Self {
            clock,
            own: Own::of_process(),
            monitor: Default::default(),
            was_deaf: AtomicBool::new(false),
            sender: Arc::default(),
        }
    }
}

impl Nft {
    /// Runs `nft` with these arguments and this input; answers with its output.
    async fn run(&self, args: &[&str], input: &str) -> Result<Vec<u8>, Error> {
        // Ten thousand sets are some megabytes, and take the kernel more than a few seconds.
        let limit = Duration::from_secs(30 + u64::try_from(input.len()).unwrap_or(u64::MAX) / 50_000);
        let mut child = Command::new("nft")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let changes = args.first() == Some(&"-f");
        let turn = child.id().filter(|_| changes).map(|pid| self.own.begin(pid, Maker::Process).unknown());
        let stdin = child.stdin.take();
        let run = async move {
            if let Some(mut stdin) = stdin {
                // Who refuses a line reads no further; its own words say more than the pipe's.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
            child.wait_with_output().await
        };
        let output = self.clock.timeout(limit, run).await.map_err(|_| Error::TimedOut(limit))??;
        let judged = judge(&output);
        if let Some(turn) = turn {
            if judged.is_ok() { turn.made() } else { turn.nothing() }
        }
        judged?;
        Ok(output.stdout)
    }
}

#[async_trait::async_trait]
impl Kernel for Nft {
    async fn apply(&self, transaction: &str) -> Result<(), Error> {
        // Before our first transaction, so that the kernel's numbers of processes are known to be ours.
        if let Ok(mut held) = self.monitor.try_lock()
            && held.is_none()
        {
            *held = Monitor::start(self.own.clone()).ok();
        }
        self.run(&["-f", "-"], transaction).await.map(drop)
    }

    async fn change_all(&self, changes: Vec<Transaction>) -> Result<(), Error> {
        // `nft` reads every chain there is before it says a word to the kernel.
        let Some(batch) = nf_tables::encode_all(&changes) else {
            return self.apply(&changes.iter().map(Transaction::text).collect::<String>()).await;
        };
        let (own, sender) = (self.own.clone(), self.sender.clone());
        let send = move || sender.lock().unwrap_or_else(PoisonError::into_inner).send(&batch, &own);
        let sent = tokio::task::spawn_blocking(send).await.map_err(std::io::Error::other)?;
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(refused)) => Err(Error::Refused(refused.told_of(&changes))),
            Err(error) => Err(Error::Program(error)),
        }
    }

    async fn check(&self, transaction: &str) -> Result<(), Error> {
        self.run(&["--check", "-f", "-"], transaction).await.map(drop)
    }

    async fn sets(&self, family: Family) -> Result<String, Error> {
        let output = self.run(&["-j", "list", "sets", family.as_str()], "").await?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    async fn elements(&self, family: Family, table: &str, set: &str) -> Result<String, Error> {
        let output = self.run(&["-j", "list", "set", family.as_str(), table, set], "").await?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    async fn has_table(&self, family: Family, table: &str) -> Result<bool, Error> {
        let table = table.to_owned();
        let ask = tokio::task::spawn_blocking(move || nf_tables::has_table(family, &table));
        Ok(ask.await.map_err(std::io::Error::other)??)
    }

    async fn changed(&self, tables: &[&str]) -> std::io::Result<()> {
        let mut held = self.monitor.lock().await;
        let monitor = match &mut *held {
            Some(monitor) => Ok(monitor),
            empty => Monitor::start(self.own.clone()).map(|monitor| empty.insert(monitor)),
        };
        let heard = match monitor {
            // Whatever happened meanwhile was not heard.
            Ok(_) if self.was_deaf.swap(false, Ordering::Relaxed) => Ok(()),
            Ok(monitor) => monitor.changed(tables).await,
            Err(error) => Err(error),
        };
        // What has failed begins anew with the next call.
        if heard.is_err() {
            *held = None;
            self.was_deaf.store(true, Ordering::Relaxed);
        }
        heard
    }
}

/// What [`run`] does with a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Asks the kernel whether it would take it; nothing changes.
    Check,
    Apply,
}

/// Runs one transaction and waits for it: for commands that have nothing else to do meanwhile.
pub fn run(transaction: &str, mode: Mode) -> Result<(), Error> {
    use std::io::Write;
    let mut command = std::process::Command::new("nft");
    if mode == Mode::Check {
        command.arg("--check");
    }
    let mut child =
        command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(transaction.as_bytes())?;
    }
    judge(&child.wait_with_output()?)
}

/// Runs one transaction whole or not at all, also when this process is killed meanwhile, and holds `lock` until
/// it is over, for this process and for `nft` itself, whoever ends first.
pub fn run_locked(transaction: &str, lock: std::fs::File) -> Result<(), Error> {
    use std::io::{Seek, Write};
    // All of the text is there before anybody reads it: a pipe that breaks would be half a transaction.
    let memory = rustix::fs::memfd_create("nft", rustix::fs::MemfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
    let mut text = std::fs::File::from(memory);
    text.write_all(transaction.as_bytes())?;
    text.rewind()?;
    let mut command = std::process::Command::new("nft");
    // It says nothing there: an open file is what holds a lock.
    command.args(["-f", "-"]).stdin(text).stdout(lock).stderr(Stdio::piped());
    judge(&command.spawn()?.wait_with_output()?)
}

pub(crate) fn judge(output: &std::process::Output) -> Result<(), Error> {
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let first: Vec<&str> = text.lines().take(3).collect();
    Err(Error::Refused(first.join(" / ")))
}
