//! Server-side apply: the configuration is laid over the live object, what the manager applied before
//! and applies no more is removed unless somebody else owns it, and a change to what others own is a
//! conflict unless forced.

use serde_json::{Map, Value};

use super::compare::{ADDED, MODIFIED, REMOVED, Side, compare, same};
use super::entry::Entry;
use super::fields::{Fields, OWN};
use super::merge::{merge, prune};
use super::place::Place;
use super::{Manager, managed_fields, record, set_managed_fields, strip, typed, written};
use crate::meta;
use crate::schema::Type;
use crate::status::{Result, Status};

/// The manager of kubectl's own apply, which takes over from its older, client-side one.
const KUBECTL: &str = "kubectl";
/// Where client-side apply keeps what it applied last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The most that the annotations of an object may hold, names included.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Applies `config`, which is as the client sent it, to the live object (`None`: it is created). The
/// result holds what the configuration says as it says it: it is to be decoded by the schema, defaulted
/// and validated as any update.
///
/// # Errors
/// 409 when other managers own what would change; 400 for what is no configuration of the type.
pub fn apply(live: Option<&Value>, config: &Value, schema: &Type, manager: &Manager, force: bool) -> Result<Value> {
    check(config, schema, manager)?;
    let place = Place::of_type(schema.get());
    let before_first = Manager { name: "before-first-apply".into(), ..manager.clone() };
    let mut entries = live.map(Entry::stored).unwrap_or_default();
    if let Some(live) = live
        && entries.is_empty()
    {
        record(&mut entries, None, live, schema, &before_first);
    }
    manager.served(&mut entries);

    let set = typed::fields_of(config, place, manager.reset);
    let mut own = Entry::new(manager, true, None, set);
    let last = entries.iter().position(|e| e.same_identity(&own)).map(|at| entries.remove(at));
    let empty = Value::Object(Map::new());
    let mut merged = merge(live.unwrap_or(&empty).clone(), config, place);
    if let Some(mut last) = last.clone()
        && last.api_version == manager.api_version
    {
        let mut lost = last.fields().clone();
        lost.subtract(own.fields(), OWN);
        // Who says all that was said before takes nothing away.
        if !lost.is_empty() {
            let mut owned = own.fields().clone();
            for entry in entries.iter_mut().filter(|e| e.api_version == manager.api_version) {
                owned.union(entry.fields());
            }
            prune(&mut merged, place, last.fields(), &owned);
        }
    }

    let changed = compare(live, &merged, schema.get(), manager.reset, Side::Merged);
    if !force {
        let mut conflicts = conflicts(&mut entries, &changed, manager);
        if !conflicts.is_empty() && manager.name == KUBECTL {
            forgive(&mut conflicts, live, schema, manager);
        }
        if !conflicts.is_empty() {
            return Err(refused(conflicts));
        }
    }
    for entry in entries.iter_mut().filter(|e| e.api_version == manager.api_version) {
        entry.lose(&changed, ADDED | MODIFIED | REMOVED);
    }
    let unchanged = changed.is_empty() && live.is_some_and(|live| same(live, &merged));
    own.time = if unchanged { last.and_then(|last| last.time) } else { Some(manager.now) };
    strip(own.fields());
    entries.push(own);
    let list = written(entries);
    set_managed_fields(&mut merged, list);
    if manager.name == KUBECTL {
        keep_last_applied(&mut merged, config);
    }
    Ok(merged)
}

/// Refuses what is no configuration of the type.
fn check(config: &Value, schema: &Type, manager: &Manager) -> Result<()> {
    let (group_version, kind) = (meta::api_version(config), meta::kind(config));
    let gvk = match group_version.split_once('/') {
        Some((group, version)) if !version.contains('/') => format!("{group}/{version}, Kind={kind}"),
        Some(_) => format!("/, Kind={kind}"),
        None => format!("/{group_version}, Kind={kind}"),
    };
    if group_version != manager.api_version || kind != schema.name() {
        return Err(Status::bad_request(format!("invalid object type: {gvk}")));
    }
    if managed_fields(config).is_some() {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    match typed::mistakes(config, Place::of_type(schema.get())) {
        None => Ok(()),
        Some(mistakes) => {
            let (namespace, name) = (meta::namespace(config), meta::name(config));
            Err(Status::bad_request(format!(
                "failed to create typed patch object ({namespace}/{name}; {gvk}): {mistakes}"
            )))
        }
    }
}

/// What one other manager owns of what would change.
struct Conflict<'a> {
    identity: String,
    /// `"kubectl" using apps/v1`.
    with: String,
    fields: Fields<'a>,
}

/// The conflicts, in the order of the managers' identities.
fn conflicts<'a>(entries: &mut [Entry<'a>], changed: &Fields<'_>, manager: &Manager) -> Vec<Conflict<'a>> {
    let mut out = Vec::new();
    if changed.is_empty() {
        return out;
    }
    for entry in entries.iter_mut().filter(|e| e.api_version == manager.api_version) {
        let fields = entry.fields().intersect(changed, ADDED | MODIFIED);
        if !fields.is_empty() {
            out.push(Conflict { identity: entry.identity(), with: describe(entry), fields });
        }
    }
    out.sort_by(|a, b| a.identity.cmp(&b.identity));
    out
}

fn describe(entry: &Entry<'_>) -> String {
    let mut text = format!("{:?}", entry.manager);
    if !entry.subresource.is_empty() {
        text.push_str(&format!(" with subresource {:?}", entry.subresource));
    }
    if !entry.apply {
        text.push_str(&format!(" using {}", entry.api_version));
    }
    text
}

/// 409 with every conflict as a cause.
fn refused(conflicts: Vec<Conflict<'_>>) -> Box<Status> {
    let found: Vec<(String, Vec<String>)> = conflicts.into_iter().map(|c| (c.with, c.fields.paths())).collect();
    let count: usize = found.iter().map(|(_, paths)| paths.len()).sum();
    let message = match &found[..] {
        [(with, paths)] if count == 1 => format!("Apply failed with 1 conflict: conflict with {with}: {}", paths[0]),
        _ => {
            let lines = found.iter().flat_map(|(with, paths)| {
                let head = format!("conflicts with {with}:");
                std::iter::once(head).chain(paths.iter().map(|path| format!("- {path}")))
            });
            format!("Apply failed with {count} conflicts: {}", lines.collect::<Vec<_>>().join("\n"))
        }
    };
    found.iter().fold(Status::new(409, "Conflict", message), |status, (with, paths)| {
        paths
            .iter()
            .fold(status, |status, path| status.cause("FieldManagerConflict", format!("conflict with {with}"), path))
    })
}

/// What client-side apply set last and nobody changed since is kubectl's own: no conflict.
fn forgive(conflicts: &mut Vec<Conflict<'_>>, live: Option<&Value>, schema: &Type, manager: &Manager) {
    let Some(live) = live else { return };
    let text = meta::annotation(live, LAST_APPLIED).unwrap_or_default();
    let Ok(last) = serde_json::from_str::<Value>(text) else { return };
    let place = Place::of_type(schema.get());
    if meta::api_version(&last) != manager.api_version || typed::mistakes(&last, place).is_some() {
        return;
    }
    let mut kept = typed::fields_of(&last, place, &[]);
    kept.subtract(&compare(Some(&last), live, schema.get(), &[], Side::Decoded), ADDED | MODIFIED | REMOVED);
    for conflict in conflicts.iter_mut() {
        conflict.fields.subtract(&kept, OWN);
    }
    conflicts.retain(|conflict| !conflict.fields.is_empty());
}

/// An object that client-side apply once wrote goes on saying what was applied last.
fn keep_last_applied(merged: &mut Value, config: &Value) {
    if meta::annotation(merged, LAST_APPLIED).is_none_or(str::is_empty) {
        return;
    }
    let mut applied = config.clone();
    if let Some(annotations) = applied.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
    let text = go_json(&applied);
    let mut size = text.len() + LAST_APPLIED.len();
    let others = meta::annotations(merged).into_iter().filter(|(key, _)| key != LAST_APPLIED);
    size += others.map(|(key, value)| key.len() + value.len()).sum::<usize>();
    meta::set_annotation(merged, LAST_APPLIED, (size <= MAX_ANNOTATIONS).then_some(text.as_str()));
}

/// JSON as Go's encoder writes it: safe inside of HTML, with a line feed at the end.
fn go_json(value: &Value) -> String {
    let mut out = String::new();
    for c in value.to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('\n');
    out
}
