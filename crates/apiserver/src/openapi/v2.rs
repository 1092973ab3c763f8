//! OpenAPI v2, everything in one document: what clients older than v3 read.

use machinery::schema::Type;
use serde_json::{Map, Value, json};

use super::model::{self, Form};
use super::paths::{self, Operation, Parameter, Path};
use super::{Pieces, gnostic, v3};
use crate::discovery::Group;

fn head(server: &str) -> Value {
    json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": server}})
}

/// Writes the document as JSON.
pub(super) fn json(groups: &[Group], server: &str) -> Vec<u8> {
    let mut out = Pieces::start(&head(server));
    out.open("paths");
    each_path(groups, |path, item| out.field(path, &item));
    out.close();
    out.open("definitions");
    each_definition(groups, |name, definition| out.field(name, &definition));
    out.close();
    out.field(
        "securityDefinitions",
        &json!({"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}}),
    );
    out.field("security", &json!([{"BearerToken": []}]));
    out.finish()
}

/// Writes the document as protobuf.
pub(super) fn protobuf(groups: &[Group], server: &str) -> Vec<u8> {
    let mut out = gnostic::Document::start(&head(server));
    let mut paths = gnostic::Paths::default();
    each_path(groups, |path, item| paths.add(path, &item));
    out.paths(paths);
    let mut definitions = gnostic::Definitions::default();
    each_definition(groups, |name, definition| definitions.add(name, &definition));
    out.definitions(definitions);
    out.finish()
}

fn each_path(groups: &[Group], mut add: impl FnMut(&str, Value)) {
    for group in groups {
        for version in &group.versions {
            for path in paths::of(group.name, version) {
                add(&path.path, item(&path));
            }
        }
    }
}

fn each_definition(groups: &[Group], mut add: impl FnMut(&str, Value)) {
    let served: Vec<(&str, &str)> = groups.iter().flat_map(|g| g.versions.iter().map(|v| (g.name, v.name))).collect();
    let roots = v3::roots(groups.iter().flat_map(|g| &g.versions));
    let types = model::reach(roots.iter().map(Type::get));
    for (name, definition) in model::definitions(&types, Form::V2, &served) {
        add(&name, definition);
    }
}

fn parameter(p: &Parameter) -> Value {
    let mut out = json!({"name": p.name, "in": p.place, "type": p.kind, "uniqueItems": true});
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

/// What a status code is called.
pub(super) fn describe(code: u16) -> &'static str {
    match code {
        201 => "Created",
        202 => "Accepted",
        _ => "OK",
    }
}

/// What the operation does to which kind.
pub(super) fn extend(out: &mut Value, o: &Operation) {
    if o.action.is_empty() {
        return;
    }
    let (group, version, kind) = &o.kind;
    out["x-kubernetes-action"] = json!(o.action);
    out["x-kubernetes-group-version-kind"] = json!({"group": group, "kind": kind, "version": version});
}

fn operation(o: &Operation) -> Value {
    let reply = match &o.reply {
        Some(definition) => model::reference(Form::V2, definition),
        None => json!({"type": "string"}),
    };
    let mut responses: Map<String, Value> = o
        .codes
        .iter()
        .map(|code| (code.to_string(), json!({"description": describe(*code), "schema": reply})))
        .collect();
    responses.insert("401".into(), json!({"description": "Unauthorized"}));
    let mut parameters: Vec<Value> = Vec::new();
    if let Some(body) = &o.body {
        let mut body = json!({"name": "body", "in": "body", "schema": model::reference(Form::V2, body)});
        if o.method != "delete" {
            body["required"] = json!(true);
        }
        parameters.push(body);
    }
    parameters.extend(o.parameters.iter().map(parameter));
    let consumes = if o.method == "patch" { paths::patch_types() } else { vec!["*/*"] };
    let produces = if o.reply.is_some() { paths::TYPES } else { &["text/plain"] };
    let mut out = json!({
        "tags": [o.tag], "operationId": o.id, "consumes": consumes, "produces": produces,
        "schemes": ["https"], "responses": responses,
    });
    if !parameters.is_empty() {
        out["parameters"] = Value::Array(parameters);
    }
    extend(&mut out, o);
    out
}
