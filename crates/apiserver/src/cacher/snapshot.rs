//! The objects of a kind at one revision: an immutable map that costs nothing to keep.

use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;

use super::object::CachedObject;

/// Objects by key (`namespace/name`, or `name` at cluster scope).
pub type Objects = OrdMap<Arc<str>, Arc<CachedObject>>;

/// Objects by the value of an indexed field, then by key.
pub(super) type Index = OrdMap<(Arc<str>, Arc<str>), Arc<CachedObject>>;

/// Objects of a kind, and the indexes over them.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub objects: Objects,
    /// One per indexed field, in the order the cacher names them.
    pub indexes: Vec<(&'static str, Index)>,
}

impl Tables {
    pub fn new(indexed: &[&'static str]) -> Self {
        Self { objects: Objects::new(), indexes: indexed.iter().map(|field| (*field, Index::new())).collect() }
    }

    /// Puts or removes the object at `key`; returns the one before.
    pub fn set(&mut self, key: &Arc<str>, new: Option<&Arc<CachedObject>>) -> Option<Arc<CachedObject>> {
        let old = match new {
            Some(new) => self.objects.insert(key.clone(), new.clone()),
            None => self.objects.remove(key),
        };
        for (field, index) in &mut self.indexes {
            let value = |object: &CachedObject| object.fields.get(*field).filter(|v| !v.is_empty()).cloned();
            let (before, after) = (old.as_deref().and_then(value), new.map(|o| &**o).and_then(value));
            if let Some(before) = before.filter(|b| Some(b) != after.as_ref()) {
                index.remove(&(before.into(), key.clone()));
            }
            if let (Some(after), Some(new)) = (after, new) {
                index.insert((after.into(), key.clone()), new.clone());
            }
        }
        old
    }
}

/// The objects of a kind at one revision.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub revision: u64,
    pub(super) tables: Tables,
}

/// Objects in key order.
pub type Iter<'a> = Box<dyn Iterator<Item = &'a Arc<CachedObject>> + Send + 'a>;

impl Snapshot {
    /// All objects.
    pub fn objects(&self) -> &Objects {
        &self.tables.objects
    }

    pub fn get(&self, key: &str) -> Option<&Arc<CachedObject>> {
        self.tables.objects.get(key)
    }

    /// Objects of a namespace (of all, when empty) in key order, from the key `start` on (inclusive).
    pub fn range<'a>(&'a self, namespace: &str, start: Option<&str>) -> Iter<'a> {
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        let from = start.filter(|s| *s > prefix.as_str()).unwrap_or(&prefix).to_owned();
        let bounds: (Bound<&str>, Bound<&str>) = (Bound::Included(&from), Bound::Unbounded);
        let found = self.tables.objects.range::<_, str>(bounds);
        Box::new(found.take_while(move |(key, _)| key.starts_with(&prefix)).map(|(_, object)| object))
    }

    /// Objects whose field has this value, in key order; `None` when that field has no index.
    pub fn by_field<'a>(&'a self, field: &str, value: &str) -> Option<Iter<'a>> {
        let (_, index) = self.tables.indexes.iter().find(|(name, _)| *name == field)?;
        let value: Arc<str> = value.into();
        let found = index.range((value.clone(), "".into())..).take_while(move |((v, _), _)| *v == value);
        Some(Box::new(found.map(|(_, object)| object)))
    }
}
