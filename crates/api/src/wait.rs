//! `Wait`: why an object waits, published by the layer that waits and withdrawn when it ends.
//!
//! ```yaml
//! apiVersion: explain.pintle.dev/v1alpha1
//! kind: Wait
//! metadata: {namespace: default, name: pod.web.scheduler}
//! layer: scheduler
//! code: InsufficientResources
//! object: {kind: Pod, namespace: default, name: web, uid: …}
//! on: cpu on 1 of 1 nodes
//! since: "2026-07-01T12:00:00Z"
//! text: "0/1 nodes are available: 1 Insufficient cpu."
//! ```

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::{ListableResource, Metadata, NamespaceResourceScope, Resource};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The object that waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitObject {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// One reason why one object waits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wait {
    pub metadata: ObjectMeta,
    /// Who waits: `scheduler`, `kubelet`, `proxy`, …
    pub layer: String,
    /// The kind of reason, in one word for machines: `Unschedulable`, `ImagePull`, …
    pub code: String,
    pub object: WaitObject,
    /// The thing it waits for: an image, a volume, a probe, a filter and its nodes.
    pub on: String,
    pub since: Option<Time>,
    /// One sentence for people.
    pub text: String,
}

impl Resource for Wait {
    const API_VERSION: &'static str = "explain.pintle.dev/v1alpha1";
    const GROUP: &'static str = "explain.pintle.dev";
    const KIND: &'static str = "Wait";
    const VERSION: &'static str = "v1alpha1";
    const URL_PATH_SEGMENT: &'static str = "waits";
    type Scope = NamespaceResourceScope;
}

impl ListableResource for Wait {
    const LIST_KIND: &'static str = "WaitList";
}

impl Metadata for Wait {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The fields as they travel.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    layer: String,
    code: String,
    object: WaitObject,
    on: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Time>,
    text: String,
}

impl Serialize for Wait {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { metadata, layer, code, object, on, since, text } = self.clone();
        let (api_version, kind) = (Self::API_VERSION.to_owned(), Self::KIND.to_owned());
        Wire { api_version, kind, metadata, layer, code, object, on, since, text }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Wire { api_version, kind, metadata, layer, code, object, on, since, text } =
            Wire::deserialize(deserializer)?;
        for (have, want) in [(api_version, Self::API_VERSION), (kind, Self::KIND)] {
            if !have.is_empty() && have != want {
                return Err(serde::de::Error::custom(format!("invalid value: {have:?}, expected {want}")));
            }
        }
        Ok(Self { metadata, layer, code, object, on, since, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn is_object<T: crate::Object + ListableResource>() {}

    #[test]
    fn a_wait_travels_as_an_object() {
        is_object::<Wait>();
        let text = json!({
            "apiVersion": "explain.pintle.dev/v1alpha1", "kind": "Wait",
            "metadata": {"name": "w", "namespace": "n"},
            "layer": "scheduler", "code": "Unschedulable",
            "object": {"kind": "Pod", "namespace": "n", "name": "p", "uid": "u"},
            "on": "cpu", "since": "2026-01-01T00:00:00Z", "text": "no",
        });
        let wait: Wait = serde_json::from_value(text.clone()).expect("a wait");
        assert_eq!(serde_json::to_value(&wait).expect("json"), text);
        assert!(serde_json::from_value::<Wait>(json!({"kind": "Pod"})).is_err());
        assert_eq!(serde_json::from_value::<Wait>(json!({})).expect("defaults"), Wait::default());
    }
}
