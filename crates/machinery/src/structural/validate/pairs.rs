//! Which value of the old object a value of the new one was.

use std::collections::HashMap;

use serde_json::Value;

use crate::structural::{ListType, Node};

/// A value and what it was before.
#[derive(Clone, Copy)]
pub(super) struct Pair<'v> {
    pub node: &'v Node,
    pub new: &'v Value,
    pub old: &'v Value,
}

impl<'v> Pair<'v> {
    /// The pair of a field that is in both, when the schema knows it.
    pub(super) fn field(self, name: &str) -> Option<Self> {
        let (new, old) = (self.new.as_object()?.get(name)?, self.old.as_object()?.get(name)?);
        self.node.child(name).map(|node| Pair { node, new, old })
    }

    /// The pairs of the items.
    pub(super) fn items(self) -> Items<'v> {
        let mut items = Items { pair: self, old: HashMap::new() };
        if self.node.list_type == Some(ListType::Map) {
            for old in self.old.as_array().into_iter().flatten() {
                if let Some(key) = items.key(old) {
                    items.old.entry(key).or_insert(old);
                }
            }
        }
        items
    }

    /// True when nothing that the schema speaks of has changed.
    pub(super) fn is_same(self) -> bool {
        match (self.new, self.old) {
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len() && new.keys().all(|name| self.field(name).is_some_and(Self::is_same))
            }
            (Value::Array(new), Value::Array(old)) => {
                if new.len() != old.len() || self.node.list_type != Some(ListType::Map) {
                    return new == old;
                }
                let items = self.items();
                (0..new.len()).all(|i| items.get(i).is_some_and(Self::is_same))
            }
            (new, old) => new == old,
        }
    }
}

/// The items of a list of type `map`, by their keys; of other lists no item is known again.
pub(super) struct Items<'v> {
    pair: Pair<'v>,
    old: HashMap<String, &'v Value>,
}

impl<'v> Items<'v> {
    /// The keys of an item as one text; an item that lacks one is not known again.
    fn key(&self, item: &Value) -> Option<String> {
        let map = item.as_object()?;
        let mut out = String::new();
        for name in self.pair.node.list_map_keys() {
            match map.get(&**name) {
                Some(value @ (Value::Bool(_) | Value::Number(_) | Value::String(_))) => {
                    out.push_str(&value.to_string())
                }
                _ => return None,
            }
            out.push('\n');
        }
        Some(out)
    }

    /// The pair of the item at this place.
    pub(super) fn get(&self, index: usize) -> Option<Pair<'v>> {
        let new = self.pair.new.as_array()?.get(index)?;
        let old = self.old.get(&self.key(new)?)?;
        Some(Pair { node: self.pair.node.items.as_deref()?, new, old })
    }
}
