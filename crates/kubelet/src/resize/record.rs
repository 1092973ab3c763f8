//! What one pod has been allocated, and what of it its containers do not have yet, as it is kept on disk.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use api::types::core::v1::{Container, PodSpec, ResourceRequirements};
use machinery::quantity::Quantity;
use serde::{Deserialize, Serialize};

use super::change::Actuated;
use crate::durable;
use crate::pod::{BoundPod, is_restartable_init};

/// The file in the pod's directory.
const FILE: &str = "resources.json";

/// What a pod and its containers may have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    /// What the pod has as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ResourceRequirements>,
    /// By name, of containers that can be resized.
    pub containers: BTreeMap<String, ResourceRequirements>,
}

/// The record of one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub allocated: Allocation,
    /// What differs from it still.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub actuated: Actuated,
}

/// Containers whose resources can change: not those that run only while a pod is initialized.
fn resizable(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_restartable_init(c));
    spec.containers.iter().chain(sidecars)
}

/// Equal amounts, however they are written.
pub fn same(a: Option<&ResourceRequirements>, b: Option<&ResourceRequirements>) -> bool {
    let amounts = |r: Option<&ResourceRequirements>, limits: bool| -> BTreeMap<String, Option<Quantity>> {
        let list = r.and_then(|r| if limits { r.limits.as_ref() } else { r.requests.as_ref() });
        list.into_iter().flatten().map(|(name, amount)| (name.clone(), amount.0.parse().ok())).collect()
    };
    [false, true].iter().all(|limits| amounts(a, *limits) == amounts(b, *limits))
}

impl Allocation {
    /// What the pod's spec wishes for.
    pub fn wished(pod: &BoundPod) -> Self {
        let of = |c: &Container| (c.name.clone(), c.resources.clone().unwrap_or_default());
        Self { pod: pod.spec().resources.clone(), containers: resizable(pod.spec()).map(of).collect() }
    }

    fn differs(&self, container: &Container) -> bool {
        let own = self.containers.get(&container.name);
        own.is_some_and(|own| !same(Some(own), container.resources.as_ref()))
    }

    /// True when the pod's spec wishes for nothing else.
    pub fn is_wished(&self, pod: &BoundPod) -> bool {
        same(self.pod.as_ref(), pod.spec().resources.as_ref()) && !resizable(pod.spec()).any(|c| self.differs(c))
    }

    /// The pod with what it has in the place of what it wishes for.
    pub fn apply(&self, pod: &Arc<BoundPod>) -> Arc<BoundPod> {
        if self.is_wished(pod) {
            return pod.clone();
        }
        pod.with_spec(|spec| {
            spec.resources.clone_from(&self.pod);
            let all = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
            for container in all {
                if let Some(own) = self.containers.get(&container.name) {
                    container.resources = Some(own.clone());
                }
            }
        })
    }
}

impl Record {
    /// Reads the record in a pod's directory. One that cannot be read counts as none.
    pub fn read(directory: &Path) -> Option<Self> {
        let text = std::fs::read(directory.join(FILE)).ok()?;
        serde_json::from_slice(&text)
            .inspect_err(|error| tracing::warn!(path = %directory.display(), %error, "unreadable record of resources"))
            .ok()
    }

    /// Writes the record, durably: whole or not at all.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        durable::write(&directory.join(FILE), &serde_json::to_vec(self).map_err(io::Error::other)?)
    }

    /// The same for a record that says what the pod's spec says: while it does, to lose it is to lose nothing.
    pub fn write_soon(&self, directory: &Path) -> io::Result<()> {
        durable::write_soon(&directory.join(FILE), &serde_json::to_vec(self).map_err(io::Error::other)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    fn with(cpu: &str, sidecar: &str, whole: Value) -> Arc<BoundPod> {
        let of = |cpu: &str| json!({"requests": {"cpu": cpu}});
        pod(json!({"spec": {"resources": whole, "containers": [{"name": "a", "resources": of(cpu)}],
            "initContainers": [{"name": "i", "resources": of(sidecar)},
                {"name": "s", "restartPolicy": "Always", "resources": of(sidecar)}]}}))
    }

    #[test]
    fn a_pod_is_seen_as_it_is_allocated() {
        let before = with("1", "100m", json!(null));
        let allocated = Allocation::wished(&before);
        assert!(Arc::ptr_eq(&allocated.apply(&before), &before));
        let same_amounts = with("1000m", "0.1", json!(null));
        assert!(Arc::ptr_eq(&allocated.apply(&same_amounts), &same_amounts));
        let wish = with("2", "200m", json!({"limits": {"memory": "1Gi"}}));
        assert!(!allocated.is_wished(&wish));
        let seen = allocated.apply(&wish);
        let cpu = |name: &str| seen.container(name).and_then(|c| crate::pod::request(c, "cpu")).map(|q| q.milli());
        assert_eq!((cpu("a"), cpu("s"), cpu("i")), (Some(1000), Some(100), Some(200)));
        assert_eq!(seen.spec().resources, None);
    }

    #[test]
    fn it_is_kept_on_disk() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("u");
        assert_eq!(Record::read(&at), None);
        let mut record = Record { allocated: Allocation::wished(&with("1", "1", json!(null))), ..Record::default() };
        record.actuated.insert("id".into(), ResourceRequirements::default());
        record.write(&at).expect("written");
        assert_eq!(Record::read(&at), Some(record.clone()));
        record.actuated.clear();
        record.write_soon(&at).expect("written");
        assert_eq!(Record::read(&at), Some(record));
        std::fs::write(at.join(FILE), "{").expect("written");
        assert_eq!(Record::read(&at), None);
    }
}
