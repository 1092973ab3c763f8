//! HorizontalPodAutoscaler: the number of pods follows a metric. Stored in the form of v2; `v1` beside
//! it keeps in annotations what it has no fields for.

mod convert;
pub mod v1;
mod validate;

use api::types::autoscaling::v2 as autoscaling;
use jiff::Timestamp;
use machinery::field::FieldErrors;
use machinery::names;

use crate::cells;
use crate::kind::{Cell, Column, Columns, Ctx, Kind, RowConditions};
use crate::shape::Shape;

/// Metrics whose cells are shown; of the others only how many there are.
const SHOWN_METRICS: usize = 2;
const CPU_TARGET: i32 = 80;

pub struct HorizontalPodAutoscaler;

/// The columns of both versions.
const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Reference", "What is scaled."),
    Column::text("Targets", "Where the metrics are, and where they should be."),
    Column::text("MinPods", "Pods there are at least."),
    Column::text("MaxPods", "Pods there are at most."),
    Column::text("Replicas", "Pods there were when it last looked."),
    Column::AGE,
];

impl Kind for HorizontalPodAutoscaler {
    type Object = autoscaling::HorizontalPodAutoscaler;
    const SHAPE: Shape = Shape::namespaced("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
        .also_in(&["autoscaling/v1"])
        .singular("horizontalpodautoscaler")
        .short(&["hpa"])
        .categories(&["all"])
        .status_without_generation();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, scaler: &mut Self::Object) {
        // Everything has a field here: what v1 says by annotations is not said twice.
        if let Some(annotations) = &mut scaler.metadata.annotations {
            annotations.retain(|key, _| !convert::ANNOTATIONS.contains(&key.as_str()));
        }
        let spec = &mut scaler.spec;
        spec.min_replicas.get_or_insert(1);
        if spec.metrics.as_ref().is_none_or(Vec::is_empty) {
            spec.metrics = Some(vec![cpu()]);
        }
        if let Some(behavior) = &mut spec.behavior {
            let up = behavior.scale_up.get_or_insert_default();
            up.stabilization_window_seconds.get_or_insert(0);
            fill(up, &[("Pods", 4), ("Percent", 100)]);
            fill(behavior.scale_down.get_or_insert_default(), &[("Percent", 100)]);
        }
    }

    fn validate(ctx: &Ctx, scaler: &Self::Object, errors: &mut FieldErrors) {
        validate::object(ctx, scaler, errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        validate::status(new, errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns { columns: COLUMNS, row }
    }
}

/// The metric of one who names none.
fn cpu() -> autoscaling::MetricSpec {
    let target = autoscaling::MetricTarget {
        type_: "Utilization".into(),
        average_utilization: Some(CPU_TARGET),
        ..autoscaling::MetricTarget::default()
    };
    autoscaling::MetricSpec {
        type_: "Resource".into(),
        resource: Some(autoscaling::ResourceMetricSource { name: "cpu".into(), target }),
        ..autoscaling::MetricSpec::default()
    }
}

fn fill(rules: &mut autoscaling::HPAScalingRules, policies: &[(&str, i32)]) {
    rules.select_policy.get_or_insert_with(|| "Max".into());
    let policy = |(kind, value): &(&str, i32)| autoscaling::HPAScalingPolicy {
        type_: (*kind).to_owned(),
        value: *value,
        period_seconds: 15,
    };
    rules.policies.get_or_insert_with(|| policies.iter().map(policy).collect());
}

fn row(scaler: &autoscaling::HorizontalPodAutoscaler, now: Timestamp) -> (Vec<Cell>, RowConditions) {
    let spec = &scaler.spec;
    let status = scaler.status.clone().unwrap_or_default();
    let row = vec![
        cells::name(&scaler.metadata),
        format!("{}/{}", spec.scale_target_ref.kind, spec.scale_target_ref.name).into(),
        targets(spec, &status).into(),
        spec.min_replicas.map_or_else(|| "<unset>".to_owned(), |n| n.to_string()).into(),
        spec.max_replicas.into(),
        status.current_replicas.unwrap_or(0).into(),
        cells::of(&scaler.metadata, now),
    ];
    (row, Vec::new())
}

fn targets(
    spec: &autoscaling::HorizontalPodAutoscalerSpec,
    status: &autoscaling::HorizontalPodAutoscalerStatus,
) -> String {
    let metrics = spec.metrics.as_deref().unwrap_or_default();
    if metrics.is_empty() {
        return "<none>".to_owned();
    }
    let current = status.current_metrics.as_deref().unwrap_or_default();
    let shown: Vec<String> =
        metrics.iter().enumerate().take(SHOWN_METRICS).map(|(i, metric)| target(metric, current.get(i))).collect();
    let shown = shown.join(", ");
    match metrics.len() {
        all if all > SHOWN_METRICS => format!("{shown} + {} more...", all - SHOWN_METRICS),
        _ => shown,
    }
}

/// `cpu: 40%/80%`, `10/20 (avg)`, `<unknown>/5`.
fn target(metric: &autoscaling::MetricSpec, status: Option<&autoscaling::MetricStatus>) -> String {
    type Now = Option<autoscaling::MetricValueStatus>;
    let unknown = "<unknown>".to_owned();
    let amount = |amount: Option<api::meta::api::resource::Quantity>| amount.map_or_else(|| "0".into(), |a| a.0);
    let of_resource = |name: &str, target: &autoscaling::MetricTarget, now: Now| {
        let percent = |n: Option<i32>| n.map(|n| format!("{n}%"));
        match &target.average_value {
            Some(value) => {
                let now = now.map_or_else(|| unknown.clone(), |now| amount(now.average_value));
                format!("{name}: {now}/{}", value.0)
            }
            None => {
                let now = now.and_then(|now| percent(now.average_utilization)).unwrap_or_else(|| unknown.clone());
                let wanted = percent(target.average_utilization).unwrap_or_else(|| "<auto>".into());
                format!("{name}: {now}/{wanted}")
            }
        }
    };
    let of_value = |target: &autoscaling::MetricTarget, now: Now| match &target.average_value {
        Some(value) => {
            let now = now.and_then(|now| now.average_value).map_or_else(|| unknown.clone(), |now| now.0);
            format!("{now}/{} (avg)", value.0)
        }
        None => {
            let now = now.map_or_else(|| unknown.clone(), |now| amount(now.value));
            format!("{now}/{}", amount(target.value.clone()))
        }
    };
    let source = (&metric.external, &metric.pods, &metric.object, &metric.resource, &metric.container_resource);
    match (metric.type_.as_str(), source) {
        ("External", (Some(of), ..)) => {
            of_value(&of.target, status.and_then(|s| s.external.as_ref()).map(|s| s.current.clone()))
        }
        ("Pods", (_, Some(of), ..)) => {
            let now = status.and_then(|s| s.pods.as_ref()).map(|s| amount(s.current.average_value.clone()));
            format!("{}/{}", now.unwrap_or(unknown), amount(of.target.average_value.clone()))
        }
        ("Object", (_, _, Some(of), ..)) => {
            of_value(&of.target, status.and_then(|s| s.object.as_ref()).map(|s| s.current.clone()))
        }
        ("Resource", (.., Some(of), _)) => {
            of_resource(&of.name, &of.target, status.and_then(|s| s.resource.as_ref()).map(|s| s.current.clone()))
        }
        ("ContainerResource", (.., Some(of))) => {
            let now = status.and_then(|s| s.container_resource.as_ref()).map(|s| s.current.clone());
            of_resource(&of.name, &of.target, now)
        }
        _ => "<unknown type>".to_owned(),
    }
}
