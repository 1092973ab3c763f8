//! Values that may be missing.

use super::{Imp, no_such_overload};
use crate::meter::{Error, Meter};
use crate::value::{Out, Val};

pub const TABLE: &[(&str, Imp)] = &[
    ("optional_of: optional.of(V) -> optional<V>", of),
    ("optional_ofNonZeroValue: optional.ofNonZeroValue(V) -> optional<V>", of_non_zero),
    ("optional_none: optional.none() -> optional<V>", none),
    ("optional_value: <optional<V>>.value() -> V", value),
    ("optional_hasValue: <optional<V>>.hasValue() -> bool", has_value),
    ("optional_or_optional: <optional<V>>.or(optional<V>) -> optional<V>", never),
    ("optional_orValue_value: <optional<V>>.orValue(V) -> V", never),
    ("list_last: <list<V>>.last() -> optional<V>", last),
    ("list_first: <list<V>>.first() -> optional<V>", first),
    ("optional_unwrap: optional.unwrap(list<optional<V>>) -> list<V>", unwrap),
    ("optional_unwrapOpt: <list<optional<V>>>.unwrapOpt() -> list<V>", unwrap),
];

/// These are evaluated in place, never called.
fn never<'a>(_: &mut Meter, _: &[Val<'a>]) -> Out<'a> {
    Err(Error::no_such_overload())
}

fn of<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [value] = args else { return Err(no_such_overload("optional.of", args)) };
    Ok(Val::some(value.clone()))
}

fn of_non_zero<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [value] = args else { return Err(no_such_overload("optional.ofNonZeroValue", args)) };
    Ok(if value.is_zero() { Val::Optional(None) } else { Val::some(value.clone()) })
}

fn none<'a>(_: &mut Meter, _: &[Val<'a>]) -> Out<'a> {
    Ok(Val::Optional(None))
}

fn value<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Optional(Some(value))] => Ok((**value).clone()),
        [Val::Optional(None)] => Err(Error::new("optional.none() dereference")),
        _ => Err(no_such_overload("value", args)),
    }
}

fn has_value<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Optional(value)] = args else { return Err(no_such_overload("hasValue", args)) };
    Ok(Val::Bool(value.is_some()))
}

fn last<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::List(list)] = args else { return Err(no_such_overload("last", args)) };
    match list.len().checked_sub(1).and_then(|i| list.get(i)) {
        Some(item) => Ok(Val::some(item?)),
        None => Ok(Val::Optional(None)),
    }
}

fn first<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::List(list)] = args else { return Err(no_such_overload("first", args)) };
    match list.get(0) {
        Some(item) => Ok(Val::some(item?)),
        None => Ok(Val::Optional(None)),
    }
}

fn unwrap<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::List(list)] = args else { return Err(no_such_overload("optional.unwrap", args)) };
    let mut out = Vec::new();
    for item in list.iter() {
        meter.step(1)?;
        match item? {
            Val::Optional(Some(value)) => out.push((*value).clone()),
            Val::Optional(None) => {}
            other => return Err(Error::new(format!("value {} is not optional", other.show()))),
        }
    }
    Ok(Val::list(out))
}
