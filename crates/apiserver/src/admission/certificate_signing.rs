//! A certificate, and what became of its request, is written only by who may `sign` for the signer.

use std::sync::Arc;

use async_trait::async_trait;
use kinds::Verb;
use machinery::field::{FieldErrors, Path};
use machinery::meta;
use machinery::status::{self, Status};
use serde_json::Value;

use super::{Attributes, Plugin, signers};
use crate::authz::Authorizer;

/// The plugin. It also judges the requests of pods, whose refusal reads as one of validation.
pub struct CertificateSigning(pub Arc<dyn Authorizer>);

#[async_trait]
impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
        let (Some(old), Some(new)) = (attributes.old, object) else { return Ok(()) };
        let changed = |pointer: &str| old.pointer(pointer) != new.pointer(pointer);
        let signer = super::text(old, "/spec/signerName");
        let may = || signers::may(&*self.0, attributes.user, "sign", signer);
        if attributes.verb != Verb::Update {
            return Ok(());
        }
        if attributes.is_for(signers::REQUESTS, "status") {
            if (changed("/status/certificate") || changed("/status/conditions")) && !may() {
                let why = format!("user not permitted to sign requests with signerName {signer:?}");
                return Err(attributes.forbidden(object, why));
            }
        } else if attributes.is_for(signers::POD_REQUESTS, "status") && changed("/status") && !may() {
            let mut errors = FieldErrors::new();
            let who = &attributes.user.name;
            let why = format!(r#"User {who:?} is not permitted to "sign" for signer {signer:?}"#);
            errors.forbidden(&Path::new("spec").child("signerName"), why);
            let shape = attributes.kind.shape();
            return Err(Status::invalid(shape.group, shape.kind, meta::name(new), &errors));
        }
        Ok(())
    }
}
