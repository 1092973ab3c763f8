//! Whatever schema and value there are: an answer, and the same one twice.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..3).prop_map(Value::from),
        (-3.0f64..3.0).prop_map(Value::from),
        "[abc]{0,2}".prop_map(Value::from),
    ]
}

/// Values over few names, so that schemas and values meet.
fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[abc]", inner, 0..4).prop_map(Value::from_iter),
        ]
    })
}

/// Trees that look like schemas, few of them structural.
fn anything() -> impl Strategy<Value = Value> {
    let names = prop_oneof![
        Just("type"),
        Just("properties"),
        Just("additionalProperties"),
        Just("items"),
        Just("allOf"),
        Just("anyOf"),
        Just("not"),
        Just("default"),
        Just("enum"),
        Just("required"),
        Just("nullable"),
        Just("pattern"),
        Just("format"),
        Just("maximum"),
        Just("x-kubernetes-list-type"),
        Just("x-kubernetes-list-map-keys"),
        Just("x-kubernetes-preserve-unknown-fields"),
        Just("x-kubernetes-int-or-string"),
        Just("x-kubernetes-embedded-resource"),
        Just("x-kubernetes-validations"),
        Just("metadata"),
        Just("a"),
    ];
    let words = prop_oneof![Just("object"), Just("array"), Just("string"), Just("map"), Just("set"), Just("(")];
    let leaf = prop_oneof![scalar(), words.prop_map(Value::from)];
    leaf.prop_recursive(6, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..5).prop_map(Value::from_iter),
        ]
    })
}

/// Structural schemas whose defaults are what they say.
fn structural() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "string", "default": "a"})),
        Just(json!({"type": "string", "nullable": true})),
        Just(json!({"type": "integer", "default": 1, "maximum": 2})),
        Just(json!({"type": "boolean"})),
        Just(json!({"x-kubernetes-int-or-string": true})),
        Just(json!({"x-kubernetes-preserve-unknown-fields": true})),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            prop::collection::btree_map("[abc]", inner.clone(), 0..4)
                .prop_map(|map| json!({"type": "object", "properties": Value::from_iter(map)})),
            (prop::collection::btree_map("[abc]", inner.clone(), 0..4), any::<bool>()).prop_map(|(map, keep)| {
                let mut schema = json!({"type": "object", "default": {}, "properties": Value::from_iter(map)});
                if keep {
                    schema["x-kubernetes-preserve-unknown-fields"] = true.into();
                }
                schema
            }),
            inner.clone().prop_map(|items| json!({"type": "array", "items": items})),
            inner.prop_map(|values| json!({"type": "object", "additionalProperties": values})),
        ]
    })
}

fn errors(schema: &Structural, object: &Value) -> Vec<String> {
    let mut errors = FieldErrors::new();
    schema.validate(object, None, &mut errors);
    schema.validate_lists(object, None, &mut errors);
    errors.0.iter().map(ToString::to_string).collect()
}

proptest! {
    #[test]
    fn any_schema_is_answered(schema in anything(), object in value()) {
        if let Ok(schema) = Structural::compile(&schema) {
            let mut object = object;
            errors(&schema, &object);
            schema.prune(&mut object);
            let _ = schema.default(&mut object);
        }
    }

    #[test]
    fn pruning_and_defaulting_twice_is_once(spec in structural(), object in value()) {
        let schema = schema(spec);
        let mut once = json!({"spec": object});
        schema.prune(&mut once);
        schema.default(&mut once).expect("small");
        let mut twice = once.clone();
        prop_assert!(schema.prune_unknown(&mut twice).is_empty());
        schema.default(&mut twice).expect("small");
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn defaults_break_no_rule(spec in structural(), object in value()) {
        let schema = schema(spec);
        let before = json!({"spec": object});
        let mut after = before.clone();
        schema.default(&mut after).expect("small");
        if errors(&schema, &before).is_empty() {
            prop_assert_eq!(errors(&schema, &after), [""; 0]);
        }
    }

    #[test]
    fn an_update_that_changes_nothing_is_fine_but_for_what_nobody_specifies(spec in structural(), object in value()) {
        let schema = schema(spec);
        let mut object = json!({"spec": object});
        schema.prune(&mut object);
        let mut said = FieldErrors::new();
        schema.validate(&object, Some(&object), &mut said);
        let fresh = errors(&schema, &object);
        prop_assert!(said.0.iter().all(|error| fresh.contains(&error.to_string())));
    }
}
