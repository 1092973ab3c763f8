//! A configuration laid over an object, and what its manager no longer wants taken away.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::element::Element;
use super::fields::Fields;
use super::place::Place;
use crate::schema::Shape;

/// `config` laid over `live`. Nothing is removed; a `null` takes the place of a value, not of what a
/// list, map or struct contains.
pub(super) fn merge(live: Value, config: &Value, place: Place<'_>) -> Value {
    if place.is_whole(config) {
        return config.clone();
    }
    match (place.shape, live, config) {
        (Shape::Struct(_) | Shape::Map(_), Value::Object(mut old), Value::Object(new)) => {
            for (name, value) in new {
                let Some(inner) = place.child(name) else { continue };
                match old.get_mut(name) {
                    Some(slot) => *slot = merge(slot.take(), value, inner),
                    None => drop(old.insert(name.clone(), fresh(value, inner))),
                }
            }
            Value::Object(old)
        }
        (Shape::Struct(_) | Shape::Map(_), Value::Object(old), Value::Null) if !old.is_empty() => Value::Object(old),
        (Shape::List(_), Value::Array(old), Value::Null) if !old.is_empty() => Value::Array(old),
        (Shape::List(_), Value::Array(old), Value::Array(new)) if !old.is_empty() || !new.is_empty() => {
            Value::Array(merge_list(old, new, place))
        }
        (_, _, config) => fresh(config, place),
    }
}

/// What only the configuration has: itself, without what the schema does not know.
fn fresh(config: &Value, place: Place<'_>) -> Value {
    match (place.shape, config) {
        _ if place.is_whole(config) => config.clone(),
        (Shape::Struct(_) | Shape::Map(_), Value::Object(_)) => merge(Value::Object(Map::new()), config, place),
        _ => config.clone(),
    }
}

/// Items of both. Where the configuration says an order it holds; items that only the live list has
/// come before the next shared item that is due.
///
/// ```text
/// live  x a y b      config  b a      ──►  x y b a
/// ```
fn merge_list(old: Vec<Value>, new: &[Value], place: Place<'_>) -> Vec<Value> {
    let Some(item) = place.item() else { return old };
    let names: Vec<Option<Element<'_>>> = old.iter().map(|value| place.element(value).ok()).collect();
    let wanted: Vec<Option<Element<'_>>> = new.iter().map(|value| place.element(value).ok()).collect();
    // Where a live item is; of several that are called the same, none is merged with.
    let mut live: HashMap<&Element<'_>, Option<usize>> = HashMap::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        if let Some(name) = name {
            live.entry(name).and_modify(|at| *at = None).or_insert(Some(index));
        }
    }
    let ours: HashSet<&Element<'_>> = wanted.iter().flatten().collect();
    let mut shared = wanted.iter().flatten().filter(|name| live.contains_key(name));
    let mut next = shared.next();
    let mut old: Vec<Option<Value>> = old.into_iter().map(Some).collect();
    let mut out = Vec::with_capacity(old.len().max(new.len()));
    let mut done: HashSet<&Element<'_>> = HashSet::with_capacity(wanted.len());
    let (mut l, mut r) = (0, 0);
    let both = |name: &Option<Element<'_>>, value: &Value, old: &mut Vec<Option<Value>>| {
        let at = name.as_ref().and_then(|name| live.get(name).copied().flatten());
        match at.and_then(|at| old[at].take()) {
            Some(before) => merge(before, value, item),
            None => fresh(value, item),
        }
    };
    while l < names.len() || r < wanted.len() {
        if l < names.len() && r < wanted.len() {
            let name = &names[l];
            if name == &wanted[r] {
                out.push(both(name, &new[r], &mut old));
                done.extend(name);
                (l, r, next) = (l + 1, r + 1, shared.next());
                continue;
            }
            if name.as_ref().is_some_and(|name| ours.contains(name)) && next.is_some() && next != name.as_ref() {
                // Both have it, but it is not the one that is due.
                l += 1;
                continue;
            }
        }
        if l < names.len() {
            let name = names[l].as_ref();
            if name.is_none_or(|name| !ours.contains(name)) {
                out.extend(old[l].take());
                l += 1;
                continue;
            }
            if name.is_some_and(|name| done.contains(name)) {
                l += 1;
            }
        }
        if r < wanted.len() {
            out.push(both(&wanted[r], &new[r], &mut old));
            done.extend(&wanted[r]);
            if next.is_some() && next == wanted[r].as_ref() {
                next = shared.next();
            }
            r += 1;
        }
    }
    out
}

/// Takes away what `last` had and nobody has now. A named field counts as had by who has anything
/// below it; an item of a list and an entry of a map only by who has it itself.
///
/// What is left of a value whose every part goes is `null`.
pub(super) fn prune(value: &mut Value, place: Place<'_>, last: &Fields<'_>, owned: &Fields<'_>) {
    let nothing = Fields::default();
    if place.atomic() {
        return;
    }
    let mut touched = false;
    // Some: keep, and go on below; None: it goes.
    let mut rest = |element: &Element<'_>, named: Option<&Value>| -> Option<Option<(&Fields<'_>, &Fields<'_>)>> {
        let Some(before) = last.child(element) else { return Some(None) };
        let now = owned.child(element);
        let has = |set: &Fields<'_>| set.mark != 0 || (named.is_some() && !set.below.is_empty());
        touched = true;
        let lost = has(before) && !now.is_some_and(has);
        let there = || named.is_none_or(|value| place.child_of(element).is_none_or(|inner| is_set(value, inner)));
        if lost && there() { None } else { Some(Some((before, now.unwrap_or(&nothing)))) }
    };
    let emptied = match (place.shape, &mut *value) {
        (Shape::Struct(_) | Shape::Map(_), Value::Object(map)) => {
            let named = matches!(place.shape, Shape::Struct(_));
            let full = !map.is_empty();
            map.retain(|name, value| match rest(&Element::Field(name.as_str().into()), named.then_some(&*value)) {
                None => false,
                Some(Some((before, now))) if !before.below.is_empty() => {
                    if let Some(inner) = place.child(name) {
                        prune(value, inner, before, now);
                    }
                    true
                }
                Some(_) => true,
            });
            full && map.is_empty()
        }
        (Shape::List(_), Value::Array(items)) => {
            let Some(inner) = place.item() else { return };
            let full = !items.is_empty();
            items.retain_mut(|value| {
                let Ok(element) = place.element(value) else { return true };
                match rest(&element, None) {
                    None => false,
                    Some(Some((before, now))) if !before.below.is_empty() => {
                        prune(value, inner, before, now);
                        true
                    }
                    Some(_) => true,
                }
            });
            full && items.is_empty()
        }
        _ => false,
    };
    if touched && emptied {
        *value = Value::Null;
    }
}

/// Whether a value counts among the fields that are set: a list without items does not, nor does a
/// struct that holds nothing else.
fn is_set(value: &Value, place: Place<'_>) -> bool {
    match (place.shape, value) {
        _ if place.is_whole(value) => true,
        (Shape::Struct(_), Value::Object(map)) => {
            map.is_empty()
                || map.iter().any(|(name, value)| place.child(name).is_some_and(|inner| is_set(value, inner)))
        }
        (Shape::List(_), Value::Array(items)) => !items.is_empty(),
        _ => true,
    }
}
