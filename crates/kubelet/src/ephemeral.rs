//! Disk that pods may use up: what a pod uses beyond its limits has it evicted.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use machinery::quantity::{Quantity, canonical};

use crate::pod::{self, BoundPod};
use crate::volume::empty_dir;

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

/// Why the pod is to be evicted: upstream's message. Pure.
pub fn exceeded(pod: &BoundPod, usage: &Usage) -> Option<String> {
    for volume in pod.spec().volumes.iter().flatten() {
        let limit = volume.empty_dir.as_ref().filter(|e| is_on_disk(e)).and_then(empty_dir::disk_limit);
        let (Some((limit, text)), Some(used)) = (limit, usage.volumes.get(&volume.name)) else { continue };
        if *used > limit {
            return Some(format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{text}\". ", volume.name));
        }
    }
    let over = |limit: &Quantity, used: u64| i128::from(used) > limit.value();
    let total = usage.volumes.values().chain(usage.containers.values()).sum::<u64>();
    if let Some(limit) = api::pod::effective_limits(pod.object()).get(RESOURCE).filter(|limit| over(limit, total)) {
        return Some(format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "));
    }
    for container in pod.containers() {
        let (Some(limit), Some(used)) = (pod::limit(container, RESOURCE), usage.containers.get(&container.name)) else {
            continue;
        };
        if limit.value() > 0 && over(&limit, *used) {
            let text = canonical(&limit.to_string()).map(|t| t.into_owned()).unwrap_or_default();
            let name = &container.name;
            return Some(format!("Container {name} exceeded its local ephemeral storage limit \"{text}\". "));
        }
    }
    None
}

/// Bytes on disk beneath a path, each file once however many names it has; other file systems that
/// are mounted there are not looked into. What vanishes meanwhile counts nothing.
pub fn used(path: &Path) -> io::Result<u64> {
    let root = match std::fs::symlink_metadata(path) {
        Ok(root) => root,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let (mut total, mut seen, mut folders) = (root.blocks() * 512, HashSet::new(), vec![path.to_owned()]);
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            // Of the entry itself: links are not followed.
            let Ok(meta) = entry.metadata() else { continue };
            if meta.dev() != root.dev() || (meta.nlink() > 1 && !meta.is_dir() && !seen.insert(meta.ino())) {
                continue;
            }
            total += meta.blocks() * 512;
            if meta.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use crate::static_pods::manifest;
    use serde_json::{Value, json};

    #[test]
    fn what_is_over_its_limit() {
        let check = |volumes: Value, limit: Value, usage: &[(&str, u64)], want: Option<&str>| {
            let resources = json!({"limits": limit});
            let pod = pod(json!({"spec": {"volumes": volumes, "containers": [{"name": "c", "resources": resources}]}}));
            let mut seen = Usage::default();
            for (name, used) in usage {
                let to = if name.starts_with('v') { &mut seen.volumes } else { &mut seen.containers };
                to.insert((*name).to_owned(), *used);
            }
            assert_eq!(exceeded(&pod, &seen).as_deref(), want, "{volumes} {limit} {usage:?}");
            want.is_some().then(|| assert!(is_limited(&pod)));
        };
        let small = json!([{"name": "v", "emptyDir": {"sizeLimit": "1024Ki"}}]);
        let over = "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ";
        check(small.clone(), json!({}), &[("v", 1 << 20)], None);
        check(small, json!({}), &[("v", (1 << 20) + 1)], Some(over));
        let memory = json!([{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]);
        check(memory, json!({}), &[("v", 2 << 20)], None);
        let limit = json!({"ephemeral-storage": "2Mi"});
        let plain = json!([{"name": "v", "emptyDir": {}}]);
        let whole = "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ";
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
        assert_eq!(exceeded(&pod(json!({"spec": spec})), &usage).as_deref(), Some(text));
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
        let before = used(root.path()).expect("counted");
        std::fs::create_dir(root.path().join("d")).expect("made");
        std::fs::write(root.path().join("d/f"), vec![1; 100_000]).expect("written");
        std::fs::hard_link(root.path().join("d/f"), root.path().join("again")).expect("linked");
        std::os::unix::fs::symlink("/usr", root.path().join("out")).expect("linked");
        let counted = used(root.path()).expect("counted") - before;
        assert!((100_000..150_000).contains(&counted), "{counted}");
        assert_eq!(used(&root.path().join("none")).expect("counted"), 0);
    }
}
