//! The way between the JSON tree of the write path and a kind's typed view.
//!
//! A view is decoded from the tree, changed by the kind, and written back *into* the tree: what the
//! kind did not touch stays as it was, and what `k8s-openapi` prints for an absent required field
//! (`metadata: {}`, an empty selector) does not appear.
//!
//! ```text
//! tree {"spec":{"a":1}} ──read──► view ──defaults──► view' ──write──► tree {"spec":{"a":1,"b":2}}
//! ```
//!
//! `metadata.managedFields` never enters a view: no kind has rules about it, and it is often larger
//! than the object.

use std::borrow::Cow;
use std::fmt::Display;

use machinery::status::{self, Status};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::ser::{self, SerializeMap, SerializeSeq, SerializeStruct};
use serde_json::{Map, Value};

use crate::only::{Only, Part};
use crate::tree::Tree;

/// Decodes a view without `metadata.managedFields`. A tree that does not fit is the client's mistake.
pub fn read<T: DeserializeOwned>(tree: &Value) -> status::Result<T> {
    T::deserialize(Tree::new(tree)).map_err(|error| Status::bad_request(error.to_string()))
}

/// The same from bytes, of which only the parts are seen; all, when none is named.
pub fn read_parts<T: DeserializeOwned>(json: &[u8], parts: &'static [Part]) -> status::Result<T> {
    let mut input = serde_json::Deserializer::from_slice(json);
    let view = T::deserialize(Only::new(&mut input, parts)).and_then(|view| input.end().map(|()| view));
    view.map_err(|error| Status::bad_request(error.to_string()))
}

/// The tree of those parts.
pub fn seen(json: &[u8], parts: &'static [Part]) -> status::Result<Value> {
    read_parts(json, parts)
}

/// Decodes a view without `metadata.managedFields`, changes it, and writes the change back.
pub fn edit<T, R>(tree: &mut Value, change: impl FnOnce(&mut T) -> R) -> status::Result<R>
where
    T: DeserializeOwned + Serialize,
{
    let managed =
        tree.get_mut("metadata").and_then(Value::as_object_mut).and_then(|metadata| metadata.remove("managedFields"));
    let out = read(tree).and_then(|mut view: T| {
        let out = change(&mut view);
        write(tree, &view)?;
        Ok(out)
    });
    if let (Some(managed), Some(metadata)) = (managed, tree.get_mut("metadata").and_then(Value::as_object_mut)) {
        metadata.insert("managedFields".into(), managed);
    }
    out
}

/// Writes a view into the tree it was decoded from.
pub fn write<T: Serialize>(tree: &mut Value, view: &T) -> status::Result<()> {
    view.serialize(Merge { at: tree }).map_err(Status::internal)
}

/// Struct types of which an empty value stands for an absent field.
const NOTHING_WHEN_EMPTY: &[&str] = &["ObjectMeta", "PodTemplateSpec", "ObjectReference"];

/// The field of the workloads that views cannot leave out. Other empty selectors choose everything.
const SELECTOR: &str = "selector";

/// Serializes into an existing value. What stays `null` is left out by the container.
struct Merge<'a> {
    at: &'a mut Value,
}

/// A serializer's failure; only a map with keys that are no strings can cause it.
#[derive(Debug)]
struct MergeError(String);

impl Display for MergeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MergeError {}

impl ser::Error for MergeError {
    fn custom<T: Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

impl<'a> Merge<'a> {
    fn set(self, value: Value) -> Result<(), MergeError> {
        if *self.at != value {
            *self.at = value;
        }
        Ok(())
    }

    fn object(self) -> MergeObject<'a> {
        let fresh = !self.at.is_object();
        if fresh {
            *self.at = Value::Object(Map::new());
        }
        MergeObject { at: self.at, fresh, seen: Vec::new(), key: None, drop_when_empty: false }
    }
}

/// An object being written; `seen` are the keys the view has.
struct MergeObject<'a> {
    at: &'a mut Value,
    fresh: bool,
    seen: Vec<Cow<'static, str>>,
    key: Option<String>,
    drop_when_empty: bool,
}

impl MergeObject<'_> {
    fn put<T: Serialize + ?Sized>(&mut self, key: Cow<'static, str>, value: &T) -> Result<(), MergeError> {
        let Value::Object(map) = self.at else { return Ok(()) };
        match map.get_mut(key.as_ref()) {
            Some(existing) => value.serialize(Merge { at: existing })?,
            None => {
                let mut fresh = Value::Null;
                value.serialize(Merge { at: &mut fresh })?;
                let nothing = key == SELECTOR && fresh.as_object().is_some_and(Map::is_empty);
                if fresh.is_null() || nothing {
                    return Ok(());
                }
                map.insert(key.clone().into_owned(), fresh);
            }
        }
        if !self.fresh {
            self.seen.push(key);
        }
        Ok(())
    }

    fn finish(self) {
        let Value::Object(map) = self.at else { return };
        if !self.fresh && map.len() > self.seen.len() {
            map.retain(|key, _| self.seen.iter().any(|seen| seen == key));
        }
        if self.fresh && self.drop_when_empty && map.is_empty() {
            *self.at = Value::Null;
        }
    }
}

impl SerializeStruct for MergeObject<'_> {
    type Ok = ();
    type Error = MergeError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), MergeError> {
        self.put(Cow::Borrowed(key), value)
    }

    fn end(self) -> Result<(), MergeError> {
        self.finish();
        Ok(())
    }
}

impl SerializeMap for MergeObject<'_> {
    type Ok = ();
    type Error = MergeError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), MergeError> {
        match serde_json::to_value(key) {
            Ok(Value::String(text)) => {
                self.key = Some(text);
                Ok(())
            }
            _ => Err(MergeError("the key of a map is not a string".into())),
        }
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), MergeError> {
        let key = self.key.take().unwrap_or_default();
        self.put(Cow::Owned(key), value)
    }

    fn end(mut self) -> Result<(), MergeError> {
        self.drop_when_empty = true;
        self.finish();
        Ok(())
    }
}

/// A list being written.
struct MergeList<'a> {
    at: &'a mut Value,
    fresh: bool,
    next: usize,
}

impl SerializeSeq for MergeList<'_> {
    type Ok = ();
    type Error = MergeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), MergeError> {
        let Value::Array(items) = self.at else { return Ok(()) };
        match items.get_mut(self.next) {
            Some(existing) => value.serialize(Merge { at: existing })?,
            None => {
                let mut fresh = Value::Null;
                value.serialize(Merge { at: &mut fresh })?;
                items.push(fresh);
            }
        }
        self.next += 1;
        Ok(())
    }

    fn end(self) -> Result<(), MergeError> {
        let Value::Array(items) = self.at else { return Ok(()) };
        items.truncate(self.next);
        if self.fresh && items.is_empty() {
            *self.at = Value::Null;
        }
        Ok(())
    }
}

impl<'a> ser::Serializer for Merge<'a> {
    type Ok = ();
    type Error = MergeError;
    type SerializeSeq = MergeList<'a>;
    type SerializeTuple = ser::Impossible<(), MergeError>;
    type SerializeTupleStruct = ser::Impossible<(), MergeError>;
    type SerializeTupleVariant = ser::Impossible<(), MergeError>;
    type SerializeMap = MergeObject<'a>;
    type SerializeStruct = MergeObject<'a>;
    type SerializeStructVariant = ser::Impossible<(), MergeError>;

    fn serialize_bool(self, v: bool) -> Result<(), MergeError> {
        self.set(Value::Bool(v))
    }
    fn serialize_i8(self, v: i8) -> Result<(), MergeError> {
        self.serialize_i64(v.into())
    }
    fn serialize_i16(self, v: i16) -> Result<(), MergeError> {
        self.serialize_i64(v.into())
    }
    fn serialize_i32(self, v: i32) -> Result<(), MergeError> {
        self.serialize_i64(v.into())
    }
    fn serialize_i64(self, v: i64) -> Result<(), MergeError> {
        self.set(v.into())
    }
    fn serialize_u8(self, v: u8) -> Result<(), MergeError> {
        self.serialize_u64(v.into())
    }
    fn serialize_u16(self, v: u16) -> Result<(), MergeError> {
        self.serialize_u64(v.into())
    }
    fn serialize_u32(self, v: u32) -> Result<(), MergeError> {
        self.serialize_u64(v.into())
    }
    fn serialize_u64(self, v: u64) -> Result<(), MergeError> {
        self.set(v.into())
    }
    fn serialize_f32(self, v: f32) -> Result<(), MergeError> {
        self.serialize_f64(v.into())
    }
    fn serialize_f64(self, v: f64) -> Result<(), MergeError> {
        self.set(v.into())
    }
    fn serialize_char(self, v: char) -> Result<(), MergeError> {
        self.set(v.to_string().into())
    }
    fn serialize_str(self, v: &str) -> Result<(), MergeError> {
        if self.at.as_str() != Some(v) {
            *self.at = v.into();
        }
        Ok(())
    }
    fn serialize_bytes(self, v: &[u8]) -> Result<(), MergeError> {
        self.set(v.into())
    }
    fn serialize_none(self) -> Result<(), MergeError> {
        self.set(Value::Null)
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), MergeError> {
        value.serialize(self)
    }
    fn serialize_unit(self) -> Result<(), MergeError> {
        self.set(Value::Null)
    }
    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), MergeError> {
        self.set(Value::Null)
    }
    fn serialize_unit_variant(self, _name: &'static str, _index: u32, variant: &'static str) -> Result<(), MergeError> {
        self.serialize_str(variant)
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), MergeError> {
        value.serialize(self)
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        _index: u32,
        _variant: &'static str,
        _value: &T,
    ) -> Result<(), MergeError> {
        Err(MergeError(format!("{name} is an enum with data")))
    }
    fn serialize_seq(self, _len: Option<usize>) -> Result<MergeList<'a>, MergeError> {
        let fresh = !self.at.is_array();
        if fresh {
            *self.at = Value::Array(Vec::new());
        }
        Ok(MergeList { at: self.at, fresh, next: 0 })
    }
    fn serialize_tuple(self, _len: usize) -> Result<Self::SerializeTuple, MergeError> {
        Err(MergeError("a tuple has no place in an object".into()))
    }
    fn serialize_tuple_struct(self, name: &'static str, _: usize) -> Result<Self::SerializeTupleStruct, MergeError> {
        Err(MergeError(format!("{name} is a tuple")))
    }
    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self::SerializeTupleVariant, MergeError> {
        Err(MergeError(format!("{name} is an enum with data")))
    }
    fn serialize_map(self, _len: Option<usize>) -> Result<MergeObject<'a>, MergeError> {
        Ok(self.object())
    }
    fn serialize_struct(self, name: &'static str, _len: usize) -> Result<MergeObject<'a>, MergeError> {
        let mut object = self.object();
        object.drop_when_empty = NOTHING_WHEN_EMPTY.contains(&name);
        Ok(object)
    }
    fn serialize_struct_variant(
        self,
        name: &'static str,
        _index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self::SerializeStructVariant, MergeError> {
        Err(MergeError(format!("{name} is an enum with data")))
    }
}

#[cfg(test)]
mod tests {
    use api::types::apps::v1::Deployment;
    use api::types::core::v1::{EmptyDirVolumeSource, Pod};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_untouched_view_leaves_the_tree_as_it_was() {
        let trees = [
            json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "a"}, "spec": {"replicas": 1}}),
            json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "a", "labels": {}}}),
        ];
        for tree in trees {
            let mut after = tree.clone();
            edit(&mut after, |_: &mut Deployment| ()).expect("the tree fits");
            if tree.get("spec").is_some() {
                assert_eq!(after, tree);
            }
            assert_eq!(after["metadata"], tree["metadata"]);
        }
    }

    #[test]
    fn a_change_touches_only_what_changed() {
        let mut tree = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "a", "managedFields": [{"manager": "m", "fieldsV1": {"f:x": {}}}]},
            "spec": {"containers": [{"name": "c", "args": [], "image": "i"}], "volumes": [{"name": "v"}], "nodeName": "n"},
        });
        edit(&mut tree, |pod: &mut Pod| {
            let spec = pod.spec.as_mut().expect("a spec");
            spec.node_name = None;
            spec.host_network = Some(false);
            spec.volumes.as_mut().expect("volumes")[0].empty_dir = Some(EmptyDirVolumeSource::default());
        })
        .expect("the tree fits");
        assert_eq!(
            tree,
            json!({
                "kind": "Pod", "apiVersion": "v1",
                "metadata": {"name": "a", "managedFields": [{"manager": "m", "fieldsV1": {"f:x": {}}}]},
                "spec": {
                    "containers": [{"name": "c", "args": [], "image": "i"}],
                    "volumes": [{"name": "v", "emptyDir": {}}],
                    "hostNetwork": false,
                },
            })
        );
    }

    #[test]
    fn a_tree_that_does_not_fit_is_a_bad_request() {
        let mut tree = json!({"kind": "Pod", "apiVersion": "v1", "spec": {"containers": 3}});
        let before = tree.clone();
        let error = edit(&mut tree, |_: &mut Pod| ()).expect_err("it does not fit");
        assert_eq!(error.code, 400);
        assert_eq!(tree, before);
    }
}
