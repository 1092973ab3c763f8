//! Who owns what after updates and applies; on a small table written by hand.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::apply::set_of;
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
 manager 1 string o
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
    Manager { name: name.into(), api_version: "apps/v1".into(), subresource: subresource.into(), now: at(second) }
}

/// `(manager, operation, subresource, fields)` of every entry.
fn owners(object: &Value) -> Vec<(String, Value)> {
    let list = managed_fields(object).cloned().unwrap_or_default();
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

    for kept in
        [json!([]), json!("x"), json!([{"operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"bad": 1}}])]
    {
        let mut new = old.clone();
        new["metadata"]["managedFields"] = kept;
        update(Some(&old), &mut new, &web(), &manager("m", "", 60));
        assert_eq!(managed_fields(&new), managed_fields(&old));
    }

    let mut edited = old.clone();
    edited["metadata"]["managedFields"][0]["manager"] = json!("renamed");
    update(Some(&old), &mut edited, &web(), &manager("m", "", 60));
    assert_eq!(owners(&edited)[0].0, "renamed Update");
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
    assert_eq!(owners.len(), MAX_UPDATERS);
    assert_eq!(owners[0].0, "ancient-changes Update");
    assert_eq!(owners[9].0, "m14 Update");
    assert_eq!(owners[0].1["f:metadata"]["f:labels"]["f:l5"], json!({}));
    assert_eq!(owners[1].0, "m6 Update");
}

#[test]
fn times_alone_are_no_difference() {
    let old = created();
    let mut new = old.clone();
    new["metadata"]["managedFields"][0]["time"] = json!("2027-01-01T00:00:00Z");
    assert!(differs_only_in_times(&old, &new));
    new["spec"]["replicas"] = json!(8);
    assert!(!differs_only_in_times(&old, &new));
}

fn config(spec: Value) -> Value {
    json!({"kind": "Web", "apiVersion": "apps/v1", "metadata": {"name": "a"}, "spec": spec})
}

fn applied(live: Option<&Value>, spec: Value, name: &str, second: i64) -> Value {
    apply(live, &config(spec), &web(), &manager(name, "", second), false).expect("applies").value
}

#[test]
fn an_apply_owns_what_it_contains() {
    let object = applied(
        None,
        json!({"replicas": 1, "containers": [{"name": "c", "image": "i"}], "strategy": {}, "selector": {"matchLabels": {"a": "b"}},
               "ports": [{"port": 80, "name": "p"}]}),
        "me",
        0,
    );
    assert_eq!(
        owned(&object, "me Apply"),
        json!({"f:spec": {
            "f:replicas": {}, "f:strategy": {}, "f:selector": {},
            "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {}}},
            "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:name": {}}},
        }})
    );
}

#[test]
fn what_is_applied_no_more_goes_unless_others_own_it() {
    let first = applied(
        None,
        json!({"replicas": 1, "args": ["x"], "containers": [{"name": "c", "image": "i"}, {"name": "d"}]}),
        "me",
        0,
    );
    let mut defaulted = first.clone();
    defaulted["spec"]["containers"][1]["image"] = json!("default");
    let both = applied(Some(&defaulted), json!({"args": ["x"], "strategy": {"type": "R"}}), "you", 10);
    let third = applied(Some(&both), json!({"containers": [{"name": "c"}]}), "me", 20);
    assert_eq!(third["spec"], json!({"args": ["x"], "strategy": {"type": "R"}, "containers": [{"name": "c"}]}));
    assert_eq!(
        owners(&third),
        [
            ("you Apply".to_owned(), json!({"f:spec": {"f:args": {}, "f:strategy": {"f:type": {}}}})),
            (
                "me Apply".to_owned(),
                json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}}}}})
            ),
        ]
    );
}

#[test]
fn conflicts_are_named_and_force_takes() {
    let live = created();
    let wanted = config(json!({"replicas": 5, "containers": [{"name": "c", "image": "i"}]}));
    let me = manager("me", "", 10);
    let status = apply(Some(&live), &wanted, &web(), &me, false).expect_err("a conflict");
    assert_eq!(
        (status.code, status.message.as_str()),
        (
            409,
            "Apply failed with 1 conflict: conflict with \"kubectl-create\" using apps/v1 at 2026-01-02T03:04:05Z: .spec.replicas"
        )
    );
    let causes = &status.details.as_ref().expect("details").causes;
    assert_eq!((causes[0].reason.as_str(), causes[0].field.as_str()), ("FieldManagerConflict", ".spec.replicas"));
    let forced = apply(Some(&live), &wanted, &web(), &me, true).expect("forced").value;
    assert_eq!(forced["spec"]["replicas"], json!(5));
    assert_eq!(owned(&forced, "kubectl-create Update")["f:spec"].get("f:replicas"), None);
    // Both own what both set to the same value.
    assert_ne!(owned(&forced, "kubectl-create Update")["f:spec"]["f:containers"], Value::Null);
    assert_ne!(owned(&forced, "me Apply")["f:spec"]["f:containers"], Value::Null);

    let wanted = config(json!({"replicas": 6, "containers": [{"name": "c", "image": "z"}]}));
    let status = apply(Some(&live), &wanted, &web(), &me, false).expect_err("conflicts");
    let with = "\"kubectl-create\" using apps/v1 at 2026-01-02T03:04:05Z";
    assert_eq!(
        status.message,
        format!(
            "Apply failed with 2 conflicts: conflicts with {with}:\n- .spec.containers[name=\"c\"].image\n- .spec.replicas"
        )
    );
}

#[test]
fn an_apply_that_changes_nothing_says_so() {
    let spec = json!({"replicas": 1, "containers": [{"name": "c"}]});
    let first = applied(None, spec.clone(), "me", 0);
    let again = apply(Some(&first), &config(spec), &web(), &manager("me", "", 99), false).expect("applies");
    assert!(again.unchanged);
    assert_eq!(again.value, first);
}

#[test]
fn lists_keep_the_order_of_the_configuration() {
    let names = |object: &Value| -> Vec<String> {
        let list = object["spec"]["containers"].as_array().cloned().unwrap_or_default();
        list.iter().map(|c| c["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let of = |list: &[&str]| json!({"containers": list.iter().map(|n| json!({"name": n})).collect::<Vec<_>>()});
    for (live, wanted, expected) in [
        (&["a", "b"][..], &["b", "a"][..], &["b", "a"][..]),
        (&["x", "a", "y", "b"], &["b", "a"], &["x", "b", "a", "y"]),
        (&["a"], &["b", "a", "c"], &["b", "a", "c"]),
        (&["x"], &["a"], &["x", "a"]),
    ] {
        let mut object = config(of(live));
        update(None, &mut object, &web(), &manager("other", "", 0));
        assert_eq!(names(&applied(Some(&object), of(wanted), "me", 1)), expected, "{live:?} {wanted:?}");
    }
}

#[test]
fn bad_configurations_are_refused() {
    for spec in [
        json!({"containers": [{"name": "a"}, {"name": "a"}]}),
        json!({"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}),
    ] {
        let refused = apply(None, &config(spec), &web(), &manager("m", "", 0), true).expect_err("refused");
        assert_eq!(refused.code, 400, "{}", refused.message);
    }
    let mut with = config(json!({}));
    with["metadata"]["managedFields"] = json!([{}]);
    let refused = apply(None, &with, &web(), &manager("m", "", 0), true).expect_err("refused");
    assert_eq!(refused.message, "metadata.managedFields must be nil");
}

#[test]
fn fields_read_and_write_as_fields_v1() {
    let json =
        json!({"f:a": {}, "f:b": {".": {}, "k:{\"x\":1,\"y\":\"z\"}": {".": {}, "f:c": {}}, "v:\"q\"": {}, "i:0": {}}});
    let fields = Fields::from_json(&json).expect("fields");
    assert_eq!(fields.to_json(), json);
    assert_eq!(fields.paths(), [".a", ".b", ".b[0]", ".b[x=1,y=\"z\"]", ".b[x=1,y=\"z\"].c", ".b[=\"q\"]"]);
    for bad in [json!([]), json!({"f:a": 1}), json!({"f:a": {"x": {}}}), json!({"f:a": {"é": {}}})] {
        assert_eq!(Fields::from_json(&bad), None, "{bad}");
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
            let _ = Fields::from_json(&value).map(|f| f.paths());
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
        let mut next = config(second);
        update(Some(&object), &mut next, &schema, &manager("two", "", 1));
        let mut all = Fields::default();
        for entry in managed_fields(&next).into_iter().flatten() {
            all.union(&Fields::from_json(&entry["fieldsV1"]).unwrap_or_default());
        }
        let mut fresh = next.clone();
        fresh["metadata"].as_object_mut().expect("metadata").remove("managedFields");
        let mut alone = fresh.clone();
        update(None, &mut alone, &schema, &manager("one", "", 0));
        let set = managed_fields(&alone).map(|l| Fields::from_json(&l[0]["fieldsV1"]).unwrap_or_default());
        prop_assert_eq!(set.unwrap_or_default().paths(), all.paths());
    }

    #[test]
    fn an_apply_contains_its_configuration(live in spec(), wanted in spec()) {
        let schema = web();
        let mut object = config(live);
        update(None, &mut object, &schema, &manager("one", "", 0));
        let wanted = crate::decode::tree(config(wanted), &schema, crate::decode::Strictness::Ignore).expect("decodes").value;
        let me = manager("me", "", 1);
        let Ok(once) = apply(Some(&object), &wanted, &schema, &me, true) else { return Ok(()) };
        let mut owned = owned(&once.value, "me Apply");
        let set = set_of(&wanted, schema.get());
        let mut expected = set.clone();
        strip(&mut expected);
        prop_assert_eq!(owned.take(), if expected.is_empty() { Value::Null } else { expected.to_json() });
        let twice = apply(Some(&once.value), &wanted, &schema, &me, false).map_err(|e| TestCaseError::fail(e.message.clone()))?;
        prop_assert!(twice.unchanged);
        prop_assert_eq!(twice.value, once.value);
    }
}
