//! `pintle up`: the whole cluster in one process.
//!
//! Without `--foreground` the process that the user started only starts another one (in a session
//! of its own), shows its progress until the cluster is ready, and ends.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use host::journal::Journal;
use host::layout::Layout;
use host::process::{self, ProcessId};
use ipnet::IpNet;
use kubelet::image::collect::Policy;
use kubelet::node::thresholds::Bounds;
use rustix::process::Signal;
use stdx::SharedClock;

use crate::cluster::run::Cluster;
use crate::logging::{Logging, Profiling, Tracing};
use crate::roots::Roots;

/// A part that `--disable` leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Component {
    #[value(name = "kube-controller-manager")]
    Controllers,
    #[value(name = "kube-scheduler")]
    Scheduler,
    #[value(name = "kubelet")]
    Kubelet,
    #[value(name = "kube-proxy")]
    Proxy,
    #[value(name = "dns")]
    Dns,
    /// Of this node's pods: without the kubelet it does not run either.
    #[value(name = "network-policy")]
    Policy,
    /// Routes to the pods of other nodes.
    #[value(name = "network")]
    Network,
}

/// Start a cluster on this machine.
#[derive(Args, Clone, Debug)]
pub struct Up {
    #[command(flatten)]
    pub roots: Roots,
    /// Stay in the foreground and log to standard error.
    #[arg(long)]
    pub foreground: bool,
    /// Leave components out (comma separated); start them yourself.
    #[arg(long, value_delimiter = ',', value_name = "COMPONENT")]
    pub disable: Vec<Component>,
    /// Use this container runtime instead of one of our own (unix:///path).
    #[arg(long, value_name = "ENDPOINT")]
    pub container_runtime_endpoint: Option<String>,
    /// The address the API server listens on.
    #[arg(long, default_value = "0.0.0.0", value_name = "IP")]
    pub bind_address: IpAddr,
    /// The port the API server listens on.
    #[arg(long, default_value_t = 6443, value_name = "PORT")]
    pub secure_port: u16,
    /// Where Service addresses come from: one range, or one of each family.
    #[arg(long, default_value = "10.96.0.0/12", value_name = "CIDR", value_delimiter = ',')]
    pub service_cluster_ip_range: Vec<IpNet>,
    /// Where pod addresses come from: one range, or one of each family.
    #[arg(long, default_value = "10.244.0.0/16", value_name = "CIDR", value_delimiter = ',')]
    pub cluster_cidr: Vec<IpNet>,
    /// How pods of other nodes are reached; nodes that join must be told the same.
    #[arg(long, value_enum, default_value = "auto", value_name = "MODE")]
    pub network_mode: super::network::Mode,
    /// The domain of the cluster's names.
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN")]
    pub cluster_domain: String,
    /// The Node's name; the host's name unless set. What was first registered wins.
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// The Node's address, or one of each family; those of the default routes unless set.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,
    /// Below what the node reports pressure, takes no new pods and evicts others. Unlike upstream's shares of the
    /// disk, these amounts suit a laptop whose disk is nearly full.
    #[arg(long, value_name = "SIGNAL<AMOUNT", value_parser = Bounds::limits, default_value = EVICTION_HARD)]
    pub eviction_hard: Bounds,
    #[command(flatten)]
    pub evictions: super::evictions::Evictions,
    /// A folder of manifests of static pods, or one manifest [default: manifests in the folder of the
    /// configuration].
    #[arg(long, value_name = "PATH")]
    pub pod_manifest_path: Option<PathBuf>,
    #[command(flatten)]
    pub images: super::images::Images,
    #[command(flatten)]
    pub names: super::dns::Names,
    /// Do not merge a context `pintle` into your kubeconfig.
    #[arg(long)]
    pub no_user_kubeconfig: bool,
    /// Write this file once the cluster is ready.
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    #[command(flatten)]
    pub logging: Logging,
    #[command(flatten)]
    pub profiling: Profiling,
    #[command(flatten)]
    pub tracing: Tracing,
}

impl Up {
    /// True unless `--disable` names it.
    pub fn has(&self, component: Component) -> bool {
        !self.disable.contains(&component)
    }

    /// Are the policies of this node's pods carried out here?
    pub fn runs_policy(&self) -> bool {
        self.has(Component::Policy) && self.has(Component::Kubelet)
    }

    /// Where manifests of static pods are.
    pub fn manifests(&self, layout: &Layout) -> PathBuf {
        self.pod_manifest_path.clone().unwrap_or_else(|| layout.manifests())
    }

    /// How the cluster on this machine is reached.
    pub fn server_url(&self) -> String {
        let address =
            if self.bind_address.is_unspecified() { "127.0.0.1".into() } else { self.bind_address.to_string() };
        let host = if address.contains(':') { format!("[{address}]") } else { address };
        format!("https://{host}:{}", self.secure_port)
    }
}

/// Where pressure begins on a machine that does other things, too.
const EVICTION_HARD: &str = "memory.available<100Mi,nodefs.available<1Gi,nodefs.inodesFree<5%,imagefs.available<1Gi";

/// When images go there: when the node itself is short of disk, not when others have filled it. What was
/// imported is in no registry and would not come back.
pub const IMAGES_STAY: Policy = Policy { high: 100, ..Policy::USUAL };

/// The line that ends the progress of the process in the background.
pub const READY: &str = "\u{4}";

/// Runs the command.
pub fn run(args: Up, clock: SharedClock) -> Result<()> {
    let layout = args.roots.layout();
    // In the background the first process names the second before that one gets here.
    if let Some(running) = ProcessId::load_alive(&layout.pid()).filter(|id| ProcessId::own().ok() != Some(*id)) {
        let flags = args.roots.flags();
        bail!("a cluster runs already (pid {}); pintle down{flags} stops it", running.pid);
    }
    if args.foreground {
        return Cluster::run_to_end(args, clock);
    }
    // Problems are shown here, before a log file or anything else is made.
    crate::cluster::preflight::check(&args, &clock)?;
    in_background(&args)
}

fn in_background(args: &Up) -> Result<()> {
    let layout = args.roots.layout();
    let log_path = layout.log();
    let mut journal = Journal::open(&layout.journal()).context("the journal of host changes")?;
    for folder in [&layout.state, &layout.run] {
        journal.make_folder(folder).with_context(|| folder.display().to_string())?;
    }
    let log = std::fs::OpenOptions::new().create(true).append(true).open(&log_path).context("the log file")?;
    let own: Vec<_> = std::env::args_os().skip(1).collect();
    let program = std::env::current_exe().context("this program's own path")?;
    let mut child = process::detached(program)
        .args(own)
        .arg("--foreground")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("starting the cluster's process")?;
    // `pintle down` finds it from now on.
    ProcessId::of(i32::try_from(child.id())?).and_then(|id| id.save(&layout.pid())).context("the pid file")?;
    let output = child.stdout.take().context("the progress of the cluster's process")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        if line == READY {
            return Ok(());
        }
        // Whoever read our output may be gone; the cluster starts all the same.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
    let status = child.wait()?;
    // Told before it could hear that, it has begun nothing: it hears before it looks at the host.
    if status.success() || status.signal() == Some(Signal::TERM.as_raw()) {
        bail!("the cluster was told to stop before it was ready");
    }
    let text = std::fs::read_to_string(&log_path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(15)..].join("\n  ");
    bail!("the cluster did not start ({status}); the end of {}:\n  {tail}", log_path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use kubelet::image::collect;
    use kubelet::node::facts::Disk;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        up: Up,
    }

    #[test]
    fn images_stay_on_a_laptop_that_is_nearly_full() {
        let to_free = |flags: &[&str]| {
            let line = Line::parse_from(["up"].iter().chain(flags));
            let images = line
                .up
                .images
                .options(&Default::default(), kubelet::ImageOptions { collection: IMAGES_STAY, ..Default::default() })
                .expect("options");
            let disk = Disk { capacity: 1000, available: 10, ..Disk::default() };
            collect::usage(&disk, &images.collection).expect("known").to_free
        };
        assert_eq!(to_free(&[]), 0);
        assert_eq!(to_free(&["--image-gc-high-threshold=85"]), 190);
    }
}
