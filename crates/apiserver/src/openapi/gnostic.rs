//! OpenAPI v2 as protobuf, in the messages of `openapi.v2`: what kubectl before 1.29 reads. Pieces of
//! the JSON document become messages one by one; what the messages have no field for is left out.

use serde_json::Value;

/// A message being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            #[expect(clippy::cast_possible_truncation, reason = "seven bits at a time")]
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than 0x80")]
        self.0.push(n as u8);
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field << 3 | 2));
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Left out when empty, as proto3 does.
    fn text(&mut self, field: u32, text: Option<&Value>) {
        if let Some(text) = text.and_then(Value::as_str).filter(|t| !t.is_empty()) {
            self.bytes(field, text.as_bytes());
        }
    }

    fn texts(&mut self, field: u32, list: Option<&Value>) {
        for text in list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            self.bytes(field, text.as_bytes());
        }
    }

    fn flag(&mut self, field: u32, flag: Option<&Value>) {
        if flag.and_then(Value::as_bool) == Some(true) {
            self.varint(u64::from(field << 3));
            self.varint(1);
        }
    }

    fn message(&mut self, field: u32, message: &Message) {
        self.bytes(field, &message.0);
    }

    /// `{name = 1, value = 2}`, the form of a map's entries.
    fn named(&mut self, field: u32, name: &str, value: &Message) {
        let mut entry = Message::default();
        entry.bytes(1, name.as_bytes());
        entry.message(2, value);
        self.message(field, &entry);
    }

    /// The `x-` fields of a piece. Their values travel as YAML, of which JSON is a part.
    fn extensions(&mut self, field: u32, piece: &Value) {
        for (name, value) in piece.as_object().into_iter().flatten().filter(|(n, _)| n.starts_with("x-")) {
            self.named(field, name, &any(value));
        }
    }
}

fn any(value: &Value) -> Message {
    let mut out = Message::default();
    out.bytes(2, format!("{value}\n").as_bytes());
    out
}

/// The whole document.
pub(super) struct Document(Message);

impl Document {
    pub(super) fn start(head: &Value) -> Self {
        let mut out = Message::default();
        out.text(1, head.get("swagger"));
        let mut info = Message::default();
        info.text(1, head.pointer("/info/title"));
        info.text(2, head.pointer("/info/version"));
        out.message(2, &info);
        Self(out)
    }

    pub(super) fn paths(&mut self, paths: Paths) {
        self.0.message(8, &paths.0);
    }

    pub(super) fn definitions(&mut self, definitions: Definitions) {
        self.0.message(9, &definitions.0);
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0.0
    }
}

/// The paths.
#[derive(Default)]
pub(super) struct Paths(Message);

impl Paths {
    pub(super) fn add(&mut self, path: &str, item: &Value) {
        let mut out = Message::default();
        for (field, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
            if let Some(o) = item.get(method) {
                out.message(field, &operation(o));
            }
        }
        parameters(&mut out, 9, item);
        self.0.named(2, path, &out);
    }
}

/// The definitions.
#[derive(Default)]
pub(super) struct Definitions(Message);

impl Definitions {
    pub(super) fn add(&mut self, name: &str, definition: &Value) {
        self.0.named(1, name, &schema(definition));
    }
}

fn operation(o: &Value) -> Message {
    let mut out = Message::default();
    out.texts(1, o.get("tags"));
    out.text(5, o.get("operationId"));
    out.texts(6, o.get("produces"));
    out.texts(7, o.get("consumes"));
    parameters(&mut out, 8, o);
    let mut responses = Message::default();
    for (code, response) in o.get("responses").and_then(Value::as_object).into_iter().flatten() {
        let mut body = Message::default();
        body.text(1, response.get("description"));
        if let Some(s) = response.get("schema") {
            let mut item = Message::default();
            item.message(1, &schema(s));
            body.message(2, &item);
        }
        let mut value = Message::default();
        value.message(1, &body);
        responses.named(1, code, &value);
    }
    out.message(9, &responses);
    out.texts(10, o.get("schemes"));
    out.extensions(13, o);
    out
}

fn parameters(out: &mut Message, field: u32, of: &Value) {
    for p in of.get("parameters").and_then(Value::as_array).into_iter().flatten() {
        let mut parameter = Message::default();
        if p.get("in").and_then(Value::as_str) == Some("body") {
            let mut body = Message::default();
            body.text(2, p.get("name"));
            body.text(3, p.get("in"));
            body.flag(4, p.get("required"));
            if let Some(s) = p.get("schema") {
                body.message(5, &schema(s));
            }
            parameter.message(1, &body);
        } else {
            let is_query = p.get("in").and_then(Value::as_str) == Some("query");
            let mut sub = Message::default();
            sub.flag(1, p.get("required"));
            sub.text(2, p.get("in"));
            sub.text(4, p.get("name"));
            // A query parameter has one field more before its type.
            sub.text(if is_query { 6 } else { 5 }, p.get("type"));
            sub.flag(if is_query { 20 } else { 19 }, p.get("uniqueItems"));
            let mut non_body = Message::default();
            non_body.message(if is_query { 3 } else { 4 }, &sub);
            parameter.message(2, &non_body);
        }
        let mut item = Message::default();
        item.message(1, &parameter);
        out.message(field, &item);
    }
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
        let mut item = Message::default();
        item.message(1, &schema(inner));
        out.message(21, &item);
    }
    if let Some(t) = s.get("type").filter(|t| t.is_string()) {
        let mut item = Message::default();
        item.text(1, Some(t));
        out.message(22, &item);
    }
    if let Some(inner) = s.get("items") {
        let mut item = Message::default();
        item.message(1, &schema(inner));
        out.message(23, &item);
    }
    if let Some(all) = s.get("properties").and_then(Value::as_object) {
        let mut properties = Message::default();
        for (name, property) in all {
            properties.named(1, name, &schema(property));
        }
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
            &[0xfa, 0x01, 13, 0x0a, 3],
            b"x-k",
            &[0x12, 6, 0x12, 4],
            b"\"v\"\n", // extension, as YAML
        ];
        assert_eq!(out.0, want.concat());
    }

    #[test]
    fn long_messages_have_long_lengths() {
        let mut out = Message::default();
        out.bytes(1, &[7; 300]);
        assert_eq!(out.0[..3], [0x0a, 0xac, 0x02]);
    }
}
