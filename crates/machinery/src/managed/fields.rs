//! A set of fields, as a tree: what one manager owns, or what a write changed. Its text is `fieldsV1`.
//!
//! ```text
//! {"f:spec":{"f:replicas":{},"f:containers":{"k:{\"name\":\"a\"}":{".":{},"f:image":{}}}}}
//!    has .spec.replicas, .spec.containers[name="a"] itself and .spec.containers[name="a"].image
//! ```
//!
//! A node borrows its name from the schema, from the object or from the text it was read from.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::element::{Element, Unread};

/// A node: how it is itself in the set (0: not at all), and what is below it, in order. No node is
/// empty but the root.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields<'a> {
    pub(super) mark: u8,
    pub(super) below: Vec<(Element<'a>, Fields<'a>)>,
}

/// The mark of a field that is owned.
pub(super) const OWN: u8 = 1;

/// Deeper than any schema nests. The sets stand five levels deep in an object, which must stay readable.
const MAX_DEPTH: usize = crate::decode::MAX_DEPTH - 5;

impl<'a> Fields<'a> {
    /// True when nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.mark == 0 && self.below.is_empty()
    }

    pub(super) fn child(&self, element: &Element<'_>) -> Option<&Self> {
        let found = self.below.binary_search_by(|(e, _)| e.cmp(element)).ok()?;
        Some(&self.below[found].1)
    }

    /// Adds a node below, whose place is not yet known; [`Self::settle`] must follow.
    pub(super) fn push(&mut self, element: Element<'a>, child: Self) {
        if !child.is_empty() {
            self.below.push((element, child));
        }
    }

    /// Puts the nodes below in order, and joins those of one name.
    pub(super) fn settle(&mut self) {
        if self.below.windows(2).all(|pair| pair[0].0 < pair[1].0) {
            return;
        }
        self.below.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let mut out: Vec<(Element<'a>, Self)> = Vec::with_capacity(self.below.len());
        for (element, child) in std::mem::take(&mut self.below) {
            match out.last_mut() {
                Some((last, same)) if *last == element => same.union(&child),
                _ => out.push((element, child)),
            }
        }
        self.below = out;
    }

    /// Adds what is in `other`.
    pub(super) fn union(&mut self, other: &Self) {
        self.mark |= other.mark;
        for (element, theirs) in &other.below {
            match self.below.binary_search_by(|(e, _)| e.cmp(element)) {
                Ok(at) => self.below[at].1.union(theirs),
                Err(at) => self.below.insert(at, (element.clone(), theirs.clone())),
            }
        }
    }

    /// Takes out, path by path, what `other` has with one of the marks. True when that was anything.
    pub(super) fn subtract(&mut self, other: &Fields<'_>, marks: u8) -> bool {
        let mut changed = false;
        if other.mark & marks != 0 && self.mark != 0 {
            self.mark = 0;
            changed = true;
        }
        for (element, theirs) in &other.below {
            if let Ok(at) = self.below.binary_search_by(|(e, _)| e.cmp(element)) {
                let ours = &mut self.below[at].1;
                if ours.subtract(theirs, marks) {
                    changed = true;
                    if ours.is_empty() {
                        self.below.remove(at);
                    }
                }
            }
        }
        changed
    }

    /// What is in this set and has one of the marks in `other`.
    pub(super) fn intersect(&self, other: &Fields<'_>, marks: u8) -> Self {
        let mut out = Self::default();
        if other.mark & marks != 0 {
            out.mark = self.mark;
        }
        for (element, ours) in &self.below {
            if let Some(theirs) = other.child(element) {
                out.push(element.clone(), ours.intersect(theirs, marks));
            }
        }
        out
    }

    /// What has one of the marks, as a set of owned fields.
    pub(super) fn select(mut self, marks: u8) -> Self {
        self.keep(marks);
        self
    }

    fn keep(&mut self, marks: u8) {
        self.mark = if self.mark & marks != 0 { OWN } else { 0 };
        self.below.retain_mut(|(_, child)| {
            child.keep(marks);
            !child.is_empty()
        });
    }

    /// Takes out one path of field names, leaving what is below it.
    pub(super) fn remove_exact(&mut self, path: &[&str]) {
        let [first, rest @ ..] = path else {
            self.mark = 0;
            return;
        };
        let named = |element: &Element<'_>| matches!(element, Element::Field(name) if name == first);
        if let Some(at) = self.below.iter().position(|(element, _)| named(element)) {
            self.below[at].1.remove_exact(rest);
            if self.below[at].1.is_empty() {
                self.below.remove(at);
            }
        }
    }

    /// True when the path of field names is in the set.
    pub(super) fn has(&self, path: &[&str]) -> bool {
        let [first, rest @ ..] = path else { return self.mark != 0 };
        self.child(&Element::Field(Cow::Borrowed(first))).is_some_and(|child| child.has(rest))
    }

    /// The set of one path of field names.
    pub(super) fn of(path: &[&'a str]) -> Self {
        let [first, rest @ ..] = path else { return Self { mark: OWN, below: Vec::new() } };
        Self { mark: 0, below: vec![(Element::Field(Cow::Borrowed(first)), Self::of(rest))] }
    }

    /// Reads `fieldsV1`, either as a tree or as its text; `None` when it is not of that form.
    pub fn read(value: &'a Value) -> Option<Self> {
        match value {
            Value::String(text) => Self::parse(text),
            other => Node { depth: 0 }.deserialize(other).ok().map(Self::root),
        }
    }

    /// Reads the text of `fieldsV1`; `None` when it is not of that form.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let node = Node { depth: 0 }.deserialize(&mut reader).ok()?;
        reader.end().ok()?;
        Some(Self::root(node))
    }

    /// Nobody owns the object as such.
    fn root(mut self) -> Self {
        self.mark = 0;
        self
    }

    /// The text of `fieldsV1`.
    pub fn text(&self) -> String {
        let mut out = String::with_capacity(256);
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        out.push('{');
        let mut first = true;
        if self.mark != 0 && !self.below.is_empty() {
            out.push_str("\".\":{}");
            first = false;
        }
        for (element, child) in &self.below {
            if !std::mem::take(&mut first) {
                out.push(',');
            }
            element.write(out);
            out.push(':');
            child.write(out);
        }
        out.push('}');
    }

    /// The paths in the set as error texts print them, a node's own before what is deeper:
    /// `.spec.replicas`, `.spec.containers[name="a"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect("", &mut out);
        out
    }

    fn collect(&self, prefix: &str, out: &mut Vec<String>) {
        for (element, child) in &self.below {
            if child.mark != 0 {
                out.push(format!("{prefix}{}", element.print()));
            }
        }
        for (element, child) in &self.below {
            if !child.below.is_empty() {
                child.collect(&format!("{prefix}{}", element.print()), out);
            }
        }
    }
}

/// Reads one node.
struct Node {
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Node {
    type Value = Fields<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a set of fields")
    }

    /// A node without anything below is itself in the set.
    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Fields { mark: OWN, below: Vec::new() })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        if self.depth >= MAX_DEPTH {
            return Err(A::Error::custom("too deep"));
        }
        let mut node = Fields::default();
        while let Some(key) = access.next_key_seed(Key)? {
            if key == "." {
                node.mark = OWN;
                access.next_value::<IgnoredAny>()?;
                continue;
            }
            match Element::read(key) {
                Ok(element) => {
                    let child = access.next_value_seed(Self { depth: self.depth + 1 })?;
                    node.push(element, child);
                }
                Err(Unread::Unknown) => drop(access.next_value::<IgnoredAny>()?),
                Err(Unread::Wrong) => return Err(A::Error::custom("not a path element")),
            }
        }
        node.settle();
        if node.below.is_empty() {
            node.mark = OWN;
        }
        Ok(node)
    }
}

/// Reads a key without copying it where that can be.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path element")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text))
    }
}
