//! The way back: the strategic merge patch that makes one tree into another.
//!
//! ```text
//! before  podIPs: [{ip: 10.0.0.1}]        after  podIPs: [{ip: 10.0.0.2}]
//!  ──►    podIPs: [{ip: 10.0.0.2}, {$patch: delete, ip: 10.0.0.1}]
//!         $setElementOrder/podIPs: [{ip: 10.0.0.2}]
//! ```

use std::collections::HashMap;

use serde_json::{Value, json};

use super::strategic::{DELETE_FROM, DIRECTIVE, Object, Rule, SET_ORDER, rule};
use crate::schema::{Merge, Shape};

pub(super) fn objects(before: &Object, after: &Object, shape: Shape<'_>) -> Object {
    let gone = before.keys().filter(|name| !after.contains_key(*name));
    let mut patch: Object = gone.map(|name| (name.clone(), Value::Null)).collect();
    for (name, new) in after {
        let rule = rule(shape, name);
        match (before.get(name), new) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) if rule.merge != Merge::Replace => {
                patch.insert(name.clone(), Value::Object(objects(old, new, rule.shape)));
            }
            (Some(Value::Array(old)), Value::Array(new)) if rule.merges() => {
                list(name, (old, new), rule, &mut patch);
            }
            (_, new) => drop(patch.insert(name.clone(), new.clone())),
        }
    }
    patch
}

/// A list that is merged item by item: what is in it no more must be named.
fn list(name: &str, (old, new): (&[Value], &[Value]), rule: Rule<'_>, patch: &mut Object) {
    let order = format!("{SET_ORDER}/{name}");
    let Some(key) = rule.key else {
        let without = |from: &[Value], these: &[Value]| from.iter().filter(|v| !these.contains(v)).cloned().collect();
        let (gone, added): (Vec<Value>, Vec<Value>) = (without(old, new), without(new, old));
        let lists = [(format!("{DELETE_FROM}/{name}"), gone), (name.to_owned(), added)];
        patch.extend(lists.into_iter().filter(|(_, l)| !l.is_empty()).map(|(name, l)| (name, Value::Array(l))));
        patch.insert(order, Value::Array(new.to_vec()));
        return;
    };
    let (Some(before), Some(after)) = (by_key(old, key), by_key(new, key)) else {
        // Items of one key are merged into one.
        let whole = new.iter().cloned().chain([json!({DIRECTIVE: "replace"})]);
        patch.insert(name.to_owned(), whole.collect());
        return;
    };
    let mut changes = Vec::new();
    for item in new {
        match (item.get(key).and_then(|value| before.get(value)), item) {
            (Some(old), Value::Object(item)) => {
                let mut change = objects(old, item, rule.element());
                if !change.is_empty() {
                    change.extend(item.get(key).map(|value| (key.to_owned(), value.clone())));
                    changes.push(Value::Object(change));
                }
            }
            _ => changes.push(item.clone()),
        }
    }
    let gone = old.iter().filter_map(|item| item.get(key)).filter(|value| !after.contains_key(value));
    changes.extend(gone.map(|value| json!({DIRECTIVE: "delete", key: value})));
    if !changes.is_empty() {
        patch.insert(name.to_owned(), Value::Array(changes));
    }
    let places = new.iter().filter_map(|item| item.get(key)).map(|value| json!({key: value}));
    patch.insert(order, places.collect());
}

/// The items by their keys; `None` when that does not tell them apart.
fn by_key<'a>(list: &'a [Value], key: &str) -> Option<HashMap<&'a Value, &'a Object>> {
    let items: HashMap<&Value, &Object> =
        list.iter().map(|item| Some((item.get(key)?, item.as_object()?))).collect::<Option<_>>()?;
    (items.len() == list.len()).then_some(items)
}
