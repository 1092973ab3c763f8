//! Applies: what they own, change, free and conflict with.

use proptest::prelude::*;

use super::*;

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
        (409, "Apply failed with 1 conflict: conflict with \"kubectl-create\" using apps/v1: .spec.replicas")
    );
    let causes = &status.details.as_ref().expect("details").causes;
    assert_eq!((causes[0].reason.as_str(), causes[0].field.as_str()), ("FieldManagerConflict", ".spec.replicas"));
    let forced = apply(Some(&live), &wanted, &web(), &me, true).expect("forced");
    assert_eq!(forced["spec"]["replicas"], json!(5));
    assert_eq!(owned(&forced, "kubectl-create Update")["f:spec"].get("f:replicas"), None);
    // Both own what both set to the same value.
    assert_ne!(owned(&forced, "kubectl-create Update")["f:spec"]["f:containers"], Value::Null);
    assert_ne!(owned(&forced, "me Apply")["f:spec"]["f:containers"], Value::Null);

    let wanted = config(json!({"replicas": 6, "containers": [{"name": "c", "image": "z"}]}));
    let status = apply(Some(&live), &wanted, &web(), &me, false).expect_err("conflicts");
    let with = "\"kubectl-create\" using apps/v1";
    assert_eq!(
        status.message,
        format!(
            "Apply failed with 2 conflicts: conflicts with {with}:\n- .spec.replicas\n- .spec.containers[name=\"c\"].image"
        )
    );
}

#[test]
fn an_apply_that_changes_nothing_says_so() {
    let spec = json!({"replicas": 1, "containers": [{"name": "c"}]});
    let first = applied(None, spec.clone(), "me", 0);
    let again = apply(Some(&first), &config(spec), &web(), &manager("me", "", 99), false).expect("applies");
    assert_eq!(again, first);
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
        (&["x", "a", "y", "b"], &["b", "a"], &["x", "y", "b", "a"]),
        (&["a"], &["b", "a", "c"], &["b", "a", "c"]),
        (&["x"], &["a"], &["x", "a"]),
        (&["a", "x", "b"], &["c", "b", "a"], &["x", "c", "b", "a"]),
        (&["a", "b", "c", "d"], &["d", "b"], &["a", "c", "d", "b"]),
        (&["a", "b"], &[], &["a", "b"]),
    ] {
        let mut object = config(of(live));
        update(None, &mut object, &web(), &manager("other", "", 0));
        assert_eq!(names(&applied(Some(&object), of(wanted), "me", 1)), expected, "{live:?} {wanted:?}");
    }
}

#[test]
fn bad_configurations_are_refused() {
    let of = |spec: Value| config(spec);
    let head = |name: &str| format!("failed to create typed patch object (/{name}; apps/v1, Kind=Web): ");
    for (spec, why) in [
        (
            json!({"containers": [{"name": "a"}, {"name": "a"}]}),
            r#".spec.containers: duplicate entries for key [name="a"]"#,
        ),
        (
            json!({"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}),
            r#".spec.ports: duplicate entries for key [port=1,protocol="TCP"]"#,
        ),
        (json!({"replica": 1}), ".spec.replica: field not declared in schema"),
        (
            json!({"containers": [{"name": "a", "imag": 1}]}),
            r#".spec.containers[name="a"].imag: field not declared in schema"#,
        ),
        (json!({"replicas": "1"}), ".spec.replicas: expected numeric (int or float), got string"),
        (json!({"args": [1]}), ".spec.args[0]: expected string, got &value.valueUnstructured{Value:1}"),
        (json!({"args": {"a": [true]}}), ".spec.args: expected list, got &{map[a:[true]]}"),
        (json!({"strategy": "x"}), ".spec.strategy: expected map, got &{x}"),
        (
            json!({"containers": [null]}),
            ".spec.containers: element 0: associative list with keys may not have a null element",
        ),
        (
            json!({"replicas": true, "strategy": 1}),
            "errors:\n  .spec.replicas: expected numeric (int or float), got bool\n  .spec.strategy: expected map, got &{1}",
        ),
    ] {
        let refused = apply(None, &of(spec), &web(), &manager("m", "", 0), true).expect_err("refused");
        assert_eq!((refused.code, refused.message), (400, head("a") + why));
    }
    let mut with = config(json!({}));
    with["metadata"]["managedFields"] = json!([]);
    let refused = apply(None, &with, &web(), &manager("m", "", 0), true).expect_err("refused");
    assert_eq!(refused.message, "metadata.managedFields must be nil");
    for (key, value, why) in [
        ("kind", json!("Wob"), "invalid object type: apps/v1, Kind=Wob"),
        ("apiVersion", json!("v1"), "invalid object type: /v1, Kind=Web"),
        ("kind", Value::Null, "invalid object type: apps/v1, Kind="),
    ] {
        let mut with = config(json!({}));
        with[key] = value;
        let refused = apply(None, &with, &web(), &manager("m", "", 0), true).expect_err("refused");
        assert_eq!((refused.code, refused.message.as_str()), (400, why));
    }
}

#[test]
fn what_was_once_said_of_metadata_goes_and_the_rest_stays() {
    let labelled = json!({"kind": "Web", "apiVersion": "apps/v1", "metadata": {"name": "a", "labels": {"x": "y"}}});
    let first = apply(None, &labelled, &web(), &manager("me", "", 0), false).expect("applies");
    let next = applied(Some(&first), json!({"replicas": 1}), "me", 1);
    assert_eq!((&next["metadata"]["name"], &next["metadata"].get("labels")), (&json!("a"), &None));
}

#[test]
fn null_sets_a_value_and_owns_it_but_takes_nothing_apart() {
    let live = created();
    let spec = json!({"replicas": null, "containers": null, "selector": null, "strategy": null});
    let nobody =
        apply(Some(&live), &config(spec.clone()), &web(), &manager("me", "", 1), false).expect_err("conflicts");
    assert!(nobody.message.ends_with(":\n- .spec.replicas\n- .spec.selector"), "{}", nobody.message);
    let forced = apply(Some(&live), &config(spec), &web(), &manager("me", "", 1), true).expect("applies");
    assert_eq!((&forced["spec"]["replicas"], &forced["spec"]["selector"]), (&Value::Null, &Value::Null));
    assert_eq!(forced["spec"]["containers"], live["spec"]["containers"]);
    assert_eq!(forced["spec"]["strategy"], live["spec"]["strategy"]);
    assert_eq!(
        owned(&forced, "me Apply"),
        json!({"f:spec": {"f:replicas": {}, "f:containers": {}, "f:selector": {}, "f:strategy": {}}})
    );
}

#[test]
fn items_that_are_called_the_same_are_one_field() {
    let doubled = json!({"containers": [{"name": "a", "image": "x"}, {"name": "a", "image": "y"}]});
    let mut live = config(doubled);
    update(None, &mut live, &web(), &manager("old", "", 0));
    let key = r#"k:{"name":"a"}"#;
    assert_eq!(owned(&live, "old Update")["f:spec"]["f:containers"][key], json!({}));
    let one = applied(Some(&live), json!({"containers": []}), "me", 1);
    assert_eq!(one["spec"]["containers"], live["spec"]["containers"]);
    let wanted = config(json!({"containers": [{"name": "a", "image": "z"}]}));
    let single = apply(Some(&live), &wanted, &web(), &manager("me", "", 1), true).expect("applies");
    assert_eq!(single["spec"]["containers"], json!([{"name": "a", "image": "z"}]));
    let mut updated = live.clone();
    updated["spec"]["containers"] = json!([{"name": "a", "image": "x"}]);
    update(Some(&live), &mut updated, &web(), &manager("new", "", 2));
    assert_eq!(
        owned(&updated, "new Update")["f:spec"]["f:containers"][key],
        json!({".": {}, "f:name": {}, "f:image": {}, "f:resources": {}})
    );
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[test]
fn kubectl_takes_over_from_its_older_self() {
    let mut live = created();
    let last = json!({"kind": "Web", "apiVersion": "apps/v1", "metadata": {"name": "a"},
        "spec": {"replicas": 0, "strategy": {"type": "R"}}});
    live["metadata"]["annotations"] = json!({LAST_APPLIED: last.to_string()});
    let wanted = config(json!({"replicas": 3}));
    let other = apply(Some(&live), &wanted, &web(), &manager("me", "", 1), false).expect_err("a conflict");
    assert_eq!(other.code, 409);
    let kubectl = manager("kubectl", "", 1);
    let taken = apply(Some(&live), &wanted, &web(), &kubectl, false).expect("no conflict");
    assert_eq!(taken["spec"]["replicas"], json!(3));
    // It goes on saying what was applied last.
    let noted = taken["metadata"]["annotations"][LAST_APPLIED].as_str().expect("noted");
    assert_eq!(noted, format!("{wanted}\n"));
    // What somebody changed since is a conflict still, and only that.
    live["spec"]["replicas"] = json!(9);
    let wanted = config(json!({"replicas": 3, "strategy": {"type": "S"}}));
    let refused = apply(Some(&live), &wanted, &web(), &kubectl, false).expect_err("a conflict");
    assert!(refused.message.starts_with("Apply failed with 1 conflict: "), "{}", refused.message);
    assert!(refused.message.ends_with(": .spec.replicas"), "{}", refused.message);
}

proptest! {
    #[test]
    fn an_apply_contains_its_configuration(live in spec(), wanted in spec()) {
        let schema = web();
        let stored = |object| crate::decode::tree(object, &schema, crate::decode::Strictness::Ignore).expect("decodes").value;
        let mut object = stored(config(live));
        update(None, &mut object, &schema, &manager("one", "", 0));
        let wanted = config(wanted);
        let me = manager("me", "", 1);
        let Ok(once) = apply(Some(&object), &wanted, &schema, &me, true) else { return Ok(()) };
        let mut expected = typed::fields_of(&wanted, place::Place::of_type(schema.get()), me.reset);
        strip(&mut expected);
        let expected: Value = serde_json::from_str(&expected.text()).expect("JSON");
        prop_assert_eq!(owned(&once, "me Apply"), expected);
        let once = stored(once);
        let twice = apply(Some(&once), &wanted, &schema, &me, false).map_err(|e| TestCaseError::fail(e.message.clone()))?;
        prop_assert_eq!(stored(twice), once);
    }
}
