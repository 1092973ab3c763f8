//! What the schema does not know goes.

use serde_json::{Map, Value};

use super::{Node, Structural};

/// Fields that an object has whatever its schema says.
const HEAD: [&str; 3] = ["apiVersion", "kind", "metadata"];

impl Structural {
    /// Removes the fields that the schema does not specify. `apiVersion`, `kind` and `metadata` of the
    /// object stay.
    pub fn prune(&self, object: &mut Value) {
        let mut pruner = Pruner { path: Vec::new(), unknown: None };
        pruner.prune(object, Some(self.root()), true);
    }

    /// The same, telling the paths of what was removed, in their order.
    pub fn prune_unknown(&self, object: &mut Value) -> Vec<String> {
        let mut pruner = Pruner { path: Vec::new(), unknown: Some(Vec::new()) };
        pruner.prune(object, Some(self.root()), true);
        let mut unknown = pruner.unknown.unwrap_or_default();
        unknown.sort_unstable();
        unknown
    }
}

/// Removes from a value what its node does not specify.
pub(super) fn prune(value: &mut Value, node: &Node, embedded: bool) {
    Pruner { path: Vec::new(), unknown: None }.prune(value, Some(node), embedded);
}

/// No more paths than this are told.
const MAX_UNKNOWN: usize = 100;

enum Step {
    Key(String),
    Index(usize),
}

struct Pruner {
    path: Vec<Step>,
    /// The paths of what was removed, when they are asked for.
    unknown: Option<Vec<String>>,
}

impl Pruner {
    /// `embedded`: the value is an object with a head of its own.
    fn prune(&mut self, value: &mut Value, node: Option<&Node>, embedded: bool) {
        match (value, node) {
            (value, Some(node)) if node.preserve_unknown_fields => self.keep(value, node, embedded),
            (Value::Object(map), None) => {
                for name in std::mem::take(map).into_iter().map(|(name, _)| name) {
                    self.tell(&name);
                }
            }
            (Value::Object(map), Some(node)) => self.object(map, node, embedded),
            (Value::Array(items), node) => {
                let node = node.and_then(|node| node.items.as_deref());
                self.items(items, |pruner, item| {
                    pruner.prune(item, node, node.is_some_and(|node| node.embedded_resource));
                });
            }
            _ => {}
        }
    }

    fn object(&mut self, map: &mut Map<String, Value>, node: &Node, embedded: bool) {
        let is_root = self.path.is_empty();
        map.retain(|name, value| {
            if embedded && HEAD.contains(&name.as_str()) {
                return true;
            }
            let inner = node.properties.get(name);
            if inner.is_none() && node.additional_properties.is_none() {
                if !(is_root && HEAD.contains(&name.as_str())) {
                    self.tell(name);
                }
                return false;
            }
            self.under(name, |pruner| {
                let inner = inner.or_else(|| node.additional());
                pruner.prune(value, inner, inner.is_some_and(|inner| inner.embedded_resource));
            });
            true
        });
    }

    /// What is not specified stays; what is specified is pruned as that says.
    fn keep(&mut self, value: &mut Value, node: &Node, embedded: bool) {
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    if embedded && HEAD.contains(&name.as_str()) {
                        continue;
                    }
                    let inner = node.properties.get(name);
                    if inner.is_some() || node.additional_properties.is_some() {
                        let inner = inner.or_else(|| node.additional());
                        self.under(name, |pruner| {
                            pruner.prune(value, inner, inner.is_some_and(|inner| inner.embedded_resource));
                        });
                    }
                }
            }
            Value::Array(items) => {
                if let Some(inner) = &node.items {
                    self.items(items, |pruner, item| pruner.keep(item, inner, inner.embedded_resource));
                }
            }
            _ => {}
        }
    }

    fn items(&mut self, items: &mut [Value], mut each: impl FnMut(&mut Self, &mut Value)) {
        for (i, item) in items.iter_mut().enumerate() {
            self.path.push(Step::Index(i));
            each(self, item);
            self.path.pop();
        }
    }

    fn under(&mut self, name: &str, inside: impl FnOnce(&mut Self)) {
        let told = self.unknown.is_some();
        self.path.push(Step::Key(if told { name.to_owned() } else { String::new() }));
        inside(self);
        self.path.pop();
    }

    /// Keeps the path of a field that goes.
    fn tell(&mut self, name: &str) {
        let Some(unknown) = self.unknown.as_mut().filter(|unknown| unknown.len() < MAX_UNKNOWN) else { return };
        let mut text = String::new();
        for step in &self.path {
            match step {
                Step::Key(key) if text.is_empty() => text.push_str(key),
                Step::Key(key) => {
                    text.push('.');
                    text.push_str(key);
                }
                Step::Index(i) => text.push_str(&format!("[{i}]")),
            }
        }
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(name);
        unknown.push(text);
    }
}
