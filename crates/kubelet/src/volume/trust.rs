//! Which authorities a clusterTrustBundle projection shows. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::types::certificates::v1::ClusterTrustBundle;
use api::types::core::v1::ClusterTrustBundleProjection;
use base64::Engine as _;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The certificates of the bundles that the projection names, each once, as PEM.
pub fn anchors(bundles: &[Arc<ClusterTrustBundle>], wanted: &ClusterTrustBundleProjection) -> Result<String, String> {
    let optional = wanted.optional == Some(true);
    let chosen: Vec<&ClusterTrustBundle> = if let Some(name) = &wanted.name {
        let found = bundles.iter().find(|b| b.metadata.name.as_deref() == Some(name));
        if found.is_none() && !optional {
            let missing = format!("clustertrustbundle.certificates.k8s.io \"{name}\" not found");
            return Err(format!("while getting ClusterTrustBundle: {missing}"));
        }
        found.map(|b| &**b).into_iter().collect()
    } else if let Some(signer) = &wanted.signer_name {
        let selector = api::selector_or_nothing(wanted.label_selector.as_ref())
            .map_err(|e| format!("while parsing label selector: {e}"))?;
        let labels = |b: &ClusterTrustBundle| b.metadata.labels.clone().unwrap_or_default();
        let fits =
            |b: &&Arc<ClusterTrustBundle>| b.spec.signer_name.as_ref() == Some(signer) && selector.matches(&labels(b));
        let found: Vec<_> = bundles.iter().filter(fits).map(|b| &**b).collect();
        if found.is_empty() && !optional {
            return Err("combination of signerName and labelSelector matched zero ClusterTrustBundles".into());
        }
        found
    } else {
        return Err("ClusterTrustBundle projection requires either name or signerName to be set".into());
    };
    let texts = chosen.iter().map(|b| b.spec.trust_bundle.as_bytes());
    // In the order of their bytes: the same set is the same file.
    let set: BTreeSet<Vec<u8>> =
        texts.flat_map(|t| CertificateDer::pem_slice_iter(t).flatten().map(|c| c.to_vec())).collect();
    Ok(set.iter().map(|der| pem(der)).collect())
}

fn pem(der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = tail;
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn bundles_by_name_and_by_signer() {
        let bundle = |name: &str, signer: Option<&str>, label: &str, ders: &[&[u8]]| {
            let text: String = ders.iter().map(|d| pem(d)).collect();
            let value = json!({"metadata": {"name": name, "labels": {"v": label}},
                "spec": {"signerName": signer, "trustBundle": text}});
            Arc::new(serde_json::from_value::<ClusterTrustBundle>(value).expect("a bundle"))
        };
        let all = [
            bundle("plain", None, "1", &[b"bb", b"aa", b"bb"]),
            bundle("s:x:1", Some("x.io/s"), "1", &[b"cc"]),
            bundle("s:x:2", Some("x.io/s"), "2", &[b"dd", b"cc"]),
        ];
        let check = |wanted: Value, want: Result<&[&[u8]], &str>| {
            let found = anchors(&all, &serde_json::from_value(wanted.clone()).expect("a projection"));
            let want = want.map(|ders| ders.iter().map(|d| pem(d)).collect::<String>()).map_err(str::to_owned);
            assert_eq!(found, want, "{wanted}");
        };
        check(json!({"path": "p", "name": "plain"}), Ok(&[b"aa", b"bb"]));
        check(
            json!({"path": "p", "name": "no"}),
            Err("while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"no\" not found"),
        );
        check(json!({"path": "p", "name": "no", "optional": true}), Ok(&[]));
        check(json!({"path": "p", "signerName": "x.io/s", "labelSelector": {}}), Ok(&[b"cc", b"dd"]));
        let two = json!({"matchLabels": {"v": "2"}});
        check(json!({"path": "p", "signerName": "x.io/s", "labelSelector": two}), Ok(&[b"cc", b"dd"]));
        let none = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        // No selector matches nothing, an empty one everything.
        check(json!({"path": "p", "signerName": "x.io/s"}), Err(none));
        check(json!({"path": "p", "signerName": "y.io/s", "labelSelector": {}}), Err(none));
        check(json!({"path": "p", "signerName": "y.io/s", "labelSelector": {}, "optional": true}), Ok(&[]));
        check(json!({"path": "p"}), Err("ClusterTrustBundle projection requires either name or signerName to be set"));
    }

    #[test]
    fn lines_have_64_characters() {
        let text = pem(&[7; 100]);
        assert!(text.lines().skip(1).all(|l| l.len() == 64 || l.starts_with("--") || l.len() < 64));
        assert_eq!(text.lines().count(), 5);
    }
}
