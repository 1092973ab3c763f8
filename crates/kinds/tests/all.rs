//! What must hold for every kind of the list.

use std::collections::BTreeSet;
use std::path::PathBuf;

use kinds::{ALL, Keep};
use serde_json::Value;

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
            assert_eq!(shape.verbs, ["create"], "{name}");
        } else if kind.stored_as().is_none() {
            assert!(prefixes.insert(shape.prefix), "{name}: its prefix is taken");
        }
        if let Some(stored) = kind.stored_as() {
            assert_eq!(stored.shape().prefix, shape.prefix, "{name}");
        }
        assert!(std::ptr::eq(kinds::find(shape.group, shape.version, shape.plural).expect("found").shape(), shape));
        assert_eq!(kinds::by_kind(shape.group, shape.version, shape.kind).expect("found").shape(), shape);
        assert_eq!(kind.schema().name(), shape.kind, "{name}");
    }
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
    Some(serde_json::from_slice(&text).expect("JSON"))
}

#[test]
fn a_golden_object_survives_its_view() {
    for kind in ALL {
        let Some(object) = golden(*kind) else { continue };
        let mut after = object.clone();
        round_trip(*kind, &mut after);
        assert_eq!(after, object, "{}", kind.shape().kind);
        assert!(kind.row(&object, jiff::Timestamp::UNIX_EPOCH).is_ok(), "{}", kind.shape().kind);
        let bytes = serde_json::to_vec(&object).expect("bytes");
        if kind.stored_as().is_none() {
            let now = jiff::Timestamp::UNIX_EPOCH;
            assert_eq!(kind.row_of_bytes(&bytes, now), kind.row(&object, now));
        }
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

/// Reads the typed view and writes it back.
fn round_trip(kind: &dyn kinds::AnyKind, object: &mut Value) {
    kind.round_trip(object).expect("the object fits its view");
}
