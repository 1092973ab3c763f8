//! Patches as clients send them, and as nobody should.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::Table;

const TABLE: &str = "\
package apps/v1 apps
type Web
 (TypeMeta) - meta/v1.TypeMeta -
 metadata 1 meta/v1.ObjectMeta oi
 spec 2 WebSpec oi
type WebSpec
 containers 1 []Container oi merge=name keys=name
 volumes 2 []Volume oi retain merge=name keys=name
 args 3 []string oi
 finalizers 4 []string oi merge set
 strategy 5 Strategy oi retain
 selector 6 Strategy opi replace
 labels 7 map[string]string oi
 atomic 8 []Volume oi
type Container
 name 1 string -
 image 2 string oi
 env 3 []Container oi merge=name
type Volume
 name 1 string -
 hostPath 2 string oi
 emptyDir 3 Strategy opi
type Strategy
 type 1 string oi
 rolling 2 Strategy opi
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

fn applied(spec: Value, patch: Value) -> Result<Value> {
    let mut object = json!({"kind": "Web", "spec": spec});
    strategic(&mut object, &as_map(json!({"spec": patch})), &web())?;
    Ok(object["spec"].take())
}

fn as_map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other} is no object"),
    }
}

fn json(object: &mut Value, patch: &[u8]) -> Result<()> {
    JsonPatch::parse(patch, false)?.apply(object)
}

#[test]
fn strategic_merges_follow_schema_and_directives() {
    let two = || json!({"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]});
    for (what, spec, patch, expected) in [
        (
            "merge by key",
            two(),
            json!({"containers": [{"name": "b", "image": "z"}]}),
            json!({"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "z"}]}),
        ),
        (
            "append",
            two(),
            json!({"containers": [{"name": "c"}]}),
            json!({"containers": [{"name": "c"}, {"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}),
        ),
        (
            "delete an element",
            two(),
            json!({"containers": [{"name": "a", "$patch": "delete"}]}),
            json!({"containers": [{"name": "b", "image": "y"}]}),
        ),
        (
            "replace a list",
            two(),
            json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
            json!({"containers": [{"name": "c"}]}),
        ),
        (
            "replace an object",
            json!({"strategy": {"type": "A", "rolling": {"type": "x"}}}),
            json!({"strategy": {"$patch": "replace", "type": "B"}}),
            json!({"strategy": {"type": "B"}}),
        ),
        (
            "delete an object",
            json!({"strategy": {"type": "A"}}),
            json!({"strategy": {"$patch": "delete"}}),
            json!({"strategy": {}}),
        ),
        (
            "null removes",
            json!({"strategy": {"type": "A"}, "args": ["a"]}),
            json!({"strategy": {"type": null}, "args": null}),
            json!({"strategy": {}}),
        ),
        (
            "unmatched nulls go",
            json!({}),
            json!({"strategy": {"type": null, "rolling": {"type": null}}}),
            json!({"strategy": {"rolling": {}}}),
        ),
        ("replaced list of scalars", json!({"args": ["a", "b"]}), json!({"args": ["c"]}), json!({"args": ["c"]})),
        (
            "merged list of scalars",
            json!({"finalizers": ["a", "b"]}),
            json!({"finalizers": ["b", "c"]}),
            json!({"finalizers": ["a", "b", "c"]}),
        ),
        (
            "delete from a list of scalars",
            json!({"finalizers": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["a"]}),
            json!({"finalizers": ["b"]}),
        ),
        ("delete from an absent list", json!({}), json!({"$deleteFromPrimitiveList/finalizers": ["a"]}), json!({})),
        (
            "lists without a key are replaced",
            json!({"atomic": [{"name": "a"}]}),
            json!({"atomic": [{"name": "b"}]}),
            json!({"atomic": [{"name": "b"}]}),
        ),
        (
            "strategy replace",
            json!({"selector": {"type": "a", "rolling": {}}}),
            json!({"selector": {"type": "b"}}),
            json!({"selector": {"type": "b"}}),
        ),
        (
            "retain keys",
            json!({"strategy": {"type": "RollingUpdate", "rolling": {"type": "x"}}}),
            json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
            json!({"strategy": {"type": "Recreate"}}),
        ),
        (
            "retain keys in an element",
            json!({"volumes": [{"name": "v", "hostPath": "/"}]}),
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "emptyDir"], "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
        ),
        (
            "set the order",
            two(),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a", "image": "z"}]}),
            json!({"containers": [{"name": "b", "image": "y"}, {"name": "a", "image": "z"}]}),
        ),
        (
            "order with server's own",
            json!({"finalizers": ["s", "a", "b"]}),
            json!({"$setElementOrder/finalizers": ["b", "a"]}),
            json!({"finalizers": ["s", "b", "a"]}),
        ),
        (
            "order, add and delete",
            two(),
            json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}],
                "containers": [{"name": "c", "image": "n"}, {"name": "a", "$patch": "delete"}]}),
            json!({"containers": [{"name": "c", "image": "n"}, {"name": "b", "image": "y"}]}),
        ),
        (
            "nested lists",
            json!({"containers": [{"name": "a", "env": [{"name": "x", "image": "1"}]}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "x", "image": "2"}, {"name": "y"}]}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "x", "image": "2"}, {"name": "y"}]}]}),
        ),
        (
            "new objects lose what is an instruction as a whole",
            json!({}),
            json!({"containers": [{"name": "a", "$patch": "delete"}, {"name": "b", "$retainKeys": ["name"]}]}),
            json!({"containers": [{"name": "b", "$retainKeys": ["name"]}]}),
        ),
        (
            "maps merge",
            json!({"labels": {"a": "1", "b": "2"}}),
            json!({"labels": {"b": null, "c": "3"}}),
            json!({"labels": {"a": "1", "c": "3"}}),
        ),
        ("a type replaces another", json!({"args": ["a"]}), json!({"args": {"x": 1}}), json!({"args": {"x": 1}})),
    ] {
        assert_eq!(applied(spec, patch).map_err(|e| e.message), Ok(expected), "{what}");
    }
}

#[test]
fn bad_strategic_patches_are_refused() {
    let spec = || json!({"containers": [{"name": "a"}], "finalizers": ["a"], "strategy": {}});
    for (patch, code, text) in [
        (json!({"containers": [{"image": "x"}]}), 400, "map: map[image:x] does not contain declared merge key: name"),
        (json!({"strategy": {"$retainKeys": "type"}}), 400, BAD_RETAIN),
        (json!({"strategy": {"$retainKeys": ["type"], "rolling": {}}}), 400, BAD_RETAIN),
        (json!({"$setElementOrder/containers": 1}), 400, "expected a []interface {}, but received a int64"),
        (json!({"$setElementOrder": []}), 400, "invalid patch format of setElementOrder list"),
        (json!({"$deleteFromPrimitiveListX": []}), 400, "invalid patch format of primitive list"),
        (
            json!({"$setElementOrder/nope": []}),
            400,
            "unable to find api field in struct WebSpec for the json field \"nope\"",
        ),
        (
            json!({"$deleteFromPrimitiveList/finalizers": [{}]}),
            400,
            "list element types are not identical: [[a] [map[]]]",
        ),
        (json!({"strategy": {"$patch": "x"}}), 400, "unknown patch type: x in map: map[$patch:x]"),
        (json!({"strategy": {"$patch": 5}}), 400, "unknown patch type: %!s(int64=5) in map: map[$patch:5]"),
        (json!({"containers": [{"$patch": "merge"}]}), 400, "merging lists cannot yet be specified in the patch"),
        (json!({"containers": ["x"]}), 400, "list element types are not identical: [[map[name:a]] [x]]"),
        (
            json!({"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}),
            400,
            "The order in patch list:\n[map[name:a]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
        ),
    ] {
        let status = applied(spec(), patch.clone()).expect_err("refused");
        assert_eq!((status.code, status.message.as_str()), (code, text), "{patch}");
    }
    let lists = applied(json!({"finalizers": [["a"]]}), json!({"finalizers": [["a"]]})).expect_err("refused");
    assert_eq!(
        (lists.code, lists.message.as_str()),
        (422, "the server rejected our request due to an error in our request")
    );
}

#[test]
fn bodies_of_patches_are_read_with_what_is_there_twice() {
    let read = parse(br#"{"a":{"b":1,"b":2},"c":[{"d":1,"d":1}],"a":{"e":1}}"#, true, "").expect("reads");
    assert_eq!(read.patch, as_map(json!({"a": {"e": 1}, "c": [{"d": 1}]})));
    assert_eq!(read.errors, [r#"duplicate field "a.b""#, r#"duplicate field "c[0].d""#, r#"duplicate field "a""#]);
    assert_eq!(parse(br#"{"a":1,"a":2}"#, false, "").map(|t| t.errors), Ok(vec![]));
    let refused = |body: &[u8], prefix| parse(body, true, prefix).map_err(|s| s.message).expect_err("refused");
    assert_eq!(
        refused(b"[]", "error decoding patch: "),
        "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
    );
    assert_eq!(refused(b"null", "x"), "Invalid JSON Patch");
    assert_eq!(parse(b"null", true, "").map(|t| t.patch), Ok(Map::new()));
    assert_eq!(check_syntax(b"{").map_err(|s| s.message), Err("invalid JSON patch".to_owned()));

    let read = JsonPatch::parse(br#"[{"op":"add","op":"add","path":"/a","value":1,"foo":2},{"Op":""}]"#, true);
    let want = [
        r#"json patch unknown field "[0].foo""#,
        r#"json patch duplicate field "[0].op""#,
        r#"json patch unknown field "[1].Op""#,
    ];
    let mut errors = read.expect("reads").errors;
    errors.sort();
    let mut want: Vec<String> = want.iter().map(|s| (*s).to_owned()).collect();
    want.sort();
    assert_eq!(errors, want);
    for (body, checked, want) in [
        (
            "{}",
            true,
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        ),
        ("{}", false, "json: cannot unmarshal object into Go value of type jsonpatch.Patch"),
        ("[1]", true, "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp"),
        (
            r#"[{"op":1}]"#,
            true,
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
        ),
    ] {
        assert_eq!(JsonPatch::parse(body.as_bytes(), checked).map_err(|s| s.message).expect_err("refused"), want);
    }
}

const BAD_RETAIN: &str = "invalid patch format of retainKeys";

#[test]
fn merge_patches_follow_rfc_7396() {
    let mut object = json!({"a": "b", "c": {"d": "e", "f": "g"}, "l": [1]});
    let patch = json!({"a": "z", "c": {"f": null}, "l": [2, {"x": null}], "n": {"x": null}});
    merge(&mut object, &as_map(patch));
    assert_eq!(object, json!({"a": "z", "c": {"d": "e"}, "l": [2, {}], "n": {}}));
}

/// Where upstream is more lenient than the standard.
#[test]
fn json_patches_are_applied_as_upstream_does() {
    for (object, patch, want) in [
        (json!({"a": [1, 2]}), json!([{"op": "remove", "path": "/a/-1"}]), Some(json!({"a": [1]}))),
        (json!({"a": [1, 2]}), json!([{"op": "add", "path": "/a/-1", "value": 3}]), Some(json!({"a": [1, 2, 3]}))),
        (json!({"a": [1, 2]}), json!([{"op": "add", "path": "/a/3", "value": 3}]), None),
        (json!({"a": [1]}), json!([{"op": "replace", "path": "/a/1", "value": 3}]), None),
        (json!({}), json!([{"op": "replace", "path": "/a", "value": 1}]), Some(json!({"a": 1}))),
        (json!({}), json!([{"op": "copy", "from": "/b", "path": "/a"}]), Some(json!({"a": null}))),
        (json!({}), json!([{"op": "move", "from": "/b", "path": "/a"}]), None),
        (json!({}), json!([{"op": "test", "path": "/a", "value": null}]), Some(json!({}))),
        (json!({"a": 1}), json!([{"op": "test", "path": "/a", "value": 1.0}]), None),
        (json!({}), json!([{"op": "add", "path": "x/a", "value": 1}]), Some(json!({"a": 1}))),
        (json!({}), json!([{"op": "add", "path": "", "value": {}}]), None),
        (json!({"a": 1}), json!([{"op": "replace", "path": "", "value": {"b": 1}}]), Some(json!({"b": 1}))),
        (json!({}), json!([{"op": "add", "path": "/~01~1", "value": 1}]), Some(json!({"~1/": 1}))),
        (json!({}), json!([{"op": "add", "value": 1}]), None),
        (json!({}), json!([null]), None),
    ] {
        let mut patched = object.clone();
        let outcome = json(&mut patched, patch.to_string().as_bytes()).map(|()| patched);
        assert_eq!(outcome.ok(), want, "{object} {patch}");
    }
}

/// What a small patch can make a server do is bounded: elements moved at the front of a long list too.
#[test]
fn work_at_the_front_of_a_long_list_is_bounded() {
    let items: Vec<Value> = (0..30_000).map(Value::from).collect();
    let grow = vec![r#"{"op":"add","path":"/a/0","value":0}"#; MAX_OPERATIONS].join(",");
    let mut object = json!({ "a": items });
    let refused = json(&mut object, format!("[{grow}]").as_bytes()).expect_err("refused");
    assert_eq!((refused.code, object["a"].as_array().map(Vec::len)), (422, Some(30_000)));
    let append = vec![r#"{"op":"add","path":"/a/-","value":0}"#; MAX_OPERATIONS].join(",");
    json(&mut object, format!("[{append}]").as_bytes()).expect("the end of a list is cheap");
    assert_eq!(object["a"].as_array().map(Vec::len), Some(40_000));
}

#[test]
fn json_patches_follow_rfc_6902() {
    let mut object = json!({"a": [1, 2], "b": {"c/d": 1}});
    let patch = json!([
        {"op": "test", "path": "/b/c~1d", "value": 1},
        {"op": "add", "path": "/a/-", "value": 3},
        {"op": "add", "path": "/a/0", "value": 0},
        {"op": "replace", "path": "/b/c~1d", "value": 2},
        {"op": "copy", "from": "/b", "path": "/e"},
        {"op": "move", "from": "/b", "path": "/f"},
        {"op": "remove", "path": "/a/1"},
    ]);
    json(&mut object, patch.to_string().as_bytes()).expect("applies");
    assert_eq!(object, json!({"a": [0, 2, 3], "e": {"c/d": 2}, "f": {"c/d": 2}}));
}

#[test]
fn json_patches_that_fail_change_nothing() {
    let many = format!("[{}]", vec![r#"{"op":"remove","path":"/x"}"#; MAX_OPERATIONS + 1].join(","));
    let grow: Vec<String> = (0..60).map(|i| format!(r#"{{"op":"copy","from":"","path":"/k{i}"}}"#)).collect();
    let nest = vec![r#"{"op":"add","path":"/n","value":{}}"#.to_owned()]
        .into_iter()
        .chain((0..5000).flat_map(|_| {
            [
                r#"{"op":"add","path":"/m","value":{}}"#.to_owned(),
                r#"{"op":"move","from":"/n","path":"/m/n"}"#.to_owned(),
                r#"{"op":"move","from":"/m","path":"/n"}"#.to_owned(),
            ]
        }))
        .take(9000)
        .collect::<Vec<_>>();
    for (patch, code) in [
        ("{}".to_owned(), 400),
        (r#"[{"op":"remove","path":"/nope"}]"#.to_owned(), 422),
        (r#"[{"op":"add","path":"/a","value":1},{"op":"test","path":"/a","value":2}]"#.to_owned(), 422),
        (r#"[{"op":"fly","path":"/a"}]"#.to_owned(), 422),
        (r#"[{"op":"add","path":"no slash","value":1}]"#.to_owned(), 422),
        (r#"[{"op":"move","from":"/a","path":"/a/b"}]"#.to_owned(), 422),
        (r#"[{"op":"add","path":"/a/b/c","value":1}]"#.to_owned(), 422),
        (many, 413),
        (format!("[{}]", grow.join(",")), 422),
        (format!("[{}]", nest.join(",")), 422),
    ] {
        let mut object = json!({"a": {"b": "c"}});
        let status = json(&mut object, patch.as_bytes()).expect_err("refused");
        assert_eq!(status.code, code, "{}", patch.get(..80).unwrap_or(&patch));
        assert_eq!(object, json!({"a": {"b": "c"}}));
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (0..3i32).prop_map(Value::from),
        "[a-c]".prop_map(Value::from),
        Just(json!("delete")),
        Just(json!("replace")),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = prop_oneof![
            Just("name"),
            Just("containers"),
            Just("volumes"),
            Just("finalizers"),
            Just("strategy"),
            Just("env"),
            Just("args"),
            Just("$patch"),
            Just("$retainKeys"),
            Just("$setElementOrder/containers"),
            Just("$setElementOrder/finalizers"),
            Just("$deleteFromPrimitiveList/finalizers"),
            Just("type"),
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((key.prop_map(str::to_owned), inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

#[test]
fn differences_name_what_is_gone() {
    let c = |items: &[(&str, &str)]| -> Value {
        json!({"containers": items.iter().map(|(n, i)| json!({"name": n, "image": i})).collect::<Vec<_>>()})
    };
    let order = "$setElementOrder/containers";
    let table = [
        (c(&[("a", "x")]), c(&[("a", "x")]), json!(null)),
        (json!({}), c(&[("a", "x")]), c(&[("a", "x")])),
        (c(&[("a", "x")]), json!({}), json!({"containers": null})),
        (
            c(&[("a", "x"), ("b", "y")]),
            c(&[("b", "z")]),
            json!({order: [{"name": "b"}],
                "containers": [{"name": "b", "image": "z"}, {"$patch": "delete", "name": "a"}]}),
        ),
        (c(&[("a", "x"), ("b", "y")]), c(&[("b", "y"), ("a", "x")]), json!({order: [{"name": "b"}, {"name": "a"}]})),
        // Items of one key can only be replaced together.
        (
            c(&[("a", "x"), ("a", "y")]),
            c(&[("a", "y")]),
            json!({"containers": [{"name": "a", "image": "y"}, {"$patch": "replace"}]}),
        ),
        (
            c(&[("a", "x")]),
            c(&[("a", "x"), ("a", "y")]),
            json!({"containers": [{"name": "a", "image": "x"}, {"name": "a", "image": "y"}, {"$patch": "replace"}]}),
        ),
        (
            json!({"volumes": [{"name": "v", "hostPath": "/"}]}),
            json!({"volumes": [{"name": "v", "emptyDir": {"type": "t"}}]}),
            json!({"$setElementOrder/volumes": [{"name": "v"}],
                "volumes": [{"name": "v", "hostPath": null, "emptyDir": {"type": "t"}}]}),
        ),
        (
            json!({"finalizers": ["a", "b"], "args": ["x", "y"], "labels": {"k": "1", "l": "2"}}),
            json!({"finalizers": ["c", "b"], "args": ["y"], "labels": {"l": "2"}}),
            json!({"$setElementOrder/finalizers": ["c", "b"], "$deleteFromPrimitiveList/finalizers": ["a"],
                "finalizers": ["c"], "args": ["y"], "labels": {"k": null}}),
        ),
        (
            json!({"selector": {"type": "a", "rolling": {"type": "b"}}, "strategy": {"type": "a"}}),
            json!({"selector": {"type": "c"}, "strategy": {"rolling": {"type": "b"}}}),
            json!({"selector": {"type": "c"}, "strategy": {"type": null, "rolling": {"type": "b"}}}),
        ),
    ];
    for (before, after, wanted) in table {
        let patch = difference(&as_map(json!({"spec": before})), &as_map(json!({"spec": after})), &web());
        assert_eq!(patch.get("spec").unwrap_or(&Value::Null), &wanted, "{before} {after}");
        let patch = patch.get("spec").cloned().unwrap_or_else(|| json!({}));
        assert_eq!(applied(before, patch).expect("applies"), after);
    }
}

/// Objects of the type: no nulls, keys unique.
fn spec() -> impl Strategy<Value = Value> {
    let names = || proptest::sample::subsequence(vec!["a", "b", "c", "d"], 0..4).prop_shuffle();
    (names(), names(), names(), "[a-c]").prop_map(|(containers, finalizers, env, kind)| {
        let env: Vec<Value> = env.into_iter().map(|n| json!({"name": n})).collect();
        let containers: Vec<Value> =
            containers.into_iter().map(|n| json!({"name": n, "image": kind, "env": env})).collect();
        json!({"containers": containers, "finalizers": finalizers, "args": ["x", "x"], "strategy": {"type": kind}})
    })
}

proptest! {
    #[test]
    fn patches_never_panic(object in value(), patch in value()) {
        let mut target = json!({"spec": object});
        let map = as_map(json!({"spec": patch}));
        let _ = strategic(&mut target, &map, &web());
        merge(&mut target, &map);
        let _ = parse(patch.to_string().as_bytes(), true, "");
        let _ = json(&mut target, patch.to_string().as_bytes());
    }

    #[test]
    fn a_patch_of_itself_changes_nothing(spec in spec()) {
        prop_assert_eq!(applied(spec.clone(), spec.clone()).map_err(|e| e.message), Ok(spec.clone()));
        let mut merged = spec.clone();
        merge(&mut merged, &as_map(spec.clone()));
        prop_assert_eq!(merged, spec);
    }

    #[test]
    fn a_patch_applied_twice_is_applied_once(old in spec(), new in spec()) {
        let once = applied(old, new.clone()).expect("applies");
        prop_assert_eq!(applied(once.clone(), new).map_err(|e| e.message), Ok(once));
    }

    #[test]
    fn a_difference_leads_from_one_to_the_other(old in spec(), new in spec()) {
        let patch = difference(&as_map(json!({"spec": old})), &as_map(json!({"spec": new})), &web());
        prop_assert_eq!(patch.is_empty(), old == new);
        let patch = patch.get("spec").cloned().unwrap_or_else(|| json!({}));
        prop_assert_eq!(applied(old, patch).map_err(|e| e.message), Ok(new));
    }

    #[test]
    fn json_patches_of_any_shape_are_answered(
        text in r#"\[(\{"op":"(add|remove|copy|move|test|replace)","path":"(|/|/a|/a/0|/a/-|/b~1)","from":"(|/a|/b)","value":(1|null|\{\})\},?){0,4}\]"#
    ) {
        let mut object = json!({"a": [1], "b": {}});
        let _ = json(&mut object, text.replace("},]", "}]").as_bytes());
    }
}

/// As long as a body can be: a list is merged in the time it takes to read it, not in its square.
#[test]
fn long_lists_are_merged_in_linear_time() {
    const N: usize = 40_000;
    let containers: Vec<Value> = (0..N).map(|i| json!({"name": format!("c{i}")})).collect();
    let patch = as_map(json!({"spec": {"$setElementOrder/containers": containers, "containers": containers}}));
    let mut object = json!({"spec": {"containers": containers}});
    // A square of this length takes minutes; the suite would not end.
    strategic(&mut object, &patch, &web()).expect("merges");
    assert_eq!(object["spec"]["containers"], Value::from(containers));
}
