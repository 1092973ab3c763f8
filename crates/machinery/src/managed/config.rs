//! The body of an apply patch, read as it is: no schema, `null` kept.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::decode::{MAX_BYTES, MAX_NODES};
use crate::status::{Result, Status};
use crate::yaml;

/// A configuration, and the first key that it sets twice, as upstream's reader tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub value: Value,
    pub duplicate: Option<String>,
}

/// Reads a configuration in YAML, which JSON is too.
///
/// # Errors
/// 400 for what cannot be read, 413 for what is too long.
pub fn read(bytes: &[u8]) -> Result<Config> {
    if bytes.len() > MAX_BYTES {
        return Err(Status::too_large(MAX_BYTES));
    }
    if let Some(value) = json(bytes) {
        return Ok(Config { value, duplicate: None });
    }
    let parsed = yaml::parse(bytes)
        .map_err(|error| Status::bad_request(format!("error decoding YAML: error converting YAML to JSON: {error}")))?;
    let duplicate = parsed.errors.map(|errors| format!("error converting YAML to JSON: {errors}"));
    let value = parsed.value;
    match value {
        Value::Object(_) => Ok(Config { value, duplicate }),
        Value::Null => Ok(Config { value: Value::Object(Map::new()), duplicate }),
        other => {
            let found = match other {
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                _ => "number",
            };
            Err(Status::bad_request(format!(
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {found} into \
                 Go value of type map[string]interface {{}}"
            )))
        }
    }
}

/// JSON needs no reader of YAML; what is doubled in it, or no JSON, does.
fn json(bytes: &[u8]) -> Option<Value> {
    if bytes.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return None;
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let mut nodes = 0;
    let value = Plain { nodes: &mut nodes }.deserialize(&mut reader).ok()?;
    reader.end().ok()?;
    Some(value)
}

struct Plain<'n> {
    nodes: &'n mut usize,
}

impl Plain<'_> {
    fn enter<E: Error>(&mut self) -> std::result::Result<(), E> {
        *self.nodes += 1;
        if *self.nodes > MAX_NODES { Err(E::custom("too many nodes")) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for Plain<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Plain<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut access: A) -> std::result::Result<Value, A::Error> {
        self.enter()?;
        let mut out = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let value = access.next_value_seed(Plain { nodes: self.nodes })?;
            if out.insert(name, value).is_some() {
                return Err(A::Error::custom("a key is set twice"));
            }
        }
        Ok(Value::Object(out))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut access: A) -> std::result::Result<Value, A::Error> {
        self.enter()?;
        let mut out = Vec::new();
        while let Some(value) = access.next_element_seed(Plain { nodes: self.nodes })? {
            out.push(value);
        }
        Ok(Value::Array(out))
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> std::result::Result<Value, E> {
        Ok(text.into())
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_configuration_is_read_as_it_is() {
        let plain = |value: Value| Ok(Config { value, duplicate: None });
        assert_eq!(read(br#" {"a":null,"b":[1,2.5,"x"]}"#), plain(json!({"a": null, "b": [1, 2.5, "x"]})));
        assert_eq!(read(b"a:\nb: [1, yes]\n"), plain(json!({"a": null, "b": [1, true]})));
        assert_eq!(read(b""), plain(json!({})));
        for doubled in ["{\"a\":1,\n\"b\":{\"c\":1,\"c\":2}}", "b:\n  c: 1\n  c: 2\na: 1\n"] {
            let read = read(doubled.as_bytes()).expect("reads");
            assert_eq!(read.value, json!({"a": 1, "b": {"c": 2}}));
            let text = read.duplicate.expect("a duplicate");
            assert!(text.starts_with("error converting YAML to JSON: yaml: unmarshal errors:\n  line "), "{text}");
            assert!(text.ends_with("key \"c\" already set in map"), "{text}");
        }
        for (bad, why) in [
            ("[1]", "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array "),
            ("a: [", "error decoding YAML: error converting YAML to JSON: yaml: "),
        ] {
            let refused = read(bad.as_bytes()).expect_err("refused");
            assert!(refused.code == 400 && refused.message.starts_with(why), "{}", refused.message);
        }
    }
}
