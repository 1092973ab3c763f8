//! Event in its newer form (events.k8s.io), kept in the older one: the same facts by other names.
//!
//! ```text
//!  events.k8s.io/v1              v1
//!  regarding                     involvedObject
//!  note                          message
//!  reportingController           reportingComponent
//!  deprecatedSource              source
//!  deprecatedFirstTimestamp      firstTimestamp
//!  deprecatedLastTimestamp       lastTimestamp
//!  deprecatedCount               count
//! ```

use api::types::core::v1 as core;
use api::types::events::v1 as events;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde_json::Value;

use crate::check;
use crate::event;
use crate::kind::{AnyKind, Columns, Ctx, Kind, Selectable};
use crate::shape::{Keep, Shape};
use crate::view;

/// Newer name, stored name.
const NAMES: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

pub struct Event;

impl Kind for Event {
    type Object = events::Event;
    const SHAPE: Shape = Shape::namespaced("events.k8s.io", "v1", "Event", "events")
        .also_in(&["v1"])
        .singular("event")
        .short(&["ev"])
        .keep(Keep::Relaxed)
        .uncollected()
        .create_on_update();
    const HAS_DEFAULTS: bool = false;
    const SELECTABLE: &'static [Selectable] = &[
        Selectable::at("regarding.kind", &["/regarding/kind"]),
        Selectable::at("regarding.namespace", &["/regarding/namespace"]),
        Selectable::at("regarding.name", &["/regarding/name"]),
        Selectable::at("regarding.uid", &["/regarding/uid"]),
        Selectable::at("regarding.apiVersion", &["/regarding/apiVersion"]),
        Selectable::at("regarding.resourceVersion", &["/regarding/resourceVersion"]),
        Selectable::at("regarding.fieldPath", &["/regarding/fieldPath"]),
        Selectable::at("reason", &["/reason"]),
        Selectable::at("reportingController", &["/reportingController"]),
        Selectable::at("type", &["/type"]),
    ];

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn validate(ctx: &Ctx, event: &Self::Object, errors: &mut FieldErrors) {
        let regarding = event.regarding.as_ref().and_then(|regarding| regarding.namespace.clone());
        event::belongs(&event.metadata.namespace, &regarding, "regarding.namespace", errors);
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let controller = text(&event.reporting_controller);
        check::all(names::qualified_name(&controller), &Path::new("reportingController"), &controller, errors);
        event::words(
            [
                (&event.reporting_controller, "reportingController"),
                (&event.reporting_instance, "reportingInstance"),
                (&event.action, "action"),
                (&event.reason, "reason"),
            ],
            errors,
        );
        event::text(&event.note, "note", errors);
        let kind = text(&event.type_);
        if !matches!(kind.as_str(), "Normal" | "Warning") {
            errors.invalid(&Path::new("type"), "", format!("has invalid value: {kind}"));
        }
        if event.event_time.is_none() {
            errors.required(&Path::new("eventTime"), "");
        }
        if let Some(series) = event.series.as_ref().filter(|series| series.count < 2) {
            errors.invalid(&Path::new("series.count"), series.count, "should be at least 2");
        }
        if ctx.verb == crate::kind::Verb::Create {
            for (unset, field) in [
                (event.deprecated_first_timestamp.is_none(), "firstTimestamp"),
                (event.deprecated_last_timestamp.is_none(), "lastTimestamp"),
                (event.deprecated_count.unwrap_or(0) == 0, "count"),
                (event.deprecated_source.as_ref().is_none_or(|s| *s == Default::default()), "source"),
            ] {
                if !unset {
                    errors.invalid(&Path::new(field), "", "needs to be unset");
                }
            }
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable_zero(&new.regarding, &old.regarding, &Path::new("involvedObject"), errors);
        check::immutable_zero(&new.reason, &old.reason, &Path::new("reason"), errors);
        check::immutable_zero(&new.note, &old.note, &Path::new("message"), errors);
        check::immutable_zero(&new.deprecated_source, &old.deprecated_source, &Path::new("source"), errors);
        let times = [
            (&new.deprecated_first_timestamp, &old.deprecated_first_timestamp, "firstTimestamp"),
            (&new.deprecated_last_timestamp, &old.deprecated_last_timestamp, "lastTimestamp"),
        ];
        for (new, old, field) in times {
            check::immutable(new, old, &Path::new(field), errors);
        }
        check::immutable_zero(&new.deprecated_count, &old.deprecated_count, &Path::new("count"), errors);
        check::immutable_zero(&new.type_, &old.type_, &Path::new("type"), errors);
        // The stored form may have kept fewer digits of the second.
        let micros = |event: &events::Event| event.event_time.as_ref().map(|at| at.0.as_microsecond());
        if micros(new) != micros(old) {
            errors.invalid(&Path::new("eventTime"), check::value(&new.event_time), check::IMMUTABLE);
        }
        check::immutable_zero(&new.action, &old.action, &Path::new("action"), errors);
        check::immutable(&new.related, &old.related, &Path::new("related"), errors);
        check::immutable_zero(
            &new.reporting_controller,
            &old.reporting_controller,
            &Path::new("reportingController"),
            errors,
        );
        check::immutable_zero(
            &new.reporting_instance,
            &old.reporting_instance,
            &Path::new("reportingInstance"),
            errors,
        );
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: event::COLUMNS,
            row: |event, now| {
                let mut tree = check::value(event);
                <Self as Kind>::to_stored(&mut tree);
                let stored: core::Event = view::read(&tree).unwrap_or_default();
                event::row(&stored, now)
            },
        }
    }

    fn stored_as() -> Option<&'static dyn AnyKind> {
        Some(&event::Event)
    }

    fn stored_field(field: &str) -> String {
        let (head, tail) = field.split_once('.').map_or((field, None), |(head, tail)| (head, Some(tail)));
        let head = NAMES.iter().find(|(new, _)| *new == head).map_or(head, |(_, stored)| stored);
        tail.map_or_else(|| head.to_owned(), |tail| format!("{head}.{tail}"))
    }

    fn to_stored(object: &mut Value) {
        rename(object, "v1", |(new, stored)| (new, stored));
    }

    fn from_stored(object: &mut Value) {
        rename(object, "events.k8s.io/v1", |(new, stored)| (stored, new));
    }
}

fn rename(object: &mut Value, version: &str, pair: fn((&'static str, &'static str)) -> (&'static str, &'static str)) {
    let Some(map) = object.as_object_mut() else { return };
    for (from, to) in NAMES.iter().copied().map(pair) {
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
    map.insert("apiVersion".into(), version.into());
    map.insert("kind".into(), "Event".into());
}
