//! Documents as clients write them, and as nobody should.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn tree(text: &str) -> Value {
    parse(text.as_bytes()).unwrap_or_else(|e| panic!("{text:?}: {e}")).value
}

fn refused(text: &str) -> String {
    parse(text.as_bytes()).map_or_else(|e| e, |p| panic!("{text:?} reads as {}", p.value))
}

#[test]
fn what_json_may_be_yaml_may_be() {
    let mut deep = Value::from(1);
    for _ in 0..115 {
        deep = json!({ "a": deep });
    }
    // On a thread as small as they come.
    let small = move || {
        let text = write(&deep).expect("written");
        assert_eq!(read(text.as_bytes()), Ok(deep));
    };
    std::thread::Builder::new().stack_size(512 * 1024).spawn(small).expect("thread").join().expect("fits");
}

#[test]
fn keys_become_texts() {
    assert_eq!(
        tree("yes: 1\n0x10: a\n1.50: b\n~a: c\n'~': d\n? e\n: f\n"),
        json!({"true": 1, "16": "a", "1.5": "b", "~a": "c", "~": "d", "e": "f"})
    );
    assert_eq!(refused("~: 1"), "unsupported map key of type: %!s(<nil>), key: <nil>, value: 1");
    assert!(refused("? [a]\n: 1").starts_with("yaml: invalid map key"));
}

#[test]
fn anchors_aliases_and_merges() {
    assert_eq!(
        tree("a: &x {b: 1, c: [2]}\nd: *x\ne: {<<: *x, b: 3}\nf: {b: 4, <<: [*x, {g: 5, b: 6}]}\n"),
        json!({"a": {"b": 1, "c": [2]}, "d": {"b": 1, "c": [2]}, "e": {"b": 3, "c": [2]},
            "f": {"b": 1, "c": [2], "g": 5}})
    );
    assert_eq!(refused("a: *nope"), "yaml: unknown anchor 'nope' referenced");
    assert_eq!(refused("a: {<<: 1}"), "yaml: map merge requires map or sequence of maps as the value");
    // The scalar is not merged when it is quoted.
    assert_eq!(tree("'<<': 1"), json!({"<<": 1}));
}

#[test]
fn an_alias_is_a_key_with_its_colon_at_it() {
    for (text, want) in [
        ("k: &k x\n*k: 1\n", json!({"k": "x", "x": 1})),
        ("k: &k x\nb: {*k: 1}\n", json!({"k": "x", "b": {"x": 1}})),
        ("k: &k x\nb: [*k: 1]\n", json!({"k": "x", "b": [{"x": 1}]})),
        ("k: &k-1_a x\n*k-1_a: 2", json!({"k": "x", "x": 2})),
        ("&a a: 1\n*a: 2\n", json!({"a": 2})),
        (
            "k: &k x\n*k:\n  - *k\nl: '*k: y'\nm: |\n  *k: z\n",
            json!({"k": "x", "x": ["x"], "l": "*k: y", "m": "*k: z\n"}),
        ),
        ("a: &a b\nc: &c d\ne:\n  *a: 1\n  *c: 2\n", json!({"a": "b", "c": "d", "e": {"b": 1, "d": 2}})),
    ] {
        assert_eq!(tree(text), want, "{text:?}");
    }
    assert!(refused("*k: 1").starts_with("yaml: unknown anchor 'k'"), "{}", refused("*k: 1"));
    // What is too much of it is told, soon.
    let many = "x: &k y\n".to_owned() + &"*k: 1\n".repeat(100_000);
    assert!(parse(many.as_bytes()).is_err());
}

#[test]
fn the_first_document_counts() {
    assert_eq!(tree(""), Value::Null);
    assert_eq!(tree("# nothing\n"), Value::Null);
    assert_eq!(tree("---\na: 1\n---\nb: 2\n"), json!({"a": 1}));
    assert_eq!(tree("\u{feff}a: 1"), json!({"a": 1}));
    assert_eq!(tree("a: |\n  b\n  c"), json!({"a": "b\nc"}));
}

#[test]
fn keys_that_are_set_twice_are_told_with_their_lines() {
    let read = parse(b"a: 1\nb:\n  c: 2\n  c: 3\na: 4\n1: x\n'1': z\n").expect("reads");
    assert_eq!(read.value, json!({"a": 4, "b": {"c": 3}, "1": "z"}));
    assert_eq!(
        read.errors.as_deref(),
        Some("yaml: unmarshal errors:\n  line 4: key \"c\" already set in map\n  line 5: key \"a\" already set in map")
    );
}

#[test]
fn what_cannot_be_read_is_told_with_its_line() {
    for (text, want) in [
        ("a: b: c", "yaml: mapping values are not allowed in this context"),
        ("x: 1\na: b: c", "yaml: line 2: mapping values are not allowed in this context"),
        ("a:\n\t- b", "yaml: line 2: found character that cannot start any token"),
        ("a: [1", "yaml: line 1: did not find expected ',' or ']'"),
        ("a: 'x", "yaml: found unexpected end of stream"),
        ("a: `x", "yaml: found character that cannot start any token"),
        ("a: b\n\tc: d", "yaml: line 2: found a tab character that violates indentation"),
        ("a: .nan", "json: unsupported value: NaN"),
        ("a: !!int x", "yaml: cannot decode !!str `x` as a !!int"),
        ("a: \u{1}", "yaml: control characters are not allowed"),
    ] {
        assert_eq!(refused(text), want);
    }
    assert_eq!(parse(b"a: \xff").map(|p| p.value), Err("yaml: invalid UTF-8".to_owned()));
}

#[test]
fn lines_end_as_in_yaml_1_1_and_tabs_stand_where_they_may() {
    for (text, want) in [
        ("a: 1\u{85}b: 2", json!({"a": 1, "b": 2})),
        ("a: \"x\u{85}y\"", json!({"a": "x y"})),
        ("a: 'x\u{85}  y'", json!({"a": "x y"})),
        ("# c\u{85}a: 1", json!({"a": 1})),
        ("a: |\n x\u{85} y\n", json!({"a": "x\ny\n"})),
        ("[a, \tb]", json!(["a", "b"])),
        ("a:\tb", json!({"a": "b"})),
        ("{\ta: 1}", json!({"a": 1})),
        ("k: &k x\n*k : 1", json!({"k": "x", "x": 1})),
    ] {
        assert_eq!(tree(text), want, "{text:?}");
    }
    assert_eq!(refused("\ta: 1"), "yaml: found character that cannot start any token");
    assert_eq!(refused("# c\n\n \ta: 1"), "yaml: line 3: found character that cannot start any token");
    assert_eq!(refused("a:\n\t- 1"), "yaml: line 2: found character that cannot start any token");
}

#[test]
fn separators_of_unicode_end_lines_and_stay_in_texts() {
    for (text, want) in [
        ("a: 1\u{2028}b: 2\n", json!({"a": 1, "b": 2})),
        ("a: \"x\u{2028}y\"", json!({"a": "x\u{2028}y"})),
        ("a: 'x\u{2028}  y'", json!({"a": "x\u{2028}y"})),
        ("# c\u{2028}a: 1", json!({"a": 1})),
        ("a: |\n x\u{2028} y\n", json!({"a": "x\u{2028}y\n"})),
        ("a: |\n x\u{2029} y\n", json!({"a": "x\u{2029}y\n"})),
        ("a: >\n x\u{2028} y\n z\n", json!({"a": "x\u{2028}y z\n"})),
        ("a: x\u{2028}  y\n", json!({"a": "x\u{2028}y"})),
        ("a: x\u{2028}\u{2028}  y\n", json!({"a": "x\u{2028}\u{2028}y"})),
        ("a: \"x\u{2029}\u{2029} y\"", json!({"a": "x\u{2029}\u{2029}y"})),
        ("a: |\n x\u{2028}\n y\n", json!({"a": "x\u{2028}\ny\n"})),
        ("a: \"x\\u2028y\"", json!({"a": "x\u{2028}y"})),
        ("a: |-\n x\u{2028}", json!({"a": "x"})),
        ("a: |+\n x\u{2028}\u{2028}", json!({"a": "x\u{2028}\u{2028}"})),
        ("a: \"x\\\u{2028}  y\"", json!({"a": "xy"})),
        ("\u{2028}a: 1", json!({"a": 1})),
        ("a:\u{2028}- 1\u{2028}- 2\u{2028}", json!({"a": [1, 2]})),
        ("a: x # c\u{2028}b: 2", json!({"a": "x", "b": 2})),
        ("a: >\n x\n\u{2028} y\n", json!({"a": "x\u{2028}y\n"})),
        ("a: \"x\n\u{2028}y\"", json!({"a": "x\u{2028}y"})),
        ("a: 'x\u{2028}\u{2029}y'", json!({"a": "x\u{2028}\u{2029}y"})),
    ] {
        assert_eq!(tree(text), want, "{text:?}");
    }
}

#[test]
fn bombs_end_early() {
    let mut laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (i, name) in ('b'..='j').enumerate() {
        let previous = char::from(b'a' + u8::try_from(i).unwrap_or(0));
        laughs.push_str(&format!("{name}: &{name} [{}]\n", vec![format!("*{previous}"); 9].join(",")));
    }
    assert_eq!(refused(&laughs), "yaml: document contains excessive aliasing");
    let large = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 90].join(","));
    assert_eq!(refused(&large), "yaml: document contains excessive aliasing");
    assert_eq!(refused("a: &a [*a]"), "yaml: exceeded max depth");
    let chain: String = (1..200).map(|i| format!("k{i}: &k{i} [*k{}]\n", i - 1)).collect();
    assert_eq!(refused(&format!("k0: &k0 [1]\n{chain}")), "yaml: exceeded max depth");
    assert!(refused(&"[".repeat(100_000)).starts_with("yaml: "));
    assert!(refused(&format!("[{}]", "1,".repeat(MAX_NODES + 1))).contains("nodes"));
    let anchors: String = (0..150_000).map(|n| format!("- &a{n} x\n")).collect();
    assert_eq!(refused(&anchors), "yaml: document contains more than 10000 anchors");
}

proptest! {
    /// What JSON says, YAML says too.
    #[test]
    fn json_reads_the_same(
        text in r#"\[("[a-z ]{0,5}"|-?[1-9][0-9]{0,8}|0|true|false|null|\{"a":("x"|1)\}|\[\]),("b"|2|\{\})\]"#
    ) {
        let json: Value = serde_json::from_str(&text).expect("JSON");
        prop_assert_eq!(tree(&text), json);
    }

    #[test]
    fn any_text_is_answered(text in r"(a|b|: |- |\n|  |\[|\]|\{|\}|&a |\*a|<<|!!int |\||>|'|#|,|\?|%|1|~|\t|---\n|\u{2028}|\u{2029}){0,30}") {
        let _ = parse(text.as_bytes());
    }
}
