//! What changed between two objects, as a set of fields, by the granularity the schema declares.
//!
//! Both objects are seen as the encoder would write them: a struct that is always written (`spec`,
//! `resources: {}`) is there even when the tree lacks it. An object that a configuration was laid
//! over is seen as it is: what the configuration says is there, also `null` and zero.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value};

use super::element::Element;
use super::fields::Fields;
use super::place::Place;
use crate::encode::{Emit, emit};
use crate::schema::{Field, MAX_FIELDS, Scalar, Shape, TypeRef};

/// The marks of the set: how a field changed. One that was doubled and is no more is added and removed.
pub(super) const ADDED: u8 = 1;
pub(super) const MODIFIED: u8 = 2;
pub(super) const REMOVED: u8 = 4;

/// A value as the encoder would write it.
#[derive(Clone, Copy)]
enum Seen<'v> {
    Value(&'v Value),
    /// The zero value of the shape.
    Zero,
}

/// How the new object is to be seen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Decoded by its schema.
    Decoded,
    /// With a configuration laid over it, as it was sent.
    Merged,
}

/// Compares two objects of the type; `None` is an object that does not exist yet. What is at or below
/// one of the paths of field names in `skip` is not looked at.
pub(super) fn compare<'a>(
    old: Option<&'a Value>,
    new: &'a Value,
    t: TypeRef<'a>,
    skip: &[&[&str]],
    side: Side,
) -> Fields<'a> {
    let walk = Walk { merged: side == Side::Merged };
    let old = old.map_or(Seen::Zero, Seen::Value);
    let mut out = walk.visit(Place::of_type(t), Some(old), Some(Seen::Value(new)), skip);
    out.mark = 0;
    out
}

/// The members of an object that may not be there.
type Members<'v> = Option<&'v Map<String, Value>>;

struct Walk {
    merged: bool,
}

impl Walk {
    fn visit<'a>(
        &self,
        place: Place<'a>,
        old: Option<Seen<'a>>,
        new: Option<Seen<'a>>,
        skip: &[&[&str]],
    ) -> Fields<'a> {
        if let (Some(Seen::Value(a)), Some(Seen::Value(b))) = (old, new)
            && a == b
        {
            return Fields::default();
        }
        let said = self.merged && entries(new).is_some_and(|map| !map.is_empty());
        let empty = !said && is_empty(place.shape, new) && is_empty(place.shape, old);
        let scalar = |seen: Option<Seen<'_>>| matches!(seen, Some(Seen::Value(value)) if !value.is_null() && place.is_whole(value));
        let leaf = place.atomic() || scalar(old) || scalar(new) || empty;
        let mut out = Fields::default();
        if !leaf {
            match place.shape {
                Shape::Struct(t) => self.object(t, old, new, skip, &mut out),
                Shape::Map(inner) => self.map(inner.shape(), old, new, &mut out),
                Shape::List(_) => self.list(place, old, new, &mut out),
                _ => {}
            }
        }
        out.mark = match (old, new) {
            (None, Some(_)) => ADDED,
            (Some(_), None) => REMOVED,
            (Some(a), Some(b)) if leaf && self.differ(place.shape, a, b, empty) => MODIFIED,
            _ => 0,
        };
        out
    }

    /// Whether a value that is owned as a whole is another one now.
    fn differ(&self, shape: Shape<'_>, old: Seen<'_>, new: Seen<'_>, empty: bool) -> bool {
        match (old, new) {
            (Seen::Zero, Seen::Zero) => false,
            // `null` in a configuration takes away what is there, be it empty.
            (Seen::Value(a), Seen::Value(b)) if self.merged => !same(a, b),
            _ if empty => false,
            (Seen::Value(a), Seen::Value(b)) => !(same(a, b) || (is_zero(shape, a) && is_zero(shape, b))),
            (Seen::Zero, Seen::Value(v)) | (Seen::Value(v), Seen::Zero) => !is_zero(shape, v),
        }
    }

    fn object<'a>(
        &self,
        t: TypeRef<'a>,
        old: Option<Seen<'a>>,
        new: Option<Seen<'a>>,
        skip: &[&[&str]],
        out: &mut Fields<'a>,
    ) {
        let metadata = t.name() == "ObjectMeta";
        let (befores, afters) = (slots(t, old), slots(t, new));
        for (position, field) in t.fields().enumerate() {
            let (before, after) = (befores.get(position), afters.get(position));
            let a = old.and_then(|_| seen(field, before));
            let b = new.and_then(|_| match after {
                // Of what only the configuration has, nothing is there but what it says.
                _ if self.merged && (after.is_some() || old.is_none()) => after.map(Seen::Value),
                _ => seen(field, after),
            });
            // Who owns what is not itself owned.
            if (a.is_none() && b.is_none()) || (metadata && field.name() == "managedFields") {
                continue;
            }
            let below: Vec<&[&str]> =
                skip.iter().filter(|path| path.first() == Some(&field.name())).map(|path| &path[1..]).collect();
            if below.iter().any(|path| path.is_empty()) {
                continue;
            }
            let changed = self.visit(Place::of_field(field), a, b, &below);
            out.push(Element::Field(Cow::Borrowed(field.name())), changed);
        }
        if let Some(open) = t.open_child() {
            self.unknown(t, Shape::Struct(open), (entries(old), entries(new)), out);
        }
        out.settle();
    }

    /// The fields of a struct that its type does not have, but keeps.
    fn unknown<'a>(
        &self,
        t: TypeRef<'a>,
        shape: Shape<'a>,
        (old, new): (Members<'a>, Members<'a>),
        out: &mut Fields<'a>,
    ) {
        let more = new.into_iter().flat_map(Map::keys).filter(|name| old.is_none_or(|m| !m.contains_key(*name)));
        let names = old.into_iter().flat_map(Map::keys).chain(more).filter(|name| t.position(name).is_none());
        let of = |map: Members<'a>, name: &str| map.and_then(|m| m.get(name)).map(Seen::Value);
        for name in names {
            let changed = self.visit(Place::of_element(shape), of(old, name), of(new, name), &[]);
            out.push(Element::Field(Cow::Borrowed(name)), changed);
        }
    }

    fn map<'a>(&self, shape: Shape<'a>, old: Option<Seen<'a>>, new: Option<Seen<'a>>, out: &mut Fields<'a>) {
        let (old, new) = (entries(old), entries(new));
        let of = |map: Option<&'a Map<String, Value>>, key: &str| map.and_then(|m| m.get(key)).map(Seen::Value);
        let keys = old.into_iter().flat_map(Map::keys);
        let more = new.into_iter().flat_map(Map::keys).filter(|key| old.is_none_or(|m| !m.contains_key(*key)));
        for key in keys.chain(more) {
            let changed = self.visit(Place::of_element(shape), of(old, key), of(new, key), &[]);
            out.push(Element::Field(Cow::Borrowed(key)), changed);
        }
        out.settle();
    }

    /// Items are paired by what they are called. Items that are called the same are seen as one
    /// atomic value.
    fn list<'a>(&self, place: Place<'a>, old: Option<Seen<'a>>, new: Option<Seen<'a>>, out: &mut Fields<'a>) {
        let Some(item) = place.item() else { return };
        let mut order: Vec<Element<'a>> = Vec::new();
        let mut pairs: HashMap<Element<'a>, (Vec<&Value>, Vec<&Value>)> = HashMap::new();
        for (side, list) in [(0, items(old)), (1, items(new))] {
            for value in list {
                let Ok(element) = place.element(value) else { continue };
                let pair = pairs.entry(element).or_insert_with_key(|element| {
                    order.push(element.clone());
                    Default::default()
                });
                if side == 0 { &mut pair.0 } else { &mut pair.1 }.push(value);
            }
        }
        for element in order {
            let Some((old, new)) = pairs.remove(&element) else { continue };
            let one = |list: &[&'a Value]| list.first().map(|value| Seen::Value(value));
            let changed = match (&old[..], &new[..]) {
                (old @ ([] | [_]), new @ ([] | [_])) => self.visit(item, one(old), one(new), &[]),
                ([_, _, ..], [_, _, ..]) => {
                    let same = old.len() == new.len() && old.iter().zip(&new).all(|(a, b)| same(a, b));
                    Fields { mark: if same { 0 } else { MODIFIED }, below: Vec::new() }
                }
                ([_, _, ..], new) => {
                    let mut changed = one(new).map(|v| self.visit(item, None, Some(v), &[])).unwrap_or_default();
                    changed.mark |= REMOVED;
                    changed
                }
                (old, _) => {
                    let mut changed = one(old).map(|v| self.visit(item, Some(v), None, &[])).unwrap_or_default();
                    changed.mark |= ADDED;
                    changed
                }
            };
            out.push(element, changed);
        }
        out.settle();
    }
}

/// The values of a struct by the positions of their fields.
fn slots<'v>(t: TypeRef<'_>, parent: Option<Seen<'v>>) -> Slots<'v> {
    // Only custom resources have wider structs.
    let wide = if t.width() > MAX_FIELDS { vec![None; t.width()] } else { Vec::new() };
    let mut slots = Slots { narrow: [None; MAX_FIELDS], wide };
    for (name, value) in entries(parent).into_iter().flatten() {
        if let Some(position) = t.position(name) {
            match slots.wide.get_mut(position) {
                Some(slot) => *slot = Some(value),
                None => slots.narrow[position] = Some(value),
            }
        }
    }
    slots
}

struct Slots<'v> {
    narrow: [Option<&'v Value>; MAX_FIELDS],
    wide: Vec<Option<&'v Value>>,
}

impl<'v> Slots<'v> {
    fn get(&self, position: usize) -> Option<&'v Value> {
        if self.wide.is_empty() {
            self.narrow.get(position).copied().flatten()
        } else {
            self.wide.get(position).copied().flatten()
        }
    }
}

/// A field of a struct that is there, as the encoder would write it.
fn seen<'v>(field: Field<'_>, value: Option<&'v Value>) -> Option<Seen<'v>> {
    match emit(field, field.shape(), value, false) {
        Emit::Nothing => None,
        Emit::Value(value) => Some(Seen::Value(value)),
        Emit::Zero => Some(Seen::Zero),
    }
}

fn child<'v>(field: Field<'_>, parent: Option<Seen<'v>>) -> Option<Seen<'v>> {
    match parent? {
        Seen::Value(value) => seen(field, value.get(field.name())),
        Seen::Zero => seen(field, None),
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
        _ if matches!(seen, Some(Seen::Value(Value::Null))) => true,
        Shape::Struct(t) if t.open_child().is_some() || t.is_open() => match seen {
            Some(Seen::Value(Value::Object(map))) => map.is_empty(),
            other => matches!(other, None | Some(Seen::Zero)),
        },
        Shape::Struct(t) => t.fields().all(|f| child(f, seen).is_none()),
        Shape::Map(_) => entries(seen).is_none_or(Map::is_empty),
        Shape::List(_) => items(seen).is_empty(),
        _ => false,
    }
}

/// Equal in value: `1` and `1.0` are.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(a, b)| same(a, b)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|((k, a), (l, b))| k == l && same(a, b))
        }
        _ => a == b,
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
