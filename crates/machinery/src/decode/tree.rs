//! The walk: what stands in the text is checked against the shape it should have, as it is read.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::scalar::{self, Misfit};
use super::state::{Source, State, Step};
use crate::schema::{Scalar, Shape, ShapeRef, TypeRef};

/// Where the shape of a value comes from.
#[derive(Clone, Copy)]
enum Expect<'t> {
    Shape(ShapeRef<'t>),
    Root(TypeRef<'t>),
    Strings,
}

/// Reads one value; `None` is null.
pub(super) struct Seed<'s, 't> {
    state: &'s mut State<'t>,
    expect: Expect<'t>,
    shape: Shape<'t>,
    depth: usize,
}

/// Reads the whole object.
pub(super) fn root<'s, 't>(state: &'s mut State<'t>) -> Seed<'s, 't> {
    let t = state.root;
    Seed { state, expect: Expect::Root(t), shape: Shape::Struct(t), depth: 0 }
}

/// The value of an element that is null: Go leaves the zero value.
fn zero_element(shape: Shape<'_>) -> Value {
    match shape {
        Shape::Scalar(Scalar::String | Scalar::Bytes) => Value::String(String::new()),
        Shape::Scalar(Scalar::Duration) => Value::String("0s".to_owned()),
        Shape::Scalar(Scalar::Bool) => Value::Bool(false),
        Shape::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Float64 | Scalar::IntOrString) => Value::from(0),
        Shape::Scalar(Scalar::Quantity) => Value::String("0".to_owned()),
        Shape::Scalar(Scalar::Time | Scalar::MicroTime) | Shape::Raw => Value::Null,
        Shape::Struct(_) | Shape::Map(_) | Shape::OrBool(_) | Shape::OrArray(_) => Value::Object(Map::new()),
        Shape::List(_) | Shape::OrStrings(_) => Value::Array(Vec::new()),
    }
}

/// What is in a field that is set twice: Go reads the second value into the first.
fn merge_again(old: Value, new: Value, shape: Shape<'_>) -> Value {
    match (shape, old, new) {
        (Shape::Struct(t), Value::Object(mut old), Value::Object(new)) => {
            for (name, value) in new {
                let Some(field) = t.field(&name) else { continue };
                let merged = match old.remove(&name) {
                    Some(before) => merge_again(before, value, field.shape()),
                    None => value,
                };
                old.insert(name, merged);
            }
            Value::Object(old)
        }
        (Shape::Map(_), Value::Object(mut old), Value::Object(new)) => {
            old.extend(new);
            Value::Object(old)
        }
        (Shape::List(inner), Value::Array(old), Value::Array(new)) => {
            let mut old = old.into_iter();
            let merged = new.into_iter().map(|value| match old.next() {
                Some(before) => merge_again(before, value, inner.shape()),
                None => value,
            });
            Value::Array(merged.collect())
        }
        (_, _, new) => new,
    }
}

impl<'s, 't> Seed<'s, 't> {
    fn go_name(&self) -> String {
        match self.expect {
            // `byte` is Go's other word for it, and the one that is never told.
            Expect::Shape(shape) => shape.go_name().replace("[]byte", "[]uint8"),
            Expect::Root(t) => format!("{}.{}", t.version(), t.name()),
            Expect::Strings => "[]string".to_owned(),
        }
    }

    fn misfit(self, found: &str) -> Option<Value> {
        let go_type = self.go_name();
        self.state.misfit(self.shape, found, &go_type);
        None
    }

    fn settle<E: Error>(self, outcome: Result<Option<Value>, Misfit>) -> Result<Option<Value>, E> {
        match outcome {
            Ok(value) => return Ok(value),
            Err(Misfit::Type(found)) => return Ok(self.misfit(&found)),
            Err(Misfit::Text(text)) => {
                self.state.wrong(text);
                return Ok(None);
            }
            Err(Misfit::Own(found, go_type)) => {
                if let Shape::Scalar(scalar) = self.shape {
                    self.state.end_misfit(scalar, &found, go_type);
                }
            }
            Err(Misfit::OwnText(text)) => self.state.end(text),
        }
        Err(E::custom("misfit"))
    }

    fn text<E: Error>(self, text: Cow<'_, str>) -> Result<Option<Value>, E> {
        match self.shape {
            Shape::Scalar(scalar) => self.settle(scalar::string(scalar, text)),
            Shape::Raw => Ok(Some(Value::String(text.into_owned()))),
            _ => Ok(self.misfit("string")),
        }
    }

    fn number<E: Error>(self, number: &Number) -> Result<Option<Value>, E> {
        let mut text = scalar::number_text(number);
        let converted = self.state.source == Source::Converted;
        // A tree knows no difference between 2 and 2.0.
        if converted && let Some(whole) = text.strip_suffix(".0") {
            text = whole.to_owned();
        }
        let outcome = match self.shape {
            Shape::Scalar(scalar) => scalar::number(scalar, &text),
            _ => Err(Misfit::Type("number".to_owned())),
        };
        match outcome {
            Err(Misfit::Type(_)) if converted => Ok(self.misfit(&format!("number {text}"))),
            outcome => self.settle(outcome),
        }
    }

    /// The text of a scalar whose digits count.
    fn literal<E: Error>(self, scalar: Scalar, text: &str) -> Result<Option<Value>, E> {
        match text.as_bytes().first() {
            None | Some(b'n') => Ok(None),
            Some(b't' | b'f') => self.settle(scalar::bool(scalar, text == "true")),
            Some(b'[') => self.settle(Err(scalar::composite(scalar, "array"))),
            Some(b'{') => self.settle(Err(scalar::composite(scalar, "object"))),
            // The reader of quantities looks between the quotes as they stand.
            Some(b'"') if scalar == Scalar::Quantity => {
                self.text(Cow::Borrowed(&text[1..text.len().saturating_sub(1).max(1)]))
            }
            Some(b'"') => match serde_json::from_str::<String>(text) {
                Ok(text) => self.text(Cow::Owned(text)),
                Err(error) => Err(E::custom(error)),
            },
            Some(_) => self.settle(scalar::number(scalar, text)),
        }
    }

    fn object<'de, A: MapAccess<'de>>(self, t: TypeRef<'t>, mut access: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        let mut seen = 0u128;
        let mut hint = 0;
        while let Some(key) = access.next_key_seed(KeySeed { t, hint })? {
            let position = match key {
                Key::Known(position) => position,
                Key::Unknown(name) => {
                    if t.preserves() {
                        out.insert(name, access.next_value::<Value>()?);
                    } else {
                        self.state.unknown(&name);
                        access.next_value::<IgnoredAny>()?;
                    }
                    continue;
                }
            };
            hint = position + 1;
            let field = t.at(position);
            let bit = 1u128 << (position % 128);
            if seen & bit != 0 {
                self.state.duplicate(Some(field.name()));
            }
            let shape = field.shape_ref();
            self.state.path.push(Step::Field(t, position));
            let seed =
                Seed { state: self.state, expect: Expect::Shape(shape), shape: shape.shape(), depth: self.depth + 1 };
            let value = access.next_value_seed(seed)?;
            self.state.path.pop();
            match (value, seen & bit != 0) {
                (Some(value), false) => {
                    out.insert(field.name().to_owned(), value);
                }
                (Some(value), true) => {
                    let merged = match out.remove(field.name()) {
                        Some(old) => merge_again(old, value, shape.shape()),
                        None => value,
                    };
                    out.insert(field.name().to_owned(), merged);
                }
                (None, _) if field.nullable() => {
                    out.insert(field.name().to_owned(), Value::Null);
                }
                (None, false) => {}
                // A null takes away what can be absent, and leaves the rest.
                (None, true) => {
                    let holds = !matches!(shape.shape(), Shape::Scalar(s) if s != Scalar::Bytes)
                        && !matches!(shape.shape(), Shape::Struct(_));
                    if holds || field.pointer() {
                        out.remove(field.name());
                    }
                }
            }
            seen |= bit;
        }
        Ok(Value::Object(out))
    }

    fn map<'de, A: MapAccess<'de>>(self, element: ShapeRef<'t>, mut access: A) -> Result<Value, A::Error> {
        let shape = element.shape();
        let scalar = matches!(shape, Shape::Scalar(_));
        let mut out = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if !scalar {
                self.state.path.push(Step::Key(key.clone()));
            }
            let seed = Seed { state: self.state, expect: Expect::Shape(element), shape, depth: self.depth + 1 };
            let value = access.next_value_seed(seed)?.unwrap_or_else(|| zero_element(shape));
            if !scalar {
                self.state.path.pop();
            }
            match out.entry(key) {
                serde_json::map::Entry::Vacant(slot) => {
                    slot.insert(value);
                }
                serde_json::map::Entry::Occupied(mut slot) => {
                    self.state.duplicate(Some(slot.key()));
                    slot.insert(value);
                }
            }
        }
        Ok(Value::Object(out))
    }

    fn list<'de, A: SeqAccess<'de>>(
        self,
        expect: Expect<'t>,
        shape: Shape<'t>,
        mut access: A,
    ) -> Result<Value, A::Error> {
        let mut out = Vec::with_capacity(access.size_hint().unwrap_or(0).min(1024));
        loop {
            self.state.path.push(Step::Index(out.len()));
            let seed = Seed { state: self.state, expect, shape, depth: self.depth + 1 };
            let value = access.next_element_seed(seed)?;
            self.state.path.pop();
            match value {
                Some(value) => out.push(value.unwrap_or_else(|| zero_element(shape))),
                None => return Ok(Value::Array(out)),
            }
        }
    }

    /// Bytes that come as a list of numbers.
    fn bytes<'de, A: SeqAccess<'de>>(self, mut access: A) -> Result<Option<Value>, A::Error> {
        let mut bytes = Vec::new();
        while let Some(item) = access.next_element::<Value>()? {
            let number = item.as_u64().and_then(|n| u8::try_from(n).ok());
            match (&item, number) {
                (Value::Null, _) => bytes.push(0),
                (_, Some(byte)) => bytes.push(byte),
                (Value::Number(number), None) => self.state.no_byte(&format!("number {number}")),
                (other, None) => self.state.no_byte(crate::patch::type_name(other)),
            }
        }
        Ok(Some(Value::String(scalar::encode(&bytes))))
    }
}

/// Reads a list whose elements matter to nobody.
fn skip_list<'de, A: SeqAccess<'de>>(mut access: A) -> Result<(), A::Error> {
    while access.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

/// Reads an object whose fields matter to nobody.
fn skip_object<'de, A: MapAccess<'de>>(mut access: A) -> Result<(), A::Error> {
    while access.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        match self.shape {
            // Raw JSON needs no check; the reader bounds its depth.
            Shape::Raw => Value::deserialize(deserializer).map(|v| if v.is_null() { None } else { Some(v) }),
            Shape::Scalar(scalar) if self.state.source == Source::Text && scalar::is_literal(scalar) => {
                let raw = <&RawValue>::deserialize(deserializer)?;
                self.literal(scalar, raw.get())
            }
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.go_name())
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        match self.shape {
            Shape::Scalar(scalar) => self.settle(scalar::bool(scalar, value)),
            Shape::Raw | Shape::OrBool(_) => Ok(Some(Value::Bool(value))),
            _ => Ok(self.misfit("bool")),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        self.number(&value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        self.number(&value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        match Number::from_f64(value) {
            Some(number) => self.number(&number),
            None => Ok(self.misfit("number")),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        self.text(Cow::Borrowed(value))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Self::Value, E> {
        self.text(Cow::Owned(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        self.state.enter(self.depth).map_err(|()| A::Error::custom("too deep or too many"))?;
        match self.shape {
            Shape::List(element) => self.list(Expect::Shape(element.shape_ref()), element.shape(), access).map(Some),
            Shape::OrArray(t) => self.list(Expect::Root(t), Shape::Struct(t), access).map(Some),
            Shape::OrStrings(_) => self.list(Expect::Strings, Shape::Scalar(Scalar::String), access).map(Some),
            Shape::Scalar(Scalar::Bytes) => self.bytes(access),
            Shape::Scalar(scalar) => {
                skip_list(access)?;
                self.settle(Err(scalar::composite(scalar, "array")))
            }
            _ => {
                skip_list(access)?;
                Ok(self.misfit("array"))
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        self.state.enter(self.depth).map_err(|()| A::Error::custom("too deep or too many"))?;
        match self.shape {
            Shape::Struct(t) | Shape::OrArray(t) | Shape::OrBool(t) | Shape::OrStrings(t) => {
                self.object(t, access).map(Some)
            }
            Shape::Map(element) => self.map(element.shape_ref(), access).map(Some),
            Shape::Scalar(scalar) => {
                skip_object(access)?;
                self.settle(Err(scalar::composite(scalar, "object")))
            }
            _ => {
                skip_object(access)?;
                Ok(self.misfit("object"))
            }
        }
    }
}

/// The key of a struct: the position of its field, or a name the type does not have.
enum Key {
    Known(usize),
    Unknown(String),
}

struct KeySeed<'t> {
    t: TypeRef<'t>,
    /// The field after the last one: most writers keep the order of declaration.
    hint: usize,
}

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed<'_> {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Key, E> {
        if self.hint < self.t.width() && self.t.at(self.hint).name() == name {
            return Ok(Key::Known(self.hint));
        }
        Ok(self.t.position(name).map_or_else(|| Key::Unknown(name.to_owned()), Key::Known))
    }
}

/// Nesting deeper than the limit is refused, without recursion.
pub(super) fn check_depth(value: &Value, limit: usize) -> Result<(), String> {
    let mut pending = vec![(value, 0)];
    while let Some((value, depth)) = pending.pop() {
        if depth > limit {
            return Err("exceeded max depth".to_owned());
        }
        match value {
            Value::Array(items) => pending.extend(items.iter().map(|v| (v, depth + 1))),
            Value::Object(map) => pending.extend(map.values().map(|v| (v, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}
