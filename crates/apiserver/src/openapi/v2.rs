//! OpenAPI v2, everything in one document: what clients older than v3 read.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use kinds::SharedKind;
use serde_json::{Map, Value, json};

use super::gnostic::v2 as gnostic;
use super::model::{self, Form, Registered};
use super::parameters::Parameter;
use super::paths::{Operation, Path};
use super::{Pieces, Source};

fn head(server: &str) -> Value {
    json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": server}})
}

fn tail() -> (Value, Value) {
    let bearer = super::bearer_token();
    (json!([{"BearerToken": []}]), json!({ "BearerToken": bearer }))
}

/// Writes the document as JSON.
pub(super) fn json(source: &Source, paths: &[Path], kinds: &[SharedKind], server: &str) -> Vec<u8> {
    let mut out = Pieces::start(&head(server));
    let mut shared = Shared::default();
    out.open("paths");
    for path in paths {
        out.field(&path.path, &item(path, &mut shared));
    }
    out.close();
    out.open("definitions");
    for (name, definition) in source.reach(paths, kinds).definitions(Form::V2, &source.texts, &Registered::all()) {
        out.field(name, &definition);
    }
    out.close();
    out.field("parameters", &Value::Object(shared.0.into_iter().collect()));
    let (security, definitions) = tail();
    out.field("security", &security);
    out.field("securityDefinitions", &definitions);
    out.finish()
}

/// Writes the document as protobuf.
pub(super) fn protobuf(source: &Source, paths: &[Path], kinds: &[SharedKind], server: &str) -> Vec<u8> {
    let mut out = gnostic::Document::start(&head(server));
    let mut shared = Shared::default();
    out.paths(paths.iter().map(|path| (path.path.as_str(), item(path, &mut shared))));
    out.definitions(source.reach(paths, kinds).definitions(Form::V2, &source.texts, &Registered::all()));
    let (security, definitions) = tail();
    out.finish(&shared.0, &security, &definitions)
}

/// Parameters that belong to no one operation, under names made of their content.
#[derive(Default)]
struct Shared(BTreeMap<String, Value>);

impl Shared {
    /// A reference to the parameter, or itself when it is one that clients look for at its operation.
    fn put(&mut self, parameter: Value) -> Value {
        let (name, place) = (parameter["name"].as_str().unwrap_or_default(), parameter["in"].as_str());
        let stays = match (place, name) {
            (_, "name") | (Some("query"), "fieldValidation" | "dryRun") => true,
            (Some("body"), _) => {
                let of = parameter["schema"]["$ref"].as_str().unwrap_or_default();
                !of.starts_with("#/definitions/io.k8s.apimachinery")
            }
            _ => false,
        };
        if stays {
            return parameter;
        }
        let hash = URL_SAFE.encode(&fnv(parameter.to_string().as_bytes()).to_be_bytes()[..6]);
        let name = format!("{name}-{hash}");
        let reference = json!({"$ref": format!("#/parameters/{name}")});
        self.0.entry(name).or_insert(parameter);
        reference
    }
}

/// FNV-1 of 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, b| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*b))
}

fn parameter(p: &Parameter, shared: &mut Shared) -> Value {
    let mut out = json!({
        "name": p.name, "in": p.place, "description": p.text, "type": p.kind, "uniqueItems": true,
    });
    if p.place == "path" {
        out["required"] = json!(true);
    }
    shared.put(out)
}

fn item(path: &Path, shared: &mut Shared) -> Value {
    let mut out = Map::new();
    if !path.parameters.is_empty() {
        out.insert("parameters".into(), path.parameters.iter().map(|p| parameter(p, shared)).collect());
    }
    for o in &path.operations {
        out.insert(o.method.to_owned(), operation(o, shared));
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
    if let Some((action, (group, version, kind))) = &o.action {
        out["x-kubernetes-action"] = json!(action);
        out["x-kubernetes-group-version-kind"] = json!({"group": group, "kind": kind, "version": version});
    }
}

fn operation(o: &Operation, shared: &mut Shared) -> Value {
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
    if let Some((body, required)) = &o.body {
        let mut body = json!({"name": "body", "in": "body", "schema": model::reference(Form::V2, body)});
        if *required {
            body["required"] = json!(true);
        }
        parameters.push(shared.put(body));
    }
    parameters.extend(o.parameters.iter().map(|p| parameter(p, shared)));
    let mut out = json!({
        "tags": [o.tag], "operationId": o.id, "description": o.text, "produces": o.produces,
        "schemes": ["https"], "responses": responses,
    });
    if !o.consumes.is_empty() {
        out["consumes"] = json!(o.consumes);
    }
    if !parameters.is_empty() {
        out["parameters"] = Value::Array(parameters);
    }
    extend(&mut out, o);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_parameters_are_named_by_what_they_are() {
        // The published values of FNV-1.
        assert_eq!((fnv(b""), fnv(b"a")), (0xcbf2_9ce4_8422_2325, 0xaf63_bd4c_8601_b7be));
        let mut shared = Shared::default();
        let mut put = |parameter: Value| shared.put(parameter);
        let limit = json!({"name": "limit", "in": "query"});
        let reference = put(limit.clone());
        assert!(reference["$ref"].as_str().is_some_and(|r| r.starts_with("#/parameters/limit-") && r.len() == 27));
        assert_eq!(put(limit), reference);
        for own in [
            json!({"name": "name", "in": "path"}),
            json!({"name": "dryRun", "in": "query"}),
            json!({"name": "body", "in": "body", "schema": {"$ref": "#/definitions/io.k8s.api.core.v1.Pod"}}),
        ] {
            assert_eq!(put(own.clone()), own);
        }
        assert_eq!(shared.0.len(), 1);
    }
}
