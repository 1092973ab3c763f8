//! Custom resources: a body becomes a tree whose values may be of any type until they are validated.
//! What the schema does not know is dropped and told; `metadata` is read as that of any object.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::state::{Source, State};
use super::{MAX_DEPTH, MAX_ERRORS, MAX_NODES, tree};
use crate::go;
use crate::schema::{Shape, TypeRef};

/// A body as a tree, and the members that are there twice, of which the last counts.
///
/// # Errors
/// What bounds it breaks.
pub(super) fn parse(bytes: &[u8], report: bool) -> Result<(Value, Vec<String>), String> {
    let mut reading = Reading { path: String::new(), report, duplicates: Vec::new(), nodes: 0 };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = Seed { reading: &mut reading, depth: 0 }.deserialize(&mut reader);
    let value = read.and_then(|value| reader.end().map(|()| value));
    match value {
        Ok(value) => Ok((value, reading.duplicates)),
        Err(_) if reading.nodes > MAX_NODES => Err(super::too_many_nodes()),
        Err(_) => Err("exceeded max depth".to_owned()),
    }
}

struct Reading {
    path: String,
    report: bool,
    duplicates: Vec<String>,
    nodes: usize,
}

struct Seed<'r> {
    reading: &'r mut Reading,
    depth: usize,
}

impl Seed<'_> {
    fn enter<E: Error>(&mut self) -> Result<(), E> {
        self.reading.nodes += 1;
        let fits = self.depth < MAX_DEPTH && self.reading.nodes <= MAX_NODES;
        if fits { Ok(()) } else { Err(E::custom("too deep or too many")) }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(canonical(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, canonical))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut access: A) -> Result<Value, A::Error> {
        self.enter()?;
        let (reading, depth) = (self.reading, self.depth + 1);
        let length = reading.path.len();
        let mut out = Vec::new();
        loop {
            if reading.report {
                reading.path.push_str(&format!("[{}]", out.len()));
            }
            let value = access.next_element_seed(Seed { reading, depth })?;
            reading.path.truncate(length);
            match value {
                Some(value) => out.push(value),
                None => return Ok(Value::Array(out)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut access: A) -> Result<Value, A::Error> {
        self.enter()?;
        let (reading, depth) = (self.reading, self.depth + 1);
        let length = reading.path.len();
        let mut out = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            if reading.report {
                if length > 0 {
                    reading.path.push('.');
                }
                reading.path.push_str(&name);
                if out.contains_key(&name) && reading.duplicates.len() < MAX_ERRORS {
                    reading.duplicates.push(format!("duplicate field {}", go::quote(&reading.path)));
                }
            }
            let value = access.next_value_seed(Seed { reading, depth })?;
            reading.path.truncate(length);
            out.insert(name, value);
        }
        Ok(Value::Object(out))
    }
}

/// A whole number is an integer, however it was written, as far as integers go.
fn canonical(number: Number) -> Value {
    if number.is_i64() {
        return number.into();
    }
    let Some(float) = number.as_f64() else { return number.into() };
    #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
    let whole = float as i64;
    if float.fract() == 0.0 && float.abs() < 9.2e18 { whole.into() } else { float.into() }
}

/// Makes a tree fit: numbers in one form, `metadata` as that of any object, what is not known dropped.
/// Returns the paths of what was dropped as texts.
///
/// # Errors
/// Why `metadata` is none.
pub(super) fn fit(value: &mut Value, t: TypeRef<'_>, report: bool) -> Result<Vec<String>, String> {
    let mut fitting = Fitting { path: Vec::new(), report, unknown: Vec::new(), metadata: Vec::new() };
    fitting.value(value, Shape::Struct(t))?;
    let Fitting { mut unknown, mut metadata, .. } = fitting;
    unknown.sort_unstable();
    metadata.append(&mut unknown);
    metadata.truncate(MAX_ERRORS);
    Ok(metadata)
}

enum Step {
    Name(String),
    Index(usize),
}

struct Fitting {
    path: Vec<Step>,
    report: bool,
    unknown: Vec<String>,
    /// What of `metadata` is not known, which is told first.
    metadata: Vec<String>,
}

impl Fitting {
    fn value(&mut self, value: &mut Value, shape: Shape<'_>) -> Result<(), String> {
        match (value, shape) {
            (value, Shape::Struct(t)) if t.name() == "ObjectMeta" => return self.metadata(value, t),
            (Value::Object(map), Shape::Struct(t)) => return self.object(map, t),
            (Value::Object(map), Shape::Map(inner)) => {
                for (name, value) in map {
                    self.below(name, |fitting| fitting.value(value, inner.shape()))?;
                }
            }
            // A value of another type than the schema says has nothing that is known.
            (Value::Object(map), Shape::Scalar(_) | Shape::List(_)) => {
                for (name, _) in std::mem::take(map) {
                    self.tell(&name);
                }
            }
            (Value::Array(items), shape) => {
                for (i, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    self.path.push(Step::Index(i));
                    match shape {
                        Shape::List(inner) => self.value(item, inner.shape())?,
                        Shape::Struct(t) if t.preserves() && t.is_open() => self.value(item, shape)?,
                        _ => self.nothing(item),
                    }
                    self.path.truncate(length);
                }
            }
            (value @ Value::Number(_), _) => {
                if let Value::Number(number) = value.take() {
                    *value = canonical(number);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn object(&mut self, map: &mut Map<String, Value>, t: TypeRef<'_>) -> Result<(), String> {
        let mut failure = None;
        let embedded =
            matches!(t.field("metadata").map(|f| f.shape()), Some(Shape::Struct(m)) if m.name() == "ObjectMeta");
        map.retain(|name, value| {
            let shape = match t.field(name) {
                Some(field) => field.shape(),
                None => match t.open_child() {
                    Some(open) => Shape::Struct(open),
                    None => {
                        self.tell(name);
                        return false;
                    }
                },
            };
            let is_head = embedded && matches!(name.as_str(), "apiVersion" | "kind");
            if is_head && !value.is_string() && !value.is_null() {
                let path = self.text(name);
                failure.get_or_insert(format!("{path}: Invalid value: {value}: must be a string"));
            }
            if let Err(text) = self.below(name, |fitting| fitting.value(value, shape)) {
                failure.get_or_insert(text);
            }
            true
        });
        failure.map_or(Ok(()), Err)
    }

    /// Everything in a value that no schema speaks of goes.
    fn nothing(&mut self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (name, _) in std::mem::take(map) {
                    self.tell(&name);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.nothing(item)),
            _ => {}
        }
    }

    fn metadata(&mut self, value: &mut Value, t: TypeRef<'_>) -> Result<(), String> {
        let mut state = State::new(t, self.report, Source::Tree);
        let read = tree::root(&mut state).deserialize(std::mem::take(value));
        if let Some(text) = state.failure() {
            return Err(text);
        }
        *value = read.map_err(|error| error.to_string())?.unwrap_or_else(|| Value::Object(Map::new()));
        let prefix = self.text("");
        for text in state.errors {
            // `unknown field "a"` is one of `metadata`.
            if let Some((what, path)) = text.split_once(" field \"") {
                self.metadata.push(format!("{what} field \"{prefix}{path}"));
            }
        }
        Ok(())
    }

    fn below<T>(&mut self, name: &str, inside: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push(Step::Name(if self.report { name.to_owned() } else { String::new() }));
        let out = inside(self);
        self.path.truncate(length);
        out
    }

    fn tell(&mut self, name: &str) {
        if self.report && self.unknown.len() < MAX_ERRORS {
            let path = self.text(name);
            self.unknown.push(format!("unknown field {}", go::quote(&path)));
        }
    }

    /// The path of a field here; with a dot at its end when the name is empty.
    fn text(&self, name: &str) -> String {
        let mut out = String::new();
        for step in &self.path {
            match step {
                Step::Name(name) if out.is_empty() => out.push_str(name),
                Step::Name(name) => {
                    out.push('.');
                    out.push_str(name);
                }
                Step::Index(i) => out.push_str(&format!("[{i}]")),
            }
        }
        if !out.is_empty() {
            out.push('.');
        }
        out.push_str(name);
        out
    }
}
