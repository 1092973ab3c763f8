//! Schemas and values, and what comes of them.

mod any;
mod types;
mod values;

use serde_json::{Value, json};

use super::*;

/// A schema whose `spec` is this.
fn schema(spec: Value) -> Structural {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    Structural::compile(&schema).unwrap_or_else(|errors| panic!("{errors}"))
}

/// What is said of a schema.
fn refused(schema: &Value) -> Vec<String> {
    match Structural::compile(schema) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn schemas_that_are_not_structural_are_refused() {
    for (schema, want) in [
        (json!({"type": "object"}), &[][..]),
        (json!({}), &["type: Required value: must not be empty at the root"]),
        (
            json!({"type": "array"}),
            &["items: Required value: must be specified", "type: Invalid value: \"array\": must be object at the root"],
        ),
        (
            json!({"type": "object", "properties": {"a": {}}}),
            &["properties[a].type: Required value: must not be empty for specified object fields"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "items": {}}}}),
            &["properties[a].items.type: Required value: must not be empty for specified array items"],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            &["additionalProperties: Forbidden: must not be used at the root"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}}),
            &["properties[a].pattern: Invalid value: \"[\": must be a valid regular expression, but isn't: \
             error parsing regexp: missing closing ]: `[`"],
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string"}}}}}),
            &[],
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            &[
                "properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ],
        ),
        (
            json!({"type": "object", "properties": {"kind": {"type": "integer"}}}),
            &["properties[kind].type: Invalid value: \"integer\": must be string"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true}}}),
            &[
                "properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
            ],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-embedded-resource": true}}}),
            &[
                "properties[a].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
            ],
        ),
        (
            json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}}}),
            &[],
        ),
        (
            json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"maxLength": 3}]}}}),
            &[],
        ),
        (
            json!({"type": "object", "anyOf": [{"properties": {"b": {"type": "string", "default": 1, "nullable": true}}}]}),
            &[
                "anyOf[0].properties[b].default: Forbidden: must be undefined to be structural",
                "anyOf[0].properties[b].nullable: Forbidden: must be false to be structural",
                "anyOf[0].properties[b].type: Forbidden: must be empty to be structural",
                "properties[b]: Required value: because it is defined in anyOf[0].properties[b]",
            ],
        ),
        (
            json!({"type": "object", "$ref": "#/x"}),
            &["<nil>: Invalid value: \"\": OpenAPIV3Schema '$ref' is not supported"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}}),
            &["<nil>: Invalid value: \"\": OpenAPIV3Schema 'items' must be a schema, but is an array"],
        ),
    ] {
        assert_eq!(refused(&schema), want, "{schema}");
    }
}

#[test]
fn nesting_without_end_is_refused() {
    let mut deep = json!({"type": "string"});
    for _ in 0..MAX_DEPTH + 1 {
        deep = json!({"type": "array", "items": deep});
    }
    let schema = json!({"type": "object", "properties": {"a": deep}});
    assert_eq!(refused(&schema), ["<nil>: Invalid value: \"\": schemas must not nest deeper than 64 levels"]);
}

#[test]
fn what_is_not_specified_goes() {
    for (spec, before, after, unknown) in [
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}}),
            json!({"a": "x", "b": 1}),
            json!({"a": "x"}),
            &["spec.b"][..],
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                   "properties": {"a": {"type": "object"}}}),
            json!({"a": {"c": 1}, "b": {"d": 1}}),
            json!({"a": {}, "b": {"d": 1}}),
            &["spec.a.c"],
        ),
        (
            json!({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            json!([{"a": "x", "b": 1}, 3, [{"c": 1}]]),
            json!([{"a": "x"}, 3, [{}]]),
            &["spec[0].b", "spec[2][0].c"],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            json!({"k": {"a": "x", "b": 1}}),
            json!({"k": {"a": "x"}}),
            &["spec.k.b"],
        ),
        (
            json!({"type": "object", "additionalProperties": true}),
            json!({"k": {"a": "x"}, "l": 1}),
            json!({"k": {}, "l": 1}),
            &["spec.k.a"],
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "x": 1}, "spec": {}, "status": 1}),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "x": 1}, "spec": {}}),
            &["spec.status"],
        ),
        (json!({"type": "string"}), json!({"a": 1}), json!({}), &["spec.a"]),
    ] {
        let schema = schema(spec);
        let head = |spec: Value| json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "a"}, "spec": spec});
        let mut object = head(before);
        object["more"] = json!(1);
        let told = schema.prune_unknown(&mut object);
        assert_eq!(object, head(after));
        assert_eq!(told, ["more"].iter().chain(unknown).copied().collect::<Vec<_>>());
        let again = object.clone();
        schema.prune(&mut object);
        assert_eq!(object, again);
    }
}

#[test]
fn what_is_absent_and_has_a_default_comes() {
    let schema = schema(json!({"type": "object", "default": {"a": 1}, "properties": {
        "a": {"type": "integer", "default": 2},
        "b": {"type": "string", "nullable": true, "default": "x"},
        "c": {"type": "string"},
        "d": {"type": "object", "additionalProperties": {"type": "object", "properties": {"e": {"type": "string", "default": "y"}}}},
        "f": {"type": "array", "items": {"type": "object", "properties": {"g": {"type": "boolean", "default": true}}}},
    }}));
    for (before, after) in [
        (json!({}), json!({"spec": {"a": 1, "b": "x"}})),
        (json!({"spec": null}), json!({"spec": {"a": 1, "b": "x"}})),
        (json!({"spec": {"a": null, "b": null, "c": null}}), json!({"spec": {"a": 2, "b": null}})),
        (json!({"spec": {"d": {"k": {}, "l": null}}}), json!({"spec": {"a": 2, "b": "x", "d": {"k": {"e": "y"}}}})),
        (json!({"spec": {"f": [{}, null]}}), json!({"spec": {"a": 2, "b": "x", "f": [{"g": true}, null]}})),
        (json!({"spec": 3}), json!({"spec": 3})),
    ] {
        let mut object = before.clone();
        schema.default(&mut object).expect("small");
        assert_eq!(object, after, "{before}");
    }
}

#[test]
fn defaults_do_not_grow_without_bound() {
    let large: Vec<u32> = (0..2000).collect();
    let schema = schema(json!({"type": "array", "items": {"type": "object", "properties": {
        "a": {"type": "array", "items": {"type": "integer"}, "default": large},
    }}}));
    let mut object = json!({"spec": vec![json!({}); 10_000]});
    assert_eq!(schema.default(&mut object).expect_err("too large").code, 413);
}

#[test]
fn items_of_sets_and_keys_of_maps_are_there_once() {
    let schema = schema(json!({"type": "object", "properties": {
        "s": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "m": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"],
              "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
        "n": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
              "items": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}},
    }}));
    let check = |spec: Value, old: Option<Value>| {
        let mut errors = FieldErrors::new();
        let old = old.map(|old| json!({"spec": old}));
        schema.validate_lists(&json!({"spec": spec}), old.as_ref(), &mut errors);
        errors.0.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (spec, want) in [
        (json!({"s": ["a", "b"], "m": [{"a": "x"}, {"a": "y"}]}), &[][..]),
        (json!({"s": ["a", "b", "a", "a"]}), &["spec.s[2]: Duplicate value: \"a\""]),
        (json!({"m": [{"a": "x"}, {"a": "x", "z": 1}]}), &["spec.m[1]: Duplicate value: {\"a\":\"x\"}"]),
        (json!({"m": [{}, {}]}), &["spec.m[1]: Duplicate value: {}"]),
        (json!({"m": [3]}), &["spec.m[0]: Invalid value: 3: must be an object for an array of list-type map"]),
        (
            json!({"n": [{"a": "x", "b": 1}, {"a": "x"}, {"b": 1, "a": "x"}]}),
            &["spec.n[2]: Duplicate value: {\"a\":\"x\",\"b\":1}"],
        ),
    ] {
        assert_eq!(check(spec.clone(), None), want, "{spec}");
    }
    let twice = json!({"s": ["a", "a"]});
    assert_eq!(check(twice.clone(), Some(twice.clone())), [""; 0]);
    assert_eq!(check(twice, Some(json!({}))).len(), 1);
}

#[test]
fn paths_lead_to_fields() {
    let schema = schema(json!({"type": "object", "properties": {
        "a": {"type": "object", "additionalProperties": {"type": "integer"}},
        "b.c": {"type": "string"},
    }}));
    for (path, brackets, want) in [
        (".spec.a.k", true, Ok("spec.a[k]")),
        (".spec.a['x.y']", true, Ok("spec.a[x.y]")),
        (".spec['b.c']", true, Ok("spec.b.c")),
        (".spec['b.c']", false, Err("array notation is not allowed")),
        (".spec.z", true, Err("does not refer to a valid field")),
        (".spec.a.k.l", true, Err("does not refer to a valid field")),
        ("spec", true, Err("expected [ or . but got: spec")),
        (".spec.", true, Err("unexpected end of JSON path")),
        (".spec[a]", true, Err("expected single quoted string but got a")),
        (".spec.a['x\\'y\\n']", true, Ok("spec.a[x'y\n]")),
        (".spec.a['x\\q']", true, Err("invalid string literal: invalid escape char \\q")),
        (".spec.a['x'", true, Err("unexpected end of JSON path")),
    ] {
        let found = schema.root().at_path(path, brackets);
        assert_eq!(found.as_ref().map(|(path, _)| path.as_str()).map_err(String::as_str), want, "{path}");
    }
}

#[test]
fn embedded_objects_have_a_head() {
    let schema = schema(json!({"type": "object", "x-kubernetes-embedded-resource": true,
                               "x-kubernetes-preserve-unknown-fields": true}));
    let rule: MetadataRule<'_> = &|metadata, path, errors| {
        if metadata.get("name").is_none() {
            errors.required(&path.child("name"), "");
        }
    };
    for (spec, want) in [
        (json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}), &[][..]),
        (json!({}), &["spec.apiVersion: Required value", "spec.kind: Required value"]),
        (
            json!({"apiVersion": "a/b/c", "kind": "", "metadata": {}}),
            &[
                "spec.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
                "spec.kind: Invalid value: \"\": must not be empty",
                "spec.metadata.name: Required value",
            ],
        ),
        (json!({"apiVersion": 1, "kind": "Pod"}), &["spec.apiVersion: Invalid value: 1: must be a string"]),
    ] {
        let mut errors = FieldErrors::new();
        schema.validate_embedded(&json!({"spec": spec}), rule, &mut errors);
        assert_eq!(errors.0.iter().map(ToString::to_string).collect::<Vec<_>>(), want, "{spec}");
    }
}
