//! Values, what their schema says, and the words for what is wrong.

use serde_json::{Value, json};

use super::{schema, *};

/// What is said of `spec` as a new value, or as a change.
fn check(schema: &Structural, spec: &Value, old: Option<&Value>) -> Vec<String> {
    let head = |spec: &Value| json!({"apiVersion": "a/v1", "kind": "A", "spec": spec});
    let mut errors = FieldErrors::new();
    schema.validate(&head(spec), old.map(head).as_ref(), &mut errors);
    errors.0.iter().map(ToString::to_string).collect()
}

#[test]
fn every_rule_has_its_words() {
    for (spec, value, want) in [
        (
            json!({"type": "integer"}),
            json!("3"),
            &["spec: Invalid value: \"string\": spec in body must be of type integer: \"string\""][..],
        ),
        (json!({"type": "integer"}), json!(3.0), &[]),
        (
            json!({"type": "integer"}),
            json!(3.5),
            &[
                "spec: Invalid value: \"number\": spec in body must be of type integer: \"number\"",
                "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec",
            ],
        ),
        (json!({"type": "number"}), json!(3), &[]),
        (
            json!({"type": "string"}),
            json!(null),
            &["spec: Invalid value: \"null\": spec in body must be of type string: \"null\""],
        ),
        (json!({"type": "string", "nullable": true}), json!(null), &[]),
        (
            json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}),
            json!({}),
            &["spec.a: Required value"],
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("c"),
            &["spec: Unsupported value: \"c\": supported values: \"a\", \"b\""],
        ),
        (
            json!({"type": "integer", "enum": [1, 2]}),
            json!(3),
            &["spec: Unsupported value: 3: supported values: \"1\", \"2\""],
        ),
        (json!({"type": "string", "maxLength": 2}), json!("äöü"), &["spec: Too long: may not be more than 2 bytes"]),
        (json!({"type": "string", "maxLength": 3}), json!("äöü"), &[]),
        (json!({"type": "string", "maxLength": 1}), json!("ab"), &["spec: Too long: may not be more than 1 byte"]),
        (
            json!({"type": "integer", "maximum": 1.5}),
            json!(1.5),
            &[
                "spec: Invalid value: \"number\": spec in body must be of type integer: \"number\"",
                "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec",
                "<nil>: Invalid value: \"\": Maximum boundary value must be of type integer (default format) in spec",
            ],
        ),
        (
            json!({"x-kubernetes-int-or-string": true, "multipleOf": 0.5}),
            json!(1),
            &["spec: Invalid value: 0: factor MultipleOf declared for spec must be positive: 0"],
        ),
        (
            json!({"type": "string", "minLength": 2}),
            json!("a"),
            &["spec: Invalid value: \"a\": spec in body should be at least 2 chars long"],
        ),
        (
            json!({"type": "string", "pattern": "^a+$"}),
            json!("b"),
            &["spec: Invalid value: \"b\": spec in body should match '^a+$'"],
        ),
        (
            json!({"type": "integer", "minimum": 1, "maximum": 3}),
            json!(5),
            &["spec: Invalid value: 5: spec in body should be less than or equal to 3"],
        ),
        (
            json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}),
            json!(1),
            &["spec: Invalid value: 1: spec in body should be greater than 1"],
        ),
        (
            json!({"type": "number", "maximum": 0.5}),
            json!(0.75),
            &["spec: Invalid value: 0.75: spec in body should be less than or equal to 0.5"],
        ),
        (
            json!({"type": "integer", "multipleOf": 3}),
            json!(4),
            &["spec: Invalid value: 4: spec in body should be a multiple of 3"],
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(3_000_000_000_i64),
            &["<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec"],
        ),
        (
            json!({"type": "array", "maxItems": 1, "items": {"type": "integer"}}),
            json!([1, 2]),
            &["spec: Too many: 2: must have at most 1 item"],
        ),
        (
            json!({"type": "array", "minItems": 1, "items": {"type": "integer"}}),
            json!([]),
            &["spec: Invalid value: 0: spec in body should have at least 1 items"],
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}}),
            json!([1, "a"]),
            &["spec[1]: Invalid value: \"string\": spec[1] in body must be of type integer: \"string\""],
        ),
        (
            json!({"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}}),
            json!({"a": 1, "b": "x"}),
            &[
                "spec: Too many: 2: must have at most 1 item",
                "spec.b: Invalid value: \"string\": spec.b in body must be of type integer: \"string\"",
            ],
        ),
        (
            json!({"type": "object", "minProperties": 1}),
            json!({}),
            &["spec: Invalid value: 0: spec in body should have at least 1 properties"],
        ),
        (
            json!({"type": "object", "additionalProperties": false}),
            json!({"a": 1}),
            &["spec: Invalid value: \"a\": spec.a in body is a forbidden property"],
        ),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!([]),
            &["spec: Invalid value: \"array\": spec in body must be of type integer,string: \"array\""],
        ),
        (json!({"x-kubernetes-int-or-string": true, "pattern": "^a$"}), json!(3), &[]),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("x"),
            &["spec: Invalid value: \"x\": spec in body must be of type date-time: \"x\""],
        ),
        (json!({"type": "string", "format": "no-such-format"}), json!("x"), &[]),
    ] {
        assert_eq!(check(&schema(spec.clone()), &value, None), want, "{spec} {value}");
    }
}

#[test]
fn alternatives_tell_the_one_that_came_closest() {
    let two = json!([{"required": ["a"]}, {"required": ["b"], "properties": {"b": {"minimum": 2}}}]);
    let of = |junctor: &str, with: Value| {
        let mut spec = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}});
        spec[junctor] = with;
        schema(spec)
    };
    for (junctor, with, value, want) in [
        ("anyOf", two.clone(), json!({"a": "x"}), &[][..]),
        (
            "anyOf",
            two.clone(),
            json!({}),
            &[
                "<nil>: Invalid value: \"\": \"spec\" must validate at least one schema (anyOf)",
                "spec.a: Required value",
            ],
        ),
        (
            "anyOf",
            two.clone(),
            json!({"b": 1}),
            &[
                "<nil>: Invalid value: \"\": \"spec\" must validate at least one schema (anyOf)",
                "spec.b: Invalid value: 1: spec.b in body should be greater than or equal to 2",
            ],
        ),
        (
            "oneOf",
            two.clone(),
            json!({"a": "x", "b": 2}),
            &[
                "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
            ],
        ),
        (
            "oneOf",
            two.clone(),
            json!({}),
            &[
                "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found none valid",
                "spec.a: Required value",
            ],
        ),
        (
            "allOf",
            two.clone(),
            json!({"a": "x"}),
            &["spec.b: Required value", "<nil>: Invalid value: \"\": \"spec\" must validate all the schemas (allOf)"],
        ),
        (
            "allOf",
            two,
            json!({}),
            &[
                "spec.a: Required value",
                "spec.b: Required value",
                "<nil>: Invalid value: \"\": \"spec\" must validate all the schemas (allOf). None validated",
            ],
        ),
        (
            "not",
            json!({"required": ["a"]}),
            json!({"a": "x"}),
            &["<nil>: Invalid value: \"\": \"spec\" must not validate the schema (not)"],
        ),
    ] {
        assert_eq!(check(&of(junctor, with), &value, None), want, "{junctor} {value}");
    }
}

#[test]
fn what_an_update_leaves_as_it_was_is_not_its_mistake() {
    let schema = schema(json!({"type": "object", "minProperties": 3, "properties": {
        "a": {"type": "integer", "maximum": 1},
        "b": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
              "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer", "maximum": 1}}}},
        "c": {"type": "array", "items": {"type": "integer", "maximum": 1}},
        "d": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "required": ["x"]},
    }}));
    let few = "spec: Invalid value: 1: spec in body should have at least 3 properties";
    let at = |path: &str| format!("{path}: Invalid value: 5: {path} in body should be less than or equal to 1");
    for (old, new, want) in [
        (json!({"a": 5}), json!({"a": 5}), vec![]),
        (json!({"a": 4}), json!({"a": 5}), vec![few.to_owned(), at("spec.a")]),
        (json!({"a": 5}), json!({"a": 5, "c": []}), vec![few.replace("value: 1", "value: 2")]),
        (
            json!({"b": [{"k": "x", "v": 5}, {"k": "y"}]}),
            json!({"b": [{"k": "y", "v": 5}, {"k": "x", "v": 5}]}),
            vec![few.to_owned(), at("spec.b[0].v")],
        ),
        (json!({"b": [{"k": "x", "v": 5}, {"k": "y"}]}), json!({"b": [{"k": "y"}, {"k": "x", "v": 5}]}), vec![]),
        (json!({"c": [5]}), json!({"c": [5]}), vec![]),
        (json!({"c": [5]}), json!({"c": [5, 1]}), vec![few.to_owned(), at("spec.c[0]")]),
        // Nor is an item that lacks its key.
        (json!({"b": [{"v": 5}]}), json!({"b": [{"v": 5}]}), vec![few.to_owned(), at("spec.b[0].v")]),
        // What no schema speaks of is not known again.
        (json!({"d": {"y": 1}}), json!({"d": {"y": 1}}), vec![few.to_owned(), "spec.d.x: Required value".to_owned()]),
    ] {
        assert_eq!(check(&schema, &new, Some(&old)), want, "{old} {new}");
    }
}

#[test]
fn status_is_validated_alone() {
    let schema = Structural::compile(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
        "status": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 1}}},
    }}))
    .expect("structural");
    let mut errors = FieldErrors::new();
    schema.validate_status(&json!({"spec": {}, "status": {"n": 2}}), None, &mut errors);
    assert_eq!(
        errors.0.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["status.n: Invalid value: 2: n in body should be less than or equal to 1"]
    );
}

#[test]
fn formats_are_upstreams() {
    for (format, good, bad) in [
        ("bsonobjectid", &["507f1f77bcf86cd799439011"][..], &["507f1f77bcf86cd79943901", ""][..]),
        ("byte", &["aGk=", "aGkh", "aA=="], &["", "aGk", "a===", "aG-_"]),
        ("cidr", &["10.0.0.0/8", "010.0.0.0/08", "::/0"], &["10.0.0.0", "10.0.0.0/33", "10.0.0.0/", "a/8"]),
        ("creditcard", &["4111 1111 1111 1111"], &["4111 1111 1111 1112", "1"]),
        ("date", &["2024-02-29"], &["2023-02-29", "2024-2-9", "2024-02-29T"]),
        (
            "date-time",
            &["2024-02-29T12:00:00Z", "2024-02-29t12:00:00.123+01:00"],
            &["2024-02-29", "2024-02-29T24:00:00Z", "2024-02-29T12:00Z", "2024-02-29T12:00:00"],
        ),
        ("duration", &["1h2m", "3 days", "22 ns", "1wk"], &["x", "3", "3 lightyears"]),
        ("email", &["a@b", "A <a@b.c>", "\"x y\"@b"], &["a", "a@", "@b", "a@b@c", "a b@c"]),
        ("hexcolor", &["#fff", "FFFFFF"], &["#ffff", "#ggg"]),
        ("hostname", &["a", "example.com", "müller.de", "1a"], &["", "a.", ".a", "a_b.com", "example.c", "-a"]),
        ("ipv4", &["1.2.3.4", "010.1.1.1"], &["1.2.3", "1.2.3.256", "::1"]),
        ("ipv6", &["::1", "::ffff:1.2.3.4"], &["1.2.3.4", "::1%eth0", "g::"]),
        ("isbn", &["0321751043", "978-0321751041"], &["0321751044"]),
        ("k8s-short-name", &["a-b"], &["A", "a.b", ""]),
        ("k8s-long-name", &["a.b-c"], &["A.b", "a..b"]),
        ("mac", &["00:00:5e:00:53:01", "0000.5e00.5301", "00-00-5e-00-53-01"], &["00:00:5e", "00:00:5e-00:53:01"]),
        ("password", &["", "x"], &[]),
        ("rgbcolor", &["rgb(0, 255,1)"], &["rgb(0,256,1)", "rgb(00,1,1)", "rgb(1,1)"]),
        ("ssn", &["111-22-3333"], &["111223333", "111-22-333"]),
        ("uri", &["http://a/b?c", "/a", "mailto:x"], &["", "a", "http://[::1", "/%zz", "http://a b/"]),
        ("uuid", &["123e4567-e89b-12d3-a456-426614174000", "123E4567e89b12d3a456426614174000"], &["123e4567"]),
        ("uuid4", &["123e4567-e89b-42d3-a456-426614174000"], &["123e4567-e89b-12d3-a456-426614174000"]),
    ] {
        for text in good {
            assert!(formats::is_known(format) && formats::holds(format, text), "{format} {text:?}");
        }
        for text in bad {
            assert!(!formats::holds(format, text), "{format} {text:?}");
        }
    }
}

#[test]
fn too_many_checks_are_cut_short() {
    let many: Vec<Value> = (0..2000).map(|i| json!({"maximum": i - 3000})).collect();
    let schema = schema(json!({"type": "array", "items": {"type": "integer", "anyOf": many}}));
    let said = check(&schema, &json!(vec![1; 20_000]), None);
    assert!(said.iter().any(|text| text.contains("too many parts to be checked")), "{:?}", said.first());
}
