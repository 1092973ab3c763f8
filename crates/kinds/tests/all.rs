//! What must hold for every kind of the list.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::LazyLock;

use kinds::{ALL, ClusterOptions, Ctx, Keep, Kind, User, Verb};
use proptest::prelude::*;
use serde_json::{Value, json};

#[test]
fn names_are_unique_and_shapes_make_sense() {
    let (mut plurals, mut kinds, mut prefixes) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for kind in ALL {
        let shape = kind.shape();
        let name = format!("{} {}", shape.api_version(), shape.kind);
        assert!(plurals.insert((shape.group, shape.version, shape.plural)), "{name}: its resource is taken");
        assert!(kinds.insert((shape.group, shape.version, shape.kind)), "{name}: its kind is taken");
        assert!(!shape.singular.is_empty(), "{name}: no singular name");
        assert_eq!(shape.singular, shape.kind.to_lowercase(), "{name}");
        assert!(shape.verbs.is_sorted(), "{name}: {:?}", shape.verbs);
        for subresource in shape.subresources {
            assert!(subresource.verbs.is_sorted(), "{name}/{}", subresource.name);
        }
        if shape.keep == Keep::Virtual {
            assert!([&["create"][..], &["get", "list"]].contains(&shape.verbs), "{name}: {:?}", shape.verbs);
        } else if kind.stored_as().is_none() {
            assert!(prefixes.insert(shape.prefix), "{name}: its prefix is taken");
        }
        if let Some(stored) = kind.stored_as() {
            assert_eq!(stored.shape().prefix, shape.prefix, "{name}");
        }
        assert_eq!(kinds::find(shape.group, shape.version, shape.plural).expect("found").shape(), shape);
        assert_eq!(kinds::by_kind(shape.group, shape.version, shape.kind).expect("found").shape(), shape);
        assert_eq!(kind.schema().name(), shape.kind, "{name}");
    }
}

/// Objects of a kind: one that a client would send and, where the folder is there, one with everything.
fn samples(shape: &kinds::Shape) -> Vec<Value> {
    let sent: Value =
        serde_json::from_str(include_str!("../../apiserver/tests/fixtures/every_kind.json")).expect("JSON");
    let mut sent = sent[format!("{}/{}", shape.api_version(), shape.kind)]["object"].clone();
    assert!(sent.is_object(), "{}: no fixture", shape.kind);
    sent["metadata"] = json!({"name": "x", "creationTimestamp": "1969-12-31T00:00:00Z", "labels": {"a": "b"}});
    let full = kinds::find(shape.group, shape.version, shape.plural).and_then(golden);
    std::iter::once(sent).chain(full).collect()
}

/// Every column reads only what its kind says that its columns read: with everything, the row is the
/// same.
#[test]
fn rows_need_no_more_than_what_is_shown() {
    macro_rules! same {
        ($($kind:ty),+ $(,)?) => {
            $(
                let name = <$kind as Kind>::SHAPE.kind;
                assert!(!<$kind as Kind>::SHOWN.is_empty(), "{name}");
                for object in samples(&<$kind as Kind>::SHAPE) {
                    let json = serde_json::to_vec(&object).expect("a tree");
                    let whole = (<$kind as Kind>::columns().row)(&kinds::view::read_parts(&json, &[]).expect(name), jiff::Timestamp::UNIX_EPOCH);
                    let parts = kinds::view::read_parts(&json, <$kind as Kind>::SHOWN).expect(name);
                    assert_eq!((<$kind as Kind>::columns().row)(&parts, jiff::Timestamp::UNIX_EPOCH), whole, "{name}: {object}");
                }
            )+
        };
    }
    same!(
        kinds::pod::Pod,
        kinds::deployment::Deployment,
        kinds::replica_set::ReplicaSet,
        kinds::service::Service,
        kinds::node::Node,
        kinds::endpoint_slice::EndpointSlice,
        kinds::config_map::ConfigMap,
        kinds::secret::Secret,
        kinds::event::Event,
    );
}

#[test]
fn tables_begin_with_what_is_always_shown() {
    for kind in ALL {
        let columns = kind.columns();
        let name = kind.shape().kind;
        assert!(columns.iter().any(|column| column.format == "name"), "{name}: no column is the name");
        assert!(columns.iter().any(|column| column.priority == 0), "{name}: nothing is shown");
        assert!(columns.iter().all(|column| column.description.ends_with('.')), "{name}: a description is missing");
    }
}

#[test]
fn selectable_fields_are_read_off_any_object() {
    for kind in ALL {
        let fields = kind.fields(&Value::Null);
        assert!(fields.contains_key("metadata.name"));
        assert_eq!(fields.contains_key("metadata.namespace"), kind.shape().is_namespaced());
        for field in fields.keys() {
            assert!(kind.is_selectable(field), "{field}");
        }
        if let Some(stored) = kind.stored_as() {
            for field in fields.keys() {
                assert!(stored.is_selectable(&kind.stored_field(field)), "{field}");
            }
        }
    }
}

/// Upstream's fully populated objects, where they are at hand.
fn golden(kind: &dyn kinds::AnyKind) -> Option<Value> {
    let shape = kind.shape();
    let group = if shape.group.is_empty() { "core" } else { shape.group };
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    let folder = if folder.exists() {
        folder
    } else {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/golden")
    };
    let text = std::fs::read(folder.join(format!("{group}.{}.{}.json", shape.version, shape.kind))).ok()?;
    let mut object: Value = serde_json::from_slice(&text).expect("JSON");
    // A time that was never set, which no client sends: the typed view has no null among times.
    object.get_mut("status").and_then(Value::as_object_mut).map(|status| status.remove("disruptedPods"));
    Some(object)
}

#[test]
fn a_golden_object_survives_its_view() {
    for kind in ALL {
        let Some(object) = golden(*kind) else { continue };
        let mut after = object.clone();
        round_trip(*kind, &mut after);
        let mut want = object.clone();
        // A claim template says what it is, as upstream's server has it say.
        for claim in want.pointer_mut("/spec/volumeClaimTemplates").and_then(Value::as_array_mut).into_iter().flatten()
        {
            claim["apiVersion"] = "v1".into();
            claim["kind"] = "PersistentVolumeClaim".into();
        }
        assert_eq!(after, want, "{}", kind.shape().kind);
        assert!(kind.row(&object, jiff::Timestamp::UNIX_EPOCH).is_ok(), "{}", kind.shape().kind);
        let bytes = serde_json::to_vec(&object).expect("bytes");
        let now = jiff::Timestamp::UNIX_EPOCH;
        assert_eq!(kind.row_of_bytes(&bytes, now), kind.row(&object, now));
    }
}

#[test]
fn an_event_of_either_version_is_the_same_event() {
    let newer = kinds::find("events.k8s.io", "v1", "events").expect("a kind");
    let Some(object) = golden(newer) else { return };
    let mut stored = object.clone();
    newer.to_stored(&mut stored);
    assert_eq!(stored["involvedObject"], object["regarding"]);
    assert_eq!(stored["apiVersion"], "v1");
    let row = newer.stored_as().expect("stored").row(&stored, jiff::Timestamp::UNIX_EPOCH).expect("a row");
    assert_eq!(row, newer.row(&object, jiff::Timestamp::UNIX_EPOCH).expect("a row"));
    newer.from_stored(&mut stored);
    assert_eq!(stored, object);
}

#[test]
fn an_autoscaler_of_either_version_is_the_same_autoscaler() {
    let older = kinds::find("autoscaling", "v1", "horizontalpodautoscalers").expect("a kind");
    let newer = older.stored_as().expect("a stored kind");
    let metric = |kind: &str, field: &str, source: Value| json!({"type": kind, field: source});
    let share = json!({"type": "Utilization", "averageUtilization": 60});
    let amount = json!({"type": "AverageValue", "averageValue": "1Gi"});
    let value = json!({"type": "Value", "value": "5"});
    let name = json!({"name": "hits", "selector": {"matchLabels": {"a": "b"}}});
    let target = json!({"apiVersion": "v1", "kind": "Service", "name": "s"});
    let rules = json!({"stabilizationWindowSeconds": 5, "selectPolicy": "Min", "tolerance": "50m",
        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]});
    let stored = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "x", "namespace": "ns", "annotations": {"a": "b"}},
        "spec": {
            "minReplicas": 1, "maxReplicas": 9, "scaleTargetRef": {"kind": "Deployment", "name": "d"},
            "metrics": [
                metric("Resource", "resource", json!({"name": "memory", "target": amount})),
                metric("ContainerResource", "containerResource", json!({"name": "cpu", "container": "c", "target": share})),
                metric("Pods", "pods", json!({"metric": name, "target": amount})),
                metric("Object", "object", json!({"metric": name, "describedObject": target, "target": value})),
                metric("Object", "object", json!({"metric": name, "describedObject": target, "target": amount})),
                metric("External", "external", json!({"metric": name, "target": value})),
                metric("External", "external", json!({"metric": name, "target": amount})),
                metric("Resource", "resource", json!({"name": "cpu", "target": share})),
            ],
            "behavior": {"scaleUp": rules, "scaleDown": rules},
        },
        "status": {
            "currentReplicas": 1, "desiredReplicas": 2,
            "currentMetrics": [
                metric("Resource", "resource", json!({"name": "memory", "current": {"averageValue": "1Gi"}})),
                metric("Object", "object", json!({"metric": name, "describedObject": target, "current": {"value": "4"}})),
                metric("Resource", "resource", json!({"name": "cpu", "current": {"averageUtilization": 7}})),
            ],
            "conditions": [{"type": "AbleToScale", "status": "True"}],
        },
    });
    let mut object = stored.clone();
    older.from_stored(&mut object);
    round_trip(older, &mut object);
    assert_eq!(object["apiVersion"], "autoscaling/v1");
    assert_eq!(object["spec"]["targetCPUUtilizationPercentage"], 60);
    assert_eq!(object["status"]["currentCPUUtilizationPercentage"], 7);
    let annotation = |name: &str| -> Value {
        let key = format!("/metadata/annotations/autoscaling.alpha.kubernetes.io~1{name}");
        serde_json::from_str(object.pointer(&key).and_then(Value::as_str).expect("an annotation")).expect("JSON")
    };
    let metrics = annotation("metrics");
    assert_eq!(metrics.as_array().map(Vec::len), Some(7), "the CPU has a field of its own");
    assert_eq!(metrics[0], json!({"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}}));
    assert_eq!(annotation("behavior")["ScaleUp"]["Policies"][0]["PeriodSeconds"], 15);
    assert_eq!(annotation("current-metrics").as_array().map(Vec::len), Some(3), "the whole status is kept");
    assert_eq!(annotation("conditions"), stored["status"]["conditions"]);
    let now = jiff::Timestamp::UNIX_EPOCH;
    assert_eq!(older.row(&object, now).expect("a row"), newer.row(&stored, now).expect("a row"));
    older.to_stored(&mut object);
    assert_eq!(object, stored);
}

/// Reads the typed view and writes it back.
fn round_trip(kind: &dyn kinds::AnyKind, object: &mut Value) {
    kind.round_trip(object).expect("the object fits its view");
}

/// Everything a kind says about an object and its change; whatever comes in, it answers.
fn ask(kind: &dyn kinds::AnyKind, object: &Value, old: Option<&Value>, subresource: &str) {
    let user = User::default();
    let options = ClusterOptions {
        service_cidrs: vec!["10.96.0.0/12".parse().expect("a network"), "fd00::/112".parse().expect("a network")],
        node_ports: (30_000, 32_767),
    };
    let verb = if old.is_some() { Verb::Update } else { Verb::Create };
    let now = jiff::Timestamp::UNIX_EPOCH;
    let ctx = Ctx { user: &user, verb, subresource, dry_run: false, now, options: &options };
    let mut object = object.clone();
    let _ = kind.row(&object, now);
    let _ = kind.held(&object);
    let _ = kind.defaults(&ctx, &mut object);
    if let Ok(claims) = kind.claims(&ctx, &mut object, old) {
        for claim in claims.take {
            claim.write(&mut object, "30000");
        }
    }
    let _ = kind.finish(&ctx, &mut object, old);
    let _ = kind.fields(&object);
}

/// Replaces what the path leads to; each step takes one of the children there.
fn replace(object: &mut Value, path: &[usize], with: &Value) {
    let Some((step, rest)) = path.split_first() else {
        *object = with.clone();
        return;
    };
    let child = match object {
        Value::Object(map) if !map.is_empty() => {
            let at = step % map.len();
            map.iter_mut().nth(at).map(|(_, value)| value)
        }
        Value::Array(items) if !items.is_empty() => {
            let at = step % items.len();
            items.get_mut(at)
        }
        _ => None,
    };
    match child {
        Some(child) => replace(child, rest, with),
        None => *object = with.clone(),
    }
}

fn odd_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        Just(json!([null])),
        Just(json!({"": null})),
        Just(json!(i64::MAX)),
        Just(json!(i64::MIN)),
        Just(json!(-1)),
        Just(json!(1.5)),
        Just(json!(true)),
        Just(json!("")),
        Just(json!("None")),
        Just(json!("9999999999999999999999Ei")),
        Just(json!("'][")),
        "\\PC{0,8}".prop_map(Value::from),
    ]
}

/// A full object of each kind, or a bare one.
static FULL: LazyLock<Vec<(&dyn kinds::AnyKind, Value)>> = LazyLock::new(|| {
    let full = |kind: &'static dyn kinds::AnyKind| {
        let shape = kind.shape();
        let bare = json!({
            "apiVersion": shape.api_version(), "kind": shape.kind,
            "metadata": {"name": "x", "namespace": "ns", "generation": 1}, "spec": {}, "status": {},
        });
        (kind, golden(kind).unwrap_or(bare))
    };
    ALL.iter().copied().map(full).collect()
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_object_makes_a_kind_panic(
        path in proptest::collection::vec(any::<usize>(), 0..9),
        other in proptest::collection::vec(any::<usize>(), 0..9),
        value in odd_value(),
        second in odd_value(),
    ) {
        for (kind, old) in FULL.iter() {
            let mut new = old.clone();
            replace(&mut new, &path, &value);
            let mut odd = old.clone();
            replace(&mut odd, &other, &second);
            ask(*kind, &new, None, "");
            for subresource in ["", "status", "scale", "finalize", "binding"] {
                ask(*kind, &new, Some(&odd), subresource);
            }
        }
    }
}
