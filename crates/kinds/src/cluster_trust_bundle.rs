//! ClusterTrustBundle: authorities that pods may trust, of a signer or of nobody in particular.

use std::collections::BTreeMap;

use api::types::certificates::v1 as certificates;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::cells;
use crate::certificates as rules;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind, Selectable, Verb};
use crate::shape::Shape;

const LIMIT: usize = 1 << 20;
const OMITTED: &str = "<value omitted>";

pub struct ClusterTrustBundle;

impl Kind for ClusterTrustBundle {
    type Object = certificates::ClusterTrustBundle;
    const SHAPE: Shape = Shape::cluster("certificates.k8s.io", "v1", "ClusterTrustBundle", "clustertrustbundles")
        .singular("clustertrustbundle")
        .conditional_update();
    const HAS_DEFAULTS: bool = false;
    const SELECTABLE: &'static [Selectable] = &[Selectable::at("spec.signerName", &["/spec/signerName"])];

    /// The rest depends on the signer: see `validate`.
    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn validate(ctx: &Ctx, bundle: &Self::Object, errors: &mut FieldErrors) {
        let (spec, path) = (&bundle.spec, Path::new("spec"));
        let signer = spec.signer_name.as_deref().unwrap_or_default();
        let metadata = Path::new("metadata");
        let (name, generated) = (&bundle.metadata.name, &bundle.metadata.generate_name);
        for (name, field) in [(generated, "generateName"), (name, "name")] {
            if let Some(name) = name.as_deref().filter(|name| !name.is_empty()) {
                check::all(name_messages(name, signer, field == "generateName"), &metadata.child(field), name, errors);
            }
        }
        if !signer.is_empty() {
            rules::signer_name(signer, &path.child("signerName"), errors);
        }
        if ctx.verb == Verb::Create {
            anchors(&spec.trust_bundle, &path.child("trustBundle"), errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let path = Path::new("spec");
        let (new, old) = (&new.spec, &old.spec);
        if new.trust_bundle != old.trust_bundle {
            anchors(&new.trust_bundle, &path.child("trustBundle"), errors);
        }
        let signer = |spec: &certificates::ClusterTrustBundleSpec| spec.signer_name.clone().unwrap_or_default();
        check::immutable(&signer(new), &signer(old), &path.child("signerName"), errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::text("SignerName", "Whose certificates it verifies.")] },
            row: |bundle, _| {
                let signer = cells::or_none(bundle.spec.signer_name.clone().unwrap_or_default());
                (vec![cells::name(&bundle.metadata), signer], Vec::new())
            },
        }
    }
}

/// Why nothing can have this name, which says whose it is by itself.
pub fn wrong_names(name: &str) -> Vec<String> {
    let signer = name.rsplit_once(':').map(|(signer, _)| signer.replace(':', "/")).unwrap_or_default();
    name_messages(name, &signer, false)
}

/// The bundle of a signer is named after it.
fn name_messages(name: &str, signer: &str, is_prefix: bool) -> Vec<String> {
    let rule = |name: &str| {
        let stem = if is_prefix { name.strip_suffix('-').map(|stem| format!("{stem}a")) } else { None };
        names::dns1123_subdomain(stem.as_deref().unwrap_or(name))
    };
    if signer.is_empty() {
        if name.contains(':') {
            return vec![r#"ClusterTrustBundle without signer name must not have ":" in its name"#.into()];
        }
        return rule(name);
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        None => vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")],
        Some(rest) => rule(rest),
    }
}

/// Authorities, each once, and nothing else.
fn anchors(bundle: &str, path: &Path, errors: &mut FieldErrors) {
    if bundle.len() > LIMIT {
        errors.too_long(path, LIMIT);
        return;
    }
    let (mut found, mut broken) = (BTreeMap::<Vec<u8>, Vec<usize>>::new(), false);
    for (i, block) in rules::blocks(bundle.as_bytes()).enumerate() {
        match wrong_anchor(&block) {
            Some(wrong) => {
                errors.invalid(path, OMITTED, format!("entry {i} {wrong}"));
                broken = true;
            }
            None => found.entry(block.bytes).or_default().push(i),
        }
    }
    if broken {
        return;
    }
    if found.is_empty() {
        errors.invalid(path, OMITTED, "at least one trust anchor must be provided");
    }
    for places in found.values().filter(|places| places.len() > 1) {
        let places: Vec<String> = places.iter().map(ToString::to_string).collect();
        errors.invalid(path, OMITTED, format!("duplicate trust anchor (indices [{}])", places.join(" ")));
    }
}

fn wrong_anchor(block: &rules::Block) -> Option<String> {
    if block.label != "CERTIFICATE" {
        return Some(format!("has bad block type: {}", block.label));
    }
    if block.has_headers {
        return Some("has PEM block headers".into());
    }
    let Ok((_, certificate)) = X509Certificate::from_der(&block.bytes) else {
        return Some("does not parse as X.509".into());
    };
    let is_authority = certificate.basic_constraints().ok().flatten().is_some_and(|extension| extension.value.ca);
    (!is_authority).then(|| "does not have the CA bit set".into())
}
