//! What of a definition is allowed and not wise.

use machinery::structural::{Type, formats};
use serde_json::{Map, Value};

use super::open_api;
use super::view::Definition;

/// The warnings about a definition.
pub(super) fn of(definition: &Definition) -> Vec<String> {
    let (mut unrecognized, mut sets) = (Vec::new(), Vec::new());
    for schema in definition.spec.versions.iter().filter_map(|version| version.open_api_v3_schema()) {
        open_api::each(schema, &mut |schema: &Map<String, Value>| {
            let text =
                |schema: &'_ Value, name: &str| schema.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            let own = |name: &str| schema.get(name).and_then(Value::as_str).unwrap_or_default();
            let format = own("format");
            let known = match own("type") {
                "" => formats::applies(None, format),
                word => Type::of(word).is_some_and(|kind| formats::applies(Some(kind), format)),
            };
            if !format.is_empty() && !known {
                unrecognized.push(format!("unrecognized format {format:?}"));
            }
            if own("x-kubernetes-list-type") == "set"
                && let Some(items) = schema.get("items")
                && let kind @ ("object" | "array") = text(items, "type").as_str()
            {
                sets.push(format!(
                    "x-kubernetes-list-type: set for items of type {kind:?} is not supported by server-side apply or CEL validation rules"
                ));
            }
        });
    }
    sets.sort_unstable();
    sets.dedup();
    unrecognized.append(&mut sets);
    unrecognized
}
