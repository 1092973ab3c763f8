//! A configuration as it was sent, held against the schema: is it one, and which fields does it set?
//!
//! It is not decoded: what was said is owned as it was said, also `null`.

use std::collections::HashSet;
use std::fmt::Write;

use serde_json::Value;

use super::element::Element;
use super::fields::{Fields, OWN};
use super::place::Place;
use crate::schema::{Scalar, Shape};

/// What is wrong with a configuration, in upstream's words; `None` when nothing is.
pub(super) fn mistakes(config: &Value, place: Place<'_>) -> Option<String> {
    let mut check = Check { path: String::new(), found: Vec::new() };
    check.value(config, place);
    match &check.found[..] {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("errors:\n  {}", many.join("\n  "))),
    }
}

/// No more mistakes than this are listed.
const MAX_ERRORS: usize = 100;

struct Check {
    path: String,
    found: Vec<String>,
}

impl Check {
    fn wrong(&mut self, what: &str) {
        if self.found.len() < MAX_ERRORS {
            let colon = if self.path.is_empty() { "" } else { ": " };
            self.found.push(format!("{}{colon}{what}", self.path));
        }
    }

    fn below(&mut self, step: &str, check: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        self.path.push_str(step);
        check(self);
        self.path.truncate(length);
    }

    fn field(&mut self, name: &str, check: impl FnOnce(&mut Self)) {
        self.path.push('.');
        self.below(name, check);
        self.path.pop();
    }

    fn value(&mut self, value: &Value, place: Place<'_>) {
        if value.is_null() {
            return;
        }
        match place.shape {
            Shape::Scalar(scalar) => self.scalar(value, scalar),
            Shape::Struct(_) | Shape::Map(_) => {
                if place.is_whole(value) && place.is_open() {
                    return;
                }
                let Value::Object(map) = value else {
                    return self.wrong(&format!("expected map, got &{{{}}}", Go(value)));
                };
                for (name, value) in map {
                    let Some(inner) = place.child(name) else {
                        // Upstream looks at nothing more of this object.
                        return self.field(name, |check| check.wrong("field not declared in schema"));
                    };
                    self.field(name, |check| check.value(value, inner));
                }
            }
            Shape::List(_) => {
                let Value::Array(items) = value else {
                    return self.wrong(&format!("expected list, got &{{{}}}", Go(value)));
                };
                self.list(items, place);
            }
            Shape::Raw | Shape::OrArray(_) | Shape::OrBool(_) | Shape::OrStrings(_) => {}
        }
    }

    fn list(&mut self, items: &[Value], place: Place<'_>) {
        let Some(inner) = place.item() else { return };
        if place.atomic() {
            for (index, item) in items.iter().enumerate() {
                self.below(&format!("[{index}]"), |check| check.value(item, inner));
            }
            return;
        }
        let mut seen = HashSet::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let element = match place.element(item) {
                Ok(element) => element,
                Err(why) => return self.wrong(&format!("element {index}: {why}")),
            };
            let name = element.print();
            if !seen.insert(element) {
                self.wrong(&format!("duplicate entries for key {name}"));
            }
            self.below(&name, |check| check.value(item, inner));
        }
    }

    fn scalar(&mut self, value: &Value, scalar: Scalar) {
        match (scalar, value) {
            (Scalar::Int32 | Scalar::Int64 | Scalar::Float64, Value::Number(_)) => {}
            (Scalar::Int32 | Scalar::Int64 | Scalar::Float64, other) => {
                self.wrong(&format!("expected numeric (int or float), got {}", go_type(other)));
            }
            (Scalar::Bool, Value::Bool(_)) => {}
            (Scalar::Bool, other) => self.wrong(&format!("expected boolean, got &{{{}}}", Go(other))),
            (Scalar::Quantity | Scalar::IntOrString, Value::Object(_) | Value::Array(_)) => {
                self.wrong(&format!("expected any scalar, got &{{{}}}", Go(value)));
            }
            (Scalar::Quantity | Scalar::IntOrString, _) => {}
            (_, Value::String(_)) => {}
            (_, other) => {
                let shown = match other {
                    Value::Object(_) => "map[string]interface {}{...}".to_owned(),
                    Value::Array(_) => "[]interface {}{...}".to_owned(),
                    other => other.to_string(),
                };
                self.wrong(&format!("expected string, got &value.valueUnstructured{{Value:{shown}}}"));
            }
        }
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// A value as Go's `%v` prints it.
struct Go<'v>(&'v Value);

impl std::fmt::Display for Go<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Value::Null => f.write_str("<nil>"),
            Value::Bool(b) => b.fmt(f),
            Value::Number(n) => n.fmt(f),
            Value::String(text) => f.write_str(text),
            Value::Array(items) => {
                f.write_char('[')?;
                for (i, item) in items.iter().enumerate() {
                    f.write_str(if i > 0 { " " } else { "" })?;
                    Self(item).fmt(f)?;
                }
                f.write_char(']')
            }
            Value::Object(map) => {
                f.write_str("map[")?;
                for (i, (name, value)) in map.iter().enumerate() {
                    f.write_str(if i > 0 { " " } else { "" })?;
                    write!(f, "{name}:{}", Self(value))?;
                }
                f.write_char(']')
            }
        }
    }
}

/// The fields a configuration sets. What is at or below one of the paths in `skip` is left out. Items
/// that are called the same count as one.
pub(super) fn fields_of<'a>(config: &'a Value, place: Place<'a>, skip: &[&[&str]]) -> Fields<'a> {
    let mut out = below(config, place, skip);
    out.mark = 0;
    out
}

fn below<'a>(value: &'a Value, place: Place<'a>, skip: &[&[&str]]) -> Fields<'a> {
    let mut out = Fields::default();
    if place.is_whole(value) {
        out.mark = OWN;
        return out;
    }
    match (place.shape, value) {
        (Shape::Struct(_) | Shape::Map(_), Value::Object(map)) => {
            let named = matches!(place.shape, Shape::Struct(_));
            for (name, value) in map {
                let Some(inner) = place.child(name) else { continue };
                let skip: Vec<&[&str]> =
                    skip.iter().filter(|path| path.first() == Some(&name.as_str())).map(|path| &path[1..]).collect();
                if skip.iter().any(|path| path.is_empty()) {
                    continue;
                }
                let mut child = below(value, inner, &skip);
                if !named || value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty) {
                    child.mark = OWN;
                }
                out.push(Element::Field(name.as_str().into()), child);
            }
        }
        (Shape::List(_), Value::Array(items)) => {
            let Some(inner) = place.item() else { return out };
            let mut seen: HashSet<Element<'a>> = HashSet::with_capacity(items.len());
            let mut twice: HashSet<Element<'a>> = HashSet::new();
            let named: Vec<(Element<'a>, &Value)> =
                items.iter().filter_map(|item| Some((place.element(item).ok()?, item))).collect();
            for (element, _) in &named {
                if !seen.insert(element.clone()) {
                    twice.insert(element.clone());
                }
            }
            for (element, item) in named {
                let mut child = if twice.contains(&element) { Fields::default() } else { below(item, inner, &[]) };
                child.mark = OWN;
                out.push(element, child);
            }
        }
        _ => {}
    }
    out.settle();
    out
}
