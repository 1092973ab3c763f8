//! Whatever is written, there is an answer.

use proptest::prelude::*;
use rules::crd::{BUDGET, Rules, check};
use rules::env::Env;
use rules::{Program, estimate, schema};
use serde_json::{Value as Json, json};

fn world() -> (Json, Json) {
    let schema = json!({"type": "object", "properties": {
        "s": {"type": "string"}, "n": {"type": "integer"}, "d": {"x-kubernetes-int-or-string": true},
        "l": {"type": "array", "items": {"type": "integer"}},
        "m": {"type": "object", "additionalProperties": {"type": "string"}},
    }});
    (schema, json!({"s": "text", "n": 3, "d": "5", "l": [1, 2, 3], "m": {"a": "b"}}))
}

/// Compiles, estimates and evaluates.
fn answer(text: &str) {
    let (schema, object) = world();
    let decl = schema::declare(&schema, false);
    let Ok(checked) = Env::new().with("self", decl.type_of()).with_bind().compile(text) else { return };
    let _ = estimate(&checked, &[("self", &decl)]);
    let Ok(program) = Program::new(&checked, vec!["self".to_owned()]) else { return };
    let variables = [decl.read(&object).ok()];
    let run = program.run(&variables, 10_000);
    assert!(run.cost <= 10_000 || run.value.is_err(), "{text} went on");
}

/// Words that expressions are made of, in any order.
fn words() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "self",
        ".s",
        ".n",
        ".d",
        ".l",
        ".m",
        "[0]",
        "['a']",
        "[?0]",
        ".?s",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "?",
        "+",
        "-",
        "*",
        "/",
        "%",
        "==",
        "!=",
        "<",
        ">=",
        "&&",
        "||",
        "!",
        " in ",
        "1",
        "2u",
        "1.5",
        "'a'",
        "b'x'",
        "null",
        "true",
        ".all(x, ",
        ".exists(x, ",
        ".map(x, ",
        ".filter(x, ",
        ".transformMap(k, v, ",
        ".optMap(x, ",
        ".sortBy(x, ",
        "has(",
        "size(",
        "dyn(",
        "type(",
        "x",
        "k",
        ".size()",
        ".matches('^a')",
        ".replace('a', ",
        ".split('')",
        ".join()",
        "'%s %d'.format([",
        "duration('1h')",
        "timestamp(0)",
        "lists.range(",
        "optional.of(",
        ".orValue(",
        "quantity('1')",
        "cel.bind(x, ",
        "__result__",
        "@",
        "\\",
        "\"",
        "9223372036854775807",
        "int(",
        "string(",
        "ip('::1')",
        "é",
    ]);
    prop::collection::vec(word, 0..24).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_text_is_answered(text in "\\PC{0,64}") {
        answer(&text);
    }

    #[test]
    fn any_words_are_answered(text in words()) {
        answer(&text);
    }

    #[test]
    fn any_rule_of_any_schema_is_answered(rule in words(), message in words(), path in "[.\\[\\]'a-z]{0,12}") {
        let (mut schema, object) = world();
        schema["x-kubernetes-validations"] = json!([
            {"rule": rule, "messageExpression": message, "fieldPath": path, "reason": "FieldValueRequired"},
        ]);
        let _ = check(&schema, &machinery::field::Path::root(), false);
        let mut budget = BUDGET;
        let _ = Rules::compile(&schema).validate(
            &object,
            Some(&object),
            &machinery::field::Path::root(),
            &mut budget,
            &mut Vec::new(),
        );
    }
}
