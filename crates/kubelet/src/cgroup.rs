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
use std::sync::Arc;

use api::pod::QosClass;
use parking_lot::Mutex;
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

    /// Where the hierarchy of a controller of version 1 is mounted.
    pub fn of(&self, controller: &str) -> Option<&Path> {
        self.v1.iter().find(|(_, c)| c.iter().any(|c| c == controller)).map(|(p, _)| p.as_path())
    }
}

/// Who names cgroups: the runtime and the kubelet must agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// Plain folders.
    #[default]
    Cgroupfs,
    /// systemd's slices. Limits of a slice that systemd itself sets anew are its own affair; those of the
    /// containers hold all the same.
    Systemd,
}

impl Driver {
    /// As `--cgroup-driver` names it.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "cgroupfs" => Ok(Self::Cgroupfs),
            "systemd" => Ok(Self::Systemd),
            _ => Err(format!("{text:?} is neither cgroupfs nor systemd")),
        }
    }
}

/// Above the cgroups of all pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// Empty or `/prefix`, which keeps this node's pods apart from another's.
    pub prefix: String,
    pub driver: Driver,
}

impl Root {
    /// The path of a slice: each part of its name is one level.
    fn slice(&self, parts: &[&str]) -> String {
        let prefix = self.prefix.split('/').filter(|p| !p.is_empty());
        let (mut name, mut path) = (String::new(), String::new());
        for part in prefix.chain(parts.iter().copied()) {
            if !name.is_empty() {
                name.push('-');
            }
            // A dash in a slice's name begins a level.
            name.push_str(&part.replace('-', "_"));
            path += &format!("/{name}.slice");
        }
        path
    }
}

/// The cgroup that holds all pods of a class.
pub fn class_path(root: &Root, class: QosClass) -> String {
    let prefix = &root.prefix;
    match (root.driver, class) {
        (Driver::Cgroupfs, QosClass::Guaranteed) => format!("{prefix}/kubepods"),
        (Driver::Cgroupfs, QosClass::Burstable) => format!("{prefix}/kubepods/burstable"),
        (Driver::Cgroupfs, QosClass::BestEffort) => format!("{prefix}/kubepods/besteffort"),
        (Driver::Systemd, QosClass::Guaranteed) => root.slice(&["kubepods"]),
        (Driver::Systemd, QosClass::Burstable) => root.slice(&["kubepods", "burstable"]),
        (Driver::Systemd, QosClass::BestEffort) => root.slice(&["kubepods", "besteffort"]),
    }
}

/// The cgroup of a pod.
pub fn pod_path(root: &Root, pod: &BoundPod) -> String {
    let class = pod.qos();
    let own = format!("pod{}", pod.uid);
    match (root.driver, class) {
        (Driver::Cgroupfs, _) => format!("{}/{own}", class_path(root, class)),
        (Driver::Systemd, QosClass::Guaranteed) => root.slice(&["kubepods", &own]),
        (Driver::Systemd, QosClass::Burstable) => root.slice(&["kubepods", "burstable", &own]),
        (Driver::Systemd, QosClass::BestEffort) => root.slice(&["kubepods", "besteffort", &own]),
    }
}

/// The uid of the pod that a cgroup of this name in `class` belongs to.
fn uid_of(root: &Root, class: &str, name: &str) -> Option<String> {
    match root.driver {
        Driver::Cgroupfs => name.strip_prefix("pod").map(str::to_owned),
        Driver::Systemd => {
            let above = class.rsplit('/').next()?.strip_suffix(".slice")?;
            let own = name.strip_suffix(".slice")?.strip_prefix(above)?.strip_prefix("-pod")?;
            Some(own.replace('_', "-"))
        }
    }
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

/// What is written: directory, file, text.
pub type Write = (PathBuf, &'static str, String);

/// What is written to keep a pod from having more processes.
pub fn pids_write(hierarchies: &Hierarchies, cgroup: &str, limit: Option<u64>) -> Option<Write> {
    let unified = hierarchies.v2.as_deref().filter(|_| hierarchies.is_unified());
    let point = unified.or_else(|| hierarchies.of("pids"))?;
    Some((point.join(cgroup.trim_start_matches('/')), "pids.max", limit?.to_string()))
}

/// What is written to give a cgroup its allowance.
pub fn writes(hierarchies: &Hierarchies, cgroup: &str, allowance: Allowance) -> Vec<Write> {
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
    root: Root,
    /// Processes that one pod may have.
    pids: Option<u64>,
    /// The shares that the class of burstable pods was last given.
    weighed: Arc<Mutex<Option<i64>>>,
}

impl Cgroups {
    /// `root` is empty, or a path that keeps this node's pods apart from another's.
    pub fn new(hierarchies: Hierarchies, root: &str) -> Self {
        let root = root.trim_matches('/');
        let prefix = if root.is_empty() { String::new() } else { format!("/{root}") };
        Self { hierarchies, root: Root { prefix, driver: Driver::Cgroupfs }, pids: None, weighed: Arc::default() }
    }

    /// The same, named as `driver` does.
    #[must_use]
    pub fn with_driver(mut self, driver: Driver) -> Self {
        self.root.driver = driver;
        self
    }

    /// The same, with so many processes for one pod at most.
    #[must_use]
    pub fn with_pids(self, pids: Option<u64>) -> Self {
        Self { pids, ..self }
    }

    /// The hierarchies.
    pub fn hierarchies(&self) -> &Hierarchies {
        &self.hierarchies
    }

    /// The cgroup of a pod.
    pub fn path(&self, pod: &BoundPod) -> String {
        pod_path(&self.root, pod)
    }

    /// The cgroup of all pods.
    pub fn all_pods(&self) -> String {
        class_path(&self.root, QosClass::Guaranteed)
    }

    /// The cgroup that the runtime made for a container or sandbox in that of its pod: containerd and CRI-O
    /// call it differently, and whose is there is it.
    pub fn container_path(&self, pod: &str, id: &str) -> String {
        let [containerd, crio] = match self.root.driver {
            Driver::Cgroupfs => [format!("{pod}/{id}"), format!("{pod}/crio-{id}")],
            Driver::Systemd => [format!("{pod}/cri-containerd-{id}.scope"), format!("{pod}/crio-{id}.scope")],
        };
        let is_there =
            |path: &str| self.hierarchies.points().any(|root| root.join(path.trim_start_matches('/')).is_dir());
        if !is_there(&containerd) && is_there(&crio) { crio } else { containerd }
    }

    /// What the runtime is given as parent for a pod's containers.
    pub fn parent(&self, pod: &BoundPod) -> String {
        let path = pod_path(&self.root, pod);
        match self.root.driver {
            Driver::Cgroupfs => path,
            // Its name says where it is.
            Driver::Systemd => path.rsplit('/').next().unwrap_or_default().to_owned(),
        }
    }

    /// Makes a pod's cgroup with its allowance. What a hierarchy refuses is reported, not fatal:
    /// the containers' own limits still hold.
    pub fn ensure(&self, pod: &BoundPod) -> io::Result<()> {
        let path = pod_path(&self.root, pod);
        let wrote = self.write(&path, allowance(pod));
        let limit = pids_write(&self.hierarchies, &path, self.pids).map_or(Ok(()), |write| self.write_one(write));
        wrote.and(limit)
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
        // Most pods that come and go ask for nothing, and change nothing here.
        let mut weighed = self.weighed.lock();
        if *weighed == Some(shares(milli)) && self.has_classes() {
            return Ok(());
        }
        *weighed = None;
        self.write(&class_path(&self.root, QosClass::Burstable), of(shares(milli)))?;
        self.write(&class_path(&self.root, QosClass::BestEffort), of(shares(0)))?;
        *weighed = Some(shares(milli));
        Ok(())
    }

    /// The cgroups of the classes are where their weights were written.
    fn has_classes(&self) -> bool {
        let classes = [QosClass::Burstable, QosClass::BestEffort].map(|class| class_path(&self.root, class));
        let of = |class: &String| writes(&self.hierarchies, class, Allowance { shares: 0, quota: 0, memory: 0 });
        classes.iter().flat_map(of).all(|(dir, ..)| dir.is_dir())
    }

    fn write(&self, cgroup: &str, allowance: Allowance) -> io::Result<()> {
        let mut first_error = Ok(());
        for write in writes(&self.hierarchies, cgroup, allowance) {
            first_error = first_error.and(self.write_one(write));
        }
        first_error
    }

    fn write_one(&self, (dir, file, text): Write) -> io::Result<()> {
        let wrote = self.make(&dir).and_then(|()| std::fs::write(dir.join(file), &text));
        wrote.map_err(|error| io::Error::new(error.kind(), format!("{}/{file}: {error}", dir.display())))
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
        gone && (self.root.prefix.is_empty() || self.remove_path(&self.root.prefix))
    }

    /// The uids of pods that have a cgroup.
    pub fn found(&self) -> Vec<(String, String)> {
        let mut out = Vec::new();
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let path = class_path(&self.root, class);
            for point in self.hierarchies.points() {
                let Ok(entries) = std::fs::read_dir(point.join(path.trim_start_matches('/'))) else { continue };
                for entry in entries.flatten() {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    if let Some(uid) = uid_of(&self.root, &path, &name) {
                        let found = (uid, format!("{path}/{name}"));
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
        let root = Root { prefix: "/n1".into(), driver: Driver::Cgroupfs };
        let writes = writes(&hierarchies, &pod_path(&root, &pod), allowance(&pod));
        writes.into_iter().map(|(dir, file, text)| format!("{}/{file}={text}", dir.display())).collect()
    }

    #[test]
    fn processes_are_limited() {
        let with_pids = format!("{HYBRID}34 25 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n");
        for (mountinfo, limit, want) in [
            (with_pids.as_str(), Some(100), Some("/sys/fs/cgroup/pids/kubepods/podu/pids.max=100")),
            (UNIFIED, Some(100), Some("/sys/fs/cgroup/kubepods/podu/pids.max=100")),
            (UNIFIED, None, None),
            (HYBRID, Some(100), None),
        ] {
            let found = pids_write(&Hierarchies::parse(mountinfo), "/kubepods/podu", limit);
            let found = found.map(|(dir, file, text)| format!("{}/{file}={text}", dir.display()));
            assert_eq!(found.as_deref(), want);
        }
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
    fn slices_are_named_as_systemd_does() {
        let spec = |resources: serde_json::Value| {
            pod(json!({"metadata": {"uid": "a-1"}, "spec": {"containers": [{"name": "a", "resources": resources}]}}))
        };
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        let rows = [
            ("", spec(json!({})), "/kubepods.slice/kubepods-besteffort.slice", "kubepods-besteffort-poda_1.slice"),
            ("", spec(full), "/kubepods.slice", "kubepods-poda_1.slice"),
            (
                "n-1",
                burstable(),
                "/n_1.slice/n_1-kubepods.slice/n_1-kubepods-burstable.slice",
                "n_1-kubepods-burstable-podu_1.slice",
            ),
        ];
        for (prefix, pod, above, name) in rows {
            let cgroups = Cgroups::new(Hierarchies::default(), prefix).with_driver(Driver::Systemd);
            assert_eq!(class_path(&cgroups.root, pod.qos()), above);
            assert_eq!(pod_path(&cgroups.root, &pod), format!("{above}/{name}"));
            assert_eq!(cgroups.parent(&pod), name);
            assert_eq!(uid_of(&cgroups.root, above, name), Some(pod.uid.clone()));
        }
        let root = Root { driver: Driver::Systemd, ..Root::default() };
        assert_eq!(uid_of(&root, "/kubepods.slice", "kubepods-burstable.slice"), None);
        assert_eq!(Driver::parse("systemd"), Ok(Driver::Systemd));
        assert!(Driver::parse("none").is_err());
    }

    #[test]
    fn whose_container_is_there_is_it() {
        let root = tempfile::tempdir().expect("a directory");
        let hierarchies = Hierarchies { v1: Vec::new(), v2: Some(root.path().to_owned()) };
        for (driver, theirs, other) in [
            (Driver::Cgroupfs, "/kubepods/podu/i", "/kubepods/podu/crio-i"),
            (Driver::Systemd, "/kubepods/podu/cri-containerd-i.scope", "/kubepods/podu/crio-i.scope"),
        ] {
            let cgroups = Cgroups::new(hierarchies.clone(), "").with_driver(driver);
            let make =
                |path: &str| std::fs::create_dir_all(root.path().join(path.trim_start_matches('/'))).expect("made");
            assert_eq!(cgroups.container_path("/kubepods/podu", "i"), theirs, "none is there");
            make(other);
            assert_eq!(cgroups.container_path("/kubepods/podu", "i"), other);
            make(theirs);
            assert_eq!(cgroups.container_path("/kubepods/podu", "i"), theirs);
        }
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
        // Weights are written when they change, or when their cgroup is another one.
        let class = dir.path().join("cpu/kubepods/burstable/cpu.shares");
        let weigh = |pods: &[&BoundPod]| {
            cgroups.weigh(pods.iter().copied()).expect("weighed");
            std::fs::read_to_string(&class).expect("there")
        };
        assert_eq!(weigh(&[&pod]), "768");
        std::fs::write(&class, "as it was").expect("written");
        assert_eq!((weigh(&[&pod]), weigh(&[])), ("as it was".into(), "2".into()));
        std::fs::remove_dir_all(dir.path().join("cpu/kubepods/besteffort")).expect("removed");
        std::fs::write(&class, "another").expect("written");
        assert_eq!(weigh(&[]), "2");
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
