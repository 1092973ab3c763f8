//! Who owns the replicas, between an object and its Scale: they are one field with two names.

use serde_json::Value;

use super::entry::Entry;
use super::fields::{Fields, OWN};
use super::written;

/// The version of every Scale.
const SCALE: &str = "autoscaling/v1";
/// Where a Scale says the replicas.
const REPLICAS: &[&str] = &["spec", "replicas"];

/// The `managedFields` of an object's Scale: those of the object, in `api_version`, that own the
/// replicas, which stand at `path` (field names).
pub fn of_parent(parent: &Value, api_version: &str, path: &[&str]) -> Vec<Value> {
    let mut entries = Entry::stored(parent);
    entries.retain_mut(|e| e.api_version == api_version && e.fields().has(path));
    let owners = entries.iter().map(|entry| {
        let mut scaled = entry.with(SCALE, Fields::of(REPLICAS));
        scaled.time = entry.time;
        scaled
    });
    written(owners.collect())
}

/// The `managedFields` of the object after its Scale was written: who lost the replicas there has lost
/// them, who got them there has them. A new owner has no time.
pub fn of_scale(parent: &Value, scale: &Value, api_version: &str, path: &[&str]) -> Vec<Value> {
    let mut entries = Entry::stored(parent);
    entries.retain(|e| e.api_version == api_version);
    let mut scaled = Entry::stored(scale);
    scaled.retain_mut(|e| e.fields().has(REPLICAS));
    for entry in &mut entries {
        if !entry.fields().has(path) {
            continue;
        }
        let same =
            |e: &Entry<'_>| e.apply == entry.apply && e.manager == entry.manager && e.subresource == entry.subresource;
        match scaled.iter().position(same) {
            Some(at) => drop(scaled.remove(at)),
            None => entry.lose(&Fields::of(path), OWN),
        }
    }
    entries.extend(scaled.iter().map(|e| e.with(api_version, Fields::of(path))));
    written(entries)
}
