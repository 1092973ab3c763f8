//! ComponentStatus: whether a component of the control plane is well, from before components had Leases
//! and endpoints for their health. Answered, never stored.

use api::types::core::v1 as core;
use machinery::names;

use crate::cells;
use crate::kind::{Column, Columns, Kind};
use crate::shape::{Keep, Shape};

pub struct ComponentStatus;

impl Kind for ComponentStatus {
    type Object = core::ComponentStatus;
    const SHAPE: Shape = Shape::cluster("", "v1", "ComponentStatus", "componentstatuses")
        .singular("componentstatus")
        .short(&["cs"])
        .keep(Keep::Virtual)
        .verbs(&["get", "list"])
        .deprecated("v1 ComponentStatus is deprecated in v1.19+");
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Status", "Whether it is well."),
                    Column::text("Message", "What it answered."),
                    Column::text("Error", "Why it could not be asked."),
                ]
            },
            row: |status, _| {
                let healthy = status.conditions.iter().flatten().find(|condition| condition.type_ == "Healthy");
                let word = match healthy.map(|condition| condition.status.as_str()) {
                    None => "Unknown",
                    Some("True") => "Healthy",
                    Some(_) => "Unhealthy",
                };
                let text = |of: fn(&core::ComponentCondition) -> &Option<String>| {
                    healthy.and_then(|condition| of(condition).clone()).unwrap_or_default()
                };
                let row = vec![
                    cells::name(&status.metadata),
                    word.into(),
                    text(|condition| &condition.message).into(),
                    text(|condition| &condition.error).into(),
                ];
                (row, Vec::new())
            },
        }
    }
}
