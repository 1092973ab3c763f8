//! The tree to protobuf: fields in the order of their tags; what is no pointer is written also when
//! it is zero.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::wire;
use crate::schema::{Field, Scalar, Shape, TypeRef};
use crate::time;

type Object = Map<String, Value>;

pub(super) fn message(out: &mut Vec<u8>, map: Option<&Object>, t: TypeRef<'_>) {
    for field in t.tagged() {
        let tag = field.tag();
        if tag == 0 {
            continue;
        }
        if field.embedded() {
            if let Shape::Struct(inner) = field.shape() {
                let at = wire::begin(out, tag);
                message(out, map, inner);
                wire::end(out, at);
            }
            continue;
        }
        let value = map.and_then(|m| m.get(field.name())).filter(|v| !v.is_null());
        write_field(out, field, value);
    }
}

/// A field that the object does not have: nothing, or the zero value that upstream writes.
pub(super) fn absent(out: &mut Vec<u8>, field: Field<'_>) {
    write_field(out, field, None);
}

fn write_field(out: &mut Vec<u8>, field: Field<'_>, value: Option<&Value>) {
    let (tag, shape) = (field.tag(), field.shape());
    match (shape, value) {
        (Shape::List(inner), value) => {
            let items = value.and_then(Value::as_array);
            match items {
                // A message of its own is there or not, also when it is empty.
                None => {}
                Some(items) if field.wrapped_list() => {
                    let at = wire::begin(out, tag);
                    list(out, 1, inner.shape(), Some(items));
                    wire::end(out, at);
                }
                Some(items) => list(out, tag, inner.shape(), Some(items)),
            }
        }
        (Shape::Map(inner), value) => {
            let shape = inner.shape();
            for (key, value) in value.and_then(Value::as_object).into_iter().flatten() {
                let at = wire::begin(out, tag);
                wire::bytes(out, 1, key.as_bytes());
                match shape {
                    Shape::List(inner) => {
                        let at = wire::begin(out, 2);
                        list(out, 1, inner.shape(), value.as_array());
                        wire::end(out, at);
                    }
                    _ => element(out, 2, shape, value),
                }
                wire::end(out, at);
            }
        }
        (_, None) if field.pointer() => {}
        (_, None) => zero(out, tag, shape),
        // Sets of fields are carried as their text.
        (Shape::Raw, Some(value)) if field.name() == "fieldsV1" => {
            let at = wire::begin(out, tag);
            wire::bytes(out, 1, crate::managed::fields_json(value).as_bytes());
            wire::end(out, at);
        }
        (_, Some(value)) => element(out, tag, shape, value),
    }
}

fn list(out: &mut Vec<u8>, tag: u32, shape: Shape<'_>, items: Option<&Vec<Value>>) {
    for item in items.into_iter().flatten() {
        element(out, tag, shape, item);
    }
}

/// A value that is not pointed to and absent.
fn zero(out: &mut Vec<u8>, tag: u32, shape: Shape<'_>) {
    match shape {
        Shape::Struct(t) => {
            let at = wire::begin(out, tag);
            message(out, None, t);
            wire::end(out, at);
        }
        Shape::Scalar(Scalar::Bytes) => {}
        Shape::Scalar(Scalar::Time | Scalar::MicroTime) | Shape::Raw => wire::bytes(out, tag, b""),
        Shape::Scalar(Scalar::Quantity) => scalar(out, tag, Scalar::Quantity, &Value::from("0")),
        Shape::Scalar(Scalar::String) => wire::bytes(out, tag, b""),
        Shape::Scalar(Scalar::Duration) => scalar(out, tag, Scalar::Duration, &Value::from("0s")),
        Shape::Scalar(s) => scalar(out, tag, s, &Value::from(0)),
        _ => {}
    }
}

pub(super) fn element(out: &mut Vec<u8>, tag: u32, shape: Shape<'_>, value: &Value) {
    match shape {
        Shape::Struct(t) => {
            let at = wire::begin(out, tag);
            message(out, value.as_object(), t);
            wire::end(out, at);
        }
        Shape::Scalar(s) => scalar(out, tag, s, value),
        Shape::Raw => {
            let at = wire::begin(out, tag);
            wire::bytes(out, 1, value.to_string().as_bytes());
            wire::end(out, at);
        }
        Shape::OrArray(t) => {
            let at = wire::begin(out, tag);
            match value {
                Value::Array(items) => list(out, 2, Shape::Struct(t), Some(items)),
                _ => element(out, 1, Shape::Struct(t), value),
            }
            wire::end(out, at);
        }
        Shape::OrBool(t) => {
            let at = wire::begin(out, tag);
            match value {
                Value::Bool(allows) => wire::varint(out, 1, u64::from(*allows)),
                _ => {
                    wire::varint(out, 1, 1);
                    element(out, 2, Shape::Struct(t), value);
                }
            }
            wire::end(out, at);
        }
        Shape::OrStrings(t) => {
            let at = wire::begin(out, tag);
            match value {
                Value::Array(items) => list(out, 2, Shape::Scalar(Scalar::String), Some(items)),
                _ => element(out, 1, Shape::Struct(t), value),
            }
            wire::end(out, at);
        }
        // Lists of lists and maps in lists are not among the built-in types.
        Shape::List(_) | Shape::Map(_) => {}
    }
}

fn scalar(out: &mut Vec<u8>, tag: u32, scalar: Scalar, value: &Value) {
    if let Value::String(value) = value {
        return text(out, tag, scalar, value);
    }
    // Negative numbers are written as 64 bits, also those of int32.
    let int = || value.as_i64().unwrap_or(0) as u64;
    match scalar {
        Scalar::Bool => wire::varint(out, tag, u64::from(value.as_bool().unwrap_or(false))),
        Scalar::Int32 | Scalar::Int64 => wire::varint(out, tag, int()),
        Scalar::Float64 => wire::fixed64(out, tag, value.as_f64().unwrap_or(0.0).to_bits()),
        Scalar::IntOrString => int_or_string(out, tag, false, int(), ""),
        _ => text(out, tag, scalar, ""),
    }
}

/// A scalar that JSON writes as a string.
pub(super) fn text(out: &mut Vec<u8>, tag: u32, scalar: Scalar, text: &str) {
    match scalar {
        Scalar::String => wire::bytes(out, tag, text.as_bytes()),
        Scalar::Bytes => wire::bytes(out, tag, &STANDARD.decode(text).unwrap_or_default()),
        Scalar::Quantity => {
            let at = wire::begin(out, tag);
            wire::bytes(out, 1, text.as_bytes());
            wire::end(out, at);
        }
        Scalar::IntOrString => int_or_string(out, tag, true, 0, text),
        Scalar::Time | Scalar::MicroTime => {
            let at = wire::begin(out, tag);
            if let Some(time) = time::parse(text) {
                let nanos = if scalar == Scalar::MicroTime { time.subsec_nanosecond() / 1000 * 1000 } else { 0 };
                wire::varint(out, 1, time.as_second() as u64);
                wire::varint(out, 2, i64::from(nanos) as u64);
            }
            wire::end(out, at);
        }
        Scalar::Duration => {
            let at = wire::begin(out, tag);
            wire::varint(out, 1, nanoseconds(text) as u64);
            wire::end(out, at);
        }
        Scalar::Bool | Scalar::Int32 | Scalar::Int64 => wire::varint(out, tag, 0),
        Scalar::Float64 => wire::fixed64(out, tag, 0),
    }
}

fn int_or_string(out: &mut Vec<u8>, tag: u32, is_text: bool, int: u64, text: &str) {
    let at = wire::begin(out, tag);
    wire::varint(out, 1, u64::from(is_text));
    wire::varint(out, 2, int);
    wire::bytes(out, 3, text.as_bytes());
    wire::end(out, at);
}

/// Go's `1h2m3.5s` in nanoseconds; 0 when it is not of that form.
fn nanoseconds(text: &str) -> i64 {
    let (sign, mut rest) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let scale = match unit {
            "h" => 3.6e12,
            "m" => 6e10,
            "s" => 1e9,
            "ms" => 1e6,
            "us" | "µs" => 1e3,
            "ns" => 1.0,
            _ => return 0,
        };
        total += number.parse::<f64>().unwrap_or(0.0) * scale;
        rest = tail;
    }
    (sign * total).round() as i64
}
