//! Numbers: checked arithmetic, comparison across their types, and how they are written.

use std::cmp::Ordering;

use crate::meter::Error;
use crate::value::Val;

/// The order of two numbers of any types; `None` when one is none, or no number.
pub fn order(a: &Val<'_>, b: &Val<'_>) -> Option<Ordering> {
    match (a, b) {
        (Val::Int(a), Val::Int(b)) => Some(a.cmp(b)),
        (Val::Uint(a), Val::Uint(b)) => Some(a.cmp(b)),
        (Val::Int(a), Val::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Val::Uint(a), Val::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Val::Double(a), Val::Double(b)) => a.partial_cmp(b),
        (Val::Double(a), Val::Int(b)) => with_int(*a, *b),
        (Val::Int(a), Val::Double(b)) => with_int(*b, *a).map(Ordering::reverse),
        (Val::Double(a), Val::Uint(b)) => with_uint(*a, *b),
        (Val::Uint(a), Val::Double(b)) => with_uint(*b, *a).map(Ordering::reverse),
        _ => None,
    }
}

fn with_int(d: f64, i: i64) -> Option<Ordering> {
    if d < i64::MIN as f64 {
        Some(Ordering::Less)
    } else if d > i64::MAX as f64 {
        Some(Ordering::Greater)
    } else {
        d.partial_cmp(&(i as f64))
    }
}

fn with_uint(d: f64, u: u64) -> Option<Ordering> {
    if d < 0.0 {
        Some(Ordering::Less)
    } else if d > u64::MAX as f64 {
        Some(Ordering::Greater)
    } else {
        d.partial_cmp(&(u as f64))
    }
}

/// The result of an operation on ints, if it fits.
pub fn int<'a>(value: Option<i64>) -> Result<Val<'a>, Error> {
    value.map(Val::Int).ok_or_else(|| Error::new("integer overflow"))
}

/// The result of an operation on uints, if it fits.
pub fn uint<'a>(value: Option<u64>) -> Result<Val<'a>, Error> {
    value.map(Val::Uint).ok_or_else(|| Error::new("unsigned integer overflow"))
}

/// A double as an int, cut.
pub fn to_int(d: f64) -> Option<i64> {
    (d.is_finite() && d > i64::MIN as f64 && d < i64::MAX as f64).then_some(d as i64)
}

/// A double as a uint, cut.
pub fn to_uint(d: f64) -> Option<u64> {
    (d.is_finite() && d >= 0.0 && d < u64::MAX as f64).then_some(d as u64)
}

/// The shortest text that reads back the same, with an exponent where Go writes one (`%g`).
pub fn shortest(d: f64) -> String {
    if d.is_nan() {
        return "NaN".to_owned();
    }
    if d.is_infinite() {
        return if d > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{d:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // Go writes an exponent from a million on, and below a ten-thousandth.
    if (-4..6).contains(&exponent) {
        return format!("{d}");
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}
