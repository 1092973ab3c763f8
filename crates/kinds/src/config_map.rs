//! ConfigMap: configuration as keys and values.

use api::types::core::v1 as core;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::only::Part;
use crate::shape::Shape;

/// What a ConfigMap or Secret may hold, in bytes.
pub const DATA_LIMIT: usize = 1024 * 1024;
const FROZEN: &str = "field is immutable when `immutable` is set";

pub struct ConfigMap;

impl Kind for ConfigMap {
    type Object = core::ConfigMap;
    const SHAPE: Shape = Shape::namespaced("", "v1", "ConfigMap", "configmaps").singular("configmap").short(&["cm"]);
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn validate(_ctx: &Ctx, map: &Self::Object, errors: &mut FieldErrors) {
        let mut size = 0;
        for (key, value) in map.data.iter().flatten() {
            let path = Path::new("data").key(key);
            check::all(names::config_map_key(key), &path, key, errors);
            if map.binary_data.as_ref().is_some_and(|data| data.contains_key(key)) {
                errors.invalid(&path, key.as_str(), "duplicate of key present in binaryData");
            }
            size += value.len();
        }
        for (key, value) in map.binary_data.iter().flatten() {
            check::all(names::config_map_key(key), &Path::new("binaryData").key(key), key, errors);
            size += value.0.len();
        }
        if size > DATA_LIMIT {
            errors.too_long(&Path::new(""), DATA_LIMIT);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        if old.immutable != Some(true) {
            return;
        }
        if new.immutable != Some(true) {
            errors.forbidden(&Path::new("immutable"), FROZEN);
        }
        if new.data.clone().unwrap_or_default() != old.data.clone().unwrap_or_default() {
            errors.forbidden(&Path::new("data"), FROZEN);
        }
        if new.binary_data.clone().unwrap_or_default() != old.binary_data.clone().unwrap_or_default() {
            errors.forbidden(&Path::new("binaryData"), FROZEN);
        }
    }

    const SHOWN: &'static [Part] = &[Part::METADATA, Part::whole("data"), Part::whole("binaryData")];

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::text("Data", "How many keys it holds."), Column::AGE] },
            row: |map, now| {
                let keys = map.data.as_ref().map_or(0, |d| d.len()) + map.binary_data.as_ref().map_or(0, |d| d.len());
                (vec![cells::name(&map.metadata), keys.into(), cells::of(&map.metadata, now)], Vec::new())
            },
        }
    }
}
