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
    clear_on(Path::new("/proc"), parent, binary)?;
    let found = routes::within(PODS.parse()?);
    if !found.is_empty() {
        let list: Vec<String> = found.iter().map(|r| format!("{} on {}", r.address, r.link)).collect();
        bail!("pods of another cluster are on this host, and nobody knows whose they are: {}", list.join(", "));
    }
    Ok(())
}

/// The same among the processes that `proc` shows.
fn clear_on(proc: &Path, parent: &Path, binary: &Path) -> Result<()> {
    let abandoned = abandoned(parent)?;
    if !abandoned.is_empty() {
        // Resetting takes away what all clusters of a host share: cgroups of pods, tables of rules.
        let others = others(proc, &abandoned)?;
        ensure!(others.is_empty(), "a test was killed, and what it left cannot be taken away beside {others:?}");
    }
    for folder in abandoned {
        eprintln!("a test was killed: what it left in {} is taken away", folder.display());
        end_processes(proc, &folder)?;
        crate::nodes::reset(binary, &folder)?;
        reset(binary, &folder).with_context(|| folder.display().to_string())?;
        mounted(&folder)?.into_iter().try_for_each(|path| reset::apply(&Step::Unmount(path)))?;
        std::fs::remove_dir_all(&folder)?;
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
fn others(proc: &Path, folders: &[PathBuf]) -> Result<Vec<String>> {
    let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(proc)?.flatten() {
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
fn end_processes(proc: &Path, folder: &Path) -> Result<()> {
    let name = folder.display().to_string();
    for entry in std::fs::read_dir(proc)?.flatten() {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Folders of tests, the processes there are, and a `pintle` that writes down what it is asked.
    struct World {
        dir: tempfile::TempDir,
    }

    impl World {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a folder");
            let world = Self { dir };
            for name in ["tests", "proc"] {
                std::fs::create_dir(world.path(name)).expect("made");
            }
            let script = format!("#!/bin/sh\necho \"$@\" >> {}\n", world.path("asked").display());
            std::fs::write(world.path("pintle"), script).expect("written");
            let mode = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(world.path("pintle"), mode).expect("set");
            world
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        /// A test's folder with a file in it.
        fn folder(&self, name: &str) -> PathBuf {
            let folder = self.path("tests").join(name);
            std::fs::create_dir(&folder).expect("made");
            std::fs::write(folder.join("state"), "x").expect("written");
            folder
        }

        /// A process of that number with that command line.
        fn process(&self, pid: u32, line: &str) {
            let folder = self.path("proc").join(pid.to_string());
            std::fs::create_dir(&folder).expect("made");
            std::fs::write(folder.join("cmdline"), line.replace(' ', "\0")).expect("written");
        }

        fn clear(&self) -> Result<()> {
            clear_on(&self.path("proc"), &self.path("tests"), &self.path("pintle"))
        }

        /// What `pintle` was asked.
        fn asked(&self) -> String {
            std::fs::read_to_string(self.path("asked")).unwrap_or_default()
        }
    }

    #[test]
    fn what_a_killed_test_left_is_taken_away_and_nothing_else() {
        let world = World::new();
        let (gone, alive) = (world.folder("pintle-e2e-gone"), world.folder("pintle-e2e-alive"));
        disown(&gone);
        own(&alive).expect("written");
        let (nobodys, others) = (world.folder("pintle-e2e-unsigned"), world.folder("something-else"));
        disown(&others);
        // A link to what somebody else's folder is.
        let elsewhere = world.path("elsewhere");
        std::fs::create_dir(&elsewhere).expect("made");
        disown(&elsewhere);
        symlink(&elsewhere, world.path("tests").join("pintle-e2e-link")).expect("linked");
        // A part of the killed test's cluster still runs.
        let mut part = Command::new("sleep").arg("600").spawn().expect("started");
        world.process(part.id(), &format!("/x/pintle kubelet --root-dir={}/a", gone.display()));
        world.clear().expect("cleared");
        assert!(!part.wait().expect("ended").success(), "it was ended");
        assert!(!gone.exists());
        for stays in [&alive, &nobodys, &others, &elsewhere] {
            assert!(stays.exists(), "{}", stays.display());
        }
        let want = format!("reset {}\n", roots(&gone).join(" "));
        assert_eq!(world.asked(), want);
    }

    #[test]
    fn beside_somebodys_cluster_nothing_is_reset() {
        let world = World::new();
        let gone = world.folder("pintle-e2e-gone");
        disown(&gone);
        world.process(1, "/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml");
        let refused = world.clear().expect_err("refused").to_string();
        assert!(refused.contains("kubelet"), "{refused}");
        assert!(gone.exists() && world.asked().is_empty());
        // Where nothing was left nobody is in the way.
        std::fs::remove_dir_all(&gone).expect("removed");
        world.clear().expect("there is nothing to do");
    }
}
