//! Disk that pods may use up: what a pod uses beyond its limits has it evicted.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::path::Path;

use machinery::quantity::{Quantity, canonical};
use rustix::fs::{AtFlags, FileType};

use crate::pod::{self, BoundPod};
use crate::volume::beneath::Dir;
use crate::volume::empty_dir;
use crate::volume::walk::{Visitor, walk};

/// The resource that limits it.
const RESOURCE: &str = "ephemeral-storage";

/// What a pod uses, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// By the name of its emptyDir on disk.
    pub volumes: BTreeMap<String, u64>,
    /// Logs and writable layer, by container.
    pub containers: BTreeMap<String, u64>,
}

/// True for a pod that is held to a limit: only then is it worth looking. Critical pods never are.
pub fn is_limited(pod: &BoundPod) -> bool {
    if pod.is_critical() {
        return false;
    }
    let volumes = pod.spec().volumes.iter().flatten().filter_map(|v| v.empty_dir.as_ref());
    let mut limited = volumes.filter(|e| is_on_disk(e)).filter_map(empty_dir::disk_limit);
    limited.next().is_some() || api::pod::effective_limits(pod.object()).contains_key(RESOURCE)
}

/// Held to its limit by looking; what is in memory is held to it by the kernel.
fn is_on_disk(empty: &api::types::core::v1::EmptyDirVolumeSource) -> bool {
    empty.medium.as_deref().unwrap_or_default().is_empty()
}

/// A limit that a pod is beyond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// As metrics name it.
    pub limit: &'static str,
    /// Upstream's.
    pub message: String,
}

/// Why the pod is to be evicted. Pure.
pub fn exceeded(pod: &BoundPod, usage: &Usage) -> Option<Exceeded> {
    let found = |limit, message| Some(Exceeded { limit, message });
    for volume in pod.spec().volumes.iter().flatten() {
        let limit = volume.empty_dir.as_ref().filter(|e| is_on_disk(e)).and_then(empty_dir::disk_limit);
        let (Some((limit, text)), Some(used)) = (limit, usage.volumes.get(&volume.name)) else { continue };
        if *used > limit {
            let text = format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{text}\". ", volume.name);
            return found("emptydirfs.limit", text);
        }
    }
    let over = |limit: &Quantity, used: u64| i128::from(used) > limit.value();
    let total = usage.volumes.values().chain(usage.containers.values()).sum::<u64>();
    if let Some(limit) = api::pod::effective_limits(pod.object()).get(RESOURCE).filter(|limit| over(limit, total)) {
        let text = format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
        return found("ephemeralpodfs.limit", text);
    }
    for container in pod.containers() {
        let (Some(limit), Some(used)) = (pod::limit(container, RESOURCE), usage.containers.get(&container.name)) else {
            continue;
        };
        if limit.value() > 0 && over(&limit, *used) {
            let text = canonical(&limit.to_string()).map(|t| t.into_owned()).unwrap_or_default();
            let name = &container.name;
            let text = format!("Container {name} exceeded its local ephemeral storage limit \"{text}\". ");
            return found("ephemeralcontainerfs.limit", text);
        }
    }
    None
}

/// So many files of a pod are counted in one look; more of them are not, whatever they hold.
const MAX_FILES: u64 = 2_000_000;

/// A look at what a pod has on disk.
pub struct Look<S> {
    is_stopped: S,
    /// Files that may still be counted.
    left: u64,
    device: u64,
    /// Device and inode of files with several names.
    seen: HashSet<(u64, u64)>,
    total: u64,
    inodes: u64,
}

impl<S: Fn() -> bool> Look<S> {
    /// A look that ends with an error once it is stopped.
    pub fn new(is_stopped: S) -> Self {
        Self { is_stopped, left: MAX_FILES, device: 0, seen: HashSet::new(), total: 0, inodes: 0 }
    }

    /// There are more files than are counted: what is said to be used is the least that is.
    pub fn is_full(&self) -> bool {
        self.left == 0
    }

    /// How many files and directories were counted so far.
    pub fn inodes(&self) -> u64 {
        self.inodes
    }

    /// Bytes on disk beneath a path, each file once however many names it has in what one look sees;
    /// other file systems that are mounted there are not looked into. What vanishes meanwhile counts
    /// nothing, and no link leads elsewhere.
    pub fn used(&mut self, path: &Path) -> io::Result<u64> {
        let top = match Dir::open(path) {
            Ok(top) => top,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        };
        self.total = 0;
        self.device = top.id()?.0;
        self.directory(&top)?;
        match walk(&top, false, self) {
            Err(error) if self.is_full() && error.kind() == io::ErrorKind::QuotaExceeded => {}
            other => other?,
        }
        Ok(self.total)
    }

    fn count(&mut self, stat: &rustix::fs::Stat) {
        let once = stat.st_nlink <= 1 || FileType::from_raw_mode(stat.st_mode).is_dir();
        if stat.st_dev == self.device && (once || self.seen.insert((stat.st_dev, stat.st_ino))) {
            let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
            self.total = self.total.saturating_add(bytes);
            self.inodes += 1;
        }
    }
}

impl<S: Fn() -> bool> Visitor for Look<S> {
    fn found(&mut self) -> io::Result<()> {
        if (self.is_stopped)() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.left == 0 {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.left -= 1;
        Ok(())
    }

    fn file(&mut self, dir: &Dir, name: &OsStr) -> io::Result<()> {
        match rustix::fs::statat(dir.fd(), name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
            Ok(stat) => self.count(&stat),
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn directory(&mut self, dir: &Dir) -> io::Result<()> {
        self.count(&rustix::fs::fstat(dir.fd())?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use crate::static_pods::manifest;
    use serde_json::{Value, json};

    #[test]
    fn what_is_over_its_limit() {
        let check = |volumes: Value, limit: Value, usage: &[(&str, u64)], want: Option<(&str, &str)>| {
            let resources = json!({"limits": limit});
            let pod = pod(json!({"spec": {"volumes": volumes, "containers": [{"name": "c", "resources": resources}]}}));
            let mut seen = Usage::default();
            for (name, used) in usage {
                let to = if name.starts_with('v') { &mut seen.volumes } else { &mut seen.containers };
                to.insert((*name).to_owned(), *used);
            }
            let found = exceeded(&pod, &seen).map(|e| (e.limit, e.message));
            let found = found.as_ref().map(|(limit, message)| (*limit, message.as_str()));
            assert_eq!(found, want, "{volumes} {limit} {usage:?}");
            want.is_some().then(|| assert!(is_limited(&pod)));
        };
        let small = json!([{"name": "v", "emptyDir": {"sizeLimit": "1024Ki"}}]);
        let over = ("emptydirfs.limit", "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ");
        check(small.clone(), json!({}), &[("v", 1 << 20)], None);
        check(small, json!({}), &[("v", (1 << 20) + 1)], Some(over));
        let memory = json!([{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]);
        check(memory, json!({}), &[("v", 2 << 20)], None);
        let limit = json!({"ephemeral-storage": "2Mi"});
        let plain = json!([{"name": "v", "emptyDir": {}}]);
        let whole =
            ("ephemeralpodfs.limit", "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ");
        check(plain.clone(), limit.clone(), &[("v", 1 << 20), ("c", 1 << 20)], None);
        check(plain, limit.clone(), &[("v", 1 << 20), ("c", (1 << 20) + 1)], Some(whole));
        check(json!([]), limit, &[("c", 3 << 20)], Some(whole));
    }

    #[test]
    fn one_container_over_its_own_limit() {
        let of = |name: &str| json!({"name": name, "resources": {"limits": {"ephemeral-storage": "1Mi"}}});
        let mut spec = json!({"containers": [of("a"), of("b")]});
        let usage = Usage { containers: [("a".to_owned(), (1 << 20) + 1)].into(), ..Usage::default() };
        let text = "Container a exceeded its local ephemeral storage limit \"1Mi\". ";
        let found = exceeded(&pod(json!({"spec": spec})), &usage).expect("exceeded");
        assert_eq!((found.limit, found.message.as_str()), ("ephemeralcontainerfs.limit", text));
        assert!(is_limited(&pod(json!({"spec": spec}))));
        let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "a", "image": "x", "resources": {"limits": {"ephemeral-storage": "1Mi"}}}]}});
        let (text, origin) = (manifest.to_string(), manifest::Origin::File("/p.yaml".into()));
        let read = manifest::parse(text.as_bytes(), &origin, "n", jiff::Timestamp::UNIX_EPOCH).expect("a pod");
        assert!(read[0].is_static() && !is_limited(&read[0]), "static pods stay, though they have no priority");
        spec["priority"] = json!(2_000_000_000);
        assert!(!is_limited(&pod(json!({"spec": spec}))), "the system's own stay");
        assert!(!is_limited(&pod(json!({"spec": {"containers": [{"name": "a"}]}}))));
    }

    #[test]
    fn files_count_once() {
        let root = tempfile::tempdir().expect("a directory");
        let used = |path: &Path| Look::new(|| false).used(path).expect("counted");
        let before = used(root.path());
        std::fs::create_dir(root.path().join("d")).expect("made");
        std::fs::write(root.path().join("d/f"), vec![1; 100_000]).expect("written");
        std::fs::hard_link(root.path().join("d/f"), root.path().join("again")).expect("linked");
        std::os::unix::fs::symlink("/usr", root.path().join("out")).expect("linked");
        let counted = used(root.path()) - before;
        assert!((100_000..150_000).contains(&counted), "{counted}");
        assert_eq!(used(&root.path().join("none")), 0);
    }

    #[test]
    fn a_look_is_bounded_and_goes_as_deep_as_the_tree() {
        let root = crate::volume::removal::tests::roomy();
        let top = root.path().join("top");
        std::fs::create_dir(&top).expect("made");
        // Beyond what a path may be long.
        crate::volume::removal::tests::deep(&top, 5000, &vec![1; 1 << 20]);
        assert!(Look::new(|| false).used(&top).expect("counted") >= 1 << 20);
        let mut few = Look { left: 100, ..Look::new(|| false) };
        assert!(few.used(&top).expect("counted") < 1 << 20);
        assert!(few.is_full());
        assert_eq!(Look::new(|| true).used(&top).expect_err("stopped").kind(), io::ErrorKind::TimedOut);
        Dir::open(root.path()).expect("opened").remove(OsStr::new("top")).expect("removed");
    }
}
