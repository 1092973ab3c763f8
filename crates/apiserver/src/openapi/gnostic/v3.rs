//! The messages of `openapi.v3`: what clients with typed readers of v3 ask for.

use serde_json::Value;

use super::{Message, info, list, wrapped};

/// The whole document.
pub(in crate::openapi) struct Document(Message);

impl Document {
    pub(in crate::openapi) fn start(head: &Value) -> Self {
        let mut out = Message::default();
        out.text(1, head.get("openapi"));
        out.message(2, &info(head, 1, 6));
        Self(out)
    }

    pub(in crate::openapi) fn paths<'a>(&mut self, all: impl Iterator<Item = (&'a str, Value)>) {
        let mut paths = Message::default();
        for (path, item) in all {
            paths.named(1, path, &path_item(&item));
        }
        self.0.message(4, &paths);
    }

    pub(in crate::openapi) fn components<'a>(
        &mut self,
        definitions: impl Iterator<Item = (&'a str, Value)>,
        security: &Value,
    ) {
        let mut components = Message::default();
        let mut schemas = Message::default();
        for (name, definition) in definitions {
            schemas.named(1, name, &schema(&definition));
        }
        if !schemas.0.is_empty() {
            components.message(1, &schemas);
        }
        let mut schemes = Message::default();
        schemes.entries(1, Some(security), |scheme| {
            let mut out = Message::default();
            out.text(1, scheme.get("type"));
            out.text(2, scheme.get("description"));
            out.text(3, scheme.get("name"));
            out.text(4, scheme.get("in"));
            wrapped(1, &out)
        });
        components.message(7, &schemes);
        self.0.message(5, &components);
    }

    pub(in crate::openapi) fn finish(self) -> Vec<u8> {
        self.0.0
    }
}

fn path_item(item: &Value) -> Message {
    let mut out = Message::default();
    for (field, method) in
        [(4, "get"), (5, "put"), (6, "post"), (7, "delete"), (8, "options"), (9, "head"), (10, "patch")]
    {
        if let Some(o) = item.get(method) {
            out.message(field, &operation(o));
        }
    }
    parameters(&mut out, 13, item);
    out
}

fn operation(o: &Value) -> Message {
    let mut out = Message::default();
    out.texts(1, o.get("tags"));
    out.text(3, o.get("description"));
    out.text(5, o.get("operationId"));
    parameters(&mut out, 6, o);
    if let Some(body) = o.get("requestBody") {
        let mut inner = Message::default();
        inner.message(2, &content(body));
        inner.flag(3, body.get("required"));
        out.message(7, &wrapped(1, &inner));
    }
    let mut responses = Message::default();
    responses.entries(2, o.get("responses"), |response| {
        let mut inner = Message::default();
        inner.text(1, response.get("description"));
        if response.get("content").is_some() {
            inner.message(3, &content(response));
        }
        wrapped(1, &inner)
    });
    out.message(8, &responses);
    out.extensions(13, o);
    out
}

fn parameters(out: &mut Message, field: u32, of: &Value) {
    for p in list(of.get("parameters")) {
        let mut inner = Message::default();
        inner.text(1, p.get("name"));
        inner.text(2, p.get("in"));
        inner.text(3, p.get("description"));
        inner.flag(4, p.get("required"));
        if let Some(s) = p.get("schema") {
            inner.message(10, &schema(s));
        }
        out.message(field, &wrapped(1, &inner));
    }
}

/// Media types with their schemas.
fn content(of: &Value) -> Message {
    let mut out = Message::default();
    out.entries(1, of.get("content"), |media| {
        media.get("schema").map_or_else(Message::default, |s| wrapped(1, &schema(s)))
    });
    out
}

/// A schema, or a reference to one.
fn schema(s: &Value) -> Message {
    if s.get("$ref").is_some() {
        let mut reference = Message::default();
        reference.text(1, s.get("$ref"));
        return wrapped(2, &reference);
    }
    let mut out = Message::default();
    out.flag(20, s.get("uniqueItems"));
    out.texts(23, s.get("required"));
    out.text(25, s.get("type"));
    for (field, key) in [(26, "allOf"), (27, "oneOf")] {
        for part in list(s.get(key)) {
            out.message(field, &schema(part));
        }
    }
    if let Some(inner) = s.get("items") {
        out.message(30, &wrapped(1, &schema(inner)));
    }
    if s.get("properties").is_some() {
        let mut properties = Message::default();
        properties.entries(1, s.get("properties"), schema);
        out.message(31, &properties);
    }
    if let Some(inner) = s.get("additionalProperties") {
        out.message(32, &wrapped(1, &schema(inner)));
    }
    if let Some(default) = s.get("default") {
        out.message(33, &default_value(default));
    }
    out.text(34, s.get("description"));
    out.text(35, s.get("format"));
    out.extensions(36, s);
    wrapped(1, &out)
}

/// Numbers, booleans and strings; the message has no place for others.
fn default_value(value: &Value) -> Message {
    let mut out = Message::default();
    match value {
        Value::Number(n) => out.double(1, n.as_f64().unwrap_or_default()),
        Value::Bool(flag) => out.chosen_flag(2, *flag),
        Value::String(text) => out.bytes(3, text.as_bytes()),
        _ => {}
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reference_with_a_default_is_wrapped() {
        let out = schema(&json!({"allOf": [{"$ref": "#/c/A"}], "default": {}}));
        let want = [
            &[0x0a, 15][..],
            &[0xd2, 0x01, 9, 0x12, 7, 0x0a, 5],
            b"#/c/A",         // all_of = {reference: {_ref}}
            &[0x8a, 0x02, 0], // default = {}
        ];
        assert_eq!(out.0, want.concat());
    }

    #[test]
    fn defaults_say_what_they_are() {
        assert_eq!(default_value(&json!("")).0, [0x1a, 0]);
        assert_eq!(default_value(&json!(false)).0, [0x10, 0]);
        assert_eq!(default_value(&json!(0)).0, [9, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
