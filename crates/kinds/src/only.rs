//! A deserializer that looks only at the parts of an object that somebody reads: a row of a Table needs
//! a tenth of a pod, and what is skipped costs a tenth of what is decoded. Like [`crate::tree`] it never looks
//! into `metadata.managedFields`.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::CowStrDeserializer;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use crate::tree::Level;

/// A field that is read, with what is read of its value (of each item, if that is a list); everything,
/// when nothing is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part(pub &'static str, pub &'static [Part]);

impl Part {
    /// A field that is read whole.
    pub const fn whole(name: &'static str) -> Self {
        Self(name, &[])
    }

    /// What of `metadata` the name and the age of an object are made of.
    pub const METADATA: Self = Self("metadata", &[Self::whole("name"), Self::whole("creationTimestamp")]);

    /// What of a pod template its containers' names and images are made of.
    pub const TEMPLATE: Self =
        Self("template", &[Self("spec", &[Self("containers", &[Self::whole("name"), Self::whole("image")])])]);
}

/// What is seen of a value.
#[derive(Clone, Copy)]
struct Seen {
    parts: &'static [Part],
    level: Level,
}

/// Reads an object of which only some parts are seen.
pub struct Only<D> {
    inner: D,
    seen: Seen,
}

impl<D> Only<D> {
    /// Shows the parts; all, when none is named.
    pub fn new(inner: D, parts: &'static [Part]) -> Self {
        Self { inner, seen: Seen { parts, level: Level::Object } }
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Only<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(OnlyVisitor { visitor, seen: self.seen })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(OnlyVisitor { visitor, seen: self.seen })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_seq(OnlyVisitor { visitor, seen: self.seen })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_struct(name, fields, OnlyVisitor { visitor, seen: self.seen })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_newtype_struct(name, OnlyVisitor { visitor, seen: self.seen })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_ignored_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        tuple tuple_struct map identifier
    }
}

struct OnlyVisitor<V> {
    visitor: V,
    seen: Seen,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for OnlyVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(OnlyMap { map, seen: self.seen, next: self.seen })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_seq(OnlySeq { items, seen: Seen { level: Level::Inside, ..self.seen } })
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Only { inner, seen: self.seen })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Only { inner, seen: self.seen })
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<V::Value, E> {
        self.visitor.visit_str(text)
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<V::Value, E> {
        self.visitor.visit_borrowed_str(text)
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<V::Value, E> {
        self.visitor.visit_string(text)
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

struct OnlyMap<A> {
    map: A,
    seen: Seen,
    /// What is seen of the value that comes next.
    next: Seen,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for OnlyMap<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(Key(key)) = self.map.next_key()? {
            let part = self.seen.parts.iter().find(|part| part.0 == key);
            let named = part.is_some() || self.seen.parts.is_empty();
            let Some(level) = self.seen.level.of(&key).filter(|_| named) else {
                self.map.next_value::<IgnoredAny>()?;
                continue;
            };
            self.next = Seen { parts: part.map_or(&[], |part| part.1), level };
            return seed.deserialize(CowStrDeserializer::new(key)).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.map.next_value_seed(OnlySeed { seed, seen: self.next })
    }
}

struct OnlySeq<A> {
    items: A,
    seen: Seen,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for OnlySeq<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.items.next_element_seed(OnlySeed { seed, seen: self.seen })
    }

    fn size_hint(&self) -> Option<usize> {
        self.items.size_hint()
    }
}

struct OnlySeed<S> {
    seed: S,
    seen: Seen,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for OnlySeed<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.seed.deserialize(Only { inner, seen: self.seen })
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
    use serde_json::{Value, json};

    use super::*;

    fn check(object: &Value, parts: &'static [Part]) -> Value {
        let text = object.to_string();
        Value::deserialize(Only::new(&mut serde_json::Deserializer::from_str(&text), parts)).expect("JSON")
    }

    #[test]
    fn only_the_named_parts_are_seen() {
        const ITEM: &[Part] = &[Part::whole("b")];
        const TWO: &[Part] = &[Part::whole("z"), Part::whole("a")];
        const NOTHING: &[Part] = &[Part::whole("nothing")];
        let object = json!({"a": {"b": 1, "c": [1, {"d": null}]}, "l": [{"b": "x", "c": 2}, {"c": 3}, 4], "z": [true]});
        for (parts, want) in [
            (&[][..], object.clone()),
            (&[Part("a", ITEM)][..], json!({"a": {"b": 1}})),
            (&[Part("l", ITEM)][..], json!({"l": [{"b": "x"}, {}, 4]})),
            (TWO, json!({"a": object["a"], "z": [true]})),
            (NOTHING, json!({})),
        ] {
            assert_eq!(check(&object, parts), want, "{parts:?}");
        }
    }
}
