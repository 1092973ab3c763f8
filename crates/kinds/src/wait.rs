//! Wait: why an object waits, said by the layer that waits. Kept in memory, gone with its reason.

use api::meta::apis::meta::v1::Time;
use api::wait as own;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::kind::{Column, Columns, Ctx, Kind, Selectable};
use crate::shape::{Keep, Shape};

const TEXT_LIMIT: usize = 4096;

pub struct Wait;

impl Kind for Wait {
    type Object = own::Wait;
    const SHAPE: Shape = Shape::namespaced("explain.pintle.dev", "v1alpha1", "Wait", "waits")
        .singular("wait")
        .keep(Keep::Memory)
        .create_on_update();
    const HAS_DEFAULTS: bool = false;
    const SELECTABLE: &'static [Selectable] = &[
        Selectable::at("layer", &["/layer"]),
        Selectable::at("code", &["/code"]),
        Selectable::at("object.kind", &["/object/kind"]),
        Selectable::at("object.namespace", &["/object/namespace"]),
        Selectable::at("object.name", &["/object/name"]),
        Selectable::at("object.uid", &["/object/uid"]),
    ];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn validate(_ctx: &Ctx, wait: &Self::Object, errors: &mut FieldErrors) {
        for (text, field) in [(&wait.layer, "layer"), (&wait.code, "code"), (&wait.text, "text")] {
            if text.is_empty() {
                errors.required(&Path::new(field), "");
            }
        }
        let object = Path::new("object");
        for (text, field) in [(&wait.object.kind, "kind"), (&wait.object.name, "name")] {
            if text.is_empty() {
                errors.required(&object.child(field), "");
            }
        }
        if wait.text.len() > TEXT_LIMIT {
            errors.too_long(&Path::new("text"), TEXT_LIMIT);
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::text("Layer", "Who waits."),
                    Column::text("Object", "What is held up."),
                    Column::text("Waiting On", "What it waits for."),
                    Column::text("Since", "Time since the wait began."),
                    Column::text("Text", "The reason in words."),
                    Column::text("Code", "The reason in one word.").wide(),
                    Column { priority: 1, ..Column::NAME },
                ]
            },
            row: |wait, now| {
                let since = wait.since.as_ref().map(|Time(at)| *at);
                let since = since.or(wait.metadata.creation_timestamp.as_ref().map(|Time(at)| *at));
                let row = vec![
                    wait.layer.clone().into(),
                    format!("{}/{}", wait.object.kind.to_lowercase(), wait.object.name).into(),
                    cells::or_none(wait.on.clone()),
                    cells::since(since, now).into(),
                    wait.text.clone().into(),
                    wait.code.clone().into(),
                    cells::name(&wait.metadata),
                ];
                (row, Vec::new())
            },
        }
    }
}
