//! What makes a schema structural: every value has one type, said outside of `allOf`, `anyOf`, `oneOf`
//! and `not`, and what stands inside them restricts values alone.

use super::{Additional, Node, Type, Validation};
use crate::field::{FieldErrors, Path};
use crate::regexp;

/// Where a node stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Adds what keeps the tree from being structural, in the order of the texts.
pub(super) fn check(path: &Path, root: &Node, errors: &mut FieldErrors) {
    let mut found = FieldErrors::new();
    node(path, root, Level::Root, &mut found);
    let restricted = Restricted { path, node: Some(root) };
    if let Some(validation) = &root.validation {
        junctors(path, validation, &mut |at, inner| complete(&at, inner, restricted, &mut found));
    }
    found.0.sort_by_cached_key(ToString::to_string);
    errors.extend(found);
}

/// Calls `each` with every schema directly under a logical junctor.
fn junctors<'n>(path: &Path, validation: &'n Validation, each: &mut dyn FnMut(Path, &'n Node)) {
    if let Some(not) = &validation.not {
        each(path.child("not"), not);
    }
    for (name, nodes) in [("allOf", &validation.all_of), ("anyOf", &validation.any_of), ("oneOf", &validation.one_of)] {
        for (i, inner) in nodes.iter().enumerate() {
            each(path.child(name).index(i), inner);
        }
    }
}

fn node(path: &Path, node: &Node, level: Level, errors: &mut FieldErrors) {
    if node.kind == Some(Type::Array) && node.items.is_none() {
        errors.required(&path.child("items"), "must be specified");
    }
    if let Some(items) = &node.items {
        self::node(&path.child("items"), items, Level::Item, errors);
    }
    for (name, property) in node.properties.iter() {
        self::node(&path.child("properties").key(name), property, Level::Field, errors);
    }
    if let Some(additional) = &node.additional_properties {
        let path = path.child("additionalProperties");
        if level == Level::Root {
            errors.forbidden(&path, "must not be used at the root");
        }
        if let Additional::Schema(inner) = additional {
            self::node(&path, inner, Level::Field, errors);
        }
    }
    if node.int_or_string {
        let detail = "must be false if x-kubernetes-int-or-string is true";
        if node.preserve_unknown_fields {
            errors.invalid(&path.child("x-kubernetes-preserve-unknown-fields"), true, detail);
        }
        if node.embedded_resource {
            errors.invalid(&path.child("x-kubernetes-embedded-resource"), true, detail);
        }
    }
    if let Some(validation) = &node.validation {
        let skip = Skip {
            any_of: is_int_or_string(&validation.any_of),
            first_all_of: validation.all_of.first().is_some_and(holds_int_or_string),
        };
        values(path, validation, skip, errors);
    }
    kind(path, node, level, errors);
    heads(path, node, level, errors);
}

fn kind(path: &Path, node: &Node, level: Level, errors: &mut FieldErrors) {
    let at = path.child("type");
    match node.kind {
        Some(kind) if node.embedded_resource && kind != Type::Object => {
            errors.invalid(&at, kind.word(), "must be object if x-kubernetes-embedded-resource is true");
        }
        None if node.embedded_resource => {
            errors.required(&at, "must be object if x-kubernetes-embedded-resource is true");
        }
        None if !node.int_or_string && !node.preserve_unknown_fields && !node.remarks.odd_type => errors.required(
            &at,
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        ),
        _ => {}
    }
    if let (Level::Root, Some(kind)) = (level, node.kind.filter(|kind| *kind != Type::Object)) {
        errors.invalid(&at, kind.word(), "must be object at the root");
    }
}

/// `apiVersion`, `kind` and `metadata` of an object.
fn heads(path: &Path, node: &Node, level: Level, errors: &mut FieldErrors) {
    if node.embedded_resource && node.additional_properties.is_some() {
        let at = path.child("additionalProperties");
        errors.forbidden(&at, "must not be used if x-kubernetes-embedded-resource is set");
    }
    let is_object = level == Level::Root || node.embedded_resource;
    for (name, wanted, detail) in [
        ("kind", Type::String, "must be string"),
        ("apiVersion", Type::String, "must be string"),
        ("metadata", Type::Object, "must be object"),
    ] {
        let Some(property) = node.properties.get(name).filter(|_| is_object) else { continue };
        if property.kind != Some(wanted) {
            let found = property.kind.map_or("", Type::word);
            errors.invalid(&path.child("properties").key(name).child("type"), found, detail);
        }
    }
    if let Some(metadata) = node.properties.get("metadata").filter(|_| level == Level::Root) {
        let names = metadata.properties.iter().all(|(name, _)| matches!(name, "name" | "generateName"));
        // Only these two may be restricted; the rest is the same for all objects.
        let mut rest = metadata.clone();
        rest.kind = None;
        if names {
            rest.properties = super::Properties::default();
        }
        if let Some(rare) = &mut rest.rare {
            rare.default = None;
        }
        rest.rare = rest.rare.filter(|rare| **rare != super::Rare::default());
        if rest != Node::default() {
            errors.forbidden(
                &path.child("properties").key("metadata"),
                "must not specify anything other than name and generateName, but metadata is implicitly specified",
            );
        }
    }
    if node.embedded_resource && !node.preserve_unknown_fields && node.properties.is_empty() {
        errors.required(
            &path.child("properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        );
    }
}

/// Where the types of an int-or-string may be told.
#[derive(Clone, Copy, Default)]
struct Skip {
    any_of: bool,
    first_all_of: bool,
}

/// `anyOf: [{type: integer}, {type: string}]`.
pub(super) fn is_int_or_string(any_of: &[Node]) -> bool {
    let plain = |node: &Node, kind| *node == Node { kind: Some(kind), ..Node::default() };
    matches!(any_of, [a, b] if plain(a, Type::Integer) && plain(b, Type::String))
}

fn holds_int_or_string(node: &Node) -> bool {
    node.validation.as_ref().is_some_and(|v| is_int_or_string(&v.any_of))
}

/// What restricts values may not say anything of structure.
fn values(path: &Path, validation: &Validation, skip: Skip, errors: &mut FieldErrors) {
    junctors(path, validation, &mut |at, inner| {
        let in_any_of = validation.any_of.iter().any(|n| std::ptr::eq(n, inner));
        let is_first = validation.all_of.first().is_some_and(|n| std::ptr::eq(n, inner));
        if !(skip.any_of && in_any_of) {
            nested(&at, inner, Skip { any_of: skip.first_all_of && is_first, first_all_of: false }, errors);
        }
    });
    if let Err(error) = regexp::check(&validation.pattern) {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.invalid(&path.child("pattern"), &*validation.pattern, detail);
    }
}

fn nested(path: &Path, node: &Node, skip: Skip, errors: &mut FieldErrors) {
    if let Some(validation) = &node.validation {
        values(path, validation, skip, errors);
    }
    if let Some(items) = &node.items {
        nested(&path.child("items"), items, Skip::default(), errors);
    }
    for (name, property) in node.properties.iter() {
        nested(&path.child("properties").key(name), property, Skip::default(), errors);
    }
    let additional = !matches!(node.additional_properties, None | Some(Additional::Allowed(false)));
    for (found, field, must) in [
        (node.kind.is_some() || node.remarks.odd_type, "type", "empty"),
        (additional, "additionalProperties", "undefined"),
        (node.default_value().is_some(), "default", "undefined"),
        (node.remarks.title, "title", "empty"),
        (node.remarks.description, "description", "empty"),
        (node.nullable, "nullable", "false"),
        (node.preserve_unknown_fields, "x-kubernetes-preserve-unknown-fields", "false"),
        (node.embedded_resource, "x-kubernetes-embedded-resource", "false"),
        (node.int_or_string, "x-kubernetes-int-or-string", "false"),
        (!node.list_map_keys().is_empty(), "x-kubernetes-list-map-keys", "empty"),
        (node.list_type.is_some(), "x-kubernetes-list-type", "undefined"),
        (node.map_type.is_some(), "x-kubernetes-map-type", "undefined"),
        (!node.x_validations().is_empty(), "x-kubernetes-validations", "empty"),
    ] {
        if found {
            errors.forbidden(&path.child(field), format!("must be {must} to be structural"));
        }
    }
    if node.properties.get("metadata").is_some() {
        errors.forbidden(&path.child("properties").key("metadata"), "must not be specified in a nested context");
    }
}

/// The part of the structure that a restriction speaks of; `None` when there is none.
#[derive(Clone, Copy)]
struct Restricted<'p> {
    path: &'p Path,
    node: Option<&'p Node>,
}

/// What is restricted must be there.
fn complete(path: &Path, restriction: &Node, on: Restricted<'_>, errors: &mut FieldErrors) {
    let Some(node) = on.node else {
        errors.required(on.path, format!("because it is defined in {path}"));
        return;
    };
    if let Some(validation) = &restriction.validation {
        junctors(path, validation, &mut |at, inner| complete(&at, inner, on, errors));
    }
    if let Some(items) = &restriction.items {
        let at = on.path.child("items");
        complete(&path.child("items"), items, Restricted { path: &at, node: node.items.as_deref() }, errors);
    }
    for (name, property) in restriction.properties.iter() {
        let (at, from) = (on.path.child("properties").key(name), path.child("properties").key(name));
        complete(&from, property, Restricted { path: &at, node: node.properties.get(name) }, errors);
    }
}
