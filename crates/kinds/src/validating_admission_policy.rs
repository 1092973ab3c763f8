//! ValidatingAdmissionPolicy: expressions that say which writes are refused.

use std::collections::BTreeSet;

use ::rules::policy::{Wanted, World};
use api::types::admissionregistration::v1 as admission;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::admission_rules as rules;
use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind, Verb};
use crate::shape::Shape;

const REASONS: &[&str] = &["Forbidden", "Invalid", "RequestEntityTooLarge"];
const ANNOTATIONS: usize = 20;
const ANNOTATION_LENGTH: usize = 5 * 1024;
const NONE_GIVEN: &str = "validations or auditAnnotations must contain at least one item";
const NOT_SPECIFIED: &str = "expression is not specified";

pub struct ValidatingAdmissionPolicy;

impl Kind for ValidatingAdmissionPolicy {
    type Object = admission::ValidatingAdmissionPolicy;
    const SHAPE: Shape = Shape::cluster(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
    )
    .singular("validatingadmissionpolicy")
    .categories(&["api-extensions"])
    .status()
    .conditional_update()
    .status_keeps(&["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"])
    .status_resets(&[&["spec"], &["metadata"]]);

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

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        let Some(status) = &new.status else { return };
        let path = Path::new("status");
        let warnings = status.type_checking.iter().flat_map(|checking| checking.expression_warnings.iter().flatten());
        for (i, warning) in warnings.enumerate() {
            let path = path.child("typeChecking").child("expressionWarnings").index(i);
            if warning.warning.is_empty() {
                errors.required(&path.child("warning"), "");
            }
            if warning.field_ref.trim().is_empty() {
                errors.required(&path.child("fieldRef"), "");
            }
        }
        check::conditions(status.conditions.as_deref().unwrap_or_default(), &path.child("conditions"), errors);
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
                    Column::number("Validations", "How many rules it has."),
                    Column::text("ParamKind", "The kind of its parameters."),
                    Column::AGE,
                ]
            },
            row: |policy, now| {
                let spec = policy.spec.as_ref();
                let row = vec![
                    cells::name(&policy.metadata),
                    spec.and_then(|spec| spec.validations.as_ref()).map_or(0, Vec::len).into(),
                    rules::param_kind_cell(spec.and_then(|spec| spec.param_kind.as_ref())).into(),
                    cells::of(&policy.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn spec(
    policy: &admission::ValidatingAdmissionPolicy,
    old: Option<&admission::ValidatingAdmissionPolicySpec>,
    errors: &mut FieldErrors,
) {
    let none = admission::ValidatingAdmissionPolicySpec::default();
    let (spec, path) = (policy.spec.as_ref().unwrap_or(&none), Path::new("spec"));
    check::one_of(spec.failure_policy.as_deref(), rules::FAILURE_POLICIES, &path.child("failurePolicy"), errors);
    if let Some(kind) = &spec.param_kind {
        rules::param_kind(kind, &path.child("paramKind"), errors);
    }
    rules::constraints(spec.match_constraints.as_ref(), &path.child("matchConstraints"), errors);
    let same = |old: &admission::ValidatingAdmissionPolicySpec| {
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
    // A policy that has no variables has no `variables`, either.
    let variables = spec.variables.as_ref().is_some_and(|variables| !variables.is_empty()).then_some(&known);
    let world = World { params: has_params, authorizer: true, patches: false, variables };
    let validations = spec.validations.as_deref().unwrap_or_default();
    let annotations = spec.audit_annotations.as_deref().unwrap_or_default();
    if validations.is_empty() && annotations.is_empty() {
        errors.required(&path.child("validations"), NONE_GIVEN);
        errors.required(&path.child("auditAnnotations"), NONE_GIVEN);
    }
    for (i, validation) in validations.iter().enumerate() {
        let old = old.iter().flat_map(|old| old.validations.iter().flatten());
        self::validation(validation, old.collect(), world, &path.child("validations").index(i), errors);
    }
    let at = path.child("auditAnnotations");
    if annotations.len() > ANNOTATIONS {
        let wrong = format!("must not have more than {ANNOTATIONS} auditAnnotations");
        errors.invalid(&at, check::value(&annotations), wrong);
    }
    let (name, mut seen) = (policy.metadata.name.as_deref().unwrap_or_default(), BTreeSet::new());
    for (i, annotation) in annotations.iter().enumerate() {
        let path = at.index(i);
        let old = old.iter().flat_map(|old| old.audit_annotations.iter().flatten());
        let is_old = old.into_iter().any(|old| old.value_expression == annotation.value_expression);
        self::annotation(annotation, name, (!is_old).then_some(world), &path, errors);
        if !seen.insert(annotation.key.as_str()) {
            errors.duplicate(&path.child("key"), annotation.key.as_str());
        }
    }
}

fn validation(
    validation: &admission::Validation,
    old: Vec<&admission::Validation>,
    world: World<'_>,
    path: &Path,
    errors: &mut FieldErrors,
) {
    // What was stored stays.
    let is_old = old.iter().any(|old| old.expression == validation.expression);
    let wanted = (!is_old).then_some((world, Wanted::Bool));
    rules::expression(&validation.expression, NOT_SPECIFIED, wanted, &path.child("expression"), errors);
    let blank = |text: &str| !text.is_empty() && text.trim().is_empty();
    let not_empty = "must be non-empty if specified";
    let by_expression = validation.message_expression.as_deref().unwrap_or_default();
    if blank(by_expression) {
        errors.invalid(&path.child("messageExpression"), by_expression, not_empty);
    } else if !by_expression.is_empty()
        && !old.iter().any(|old| old.message_expression == validation.message_expression)
    {
        let wanted = (World { authorizer: false, ..world }, Wanted::Text);
        rules::expression(by_expression, "", Some(wanted), &path.child("messageExpression"), errors);
    }
    let (message, at) = (validation.message.as_deref().unwrap_or_default(), path.child("message"));
    if blank(message) {
        errors.invalid(&at, message, not_empty);
    } else if message.trim().contains(['\n', '\r']) {
        errors.invalid(&at, message, "must not contain line breaks");
    }
    check::one_of_or_absent(validation.reason.as_deref(), REASONS, &path.child("reason"), errors);
}

fn annotation(
    annotation: &admission::AuditAnnotation,
    name: &str,
    world: Option<World<'_>>,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let at = path.child("key");
    if name.is_empty() {
        errors.invalid(&at, annotation.key.as_str(), "requires metadata.name be non-empty");
    } else {
        let full = format!("{name}/{}", annotation.key);
        check::all(names::qualified_name(&full), &at, &full, errors);
    }
    let (value, at) = (annotation.value_expression.trim(), path.child("valueExpression"));
    if value.is_empty() {
        errors.required(&at, "valueExpression is not specified");
    } else if value.len() > ANNOTATION_LENGTH {
        errors.required(&at, format!("must not exceed {ANNOTATION_LENGTH} bytes in length"));
    } else if let Some(world) = world {
        rules::expression(value, "", Some((world, Wanted::TextOrNull)), &at, errors);
    }
}
