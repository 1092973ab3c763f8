//! MutatingAdmissionPolicy: expressions that change what is written.

use ::rules::policy::{Wanted, World};
use api::types::admissionregistration::v1 as admission;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::admission_rules as rules;
use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind, Verb};
use crate::shape::Shape;

const PATCHES: &[&str] = &["ApplyConfiguration", "JSONPatch"];

pub struct MutatingAdmissionPolicy;

impl Kind for MutatingAdmissionPolicy {
    type Object = admission::MutatingAdmissionPolicy;
    const SHAPE: Shape =
        Shape::cluster("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicy", "mutatingadmissionpolicies")
            .singular("mutatingadmissionpolicy")
            .categories(&["api-extensions"])
            .generation()
            .conditional_update();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, policy: &mut Self::Object) {
        let spec = policy.spec.get_or_insert_default();
        spec.failure_policy.get_or_insert_with(|| "Fail".into());
        rules::default_match(spec.match_constraints.as_mut());
    }

    fn validate(ctx: &Ctx, policy: &Self::Object, errors: &mut FieldErrors) {
        if ctx.verb == Verb::Create {
            spec(policy, None, errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        spec(new, old.spec.as_ref(), errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let not_called = rules::not_called("admission policies");
        rules::reserved_name(new.metadata.name.as_ref()).into_iter().chain([not_called]).collect()
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::number("Mutations", "How many changes it makes."),
                    Column::text("ParamKind", "The kind of its parameters."),
                    Column::AGE,
                ]
            },
            row: |policy, now| {
                let spec = policy.spec.as_ref();
                let row = vec![
                    cells::name(&policy.metadata),
                    spec.and_then(|spec| spec.mutations.as_ref()).map_or(0, Vec::len).into(),
                    rules::param_kind_cell(spec.and_then(|spec| spec.param_kind.as_ref())).into(),
                    cells::of(&policy.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn spec(
    policy: &admission::MutatingAdmissionPolicy,
    old: Option<&admission::MutatingAdmissionPolicySpec>,
    errors: &mut FieldErrors,
) {
    let none = admission::MutatingAdmissionPolicySpec::default();
    let (spec, path) = (policy.spec.as_ref().unwrap_or(&none), Path::new("spec"));
    check::one_of(spec.failure_policy.as_deref(), rules::FAILURE_POLICIES, &path.child("failurePolicy"), errors);
    if let Some(kind) = &spec.param_kind {
        rules::param_kind(kind, &path.child("paramKind"), errors);
    }
    let at = path.child("matchConstraints");
    rules::constraints(spec.match_constraints.as_ref(), &at, errors);
    rules::mutating(spec.match_constraints.as_ref(), &at, errors);
    let same = |old: &admission::MutatingAdmissionPolicySpec| {
        old.param_kind == spec.param_kind && old.match_conditions == spec.match_conditions
    };
    if !old.is_some_and(same) {
        rules::match_conditions(
            spec.match_conditions.as_ref(),
            spec.param_kind.is_some(),
            &path.child("matchConditions"),
            errors,
        );
    }
    let before = old.and_then(|old| old.variables.as_ref());
    let has_params = spec.param_kind.is_some();
    let known = rules::variables(spec.variables.as_ref(), has_params, before, &path.child("variables"), errors);
    let world = World { params: has_params, authorizer: true, patches: true, variables: Some(&known) };
    let before = old.and_then(|old| old.mutations.as_deref()).unwrap_or_default();
    let mutations = spec.mutations.as_deref().unwrap_or_default();
    if mutations.is_empty() {
        errors.required(&path.child("mutations"), "mutations must contain at least one item");
    }
    for (i, mutation) in mutations.iter().enumerate() {
        // What was stored stays.
        let world = (!before.contains(mutation)).then_some(world);
        self::mutation(mutation, world, &path.child("mutations").index(i), errors);
    }
    let policy = spec.reinvocation_policy.as_deref();
    check::one_of(policy, rules::REINVOCATION_POLICIES, &path.child("reinvocationPolicy"), errors);
}

/// One patch; its expression is looked at in `world`, if at all.
fn mutation(mutation: &admission::Mutation, world: Option<World<'_>>, path: &Path, errors: &mut FieldErrors) {
    let type_ = mutation.patch_type.as_str();
    let text = |expression: &Option<String>| expression.as_deref().unwrap_or_default().trim().to_owned();
    let patch = mutation.json_patch.as_ref().map(|patch| text(&patch.expression));
    let apply = mutation.apply_configuration.as_ref().map(|apply| text(&apply.expression));
    let (wanted, other) = match type_ {
        "JSONPatch" => (("jsonPatch", patch), ("applyConfiguration", apply)),
        "ApplyConfiguration" => (("applyConfiguration", apply), ("jsonPatch", patch)),
        _ => {
            check::one_of(Some(type_), PATCHES, &path.child("patchType"), errors);
            return;
        }
    };
    match wanted {
        (field, None) => {
            errors.required(&path.child(field), format!("must be specified when patchType is {type_}"));
        }
        (field, Some(text)) => {
            let gives = if type_ == "JSONPatch" { Wanted::Operations } else { Wanted::Configuration };
            let wanted = world.map(|world| (world, gives));
            rules::expression(&text, "", wanted, &path.child(field).child("expression"), errors);
        }
    }
    if let (field, Some(_)) = other {
        let wrong = format!("must not be specified when patchType is {type_}");
        errors.invalid(&path.child(field), format!("{{{field}}}"), wrong);
    }
}
