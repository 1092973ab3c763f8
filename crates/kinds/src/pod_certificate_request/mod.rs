//! PodCertificateRequest: a node's wish for a certificate of one of its pods.

mod status;

use api::types::certificates::v1 as certificates;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::certificates as rules;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind, Selectable};
use crate::metadata;
use crate::shape::Shape;

/// Of a uid, in bytes.
const UID_LIMIT: usize = 128;
const REQUEST_LIMIT: usize = 10 * 1024;
const HOUR: i32 = 60 * 60;
const DAY: i32 = 24 * HOUR;
/// Of certificates that Kubernetes' own signers sign, and of others.
const LONGEST: (i32, i32) = (DAY, 91 * DAY);

pub struct PodCertificateRequest;

impl Kind for PodCertificateRequest {
    type Object = certificates::PodCertificateRequest;
    const SHAPE: Shape =
        Shape::namespaced("certificates.k8s.io", "v1", "PodCertificateRequest", "podcertificaterequests")
            .singular("podcertificaterequest")
            .status_without_generation()
            .conditional_update()
            .status_keeps(&["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"]);
    const SELECTABLE: &'static [Selectable] = &[
        Selectable::at("spec.signerName", &["/spec/signerName"]),
        Selectable::at("spec.podName", &["/spec/podName"]),
        Selectable::at("spec.nodeName", &["/spec/nodeName"]),
    ];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, request: &mut Self::Object) {
        request.spec.max_expiration_seconds.get_or_insert(DAY);
    }

    fn validate(ctx: &Ctx, request: &Self::Object, errors: &mut FieldErrors) {
        if ctx.verb == crate::kind::Verb::Create {
            spec(&request.spec, errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable(&new.spec, &old.spec, &Path::new("spec"), errors);
    }

    fn validate_status(ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        status::change(ctx, new, old, errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("PodName", "The pod it is for."),
                    Column::text("ServiceAccountName", "The account of the pod."),
                    Column::text("NodeName", "The node that asks."),
                    Column::text("SignerName", "Who is to sign."),
                    Column::text("State", "Whether it waits, or what was decided."),
                    Column::text("UnverifiedUserAnnotations", "What the user says to the signer.").wide(),
                ]
            },
            row: |request, _| {
                let spec = &request.spec;
                let conditions = request.status.iter().flat_map(|status| status.conditions.iter().flatten());
                let mut decided =
                    conditions.map(|condition| condition.type_.as_str()).filter(|t| status::ENDS.contains(t));
                let row = vec![
                    cells::name(&request.metadata),
                    spec.pod_name.clone().into(),
                    spec.service_account_name.clone().into(),
                    spec.node_name.clone().into(),
                    spec.signer_name.clone().into(),
                    decided.next_back().unwrap_or("Pending").into(),
                    cells::labels(spec.unverified_user_annotations.as_ref()),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn spec(spec: &certificates::PodCertificateRequestSpec, errors: &mut FieldErrors) {
    let path = Path::new("spec");
    rules::signer_name(&spec.signer_name, &path.child("signerName"), errors);
    let path_of_notes = path.child("unverifiedUserAnnotations");
    let mut size = 0;
    for (key, value) in spec.unverified_user_annotations.iter().flatten() {
        let key = key.to_lowercase();
        let wrong = names::qualified_name(&key);
        if key.is_empty() {
            errors.required(&path_of_notes, "");
        } else if wrong.is_empty() && !key.contains('/') {
            let wrong = "must be a domain-prefixed key (such as \"acme.io/foo\")";
            errors.invalid(&path_of_notes, key.as_str(), wrong);
        } else {
            check::all(wrong, &path_of_notes, &key, errors);
        }
        size += key.len() + value.len();
    }
    if size > metadata::ANNOTATIONS_LIMIT {
        errors.too_long(&path_of_notes, metadata::ANNOTATIONS_LIMIT);
    }
    for (name, name_field, uid, uid_field) in [
        (&spec.pod_name, "podName", &spec.pod_uid, "podUID"),
        (&spec.service_account_name, "serviceAccountName", &spec.service_account_uid, "serviceAccountUID"),
        (&spec.node_name, "nodeName", &spec.node_uid, "nodeUID"),
    ] {
        check::all(names::dns1123_subdomain(name), &path.child(name_field), name, errors);
        if uid.is_empty() {
            errors.invalid(&path.child(uid_field), "", "must not be empty");
        }
        if uid.len() > UID_LIMIT {
            errors.too_long(&path.child(uid_field), UID_LIMIT);
        }
    }
    let at = path.child("maxExpirationSeconds");
    let Some(seconds) = spec.max_expiration_seconds else {
        errors.required(&at, "must be set");
        return;
    };
    let longest = if rules::is_kubernetes_signer(&spec.signer_name) { LONGEST.0 } else { LONGEST.1 };
    if !(HOUR..=longest).contains(&seconds) {
        errors.invalid(&at, seconds, format!("must be in the range [{HOUR}, {longest}]"));
    }
    request(&spec.stub_pkc_s10_request.0, &path, errors);
}

fn request(der: &[u8], path: &Path, errors: &mut FieldErrors) {
    let path = path.child("stubPKCS10Request");
    if der.is_empty() {
        errors.required(&path, "");
        return;
    }
    if der.len() > REQUEST_LIMIT {
        errors.too_long(&path, REQUEST_LIMIT);
        return;
    }
    match rules::Request::from_der(der) {
        Err(_) => errors.invalid_unprinted(&path, "must be a valid PKCS#10 CSR"),
        Ok(rules::Request { odd_key: Some((Some(what), wrong)), .. }) => errors.invalid(&path, what, wrong),
        Ok(rules::Request { odd_key: Some((None, wrong)), .. }) => errors.invalid_unprinted(&path, wrong),
        Ok(rules::Request { unproven: Some(_), .. }) => errors.invalid_unprinted(&path, "invalid signature"),
        Ok(_) => {}
    }
}
