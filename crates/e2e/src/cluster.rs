//! A cluster of one node in a folder of its own, started and stopped as a user would.

use std::future::Future;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use host::reset::{self, Step};
use serde_json::Value;
use stdx::clock::RealClock;
use stdx::{ClockExt, SharedClock};
use tokio::process::{Child, Command};

use crate::abandoned;
use crate::leaks::{Host, STANDARD};
use crate::registry::Registry;

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// A cluster; dropping it resets the host, and fails unless the host is then as it was before. Clusters with
/// nodes are one at a time on a machine.
pub struct Cluster {
    pub clock: SharedClock,
    dir: tempfile::TempDir,
    /// The host before, for clusters that touch it.
    before: Option<Host>,
    binary: PathBuf,
    child: Option<Child>,
}

/// The binary under test: the debug build beside the tests, or what `PINTLE` names.
#[allow(clippy::disallowed_methods, reason = "the test binary is chosen from outside")]
pub fn binary() -> Result<PathBuf> {
    if let Ok(path) = std::env::var("PINTLE") {
        return Ok(path.into());
    }
    let exe = std::env::current_exe()?;
    let found = exe.ancestors().map(|a| a.join("pintle")).find(|p| p.is_file());
    found.context("the pintle binary is not built (cargo build -p pintle)")
}

/// Where clusters under test have IPv6 addresses, those of Services and of pods.
pub const RANGES_V6: &str = "fd00:10::/32";

/// Keeps test traffic for cluster addresses on this machine, whatever the rules under test do.
pub async fn guard() -> Result<()> {
    let Some(interface) = default_interface().await else { return Ok(()) };
    let rules = format!(
        "table inet pintle-e2e-guard\ndelete table inet pintle-e2e-guard\ntable inet pintle-e2e-guard {{\n\
         chain out {{\ntype filter hook postrouting priority 300\n\
         oifname \"{interface}\" ip daddr {{ 10.96.0.0/12, 10.244.0.0/16 }} counter drop\n\
         oifname \"{interface}\" ip6 daddr {RANGES_V6} counter drop\n}}\n}}\n"
    );
    let path = tempfile::NamedTempFile::new()?;
    std::fs::write(path.path(), rules)?;
    let output = Command::new("nft").arg("-f").arg(path.path()).output().await?;
    if !output.status.success() {
        bail!("the guard rules: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Packets the guard dropped: what left for a cluster address though the rules should refuse it.
pub async fn guard_drops() -> Result<u64> {
    let output = Command::new("nft").args(["-j", "list", "table", "inet", "pintle-e2e-guard"]).output().await?;
    let rules: Value = serde_json::from_slice(&output.stdout)?;
    Ok(rules.to_string().split("\"packets\":").skip(1).filter_map(|t| t.split(',').next()?.parse::<u64>().ok()).sum())
}

async fn default_interface() -> Option<String> {
    let text = tokio::fs::read_to_string("/proc/net/route").await.ok()?;
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    text.lines().skip(1).map(fields).find(|f| f.get(1).is_some_and(|d| d == "00000000"))?.into_iter().next()
}

/// How full the disk of the machine that tests is does not matter here: CI's had less than a gigabyte left
/// after building, and every pod waited for it.
pub const NEARLY_FULL_DISK: &str = "--eviction-hard=nodefs.available<32Mi,imagefs.available<32Mi";

impl Cluster {
    /// Starts a cluster with extra flags and waits until its API answers.
    pub async fn start(flags: &[&str]) -> Result<Self> {
        guard().await?;
        let mut cluster = Self::prepare()?;
        cluster.up(flags).await?;
        Ok(cluster)
    }

    /// A folder for a cluster that is not started yet. Who starts pods in it calls [`guard`] first.
    pub fn prepare() -> Result<Self> {
        let mut cluster = Self::prepare_server()?;
        abandoned::clear(cluster.root().parent().context("a folder of folders")?, &cluster.binary)?;
        cluster.before = Some(Host::look(&STANDARD.map(Path::new))?);
        Ok(cluster)
    }

    /// The same for a cluster without nodes, which touches nothing of the host: others may come and go
    /// beside it.
    pub fn prepare_server() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix(abandoned::PREFIX).tempdir()?;
        abandoned::own(dir.path())?;
        Ok(Self { clock: RealClock::shared(), dir, before: None, binary: binary()?, child: None })
    }

    /// The folder everything is below.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// The flags that name the cluster's folders.
    pub fn roots(&self) -> Vec<String> {
        abandoned::roots(self.root())
    }

    /// The program under test.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("config/admin.kubeconfig")
    }

    /// `pintle up --foreground`; returns when the node is Ready (or, without a kubelet, the API).
    pub async fn up(&mut self, flags: &[&str]) -> Result<()> {
        self.spawn(flags)?;
        self.ready().await
    }

    fn ready_file(&self) -> PathBuf {
        self.dir.path().join("ready")
    }

    /// Starts the process and does not wait.
    pub fn spawn(&mut self, flags: &[&str]) -> Result<()> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.dir.path().join("pintle.log"))?;
        let ready = self.ready_file();
        let _ = std::fs::remove_file(&ready);
        // From a shell that is mean with descriptors, as those of users are.
        let child = Command::new("sh")
            .args(["-c", "ulimit -S -n 256; exec \"$0\" \"$@\""])
            .arg(&self.binary)
            .args(["up", "--foreground", "--no-user-kubeconfig"])
            .args(self.roots())
            .arg("--ready-file")
            .arg(&ready)
            .arg(NEARLY_FULL_DISK)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until the process says that the cluster is ready.
    pub async fn ready(&mut self) -> Result<()> {
        let (ready, deadline) = (self.ready_file(), self.clock.now() + PATIENCE);
        while !ready.exists() {
            let ended = self.child.as_mut().context("the process was started")?.try_wait()?;
            if let Some(status) = ended {
                bail!("pintle up ended with {status}; its log:\n{}", self.log_tail());
            }
            if self.clock.now() > deadline {
                bail!("pintle up is not ready; its log:\n{}", self.log_tail());
            }
            self.clock.sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// The end of the process's log.
    pub fn log_tail(&self) -> String {
        self.tail("pintle.log")
    }

    /// What a failed test says of the cluster: pods, what holds them up, the last events, and the log's end.
    /// CI keeps nothing else.
    async fn state(&self) -> String {
        let mut told = String::new();
        for (args, most) in [
            (&["get", "pods", "-A", "-o", "wide"][..], 40),
            (&["get", "waits", "-A"], 40),
            (&["get", "events", "-A", "--sort-by=.metadata.creationTimestamp"], 30),
        ] {
            let run = self.kubectl_command(args).arg("--request-timeout=10s").output();
            let Ok(Ok(output)) = self.clock.timeout(Duration::from_secs(15), run).await else { continue };
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            told += &format!("kubectl {args:?}:\n{}\n", lines[lines.len().saturating_sub(most)..].join("\n"));
        }
        told + &self.log_tail()
    }

    /// Ends the process as `kill` does and waits for it.
    pub async fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = child.id().context("the process runs")?;
        Command::new("kill").arg(pid.to_string()).status().await?;
        self.clock.timeout(PATIENCE, child.wait()).await.context("an orderly stop")??;
        Ok(())
    }

    /// Ends the process with SIGKILL.
    pub async fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await?;
        }
        Ok(())
    }

    /// The pid of the process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Another pintle subcommand, to be given more arguments.
    pub fn pintle_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(args);
        command
    }

    /// The end of a file below the cluster's folder, for messages.
    pub fn tail(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Runs another pintle subcommand on this cluster's folders.
    pub async fn pintle(&self, args: &[&str]) -> Result<Output> {
        Ok(Command::new(&self.binary).args(args).args(self.roots()).output().await?)
    }

    /// A `kubectl` command for this cluster.
    pub fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(args).kill_on_drop(true);
        command.env("HOME", self.dir.path());
        command
    }

    /// Runs kubectl and returns everything.
    pub async fn kubectl_output(&self, args: &[&str]) -> Result<Output> {
        let run = self.kubectl_command(args).output();
        let told = || format!("kubectl {args:?}; the log:\n{}", self.log_tail());
        self.clock.timeout(PATIENCE * 2, run).await.with_context(told)?.map_err(Into::into)
    }

    /// Runs kubectl, which must succeed, and returns what it printed.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        let output = self.kubectl_output(args).await?;
        if !output.status.success() {
            bail!("kubectl {args:?} failed: {}\n{}", String::from_utf8_lossy(&output.stderr), self.state().await);
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs kubectl, which must fail, and returns its complaint.
    pub async fn kubectl_fails(&self, args: &[&str]) -> Result<String> {
        let output = self.kubectl_output(args).await?;
        if output.status.success() {
            bail!("kubectl {args:?} should have failed: {}", String::from_utf8_lossy(&output.stdout));
        }
        Ok(String::from_utf8(output.stderr)?)
    }

    /// Applies a manifest.
    pub async fn apply(&self, manifest: &str) -> Result<String> {
        self.kubectl_with_input(&["apply", "-f", "-"], manifest).await
    }

    /// Runs kubectl with a standard input.
    pub async fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        use tokio::io::AsyncWriteExt;
        let mut child =
            self.kubectl_command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).await?;
        }
        let output = child.wait_with_output().await?;
        if !output.status.success() {
            bail!("kubectl {args:?}: {}\n{}", String::from_utf8_lossy(&output.stderr), self.log_tail());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// An object (or list) as JSON.
    pub async fn json(&self, args: &[&str]) -> Result<Value> {
        let mut all = args.to_vec();
        all.extend(["-o", "json"]);
        Ok(serde_json::from_str(&self.kubectl(&all).await?)?)
    }

    /// Asks until `check` gives something, or fails with what `check` last said.
    pub async fn eventually<T, F, Fut>(&self, what: &str, check: F) -> Result<T>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let deadline = self.clock.now() + PATIENCE;
        loop {
            match check().await {
                Ok(value) => return Ok(value),
                Err(error) if self.clock.now() > deadline => {
                    // Said at once: should the test leave traces, too, only those are told of at its end.
                    eprintln!("{what}: still not so after {PATIENCE:?}: {error:#}");
                    bail!("{what}: still not so after {PATIENCE:?}: {error:#}\n{}", self.state().await)
                }
                Err(_) => self.clock.sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Fetches a page over HTTP from this host; fails on anything but 200.
    pub async fn http_get(&self, url: &str) -> Result<String> {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "5", url])
            .output()
            .await?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        bail!("{url}: {}", String::from_utf8_lossy(&output.stderr).trim())
    }

    /// Lets the runtime pull from a registry on loopback without TLS.
    pub fn trust_registry(&self, registry: &Registry) -> Result<()> {
        registry.trusted_below(self.dir.path())
    }

    /// The address of the node.
    pub async fn node_ip(&self) -> Result<IpAddr> {
        let nodes = self.json(&["get", "nodes"]).await?;
        let address = nodes["items"][0]["status"]["addresses"][0]["address"].as_str().context("a node address")?;
        Ok(address.parse()?)
    }
}

impl Cluster {
    /// Ends everything; what of it is left, or is not as it was.
    fn end(&mut self) -> Result<()> {
        // The process gets SIGKILL when the child is dropped; reset then cleans the host.
        drop(self.child.take());
        abandoned::reset(&self.binary, self.root())?;
        let mounted = abandoned::mounted(self.root())?;
        mounted.iter().try_for_each(|path| reset::apply(&Step::Unmount(path.clone())))?;
        std::fs::remove_dir_all(self.root())?;
        if !mounted.is_empty() {
            bail!("mounted after the reset: {mounted:?}");
        }
        let before = self.before.as_ref();
        before.map_or(Ok(()), |before| before.returns_blocking(&STANDARD.map(Path::new), &self.clock))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Err(error) = self.end() else { return };
        // What is left is for the next cluster to take away, which needs the folder.
        abandoned::disown(self.root());
        self.dir.disable_cleanup(true);
        eprintln!("after the test the host is not as it was before: {error:#}");
        // A test that failed has left what it left; why it failed is what is to be read.
        assert!(std::thread::panicking(), "the test left traces: see above, and for what it found itself");
    }
}
