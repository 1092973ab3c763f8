//! What another server's document of OpenAPI v2 says of one version, and how that is added to this server's own;
//! pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";

/// The part of a document that is about one version.
#[derive(Debug, Default, PartialEq)]
pub struct Part {
    pub paths: Map<String, Value>,
    pub definitions: Map<String, Value>,
    pub parameters: Map<String, Value>,
}

/// Takes the paths at and below `root`, the kinds of the version, and what all these are made of.
///
/// # Errors
/// When it is no such document.
pub(super) fn part(body: &[u8], root: &str, group_version: &(String, String)) -> Result<Part, String> {
    let mut document: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if document.get("swagger").and_then(Value::as_str) != Some("2.0") {
        return Err("it is no document of OpenAPI v2".to_owned());
    }
    let mut take = |field: &str| match document.get_mut(field).map(Value::take) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let (mut paths, mut all, mut parameters) = (take("paths"), take("definitions"), take("parameters"));
    paths.retain(|path, _| path == root || path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/')));
    let mut used = References::default();
    paths.values().for_each(|path| used.gather(path));
    parameters.retain(|name, _| used.parameters.contains(name));
    parameters.values().for_each(|parameter| used.gather(parameter));
    let kinds = all.iter().filter(|(_, definition)| is_of(definition, group_version));
    let mut left: Vec<String> = kinds.map(|(name, _)| name.clone()).chain(used.definitions).collect();
    let mut definitions = Map::new();
    while let Some(name) = left.pop() {
        if let Some(definition) = all.remove(&name) {
            let mut named = References::default();
            named.gather(&definition);
            left.extend(named.definitions);
            definitions.insert(name, definition);
        }
    }
    Ok(Part { paths, definitions, parameters })
}

fn is_of(definition: &Value, (group, version): &(String, String)) -> bool {
    let kinds = definition.get("x-kubernetes-group-version-kind").and_then(Value::as_array);
    kinds.into_iter().flatten().any(|kind| kind["group"] == **group && kind["version"] == **version)
}

/// What a piece names.
#[derive(Default)]
struct References {
    definitions: BTreeSet<String>,
    parameters: BTreeSet<String>,
}

impl References {
    /// Documents are nested no deeper than their reader allows.
    fn gather(&mut self, piece: &Value) {
        match piece {
            Value::Array(items) => items.iter().for_each(|item| self.gather(item)),
            Value::Object(fields) => {
                if let Some(to) = fields.get("$ref").and_then(Value::as_str) {
                    if let Some(name) = to.strip_prefix(DEFINITIONS) {
                        self.definitions.insert(name.to_owned());
                    } else if let Some(name) = to.strip_prefix(PARAMETERS) {
                        self.parameters.insert(name.to_owned());
                    }
                }
                fields.values().for_each(|field| self.gather(field));
            }
            _ => {}
        }
    }
}

/// Adds the parts to a document. What it has already stays; a definition that is another of the same name
/// gets a name of its own.
pub fn add<'p>(document: &mut Value, parts: impl IntoIterator<Item = &'p Part>) {
    for part in parts {
        let Some(own) = document["definitions"].as_object() else { return };
        let (mut renamed, mut taken) = (BTreeMap::new(), BTreeSet::new());
        for (name, definition) in &part.definitions {
            if own.get(name).is_none_or(|other| other == definition) {
                continue;
            }
            // Neither what the document has, nor what the part has of that name, may be meant by it.
            let is_free = |new: &String| {
                own.get(new).is_none_or(|other| other == definition)
                    && !part.definitions.contains_key(new)
                    && !taken.contains(new)
            };
            let mut others = (2..).map(|number| format!("{name}_v{number}"));
            let Some(free) = others.find(is_free) else { continue };
            taken.insert(free.clone());
            renamed.insert(name.clone(), free);
        }
        let adapted = |piece: &Value| {
            let mut piece = piece.clone();
            rename(&mut piece, &renamed);
            piece
        };
        for (field, pieces) in [("paths", &part.paths), ("parameters", &part.parameters)] {
            let Some(own) = document[field].as_object_mut() else { continue };
            for (name, piece) in pieces {
                own.entry(name.clone()).or_insert_with(|| adapted(piece));
            }
        }
        let Some(own) = document["definitions"].as_object_mut() else { return };
        for (name, definition) in &part.definitions {
            let name = renamed.get(name).unwrap_or(name);
            own.entry(name.clone()).or_insert_with(|| adapted(definition));
        }
    }
}

fn rename(piece: &mut Value, renamed: &BTreeMap<String, String>) {
    match piece {
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, renamed)),
        Value::Object(fields) => {
            let to = fields.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix(DEFINITIONS));
            if let Some(name) = to.and_then(|name| renamed.get(name)) {
                fields.insert("$ref".to_owned(), format!("{DEFINITIONS}{name}").into());
            }
            fields.values_mut().for_each(|field| rename(field, renamed));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({
            "swagger": "2.0",
            "paths": {
                "/apis/g/v1/foos": {"get": {"parameters": [{"$ref": "#/parameters/limit-1"}],
                    "responses": {"200": {"schema": {"$ref": "#/definitions/Foo"}}}}},
                "/api/v1/pods": {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Pod"}}}}},
            },
            "parameters": {"limit-1": {"name": "limit"}, "other-1": {"name": "other"}},
            "definitions": {
                "Foo": {"properties": {"metadata": {"$ref": "#/definitions/Meta"}}},
                "Options": {"x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "Options"}]},
                "Meta": {"properties": {"name": {"type": "string"}}},
                "Pod": {},
            },
        })
    }

    /// `A` is another in the document, and what it would be called the part has itself.
    #[test]
    fn a_new_name_is_nobodys() {
        let reference = |to: &str| json!({"$ref": format!("#/definitions/{to}")});
        let map = |value: Value| value.as_object().cloned().expect("an object");
        let part = Part {
            paths: map(json!({"/p": {"a": reference("A"), "b": reference("A_v2"), "c": reference("A_v3")}})),
            definitions: map(json!({"A": {"x": 1}, "A_v2": {"x": 2}, "A_v3": {"x": 3}})),
            parameters: Map::new(),
        };
        let mut document = json!({"paths": {}, "parameters": {}, "definitions": {"A": {"x": 0}, "A_v3": {"x": 0}}});
        add(&mut document, [&part]);
        let of = |key: &str| {
            let to = document["paths"]["/p"][key]["$ref"].as_str().expect("a reference");
            document["definitions"][to.strip_prefix(DEFINITIONS).expect("a definition")]["x"].clone()
        };
        assert_eq!([of("a"), of("b"), of("c")], [json!(1), json!(2), json!(3)], "{document}");
    }

    #[test]
    fn what_is_of_the_version_is_taken_and_added() {
        let read =
            |document: &Value| part(document.to_string().as_bytes(), "/apis/g/v1", &("g".to_owned(), "v1".to_owned()));
        let part = read(&document()).expect("a part");
        let names = |map: &Map<String, Value>| map.keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(names(&part.paths), "/apis/g/v1/foos");
        assert_eq!(names(&part.definitions), "Foo Meta Options");
        assert_eq!(names(&part.parameters), "limit-1");
        let own = json!({"paths": {}, "parameters": {"limit-1": {"name": "mine"}},
            "definitions": {"Meta": {"properties": {}}, "Options": part.definitions["Options"]}});
        let mut merged = own.clone();
        add(&mut merged, [&part]);
        assert_eq!(merged["definitions"]["Meta"], own["definitions"]["Meta"], "what was there stays");
        assert_eq!(merged["definitions"]["Meta_v2"], part.definitions["Meta"]);
        let reference = &merged["definitions"]["Foo"]["properties"]["metadata"]["$ref"];
        assert_eq!(*reference, "#/definitions/Meta_v2");
        assert_eq!(merged["definitions"].as_object().map(Map::len), Some(4));
        assert_eq!(merged["parameters"]["limit-1"]["name"], "mine");
        assert!(merged["paths"]["/apis/g/v1/foos"].is_object());
        assert!(read(&json!({"swagger": "1.0"})).is_err());
        assert!(read(&json!([])).is_err());
    }
}
