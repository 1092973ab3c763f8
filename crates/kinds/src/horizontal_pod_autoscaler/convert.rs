//! Between the two forms of an autoscaler. v1 knows one metric, the CPU; all else is in annotations,
//! as JSON in upstream's older form.
//!
//! ```text
//!  v1                                       v2
//!  spec.targetCPUUtilizationPercentage      spec.metrics[]: the CPU's utilization
//!  annotation …/metrics                     spec.metrics[]: all others
//!  annotation …/behavior                    spec.behavior
//!  status.currentCPUUtilizationPercentage   status.currentMetrics[]: the CPU's utilization
//!  annotation …/current-metrics             status.currentMetrics
//!  annotation …/conditions                  status.conditions
//! ```

use api::types::autoscaling::v2 as autoscaling;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

pub const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
pub const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
pub const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
pub const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
/// What v2 never shows, with those that older versions used.
pub const ANNOTATIONS: &[&str] = &[
    METRICS,
    BEHAVIOR,
    CURRENT_METRICS,
    CONDITIONS,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
];

/// Of one source of a metric: its field, and its parts by their older name and by where v2 has them.
type Source = (&'static str, &'static [(&'static str, &'static str)]);

const SPEC: &[Source] = &[
    (
        "object",
        &[
            ("target", "/describedObject"),
            ("metricName", "/metric/name"),
            ("selector", "/metric/selector"),
            ("targetValue", "/target/value"),
            ("averageValue", "/target/averageValue"),
        ],
    ),
    (
        "pods",
        &[
            ("metricName", "/metric/name"),
            ("selector", "/metric/selector"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
    (
        "resource",
        &[
            ("name", "/name"),
            ("targetAverageUtilization", "/target/averageUtilization"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
    (
        "containerResource",
        &[
            ("name", "/name"),
            ("container", "/container"),
            ("targetAverageUtilization", "/target/averageUtilization"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
    (
        "external",
        &[
            ("metricName", "/metric/name"),
            ("metricSelector", "/metric/selector"),
            ("targetValue", "/target/value"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
];
const STATUS: &[Source] = &[
    (
        "object",
        &[
            ("target", "/describedObject"),
            ("metricName", "/metric/name"),
            ("selector", "/metric/selector"),
            ("currentValue", "/current/value"),
            ("averageValue", "/current/averageValue"),
        ],
    ),
    (
        "pods",
        &[
            ("metricName", "/metric/name"),
            ("selector", "/metric/selector"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
    (
        "resource",
        &[
            ("name", "/name"),
            ("currentAverageUtilization", "/current/averageUtilization"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
    (
        "containerResource",
        &[
            ("name", "/name"),
            ("container", "/container"),
            ("currentAverageUtilization", "/current/averageUtilization"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
    (
        "external",
        &[
            ("metricName", "/metric/name"),
            ("metricSelector", "/metric/selector"),
            ("currentValue", "/current/value"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
];

/// The v1 form of a v2 tree.
pub fn to_v1(object: &mut Value) {
    set_version(object, "autoscaling/v1");
    let mut kept: Vec<(&str, Value)> = Vec::new();
    if let Some(spec) = map(object, "spec") {
        let metrics = list(spec.remove("metrics"));
        let (cpu, others): (Vec<Value>, Vec<Value>) =
            metrics.into_iter().partition(|m| cpu_share(m, "target").is_some());
        if let Some(share) = cpu.first().and_then(|m| cpu_share(m, "target")) {
            spec.insert("targetCPUUtilizationPercentage".into(), share.clone());
        }
        if !others.is_empty() {
            kept.push((METRICS, others.iter().map(|metric| older(metric, SPEC)).collect()));
        }
        if let Some(behavior) = spec.remove("behavior").filter(|behavior| !behavior.is_null()) {
            kept.push((BEHAVIOR, named_as_in_go(&behavior)));
        }
    }
    if let Some(status) = map(object, "status") {
        let metrics = list(status.remove("currentMetrics"));
        if let Some(share) = metrics.iter().rev().find_map(|m| cpu_share(m, "current")) {
            status.insert("currentCPUUtilizationPercentage".into(), share.clone());
        }
        if !metrics.is_empty() {
            kept.push((CURRENT_METRICS, metrics.iter().map(|metric| older(metric, STATUS)).collect()));
        }
        let conditions = list(status.remove("conditions"));
        if !conditions.is_empty() {
            kept.push((CONDITIONS, conditions.into()));
        }
    }
    drop_annotations(object);
    if kept.is_empty() {
        return;
    }
    let annotations = make(make(object, "metadata"), "annotations");
    for (key, value) in kept {
        annotations[key] = value.to_string().into();
    }
}

/// The v2 form of a v1 tree. An annotation that is not what it should be counts as absent.
pub fn to_v2(object: &mut Value) {
    set_version(object, "autoscaling/v2");
    let annotations = object.pointer("/metadata/annotations").cloned().unwrap_or_default();
    let read = |key: &str| -> Option<Value> { serde_json::from_str(annotations.get(key)?.as_str()?).ok() };
    let metrics = |key: &str, newer: fn(&Value) -> Value| -> Option<Value> {
        let metrics = read(key)?;
        let metrics = metrics.as_array()?;
        metrics.iter().all(Value::is_object).then(|| metrics.iter().map(newer).collect())
    };
    if let Some(spec) = map(object, "spec") {
        let mut all = list(metrics(METRICS, newer_spec).filter(fits::<Vec<autoscaling::MetricSpec>>));
        if let Some(share) = spec.remove("targetCPUUtilizationPercentage").filter(|share| !share.is_null()) {
            all.push(cpu(&share, "target"));
        }
        if all.is_empty() {
            all.push(cpu(&super::CPU_TARGET.into(), "target"));
        }
        spec.insert("metrics".into(), all.into());
        if let Some(behavior) = read(BEHAVIOR).map(|behavior| named_as_in_json(&behavior)).filter(fits::<Behavior>) {
            spec.insert("behavior".into(), behavior);
        }
    }
    if let Some(status) = map(object, "status") {
        let share = status.remove("currentCPUUtilizationPercentage").filter(|share| !share.is_null());
        let current = metrics(CURRENT_METRICS, |metric| newer(metric, STATUS));
        let current = current.filter(fits::<Vec<autoscaling::MetricStatus>>);
        if let Some(current) = current.or_else(|| share.map(|share| json!([cpu(&share, "current")]))) {
            status.insert("currentMetrics".into(), current);
        }
        if let Some(conditions) = read(CONDITIONS).filter(fits::<Vec<autoscaling::HorizontalPodAutoscalerCondition>>) {
            status.insert("conditions".into(), conditions);
        }
    }
    drop_annotations(object);
}

type Behavior = autoscaling::HorizontalPodAutoscalerBehavior;

/// True when the typed view can read it.
fn fits<T: DeserializeOwned>(value: &Value) -> bool {
    T::deserialize(value).is_ok()
}

fn set_version(object: &mut Value, version: &str) {
    if let Some(object) = object.as_object_mut() {
        object.insert("apiVersion".into(), version.into());
        object.insert("kind".into(), "HorizontalPodAutoscaler".into());
    }
}

fn map<'a>(object: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    object.get_mut(key)?.as_object_mut()
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// The object at a key, made when there is none.
fn make<'a>(object: &'a mut Value, key: &str) -> &'a mut Value {
    if !object[key].is_object() {
        object[key] = json!({});
    }
    &mut object[key]
}

fn drop_annotations(object: &mut Value) {
    let Some(metadata) = map(object, "metadata") else { return };
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    annotations.retain(|key, _| !ANNOTATIONS.contains(&key.as_str()));
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
}

/// The CPU's utilization, of a metric that is that.
fn cpu_share<'a>(metric: &'a Value, part: &str) -> Option<&'a Value> {
    let is_cpu = metric["type"] == "Resource" && metric.pointer("/resource/name").is_some_and(|name| name == "cpu");
    let share = metric.get("resource")?.get(part)?.get("averageUtilization")?;
    (is_cpu && !share.is_null()).then_some(share)
}

fn cpu(share: &Value, part: &str) -> Value {
    let mut value = json!({ "averageUtilization": share });
    if part == "target" {
        value["type"] = "Utilization".into();
    }
    json!({ "type": "Resource", "resource": { "name": "cpu", part: value } })
}

fn older(metric: &Value, sources: &[Source]) -> Value {
    let mut out = json!({ "type": metric["type"] });
    for (source, parts) in sources {
        let Some(newer) = metric.get(source).filter(|source| source.is_object()) else { continue };
        let mut older = json!({});
        for (name, pointer) in *parts {
            if let Some(value) = newer.pointer(pointer).filter(|value| !value.is_null()) {
                older[*name] = value.clone();
            }
        }
        out[*source] = older;
    }
    out
}

fn newer(metric: &Value, sources: &[Source]) -> Value {
    let mut out = json!({ "type": metric["type"] });
    for (source, parts) in sources {
        let Some(older) = metric.get(source).filter(|source| source.is_object()) else { continue };
        let mut newer = json!({});
        for (name, pointer) in *parts {
            let Some(value) = older.get(name).filter(|value| !value.is_null()) else { continue };
            // The older form has no way to leave these out.
            let unset = *name == "targetValue" && value == "0" && older.get("averageValue").is_some();
            if !unset {
                put(&mut newer, pointer, value);
            }
        }
        out[*source] = newer;
    }
    out
}

fn newer_spec(metric: &Value) -> Value {
    let mut out = newer(metric, SPEC);
    for (source, _) in SPEC {
        let Some(older) = metric.get(source).filter(|source| source.is_object()) else { continue };
        if let Some(kind) = target_type(source, older) {
            put(&mut out[*source], "/target/type", &kind.into());
        }
    }
    out
}

/// The older form has no type of target: it shows by what is set.
fn target_type(source: &str, older: &Value) -> Option<&'static str> {
    let has = |name: &str| older.get(name).is_some_and(|value| !value.is_null());
    Some(match source {
        "pods" => "AverageValue",
        "object" if has("averageValue") => "AverageValue",
        "external" if !has("targetValue") => "AverageValue",
        "object" | "external" => "Value",
        "resource" | "containerResource" if has("targetAverageUtilization") => "Utilization",
        "resource" | "containerResource" => "AverageValue",
        _ => return None,
    })
}

fn put(object: &mut Value, pointer: &str, value: &Value) {
    let mut at = object;
    for part in pointer.split('/').skip(1) {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[part];
    }
    *at = value.clone();
}

/// Upstream writes the behavior without names of its own for JSON: as the fields are called in Go.
fn named_as_in_go(behavior: &Value) -> Value {
    let rules = |name: &str| match behavior.get(name) {
        Some(Value::Object(rules)) => {
            let part = |name: &str| rules.get(name).cloned().unwrap_or_default();
            let policies = rules.get("policies").and_then(Value::as_array).map(|policies| {
                let policy =
                    |p: &Value| json!({ "Type": p["type"], "Value": p["value"], "PeriodSeconds": p["periodSeconds"] });
                policies.iter().map(policy).collect::<Vec<_>>()
            });
            json!({
                "StabilizationWindowSeconds": part("stabilizationWindowSeconds"),
                "SelectPolicy": part("selectPolicy"),
                "Policies": policies,
                "Tolerance": part("tolerance"),
            })
        }
        _ => Value::Null,
    };
    json!({ "ScaleUp": rules("scaleUp"), "ScaleDown": rules("scaleDown") })
}

/// The way back; the letter case of names does not count, as it does not for upstream's reader.
fn named_as_in_json(value: &Value) -> Value {
    const NAMES: &[&str] = &[
        "scaleUp",
        "scaleDown",
        "stabilizationWindowSeconds",
        "selectPolicy",
        "policies",
        "tolerance",
        "type",
        "value",
        "periodSeconds",
    ];
    match value {
        Value::Object(map) => {
            let known = |key: &String| NAMES.iter().find(|name| name.eq_ignore_ascii_case(key));
            let pairs = map.iter().filter(|(_, value)| !value.is_null());
            pairs.filter_map(|(key, value)| Some(((*known(key)?).to_owned(), named_as_in_json(value)))).collect()
        }
        Value::Array(items) => items.iter().map(named_as_in_json).collect(),
        other => other.clone(),
    }
}
