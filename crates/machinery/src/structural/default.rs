//! What is absent and has a default comes; a null that may not be one goes.

use serde_json::{Map, Value};

use super::{Additional, Node, Structural};
use crate::decode::MAX_BYTES;
use crate::status::{self, Status};

/// The most values that defaults may add to one object: a large default under many items would
/// otherwise grow without bound.
const MAX_ADDED: usize = 256 * 1024;

impl Structural {
    /// Fills in defaults. A null where none is allowed is as if it were absent.
    ///
    /// # Errors
    /// 413 when defaults would make the object too large.
    pub fn default(&self, object: &mut Value) -> status::Result<()> {
        drop_nulls(object, Some(self.root()));
        let mut filler = Filler { added: 0 };
        filler.fill(object, self.root());
        if filler.added > MAX_ADDED { Err(Status::too_large(MAX_BYTES)) } else { Ok(()) }
    }
}

fn is_wrong_null(value: &Value, node: &Node) -> bool {
    value.is_null() && !node.nullable
}

/// Removes nulls that are not allowed and have no default in their place.
fn drop_nulls(value: &mut Value, node: Option<&Node>) {
    match value {
        Value::Object(map) => map.retain(|name, value| {
            let inner = node.and_then(|node| node.child(name));
            if inner.is_some_and(|inner| is_wrong_null(value, inner) && inner.default_value().is_none()) {
                return false;
            }
            drop_nulls(value, inner);
            true
        }),
        Value::Array(items) => {
            let inner = node.and_then(|node| node.items.as_deref());
            items.iter_mut().for_each(|item| drop_nulls(item, inner));
        }
        _ => {}
    }
}

struct Filler {
    /// How many values were added.
    added: usize,
}

impl Filler {
    fn fill(&mut self, value: &mut Value, node: &Node) {
        match value {
            Value::Object(map) => self.object(map, node),
            Value::Array(items) => {
                let Some(inner) = &node.items else { return };
                for item in items {
                    self.replace_null(item, inner);
                    self.fill(item, inner);
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, map: &mut Map<String, Value>, node: &Node) {
        for (name, property) in node.properties.iter() {
            let Some(default) = property.default_value() else { continue };
            if map.get(name).is_none_or(|value| is_wrong_null(value, property))
                && let Some(copy) = self.copy(default)
            {
                map.insert(name.to_owned(), copy);
            }
        }
        for (name, value) in map {
            if let Some(property) = node.properties.get(name) {
                self.fill(value, property);
            } else if let Some(Additional::Schema(inner)) = &node.additional_properties {
                self.replace_null(value, inner);
                self.fill(value, inner);
            }
        }
    }

    fn replace_null(&mut self, value: &mut Value, node: &Node) {
        if is_wrong_null(value, node)
            && let Some(copy) = node.default_value().and_then(|default| self.copy(default))
        {
            *value = copy;
        }
    }

    fn copy(&mut self, default: &Value) -> Option<Value> {
        self.added += size(default);
        (self.added <= MAX_ADDED).then(|| default.clone())
    }
}

/// How many values there are; long texts count more.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::String(text) => text.len() / 64,
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(map) => map.values().map(size).sum(),
        _ => 0,
    }
}
