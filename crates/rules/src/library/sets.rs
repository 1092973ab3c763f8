//! Lists as sets.

use super::{Imp, no_such_overload};
use crate::meter::{Error, Meter};
use crate::value::{List, Out, Val, equal};

pub const TABLE: &[(&str, Imp)] = &[
    ("list_sets_contains_list: sets.contains(list<T>, list<T>) -> bool", contains),
    ("list_sets_equivalent_list: sets.equivalent(list<T>, list<T>) -> bool", equivalent),
    ("list_sets_intersects_list: sets.intersects(list<T>, list<T>) -> bool", intersects),
];

fn has(list: &List<'_>, value: &Val<'_>, meter: &mut Meter) -> Result<bool, Error> {
    for item in list.iter() {
        match item.and_then(|item| equal(value, &item, meter)) {
            Ok(true) => return Ok(true),
            Err(Error::Cancelled) => return Err(Error::Cancelled),
            _ => {}
        }
    }
    Ok(false)
}

fn has_all(list: &List<'_>, sub: &List<'_>, meter: &mut Meter) -> Result<bool, Error> {
    for item in sub.iter() {
        if !has(list, &item?, meter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn contains<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::List(list), Val::List(sub)] = args else { return Err(no_such_overload("sets.contains", args)) };
    has_all(list, sub, meter).map(Val::Bool)
}

fn equivalent<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::List(a), Val::List(b)] = args else { return Err(no_such_overload("sets.equivalent", args)) };
    Ok(Val::Bool(has_all(a, b, meter)? && has_all(b, a, meter)?))
}

fn intersects<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::List(a), Val::List(b)] = args else { return Err(no_such_overload("sets.intersects", args)) };
    for item in a.iter() {
        if has(b, &item?, meter)? {
            return Ok(Val::Bool(true));
        }
    }
    Ok(Val::Bool(false))
}
