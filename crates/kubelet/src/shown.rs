//! A pod as the API server shows it, without what this node never asks: which of its fields are whose. That
//! is half of an object's bytes and most of its memory once it is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::meta::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use api::types::core::v1::{Pod, PodSpec, PodStatus};
use serde::{Deserialize, Deserializer};

/// The view of pods that the node's cache holds.
#[derive(Clone, Debug, Default)]
pub struct ShownPod(pub Arc<Pod>);

/// What the API server made of a status that it was told.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ShownStatus {
    metadata: Revision,
    #[serde(default)]
    status: Option<PodStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Revision {
    resource_version: Option<String>,
}

#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Option<PodSpec>,
    #[serde(default)]
    status: Option<PodStatus>,
}

/// All of `metadata` but `managedFields`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    self_link: Option<String>,
    uid: Option<String>,
}

impl<'de> Deserialize<'de> for ShownPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Parts { metadata: m, spec, status } = Parts::deserialize(deserializer)?;
        let metadata = ObjectMeta {
            annotations: m.annotations,
            creation_timestamp: m.creation_timestamp,
            deletion_grace_period_seconds: m.deletion_grace_period_seconds,
            deletion_timestamp: m.deletion_timestamp,
            finalizers: m.finalizers,
            generate_name: m.generate_name,
            generation: m.generation,
            labels: m.labels,
            managed_fields: None,
            name: m.name,
            namespace: m.namespace,
            owner_references: m.owner_references,
            resource_version: m.resource_version,
            self_link: m.self_link,
            uid: m.uid,
        };
        Ok(Self(Arc::new(Pod { metadata, spec, status })))
    }
}

impl ShownStatus {
    /// The revision and the status.
    pub fn split(self) -> (u64, PodStatus) {
        let revision = self.metadata.resource_version.and_then(|text| text.parse().ok());
        (revision.unwrap_or(0), self.status.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Whatever else `metadata` comes to hold has to be added above.
    #[test]
    fn nothing_but_the_owners_of_fields_is_left_out() {
        let mut all = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "annotations": {"a": "b"}, "creationTimestamp": "2030-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": 3, "deletionTimestamp": "2030-01-02T00:00:00Z", "finalizers": ["f"],
                "generateName": "g-", "generation": 7, "labels": {"l": "m"}, "name": "n", "namespace": "s",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "o", "uid": "ou"}],
                "resourceVersion": "42", "selfLink": "/x", "uid": "u"},
            "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
            "status": {"phase": "Running"}});
        let schema = api::schema::find("meta/v1", "ObjectMeta").expect("metadata has a schema");
        let known: Vec<&str> = schema.fields().map(|f| f.name()).filter(|name| *name != "managedFields").collect();
        let given: Vec<&String> = all["metadata"].as_object().expect("a map").keys().collect();
        assert_eq!(known.len(), given.len(), "{known:?} {given:?}");
        let whole: Pod = serde_json::from_value(all.clone()).expect("a pod");
        all["metadata"]["managedFields"] = json!([{"manager": "m", "fieldsV1": {"f:spec": {}}}]);
        let shown: ShownPod = serde_json::from_value(all.clone()).expect("a pod");
        assert_eq!(*shown.0, whole);
        let told: ShownStatus = serde_json::from_value(all).expect("a status");
        assert_eq!(told.split(), (42, whole.status.unwrap_or_default()));
        let empty: ShownPod = serde_json::from_value(json!({"metadata": {"labels": null}})).expect("a pod");
        assert_eq!(*empty.0, Pod::default());
    }
}
