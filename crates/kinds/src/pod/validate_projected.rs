//! Projected volumes: bundles of trust and certificates of pods.

use api::types::core::v1::{ClusterTrustBundleProjection, PodCertificateProjection};
use machinery::field::{FieldErrors, Path};

use super::validate_volume::unreserved_path;
use crate::{certificates, check, cluster_trust_bundle};

const KEY_TYPES: &[&str] = &["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
/// How long a certificate may be asked for, in seconds: an hour, a day of Kubernetes' own signers, and 91 days.
const SHORTEST: i32 = 3600;
const LONGEST_OWN: i32 = 24 * 3600;
const LONGEST: i32 = 91 * 24 * 3600;

/// The mistakes in a bundle.
pub fn bundle(bundle: &ClusterTrustBundleProjection, path: &Path, errors: &mut FieldErrors) {
    match (bundle.name.as_deref(), bundle.signer_name.as_deref()) {
        (Some(_), Some(_)) => {
            errors.invalid(path, check::value(bundle), "only one of name and signerName may be used");
        }
        (Some(name), None) => {
            let place = path.child("name");
            if name.is_empty() {
                errors.required(&place, "must be a valid object name");
            }
            for message in cluster_trust_bundle::wrong_names(name) {
                errors.invalid(&place, name, format!("not a valid clustertrustbundlename: {message}"));
            }
            if let Some(selector) = &bundle.label_selector {
                let wrong = "labelSelector must be unset if name is specified";
                errors.invalid(&path.child("labelSelector"), check::value(selector), wrong);
            }
        }
        (None, Some(signer)) => {
            let place = path.child("signerName");
            if signer.is_empty() {
                errors.required(&place, "must be a valid signer name");
            }
            certificates::signer_name(signer, &place, errors);
            if let Some(selector) = &bundle.label_selector {
                check::selector(selector, &path.child("labelSelector"), errors);
            }
        }
        (None, None) => errors.required(path, "either name or signerName must be specified"),
    }
    if bundle.path.is_empty() {
        errors.required(&path.child("path"), "");
    }
    unreserved_path(&bundle.path, &path.child("path"), errors);
}

/// The mistakes in a certificate that is asked for.
pub fn certificate(wanted: &PodCertificateProjection, path: &Path, errors: &mut FieldErrors) {
    certificates::signer_name(&wanted.signer_name, &path.child("signerName"), errors);
    if !KEY_TYPES.contains(&wanted.key_type.as_str()) {
        errors.not_supported(&path.child("keyType"), wanted.key_type.as_str(), KEY_TYPES);
    }
    if let Some(seconds) = wanted.max_expiration_seconds {
        let place = path.child("maxExpirationSeconds");
        if seconds < SHORTEST {
            errors.invalid(&place, seconds, "if provided, maxExpirationSeconds must be >= 3600");
        }
        let own = certificates::is_kubernetes_signer(&wanted.signer_name);
        let longest = if own { LONGEST_OWN } else { LONGEST };
        if seconds > longest {
            errors.invalid(&place, seconds, format!("if provided, maxExpirationSeconds must be <= {longest}"));
        }
    }
    let places = paths(wanted);
    for (field, file) in &places {
        unreserved_path(file, &path.child(field), errors);
    }
    if places.is_empty() {
        let wrong = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.required(path, wrong);
    }
}

/// The files of a certificate, by the fields that name them.
pub fn paths(wanted: &PodCertificateProjection) -> Vec<(&'static str, &str)> {
    let all = [
        ("credentialBundlePath", &wanted.credential_bundle_path),
        ("keyPath", &wanted.key_path),
        ("certificateChainPath", &wanted.certificate_chain_path),
    ];
    all.into_iter()
        .filter_map(|(field, path)| Some((field, path.as_deref().filter(|path| !path.is_empty())?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn authorities_by_name_or_by_signer() {
        let check = |bundle: Value, want: &[&str]| {
            let mut errors = FieldErrors::default();
            super::bundle(&serde_json::from_value(bundle.clone()).expect("a bundle"), &Path::new("b"), &mut errors);
            let found: Vec<String> = errors.0.iter().map(|e| format!("{}: {}", e.path.as_str(), e.detail)).collect();
            assert_eq!(found, want, "{bundle}");
        };
        check(json!({"name": "roots", "path": "ca.pem"}), &[]);
        check(json!({"name": "x.io:s:live", "path": "ca.pem"}), &[]);
        check(json!({"signerName": "x.io/s", "labelSelector": {}, "path": "ca.pem"}), &[]);
        check(json!({"path": "ca.pem"}), &["b: either name or signerName must be specified"]);
        check(
            json!({"name": "a", "signerName": "x.io/s", "path": "p"}),
            &["b: only one of name and signerName may be used"],
        );
        check(
            json!({"name": "a", "labelSelector": {}, "path": "p"}),
            &["b.labelSelector: labelSelector must be unset if name is specified"],
        );
        check(json!({"name": "a", "path": ""}), &["b.path: "]);
    }
}
