//! What every object tells about itself, read from its bytes without reading the rest.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::{Error, Result};

/// Names an object within its resource. The namespace is empty for cluster scope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    /// A key from its parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// `metadata.ownerReferences[*]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerRef {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    #[serde(deserialize_with = "or_default")]
    pub controller: bool,
    #[serde(deserialize_with = "or_default")]
    pub block_owner_deletion: bool,
}

/// The part of `metadata` that controllers decide on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub namespace: String,
    #[serde(deserialize_with = "or_default")]
    pub uid: String,
    #[serde(rename = "resourceVersion", deserialize_with = "revision")]
    pub revision: u64,
    #[serde(deserialize_with = "or_default")]
    pub generation: i64,
    pub creation_timestamp: Option<Timestamp>,
    pub deletion_timestamp: Option<Timestamp>,
    pub deletion_grace_period_seconds: Option<i64>,
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub owner_references: Vec<OwnerRef>,
    #[serde(deserialize_with = "or_default")]
    pub finalizers: Vec<String>,
}

impl Meta {
    /// The key of the object.
    pub fn key(&self) -> Key {
        Key { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// Being deleted.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// The one owner that manages the object.
    pub fn controller(&self) -> Option<&OwnerRef> {
        self.owner_references.iter().find(|o| o.controller)
    }

    /// True when a finalizer of this name is set.
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|f| f == name)
    }
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

fn revision<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    let text = Option::<String>::deserialize(d)?.unwrap_or_default();
    if text.is_empty() { Ok(0) } else { text.parse().map_err(serde::de::Error::custom) }
}

/// A field of an object.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Field {
    Metadata,
    #[serde(other)]
    Other,
}

/// Finds `metadata` among an object's fields and keeps it.
struct Envelope<'a>(&'a mut Option<Meta>);

impl<'de> DeserializeSeed<'de> for Envelope<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Envelope<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(field) = map.next_key::<Field>()? {
            match field {
                Field::Metadata => {
                    *self.0 = Some(map.next_value()?);
                    return Ok(());
                }
                Field::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Reads the metadata of an object's JSON, of two the first. What follows it, which is most of an object, is not looked
/// at: that it is JSON is known of what came as part of a list or of a watch, and else left to who reads it.
pub fn meta(json: &[u8]) -> Result<Meta> {
    let mut found = None;
    let read = Envelope(&mut found).deserialize(&mut serde_json::Deserializer::from_slice(json));
    // Once it is found, the reader's only complaint is that there is more.
    match (found, read) {
        (Some(meta), _) => Ok(meta),
        (None, Ok(())) => Ok(Meta::default()),
        (None, Err(error)) => Err(Error::decode(error)),
    }
}

/// The resourceVersion of a typed object as a number; 0 when it has none.
pub fn revision_of<K: api::Object>(object: &K) -> u64 {
    object.metadata().resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_and_nulls_are_empty() {
        let meta = meta(
            br#"{"kind":"Pod","metadata":{"name":"a","namespace":"b","resourceVersion":"12","labels":null,
               "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"u","controller":true}]}}"#,
        )
        .expect("valid");
        assert_eq!((meta.key().to_string(), meta.revision), ("b/a".to_owned(), 12));
        assert_eq!(meta.controller().map(|o| o.uid.as_str()), Some("u"));
    }

    #[test]
    fn metadata_is_found_wherever_it_stands() {
        let name = |json: &str| meta(json.as_bytes()).ok().map(|m| m.name);
        assert_eq!(name(r#"{"metadata":{"name":"a"},"spec":{"metadata":{"name":"b"}}}"#), Some("a".into()));
        assert_eq!(name(r#"{"spec":{"metadata":{"name":"b"}},"\u006detadata":{"name":"a"}}"#), Some("a".into()));
        assert_eq!(name(r#"{"kind":"x"}"#), Some(String::new()));
        for odd in ["", "[]", r#"{"kind":"x""#, r#"{"metadata":{"name":1}}"#, r#"{"metadata":"x"}"#] {
            assert_eq!(name(odd), None, "{odd}");
        }
    }
}
