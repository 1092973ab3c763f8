//! ValidatingAdmissionPolicyBinding: where a policy holds, with which parameters, and what comes of it.

use std::collections::BTreeSet;

use api::types::admissionregistration::v1 as admission;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::admission_rules as rules;
use crate::cells;
use crate::check;
use crate::kind::{Columns, Ctx, Kind};
use crate::shape::Shape;

const ACTIONS: &[&str] = &["Audit", "Deny", "Warn"];

pub struct ValidatingAdmissionPolicyBinding;

impl Kind for ValidatingAdmissionPolicyBinding {
    type Object = admission::ValidatingAdmissionPolicyBinding;
    const SHAPE: Shape = Shape::cluster(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
    )
    .singular("validatingadmissionpolicybinding")
    .categories(&["api-extensions"])
    .generation()
    .conditional_update();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, binding: &mut Self::Object) {
        rules::default_match(binding.spec.match_resources.as_mut());
    }

    fn validate(_ctx: &Ctx, binding: &Self::Object, errors: &mut FieldErrors) {
        let (spec, path) = (&binding.spec, Path::new("spec"));
        rules::policy_name(&spec.policy_name, &path.child("policyName"), errors);
        if let Some(param) = &spec.param_ref {
            rules::param_ref(param, &path.child("paramRef"), errors);
        }
        if let Some(matching) = &spec.match_resources {
            rules::match_resources(matching, &path.child("matchResources"), errors);
        }
        actions(&spec.validation_actions, &path.child("validationActions"), errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let not_called = rules::not_called("admission policies");
        rules::reserved_name(new.metadata.name.as_ref()).into_iter().chain([not_called]).collect()
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: rules::BINDING_COLUMNS,
            row: |binding, now| {
                let row = vec![
                    cells::name(&binding.metadata),
                    binding.spec.policy_name.clone().into(),
                    rules::param_ref_cell(binding.spec.param_ref.as_ref()),
                    cells::of(&binding.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

/// What happens to a write that a policy is against.
fn actions(actions: &[String], path: &Path, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, action) in actions.iter().enumerate() {
        check::one_of_or_absent(Some(action), ACTIONS, &path.index(i), errors);
        if !seen.insert(action.as_str()) {
            errors.duplicate(&path.index(i), action.as_str());
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let wrong = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                     response and headers serves no purpose)";
        errors.invalid(path, check::value(&actions), wrong);
    }
    if seen.is_empty() {
        errors.required(path, "at least one validation action is required");
    }
}
