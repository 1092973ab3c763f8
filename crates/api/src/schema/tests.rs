//! The table is consistent: what it refers to exists.

use std::collections::HashSet;

use machinery::schema::{ListType, Merge, Shape, TypeRef};

use super::*;

fn element(shape: Shape<'_>) -> Option<Shape<'_>> {
    match shape {
        Shape::List(inner) => Some(inner.shape()),
        _ => None,
    }
}

fn has(shape: Option<Shape<'_>>, key: &str) -> bool {
    matches!(shape, Some(Shape::Struct(t)) if t.field(key).is_some())
}

fn root_metadata(t: TypeRef<'_>) -> bool {
    let meta = t.field("metadata").map(|f| f.shape());
    matches!(meta, Some(Shape::Struct(m)) if matches!(m.name(), "ObjectMeta" | "ListMeta"))
}

#[test]
fn every_type_is_consistent() {
    let mut types = 0;
    for t in all() {
        let t = t.get();
        types += 1;
        let mut names = HashSet::new();
        for field in t.fields() {
            assert!(names.insert(field.name()), "{t:?}.{} twice", field.name());
            let element = element(field.shape());
            if let Some(key) = field.merge_key() {
                assert!(has(element, key), "{t:?}.{} merges by {key}", field.name());
            } else if matches!(field.merge(), Merge::Merge) {
                assert!(matches!(element, Some(Shape::Scalar(_))), "{t:?}.{} merges without a key", field.name());
            }
            if field.list_type() == ListType::Map {
                for key in field.list_keys() {
                    assert!(has(element, key), "{t:?}.{} is keyed by {key}", field.name());
                }
            }
            if let Some(default) = field.default_json() {
                assert!(serde_json::from_str::<serde_json::Value>(default).is_ok(), "{t:?}.{}", field.name());
            }
        }
        let mut tags = HashSet::new();
        for field in t.declared() {
            assert!(field.tag() == 0 || tags.insert(field.tag()), "{t:?} has tag {} twice", field.tag());
        }
    }
    assert!(types > 1200, "{types} types");
}

#[test]
fn every_root_has_kind_version_and_metadata() {
    let mut roots = 0;
    for t in all() {
        let t = t.get();
        if !t.is_root() {
            continue;
        }
        roots += 1;
        let names: Vec<&str> = t.fields().take(2).map(|f| f.name()).collect();
        assert_eq!(names, ["kind", "apiVersion"], "{t:?}");
        let bare = t.package().starts_with("meta/")
            || t.package().starts_with("admission/")
            || t.package().starts_with("imagepolicy/")
            || t.package().starts_with("apidiscovery/")
            || t.name().ends_with("Options")
            || matches!(t.name(), "ConversionReview" | "SerializedReference" | "DeploymentRollback");
        assert!(bare || root_metadata(t), "{t:?} has no metadata");
    }
    assert!(roots > 200, "{roots} roots");
}

#[test]
fn kinds_are_found_by_group_and_version() {
    for (group, version, kind) in [
        ("", "v1", "Pod"),
        ("", "v1", "PodList"),
        ("", "v1", "DeleteOptions"),
        ("apps", "v1", "Deployment"),
        ("apps", "v1", "DeleteOptions"),
        ("autoscaling", "v1", "Scale"),
        ("rbac.authorization.k8s.io", "v1", "ClusterRole"),
        ("authentication.k8s.io", "v1", "TokenRequest"),
        ("policy", "v1", "Eviction"),
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        ("apiregistration.k8s.io", "v1", "APIService"),
        ("explain.pintle.dev", "v1alpha1", "Wait"),
        ("meta.k8s.io", "v1", "Table"),
    ] {
        let found = of(group, version, kind).map(|t| t.name().to_owned());
        assert_eq!(found.as_deref(), Some(kind), "{group}/{version}");
    }
    assert_eq!(of("", "v1", "PodSpec"), None);
    assert_eq!(of("apps", "v9", "Deployment"), None);
}
