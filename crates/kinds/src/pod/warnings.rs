//! What is allowed in a pod, and yet likely not meant.

use std::collections::{BTreeMap, BTreeSet};

use api::types::core::v1::{Container, Pod, PodSpec};
use machinery::field::Path;

use crate::old_labels;
use crate::resources;

/// Warnings for a pod.
pub fn pod(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let mut out = self::spec(spec, pod.metadata.annotations.as_ref(), &Path::root());
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    if spec.hostname.is_none() && !name.is_empty() {
        let wrong = machinery::names::dns1123_label(name);
        if !wrong.is_empty() {
            out.push(format!(
                "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; \
                 a DNS label is recommended: [{}]",
                wrong.join(" ")
            ));
        }
    }
    out
}

/// Warnings for a spec; `path` leads to what holds it.
pub fn spec(spec: &PodSpec, _annotations: Option<&BTreeMap<String, String>>, path: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let path = path.child("spec");
    for key in spec.node_selector.iter().flatten().map(|(key, _)| key) {
        if let Some(advice) = old_labels::advice(key) {
            out.push(format!("{}: {advice}", path.child("nodeSelector").key(key)));
        }
    }
    let mut aliases: BTreeMap<&str, String> = BTreeMap::new();
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let here = path.child("hostAliases").index(i).child("ip").to_string();
        match aliases.get(alias.ip.as_str()) {
            Some(first) => out.push(format!("{here}: duplicates the IP address {:?} of {first}", alias.ip)),
            None => {
                aliases.insert(&alias.ip, here);
            }
        }
    }
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = path.child("volumes").index(i);
        if volume.git_repo.is_some() {
            let path = path.child("gitRepo");
            out.push(format!("{path}: deprecated in v1.11, and disabled by default in v1.33+"));
        }
        if volume.glusterfs.is_some() {
            let path = path.child("glusterfs");
            out.push(format!(
                "{path}: deprecated in v1.25, this feature will be completely removed from the source tree in v1.26"
            ));
        }
    }
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        let path = path.child("terminationGracePeriodSeconds");
        out.push(format!("{path}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    let lists =
        [("initContainers", spec.init_containers.as_deref().unwrap_or_default()), ("containers", &spec.containers)];
    for (field, containers) in lists {
        for (i, container) in containers.iter().enumerate() {
            self::container(container, &path.child(field).index(i), &mut out);
        }
    }
    out
}

fn container(container: &Container, path: &Path, out: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (i, variable) in container.env.iter().flatten().enumerate() {
        if !seen.insert(variable.name.as_str()) {
            let path = path.child("env").index(i);
            let name = &variable.name;
            out.push(format!("{path}: hides previous definition of {name:?}, which may be dropped when using apply"));
        }
    }
    let mut ports = BTreeMap::new();
    for (i, port) in container.ports.iter().flatten().enumerate() {
        let here = path.child("ports").index(i);
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        if let Some(first) = ports.insert((port.container_port, protocol, port.host_port), here.clone()) {
            out.push(format!("{here}: duplicate port definition with {first}"));
        }
    }
    let lists = container.resources.iter().flat_map(|r| [("limits", &r.limits), ("requests", &r.requests)]);
    for (field, list) in lists {
        for (name, amount) in list.iter().flatten() {
            if !matches!(name.as_str(), "memory" | "ephemeral-storage") {
                continue;
            }
            if resources::parse(amount).is_some_and(|quantity| quantity.milli() % 1000 != 0) {
                let path = path.child("resources").child(field).key(name);
                out.push(format!("{path}: fractional byte value {:?} is invalid, must be an integer", amount.0));
            }
        }
    }
}
