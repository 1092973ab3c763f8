//! Scalars as Go reads them and prints them again: quantities, times and bytes in one canonical form.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Number, Value};

use crate::go;
use crate::schema::Scalar;
use crate::time::{self, Layout};

/// Why a scalar cannot be stored.
#[derive(Debug)]
pub(super) enum Misfit {
    /// The JSON value is of another type: how the text names it. What follows is still read.
    Type(String),
    /// The same, found by the field's own reader, which ends the walk: what it wanted instead.
    Own(String, &'static str),
    /// The value itself says what is wrong, and what follows is still read.
    Text(String),
    /// The value itself says what is wrong, and that ends the walk.
    OwnText(String),
}

type Outcome = Result<Option<Value>, Misfit>;

const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// True for scalars whose very text counts, also when it is a number.
pub(super) fn is_literal(scalar: Scalar) -> bool {
    matches!(scalar, Scalar::Int32 | Scalar::Int64 | Scalar::Float64 | Scalar::IntOrString | Scalar::Quantity)
}

/// A value that is no scalar: `array` or `object`.
pub(super) fn composite(scalar: Scalar, found: &str) -> Misfit {
    match scalar {
        Scalar::Quantity => Misfit::OwnText(crate::quantity::ParseError::Format.to_string()),
        Scalar::IntOrString => Misfit::Own(found.to_owned(), "int32"),
        Scalar::Time | Scalar::MicroTime | Scalar::Duration => Misfit::Own(found.to_owned(), "string"),
        _ => Misfit::Type(found.to_owned()),
    }
}

pub(super) fn bool(scalar: Scalar, value: bool) -> Outcome {
    match scalar {
        Scalar::Bool => Ok(Some(Value::Bool(value))),
        _ => Err(composite(scalar, "bool")),
    }
}

/// A number, from its text.
pub(super) fn number(scalar: Scalar, text: &str) -> Outcome {
    let shown = || format!("number {text}");
    let int = || text.parse::<i64>().ok();
    let small = || int().and_then(|n| i32::try_from(n).ok());
    match scalar {
        Scalar::Int32 => small().map(|n| Some(n.into())).ok_or_else(|| Misfit::Type(shown())),
        Scalar::Int64 => int().map(|n| Some(n.into())).ok_or_else(|| Misfit::Type(shown())),
        Scalar::IntOrString => small().map(|n| Some(n.into())).ok_or_else(|| Misfit::Own(shown(), "int32")),
        Scalar::Float64 => float(text).map(Some).ok_or_else(|| Misfit::Type(shown())),
        Scalar::Quantity => quantity(text).map(Some),
        _ => Err(composite(scalar, "number")),
    }
}

/// A whole number is kept as one: it prints without a point.
fn float(text: &str) -> Option<Value> {
    if let Ok(whole) = text.parse::<i64>()
        && whole.unsigned_abs() < 1 << 53
    {
        return Some(whole.into());
    }
    let float: f64 = text.parse().ok()?;
    if float.fract() == 0.0 && float.abs() < 1e15 {
        return Some(Value::from(float as i64));
    }
    Number::from_f64(float).map(Value::Number)
}

pub(super) fn string(scalar: Scalar, text: Cow<'_, str>) -> Outcome {
    Ok(Some(match scalar {
        Scalar::String | Scalar::IntOrString => Value::String(text.into_owned()),
        Scalar::Quantity => return quantity(text.trim()).map(Some),
        Scalar::Time | Scalar::MicroTime => return moment(scalar, text),
        Scalar::Duration => Value::String(time::go_duration(time::read_duration(&text).map_err(Misfit::OwnText)?)),
        Scalar::Bytes => return bytes(text).map(Some),
        Scalar::Bool | Scalar::Int32 | Scalar::Int64 | Scalar::Float64 => {
            return Err(Misfit::Type("string".to_owned()));
        }
    }))
}

/// The canonical form of a scalar's text; `None` is no value.
pub(crate) fn canonical(scalar: Scalar, text: Cow<'_, str>) -> Result<Option<Value>, String> {
    string(scalar, text).map_err(|misfit| match misfit {
        Misfit::Text(text) | Misfit::OwnText(text) | Misfit::Type(text) | Misfit::Own(text, _) => text,
    })
}

fn moment(scalar: Scalar, text: Cow<'_, str>) -> Outcome {
    let micro = scalar == Scalar::MicroTime;
    let layout = if micro { Layout::Micros } else { Layout::Seconds };
    let time = time::read(&text, layout).map_err(Misfit::OwnText)?;
    if text.len() == (if micro { 27 } else { 20 }) && text.ends_with('Z') {
        return Ok((!is_zero_time(&text)).then(|| Value::String(text.into_owned())));
    }
    let canonical = if micro { time::rfc3339_micro(time) } else { time::rfc3339(time) };
    Ok((!is_zero_time(&canonical)).then_some(Value::String(canonical)))
}

fn quantity(text: &str) -> Result<Value, Misfit> {
    // Most are small whole numbers, which are canonical as they stand.
    let digits = text.as_bytes();
    let plain = matches!(digits, [b'1'..=b'9', rest @ ..] if rest.len() < 3 && rest.iter().all(u8::is_ascii_digit));
    if plain {
        return Ok(Value::String(text.to_owned()));
    }
    match crate::quantity::canonical(text) {
        Ok(text) => Ok(Value::String(text.into_owned())),
        Err(error) => Err(Misfit::OwnText(error.to_string())),
    }
}

fn bytes(text: Cow<'_, str>) -> Result<Value, Misfit> {
    let text = if text.contains(['\r', '\n']) { Cow::Owned(text.replace(['\r', '\n'], "")) } else { text };
    match BASE64.decode(text.as_bytes()) {
        Ok(bytes) => {
            // Bits beyond the last byte do not come back.
            Ok(Value::String(if text.ends_with('=') { encode(&bytes) } else { text.into_owned() }))
        }
        Err(error) => {
            let at = match error {
                base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                _ => text.len() / 4 * 4,
            };
            Err(Misfit::Text(format!("illegal base64 data at input byte {at}")))
        }
    }
}

/// Bytes as objects carry them.
pub(super) fn encode(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Go's zero time, which is no time.
fn is_zero_time(text: &str) -> bool {
    text.starts_with("0001-01-01T00:00:00") && text.trim_end_matches('Z').trim_end_matches(['0', '.']).len() <= 19
}

/// RFC 3339 in UTC to the second; borrowed when it already is.
pub(crate) fn canonical_time(text: &str) -> Option<Cow<'_, str>> {
    let time = time::parse(text)?;
    Some(if text.len() == 20 && text.ends_with('Z') { Cow::Borrowed(text) } else { Cow::Owned(time::rfc3339(time)) })
}

/// RFC 3339 in UTC to the microsecond; borrowed when it already is.
pub(crate) fn canonical_micro_time(text: &str) -> Option<Cow<'_, str>> {
    let time = time::parse(text)?;
    Some(if text.len() == 27 && text.ends_with('Z') {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(time::rfc3339_micro(time))
    })
}

/// What a reader of trees, which has no text, says of a value of another type.
///
/// ```text
/// {"spec":{"replicas":"3"}}  ──►  unrecognized type: int32
/// {"spec":{"replicas":1.5}}  ──►  cannot convert float64 to int32
/// ```
pub(super) fn cannot_convert(found: &str, scalar: Scalar, go_type: &str) -> String {
    let kind = match scalar {
        Scalar::Bool => "bool",
        Scalar::Int32 => "int32",
        Scalar::Int64 => "int64",
        Scalar::Float64 => "float64",
        Scalar::Bytes => return format!("cannot restore slice from {}", go_kind(found)),
        _ => "string",
    };
    let number = found.strip_prefix("number").map(str::trim);
    match number {
        Some(text) if kind != "bool" => {
            let whole = !text.contains(['.', 'e']);
            match (kind, whole) {
                ("string", false) => format!("unrecognized type: {kind}"),
                (_, true) => format!("cannot convert int64 to {go_type}"),
                (_, false) => format!("cannot convert float64 to {go_type}"),
            }
        }
        _ => format!("unrecognized type: {kind}"),
    }
}

/// Go's name for the kind of a JSON value.
pub(super) fn go_kind(found: &str) -> &'static str {
    match found {
        "array" => "slice",
        "object" => "map",
        "string" => "string",
        "bool" => "bool",
        number if number.contains(['.', 'e']) && number.starts_with("number ") => "float64",
        _ => "int64",
    }
}

/// A number of a tree as text.
pub(super) fn number_text(number: &Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) if float.abs() < 1e15 => number.to_string(),
        Some(float) => go::float(float),
        None => number.to_string(),
    }
}
