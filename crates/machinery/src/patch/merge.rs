//! RFC 7396 as upstream applies it: what is new to the object loses its nulls, also within lists.

use serde_json::{Map, Value};

pub(super) fn apply(object: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (name, value) in patch {
        match (object.get_mut(&name), value) {
            (_, Value::Null) => drop(object.remove(&name)),
            (Some(Value::Object(old)), Value::Object(new)) => apply(old, new),
            (Some(old @ Value::Object(_)), new) => *old = new,
            (_, new) => drop(object.insert(name, without_nulls(new))),
        }
    }
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, v)| !v.is_null());
            Value::Object(kept.map(|(name, v)| (name, without_nulls(v))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}
