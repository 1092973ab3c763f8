//! Scalars as Go reads them and prints them again: quantities, times and bytes in one canonical form.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Number, Value};

use crate::quantity::Quantity;
use crate::schema::Scalar;
use crate::time;

/// Why a scalar cannot be stored.
pub(super) enum Misfit {
    /// The JSON value is of another type: how the text names it, and the Go type when it is not the
    /// field's own.
    Type(String, Option<&'static str>),
    /// The value itself says what is wrong.
    Text(String),
}

type Outcome = Result<Option<Value>, Misfit>;

const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

fn wrong(what: &str) -> Misfit {
    Misfit::Type(what.to_owned(), None)
}

pub(super) fn bool(scalar: Scalar, value: bool) -> Outcome {
    match scalar {
        Scalar::Bool => Ok(Some(Value::Bool(value))),
        Scalar::Quantity => quantity(if value { "true" } else { "false" }).map(Some),
        Scalar::IntOrString => Err(Misfit::Type("bool".to_owned(), Some("int32"))),
        Scalar::Time | Scalar::MicroTime | Scalar::Duration => Err(Misfit::Type("bool".to_owned(), Some("string"))),
        _ => Err(wrong("bool")),
    }
}

pub(super) fn number(scalar: Scalar, number: Number) -> Outcome {
    let whole = |number: &Number| Misfit::Type(format!("number {number}"), None);
    match scalar {
        Scalar::Int32 if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => Ok(Some(Value::Number(number))),
        Scalar::Int64 if number.is_i64() => Ok(Some(Value::Number(number))),
        Scalar::Int32 | Scalar::Int64 => Err(whole(&number)),
        Scalar::Float64 => Ok(Some(Value::Number(number))),
        Scalar::IntOrString if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => {
            Ok(Some(Value::Number(number)))
        }
        Scalar::IntOrString => Err(Misfit::Type(format!("number {number}"), Some("int32"))),
        Scalar::Quantity => quantity(&number.to_string()).map(Some),
        Scalar::Time | Scalar::MicroTime | Scalar::Duration => Err(Misfit::Type("number".to_owned(), Some("string"))),
        Scalar::String | Scalar::Bool | Scalar::Bytes => Err(wrong("number")),
    }
}

pub(super) fn string(scalar: Scalar, text: Cow<'_, str>) -> Outcome {
    Ok(Some(match scalar {
        Scalar::String | Scalar::IntOrString | Scalar::Duration => Value::String(text.into_owned()),
        Scalar::Quantity => return quantity(&text).map(Some),
        Scalar::Time => match canonical_time(&text) {
            Some(time) if is_zero_time(&time) => return Ok(None),
            Some(Cow::Borrowed(_)) => Value::String(text.into_owned()),
            Some(Cow::Owned(time)) => Value::String(time),
            None => return Err(bad_time(&text, "2006-01-02T15:04:05Z07:00")),
        },
        Scalar::MicroTime => match canonical_micro_time(&text) {
            Some(time) if is_zero_time(&time) => return Ok(None),
            Some(Cow::Borrowed(_)) => Value::String(text.into_owned()),
            Some(Cow::Owned(time)) => Value::String(time),
            None => return Err(bad_time(&text, "2006-01-02T15:04:05.000000Z07:00")),
        },
        Scalar::Bytes => return bytes(text).map(Some),
        Scalar::Bool | Scalar::Int32 | Scalar::Int64 | Scalar::Float64 => return Err(wrong("string")),
    }))
}

/// The canonical form of a scalar's text; `None` is no value.
pub(crate) fn canonical(scalar: Scalar, text: Cow<'_, str>) -> Result<Option<Value>, String> {
    string(scalar, text).map_err(|misfit| match misfit {
        Misfit::Text(text) | Misfit::Type(text, _) => text,
    })
}

fn bad_time(text: &str, layout: &str) -> Misfit {
    let first = layout.get(..4).unwrap_or_default();
    Misfit::Text(format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as {first:?}"))
}

fn quantity(text: &str) -> Result<Value, Misfit> {
    // Most are small whole numbers, which are canonical as they stand.
    let digits = text.as_bytes();
    let plain = matches!(digits, [b'1'..=b'9', rest @ ..] if rest.len() < 3 && rest.iter().all(u8::is_ascii_digit));
    if plain {
        return Ok(Value::String(text.to_owned()));
    }
    match text.parse::<Quantity>() {
        Ok(quantity) => Ok(Value::String(quantity.to_string())),
        Err(error) => Err(Misfit::Text(error.to_string())),
    }
}

fn bytes(text: Cow<'_, str>) -> Result<Value, Misfit> {
    let text = if text.contains(['\r', '\n']) { Cow::Owned(text.replace(['\r', '\n'], "")) } else { text };
    match BASE64.decode(text.as_bytes()) {
        Ok(_) => Ok(Value::String(text.into_owned())),
        Err(error) => {
            let at = match error {
                base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                _ => text.len() / 4 * 4,
            };
            Err(Misfit::Text(format!("illegal base64 data at input byte {at}")))
        }
    }
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
