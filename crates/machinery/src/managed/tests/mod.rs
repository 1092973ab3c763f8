//! Who owns what after updates and applies; on a small table written by hand. Here: updates, and how sets
//! of fields are written.

mod apply;

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
 status 3 WebStatus oi
type WebSpec
 replicas 1 int32 opi
 containers 2 []Container - merge=name keys=name
 volumes 3 []Container oi merge=name keys=name
 args 4 []string oi
 selector 5 Selector opi
 strategy 6 Strategy oi
 ports 7 []Port oi keys=port,protocol
type WebStatus
 replicas 1 int32 oi
 conditions 2 []Condition oi keys=type
type Condition
 type 1 string -
 at 2 meta/v1.Time oi
type Container
 name 1 string -
 image 2 string oi
 resources 3 Strategy oi
type Port
 port 1 int32 -
 protocol 2 string oi default=\"TCP\"
 name 3 string oi
type Selector atomic
 matchLabels 1 map[string]string oi
type Strategy
 type 1 string oi
 rolling 2 Strategy opi
package meta/v1 meta.k8s.io
type ObjectMeta
 name 1 string oi
 generation 7 int64 oi
 labels 11 map[string]string oi
 finalizers 14 []string oi merge set
 managedFields 17 []ManagedFieldsEntry oi
type ManagedFieldsEntry
 manager 1 string oi
 operation 2 string oi
 apiVersion 3 string oi
 time 4 meta/v1.Time opi
 fieldsType 6 string oi
 fieldsV1 7 meta/v1.FieldsV1 opi
 subresource 8 string oi
type TypeMeta
 kind 1 string oi
 apiVersion 2 string oi
";

fn web() -> Type {
    let table = Arc::new(Table::parse(TABLE).expect("the table parses"));
    table.of("apps", "v1", "Web").expect("Web")
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_323_045 + second).expect("a time")
}

fn manager(name: &str, subresource: &str, second: i64) -> Manager {
    let reset: &[&[&str]] = if subresource == "status" { &[&["spec"]] } else { &[&["status"]] };
    Manager {
        name: name.into(),
        api_version: "apps/v1".into(),
        also: Vec::new(),
        subresource: subresource.into(),
        reset,
        now: at(second),
    }
}

/// `(manager, operation, subresource, fields)` of every entry.
fn owners(object: &Value) -> Vec<(String, Value)> {
    let mut object = object.clone();
    expand(&mut object);
    let list = managed_fields(&object).cloned().unwrap_or_default();
    list.iter()
        .map(|e| {
            let text = |key: &str| e[key].as_str().unwrap_or_default();
            let mut name = format!("{} {}", text("manager"), text("operation"));
            if !text("subresource").is_empty() {
                name.push_str(&format!(" {}", text("subresource")));
            }
            (name, e["fieldsV1"].clone())
        })
        .collect()
}

fn owned(object: &Value, name: &str) -> Value {
    owners(object).into_iter().find(|(n, _)| n == name).map(|(_, f)| f).unwrap_or_default()
}

fn created() -> Value {
    let mut object = json!({
        "kind": "Web", "apiVersion": "apps/v1",
        "metadata": {"name": "a", "generation": 1, "labels": {"app": "a"}, "finalizers": ["x/y"]},
        "spec": {
            "replicas": 0, "args": ["a"], "selector": {"matchLabels": {"app": "a"}},
            "containers": [{"name": "c", "image": "i"}], "strategy": {"type": "R", "rolling": {}},
            "volumes": [{"name": "v"}], "ports": [{"port": 80}],
        },
        "status": {"replicas": 3},
    });
    update(None, &mut object, &web(), &manager("kubectl-create", "", 0));
    object
}

fn config(spec: Value) -> Value {
    json!({"kind": "Web", "apiVersion": "apps/v1", "metadata": {"name": "a"}, "spec": spec})
}

fn applied(live: Option<&Value>, spec: Value, name: &str, second: i64) -> Value {
    apply(live, &config(spec), &web(), &manager(name, "", second), false).expect("applies")
}

#[test]
fn a_create_owns_what_is_set() {
    let object = created();
    let expected = json!({
        "f:metadata": {
            "f:labels": {".": {}, "f:app": {}},
            "f:finalizers": {".": {}, "v:\"x/y\"": {}},
        },
        "f:spec": {
            "f:replicas": {},
            "f:args": {},
            "f:selector": {},
            "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {}, "f:resources": {}}},
            "f:volumes": {".": {}, "k:{\"name\":\"v\"}": {".": {}, "f:name": {}, "f:resources": {}}},
            "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}},
            "f:strategy": {"f:type": {}, "f:rolling": {}},
        },
    });
    assert_eq!(owners(&object), [("kubectl-create Update".to_owned(), expected)]);
    let entry = &object["metadata"]["managedFields"][0];
    assert_eq!(
        (&entry["apiVersion"], &entry["fieldsType"], &entry["time"]),
        (&json!("apps/v1"), &json!("FieldsV1"), &json!("2026-01-02T03:04:05Z"))
    );
}

#[test]
fn an_update_takes_what_it_changes_and_frees_what_it_removes() {
    let old = created();
    let mut new = old.clone();
    new["spec"]["replicas"] = json!(2);
    new["spec"]["args"].take();
    new["spec"]["containers"] = json!([{"name": "c", "image": "j"}, {"name": "d"}]);
    new["metadata"]["labels"] = json!({"app": "a", "b": "c"});
    update(Some(&old), &mut new, &web(), &manager("edit", "", 60));
    assert_eq!(
        owned(&new, "edit Update"),
        json!({
            "f:metadata": {"f:labels": {"f:b": {}}},
            "f:spec": {
                "f:replicas": {},
                "f:containers": {
                    "k:{\"name\":\"c\"}": {"f:image": {}},
                    "k:{\"name\":\"d\"}": {".": {}, "f:name": {}, "f:resources": {}},
                },
            },
        })
    );
    let first = owned(&new, "kubectl-create Update");
    assert_eq!(first["f:spec"].get("f:replicas"), None);
    assert_eq!(first["f:spec"].get("f:args"), None);
    assert_eq!(
        first["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"],
        json!({".": {}, "f:name": {}, "f:resources": {}})
    );
    assert_eq!(first["f:metadata"]["f:labels"], json!({".": {}, "f:app": {}}));
}

#[test]
fn an_update_that_changes_nothing_changes_no_owner() {
    let old = created();
    let mut new = old.clone();
    // What the encoder would write anyway is no change.
    new["spec"]["containers"][0]["resources"] = json!({});
    new["metadata"].as_object_mut().expect("metadata").remove("managedFields");
    update(Some(&old), &mut new, &web(), &manager("other", "", 60));
    assert_eq!(managed_fields(&new), managed_fields(&old));
}

#[test]
fn removing_only_adds_no_owner() {
    let old = created();
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({});
    update(Some(&old), &mut new, &web(), &manager("other", "", 60));
    assert_eq!(owned(&new, "other Update"), Value::Null);
    assert_eq!(owned(&new, "kubectl-create Update")["f:metadata"].get("f:labels"), None);
}

#[test]
fn status_and_spec_are_owned_apart() {
    let old = created();
    let mut new = old.clone();
    new["status"] = json!({"replicas": 1, "conditions": [{"type": "Ready"}]});
    new["spec"]["replicas"] = json!(9);
    update(Some(&old), &mut new, &web(), &manager("controller", "status", 60));
    assert_eq!(
        owned(&new, "controller Update status"),
        json!({"f:status": {
            "f:replicas": {},
            "f:conditions": {".": {}, "k:{\"type\":\"Ready\"}": {".": {}, "f:type": {}, "f:at": {}}},
        }})
    );
}

#[test]
fn the_client_may_edit_or_clear_the_list() {
    let old = created();
    let mut cleared = old.clone();
    cleared["metadata"]["managedFields"] = json!([{}]);
    update(Some(&old), &mut cleared, &web(), &manager("m", "", 60));
    assert_eq!(managed_fields(&cleared), None);

    // Who is not written down stays so until somebody applies.
    let mut later = cleared.clone();
    later["spec"]["replicas"] = json!(7);
    update(Some(&cleared), &mut later, &web(), &manager("m", "", 70));
    assert_eq!(managed_fields(&later), None);
    let applied = applied(Some(&later), json!({"replicas": 7}), "me", 80);
    let names: Vec<String> = owners(&applied).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["me Apply", "before-first-apply Update"]);

    let mut emptied = old.clone();
    emptied["metadata"]["managedFields"] = json!([]);
    update(Some(&old), &mut emptied, &web(), &manager("m", "", 60));
    assert_eq!(managed_fields(&emptied), None);

    let entry = json!({"operation": "Update", "apiVersion": "apps/v1", "fieldsType": "FieldsV1"});
    let with = |key: &str, value: Value| {
        let mut entry = entry.clone();
        entry[key] = value;
        json!([entry])
    };
    for kept in [
        json!("x"),
        with("fieldsV1", json!({"bad": 1})),
        with("fieldsV1", json!("{")),
        with("fieldsV1", json!("{\"f:a\":1}")),
        with("fieldsType", json!("FieldsV2")),
        with("operation", json!("Delete")),
        with("apiVersion", json!("")),
    ] {
        let mut new = old.clone();
        new["metadata"]["managedFields"] = kept;
        update(Some(&old), &mut new, &web(), &manager("m", "", 60));
        assert_eq!(managed_fields(&new), managed_fields(&old));
    }

    let mut edited = old.clone();
    edited["metadata"]["managedFields"][0]["manager"] = json!("renamed");
    update(Some(&old), &mut edited, &web(), &manager("m", "", 60));
    assert_eq!(owners(&edited)[0].0, "renamed Update");
    // A version that is not served is not kept.
    edited["metadata"]["managedFields"][0]["apiVersion"] = json!("apps/v0");
    let before = edited.clone();
    update(Some(&before), &mut edited, &web(), &manager("m", "", 60));
    assert_eq!(managed_fields(&edited), None);
}

#[test]
fn old_updaters_are_merged_beyond_ten() {
    let mut object = created();
    for i in 0..15 {
        let old = object.clone();
        object["metadata"]["labels"][format!("l{i}")] = json!("x");
        update(Some(&old), &mut object, &web(), &manager(&format!("m{i}"), "", 100 + i));
    }
    let owners = owners(&object);
    assert_eq!(owners.len(), entry::MAX_UPDATERS);
    assert_eq!(owners[0].0, "ancient-changes Update");
    assert_eq!(owners[9].0, "m14 Update");
    assert_eq!(owners[0].1["f:metadata"]["f:labels"]["f:l5"], json!({}));
    assert_eq!(owners[1].0, "m6 Update");
}

#[test]
fn the_replicas_of_a_scale_are_those_of_its_object() {
    let path = ["spec", "replicas"];
    let live = created();
    let scale = |list: Vec<Value>| json!({"metadata": {"managedFields": list}});
    let before = of_parent(&live, "apps/v1", &path);
    let mut shown = scale(before.clone());
    expand(&mut shown);
    let entry = &shown["metadata"]["managedFields"][0];
    assert_eq!(
        (&entry["manager"], &entry["apiVersion"], &entry["fieldsV1"]),
        (&json!("kubectl-create"), &json!("autoscaling/v1"), &json!({"f:spec": {"f:replicas": {}}}))
    );
    // Nobody took them: nothing changes.
    let mut same = live.clone();
    set_managed_fields(&mut same, of_scale(&live, &scale(before), "apps/v1", &path));
    assert_eq!(owners(&same), owners(&live));
    // Somebody did.
    let taken = json!([{"manager": "hpa", "operation": "Apply", "apiVersion": "autoscaling/v1", "subresource": "scale",
        "time": "2026-01-02T03:04:05Z", "fieldsType": "FieldsV1", "fieldsV1": "{\"f:spec\":{\"f:replicas\":{}}}"}]);
    let mut after = live.clone();
    let list = of_scale(&live, &scale(taken.as_array().expect("a list").clone()), "apps/v1", &path);
    set_managed_fields(&mut after, list);
    assert_eq!(owned(&after, "hpa Apply scale"), json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(owned(&after, "kubectl-create Update")["f:spec"].get("f:replicas"), None);
    assert_eq!(after["metadata"]["managedFields"][0].get("time"), None);
}

#[test]
fn sets_of_fields_stay_text_and_keep_their_order() {
    let ports = json!([{"port": 80}, {"port": 443}]);
    let mut object = config(json!({"ports": ports}));
    update(None, &mut object, &web(), &manager("m", "", 0));
    let bytes = crate::encode::json(&object, &web());
    let text = String::from_utf8(bytes.clone()).expect("UTF-8");
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} in {text}"));
    assert!(at(r#""k:{\"port\":80,"#) < at(r#""k:{\"port\":443,"#), "{text}");
    let read = from_slice(&bytes).expect("JSON");
    assert!(read["metadata"]["managedFields"][0]["fieldsV1"].is_string());
    assert_eq!(crate::encode::json(&read, &web()), bytes);
    let mut tree = read.clone();
    expand(&mut tree);
    assert_eq!(tree, serde_json::from_slice::<Value>(&bytes).expect("JSON"));
    for bad in ["", "{", "[1,]", r#"{"metadata":{"managedFields":[{"fieldsV1":}]}}"#] {
        assert!(from_slice(bad.as_bytes()).is_err(), "{bad}");
    }
    let odd = r#"{"metadata":{"managedFields":[{"fieldsV1":[1]},2,"x",null]}}"#;
    assert_eq!(from_slice(odd.as_bytes()).expect("JSON").to_string(), odd);
}

#[test]
fn fields_read_and_write_as_fields_v1() {
    let json =
        json!({"f:a": {}, "f:b": {".": {}, "k:{\"x\":1,\"y\":\"z\"}": {".": {}, "f:c": {}}, "v:\"q\"": {}, "i:0": {}}});
    let fields = Fields::read(&json).expect("fields");
    assert_eq!(serde_json::from_str::<Value>(&fields.text()).expect("JSON"), json);
    assert_eq!(fields.paths(), [".a", ".b", ".b[x=1,y=\"z\"]", ".b[=\"q\"]", ".b[0]", ".b[x=1,y=\"z\"].c"]);
    for bad in [json!([]), json!({"f:a": 1}), json!({"f:a": {"x": {}}}), json!({"f:a": {"é": {}}})] {
        assert_eq!(Fields::read(&bad), None, "{bad}");
    }
}

fn spec() -> impl Strategy<Value = Value> {
    let names = || proptest::sample::subsequence(vec!["a", "b", "c", "d"], 0..4).prop_shuffle();
    (names(), names(), proptest::option::of(0..3i32), proptest::option::of("[a-b]")).prop_map(
        |(containers, ports, replicas, kind)| {
            let containers: Vec<Value> = containers.into_iter().map(|n| json!({"name": n, "image": kind})).collect();
            let ports: Vec<Value> = ports.into_iter().map(|n| json!({"port": n.len(), "protocol": n})).collect();
            let mut spec = json!({"containers": containers, "ports": ports, "strategy": {"type": kind}});
            if let Some(replicas) = replicas {
                spec["replicas"] = json!(replicas);
            }
            spec
        },
    )
}

proptest! {
    #[test]
    fn reading_any_list_never_panics(text in r#"(\{|\}|\[|\]|:|,|"f:a"|"k:\{"|"k:x"|"\."|"v:1"|1){0,20}"#) {
        if let Ok(value) = serde_json::from_str::<Value>(&text) {
            let _ = Fields::read(&value).map(|f| f.paths());
            let old = json!({"metadata": {"managedFields": value}});
            let mut new = json!({"metadata": {"managedFields": [value]}});
            update(Some(&old), &mut new, &web(), &manager("m", "", 0));
        }
    }

    #[test]
    fn every_set_field_has_an_owner(first in spec(), second in spec()) {
        let schema = web();
        let mut object = config(first);
        update(None, &mut object, &schema, &manager("one", "", 0));
        prop_assume!(managed_fields(&object).is_some());
        let mut next = config(second);
        update(Some(&object), &mut next, &schema, &manager("two", "", 1));
        let mut all = Fields::default();
        for entry in managed_fields(&next).into_iter().flatten() {
            all.union(&Fields::read(&entry["fieldsV1"]).unwrap_or_default());
        }
        let mut fresh = next.clone();
        fresh["metadata"].as_object_mut().expect("metadata").remove("managedFields");
        let mut alone = fresh.clone();
        update(None, &mut alone, &schema, &manager("one", "", 0));
        let set = managed_fields(&alone).map(|l| Fields::read(&l[0]["fieldsV1"]).unwrap_or_default());
        prop_assert_eq!(set.unwrap_or_default().paths(), all.paths());
    }
}
