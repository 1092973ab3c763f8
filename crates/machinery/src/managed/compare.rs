//! What changed between two objects, as sets of fields, by the granularity the schema declares.
//!
//! Both objects are seen as the encoder would write them: a struct that is always written (`spec`,
//! `resources: {}`) is there even when the tree lacks it.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::fields::Fields;
use crate::encode::{Emit, emit};
use crate::schema::{Field, ListType, Scalar, Shape, TypeRef};

/// The three sets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Comparison {
    pub(super) added: Fields,
    pub(super) modified: Fields,
    pub(super) removed: Fields,
}

/// A value as the encoder would write it.
#[derive(Clone, Copy)]
enum Seen<'v> {
    Value(&'v Value),
    /// The zero value of the shape.
    Zero,
}

/// How the value at a place is owned.
#[derive(Clone, Copy)]
pub(super) struct Place<'t> {
    pub(super) shape: Shape<'t>,
    pub(super) field: Option<Field<'t>>,
}

impl<'t> Place<'t> {
    pub(super) fn of_type(t: TypeRef<'t>) -> Self {
        Self { shape: Shape::Struct(t), field: None }
    }

    pub(super) fn of_field(field: Field<'t>) -> Self {
        Self { shape: field.shape(), field: Some(field) }
    }

    pub(super) fn of_element(shape: Shape<'t>) -> Self {
        Self { shape, field: None }
    }

    pub(super) fn list_type(self) -> ListType {
        self.field.map_or(ListType::Atomic, Field::list_type)
    }

    /// Owned as a whole.
    pub(super) fn atomic(self) -> bool {
        match (self.field, self.shape) {
            (_, Shape::Scalar(_) | Shape::Raw | Shape::OrArray(_) | Shape::OrBool(_) | Shape::OrStrings(_)) => true,
            (Some(field), Shape::Struct(_) | Shape::Map(_)) => field.atomic(),
            (None, Shape::Struct(t)) => t.atomic(),
            (None, Shape::Map(_)) => false,
            (_, Shape::List(_)) => self.list_type() == ListType::Atomic,
        }
    }

    /// The path element of an item of the list; `None` when it has none of the keys.
    pub(super) fn element(self, item: &Value) -> Option<String> {
        let Shape::List(inner) = self.shape else { return None };
        match (self.list_type(), inner.shape(), self.field) {
            (ListType::Set, ..) => Some(format!("v:{item}")),
            (ListType::Map, Shape::Struct(t), Some(field)) => {
                let mut keys = Map::new();
                for key in field.list_keys() {
                    let given = item.get(key).filter(|v| !v.is_null()).cloned();
                    let default = || {
                        let field = t.field(key)?;
                        if let Some(json) = field.default_json() {
                            return serde_json::from_str(json).ok();
                        }
                        // Keys that are always written are never absent.
                        match emit(field, field.shape(), None, false) {
                            Emit::Zero => zero_scalar(field.shape()),
                            _ => None,
                        }
                    };
                    if let Some(value) = given.or_else(default) {
                        keys.insert(key.to_owned(), value);
                    }
                }
                if keys.is_empty() { None } else { Some(format!("k:{}", Value::Object(keys))) }
            }
            _ => None,
        }
    }
}

fn zero_scalar(shape: Shape<'_>) -> Option<Value> {
    match shape {
        Shape::Scalar(Scalar::String) => Some(Value::from("")),
        Shape::Scalar(Scalar::Int32 | Scalar::Int64) => Some(Value::from(0)),
        _ => None,
    }
}

/// Compares two objects of the type; `None` is an object that does not exist yet.
pub(super) fn compare(old: Option<&Value>, new: &Value, t: TypeRef<'_>) -> Comparison {
    let mut walk = Walk { path: Vec::new(), out: Comparison::default() };
    let old = old.map_or(Seen::Zero, Seen::Value);
    walk.visit(Place::of_type(t), Some(old), Some(Seen::Value(new)));
    walk.out
}

struct Walk {
    path: Vec<String>,
    out: Comparison,
}

impl Walk {
    fn visit(&mut self, place: Place<'_>, old: Option<Seen<'_>>, new: Option<Seen<'_>>) {
        if let (Some(Seen::Value(a)), Some(Seen::Value(b))) = (old, new)
            && a == b
        {
            return;
        }
        let empty = is_empty(place.shape, old) && is_empty(place.shape, new);
        let leaf = empty || place.atomic();
        if !leaf {
            match place.shape {
                Shape::Struct(t) => self.object(t, old, new),
                Shape::Map(inner) => self.map(inner.shape(), old, new),
                Shape::List(_) => self.list(place, old, new),
                _ => {}
            }
        }
        match (old, new) {
            (None, Some(_)) => self.out.added.insert(&self.path),
            (Some(_), None) => self.out.removed.insert(&self.path),
            (Some(a), Some(b)) if leaf && !empty && !equal(place.shape, a, b) => self.out.modified.insert(&self.path),
            _ => {}
        }
    }

    fn object(&mut self, t: TypeRef<'_>, old: Option<Seen<'_>>, new: Option<Seen<'_>>) {
        let metadata = t.name() == "ObjectMeta";
        for field in t.fields() {
            // Who owns what is not itself owned.
            if metadata && field.name() == "managedFields" {
                continue;
            }
            let (a, b) = (child(field, old), child(field, new));
            if a.is_none() && b.is_none() {
                continue;
            }
            self.path.push(format!("f:{}", field.name()));
            self.visit(Place::of_field(field), a, b);
            self.path.pop();
        }
    }

    fn map(&mut self, shape: Shape<'_>, old: Option<Seen<'_>>, new: Option<Seen<'_>>) {
        let (empty, other) = (Map::new(), Map::new());
        let (old, new) = (entries(old).unwrap_or(&empty), entries(new).unwrap_or(&other));
        for key in old.keys().chain(new.keys().filter(|k| !old.contains_key(*k))) {
            self.path.push(format!("f:{key}"));
            let place = Place::of_element(shape);
            self.visit(place, old.get(key).map(Seen::Value), new.get(key).map(Seen::Value));
            self.path.pop();
        }
    }

    /// Items are paired by their path element. Items that share one are seen as one atomic value.
    fn list(&mut self, place: Place<'_>, old: Option<Seen<'_>>, new: Option<Seen<'_>>) {
        let Shape::List(inner) = place.shape else { return };
        let item = Place::of_element(inner.shape());
        let mut order: Vec<String> = Vec::new();
        let mut pairs: HashMap<String, (Vec<&Value>, Vec<&Value>)> = HashMap::new();
        for (side, list) in [(0, items(old)), (1, items(new))] {
            for value in list {
                let Some(element) = place.element(value) else { continue };
                let pair = pairs.entry(element.clone()).or_insert_with(|| {
                    order.push(element);
                    Default::default()
                });
                if side == 0 { &mut pair.0 } else { &mut pair.1 }.push(value);
            }
        }
        for element in order {
            let Some((old, new)) = pairs.remove(&element) else { continue };
            self.path.push(element);
            match (&old[..], &new[..]) {
                (old @ ([] | [_]), new @ ([] | [_])) => {
                    self.visit(item, old.first().map(|v| Seen::Value(v)), new.first().map(|v| Seen::Value(v)));
                }
                ([_, _, ..], [_, _, ..]) => {
                    if old != new {
                        self.out.modified.insert(&self.path);
                    }
                }
                ([_, _, ..], new) => {
                    if let Some(value) = new.first() {
                        self.visit(item, None, Some(Seen::Value(value)));
                    }
                    self.out.removed.insert(&self.path);
                }
                (old, _) => {
                    if let Some(value) = old.first() {
                        self.visit(item, Some(Seen::Value(value)), None);
                    }
                    self.out.added.insert(&self.path);
                }
            }
            self.path.pop();
        }
    }
}

fn child<'v>(field: Field<'_>, parent: Option<Seen<'v>>) -> Option<Seen<'v>> {
    let value = match parent? {
        Seen::Value(value) => value.get(field.name()),
        Seen::Zero => None,
    };
    match emit(field, field.shape(), value, false) {
        Emit::Nothing => None,
        Emit::Value(value) => Some(Seen::Value(value)),
        Emit::Zero => Some(Seen::Zero),
    }
}

fn entries(seen: Option<Seen<'_>>) -> Option<&Map<String, Value>> {
    match seen? {
        Seen::Value(value) => value.as_object(),
        Seen::Zero => None,
    }
}

fn items(seen: Option<Seen<'_>>) -> &[Value] {
    match seen {
        Some(Seen::Value(Value::Array(items))) => items,
        _ => &[],
    }
}

/// Nothing is written inside of it.
fn is_empty(shape: Shape<'_>, seen: Option<Seen<'_>>) -> bool {
    match shape {
        Shape::Struct(t) => t.fields().all(|f| child(f, seen).is_none()),
        Shape::Map(_) => entries(seen).is_none_or(Map::is_empty),
        Shape::List(_) => items(seen).is_empty(),
        _ => false,
    }
}

fn equal(shape: Shape<'_>, a: Seen<'_>, b: Seen<'_>) -> bool {
    match (a, b) {
        (Seen::Zero, Seen::Zero) => true,
        (Seen::Value(a), Seen::Value(b)) => a == b || (is_zero(shape, a) && is_zero(shape, b)),
        (Seen::Zero, Seen::Value(v)) | (Seen::Value(v), Seen::Zero) => is_zero(shape, v),
    }
}

fn is_zero(shape: Shape<'_>, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || (text == "0" && matches!(shape, Shape::Scalar(Scalar::Quantity))),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}
