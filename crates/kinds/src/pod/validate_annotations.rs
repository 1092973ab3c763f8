//! Annotations of a pod that mean something.

use std::collections::BTreeMap;

use api::types::core::v1::{Pod, PodSpec};
use machinery::field::{FieldErrors, Path};

use super::{validate_app_armor as app_armor, validate_seccomp as seccomp};

const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

type Annotations = BTreeMap<String, String>;

/// The mistakes in them; `cost` says whether a wrong cost of deletion is one.
pub fn all(annotations: Option<&Annotations>, spec: &PodSpec, cost: bool, path: &Path, errors: &mut FieldErrors) {
    let value = |key: &str| annotations.and_then(|annotations| annotations.get(key));
    if let Some(mirror) = value(MIRROR)
        && spec.node_name.as_deref().unwrap_or_default().is_empty()
    {
        errors.invalid(&path.key(MIRROR), mirror.as_str(), "must set spec.nodeName if mirror pod annotation is set");
    }
    if let Some(text) = value(DELETION_COST).filter(|text| cost && !is_cost(text)) {
        errors.invalid(&path.key(DELETION_COST), text.as_str(), "must be a 32bit integer");
    }
    seccomp::annotations(annotations, path, errors);
    app_armor::annotations(annotations, spec, path, errors);
}

/// As upstream reads it: no plus, and no zero before another digit.
fn is_cost(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let odd = text.starts_with('+') || (digits.len() > 1 && digits.starts_with('0'));
    !odd && text.parse::<i32>().is_ok()
}

/// What may change in them: nothing that runs already.
pub fn update(new: &Pod, old: &Pod, errors: &mut FieldErrors) {
    let none = Annotations::new();
    let new = new.metadata.annotations.as_ref().unwrap_or(&none);
    let before = old.metadata.annotations.as_ref().unwrap_or(&none);
    let path = Path::new("metadata").child("annotations");
    for (key, _) in before.iter().filter(|(key, value)| new.get(*key) != Some(value)) {
        if key.starts_with(app_armor::ANNOTATION) {
            errors.forbidden(&path.key(key), "may not remove or update AppArmor annotations");
        }
        if key == MIRROR {
            errors.forbidden(&path.key(key), "may not remove or update mirror pod annotation");
        }
    }
    for key in new.keys().filter(|key| !before.contains_key(*key)) {
        if key.starts_with(app_armor::ANNOTATION) {
            errors.forbidden(&path.key(key), "may not add AppArmor annotations");
        }
        if key == MIRROR {
            errors.forbidden(&path.key(key), "may not add mirror pod annotation");
        }
    }
}
