//! A pod's priority is what its PriorityClass says; the pod cannot say another.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use kinds::Verb;
use machinery::{meta, status};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Attributes, Plugin};
use crate::objects::{self, Change, Objects, Seen};

const PREEMPT: &str = "PreemptLowerPriority";

/// What a class gives.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Class {
    name: String,
    value: i64,
    policy: String,
    default: bool,
}

impl Class {
    fn of(class: &Value) -> Self {
        Self {
            name: meta::name(class).to_owned(),
            value: class.get("value").and_then(Value::as_i64).unwrap_or(0),
            policy: class.get("preemptionPolicy").and_then(Value::as_str).unwrap_or(PREEMPT).to_owned(),
            default: class.get("globalDefault").and_then(Value::as_bool).unwrap_or(false),
        }
    }
}

#[derive(Default)]
struct Classes {
    by_name: BTreeMap<String, Class>,
    seen: Seen,
}

/// The plugin.
pub struct Priority {
    objects: Arc<dyn Objects>,
    classes: Mutex<Classes>,
}

impl Priority {
    /// Over the objects given.
    pub fn new(objects: Arc<dyn Objects>) -> Self {
        Self { objects, classes: Mutex::default() }
    }

    /// The default class, of several the lowest.
    fn default_class(&self) -> Option<Class> {
        let mut classes = self.classes.lock();
        let mut seen = std::mem::take(&mut classes.seen);
        for change in self.objects.changes(objects::PRIORITY_CLASSES, &mut seen) {
            match change {
                Change::Put(class) => drop(classes.by_name.insert(meta::name(&class).to_owned(), Class::of(&class))),
                Change::Gone { name, .. } => drop(classes.by_name.remove(&name)),
            }
        }
        classes.seen = seen;
        classes.by_name.values().filter(|c| c.default).min_by_key(|c| c.value).cloned()
    }

    async fn class(&self, name: &str) -> status::Result<Option<Class>> {
        Ok(self.objects.find(objects::PRIORITY_CLASSES, "", name).await?.map(|c| Class::of(&c)))
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Writes a class into a new pod; the text of the refusal when the pod says something else.
fn assign(pod: &mut Value, class: Option<&Class>) -> Result<(), String> {
    let (value, policy) = class.map_or((0, PREEMPT), |c| (c.value, c.policy.as_str()));
    if let Some(said) = pod.pointer("/spec/priority").and_then(Value::as_i64).filter(|said| *said != value) {
        return Err(format!(
            "the integer value of priority ({said}) must not be provided in pod spec; priority admission controller \
             computed {value} from the given PriorityClass name"
        ));
    }
    let said = text(pod, "/spec/preemptionPolicy");
    if !said.is_empty() && said != policy {
        return Err(format!(
            "the string value of PreemptionPolicy ({said}) must not be provided in pod spec; priority admission \
             controller computed {policy} from the given PriorityClass name"
        ));
    }
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("priority".into(), json!(value));
        spec.insert("preemptionPolicy".into(), json!(policy));
        if let Some(class) = class {
            spec.insert("priorityClassName".into(), json!(class.name));
        }
    }
    Ok(())
}

/// What an update that does not speak of priority keeps.
fn keep(pod: &mut Value, old: &Value) {
    for field in ["priority", "preemptionPolicy"] {
        let kept = old.get("spec").and_then(|s| s.get(field)).filter(|v| !v.is_null());
        if let (Some(kept), Some(spec)) = (kept, pod.get_mut("spec").and_then(Value::as_object_mut)) {
            spec.entry(field).or_insert_with(|| kept.clone());
        }
    }
}

#[async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Value>) -> status::Result<()> {
        let Some(pod) = object.filter(|_| attributes.is_for(objects::PODS, "")) else { return Ok(()) };
        match (attributes.verb, attributes.old) {
            (Verb::Create, _) => {}
            (Verb::Update, Some(old)) => {
                keep(pod, old);
                return Ok(());
            }
            _ => return Ok(()),
        }
        let name = text(pod, "/spec/priorityClassName").to_owned();
        let class = if name.is_empty() {
            self.default_class()
        } else {
            let class = self.class(&name).await?;
            if class.is_none() {
                let why = format!("no PriorityClass with name {name} was found");
                return Err(attributes.forbidden(Some(pod), why));
            }
            class
        };
        assign(pod, class.as_ref()).map_err(|why| attributes.forbidden(Some(pod), why))
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
        let wanted = object.filter(|_| attributes.is_for(objects::PRIORITY_CLASSES, "")).map(Class::of);
        let Some(wanted) = wanted.filter(|c| c.default) else { return Ok(()) };
        match self.default_class() {
            // An update of the default class itself is no second default.
            Some(existing) if attributes.verb == Verb::Create || existing.name != wanted.name => {
                let name = existing.name;
                let why = format!("PriorityClass {name} is already marked as default. Only one default can exist");
                Err(attributes.forbidden(object, why))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::fixed::Fixed;

    #[test]
    fn a_class_decides() {
        let class = Class { name: "high".into(), value: 100, policy: "Never".into(), default: false };
        for (spec, class, want) in [
            (json!({}), None, Ok(json!({"priority": 0, "preemptionPolicy": PREEMPT}))),
            (
                json!({}),
                Some(&class),
                Ok(json!({"priority": 100, "preemptionPolicy": "Never", "priorityClassName": "high"})),
            ),
            (
                json!({"priority": 100}),
                Some(&class),
                Ok(json!({"priority": 100, "preemptionPolicy": "Never", "priorityClassName": "high"})),
            ),
            (
                json!({"priority": 5}),
                None,
                Err("the integer value of priority (5) must not be provided in pod spec; priority admission \
                     controller computed 0 from the given PriorityClass name"),
            ),
            (
                json!({"preemptionPolicy": PREEMPT}),
                Some(&class),
                Err("the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec; \
                     priority admission controller computed Never from the given PriorityClass name"),
            ),
        ] {
            let mut pod = json!({"spec": spec});
            let got = assign(&mut pod, class).map(|()| pod["spec"].clone());
            assert_eq!(got, want.map_err(str::to_owned), "{spec}");
        }
    }

    #[test]
    fn an_update_keeps_what_it_does_not_say() {
        let old = json!({"spec": {"priority": 7, "preemptionPolicy": "Never"}});
        let mut new = json!({"spec": {}});
        keep(&mut new, &old);
        assert_eq!(new, old);
    }

    #[test]
    fn of_several_defaults_the_lowest_counts() {
        let objects = Arc::new(Fixed::default());
        let class = |name: &str, value: i64, default: bool| json!({"metadata": {"name": name}, "value": value, "globalDefault": default});
        let plugin = Priority::new(objects.clone());
        assert_eq!(plugin.default_class(), None);
        objects.put(objects::PRIORITY_CLASSES, class("a", 10, true));
        objects.put(objects::PRIORITY_CLASSES, class("b", 5, true));
        objects.put(objects::PRIORITY_CLASSES, class("c", 1, false));
        assert_eq!(plugin.default_class().map(|c| c.name).as_deref(), Some("b"));
        objects.remove(objects::PRIORITY_CLASSES, "", "b");
        assert_eq!(plugin.default_class().map(|c| c.name).as_deref(), Some("a"));
    }
}
