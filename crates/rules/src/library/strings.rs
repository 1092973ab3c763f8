//! Texts. Places in them are counted in characters.

use super::{Imp, no_such_overload};
use crate::meter::{Error, Meter};
use crate::value::{Out, Text, Val};

/// These understand any values, or say that they do not.
pub const OPEN: &[(&str, Imp)] = &[
    ("contains_string: <string>.contains(string) -> bool", contains),
    ("ends_with_string: <string>.endsWith(string) -> bool", ends_with),
    ("starts_with_string: <string>.startsWith(string) -> bool", starts_with),
];

pub const TABLE: &[(&str, Imp)] = &[
    ("string_char_at_int: <string>.charAt(int) -> string", char_at),
    ("list_a_index_of_int: <list<A>>.indexOf(A) -> int", super::lists::index_of),
    ("string_index_of_string: <string>.indexOf(string) -> int", index_of),
    ("string_index_of_string_int: <string>.indexOf(string, int) -> int", index_of),
    ("list_a_last_index_of_int: <list<A>>.lastIndexOf(A) -> int", super::lists::last_index_of),
    ("string_last_index_of_string: <string>.lastIndexOf(string) -> int", last_index_of),
    ("string_last_index_of_string_int: <string>.lastIndexOf(string, int) -> int", last_index_of),
    ("string_lower_ascii: <string>.lowerAscii() -> string", lower),
    ("string_upper_ascii: <string>.upperAscii() -> string", upper),
    ("string_replace_string_string: <string>.replace(string, string) -> string", replace),
    ("string_replace_string_string_int: <string>.replace(string, string, int) -> string", replace),
    ("string_split_string: <string>.split(string) -> list<string>", split),
    ("string_split_string_int: <string>.split(string, int) -> list<string>", split),
    ("string_substring_int: <string>.substring(int) -> string", substring),
    ("string_substring_int_int: <string>.substring(int, int) -> string", substring),
    ("string_trim: <string>.trim() -> string", trim),
    ("list_join: <list<string>>.join() -> string", join),
    ("list_join_string: <list<string>>.join(string) -> string", join),
    ("strings_quote: strings.quote(string) -> string", quote),
    ("string_jsonpatch_escapeKey_string: jsonpatch.escapeKey(string) -> string", escape_key),
];

fn out_of_range<'a>(index: i64) -> Out<'a> {
    Err(Error::new(format!("index out of range: {index}")))
}

/// A part of a text, which is not copied when the text is the object's.
fn part<'a>(text: &Text<'a>, start: usize, end: usize, meter: &mut Meter) -> Out<'a> {
    match text {
        Text::Borrowed(text) => Ok(Val::String(Text::Borrowed(text.get(start..end).unwrap_or("")))),
        Text::Made(text) => {
            meter.allocate(end - start)?;
            Ok(Val::text(text.get(start..end).unwrap_or("")))
        }
    }
}

/// Where the character at `index` begins; the end when it is one behind the last.
fn offset(text: &str, index: i64) -> Option<usize> {
    let index = usize::try_from(index).ok()?;
    if text.is_ascii() {
        return (index <= text.len()).then_some(index);
    }
    text.char_indices().map(|(at, _)| at).chain(std::iter::once(text.len())).nth(index)
}

fn contains<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text), Val::String(part)] = args else { return Err(Error::no_such_overload()) };
    meter.step(text.len() as u64 / 16)?;
    Ok(Val::Bool(text.contains(&**part)))
}

fn ends_with<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text), Val::String(part)] = args else { return Err(Error::no_such_overload()) };
    Ok(Val::Bool(text.ends_with(&**part)))
}

fn starts_with<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text), Val::String(part)] = args else { return Err(Error::no_such_overload()) };
    Ok(Val::Bool(text.starts_with(&**part)))
}

fn char_at<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text), Val::Int(index)] = args else { return Err(no_such_overload("charAt", args)) };
    meter.step(text.len() as u64 / 16)?;
    match offset(text, *index) {
        Some(at) => {
            let end = text.get(at..).and_then(|t| t.chars().next()).map_or(at, |c| at + c.len_utf8());
            part(text, at, end, meter)
        }
        None => out_of_range(*index),
    }
}

fn index_of<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let (text, part, from) = match args {
        [Val::String(text), Val::String(part)] => (text, part, 0),
        [Val::String(text), Val::String(part), Val::Int(from)] => (text, part, *from),
        _ => return Err(no_such_overload("indexOf", args)),
    };
    meter.step(text.len() as u64 / 8)?;
    if from < 0 {
        return out_of_range(from);
    }
    let length = text.chars().count() as i64;
    if part.is_empty() {
        return Ok(Val::Int(from.min(length)));
    }
    let found = offset(text, from).and_then(|start| {
        let at = text.get(start..)?.find(&**part)?;
        Some(from + text.get(start..start + at)?.chars().count() as i64)
    });
    Ok(Val::Int(found.unwrap_or(-1)))
}

fn last_index_of<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let (text, part, from) = match args {
        [Val::String(text), Val::String(part)] => (text, part, None),
        [Val::String(text), Val::String(part), Val::Int(from)] => (text, part, Some(*from)),
        _ => return Err(no_such_overload("lastIndexOf", args)),
    };
    meter.step(text.len() as u64 / 8)?;
    let length = text.chars().count() as i64;
    if from.is_none() && (part.is_empty() || text.len() < part.len()) {
        return Ok(Val::Int(if part.is_empty() { length } else { -1 }));
    }
    let from = from.unwrap_or(length - 1);
    if from < 0 {
        return out_of_range(from);
    }
    if part.is_empty() {
        return Ok(Val::Int(from.min(length)));
    }
    if from >= length {
        return Ok(Val::Int(-1));
    }
    // The last place that begins at `from` or before it.
    let end = offset(text, from).map_or(text.len(), |at| (at + part.len()).min(text.len()));
    let end = (end..=text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(text.len());
    let found = text.get(..end).and_then(|head| head.rfind(&**part));
    let found = found.and_then(|at| text.get(..at)).map(|head| head.chars().count() as i64);
    Ok(Val::Int(found.filter(|at| *at <= from).unwrap_or(-1)))
}

fn lower<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("lowerAscii", args)) };
    meter.allocate(text.len())?;
    Ok(Val::text(text.to_ascii_lowercase()))
}

fn upper<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("upperAscii", args)) };
    meter.allocate(text.len())?;
    Ok(Val::text(text.to_ascii_uppercase()))
}

fn replace<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let (text, old, new, limit) = match args {
        [Val::String(text), Val::String(old), Val::String(new)] => (text, old, new, -1),
        [Val::String(text), Val::String(old), Val::String(new), Val::Int(limit)] => (text, old, new, *limit),
        _ => return Err(no_such_overload("replace", args)),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    meter.step(text.len() as u64 / 8)?;
    let places = text.matches(&**old).take(limit).count();
    meter.allocate(text.len().saturating_add(places.saturating_mul(new.len())))?;
    Ok(Val::text(text.replacen(&**old, new, limit)))
}

fn split<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let (text, by, limit) = match args {
        [Val::String(text), Val::String(by)] => (text, by, -1),
        [Val::String(text), Val::String(by), Val::Int(limit)] => (text, by, *limit),
        _ => return Err(no_such_overload("split", args)),
    };
    if limit == 0 {
        return Ok(Val::list(Vec::new()));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // By nothing: into characters, the last part taking the rest.
    let mut parts: Vec<(usize, usize)> = Vec::new();
    let mut rest = 0;
    let mut cut = |at: usize, next: usize, parts: &mut Vec<(usize, usize)>| {
        parts.push((rest, at));
        rest = next;
    };
    if by.is_empty() {
        for (at, _) in text.char_indices().skip(1) {
            if parts.len() + 1 >= limit {
                break;
            }
            cut(at, at, &mut parts);
        }
    } else {
        for (at, found) in text.match_indices(&**by) {
            if parts.len() + 1 >= limit {
                break;
            }
            cut(at, at + found.len(), &mut parts);
        }
    }
    if !(by.is_empty() && text.is_empty()) {
        parts.push((rest, text.len()));
    }
    meter.allocate(parts.len() * size_of::<Val<'_>>())?;
    let mut out = Vec::with_capacity(parts.len());
    for (start, end) in parts {
        out.push(part(text, start, end, meter)?);
    }
    Ok(Val::list(out))
}

fn substring<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let (text, start, end) = match args {
        [Val::String(text), Val::Int(start)] => (text, *start, None),
        [Val::String(text), Val::Int(start), Val::Int(end)] => (text, *start, Some(*end)),
        _ => return Err(no_such_overload("substring", args)),
    };
    meter.step(text.len() as u64 / 16)?;
    if let Some(end) = end
        && start > end
    {
        return Err(Error::new(format!("invalid substring range. start: {start}, end: {end}")));
    }
    let Some(from) = offset(text, start) else { return out_of_range(start) };
    let to = match end {
        Some(end) => match offset(text, end) {
            Some(to) => to,
            None => return out_of_range(end),
        },
        None => text.len(),
    };
    part(text, from, to, meter)
}

fn trim<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("trim", args)) };
    let start = text.len() - text.trim_start().len();
    let end = start + text.trim().len();
    part(text, start, end, meter)
}

fn join<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let (list, by) = match args {
        [Val::List(list)] => (list, None),
        [Val::List(list), Val::String(by)] => (list, Some(by)),
        _ => return Err(no_such_overload("join", args)),
    };
    let by: &str = by.map_or("", |by| by);
    let mut out = String::new();
    for (i, item) in list.iter().enumerate() {
        let item = item?;
        let Val::String(text) = &item else {
            return Err(Error::new(format!("join: invalid input: {}", item.show())));
        };
        meter.allocate(text.len() + by.len() + 8)?;
        if i > 0 {
            out.push_str(by);
        }
        out.push_str(text);
    }
    Ok(Val::text(out))
}

/// A key as a part of a JSON pointer (RFC 6901).
fn escape_key<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(key)] = args else { return Err(no_such_overload("jsonpatch.escapeKey", args)) };
    meter.allocate(2 * key.len())?;
    Ok(Val::text(key.replace('~', "~0").replace('/', "~1")))
}

fn quote<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(text)] = args else { return Err(no_such_overload("strings.quote", args)) };
    meter.allocate(2 * text.len() + 2)?;
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(Val::text(out))
}
