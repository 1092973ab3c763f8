//! Pod templates: the pod part of the kinds that make pods.

use api::meta::apis::meta::v1::LabelSelector;
use api::types::core::v1::PodTemplateSpec;
use machinery::field::{FieldErrors, Path};

use super::{defaults, validate, validate_annotations, validate_app_armor, validate_seccomp, warnings};
use crate::check;
use crate::kind::{Ctx, Verb};
use crate::metadata;

/// The mistakes in a template of pods that always run, and that `selector` must select; `owner` is the
/// kind that has the template.
pub fn validate(
    ctx: &Ctx,
    template: &PodTemplateSpec,
    selector: &LabelSelector,
    owner: &str,
    path: &Path,
    errors: &mut FieldErrors,
) {
    selected(template, selector, path, errors);
    alone(ctx, template, path, errors);
    let none = Default::default();
    let spec = template.spec.as_ref().unwrap_or(&none);
    let path = path.child("spec");
    if let Some(policy) = spec.restart_policy.as_deref().filter(|policy| *policy != "Always" && !policy.is_empty()) {
        errors.0.retain(|error| error.path != path.child("restartPolicy"));
        errors.not_supported(&path.child("restartPolicy"), policy, &["Always"]);
    }
    if spec.active_deadline_seconds.is_some() {
        let wrong = format!("activeDeadlineSeconds in {owner} is not Supported");
        errors.forbidden(&path.child("activeDeadlineSeconds"), wrong);
    }
}

/// The selector selects the pods of the template.
pub fn selected(template: &PodTemplateSpec, selector: &LabelSelector, path: &Path, errors: &mut FieldErrors) {
    let labels = defaults::template_labels(template);
    if !check::is_empty_selector(selector) {
        if let Ok(matcher) = api::selector(selector) {
            if !matcher.matches(&labels) {
                let path = path.child("metadata").child("labels");
                errors.invalid(&path, check::value(&labels), "`selector` does not match template `labels`");
            }
        }
    }
}

/// The mistakes in a template, whoever has it.
pub fn alone(ctx: &Ctx, template: &PodTemplateSpec, path: &Path, errors: &mut FieldErrors) {
    let labels = defaults::template_labels(template);
    let labels_path = path.child("labels");
    metadata::validate_labels(labels.iter().map(|(k, v)| (k.as_str(), v.as_str())), &labels_path, errors);
    let annotations = template.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
    metadata::validate_annotations(
        annotations.into_iter().flatten().map(|(k, v)| (k.as_str(), v.as_str())),
        &path.child("annotations"),
        errors,
    );
    let none = Default::default();
    let spec = template.spec.as_ref().unwrap_or(&none);
    validate_annotations::all(annotations, spec, ctx.verb == Verb::Create, &path.child("annotations"), errors);
    let path = path.child("spec");
    validate::spec(spec, validate::Where::Template, &path, errors);
    validate_seccomp::alike(annotations, spec, &path, errors);
    validate_app_armor::alike(annotations, spec, &path, errors);
    if spec.ephemeral_containers.as_ref().is_some_and(|containers| !containers.is_empty()) {
        errors.forbidden(&path.child("ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
}

/// What is allowed in a template, and yet likely not meant.
pub fn warnings(template: &PodTemplateSpec, path: &Path) -> Vec<String> {
    let annotations = template.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
    template.spec.as_ref().map(|spec| warnings::spec(spec, annotations, path)).unwrap_or_default()
}
