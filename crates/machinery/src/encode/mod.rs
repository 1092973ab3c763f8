//! A JSON tree to the bytes that upstream would write: `kind` and `apiVersion` first, then the
//! fields in the order of their declaration, with Go's rules for what is left out.
//!
//! ```text
//! {"metadata":{"name":"a"},"apiVersion":"v1","kind":"Namespace"}
//!   ──► {"kind":"Namespace","apiVersion":"v1","metadata":{"name":"a"},"spec":{},"status":{}}
//! ```
//!
//! What the type does not know is not written, unless it says that it keeps such.

mod splice;
#[cfg(test)]
mod tests;
mod yaml;

use serde_json::{Map, Value};

pub use splice::{field, splice_resource_version};
pub use yaml::{yaml, yaml_item};

use crate::decode::{canonical_micro_time, canonical_time};
use crate::schema::{Field, MAX_FIELDS, Scalar, Shape, Type, TypeRef};

/// Where [`Writer::loose`] is among the entries of `managedFields`. No field is called so.
const ENTRIES: &str = "\0entries";

/// What the encoder does with a field.
#[derive(Debug)]
pub(crate) enum Emit<'v> {
    /// It is left out.
    Nothing,
    /// The value as it is.
    Value(&'v Value),
    /// The zero value of its type: `""`, `0`, `{}`, `null`.
    Zero,
}

/// What is written of a field with this value (`None`: absent).
pub(crate) fn emit<'v>(field: Field<'_>, shape: Shape<'_>, value: Option<&'v Value>, nil_empties: bool) -> Emit<'v> {
    let Some(value) = value.filter(|v| !v.is_null() || field.nullable()) else {
        return match (field.pointer(), field.omitempty(), shape) {
            (true, true, _) => Emit::Nothing,
            (true, false, _) => Emit::Zero,
            // `omitempty` does nothing for a struct that is no pointer.
            (false, true, Shape::Struct(_) | Shape::Raw) => Emit::Zero,
            (false, true, Shape::Scalar(Scalar::Time | Scalar::MicroTime)) if field.omitzero() => Emit::Nothing,
            (false, true, Shape::Scalar(s)) if is_go_struct(s) => Emit::Zero,
            (false, true, _) => Emit::Nothing,
            (false, false, _) => Emit::Zero,
        };
    };
    if field.pointer() || value.is_null() {
        return Emit::Value(value);
    }
    let empty = match (shape, value) {
        (Shape::List(_) | Shape::OrStrings(_), Value::Array(items)) => items.is_empty(),
        (Shape::Map(_), Value::Object(map)) => map.is_empty(),
        (Shape::Scalar(s), _) if is_go_struct(s) => false,
        (Shape::Scalar(_), Value::String(text)) => text.is_empty(),
        (Shape::Scalar(_), Value::Bool(b)) => !b,
        (Shape::Scalar(_), Value::Number(n)) => n.as_f64() == Some(0.0),
        _ => false,
    };
    match (empty, field.omitempty(), shape) {
        (false, ..) => Emit::Value(value),
        (true, true, _) => Emit::Nothing,
        // Stored in upstream's protobuf, an empty list or map comes back as none.
        (true, false, Shape::List(_) | Shape::Map(_) | Shape::Scalar(Scalar::Bytes)) if nil_empties => Emit::Zero,
        (true, false, _) => Emit::Value(value),
    }
}

/// Scalars that are structs in Go, which `omitempty` never leaves out.
fn is_go_struct(scalar: Scalar) -> bool {
    match scalar {
        Scalar::Quantity | Scalar::IntOrString | Scalar::Time | Scalar::MicroTime | Scalar::Duration => true,
        Scalar::String | Scalar::Bool | Scalar::Int32 | Scalar::Int64 | Scalar::Float64 | Scalar::Bytes => false,
    }
}

/// Whether empty lists and maps of the type come back as `null`: they do for what is stored, not for
/// answers that are computed.
pub(crate) fn nil_empties(t: TypeRef<'_>) -> bool {
    let metadata = t.field("metadata").map(|f| f.shape());
    let stored = matches!(metadata, Some(Shape::Struct(m)) if m.name() == "ObjectMeta");
    stored && !t.package().starts_with("auth")
}

/// The object as upstream's encoder writes it, without a line feed at the end.
pub fn json(value: &Value, schema: &Type) -> Vec<u8> {
    let t = schema.get();
    let mut out = Vec::with_capacity(1024);
    let mut writer = Writer { out: &mut out, nil_empties: nil_empties(t) };
    if t.is_loose() {
        writer.loose(value, &["metadata", "managedFields"]);
    } else if let Value::Object(map) = value {
        writer.object(t, map, t.is_root());
    } else {
        writer.raw(value);
    }
    out
}

/// True when two values of the object's field `name` are written alike: `{}` where a struct is always
/// written is nothing that was said.
pub fn alike(name: &str, a: Option<&Value>, b: Option<&Value>, schema: &Type) -> bool {
    let t = schema.get();
    if t.is_loose() {
        return a == b;
    }
    let Some(field) = t.field(name).filter(|_| a != b) else { return a == b };
    let written = |value| {
        let mut out = Vec::new();
        let mut writer = Writer { out: &mut out, nil_empties: nil_empties(t) };
        match emit(field, field.shape(), value, writer.nil_empties) {
            Emit::Nothing => {}
            Emit::Value(value) => writer.value(field.shape(), value),
            Emit::Zero if field.pointer() => writer.raw(&Value::Null),
            Emit::Zero => writer.zero(field.shape()),
        }
        out
    };
    written(a) == written(b)
}

struct Writer<'o> {
    out: &'o mut Vec<u8>,
    nil_empties: bool,
}

impl Writer<'_> {
    fn object(&mut self, t: TypeRef<'_>, map: &Map<String, Value>, root: bool) {
        let mut slots: [Option<&Value>; MAX_FIELDS] = [None; MAX_FIELDS];
        let mut others = Vec::new();
        for (name, value) in map {
            match t.position(name) {
                Some(position) => slots[position] = Some(value),
                None if t.preserves() => others.push((name, value)),
                None => {}
            }
        }
        self.fields(t, &slots, root);
        self.others(&others);
    }

    /// Puts what the type does not know, but keeps, behind its fields.
    fn others(&mut self, others: &[(&String, &Value)]) {
        if others.is_empty() {
            return;
        }
        self.out.pop();
        for (name, value) in others {
            if self.out.last() != Some(&b'{') {
                self.out.push(b',');
            }
            self.string(name);
            self.out.push(b':');
            self.raw(value);
        }
        self.out.push(b'}');
    }

    fn fields(&mut self, t: TypeRef<'_>, slots: &[Option<&Value>], root: bool) {
        self.out.push(b'{');
        let mut first = true;
        for (field, value) in t.fields().zip(slots) {
            let shape = field.shape();
            let emit = emit(field, shape, *value, self.nil_empties);
            if let (true, Emit::Nothing, name @ ("kind" | "apiVersion")) = (root, &emit, field.name()) {
                self.name(name, &mut first);
                let text = if name == "kind" { t.name().to_owned() } else { api_version(t) };
                self.string(&text);
                continue;
            }
            match emit {
                Emit::Nothing => {}
                // Sets of fields are carried as their text.
                Emit::Value(value) if matches!(shape, Shape::Raw) && field.name() == "fieldsV1" => {
                    self.name(field.name(), &mut first);
                    self.out.extend_from_slice(crate::managed::fields_json(value).as_bytes());
                }
                Emit::Value(value) => {
                    self.name(field.name(), &mut first);
                    self.value(shape, value);
                }
                Emit::Zero => {
                    self.name(field.name(), &mut first);
                    if field.pointer() {
                        self.out.extend_from_slice(b"null");
                    } else {
                        self.zero(shape);
                    }
                }
            }
        }
        self.out.push(b'}');
    }

    /// A custom resource: every object in the order of its names. Where `ahead` leads, sets of fields are
    /// carried as their text.
    fn loose(&mut self, value: &Value, ahead: &[&str]) {
        match value {
            Value::Object(map) => {
                self.out.push(b'{');
                for (i, (name, value)) in map.iter().enumerate() {
                    if i > 0 {
                        self.out.push(b',');
                    }
                    self.string(name);
                    self.out.push(b':');
                    match ahead {
                        [ENTRIES] if name == "fieldsV1" => {
                            self.out.extend_from_slice(crate::managed::fields_json(value).as_bytes());
                        }
                        [next, rest @ ..] if next == name => {
                            self.loose(value, if rest.is_empty() { &[ENTRIES] } else { rest })
                        }
                        _ => self.loose(value, &[]),
                    }
                }
                self.out.push(b'}');
            }
            Value::Array(items) => {
                self.out.push(b'[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        self.out.push(b',');
                    }
                    self.loose(item, ahead);
                }
                self.out.push(b']');
            }
            Value::Number(number) if number.is_f64() => {
                let float = number.as_f64().unwrap_or_default();
                self.out.extend_from_slice(crate::go::float(float).as_bytes());
            }
            other => self.raw(other),
        }
    }

    /// Names of fields need no escaping.
    fn name(&mut self, name: &str, first: &mut bool) {
        if !std::mem::take(first) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn value(&mut self, shape: Shape<'_>, value: &Value) {
        match (shape, value) {
            (Shape::Struct(t) | Shape::OrArray(t) | Shape::OrBool(t) | Shape::OrStrings(t), Value::Object(map)) => {
                self.object(t, map, false);
            }
            (Shape::List(element), Value::Array(items)) => self.list(element.shape(), items),
            (Shape::OrArray(t), Value::Array(items)) => self.list(Shape::Struct(t), items),
            (Shape::Map(element), Value::Object(map)) => {
                let shape = element.shape();
                self.out.push(b'{');
                for (i, (key, value)) in map.iter().enumerate() {
                    if i > 0 {
                        self.out.push(b',');
                    }
                    self.string(key);
                    self.out.push(b':');
                    self.element(shape, value);
                }
                self.out.push(b'}');
            }
            (Shape::Scalar(Scalar::Time), Value::String(text)) => {
                self.string(&canonical_time(text).unwrap_or(text.as_str().into()));
            }
            (Shape::Scalar(Scalar::MicroTime), Value::String(text)) => {
                self.string(&canonical_micro_time(text).unwrap_or(text.as_str().into()));
            }
            (_, Value::String(text)) => self.string(text),
            _ => self.raw(value),
        }
    }

    fn list(&mut self, shape: Shape<'_>, items: &[Value]) {
        self.out.push(b'[');
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.out.push(b',');
            }
            self.element(shape, item);
        }
        self.out.push(b']');
    }

    fn element(&mut self, shape: Shape<'_>, value: &Value) {
        if value.is_null() && !matches!(shape, Shape::Raw) {
            self.zero(shape);
        } else {
            self.value(shape, value);
        }
    }

    fn zero(&mut self, shape: Shape<'_>) {
        let text: &[u8] = match shape {
            Shape::Struct(t) => return self.fields(t, &[None; MAX_FIELDS], false),
            Shape::Scalar(Scalar::String) => b"\"\"",
            Shape::Scalar(Scalar::Bool) => b"false",
            Shape::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Float64 | Scalar::IntOrString) => b"0",
            Shape::Scalar(Scalar::Quantity) => b"\"0\"",
            Shape::Scalar(Scalar::Duration) => b"\"0s\"",
            Shape::Scalar(Scalar::Time | Scalar::MicroTime | Scalar::Bytes) => b"null",
            Shape::Raw | Shape::List(_) | Shape::Map(_) => b"null",
            Shape::OrArray(_) | Shape::OrBool(_) | Shape::OrStrings(_) => b"null",
        };
        self.out.extend_from_slice(text);
    }

    fn string(&mut self, text: &str) {
        // Writing to a Vec does not fail, and a string is always valid JSON.
        let _ = serde_json::to_writer(&mut *self.out, text);
    }

    fn raw(&mut self, value: &Value) {
        let _ = serde_json::to_writer(&mut *self.out, value);
    }
}

/// The types of `meta.k8s.io/v1` that are served under plain `v1`.
pub(crate) fn api_version(t: TypeRef<'_>) -> String {
    let plain = t.package() == "meta/v1"
        && !matches!(t.name(), "Table" | "PartialObjectMetadata" | "PartialObjectMetadataList");
    if plain { t.version().to_owned() } else { t.api_version() }
}
