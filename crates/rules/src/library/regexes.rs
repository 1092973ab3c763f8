//! Regular expressions.

use machinery::regexp::Regexp;

use super::{Imp, no_such_overload};
use crate::meter::{Error, Meter};
use crate::value::{Out, Text, Val};

/// These understand any values, or say that they do not.
pub const OPEN: &[(&str, Imp)] = &[
    ("matches: matches(string, string) -> bool", matches),
    ("matches_string: <string>.matches(string) -> bool", matches),
];

pub const TABLE: &[(&str, Imp)] = &[
    ("string_find_string: <string>.find(string) -> string", find),
    ("string_find_all_string: <string>.findAll(string) -> list<string>", find_all),
    ("string_find_all_string_int: <string>.findAll(string, int) -> list<string>", find_all),
];

/// How many steps it takes to look through a text.
fn look(text: &str, meter: &mut Meter) -> Result<(), Error> {
    meter.step(text.len() as u64 / 4 + 1)
}

fn matches<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    match args {
        [Val::String(text), Val::String(pattern)] => {
            look(text, meter)?;
            Ok(Val::Bool(meter.pattern(pattern)?.is_match(text)))
        }
        [Val::String(_), _] => Err(Error::no_such_overload()),
        _ => Err(Error::no_overload_of("matches")),
    }
}

fn illegal(error: Error) -> Error {
    match error {
        Error::Cancelled => error,
        other => Error::new(format!("Illegal regex: {other}")),
    }
}

fn find<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text), Val::String(pattern)] = args else { return Err(no_such_overload("find", args)) };
    let pattern = meter.pattern(pattern).map_err(illegal)?;
    find_with(&pattern, text, meter)
}

fn find_all<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let (Some(Val::String(_)), Some(Val::String(pattern))) = (args.first(), args.get(1)) else {
        return Err(no_such_overload("findAll", args));
    };
    let pattern = meter.pattern(pattern).map_err(illegal)?;
    all_with(&pattern, args, meter)
}

/// What a pattern that was read beforehand makes of the arguments of the function `name`.
pub fn run_with<'a>(name: &str, pattern: &Regexp, args: &[Val<'a>], meter: &mut Meter) -> Out<'a> {
    match (name, args.first()) {
        ("matches", Some(Val::String(text))) => {
            look(text, meter)?;
            Ok(Val::Bool(pattern.is_match(text)))
        }
        ("find", Some(Val::String(text))) => find_with(pattern, text, meter),
        ("findAll", Some(Val::String(_))) => all_with(pattern, args, meter),
        _ => Err(Error::no_such_overload()),
    }
}

fn piece<'a>(text: &Text<'a>, found: &str, meter: &mut Meter) -> Out<'a> {
    if let Text::Borrowed(own) = text {
        // What was found lies within the text.
        let start = (found.as_ptr() as usize).wrapping_sub(own.as_ptr() as usize);
        if let Some(part) = own.get(start..start.saturating_add(found.len())) {
            return Ok(Val::String(Text::Borrowed(part)));
        }
    }
    meter.allocate(found.len())?;
    Ok(Val::text(found))
}

fn find_with<'a>(pattern: &Regexp, text: &Text<'a>, meter: &mut Meter) -> Out<'a> {
    look(text, meter)?;
    piece(text, pattern.find(text).unwrap_or(""), meter)
}

fn all_with<'a>(pattern: &Regexp, args: &[Val<'a>], meter: &mut Meter) -> Out<'a> {
    let Some(Val::String(text)) = args.first() else { return Err(no_such_overload("findAll", args)) };
    let limit = match args.get(2) {
        None => -1,
        Some(Val::Int(limit)) => *limit,
        Some(_) => return Err(no_such_overload("findAll", args)),
    };
    look(text, meter)?;
    let mut out = Vec::new();
    for found in pattern.find_all(text).take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        meter.allocate(size_of::<Val<'_>>())?;
        out.push(piece(text, found, meter)?);
    }
    Ok(Val::list(out))
}
