//! From the JSON of a schema to its tree of nodes.

use serde_json::{Map, Value};

use super::{
    Additional, ListType, MAX_DEPTH, MAX_NODES, MapType, Node, Properties, Rare, Remarks, Rule, Type, Validation,
    invariants,
};
use crate::field::{FieldErrors, Path};

/// Why no tree can be made of a schema.
type Result<T> = std::result::Result<T, String>;

/// Builds the tree and checks that it is structural.
pub(super) fn compile(path: &Path, schema: &Value) -> std::result::Result<Node, FieldErrors> {
    let mut errors = FieldErrors::new();
    let mut builder = Builder::default();
    match builder.node(schema, 0) {
        Ok(node) => {
            invariants::check(path, &node, &mut errors);
            if let Some(odd) = builder.odd {
                errors.invalid(path, "", odd);
            }
            if errors.is_empty() {
                return Ok(node);
            }
        }
        Err(text) => errors.invalid(path, "", text),
    }
    Err(errors)
}

/// Builds the tree of a schema, structural or not. A type that is none is left out.
///
/// # Errors
/// What the form has no room for: references, definitions, lists of schemas, nesting without end.
pub fn build(schema: &Value) -> Result<Node> {
    Builder::default().node(schema, 0)
}

/// Fields of a schema that no structural schema has.
const UNSUPPORTED: [(&str, &str); 7] = [
    ("id", "id"),
    ("$schema", "schema"),
    ("$ref", "$ref"),
    ("patternProperties", "patternProperties"),
    ("dependencies", "dependencies"),
    ("additionalItems", "additionalItems"),
    ("definitions", "definitions"),
];

#[derive(Default)]
struct Builder {
    nodes: usize,
    /// The first type that is none.
    odd: Option<String>,
}

impl Builder {
    fn node(&mut self, schema: &Value, depth: usize) -> Result<Node> {
        let Value::Object(map) = schema else { return Err("a schema must be an object".to_owned()) };
        self.nodes += 1;
        if depth > MAX_DEPTH {
            return Err(format!("schemas must not nest deeper than {MAX_DEPTH} levels"));
        }
        if self.nodes > MAX_NODES {
            return Err(format!("a schema must not have more than {MAX_NODES} parts"));
        }
        for (field, name) in UNSUPPORTED {
            if map.get(field).is_some_and(is_set) {
                return Err(format!("OpenAPIV3Schema '{name}' is not supported"));
            }
        }
        let word = text(map, "type")?;
        let kind = Type::of(word);
        if kind.is_none() && !word.is_empty() {
            self.odd::<Type>(format!("unknown type {word:?}"));
        }
        let mut node = Node {
            kind,
            nullable: flag(map, "nullable")?,
            preserve_unknown_fields: match map.get("x-kubernetes-preserve-unknown-fields") {
                None | Some(Value::Null) => false,
                Some(Value::Bool(true)) => true,
                Some(_) => {
                    return Err(
                        "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".to_owned()
                    );
                }
            },
            embedded_resource: flag(map, "x-kubernetes-embedded-resource")?,
            int_or_string: flag(map, "x-kubernetes-int-or-string")?,
            list_type: match text(map, "x-kubernetes-list-type")? {
                "" => None,
                "atomic" => Some(ListType::Atomic),
                "set" => Some(ListType::Set),
                "map" => Some(ListType::Map),
                other => self.odd(format!("unknown x-kubernetes-list-type {other:?}")),
            },
            map_type: match text(map, "x-kubernetes-map-type")? {
                "" => None,
                "granular" => Some(MapType::Granular),
                "atomic" => Some(MapType::Atomic),
                other => self.odd(format!("unknown x-kubernetes-map-type {other:?}")),
            },
            properties: self.properties(map, depth)?,
            additional_properties: match map.get("additionalProperties") {
                None | Some(Value::Null) => None,
                Some(Value::Bool(allowed)) => Some(Additional::Allowed(*allowed)),
                Some(schema) => Some(Additional::Schema(Box::new(self.node(schema, depth + 1)?))),
            },
            items: match map.get("items") {
                None | Some(Value::Null) => None,
                Some(Value::Array(_)) => {
                    return Err("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
                }
                Some(schema) => Some(Box::new(self.node(schema, depth + 1)?)),
            },
            validation: None,
            rare: None,
            remarks: Remarks {
                description: !text(map, "description")?.is_empty(),
                title: !text(map, "title")?.is_empty(),
                odd_type: kind.is_none() && !word.is_empty(),
                other: ["externalDocs", "example"].iter().any(|name| map.get(*name).is_some_and(|v| !v.is_null())),
            },
        };
        let validation = self.validation(map, depth)?;
        if validation != Validation::default() {
            node.validation = Some(Box::new(validation));
        }
        let rare = Rare {
            default: map.get("default").filter(|value| !value.is_null()).cloned(),
            list_map_keys: texts(map, "x-kubernetes-list-map-keys")?,
            rules: list(map, "x-kubernetes-validations")?.iter().map(rule).collect::<Result<_>>()?,
        };
        if rare != Rare::default() {
            node.rare = Some(Box::new(rare));
        }
        Ok(node)
    }

    /// Remembers what a schema says and nobody knows.
    fn odd<T>(&mut self, what: String) -> Option<T> {
        self.odd.get_or_insert(what);
        None
    }

    fn properties(&mut self, map: &Map<String, Value>, depth: usize) -> Result<Properties> {
        let map = match map.get("properties") {
            None | Some(Value::Null) => return Ok(Properties::default()),
            Some(Value::Object(map)) => map,
            Some(_) => return Err("properties must be an object".to_owned()),
        };
        let mut out = Vec::with_capacity(map.len());
        for (name, schema) in map {
            out.push((name.as_str().into(), self.node(schema, depth + 1)?));
        }
        // A map that keeps the order of insertion would not be sorted.
        out.sort_by(|(a, _): &(Box<str>, Node), (b, _)| a.cmp(b));
        Ok(Properties(out.into()))
    }

    fn validation(&mut self, map: &Map<String, Value>, depth: usize) -> Result<Validation> {
        Ok(Validation {
            format: text(map, "format")?.into(),
            maximum: number(map, "maximum")?,
            exclusive_maximum: flag(map, "exclusiveMaximum")?,
            minimum: number(map, "minimum")?,
            exclusive_minimum: flag(map, "exclusiveMinimum")?,
            max_length: integer(map, "maxLength")?,
            min_length: integer(map, "minLength")?,
            pattern: text(map, "pattern")?.into(),
            max_items: integer(map, "maxItems")?,
            min_items: integer(map, "minItems")?,
            unique_items: flag(map, "uniqueItems")?,
            multiple_of: number(map, "multipleOf")?,
            enumeration: list(map, "enum")?.to_vec(),
            max_properties: integer(map, "maxProperties")?,
            min_properties: integer(map, "minProperties")?,
            required: texts(map, "required")?,
            all_of: self.nodes(map, "allOf", depth)?,
            any_of: self.nodes(map, "anyOf", depth)?,
            one_of: self.nodes(map, "oneOf", depth)?,
            not: match map.get("not") {
                None | Some(Value::Null) => None,
                Some(schema) => Some(Box::new(self.node(schema, depth + 1)?)),
            },
        })
    }

    fn nodes(&mut self, map: &Map<String, Value>, name: &str, depth: usize) -> Result<Vec<Node>> {
        list(map, name)?.iter().map(|schema| self.node(schema, depth + 1)).collect()
    }
}

/// False for what a client may as well leave out.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}

fn misfit<T>(name: &str, wanted: &str) -> Result<T> {
    Err(format!("{name} must be {wanted}"))
}

fn text<'v>(map: &'v Map<String, Value>, name: &str) -> Result<&'v str> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => misfit(name, "a string"),
    }
}

fn flag(map: &Map<String, Value>, name: &str) -> Result<bool> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => misfit(name, "a boolean"),
    }
}

fn number(map: &Map<String, Value>, name: &str) -> Result<Option<f64>> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_f64().map_or_else(|| misfit(name, "a number"), |number| Ok(Some(number))),
    }
}

fn integer(map: &Map<String, Value>, name: &str) -> Result<Option<i64>> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_i64().map_or_else(|| misfit(name, "an integer"), |number| Ok(Some(number))),
    }
}

fn list<'v>(map: &'v Map<String, Value>, name: &str) -> Result<&'v [Value]> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => misfit(name, "a list"),
    }
}

fn texts(map: &Map<String, Value>, name: &str) -> Result<Vec<Box<str>>> {
    let word = |value: &Value| value.as_str().map_or_else(|| misfit(name, "a list of strings"), |text| Ok(text.into()));
    list(map, name)?.iter().map(word).collect()
}

fn rule(value: &Value) -> Result<Rule> {
    let Value::Object(map) = value else { return misfit("x-kubernetes-validations", "a list of rules") };
    Ok(Rule {
        rule: text(map, "rule")?.to_owned(),
        message: text(map, "message")?.to_owned(),
        message_expression: text(map, "messageExpression")?.to_owned(),
        reason: match text(map, "reason")? {
            "" => None,
            reason => Some(reason.to_owned()),
        },
        field_path: text(map, "fieldPath")?.to_owned(),
        optional_old_self: match map.get("optionalOldSelf") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(flag)) => Some(*flag),
            Some(_) => return misfit("optionalOldSelf", "a boolean"),
        },
    })
}
