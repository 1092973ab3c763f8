//! Lists that are sets have no item twice, and lists that are maps no key.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{ListType, Node, Structural};
use crate::field::{FieldErrors, Path};

impl Structural {
    /// Adds what is there twice in lists of type `set` and `map`. An update is only told what is wrong
    /// when nothing was before.
    pub fn validate_lists(&self, new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
        let check = |object| {
            let mut found = FieldErrors::new();
            value(&Path::root(), self.root(), object, &mut found);
            found
        };
        if old.is_none_or(|old| check(old).is_empty()) {
            errors.extend(check(new));
        }
    }
}

fn value(path: &Path, node: &Node, found: &Value, errors: &mut FieldErrors) {
    match found {
        Value::Object(map) => {
            for (name, found) in map {
                if let Some(inner) = node.additional() {
                    value(&path.key(name), inner, found, errors);
                }
                if let Some(inner) = node.properties.get(name) {
                    value(&path.child(name), inner, found, errors);
                }
            }
        }
        Value::Array(items) => {
            match node.list_type {
                Some(ListType::Set) => {
                    for i in repeated(items.iter().map(ToString::to_string)) {
                        errors.duplicate(&path.index(i), items[i].clone());
                    }
                }
                Some(ListType::Map) => keys(path, node, items, errors),
                Some(ListType::Atomic) | None => {}
            }
            if let Some(inner) = &node.items {
                for (i, item) in items.iter().enumerate() {
                    value(&path.index(i), inner, item, errors);
                }
            }
        }
        _ => {}
    }
}

fn keys(path: &Path, node: &Node, items: &[Value], errors: &mut FieldErrors) {
    let is_item = |item: &Value| item.is_object() || item.is_null();
    if let Some((i, item)) = items.iter().enumerate().find(|(_, item)| !is_item(item)) {
        errors.invalid(&path.index(i), item.clone(), "must be an object for an array of list-type map");
        return;
    }
    let key = |item: &Value| -> Map<String, Value> {
        let names = node.list_map_keys().iter();
        names.filter_map(|name| Some((name.to_string(), item.get(&**name)?.clone()))).collect()
    };
    let keys: Vec<Value> = items.iter().map(|item| Value::Object(key(item))).collect();
    for i in repeated(keys.iter().map(ToString::to_string)) {
        errors.duplicate(&path.index(i), keys[i].clone());
    }
}

/// The place of the second of each text that is there more than once.
fn repeated(texts: impl Iterator<Item = String>) -> Vec<usize> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut out = Vec::new();
    for (i, text) in texts.enumerate() {
        let times = seen.entry(text).or_default();
        *times += 1;
        if *times == 2 {
            out.push(i);
        }
    }
    out
}
