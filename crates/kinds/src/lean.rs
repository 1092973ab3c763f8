//! A deserializer that never looks into `metadata.managedFields`: no kind has rules about it, and it
//! is often larger than the rest of the object.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::CowStrDeserializer;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

const SKIPPED: &str = "managedFields";

/// Where in the object we are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Object,
    Metadata,
}

/// Reads an object (or, inside, its metadata).
pub struct Lean<D> {
    inner: D,
    level: Level,
}

impl<D> Lean<D> {
    /// Reads a whole object.
    pub fn new(inner: D) -> Self {
        Self { inner, level: Level::Object }
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Lean<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(LeanVisitor { visitor, level: self.level })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(LeanVisitor { visitor, level: self.level })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_struct(name, fields, LeanVisitor { visitor, level: self.level })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct LeanVisitor<V> {
    visitor: V,
    level: Level,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for LeanVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(LeanMap { map, level: self.level, in_metadata: false })
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Lean { inner, level: self.level })
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_seq(seq)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<V::Value, E> {
        self.visitor.visit_str(text)
    }

    fn visit_bool<E: serde::de::Error>(self, flag: bool) -> Result<V::Value, E> {
        self.visitor.visit_bool(flag)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<V::Value, E> {
        self.visitor.visit_i64(number)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<V::Value, E> {
        self.visitor.visit_u64(number)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<V::Value, E> {
        self.visitor.visit_f64(number)
    }
}

struct LeanMap<A> {
    map: A,
    level: Level,
    /// The value that comes next is the object's metadata.
    in_metadata: bool,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for LeanMap<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(Key(key)) = self.map.next_key()? {
            if self.level == Level::Metadata && key == SKIPPED {
                self.map.next_value::<IgnoredAny>()?;
                continue;
            }
            self.in_metadata = self.level == Level::Object && key == "metadata";
            return seed.deserialize(CowStrDeserializer::new(key)).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        if self.in_metadata { self.map.next_value_seed(MetadataSeed(seed)) } else { self.map.next_value_seed(seed) }
    }
}

struct MetadataSeed<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for MetadataSeed<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Lean { inner, level: Level::Metadata })
    }
}

/// A key, borrowed where the input allows it.
pub(crate) struct Key<'de>(pub Cow<'de, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;

        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E>(self, text: String) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text)))
            }
        }

        deserializer.deserialize_str(KeyVisitor)
    }
}

#[cfg(test)]
mod tests {
    use api::types::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    /// Reads a pod from a tree and from text; both must agree.
    fn check(object: &Value) -> Result<Pod, String> {
        let from_tree = Pod::deserialize(Lean::new(object)).map_err(|error| error.to_string());
        let text = object.to_string();
        let from_text = Pod::deserialize(Lean::new(&mut serde_json::Deserializer::from_str(&text)));
        assert_eq!(from_tree.is_ok(), from_text.is_ok(), "{object}");
        if let (Ok(a), Ok(b)) = (&from_tree, &from_text) {
            assert_eq!(a, b);
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
        for object in [json!(null), json!([]), json!("x"), json!({"metadata": 3}), json!({"metadata": {"name": 3}})] {
            assert!(check(&object).is_err(), "{object}");
        }
        assert!(check(&json!({"metadata": null})).is_ok());
    }
}
