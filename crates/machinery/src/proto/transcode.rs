//! Stored JSON to protobuf without a tree between them: one pass over the bytes.
//!
//! ```text
//! {"kind":…,"metadata":{"name":"a"},"spec":{…}}     the JSON of an object, read field by field
//!   ──► 1: {1:"a" …}  2: {…}                        each written as it comes, its place noted
//!   ──► 1: {1:"a", 2:"", …}  2: {…}  3: {}          put in the order of the tags, zero values added
//! ```
//!
//! What comes out is what [`super::encode_body`] makes of the same object; where the JSON is not of the
//! type's shape, that one is asked.

use std::fmt;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{wire, write};
use crate::schema::{Field, MAX_FIELDS, Scalar, Shape, TypeRef};

/// The object's fields in protobuf, without an envelope.
pub(super) fn body(json: &[u8], t: TypeRef<'_>) -> Result<Vec<u8>, serde_json::Error> {
    let mut out = Out { bytes: Vec::with_capacity(json.len()), spare: Vec::new() };
    let mut input = serde_json::Deserializer::from_slice(json);
    Message { out: &mut out, t }.deserialize(&mut input)?;
    input.end()?;
    Ok(out.bytes)
}

/// What is written, and room to put the fields of a message in order.
struct Out {
    bytes: Vec<u8>,
    spare: Vec<u8>,
}

/// Where the field at a position of the JSON object stands among the bytes; empty when it is absent.
type Places = [(u32, u32); MAX_FIELDS];

/// Reads a JSON object as the fields of a message.
struct Message<'o, 't> {
    out: &'o mut Out,
    t: TypeRef<'t>,
}

impl<'de> DeserializeSeed<'de> for Message<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Message<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { out, t } = self;
        let start = out.bytes.len();
        let mut places: Places = [(0, 0); MAX_FIELDS];
        let mut next = 0;
        while let Some(found) = map.next_key_seed(Key { t, next })? {
            let Some(position) = found else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            next = position + 1;
            let field = t.at(position);
            let from = out.bytes.len();
            map.next_value_seed(FieldValue { out, field })?;
            // Objects are bounded far below what 32 bits count.
            places[position] = (from as u32, out.bytes.len() as u32);
        }
        arrange(out, start, t, &places);
        Ok(())
    }
}

/// Puts the fields of a message, which stand from `start` on as they came, in the order of their tags.
fn arrange(out: &mut Out, start: usize, t: TypeRef<'_>, places: &Places) {
    let mut spare = std::mem::take(&mut out.spare);
    spare.clear();
    emit(&mut spare, &out.bytes, t, places, 0);
    out.bytes.truncate(start);
    out.bytes.extend_from_slice(&spare);
    out.spare = spare;
}

/// The fields of `t`, which stand from position `base` on among the places of the JSON object.
fn emit(to: &mut Vec<u8>, from: &[u8], t: TypeRef<'_>, places: &Places, base: usize) {
    let mut positions = [0u8; MAX_FIELDS];
    let mut position = base;
    for (slot, field) in positions.iter_mut().zip(t.declared()) {
        *slot = position as u8;
        position += width(field);
    }
    for (declared, field) in t.tagged_at() {
        if field.tag() == 0 {
            continue;
        }
        let position = usize::from(positions[declared]);
        if let (true, Shape::Struct(inner)) = (field.embedded(), field.shape()) {
            let at = wire::begin(to, field.tag());
            emit(to, from, inner, places, position);
            wire::end(to, at);
            continue;
        }
        let Range { start, end } = range(places[position]);
        if start == end {
            write::absent(to, field);
        } else {
            to.extend_from_slice(&from[start..end]);
        }
    }
}

fn range((start, end): (u32, u32)) -> Range<usize> {
    start as usize..end as usize
}

/// How many fields of the JSON object a declared field stands for.
fn width(field: Field<'_>) -> usize {
    match field.shape() {
        Shape::Struct(inner) if field.embedded() => inner.width(),
        _ => 1,
    }
}

/// A key of a JSON object as the position of its field; keys mostly come in the order of the fields.
struct Key<'t> {
    t: TypeRef<'t>,
    next: usize,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Option<usize>, D::Error> {
        input.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Option<usize>, E> {
        let ahead = (self.next..self.t.width()).find(|position| self.t.at(*position).name() == key);
        Ok(ahead.or_else(|| self.t.position(key)))
    }
}

/// The value of a field, written with its tag; nothing for `null`.
struct FieldValue<'o, 't> {
    out: &'o mut Out,
    field: Field<'t>,
}

impl<'de> DeserializeSeed<'de> for FieldValue<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        let Self { out, field } = self;
        let (tag, shape) = (field.tag(), field.shape());
        // `kind` and `apiVersion` are told by the envelope.
        if tag == 0 {
            return IgnoredAny::deserialize(input).map(drop);
        }
        input.deserialize_option(Nullable(Part { out, tag, shape, wrapped: field.wrapped_list(), in_map: false }))
    }
}

/// `null` writes nothing.
struct Nullable<'o, 't>(Part<'o, 't>);

impl<'de> Visitor<'de> for Nullable<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        self.0.deserialize(input)
    }
}

/// A value that is written with a tag in front: a field, an item of a list, the value of a map's entry.
struct Part<'o, 't> {
    out: &'o mut Out,
    tag: u32,
    shape: Shape<'t>,
    /// A list is a message of its own.
    wrapped: bool,
    /// It is the value of a map's entry.
    in_map: bool,
}

impl<'de> DeserializeSeed<'de> for Part<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        match self.shape {
            Shape::Struct(_) | Shape::List(_) | Shape::Map(_) | Shape::Scalar(_) => input.deserialize_any(self),
            Shape::Raw => {
                let raw = <&RawValue>::deserialize(input)?.get();
                let at = wire::begin(&mut self.out.bytes, self.tag);
                wire::bytes(&mut self.out.bytes, 1, raw.as_bytes());
                wire::end(&mut self.out.bytes, at);
                Ok(())
            }
            Shape::OrArray(_) | Shape::OrBool(_) | Shape::OrStrings(_) => {
                let value = Value::deserialize(input)?;
                write::element(&mut self.out.bytes, self.tag, self.shape, &value);
                Ok(())
            }
        }
    }
}

impl Part<'_, '_> {
    /// A value that has no better way than the tree's.
    fn value<E: serde::de::Error>(self, value: &Value) -> Result<(), E> {
        match self.shape {
            Shape::Scalar(_) | Shape::Struct(_) => {
                write::element(&mut self.out.bytes, self.tag, self.shape, value);
                Ok(())
            }
            _ => Err(E::custom("a scalar where none belongs")),
        }
    }
}

impl<'de> Visitor<'de> for Part<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.shape)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.value(&Value::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.value(&Value::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.value(&Value::from(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.value(&Value::from(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.value(&Value::from(value))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        let out = &mut self.out.bytes;
        match self.shape {
            Shape::Scalar(Scalar::String) => wire::bytes(out, self.tag, text.as_bytes()),
            Shape::Scalar(Scalar::Bytes) => {
                wire::bytes(out, self.tag, &STANDARD.decode(text).unwrap_or_default());
            }
            Shape::Scalar(scalar) => write::text(out, self.tag, scalar, text),
            _ => return Err(E::custom("a text where none belongs")),
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { out, tag, shape, .. } = self;
        match shape {
            Shape::Struct(t) => {
                let at = wire::begin(&mut out.bytes, tag);
                Message { out, t }.visit_map(map)?;
                wire::end(&mut out.bytes, at);
            }
            Shape::Map(inner) => {
                let shape = inner.shape();
                while let Some(at) = map.next_key_seed(EntryKey { out, tag })? {
                    map.next_value_seed(Part { out, tag: 2, shape, wrapped: true, in_map: true })?;
                    wire::end(&mut out.bytes, at);
                }
            }
            _ => return Err(serde::de::Error::custom("an object where none belongs")),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { out, tag, shape, wrapped, in_map } = self;
        let Shape::List(inner) = shape else { return Err(serde::de::Error::custom("a list where none belongs")) };
        let element = inner.shape();
        // Lists of lists and maps in lists are not among the built-in types.
        if matches!(element, Shape::List(_) | Shape::Map(_)) {
            return Err(serde::de::Error::custom("a list of lists"));
        }
        let at = (wrapped || in_map).then(|| wire::begin(&mut out.bytes, tag));
        let tag = if at.is_some() { 1 } else { tag };
        while items.next_element_seed(Part { out, tag, shape: element, wrapped: false, in_map: false })?.is_some() {}
        if let Some(at) = at {
            wire::end(&mut out.bytes, at);
        }
        Ok(())
    }
}

/// The key of a map's entry, which it begins; gives the place where the entry's length goes.
struct EntryKey<'o> {
    out: &'o mut Out,
    tag: u32,
}

impl<'de> DeserializeSeed<'de> for EntryKey<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<usize, D::Error> {
        input.deserialize_identifier(self)
    }
}

impl Visitor<'_> for EntryKey<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<usize, E> {
        let at = wire::begin(&mut self.out.bytes, self.tag);
        wire::bytes(&mut self.out.bytes, 1, key.as_bytes());
        Ok(at)
    }
}
