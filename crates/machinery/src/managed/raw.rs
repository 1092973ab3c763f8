//! Objects in which `fieldsV1` is its own text.
//!
//! The write path carries the sets of `managedFields` as the text they are stored as: most writes
//! touch few of them, and as trees they would be larger than the object. The encoders write such a
//! text as it is.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Where in the object we are.
#[derive(Clone, Copy)]
enum Level {
    Object,
    Metadata,
    Entries,
    Entry,
    /// Of one name in an entry.
    Fields,
    Other,
}

impl Level {
    fn below(self, name: &str) -> Self {
        match (self, name) {
            (Self::Object, "metadata") => Self::Metadata,
            (Self::Metadata, "managedFields") => Self::Entries,
            (Self::Entry, "fieldsV1") => Self::Fields,
            _ => Self::Other,
        }
    }
}

/// Reads a stored object, leaving every `fieldsV1` as its text.
///
/// # Errors
/// When it is no JSON.
pub fn from_slice(json: &[u8]) -> serde_json::Result<Value> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let value = Level::Object.deserialize(&mut reader)?;
    reader.end().map(|()| value)
}

/// Makes trees of the texts: what is patched is patched as clients know it.
pub fn expand(object: &mut Value) {
    let entries = object.get_mut("metadata").and_then(|m| m.get_mut("managedFields")).and_then(Value::as_array_mut);
    for fields in entries.into_iter().flatten().filter_map(|entry| entry.get_mut("fieldsV1")) {
        if let Value::String(text) = fields
            && let Ok(tree) = serde_json::from_str(text)
        {
            *fields = tree;
        }
    }
}

/// The JSON of a `fieldsV1`, whether it is carried as text or as a tree.
pub(crate) fn fields_json(value: &Value) -> std::borrow::Cow<'_, str> {
    match value {
        Value::String(text) if text.starts_with('{') => text.as_str().into(),
        other => other.to_string().into(),
    }
}

impl<'de> DeserializeSeed<'de> for Level {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Self::Other => serde::Deserialize::deserialize(deserializer),
            Self::Fields => {
                let raw: &RawValue = serde::Deserialize::deserialize(deserializer)?;
                match raw.get() {
                    text if text.starts_with('{') => Ok(Value::String(text.to_owned())),
                    text => serde_json::from_str(text).map_err(D::Error::custom),
                }
            }
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let value = access.next_value_seed(self.below(&name))?;
            out.insert(name, value);
        }
        Ok(Value::Object(out))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let item = if matches!(self, Self::Entries) { Self::Entry } else { Self::Other };
        let mut out = Vec::new();
        while let Some(value) = access.next_element_seed(item)? {
            out.push(value);
        }
        Ok(Value::Array(out))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}
