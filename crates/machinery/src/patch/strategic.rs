//! Strategic merge: objects are merged, lists of objects are merged by the key the schema names.
//!
//! ```text
//! live   containers: [{name: a, image: x}, {name: b, image: y}]
//! patch  containers: [{name: b, image: z}, {$patch: delete, name: a}, {name: c}]
//!        $setElementOrder/containers: [{name: c}, {name: b}]
//!  ──►   containers: [{name: c}, {name: b, image: z}]
//! ```

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::unprocessable;
use crate::go;
use crate::schema::{Merge, Shape, TypeRef};
use crate::status::{Result, Status};

pub(super) const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
pub(super) const DELETE_FROM: &str = "$deleteFromPrimitiveList";
pub(super) const SET_ORDER: &str = "$setElementOrder";

const BAD_PRIMITIVE_LIST: &str = "invalid patch format of primitive list";
const BAD_RETAIN_KEYS: &str = "invalid patch format of retainKeys";
const BAD_SET_ORDER: &str = "invalid patch format of setElementOrder list";

pub(super) type Object = Map<String, Value>;

pub(super) fn apply(object: &mut Value, patch: Object, t: TypeRef<'_>) -> Result<()> {
    let original = object.as_object().cloned().unwrap_or_default();
    *object = Value::Object(merge_object(original, patch, Shape::Struct(t))?);
    Ok(())
}

/// How a field is merged.
#[derive(Clone, Copy)]
pub(super) struct Rule<'t> {
    pub(super) shape: Shape<'t>,
    pub(super) merge: Merge,
    pub(super) key: Option<&'t str>,
}

impl Rule<'_> {
    pub(super) fn merges(self) -> bool {
        matches!(self.merge, Merge::Merge | Merge::MergeRetainKeys)
    }

    pub(super) fn element(&self) -> Shape<'_> {
        match self.shape {
            Shape::List(element) => element.shape(),
            Shape::OrArray(t) => Shape::Struct(t),
            _ => Shape::Raw,
        }
    }
}

pub(super) fn rule<'t>(shape: Shape<'t>, name: &str) -> Rule<'t> {
    let plain = |shape| Rule { shape, merge: Merge::Default, key: None };
    match shape {
        Shape::Struct(t) | Shape::OrArray(t) | Shape::OrBool(t) | Shape::OrStrings(t) => {
            t.field(name).map_or(plain(Shape::Raw), |f| Rule { shape: f.shape(), merge: f.merge(), key: f.merge_key() })
        }
        Shape::Map(element) => plain(element.shape()),
        _ => plain(Shape::Raw),
    }
}

fn merge_object(mut original: Object, mut patch: Object, shape: Shape<'_>) -> Result<Object> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => {
                patch.remove(DIRECTIVE);
                Ok(patch)
            }
            Some("delete") => Ok(Object::new()),
            _ => Err(unknown_directive(directive, &patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    set_element_order(&mut original, &mut patch, shape)?;
    for (name, value) in patch {
        let deletes = name.starts_with(DELETE_FROM);
        let name = if deletes { field_of(&name, DELETE_FROM, BAD_PRIMITIVE_LIST)?.to_owned() } else { name };
        if value.is_null() {
            original.remove(&name);
            continue;
        }
        let rule = rule(shape, &name);
        let merged = match (original.remove(&name), value) {
            (Some(Value::Object(old)), Value::Object(new)) if deletes => {
                Value::Object(merge_object(old, new, rule.shape)?)
            }
            (Some(Value::Object(_)), Value::Object(new)) if rule.merge == Merge::Replace => Value::Object(new),
            (Some(Value::Object(old)), Value::Object(new)) => Value::Object(merge_object(old, new, rule.shape)?),
            (Some(Value::Array(old)), Value::Array(new)) if deletes || rule.merges() => {
                Value::Array(merge_list(old, new, rule, deletes)?)
            }
            (Some(Value::Array(_)), Value::Array(new)) => Value::Array(new),
            (Some(old), _) if deletes => old,
            (None, _) if deletes => continue,
            (_, new) => match drop_directives(drop_nulls(new)) {
                Some(value) => value,
                None => continue,
            },
        };
        original.insert(name, merged);
    }
    Ok(original)
}

fn unknown_directive(directive: &Value, patch: &Object) -> Box<Status> {
    let shown = match directive {
        Value::String(text) => text.clone(),
        Value::Null => "%!s(<nil>)".to_owned(),
        other => format!("%!s({}={})", go_type(other), go::print(other)),
    };
    Status::bad_request(format!("unknown patch type: {shown} in map: {}", go::print(&Value::Object(patch.clone()))))
}

/// The name behind the slash of a directive.
fn field_of<'n>(name: &'n str, directive: &str, wrong: &str) -> Result<&'n str> {
    let field = name.strip_prefix(directive).and_then(|rest| rest.strip_prefix('/'));
    field.ok_or_else(|| Status::bad_request(wrong))
}

/// A value's type as Go names it.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

fn wants(wanted: &str, found: &Value) -> Box<Status> {
    Status::bad_request(format!("expected a {wanted}, but received a {}", go_type(found)))
}

fn list(value: Value) -> Result<Vec<Value>> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(wants("[]interface {}", &other)),
    }
}

/// `$retainKeys` names the fields that stay; all that the patch sets must be among them.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<()> {
    let Some(directive) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(keys) = directive else { return Err(Status::bad_request(BAD_RETAIN_KEYS)) };
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let keeps = |name: &str| keys.contains(name);
    let sets =
        |name: &str, value: &Value| !value.is_null() && !name.starts_with(DELETE_FROM) && !name.starts_with(SET_ORDER);
    if patch.iter().any(|(name, value)| sets(name, value) && !keeps(name)) {
        return Err(Status::bad_request(BAD_RETAIN_KEYS));
    }
    original.retain(|name, _| keeps(name));
    Ok(())
}

/// `$setElementOrder/<field>`: the list, merged with its patch, takes this order; elements that only
/// the server has keep their place as well as they can.
fn set_element_order(original: &mut Object, patch: &mut Object, shape: Shape<'_>) -> Result<()> {
    let directives: Vec<String> = patch.keys().filter(|k| k.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let Some(order) = patch.remove(&directive) else { continue };
        let order = list(order)?;
        let name = field_of(&directive, SET_ORDER, BAD_SET_ORDER)?;
        // A null removes the list; there is nothing to order then.
        if patch.get(name).is_some_and(Value::is_null) {
            continue;
        }
        let new = patch.remove(name).map(list).transpose()?;
        let old = original.remove(name).filter(|v| !v.is_null()).map(list).transpose()?;
        if let Shape::Struct(t) = shape
            && t.field(name).is_none()
        {
            let text = format!("unable to find api field in struct {} for the json field \"{name}\"", t.name());
            return Err(Status::bad_request(text));
        }
        let rule = rule(shape, name);
        if let Some(new) = &new {
            check_order(new, &order, rule.key)?;
        }
        let server = old.clone().unwrap_or_default();
        let merged = match (old, new) {
            (None, None) => continue,
            (Some(old), None) => old,
            (None, Some(new)) => new.into_iter().filter_map(drop_directives).collect(),
            (Some(old), Some(new)) if rule.merges() => merge_list(old, new, rule, false)?,
            (Some(_), Some(new)) => new,
        };
        if let Some(key) = rule.key {
            for item in merged.iter().chain(&order) {
                key_of(item, key)?;
            }
        }
        let places = Places::of(&order, rule.key);
        let (listed, rest): (Vec<_>, Vec<_>) = merged.into_iter().partition(|item| places.find(item).is_some());
        let server = Places::of(&server, rule.key);
        original.insert(name.to_owned(), Value::Array(ordered(listed, rest, &places, &server)));
    }
    Ok(())
}

/// The value of an element's key.
fn key_of<'v>(item: &'v Value, key: &str) -> Result<&'v Value> {
    match item {
        Value::Object(map) => map.get(key).ok_or_else(|| no_merge_key(map, key)),
        other => Err(wants("map[string]interface {}", other)),
    }
}

/// The elements that the patch sets must stand in the order list, in the same order.
fn check_order(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<()> {
    if order.is_empty() {
        return Ok(());
    }
    let mut from = 0;
    let is_directive = |item: &Value| item.get(DIRECTIVE).is_some();
    for item in patch.iter().filter(|item| !is_directive(item)) {
        let same = |other: &Value| match key {
            None => Ok(other == item),
            Some(key) => Ok::<bool, Box<Status>>(key_of(item, key)? == key_of(other, key)?),
        };
        let mut found = false;
        while let (false, Some(other)) = (found, order.get(from)) {
            found = same(other)?;
            from += 1;
        }
        if !found {
            let text = |list: &[Value]| go::print(&Value::Array(list.to_vec()));
            return Err(Status::bad_request(format!(
                "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                text(patch),
                text(order)
            )));
        }
    }
    Ok(())
}

/// All elements must be of one type, and none a list.
fn element_type(original: &[Value], patch: &[Value]) -> Result<Option<&'static str>> {
    let mut types = original.iter().chain(patch).map(go_type);
    let Some(first) = types.next() else { return Ok(None) };
    if first == "[]interface {}" {
        return Err(unprocessable());
    }
    if types.any(|other| other != first) || first == "%!s(<nil>)" {
        let both = Value::from(vec![Value::from(original.to_vec()), Value::from(patch.to_vec())]);
        return Err(Status::bad_request(format!("list element types are not identical: {}", go::print(&both))));
    }
    Ok(Some(first))
}

fn merge_list(original: Vec<Value>, patch: Vec<Value>, rule: Rule<'_>, deletes: bool) -> Result<Vec<Value>> {
    match element_type(&original, &patch)? {
        None => return Ok(original),
        Some("map[string]interface {}") => {}
        Some(_) if deletes => {
            let gone: HashSet<&Value> = patch.iter().collect();
            return Ok(original.into_iter().filter(|item| !gone.contains(item)).collect());
        }
        Some(_) => return Ok(merge_scalars(original, patch)),
    }
    let Some(key) = rule.key else {
        return Err(Status::bad_request("cannot merge lists without merge key for struct"));
    };
    let server = original.clone();
    let (mut merged, patch) = match special_elements(original, patch, key)? {
        Special::Replaced(items) => {
            for item in &items {
                key_of(item, key)?;
            }
            return Ok(items);
        }
        Special::Merge(original, patch) => (original, patch),
    };
    let order = patch.clone();
    let mut places: HashMap<Value, usize> = HashMap::with_capacity(merged.len() + patch.len());
    for (place, old) in merged.iter().enumerate() {
        if let Some(value) = old.get(key) {
            places.entry(value.clone()).or_insert(place);
        }
    }
    for item in patch {
        let Value::Object(item) = item else { continue };
        let Some(value) = item.get(key).cloned() else { return Err(no_merge_key(&item, key)) };
        match places.get(&value).and_then(|place| merged.get_mut(*place)) {
            Some(old) => {
                let taken = match old.take() {
                    Value::Object(map) => map,
                    _ => Object::new(),
                };
                *old = Value::Object(merge_object(taken, item, rule.element())?);
                // A patch of `$patch` may take the key away; then nobody is found here any more.
                if old.get(key) != Some(&value) {
                    places.remove(&value);
                }
            }
            None => {
                places.insert(value, merged.len());
                merged.push(Value::Object(item));
            }
        }
    }
    let (order, server) = (Places::of(&order, Some(key)), Places::of(&server, Some(key)));
    let (listed, rest): (Vec<_>, Vec<_>) = merged.into_iter().partition(|item| order.find(item).is_some());
    Ok(ordered(listed, rest, &order, &server))
}

fn merge_scalars(original: Vec<Value>, patch: Vec<Value>) -> Vec<Value> {
    let mut seen: HashSet<&Value> = HashSet::with_capacity(original.len() + patch.len());
    let merged: Vec<&Value> = original.iter().chain(&patch).filter(|item| seen.insert(item)).collect();
    let (order, server) = (Places::of(&patch, None), Places::of(&original, None));
    let (listed, rest): (Vec<_>, Vec<_>) = merged.into_iter().cloned().partition(|item| order.find(item).is_some());
    ordered(listed, rest, &order, &server)
}

enum Special {
    /// `$patch: replace` stood among the elements: the rest of the patch is the list.
    Replaced(Vec<Value>),
    Merge(Vec<Value>, Vec<Value>),
}

/// Elements that carry `$patch` are instructions, not elements.
fn special_elements(mut original: Vec<Value>, patch: Vec<Value>, key: &str) -> Result<Special> {
    let (mut plain, mut replace) = (Vec::with_capacity(patch.len()), false);
    let mut gone: HashSet<Value> = HashSet::new();
    for item in patch {
        let Value::Object(map) = &item else { continue };
        match map.get(DIRECTIVE) {
            None => plain.push(item),
            Some(directive) => match directive.as_str() {
                Some("delete") => {
                    let Some(value) = map.get(key) else { return Err(no_merge_key(map, key)) };
                    gone.insert(value.clone());
                }
                Some("replace") => replace = true,
                Some("merge") => {
                    return Err(Status::bad_request("merging lists cannot yet be specified in the patch"));
                }
                _ => return Err(unknown_directive(directive, map)),
            },
        }
    }
    original.retain(|old| old.get(key).is_none_or(|value| !gone.contains(value)));
    Ok(if replace { Special::Replaced(plain) } else { Special::Merge(original, plain) })
}

fn no_merge_key(item: &Object, key: &str) -> Box<Status> {
    let shown = go::print(&Value::Object(item.clone()));
    Status::bad_request(format!("map: {shown} does not contain declared merge key: {key}"))
}

/// Where each item of a list stands, by its key or as it is: looked up once, since a list may be long.
struct Places<'a> {
    first: HashMap<&'a Value, usize>,
    key: Option<&'a str>,
}

impl<'a> Places<'a> {
    fn of(list: &'a [Value], key: Option<&'a str>) -> Self {
        let mut first = HashMap::with_capacity(list.len());
        for (place, item) in list.iter().enumerate() {
            if let Some(value) = key.map_or(Some(item), |key| item.get(key)) {
                first.entry(value).or_insert(place);
            }
        }
        Self { first, key }
    }

    fn find(&self, item: &Value) -> Option<usize> {
        let value = self.key.map_or(Some(item), |key| item.get(key))?;
        self.first.get(value).copied()
    }
}

/// One list of both: `listed` in the order of `order`, `rest` in the order of the server, each of the
/// rest before the first of the listed that the server has behind it.
fn ordered(mut listed: Vec<Value>, mut rest: Vec<Value>, order: &Places<'_>, server: &Places<'_>) -> Vec<Value> {
    listed.sort_by_cached_key(|item| order.find(item));
    rest.sort_by_cached_key(|item| server.find(item));
    let mut out = Vec::with_capacity(listed.len() + rest.len());
    let (mut listed, mut rest) = (listed.into_iter().peekable(), rest.into_iter().peekable());
    loop {
        let server_first = match (rest.peek(), listed.peek()) {
            (None, None) => return out,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(a), Some(b)) => match (server.find(a), server.find(b)) {
                (Some(a), Some(b)) => a.cmp(&b) == Ordering::Less,
                _ => false,
            },
        };
        out.extend(if server_first { rest.next() } else { listed.next() });
    }
}

/// A value that is new to the object: instructions in it have nothing to act on. `None` when it is one
/// itself.
fn drop_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => {
            Some(Value::Object(map.into_iter().filter_map(|(name, v)| Some((name, drop_directives(v)?))).collect()))
        }
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(drop_directives).collect())),
        other => Some(other),
    }
}

/// The same without nulls, which have nothing to remove.
fn drop_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            Value::Object(map.into_iter().filter(|(_, v)| !v.is_null()).map(|(n, v)| (n, drop_nulls(v))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(drop_nulls).collect()),
        other => other,
    }
}
