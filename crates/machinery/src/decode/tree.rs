//! The walk: what stands in the text is checked against the shape it should have, as it is read.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::scalar::{self, Misfit};
use super::{MAX_DEPTH, MAX_ERRORS, MAX_NODES};
use crate::schema::{Scalar, Shape, TypeRef};

/// One step of a path.
enum Step<'t> {
    Field(&'t str),
    Key(String),
    Index(usize),
}

/// What a decode keeps while it walks.
pub(super) struct State<'t> {
    root: TypeRef<'t>,
    path: Vec<Step<'t>>,
    pub(super) report: bool,
    /// The reader has already reported keys that are set twice.
    pub(super) duplicates_known: bool,
    /// Unknown and duplicate fields, each text once.
    pub(super) errors: Vec<String>,
    /// Lists and objects so far.
    nodes: usize,
    /// The first thing that does not fit; it ended the walk.
    pub(super) failure: Option<String>,
}

impl<'t> State<'t> {
    pub(super) fn new(root: TypeRef<'t>, report: bool) -> Self {
        Self {
            root,
            path: Vec::with_capacity(16),
            report,
            duplicates_known: false,
            errors: Vec::new(),
            nodes: 0,
            failure: None,
        }
    }

    /// `spec.containers[0].foo`.
    fn strict_path(&self, last: Option<&str>) -> String {
        let mut out = String::new();
        let name = |out: &mut String, part: &str| {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(part);
        };
        for step in &self.path {
            match step {
                Step::Field(part) => name(&mut out, part),
                Step::Key(part) => name(&mut out, part),
                Step::Index(i) => out.push_str(&format!("[{i}]")),
            }
        }
        if let Some(last) = last {
            name(&mut out, last);
        }
        out
    }

    fn duplicate(&mut self, last: Option<&str>) {
        if !self.duplicates_known {
            self.mistake("duplicate", last);
        }
    }

    fn mistake(&mut self, what: &str, last: Option<&str>) {
        if !self.report || self.errors.len() >= MAX_ERRORS {
            return;
        }
        let text = format!("{what} field \"{}\"", self.strict_path(last));
        if !self.errors.contains(&text) {
            self.errors.push(text);
        }
    }

    fn misfit(&mut self, found: &str, go_type: &str) {
        let fields: Vec<&str> = self
            .path
            .iter()
            .filter_map(|step| match step {
                Step::Field(name) => Some(*name),
                _ => None,
            })
            .collect();
        let place = if fields.is_empty() {
            "Go value".to_owned()
        } else {
            format!("Go struct field {}.{}", self.root.name(), fields.join("."))
        };
        self.failure = Some(format!("json: cannot unmarshal {found} into {place} of type {go_type}"));
    }
}

/// Where the shape of a value comes from.
#[derive(Clone, Copy)]
enum Expect<'t> {
    Shape(crate::schema::ShapeRef<'t>),
    Root(TypeRef<'t>),
    Strings,
}

/// Reads one value; `None` is null.
pub(super) struct Seed<'s, 't> {
    state: &'s mut State<'t>,
    expect: Expect<'t>,
    shape: Shape<'t>,
    depth: usize,
}

/// Reads the whole object.
pub(super) fn root<'s, 't>(state: &'s mut State<'t>) -> Seed<'s, 't> {
    let t = state.root;
    Seed { state, expect: Expect::Root(t), shape: Shape::Struct(t), depth: 0 }
}

/// The value of an element that is null: Go leaves the zero value.
fn zero_element(shape: Shape<'_>) -> Value {
    match shape {
        Shape::Scalar(Scalar::String | Scalar::Bytes | Scalar::Duration) => Value::String(String::new()),
        Shape::Scalar(Scalar::Bool) => Value::Bool(false),
        Shape::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Float64 | Scalar::IntOrString) => Value::from(0),
        Shape::Scalar(Scalar::Quantity) => Value::String("0".to_owned()),
        Shape::Scalar(Scalar::Time | Scalar::MicroTime) | Shape::Raw => Value::Null,
        Shape::Struct(_) | Shape::Map(_) | Shape::OrBool(_) | Shape::OrArray(_) => Value::Object(Map::new()),
        Shape::List(_) | Shape::OrStrings(_) => Value::Array(Vec::new()),
    }
}

impl<'s, 't> Seed<'s, 't> {
    fn go_name(&self) -> String {
        match self.expect {
            Expect::Shape(shape) => shape.go_name(),
            Expect::Root(t) => format!("{}.{}", t.version(), t.name()),
            Expect::Strings => "[]string".to_owned(),
        }
    }

    fn misfit<E: Error, T>(self, found: &str) -> Result<T, E> {
        let go_type = self.go_name();
        self.state.misfit(found, &go_type);
        Err(E::custom("misfit"))
    }

    fn settle<E: Error>(self, outcome: Result<Option<Value>, Misfit>) -> Result<Option<Value>, E> {
        match outcome {
            Ok(value) => Ok(value),
            Err(Misfit::Type(found, None)) => self.misfit(&found),
            Err(Misfit::Type(found, Some(go_type))) => {
                self.state.misfit(&found, go_type);
                Err(E::custom("misfit"))
            }
            Err(Misfit::Text(text)) => {
                self.state.failure = Some(text);
                Err(E::custom("misfit"))
            }
        }
    }

    fn text<E: Error>(self, text: Cow<'_, str>) -> Result<Option<Value>, E> {
        match self.shape {
            Shape::Scalar(scalar) => self.settle(scalar::string(scalar, text)),
            Shape::Raw => Ok(Some(Value::String(text.into_owned()))),
            _ => self.misfit("string"),
        }
    }

    fn number<E: Error>(self, number: Number) -> Result<Option<Value>, E> {
        match self.shape {
            Shape::Scalar(scalar) => self.settle(scalar::number(scalar, number)),
            Shape::Raw => Ok(Some(Value::Number(number))),
            _ => self.misfit("number"),
        }
    }

    /// Counts a list or object that begins here.
    fn enter<E: Error>(&mut self) -> Result<(), E> {
        self.state.nodes += 1;
        let why = if self.depth >= MAX_DEPTH {
            "exceeded max depth".to_owned()
        } else if self.state.nodes > MAX_NODES {
            super::too_many_nodes()
        } else {
            return Ok(());
        };
        self.state.failure = Some(why);
        Err(E::custom("too deep or too many"))
    }

    fn object<'de, A: MapAccess<'de>>(self, t: TypeRef<'t>, mut access: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        let mut seen = 0u128;
        let mut hint = 0;
        while let Some(key) = access.next_key_seed(KeySeed { t, hint })? {
            let position = match key {
                Key::Known(position) => position,
                Key::Unknown(name) => {
                    self.state.mistake("unknown", Some(&name));
                    access.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            hint = position + 1;
            let field = t.at(position);
            self.state.path.push(Step::Field(field.name()));
            let bit = 1u128 << (position % 128);
            if seen & bit != 0 {
                self.state.duplicate(None);
                out.remove(field.name());
            }
            seen |= bit;
            let shape = field.shape_ref();
            let seed =
                Seed { state: self.state, expect: Expect::Shape(shape), shape: shape.shape(), depth: self.depth + 1 };
            let value = access.next_value_seed(seed)?;
            self.state.path.pop();
            if let Some(value) = value {
                out.insert(field.name().to_owned(), value);
            }
        }
        Ok(Value::Object(out))
    }

    fn map<'de, A: MapAccess<'de>>(
        self,
        element: crate::schema::ShapeRef<'t>,
        mut access: A,
    ) -> Result<Value, A::Error> {
        let shape = element.shape();
        let scalar = matches!(shape, Shape::Scalar(_));
        let mut out = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if !scalar {
                self.state.path.push(Step::Key(key.clone()));
            }
            let seed = Seed { state: self.state, expect: Expect::Shape(element), shape, depth: self.depth + 1 };
            let value = access.next_value_seed(seed)?.unwrap_or_else(|| zero_element(shape));
            if !scalar {
                self.state.path.pop();
            }
            match out.entry(key) {
                serde_json::map::Entry::Vacant(slot) => {
                    slot.insert(value);
                }
                serde_json::map::Entry::Occupied(mut slot) => {
                    self.state.duplicate(Some(slot.key()));
                    slot.insert(value);
                }
            }
        }
        Ok(Value::Object(out))
    }

    fn list<'de, A: SeqAccess<'de>>(
        self,
        expect: Expect<'t>,
        shape: Shape<'t>,
        mut access: A,
    ) -> Result<Value, A::Error> {
        let mut out = Vec::with_capacity(access.size_hint().unwrap_or(0).min(1024));
        loop {
            self.state.path.push(Step::Index(out.len()));
            let seed = Seed { state: self.state, expect, shape, depth: self.depth + 1 };
            let value = access.next_element_seed(seed)?;
            self.state.path.pop();
            match value {
                Some(value) => out.push(value.unwrap_or_else(|| zero_element(shape))),
                None => return Ok(Value::Array(out)),
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        match self.shape {
            // Raw JSON needs no check; the reader bounds its depth.
            Shape::Raw => Value::deserialize(deserializer).map(|v| if v.is_null() { None } else { Some(v) }),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.go_name())
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        match self.shape {
            Shape::Scalar(scalar) => self.settle(scalar::bool(scalar, value)),
            Shape::Raw | Shape::OrBool(_) => Ok(Some(Value::Bool(value))),
            _ => self.misfit("bool"),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        self.number(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        self.number(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        match Number::from_f64(value) {
            Some(number) => self.number(number),
            None => self.misfit("number"),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        self.text(Cow::Borrowed(value))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Self::Value, E> {
        self.text(Cow::Owned(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, access: A) -> Result<Self::Value, A::Error> {
        self.enter()?;
        let value = match self.shape {
            Shape::List(element) => self.list(Expect::Shape(element.shape_ref()), element.shape(), access)?,
            Shape::OrArray(t) => self.list(Expect::Root(t), Shape::Struct(t), access)?,
            Shape::OrStrings(_) => self.list(Expect::Strings, Shape::Scalar(Scalar::String), access)?,
            _ => return self.misfit("array"),
        };
        Ok(Some(value))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, access: A) -> Result<Self::Value, A::Error> {
        self.enter()?;
        let value = match self.shape {
            Shape::Struct(t) | Shape::OrArray(t) | Shape::OrBool(t) | Shape::OrStrings(t) => self.object(t, access)?,
            Shape::Map(element) => self.map(element.shape_ref(), access)?,
            _ => return self.misfit("object"),
        };
        Ok(Some(value))
    }
}

/// The key of a struct: the position of its field, or a name the type does not have.
enum Key {
    Known(usize),
    Unknown(String),
}

struct KeySeed<'t> {
    t: TypeRef<'t>,
    /// The field after the last one: most writers keep the order of declaration.
    hint: usize,
}

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed<'_> {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Key, E> {
        if self.hint < self.t.width() && self.t.at(self.hint).name() == name {
            return Ok(Key::Known(self.hint));
        }
        Ok(self.t.position(name).map_or_else(|| Key::Unknown(name.to_owned()), Key::Known))
    }
}

/// Nesting deeper than the limit is refused, without recursion.
pub(super) fn check_depth(value: &Value, limit: usize) -> Result<(), String> {
    let mut pending = vec![(value, 0)];
    while let Some((value, depth)) = pending.pop() {
        if depth > limit {
            return Err("exceeded max depth".to_owned());
        }
        match value {
            Value::Array(items) => pending.extend(items.iter().map(|v| (v, depth + 1))),
            Value::Object(map) => pending.extend(map.values().map(|v| (v, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}
