//! ControllerRevision: one state of a StatefulSet's or DaemonSet's template, kept to go back to.

use api::types::apps::v1 as apps;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

pub struct ControllerRevision;

impl Kind for ControllerRevision {
    type Object = apps::ControllerRevision;
    const SHAPE: Shape =
        Shape::namespaced("apps", "v1", "ControllerRevision", "controllerrevisions").singular("controllerrevision");
    const HAS_DEFAULTS: bool = false;
    const REQUIRED: &'static [(&'static str, &'static str)] = &[("/data", "data is mandatory")];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn validate(_ctx: &Ctx, revision: &Self::Object, errors: &mut FieldErrors) {
        // Nothing at all is missing already.
        if !revision.data.0.is_null() && !revision.data.0.is_object() {
            errors.required(&Path::new("data"), "data must be a valid JSON object");
        }
        check::not_negative(revision.revision, &Path::new("revision"), errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable(&new.data.0, &old.data.0, &Path::new("data"), errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Controller", "Whose template it is."),
                    Column::text("Revision", "Its place in the order of changes."),
                    Column::AGE,
                ]
            },
            row: |revision, now| {
                let mut owners = revision.metadata.owner_references.iter().flatten();
                let controller = owners.find(|owner| owner.controller == Some(true)).map(|owner| {
                    let group = owner.api_version.split_once('/').map(|(group, _)| format!(".{group}"));
                    format!("{}{}/{}", owner.kind.to_lowercase(), group.unwrap_or_default(), owner.name)
                });
                let row = vec![
                    cells::name(&revision.metadata),
                    cells::or_none(controller.unwrap_or_default()),
                    revision.revision.unwrap_or(0).into(),
                    cells::of(&revision.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}
