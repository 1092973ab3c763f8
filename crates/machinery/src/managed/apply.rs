//! Server-side apply: the object is merged into the live one, what the manager applied before and
//! applies no more is removed unless somebody else owns it, and a change to what others own is a
//! conflict unless forced.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::compare::{self, Place};
use super::{Entry, Fields, Manager, finish, ignore_other_half, managed_fields, strip};
#[cfg(test)]
use crate::schema::TypeRef;
use crate::schema::{ListType, Shape, Type};
use crate::status::{Result, Status};
use crate::time;

/// What an apply came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    pub value: Value,
    /// Nothing changed but, perhaps, who owns what.
    pub unchanged: bool,
}

/// A field that another manager owns and the apply would change.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    /// `"kubectl" using apps/v1 at 2026-01-02T03:04:05Z`.
    pub with: String,
    /// `.spec.replicas`.
    pub path: String,
}

/// Applies `config` to the live object (`None`: it is created). `config` has been decoded strictly,
/// and is not defaulted. The result is to be defaulted and validated as any update.
pub fn apply(live: Option<&Value>, config: &Value, schema: &Type, manager: &Manager, force: bool) -> Result<Applied> {
    let t = schema.get();
    if managed_fields(config).is_some_and(|list| !list.is_empty()) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let mut set = Fields::default();
    let mut path = Vec::new();
    field_set(config, Place::of_type(t), &mut path, &mut set)?;
    let ignored = if manager.subresource == "status" { "f:spec" } else { "f:status" };
    if manager.subresource == "status" || t.field("status").is_some() {
        set.remove_below(&[ignored]);
    }
    strip(&mut set);

    let mut entries: Vec<Entry> = live
        .and_then(|l| managed_fields(l).map_or(Some(Vec::new()), |list| list.iter().map(Entry::read).collect()))
        .unwrap_or_default();
    let nothing = Value::Object(Map::new());
    let before = live.unwrap_or(&nothing);
    let mut merged = merge(before, config, Place::of_type(t));

    // What was applied before and belongs to nobody now.
    let last = entries.iter().position(|e| e.is_of(manager, true)).map(|at| entries.remove(at));
    if let Some(last) = &last {
        let mut owned = set.clone();
        entries.iter().for_each(|e| owned.union(&e.fields));
        prune(&mut merged, Place::of_type(t), &last.fields, Some(&owned));
    }

    let mut changed = compare::compare(live, &merged, t);
    ignore_other_half(&mut changed, t, manager);
    let mut taken = changed.added.clone();
    taken.union(&changed.modified);
    let conflicts: Vec<Fields> = entries.iter().map(|e| e.fields.intersect(&taken)).collect();
    if !force && conflicts.iter().any(|c| !c.is_empty()) {
        return Err(refused(&entries, &conflicts));
    }
    for (entry, conflict) in entries.iter_mut().zip(&conflicts) {
        entry.fields.subtract(conflict);
        entry.fields.subtract(&changed.removed);
    }
    let unchanged = changed == compare::Comparison::default();
    let same_owner = last.as_ref().is_some_and(|l| l.fields == set && l.api_version == manager.api_version);
    let at = if unchanged && same_owner { last.and_then(|l| l.time) } else { Some(manager.now) };
    entries.push(Entry {
        manager: manager.name.clone(),
        apply: true,
        api_version: manager.api_version.clone(),
        subresource: manager.subresource.clone(),
        time: at,
        fields: set,
    });
    finish(&mut merged, entries);
    Ok(Applied { value: merged, unchanged })
}

/// 409 with every conflict as a cause.
fn refused(entries: &[Entry], conflicts: &[Fields]) -> Box<Status> {
    let mut by_manager: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (entry, conflict) in entries.iter().zip(conflicts) {
        if !conflict.is_empty() {
            by_manager.entry(describe(entry)).or_default().extend(conflict.paths());
        }
    }
    let list: Vec<Conflict> = by_manager
        .iter()
        .flat_map(|(with, paths)| paths.iter().map(|p| Conflict { with: with.clone(), path: p.clone() }))
        .collect();
    let message = if let [only] = &list[..] {
        format!("Apply failed with 1 conflict: conflict with {}: {}", only.with, only.path)
    } else {
        let mut text = format!("Apply failed with {} conflicts: ", list.len());
        let groups: Vec<String> = by_manager
            .iter()
            .map(|(with, paths)| {
                let lines: Vec<String> = paths.iter().map(|p| format!("\n- {p}")).collect();
                format!("conflicts with {with}:{}", lines.concat())
            })
            .collect();
        text.push_str(&groups.join("\n"));
        text
    };
    list.iter().fold(Status::new(409, "Conflict", message), |status, conflict| {
        status.cause("FieldManagerConflict", format!("conflict with {}", conflict.with), &conflict.path)
    })
}

fn describe(entry: &Entry) -> String {
    let mut text = format!("{:?}", entry.manager);
    if !entry.subresource.is_empty() {
        text.push_str(&format!(" with subresource {:?}", entry.subresource));
    }
    if !entry.apply {
        text.push_str(&format!(" using {}", entry.api_version));
        if let Some(at) = entry.time {
            text.push_str(&format!(" at {}", time::rfc3339(at)));
        }
    }
    text
}

/// The fields that a configuration contains.
fn field_set(value: &Value, place: Place<'_>, path: &mut Vec<String>, out: &mut Fields) -> Result<()> {
    if place.atomic() {
        out.insert(path);
        return Ok(());
    }
    match (place.shape, value) {
        (Shape::Struct(t), Value::Object(map)) => {
            for (name, value) in map {
                let Some(field) = t.field(name) else { continue };
                path.push(format!("f:{name}"));
                field_set(value, Place::of_field(field), path, out)?;
                if value.is_null() || value.as_object().is_some_and(Map::is_empty) {
                    out.insert(path);
                }
                path.pop();
            }
        }
        (Shape::Map(inner), Value::Object(map)) => {
            for (name, value) in map {
                path.push(format!("f:{name}"));
                field_set(value, Place::of_element(inner.shape()), path, out)?;
                out.insert(path);
                path.pop();
            }
        }
        (Shape::List(inner), Value::Array(items)) => {
            let mut seen = std::collections::HashSet::new();
            for item in items {
                let Some(element) = place.element(item) else {
                    return Err(Status::bad_request(format!(
                        "failed to create typed patch object: {}: associative list with keys has an element that \
                         omits all key fields",
                        text_of(path)
                    )));
                };
                if !seen.insert(element.clone()) {
                    path.push(element);
                    return Err(Status::bad_request(format!(
                        "failed to create typed patch object: {}: duplicate entries for key",
                        text_of(path)
                    )));
                }
                path.push(element);
                field_set(item, Place::of_element(inner.shape()), path, out)?;
                out.insert(path);
                path.pop();
            }
        }
        _ => {}
    }
    Ok(())
}

fn text_of(path: &[String]) -> String {
    let mut set = Fields::default();
    set.insert(path);
    set.paths().concat()
}

/// `config` laid over `live`.
fn merge(live: &Value, config: &Value, place: Place<'_>) -> Value {
    if place.atomic() {
        return config.clone();
    }
    match (place.shape, live, config) {
        (Shape::Struct(_) | Shape::Map(_), Value::Object(old), Value::Object(new)) => {
            let mut out = old.clone();
            for (name, value) in new {
                let Some(inner) = child_place(place.shape, name) else { continue };
                let merged = match old.get(name) {
                    Some(old) => merge(old, value, inner),
                    None => value.clone(),
                };
                out.insert(name.clone(), merged);
            }
            Value::Object(out)
        }
        (Shape::List(inner), Value::Array(old), Value::Array(new)) => {
            Value::Array(merge_list(old, new, place, Place::of_element(inner.shape())))
        }
        _ => config.clone(),
    }
}

fn child_place<'t>(shape: Shape<'t>, name: &str) -> Option<Place<'t>> {
    match shape {
        Shape::Struct(t) => t.field(name).map(Place::of_field),
        Shape::Map(inner) => Some(Place::of_element(inner.shape())),
        _ => None,
    }
}

/// Items of both, in the order of the configuration; items that only the live list has stay before
/// the shared item they stood before.
fn merge_list(old: &[Value], new: &[Value], place: Place<'_>, item: Place<'_>) -> Vec<Value> {
    let keyed = |list: &[Value]| -> Vec<Option<String>> { list.iter().map(|v| place.element(v)).collect() };
    let (old_keys, new_keys) = (keyed(old), keyed(new));
    let merged = |index: usize| {
        let value = &new[index];
        match old_keys.iter().position(|k| k == &new_keys[index]) {
            Some(live) if place.list_type() == ListType::Map => merge(&old[live], value, item),
            _ => value.clone(),
        }
    };
    let mut out = Vec::with_capacity(old.len() + new.len());
    let (mut l, mut r) = (0, 0);
    while l < old.len() || r < new.len() {
        if l < old.len() && !new_keys.contains(&old_keys[l]) {
            // Only the live list has it.
            out.push(old[l].clone());
            l += 1;
        } else if r < new.len() {
            if l < old.len() && old_keys[l] == new_keys[r] {
                l += 1;
            } else if l < old.len() && old_keys.contains(&new_keys[r]) {
                // Shared, but the lists disagree on the order: the configuration's holds.
                let passed = new_keys[..r].contains(&old_keys[l]);
                if passed {
                    l += 1;
                    continue;
                }
            }
            out.push(merged(r));
            r += 1;
        } else {
            // Already written in the configuration's place.
            l += 1;
        }
    }
    out
}

/// Removes what `last` owned and nobody owns now.
fn prune(value: &mut Value, place: Place<'_>, last: &Fields, owned: Option<&Fields>) {
    if place.atomic() {
        return;
    }
    let owned_below = |element: &str| owned.and_then(|o| o.below.get(element));
    match (place.shape, value) {
        (shape @ (Shape::Struct(_) | Shape::Map(_)), Value::Object(map)) => {
            let named = matches!(shape, Shape::Struct(_));
            map.retain(|name, value| {
                let element = format!("f:{name}");
                let Some(before) = last.below.get(&element) else { return true };
                let now = owned_below(&element);
                if now.is_none() && (before.own || named) {
                    return false;
                }
                if let Some(inner) = child_place(shape, name) {
                    prune(value, inner, before, now);
                }
                true
            });
        }
        (Shape::List(inner), Value::Array(items)) => {
            let item = Place::of_element(inner.shape());
            items.retain_mut(|value| {
                let Some(element) = place.element(value) else { return true };
                let Some(before) = last.below.get(&element) else { return true };
                let now = owned_below(&element);
                if now.is_none() && before.own {
                    return false;
                }
                prune(value, item, before, now);
                true
            });
        }
        _ => {}
    }
}

/// Used by the tests of the walk.
#[cfg(test)]
pub(super) fn set_of(value: &Value, t: TypeRef<'_>) -> Fields {
    let mut set = Fields::default();
    field_set(value, Place::of_type(t), &mut Vec::new(), &mut set).expect("a set");
    set
}
