//! Takes what is known out of a tree, one field after the other; what remains at the end is unknown.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// One object of a file.
pub struct Reader {
    /// Where in the file it is, with a dot at the end; empty at the top.
    at: String,
    fields: Map<String, Value>,
}

impl Reader {
    /// `at` names the object.
    pub fn new(at: &str, tree: &Value) -> Result<Self, String> {
        let fields = match tree {
            Value::Object(fields) => fields.clone(),
            Value::Null => Map::new(),
            other => return Err(format!("{} (got: {other}) must be an object", if at.is_empty() { "it" } else { at })),
        };
        let at = if at.is_empty() { String::new() } else { format!("{at}.") };
        Ok(Self { at, fields })
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    fn wrong<T>(&self, name: &str, got: impl Display, what: impl Display) -> Result<T, String> {
        Err(format!("{}{name} (got: {got}) {what}", self.at))
    }

    /// A text that is not empty.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text).filter(|t| !t.is_empty())),
            Some(other) => self.wrong(name, other, "must be a string"),
        }
    }

    pub fn path(&mut self, name: &str) -> Result<Option<PathBuf>, String> {
        Ok(self.text(name)?.map(PathBuf::from))
    }

    pub fn parsed<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, String>
    where
        T::Err: Display,
    {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse().map(Some).or_else(|why| self.wrong(name, &text, why))
    }

    pub fn truth(&mut self, name: &str) -> Result<Option<bool>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(truth)) => Ok(Some(truth)),
            Some(other) => self.wrong(name, other, "must be true or false"),
        }
    }

    pub fn number<T: TryFrom<i64>>(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<T>, String> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_i64().filter(|n| range.contains(n)).and_then(|n| T::try_from(n).ok());
        let (least, most) = (range.start(), range.end());
        number.map_or_else(
            || self.wrong(name, &value, format!("must be a number from {least} to {most}")),
            |n| Ok(Some(n)),
        )
    }

    /// A time in Go's words; one of length zero is none.
    pub fn duration(&mut self, name: &str) -> Result<Option<Duration>, String> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Some(nanos) = nanos(&value) else { return self.wrong(name, &value, "must be a duration such as 1m30s") };
        match u64::try_from(nanos) {
            Ok(nanos) => Ok((nanos > 0).then(|| Duration::from_nanos(nanos))),
            Err(_) => self.wrong(name, &value, "must not be negative"),
        }
    }

    pub fn texts(&mut self, name: &str) -> Result<Vec<String>, String> {
        Ok(self.typed(name)?.unwrap_or_default())
    }

    pub fn map(&mut self, name: &str) -> Result<BTreeMap<String, String>, String> {
        Ok(self.typed(name)?.unwrap_or_default())
    }

    pub fn typed<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, String> {
        let Some(value) = self.take(name) else { return Ok(None) };
        serde_json::from_value(value.clone()).map(Some).or_else(|why| self.wrong(name, value, why))
    }

    pub fn object(&mut self, name: &str) -> Result<Option<Self>, String> {
        let at = format!("{}{name}", self.at);
        self.take(name).map(|value| Self::new(&at, &value)).transpose()
    }

    /// A field that says what is so anyway, or nothing.
    pub fn only(&mut self, name: &str, accepted: &[&str]) -> Result<(), String> {
        let Some(value) = self.take(name) else { return Ok(()) };
        if accepted.iter().any(|text| is(&value, text)) {
            return Ok(());
        }
        let kept: Vec<&str> = accepted.iter().copied().filter(|text| !text.is_empty()).collect();
        let instead = if kept.is_empty() { String::new() } else { format!(", or set it to {}", kept.join(" or ")) };
        self.wrong(name, value, format!("is not supported by this kubelet: leave it out{instead}"))
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), String> {
        let names: Vec<String> =
            self.fields.keys().map(|name| format!("unknown field \"{}{name}\"", self.at)).collect();
        if names.is_empty() { Ok(()) } else { Err(names.join(", ")) }
    }
}

fn nanos(value: &Value) -> Option<i64> {
    machinery::time::read_duration(value.as_str()?).ok()
}

/// Whether `value` is what `text` says: the same duration, an object or list without content for an empty
/// text, or the same word.
fn is(value: &Value, text: &str) -> bool {
    let same_time = || nanos(value).zip(machinery::time::read_duration(text).ok()).is_some_and(|(a, b)| a == b);
    match value {
        Value::String(own) => own == text || same_time(),
        Value::Array(list) => {
            list.is_empty() && text.is_empty() || serde_json::from_str(text).is_ok_and(|t: Value| t == *value)
        }
        Value::Object(fields) => text.is_empty() && fields.values().all(is_nothing),
        other => serde_json::from_str(text).is_ok_and(|t: Value| t == *other),
    }
}

/// What Go leaves out, or would.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == "0" || nanos(value) == Some(0),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.values().all(is_nothing),
    }
}
