//! The objects of a kind at one revision: an immutable map that costs nothing to keep.

use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;
use kinds::AnyShape;
use machinery::labels::Lookup as _;

use super::object::CachedObject;
use super::pairs::Marks;

/// Objects by key (`namespace/name`, or `name` at cluster scope).
pub type Objects = OrdMap<Arc<str>, Slot>;

/// An object in the map, beside what tells that it does not match: a walk over all touches few objects.
#[derive(Clone, Debug)]
pub struct Slot {
    pub(super) marks: Marks,
    pub object: Arc<CachedObject>,
}

impl PartialEq for Slot {
    fn eq(&self, other: &Self) -> bool {
        self.object == other.object
    }
}

/// Objects by the value of an indexed field, then by key.
pub(super) type Index = OrdMap<(Arc<str>, Arc<str>), Arc<CachedObject>>;

/// Objects of a kind, and the indexes over them.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub objects: Objects,
    /// One per indexed field, in the order the cacher names them.
    pub indexes: Vec<(&'static str, Index)>,
    /// Keys begin with a namespace.
    pub namespaced: bool,
}

impl Tables {
    pub fn new(shape: &AnyShape<'_>) -> Self {
        let indexes = shape.indexed.iter().map(|field| (*field, Index::new())).collect();
        Self { objects: Objects::new(), indexes, namespaced: shape.is_namespaced() }
    }

    /// Puts or removes the object at `key`; returns the one before.
    pub fn set(&mut self, key: &Arc<str>, new: Option<&Arc<CachedObject>>) -> Option<Arc<CachedObject>> {
        let old = match new {
            Some(new) => self.objects.insert(key.clone(), Slot { marks: new.marks(), object: new.clone() }),
            None => self.objects.remove(key),
        };
        let old = old.map(|slot| slot.object);
        for (field, index) in &mut self.indexes {
            let value = |object: &Arc<CachedObject>| {
                object.fields.text(field).filter(|v| !v.is_empty()).map(|v| -> Arc<str> { v.into() })
            };
            let (before, after) = (old.as_ref().and_then(value), new.and_then(value));
            if let Some(before) = before.filter(|b| Some(b) != after.as_ref()) {
                index.remove(&(before, key.clone()));
            }
            if let (Some(after), Some(new)) = (after, new) {
                index.insert((after, key.clone()), new.clone());
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

impl Snapshot {
    /// All objects.
    pub fn objects(&self) -> &Objects {
        &self.tables.objects
    }

    pub fn get(&self, key: &str) -> Option<&Arc<CachedObject>> {
        self.tables.objects.get(key).map(|slot| &slot.object)
    }

    /// True when keys begin with a namespace.
    pub fn namespaced(&self) -> bool {
        self.tables.namespaced
    }

    /// Objects of a namespace (of all, when empty) in key order, from the key `start` on (inclusive).
    pub fn range<'a>(&'a self, namespace: &str, start: &str) -> impl Iterator<Item = &'a Slot> + Send + use<'a> {
        let (first, end) = match namespace {
            "" => (String::new(), Bound::Unbounded),
            // What follows the slash in the order of bytes.
            namespace => (format!("{namespace}/"), Bound::Excluded(format!("{namespace}0"))),
        };
        let first = if start > first.as_str() { start.to_owned() } else { first };
        let empty = matches!(&end, Bound::Excluded(end) if *end <= first);
        let end = if empty { Bound::Excluded(first.as_str()) } else { end.as_ref().map(String::as_str) };
        self.tables.objects.range::<_, str>((Bound::Included(first.as_str()), end)).map(|(_, slot)| slot)
    }

    /// Objects whose field has this value, in key order; `None` when that field has no index.
    pub fn by_field<'a>(
        &'a self,
        field: &str,
        value: &str,
    ) -> Option<Box<dyn Iterator<Item = &'a Arc<CachedObject>> + Send + 'a>> {
        let (_, index) = self.tables.indexes.iter().find(|(name, _)| *name == field)?;
        let value: Arc<str> = value.into();
        let found = index.range((value.clone(), "".into())..).take_while(move |((v, _), _)| *v == value);
        Some(Box::new(found.map(|(_, object)| object)))
    }
}
