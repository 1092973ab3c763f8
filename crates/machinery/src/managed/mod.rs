//! Who set which field: `metadata.managedFields`.
//!
//! Every write by an ordinary verb is an `Update`: the fields it changes or adds go to its manager
//! and leave all others, the fields it removes leave everybody. An apply patch owns what it contains
//! ([`apply`]).
//!
//! ```text
//! a creates {replicas: 1, image: x}     a: replicas image
//! b updates  image: y                   a: replicas          b: image
//! c applies  replicas: 1                a: replicas          b: image     c: replicas     (shared)
//! c applies  image: z                   409, b has it; forced: a: replicas     c: image
//! ```

mod apply;
mod compare;
pub mod config;
mod element;
mod entry;
mod fields;
mod keys;
mod merge;
#[cfg(test)]
mod model;
mod place;
mod raw;
mod scale;
#[cfg(test)]
mod tests;
mod typed;

use jiff::Timestamp;
use serde_json::{Map, Value};

pub use apply::apply;
pub use fields::Fields;
pub(crate) use raw::fields_json;
pub use raw::{expand, from_slice};
pub use scale::{of_parent, of_scale};

use self::compare::{ADDED, MODIFIED, REMOVED, Side};
use self::entry::Entry;
use crate::schema::Type;

/// Paths nobody owns.
const UNOWNED: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

/// Who writes, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Manager {
    /// `fieldManager`, or what the user agent starts with.
    pub name: String,
    /// The version the request was made in: `apps/v1`.
    pub api_version: String,
    /// Other versions the same objects are served in. What is owned in them stays as it is; what is
    /// owned in yet others is dropped.
    pub also: Vec<String>,
    /// `status`, `scale`, …; empty for the object itself.
    pub subresource: String,
    /// What this door does not let in, and so does not own: paths of field names.
    pub reset: &'static [&'static [&'static str]],
    pub now: Timestamp,
}

impl Manager {
    fn name(&self) -> &str {
        if self.name.is_empty() { "unknown" } else { &self.name }
    }

    /// The entries that count: those in a version that is served.
    fn served(&self, entries: &mut Vec<Entry<'_>>) {
        entries.retain(|e| e.api_version == self.api_version || self.also.iter().any(|v| *v == e.api_version));
    }
}

/// Records an update: `new` is the object as the client wants it, with defaults, before admission and
/// the kind's own preparation change it (what they change is nobody's); `old` is the stored object,
/// `None` when it is created. Sets `metadata.managedFields` of `new`.
///
/// A client may edit the list. One it does not send, or that cannot be read, is taken from `old`;
/// `[{}]` and `[]` clear it, and then nothing is recorded until somebody applies.
pub fn update(old: Option<&Value>, new: &mut Value, schema: &Type, manager: &Manager) {
    let list = updated(old, new, schema, manager);
    set_managed_fields(new, list);
}

fn updated(old: Option<&Value>, new: &Value, schema: &Type, manager: &Manager) -> Vec<Value> {
    let mut entries = start(old, new, manager);
    if entries.is_empty() && old.is_some() {
        return Vec::new();
    }
    record(&mut entries, old, new, schema, manager);
    written(entries)
}

/// What an update does to the entries.
fn record<'a>(
    entries: &mut Vec<Entry<'a>>,
    old: Option<&'a Value>,
    new: &'a Value,
    schema: &'a Type,
    manager: &'a Manager,
) {
    manager.served(entries);
    let changed = compare::compare(old, new, schema.get(), manager.reset, Side::Decoded);
    for entry in entries.iter_mut().filter(|e| e.api_version == manager.api_version) {
        entry.lose(&changed, ADDED | MODIFIED | REMOVED);
    }
    entries.retain(|e| !e.is_empty());
    let mut own = changed.select(ADDED | MODIFIED);
    strip(&mut own);
    if !own.is_empty() {
        // Scales are recorded without a time.
        let at = (manager.subresource != "scale").then_some(manager.now);
        let fresh = Entry::new(manager, false, at, own);
        match entries.iter_mut().find(|e| e.same_identity(&fresh)) {
            Some(entry) => {
                let mut fresh = fresh;
                entry.add(fresh.fields(), at);
            }
            None => entries.push(fresh),
        }
    }
    entry::cap(entries);
}

fn managed_fields(object: &Value) -> Option<&Vec<Value>> {
    object.get("metadata")?.get("managedFields")?.as_array()
}

/// The entries the update starts from.
fn start<'a>(old: Option<&'a Value>, new: &'a Value, manager: &Manager) -> Vec<Entry<'a>> {
    let of_old = || old.map(Entry::stored).unwrap_or_default();
    // A subresource does not take the list from the client.
    if !manager.subresource.is_empty() {
        return of_old();
    }
    match managed_fields(new).map(Vec::as_slice) {
        Some([]) => return Vec::new(),
        Some([Value::Object(only)]) if only.is_empty() => return Vec::new(),
        _ => {}
    }
    match Entry::sent(new, old) {
        Some(entries) if !entries.is_empty() => entries,
        _ => of_old(),
    }
}

fn strip(fields: &mut Fields<'_>) {
    fields.mark = 0;
    for path in UNOWNED {
        fields.remove_exact(path);
    }
}

/// The list, without what owns nothing, in its order.
fn written(mut entries: Vec<Entry<'_>>) -> Vec<Value> {
    entries.retain(|e| !e.is_empty());
    entries.sort_by(Entry::order);
    entries.iter().map(Entry::write).collect()
}

/// Gives an object the entries; without any it has no list.
pub fn set_managed_fields(object: &mut Value, list: Vec<Value>) {
    let Some(object) = object.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Some(metadata) = metadata.as_object_mut() else { return };
    if list.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".to_owned(), Value::Array(list));
    }
}
