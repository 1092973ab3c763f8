//! What an update may keep though no new definition may have it: what was stored before a check was
//! there, or before it was as strict, must not keep the rest of a definition from being changed.

use std::collections::BTreeSet;

use machinery::structural;

use super::validate::MAX_SELECTABLE;
use super::view::{Definition, Version};
use super::{conversion, defaults, open_api};

/// What is let through. Nothing, for a definition that is new.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// Versions whose schema is as it was: their rules may be dear, one by one, since estimates change.
    unchanged: BTreeSet<String>,
    /// Versions with too many selectable fields, which are as they were.
    selectable: BTreeSet<String>,
    /// All versions had, and have, the same too many.
    selectable_of_all: bool,
    /// No form of a ConversionReview is one that this server speaks.
    pub(super) reviews: bool,
    pub(super) schemas: KeptInSchemas,
}

/// What any schema may keep because one of the old ones had it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptInSchemas {
    /// Sets of what is not atomic.
    pub(super) sets: bool,
    /// Lists of maps whose keys may be absent or null.
    pub(super) keys: bool,
    /// Defaults with fields that the schema does not know.
    pub(super) defaults: bool,
}

impl Kept {
    /// What a definition that was `old` may keep.
    pub(super) fn of(new: &Definition, old: &Definition) -> Self {
        let before = |version: &Version| old.spec.versions.iter().find(|old| old.name == version.name);
        let names = |keeps: &dyn Fn(&Version, &Version) -> bool| -> BTreeSet<String> {
            let same =
                new.spec.versions.iter().filter(|version| before(version).is_some_and(|old| keeps(version, old)));
            same.map(|version| version.name.clone()).collect()
        };
        let too_many = |version: &Version| version.selectable_fields.len() > MAX_SELECTABLE;
        let selectable = names(&|new, old| too_many(old) && new.selectable_fields == old.selectable_fields);
        let shared = |definition: &Definition| {
            let mut versions = definition.spec.versions.windows(2);
            versions.all(|pair| pair[0].selectable_fields == pair[1].selectable_fields)
        };
        let first = new.spec.versions.first().zip(old.spec.versions.first());
        let same_first =
            first.is_some_and(|(new, old)| too_many(old) && new.selectable_fields == old.selectable_fields);
        let mut schemas = KeptInSchemas::default();
        for schema in old.spec.versions.iter().filter_map(Version::open_api_v3_schema) {
            open_api::each(schema, &mut |map| {
                schemas.sets |= open_api::is_granular_set(map);
                schemas.keys |= open_api::has_nameless_items(map);
            });
            schemas.defaults |= structural::build(schema).is_ok_and(|node| defaults::has_unknown(&node));
        }
        Self {
            unchanged: names(&|new, old| new.schema == old.schema),
            selectable,
            selectable_of_all: same_first && shared(old) && shared(new),
            reviews: old.spec.conversion.as_ref().is_some_and(conversion::has_only_unknown_reviews),
            schemas,
        }
    }

    /// True for a version whose schema is as it was.
    pub(super) fn is_unchanged(&self, version: &str) -> bool {
        self.unchanged.contains(version)
    }

    /// True for a version, or (`None`) for all of them, that may have too many selectable fields.
    pub(super) fn has_too_many(&self, version: Option<&str>) -> bool {
        version.map_or(self.selectable_of_all, |version| self.selectable.contains(version))
    }
}

#[cfg(test)]
mod tests {
    use machinery::field::FieldErrors;
    use serde_json::{Value, json};

    use super::super::validate;
    use super::*;

    fn definition(versions: &[(&str, Value)], change: impl FnOnce(&mut Value)) -> Definition {
        let versions: Vec<Value> = versions
            .iter()
            .enumerate()
            .map(|(i, (name, schema))| {
                json!({"name": name, "served": true, "storage": i == 0, "schema": {"openAPIV3Schema": schema}})
            })
            .collect();
        let names = json!({"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"});
        let mut definition = json!({
            "metadata": {"name": "foos.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions},
            "status": {"storedVersions": [versions[0]["name"]]},
        });
        change(&mut definition);
        serde_json::from_value(definition).expect("a definition")
    }

    /// The mistakes in a definition that is new, and in one that was `old`.
    fn check(new: &Definition, old: &Definition) -> [Vec<String>; 2] {
        [Kept::default(), Kept::of(new, old)].map(|kept| {
            let mut errors = FieldErrors::new();
            validate::definition(new, &kept, &mut errors);
            errors.0.iter().map(|error| format!("{} {:?}", error.path, error.kind)).collect()
        })
    }

    fn with(name: &str, property: Value) -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {name: property}}}})
    }

    fn dear(more: &str) -> Value {
        let rule = format!("self.all(a, self.all(b, a != b + '{more}'))");
        with(
            "list",
            json!({"type": "array", "maxItems": 1500, "items": {"type": "string", "maxLength": 20},
            "x-kubernetes-validations": [{"rule": rule}]}),
        )
    }

    #[test]
    fn what_was_there_is_judged_less_strictly() {
        let set = |kind: &str| {
            with(
                kind,
                json!({"type": "array", "x-kubernetes-list-type": "set",
                "items": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            )
        };
        let keys = |field: &str| {
            with(
                field,
                json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}}}}),
            )
        };
        let unknown = |field: &str| {
            with(field, json!({"type": "object", "properties": {"a": {"type": "string"}}, "default": {"b": "c"}}))
        };
        let plain = json!({"type": "object"});
        let at = "spec.validation.openAPIV3Schema.properties[spec].properties";
        let other = "spec.versions[1].schema.openAPIV3Schema.properties[spec].properties";
        for (what, old, new, fresh, updated) in [
            (
                "dear, unchanged",
                vec![("v1", dear(""))],
                vec![("v1", dear(""))],
                vec![format!("{at}[list].x-kubernetes-validations[0].rule Forbidden")],
                vec![],
            ),
            (
                "dear, changed",
                vec![("v1", dear(""))],
                vec![("v1", dear("x"))],
                vec![format!("{at}[list].x-kubernetes-validations[0].rule Forbidden")],
                vec![format!("{at}[list].x-kubernetes-validations[0].rule Forbidden")],
            ),
            (
                "dear, in a new version",
                vec![("v1", plain.clone())],
                vec![("v1", plain.clone()), ("v2", dear(""))],
                vec![format!("{other}[list].x-kubernetes-validations[0].rule Forbidden")],
                vec![format!("{other}[list].x-kubernetes-validations[0].rule Forbidden")],
            ),
            (
                "dear, beside a new version",
                vec![("v1", plain.clone()), ("v2", dear(""))],
                vec![("v1", with("a", json!({"type": "string"}))), ("v2", dear(""))],
                vec![format!("{other}[list].x-kubernetes-validations[0].rule Forbidden")],
                vec![],
            ),
            (
                "a set, elsewhere",
                vec![("v1", set("old"))],
                vec![("v1", set("new"))],
                vec![format!("{at}[new].items.x-kubernetes-map-type Invalid")],
                vec![],
            ),
            (
                "a set, new",
                vec![("v1", plain.clone())],
                vec![("v1", set("new"))],
                vec![format!("{at}[new].items.x-kubernetes-map-type Invalid")],
                vec![format!("{at}[new].items.x-kubernetes-map-type Invalid")],
            ),
            (
                "keys, elsewhere",
                vec![("v1", keys("old"))],
                vec![("v1", keys("new"))],
                vec![format!("{at}[new].items.properties[k].default Required")],
                vec![],
            ),
            (
                "keys, new",
                vec![("v1", set("old"))],
                vec![("v1", keys("new"))],
                vec![format!("{at}[new].items.properties[k].default Required")],
                vec![format!("{at}[new].items.properties[k].default Required")],
            ),
            (
                "a default, elsewhere",
                vec![("v1", unknown("old"))],
                vec![("v1", unknown("new"))],
                vec![format!("{at}[new].default Invalid")],
                vec![],
            ),
            (
                "a default, new",
                vec![("v1", plain.clone())],
                vec![("v1", unknown("new"))],
                vec![format!("{at}[new].default Invalid")],
                vec![format!("{at}[new].default Invalid")],
            ),
        ] {
            let found = check(&definition(&new, |_| {}), &definition(&old, |_| {}));
            assert_eq!(found, [fresh, updated], "{what}");
        }
    }

    #[test]
    fn selectable_fields_and_reviews_stay_as_they_were() {
        let names: Vec<String> = (0..10).map(|i| format!("f{i}")).collect();
        let properties: serde_json::Map<String, Value> =
            names.iter().map(|name| (name.clone(), json!({"type": "string"}))).collect();
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}});
        let fields = |count: usize| -> Value {
            names.iter().take(count).map(|name| json!({"jsonPath": format!(".spec.{name}")})).collect()
        };
        let of = |count: usize| {
            definition(&[("v1", schema.clone())], |d| d["spec"]["versions"][0]["selectableFields"] = fields(count))
        };
        let wrong = vec!["spec.selectableFields TooMany".to_owned()];
        assert_eq!(check(&of(9), &of(9)), [wrong.clone(), vec![]]);
        assert_eq!(check(&of(10), &of(9)), [wrong.clone(), wrong.clone()]);
        assert_eq!(check(&of(9), &of(8)), [wrong.clone(), wrong]);
        let reviews = |versions: &[&str]| {
            definition(&[("v1", json!({"type": "object"}))], |d| {
                let webhook =
                    json!({"conversionReviewVersions": versions, "clientConfig": {"url": "https://a.example/"}});
                d["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": webhook});
            })
        };
        let wrong = vec!["spec.conversion.conversionReviewVersions Invalid".to_owned()];
        assert_eq!(check(&reviews(&["v9"]), &reviews(&["v8"])), [wrong.clone(), vec![]]);
        assert_eq!(check(&reviews(&["v9"]), &reviews(&["v1"])), [wrong.clone(), wrong]);
    }
}
