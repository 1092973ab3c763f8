//! RFC 6902 as upstream applies it: an index may be negative and counts from the end, `replace` and `copy`
//! need nothing to be there in an object, and what stands before the first slash of a path is ignored.
//!
//! ```text
//! {"a":[1,2]}   add /a/0 0    ──► {"a":[0,1,2]}
//!               add /a/- 3    ──► {"a":[0,1,2,3]}
//!               remove /a/-1  ──► {"a":[0,1,2]}
//! ```
//!
//! The work is bounded: `copy` and `move` can build huge or very deep trees out of a small patch, and
//! every change at the front of a list moves all that stands behind.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::{MAX_OPERATIONS, type_name, unprocessable};
use crate::decode::{MAX_BYTES, MAX_DEPTH};
use crate::go;
use crate::status::{Result, Status};

/// Values that operations may look through altogether, to know how deep and how large they are.
const MAX_VISITED: usize = 500_000;
/// Elements of lists that operations may move altogether.
const MAX_MOVED: usize = 20_000_000;
/// No more mistakes than this are listed.
const MAX_ERRORS: usize = 100;

/// A JSON patch, read.
#[derive(Debug)]
pub struct JsonPatch {
    operations: Vec<Operation>,
    /// Members that no operation has or that are there twice, as texts.
    pub errors: Vec<String>,
}

#[derive(Debug)]
struct Operation {
    op: Option<String>,
    path: Option<String>,
    from: Option<String>,
    value: Option<Value>,
}

/// An operation's members as they stand in the text.
struct Members(Vec<(String, Value)>);

enum Item {
    Members(Members),
    Other(Value),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Item;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an operation")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> std::result::Result<Item, A::Error> {
                let mut members = Vec::with_capacity(access.size_hint().unwrap_or(3).min(8));
                while let Some(member) = access.next_entry()? {
                    members.push(member);
                }
                Ok(Item::Members(Members(members)))
            }
            fn visit_unit<E>(self) -> std::result::Result<Item, E> {
                Ok(Item::Other(Value::Null))
            }
            fn visit_bool<E>(self, value: bool) -> std::result::Result<Item, E> {
                Ok(Item::Other(value.into()))
            }
            fn visit_u64<E>(self, value: u64) -> std::result::Result<Item, E> {
                Ok(Item::Other(value.into()))
            }
            fn visit_i64<E>(self, value: i64) -> std::result::Result<Item, E> {
                Ok(Item::Other(value.into()))
            }
            fn visit_f64<E>(self, value: f64) -> std::result::Result<Item, E> {
                Ok(Item::Other(value.into()))
            }
            fn visit_str<E>(self, value: &str) -> std::result::Result<Item, E> {
                Ok(Item::Other(value.into()))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut access: A) -> std::result::Result<Item, A::Error> {
                while access.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                Ok(Item::Other(Value::Array(Vec::new())))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl JsonPatch {
    /// Reads a patch. With `checked`, its members are checked like those of any other object.
    ///
    /// # Errors
    /// 400 for what is no patch, 413 for one with too many operations. (What is no JSON at all: see
    /// [`super::check_syntax`].)
    pub fn parse(bytes: &[u8], checked: bool) -> Result<Self> {
        let bytes = &*crate::decode::mend(bytes);
        let of_type = |found: &str, checked_type: &str, plain_type: &str| {
            let (prefix, go_type) = if checked { ("error decoding patch: ", checked_type) } else { ("", plain_type) };
            Status::bad_request(format!("{prefix}json: cannot unmarshal {found} into Go value of type {go_type}"))
        };
        let items: Vec<Item> = match serde_json::from_slice(bytes) {
            Ok(items) => items,
            Err(error) => match serde_json::from_slice::<Value>(bytes) {
                Ok(Value::Null) => Vec::new(),
                Ok(Value::Array(_)) | Err(_) => {
                    return Err(Status::bad_request(format!("error decoding patch: {error}")));
                }
                Ok(other) => return Err(of_type(type_name(&other), "[]handlers.jsonPatchOp", "jsonpatch.Patch")),
            },
        };
        let mut patch = Self { operations: Vec::with_capacity(items.len().min(MAX_OPERATIONS)), errors: Vec::new() };
        let count = items.len();
        for (index, item) in items.into_iter().enumerate() {
            let members = match item {
                Item::Members(Members(members)) => members,
                Item::Other(Value::Null) => Vec::new(),
                Item::Other(other) => {
                    return Err(of_type(type_name(&other), "handlers.jsonPatchOp", "jsonpatch.Operation"));
                }
            };
            let operation = patch.operation(index, members, checked)?;
            if index < MAX_OPERATIONS {
                patch.operations.push(operation);
            }
        }
        if count > MAX_OPERATIONS {
            let text = format!(
                "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}"
            );
            return Err(Status::new(413, "RequestEntityTooLarge", text));
        }
        Ok(patch)
    }

    fn operation(&mut self, index: usize, members: Vec<(String, Value)>, checked: bool) -> Result<Operation> {
        let mut operation = Operation { op: None, path: None, from: None, value: None };
        let mut seen: Vec<String> = Vec::with_capacity(4);
        for (name, value) in members {
            let wrong = match name.as_str() {
                "op" | "path" | "from" if checked && !value.is_string() && !value.is_null() => true,
                "op" => {
                    operation.op = value.as_str().map(str::to_owned);
                    false
                }
                "path" => {
                    operation.path = value.as_str().map(str::to_owned);
                    false
                }
                "from" => {
                    operation.from = value.as_str().map(str::to_owned);
                    false
                }
                "value" => {
                    operation.value = Some(value.clone());
                    false
                }
                _ => {
                    self.mistake("unknown", index, &name);
                    continue;
                }
            };
            if wrong {
                return Err(Status::bad_request(format!(
                    "error decoding patch: json: cannot unmarshal {} into Go struct field jsonPatchOp.{name} of type \
                     string",
                    type_name(&value)
                )));
            }
            if seen.contains(&name) {
                self.mistake("duplicate", index, &name);
            } else {
                seen.push(name);
            }
        }
        Ok(operation)
    }

    fn mistake(&mut self, what: &str, index: usize, name: &str) {
        let text = format!("json patch {what} field {}", go::quote(&format!("[{index}].{name}")));
        if self.errors.len() < MAX_ERRORS && !self.errors.contains(&text) {
            self.errors.push(text);
        }
    }

    /// Applies the operations in turn; when one cannot be applied, the object stays as it was.
    ///
    /// # Errors
    /// 422.
    pub fn apply(&self, object: &mut Value) -> Result<()> {
        let mut work = object.clone();
        let mut spent = Spent::default();
        for operation in &self.operations {
            run(&mut work, operation, &mut spent).ok_or_else(unprocessable)?;
        }
        *object = work;
        Ok(())
    }
}

/// Applies one operation; `None` when it cannot be.
fn run(object: &mut Value, operation: &Operation, spent: &mut Spent) -> Option<()> {
    let path = operation.path.as_deref();
    let value = || operation.value.clone().unwrap_or_default();
    match operation.op.as_deref()? {
        "add" => {
            let path = path?;
            spent.look(operation.value.as_ref().unwrap_or(&Value::Null), path, false)?;
            add(object, path, value(), spent)
        }
        "remove" => remove(object, path?, spent).map(drop),
        "replace" if path.is_some_and(str::is_empty) => {
            let value = value();
            spent.look(&value, "", false)?;
            (value.is_object() || value.is_array()).then(|| *object = value)
        }
        "replace" => {
            let path = path?;
            spent.look(operation.value.as_ref().unwrap_or(&Value::Null), path, false)?;
            let (container, key) = find(object, path)?;
            match container {
                Value::Object(map) => drop(map.insert(key, value())),
                Value::Array(items) => {
                    let at = index(&key, items.len())?;
                    *items.get_mut(at)? = value();
                }
                _ => return None,
            }
            Some(())
        }
        "move" => {
            let (from, path) = (operation.from.as_deref()?, path?);
            let value = remove(object, from, spent)?;
            spent.look(&value, path, false)?;
            add(object, path, value, spent)
        }
        "copy" => {
            let (from, path) = (operation.from.as_deref()?, path?);
            let value = get(object, from)?;
            spent.look(value.unwrap_or(&Value::Null), path, true)?;
            let value = value.cloned().unwrap_or_default();
            add(object, path, value, spent)
        }
        "test" => {
            let wanted = operation.value.as_ref().filter(|v| !v.is_null());
            let found = if path?.is_empty() { Some(&*object) } else { get(object, path?)? };
            (found.filter(|v| !v.is_null()) == wanted).then_some(())
        }
        _ => None,
    }
}

/// The steps of a path, unescaped: what stands between slashes behind the first.
fn steps(path: &str) -> impl Iterator<Item = String> + '_ {
    path.split('/').skip(1).map(|step| if step.contains('~') { unescape(step) } else { step.to_owned() })
}

fn unescape(step: &str) -> String {
    let mut out = String::with_capacity(step.len());
    let mut rest = step;
    while let Some(at) = rest.find('~') {
        out.push_str(&rest[..at]);
        let (replaced, used) = match rest.as_bytes().get(at + 1) {
            Some(b'1') => ('/', 2),
            Some(b'0') => ('~', 2),
            _ => ('~', 1),
        };
        out.push(replaced);
        rest = &rest[at + used..];
    }
    out.push_str(rest);
    out
}

/// A place in a list of this length; negative ones count from its end.
fn index(step: &str, length: usize) -> Option<usize> {
    let number: i64 = step.parse().ok()?;
    let length = i64::try_from(length).ok()?;
    let place = if number < 0 { number + length } else { number };
    usize::try_from(place).ok()
}

/// The container that the path's last step is in, and that step.
fn find<'v>(object: &'v mut Value, path: &str) -> Option<(&'v mut Value, String)> {
    let mut steps: Vec<String> = steps(path).collect();
    let last = steps.pop()?;
    let mut at = object;
    for step in steps {
        at = match at {
            Value::Object(map) => map.get_mut(&step)?,
            Value::Array(items) => {
                let place = index(&step, items.len())?;
                items.get_mut(place)?
            }
            _ => return None,
        };
    }
    Some((at, last))
}

/// What stands at a path; nothing may stand in an object, but not in a list.
fn get<'v>(object: &'v Value, path: &str) -> Option<Option<&'v Value>> {
    let mut steps: Vec<String> = steps(path).collect();
    let last = steps.pop()?;
    let mut at = object;
    for step in steps {
        at = match at {
            Value::Object(map) => map.get(&step)?,
            Value::Array(items) => items.get(index(&step, items.len())?)?,
            _ => return None,
        };
    }
    match at {
        Value::Object(map) => Some(map.get(&last)),
        Value::Array(items) => Some(Some(items.get(index(&last, items.len())?)?)),
        _ => None,
    }
}

fn add(object: &mut Value, path: &str, value: Value, spent: &mut Spent) -> Option<()> {
    let (container, key) = find(object, path)?;
    match container {
        Value::Object(map) => drop(map.insert(key, value)),
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            let at = index(&key, items.len() + 1).filter(|at| *at <= items.len())?;
            spent.shift(items.len() - at)?;
            items.insert(at, value);
        }
        _ => return None,
    }
    Some(())
}

fn remove(object: &mut Value, path: &str, spent: &mut Spent) -> Option<Value> {
    let (container, key) = find(object, path)?;
    match container {
        Value::Object(map) => Map::remove(map, &key),
        Value::Array(items) => {
            let at = index(&key, items.len()).filter(|at| *at < items.len())?;
            spent.shift(items.len() - at)?;
            Some(items.remove(at))
        }
        _ => None,
    }
}

/// What the operations have cost so far.
#[derive(Default)]
struct Spent {
    copied: usize,
    visited: usize,
    moved: usize,
}

impl Spent {
    fn shift(&mut self, elements: usize) -> Option<()> {
        self.moved += elements;
        (self.moved <= MAX_MOVED).then_some(())
    }

    /// Refuses a value that would make the tree too large or too deep at the path.
    fn look(&mut self, value: &Value, path: &str, copies: bool) -> Option<()> {
        let mut pending = vec![(value, path.matches('/').count())];
        while let Some((value, depth)) = pending.pop() {
            self.visited += 1;
            if depth > MAX_DEPTH || self.visited > MAX_VISITED {
                return None;
            }
            let size = match value {
                Value::Array(items) => {
                    pending.extend(items.iter().map(|v| (v, depth + 1)));
                    items.len()
                }
                Value::Object(map) => {
                    pending.extend(map.values().map(|v| (v, depth + 1)));
                    map.keys().map(|k| k.len() + 4).sum()
                }
                Value::String(text) => text.len() + 2,
                Value::Null | Value::Bool(_) | Value::Number(_) => 4,
            };
            self.copied += if copies { size } else { 0 };
            if self.copied > MAX_BYTES {
                return None;
            }
        }
        Some(())
    }
}
