//! VolumeAttributesClass: attributes of a volume that can change while it is used.

use api::types::storage::v1 as storage;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;
use crate::storage as rules;

pub struct VolumeAttributesClass;

impl Kind for VolumeAttributesClass {
    type Object = storage::VolumeAttributesClass;
    const SHAPE: Shape = Shape::cluster("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses")
        .singular("volumeattributesclass")
        .short(&["vac"]);
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn validate(_ctx: &Ctx, class: &Self::Object, errors: &mut FieldErrors) {
        rules::provisioner(&class.driver_name, &Path::new("driverName"), errors);
        let path = Path::new("parameters");
        rules::parameters(class.parameters.as_ref(), &path, errors);
        if class.parameters.as_ref().is_none_or(|parameters| parameters.is_empty()) {
            errors.required(&path, "must contain at least one key/value pair");
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        if new.driver_name != old.driver_name {
            errors.forbidden(&Path::new("driverName"), "updates to driverName are forbidden.");
        }
        if new.parameters.clone().unwrap_or_default() != old.parameters.clone().unwrap_or_default() {
            errors.forbidden(&Path::new("parameters"), "updates to parameters are forbidden.");
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[Column::NAME, Column::text("DriverName", "The driver that knows the attributes."), Column::AGE]
            },
            row: |class, now| {
                let row = vec![
                    cells::name(&class.metadata),
                    class.driver_name.clone().into(),
                    cells::of(&class.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}
