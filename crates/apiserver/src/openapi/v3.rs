//! One document of OpenAPI v3: the paths and types of one version of a group.

use machinery::schema::Type;
use serde_json::{Map, Value, json};

use super::Pieces;
use super::model::{self, Form};
use super::paths::{self, Operation, Parameter, Path};
use crate::discovery::{self, Version};

/// Writes the document.
pub(super) fn document(group: &str, version: &Version, server: &str) -> Vec<u8> {
    let mut out = Pieces::start(&json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": server}}));
    out.open("paths");
    for path in paths::of(group, version) {
        out.field(&path.path, &item(&path));
    }
    out.close();
    out.open("components");
    out.open("schemas");
    let roots = roots(std::iter::once(version));
    let types = model::reach(roots.iter().map(Type::get));
    for (name, definition) in model::definitions(&types, Form::V3, &[(group, version.name)]) {
        out.field(&name, &definition);
    }
    out.close();
    out.field("securitySchemes", &json!({"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}}));
    out.close();
    out.finish()
}

/// The types the kinds of versions are, are listed as, and have as subresources.
pub(super) fn roots<'a>(versions: impl Iterator<Item = &'a Version>) -> Vec<Type> {
    let mut roots = paths::common();
    for kind in versions.flat_map(|v| &v.kinds) {
        let shape = kind.shape();
        roots.push(kind.schema());
        roots.extend(paths::list_type(shape));
        roots.extend(discovery::subresources(shape).iter().filter_map(|sub| paths::sub_type(shape, sub)));
    }
    roots
}

fn parameter(p: &Parameter) -> Value {
    let mut out = json!({"name": p.name, "in": p.place, "schema": {"type": p.kind, "uniqueItems": true}});
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

fn content(types: &[&str], definition: &str) -> Value {
    let one = |media: &&str| ((*media).to_owned(), json!({"schema": model::reference(Form::V3, definition)}));
    Value::Object(types.iter().map(one).collect())
}

fn operation(o: &Operation) -> Value {
    let reply = match &o.reply {
        Some(definition) => content(paths::TYPES, definition),
        None => json!({"text/plain": {"schema": {"type": "string"}}}),
    };
    let mut responses: Map<String, Value> = o
        .codes
        .iter()
        .map(|code| (code.to_string(), json!({"description": super::v2::describe(*code), "content": reply})))
        .collect();
    responses.insert("401".into(), json!({"description": "Unauthorized"}));
    let mut out = json!({"tags": [o.tag], "operationId": o.id, "responses": responses});
    if !o.parameters.is_empty() {
        out["parameters"] = o.parameters.iter().map(parameter).collect();
    }
    if let Some(body) = &o.body {
        let types = if o.method == "patch" { paths::patch_types() } else { paths::BODY_TYPES.to_vec() };
        out["requestBody"] = json!({"content": content(&types, body)});
        if o.method != "delete" {
            out["requestBody"]["required"] = json!(true);
        }
    }
    super::v2::extend(&mut out, o);
    out
}
