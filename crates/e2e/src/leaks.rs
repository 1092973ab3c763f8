//! What pods and clusters could leave on a host, written down line by line, to be compared before and
//! after: links, addresses, routes, rules, mounts, cgroups, namespaces, processes, settings, files.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use stdx::{ClockExt, SharedClock};

/// How long the kernel may take to let go of the last of it.
const PATIENCE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(50);

/// Where a cluster of the standard folders would be, and what CNI plugins keep unless told otherwise: no
/// test may put anything there.
pub const STANDARD: [&str; 5] = ["/etc/pintle", "/run/pintle", "/var/lib/pintle", "/var/lib/cni", "/var/log/pods"];

/// The host as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    lines: Vec<String>,
}

impl Host {
    /// Looks. Of files, those below `folders` count.
    pub fn look(folders: &[&Path]) -> Result<Self> {
        let mut lines = Vec::new();
        let mut add = |what: &str, found: Vec<String>| lines.extend(found.into_iter().map(|f| format!("{what}: {f}")));
        // The number of a link grows with every one that ever was.
        let unnumbered = |line: &str| line.split_once(": ").map_or(line, |(_, rest)| rest).to_owned();
        let links = run("ip", &["-o", "link", "show"])?;
        add("link", links.lines().map(|l| unnumbered(l).split(':').next().unwrap_or_default().to_owned()).collect());
        let addresses = run("ip", &["-o", "address", "show"])?;
        add(
            "address",
            addresses.lines().map(|l| l.split_whitespace().skip(1).take(3).collect::<Vec<_>>().join(" ")).collect(),
        );
        add("route", run("ip", &["route", "show", "table", "all"])?.lines().map(|l| l.trim().to_owned()).collect());
        // What routers announce comes and goes.
        let lasting = |line: &&str| !line.contains(" expires ");
        let v6 = run("ip", &["-6", "route", "show"])?;
        add("route of IPv6", v6.lines().filter(lasting).map(|l| l.trim().to_owned()).collect());
        add("rules", rules()?);
        add("mount", host::reset::mounts()?.into_iter().map(|m| m.display().to_string()).collect());
        let mut cgroups = Vec::new();
        for hierarchy in host::reset::hierarchies()? {
            for name in ["kubepods", "kubepods.slice"] {
                below(&hierarchy.join(name), true, &mut cgroups);
            }
        }
        add("cgroup", cgroups);
        let mut namespaces = Vec::new();
        below(Path::new("/run/netns"), false, &mut namespaces);
        add("network namespace", namespaces);
        add("process", processes()?);
        let (v6, _) = host::sysctl::FORWARD_V6;
        let forwards = |name: &str| host::sysctl::get(name).map(|value| format!("{name} {value}"));
        add("setting", vec![forwards("net.ipv4.ip_forward")?, forwards(v6).unwrap_or_default()]);
        let mut files = Vec::new();
        folders.iter().for_each(|folder| below(folder, false, &mut files));
        add("file", files);
        lines.sort();
        Ok(Self { lines })
    }

    /// Waits until the host is again as it was here.
    ///
    /// # Errors
    /// When something is left or is missing, each on a line.
    pub async fn returns(&self, folders: &[&Path], clock: &SharedClock) -> Result<()> {
        let deadline = clock.now() + PATIENCE;
        while !self.is_as_before(folders, clock.now() > deadline)? {
            clock.sleep(STEP).await;
        }
        Ok(())
    }

    /// The same where nothing can be awaited: at the end of what is dropped.
    ///
    /// # Errors
    /// As above.
    #[allow(clippy::disallowed_methods, reason = "drop cannot await; it is the step of a wait with a deadline")]
    pub fn returns_blocking(&self, folders: &[&Path], clock: &SharedClock) -> Result<()> {
        let deadline = clock.now() + PATIENCE;
        while !self.is_as_before(folders, clock.now() > deadline)? {
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    fn is_as_before(&self, folders: &[&Path], is_late: bool) -> Result<bool> {
        let now = Self::look(folders)?;
        if is_late && now != *self {
            let (left, missing) = (difference(&now.lines, &self.lines), difference(&self.lines, &now.lines));
            bail!("left behind:\n  {}\nmissing:\n  {}", left.join("\n  "), missing.join("\n  "));
        }
        Ok(now == *self)
    }
}

fn difference(of: &[String], without: &[String]) -> Vec<String> {
    of.iter().filter(|line| !without.contains(line)).cloned().collect()
}

fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Every table with its chains and sets, but for the guard that tests put around themselves.
fn rules() -> Result<Vec<String>> {
    let tables = run("nft", &["list", "tables"])?;
    let mut out = Vec::new();
    for table in tables.lines().filter(|l| !l.contains("guard")) {
        let parts: Vec<&str> = table.split_whitespace().collect();
        let text = run("nft", &[&["--stateless", "list"], parts.as_slice()].concat())?;
        out.extend(text.lines().map(|l| format!("{table} {}", l.trim())));
    }
    Ok(out)
}

/// Everything below a folder, itself included; only folders when asked.
fn below(path: &Path, folders_only: bool, out: &mut Vec<String>) {
    let Ok(found) = path.symlink_metadata() else { return };
    if !folders_only || found.is_dir() {
        out.push(path.display().to_string());
    }
    if found.is_dir() {
        // What vanishes while it is listed is not left behind.
        std::fs::read_dir(path).into_iter().flatten().flatten().for_each(|e| below(&e.path(), folders_only, out));
    }
}

/// Shims and the processes that sandboxes are made of.
fn processes() -> Result<Vec<String>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let program = line.split(' ').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        if program.starts_with("containerd-shim") || matches!(program, "pause" | "runc" | "crun") {
            out.push(format!("{} {line}", entry.file_name().to_string_lossy()));
        }
    }
    Ok(out)
}
