//! Splicing a resourceVersion into bytes; the encoder itself is proven on every kind in `api`.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

#[test]
fn the_resource_version_goes_where_the_encoder_writes_it() {
    for (stored, expected) in [
        (
            r#"{"kind":"A","apiVersion":"v1","metadata":{"name":"a","namespace":"b","uid":"c","generation":1},"spec":{}}"#,
            r#"{"kind":"A","apiVersion":"v1","metadata":{"name":"a","namespace":"b","uid":"c","resourceVersion":"7","generation":1},"spec":{}}"#,
        ),
        (r#"{"metadata":{}}"#, r#"{"metadata":{"resourceVersion":"7"}}"#),
        (r#"{"metadata":{"name":"}\"{"}}"#, r#"{"metadata":{"name":"}\"{","resourceVersion":"7"}}"#),
        (r#"{"metadata":{"labels":{"a":"b"}}}"#, r#"{"metadata":{"resourceVersion":"7","labels":{"a":"b"}}}"#),
        (r#"{"metadata":{"name":"a","resourceVersion":"5"}}"#, r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#),
        (
            r#"{"spec":{"metadata":{"name":"x"},"l":[1,{"a":"]"}]}, "metadata" : { "name" : "a" , "labels":{} } }"#,
            r#"{"spec":{"metadata":{"name":"x"},"l":[1,{"a":"]"}]}, "metadata" : { "name" : "a" , "resourceVersion":"7","labels":{} } }"#,
        ),
        (r#"{"kind":"A"}"#, r#"{"kind":"A"}"#),
        ("", ""),
    ] {
        let spliced = splice_resource_version(stored.as_bytes(), 7);
        assert_eq!(String::from_utf8_lossy(&spliced), expected);
    }
}

proptest! {
    #[test]
    fn splicing_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        let _ = splice_resource_version(&bytes, 1);
        let _ = field(&bytes, "metadata");
    }

    #[test]
    fn splicing_tokens_never_panics(
        text in r#"(\{|\}|\[|\]|:|,|"metadata"|"name"|"resourceVersion"|1|"\\"|\\| ){0,30}"#
    ) {
        let _ = splice_resource_version(text.as_bytes(), 1);
        let _ = field(text.as_bytes(), "metadata");
    }

    #[test]
    fn splicing_sets_the_field_and_nothing_else(
        name in ".{0,8}", uid in proptest::option::of(".{0,8}"), key in ".{1,8}", value in ".{0,8}", rv in any::<u64>(),
    ) {
        let mut object = json!({"metadata": {"name": name, "annotations": {key: value}}, "spec": {"a": [1, {"b": "}"}]}});
        if let Some(uid) = uid {
            object["metadata"]["uid"] = json!(uid);
        }
        let spliced = splice_resource_version(object.to_string().as_bytes(), rv);
        object["metadata"]["resourceVersion"] = json!(rv.to_string());
        let metadata = field(&spliced, "metadata").map(|bytes| serde_json::from_slice::<Value>(bytes).expect("JSON"));
        prop_assert_eq!(metadata.as_ref(), Some(&object["metadata"]));
        prop_assert_eq!(field(&spliced, "nothing"), None);
        prop_assert_eq!(serde_json::from_slice::<Value>(&spliced).ok(), Some(object));
    }
}
