//! A set of fields, as a tree: what one manager owns. Its JSON is `fieldsV1`.
//!
//! ```text
//! {"f:spec":{"f:replicas":{},"f:containers":{"k:{\"name\":\"a\"}":{".":{},"f:image":{}}}}}
//!    owns .spec.replicas, .spec.containers[name="a"] itself and .spec.containers[name="a"].image
//! ```

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A node of the tree: whether it is itself in the set, and what is below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields {
    pub(super) own: bool,
    pub(super) below: BTreeMap<String, Fields>,
}

/// Deeper than any schema nests.
const MAX_DEPTH: usize = 128;

impl Fields {
    /// True when nothing is in the set.
    pub fn is_empty(&self) -> bool {
        !self.own && self.below.is_empty()
    }

    pub(super) fn insert(&mut self, path: &[String]) {
        match path {
            [] => self.own = true,
            // Most paths share their start with the one before: no copy of the element is made then.
            [first, rest @ ..] => match self.below.get_mut(first) {
                Some(child) => child.insert(rest),
                None => self.below.entry(first.clone()).or_default().insert(rest),
            },
        }
    }

    pub(super) fn union(&mut self, other: &Self) {
        self.own |= other.own;
        for (element, theirs) in &other.below {
            match self.below.get_mut(element) {
                Some(ours) => ours.union(theirs),
                None => {
                    self.below.insert(element.clone(), theirs.clone());
                }
            }
        }
    }

    /// Takes out what is in `other`, path by path.
    pub(super) fn subtract(&mut self, other: &Self) {
        self.own &= !other.own;
        for (element, theirs) in &other.below {
            if let Some(ours) = self.below.get_mut(element) {
                ours.subtract(theirs);
                if ours.is_empty() {
                    self.below.remove(element);
                }
            }
        }
    }

    /// What is in both.
    pub(super) fn intersect(&self, other: &Self) -> Self {
        let mut out = Self { own: self.own && other.own, below: BTreeMap::new() };
        for (element, ours) in &self.below {
            if let Some(theirs) = other.below.get(element) {
                let both = ours.intersect(theirs);
                if !both.is_empty() {
                    out.below.insert(element.clone(), both);
                }
            }
        }
        out
    }

    /// Takes out a path and all below it.
    pub(super) fn remove_below(&mut self, path: &[&str]) {
        match path {
            [] => {}
            [last] => {
                self.below.remove(*last);
            }
            [first, rest @ ..] => {
                if let Some(child) = self.below.get_mut(*first) {
                    child.remove_below(rest);
                    if child.is_empty() {
                        self.below.remove(*first);
                    }
                }
            }
        }
    }

    /// Takes out one path, leaving what is below it.
    pub(super) fn remove_exact(&mut self, path: &[&str]) {
        match path {
            [] => self.own = false,
            [first, rest @ ..] => {
                if let Some(child) = self.below.get_mut(*first) {
                    child.remove_exact(rest);
                    if child.is_empty() {
                        self.below.remove(*first);
                    }
                }
            }
        }
    }

    /// Reads `fieldsV1`; `None` when it is not of that form.
    pub fn from_json(value: &Value) -> Option<Self> {
        let map = value.as_object()?;
        let mut root = Self::default();
        for (element, child) in map {
            if element == "." {
                root.own = true;
            } else {
                root.below.insert(element.clone(), Self::read(child, 0)?);
            }
        }
        Some(root)
    }

    fn read(value: &Value, depth: usize) -> Option<Self> {
        let map = value.as_object().filter(|_| depth < MAX_DEPTH)?;
        let mut node = Self { own: map.is_empty(), below: BTreeMap::new() };
        for (element, child) in map {
            match element.as_bytes() {
                b"." => node.own = true,
                [b'f' | b'k' | b'v' | b'i', b':', ..] => {
                    node.below.insert(element.clone(), Self::read(child, depth + 1)?);
                }
                _ => return None,
            }
        }
        Some(node)
    }

    /// Writes `fieldsV1`.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.own && !self.below.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (element, child) in &self.below {
            map.insert(element.clone(), child.to_json());
        }
        Value::Object(map)
    }

    /// The paths in the set as error texts print them: `.spec.containers[name="a"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect(&mut String::new(), &mut out);
        out
    }

    fn collect(&self, prefix: &mut String, out: &mut Vec<String>) {
        if self.own {
            out.push(prefix.clone());
        }
        for (element, child) in &self.below {
            let length = prefix.len();
            prefix.push_str(&print(element));
            child.collect(prefix, out);
            prefix.truncate(length);
        }
    }
}

fn print(element: &str) -> String {
    let (kind, rest) = element.split_at_checked(2).unwrap_or((element, ""));
    match kind {
        "f:" => format!(".{rest}"),
        "v:" => format!("[={rest}]"),
        "i:" => format!("[{rest}]"),
        "k:" => match serde_json::from_str::<Map<String, Value>>(rest) {
            Ok(keys) => {
                let keys: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={v}")).collect();
                format!("[{}]", keys.join(","))
            }
            Err(_) => format!("[{rest}]"),
        },
        _ => element.to_owned(),
    }
}
