//! Operators and conversions.

use std::cmp::Ordering;

use super::Imp;
use crate::meter::{Error, Meter};
use crate::number;
use crate::time::{self, Timestamp};
use crate::types::Type;
use crate::value::{Out, Text, Val};

pub const TABLE: &[(&str, Imp)] = &[
    ("conditional: _?_:_(bool, A, A) -> A", never),
    ("logical_and: _&&_(bool, bool) -> bool", never),
    ("logical_or: _||_(bool, bool) -> bool", never),
    ("logical_not: !_(bool) -> bool", not),
    ("not_strictly_false: @not_strictly_false(bool) -> bool", never),
    ("equals: _==_(A, A) -> bool", never),
    ("not_equals: _!=_(A, A) -> bool", never),
    ("add_bytes: _+_(bytes, bytes) -> bytes", add),
    ("add_double: _+_(double, double) -> double", add),
    ("add_duration_duration: _+_(duration, duration) -> duration", add),
    ("add_duration_timestamp: _+_(duration, timestamp) -> timestamp", add),
    ("add_timestamp_duration: _+_(timestamp, duration) -> timestamp", add),
    ("add_int64: _+_(int, int) -> int", add),
    ("add_list: _+_(list<A>, list<A>) -> list<A>", add),
    ("add_string: _+_(string, string) -> string", add),
    ("add_uint64: _+_(uint, uint) -> uint", add),
    ("divide_double: _/_(double, double) -> double", divide),
    ("divide_int64: _/_(int, int) -> int", divide),
    ("divide_uint64: _/_(uint, uint) -> uint", divide),
    ("modulo_int64: _%_(int, int) -> int", modulo),
    ("modulo_uint64: _%_(uint, uint) -> uint", modulo),
    ("multiply_double: _*_(double, double) -> double", multiply),
    ("multiply_int64: _*_(int, int) -> int", multiply),
    ("multiply_uint64: _*_(uint, uint) -> uint", multiply),
    ("negate_double: -_(double) -> double", negate),
    ("negate_int64: -_(int) -> int", negate),
    ("subtract_double: _-_(double, double) -> double", subtract),
    ("subtract_duration_duration: _-_(duration, duration) -> duration", subtract),
    ("subtract_int64: _-_(int, int) -> int", subtract),
    ("subtract_timestamp_duration: _-_(timestamp, duration) -> timestamp", subtract),
    ("subtract_timestamp_timestamp: _-_(timestamp, timestamp) -> duration", subtract),
    ("subtract_uint64: _-_(uint, uint) -> uint", subtract),
    ("less_bool: _<_(bool, bool) -> bool", less),
    ("less_int64: _<_(int, int) -> bool", less),
    ("less_int64_double: _<_(int, double) -> bool", less),
    ("less_int64_uint64: _<_(int, uint) -> bool", less),
    ("less_uint64: _<_(uint, uint) -> bool", less),
    ("less_uint64_double: _<_(uint, double) -> bool", less),
    ("less_uint64_int64: _<_(uint, int) -> bool", less),
    ("less_double: _<_(double, double) -> bool", less),
    ("less_double_int64: _<_(double, int) -> bool", less),
    ("less_double_uint64: _<_(double, uint) -> bool", less),
    ("less_string: _<_(string, string) -> bool", less),
    ("less_bytes: _<_(bytes, bytes) -> bool", less),
    ("less_timestamp: _<_(timestamp, timestamp) -> bool", less),
    ("less_duration: _<_(duration, duration) -> bool", less),
    ("less_equals_bool: _<=_(bool, bool) -> bool", less_equals),
    ("less_equals_int64: _<=_(int, int) -> bool", less_equals),
    ("less_equals_int64_double: _<=_(int, double) -> bool", less_equals),
    ("less_equals_int64_uint64: _<=_(int, uint) -> bool", less_equals),
    ("less_equals_uint64: _<=_(uint, uint) -> bool", less_equals),
    ("less_equals_uint64_double: _<=_(uint, double) -> bool", less_equals),
    ("less_equals_uint64_int64: _<=_(uint, int) -> bool", less_equals),
    ("less_equals_double: _<=_(double, double) -> bool", less_equals),
    ("less_equals_double_int64: _<=_(double, int) -> bool", less_equals),
    ("less_equals_double_uint64: _<=_(double, uint) -> bool", less_equals),
    ("less_equals_string: _<=_(string, string) -> bool", less_equals),
    ("less_equals_bytes: _<=_(bytes, bytes) -> bool", less_equals),
    ("less_equals_timestamp: _<=_(timestamp, timestamp) -> bool", less_equals),
    ("less_equals_duration: _<=_(duration, duration) -> bool", less_equals),
    ("greater_bool: _>_(bool, bool) -> bool", greater),
    ("greater_int64: _>_(int, int) -> bool", greater),
    ("greater_int64_double: _>_(int, double) -> bool", greater),
    ("greater_int64_uint64: _>_(int, uint) -> bool", greater),
    ("greater_uint64: _>_(uint, uint) -> bool", greater),
    ("greater_uint64_double: _>_(uint, double) -> bool", greater),
    ("greater_uint64_int64: _>_(uint, int) -> bool", greater),
    ("greater_double: _>_(double, double) -> bool", greater),
    ("greater_double_int64: _>_(double, int) -> bool", greater),
    ("greater_double_uint64: _>_(double, uint) -> bool", greater),
    ("greater_string: _>_(string, string) -> bool", greater),
    ("greater_bytes: _>_(bytes, bytes) -> bool", greater),
    ("greater_timestamp: _>_(timestamp, timestamp) -> bool", greater),
    ("greater_duration: _>_(duration, duration) -> bool", greater),
    ("greater_equals_bool: _>=_(bool, bool) -> bool", greater_equals),
    ("greater_equals_int64: _>=_(int, int) -> bool", greater_equals),
    ("greater_equals_int64_double: _>=_(int, double) -> bool", greater_equals),
    ("greater_equals_int64_uint64: _>=_(int, uint) -> bool", greater_equals),
    ("greater_equals_uint64: _>=_(uint, uint) -> bool", greater_equals),
    ("greater_equals_uint64_double: _>=_(uint, double) -> bool", greater_equals),
    ("greater_equals_uint64_int64: _>=_(uint, int) -> bool", greater_equals),
    ("greater_equals_double: _>=_(double, double) -> bool", greater_equals),
    ("greater_equals_double_int64: _>=_(double, int) -> bool", greater_equals),
    ("greater_equals_double_uint64: _>=_(double, uint) -> bool", greater_equals),
    ("greater_equals_string: _>=_(string, string) -> bool", greater_equals),
    ("greater_equals_bytes: _>=_(bytes, bytes) -> bool", greater_equals),
    ("greater_equals_timestamp: _>=_(timestamp, timestamp) -> bool", greater_equals),
    ("greater_equals_duration: _>=_(duration, duration) -> bool", greater_equals),
    ("type: type(A) -> type<A>", type_of),
    ("to_dyn: dyn(A) -> dyn", identity),
];

pub const CONVERSIONS: &[(&str, Imp)] = &[
    ("bool_to_bool: bool(bool) -> bool", identity),
    ("string_to_bool: bool(string) -> bool", to_bool),
    ("bytes_to_bytes: bytes(bytes) -> bytes", identity),
    ("string_to_bytes: bytes(string) -> bytes", to_bytes),
    ("double_to_double: double(double) -> double", identity),
    ("int64_to_double: double(int) -> double", to_double),
    ("string_to_double: double(string) -> double", to_double),
    ("uint64_to_double: double(uint) -> double", to_double),
    ("duration_to_duration: duration(duration) -> duration", identity),
    ("string_to_duration: duration(string) -> duration", to_duration),
    ("int64_to_int64: int(int) -> int", identity),
    ("double_to_int64: int(double) -> int", to_int),
    ("duration_to_int64: int(duration) -> int", to_int),
    ("string_to_int64: int(string) -> int", to_int),
    ("timestamp_to_int64: int(timestamp) -> int", to_int),
    ("uint64_to_int64: int(uint) -> int", to_int),
    ("string_to_string: string(string) -> string", identity),
    ("bool_to_string: string(bool) -> string", to_string),
    ("bytes_to_string: string(bytes) -> string", to_string),
    ("double_to_string: string(double) -> string", to_string),
    ("duration_to_string: string(duration) -> string", to_string),
    ("int64_to_string: string(int) -> string", to_string),
    ("timestamp_to_string: string(timestamp) -> string", to_string),
    ("uint64_to_string: string(uint) -> string", to_string),
    ("timestamp_to_timestamp: timestamp(timestamp) -> timestamp", identity),
    ("int64_to_timestamp: timestamp(int) -> timestamp", to_timestamp),
    ("string_to_timestamp: timestamp(string) -> timestamp", to_timestamp),
    ("uint64_to_uint64: uint(uint) -> uint", identity),
    ("double_to_uint64: uint(double) -> uint", to_uint),
    ("int64_to_uint64: uint(int) -> uint", to_uint),
    ("string_to_uint64: uint(string) -> uint", to_uint),
];

/// These are evaluated in place, never called.
fn never<'a>(_: &mut Meter, _: &[Val<'a>]) -> Out<'a> {
    Err(Error::no_such_overload())
}

fn identity<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    args.first().cloned().ok_or_else(Error::no_such_overload)
}

/// The first value has no such operator.
fn unknown<'a>(operator: &str) -> Out<'a> {
    Err(Error::no_overload_of(operator))
}

fn not<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Bool(b)] => Ok(Val::Bool(!b)),
        _ => Err(Error::no_such_overload()),
    }
}

fn type_of<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [value] = args else { return Err(Error::no_such_overload()) };
    Ok(Val::Type(match value {
        Val::Type(_) => Type::Type(None),
        other => other.type_of(),
    }))
}

fn add<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Int(a), Val::Int(b)] => number::int(a.checked_add(*b)),
        [Val::Uint(a), Val::Uint(b)] => number::uint(a.checked_add(*b)),
        [Val::Double(a), Val::Double(b)] => Ok(Val::Double(a + b)),
        [Val::String(a), Val::String(b)] => {
            meter.allocate(a.len() + b.len())?;
            let mut out = String::with_capacity(a.len() + b.len());
            out.push_str(a);
            out.push_str(b);
            Ok(Val::text(out))
        }
        [Val::Bytes(a), Val::Bytes(b)] => {
            meter.allocate(a.len() + b.len())?;
            Ok(Val::Bytes([&**a, &**b].concat().into()))
        }
        [Val::List(a), Val::List(b)] => Ok(Val::List(a.join(b, meter)?)),
        [Val::Duration(a), Val::Duration(b)] => {
            a.checked_add(*b).map(Val::Duration).ok_or_else(|| Error::new("integer overflow"))
        }
        [Val::Duration(d), Val::Timestamp(t)] | [Val::Timestamp(t), Val::Duration(d)] => t.add(*d).map(Val::Timestamp),
        [
            Val::Int(_)
            | Val::Uint(_)
            | Val::Double(_)
            | Val::String(_)
            | Val::Bytes(_)
            | Val::List(_)
            | Val::Duration(_)
            | Val::Timestamp(_),
            _,
        ] => Err(Error::no_such_overload()),
        _ => unknown("_+_"),
    }
}

fn subtract<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Int(a), Val::Int(b)] => number::int(a.checked_sub(*b)),
        [Val::Uint(a), Val::Uint(b)] => number::uint(a.checked_sub(*b)),
        [Val::Double(a), Val::Double(b)] => Ok(Val::Double(a - b)),
        [Val::Duration(a), Val::Duration(b)] => {
            a.checked_sub(*b).map(Val::Duration).ok_or_else(|| Error::new("integer overflow"))
        }
        [Val::Timestamp(t), Val::Duration(d)] => match d.checked_neg() {
            Some(d) => t.add(d).map(Val::Timestamp),
            None => Err(Error::new("integer overflow")),
        },
        [Val::Timestamp(a), Val::Timestamp(b)] => {
            a.since(b).map(Val::Duration).ok_or_else(|| Error::new("integer overflow"))
        }
        [Val::Int(_) | Val::Uint(_) | Val::Double(_) | Val::Duration(_) | Val::Timestamp(_), _] => {
            Err(Error::no_such_overload())
        }
        _ => unknown("_-_"),
    }
}

fn multiply<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Int(a), Val::Int(b)] => number::int(a.checked_mul(*b)),
        [Val::Uint(a), Val::Uint(b)] => number::uint(a.checked_mul(*b)),
        [Val::Double(a), Val::Double(b)] => Ok(Val::Double(a * b)),
        [Val::Int(_) | Val::Uint(_) | Val::Double(_), _] => Err(Error::no_such_overload()),
        _ => unknown("_*_"),
    }
}

fn divide<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Int(_), Val::Int(0)] | [Val::Uint(_), Val::Uint(0)] => Err(Error::new("division by zero")),
        [Val::Int(a), Val::Int(b)] => number::int(a.checked_div(*b)),
        [Val::Uint(a), Val::Uint(b)] => number::uint(a.checked_div(*b)),
        [Val::Double(a), Val::Double(b)] => Ok(Val::Double(a / b)),
        [Val::Int(_) | Val::Uint(_) | Val::Double(_), _] => Err(Error::no_such_overload()),
        _ => unknown("_/_"),
    }
}

fn modulo<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Int(_), Val::Int(0)] | [Val::Uint(_), Val::Uint(0)] => Err(Error::new("modulus by zero")),
        [Val::Int(a), Val::Int(b)] => number::int(a.checked_rem(*b)),
        [Val::Uint(a), Val::Uint(b)] => number::uint(a.checked_rem(*b)),
        [Val::Int(_) | Val::Uint(_), _] => Err(Error::no_such_overload()),
        _ => unknown("_%_"),
    }
}

fn negate<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Int(a)] => number::int(a.checked_neg()),
        [Val::Double(a)] => Ok(Val::Double(-a)),
        [Val::Duration(a)] => a.checked_neg().map(Val::Duration).ok_or_else(|| Error::new("integer overflow")),
        [Val::Bool(_) | Val::String(_) | Val::Timestamp(_)] => Err(Error::no_such_overload()),
        _ => unknown("-_"),
    }
}

/// The order of two values, if they have one.
pub fn compare(a: &Val<'_>, b: &Val<'_>, operator: &str) -> Result<Ordering, Error> {
    let order = match (a, b) {
        (Val::Bool(a), Val::Bool(b)) => a.cmp(b),
        (Val::String(a), Val::String(b)) => (**a).cmp(&**b),
        (Val::Bytes(a), Val::Bytes(b)) => a.cmp(b),
        (Val::Duration(a), Val::Duration(b)) => a.cmp(b),
        (Val::Timestamp(a), Val::Timestamp(b)) => a.order().cmp(&b.order()),
        (Val::Int(_) | Val::Uint(_) | Val::Double(_), Val::Int(_) | Val::Uint(_) | Val::Double(_)) => {
            number::order(a, b).ok_or_else(|| Error::new("NaN values cannot be ordered"))?
        }
        (
            Val::Bool(_)
            | Val::String(_)
            | Val::Bytes(_)
            | Val::Duration(_)
            | Val::Timestamp(_)
            | Val::Int(_)
            | Val::Uint(_)
            | Val::Double(_),
            _,
        ) => return Err(Error::no_such_overload()),
        _ => return Err(Error::no_overload_of(operator)),
    };
    Ok(order)
}

fn ordered<'a>(meter: &mut Meter, args: &[Val<'a>], operator: &str, holds: fn(Ordering) -> bool) -> Out<'a> {
    let [a, b] = args else { return Err(Error::no_such_overload()) };
    if let Val::String(text) = a {
        meter.step(text.len() as u64 / 64)?;
    }
    compare(a, b, operator).map(|order| Val::Bool(holds(order)))
}

fn less<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    ordered(meter, args, "_<_", Ordering::is_lt)
}

fn less_equals<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    ordered(meter, args, "_<=_", Ordering::is_le)
}

fn greater<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    ordered(meter, args, "_>_", Ordering::is_gt)
}

fn greater_equals<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    ordered(meter, args, "_>=_", Ordering::is_ge)
}

fn inconvertible<'a>(from: &Val<'_>, to: &str) -> Out<'a> {
    Err(Error::new(format!("type conversion error from '{}' to '{to}'", from.type_of().runtime_name())))
}

fn to_bool<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::String(s)] => match &**s {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Val::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Val::Bool(false)),
            _ => inconvertible(&Val::String(s.clone()), "bool"),
        },
        _ => Err(Error::no_such_overload()),
    }
}

fn to_bytes<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::String(s)] => {
            meter.allocate(s.len())?;
            Ok(Val::Bytes(s.as_bytes().into()))
        }
        _ => Err(Error::no_such_overload()),
    }
}

fn to_double<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Int(i)] => Ok(Val::Double(*i as f64)),
        [Val::Uint(u)] => Ok(Val::Double(*u as f64)),
        [value @ Val::String(s)] => match parse_double(s) {
            Some(d) => Ok(Val::Double(d)),
            None => inconvertible(value, "double"),
        },
        _ => Err(Error::no_such_overload()),
    }
}

/// A number as Go reads it: also with underscores nowhere, in hexadecimal not at all.
pub fn parse_double(text: &str) -> Option<f64> {
    let d: f64 = text.parse().ok()?;
    let named = text.chars().any(|c| matches!(c, 'i' | 'I' | 'n' | 'N'));
    (d.is_finite() || named).then_some(d)
}

fn to_duration<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [value @ Val::String(s)] => match machinery::time::read_duration(s) {
            Ok(nanos) => Ok(Val::Duration(nanos)),
            Err(_) => inconvertible(value, "google.protobuf.Duration"),
        },
        _ => Err(Error::no_such_overload()),
    }
}

fn to_int<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Double(d)] => number::int(number::to_int(*d)),
        [Val::Uint(u)] => number::int(i64::try_from(*u).ok()),
        [Val::Duration(d)] => Ok(Val::Int(*d)),
        [Val::Timestamp(t)] => Ok(Val::Int(t.seconds)),
        [value @ Val::String(s)] => match s.parse() {
            Ok(i) => Ok(Val::Int(i)),
            Err(_) => inconvertible(value, "int"),
        },
        _ => Err(Error::no_such_overload()),
    }
}

fn to_uint<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Double(d)] => number::uint(number::to_uint(*d)),
        [Val::Int(i)] => number::uint(u64::try_from(*i).ok()),
        [value @ Val::String(s)] if s.starts_with('+') => inconvertible(value, "uint"),
        [value @ Val::String(s)] => match s.parse() {
            Ok(u) => Ok(Val::Uint(u)),
            Err(_) => inconvertible(value, "uint"),
        },
        _ => Err(Error::no_such_overload()),
    }
}

fn to_string<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [value] = args else { return Err(Error::no_such_overload()) };
    text_of(value, meter).map(Val::String)
}

/// The text that a value converts to.
pub fn text_of<'a>(value: &Val<'a>, meter: &mut Meter) -> Result<Text<'a>, Error> {
    let text = match value {
        Val::String(s) => return Ok(s.clone()),
        Val::Bool(b) => b.to_string(),
        Val::Int(i) => i.to_string(),
        Val::Uint(u) => u.to_string(),
        Val::Double(d) => number::shortest(*d),
        Val::Bytes(b) => {
            meter.allocate(b.len())?;
            match std::str::from_utf8(b) {
                Ok(text) => text.to_owned(),
                Err(_) => return Err(Error::new("invalid UTF-8 in bytes, cannot convert to string")),
            }
        }
        Val::Duration(d) => time::seconds_text(*d),
        Val::Timestamp(t) => t.rfc3339(),
        Val::Type(t) => t.runtime_name().to_owned(),
        _ => return Err(Error::no_such_overload()),
    };
    Ok(Text::Made(text.into()))
}

fn to_timestamp<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Int(i)] => Timestamp::from_seconds(*i).map(Val::Timestamp),
        [value @ Val::String(s)] => match Timestamp::parse(s) {
            Ok(t) => Ok(Val::Timestamp(t)),
            Err(Some(error)) => Err(error),
            Err(None) => inconvertible(value, "google.protobuf.Timestamp"),
        },
        _ => Err(Error::no_such_overload()),
    }
}
