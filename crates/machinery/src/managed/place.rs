//! How the value at a place in an object is owned: whole or in parts, and what its parts are called.

use std::borrow::Cow;

use serde_json::Value;

use super::element::Element;
use crate::encode::{Emit, emit};
use crate::schema::{Field, ListType, Scalar, Shape, TypeRef};

/// A place in an object of a type.
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

    /// The place below of this name; `None` when the type has no such field.
    pub(super) fn child(self, name: &str) -> Option<Self> {
        match self.shape {
            Shape::Struct(t) => t.field(name).map(Self::of_field).or_else(|| t.open_child().map(Self::of_type)),
            Shape::Map(inner) => Some(Self::of_element(inner.shape())),
            _ => None,
        }
    }

    /// The same by its step.
    pub(super) fn child_of(self, element: &Element<'_>) -> Option<Self> {
        match element {
            Element::Field(name) => self.child(name),
            _ => None,
        }
    }

    /// The place of the items of a list.
    pub(super) fn item(self) -> Option<Self> {
        match self.shape {
            Shape::List(inner) => Some(Self::of_element(inner.shape())),
            _ => None,
        }
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

    /// Nothing is said of the value's type: an object is owned in parts, everything else as a whole.
    pub(super) fn is_open(self) -> bool {
        matches!(self.shape, Shape::Struct(t) if t.is_open())
    }

    /// Owned as a whole when this is the value.
    pub(super) fn is_whole(self, value: &Value) -> bool {
        self.atomic() || (self.is_open() && !value.is_object())
    }

    /// What an item of the list is called.
    ///
    /// # Errors
    /// Why it cannot be called anything, in upstream's words.
    pub(super) fn element(self, item: &Value) -> Result<Element<'static>, String> {
        let inner = self.item().map(|place| place.shape);
        match (self.list_type(), inner, self.field) {
            (ListType::Set, ..) => match item {
                Value::Object(_) => Err("associative list without keys has an element that's a map type".into()),
                Value::Array(_) => Err("not supported: associative list with lists as elements".into()),
                Value::Null => Err("associative list without keys has an element that's an explicit null".into()),
                scalar => Ok(Element::value(scalar)),
            },
            (ListType::Map, Some(Shape::Struct(t)), Some(field)) => match item {
                Value::Object(_) => keyed(field, t, item),
                Value::Null => Err("associative list with keys may not have a null element".into()),
                _ => Err("associative list with keys may not have non-map elements".into()),
            },
            _ => Err("invalid indexing of non-associative list".into()),
        }
    }
}

fn keyed(field: Field<'_>, t: TypeRef<'_>, item: &Value) -> Result<Element<'static>, String> {
    let mut keys: Vec<(&str, Cow<'_, Value>)> = Vec::with_capacity(4);
    for key in field.list_keys() {
        let value = match item.get(key) {
            Some(given) => Some(Cow::Borrowed(given)),
            None => t.field(key).and_then(default_of).map(Cow::Owned),
        };
        if let Some(value) = value {
            keys.push((key, value));
        }
    }
    if keys.is_empty() {
        let names: Vec<String> = field.list_keys().map(|key| format!("{key:?}")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values \
             for any key fields)",
            names.join(" ")
        ));
    }
    keys.sort_by_key(|(name, _)| *name);
    Ok(Element::keys(keys.iter().map(|(name, value)| (*name, value.as_ref()))))
}

/// The value of a key that an item does not have: the declared default, or the zero value of a field
/// that is always written.
fn default_of(field: Field<'_>) -> Option<Value> {
    if let Some(json) = field.default_json() {
        return serde_json::from_str(json).ok();
    }
    match (emit(field, field.shape(), None, false), field.shape()) {
        (Emit::Zero, Shape::Scalar(Scalar::String)) => Some(Value::from("")),
        (Emit::Zero, Shape::Scalar(Scalar::Int32 | Scalar::Int64)) => Some(Value::from(0)),
        _ => None,
    }
}
