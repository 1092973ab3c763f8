//! The little of a stored object that the watch cache reads of it. What nobody asks for is passed over,
//! which costs a tenth of decoding it.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::only::Key;

/// What every object is known by.
const METADATA: [&str; 5] =
    ["/metadata/name", "/metadata/namespace", "/metadata/uid", "/metadata/labels", "/metadata/ownerReferences"];

/// Reads of an object what it is known by and what these JSON pointers lead to. A list on the way to one is
/// read whole.
///
/// # Errors
/// When it is no JSON, or no UTF-8. Of what is passed over, numbers out of all bounds are not found.
pub(crate) fn read(json: &[u8], pointers: impl Iterator<Item = &'static str>) -> serde_json::Result<Value> {
    let text = std::str::from_utf8(json).map_err(serde::de::Error::custom)?;
    let wanted: Vec<&str> = METADATA.into_iter().chain(pointers).collect();
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Sketch { wanted: &wanted }.deserialize(&mut reader)?;
    reader.end().map(|()| value)
}

/// A value of which only what the rests of pointers lead to is read.
struct Sketch<'p> {
    wanted: &'p [&'p str],
}

impl<'p> Sketch<'p> {
    /// The rests of the pointers that go through a member.
    fn through(&self, name: &str) -> Vec<&'p str> {
        let rest = |pointer: &&'p str| pointer.strip_prefix('/')?.strip_prefix(name);
        self.wanted.iter().filter_map(rest).filter(|rest| rest.is_empty() || rest.starts_with('/')).collect()
    }
}

impl<'de> DeserializeSeed<'de> for Sketch<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Sketch<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(Key(name)) = members.next_key()? {
            let wanted = self.through(&name);
            if wanted.is_empty() {
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = if wanted.contains(&"") {
                members.next_value()?
            } else {
                members.next_value_seed(Sketch { wanted: &wanted })?
            };
            out.insert(name.into_owned(), value);
        }
        Ok(Value::Object(out))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(item) = items.next_element()? {
            out.push(item);
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

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_asked_for_is_read() {
        let object = json!({
            "kind": "Pod",
            "metadata": {"name": "a", "uid": "u", "labels": {"x/y": "z"}, "annotations": {"no": "no"},
                "managedFields": [{"manager": "m"}]},
            "spec": {"nodeName": "n", "nodeNames": 1, "host": true, "containers": [{"name": "c"}]},
            "status": {"ips": [{"ip": "1"}, {"ip": "2"}], "phase": null, "count": -1, "size": 1.5}
        });
        let known = json!({"name": "a", "uid": "u", "labels": {"x/y": "z"}});
        let rows: [(&[&'static str], Value); 4] = [
            (&[], json!({"metadata": known})),
            (&["/spec/nodeName", "/spec/host"], json!({"metadata": known, "spec": {"nodeName": "n", "host": true}})),
            (
                &["/status/ips/0/ip", "/status/phase", "/status/count", "/status/size", "/kind/below"],
                json!({"kind": "Pod", "metadata": known, "status": object["status"]}),
            ),
            (&["/spec/nodeName/below", "/nothing"], json!({"metadata": known, "spec": {"nodeName": "n"}})),
        ];
        for (pointers, want) in rows {
            let found = read(object.to_string().as_bytes(), pointers.iter().copied()).expect("JSON");
            assert_eq!(found, want, "{pointers:?}");
        }
    }

    #[test]
    fn what_is_damaged_is_told_also_where_nobody_looks() {
        for damaged in
            [&b"{\"spec\": {\"a\": "[..], b"{\"spec\": {\"a\": \"\xff\"}}", b"{\"spec\": {\"a\" 1}}", b"{} {}"]
        {
            assert!(read(damaged, std::iter::empty()).is_err(), "{}", String::from_utf8_lossy(damaged));
        }
        assert_eq!(read(b"[1]", std::iter::empty()).expect("JSON"), json!([1]));
    }
}
