//! CertificateSigningRequest: the wish for a certificate, approved and signed through doors of their own.

use api::meta::apis::meta::v1::Time;
use api::types::certificates::v1 as certificates;
use machinery::field::{FieldErrors, Path};
use machinery::{names, time};

use crate::cells;
use crate::certificates as rules;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind, Selectable, Verb};
use crate::shape::{Shape, Subresource};

type Condition = certificates::CertificateSigningRequestCondition;

const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
const SHORTEST: i32 = 600;
/// Conditions that are true or absent.
const TRUE_ONLY: &[&str] = &["Approved", "Denied", "Failed"];
/// Conditions that only an approver writes.
const VERDICTS: &[&str] = &["Approved", "Denied"];
const EXCLUSIVE: &str = "Approved and Denied conditions are mutually exclusive";
const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

pub struct CertificateSigningRequest;

impl Kind for CertificateSigningRequest {
    type Object = certificates::CertificateSigningRequest;
    const SHAPE: Shape =
        Shape::cluster("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests")
            .singular("certificatesigningrequest")
            .short(&["csr"])
            .status_without_generation()
            .resets_by(&[
                ("", &[&["spec"], &["status"]]),
                ("status", &[&["spec"], &["status", "conditions"]]),
                ("approval", &[&["spec"], &["status", "certificate"]]),
            ])
            .subresources(&[Subresource {
                name: "approval",
                group: "",
                version: "",
                kind: "CertificateSigningRequest",
                verbs: &["get", "patch", "update"],
            }]);
    const HAS_DEFAULTS: bool = false;
    const SELECTABLE: &'static [Selectable] = &[Selectable::at("spec.signerName", &["/spec/signerName"])];

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn prepare_create(ctx: &Ctx, request: &mut Self::Object) {
        let (spec, user) = (&mut request.spec, ctx.user);
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        spec.username = some(&user.name);
        spec.uid = some(&user.uid);
        spec.groups = Some(user.groups.clone()).filter(|groups| !groups.is_empty());
        spec.extra = Some(user.extra.clone()).filter(|extra| !extra.is_empty());
        request.status = Some(certificates::CertificateSigningRequestStatus::default());
    }

    fn prepare_update(ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        new.spec = old.spec.clone();
        let before = conditions(old);
        let status = new.status.get_or_insert_default();
        let now = status.conditions.get_or_insert_default();
        match ctx.subresource {
            "status" => VERDICTS.iter().for_each(|verdict| keep(verdict, now, before)),
            "approval" => status.certificate = old.status.as_ref().and_then(|status| status.certificate.clone()),
            _ => return,
        }
        for condition in now {
            condition.last_update_time.get_or_insert(Time(ctx.now));
            let same = |old: &&Condition| old.type_ == condition.type_ && old.status == condition.status;
            let since = before.iter().filter(same).find_map(|old| old.last_transition_time.clone());
            condition.last_transition_time.get_or_insert_with(|| since.unwrap_or(Time(ctx.now)));
        }
    }

    fn validate(ctx: &Ctx, request: &Self::Object, errors: &mut FieldErrors) {
        // An update may keep faults that the stored object has: it is looked at with both at hand.
        if ctx.verb == Verb::Create {
            content(request, None, errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        change(new, old, Door::Main, errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        change(new, old, Door::Status, errors);
    }

    fn validate_subresource(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        change(new, old, Door::Approval, errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::AGE,
                    Column::text("SignerName", "Who is to sign."),
                    Column::text("Requestor", "Who asks."),
                    Column::text("RequestedDuration", "How long the certificate is to be valid."),
                    Column::text("Condition", "What was decided, and what came of it."),
                ]
            },
            row: |request, now| {
                let spec = &request.spec;
                let seconds = spec.expiration_seconds.map(|seconds| u64::try_from(seconds).unwrap_or(0));
                let asked = seconds.map(|seconds| time::human_duration(std::time::Duration::from_secs(seconds)));
                let row = vec![
                    cells::name(&request.metadata),
                    cells::of(&request.metadata, now),
                    cells::or_none(spec.signer_name.clone()),
                    spec.username.clone().unwrap_or_default().into(),
                    asked.unwrap_or_else(|| "<none>".into()).into(),
                    state(request).into(),
                ];
                (row, Vec::new())
            },
        }
    }
}

/// Through what a change comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    Main,
    Status,
    Approval,
}

fn conditions(request: &certificates::CertificateSigningRequest) -> &[Condition] {
    request.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

fn certificate(request: &certificates::CertificateSigningRequest) -> &[u8] {
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    certificate.map(|bytes| bytes.0.as_slice()).unwrap_or_default()
}

fn of_type<'a>(all: &'a [Condition], type_: &str) -> Vec<&'a Condition> {
    all.iter().filter(|condition| condition.type_ == type_).collect()
}

/// Takes the conditions of a type from the old object, unless some came or went.
fn keep(type_: &str, now: &mut [Condition], before: &[Condition]) {
    let before = of_type(before, type_);
    if before.len() == of_type(now, type_).len() {
        let now = now.iter_mut().filter(|condition| condition.type_ == type_);
        now.zip(before).for_each(|(now, before)| now.clone_from(before));
    }
}

fn state(request: &certificates::CertificateSigningRequest) -> String {
    let has = |type_: &str| conditions(request).iter().any(|condition| condition.type_ == type_);
    let mut state = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if has("Failed") {
        state += ",Failed";
    }
    if !certificate(request).is_empty() {
        state += ",Issued";
    }
    state
}

/// Everything wrong with a request, but for faults that the stored object has, too.
fn content(
    request: &certificates::CertificateSigningRequest,
    old: Option<&certificates::CertificateSigningRequest>,
    errors: &mut FieldErrors,
) {
    let (spec, path) = (&request.spec, Path::new("spec"));
    let parsed = rules::Request::from_pem(&spec.request.0);
    if let Some(wrong) = parsed.map_or_else(Some, |request| request.unproven) {
        errors.invalid(&path.child("request"), check::value(&spec.request), wrong);
    }
    let usages = spec.usages.as_deref().unwrap_or_default();
    let old_usages = old.and_then(|old| old.spec.usages.as_deref()).unwrap_or_default();
    let unknown = |usage: &&String| !USAGES.contains(&usage.as_str());
    let usages_path = path.child("usages");
    if usages.is_empty() {
        errors.required(&usages_path, "");
    }
    if !old_usages.iter().any(|usage| unknown(&usage)) {
        for (i, usage) in usages.iter().enumerate().filter(|(_, usage)| unknown(usage)) {
            errors.not_supported(&usages_path.index(i), usage.as_str(), USAGES);
        }
    }
    if repeated(old_usages.iter()).is_empty() {
        for i in repeated(usages.iter()) {
            errors.duplicate(&usages_path.index(i), usages[i].as_str());
        }
    }
    let signer = spec.signer_name.as_str();
    if signer == LEGACY_SIGNER && old.is_none_or(|old| old.spec.signer_name != LEGACY_SIGNER) {
        let wrong = "the legacy signerName is not allowed via this API version";
        errors.invalid(&path.child("signerName"), signer, wrong);
    } else {
        rules::signer_name(signer, &path.child("signerName"), errors);
    }
    if let Some(seconds) = spec.expiration_seconds.filter(|seconds| *seconds < SHORTEST) {
        let wrong = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.invalid(&path.child("expirationSeconds"), seconds, wrong);
    }
    let status = Path::new("status");
    all_conditions(conditions(request), old.map_or(&[], conditions), &status.child("conditions"), errors);
    let issued = certificate(request);
    let may_be_anything =
        old.is_some_and(|old| certificate(old) == issued || rules::wrong_certificates(certificate(old)).is_some());
    if let Some(wrong) = rules::wrong_certificates(issued).filter(|_| !may_be_anything) {
        errors.invalid(&status.child("certificate"), "<certificate data>", wrong);
    }
}

/// Where a list says again what it said before.
fn repeated<'a>(list: impl Iterator<Item = &'a String>) -> Vec<usize> {
    let mut seen = std::collections::BTreeSet::new();
    list.enumerate().filter(|(_, item)| !seen.insert(item.as_str())).map(|(i, _)| i).collect()
}

fn all_conditions(now: &[Condition], before: &[Condition], path: &Path, errors: &mut FieldErrors) {
    let types = |all: &[Condition]| -> Vec<String> { all.iter().map(|condition| condition.type_.clone()).collect() };
    let before = types(before);
    let both_before = VERDICTS.iter().all(|verdict| before.iter().any(|type_| type_ == verdict));
    let (empty_before, repeated_before) = (before.iter().any(String::is_empty), !repeated(before.iter()).is_empty());
    let (mut seen, mut verdict) = (std::collections::BTreeSet::new(), "");
    for (i, condition) in now.iter().enumerate() {
        let at = path.index(i);
        let type_ = condition.type_.as_str();
        if type_.is_empty() && !empty_before {
            errors.required(&at.child("type"), "");
        }
        let states: &[&str] = if TRUE_ONLY.contains(&type_) { &["True"] } else { &["False", "True", "Unknown"] };
        check::one_of(Some(&condition.status), states, &at.child("status"), errors);
        if VERDICTS.contains(&type_) && !both_before {
            if !verdict.is_empty() && verdict != type_ {
                errors.invalid(path, type_, EXCLUSIVE);
            }
            verdict = type_;
        }
        if !seen.insert(type_) && !repeated_before {
            errors.duplicate(&at.child("type"), type_);
        }
    }
}

fn change(
    new: &certificates::CertificateSigningRequest,
    old: &certificates::CertificateSigningRequest,
    door: Door,
    errors: &mut FieldErrors,
) {
    content(new, Some(old), errors);
    let status = Path::new("status");
    let path = status.child("conditions");
    for type_ in TRUE_ONLY {
        if of_type(conditions(new), type_).len() < of_type(conditions(old), type_).len() {
            errors.forbidden(&path, format!("updates may not remove a condition of type {type_:?}"));
        }
    }
    if door != Door::Approval {
        for type_ in VERDICTS {
            let (now, before) = (of_type(conditions(new), type_), of_type(conditions(old), type_));
            if now.len() > before.len() {
                errors.forbidden(&path, format!("updates may not add a condition of type {type_:?}"));
            } else if now.len() == before.len() && now != before {
                errors.forbidden(&path, format!("updates may not modify a condition of type {type_:?}"));
            }
        }
    }
    if certificate(new) != certificate(old) {
        let path = status.child("certificate");
        if door != Door::Status {
            errors.forbidden(&path, "updates may not set certificate content");
        } else if !certificate(old).is_empty() {
            errors.forbidden(&path, "updates may not modify existing certificate content");
        }
    }
}
