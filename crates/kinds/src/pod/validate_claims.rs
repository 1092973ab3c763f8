//! Claims for devices: those of a pod, and those of them that a container uses.

use std::collections::BTreeSet;

use api::types::core::v1::{PodSpec, ResourceClaim};
use machinery::field::{ErrorType, FieldError, FieldErrors, Path};
use machinery::names;
use serde_json::Value;

use crate::check;

/// The names that containers may use.
pub fn names_of(spec: &PodSpec) -> BTreeSet<&str> {
    let names = spec.resource_claims.iter().flatten().map(|claim| claim.name.as_str());
    names.filter(|name| !name.is_empty()).collect()
}

/// The mistakes in the claims of a pod.
pub fn of_pod(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, claim) in spec.resource_claims.iter().flatten().enumerate() {
        let path = path.index(i);
        if claim.name.is_empty() {
            errors.required(&path.child("name"), "");
        } else if !seen.insert(claim.name.as_str()) {
            errors.duplicate(&path.child("name"), claim.name.as_str());
        } else {
            check::all(names::dns1123_label(&claim.name), &path.child("name"), &claim.name, errors);
        }
        let (claimed, template) = (claim.resource_claim_name.as_deref(), claim.resource_claim_template_name.as_deref());
        match (claimed, template) {
            (Some(_), Some(_)) => {
                let wrong = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                errors.invalid(&path, check::value(claim), wrong);
            }
            (None, None) => {
                let wrong = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                errors.invalid(&path, check::value(claim), wrong);
            }
            _ => {}
        }
        for (name, field) in [(claimed, "resourceClaimName"), (template, "resourceClaimTemplateName")] {
            if let Some(name) = name {
                check::all(names::dns1123_subdomain(name), &path.child(field), name, errors);
            }
        }
    }
}

/// The mistakes in what a container uses of them.
pub fn of_container(claims: &[ResourceClaim], known: &BTreeSet<&str>, path: &Path, errors: &mut FieldErrors) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (i, claim) in claims.iter().enumerate() {
        let path = path.index(i);
        let name = claim.name.as_str();
        if name.is_empty() {
            errors.required(&path, "");
            continue;
        }
        if seen.contains(name) {
            // All of it is used already.
            errors.duplicate(&path, name);
        } else {
            let request = claim.request.as_deref().unwrap_or_default();
            let mut key = name.to_owned();
            if !request.is_empty() {
                check::all(names::dns1123_label(request), &path.child("request"), request, errors);
                key = format!("{name}/{request}");
            }
            let part = format!("{name}/");
            if seen.contains(&key) || (request.is_empty() && seen.iter().any(|one| one.starts_with(&part))) {
                errors.duplicate(&path, key.as_str());
            }
            seen.insert(key);
        }
        if !known.contains(name) {
            let all: Vec<&str> = known.iter().copied().collect();
            let known = if all.is_empty() { " which is empty".to_owned() } else { format!(": {}", all.join(", ")) };
            let detail = format!("must be one of the names in pod.spec.resourceClaims{known}");
            let value = Some(Value::from(name));
            errors.extend(FieldErrors(vec![FieldError { kind: ErrorType::NotFound, path, value, detail }]));
        }
    }
}
