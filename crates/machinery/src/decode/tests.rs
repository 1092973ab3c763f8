//! What clients get wrong, and how they are told; on a small table written by hand.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::Table;

const TABLE: &str = "\
package apps/v1 apps
alias Mode string
type Web
 (TypeMeta) - meta/v1.TypeMeta -
 metadata 1 meta/v1.ObjectMeta oi
 spec 2 WebSpec oi
type Other
 (TypeMeta) - meta/v1.TypeMeta -
type WebSpec
 replicas 1 int32 opi
 total 2 int64 oi
 mode 3 Mode oi
 paused 4 bool oi
 cpu 5 resource.Quantity opi
 limits 6 map[string]resource.Quantity oi
 port 7 intstr.IntOrString oi
 at 8 meta/v1.Time opi
 micro 9 meta/v1.MicroTime opi
 data 10 map[string][]byte oi
 items 11 []Item oi
 names 12 []string oi
 raw 13 runtime.RawExtension oi
 ratio 14 float64 oi
 named 15 map[string]Item oi
type Item
 name 1 string -
 inner 2 WebSpec opi
package meta/v1 meta.k8s.io
type ObjectMeta
 name 1 string oi
 labels 11 map[string]string oi
type TypeMeta
 kind 1 string oi
 apiVersion 2 string oi
";

fn web() -> Type {
    let table = Arc::new(Table::parse(TABLE).expect("the table parses"));
    table.of("apps", "v1", "Web").expect("Web")
}

fn message(text: &str, format: Format, strictness: Strictness) -> String {
    decode(text.as_bytes(), format, &web(), strictness).map_or_else(|e| e.message.clone(), |d| d.value.to_string())
}

const UNFIT: &str = "Web in version \"v1\" cannot be handled as a Web: ";

#[test]
fn misfits_are_told_as_go_tells_them() {
    let field = |found: &str, path: &str, of: &str| {
        format!("{UNFIT}json: cannot unmarshal {found} into Go struct field Web.{path} of type {of}")
    };
    for (spec, expected) in [
        (r#"{"replicas":"3"}"#, field("string", "spec.replicas", "int32")),
        (r#"{"replicas":3000000000}"#, field("number 3000000000", "spec.replicas", "int32")),
        (r#"{"replicas":1.5}"#, field("number 1.5", "spec.replicas", "int32")),
        (r#"{"total":18446744073709551615}"#, field("number 18446744073709551615", "spec.total", "int64")),
        (r#"{"mode":1}"#, field("number", "spec.mode", "v1.Mode")),
        (r#"{"paused":"true"}"#, field("string", "spec.paused", "bool")),
        (r#"{"names":{}}"#, field("object", "spec.names", "[]string")),
        (r#"{"names":["a",true]}"#, field("bool", "spec.names", "string")),
        (r#"{"items":[{"name":[]}]}"#, field("array", "spec.items.name", "string")),
        (r#"{"named":{"k":{"inner":7}}}"#, field("number", "spec.named.inner", "v1.WebSpec")),
        (r#"{"limits":["a"]}"#, field("array", "spec.limits", "map[string]resource.Quantity")),
        (r#"{"port":true}"#, field("bool", "spec.port", "int32")),
        (r#"{"at":5}"#, field("number", "spec.at", "string")),
        (r#"{"data":{"a":"!"}}"#, format!("{UNFIT}illegal base64 data at input byte 0")),
        (
            r#"{"at":"x"}"#,
            format!("{UNFIT}parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\""),
        ),
    ] {
        let text = format!("{{\"spec\":{spec}}}");
        assert_eq!(message(&text, Format::Json, Strictness::Ignore), expected, "{text}");
        assert_eq!(message(&text, Format::Yaml, Strictness::Ignore), expected, "{text} as YAML");
    }
    let text = message(r#"{"spec":{"cpu":"1x"}}"#, Format::Json, Strictness::Ignore);
    assert!(text.starts_with(UNFIT), "{text}");
}

#[test]
fn unknown_and_duplicate_fields_have_exact_paths() {
    let text = r#"{"kind":"Web","apiVersion":"apps/v1","metadata":{"labels":{"a":"1","a":"2"},"nope":{"x":1}},
        "spec":{"items":[{"name":"a"},{"name":"b","foo":1,"inner":{"bar":2}}],"paused":true,"paused":false,
        "named":{"k.v":{"zip":1}},"Replicas":1},"spec2":0}"#;
    let errors = [
        r#"duplicate field "metadata.labels.a""#,
        r#"unknown field "metadata.nope""#,
        r#"unknown field "spec.items[1].foo""#,
        r#"unknown field "spec.items[1].inner.bar""#,
        r#"duplicate field "spec.paused""#,
        r#"unknown field "spec.named.k.v.zip""#,
        r#"unknown field "spec.Replicas""#,
        r#"unknown field "spec2""#,
    ];
    let strict = message(text, Format::Json, Strictness::Strict);
    assert_eq!(strict, format!("{UNFIT}strict decoding error: {}", errors.join(", ")));
    let warned = decode(text.as_bytes(), Format::Json, &web(), Strictness::Warn).expect("decodes");
    assert_eq!(warned.warnings, errors);
    let ignored = decode(text.as_bytes(), Format::Json, &web(), Strictness::Ignore).expect("decodes");
    assert_eq!(ignored.warnings, Vec::<String>::new());
    let pruned = json!({"kind": "Web", "apiVersion": "apps/v1", "metadata": {"labels": {"a": "2"}}, "spec": {
        "items": [{"name": "a"}, {"name": "b", "inner": {}}], "paused": false, "named": {"k.v": {}}}});
    assert_eq!(ignored.value, pruned);
    assert_eq!(warned.value, pruned);
}

#[test]
fn values_take_their_canonical_form() {
    for (given, expected) in [
        (
            json!({"cpu": "1000m", "limits": {"a": 0.5, "b": 1024, "c": "1024Ki"}}),
            json!({"cpu": "1", "limits": {"a": "500m", "b": "1024", "c": "1Mi"}}),
        ),
        (
            json!({"at": "2026-01-02T04:04:05.9+01:00", "micro": "2026-01-02T03:04:05Z"}),
            json!({"at": "2026-01-02T03:04:05Z", "micro": "2026-01-02T03:04:05.000000Z"}),
        ),
        (json!({"at": "0001-01-01T00:00:00Z", "port": "http", "replicas": null}), json!({"port": "http"})),
        (
            json!({"names": ["a", null], "items": [null], "data": {"a": "YQ==\n"}}),
            json!({"names": ["a", ""], "items": [{}], "data": {"a": "YQ=="}}),
        ),
        (
            json!({"raw": {"any": [1, null, {"b": "c"}]}, "ratio": 1}),
            json!({"raw": {"any": [1, null, {"b": "c"}]}, "ratio": 1}),
        ),
    ] {
        let text = json!({"spec": given.clone()}).to_string();
        let decoded = decode(text.as_bytes(), Format::Json, &web(), Strictness::Strict).expect("decodes");
        assert_eq!(decoded.value["spec"], expected);
        let again = tree(json!({"spec": given}), &web(), Strictness::Strict).expect("decodes");
        assert_eq!(again.value, decoded.value);
    }
}

#[test]
fn yaml_reads_as_yaml_1_1() {
    let text =
        "kind: Web\nspec:\n  paused: yes\n  names: [a, \"on\", 'no']\n  total: 0644\n  replicas: ~\n  port: 80\n";
    let decoded = decode(text.as_bytes(), Format::Yaml, &web(), Strictness::Strict).expect("decodes");
    assert_eq!(decoded.value["spec"], json!({"paused": true, "names": ["a", "on", "no"], "total": 420, "port": 80}));
    let text = "spec:\n  paused: true\n  total: 1\n  paused: false\n  foo: 1\n";
    let strict = message(text, Format::Yaml, Strictness::Strict);
    let expected = "strict decoding error: yaml: unmarshal errors:\n  line 4: key \"paused\" already set in map, \
                    unknown field \"spec.foo\"";
    assert_eq!(strict, format!("{UNFIT}{expected}"));
    let lenient = decode(text.as_bytes(), Format::Yaml, &web(), Strictness::Ignore).expect("decodes");
    assert_eq!(lenient.value["spec"], json!({"paused": false, "total": 1}));
}

#[test]
fn bombs_are_refused() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for text in [deep.clone(), format!("{{\"spec\":{{\"raw\":{deep}}}}}")] {
        for format in [Format::Json, Format::Yaml] {
            assert!(decode(text.as_bytes(), format, &web(), Strictness::Ignore).is_err());
        }
    }
    let nested = format!("{{\"spec\":{}{}}}", "{\"items\":[{\"inner\":".repeat(200), "{}}]}".repeat(200));
    assert!(decode(nested.as_bytes(), Format::Json, &web(), Strictness::Ignore).is_err());
    let mut laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (i, name) in ('b'..='j').enumerate() {
        let previous = char::from(b'a' + u8::try_from(i).unwrap_or(0));
        laughs.push_str(&format!("{name}: &{name} [{}]\n", vec![format!("*{previous}"); 9].join(",")));
    }
    assert!(decode(laughs.as_bytes(), Format::Yaml, &web(), Strictness::Ignore).is_err());
    let large = vec![b' '; MAX_BYTES + 1];
    let status = decode(&large, Format::Json, &web(), Strictness::Ignore).expect_err("too large");
    assert_eq!((status.code, status.message.as_str()), (413, "Request entity too large: limit is 3145728"));
}

#[test]
fn what_is_no_object_of_the_kind_is_named() {
    for (text, expected) in [
        (
            "",
            "the object provided is unrecognized (must be of type Web): couldn't get version/kind; json parse error: \
              unexpected end of JSON input (<empty>)",
        ),
        (
            r#"{"kind":"Other","apiVersion":"apps/v1"}"#,
            "Other in version \"v1\" cannot be handled as a Web: converting (v1.Other) to (apps.Web): unknown conversion",
        ),
        (
            r#"{"kind":"Nope","apiVersion":"apps/v1"}"#,
            "no kind \"Nope\" is registered for version \"apps/v1\" in scheme \"pintle\"",
        ),
    ] {
        assert_eq!(message(text, Format::Json, Strictness::Strict), expected);
    }
    let list = message("[]", Format::Json, Strictness::Strict);
    assert!(list.contains("json: cannot unmarshal array into Go value of type struct {"), "{list}");
    assert!(list.ends_with("(5b5d)"), "{list}");
    let broken = message("{\"kind\"", Format::Json, Strictness::Strict);
    assert!(broken.starts_with("the object provided is unrecognized (must be of type Web): couldn't get"), "{broken}");
}

proptest! {
    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for format in [Format::Json, Format::Yaml] {
            let _ = decode(&bytes, format, &web(), Strictness::Strict);
        }
    }

    #[test]
    fn any_json_shaped_text_is_answered(
        text in r#"(\{|\}|\[|\]|:|,|"spec"|"items"|"replicas"|"raw"|"kind"|null|true|-1|1e9|"a"|&a|\*a| |\n){0,40}"#
    ) {
        for format in [Format::Json, Format::Yaml] {
            let _ = decode(text.as_bytes(), format, &web(), Strictness::Warn);
        }
    }
}

/// However deep: refused by a count, never by the end of the stack. Threads have 2 MiB; half of it must do.
#[test]
fn no_depth_ends_the_stack() {
    let run = || {
        let schema = web();
        for depth in [20, 60, 100, 127, 129, 1500] {
            let block: String = (0..depth).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
            let flow = format!("a: {}{}", "[".repeat(depth), "]".repeat(depth));
            let json = format!("{{\"a\":{}1{}}}", "{\"a\":".repeat(depth), "}".repeat(depth));
            for (format, text) in [(Format::Yaml, &block), (Format::Yaml, &flow), (Format::Json, &json)] {
                for strictness in [Strictness::Ignore, Strictness::Strict] {
                    eprintln!("{depth} {format:?} {strictness:?}");
                    drop(decode(text.as_bytes(), format, &schema, strictness));
                }
            }
        }
    };
    std::thread::Builder::new().stack_size(1024 * 1024).spawn(run).expect("thread").join().expect("no panic");
}

/// Three bytes of a body can be kilobytes of a typed object: their number is bounded.
#[test]
fn nodes_without_end_are_refused() {
    let items = |n: usize| format!(r#"{{"spec":{{"items":[{}]}}}}"#, vec!["{}"; n].join(","));
    assert!(decode(items(MAX_NODES - 3).as_bytes(), Format::Json, &web(), Strictness::Warn).is_ok());
    let refused = message(&items(MAX_NODES), Format::Json, Strictness::Warn);
    assert_eq!(refused, format!("{UNFIT}more than 32768 lists and objects"));
    let parsed: Value = serde_json::from_str(&items(MAX_NODES)).expect("JSON");
    assert_eq!(tree(parsed, &web(), Strictness::Warn).expect_err("refused").code, 400);
    let empty = [0x5a, 0].repeat(MAX_NODES);
    let mut spec = vec![0x12];
    let mut length = empty.len();
    while length > 0x7f {
        spec.push(0x80 | (length & 0x7f) as u8);
        length >>= 7;
    }
    spec.push(length as u8);
    spec.extend_from_slice(&empty);
    let refused = crate::proto::decode_body(&spec, &web()).expect_err("refused");
    assert_eq!(refused.message, "more than 32768 lists and objects");
}
