//! Cells of Tables that many kinds share.

use std::collections::BTreeMap;

use api::meta::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use api::types::core::v1::{Container, PodSpec};
use jiff::Timestamp;
use serde_json::Value;

/// Time since, or `<unknown>`.
pub fn since(time: Option<Timestamp>, now: Timestamp) -> String {
    time.map_or_else(|| "<unknown>".to_owned(), |time| machinery::time::age(time, now))
}

/// The age cell of an object.
pub fn of(metadata: &ObjectMeta, now: Timestamp) -> Value {
    since(metadata.creation_timestamp.as_ref().map(|Time(at)| *at), now).into()
}

/// The name cell of an object.
pub fn name(metadata: &ObjectMeta) -> Value {
    metadata.name.clone().unwrap_or_default().into()
}

/// `text`, or `<none>` when empty.
pub fn or_none(text: impl Into<String>) -> Value {
    let text = text.into();
    if text.is_empty() { "<none>".into() } else { text.into() }
}

/// Names of containers, joined.
pub fn container_names(spec: Option<&PodSpec>) -> Value {
    join(spec, |container| container.name.clone())
}

/// Images of containers, joined.
pub fn container_images(spec: Option<&PodSpec>) -> Value {
    join(spec, |container| container.image.clone().unwrap_or_default())
}

fn join(spec: Option<&PodSpec>, part: fn(&Container) -> String) -> Value {
    let parts: Vec<String> = spec.iter().flat_map(|spec| &spec.containers).map(part).collect();
    parts.join(",").into()
}

/// A label selector in its text form.
pub fn selector(selector: &LabelSelector) -> Value {
    match api::selector(selector) {
        Ok(matcher) => or_none(matcher.to_string()),
        Err(_) => "<error>".into(),
    }
}

/// Labels in the form of a selector.
pub fn labels(labels: Option<&BTreeMap<String, String>>) -> Value {
    let parts: Vec<String> = labels.into_iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
    or_none(parts.join(","))
}

/// The first few of a list, and how many more there are.
pub fn first(all: &[String], shown: usize) -> String {
    if all.len() <= shown {
        return all.join(",");
    }
    format!("{} + {} more...", all[..shown].join(","), all.len() - shown)
}
