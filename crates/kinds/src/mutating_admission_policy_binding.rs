//! MutatingAdmissionPolicyBinding: where a mutating policy holds, and with which parameters.

use api::types::admissionregistration::v1 as admission;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::admission_rules as rules;
use crate::cells;
use crate::kind::{Columns, Ctx, Kind};
use crate::shape::Shape;

pub struct MutatingAdmissionPolicyBinding;

impl Kind for MutatingAdmissionPolicyBinding {
    type Object = admission::MutatingAdmissionPolicyBinding;
    const SHAPE: Shape = Shape::cluster(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingAdmissionPolicyBinding",
        "mutatingadmissionpolicybindings",
    )
    .singular("mutatingadmissionpolicybinding")
    .categories(&["api-extensions"])
    .generation()
    .conditional_update();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, binding: &mut Self::Object) {
        rules::default_match(binding.spec.as_mut().and_then(|spec| spec.match_resources.as_mut()));
    }

    fn validate(_ctx: &Ctx, binding: &Self::Object, errors: &mut FieldErrors) {
        let none = admission::MutatingAdmissionPolicyBindingSpec::default();
        let (spec, path) = (binding.spec.as_ref().unwrap_or(&none), Path::new("spec"));
        let policy = spec.policy_name.as_deref().unwrap_or_default();
        rules::policy_name(policy, &path.child("policyName"), errors);
        if let Some(param) = &spec.param_ref {
            rules::param_ref(param, &path.child("paramRef"), errors);
        }
        if let Some(matching) = &spec.match_resources {
            let path = path.child("matchResources");
            rules::match_resources(matching, &path, errors);
            rules::mutating(Some(matching), &path, errors);
        }
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let not_called = rules::not_called("admission policies");
        rules::reserved_name(new.metadata.name.as_ref()).into_iter().chain([not_called]).collect()
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: rules::BINDING_COLUMNS,
            row: |binding, now| {
                let spec = binding.spec.as_ref();
                let row = vec![
                    cells::name(&binding.metadata),
                    spec.and_then(|spec| spec.policy_name.clone()).unwrap_or_default().into(),
                    rules::param_ref_cell(spec.and_then(|spec| spec.param_ref.as_ref())),
                    cells::of(&binding.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}
