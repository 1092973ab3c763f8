//! Custom resources through decoding, apply and encoding.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::decode::{Format, Strictness, decode};
use crate::managed::{self, Manager};
use crate::{encode, schema};

const META: &str = "\
package meta/v1 meta.k8s.io
type ManagedFieldsEntry
 manager 1 string oi
 operation 2 string oi
 apiVersion 3 string oi
 time 4 Time opi
 fieldsType 6 string oi
 fieldsV1 7 FieldsV1 opi
type ObjectMeta
 name 1 string oi
 namespace 3 string oi
 generation 7 int64 oi
 creationTimestamp 8 Time oiz
 labels 11 map[string]string oi
 annotations 12 map[string]string oi
 managedFields 17 []ManagedFieldsEntry oi atomic
";

fn object_meta() -> schema::Type {
    let table = Arc::new(schema::Table::parse(META).expect("a table"));
    table.find("meta/v1", "ObjectMeta").expect("ObjectMeta")
}

fn types(spec: Value) -> schema::Type {
    let names = Names { group: "example.com", version: "v1", kind: "Foo" };
    schema(spec).types(names, &object_meta()).expect("types")
}

fn foo() -> schema::Type {
    types(json!({"type": "object", "properties": {
        "n": {"type": "integer"},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                 "items": {"type": "object", "properties": {"k": {"type": "string", "default": "d"}, "v": {"type": "integer"}}}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"known": {"type": "object"}}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
    }}))
}

fn read(body: &str, strictness: Strictness) -> Result<(Value, Vec<String>), String> {
    let decoded = decode(body.as_bytes(), Format::Json, &foo(), strictness).map_err(|status| status.message)?;
    Ok((decoded.value, decoded.warnings))
}

#[test]
fn any_value_is_read_and_what_is_unknown_is_told() {
    let body = r#"{"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a", "x": 1},
        "spec": {"n": "three", "n": 1.0, "z": 1, "open": {"y": [{"x": null}], "known": {"q": 1}}, "list": [{"k": null, "o": 1}],
        "set": {"a": 1}, "map": {"a": 18446744073709551615}}, "status": {}}"#;
    let (value, warnings) = read(body, Strictness::Warn).expect("reads");
    assert_eq!(
        value,
        json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a"}, "spec": {
            "n": 1, "open": {"y": [{"x": null}], "known": {}}, "list": [{"k": null}], "set": {},
            "map": {"a": 18_446_744_073_709_551_615_u64 as f64},
        }})
    );
    assert_eq!(
        warnings,
        [
            "duplicate field \"spec.n\"",
            "unknown field \"metadata.x\"",
            "unknown field \"spec.list[0].o\"",
            "unknown field \"spec.open.known.q\"",
            "unknown field \"spec.set.a\"",
            "unknown field \"spec.z\"",
            "unknown field \"status\"",
        ]
    );
    assert_eq!(
        read(r#"{"spec": {"z": 1}}"#, Strictness::Strict).expect_err("strict"),
        "Foo in version \"v1\" cannot be handled as a Foo: strict decoding error: unknown field \"spec.z\""
    );
    assert_eq!(
        read(r#"{"apiVersion": "example.com/v2"}"#, Strictness::Ignore).expect_err("another version"),
        "the API version in the data (example.com/v2) does not match the expected API version (example.com/v1)"
    );
    assert_eq!(
        read(r#"{"metadata": {"name": 3}}"#, Strictness::Ignore).expect_err("no name"),
        "Foo in version \"v1\" cannot be handled as a Foo: json: cannot unmarshal number into Go struct field \
         ObjectMeta.name of type string"
    );
    let deep = format!("{{\"spec\":{{\"open\":{}{}}}}}", "[".repeat(200), "]".repeat(200));
    assert!(read(&deep, Strictness::Ignore).expect_err("too deep").ends_with("exceeded max depth"));
}

#[test]
fn yaml_reads_alike() {
    let body = "apiVersion: example.com/v1\nkind: Foo\nmetadata: {name: a}\nspec: {\"n\": 1.0, z: 1}\n";
    let decoded = decode(body.as_bytes(), Format::Yaml, &foo(), Strictness::Warn).expect("reads");
    assert_eq!(decoded.value["spec"], json!({"n": 1}));
    assert_eq!(decoded.warnings, ["unknown field \"spec.z\""]);
}

#[test]
fn members_are_written_by_name_and_numbers_as_go_writes_them() {
    let value = json!({"kind": "Foo", "apiVersion": "example.com/v1", "alpha": 1, "spec": {"z": 0.5, "a": 1e30, "b": null},
                       "metadata": {"name": "a", "managedFields": [{"manager": "m", "fieldsV1": "{\"f:spec\":{}}"}]}});
    assert_eq!(
        String::from_utf8(encode::json(&value, &foo())).expect("text"),
        r#"{"alpha":1,"apiVersion":"example.com/v1","kind":"Foo","metadata":{"managedFields":[{"fieldsV1":{"f:spec":{}},"manager":"m"}],"name":"a"},"spec":{"a":1e+30,"b":null,"z":0.5}}"#
    );
}

fn manager(name: &str) -> Manager {
    Manager {
        name: name.to_owned(),
        api_version: "example.com/v1".to_owned(),
        also: Vec::new(),
        subresource: String::new(),
        reset: &[],
        now: "2026-01-02T03:04:05Z".parse().expect("a time"),
    }
}

/// What each manager owns of an object.
fn owned(object: &Value) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let of = |entry: &Value| {
        let fields = managed::fields_json(&entry["fieldsV1"]).into_owned();
        let fields: Value = serde_json::from_str(&fields).expect("fields");
        (entry["manager"].as_str().unwrap_or_default().to_owned(), fields["f:spec"].clone())
    };
    Value::from_iter(entries.map(of))
}

/// An object that somebody else created.
fn created(foo: &schema::Type, spec: Value) -> Value {
    let mut object = head(spec);
    managed::update(None, &mut object, foo, &manager("zero"));
    object
}

fn head(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a"}, "spec": spec})
}

#[test]
fn apply_owns_and_merges_by_the_schema() {
    let foo = foo();
    let one = head(json!({"list": [{"k": "x", "v": 1}, {"v": 2}], "set": ["a"], "open": {"y": {"z": [1]}},
                          "map": {"m": "1"}, "whole": {"a": "1"}}));
    let first = managed::apply(None, &one, &foo, &manager("one"), false).expect("applied");
    assert_eq!(
        owned(&first)["one"],
        json!({
            "f:list": {"k:{\"k\":\"d\"}": {".": {}, "f:v": {}}, "k:{\"k\":\"x\"}": {".": {}, "f:k": {}, "f:v": {}}},
            "f:map": {"f:m": {}},
            "f:open": {"f:y": {"f:z": {}}},
            "f:set": {"v:\"a\"": {}},
            "f:whole": {},
        })
    );
    let two = head(json!({"list": [{"k": "x", "v": 1}], "set": ["b"], "open": {"y": {"w": 1}}}));
    let second = managed::apply(Some(&first), &two, &foo, &manager("two"), false).expect("applied");
    assert_eq!(second["spec"]["set"], json!(["a", "b"]));
    assert_eq!(second["spec"]["open"], json!({"y": {"z": [1], "w": 1}}));
    let other = head(json!({"open": {"y": {"z": [2]}}}));
    let conflict = managed::apply(Some(&second), &other, &foo, &manager("two"), false).expect_err("a conflict");
    assert_eq!(conflict.code, 409);
    let gone = head(json!({"set": []}));
    let third = managed::apply(Some(&second), &gone, &foo, &manager("one"), false).expect("applied");
    assert_eq!(third["spec"], json!({"list": [{"k": "x", "v": 1}], "set": ["b"], "open": {"y": {"w": 1}}}));
}

#[test]
fn an_update_of_what_nobody_specifies_is_owned() {
    let foo = foo();
    let old = created(&foo, json!({"open": {"y": 1, "z": {"a": 1}}}));
    let mut new = head(json!({"open": {"y": 2, "z": {"a": 1, "b": [1]}}, "n": 1}));
    managed::update(Some(&old), &mut new, &foo, &manager("one"));
    assert_eq!(owned(&new)["one"], json!({"f:n": {}, "f:open": {"f:y": {}, "f:z": {"f:b": {}}}}));
}

#[test]
fn structs_may_be_wider_than_any_built_in() {
    let many: serde_json::Map<String, Value> =
        (0..300).map(|i| (format!("f{i}"), json!({"type": "integer"}))).collect();
    let wide = types(json!({"type": "object", "properties": many}));
    let spec: serde_json::Map<String, Value> = (0..300).map(|i| (format!("f{i}"), json!(i))).collect();
    let object = head(Value::Object(spec));
    let body = object.to_string();
    let decoded = decode(body.as_bytes(), Format::Json, &wide, Strictness::Strict).expect("reads");
    assert_eq!(decoded.value, object);
    let old = created(&wide, object["spec"].clone());
    let mut new = object;
    new["spec"]["f299"] = json!(0);
    new["spec"]["f0"] = json!(1);
    managed::update(Some(&old), &mut new, &wide, &manager("one"));
    assert_eq!(owned(&new)["one"], json!({"f:f0": {}, "f:f299": {}}));
}
