//! One step of a field's path: `f:spec`, `k:{"name":"a"}`, `v:"x"`, `i:0`; its order and its texts.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::keys;

/// A step, without the letter that says its kind.
///
/// The order is that of `fieldsV1`: fields by name, then list items by their keys (numbers by value,
/// not by digits), then items of sets, then places.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Element<'a> {
    Field(Cow<'a, str>),
    /// The keys of an item of a list as a JSON object, sorted by name, without spaces.
    Key(Cow<'a, str>),
    /// An item of a set, as JSON.
    Value(Cow<'a, str>),
    /// A place in a list. No list is owned by places; old entries may say so.
    Index(u64),
}

/// Why a text is no step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// Of a kind that a later version may know: it is skipped.
    Unknown,
    Wrong,
}

impl<'a> Element<'a> {
    /// Reads a step as `fieldsV1` writes it.
    pub(super) fn read(text: Cow<'a, str>) -> Result<Self, Unread> {
        let bytes = text.as_bytes();
        if bytes.len() < 2 || bytes[1] != b':' {
            return Err(Unread::Wrong);
        }
        let rest = |text: Cow<'a, str>| match text {
            Cow::Borrowed(text) => Cow::Borrowed(&text[2..]),
            Cow::Owned(mut text) => {
                text.drain(..2);
                Cow::Owned(text)
            }
        };
        match bytes[0] {
            b'f' => Ok(Self::Field(rest(text))),
            // What this server wrote is as it would write it again.
            b'k' if keys::is_plain(&text[2..]) => Ok(Self::Key(rest(text))),
            b'k' => {
                let keys: Map<String, Value> = serde_json::from_str(&text[2..]).map_err(|_| Unread::Wrong)?;
                Ok(Self::keys(keys.iter().map(|(name, value)| (name.as_str(), value))))
            }
            b'v' => {
                let value: Value = serde_json::from_str(&text[2..]).map_err(|_| Unread::Wrong)?;
                Ok(Self::value(&value))
            }
            b'i' => text[2..].parse().map(Self::Index).map_err(|_| Unread::Wrong),
            _ => Err(Unread::Unknown),
        }
    }

    /// The item with these keys, which are sorted by name.
    pub(super) fn keys<'k>(keys: impl IntoIterator<Item = (&'k str, &'k Value)>) -> Self {
        let mut text = String::with_capacity(32);
        text.push('{');
        for (i, (name, value)) in keys.into_iter().enumerate() {
            if i > 0 {
                text.push(',');
            }
            push_text(&mut text, name);
            text.push(':');
            push_scalar(&mut text, value);
        }
        text.push('}');
        Self::Key(Cow::Owned(text))
    }

    /// The item of a set.
    pub(super) fn value(value: &Value) -> Self {
        let mut text = String::new();
        push_scalar(&mut text, value);
        Self::Value(Cow::Owned(text))
    }

    /// As `fieldsV1` writes it, in quotes.
    pub(super) fn write(&self, out: &mut String) {
        let (kind, text): (&str, &str) = match self {
            Self::Field(name) => ("f:", name),
            Self::Key(keys) => ("k:", keys),
            Self::Value(value) => ("v:", value),
            Self::Index(index) => return out.push_str(&format!("\"i:{index}\"")),
        };
        out.push('"');
        out.push_str(kind);
        // Names of fields need no escaping.
        if !text.bytes().any(|b| b < b' ' || b == b'"' || b == b'\\') {
            out.push_str(text);
            out.push('"');
            return;
        }
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => out.push(c),
            }
        }
        out.push('"');
    }

    /// As error texts print it: `.spec`, `[name="a"]`, `[="x"]`, `[0]`.
    pub(super) fn print(&self) -> String {
        match self {
            Self::Field(name) => format!(".{name}"),
            Self::Key(keys) => match serde_json::from_str::<Map<String, Value>>(keys) {
                Ok(keys) => {
                    let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                    format!("[{}]", keys.join(","))
                }
                Err(_) => format!("[{keys}]"),
            },
            Self::Value(value) => format!("[={value}]"),
            Self::Index(index) => format!("[{index}]"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

/// Numbers that are whole are written without a point.
fn push_scalar(out: &mut String, value: &Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap_or_default();
            if float.fract() == 0.0 && float.abs() < 1e15 {
                out.push_str(&format!("{float:.0}"));
            } else {
                out.push_str(&number.to_string());
            }
        }
        Value::String(text) => push_text(out, text),
        other => out.push_str(&other.to_string()),
    }
}

/// A text as JSON.
fn push_text(out: &mut String, text: &str) {
    if text.bytes().any(|b| b < b' ' || b == b'"' || b == b'\\') {
        out.push_str(&Value::from(text).to_string());
    } else {
        out.push('"');
        out.push_str(text);
        out.push('"');
    }
}

impl PartialOrd for Element<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Element<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) if a != b => keys::order(a, b).unwrap_or_else(|| order_of_keys(a, b)),
            (Self::Value(a), Self::Value(b)) if a != b => {
                let read = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
                keys::order(a, b).unwrap_or_else(|| order_of(&read(a), &read(b)))
            }
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

/// Pair by pair, each by its name and then its value.
pub(super) fn order_of_keys(a: &str, b: &str) -> Ordering {
    let read = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
    let (a, b) = (read(a), read(b));
    let mut pairs = a.iter().zip(&b);
    let first = pairs.find_map(|((name, value), (other, theirs))| {
        let order = name.cmp(other).then_with(|| order_of(value, theirs));
        (order != Ordering::Equal).then_some(order)
    });
    first.unwrap_or_else(|| a.len().cmp(&b.len()))
}

/// Numbers by value, then texts, booleans, lists, objects, null.
fn order_of(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().unwrap_or_default().total_cmp(&y.as_f64().unwrap_or_default()),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        _ if rank(a) == rank(b) => a.to_string().cmp(&b.to_string()),
        _ => rank(a).cmp(&rank(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_in_the_order_of_what_they_mean() {
        let wanted = [
            "f:a",
            "f:b",
            r#"k:{"port":80,"protocol":"TCP"}"#,
            r#"k:{"port":80,"protocol":"UDP"}"#,
            r#"k:{"port":443}"#,
            r#"k:{"port":443,"protocol":"TCP"}"#,
            "v:9",
            "v:10",
            r#"v:"a""#,
            r#"v:"a b""#,
            "v:true",
            "i:2",
            "i:10",
        ];
        let mut read: Vec<Element<'_>> =
            wanted.iter().rev().map(|text| Element::read((*text).into()).expect("a step")).collect();
        read.sort();
        let written: Vec<String> = read
            .iter()
            .map(|element| {
                let mut out = String::new();
                element.write(&mut out);
                serde_json::from_str(&out).expect("a text")
            })
            .collect();
        assert_eq!(written, wanted);
    }

    #[test]
    fn what_is_no_step_is_told() {
        for (text, want) in [
            ("", Unread::Wrong),
            ("f", Unread::Wrong),
            ("é", Unread::Wrong),
            ("k:x", Unread::Wrong),
            ("k:[]", Unread::Wrong),
            ("v:", Unread::Wrong),
            ("i:x", Unread::Wrong),
            ("z:x", Unread::Unknown),
        ] {
            assert_eq!(Element::read(text.into()), Err(want), "{text}");
        }
        let keys = Element::read(r#"k:{ "b": 1.0, "a": "x" }"#.into()).expect("a step");
        assert_eq!((keys.print(), keys), (r#"[a="x",b=1]"#.to_owned(), Element::Key(r#"{"a":"x","b":1}"#.into())));
    }
}
