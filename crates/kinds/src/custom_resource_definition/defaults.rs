//! Defaults in a schema must themselves be what the schema says.

use api::meta::apis::meta::v1::ObjectMeta;
use machinery::field::{FieldErrors, Path};
use machinery::structural::Node;
use serde_json::{Value, json};

use crate::metadata;
use crate::view;

/// Adds the mistakes in the defaults of a schema, which is given compiled and as it was written.
/// `unknown`: they may have fields that the schema does not know.
pub(super) fn check(root: &Node, schema: &Value, unknown: bool, path: &Path, errors: &mut FieldErrors) {
    let mut budget = rules::crd::BUDGET;
    node((root, schema), true, None, path, &mut Found { errors, unknown, budget: &mut budget });
}

/// True for a schema with a default that has fields the schema does not know.
pub(super) fn has_unknown(node: &Node) -> bool {
    let own = node.default_value().is_some_and(|default| has_unknown_fields(node, default));
    own || node.items.as_deref().is_some_and(has_unknown)
        || node.properties.iter().any(|(_, property)| has_unknown(property))
        || node.additional().is_some_and(has_unknown)
}

fn has_unknown_fields(node: &Node, default: &Value) -> bool {
    let mut pruned = default.clone();
    node.prune(&mut pruned);
    pruned != *default
}

/// What was found, and what all rules on all defaults may still cost.
struct Found<'f> {
    errors: &'f mut FieldErrors,
    unknown: bool,
    budget: &'f mut i64,
}

/// `head`: what of an object's head the node belongs to, as a path of names.
fn node((node, schema): (&Node, &Value), is_root: bool, head: Option<&[&str]>, path: &Path, found: &mut Found<'_>) {
    let has_head = is_root || node.embedded_resource;
    let head = head.filter(|_| !has_head);
    if let Some(default) = node.default_value() {
        let at = path.child("default");
        match head {
            Some(names) => in_head(node, default, names, &at, found.errors),
            None => plain((node, schema), default, &at, found),
        }
    }
    if let Some(items) = &node.items {
        self::node((items, inner(schema.get("items"))), false, head, &path.child("items"), found);
    }
    for (name, property) in node.properties.iter() {
        let at = path.child("properties").key(name);
        let written = inner(schema.get("properties").and_then(|properties| properties.get(name)));
        let names: Vec<&str> = match head {
            Some(names) => names.iter().copied().chain([name]).collect(),
            None if has_head && matches!(name, "metadata" | "apiVersion" | "kind") => vec![name],
            None => {
                self::node((property, written), false, None, &at, found);
                continue;
            }
        };
        self::node((property, written), false, Some(&names), &at, found);
    }
}

/// The schema of a node as it was written; it is there, for the node was made of it.
fn inner(schema: Option<&Value>) -> &Value {
    schema.unwrap_or(&Value::Null)
}

fn plain((node, schema): (&Node, &Value), default: &Value, path: &Path, found: &mut Found<'_>) {
    if !found.unknown && has_unknown_fields(node, default) {
        found.errors.invalid(path, default.clone(), "must not have unknown fields");
    }
    let mut errors = FieldErrors::new();
    node.validate_embedded(path, default, &metadata::validate_embedded, &mut errors);
    if errors.is_empty() {
        node.validate(path, default, None, &mut errors);
    }
    if errors.is_empty() {
        let rules = rules::crd::Rules::compile(schema);
        // Rules must hold when the value stays and when it comes.
        for old in [Some(default), None] {
            if errors.is_empty() && !rules.is_empty() {
                errors = rules.validate(default, old, path, found.budget, &mut Vec::new());
            }
        }
    }
    found.errors.extend(errors);
}

/// A default inside of an object's metadata: what it makes of an object must be one.
fn in_head(node: &Node, default: &Value, names: &[&str], path: &Path, errors: &mut FieldErrors) {
    let mut object = json!({"apiVersion": "validation/v1", "kind": "Validation"});
    let nested = names[1..].iter().rev().fold(default.clone(), |inner, name| json!({ *name: inner }));
    object[names[0]] = nested;
    let wrong = |why: String| format!("must result in valid metadata: {why}");
    let meta = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
    let mut found = FieldErrors::new();
    if let Err(status) = view::read::<ObjectMeta>(&meta) {
        return errors.invalid(path, default.clone(), wrong(status.message.clone()));
    }
    metadata::validate_embedded(&meta, &Path::new("metadata"), &mut found);
    if !found.is_empty() {
        return errors.invalid(path, default.clone(), wrong(found.to_string()));
    }
    node.validate(path, default, None, errors);
}
