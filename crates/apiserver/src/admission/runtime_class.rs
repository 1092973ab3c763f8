//! A pod of a RuntimeClass pays what the class costs and goes where the class is.

use std::sync::Arc;

use api::types::core::v1::Toleration;
use async_trait::async_trait;
use kinds::Verb;
use machinery::quantity::Quantity;
use machinery::status;
use serde_json::{Map, Value};

use super::{Attributes, Plugin};
use crate::objects::{self, Objects, Resource};

const CLASSES: Resource = Resource { group: "node.k8s.io", plural: "runtimeclasses" };

/// The plugin.
pub struct RuntimeClass(pub Arc<dyn Objects>);

impl RuntimeClass {
    /// The class a new pod names.
    async fn class(&self, attributes: &Attributes<'_>, pod: &Value) -> status::Result<Option<Arc<Value>>> {
        let Some(name) = pod.pointer("/spec/runtimeClassName").and_then(Value::as_str) else { return Ok(None) };
        match self.0.find(CLASSES, "", name).await? {
            Some(class) => Ok(Some(class)),
            None => Err(attributes.forbidden(Some(pod), format!("pod rejected: RuntimeClass {name:?} not found"))),
        }
    }
}

/// True for maps of the same amounts, however they are written.
fn same_amounts(a: &Value, b: &Value) -> bool {
    let amounts = |list: &Value| -> Vec<(String, Option<Quantity>)> {
        let amount = |(name, text): (&String, &Value)| (name.clone(), text.as_str().and_then(|t| t.parse().ok()));
        list.as_object().into_iter().flatten().map(amount).collect()
    };
    let (mut a, mut b) = (amounts(a), amounts(b));
    a.sort_by(|x, y| x.0.cmp(&y.0));
    b.sort_by(|x, y| x.0.cmp(&y.0));
    a == b
}

/// Writes a class into a new pod; the text of the refusal when the pod says something else.
fn assign(pod: &mut Value, class: &Value) -> Result<(), String> {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    if let Some(overhead) = class.get("overhead") {
        let cost = overhead.get("podFixed").cloned().unwrap_or_default();
        let said = spec.get("overhead").filter(|said| said.as_object().is_some_and(|map| !map.is_empty()));
        if said.is_some_and(|said| !same_amounts(said, &cost)) {
            return Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".into());
        }
        if !cost.is_null() {
            spec.insert("overhead".into(), cost);
        }
    }
    let Some(scheduling) = class.get("scheduling") else { return Ok(()) };
    let wanted = scheduling.get("nodeSelector").and_then(Value::as_object);
    if let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) {
        let selector = spec.entry("nodeSelector").or_insert_with(|| Value::Object(Map::new()));
        let Some(selector) = selector.as_object_mut() else { return Ok(()) };
        for (key, value) in wanted {
            if let Some(said) = selector.get(key).filter(|said| *said != value) {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                return Err(format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                    text(value),
                    text(said)
                ));
            }
            selector.insert(key.clone(), value.clone());
        }
    }
    if let Some(more) = scheduling.get("tolerations").and_then(Value::as_array) {
        let given = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
        spec.insert("tolerations".into(), Value::Array(merged(given, more)));
    }
    Ok(())
}

/// Both lists, without those that another covers.
fn merged(mut all: Vec<Value>, more: &[Value]) -> Vec<Value> {
    all.extend_from_slice(more);
    let views: Vec<Toleration> =
        all.iter().map(|value| serde_json::from_value(value.clone()).unwrap_or_default()).collect();
    let mut kept: Vec<usize> = Vec::new();
    for (i, view) in views.iter().enumerate() {
        let earlier = kept.iter().any(|at| covers(&views[*at], view));
        let later = views[i + 1..].iter().any(|other| other != view && covers(other, view));
        if !earlier && !later {
            kept.push(i);
        }
    }
    kept.into_iter().map(|i| all[i].clone()).collect()
}

/// True when whatever `less` tolerates is tolerated by `more`, too.
fn covers(more: &Toleration, less: &Toleration) -> bool {
    if more == less {
        return true;
    }
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (operator, effect) = (text(&more.operator), text(&more.effect));
    if less.key != more.key && (!text(&more.key).is_empty() || operator != "Exists") {
        return false;
    }
    if text(&less.effect) != effect && !effect.is_empty() {
        return false;
    }
    if effect == "NoExecute" {
        if let Some(seconds) = more.toleration_seconds {
            if less.toleration_seconds.is_none_or(|asked| asked > seconds) {
                return false;
            }
        }
    }
    match operator.as_str() {
        "Equal" | "" => text(&less.operator) == "Equal" && text(&less.value) == text(&more.value),
        "Exists" => true,
        _ => false,
    }
}

/// The text of the refusal when a pod's overhead is not that of its class.
fn judge(pod: &Value, class: Option<&Value>) -> Result<(), &'static str> {
    let none = Value::Null;
    let said = pod.pointer("/spec/overhead").unwrap_or(&none);
    match class.and_then(|class| class.get("overhead")) {
        Some(overhead) if !same_amounts(said, overhead.get("podFixed").unwrap_or(&none)) => {
            Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
        }
        None if said.as_object().is_some_and(|map| !map.is_empty()) => {
            Err("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
        }
        _ => Ok(()),
    }
}

#[async_trait]
impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Value>) -> status::Result<()> {
        let wanted = attributes.verb == Verb::Create && attributes.is_for(objects::PODS, "");
        let Some(pod) = object.filter(|_| wanted) else { return Ok(()) };
        match self.class(attributes, pod).await? {
            None => Ok(()),
            Some(class) => assign(pod, &class).map_err(|why| attributes.forbidden(Some(pod), why)),
        }
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
        let wanted = attributes.verb == Verb::Create && attributes.is_for(objects::PODS, "");
        let Some(pod) = object.filter(|_| wanted) else { return Ok(()) };
        let class = self.class(attributes, pod).await?;
        judge(pod, class.as_deref()).map_err(|why| attributes.forbidden(Some(pod), why))
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_is_written_into_the_pod() {
        let class = json!({
            "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {"nodeSelector": {"kvm": "true"}, "tolerations": [{"key": "kvm", "operator": "Exists"}]},
        });
        let mut pod = json!({"spec": {"tolerations": [{"key": "kvm", "operator": "Equal", "value": "x"}]}});
        assign(&mut pod, &class).unwrap();
        let want = json!({"spec": {
            "overhead": {"cpu": "250m"},
            "nodeSelector": {"kvm": "true"},
            "tolerations": [{"key": "kvm", "operator": "Exists"}],
        }});
        assert_eq!(pod, want);
        let mut other = json!({"spec": {"nodeSelector": {"kvm": "no"}, "overhead": {"cpu": "0.25"}}});
        let wrong = "conflict: runtimeClass.scheduling.nodeSelector[kvm] = true; pod.spec.nodeSelector[kvm] = no";
        assert_eq!(assign(&mut other, &class), Err(wrong.into()));
    }

    #[test]
    fn an_overhead_is_the_classs_own() {
        let class = json!({"overhead": {"podFixed": {"cpu": "1"}}});
        for (pod, class, want) in [
            (json!({"spec": {"overhead": {"cpu": "1000m"}}}), Some(&class), true),
            (json!({"spec": {"overhead": {"cpu": "2"}}}), Some(&class), false),
            (json!({"spec": {}}), Some(&class), false),
            (json!({"spec": {"overhead": {"cpu": "2"}}}), None, false),
            (json!({"spec": {}}), None, true),
        ] {
            assert_eq!(judge(&pod, class).is_ok(), want, "{pod}");
        }
    }

    #[test]
    fn what_another_covers_goes() {
        let all = json!({"operator": "Exists"});
        let one = json!({"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"});
        let short = json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
        let long = json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9});
        assert_eq!(merged(vec![one.clone()], slice::from_ref(&all)), [all]);
        assert_eq!(merged(vec![short.clone()], slice::from_ref(&long)), [long]);
        assert_eq!(merged(vec![one.clone(), one.clone()], &[]), slice::from_ref(&one));
        assert_eq!(merged(vec![one.clone()], slice::from_ref(&short)), [one, short]);
    }
}
