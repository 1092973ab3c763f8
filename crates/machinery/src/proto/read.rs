//! Protobuf to the tree. Zero values that JSON would leave out are left out.

use std::borrow::Cow;
use std::cell::Cell;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Number, Value};

use super::wire::{self, Reader};
use crate::decode::{MAX_DEPTH, MAX_NODES, too_many_nodes};
use crate::encode::{Emit, emit};
use crate::schema::{Field, Scalar, Shape, TypeRef};
use crate::time;

type Object = Map<String, Value>;

/// Why bytes are not an object of the type.
pub(super) struct Malformed(pub(super) String);

impl From<wire::Broken> for Malformed {
    fn from(_: wire::Broken) -> Self {
        Self("unexpected EOF".to_owned())
    }
}

type Result<T> = std::result::Result<T, Malformed>;

/// How deep the walk is, and how many messages it has met.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    depth: usize,
    nodes: &'a Cell<usize>,
}

impl<'a> At<'a> {
    pub(super) fn start(nodes: &'a Cell<usize>) -> Self {
        Self { depth: 0, nodes }
    }

    fn deeper(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }

    fn enter(self) -> Result<()> {
        self.nodes.set(self.nodes.get() + 1);
        if self.depth > MAX_DEPTH {
            return Err(Malformed("exceeded max depth".to_owned()));
        }
        if self.nodes.get() > MAX_NODES {
            return Err(Malformed(too_many_nodes()));
        }
        Ok(())
    }
}

fn wrong(field: Field<'_>) -> Malformed {
    Malformed(format!("proto: wrong wireType for field {}", field.name()))
}

pub(super) fn message(bytes: &[u8], t: TypeRef<'_>, out: &mut Object, at: At<'_>) -> Result<()> {
    at.enter()?;
    let mut reader = Reader::new(bytes);
    while let Some((tag, value)) = reader.field()? {
        let Some(field) = t.tagged().find(|f| f.tag() == tag) else { continue };
        if field.embedded() {
            match (field.shape(), value) {
                (Shape::Struct(inner), wire::Field::Bytes(bytes)) => message(bytes, inner, out, at.deeper())?,
                _ => return Err(wrong(field)),
            }
            continue;
        }
        read_field(field, value, out, at)?;
    }
    // Zero values that the encoder would not write are dropped.
    for field in t.declared() {
        let Some(value) = out.get(field.name()) else { continue };
        let made = matches!(field.shape(), Shape::Struct(_) | Shape::Map(_));
        let bare = made && !field.pointer() && matches!(value, Value::Object(map) if map.is_empty());
        if value.is_null() || bare || matches!(emit(field, field.shape(), Some(value), false), Emit::Nothing) {
            out.remove(field.name());
        }
    }
    Ok(())
}

fn read_field(field: Field<'_>, value: wire::Field<'_>, out: &mut Object, at: At<'_>) -> Result<()> {
    match field.shape() {
        Shape::List(inner) => {
            let shape = inner.shape();
            let slot = out.entry(field.name()).or_insert_with(|| Value::Array(Vec::new()));
            let Value::Array(items) = slot else { return Err(wrong(field)) };
            match (shape, value) {
                (_, wire::Field::Bytes(bytes)) if field.wrapped_list() => {
                    items.append(&mut wrapped(bytes, field, shape, at)?);
                }
                // Numbers may come packed.
                (Shape::Scalar(s @ (Scalar::Int32 | Scalar::Int64 | Scalar::Bool)), wire::Field::Bytes(bytes)) => {
                    let mut packed = Reader::new(bytes);
                    while !packed.is_empty() {
                        let number = wire::Field::Varint(packed.varint()?);
                        items.push(scalar(field, s, number)?.unwrap_or_default());
                    }
                }
                _ => items.push(element(field, shape, value, at)?.unwrap_or_default()),
            }
        }
        Shape::Map(inner) => {
            let wire::Field::Bytes(bytes) = value else { return Err(wrong(field)) };
            let shape = inner.shape();
            let (mut key, mut found) = (String::new(), None);
            let mut reader = Reader::new(bytes);
            while let Some((tag, value)) = reader.field()? {
                match (tag, value, shape) {
                    (1, wire::Field::Bytes(text), _) => key = utf8(text)?.to_owned(),
                    (2, wire::Field::Bytes(bytes), Shape::List(inner)) => {
                        found = Some(Value::Array(wrapped(bytes, field, inner.shape(), at)?));
                    }
                    (2, value, _) => found = element(field, shape, value, at)?,
                    _ => {}
                }
            }
            let slot = out.entry(field.name()).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(map) = slot else { return Err(wrong(field)) };
            map.insert(key, found.unwrap_or_else(|| zero(shape)));
        }
        shape => {
            if let Some(value) = element(field, shape, value, at)? {
                out.insert(field.name().to_owned(), value);
            } else {
                out.remove(field.name());
            }
        }
    }
    Ok(())
}

/// A map entry without a value.
fn zero(shape: Shape<'_>) -> Value {
    match shape {
        Shape::Scalar(Scalar::Bool) => Value::Bool(false),
        Shape::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Float64 | Scalar::IntOrString) => Value::from(0),
        Shape::Scalar(Scalar::Quantity) => Value::from("0"),
        Shape::Scalar(Scalar::Time | Scalar::MicroTime) | Shape::Raw => Value::Null,
        Shape::Scalar(_) => Value::from(""),
        Shape::List(_) => Value::Array(Vec::new()),
        _ => Value::Object(Map::new()),
    }
}

/// The items of a list that is a message of its own.
fn wrapped(bytes: &[u8], field: Field<'_>, shape: Shape<'_>, at: At<'_>) -> Result<Vec<Value>> {
    let mut items = Vec::new();
    let mut reader = Reader::new(bytes);
    while let Some((tag, value)) = reader.field()? {
        if tag == 1 {
            items.push(element(field, shape, value, at)?.unwrap_or_default());
        }
    }
    Ok(items)
}

fn element(field: Field<'_>, shape: Shape<'_>, value: wire::Field<'_>, at: At<'_>) -> Result<Option<Value>> {
    let bytes = || match value {
        wire::Field::Bytes(bytes) => Ok(bytes),
        _ => Err(wrong(field)),
    };
    let nested = |bytes: &[u8], t: TypeRef<'_>| {
        let mut map = Map::new();
        message(bytes, t, &mut map, at.deeper())?;
        Ok(Value::Object(map))
    };
    match shape {
        Shape::Scalar(s) => scalar(field, s, value),
        Shape::Struct(t) => nested(bytes()?, t).map(Some),
        Shape::Raw => raw(bytes()?),
        Shape::OrArray(t) | Shape::OrBool(t) | Shape::OrStrings(t) => {
            let mut reader = Reader::new(bytes()?);
            let (mut one, mut many, mut allows) = (None, Vec::new(), None);
            while let Some((tag, value)) = reader.field()? {
                match (shape, tag, value) {
                    (Shape::OrBool(_), 1, wire::Field::Varint(bit)) => allows = Some(bit != 0),
                    (Shape::OrBool(_), 2, wire::Field::Bytes(bytes)) => one = Some(nested(bytes, t)?),
                    (Shape::OrArray(_) | Shape::OrStrings(_), 1, wire::Field::Bytes(bytes)) => {
                        one = Some(nested(bytes, t)?);
                    }
                    (Shape::OrArray(_), 2, wire::Field::Bytes(bytes)) => many.push(nested(bytes, t)?),
                    (Shape::OrStrings(_), 2, wire::Field::Bytes(text)) => many.push(Value::from(utf8(text)?)),
                    _ => {}
                }
            }
            Ok(Some(match (one, allows, shape) {
                (Some(one), ..) => one,
                (None, allows, Shape::OrBool(_)) => Value::Bool(allows.unwrap_or(false)),
                _ => Value::Array(many),
            }))
        }
        Shape::List(_) | Shape::Map(_) => Ok(None),
    }
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| Malformed("proto: invalid UTF-8 string".to_owned()))
}

/// `{1: bytes}` around JSON.
fn raw(bytes: &[u8]) -> Result<Option<Value>> {
    let mut reader = Reader::new(bytes);
    let mut found = None;
    while let Some((tag, value)) = reader.field()? {
        if let (1, wire::Field::Bytes(json)) = (tag, value)
            && !json.is_empty()
        {
            let value: Value = serde_json::from_slice(json).map_err(|e| Malformed(e.to_string()))?;
            found = Some(value).filter(|v| !v.is_null());
        }
    }
    Ok(found)
}

fn scalar(field: Field<'_>, scalar: Scalar, value: wire::Field<'_>) -> Result<Option<Value>> {
    let signed = |value: u64| value as i64;
    Ok(Some(match (scalar, value) {
        (Scalar::String, wire::Field::Bytes(text)) => Value::from(utf8(text)?),
        (Scalar::Bool, wire::Field::Varint(bit)) => Value::Bool(bit != 0),
        (Scalar::Int32, wire::Field::Varint(value)) => Value::from(value as i32),
        (Scalar::Int64, wire::Field::Varint(value)) => Value::from(signed(value)),
        (Scalar::Float64, wire::Field::Fixed64(bits)) => number(f64::from_bits(bits)),
        (Scalar::Bytes, wire::Field::Bytes(bytes)) => Value::String(STANDARD.encode(bytes)),
        (Scalar::Quantity, wire::Field::Bytes(bytes)) => {
            let mut text = "";
            let mut reader = Reader::new(bytes);
            while let Some((tag, value)) = reader.field()? {
                if let (1, wire::Field::Bytes(bytes)) = (tag, value) {
                    text = utf8(bytes)?;
                }
            }
            if text.is_empty() {
                return Ok(Some(Value::from("0")));
            }
            return crate::decode::canonical(Scalar::Quantity, Cow::Borrowed(text)).map_err(Malformed);
        }
        (Scalar::IntOrString, wire::Field::Bytes(bytes)) => {
            let (mut kind, mut int, mut text) = (0, 0, "");
            let mut reader = Reader::new(bytes);
            while let Some((tag, value)) = reader.field()? {
                match (tag, value) {
                    (1, wire::Field::Varint(value)) => kind = value,
                    (2, wire::Field::Varint(value)) => int = value as i32,
                    (3, wire::Field::Bytes(bytes)) => text = utf8(bytes)?,
                    _ => {}
                }
            }
            if kind == 0 { Value::from(int) } else { Value::from(text) }
        }
        (Scalar::Time | Scalar::MicroTime, wire::Field::Bytes(bytes)) => {
            let (seconds, nanos) = match pair(bytes)? {
                (None, None) => return Ok(None),
                (seconds, nanos) => (seconds.unwrap_or(0), nanos.unwrap_or(0)),
            };
            let nanos = i32::try_from(nanos).ok().filter(|n| (0..1_000_000_000).contains(n)).unwrap_or(0);
            let Ok(at) = Timestamp::new(seconds, nanos) else {
                return Err(Malformed(format!("{}: no time", field.name())));
            };
            Value::String(if scalar == Scalar::MicroTime { time::rfc3339_micro(at) } else { time::rfc3339(at) })
        }
        (Scalar::Duration, wire::Field::Bytes(bytes)) => Value::String(time::go_duration(pair(bytes)?.0.unwrap_or(0))),
        _ => return Err(wrong(field)),
    }))
}

/// The two numbers of a time.
fn pair(bytes: &[u8]) -> Result<(Option<i64>, Option<i64>)> {
    let (mut first, mut second) = (None, None);
    let mut reader = Reader::new(bytes);
    while let Some((tag, value)) = reader.field()? {
        match (tag, value) {
            (1, wire::Field::Varint(value)) => first = Some(value as i64),
            (2, wire::Field::Varint(value)) => second = Some(value as i64),
            _ => {}
        }
    }
    Ok((first, second))
}

/// JSON has no `1.0` for a whole number that Go prints as `1`.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::from(0), Value::Number)
}
