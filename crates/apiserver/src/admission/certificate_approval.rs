//! A request for a certificate is approved or denied only by who may `approve` for its signer.

use std::sync::Arc;

use async_trait::async_trait;
use kinds::Verb;
use machinery::status;
use serde_json::Value;

use super::{Attributes, Plugin, signers};
use crate::authz::Authorizer;

/// The plugin.
pub struct CertificateApproval(pub Arc<dyn Authorizer>);

#[async_trait]
impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
        let Some(old) = attributes.old.filter(|_| attributes.verb == Verb::Update) else { return Ok(()) };
        if !attributes.is_for(signers::REQUESTS, "approval") {
            return Ok(());
        }
        // The stored signer: the one sent could be another.
        let signer = super::text(old, "/spec/signerName");
        if signers::may(&*self.0, attributes.user, "approve", signer) {
            return Ok(());
        }
        let why = format!("user not permitted to approve requests with signerName {signer:?}");
        Err(attributes.forbidden(object, why))
    }
}
