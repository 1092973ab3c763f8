//! PriorityClass: a name for how much a pod matters.

use api::types::scheduling::v1 as scheduling;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

/// The highest priority a user can give.
pub const HIGHEST: i32 = 1_000_000_000;
/// The classes the system itself has.
pub const SYSTEM: &[(&str, i32)] =
    &[("system-node-critical", 2 * HIGHEST + 1000), ("system-cluster-critical", 2 * HIGHEST)];
const RESERVED: &str = "system-";

pub struct PriorityClass;

impl Kind for PriorityClass {
    type Object = scheduling::PriorityClass;
    const SHAPE: Shape = Shape::cluster("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses")
        .singular("priorityclass")
        .short(&["pc"]);

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, class: &mut Self::Object) {
        class.preemption_policy.get_or_insert_with(|| "PreemptLowerPriority".into());
    }

    fn prepare_create(_ctx: &Ctx, class: &mut Self::Object) {
        // It never changes in what counts, so the generation never grows.
        class.metadata.generation = Some(1);
    }

    fn validate(_ctx: &Ctx, class: &Self::Object, errors: &mut FieldErrors) {
        let name = class.metadata.name.as_deref().unwrap_or_default();
        let value = class.value.unwrap_or(0);
        if name.starts_with(RESERVED) {
            let reserved = "priority class names with 'system-' prefix are reserved for system use only";
            let why = match SYSTEM.iter().find(|(known, _)| *known == name) {
                None => Some(format!("{name} is not a known system priority class")),
                Some((_, known)) if *known != value => Some(format!("value of {name} PriorityClass must be {known}")),
                Some(_) if class.global_default == Some(true) => {
                    Some(format!("globalDefault of {name} PriorityClass must be false"))
                }
                Some(_) => None,
            };
            if let Some(why) = why {
                errors.forbidden(&Path::new("metadata").child("name"), format!("{reserved}. error: {why}"));
            }
        } else if value > HIGHEST {
            let wrong = format!("maximum allowed value of a user defined priority is {HIGHEST}");
            errors.forbidden(&Path::new("value"), wrong);
        }
        let policies = ["Never", "PreemptLowerPriority"];
        check::one_of(class.preemption_policy.as_deref(), &policies, &Path::new("preemptionPolicy"), errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        if new.value.unwrap_or(0) != old.value.unwrap_or(0) {
            errors.forbidden(&Path::new("value"), "may not be changed in an update.");
        }
        check::immutable(&new.preemption_policy, &old.preemption_policy, &Path::new("preemptionPolicy"), errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::number("Value", "The priority; higher goes first."),
                    Column {
                        kind: "boolean",
                        ..Column::text("Global-Default", "Whether pods without a class get this one.")
                    },
                    Column::AGE,
                    Column::text("PreemptionPolicy", "Whether its pods may move others out of the way."),
                ]
            },
            row: |class, now| {
                let row = vec![
                    cells::name(&class.metadata),
                    class.value.unwrap_or(0).into(),
                    class.global_default.unwrap_or(false).into(),
                    cells::of(&class.metadata, now),
                    class.preemption_policy.clone().unwrap_or_default().into(),
                ];
                (row, Vec::new())
            },
        }
    }
}
