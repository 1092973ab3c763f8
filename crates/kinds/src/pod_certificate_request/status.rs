//! What a signer may answer: a certificate that fits the request, a refusal or a failure, once.

use api::types::certificates::v1 as certificates;
use jiff::{SignedDuration, Timestamp};
use machinery::field::{FieldErrors, Path};
use machinery::time;
use serde_json::Value;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::certificates as rules;
use crate::check;
use crate::kind::Ctx;

type Request = certificates::PodCertificateRequest;
type Status = certificates::PodCertificateRequestStatus;

/// The conditions with which a request has ended.
pub const ENDS: &[&str] = &["Issued", "Denied", "Failed"];
const CHAIN_LIMIT: usize = 100 * 1024;
const MINUTES: i64 = 60;
/// By how much a certificate's beginning may be off our clock.
const SKEW: i64 = 5 * MINUTES;
/// How far from both ends of its life a certificate is renewed.
const MARGIN: SignedDuration = SignedDuration::from_secs(10 * MINUTES);
const SHORTEST: i64 = 60 * MINUTES;

fn has(request: &Request, types: &[&str]) -> bool {
    let conditions = request.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| types.contains(&condition.type_.as_str()) && condition.status == "True")
}

/// The mistakes in a change of status.
pub fn change(ctx: &Ctx, new: &Request, old: &Request, errors: &mut FieldErrors) {
    let path = Path::new("status");
    let (none, before) = (Status::default(), errors.len());
    let (status, old_status) = (new.status.as_ref().unwrap_or(&none), old.status.as_ref().unwrap_or(&none));
    conditions(status, &path.child("conditions"), errors);
    if errors.len() > before {
        return;
    }
    let same = |a: &Status, b: &Status, wrong: &str, errors: &mut FieldErrors| {
        if a != b {
            errors.invalid_unprinted(&path, wrong);
        }
    };
    if has(old, ENDS) {
        let wrong = "immutable after PodCertificateRequest is issued, denied, or failed";
        same(status, old_status, wrong, errors);
    } else if has(new, &["Denied", "Failed"]) {
        let only = Status { conditions: status.conditions.clone(), ..Status::default() };
        let wrong = "non-condition status fields must be empty when denying or failing the PodCertificateRequest";
        same(status, &only, wrong, errors);
    } else if has(new, &["Issued"]) {
        issued(ctx, new, status, &path, errors);
    } else {
        let wrong = r#"status is immutable unless transitioning to "Issued", "Denied", or "Failed""#;
        same(status, old_status, wrong, errors);
    }
}

fn conditions(status: &Status, path: &Path, errors: &mut FieldErrors) {
    let all = status.conditions.as_deref().unwrap_or_default();
    let mut known = 0;
    for (i, condition) in all.iter().enumerate() {
        // The index is a part of the path's text, as upstream's.
        let path = path.child(format!("[{i}]"));
        if !ENDS.contains(&condition.type_.as_str()) {
            errors.not_supported(&path.child("type"), condition.type_.as_str(), ENDS);
            continue;
        }
        known += 1;
        if known > 1 {
            let wrong = r#"There may be at most one condition with type "Issued", "Denied", or "Failed""#;
            errors.invalid(&path.child("type"), condition.type_.as_str(), wrong);
        }
        if condition.status != "True" {
            errors.not_supported(&path.child("status"), condition.status.as_str(), &["True"]);
        }
    }
    check::conditions(all, path, errors);
}

/// The certificate must be the one that was asked for; the first thing that is wrong is told.
fn issued(ctx: &Ctx, request: &Request, status: &Status, path: &Path, errors: &mut FieldErrors) {
    let chain = status.certificate_chain.as_deref().unwrap_or_default();
    let at = path.child("certificateChain");
    if chain.len() > CHAIN_LIMIT {
        errors.too_long(&at, CHAIN_LIMIT);
        return;
    }
    let mut blocks = rules::blocks(chain.as_bytes());
    let Some(block) = blocks.next() else {
        errors.invalid(&at, chain, "issued certificate chain must contain at least one certificate");
        return;
    };
    if block.label != "CERTIFICATE" {
        errors.invalid(&at, chain, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks");
        return;
    }
    let Ok((_, leaf)) = X509Certificate::from_der(&block.bytes) else {
        errors.invalid(&at, chain, "leaf certificate does not parse as valid X.509");
        return;
    };
    names(&leaf, &at, errors);
    let key = rules::Request::from_der(&request.spec.stub_pkc_s10_request.0).map(|request| request.key);
    if key.as_deref() != Ok(leaf.public_key().raw) {
        errors.invalid(&at, chain, "leaf certificate was not issued to the requested public key");
        return;
    }
    if dates(ctx, request, status, &leaf, path, errors) {
        rest(blocks, chain, &at, errors);
    }
}

/// Names that nothing could ever match.
fn names(leaf: &X509Certificate, path: &Path, errors: &mut FieldErrors) {
    let alternatives = leaf.subject_alternative_name().ok().flatten();
    for name in alternatives.iter().flat_map(|extension| &extension.value.general_names) {
        match name {
            GeneralName::DNSName(name) => {
                if name.is_empty() {
                    errors.invalid(path, *name, "leaf certificate should not contain empty DNSName");
                }
                if name.contains("..") {
                    errors.invalid(path, *name, "leaf certificate's DNSName should not contain '..'");
                }
                if name.starts_with('.') || name.ends_with('.') {
                    errors.invalid(path, *name, "leaf certificate's DNSName should not start or end with '.'");
                }
            }
            GeneralName::RFC822Name(address) => {
                let parts = address.rsplit_once('@').filter(|(user, host)| !user.is_empty() && !host.is_empty());
                if parts.is_none() || address.contains(char::is_whitespace) {
                    errors.invalid(path, *address, "leaf certificate should not contain invalid EmailAddress");
                }
            }
            _ => {}
        }
    }
}

/// The dates in the status are the certificate's, and sensible. False when one is not.
fn dates(
    ctx: &Ctx,
    request: &Request,
    status: &Status,
    leaf: &X509Certificate,
    path: &Path,
    errors: &mut FieldErrors,
) -> bool {
    let (at, before) = (|field: &str| path.child(field), errors.len());
    let consistent = "must be present and consistent with the issued certificate";
    if status.not_before.is_none() {
        errors.required(&at("notBefore"), consistent);
    }
    if status.not_after.is_none() {
        errors.required(&at("notAfter"), consistent);
    }
    if status.begin_refresh_at.is_none() {
        let wrong = "must be present and in the range [notbefore+10min, notafter-10min]";
        errors.required(&at("beginRefreshAt"), wrong);
    }
    let (Some(from), Some(to), Some(refresh)) = (&status.not_before, &status.not_after, &status.begin_refresh_at)
    else {
        return false;
    };
    if errors.len() > before {
        return false;
    }
    let (from, to, refresh) = (from.0, to.0, refresh.0);
    let validity = leaf.validity();
    let life = validity.not_after.timestamp().saturating_sub(validity.not_before.timestamp());
    let longest = i64::from(request.spec.max_expiration_seconds.unwrap_or(0));
    let told = |time: Timestamp| Value::from(time::rfc3339(time));
    let (field, value, wrong) = if from.as_second() != validity.not_before.timestamp() {
        let wrong = "must be set to the NotBefore time encoded in the leaf certificate";
        ("notBefore", told(from), wrong.to_owned())
    } else if from.as_second().abs_diff(ctx.now.as_second()) >= SKEW.unsigned_abs() {
        let wrong = "must be set to within 5 minutes of kube-apiserver's current time";
        ("notBefore", told(from), wrong.to_owned())
    } else if to.as_second() != validity.not_after.timestamp() {
        let wrong = "must be set to the NotAfter time encoded in the leaf certificate";
        ("notAfter", told(to), wrong.to_owned())
    } else if life < SHORTEST {
        ("certificateChain", nanos(life), "leaf certificate lifetime must be >= 1 hour".to_owned())
    } else if life > longest {
        let wrong = format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({longest})");
        ("certificateChain", nanos(life), wrong)
    } else if refresh.duration_since(from) < MARGIN {
        ("beginRefreshAt", told(refresh), "must be at least 10 minutes after status.notBefore".to_owned())
    } else if to.duration_since(refresh) < MARGIN {
        ("beginRefreshAt", told(refresh), "must be at least 10 minutes before status.notAfter".to_owned())
    } else {
        return true;
    };
    errors.invalid(&at(field), value, wrong);
    false
}

/// A time span as clients are shown it.
fn nanos(seconds: i64) -> Value {
    seconds.saturating_mul(1_000_000_000).into()
}

/// What follows the leaf can at least be read.
fn rest(blocks: impl Iterator<Item = rules::Block>, chain: &str, path: &Path, errors: &mut FieldErrors) {
    for block in blocks {
        if block.label != "CERTIFICATE" {
            let wrong = "issued certificate chain must consist entirely of CERTFICATE PEM blocks";
            errors.invalid(path, chain, wrong);
            return;
        }
        if !rules::is_certificate(&block.bytes) {
            errors.invalid(path, chain, "intermediate certificate does not parse as valid X.509");
            return;
        }
    }
}
