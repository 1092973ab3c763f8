//! Undoes every change in the journal, newest first. Stopping pods and the runtime comes before and
//! is the caller's; what remains here is the host's own state.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use net::nft;
use net::rtnl::{self, Rtnl};

use crate::cni;
use crate::journal::Mutation;
use crate::layout::{Layout, is_owned};
use crate::sysctl;

/// The device to other nodes: what is by it is ours, whatever number it carries.
pub const DEVICE: &str = "pintle-vx";

/// One step of a reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Unmount(PathBuf),
    DeleteTable {
        family: String,
        name: String,
    },
    /// Every route that says it was made by this number.
    DeleteRoutes {
        protocol: u8,
    },
    DeleteLink {
        name: String,
    },
    /// A file of ours in somebody else's folder; a symbolic link only while it leads where ours did.
    RemoveForeign {
        path: PathBuf,
        target: Option<PathBuf>,
    },
    RemoveCgroup(PathBuf),
    /// Only the pods below it that nothing runs in.
    SweepCgroup(PathBuf),
    RestoreSysctl {
        name: String,
        old: String,
    },
    /// A file or a folder with all that is in it.
    Remove(PathBuf),
    /// A folder with nothing in it.
    RemoveFolder(PathBuf),
    /// The record of all this: to be left when a step before it failed, so that the next reset knows.
    RemoveJournal(PathBuf),
}

/// What a reset does, and what it leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In order: mounts before the folders they are in, rules before the settings they need.
    pub steps: Vec<Step>,
    /// What somebody else put into our folders.
    pub foreign: Vec<PathBuf>,
}

/// What is on this machine now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The mount points.
    pub mounts: Vec<PathBuf>,
    /// The names in each root that is there.
    pub roots: BTreeMap<PathBuf, Vec<String>>,
}

/// Looks at the host and changes nothing.
pub fn look(layout: &Layout) -> io::Result<Seen> {
    let mut roots = BTreeMap::new();
    for (root, _) in layout.owned() {
        let entries = match fs::read_dir(root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let names = entries.map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned()));
        roots.insert(root.to_owned(), names.collect::<io::Result<_>>()?);
    }
    Ok(Seen { mounts: mounts()?, roots })
}

/// Decides what to do. A folder that nobody recorded was never ours.
pub fn plan(entries: &[Mutation], layout: &Layout, seen: &Seen) -> Plan {
    let mut plan = Plan::default();
    let made: Vec<&PathBuf> =
        entries.iter().filter_map(|e| if let Mutation::Folder { path } = e { Some(path) } else { None }).collect();
    let entered = |root: &Path| {
        entries.iter().find_map(|e| match e {
            Mutation::Entered { path, foreign } if path == root => Some(foreign.as_slice()),
            _ => None,
        })
    };
    let (mut ours, mut folders) = (Vec::new(), Vec::new());
    for (root, owned) in layout.owned() {
        let Some(names) = seen.roots.get(root) else { continue };
        let theirs = match entered(root) {
            Some(theirs) => theirs,
            None if made.iter().any(|m| *m == root) => &[],
            None => continue,
        };
        let is_ours = |name: &&String| is_owned(owned, name) && !theirs.contains(name);
        ours.extend(names.iter().filter(is_ours).map(|n| root.join(n)));
        let foreign = names.iter().filter(|n| !is_ours(n)).map(|n| root.join(n));
        let before = plan.foreign.len();
        plan.foreign.extend(foreign);
        if plan.foreign.len() == before {
            folders.push(root.to_owned());
        }
    }
    let mut below: Vec<&PathBuf> = seen
        .mounts
        .iter()
        .filter(|m| ours.iter().any(|o| m.starts_with(o)) || entries.contains(&Mutation::Mount { path: (*m).clone() }))
        .collect();
    below.sort_by_key(|m| std::cmp::Reverse(m.components().count()));
    plan.steps.extend(below.into_iter().cloned().map(Step::Unmount));
    for entry in entries.iter().rev() {
        match entry {
            // One that was shared once is another's since this has its own.
            Mutation::NftTable { name, .. } if name == cni::HOST_PORTS && entries.iter().any(has_own_ports) => {}
            Mutation::NftTable { family, name } => {
                plan.steps.push(Step::DeleteTable { family: family.clone(), name: name.clone() });
            }
            Mutation::Routes { protocol } => plan.steps.push(Step::DeleteRoutes { protocol: *protocol }),
            Mutation::Link { name } => plan.steps.push(Step::DeleteLink { name: name.clone() }),
            Mutation::ForeignFile { path, target } => {
                plan.steps.push(Step::RemoveForeign { path: path.clone(), target: target.clone() });
            }
            Mutation::Cgroup { path } => plan.steps.push(Step::RemoveCgroup(path.clone())),
            Mutation::SharedCgroup { path } => plan.steps.push(Step::SweepCgroup(path.clone())),
            Mutation::Sysctl { name, old } => {
                plan.steps.push(Step::RestoreSysctl { name: name.clone(), old: old.clone() });
            }
            Mutation::Folder { .. }
            | Mutation::Entered { .. }
            | Mutation::Mount { .. }
            | Mutation::Kubeconfig { .. } => {}
        }
    }
    let journal = layout.journal();
    plan.steps.extend(ours.iter().filter(|p| **p != journal).cloned().map(Step::Remove));
    if ours.contains(&journal) {
        plan.steps.push(Step::RemoveJournal(journal));
    }
    // Those above a root that we made for it go too, when nothing else is in them.
    let above = made.iter().rev().filter(|m| layout.owned().iter().all(|(root, _)| root != **m)).map(|m| (*m).clone());
    plan.steps.extend(folders.into_iter().chain(above).map(Step::RemoveFolder));
    plan
}

/// The mount points of this machine.
pub fn mounts() -> io::Result<Vec<PathBuf>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(text.lines().filter_map(|line| line.split(' ').nth(4)).map(|p| PathBuf::from(unescape(p))).collect())
}

/// mountinfo writes space, tab, newline and backslash as octal escapes.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\').then(|| tail.get(..3)).flatten();
        let code = octal.and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Carries out one step; what is gone already is fine.
pub fn apply(step: &Step) -> io::Result<()> {
    let gone = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    match step {
        Step::Unmount(path) => {
            let result = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
            match result {
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
                other => other.map_err(Into::into),
            }
        }
        Step::DeleteTable { family, name } => {
            // A table that is gone is not an error worth telling apart: deleting adds it first.
            let rules = format!("table {family} {name}\ndelete table {family} {name}\n");
            nft::run(&rules, nft::Mode::Apply).map_err(io::Error::other)
        }
        Step::DeleteRoutes { protocol } => {
            let rtnl = Rtnl::open()?;
            let device = rtnl.link(DEVICE)?.map(|device| device.index);
            for route in rtnl.routes()?.iter().filter(|route| route.leads_to_node(*protocol, device)) {
                match rtnl.delete_route(route) {
                    Err(error) if !rtnl::is_gone(&error) => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        }
        Step::DeleteLink { name } => Rtnl::open()?.delete_link(name).map(drop),
        Step::RemoveForeign { path, target: Some(target) } => {
            if fs::read_link(path).is_ok_and(|found| found == *target) { gone(fs::remove_file(path)) } else { Ok(()) }
        }
        Step::RemoveForeign { path, target: None } => gone(fs::remove_file(path)),
        Step::RemoveCgroup(path) => below_hierarchies(path)?.iter().try_for_each(|p| gone(remove_cgroup(p))),
        Step::SweepCgroup(path) => below_hierarchies(path)?.iter().try_for_each(|p| gone(sweep_cgroup(p))),
        Step::RestoreSysctl { name, old } => gone(sysctl::restore(name, old)),
        Step::Remove(path) if path.is_dir() && !path.is_symlink() => gone(fs::remove_dir_all(path)),
        Step::Remove(path) | Step::RemoveJournal(path) => gone(fs::remove_file(path)),
        Step::RemoveFolder(path) => gone(fs::remove_dir(path)),
    }
}

/// Every cgroup hierarchy that is mounted, version 1 and 2.
pub fn hierarchies() -> io::Result<Vec<PathBuf>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    let is_cgroup = |line: &&str| line.split_once(" - ").is_some_and(|(_, fs)| fs.starts_with("cgroup"));
    Ok(text.lines().filter(is_cgroup).filter_map(|l| l.split(' ').nth(4)).map(|p| PathBuf::from(unescape(p))).collect())
}

/// Where a cgroup is, or may be, in every hierarchy.
pub fn below_hierarchies(path: &Path) -> io::Result<Vec<PathBuf>> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    Ok(hierarchies()?.into_iter().map(|h| h.join(relative)).collect())
}

/// Removes the cgroups of pods below one, where the kernel lets go of them: nothing runs in those.
fn sweep_cgroup(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        if entry.file_name().to_string_lossy().starts_with("pod") {
            // One that is in use is somebody else's.
            let _ = remove_cgroup(&entry.path());
        } else {
            sweep_cgroup(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a cgroup and those below it. cgroup folders hold files that cannot be unlinked, so only
/// the folders are removed, deepest first.
fn remove_cgroup(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// Ports of the host have tables of this cluster's alone.
fn has_own_ports(entry: &Mutation) -> bool {
    let is_own = |name: &str| name.strip_prefix(cni::HOST_PORTS).is_some_and(|rest| rest.starts_with('-'));
    matches!(entry, Mutation::NftTable { name, .. } if is_own(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_was_shared_once_is_left_to_others() {
        let table = |name: &str| Mutation::NftTable { family: "ip".into(), name: name.into() };
        let of = |names: &[&str]| {
            let entries: Vec<Mutation> = names.iter().map(|name| table(name)).collect();
            let steps = plan(&entries, &Layout::default(), &seen(&[], &[])).steps;
            let name = |step: Step| if let Step::DeleteTable { name, .. } = step { Some(name) } else { None };
            steps.into_iter().filter_map(name).collect::<Vec<_>>()
        };
        assert_eq!(of(&["pintle-hostports", "pintle-proxy"]), ["pintle-proxy", "pintle-hostports"]);
        let own = "pintle-hostports-00aa";
        assert_eq!(of(&["pintle-hostports", "pintle-proxy", own]), [own, "pintle-proxy"]);
    }

    fn seen(mounts: &[&str], roots: &[(&str, &[&str])]) -> Seen {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Seen {
            mounts: mounts.iter().map(PathBuf::from).collect(),
            roots: roots.iter().map(|(root, list)| (root.into(), names(list))).collect(),
        }
    }

    #[test]
    fn mounts_go_before_folders_and_settings_return_last_changed_first() {
        let entries = [
            Mutation::Folder { path: "/var/lib/pintle".into() },
            Mutation::Sysctl { name: "net.ipv4.ip_forward".into(), old: "0".into() },
            Mutation::NftTable { family: "ip".into(), name: "pintle-proxy".into() },
            Mutation::Routes { protocol: 80 },
            Mutation::Link { name: "pintle-vx".into() },
            Mutation::ForeignFile { path: "/etc/cni/net.d/10-pintle.conflist".into(), target: None },
        ];
        let seen = seen(
            &["/", "/var/lib/pintle/kubelet/a", "/var/lib/pintle/kubelet/a/b", "/home"],
            &[("/var/lib/pintle", &["host-journal", "kubelet"])],
        );
        let plan = plan(&entries, &Layout::default(), &seen);
        assert_eq!(
            plan.steps,
            [
                Step::Unmount("/var/lib/pintle/kubelet/a/b".into()),
                Step::Unmount("/var/lib/pintle/kubelet/a".into()),
                Step::RemoveForeign { path: "/etc/cni/net.d/10-pintle.conflist".into(), target: None },
                Step::DeleteLink { name: "pintle-vx".into() },
                Step::DeleteRoutes { protocol: 80 },
                Step::DeleteTable { family: "ip".into(), name: "pintle-proxy".into() },
                Step::RestoreSysctl { name: "net.ipv4.ip_forward".into(), old: "0".into() },
                Step::Remove("/var/lib/pintle/kubelet".into()),
                Step::RemoveJournal("/var/lib/pintle/host-journal".into()),
                Step::RemoveFolder("/var/lib/pintle".into()),
            ]
        );
        assert!(plan.foreign.is_empty());
    }

    #[test]
    fn what_others_put_into_our_folders_stays() {
        let layout = Layout::below(Path::new("/x"));
        let entries = [
            // A volume of the user's, with keys of the user's, given to us.
            Mutation::Entered { path: "/x/state".into(), foreign: vec!["lost+found".into(), "pki".into()] },
            Mutation::Folder { path: "/x/run".into() },
        ];
        let seen = seen(
            &["/x/state", "/x/state/theirs", "/x/state/containerd/m"],
            &[
                ("/x/state", &["containerd", "lost+found", "pki", "store", "store.before-restore-1", "theirs"]),
                ("/x/config", &["cni"]),
                ("/x/run", &["note.txt", "pintle.pid"]),
            ],
        );
        let plan = plan(&entries, &layout, &seen);
        assert_eq!(
            plan.steps,
            [
                Step::Unmount("/x/state/containerd/m".into()),
                Step::Remove("/x/run/pintle.pid".into()),
                Step::Remove("/x/state/containerd".into()),
                Step::Remove("/x/state/store".into()),
                Step::Remove("/x/state/store.before-restore-1".into()),
            ]
        );
        let foreign = ["/x/run/note.txt", "/x/state/lost+found", "/x/state/pki", "/x/state/theirs"];
        assert_eq!(plan.foreign, foreign.map(PathBuf::from));
    }

    #[test]
    fn cgroups_that_were_there_before_are_swept_only() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let busy = dir.path().join("burstable/podbusy");
        fs::create_dir_all(&busy).and_then(|()| fs::write(busy.join("in use"), "")).expect("made");
        fs::create_dir_all(dir.path().join("burstable/podidle/container")).expect("made");
        sweep_cgroup(dir.path()).expect("swept");
        assert!(busy.exists() && !dir.path().join("burstable/podidle").exists());
        let shared = [Mutation::SharedCgroup { path: "/kubepods".into() }];
        let plan = plan(&shared, &Layout::default(), &Seen::default());
        assert_eq!(plan.steps, [Step::SweepCgroup("/kubepods".into())]);
    }

    #[test]
    fn links_in_folders_of_others_go_only_while_they_are_ours() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| dir.path().join(name);
        std::os::unix::fs::symlink("/bin/pintle", path("ours")).expect("a link");
        std::os::unix::fs::symlink("/bin/theirs", path("theirs")).expect("a link");
        fs::write(path("file"), "").and_then(|()| fs::write(path("conflist"), "")).expect("files");
        for (name, target) in [
            ("ours", Some("/bin/pintle")),
            ("theirs", Some("/bin/pintle")),
            ("file", Some("/bin/pintle")),
            ("absent", Some("/bin/pintle")),
            ("conflist", None),
            ("absent", None),
        ] {
            let step = Step::RemoveForeign { path: path(name), target: target.map(PathBuf::from) };
            apply(&step).expect("removed, or not there");
        }
        let mut left: Vec<_> =
            fs::read_dir(dir.path()).expect("read").map(|e| e.expect("an entry").file_name()).collect();
        left.sort();
        assert_eq!(left, ["file", "theirs"]);
    }

    #[test]
    fn mountinfo_escapes_are_read() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescape(r"/a\04"), r"/a\04");
    }
}
