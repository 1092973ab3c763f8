//! How objects of one version become those of another.

use api::k8s::ByteString;
use api::types::admissionregistration::v1::WebhookClientConfig;
use machinery::field::{FieldErrors, Path};

use super::view::{Conversion, WebhookConversion};
use crate::{check, webhooks};

/// True for a conversion with forms of reviews, none of which this server speaks.
pub(super) fn has_only_unknown_reviews(conversion: &Conversion) -> bool {
    let versions = conversion.webhook.as_ref().map(|webhook| webhook.conversion_review_versions.as_slice());
    versions.is_some_and(|versions| !versions.is_empty() && !webhooks::speaks(versions))
}

/// What lacks a name is told of its namespace, and the other way round, as upstream tells it.
fn swapped(client: &WebhookClientConfig) -> WebhookClientConfig {
    let mut client = client.clone();
    if let Some(service) = &mut client.service {
        std::mem::swap(&mut service.name, &mut service.namespace);
    }
    client
}

/// The mistakes in `spec.conversion`. `unknown`: forms of reviews may all be unknown.
pub(super) fn validate(conversion: &Conversion, preserves: bool, unknown: bool, path: &Path, errors: &mut FieldErrors) {
    let strategy = path.child("strategy");
    if conversion.strategy != "None" && preserves {
        errors.invalid(&strategy, &*conversion.strategy, "must be None if spec.preserveUnknownFields is true");
    }
    check::one_of(Some(&conversion.strategy), &["None", "Webhook"], &strategy, errors);
    let (config, reviews) = (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    let nothing = WebhookConversion::default();
    let webhook = conversion.webhook.as_ref().unwrap_or(&nothing);
    if conversion.strategy == "Webhook" {
        match &webhook.client_config {
            None => errors.required(&config, "required when strategy is set to Webhook"),
            Some(client) => webhooks::client(&swapped(client), &config, errors),
        }
        webhooks::versions(&webhook.conversion_review_versions, unknown, "", &reviews, errors);
        return;
    }
    let misplaced = "should not be set when strategy is not set to Webhook";
    if webhook.client_config.is_some() {
        errors.forbidden(&config, misplaced);
    }
    if !webhook.conversion_review_versions.is_empty() {
        errors.forbidden(&reviews, misplaced);
    }
}

/// A bundle of authorities that was good, or was none, stays good once the kind is served.
pub(super) fn bundle(new: Option<&Conversion>, old: Option<&Conversion>, spec: &Path, errors: &mut FieldErrors) {
    fn of(conversion: Option<&Conversion>) -> Option<&ByteString> {
        let bundle = conversion?.webhook.as_ref()?.client_config.as_ref()?.ca_bundle.as_ref()?;
        (!bundle.0.is_empty()).then_some(bundle)
    }
    let is_bad = |bundle: &ByteString| !has_certificate(&bundle.0);
    if let Some(bundle) = of(new).filter(|bundle| is_bad(bundle))
        && !of(old).is_some_and(is_bad)
    {
        let path = spec.child("conversion").child("webhookClientConfig").child("caBundle");
        errors.invalid(
            &path,
            check::value(bundle),
            "unable to load root certificates: unable to parse bytes as PEM block",
        );
    }
}

fn has_certificate(bundle: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bundle);
    text.contains("-----BEGIN CERTIFICATE-----") && text.contains("-----END CERTIFICATE-----")
}
