//! What tests left on the host that were killed before they could clean up: processes, pods and their links,
//! mounts, folders. A pod that outlives its cluster keeps its route, and the next cluster's pod with the same
//! address is not reached.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use host::process::ProcessId;
use host::reset::{self, Step};
use host::routes;

/// What the folders of clusters are called.
pub const PREFIX: &str = "pintle-e2e-";
/// The file in each that says which test it is of.
const OWNER: &str = "owner";

/// Writes down that the folder is this process's.
pub fn own(folder: &Path) -> Result<()> {
    Ok(ProcessId::own()?.save(&folder.join(OWNER))?)
}

/// Says that nobody cares for the folder any more.
pub fn disown(folder: &Path) {
    // Without it the folder stays until somebody looks.
    let _ = std::fs::write(folder.join(OWNER), "nobody");
}

/// Takes away what the folders below `parent` are of whose tests are gone.
///
/// # Errors
/// When something of it stays, and when a link of somebody else has an address that pods here will get.
pub fn clear(parent: &Path, binary: &Path) -> Result<()> {
    let abandoned = abandoned(parent)?;
    if !abandoned.is_empty() {
        // Resetting takes away what all clusters of a host share: cgroups of pods, tables of rules.
        let others = others(&abandoned)?;
        ensure!(others.is_empty(), "a test was killed, and what it left cannot be taken away beside {others:?}");
    }
    for folder in abandoned {
        eprintln!("a test was killed: what it left in {} is taken away", folder.display());
        end_processes(&folder)?;
        crate::nodes::reset(binary, &folder)?;
        reset(binary, &folder).with_context(|| folder.display().to_string())?;
        mounted(&folder)?.into_iter().try_for_each(|path| reset::apply(&Step::Unmount(path)))?;
        std::fs::remove_dir_all(&folder)?;
    }
    let found = routes::within(PODS.parse()?);
    if !found.is_empty() {
        let list: Vec<String> = found.iter().map(|r| format!("{} on {}", r.address, r.link)).collect();
        bail!("pods of another cluster are on this host, and nobody knows whose they are: {}", list.join(", "));
    }
    Ok(())
}

/// Folders of tests of this user that are gone.
pub fn abandoned(parent: &Path) -> Result<Vec<PathBuf>> {
    let own = std::fs::metadata("/proc/self")?.uid();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(parent)?.flatten() {
        let owner = entry.path().join(OWNER);
        // No link, and nobody else's: a journal in it is carried out with our rights.
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|folder| folder.is_dir() && folder.uid() == own)
            && owner.is_file();
        if is_ours && ProcessId::load_alive(&owner).is_none() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Clusters that run here and are not of these folders.
fn others(folders: &[PathBuf]) -> Result<Vec<String>> {
    let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let program = line.split(' ').next().unwrap_or_default();
        let program = Path::new(program).file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let is_cluster = matches!(program, "pintle" | "kubelet" | "k3s" | "k0s" | "kube-proxy");
        if is_cluster && !names.iter().any(|name| line.contains(name)) {
            found.push(line.trim().to_owned());
        }
    }
    Ok(found)
}

/// The addresses that pods of clusters under test get.
const PODS: &str = "10.244.0.0/16";

/// Parts that ran alone: nobody else would end them, and a kubelet starts its pods anew.
fn end_processes(folder: &Path) -> Result<()> {
    let name = folder.display().to_string();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).into_owned();
        let program = line.split('\0').next().unwrap_or_default();
        if Path::new(program).file_name().is_some_and(|n| n == "pintle") && line.contains(&name) {
            // One that ended meanwhile is fine.
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status()?;
        }
    }
    Ok(())
}

/// `pintle reset` of a cluster below `folder`.
pub fn reset(binary: &Path, folder: &Path) -> Result<()> {
    let reset = Command::new(binary).arg("reset").args(roots(folder)).output()?;
    let said = || format!("{}{}", String::from_utf8_lossy(&reset.stdout), String::from_utf8_lossy(&reset.stderr));
    ensure!(reset.status.success(), "pintle reset: {}", said());
    Ok(())
}

/// The flags that name the folders of a cluster below one.
pub fn roots(folder: &Path) -> Vec<String> {
    let flag = |name: &str| format!("--{name}-dir={}", folder.join(name).display());
    ["state", "config", "run"].map(flag).to_vec()
}

/// What is mounted below a folder, the deepest first.
pub fn mounted(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = reset::mounts()?;
    found.retain(|path| path.starts_with(folder));
    found.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    Ok(found)
}
