//! What an `openAPIV3Schema` may say, beyond being structural.
//!
//! The walk is over the tree as it was sent: a schema that cannot be compiled is told every mistake all
//! the same. Its depth is that of the body.

use machinery::field::{FieldErrors, Path};
use machinery::structural;
use serde_json::{Map, Value};

use super::defaults;
use super::ratchet::KeptInSchemas;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
/// What the root may say when status is validated on its own, as `properties[status]`, in the words of
/// upstream's struct.
const AT_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength \
                       MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties \
                       ExternalDocs Example XPreserveUnknownFields XValidations]";
/// What it may not.
const NOT_AT_ROOT: [&str; 21] = [
    "id",
    "$schema",
    "$ref",
    "nullable",
    "default",
    "enum",
    "maxProperties",
    "minProperties",
    "allOf",
    "oneOf",
    "anyOf",
    "not",
    "additionalProperties",
    "patternProperties",
    "dependencies",
    "additionalItems",
    "definitions",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
];

/// Adds the mistakes in the schema of a version, which may be `unchanged` and keep what old ones had.
pub(super) fn schema(
    schema: &Value,
    has_status: bool,
    unchanged: bool,
    kept: KeptInSchemas,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let Value::Object(map) = schema else { return };
    let before = errors.len();
    if has_status {
        let kind = text(map, "type");
        if !kind.is_empty() && kind != "object" {
            let detail = r#"only "object" is allowed as the type at the root of the schema if the status subresource is enabled"#;
            errors.invalid(&path.child("type"), kind, detail);
        } else if NOT_AT_ROOT.iter().any(|field| map.get(*field).is_some_and(is_set)) {
            let detail = "fields are allowed at the root of the schema if the status subresource is enabled";
            errors.invalid(path, schema.clone(), format!("only {AT_ROOT} {detail}"));
        }
    }
    if flag(map, "nullable") {
        errors.forbidden(&path.child("nullable"), "nullable cannot be true at the root");
    }
    let built = structural::build(schema);
    if let Ok(node) = &built {
        let mut found = FieldErrors::new();
        node.check_structural(path, &mut found);
        if found.is_empty() {
            defaults::check(node, schema, kept.defaults, path, &mut found);
        }
        errors.extend(found);
    }
    let mut walk = Walk { errors, kept, context: Context::default() };
    walk.node(map, path, true);
    if let Err(why) = built
        && errors.len() == before
    {
        // It overlaps with what the walk finds, and is told when that found nothing.
        errors.invalid(path, "", why);
    }
    // Rules are compiled for a schema that is one.
    if errors.len() == before {
        errors.extend(rules::crd::check(schema, path, unchanged));
    }
}

/// True for a set of what is not atomic.
pub(super) fn is_granular_set(map: &Map<String, Value>) -> bool {
    let Some(items) = map.get("items").and_then(Value::as_object) else { return false };
    text(map, "x-kubernetes-list-type") == "set"
        && match text(items, "type") {
            "array" => there(items, "x-kubernetes-list-type").is_some_and(|list| list != "atomic"),
            "object" => text(items, "x-kubernetes-map-type") != "atomic",
            _ => false,
        }
}

/// True for a list whose items may lack what names them.
pub(super) fn has_nameless_items(map: &Map<String, Value>) -> bool {
    let mut errors = FieldErrors::new();
    let mut walk = Walk { errors: &mut errors, kept: KeptInSchemas::default(), context: Context::default() };
    walk.list_items(map, &Path::root());
    !errors.is_empty()
}

/// Calls `visit` with every schema in a schema.
pub(super) fn each(schema: &Value, visit: &mut dyn FnMut(&Map<String, Value>)) {
    let Value::Object(map) = schema else { return };
    visit(map);
    for name in ["items", "allOf", "anyOf", "oneOf", "not", "additionalProperties", "additionalItems"] {
        match map.get(name) {
            Some(Value::Array(schemas)) => schemas.iter().for_each(|schema| each(schema, visit)),
            Some(schema) => each(schema, visit),
            None => {}
        }
    }
    for name in ["properties", "patternProperties", "definitions", "dependencies"] {
        let inner = map.get(name).and_then(Value::as_object).into_iter().flatten();
        inner.for_each(|(_, schema)| each(schema, visit));
    }
}

fn text<'v>(map: &'v Map<String, Value>, name: &str) -> &'v str {
    map.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn flag(map: &Map<String, Value>, name: &str) -> bool {
    map.get(name) == Some(&Value::Bool(true))
}

fn there<'v>(map: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    map.get(name).filter(|value| !value.is_null())
}

fn texts<'v>(map: &'v Map<String, Value>, name: &str) -> Vec<&'v str> {
    map.get(name).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// True for what is not its zero.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}

/// Where the walk is.
#[derive(Clone, Default)]
struct Context {
    /// Why no defaults are allowed; empty where they are.
    no_defaults: String,
    /// Inside of `metadata`, `kind` or `apiVersion`.
    in_head: bool,
}

struct Walk<'e> {
    errors: &'e mut FieldErrors,
    kept: KeptInSchemas,
    context: Context,
}

impl Walk<'_> {
    fn below(&mut self, schema: Option<&Value>, path: &Path) {
        if let Some(Value::Object(map)) = schema {
            self.node(map, path, false);
        }
    }

    fn within(&mut self, context: Context, schema: Option<&Value>, path: &Path) {
        let outer = std::mem::replace(&mut self.context, context);
        self.below(schema, path);
        self.context = outer;
    }

    fn node(&mut self, map: &Map<String, Value>, path: &Path, is_root: bool) {
        self.unsupported(map, path);
        if flag(map, "uniqueItems") {
            let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.errors.forbidden(&path.child("uniqueItems"), detail);
        }
        self.properties(map, path, is_root);
        self.below(map.get("not"), &path.child("not"));
        for name in ["allOf", "oneOf", "anyOf"] {
            for (i, schema) in map.get(name).and_then(Value::as_array).into_iter().flatten().enumerate() {
                self.below(Some(schema), &path.child(name).index(i));
            }
        }
        for (name, schema) in map.get("definitions").and_then(Value::as_object).into_iter().flatten() {
            self.below(Some(schema), &path.child("definitions").key(name));
        }
        let items = path.child("items");
        match map.get("items") {
            Some(Value::Array(schemas)) => {
                for (i, schema) in schemas.iter().enumerate() {
                    self.below(Some(schema), &items.index(i));
                }
            }
            schema => self.below(schema, &items),
        }
        for (name, schema) in map.get("dependencies").and_then(Value::as_object).into_iter().flatten() {
            self.below(Some(schema), &path.child("dependencies").key(name));
        }
        if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
            let at = path.child("x-kubernetes-preserve-unknown-fields");
            self.errors.invalid(&at, false, "must be true or undefined");
        }
        self.map_type(map, path);
        self.list_type(map, path);
        self.list_of_maps(map, path);
        if !self.kept.keys {
            self.list_items(map, path);
        }
        self.rules(map, path);
    }

    fn unsupported(&mut self, map: &Map<String, Value>, path: &Path) {
        let kind = text(map, "type");
        if !kind.is_empty() && !TYPES.contains(&kind) {
            self.errors.not_supported(&path.child("type"), kind, &TYPES);
        }
        if there(map, "default").is_some() && !self.context.no_defaults.is_empty() {
            let detail = format!("must not be set {}", self.context.no_defaults);
            self.errors.forbidden(&path.child("default"), detail);
        }
        for name in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
            let found = there(map, name).is_some_and(|value| match name {
                "id" => value != "",
                "patternProperties" | "definitions" => value.as_object().is_some_and(|map| !map.is_empty()),
                _ => true,
            });
            if found {
                self.errors.forbidden(&path.child(name), format!("{name} is not supported"));
            }
        }
        if kind == "null" {
            let detail = "type cannot be set to null, use nullable as an alternative";
            self.errors.forbidden(&path.child("type"), detail);
        }
        if map.get("items").and_then(Value::as_array).is_some_and(|items| !items.is_empty()) {
            self.errors.forbidden(&path.child("items"), "items must be a schema object and not an array");
        }
        if self.context.in_head && flag(map, "x-kubernetes-embedded-resource") {
            let at = path.child("x-kubernetes-embedded-resource");
            self.errors.forbidden(&at, "must not be used inside of resource meta");
        }
    }

    fn properties(&mut self, map: &Map<String, Value>, path: &Path, is_root: bool) {
        let properties = map.get("properties").and_then(Value::as_object).filter(|map| !map.is_empty());
        if let Some(additional) = there(map, "additionalProperties") {
            let at = path.child("additionalProperties");
            if properties.is_some() && *additional != Value::Bool(true) {
                self.errors.forbidden(&at, "additionalProperties and properties are mutual exclusive");
            }
            let mut context = self.context.clone();
            if context.in_head {
                context.no_defaults = "inside additionalProperties applying to object metadata".to_owned();
            }
            self.within(context, Some(additional), &at);
        }
        let has_head = is_root || flag(map, "x-kubernetes-embedded-resource");
        for (name, schema) in properties.into_iter().flatten() {
            let mut context = self.context.clone();
            if has_head && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
                context.in_head = true;
                if is_root {
                    context.no_defaults = format!("in top-level {name}");
                }
            }
            self.within(context, Some(schema), &path.child("properties").key(name));
        }
    }

    /// The type that an extension asks for.
    fn wants(&mut self, wanted: &str, found: &str, path: &Path, detail: &str) {
        if found.is_empty() {
            self.errors.required(path, format!("must be {wanted} {detail}"));
        } else if found != wanted {
            self.errors.invalid(path, found, format!("must be {wanted} {detail}"));
        }
    }

    fn map_type(&mut self, map: &Map<String, Value>, path: &Path) {
        let Some(kind) = there(map, "x-kubernetes-map-type").and_then(Value::as_str) else { return };
        self.wants("object", text(map, "type"), &path.child("type"), "if x-kubernetes-map-type is specified");
        if !matches!(kind, "atomic" | "granular") {
            self.errors.not_supported(&path.child("x-kubernetes-map-type"), kind, &["atomic", "granular"]);
        }
    }

    fn list_type(&mut self, map: &Map<String, Value>, path: &Path) {
        let Some(kind) = there(map, "x-kubernetes-list-type").and_then(Value::as_str) else { return };
        let items = map.get("items").and_then(Value::as_object);
        if text(map, "type") != "array" {
            self.wants("array", text(map, "type"), &path.child("type"), "if x-kubernetes-list-type is specified");
        } else if let Some(items) = items.filter(|_| kind == "set" && !self.kept.sets) {
            let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
            let list = there(items, "x-kubernetes-list-type");
            // Both are told with the list type, as upstream does.
            let shown = || list.cloned().unwrap_or(Value::Null);
            let at = path.child("items");
            if text(items, "type") == "array" && list.is_some_and(|list| list != "atomic") {
                self.errors.invalid(&at.child("x-kubernetes-list-type"), shown(), detail);
            }
            if text(items, "type") == "object" && text(items, "x-kubernetes-map-type") != "atomic" {
                self.errors.invalid(&at.child("x-kubernetes-map-type"), shown(), detail);
            }
        }
        if !matches!(kind, "atomic" | "set" | "map") {
            self.errors.not_supported(&path.child("x-kubernetes-list-type"), kind, &["atomic", "set", "map"]);
        }
    }

    fn list_of_maps(&mut self, map: &Map<String, Value>, path: &Path) {
        let kind = there(map, "x-kubernetes-list-type").and_then(Value::as_str);
        let keys = texts(map, "x-kubernetes-list-map-keys");
        let at = path.child("x-kubernetes-list-type");
        if !keys.is_empty() {
            let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
            match kind {
                None => self.errors.required(&at, detail),
                Some("map") => {}
                Some(other) => self.errors.invalid(&at, other, detail),
            }
        }
        if kind != Some("map") {
            return;
        }
        let at = path.child("x-kubernetes-list-map-keys");
        if keys.is_empty() {
            self.errors.required(&at, "must not be empty if x-kubernetes-list-type is map");
        }
        let items = path.child("items");
        let inner = match there(map, "items") {
            None => return self.errors.required(&items, "must have a schema if x-kubernetes-list-type is map"),
            Some(Value::Object(inner)) => inner,
            Some(other) => {
                let detail = "must only have a single schema if x-kubernetes-list-type is map";
                return self.errors.invalid(&items, other.clone(), detail);
            }
        };
        if text(inner, "type") != "object" {
            let detail = "must be object if parent array's x-kubernetes-list-type is map";
            return self.errors.invalid(&items.child("type"), text(inner, "type"), detail);
        }
        let shown = || Value::from(keys.iter().map(|key| Value::from(*key)).collect::<Vec<_>>());
        for (i, key) in keys.iter().enumerate() {
            match inner.get("properties").and_then(|properties| properties.get(key)) {
                Some(property) => {
                    if matches!(property.get("type").and_then(Value::as_str), Some("array" | "object")) {
                        let at = items.child("properties").key(key).child("type");
                        let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                        self.errors.invalid(&at, "object", detail);
                    }
                }
                None => self.errors.invalid(&at, shown(), "entries must all be names of item properties"),
            }
            if keys[..i].contains(key) {
                self.errors.invalid(&at, shown(), "must not contain duplicate entries");
            }
        }
    }

    /// What names an item of a list must be there.
    fn list_items(&mut self, map: &Map<String, Value>, path: &Path) {
        let kind @ ("set" | "map") = text(map, "x-kubernetes-list-type") else { return };
        let Some(items) = map.get("items").and_then(Value::as_object) else { return };
        let at = path.child("items");
        if flag(items, "nullable") {
            let detail = format!("cannot be nullable when x-kubernetes-list-type is {kind}");
            self.errors.forbidden(&at.child("nullable"), detail);
        }
        if kind == "set" {
            return;
        }
        let required = texts(items, "required");
        for key in texts(map, "x-kubernetes-list-map-keys") {
            let property = items.get("properties").and_then(|properties| properties.get(key));
            let Some(property) = property.and_then(Value::as_object) else { continue };
            let at = at.child("properties").key(key);
            if !required.contains(&key) && there(property, "default").is_none() {
                let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a \
                              required property";
                self.errors.required(&at.child("default"), detail);
            }
            if flag(property, "nullable") {
                let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                self.errors.forbidden(&at.child("nullable"), detail);
            }
        }
    }

    /// The form of rules; what they say is checked when they are compiled.
    fn rules(&mut self, map: &Map<String, Value>, path: &Path) {
        let rules = map.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten();
        for (i, rule) in rules.filter_map(Value::as_object).enumerate() {
            let path = path.child("x-kubernetes-validations").index(i);
            let (expression, message) = (text(rule, "rule").trim(), text(rule, "message"));
            let broken = |text: &str| text.contains(['\n', '\r']);
            let at = path.child("message");
            if expression.is_empty() {
                self.errors.required(&path.child("rule"), "rule is not specified");
            } else if !message.is_empty() && message.trim().is_empty() {
                self.errors.invalid(&at, message, "must be non-empty if specified");
            } else if broken(message.trim()) {
                self.errors.invalid(&at, message, "must not contain line breaks");
            } else if broken(expression) && message.trim().is_empty() {
                self.errors.required(&at, "message must be specified if rule contains line breaks");
            }
            let by_rule = text(rule, "messageExpression");
            if !by_rule.is_empty() && by_rule.trim().is_empty() {
                let detail = "messageExpression must be non-empty if specified";
                self.errors.required(&path.child("messageExpression"), detail);
            }
            if let Some(reason) = there(rule, "reason").and_then(Value::as_str).filter(|r| !REASONS.contains(r)) {
                self.errors.not_supported(&path.child("reason"), reason, &REASONS);
            }
            self.field_path(map, text(rule, "fieldPath"), &path.child("fieldPath"));
        }
    }

    fn field_path(&mut self, map: &Map<String, Value>, given: &str, path: &Path) {
        if given.is_empty() {
            return;
        }
        if given.trim().is_empty() {
            self.errors.invalid(path, given, "must be non-empty if specified");
        }
        if given.contains(['\n', '\r']) {
            self.errors.invalid(path, given, "must not contain line breaks");
        }
        let node = structural::build(&Value::Object(map.clone()));
        if node.is_ok_and(|node| node.at_path(given, true).is_err()) {
            self.errors.invalid(path, given, "must be a valid path");
        }
    }
}
