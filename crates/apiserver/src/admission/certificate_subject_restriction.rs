//! No client certificate is asked for that would make its holder a member of `system:masters`.

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kinds::Verb;
use kinds::certificates::Request;
use machinery::status;
use serde_json::Value;

use super::{Attributes, Plugin, signers};
use crate::authz::masters;

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// The plugin.
pub struct CertificateSubjectRestriction;

#[async_trait]
impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
        let Some(request) = object.filter(|_| attributes.verb == Verb::Create) else { return Ok(()) };
        if !attributes.is_for(signers::REQUESTS, "") || super::text(request, "/spec/signerName") != SIGNER {
            return Ok(());
        }
        let pem = STANDARD.decode(super::text(request, "/spec/request")).unwrap_or_default();
        let parsed = Request::from_pem(&pem)
            .map_err(|error| attributes.forbidden(object, format!("failed to parse CSR: {error}")))?;
        if parsed.organizations.iter().any(|group| group == masters::GROUP) {
            let why = format!("use of {SIGNER} signer with {} group is not allowed", masters::GROUP);
            return Err(attributes.forbidden(object, why));
        }
        Ok(())
    }
}
