//! One entry of `managedFields`: who owns which fields. An entry that a write does not touch keeps its
//! text, and is not even read.

use std::borrow::Cow;
use std::cmp::Ordering;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::Manager;
use super::fields::Fields;
use crate::time;

/// More managers that update than this are merged into one, the oldest first.
pub(super) const MAX_UPDATERS: usize = 10;
const ANCIENT: &str = "ancient-changes";

/// One entry.
#[derive(Clone, Debug)]
pub(super) struct Entry<'a> {
    pub(super) manager: Cow<'a, str>,
    pub(super) apply: bool,
    pub(super) api_version: Cow<'a, str>,
    pub(super) subresource: Cow<'a, str>,
    pub(super) time: Option<Timestamp>,
    /// The fields as they are stored, while nobody has asked for them.
    text: Option<&'a str>,
    fields: Fields<'a>,
    /// What it was read from, while it is still that.
    original: Option<&'a Value>,
}

impl<'a> Entry<'a> {
    /// A new entry of a manager.
    pub(super) fn new(manager: &'a Manager, apply: bool, time: Option<Timestamp>, fields: Fields<'a>) -> Self {
        Self {
            manager: manager.name().into(),
            apply,
            api_version: manager.api_version.as_str().into(),
            subresource: manager.subresource.as_str().into(),
            time,
            text: None,
            fields,
            original: None,
        }
    }

    /// The same identity in another version, with other fields and no time.
    pub(super) fn with(&self, api_version: &'a str, fields: Fields<'a>) -> Self {
        Self { api_version: api_version.into(), time: None, text: None, fields, original: None, ..self.clone() }
    }

    /// Reads the entries of a stored object; none when one cannot be read.
    pub(super) fn stored(object: &'a Value) -> Vec<Self> {
        Self::list(object, |_| true).unwrap_or_default()
    }

    /// Reads the entries that a client sent; `None` when one cannot be read. Only texts of the stored
    /// object are believed to be sets of fields.
    pub(super) fn sent(object: &'a Value, stored: Option<&Value>) -> Option<Vec<Self>> {
        let known = stored.and_then(super::managed_fields);
        let is_known = |text: &str| {
            known.into_iter().flatten().any(|entry| entry.get("fieldsV1").and_then(Value::as_str) == Some(text))
        };
        Self::list(object, is_known)
    }

    /// Of two with one identity the later counts.
    fn list(object: &'a Value, is_known: impl Fn(&str) -> bool) -> Option<Vec<Self>> {
        let mut out: Vec<Self> = Vec::new();
        for value in super::managed_fields(object).into_iter().flatten() {
            let entry = Self::read(value, &is_known)?;
            match out.iter_mut().find(|e| e.same_identity(&entry)) {
                Some(earlier) => *earlier = entry,
                None => out.push(entry),
            }
        }
        Some(out)
    }

    fn read(value: &'a Value, is_known: impl Fn(&str) -> bool) -> Option<Self> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        let apply = match text("operation") {
            "Apply" => true,
            "Update" => false,
            _ => return None,
        };
        if text("apiVersion").is_empty() || text("fieldsType") != "FieldsV1" {
            return None;
        }
        let (unread, fields) = match value.get("fieldsV1") {
            // What this server wrote is read when it is needed.
            Some(Value::String(stored)) if is_known(stored) => (Some(stored.as_str()), Fields::default()),
            Some(fields) => (None, Fields::read(fields)?),
            None => (None, Fields::default()),
        };
        let original = unread.is_some().then_some(value);
        Some(Self {
            manager: text("manager").into(),
            apply,
            api_version: text("apiVersion").into(),
            subresource: text("subresource").into(),
            time: value.get("time").and_then(Value::as_str).and_then(time::parse),
            text: unread,
            fields,
            original,
        })
    }

    /// Entries with the same identity are one. An applier has one in whatever version it applied.
    pub(super) fn same_identity(&self, other: &Self) -> bool {
        self.apply == other.apply
            && self.manager == other.manager
            && self.subresource == other.subresource
            && (self.apply || self.api_version == other.api_version)
    }

    /// Entries are told apart, and sorted where their times do not do it, by this text.
    pub(super) fn identity(&self) -> String {
        let mut map = Vec::with_capacity(4);
        let version = if self.apply { "" } else { self.api_version.as_ref() };
        let operation = if self.apply { "Apply" } else { "Update" };
        let parts = [
            ("manager", &*self.manager),
            ("operation", operation),
            ("apiVersion", version),
            ("subresource", &*self.subresource),
        ];
        for (name, value) in parts {
            if !value.is_empty() {
                map.push(format!("{name:?}:{}", Value::from(value)));
            }
        }
        format!("{{{}}}", map.join(","))
    }

    /// The fields; read now if they have not been.
    pub(super) fn fields(&mut self) -> &mut Fields<'a> {
        if let Some(text) = self.text.take() {
            self.fields = Fields::parse(text).unwrap_or_default();
        }
        &mut self.fields
    }

    /// Adds fields at a time.
    pub(super) fn add(&mut self, fields: &Fields<'a>, at: Option<Timestamp>) {
        self.fields().union(fields);
        self.time = at;
        self.original = None;
    }

    /// Takes out what a write changed.
    pub(super) fn lose(&mut self, changed: &Fields<'_>, marks: u8) {
        if changed.is_empty() {
            return;
        }
        if let Some(text) = self.text {
            // Most writes stay in a part of the object that few own anything in.
            let touches = changed.below.iter().any(|(element, _)| {
                let mut name = String::with_capacity(16);
                element.write(&mut name);
                text.contains(&name)
            });
            if !touches {
                return;
            }
        }
        if self.fields().subtract(changed, marks) {
            self.original = None;
        }
    }

    /// True when it has no fields.
    pub(super) fn is_empty(&self) -> bool {
        self.text.map_or_else(|| self.fields.is_empty(), |text| text == "{}")
    }

    pub(super) fn write(&self) -> Value {
        if let Some(original) = self.original {
            return original.clone();
        }
        let mut map = Map::new();
        let mut text = |key: &str, value: &str| {
            if !value.is_empty() {
                map.insert(key.to_owned(), Value::String(value.to_owned()));
            }
        };
        text("manager", &self.manager);
        text("operation", if self.apply { "Apply" } else { "Update" });
        text("apiVersion", &self.api_version);
        text("subresource", &self.subresource);
        text("fieldsType", "FieldsV1");
        if let Some(at) = self.time {
            text("time", &time::rfc3339(at));
        }
        let fields = self.text.map_or_else(|| self.fields.text(), str::to_owned);
        map.insert("fieldsV1".to_owned(), Value::String(fields));
        Value::Object(map)
    }

    fn seconds(&self) -> i64 {
        self.time.map_or(0, Timestamp::as_second)
    }

    /// Appliers first, then by time and name.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        other
            .apply
            .cmp(&self.apply)
            .then_with(|| self.seconds().cmp(&other.seconds()))
            .then_with(|| self.manager.cmp(&other.manager))
            .then_with(|| self.api_version.cmp(&other.api_version))
            .then_with(|| self.subresource.cmp(&other.subresource))
    }
}

/// Merges the oldest updaters of a version into one until there are no more than [`MAX_UPDATERS`].
pub(super) fn cap(entries: &mut Vec<Entry<'_>>) {
    let mut count = entries.iter().filter(|e| !e.apply).count();
    if count <= MAX_UPDATERS {
        return;
    }
    let (mut out, mut updaters): (Vec<_>, Vec<_>) = std::mem::take(entries).into_iter().partition(|e| e.apply);
    updaters.sort_by(|a, b| a.seconds().cmp(&b.seconds()).then_with(|| a.identity().cmp(&b.identity())));
    let mut kept: Vec<Entry<'_>> = Vec::with_capacity(updaters.len());
    for mut entry in updaters {
        let first = kept.iter_mut().find(|e| e.api_version == entry.api_version);
        match first {
            Some(first) if count > MAX_UPDATERS => {
                let at = entry.time;
                first.add(entry.fields(), at);
                first.manager = ANCIENT.into();
                first.subresource = "".into();
                count -= 1;
            }
            _ => match kept.iter_mut().find(|e| e.same_identity(&entry)) {
                Some(ancient) => {
                    let at = entry.time;
                    ancient.add(entry.fields(), at);
                }
                None => kept.push(entry),
            },
        }
    }
    out.append(&mut kept);
    *entries = out;
}
