//! A document of OpenAPI v3 made of one of v2, for servers that have only that: operations, parameters and
//! schemas say the same in the other form; pure.

use serde_json::{Map, Value, json};

use crate::aggregation::Part;

const DEFINITIONS: &str = "#/definitions/";
const SCHEMAS: &str = "#/components/schemas/";
const PARAMETERS: &str = "#/parameters/";
const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];
/// Where an operation does not say what it takes and gives.
const ANYTHING: &str = "*/*";

/// The paths and schemas of a document of v3.
pub(super) struct Converted {
    pub paths: Map<String, Value>,
    pub schemas: Map<String, Value>,
}

impl Converted {
    pub(super) fn of(part: &Part) -> Self {
        let item = |item: &Value| path_item(item, &part.parameters);
        Self {
            paths: part.paths.iter().map(|(path, value)| (path.clone(), item(value))).collect(),
            schemas: part.definitions.iter().map(|(name, value)| (name.clone(), schema(value))).collect(),
        }
    }

    /// The document, below what `head` says of itself.
    pub(super) fn json(self, mut head: Value, security: &Value) -> Vec<u8> {
        head["paths"] = self.paths.into();
        head["components"] = json!({"schemas": self.schemas, "securitySchemes": security});
        head.to_string().into_bytes()
    }
}

/// The fields of these names, and those of vendors.
fn keep(from: &Value, names: &[&str]) -> Map<String, Value> {
    let fields = from.as_object().into_iter().flatten();
    let kept = fields.filter(|(name, _)| names.contains(&name.as_str()) || name.starts_with("x-"));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn list<'v>(of: &'v Value, field: &str) -> &'v [Value] {
    of.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn path_item(item: &Value, shared: &Map<String, Value>) -> Value {
    let mut out = keep(item, &[]);
    for method in METHODS {
        if let Some(one) = item.get(method) {
            out.insert(method.to_owned(), operation(one, shared));
        }
    }
    let (parameters, _) = parameters(item, shared);
    if !parameters.is_empty() {
        out.insert("parameters".to_owned(), parameters.into());
    }
    Value::Object(out)
}

/// The parameters, and the body, which is one of them in v2.
fn parameters<'v>(of: &'v Value, shared: &'v Map<String, Value>) -> (Vec<Value>, Option<&'v Value>) {
    let (mut out, mut body) = (Vec::new(), None);
    for one in list(of, "parameters") {
        let named = one.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix(PARAMETERS));
        let one = named.and_then(|name| shared.get(name)).unwrap_or(one);
        if one.get("in").and_then(Value::as_str) == Some("body") {
            body = Some(one);
            continue;
        }
        let mut parameter = keep(one, &["name", "in", "description", "required", "allowEmptyValue"]);
        let schema = one.get("schema").map_or_else(
            // What v2 says beside the name.
            || keep(one, &["type", "format", "uniqueItems", "items", "enum", "default"]).into(),
            schema,
        );
        parameter.insert("schema".to_owned(), schema);
        out.push(Value::Object(parameter));
    }
    (out, body)
}

/// The schema in each of the media types.
fn content(of: &Value, field: &str, schema: &Value) -> Value {
    let media = list(of, field).iter().filter_map(Value::as_str);
    let mut out: Map<String, Value> = media.map(|media| (media.to_owned(), json!({ "schema": schema }))).collect();
    if out.is_empty() {
        out.insert(ANYTHING.to_owned(), json!({ "schema": schema }));
    }
    Value::Object(out)
}

fn operation(of: &Value, shared: &Map<String, Value>) -> Value {
    let mut out = keep(of, &["description", "externalDocs", "tags", "summary", "deprecated", "operationId"]);
    let (parameters, body) = parameters(of, shared);
    if !parameters.is_empty() {
        out.insert("parameters".to_owned(), parameters.into());
    }
    if let Some(body) = body {
        let mut request = keep(body, &["description", "required"]);
        let of_body = body.get("schema").map(schema).unwrap_or_else(|| json!({}));
        request.insert("content".to_owned(), content(of, "consumes", &of_body));
        out.insert("requestBody".to_owned(), request.into());
    }
    let mut responses = Map::new();
    for (code, response) in of.get("responses").and_then(Value::as_object).into_iter().flatten() {
        let mut answer = keep(response, &["description"]);
        if let Some(of_response) = response.get("schema") {
            answer.insert("content".to_owned(), content(of, "produces", &schema(of_response)));
        }
        responses.insert(code.clone(), answer.into());
    }
    out.insert("responses".to_owned(), responses.into());
    Value::Object(out)
}

/// A schema: what it names is elsewhere, and a reference stands alone in v3.
fn schema(of: &Value) -> Value {
    let Some(fields) = of.as_object() else { return of.clone() };
    let mut out = Map::new();
    for (name, value) in fields {
        let converted = match name.as_str() {
            "$ref" => continue,
            "items" | "additionalProperties" | "additionalItems" | "not" if value.is_object() => schema(value),
            "items" | "allOf" | "anyOf" | "oneOf" => match value.as_array() {
                Some(all) => all.iter().map(schema).collect(),
                None => value.clone(),
            },
            "properties" | "patternProperties" => match value.as_object() {
                Some(all) => {
                    all.iter().map(|(name, value)| (name.clone(), schema(value))).collect::<Map<_, _>>().into()
                }
                None => value.clone(),
            },
            _ => value.clone(),
        };
        out.insert(name.clone(), converted);
    }
    if let Some(to) = fields.get("$ref").and_then(Value::as_str) {
        let place = to.strip_prefix(DEFINITIONS).map_or_else(|| to.to_owned(), |name| format!("{SCHEMAS}{name}"));
        let reference = json!({"$ref": place});
        if out.is_empty() {
            return reference;
        }
        out.insert("allOf".to_owned(), json!([reference]));
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_name_others_where_they_are() {
        for (v2, v3) in [
            (json!({"$ref": "#/definitions/A"}), json!({"$ref": "#/components/schemas/A"})),
            (
                json!({"$ref": "#/definitions/A", "description": "d", "default": {}}),
                json!({"allOf": [{"$ref": "#/components/schemas/A"}], "description": "d", "default": {}}),
            ),
            (
                json!({"type": "object", "required": ["a"], "properties": {"$ref": {"type": "string"},
                    "a": {"type": "array", "items": {"$ref": "#/definitions/A"}}},
                    "additionalProperties": {"$ref": "#/definitions/A"}, "x-kubernetes-map-type": "atomic"}),
                json!({"type": "object", "required": ["a"], "properties": {"$ref": {"type": "string"},
                    "a": {"type": "array", "items": {"$ref": "#/components/schemas/A"}}},
                    "additionalProperties": {"$ref": "#/components/schemas/A"}, "x-kubernetes-map-type": "atomic"}),
            ),
            // What is no schema stays what it is.
            (
                json!({"additionalProperties": false, "properties": 5}),
                json!({"additionalProperties": false, "properties": 5}),
            ),
            (json!("what"), json!("what")),
        ] {
            assert_eq!(schema(&v2), v3, "{v2}");
        }
    }

    #[test]
    fn operations_say_the_same() {
        let shared = json!({"limit-1": {"name": "limit", "in": "query", "type": "integer", "uniqueItems": true}});
        let shared = shared.as_object().expect("an object");
        let item = json!({
            "post": {"description": "make", "operationId": "makeFoo", "consumes": ["application/json"],
                "produces": ["application/json", "application/yaml"], "x-kubernetes-action": "post",
                "parameters": [{"name": "body", "in": "body", "required": true, "schema": {"$ref": "#/definitions/A"}},
                    {"$ref": "#/parameters/limit-1"}],
                "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/A"}},
                    "401": {"description": "no"}}},
            "parameters": [{"name": "name", "in": "path", "required": true, "type": "string"}],
        });
        let a = json!({"schema": {"$ref": "#/components/schemas/A"}});
        let want = json!({
            "post": {"description": "make", "operationId": "makeFoo", "x-kubernetes-action": "post",
                "parameters": [{"name": "limit", "in": "query", "schema": {"type": "integer", "uniqueItems": true}}],
                "requestBody": {"required": true, "content": {"application/json": a}},
                "responses": {"200": {"description": "OK",
                    "content": {"application/json": a, "application/yaml": a}}, "401": {"description": "no"}}},
            "parameters": [{"name": "name", "in": "path", "required": true, "schema": {"type": "string"}}],
        });
        assert_eq!(path_item(&item, shared), want);
        assert_eq!(path_item(&json!([]), shared), json!({}));
    }
}
