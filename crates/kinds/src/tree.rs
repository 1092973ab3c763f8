//! A deserializer that reads a JSON tree and never looks into `metadata.managedFields`: no kind has rules
//! about it, and it is often larger than the rest of the object.
//!
//! It is one type at every depth, so that the code that reads a kind is in the binary once for trees.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Map, Value};

/// The field of the metadata that no view has.
pub(crate) const SKIPPED: &str = "managedFields";

/// Where in the object a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Object,
    Metadata,
    Inside,
}

impl Level {
    /// Of the value of a field; none when nobody looks at it.
    pub(crate) fn of(self, key: &str) -> Option<Self> {
        match self {
            Self::Object if key == "metadata" => Some(Self::Metadata),
            Self::Metadata if key == SKIPPED => None,
            _ => Some(Self::Inside),
        }
    }
}

/// Reads an object, or what is inside it.
pub struct Tree<'a> {
    value: &'a Value,
    level: Level,
}

impl<'a> Tree<'a> {
    /// Reads a whole object.
    pub fn new(object: &'a Value) -> Self {
        Self { value: object, level: Level::Object }
    }
}

impl<'de> Deserializer<'de> for Tree<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(*flag),
            Value::Number(number) => {
                if let Some(number) = number.as_u64() {
                    visitor.visit_u64(number)
                } else if let Some(number) = number.as_i64() {
                    visitor.visit_i64(number)
                } else if let Some(number) = number.as_f64() {
                    visitor.visit_f64(number)
                } else {
                    Err(Error::custom("a number that no type holds"))
                }
            }
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => visitor.visit_seq(Items(items.iter())),
            Value::Object(map) => visitor.visit_map(Fields { rest: map.iter(), level: self.level, next: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.value.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier
    }
}

struct Items<'a>(std::slice::Iter<'a, Value>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        self.0.next().map(|value| seed.deserialize(Tree { value, level: Level::Inside })).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct Fields<'a> {
    rest: <&'a Map<String, Value> as IntoIterator>::IntoIter,
    level: Level,
    next: Option<Tree<'a>>,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        for (key, value) in self.rest.by_ref() {
            if let Some(level) = self.level.of(key) {
                self.next = Some(Tree { value, level });
                return seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        match self.next.take() {
            Some(value) => seed.deserialize(value),
            None => Err(Error::custom("a value was read before its key")),
        }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

#[cfg(test)]
mod tests {
    use api::types::core::v1::Pod;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::only::Only;

    /// Reads a pod from a tree and from text; both must agree, and with `serde_json` where it reads the same.
    fn check(object: &Value) -> Result<Pod, String> {
        let from_tree = Pod::deserialize(Tree::new(object)).map_err(|error| error.to_string());
        let text = object.to_string();
        let from_text = Pod::deserialize(Only::new(&mut serde_json::Deserializer::from_str(&text), &[]));
        assert_eq!(from_tree.is_ok(), from_text.is_ok(), "{object}");
        if let (Ok(a), Ok(b)) = (&from_tree, &from_text) {
            assert_eq!(a, b);
        }
        if object.pointer("/metadata/managedFields").is_none() {
            assert_eq!(from_tree, Pod::deserialize(object).map_err(|error| error.to_string()), "{object}");
        }
        from_tree
    }

    #[test]
    fn managed_fields_are_not_read_and_the_rest_is() {
        let pod = check(&json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "a", "managedFields": "not even a list", "labels": {"managedFields": "kept"}},
            "spec": {"containers": [{"name": "c"}]},
        }))
        .expect("a pod");
        assert_eq!(pod.metadata.name.as_deref(), Some("a"));
        assert_eq!(pod.metadata.managed_fields, None);
        assert_eq!(pod.metadata.labels.expect("labels")["managedFields"], "kept");
        assert_eq!(pod.spec.expect("a spec").containers[0].name, "c");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for object in [
            json!(null),
            json!([]),
            json!("x"),
            json!({"metadata": 3}),
            json!({"metadata": {"name": 3}}),
            json!({"metadata": {"generation": 1.5}}),
            json!({"metadata": {"generation": u64::MAX}}),
            json!({"metadata": {"labels": {"a": null}}}),
            json!({"metadata": {"creationTimestamp": "yesterday"}}),
            json!({"spec": {"containers": {"name": "c"}}}),
            json!({"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 5_000_000_000_i64}]}]}}),
        ] {
            assert!(check(&object).is_err(), "{object}");
        }
        assert!(check(&json!({"metadata": null})).is_ok());
    }

    #[test]
    fn a_pod_with_everything_reads_as_serde_json_has_it() {
        let pod = check(&json!({
            "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true}]},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80, "name": null}],
                "livenessProbe": {"httpGet": {"port": "web"}, "periodSeconds": 3},
                "readinessProbe": {"tcpSocket": {"port": 80}},
                "resources": {"limits": {"cpu": "1"}}}], "hostNetwork": false, "tolerations": []},
            "status": {"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
                "restartCount": -1, "state": {"running": {}}}]},
            "unknown": {"deep": [1, {"x": null}]},
        }))
        .expect("a pod");
        assert_eq!(pod.status.expect("a status").container_statuses.expect("one")[0].restart_count, -1);
    }
}
