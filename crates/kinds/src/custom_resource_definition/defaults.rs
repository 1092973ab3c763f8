//! Defaults in a schema must themselves be what the schema says.

use api::meta::apis::meta::v1::ObjectMeta;
use machinery::field::{FieldErrors, Path};
use machinery::structural::Node;
use serde_json::{Value, json};

use crate::metadata;
use crate::view;

/// Adds the mistakes in the defaults of a schema.
pub(super) fn check(root: &Node, path: &Path, errors: &mut FieldErrors) {
    node(root, true, None, path, errors);
}

/// `head`: what of an object's head the node belongs to, as a path of names.
fn node(node: &Node, is_root: bool, head: Option<&[&str]>, path: &Path, errors: &mut FieldErrors) {
    let has_head = is_root || node.embedded_resource;
    let head = head.filter(|_| !has_head);
    if let Some(default) = node.default_value() {
        let at = path.child("default");
        match head {
            Some(names) => in_head(node, default, names, &at, errors),
            None => plain(node, default, &at, errors),
        }
    }
    if let Some(items) = &node.items {
        self::node(items, false, head, &path.child("items"), errors);
    }
    for (name, property) in node.properties.iter() {
        let at = path.child("properties").key(name);
        let names: Vec<&str> = match head {
            Some(names) => names.iter().copied().chain([name]).collect(),
            None if has_head && matches!(name, "metadata" | "apiVersion" | "kind") => vec![name],
            None => {
                self::node(property, false, None, &at, errors);
                continue;
            }
        };
        self::node(property, false, Some(&names), &at, errors);
    }
}

fn plain(node: &Node, default: &Value, path: &Path, errors: &mut FieldErrors) {
    let mut pruned = default.clone();
    node.prune(&mut pruned);
    if pruned != *default {
        errors.invalid(path, default.clone(), "must not have unknown fields");
    }
    let mut found = FieldErrors::new();
    node.validate_embedded(path, default, &metadata::validate_embedded, &mut found);
    if found.is_empty() {
        node.validate(path, default, None, &mut found);
    }
    errors.extend(found);
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
