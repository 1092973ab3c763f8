//! The mistakes in an autoscaler, in the words of its v2 form whichever form was sent.

use api::meta::apis::meta::v1::LabelSelector;
use api::types::autoscaling::v2 as autoscaling;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::check;
use crate::kind::{Ctx, Verb};
use crate::resources;

const MAX_PERIOD: i32 = 1800;
const MAX_WINDOW: i32 = 3600;
const SELECT: &[&str] = &["Disabled", "Max", "Min"];
const POLICIES: &[&str] = &["Percent", "Pods"];
const TYPES: &[&str] = &["ContainerResource", "External", "Object", "Pods", "Resource"];
const TARGETS: &[&str] = &["Utilization", "Value", "AverageValue"];

/// The mistakes in the spec.
pub fn object(ctx: &Ctx, scaler: &autoscaling::HorizontalPodAutoscaler, errors: &mut FieldErrors) {
    let spec = &scaler.spec;
    let path = Path::new("spec");
    check::not_negative(spec.min_replicas, &path.child("minReplicas"), errors);
    let max = path.child("maxReplicas");
    if spec.max_replicas == 0 {
        errors.required(&max, "must be set and greater than 0");
    } else if spec.max_replicas < 0 {
        errors.invalid(&max, spec.max_replicas, "must be greater than or equal to 1");
    }
    if spec.min_replicas.is_some_and(|min| spec.max_replicas < min) {
        errors.invalid(&max, spec.max_replicas, "must be greater than or equal to `minReplicas`");
    }
    let target = &spec.scale_target_ref;
    reference(ctx, target, &path.child("scaleTargetRef"), errors);
    let version = target.api_version.as_deref().unwrap_or_default();
    // Of the kinds without a group only one can be scaled.
    if ctx.verb == Verb::Create && target.kind != "ReplicationController" && !version.contains('/') {
        let path = path.child("scaleTargetRef").child("apiVersion");
        errors.invalid(&path, version, "apiVersion must specify API group");
    }
    let metrics = spec.metrics.as_deref().unwrap_or_default();
    let metrics_path = path.child("metrics");
    for (i, metric) in metrics.iter().enumerate() {
        self::metric(ctx, metric, &metrics_path.index(i), errors);
    }
    // Nothing of a pod can be measured where there is none.
    if spec.min_replicas == Some(0) && !metrics.iter().any(|m| matches!(m.type_.as_str(), "Object" | "External")) {
        let wrong = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.forbidden(&metrics_path, wrong);
    }
    if let Some(behavior) = &spec.behavior {
        let path = path.child("behavior");
        for (rules, name) in [(&behavior.scale_up, "scaleUp"), (&behavior.scale_down, "scaleDown")] {
            if let Some(rules) = rules {
                self::rules(rules, &path.child(name), errors);
            }
        }
    }
}

/// The mistakes in the status.
pub fn status(scaler: &autoscaling::HorizontalPodAutoscaler, errors: &mut FieldErrors) {
    let Some(status) = &scaler.status else { return };
    let path = Path::new("status");
    check::not_negative(status.current_replicas, &path.child("currentReplicas"), errors);
    check::not_negative(Some(status.desired_replicas), &path.child("desiredReplicas"), errors);
}

fn reference(ctx: &Ctx, reference: &autoscaling::CrossVersionObjectReference, path: &Path, errors: &mut FieldErrors) {
    for (text, name) in [(&reference.kind, "kind"), (&reference.name, "name")] {
        match text.as_str() {
            "" => errors.required(&path.child(name), ""),
            text => check::all(names::path_segment(text), &path.child(name), text, errors),
        }
    }
    let version = reference.api_version.as_deref().unwrap_or_default();
    if ctx.verb == Verb::Create && version.matches('/').count() > 1 {
        let wrong = format!("unexpected GroupVersion string: {version}");
        errors.invalid(&path.child("apiVersion"), version, wrong);
    }
}

fn rules(rules: &autoscaling::HPAScalingRules, path: &Path, errors: &mut FieldErrors) {
    let window = path.child("stabilizationWindowSeconds");
    match rules.stabilization_window_seconds {
        Some(seconds) if seconds < 0 => errors.invalid(&window, seconds, "must be greater than or equal to zero"),
        Some(seconds) if seconds > MAX_WINDOW => {
            errors.invalid(&window, seconds, format!("must be less than or equal to {MAX_WINDOW}"));
        }
        _ => {}
    }
    check::one_of_or_absent(rules.select_policy.as_deref(), SELECT, &path.child("selectPolicy"), errors);
    let policies = rules.policies.as_deref().unwrap_or_default();
    let policies_path = path.child("policies");
    if policies.is_empty() {
        errors.required(&policies_path, "must specify at least one Policy");
    }
    for (i, policy) in policies.iter().enumerate() {
        let path = policies_path.index(i);
        check::one_of_or_absent(Some(&policy.type_), POLICIES, &path.child("type"), errors);
        let period = path.child("periodSeconds");
        for (number, path) in [(policy.value, &path.child("value")), (policy.period_seconds, &period)] {
            if number <= 0 {
                errors.invalid(path, number, "must be greater than zero");
            }
        }
        if policy.period_seconds > MAX_PERIOD {
            errors.invalid(&period, policy.period_seconds, format!("must be less than or equal to {MAX_PERIOD}"));
        }
    }
    if let Some(amount) = rules.tolerance.as_ref().filter(|a| resources::parse(a).is_some_and(|n| n.is_negative())) {
        errors.invalid(&path.child("tolerance"), amount.0.as_str(), check::NOT_NEGATIVE);
    }
}

fn metric(ctx: &Ctx, metric: &autoscaling::MetricSpec, path: &Path, errors: &mut FieldErrors) {
    let kind = metric.type_.as_str();
    if kind.is_empty() {
        errors.required(&path.child("type"), "must specify a metric source type");
    }
    check::one_of_or_absent(Some(kind), TYPES, &path.child("type"), errors);
    let present = [
        ("object", "Object", metric.object.is_some()),
        ("external", "External", metric.external.is_some()),
        ("pods", "Pods", metric.pods.is_some()),
        ("resource", "Resource", metric.resource.is_some()),
        ("containerResource", "ContainerResource", metric.container_resource.is_some()),
    ];
    match present.iter().find(|(_, _, there)| *there).map(|(name, ..)| *name) {
        Some("object") => object_source(ctx, metric.object.as_ref(), &path.child("object"), errors),
        Some("external") => external_source(metric.external.as_ref(), &path.child("external"), errors),
        Some("pods") => pods_source(metric.pods.as_ref(), &path.child("pods"), errors),
        Some("resource") => {
            if let Some(source) = &metric.resource {
                let path = path.child("resource");
                if source.name.is_empty() {
                    errors.required(&path.child("name"), "must specify a resource name");
                }
                of_resource(&source.target, &path.child("target"), errors);
            }
        }
        Some(_) => container_source(metric.container_resource.as_ref(), &path.child("containerResource"), errors),
        None => {}
    }
    let expected = present.iter().find(|(_, type_, _)| *type_ == kind);
    if let Some((name, _, false)) = expected {
        errors.required(&path.child(name), "must populate information for the given metric source");
    }
    if present.iter().filter(|(_, _, there)| *there).count() > 1 {
        for (name, ..) in present.iter().filter(|(_, type_, there)| *there && *type_ != kind) {
            errors.forbidden(&path.child(name), "must populate the given metric source only");
        }
    }
}

fn object_source(ctx: &Ctx, source: Option<&autoscaling::ObjectMetricSource>, path: &Path, errors: &mut FieldErrors) {
    let Some(source) = source else { return };
    reference(ctx, &source.described_object, &path.child("describedObject"), errors);
    identifier(&source.metric, &path.child("metric"), errors);
    let target_path = path.child("target");
    target(&source.target, &target_path, errors);
    if source.target.value.is_none() && source.target.average_value.is_none() {
        errors.required(&target_path.child("averageValue"), "must set either a target value or averageValue");
    }
}

fn external_source(source: Option<&autoscaling::ExternalMetricSource>, path: &Path, errors: &mut FieldErrors) {
    let Some(source) = source else { return };
    identifier(&source.metric, &path.child("metric"), errors);
    let path = path.child("target");
    target(&source.target, &path, errors);
    match (&source.target.value, &source.target.average_value) {
        (None, None) => {
            let wrong = "must set either a target value for metric or a per-pod target";
            errors.required(&path.child("averageValue"), wrong);
        }
        (Some(_), Some(_)) => {
            let wrong = "may not set both a target value for metric and a per-pod target";
            errors.forbidden(&path.child("value"), wrong);
        }
        _ => {}
    }
}

fn pods_source(source: Option<&autoscaling::PodsMetricSource>, path: &Path, errors: &mut FieldErrors) {
    let Some(source) = source else { return };
    identifier(&source.metric, &path.child("metric"), errors);
    let path = path.child("target");
    target(&source.target, &path, errors);
    if source.target.average_value.is_none() {
        errors.required(&path.child("averageValue"), "must specify a positive target averageValue");
    }
}

fn container_source(
    source: Option<&autoscaling::ContainerResourceMetricSource>,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let Some(source) = source else { return };
    let name = path.child("name");
    if source.name.is_empty() {
        errors.required(&name, "must specify a resource name");
    } else {
        check::all(names::qualified_name(&source.name), &name, &source.name, errors);
        if !source.name.contains('/') && !resources::is_standard_for_containers(&source.name) {
            errors.invalid(&name, source.name.as_str(), "must be a standard resource for containers");
        }
    }
    let container = path.child("container");
    if source.container.is_empty() {
        errors.required(&container, "must specify a container");
    } else {
        check::all(names::dns1123_label(&source.container), &container, &source.container, errors);
    }
    of_resource(&source.target, &path.child("target"), errors);
}

/// A target of what pods use: a share of what they asked for, or an amount.
fn of_resource(wanted: &autoscaling::MetricTarget, path: &Path, errors: &mut FieldErrors) {
    target(wanted, path, errors);
    match (wanted.average_utilization, &wanted.average_value) {
        (None, None) => {
            let wrong = "must set either a target raw value or a target utilization";
            errors.required(&path.child("averageUtilization"), wrong);
        }
        (Some(_), Some(_)) => {
            let wrong = "may not set both a target raw value and a target utilization";
            errors.forbidden(&path.child("averageValue"), wrong);
        }
        _ => {}
    }
}

fn target(target: &autoscaling::MetricTarget, path: &Path, errors: &mut FieldErrors) {
    let kind = target.type_.as_str();
    if kind.is_empty() {
        errors.required(&path.child("type"), "must specify a metric target type");
    }
    if !TARGETS.contains(&kind) {
        errors.invalid(&path.child("type"), kind, "must be either Utilization, Value, or AverageValue");
    }
    for (amount, name) in [(&target.value, "value"), (&target.average_value, "averageValue")] {
        let Some(amount) = amount else { continue };
        if resources::parse(amount).is_some_and(|n| n.is_negative() || n.is_zero()) {
            errors.invalid(&path.child(name), amount.0.as_str(), "must be positive");
        }
    }
    if let Some(share) = target.average_utilization.filter(|n| *n < 1) {
        errors.invalid(&path.child("averageUtilization"), share, "must be greater than 0");
    }
}

fn identifier(metric: &autoscaling::MetricIdentifier, path: &Path, errors: &mut FieldErrors) {
    let name = path.child("name");
    match metric.name.as_str() {
        "" => errors.required(&name, "must specify a metric name"),
        text => check::all(names::path_segment(text), &name, text, errors),
    }
    let none = LabelSelector::default();
    check::selector(metric.selector.as_ref().unwrap_or(&none), &path.child("selector"), errors);
}
