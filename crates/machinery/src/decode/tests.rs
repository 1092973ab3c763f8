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
 (Place) - Place -
 bytes 16 []byte o
 every 17 meta/v1.Duration oi
type Place
 host 1 Host opi
type Host
 path 1 string -
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
        format!("{UNFIT}json: cannot unmarshal {found} into Go struct field {path} of type {of}")
    };
    for (spec, expected) in [
        (r#"{"replicas":"3"}"#, field("string", "WebSpec.spec.replicas", "int32")),
        (r#"{"replicas":3000000000}"#, field("number 3000000000", "WebSpec.spec.replicas", "int32")),
        (r#"{"replicas":1.5}"#, field("number 1.5", "WebSpec.spec.replicas", "int32")),
        (r#"{"port":1.5}"#, field("number 1.5", "WebSpec.spec.port", "int32")),
        (r#"{"host":{"path":7}}"#, field("number", "Host.spec.Place.host.path", "string")),
        (r#"{"bytes":[1,300]}"#, field("number 300", "WebSpec.spec.bytes", "uint8")),
        (r#"{"total":18446744073709551615}"#, field("number 18446744073709551615", "WebSpec.spec.total", "int64")),
        (r#"{"mode":1}"#, field("number", "WebSpec.spec.mode", "v1.Mode")),
        (r#"{"paused":"true"}"#, field("string", "WebSpec.spec.paused", "bool")),
        (r#"{"names":{}}"#, field("object", "WebSpec.spec.names", "[]string")),
        (r#"{"names":["a",true]}"#, field("bool", "WebSpec.spec.names", "string")),
        (r#"{"items":[{"name":[]}]}"#, field("array", "Item.spec.items.name", "string")),
        (r#"{"named":{"k":{"inner":7}}}"#, field("number", "Item.spec.named.inner", "v1.WebSpec")),
        (r#"{"limits":["a"]}"#, field("array", "WebSpec.spec.limits", "map[string]resource.Quantity")),
        (r#"{"port":true}"#, field("bool", "WebSpec.spec.port", "int32")),
        (r#"{"at":5}"#, field("number", "WebSpec.spec.at", "string")),
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

/// What does not fit a type of its own reader is told first, then the first that does not fit, then what is
/// unknown; what is no JSON before all.
#[test]
fn what_is_told_first() {
    let json = |text: &str| message(text, Format::Json, Strictness::Strict);
    let own = json(r#"{"spec":{"paused":1,"nope":1,"cpu":"x"}}"#);
    assert!(own.starts_with(&format!("{UNFIT}quantities must match")), "{own}");
    let first = json(r#"{"spec":{"paused":1,"replicas":"x"},"nope":1}"#);
    assert_eq!(
        first,
        format!("{UNFIT}json: cannot unmarshal number into Go struct field WebSpec.spec.paused of type bool")
    );
    let broken = json(r#"{"spec":{"cpu":"x"},}"#);
    assert!(broken.contains("invalid character '}' looking for beginning of object key string"), "{broken}");
    for (text, why) in [
        (r#"{"kind":5,"spec":1}"#, "json: cannot unmarshal number into Go struct field .kind of type string"),
        ("{}x", "invalid character 'x' after top-level value"),
    ] {
        let told = json(text);
        assert!(
            told.contains(&format!("(must be of type Web): couldn't get version/kind; json parse error: {why} (")),
            "{told}"
        );
    }
    assert!(json(r#"{"apiVersion":"a/b/c"}"#).contains("unexpected GroupVersion string: a/b/c"));
}

/// The digits of a number count, not its value.
#[test]
fn numbers_are_read_by_their_digits() {
    let spec = |text: &str| {
        let body = format!("{{\"spec\":{text}}}");
        decode(body.as_bytes(), Format::Json, &web(), Strictness::Strict)
            .map(|d| d.value["spec"].to_string())
            .unwrap_or_else(|e| {
                e.message
                    .rsplit("unmarshal ")
                    .next()
                    .unwrap_or_default()
                    .split(" into")
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            })
    };
    for (given, want) in [
        (r#"{"replicas":-2147483648}"#, r#"{"replicas":-2147483648}"#),
        (r#"{"total":9223372036854775807}"#, r#"{"total":9223372036854775807}"#),
        (r#"{"replicas":-0}"#, r#"{"replicas":0}"#),
        (r#"{"ratio":1.0,"cpu":1e3}"#, r#"{"cpu":"1e3","ratio":1}"#),
        (r#"{"ratio":0.25}"#, r#"{"ratio":0.25}"#),
        (r#"{"cpu":0.10}"#, r#"{"cpu":"100m"}"#),
        (r#"{"every":"90s"}"#, r#"{"every":"1m30s"}"#),
        (r#"{"replicas":2.0}"#, "number 2.0"),
        (r#"{"replicas":1e3}"#, "number 1e3"),
        (r#"{"replicas":2147483648}"#, "number 2147483648"),
        (r#"{"total":9223372036854775808}"#, "number 9223372036854775808"),
        (r#"{"ratio":1e999}"#, "number 1e999"),
        (r#"{"port":1E0}"#, "number 1E0"),
    ] {
        assert_eq!(spec(given), want, "{given}");
    }
}

/// Go reads a second value into the first.
#[test]
fn what_is_set_twice_is_read_into_the_first() {
    let text = r#"{"spec":{"replicas":1,"items":[{"name":"a"},{"name":"b"}],"limits":{"a":"1"},"host":{"path":"/"}},
        "spec":{"paused":true,"items":[{"inner":{}}],"limits":{"b":"2"},"host":{}}}"#;
    let read = decode(text.as_bytes(), Format::Json, &web(), Strictness::Ignore).expect("decodes");
    let want = json!({"replicas": 1, "paused": true, "items": [{"name": "a", "inner": {}}], "limits": {"a": "1", "b": "2"},
        "host": {"path": "/"}});
    assert_eq!(read.value["spec"], want);
}

/// Upstream puts a mark in the place of what is no text, and goes on.
#[test]
fn broken_texts_are_mended() {
    for body in [
        br#"{"spec":{"names":["\ud800x","\ud83d\ude00"]}}"#.as_slice(),
        b"{\"spec\":{\"names\":[\"\xffx\",\"\xf0\x9f\x98\x80\"]}}",
    ] {
        let read = decode(body, Format::Json, &web(), Strictness::Strict).expect("decodes");
        assert_eq!(read.value["spec"]["names"], json!(["\u{fffd}x", "\u{1f600}"]));
    }
}

/// What a custom resource's schema says of nulls, of objects inside it and of numbers or texts.
#[test]
fn a_custom_resource_is_read_by_the_same_schema() {
    let table = "package a/v1 a\ntype Thing\n (TypeMeta) - meta/v1.TypeMeta -\n size - intstr.IntOrString oin\n \
                 other - string oi\n inner - Inner oi\n list - []Inner oi keys=kind\ntype Inner preserve\n (TypeMeta) - \
                 meta/v1.TypeMeta -\n metadata - meta/v1.ObjectMeta oi\npackage meta/v1 meta.k8s.io\ntype ObjectMeta\n \
                 name - string oi\ntype TypeMeta\n kind - string oi\n apiVersion - string oi\n";
    let table = Arc::new(Table::parse(table).expect("the table parses"));
    let thing = table.of("a", "v1", "Thing").expect("Thing");
    let text = r#"{"kind":"Thing","apiVersion":"a/v1","size":null,"inner":{"kind":"X","apiVersion":"b/v1","metadata":{"name":"x"},"spec":[1]}}"#;
    let read = decode(text.as_bytes(), Format::Json, &thing, Strictness::Strict).expect("decodes");
    assert_eq!(String::from_utf8_lossy(&crate::encode::json(&read.value, &thing)), text);
    let text = r#"{"other":null,"inner":{"metadata":{"nope":1}}}"#;
    let read = decode(text.as_bytes(), Format::Json, &thing, Strictness::Warn).expect("decodes");
    assert_eq!(read.value, json!({"kind": "Thing", "apiVersion": "a/v1", "inner": {"metadata": {}}}));
    assert_eq!(read.warnings, [r#"unknown field "inner.metadata.nope""#]);
}

/// A type that preserves keeps what it does not know; its own fields are checked all the same.
#[test]
fn a_type_may_keep_what_it_does_not_know() {
    let table = "package a/v1 a\ntype Thing preserve\n (TypeMeta) - meta/v1.TypeMeta -\n size 1 int32 oi\n\
                 package meta/v1 meta.k8s.io\ntype TypeMeta\n kind 1 string oi\n apiVersion 2 string oi\n";
    let table = Arc::new(Table::parse(table).expect("the table parses"));
    let thing = table.of("a", "v1", "Thing").expect("Thing");
    let text = r#"{"size":1,"more":{"a":[1,null]}}"#;
    let read = decode(text.as_bytes(), Format::Json, &thing, Strictness::Strict).expect("decodes");
    assert_eq!(read.value, json!({"kind": "Thing", "apiVersion": "a/v1", "size": 1, "more": {"a": [1, null]}}));
    let written = String::from_utf8(crate::encode::json(&read.value, &thing)).expect("text");
    assert_eq!(written, r#"{"kind":"Thing","apiVersion":"a/v1","size":1,"more":{"a":[1,null]}}"#);
    assert!(decode(br#"{"size":"x"}"#, Format::Json, &thing, Strictness::Ignore).is_err());
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
            json!({"cpu": "1000m", "limits": {"a": 0.5, "b": 1024, "c": "1024Ki", "d": "1.500"}}),
            json!({"cpu": "1", "limits": {"a": "500m", "b": "1024", "c": "1Mi", "d": "1.500"}}),
        ),
        (
            json!({"at": "2026-01-02T04:04:05.9+01:00", "micro": "2026-01-02T04:04:05.000000+01:00"}),
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
            "Nope in version \"v1\" cannot be handled as a Web: no kind \"Nope\" is registered for version \"apps/v1\" in scheme \"pintle\"",
        ),
        (
            r#"{"kind":"Web","apiVersion":"v2"}"#,
            "Web in version \"v2\" cannot be handled as a Web: no kind \"Web\" is registered for version \"v2\" in scheme \"pintle\"",
        ),
        (
            r#"{"Kind":"Nope"}"#,
            "Nope in version \"v1\" cannot be handled as a Web: no kind \"Nope\" is registered for version \"apps/v1\" in scheme \"pintle\"",
        ),
        (
            r#"{"kind":"Other","apiVersion":"apps/v1","what":1}"#,
            "Other in version \"v1\" cannot be handled as a Web: strict decoding error: unknown field \"what\"",
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
