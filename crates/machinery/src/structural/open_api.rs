//! A schema as it is published: OpenAPI v3 as it was written, v2 without what v2 and its readers do not
//! know.
//!
//! ```text
//! v3   x-kubernetes-int-or-string gets its two types; objects get apiVersion, kind and metadata
//! v2   no allOf, anyOf, oneOf, not; what is nullable or keeps unknown fields has neither type nor structure
//! ```

use serde_json::{Map, Value, json};

/// The version of OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    V2,
    V3,
}

/// The schemas of what every object has.
#[derive(Clone, Debug)]
pub struct Head {
    pub api_version: Value,
    pub kind: Value,
    pub metadata: Value,
}

/// The schema of a version in a form. `own` is the head of its objects, `embedded` that of objects inside
/// of them.
pub fn publish(open_api_v3_schema: Option<&Value>, form: Form, own: &Head, embedded: &Head) -> Value {
    let Some(Value::Object(map)) = open_api_v3_schema else { return json!({"type": "object"}) };
    // Whoever reads v2 takes what is not listed for forbidden.
    if form == Form::V2 && flag(map, "x-kubernetes-preserve-unknown-fields") {
        return json!({"type": "object"});
    }
    let mut map = map.clone();
    node(&mut map, form, embedded);
    let properties = properties(&mut map);
    properties.insert("metadata".to_owned(), own.metadata.clone());
    properties.insert("apiVersion".to_owned(), own.api_version.clone());
    properties.insert("kind".to_owned(), own.kind.clone());
    Value::Object(map)
}

fn flag(map: &Map<String, Value>, name: &str) -> bool {
    map.get(name) == Some(&Value::Bool(true))
}

fn properties(map: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let properties = map.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    if !properties.is_object() {
        *properties = Value::Object(Map::new());
    }
    match properties {
        Value::Object(properties) => properties,
        _ => unreachable!("made an object above"),
    }
}

/// Everything of structure below a schema.
fn each(map: &mut Map<String, Value>, visit: &mut dyn FnMut(&mut Map<String, Value>)) {
    for name in ["items", "additionalProperties"] {
        if let Some(Value::Object(inner)) = map.get_mut(name) {
            visit(inner);
        }
    }
    let inner = map.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten();
    inner.filter_map(|(_, schema)| schema.as_object_mut()).for_each(visit);
}

fn node(map: &mut Map<String, Value>, form: Form, embedded: &Head) {
    map.retain(|name, value| !(value.is_null() && matches!(name.as_str(), "default" | "example")));
    if form == Form::V3 {
        unfold(map);
    } else {
        for name in ["allOf", "anyOf", "oneOf", "not"] {
            map.remove(name);
        }
        reduce(map);
    }
    each(map, &mut |inner| node(inner, form, embedded));
    let keeps = flag(map, "x-kubernetes-preserve-unknown-fields");
    if flag(map, "x-kubernetes-embedded-resource") && !(form == Form::V2 && keeps) {
        let properties = properties(map);
        properties.insert("apiVersion".to_owned(), embedded.api_version.clone());
        properties.insert("kind".to_owned(), embedded.kind.clone());
        properties.insert("metadata".to_owned(), embedded.metadata.clone());
        let required = map.entry("required").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(required) = required {
            for name in ["kind", "apiVersion"] {
                if !required.iter().any(|known| known == name) {
                    required.push(name.into());
                }
            }
        }
    }
}

/// Says the two types of an int-or-string, when the schema itself does not.
fn unfold(map: &mut Map<String, Value>) {
    let types = json!([{"type": "integer"}, {"type": "string"}]);
    let first = map.get("allOf").and_then(|all_of| all_of.get(0)).and_then(|first| first.get("anyOf"));
    if !flag(map, "x-kubernetes-int-or-string") || map.get("anyOf") == Some(&types) || first == Some(&types) {
        return;
    }
    if map.get("anyOf").is_none_or(Value::is_null) {
        map.insert("anyOf".to_owned(), types);
        return;
    }
    let all_of = map.entry("allOf").or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(all_of) = all_of {
        all_of.insert(0, json!({"anyOf": types}));
    }
}

/// Takes away what readers of v2 cannot cope with.
fn reduce(map: &mut Map<String, Value>) {
    let keeps = flag(map, "x-kubernetes-preserve-unknown-fields");
    if flag(map, "nullable") {
        map.remove("type");
    }
    if flag(map, "nullable") || keeps {
        map.remove("items");
        map.remove("properties");
    }
    map.remove("nullable");
    let kind = map.get("type").and_then(Value::as_str);
    let untyped = match kind {
        Some("array") => map.get("items").is_none_or(Value::is_null),
        Some("object") => keeps,
        _ => false,
    };
    if untyped {
        map.remove("type");
    }
    let nullable = |schema: Option<&Value>| schema.and_then(|s| s.get("nullable")) == Some(&Value::Bool(true));
    let Some(Value::Array(mut required)) = map.remove("required") else { return };
    if !nullable(map.get("additionalProperties")) {
        let properties = map.get("properties");
        required.retain(|name| {
            !nullable(name.as_str().and_then(|name| properties.and_then(|properties| properties.get(name))))
        });
        if !required.is_empty() {
            map.insert("required".to_owned(), Value::Array(required));
        }
    }
}
