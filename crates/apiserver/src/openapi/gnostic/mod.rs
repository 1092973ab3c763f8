//! Both OpenAPIs as protobuf, in the messages of gnostic's `openapi.v2` and `openapi.v3`. Pieces of the
//! JSON documents become messages one by one; what the messages have no field for is left out.

use serde_json::Value;

pub(super) mod v2;
pub(super) mod v3;

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

    /// Left out when false, as proto3 does.
    fn flag(&mut self, field: u32, flag: Option<&Value>) {
        if flag.and_then(Value::as_bool) == Some(true) {
            self.chosen_flag(field, true);
        }
    }

    /// A flag that says by being there which alternative it is.
    fn chosen_flag(&mut self, field: u32, flag: bool) {
        self.varint(u64::from(field << 3));
        self.varint(u64::from(flag));
    }

    fn double(&mut self, field: u32, number: f64) {
        self.varint(u64::from(field << 3 | 1));
        self.0.extend_from_slice(&number.to_le_bytes());
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

    /// Entries made of the fields of an object.
    fn entries(&mut self, field: u32, object: Option<&Value>, make: impl Fn(&Value) -> Message) {
        for (name, value) in object.and_then(Value::as_object).into_iter().flatten() {
            self.named(field, name, &make(value));
        }
    }

    /// The `x-` fields of a piece. Their values travel as YAML.
    fn extensions(&mut self, field: u32, piece: &Value) {
        for (name, value) in piece.as_object().into_iter().flatten().filter(|(n, _)| n.starts_with("x-")) {
            self.named(field, name, &any(value));
        }
    }
}

/// A message with one message in it.
fn wrapped(field: u32, inner: &Message) -> Message {
    let mut out = Message::default();
    out.message(field, inner);
    out
}

fn any(value: &Value) -> Message {
    let mut text = String::new();
    yaml(&mut text, value, 0);
    let mut out = Message::default();
    out.bytes(2, text.as_bytes());
    out
}

/// Writes a value in the block style, from where the cursor is; lines after the first are indented.
fn yaml(out: &mut String, value: &Value, indent: usize) {
    let mut next = false;
    let mut line = |out: &mut String| {
        if std::mem::replace(&mut next, true) {
            out.extend(std::iter::repeat_n(' ', indent));
        }
    };
    match value {
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                line(out);
                out.push_str("- ");
                yaml(out, item, indent + 2);
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            for (name, field) in fields {
                line(out);
                out.push_str(&scalar(name));
                let inner = indent + 4 - indent % 4;
                if field.as_object().is_some_and(|o| !o.is_empty()) || field.as_array().is_some_and(|a| !a.is_empty()) {
                    out.push_str(":\n");
                    out.extend(std::iter::repeat_n(' ', inner));
                    yaml(out, field, inner);
                } else {
                    out.push_str(": ");
                    yaml(out, field, inner);
                }
            }
        }
        Value::String(text) => {
            out.push_str(&scalar(text));
            out.push('\n');
        }
        // Numbers, booleans, null, and what is empty look in YAML as in JSON.
        other => {
            out.push_str(&other.to_string());
            out.push('\n');
        }
    }
}

/// A string as it is where that cannot be taken for anything else, as JSON otherwise.
fn scalar(text: &str) -> String {
    const WORDS: &[&str] = &["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let letters = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./,".contains(&b));
    let plain = letters && text.starts_with(|c: char| c.is_ascii_alphabetic()) && !text.ends_with(',');
    if plain && !WORDS.contains(&text.to_ascii_lowercase().as_str()) {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn info(head: &Value, title: u32, version: u32) -> Message {
    let mut out = Message::default();
    out.text(title, head.pointer("/info/title"));
    out.text(version, head.pointer("/info/version"));
    out
}

/// `{value = [..]}`.
fn strings(value: &Value) -> Message {
    let mut out = Message::default();
    out.texts(1, Some(value));
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_yaml() {
        for (value, want) in [
            (json!("merge,retainKeys"), "merge,retainKeys\n"),
            (json!(""), "\"\"\n"),
            (json!("on"), "\"on\"\n"),
            (json!(["name", "a b"]), "- name\n- \"a b\"\n"),
            (json!([{"group": "", "version": "v1"}]), "- group: \"\"\n  version: v1\n"),
            (json!([{"a": {"b": "c", "d": 1}, "e": []}]), "- a:\n    b: c\n    d: 1\n  e: []\n"),
            (json!({"a": {"b": ["c"]}}), "a:\n    b:\n        - c\n"),
        ] {
            let mut out = String::new();
            yaml(&mut out, &value, 0);
            assert_eq!(out, want, "{value}");
        }
    }

    #[test]
    fn long_messages_have_long_lengths() {
        let mut out = Message::default();
        out.bytes(1, &[7; 300]);
        assert_eq!(out.0[..3], [0x0a, 0xac, 0x02]);
    }

    #[test]
    fn high_field_numbers_take_two_bytes() {
        let mut out = Message::default();
        out.double(33, 1.0);
        assert_eq!(out.0, [0x89, 0x02, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
    }
}
