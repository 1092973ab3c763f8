//! Who set which field: `metadata.managedFields`.
//!
//! Every write by an ordinary verb is an `Update`: the fields it changes or adds go to its manager
//! and leave all others, the fields it removes leave everybody. An apply patch owns what it contains
//! ([`apply`]).

mod apply;
mod compare;
mod fields;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use jiff::Timestamp;
use serde_json::{Map, Value};

pub use apply::{Applied, Conflict, apply};
pub use fields::Fields;

use crate::schema::{Type, TypeRef};
use crate::time;

/// More managers that update than this are merged into one, the oldest first.
const MAX_UPDATERS: usize = 10;
const ANCIENT: &str = "ancient-changes";

/// Paths nobody owns.
const UNOWNED: &[&[&str]] = &[
    &["f:apiVersion"],
    &["f:kind"],
    &["f:metadata"],
    &["f:metadata", "f:name"],
    &["f:metadata", "f:namespace"],
    &["f:metadata", "f:creationTimestamp"],
    &["f:metadata", "f:selfLink"],
    &["f:metadata", "f:uid"],
    &["f:metadata", "f:clusterName"],
    &["f:metadata", "f:generation"],
    &["f:metadata", "f:managedFields"],
    &["f:metadata", "f:resourceVersion"],
];

/// Who writes, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Manager {
    /// `fieldManager`, or what the user agent starts with.
    pub name: String,
    /// The version the request was made in: `apps/v1`.
    pub api_version: String,
    /// `status`, `scale`, …; empty for the object itself.
    pub subresource: String,
    pub now: Timestamp,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    manager: String,
    apply: bool,
    api_version: String,
    subresource: String,
    time: Option<Timestamp>,
    fields: Fields,
}

impl Entry {
    /// Entries with the same identity are one.
    fn is_of(&self, manager: &Manager, apply: bool) -> bool {
        self.apply == apply
            && self.manager == manager.name
            && self.subresource == manager.subresource
            && (apply || self.api_version == manager.api_version)
    }

    fn read(value: &Value) -> Option<Self> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let apply = match value.get("operation").and_then(Value::as_str) {
            Some("Apply") => true,
            Some("Update") => false,
            _ => return None,
        };
        if !matches!(value.get("fieldsType").and_then(Value::as_str), Some("FieldsV1")) {
            return None;
        }
        let fields = match value.get("fieldsV1") {
            Some(fields) => Fields::from_json(fields)?,
            None => Fields::default(),
        };
        Some(Self {
            manager: text("manager"),
            apply,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: value.get("time").and_then(Value::as_str).and_then(time::parse),
            fields,
        })
    }

    fn write(&self) -> Value {
        let mut map = Map::new();
        let mut text = |key: &str, value: &str| {
            if !value.is_empty() {
                map.insert(key.to_owned(), Value::String(value.to_owned()));
            }
        };
        text("manager", &self.manager);
        text("operation", if self.apply { "Apply" } else { "Update" });
        text("apiVersion", &self.api_version);
        text("subresource", &self.subresource);
        text("fieldsType", "FieldsV1");
        if let Some(at) = self.time {
            text("time", &time::rfc3339(at));
        }
        map.insert("fieldsV1".to_owned(), self.fields.to_json());
        Value::Object(map)
    }

    fn order(&self, other: &Self) -> Ordering {
        let seconds = |e: &Self| e.time.map_or(0, Timestamp::as_second);
        other
            .apply
            .cmp(&self.apply)
            .then_with(|| seconds(self).cmp(&seconds(other)))
            .then_with(|| self.manager.cmp(&other.manager))
            .then_with(|| self.api_version.cmp(&other.api_version))
            .then_with(|| self.subresource.cmp(&other.subresource))
    }
}

/// Records an update: `new` is the object as the client wants it, with defaults, before admission and
/// the kind's own preparation change it (what they change is nobody's); `old` is the stored object,
/// `None` when it is created. Sets `metadata.managedFields` of `new`.
///
/// A client may edit the list; one it does not send is taken from `old`, and `[{}]` clears it.
pub fn update(old: Option<&Value>, new: &mut Value, schema: &Type, manager: &Manager) {
    let t = schema.get();
    let mut entries = start(old, new, manager);
    let mut changed = compare::compare(old, new, t);
    ignore_other_half(&mut changed, t, manager);

    let mut taken = changed.added.clone();
    taken.union(&changed.modified);
    for entry in &mut entries {
        entry.fields.subtract(&taken);
        entry.fields.subtract(&changed.removed);
    }
    let mut own = taken;
    own.subtract(&changed.removed);
    strip(&mut own);
    if !own.is_empty() {
        match entries.iter_mut().find(|e| e.is_of(manager, false)) {
            Some(entry) => {
                entry.fields.union(&own);
                entry.time = Some(manager.now);
            }
            None => entries.push(Entry {
                manager: manager.name.clone(),
                apply: false,
                api_version: manager.api_version.clone(),
                subresource: manager.subresource.clone(),
                time: Some(manager.now),
                fields: own,
            }),
        }
    }
    finish(new, entries);
}

/// True when the two objects differ in nothing but the times of `managedFields` (and the
/// resourceVersion): such a write changes nothing.
pub fn differs_only_in_times(old: &Value, new: &Value) -> bool {
    let strip = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
            if let Some(Value::Array(entries)) = metadata.get_mut("managedFields") {
                for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
                    entry.remove("time");
                }
                entries.sort_by_cached_key(Value::to_string);
            }
        }
        object
    };
    strip(old) == strip(new)
}

fn managed_fields(object: &Value) -> Option<&Vec<Value>> {
    object.get("metadata")?.get("managedFields")?.as_array()
}

/// The entries the update starts from.
fn start(old: Option<&Value>, new: &Value, manager: &Manager) -> Vec<Entry> {
    let read = |object: &Value| -> Option<Vec<Entry>> {
        managed_fields(object).map_or(Some(Vec::new()), |list| list.iter().map(Entry::read).collect())
    };
    let of_old = || old.and_then(read).unwrap_or_default();
    // A subresource does not take the list from the client.
    if !manager.subresource.is_empty() {
        return of_old();
    }
    if let Some([Value::Object(only)]) = managed_fields(new).map(Vec::as_slice)
        && only.is_empty()
    {
        return Vec::new();
    }
    match read(new) {
        Some(entries) if entries.iter().any(|e| !e.fields.is_empty()) => merge_same(entries),
        _ => of_old(),
    }
}

/// A client may send two entries with one identity; they become one.
fn merge_same(entries: Vec<Entry>) -> Vec<Entry> {
    let mut out: Vec<Entry> = Vec::with_capacity(entries.len());
    for entry in entries {
        let same = out.iter_mut().find(|e| {
            e.apply == entry.apply
                && e.manager == entry.manager
                && e.subresource == entry.subresource
                && (e.apply || e.api_version == entry.api_version)
        });
        match same {
            Some(first) => first.fields.union(&entry.fields),
            None => out.push(entry),
        }
    }
    out
}

/// A write to the object owns nothing of `status`; a write to `status` nothing of `spec`: what it says
/// of the other half is dropped later.
fn ignore_other_half(changed: &mut compare::Comparison, t: TypeRef<'_>, manager: &Manager) {
    let other: &[&str] = match manager.subresource.as_str() {
        "status" => &["f:spec"],
        _ if t.field("status").is_some() => &["f:status"],
        _ => return,
    };
    for set in [&mut changed.added, &mut changed.modified, &mut changed.removed] {
        set.remove_below(other);
    }
}

fn strip(fields: &mut Fields) {
    fields.own = false;
    for path in UNOWNED {
        fields.remove_exact(path);
    }
}

/// Drops empty entries, caps the number of updaters, sorts, and writes the list.
fn finish(object: &mut Value, mut entries: Vec<Entry>) {
    entries.retain(|e| !e.fields.is_empty());
    cap(&mut entries);
    entries.sort_by(Entry::order);
    let Some(object) = object.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Some(metadata) = metadata.as_object_mut() else { return };
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        let list = entries.iter().map(Entry::write).collect();
        metadata.insert("managedFields".to_owned(), Value::Array(list));
    }
}

fn cap(entries: &mut Vec<Entry>) {
    let mut count = entries.iter().filter(|e| !e.apply).count();
    if count <= MAX_UPDATERS {
        return;
    }
    entries.sort_by(Entry::order);
    let first_update = entries.iter().position(|e| !e.apply).unwrap_or(0);
    let mut kept: Vec<Entry> = entries.drain(..first_update).collect();
    let mut rest = Vec::new();
    let mut buckets: Vec<Entry> = Vec::new();
    for mut entry in entries.drain(..) {
        let bucket = buckets.iter_mut().find(|b| b.api_version == entry.api_version);
        match bucket {
            Some(bucket) if count > MAX_UPDATERS => {
                bucket.fields.union(&entry.fields);
                bucket.time = entry.time;
                ANCIENT.clone_into(&mut bucket.manager);
                bucket.subresource.clear();
                count -= 1;
            }
            None if count > MAX_UPDATERS => buckets.push(entry),
            _ => {
                entry.apply = false;
                rest.push(entry);
            }
        }
    }
    kept.append(&mut buckets);
    kept.append(&mut rest);
    *entries = merge_same(kept);
}
