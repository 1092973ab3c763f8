//! A claim grows only once it is bound, and only when its class says that its volumes can grow.

use std::sync::Arc;

use async_trait::async_trait;
use kinds::Verb;
use machinery::quantity::Quantity;
use machinery::{meta, status};
use serde_json::Value;

use super::{Attributes, Plugin};
use crate::objects::{self, Objects};

const OLDER: &str = "volume.beta.kubernetes.io/storage-class";

/// The plugin.
pub struct PersistentVolumeClaimResize(pub Arc<dyn Objects>);

fn class(claim: &Value) -> &str {
    meta::annotation(claim, OLDER).unwrap_or_else(|| super::text(claim, "/spec/storageClassName"))
}

fn size(claim: &Value) -> Quantity {
    super::text(claim, "/spec/resources/requests/storage").parse().unwrap_or(Quantity::ZERO)
}

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
        let (Some(old), Some(new)) = (attributes.old, object) else { return Ok(()) };
        if attributes.verb != Verb::Update || !attributes.is_for(objects::PERSISTENT_VOLUME_CLAIMS, "") {
            return Ok(());
        }
        if size(new) <= size(old) {
            return Ok(());
        }
        if super::text(old, "/status/phase") != "Bound" {
            return Err(attributes.forbidden(object, "Only bound persistent volume claims can be expanded"));
        }
        let (name, before) = (class(new), class(old));
        let found = match !name.is_empty() && name == before {
            true => self.0.find(objects::STORAGE_CLASSES, "", name).await?,
            false => None,
        };
        if found.is_some_and(|class| class.get("allowVolumeExpansion") == Some(&Value::Bool(true))) {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
                   support resize";
        Err(attributes.forbidden(object, why))
    }
}
