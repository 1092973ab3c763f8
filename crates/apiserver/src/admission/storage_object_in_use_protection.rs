//! Volumes, claims and classes of attributes stay until nothing uses them: each is born with a
//! finalizer, which a controller takes away.

use async_trait::async_trait;
use kinds::Verb;
use machinery::status;
use serde_json::{Value, json};

use super::{Attributes, Plugin};
use crate::objects::{self, Resource};

/// What is protected, and by which finalizer.
const PROTECTED: &[(Resource, &str)] = &[
    (Resource { group: "", plural: "persistentvolumes" }, "kubernetes.io/pv-protection"),
    (objects::PERSISTENT_VOLUME_CLAIMS, "kubernetes.io/pvc-protection"),
    (Resource { group: "storage.k8s.io", plural: "volumeattributesclasses" }, "kubernetes.io/vac-protection"),
];

/// The plugin.
pub struct StorageObjectInUseProtection;

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Value>) -> status::Result<()> {
        let Some(object) = object.filter(|_| attributes.verb == Verb::Create) else { return Ok(()) };
        let found = PROTECTED.iter().find(|(resource, _)| attributes.is_for(*resource, ""));
        if let Some((_, finalizer)) = found {
            protect(object, finalizer);
        }
        Ok(())
    }
}

fn protect(object: &mut Value, finalizer: &str) {
    let finalizers = &mut object["metadata"]["finalizers"];
    match finalizers.as_array_mut() {
        Some(list) if list.iter().any(|given| given == finalizer) => {}
        Some(list) => list.push(json!(finalizer)),
        None => *finalizers = json!([finalizer]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finalizer_is_added_once() {
        for (given, want) in [
            (json!({"metadata": {}}), json!(["f"])),
            (json!({"metadata": {"finalizers": ["a"]}}), json!(["a", "f"])),
            (json!({"metadata": {"finalizers": ["f", "a"]}}), json!(["f", "a"])),
        ] {
            let mut object = given;
            protect(&mut object, "f");
            assert_eq!(object["metadata"]["finalizers"], want);
        }
    }
}
