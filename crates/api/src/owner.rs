//! Who controls an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// The one owner with `controller: true`.
pub fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true))
}

/// Is `uid` the controller?
pub fn is_controlled_by(metadata: &ObjectMeta, uid: &str) -> bool {
    controller(metadata).is_some_and(|o| o.uid == uid)
}

/// A controller reference to an object of kind `K`, that blocks a foreground deletion.
pub fn reference<K: k8s_openapi::Resource>(metadata: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: K::API_VERSION.to_owned(),
        kind: K::KIND.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
