//! What a schema declares to expressions: the types of its fields, how large values may be, and how the
//! values of an object are read.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use serde_json::{Map as JsonMap, Value as Json};

use crate::meter::Error;
use crate::time::Timestamp;
use crate::types::{Object, QUANTITY, Type};
use crate::value::{List, ListType, Map, Out, Text, Val};

/// The largest request, which bounds what has no bound of its own.
pub const MAX_REQUEST: u64 = 3 * 1024 * 1024;

/// A declared value.
#[derive(Clone, Debug)]
pub struct Decl {
    pub shape: Shape,
    pub nullable: bool,
    /// Elements of a list or map, bytes of a text, at most.
    pub max_elements: u64,
    /// Bytes that it takes up in an object, at least.
    pub min_size: u64,
}

/// What kind of value is declared.
#[derive(Clone, Debug)]
pub enum Shape {
    IntOrString,
    Bool,
    Int,
    Double,
    String,
    Bytes,
    Duration,
    Date,
    DateTime,
    /// An amount; only what is declared by hand has them.
    Quantity,
    List {
        items: Arc<Decl>,
        list_type: ListType,
    },
    Map {
        values: Arc<Decl>,
        /// Bytes of a key, at most; 0 where nothing says.
        keys: u64,
    },
    Object {
        name: Arc<str>,
        fields: BTreeMap<Box<str>, Field>,
        names: BTreeMap<Box<str>, Box<str>>,
    },
    /// An object of which any field may be there, each of any type: what a patch is made of.
    Open(Arc<str>),
    /// Whatever it is: expressions find out as they go.
    Any,
    /// Of a type that no schema tells: what another expression gives.
    Typed(Type),
    /// Preserved, and nothing is said about it: expressions do not see it.
    Unknown,
    /// Nothing may stand here that expressions could read.
    Opaque(Box<str>),
}

/// A field of an object, by its name in the object.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name in expressions, if it has one.
    pub name: Option<Arc<str>>,
    pub decl: Arc<Decl>,
}

impl Decl {
    /// A value of this shape that has no size.
    pub fn plain(shape: Shape, min_size: u64) -> Self {
        Self { shape, nullable: false, max_elements: 0, min_size }
    }

    /// A value of which nothing is known: `object` of a policy.
    pub fn any() -> &'static Self {
        static ANY: LazyLock<Decl> =
            LazyLock::new(|| Decl { shape: Shape::Any, nullable: true, max_elements: MAX_REQUEST, min_size: 0 });
        &ANY
    }

    /// An object that has no fields yet.
    pub fn object(name: &str) -> Self {
        Self::plain(Shape::Object { name: name.into(), fields: BTreeMap::new(), names: BTreeMap::new() }, 0)
    }

    /// Gives an object a field, or a field another type.
    pub fn declare(&mut self, field: &str, t: Type) {
        if let Shape::Object { fields, names, .. } = &mut self.shape {
            let decl = Arc::new(Self::plain(Shape::Typed(t), 0));
            fields.insert(field.into(), Field { name: Some(field.into()), decl });
            names.insert(field.into(), field.into());
        }
    }

    /// Is nothing known of it?
    pub fn is_any(&self) -> bool {
        matches!(self.shape, Shape::Any)
    }

    /// The name of an object's type.
    pub fn name(&self) -> &str {
        match &self.shape {
            Shape::Object { name, .. } | Shape::Open(name) => name,
            _ => "object",
        }
    }

    /// Do expressions see it?
    pub fn is_visible(&self) -> bool {
        match &self.shape {
            Shape::Unknown | Shape::Opaque(_) => false,
            Shape::List { items, .. } => items.is_visible(),
            Shape::Map { values, .. } => values.is_visible(),
            _ => true,
        }
    }

    /// Its type in expressions.
    pub fn type_of(self: &Arc<Self>) -> Type {
        match &self.shape {
            Shape::IntOrString | Shape::Any | Shape::Unknown | Shape::Opaque(_) => Type::Dyn,
            Shape::Typed(t) => t.clone(),
            Shape::Bool => Type::Bool,
            Shape::Int => Type::Int,
            Shape::Double => Type::Double,
            Shape::String => Type::String,
            Shape::Bytes => Type::Bytes,
            Shape::Duration => Type::Duration,
            Shape::Date | Shape::DateTime => Type::Timestamp,
            Shape::Quantity => Type::Named(QUANTITY),
            Shape::List { items, .. } => Type::list(items.type_of()),
            Shape::Map { values, .. } => Type::map(Type::String, values.type_of()),
            Shape::Object { .. } | Shape::Open(_) => Type::Object(Object(Arc::clone(self))),
        }
    }

    /// The type of a field, by its name in expressions.
    pub fn field(&self, name: &str) -> Option<Type> {
        match &self.shape {
            Shape::Open(_) => Some(Type::Dyn),
            _ => self.visible_field(name).map(Decl::type_of),
        }
    }

    /// The declaration of a field, by its name in expressions.
    pub fn visible_field(&self, name: &str) -> Option<&Arc<Decl>> {
        let Shape::Object { fields, names, .. } = &self.shape else { return None };
        let field = fields.get(names.get(name)?)?;
        field.decl.is_visible().then_some(&field.decl)
    }

    /// What the attributes of a device are, whatever their names.
    pub(crate) fn attribute(&self) -> Option<&Arc<Decl>> {
        match &self.shape {
            Shape::Map { values, keys: 1.. } if matches!(values.shape, Shape::Any) => Some(values),
            _ => None,
        }
    }

    /// What the elements of a list or map are.
    pub fn elements(&self) -> Option<&Arc<Decl>> {
        match &self.shape {
            Shape::List { items, .. } => Some(items),
            Shape::Map { values, .. } => Some(values),
            _ => None,
        }
    }

    /// What the elements of this list are.
    pub fn items(&self) -> &Decl {
        match &self.shape {
            Shape::List { items, .. } => items,
            _ => self,
        }
    }

    /// How this list is merged and compared.
    pub fn list_type(&self) -> &ListType {
        match &self.shape {
            Shape::List { list_type, .. } => list_type,
            _ => &ListType::Atomic,
        }
    }

    /// The declaration of a field or value, by its name in the object.
    pub fn child(&self, name: &str) -> Option<&Decl> {
        match &self.shape {
            Shape::Object { fields, .. } => fields.get(name).map(|f| &*f.decl),
            Shape::Map { values, .. } => Some(values),
            Shape::Any => Some(self),
            _ => None,
        }
    }

    /// What expressions call a key of the object, if they may see it.
    pub fn key_name<'a>(&'a self, key: &'a str) -> Option<Text<'a>> {
        match &self.shape {
            Shape::Object { fields, .. } => {
                let field = fields.get(key)?;
                Some(match &field.name {
                    Some(name) => Text::Made(Arc::clone(name)),
                    None => Text::Borrowed(key),
                })
            }
            Shape::Map { .. } | Shape::Any => Some(Text::Borrowed(key)),
            _ => None,
        }
    }

    /// The value of a field, by its name in expressions. An object's null fields are absent.
    pub fn read_field<'a>(&'a self, object: &'a JsonMap<String, Json>, name: &str) -> Option<Out<'a>> {
        match &self.shape {
            Shape::Object { fields, names, .. } => {
                let own: &str = match names.get(name) {
                    Some(own) => own,
                    None => name,
                };
                let value = object.get(own).filter(|v| !v.is_null())?;
                fields.get(own).map(|field| field.decl.read(value))
            }
            Shape::Map { values, .. } => object.get(name).map(|value| values.read(value)),
            Shape::Any => object.get(name).map(|value| self.read(value)),
            _ => None,
        }
    }

    /// Reads a value of the object.
    pub fn read<'a>(&'a self, json: &'a Json) -> Out<'a> {
        if json.is_null() {
            return if self.nullable {
                Ok(Val::Null)
            } else {
                Err(Error::new("invalid data, got null for schema with nullable=false"))
            };
        }
        let expected = |what: &str| Err(Error::new(format!("invalid data, expected {what}")));
        match (&self.shape, json) {
            (Shape::Typed(_), json) => Self::any().read(json),
            (Shape::IntOrString, Json::String(s)) | (Shape::String, Json::String(s)) => {
                Ok(Val::String(Text::Borrowed(s)))
            }
            (Shape::IntOrString | Shape::Int, Json::Number(n)) if n.is_i64() => Ok(Val::Int(n.as_i64().unwrap_or(0))),
            (Shape::IntOrString, _) => expected("XIntOrString value to be either a string or integer"),
            (Shape::Bool, Json::Bool(b)) => Ok(Val::Bool(*b)),
            (Shape::Double, Json::Number(n)) => Ok(Val::Double(n.as_f64().unwrap_or(f64::NAN))),
            (Shape::Bytes, Json::String(s)) => match base64::engine::general_purpose::STANDARD.decode(s) {
                Ok(bytes) => Ok(Val::Bytes(bytes.into())),
                Err(error) => Err(Error::new(format!("Invalid byte formatted string {s}: {error}"))),
            },
            (Shape::Duration, Json::String(s)) => match machinery::structural::formats::read_duration(s) {
                Some(nanos) => Ok(Val::Duration(nanos)),
                None => Err(Error::new(format!("Invalid duration {s}: unable to parse {s} as duration"))),
            },
            (Shape::Date, Json::String(s)) => Timestamp::parse_date(s)
                .map(Val::Timestamp)
                .ok_or_else(|| Error::new(format!("Invalid date formatted string {s}"))),
            (Shape::DateTime, Json::String(s)) => date_time(s)
                .map(Val::Timestamp)
                .ok_or_else(|| Error::new(format!("Invalid date-time formatted string {s}"))),
            (Shape::Quantity, Json::String(s)) => {
                s.parse().map(Val::Quantity).map_err(|_| Error::new(format!("Invalid quantity {s}")))
            }
            (Shape::List { .. }, Json::Array(items)) => Ok(Val::List(List::Data(items, self))),
            (Shape::Map { .. } | Shape::Object { .. }, Json::Object(fields)) => Ok(Val::Map(Map::Data(fields, self))),
            (Shape::Any, Json::Bool(b)) => Ok(Val::Bool(*b)),
            (Shape::Any, Json::Number(n)) => Ok(match (n.as_i64(), n.as_u64()) {
                (Some(i), _) => Val::Int(i),
                (None, Some(u)) => Val::Uint(u),
                (None, None) => Val::Double(n.as_f64().unwrap_or(f64::NAN)),
            }),
            (Shape::Any, Json::String(s)) => Ok(Val::String(Text::Borrowed(s))),
            (Shape::Any, Json::Array(items)) => Ok(Val::List(List::Data(items, self))),
            (Shape::Any, Json::Object(fields)) => Ok(Val::Map(Map::Data(fields, self))),
            (Shape::Unknown, other) => Ok(Val::Unknown(other)),
            (Shape::Opaque(why), _) => Err(Error::new(why.clone())),
            (Shape::Bool, _) => expected("bool"),
            (Shape::Int, _) => expected("int"),
            (Shape::Double, _) => expected("float"),
            (Shape::List { .. }, _) => expected("an array for the provided schema with type=array"),
            (Shape::Map { .. } | Shape::Object { .. }, _) => expected("a map for the provided schema with type=object"),
            _ => expected("string"),
        }
    }
}

/// A moment in the forms that the format `date-time` allows.
fn date_time(text: &str) -> Option<Timestamp> {
    let upper = text.to_ascii_uppercase().replacen(' ', "T", 1);
    Timestamp::parse(&upper).or_else(|_| Timestamp::parse(&format!("{upper}Z"))).ok()
}

/// Words that expressions cannot use as names.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// What expressions call a field: `a-b` is `a__dash__b`. `None`: they have no name for it.
pub fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let mut length = 1;
        match c {
            '_' if rest.starts_with("__") => {
                out.push_str("__underscores__");
                length = 2;
            }
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            c if c.is_ascii_alphanumeric() || c == '_' => out.push(c),
            _ => return None,
        }
        rest = rest.get(length..).unwrap_or("");
    }
    Some(out)
}

/// Reads declarations off a schema: `type`, `properties`, bounds, `x-kubernetes-…`. `root` is the root
/// of an object, whose name and kind expressions always see.
pub fn declare(schema: &Json, root: bool) -> Arc<Decl> {
    build(schema, root, "selfType")
}

fn build(schema: &Json, root: bool, name: &str) -> Arc<Decl> {
    let flag = |key: &str| schema.get(key).and_then(Json::as_bool).unwrap_or(false);
    let bound = |key: &str| schema.get(key).and_then(Json::as_i64).map(|n| n.max(0) as u64);
    let nullable = flag("nullable");
    let make = |shape: Shape, max_elements: u64, min_size: u64| Decl { shape, nullable, max_elements, min_size };
    let text_bound = bound("maxLength").map(|n| n.saturating_mul(4));
    Arc::new(if flag("x-kubernetes-int-or-string") {
        make(Shape::IntOrString, text_bound.unwrap_or(MAX_REQUEST - 2), 1)
    } else {
        match schema.get("type").and_then(Json::as_str).unwrap_or("") {
            "object" => return object(schema, root, name),
            "array" => match schema.get("items") {
                Some(items) => {
                    let items = build(items, embedded(items), &format!("{name}.@idx"));
                    let max = bound("maxItems").unwrap_or((MAX_REQUEST - 2) / (items.min_size + 1));
                    make(Shape::List { items, list_type: list_type(schema) }, max, 2)
                }
                None => make(Shape::Opaque("invalid array type, expected Items with a non-empty Schema".into()), 0, 2),
            },
            "string" => match schema.get("format").and_then(Json::as_str).unwrap_or("") {
                "byte" => make(Shape::Bytes, bound("maxLength").unwrap_or(MAX_REQUEST - 2), 2),
                "duration" => make(Shape::Duration, 32, 3),
                "date" => make(Shape::Date, 12, 12),
                "date-time" => make(Shape::DateTime, 32, 21),
                _ => {
                    let longest = |values: &Vec<Json>| {
                        values.iter().filter_map(Json::as_str).map(str::len).max().unwrap_or(0) as u64
                    };
                    let max = text_bound
                        .or(schema.get("enum").and_then(Json::as_array).filter(|v| !v.is_empty()).map(longest))
                        .unwrap_or(MAX_REQUEST - 2);
                    make(Shape::String, max, 2)
                }
            },
            "boolean" => make(Shape::Bool, 0, 4),
            "number" => make(Shape::Double, 0, 1),
            "integer" => make(Shape::Int, 0, 1),
            _ if flag("x-kubernetes-preserve-unknown-fields") => make(Shape::Unknown, 0, 0),
            other => make(
                Shape::Opaque(
                    format!(
                        "invalid type, expected object, array, number, integer, boolean or string, or no type with \
                         x-kubernetes-int-or-string or x-kubernetes-preserve-unknown-fields is true, got {other}"
                    )
                    .into(),
                ),
                0,
                0,
            ),
        }
    })
}

fn embedded(schema: &Json) -> bool {
    schema.get("x-kubernetes-embedded-resource").and_then(Json::as_bool).unwrap_or(false)
}

fn list_type(schema: &Json) -> ListType {
    match schema.get("x-kubernetes-list-type").and_then(Json::as_str) {
        Some("set") => ListType::Set,
        Some("map") => {
            let keys = schema.get("x-kubernetes-list-map-keys").and_then(Json::as_array);
            let keys = keys.into_iter().flatten().filter_map(Json::as_str);
            ListType::Map(keys.map(str::to_owned).collect())
        }
        _ => ListType::Atomic,
    }
}

fn object(schema: &Json, root: bool, name: &str) -> Arc<Decl> {
    let nullable = schema.get("nullable").and_then(Json::as_bool).unwrap_or(false);
    let bound = |key: &str| schema.get(key).and_then(Json::as_i64).map(|n| n.max(0) as u64);
    let root = root || embedded(schema);
    if let Some(values) = schema.get("additionalProperties").filter(|v| v.is_object()) {
        let values = build(values, embedded(values), &format!("{name}.@elem"));
        let max_elements = bound("maxProperties").unwrap_or((MAX_REQUEST - 2) / (values.min_size + 6));
        return Arc::new(Decl { shape: Shape::Map { values, keys: 0 }, nullable, max_elements, min_size: 2 });
    }
    let mut properties = schema.get("properties").and_then(Json::as_object).cloned().unwrap_or_default();
    if root && !has_meta(&properties) {
        let text = serde_json::json!({"type": "string"});
        let metadata = meta(&properties);
        properties.extend([
            ("kind".to_owned(), text.clone()),
            ("apiVersion".to_owned(), text),
            ("metadata".to_owned(), metadata),
        ]);
    }
    let required: Vec<&str> =
        schema.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str).collect();
    let mut fields: BTreeMap<Box<str>, Field> = BTreeMap::new();
    let mut min_size = 2;
    for (key, property) in &properties {
        let decl = build(property, embedded(property), &format!("{name}.{key}"));
        if decl.is_visible() && required.contains(&key.as_str()) && property.get("default").is_none() {
            min_size += key.len() as u64 + decl.min_size + 4;
        }
        fields.insert(key.as_str().into(), Field { name: escape(key).map(Into::into), decl });
    }
    let names = fields
        .iter()
        .filter_map(|(key, field)| field.name.as_ref().map(|name| (name.as_ref().into(), key.clone())))
        .collect();
    Arc::new(Decl { shape: Shape::Object { name: name.into(), fields, names }, nullable, max_elements: 0, min_size })
}

/// Does the schema itself say what the root of an object has?
fn has_meta(properties: &JsonMap<String, Json>) -> bool {
    let is = |value: Option<&Json>, t: &str| {
        value.and_then(|v| v.get("type")).and_then(Json::as_str).is_some_and(|own| own == t)
    };
    let metadata = properties.get("metadata");
    let field = |name: &str| metadata.and_then(|m| m.get("properties")).and_then(|p| p.get(name));
    is(properties.get("kind"), "string")
        && is(properties.get("apiVersion"), "string")
        && is(metadata, "object")
        && is(field("name"), "string")
        && is(field("generateName"), "string")
}

/// What expressions see of an object's metadata: two names, as long as names may be.
fn meta(properties: &JsonMap<String, Json>) -> Json {
    let capped = |name: &str, max: i64| {
        let own = properties.get("metadata").and_then(|m| m.get("properties")).and_then(|p| p.get(name));
        let own = own.and_then(|p| p.get("maxLength")).and_then(Json::as_i64);
        serde_json::json!({"type": "string", "maxLength": own.map_or(max, |own| own.min(max))})
    };
    serde_json::json!({"type": "object", "properties": {
        "name": capped("name", 253),
        "generateName": capped("generateName", 252),
    }})
}
