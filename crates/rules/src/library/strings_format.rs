//! `'%s is %d'.format([…])`, evaluated and checked beforehand.

use super::operators::text_of;
use super::{Imp, no_such_overload};
use crate::ast::{Expr, Id, Kind};
use crate::checker::Checked;
use crate::meter::{Error, Meter};
use crate::types::Type;
use crate::value::{List, Map, Out, Val};

pub const TABLE: &[(&str, Imp)] = &[("string_format: <string>.format(list<dyn>) -> string", format)];

/// One clause: what it asks for and how precise it is.
#[derive(Clone, Copy)]
struct Clause {
    letter: char,
    precision: Option<usize>,
}

/// More digits than a double has are zeros; nobody needs more of them than this.
const MAX_PRECISION: usize = 1_000;

/// Walks a template: literal text and clauses, each with the number of its argument.
fn walk(
    template: &str,
    arguments: usize,
    mut text: impl FnMut(&str) -> Result<(), Error>,
    mut clause: impl FnMut(usize, Clause) -> Result<(), Error>,
) -> Result<usize, Error> {
    let mut rest = template;
    let mut argument = 0;
    while let Some(at) = rest.find('%') {
        text(rest.get(..at).unwrap_or(""))?;
        rest = rest.get(at + 1..).unwrap_or("");
        if let Some(after) = rest.strip_prefix('%') {
            text("%")?;
            rest = after;
            continue;
        }
        if argument >= arguments {
            return Err(Error::new(format!("index {argument} out of range")));
        }
        if rest.is_empty() {
            return Err(Error::new("unexpected end of string"));
        }
        let (found, after) =
            read_clause(rest).map_err(|why| Error::new(format!("could not parse formatting clause: {why}")))?;
        clause(argument, found)?;
        rest = after;
        argument += 1;
    }
    text(rest)?;
    Ok(argument)
}

fn read_clause(text: &str) -> Result<(Clause, &str), String> {
    let mut rest = text;
    let mut precision = None;
    if let Some(after) = rest.strip_prefix('.') {
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        if end == after.len() {
            return Err("error while parsing precision: could not find end of precision specifier".to_owned());
        }
        let digits = after.get(..end).unwrap_or("");
        let number = digits.parse::<usize>().map_err(|_| {
            let why = if digits.is_empty() { "invalid syntax" } else { "value out of range" };
            format!(
                "error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing \
                 {}: {why}",
                machinery::go::quote(digits)
            )
        })?;
        precision = Some(number);
        rest = after.get(end..).unwrap_or("");
    }
    let letter = rest.chars().next().unwrap_or(' ');
    if !matches!(letter, 's' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o') {
        return Err(format!("unrecognized formatting clause \"{letter}\""));
    }
    Ok((Clause { letter, precision }, rest.get(1..).unwrap_or("")))
}

/// What a clause says of a value it has no form for.
fn refusal(letter: char, name: &str) -> String {
    let what = match letter {
        's' => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and \
             timestamps"
        }
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'b' => "only integers and bools can be formatted as binary",
        'o' => "octal clause can only be used on integers",
        _ => "only integers, byte buffers, and strings can be formatted as hex",
    };
    format!("{what}, was given {name}")
}

fn format<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::String(template), Val::List(list)] = args else { return Err(no_such_overload("format", args)) };
    let out = std::cell::RefCell::new(Writer { text: String::new(), meter });
    walk(
        template,
        list.len(),
        |text| out.borrow_mut().push(text),
        |argument, clause| {
            let value = list.get(argument).unwrap_or_else(|| Err(Error::no_such_overload()))?;
            out.borrow_mut().clause(&value, clause)
        },
    )?;
    Ok(Val::text(out.into_inner().text))
}

/// Text that is paid for as it grows.
struct Writer<'m> {
    text: String,
    meter: &'m mut Meter,
}

impl Writer<'_> {
    fn push(&mut self, text: &str) -> Result<(), Error> {
        self.meter.allocate(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    fn clause(&mut self, value: &Val<'_>, clause: Clause) -> Result<(), Error> {
        let refused = |why: String| Error::new(format!("error during formatting: {why}"));
        let name = value.type_of().runtime_name().to_owned();
        let text = match (clause.letter, value) {
            ('s', value) => return self.value(value, false),
            ('d', Val::Int(i)) => i.to_string(),
            ('d', Val::Uint(u)) => u.to_string(),
            ('f' | 'e', value) => {
                let number = match value {
                    Val::Double(d) => *d,
                    Val::String(s) if matches!(&**s, "NaN" | "Infinity" | "-Infinity") => s.parse().unwrap_or(f64::NAN),
                    _ => return Err(refused(refusal(clause.letter, &name))),
                };
                decimal(number, clause)
            }
            ('b', Val::Int(i)) => signed(*i, format!("{:b}", i.unsigned_abs())),
            ('b', Val::Uint(u)) => format!("{u:b}"),
            ('b', Val::Bool(b)) => u8::from(*b).to_string(),
            ('o', Val::Int(i)) => signed(*i, format!("{:o}", i.unsigned_abs())),
            ('o', Val::Uint(u)) => format!("{u:o}"),
            ('x' | 'X', Val::Int(i)) => cased(signed(*i, format!("{:x}", i.unsigned_abs())), clause),
            ('x' | 'X', Val::Uint(u)) => cased(format!("{u:x}"), clause),
            ('x' | 'X', Val::String(s)) => cased(self.hex(s.as_bytes())?, clause),
            ('x' | 'X', Val::Bytes(b)) => cased(self.hex(b)?, clause),
            (letter, _) => return Err(refused(refusal(letter, &name))),
        };
        self.push(&text)
    }

    fn hex(&mut self, bytes: &[u8]) -> Result<String, Error> {
        self.meter.allocate(2 * bytes.len())?;
        Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
    }

    /// A value as `%s` writes it; within lists and maps, texts are quoted.
    fn value(&mut self, value: &Val<'_>, inner: bool) -> Result<(), Error> {
        self.meter.step(1)?;
        match value {
            Val::Null => self.push("null"),
            Val::List(list) => self.list(list),
            Val::Map(map) => self.map(map),
            Val::String(s) if inner => self.push(&machinery::go::quote(s)),
            Val::Bytes(b) if inner => {
                let text = String::from_utf8_lossy(b);
                self.push(&format!("b{}", machinery::go::quote(&text)))
            }
            Val::Double(d) if inner => {
                if d.is_finite() {
                    self.push(&format!("{d:.6}"))
                } else {
                    let text = decimal(*d, Clause { letter: 'f', precision: None });
                    self.push(&machinery::go::quote(&text))
                }
            }
            Val::Bool(_)
            | Val::Int(_)
            | Val::Uint(_)
            | Val::Double(_)
            | Val::String(_)
            | Val::Bytes(_)
            | Val::Duration(_)
            | Val::Timestamp(_)
            | Val::Type(_) => {
                let text = text_of(value, self.meter)?;
                self.push(&text)
            }
            other => {
                let name = other.type_of();
                Err(Error::new(format!("error during formatting: {}", refusal('s', name.runtime_name()))))
            }
        }
    }

    fn list(&mut self, list: &List<'_>) -> Result<(), Error> {
        self.push("[")?;
        for (i, item) in list.iter().enumerate() {
            if i > 0 {
                self.push(", ")?;
            }
            self.value(&item?, true)?;
        }
        self.push("]")
    }

    fn map(&mut self, map: &Map<'_>) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in map.keys() {
            if !matches!(key, Val::String(_) | Val::Bool(_) | Val::Int(_) | Val::Uint(_)) {
                let name = key.type_of();
                return Err(Error::new(format!(
                    "error during formatting: no formatting function for map key of type {}",
                    name.runtime_name()
                )));
            }
            let Some(value) = map.find(&key) else { continue };
            let value = value?;
            let mut shown = Writer { text: String::new(), meter: self.meter };
            shown.value(&key, true)?;
            entries.push((shown.text, value));
        }
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        self.push("{")?;
        for (i, (key, value)) in entries.iter().enumerate() {
            if i > 0 {
                self.push(", ")?;
            }
            self.push(key)?;
            self.push(":")?;
            self.value(value, true)?;
        }
        self.push("}")
    }
}

fn signed(value: i64, digits: String) -> String {
    if value < 0 { format!("-{digits}") } else { digits }
}

fn cased(text: String, clause: Clause) -> String {
    if clause.letter == 'X' { text.to_uppercase() } else { text }
}

/// A double with so many digits, as English writes it: with commas between thousands.
fn decimal(number: f64, clause: Clause) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "∞" } else { "-∞" }.to_owned();
    }
    let precision = clause.precision.unwrap_or(6).min(MAX_PRECISION);
    if clause.letter == 'e' {
        let text = format!("{number:.precision$e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let shown: String = format!("{:02}", exponent.abs()).chars().map(superscript).collect();
        let sign = if exponent < 0 { "⁻" } else { "" };
        return format!("{digits}×10{sign}{shown}");
    }
    let text = format!("{number:.precision$}");
    let (head, tail) = text.split_once('.').map_or((text.as_str(), String::new()), |(h, t)| (h, format!(".{t}")));
    let (sign, digits) = head.strip_prefix('-').map_or(("", head), |d| ("-", d));
    let mut grouped = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(c);
    }
    format!("{sign}{grouped}{tail}")
}

fn superscript(c: char) -> char {
    match c {
        '0' => '⁰',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        '4' => '⁴',
        '5' => '⁵',
        '6' => '⁶',
        '7' => '⁷',
        '8' => '⁸',
        _ => '⁹',
    }
}

/// Checks a call whose template and list are written out. The place of the mistake, and what it is.
pub fn check(checked: &Checked, call: Id, template: &str, items: &[&Expr]) -> Option<(Id, String)> {
    let place = std::cell::Cell::new(call);
    let walked = walk(
        template,
        items.len(),
        |_| Ok(()),
        |argument, clause| {
            let Some(item) = items.get(argument) else { return Ok(()) };
            let wrong = if clause.letter == 's' {
                unprintable(checked, item)
            } else {
                let fits = match (clause.letter, checked.type_of(item.id)) {
                    (_, Type::Dyn) => true,
                    ('d' | 'o', t) => matches!(t, Type::Int | Type::Uint),
                    ('f' | 'e', t) => matches!(t, Type::Double | Type::String),
                    ('b', t) => matches!(t, Type::Int | Type::Uint | Type::Bool),
                    (_, t) => matches!(t, Type::Int | Type::Uint | Type::String | Type::Bytes),
                };
                (!fits).then_some(item.id)
            };
            let Some(wrong) = wrong else { return Ok(()) };
            place.set(wrong);
            let name = checked.type_of(wrong).runtime_name();
            Err(Error::new(format!("error during formatting: {}", refusal(clause.letter, name))))
        },
    );
    match walked {
        Ok(used) if items.len() > used => {
            Some((call, format!("too many arguments supplied to string.format (expected {used}, got {})", items.len())))
        }
        Ok(_) => None,
        Err(error) => Some((place.get(), error.to_string())),
    }
}

/// The first part of an argument that `%s` cannot write.
fn unprintable(checked: &Checked, expr: &Expr) -> Option<Id> {
    let fits = match checked.type_of(expr.id) {
        Type::Object(_) | Type::Named(_) | Type::Optional(_) | Type::Error | Type::Param(_) => false,
        Type::Dyn
        | Type::Null
        | Type::Bool
        | Type::Int
        | Type::Uint
        | Type::Double
        | Type::String
        | Type::Bytes
        | Type::Duration
        | Type::Timestamp
        | Type::Type(_)
        | Type::List(_)
        | Type::Map(_) => true,
    };
    if !fits {
        return Some(expr.id);
    }
    match &expr.kind {
        Kind::List(items) => items.iter().find_map(|i| unprintable(checked, &i.value)),
        Kind::Map(entries) => {
            entries.iter().find_map(|e| unprintable(checked, &e.key).or_else(|| unprintable(checked, &e.value)))
        }
        _ => None,
    }
}
