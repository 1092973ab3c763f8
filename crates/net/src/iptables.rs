//! The kernel's rules as `iptables` sees them: text to `iptables-restore`, table by table.

use std::process::Stdio;
use std::time::Duration;

use stdx::{ClockExt, SharedClock};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::nft::{Error, judge};
use crate::ruleset::Family;

/// Something that holds rules: the kernel, or a recorder in tests.
#[async_trait::async_trait]
pub trait Iptables: Send + Sync + 'static {
    /// All rules of one family, as `iptables-save` writes them.
    async fn save(&self, family: Family) -> Result<String, Error>;

    /// Takes in what `text` says; other chains stay.
    async fn restore(&self, family: Family, text: &str) -> Result<(), Error>;

    /// Asks whether [`restore`](Self::restore) would go well; nothing changes.
    async fn check(&self, family: Family, text: &str) -> Result<(), Error>;
}

/// The kernel of the network namespace this process is in.
pub struct Tools {
    clock: SharedClock,
    /// What stands between `iptables` and what is to be done in the programs' names.
    variant: &'static str,
}

impl Tools {
    /// Uses the programs found in PATH: those that the host has chosen.
    pub fn new(clock: SharedClock) -> Self {
        Self { clock, variant: "" }
    }

    /// Uses those that write to the kernel's older tables, whose time grows with the number of rules; that of the
    /// others' grows with its square.
    pub fn legacy(clock: SharedClock) -> Self {
        Self { clock, variant: "legacy-" }
    }

    async fn run(&self, family: Family, tool: &str, args: &[&str], input: &str) -> Result<Vec<u8>, Error> {
        // A hundred thousand endpoints are some hundred thousand rules, each of which takes its time.
        let lines = u64::try_from(input.bytes().filter(|byte| *byte == b'\n').count()).unwrap_or(u64::MAX);
        let limit = Duration::from_secs(60 + lines / 500);
        let program = match family {
            Family::Ip => format!("iptables-{}{tool}", self.variant),
            Family::Ip6 => format!("ip6tables-{}{tool}", self.variant),
        };
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdin = child.stdin.take();
        let run = async move {
            if let Some(mut stdin) = stdin {
                // Who refuses a line reads no further; its own words say more than the pipe's.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
            child.wait_with_output().await
        };
        let output = self.clock.timeout(limit, run).await.map_err(|_| Error::TimedOut(limit))??;
        judge(&output)?;
        Ok(output.stdout)
    }
}

#[async_trait::async_trait]
impl Iptables for Tools {
    async fn save(&self, family: Family) -> Result<String, Error> {
        let output = self.run(family, "save", &[], "").await?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    async fn restore(&self, family: Family, text: &str) -> Result<(), Error> {
        self.run(family, "restore", &["--noflush", "--wait", "5"], text).await.map(drop)
    }

    async fn check(&self, family: Family, text: &str) -> Result<(), Error> {
        self.run(family, "restore", &["--noflush", "--test", "--wait", "5"], text).await.map(drop)
    }
}
