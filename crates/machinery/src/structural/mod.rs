//! The structural schema of one version of a custom resource: what its objects may look like.
//!
//! A [`Structural`] is compiled once from `openAPIV3Schema` and is then a tree of [`Node`]s, one for
//! each value that an object may have. Everything that happens to a custom resource walks it:
//!
//! ```text
//! openAPIV3Schema ──compile──► Structural ─┬─ prune      what the schema does not know goes
//!                                          ├─ default    what is absent and has a default comes
//!                                          ├─ validate   what breaks a rule is told, with its path
//!                                          └─ types      the schema that decoding, apply and encoding use
//! ```
//!
//! Rules in CEL (`x-kubernetes-validations`) are kept as they were written ([`Rule`]).
//!
//! # Bounds
//!
//! A schema has at most [`MAX_NODES`] nodes and nests at most [`MAX_DEPTH`] deep; patterns are matched in
//! time linear in the text, by programs of bounded size.

pub mod address;
mod compile;
mod default;
mod embedded;
mod field_path;
pub mod formats;
mod invariants;
mod lists;
pub mod open_api;
mod prune;
#[cfg(test)]
mod tests;
mod types;
mod validate;

pub use compile::build;
pub use embedded::MetadataRule;
pub use types::Names;

use serde_json::Value;

use crate::field::{FieldErrors, Path};

/// The deepest nesting of schemas within schemas.
pub const MAX_DEPTH: usize = 64;
/// The most nodes of one schema, those under `allOf`, `anyOf`, `oneOf` and `not` among them.
pub const MAX_NODES: usize = 32 * 1024;

/// The compiled schema of one version of a custom resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Structural {
    root: Node,
}

impl Structural {
    /// Compiles a schema. A schema that is not structural is refused; its errors have paths that start
    /// at the schema.
    ///
    /// # Errors
    /// What keeps the schema from being structural.
    pub fn compile(open_api_v3_schema: &Value) -> Result<Self, FieldErrors> {
        Self::compile_at(&Path::root(), open_api_v3_schema)
    }

    /// The same with paths that start at `path`.
    ///
    /// # Errors
    /// What keeps the schema from being structural.
    pub fn compile_at(path: &Path, open_api_v3_schema: &Value) -> Result<Self, FieldErrors> {
        compile::compile(path, open_api_v3_schema).map(|root| Self { root })
    }

    /// The node of the whole object.
    pub fn root(&self) -> &Node {
        &self.root
    }
}

/// `type` of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    /// The word in a schema.
    pub fn word(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }

    /// The type that a word stands for.
    pub fn of(word: &str) -> Option<Self> {
        Some(match word {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => return None,
        })
    }
}

/// `x-kubernetes-list-type`; a list without one is atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListType {
    Atomic,
    Set,
    Map,
}

/// `x-kubernetes-map-type`; a map without one is granular.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapType {
    Granular,
    Atomic,
}

/// What the schema says of one value. The same form serves the schemas under `allOf`, `anyOf`, `oneOf`
/// and `not`, which say nothing of structure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    pub kind: Option<Type>,
    pub nullable: bool,
    /// `x-kubernetes-preserve-unknown-fields`.
    pub preserve_unknown_fields: bool,
    /// `x-kubernetes-embedded-resource`: it is an object with `apiVersion`, `kind` and `metadata`.
    pub embedded_resource: bool,
    /// `x-kubernetes-int-or-string`.
    pub int_or_string: bool,
    pub list_type: Option<ListType>,
    pub map_type: Option<MapType>,
    pub properties: Properties,
    pub additional_properties: Option<Additional>,
    pub items: Option<Box<Node>>,
    pub validation: Option<Box<Validation>>,
    rare: Option<Box<Rare>>,
    remarks: Remarks,
}

/// What a schema says to its readers; kept elsewhere, but not everywhere allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Remarks {
    description: bool,
    title: bool,
    /// Its type is none that there is.
    odd_type: bool,
    /// `externalDocs` or `example`.
    other: bool,
}

/// What few nodes have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rare {
    default: Option<Value>,
    list_map_keys: Vec<Box<str>>,
    rules: Vec<Rule>,
}

impl Node {
    /// The default; a default of `null` is none.
    pub fn default_value(&self) -> Option<&Value> {
        self.rare.as_ref()?.default.as_ref()
    }

    /// `x-kubernetes-list-map-keys`.
    pub fn list_map_keys(&self) -> &[Box<str>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.list_map_keys)
    }

    /// `x-kubernetes-validations`.
    pub fn x_validations(&self) -> &[Rule] {
        self.rare.as_ref().map_or(&[], |rare| &rare.rules)
    }

    /// Removes from a value what the node does not specify.
    pub fn prune(&self, value: &mut Value) {
        prune::prune(value, self, self.embedded_resource);
    }

    /// Adds what is wrong with a value at `base`, or with its change from `old`.
    pub fn validate(&self, base: &Path, new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
        validate::validate(self, base, new, old, errors);
    }

    /// Adds what keeps the node from being the root of a structural schema, with paths that start at `path`.
    pub fn check_structural(&self, path: &Path, errors: &mut FieldErrors) {
        invariants::check(path, self, errors);
    }

    /// The node of the property, or of what stands for all properties that are not named.
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or_else(|| self.additional())
    }

    /// The node of all properties that are not named.
    pub fn additional(&self) -> Option<&Self> {
        match &self.additional_properties {
            Some(Additional::Schema(node)) => Some(node),
            _ => None,
        }
    }

    /// True when `name` must be there.
    pub fn requires(&self, name: &str) -> bool {
        self.validation.as_ref().is_some_and(|v| v.required.iter().any(|r| &**r == name))
    }

    /// `maxLength`, `maxItems` or `maxProperties`, whichever bounds a value of the node's type.
    pub fn max_size(&self) -> Option<u64> {
        let validation = self.validation.as_ref()?;
        let max = match self.kind? {
            Type::Object => validation.max_properties,
            Type::Array => validation.max_items,
            Type::String => validation.max_length,
            Type::Integer | Type::Number | Type::Boolean => None,
        };
        max.map(|max| u64::try_from(max).unwrap_or(0))
    }
}

/// The named properties of an object, sorted by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties(Box<[(Box<str>, Node)]>);

impl Properties {
    /// The property of this name.
    pub fn get(&self, name: &str) -> Option<&Node> {
        let found = self.0.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(&self.0[found].1)
    }

    /// All properties in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Node)> {
        self.0.iter().map(|(name, node)| (&**name, node))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// `additionalProperties`.
#[derive(Clone, Debug, PartialEq)]
pub enum Additional {
    /// Any, or none, without a schema.
    Allowed(bool),
    Schema(Box<Node>),
}

/// What is asked of a value beyond its structure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Validation {
    pub format: Box<str>,
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub pattern: Box<str>,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub unique_items: bool,
    pub multiple_of: Option<f64>,
    pub enumeration: Vec<Value>,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub required: Vec<Box<str>>,
    pub all_of: Vec<Node>,
    pub any_of: Vec<Node>,
    pub one_of: Vec<Node>,
    pub not: Option<Box<Node>>,
}

/// One rule of `x-kubernetes-validations`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub rule: String,
    pub message: String,
    pub message_expression: String,
    pub reason: Option<String>,
    pub field_path: String,
    pub optional_old_self: Option<bool>,
}
