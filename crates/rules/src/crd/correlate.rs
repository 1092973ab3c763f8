//! What a value was before an update, so that a rule that an object broke before does not stop a change
//! elsewhere in it.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::rc::Rc;

use serde_json::Value as Json;

use super::is_map_list;
use crate::value::ListType;

/// A value, what it was, and whether they are the same.
struct Pair<'a> {
    new: &'a Json,
    old: &'a Json,
    schema: &'a Json,
    same: OnceCell<bool>,
}

/// What is known of a place: its own pair, or that of the nearest place above it which has one.
#[derive(Clone)]
pub struct Correlation<'a> {
    own: Option<Rc<Pair<'a>>>,
    above: Option<Rc<Pair<'a>>>,
    is_root: bool,
}

impl<'a> Correlation<'a> {
    /// The object itself.
    pub fn root(new: &'a Json, old: Option<&'a Json>, schema: &'a Json) -> Self {
        let own = old.map(|old| Rc::new(Pair { new, old, schema, same: OnceCell::new() }));
        Self { own, above: None, is_root: true }
    }

    /// A schema within `allOf`: its mistakes are told whatever was before, unless all above is unchanged.
    pub fn uncorrelated(&self) -> Self {
        Self { own: None, above: self.above.clone(), is_root: false }
    }

    /// Is what is here, or what is above it, as it was?
    pub fn is_unchanged(&self) -> bool {
        self.own.as_ref().or(self.above.as_ref()).is_some_and(|pair| pair.is_same())
    }

    /// A field.
    pub fn field(&self, name: &str) -> Self {
        let Some(own) = &self.own else { return self.clone() };
        // Old and new are read as one version: what they were written as is not seen.
        if self.is_root && matches!(name, "apiVersion" | "kind") {
            return Self { own: None, above: None, is_root: false };
        }
        Self { own: own.field(name).map(Rc::new), above: Some(Rc::clone(own)), is_root: false }
    }

    /// An element of a list, given what it was.
    pub fn item(&self, index: usize, old: Option<&'a Json>) -> Self {
        let Some(own) = &self.own else { return self.clone() };
        Self { own: own.item(index, old).map(Rc::new), above: Some(Rc::clone(own)), is_root: false }
    }
}

impl<'a> Pair<'a> {
    fn field(&self, name: &str) -> Option<Pair<'a>> {
        let (new, old) = (self.new.as_object()?.get(name)?, self.old.as_object()?.get(name)?);
        let properties = self.schema.get("properties").and_then(|p| p.get(name));
        let schema = properties.or_else(|| self.schema.get("additionalProperties").filter(|s| s.is_object()))?;
        Some(Pair { new, old, schema, same: OnceCell::new() })
    }

    fn item(&self, index: usize, old: Option<&'a Json>) -> Option<Pair<'a>> {
        let new = self.new.as_array()?.get(index)?;
        let old = old.filter(|o| !o.is_null())?;
        Some(Pair { new, old, schema: self.schema.get("items")?, same: OnceCell::new() })
    }

    fn is_same(&self) -> bool {
        *self.same.get_or_init(|| match (self.new, self.old) {
            (Json::Array(new), Json::Array(old)) => {
                if new.len() != old.len() {
                    return false;
                }
                let keys = list_keys(self.schema);
                if !is_map_list(&keys) {
                    return new == old;
                }
                let known = ByKey::new(&keys, old);
                new.iter().enumerate().all(|(i, item)| self.item(i, known.get(item)).is_some_and(|pair| pair.is_same()))
            }
            (Json::Object(new), Json::Object(old)) => {
                new.len() == old.len() && new.keys().all(|k| self.field(k).is_some_and(|pair| pair.is_same()))
            }
            (new, old) => new == old,
        })
    }
}

fn list_keys(schema: &Json) -> ListType {
    if schema.get("x-kubernetes-list-type").and_then(Json::as_str) != Some("map") {
        return ListType::Atomic;
    }
    let keys = schema.get("x-kubernetes-list-map-keys").and_then(Json::as_array);
    ListType::Map(keys.into_iter().flatten().filter_map(Json::as_str).map(str::to_owned).collect())
}

/// The elements of a list by their keys; of several with the same keys the first.
pub struct ByKey<'a> {
    keys: Vec<String>,
    known: HashMap<String, &'a Json>,
}

impl<'a> ByKey<'a> {
    /// Of a list that has no keys nothing is known.
    pub fn new(list_type: &ListType, items: &'a [Json]) -> Self {
        let keys = match list_type {
            ListType::Map(keys) => keys.clone(),
            _ => Vec::new(),
        };
        let mut known = HashMap::new();
        if !keys.is_empty() {
            for item in items {
                if let Some(key) = key_of(item, &keys) {
                    known.entry(key).or_insert(item);
                }
            }
        }
        Self { keys, known }
    }

    /// The element with the same keys.
    pub fn get(&self, item: &Json) -> Option<&'a Json> {
        if self.keys.is_empty() {
            return None;
        }
        self.known.get(&key_of(item, &self.keys)?).copied()
    }
}

/// All keys of an element as one; they must be there, and scalar.
fn key_of(item: &Json, keys: &[String]) -> Option<String> {
    let mut out = String::new();
    for key in keys {
        let value = item.get(key)?;
        if matches!(value, Json::Array(_) | Json::Object(_) | Json::Null) {
            return None;
        }
        out.push('\0');
        out.push_str(&value.to_string());
    }
    Some(out)
}
