//! What a plain scalar means: the rules of YAML 1.1 as upstream's reader has them.
//!
//! ```text
//! yes, On, y      true            0x1F, 0b11, 017, 1_000   31, 3, 15, 1000
//! ~, Null, (none) null            1e3, .5, 08              1000, 0.5, 8
//! 2001-12-14      a text          1e999                    a text
//! ```

use std::borrow::Cow;

use base64::Engine as _;
use serde_json::{Number, Value};

const PREFIX: &str = "tag:yaml.org,2002:";

/// A scalar's meaning. Not all are JSON.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Meaning<'t> {
    Null,
    Bool(bool),
    Int(i64),
    /// Beyond what `Int` holds.
    Large(u64),
    Float(f64),
    Text(Cow<'t, str>),
}

/// The meaning of a scalar with the tag it carries (empty: none).
///
/// # Errors
/// When the tag and the text do not fit.
pub(super) fn resolve<'t>(tag: &str, text: &'t str) -> Result<Meaning<'t>, String> {
    let Some(tag) = (if tag.is_empty() { Some("") } else { tag.strip_prefix(PREFIX) }) else {
        return Ok(Meaning::Text(text.into()));
    };
    match tag {
        "" => Ok(plain(text)),
        "str" => Ok(Meaning::Text(text.into())),
        "binary" => {
            let clean: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
            let bytes = base64::engine::general_purpose::STANDARD.decode(clean);
            let bytes = bytes.map_err(|_| "!!binary value contains invalid base64 data".to_owned())?;
            Ok(Meaning::Text(String::from_utf8_lossy(&bytes).into_owned().into()))
        }
        "bool" | "int" | "float" | "null" | "timestamp" => {
            let found = plain(text);
            let (name, meaning) = match (tag, found) {
                ("float", Meaning::Int(n)) => ("float", Meaning::Float(n as f64)),
                (_, Meaning::Null) => ("null", Meaning::Null),
                (_, Meaning::Bool(b)) => ("bool", Meaning::Bool(b)),
                (_, m @ (Meaning::Int(_) | Meaning::Large(_))) => ("int", m),
                (_, Meaning::Float(f)) => ("float", Meaning::Float(f)),
                ("timestamp", m) if is_date(text) => ("timestamp", m),
                (_, m) => ("str", m),
            };
            if name == tag { Ok(meaning) } else { Err(format!("cannot decode !!{name} `{text}` as a !!{tag}")) }
        }
        _ => Ok(Meaning::Text(text.into())),
    }
}

fn plain(text: &str) -> Meaning<'_> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Meaning::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Meaning::Bool(false);
        }
        "" | "~" | "null" | "Null" | "NULL" => return Meaning::Null,
        ".nan" | ".NaN" | ".NAN" => return Meaning::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Meaning::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Meaning::Float(f64::NEG_INFINITY),
        _ => {}
    }
    let number = match text.as_bytes()[0] {
        b'.' => text.parse::<f64>().ok().filter(|f| f.is_finite()).map(Meaning::Float),
        b'0'..=b'9' | b'+' | b'-' => number(&text.replace('_', "")),
        _ => None,
    };
    number.unwrap_or(Meaning::Text(text.into()))
}

fn number(text: &str) -> Option<Meaning<'static>> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, rest) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !rest.is_empty() && rest.bytes().all(|b| char::from(b).is_digit(radix)) {
        if let Ok(magnitude) = i128::from_str_radix(rest, radix) {
            let signed = if negative { -magnitude } else { magnitude };
            if let Ok(int) = i64::try_from(signed) {
                return Some(Meaning::Int(int));
            }
            // A sign is no part of what is only read without one.
            if let Ok(large) = u64::try_from(signed)
                && !text.starts_with('+')
            {
                return Some(Meaning::Large(large));
            }
        }
    }
    is_float(digits).then(|| text.parse::<f64>().ok()).flatten().filter(|f| f.is_finite()).map(Meaning::Float)
}

/// Digits with at most one point, then perhaps an exponent.
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent = exponent.is_none_or(|e| {
        let e = e.strip_prefix(['+', '-']).unwrap_or(e);
        !e.is_empty() && digits(e)
    });
    digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty()) && exponent
}

/// `YYYY-M-D`, alone or with a time behind it.
fn is_date(text: &str) -> bool {
    let date = text.split(['T', 't', ' ']).next().unwrap_or_default();
    let parts: Vec<&str> = date.split('-').collect();
    matches!(&parts[..], [y, m, d] if y.len() == 4 && (1..=2).contains(&m.len()) && (1..=2).contains(&d.len()))
        && parts.iter().all(|p| p.bytes().all(|b| b.is_ascii_digit()))
}

impl Meaning<'_> {
    /// As a key of an object; `None` for what is none.
    pub(super) fn key(&self) -> Option<String> {
        Some(match self {
            Self::Text(text) => text.clone().into_owned(),
            Self::Bool(b) => b.to_string(),
            Self::Int(n) => n.to_string(),
            Self::Float(f) if f.is_nan() => ".nan".to_owned(),
            Self::Float(f) if f.is_infinite() => if *f > 0.0 { ".inf" } else { "-.inf" }.to_owned(),
            // Upstream prints it with the precision of 32 bits.
            Self::Float(f) => crate::go::shortest(short(*f), 1e6),
            Self::Null | Self::Large(_) => return None,
        })
    }

    /// As Go prints the key of a map (`%#v`).
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Text(text) => crate::go::quote(text),
            Self::Null => "<nil>".to_owned(),
            Self::Bool(b) => b.to_string(),
            Self::Int(n) => n.to_string(),
            Self::Large(n) => format!("{n:#x}"),
            Self::Float(f) => crate::go::shortest(*f, 1e21),
        }
    }

    /// As a JSON value.
    ///
    /// # Errors
    /// For numbers that JSON has not.
    pub(super) fn value(self) -> Result<Value, String> {
        Ok(match self {
            Self::Null => Value::Null,
            Self::Bool(b) => Value::Bool(b),
            Self::Int(n) => n.into(),
            Self::Large(n) => n.into(),
            Self::Text(text) => Value::String(text.into_owned()),
            // Whole numbers print without a point, and are read as such.
            Self::Float(f) if f.fract() == 0.0 && f.abs() < 1e18 => Value::from(f as i64),
            Self::Float(f) => match Number::from_f64(f) {
                Some(number) => Value::Number(number),
                None => return Err(format!("json: unsupported value: {}", unsupported(f))),
            },
        })
    }
}

/// The shortest number that is the same in 32 bits.
fn short(f: f64) -> f64 {
    (f as f32).to_string().parse().unwrap_or(f)
}

fn unsupported(f: f64) -> &'static str {
    match () {
        () if f.is_nan() => "NaN",
        () if f > 0.0 => "+Inf",
        () => "-Inf",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_mean_what_upstream_takes_them_for() {
        let text = |t: &'static str| Meaning::Text(t.into());
        for (given, want) in [
            ("yes", Meaning::Bool(true)),
            ("y", Meaning::Bool(true)),
            ("Off", Meaning::Bool(false)),
            ("yEs", text("yEs")),
            ("", Meaning::Null),
            ("~", Meaning::Null),
            ("nULL", text("nULL")),
            ("0x1F", Meaning::Int(31)),
            ("-0b11", Meaning::Int(-3)),
            ("0o17", Meaning::Int(15)),
            ("017", Meaning::Int(15)),
            ("08", Meaning::Float(8.0)),
            ("1_000", Meaning::Int(1000)),
            ("+5", Meaning::Int(5)),
            ("-", text("-")),
            ("1e3", Meaning::Float(1000.0)),
            (".5", Meaning::Float(0.5)),
            ("5.", Meaning::Float(5.0)),
            ("1.5.5", text("1.5.5")),
            ("1e999", text("1e999")),
            ("9223372036854775808", Meaning::Large(9_223_372_036_854_775_808)),
            ("18446744073709551616", Meaning::Float(18_446_744_073_709_551_616.0)),
            ("2001-12-14", text("2001-12-14")),
            ("12:30", text("12:30")),
            (".inf", Meaning::Float(f64::INFINITY)),
        ] {
            assert_eq!(resolve("", given), Ok(want), "{given}");
        }
        let tagged = |tag: &str, given: &'static str| resolve(&format!("{PREFIX}{tag}"), given);
        assert_eq!(tagged("str", "5"), Ok(text("5")));
        assert_eq!(tagged("float", "5"), Ok(Meaning::Float(5.0)));
        assert_eq!(tagged("int", "abc"), Err("cannot decode !!str `abc` as a !!int".to_owned()));
        assert_eq!(tagged("binary", "YWI="), Ok(text("ab")));
        assert_eq!(resolve("!mine", "5"), Ok(text("5")));
        assert_eq!(Meaning::Float(1.5).key().as_deref(), Some("1.5"));
        assert_eq!(Meaning::Float(0.1).key().as_deref(), Some("0.1"));
        assert_eq!(Meaning::Float(1.5e10).key().as_deref(), Some("1.5e+10"));
    }
}
