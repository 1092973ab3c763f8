//! The messages of `openapi.v2`: what kubectl before 1.29 reads, and what client-go asks for still.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Message, any, info, list, strings, wrapped};

/// The whole document.
pub(in crate::openapi) struct Document(Message);

impl Document {
    pub(in crate::openapi) fn start(head: &Value) -> Self {
        let mut out = Message::default();
        out.text(1, head.get("swagger"));
        out.message(2, &info(head, 1, 2));
        Self(out)
    }

    pub(in crate::openapi) fn paths<'a>(&mut self, all: impl Iterator<Item = (&'a str, Value)>) {
        let mut paths = Message::default();
        for (path, item) in all {
            paths.named(2, path, &path_item(&item));
        }
        self.0.message(8, &paths);
    }

    pub(in crate::openapi) fn definitions<'a>(&mut self, all: impl Iterator<Item = (&'a str, Value)>) {
        let mut definitions = Message::default();
        for (name, definition) in all {
            definitions.named(1, name, &schema(&definition));
        }
        self.0.message(9, &definitions);
    }

    pub(in crate::openapi) fn finish(
        mut self,
        parameters: &BTreeMap<String, Value>,
        security: &Value,
        definitions: &Value,
    ) -> Vec<u8> {
        let mut shared = Message::default();
        for (name, p) in parameters {
            shared.named(1, name, &parameter(p));
        }
        self.0.message(10, &shared);
        for requirement in list(Some(security)) {
            let mut out = Message::default();
            out.entries(1, Some(requirement), strings);
            self.0.message(12, &out);
        }
        let mut out = Message::default();
        out.entries(1, Some(definitions), |definition| {
            let mut key = Message::default();
            key.text(1, definition.get("type"));
            key.text(2, definition.get("name"));
            key.text(3, definition.get("in"));
            key.text(4, definition.get("description"));
            wrapped(2, &key)
        });
        self.0.message(13, &out);
        self.0.0
    }
}

fn path_item(item: &Value) -> Message {
    let mut out = Message::default();
    for (field, method) in
        [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (6, "options"), (7, "head"), (8, "patch")]
    {
        if let Some(o) = item.get(method) {
            out.message(field, &operation(o));
        }
    }
    parameters(&mut out, 9, item);
    out
}

fn operation(o: &Value) -> Message {
    let mut out = Message::default();
    out.texts(1, o.get("tags"));
    out.text(3, o.get("description"));
    out.text(5, o.get("operationId"));
    out.texts(6, o.get("produces"));
    out.texts(7, o.get("consumes"));
    parameters(&mut out, 8, o);
    let mut responses = Message::default();
    responses.entries(1, o.get("responses"), |response| {
        let mut body = Message::default();
        body.text(1, response.get("description"));
        if let Some(s) = response.get("schema") {
            body.message(2, &wrapped(1, &schema(s)));
        }
        wrapped(1, &body)
    });
    out.message(9, &responses);
    out.texts(10, o.get("schemes"));
    out.extensions(13, o);
    out
}

fn parameters(out: &mut Message, field: u32, of: &Value) {
    for p in list(of.get("parameters")) {
        if p.get("$ref").is_some() {
            let mut reference = Message::default();
            reference.text(1, p.get("$ref"));
            out.message(field, &wrapped(2, &reference));
        } else {
            out.message(field, &wrapped(1, &parameter(p)));
        }
    }
}

fn parameter(p: &Value) -> Message {
    let place = p.get("in").and_then(Value::as_str).unwrap_or_default();
    if place == "body" {
        let mut body = Message::default();
        body.text(1, p.get("description"));
        body.text(2, p.get("name"));
        body.text(3, p.get("in"));
        body.flag(4, p.get("required"));
        if let Some(s) = p.get("schema") {
            body.message(5, &schema(s));
        }
        return wrapped(1, &body);
    }
    // A query parameter has one field more before its type.
    let (alternative, one) = if place == "query" { (3, 1) } else { (4, 0) };
    let mut sub = Message::default();
    sub.flag(1, p.get("required"));
    sub.text(2, p.get("in"));
    sub.text(3, p.get("description"));
    sub.text(4, p.get("name"));
    sub.text(5 + one, p.get("type"));
    sub.text(6 + one, p.get("format"));
    sub.flag(19 + one, p.get("uniqueItems"));
    wrapped(2, &wrapped(alternative, &sub))
}

fn schema(s: &Value) -> Message {
    let mut out = Message::default();
    out.text(1, s.get("$ref"));
    out.text(2, s.get("format"));
    out.text(4, s.get("description"));
    if let Some(default) = s.get("default") {
        out.message(5, &any(default));
    }
    out.texts(19, s.get("required"));
    if let Some(inner) = s.get("additionalProperties") {
        out.message(21, &wrapped(1, &schema(inner)));
    }
    if s.get("type").is_some() {
        let mut item = Message::default();
        item.text(1, s.get("type"));
        out.message(22, &item);
    }
    if let Some(inner) = s.get("items") {
        out.message(23, &wrapped(1, &schema(inner)));
    }
    if s.get("properties").is_some() {
        let mut properties = Message::default();
        properties.entries(1, s.get("properties"), schema);
        out.message(25, &properties);
    }
    out.extensions(31, s);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_becomes_its_message() {
        let out = schema(&json!({"type": "array", "items": {"$ref": "#/d/A"}, "x-k": "v"}));
        let want = [
            &[0xb2, 0x01, 7, 0x0a, 5][..],
            b"array", // type = {value: [array]}
            &[0xba, 0x01, 9, 0x0a, 7, 0x0a, 5],
            b"#/d/A", // items = {schema: {_ref}}
            &[0xfa, 0x01, 11, 0x0a, 3],
            b"x-k",
            &[0x12, 4, 0x12, 2],
            b"v\n", // extension, as YAML
        ];
        assert_eq!(out.0, want.concat());
    }

    #[test]
    fn parameters_are_named_or_described() {
        let mut out = Message::default();
        parameters(&mut out, 8, &json!({"parameters": [{"$ref": "#/p/a"}, {"in": "path", "name": "n"}]}));
        let reference = [&[0x42, 9, 0x12, 7, 0x0a, 5][..], b"#/p/a"].concat();
        let described = [&[0x42, 15, 0x0a, 13, 0x12, 11, 0x22, 9, 0x12, 4][..], b"path", &[0x22, 1], b"n"].concat();
        assert_eq!(out.0, [reference, described].concat());
    }
}
