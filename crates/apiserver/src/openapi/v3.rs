//! One document of OpenAPI v3: the paths of one version of a group, or of one of the few others, and
//! the types they name.

use kinds::SharedKind;
use serde_json::{Map, Value, json};

use super::gnostic::v3 as gnostic;
use super::model::{self, Form, Registered};
use super::parameters::Parameter;
use super::paths::{Operation, Path};
use super::{Pieces, Source, v2};

pub(super) fn head(server: &str) -> Value {
    json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": server}})
}

/// Writes the document as JSON.
pub(super) fn json(
    source: &Source,
    paths: &[Path],
    kinds: &[SharedKind],
    registered: &Registered,
    server: &str,
) -> Vec<u8> {
    let mut out = Pieces::start(&head(server));
    out.open("paths");
    for path in paths {
        out.field(&path.path, &item(path));
    }
    out.close();
    out.open("components");
    let reach = source.reach(paths, kinds);
    let mut definitions = reach.definitions(Form::V3, &source.texts, registered).peekable();
    if definitions.peek().is_some() {
        out.open("schemas");
        for (name, definition) in definitions {
            out.field(name, &definition);
        }
        out.close();
    }
    out.field("securitySchemes", &super::security());
    out.close();
    out.finish()
}

/// Writes the document as protobuf.
pub(super) fn protobuf(
    source: &Source,
    paths: &[Path],
    kinds: &[SharedKind],
    registered: &Registered,
    server: &str,
) -> Vec<u8> {
    let mut out = gnostic::Document::start(&head(server));
    out.paths(paths.iter().map(|path| (path.path.as_str(), item(path))));
    let reach = source.reach(paths, kinds);
    let definitions = reach.definitions(Form::V3, &source.texts, registered);
    out.components(definitions, &super::security());
    out.finish()
}

fn parameter(p: &Parameter) -> Value {
    let mut out = json!({
        "name": p.name, "in": p.place, "description": p.text, "schema": {"type": p.kind, "uniqueItems": true},
    });
    if p.place == "path" {
        out["required"] = json!(true);
    }
    out
}

fn item(path: &Path) -> Value {
    let mut out = Map::new();
    if !path.parameters.is_empty() {
        out.insert("parameters".into(), path.parameters.iter().map(parameter).collect());
    }
    for o in &path.operations {
        out.insert(o.method.to_owned(), operation(o));
    }
    Value::Object(out)
}

fn content(types: &[&str], schema: &Value) -> Value {
    Value::Object(types.iter().map(|media| ((*media).to_owned(), json!({ "schema": schema }))).collect())
}

fn operation(o: &Operation) -> Value {
    let reply = match &o.reply {
        Some(definition) => model::reference(Form::V3, definition),
        None => json!({"type": "string"}),
    };
    let reply = content(&o.produces, &reply);
    let mut responses: Map<String, Value> = o
        .codes
        .iter()
        .map(|code| (code.to_string(), json!({"description": v2::describe(*code), "content": reply})))
        .collect();
    responses.insert("401".into(), json!({"description": "Unauthorized"}));
    let mut out = json!({"tags": [o.tag], "operationId": o.id, "description": o.text, "responses": responses});
    if !o.parameters.is_empty() {
        out["parameters"] = o.parameters.iter().map(parameter).collect();
    }
    if let Some((body, required)) = &o.body {
        out["requestBody"] = json!({"content": content(&o.consumes, &model::reference(Form::V3, body))});
        if *required {
            out["requestBody"]["required"] = json!(true);
        }
    }
    v2::extend(&mut out, o);
    out
}
