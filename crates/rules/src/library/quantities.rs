//! Amounts of resources.

use machinery::quantity::{Format, Quantity};

use super::{Imp, no_such_overload};
use crate::meter::{Error, Meter};
use crate::value::{Out, Val};

pub const TABLE: &[(&str, Imp)] = &[
    ("string_to_quantity: quantity(string) -> Quantity", quantity),
    ("is_quantity_string: isQuantity(string) -> bool", is_quantity),
    ("quantity_sign: sign(Quantity) -> int", sign),
    ("quantity_is_greater_than: <Quantity>.isGreaterThan(Quantity) -> bool", is_greater),
    ("quantity_is_less_than: <Quantity>.isLessThan(Quantity) -> bool", is_less),
    ("quantity_compare_to: <Quantity>.compareTo(Quantity) -> int", compare_to),
    ("quantity_get_float: <Quantity>.asApproximateFloat() -> double", as_float),
    ("quantity_get_int: <Quantity>.asInteger() -> int", as_integer),
    ("quantity_is_integer: <Quantity>.isInteger() -> bool", is_integer),
    ("quantity_add: <Quantity>.add(Quantity) -> Quantity", add),
    ("quantity_add_int: <Quantity>.add(int) -> Quantity", add),
    ("quantity_sub: <Quantity>.sub(Quantity) -> Quantity", sub),
    ("quantity_sub_int: <Quantity>.sub(int) -> Quantity", sub),
];

fn quantity<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("quantity", args)) };
    text.parse().map(Val::Quantity).map_err(|error: machinery::quantity::ParseError| Error::new(error.to_string()))
}

fn is_quantity<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("isQuantity", args)) };
    Ok(Val::Bool(text.parse::<Quantity>().is_ok()))
}

fn sign<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Quantity(q)] = args else { return Err(no_such_overload("sign", args)) };
    Ok(Val::Int(if q.is_zero() {
        0
    } else if q.is_negative() {
        -1
    } else {
        1
    }))
}

fn is_greater<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Quantity(a), Val::Quantity(b)] = args else { return Err(no_such_overload("isGreaterThan", args)) };
    Ok(Val::Bool(a > b))
}

fn is_less<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Quantity(a), Val::Quantity(b)] = args else { return Err(no_such_overload("isLessThan", args)) };
    Ok(Val::Bool(a < b))
}

fn compare_to<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Quantity(a), Val::Quantity(b)] = args else { return Err(no_such_overload("compareTo", args)) };
    Ok(Val::Int(a.cmp(b) as i64))
}

fn as_float<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Quantity(q)] = args else { return Err(no_such_overload("asApproximateFloat", args)) };
    Ok(Val::Double(q.approximate()))
}

/// The amount, if it is whole and fits.
fn whole(q: &Quantity) -> Option<i64> {
    let value = i64::try_from(q.value()).ok()?;
    (Quantity::from_value(value, Format::Decimal) == *q).then_some(value)
}

fn as_integer<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Quantity(q)] = args else { return Err(no_such_overload("asInteger", args)) };
    whole(q).map(Val::Int).ok_or_else(|| Error::new("cannot convert value to integer"))
}

fn is_integer<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Quantity(q)] = args else { return Err(no_such_overload("isInteger", args)) };
    Ok(Val::Bool(whole(q).is_some()))
}

fn add<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Quantity(a), Val::Quantity(b)] => Ok(Val::Quantity(a.add(b))),
        [Val::Quantity(a), Val::Int(b)] => Ok(Val::Quantity(a.add(&Quantity::from_value(*b, Format::Exponent)))),
        _ => Err(no_such_overload("add", args)),
    }
}

fn sub<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::Quantity(a), Val::Quantity(b)] => Ok(Val::Quantity(a.sub(b))),
        [Val::Quantity(a), Val::Int(b)] => Ok(Val::Quantity(a.sub(&Quantity::from_value(*b, Format::Exponent)))),
        _ => Err(no_such_overload("sub", args)),
    }
}
