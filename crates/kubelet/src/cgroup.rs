//! The cgroups of pods: where they are in every hierarchy there is, what is written into them, and
//! their removal. The numbers and paths are pure; only [`Cgroups`] touches the system.
//!
//! ```text
//!  <mount>/<root>/kubepods/pod<uid>                Guaranteed
//!  <mount>/<root>/kubepods/burstable/pod<uid>      Burstable
//!  <mount>/<root>/kubepods/besteffort/pod<uid>     BestEffort
//! ```
//!
//! The runtime makes a child per container; what it leaves behind and the pod's own directory are
//! ours to remove, in each hierarchy.

use std::io;
use std::path::{Path, PathBuf};

use api::pod::QosClass;
use rustix::process::{Pid, Signal};

use crate::container::resources::{PERIOD, quota, shares, weight};
use crate::pod::BoundPod;

/// The hierarchies that are mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// Mount point and controllers (a named one has `name=…`).
    pub v1: Vec<(PathBuf, Vec<String>)>,
    /// The unified one; beside version 1 it usually controls nothing.
    pub v2: Option<PathBuf>,
}

impl Hierarchies {
    /// Reads `/proc/self/mountinfo`.
    pub fn parse(mountinfo: &str) -> Self {
        let mut out = Self::default();
        for line in mountinfo.lines() {
            let Some((head, tail)) = line.split_once(" - ") else { continue };
            let Some(point) = head.split(' ').nth(4).map(PathBuf::from) else { continue };
            let mut tail = tail.split(' ');
            let (kind, _source, options) = (tail.next(), tail.next(), tail.next().unwrap_or_default());
            match kind {
                Some("cgroup2") => {
                    out.v2.get_or_insert(point);
                }
                Some("cgroup") if !out.v1.iter().any(|(p, _)| *p == point) => {
                    let no_controller = ["rw", "ro", "xattr", "clone_children", "noprefix"];
                    let controllers = options.split(',').filter(|o| !no_controller.contains(o));
                    out.v1.push((point, controllers.map(str::to_owned).collect()));
                }
                _ => {}
            }
        }
        out
    }

    /// True when version 2 controls cpu and memory, not version 1.
    pub fn is_unified(&self) -> bool {
        self.v2.is_some() && !self.v1.iter().any(|(_, c)| c.iter().any(|c| c == "memory" || c == "cpu"))
    }

    /// Every mount point.
    fn points(&self) -> impl Iterator<Item = &Path> {
        self.v1.iter().map(|(p, _)| p.as_path()).chain(self.v2.as_deref())
    }

    fn of(&self, controller: &str) -> Option<&Path> {
        self.v1.iter().find(|(_, c)| c.iter().any(|c| c == controller)).map(|(p, _)| p.as_path())
    }
}

/// The cgroup that holds all pods of a class, beneath `root` (empty or `/prefix`).
pub fn class_path(root: &str, class: QosClass) -> String {
    match class {
        QosClass::Guaranteed => format!("{root}/kubepods"),
        QosClass::Burstable => format!("{root}/kubepods/burstable"),
        QosClass::BestEffort => format!("{root}/kubepods/besteffort"),
    }
}

/// The cgroup of a pod: what the runtime is given as parent.
pub fn pod_path(root: &str, pod: &BoundPod) -> String {
    format!("{}/pod{}", class_path(root, pod.qos()), pod.uid)
}

/// What a cgroup is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    pub shares: i64,
    /// Microseconds per period; 0 is without limit.
    pub quota: i64,
    /// Bytes; 0 is without limit.
    pub memory: i64,
}

/// What a pod as a whole is allowed: its requests, and limits where every container has one.
pub fn allowance(pod: &BoundPod) -> Allowance {
    let [requests, limits] = api::pod::by_spec(pod.object());
    let limit = |name: &str| {
        let whole = pod.spec().resources.as_ref().and_then(|r| r.limits.as_ref());
        let all = crate::pod::amount(whole, name).is_some()
            || pod.containers().iter().all(|c| crate::pod::limit(c, name).is_some());
        all.then(|| limits.get(name).copied()).flatten()
    };
    Allowance {
        shares: shares(requests.get("cpu").map_or(0, |q| q.milli())),
        quota: limit("cpu").map_or(0, |q| quota(q.milli())),
        memory: limit("memory").map_or(0, |q| i64::try_from(q.value()).unwrap_or(i64::MAX)),
    }
}

/// What is written to give a cgroup its allowance: directory, file, text.
pub fn writes(hierarchies: &Hierarchies, cgroup: &str, allowance: Allowance) -> Vec<(PathBuf, &'static str, String)> {
    let cgroup = cgroup.trim_start_matches('/');
    let mut out = Vec::new();
    if hierarchies.is_unified() {
        let Some(point) = &hierarchies.v2 else { return out };
        let dir = point.join(cgroup);
        let number = |n: i64| if n > 0 { n.to_string() } else { "max".to_owned() };
        out.push((dir.clone(), "cpu.weight", weight(allowance.shares).to_string()));
        out.push((dir.clone(), "cpu.max", format!("{} {PERIOD}", number(allowance.quota))));
        out.push((dir, "memory.max", number(allowance.memory)));
        return out;
    }
    if let Some(point) = hierarchies.of("cpu") {
        let dir = point.join(cgroup);
        let quota = if allowance.quota > 0 { allowance.quota } else { -1 };
        out.push((dir.clone(), "cpu.shares", allowance.shares.to_string()));
        out.push((dir.clone(), "cpu.cfs_period_us", PERIOD.to_string()));
        out.push((dir, "cpu.cfs_quota_us", quota.to_string()));
    }
    if let Some(point) = hierarchies.of("memory") {
        let memory = if allowance.memory > 0 { allowance.memory } else { -1 };
        out.push((point.join(cgroup), "memory.limit_in_bytes", memory.to_string()));
    }
    out
}

/// The cgroups of one node.
#[derive(Clone, Debug)]
pub struct Cgroups {
    hierarchies: Hierarchies,
    root: String,
}

impl Cgroups {
    /// `root` is empty, or a path that keeps this node's pods apart from another's.
    pub fn new(hierarchies: Hierarchies, root: &str) -> Self {
        let root = root.trim_matches('/');
        Self { hierarchies, root: if root.is_empty() { String::new() } else { format!("/{root}") } }
    }

    /// What the runtime is given as parent for a pod's containers.
    pub fn parent(&self, pod: &BoundPod) -> String {
        pod_path(&self.root, pod)
    }

    /// Makes a pod's cgroup with its allowance. What a hierarchy refuses is reported, not fatal:
    /// the containers' own limits still hold.
    pub fn ensure(&self, pod: &BoundPod) -> io::Result<()> {
        self.write(&pod_path(&self.root, pod), allowance(pod))
    }

    /// Lets a pod have what it has and what it is to have, whichever is more: for while its containers
    /// change.
    pub fn raise(&self, pod: &BoundPod) -> io::Result<()> {
        let mut first_error = Ok(());
        for (dir, file, text) in writes(&self.hierarchies, &pod_path(&self.root, pod), allowance(pod)) {
            let path = dir.join(file);
            let raised = std::fs::read_to_string(&path).and_then(|now| match more(now.trim(), &text) {
                Some(text) => std::fs::write(&path, text),
                None => Ok(()),
            });
            if let Err(error) = raised {
                first_error =
                    first_error.and(Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))));
            }
        }
        first_error
    }

    /// Gives the class of burstable pods what they ask for together.
    pub fn weigh<'a>(&self, pods: impl Iterator<Item = &'a BoundPod>) -> io::Result<()> {
        let burstable = pods.filter(|p| p.qos() == QosClass::Burstable);
        let milli = burstable
            .map(|p| api::pod::by_spec(p.object())[0].get("cpu").map_or(0, |q| q.milli()))
            .fold(0i128, i128::saturating_add);
        let of = |shares| Allowance { shares, quota: 0, memory: 0 };
        self.write(&class_path(&self.root, QosClass::Burstable), of(shares(milli)))?;
        self.write(&class_path(&self.root, QosClass::BestEffort), of(shares(0)))
    }

    fn write(&self, cgroup: &str, allowance: Allowance) -> io::Result<()> {
        let mut first_error = Ok(());
        for (dir, file, text) in writes(&self.hierarchies, cgroup, allowance) {
            let wrote = self.make(&dir).and_then(|()| std::fs::write(dir.join(file), &text));
            if let Err(error) = wrote {
                let named = io::Error::new(error.kind(), format!("{}/{file}: {error}", dir.display()));
                first_error = first_error.and(Err(named));
            }
        }
        first_error
    }

    /// Makes `dir` and, in the unified hierarchy, hands the controllers down to it.
    fn make(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        std::fs::create_dir_all(dir)?;
        let Some(point) = self.hierarchies.v2.as_deref().filter(|_| self.hierarchies.is_unified()) else {
            return Ok(());
        };
        let Ok(below) = dir.strip_prefix(point) else { return Ok(()) };
        let mut at = point.to_path_buf();
        for part in below {
            for controller in ["+cpu", "+memory", "+pids", "+cpuset", "+io", "+hugetlb"] {
                // A kernel without one of them still serves the others.
                let _ = std::fs::write(at.join("cgroup.subtree_control"), controller);
            }
            at.push(part);
        }
        Ok(())
    }

    /// Ends what is left in a pod's cgroup and removes it everywhere. False while the kernel still
    /// holds a part of it: call again.
    pub fn remove(&self, pod: &BoundPod) -> bool {
        self.remove_path(&pod_path(&self.root, pod))
    }

    fn remove_path(&self, cgroup: &str) -> bool {
        let mut gone = true;
        for point in self.hierarchies.points() {
            gone &= remove_tree(&point.join(cgroup.trim_start_matches('/')));
        }
        gone
    }

    /// Removes the cgroups of all classes with whatever is in them, for good: for a node that is
    /// taken down with its pods. False while the kernel still holds a part.
    pub fn remove_all(&self) -> bool {
        let gone = self.remove_path(&class_path(&self.root, QosClass::Guaranteed));
        // A prefix is this node's own; without one there is nothing above the classes that is ours.
        gone && (self.root.is_empty() || self.remove_path(&self.root))
    }

    /// The uids of pods that have a cgroup.
    pub fn found(&self) -> Vec<(String, String)> {
        let mut out = Vec::new();
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let path = class_path(&self.root, class);
            for point in self.hierarchies.points() {
                let Ok(entries) = std::fs::read_dir(point.join(path.trim_start_matches('/'))) else { continue };
                for entry in entries.flatten() {
                    if let Some(uid) = entry.file_name().to_str().and_then(|n| n.strip_prefix("pod")) {
                        let found = (uid.to_owned(), format!("{path}/pod{uid}"));
                        if !out.contains(&found) {
                            out.push(found);
                        }
                    }
                }
            }
        }
        out
    }

    /// Removes cgroups of pods that `known` does not know; the paths that the kernel still holds.
    pub fn collect(&self, known: impl Fn(&str) -> bool) -> Vec<String> {
        let orphans = self.found().into_iter().filter(|(uid, _)| !known(uid));
        orphans.filter(|(_, path)| !self.remove_path(path)).map(|(_, path)| path).collect()
    }
}

/// What to write where `now` stands so that it allows what `wanted` does; `None` where it does already.
/// `max` and negative numbers are without limit; of several words the first counts.
fn more(now: &str, wanted: &str) -> Option<String> {
    let amount = |text: &str| match text.split_whitespace().next() {
        Some("max") | None => i64::MAX,
        Some(word) => word.parse::<i64>().ok().filter(|n| *n >= 0).unwrap_or(i64::MAX),
    };
    (amount(wanted) > amount(now)).then(|| wanted.to_owned())
}

/// Removes a cgroup with its children; processes that are still in it are killed.
fn remove_tree(dir: &Path) -> bool {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return error.kind() == io::ErrorKind::NotFound,
    };
    let mut gone = true;
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            gone &= remove_tree(&entry.path());
        }
    }
    if !gone || std::fs::remove_dir(dir).is_ok() {
        return gone;
    }
    let procs = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in procs.lines().filter_map(|l| l.parse().ok()).filter_map(Pid::from_raw) {
        // It may have ended since it was listed.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    std::fs::remove_dir(dir).is_ok() || !dir.exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::json;

    const HYBRID: &str = "\
25 20 0:22 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw
30 25 0:27 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw
31 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 25 0:30 / /sys/fs/cgroup/systemd rw shared:9 - cgroup cgroup rw,xattr,name=systemd
";
    const UNIFIED: &str = "30 25 0:27 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn burstable() -> std::sync::Arc<BoundPod> {
        pod(json!({"spec": {"containers": [
            {"name": "a", "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "64Mi"}}},
            {"name": "b", "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}}}]}}))
    }

    fn texts(mountinfo: &str) -> Vec<String> {
        let pod = burstable();
        let hierarchies = Hierarchies::parse(mountinfo);
        let writes = writes(&hierarchies, &pod_path("/n1", &pod), allowance(&pod));
        writes.into_iter().map(|(dir, file, text)| format!("{}/{file}={text}", dir.display())).collect()
    }

    #[test]
    fn version_1_and_hybrid() {
        let at = |c: &str| format!("/sys/fs/cgroup/{c}/n1/kubepods/burstable/podu-1");
        assert_eq!(
            texts(HYBRID),
            [
                format!("{}/cpu.shares=768", at("cpu,cpuacct")),
                format!("{}/cpu.cfs_period_us=100000", at("cpu,cpuacct")),
                format!("{}/cpu.cfs_quota_us=-1", at("cpu,cpuacct")),
                format!("{}/memory.limit_in_bytes=134217728", at("memory")),
            ]
        );
        assert_eq!(Hierarchies::parse(HYBRID).points().count(), 4);
    }

    #[test]
    fn version_2() {
        let at = "/sys/fs/cgroup/n1/kubepods/burstable/podu-1";
        assert_eq!(
            texts(UNIFIED),
            [format!("{at}/cpu.weight=30"), format!("{at}/cpu.max=max 100000"), format!("{at}/memory.max=134217728"),]
        );
        assert!(Hierarchies::parse(UNIFIED).is_unified());
    }

    #[test]
    fn what_is_raised_is_never_less() {
        let rows = [
            ("100", "200", Some("200")),
            ("200", "100", None),
            ("-1", "100", None),
            ("100", "-1", Some("-1")),
            ("max 100000", "20000 100000", None),
            ("20000 100000", "max 100000", Some("max 100000")),
            ("20000 100000", "30000 100000", Some("30000 100000")),
            ("max", "max", None),
        ];
        for (now, wanted, want) in rows {
            assert_eq!(more(now, wanted).as_deref(), want, "{now} {wanted}");
        }
    }

    #[test]
    fn directories_come_and_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let hierarchies = Hierarchies {
            v1: vec![(dir.path().join("cpu"), vec!["cpu".into()]), (dir.path().join("memory"), vec!["memory".into()])],
            v2: None,
        };
        let cgroups = Cgroups::new(hierarchies, "");
        let pod = burstable();
        cgroups.ensure(&pod).expect("made");
        assert_eq!(cgroups.found(), [("u-1".to_owned(), "/kubepods/burstable/podu-1".to_owned())]);
        let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).unwrap_or_default();
        assert_eq!(read("cpu/kubepods/burstable/podu-1/cpu.shares"), "768");
        // The kernel's files vanish with their directory; a plain file system's do not.
        for (point, _) in &cgroups.hierarchies.v1 {
            let at = point.join("kubepods/burstable/podu-1");
            std::fs::read_dir(&at)
                .expect("listed")
                .flatten()
                .for_each(|f| std::fs::remove_file(f.path()).expect("removed"));
        }
        assert_eq!(cgroups.collect(|uid| uid == "u-1"), Vec::<String>::new());
        assert_eq!(cgroups.found().len(), 1);
        assert!(cgroups.remove(&pod));
        assert!(cgroups.remove(&pod), "removing twice is fine");
        assert!(cgroups.found().is_empty());
    }
}
