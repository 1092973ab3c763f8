//! Authorities of a signer are published only by who may `attest` for it.

use std::sync::Arc;

use async_trait::async_trait;
use kinds::Verb;
use machinery::status;
use serde_json::Value;

use super::{Attributes, Plugin, signers};
use crate::authz::Authorizer;

/// The plugin.
pub struct ClusterTrustBundleAttest(pub Arc<dyn Authorizer>);

#[async_trait]
impl Plugin for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
        let Some(bundle) = object.filter(|_| attributes.verb != Verb::Delete) else { return Ok(()) };
        let signer = super::text(bundle, "/spec/signerName");
        if !attributes.is_for(signers::BUNDLES, "") || signer.is_empty() {
            return Ok(());
        }
        // What only says who owns it, or what holds it, is no claim about the signer.
        if attributes.old.is_some_and(|old| same_but_for_owners(old, bundle)) {
            return Ok(());
        }
        if signers::may(&*self.0, attributes.user, "attest", signer) {
            return Ok(());
        }
        let why = format!("user not permitted to attest for signerName {signer:?}");
        Err(attributes.forbidden(object, why))
    }
}

fn same_but_for_owners(old: &Value, new: &Value) -> bool {
    let bare = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "managedFields"] {
                metadata.remove(field);
            }
        }
        object
    };
    bare(old) == bare(new)
}
