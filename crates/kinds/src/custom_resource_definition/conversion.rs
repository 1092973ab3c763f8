//! How objects of one version become those of another.

use api::k8s::ByteString;
use api::types::admissionregistration::v1::{ServiceReference, WebhookClientConfig};
use machinery::field::{FieldErrors, Path};
use machinery::names;

use super::view::{Conversion, WebhookConversion};
use crate::check;

/// The forms of a ConversionReview that this server speaks.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// True for a conversion with forms of reviews, none of which this server speaks.
pub(super) fn has_only_unknown_reviews(conversion: &Conversion) -> bool {
    let versions = conversion.webhook.as_ref().map(|webhook| webhook.conversion_review_versions.as_slice());
    versions.is_some_and(|versions| !versions.is_empty() && !speaks(versions))
}

fn speaks(versions: &[String]) -> bool {
    versions.iter().any(|version| VERSIONS.contains(&version.as_str()))
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
            Some(client) => self::client(client, &config, errors),
        }
        versions(&webhook.conversion_review_versions, unknown, &reviews, errors);
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

fn client(client: &WebhookClientConfig, path: &Path, errors: &mut FieldErrors) {
    match (&client.url, &client.service) {
        (Some(url), None) => self::url(url, &path.child("url"), errors),
        (None, Some(service)) => self::service(service, &path.child("service"), errors),
        _ => errors.required(path, "exactly one of url or service is required"),
    }
}

fn url(url: &str, path: &Path, errors: &mut FieldErrors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = rest.split_once("://").unwrap_or(("", rest));
    let authority = if scheme.is_empty() { "" } else { rest.split('/').next().unwrap_or_default() };
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if !scheme.eq_ignore_ascii_case("https") {
        errors.invalid(path, scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if host.is_empty() {
        errors.invalid(path, "", format!("host must be specified{FORM}"));
    }
    for (part, what) in [
        (user, "user information is not permitted in the URL"),
        (fragment, "fragments are not permitted in the URL"),
        (query, "query parameters are not permitted in the URL"),
    ] {
        if !part.is_empty() {
            errors.invalid(path, part, what);
        }
    }
}

fn service(service: &ServiceReference, path: &Path, errors: &mut FieldErrors) {
    // What lacks a name is told of its namespace, and the other way round, as upstream tells it.
    for (text, field) in [(&service.namespace, "name"), (&service.name, "namespace")] {
        if text.is_empty() {
            errors.required(&path.child(field), "");
        }
    }
    if let Some(port) = service.port.filter(|port| !(1..=65535).contains(port)) {
        errors.invalid(&path.child("port"), port, format!("port is not valid: {}", check::PORT_RANGE));
    }
    let (at, given) = (path.child("path"), service.path.as_deref().unwrap_or_default());
    if matches!(given, "" | "/") {
        return;
    }
    if given == "//" {
        errors.invalid(&at, given, "segment[0] may not be empty");
        return;
    }
    if !given.starts_with('/') {
        errors.invalid(&at, given, "must start with a '/'");
    }
    let rest = given.chars().next().map_or("", |first| &given[first.len_utf8()..]);
    for (i, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            errors.invalid(&at, given, format!("segment[{i}] may not be empty"));
            continue;
        }
        for message in names::dns1123_subdomain(step) {
            errors.invalid(&at, given, format!("segment[{i}]: {message}"));
        }
    }
}

fn versions(versions: &[String], unknown: bool, path: &Path, errors: &mut FieldErrors) {
    if versions.is_empty() {
        errors.required(path, "");
        return;
    }
    for (i, version) in versions.iter().enumerate() {
        if versions[..i].contains(version) {
            errors.invalid(&path.index(i), version.as_str(), "duplicate version");
        } else {
            check::all(names::dns1035_label(version), &path.index(i), version, errors);
        }
    }
    if !unknown && !speaks(versions) {
        let detail = format!("must include at least one of {}", VERSIONS.join(", "));
        errors.invalid(path, check::value(&versions), detail);
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
