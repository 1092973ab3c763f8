//! Event in its stored form: what happened to an object, and how often.

use api::meta::apis::meta::v1::{MicroTime, Time};
use api::types::core::v1 as core;
use jiff::Timestamp;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Cell, Column, Columns, Ctx, Kind, RowConditions, Selectable};
use crate::only::Part;
use crate::shape::{Keep, Shape};

const WORD_LIMIT: usize = 128;
const TEXT_LIMIT: usize = 1024;

pub struct Event;

/// The columns of both versions.
pub const COLUMNS: &[Column] = &[
    Column::text("Last Seen", "Time since it last happened."),
    Column::text("Type", "Normal, or a warning."),
    Column::text("Reason", "What happened, in one word."),
    Column::text("Object", "What it happened to."),
    Column::text("Subobject", "The part of the object it happened to.").wide(),
    Column::text("Source", "Who says so.").wide(),
    Column::text("Message", "What happened, in words."),
    Column::text("First Seen", "Time since it first happened.").wide(),
    Column::text("Count", "How often it happened.").wide(),
    Column { name: "Name", kind: "string", format: "name", description: "The object's name.", priority: 1 },
];

impl Kind for Event {
    type Object = core::Event;
    const SHAPE: Shape = Shape::namespaced("", "v1", "Event", "events")
        .also_in(&["events.k8s.io/v1"])
        .singular("event")
        .short(&["ev"])
        .keep(Keep::Relaxed)
        .uncollected()
        .create_on_update();
    const HAS_DEFAULTS: bool = false;
    const SELECTABLE: &'static [Selectable] = &[
        Selectable::at("involvedObject.kind", &["/involvedObject/kind"]),
        Selectable::at("involvedObject.namespace", &["/involvedObject/namespace"]),
        Selectable::at("involvedObject.name", &["/involvedObject/name"]),
        Selectable::at("involvedObject.uid", &["/involvedObject/uid"]),
        Selectable::at("involvedObject.apiVersion", &["/involvedObject/apiVersion"]),
        Selectable::at("involvedObject.resourceVersion", &["/involvedObject/resourceVersion"]),
        Selectable::at("involvedObject.fieldPath", &["/involvedObject/fieldPath"]),
        Selectable::at("reason", &["/reason"]),
        Selectable::at("reportingComponent", &["/reportingComponent"]),
        Selectable::at("source", &["/source/component", "/reportingComponent"]),
        Selectable::at("type", &["/type"]),
    ];

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn validate(_ctx: &Ctx, event: &Self::Object, errors: &mut FieldErrors) {
        let Some(_) = event.event_time else {
            let object = &event.involved_object.namespace;
            belongs(&event.metadata.namespace, object, "involvedObject.namespace", errors);
            return;
        };
        // An event of the newer kind, written the old way.
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let object = event.involved_object.namespace.as_deref().unwrap_or_default();
        if object.is_empty() && !matches!(namespace, "default" | "kube-system") {
            errors.invalid(&Path::new("involvedObject.namespace"), object, "does not match event.namespace");
        }
        let component = event.reporting_component.as_deref().unwrap_or_default();
        check::all(names::qualified_name(component), &Path::new("reportingComponent"), component, errors);
        words(
            [
                (&event.reporting_component, "reportingComponent"),
                (&event.reporting_instance, "reportingInstance"),
                (&event.action, "action"),
                (&event.reason, "reason"),
            ],
            errors,
        );
        text(&event.message, "message", errors);
    }

    const SHOWN: &'static [Part] = &[
        Part("metadata", &[Part::whole("name")]),
        Part::whole("firstTimestamp"),
        Part::whole("eventTime"),
        Part::whole("lastTimestamp"),
        Part::whole("count"),
        Part::whole("series"),
        Part::whole("source"),
        Part::whole("reportingComponent"),
        Part::whole("reportingInstance"),
        Part::whole("type"),
        Part::whole("reason"),
        Part::whole("message"),
        Part("involvedObject", &[Part::whole("kind"), Part::whole("name"), Part::whole("fieldPath")]),
    ];

    fn columns() -> Columns<Self::Object> {
        Columns { columns: COLUMNS, row }
    }
}

/// An event lives beside its object; those of the cluster's own objects live in `default`.
pub fn belongs(namespace: &Option<String>, object: &Option<String>, field: &str, errors: &mut FieldErrors) {
    let namespace = namespace.as_deref().unwrap_or_default();
    let object = object.as_deref().unwrap_or_default();
    let fits = if object.is_empty() { matches!(namespace, "" | "default") } else { object == namespace };
    if !fits {
        errors.invalid(&Path::new(field), object, "does not match event.namespace");
    }
}

/// Short words that must be there.
pub fn words<const N: usize>(words: [(&Option<String>, &str); N], errors: &mut FieldErrors) {
    for (word, field) in words {
        match word.as_deref().unwrap_or_default() {
            "" => errors.required(&Path::new(field), ""),
            word if word.len() > WORD_LIMIT => {
                errors.invalid(&Path::new(field), "", format!("can have at most {WORD_LIMIT} characters"));
            }
            _ => {}
        }
    }
}

/// The sentence for people.
pub fn text(text: &Option<String>, field: &str, errors: &mut FieldErrors) {
    if text.as_ref().is_some_and(|text| text.len() > TEXT_LIMIT) {
        errors.invalid(&Path::new(field), "", format!("can have at most {TEXT_LIMIT} characters"));
    }
}

/// One row.
pub fn row(event: &core::Event, now: Timestamp) -> (Vec<Cell>, RowConditions) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let micro = |at: &Option<MicroTime>| at.as_ref().map(|MicroTime(at)| *at);
    let second = |at: &Option<Time>| at.as_ref().map(|Time(at)| *at);
    let first = second(&event.first_timestamp).or(micro(&event.event_time));
    let mut last = second(&event.last_timestamp).or(first);
    let mut count = event.count.unwrap_or(0).max(1);
    if let Some(series) = &event.series {
        last = micro(&series.last_observed_time);
        count = series.count.unwrap_or(0);
    }
    let object = &event.involved_object;
    let kind = text(&object.kind).to_lowercase();
    let name = text(&object.name);
    let target = if name.is_empty() { kind } else { format!("{kind}/{name}") };
    let (component, host) = match &event.source {
        Some(source) if source.component.as_deref().is_some_and(|component| !component.is_empty()) => {
            (text(&source.component), text(&source.host))
        }
        _ => (text(&event.reporting_component), text(&event.reporting_instance)),
    };
    let source = if host.is_empty() { component } else { format!("{component}, {host}") };
    let row = vec![
        cells::since(last, now).into(),
        text(&event.type_).into(),
        text(&event.reason).into(),
        target.into(),
        text(&object.field_path).into(),
        source.into(),
        text(&event.message).trim().into(),
        cells::since(first, now).into(),
        count.into(),
        cells::name(&event.metadata),
    ];
    (row, Vec::new())
}
