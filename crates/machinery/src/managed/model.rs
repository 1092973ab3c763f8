//! Random managers applying, forcing, updating and removing, against a slow and plain model of the
//! rules: an object is a flat list of paths, what a manager owns is a set of paths.
//!
//! The model shares nothing with the code it checks but the types of JSON. It knows its schema a second
//! time, as text; what goes when a manager no longer applies it is found the long way round: by taking
//! everything away and putting back what others own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Manager, apply, expand, update};
use crate::schema::{Table, Type};
use crate::{decode, encode};

const TABLE: &str = "\
package apps/v1 apps
type Thing
 (TypeMeta) - meta/v1.TypeMeta -
 metadata 1 meta/v1.ObjectMeta oi
 spec 2 Spec oi
 status 3 Inner oi
type Spec
 number 1 int32 opi
 text 2 string oi
 set 3 []string oi set
 ports 4 []Port oi keys=port,protocol
 items 5 []Item oi keys=name
 whole 6 []string oi
 selector 7 Selector opi
 labels 8 map[string]string oi
 inner 9 Inner opi
 inners 10 map[string]Inner oi
 always 11 Inner -
type Selector atomic
 labels 1 map[string]string oi
type Inner
 a 1 string oi
 b 2 int32 opi
 deep 3 Inner opi
type Item
 name 1 string -
 value 2 string oi
 ports 3 []Port oi keys=port,protocol
 inner 4 Inner opi
 tags 5 []string oi set
type Port
 port 1 int32 -
 protocol 2 string oi default=\"TCP\"
 name 3 string oi
package meta/v1 meta.k8s.io
type ObjectMeta
 name 1 string oi
 labels 11 map[string]string oi
 finalizers 14 []string oi merge set
 managedFields 17 []ManagedFieldsEntry oi
type ManagedFieldsEntry
 manager 1 string oi
 operation 2 string oi
 apiVersion 3 string oi
 time 4 meta/v1.Time opi
 fieldsType 6 string oi
 fieldsV1 7 meta/v1.FieldsV1 opi
 subresource 8 string oi
type TypeMeta
 kind 1 string oi
 apiVersion 2 string oi
";

fn thing() -> Type {
    let table = Arc::new(Table::parse(TABLE).expect("the table parses"));
    table.of("apps", "v1", "Thing").expect("Thing")
}

/// The fields of the model's types: a name, and `leaf`, `map TYPE`, `set`, `list TYPE KEY…` or a type.
fn fields(of: &str) -> &'static [(&'static str, &'static str)] {
    match of {
        "Thing" => {
            &[("kind", "leaf"), ("apiVersion", "leaf"), ("metadata", "Metadata"), ("spec", "Spec"), ("status", "Inner")]
        }
        "Metadata" => &[("name", "leaf"), ("labels", "map leaf"), ("finalizers", "set")],
        "Spec" => &[
            ("number", "leaf"),
            ("text", "leaf"),
            ("set", "set"),
            ("ports", "list Port port protocol"),
            ("items", "list Item name"),
            ("whole", "leaf"),
            ("selector", "leaf"),
            ("labels", "map leaf"),
            ("inner", "Inner"),
            ("inners", "map Inner"),
            ("always", "Inner"),
        ],
        "Inner" => &[("a", "leaf"), ("b", "leaf"), ("deep", "Inner")],
        "Item" => &[
            ("name", "leaf"),
            ("value", "leaf"),
            ("ports", "list Port port protocol"),
            ("inner", "Inner"),
            ("tags", "set"),
        ],
        "Port" => &[("port", "leaf"), ("protocol", "leaf"), ("name", "leaf")],
        other => panic!("{other} is no type"),
    }
}

/// Steps from the root, as `fieldsV1` names them; a field of a struct begins with `s:` here.
type Path = Vec<String>;
type Paths = BTreeSet<Path>;

/// What is at a path.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    /// A value that is owned as a whole, or `null` in the place of one that is not.
    Leaf(Value),
    Struct,
    Map,
    List,
}

type Flat = BTreeMap<Path, Node>;

fn flatten(value: &Value, kind: &str, at: &Path, out: &mut Flat) {
    let step = |text: String| [&at[..], &[text]].concat();
    let (head, rest) = kind.split_once(' ').unwrap_or((kind, ""));
    match (head, value) {
        ("leaf", value) | (_, value @ Value::Null) => drop(out.insert(at.clone(), Node::Leaf(value.clone()))),
        ("map", Value::Object(map)) => {
            out.insert(at.clone(), Node::Map);
            map.iter().for_each(|(key, value)| flatten(value, rest, &step(format!("f:{key}")), out));
        }
        ("set", Value::Array(items)) => {
            out.insert(at.clone(), Node::List);
            items.iter().for_each(|item| flatten(item, "leaf", &step(format!("v:{item}")), out));
        }
        ("list", Value::Array(items)) => {
            out.insert(at.clone(), Node::List);
            let mut words = rest.split(' ');
            let item = words.next().unwrap_or_default();
            let keys: Vec<&str> = words.collect();
            for value in items {
                let mut named = Map::new();
                for key in &keys {
                    let default = if *key == "protocol" { json!("TCP") } else { Value::Null };
                    named.insert((*key).to_owned(), value.get(key).cloned().unwrap_or(default));
                }
                flatten(value, item, &step(format!("k:{}", Value::Object(named))), out);
            }
        }
        (_, Value::Object(map)) => {
            out.insert(at.clone(), Node::Struct);
            for (name, kind) in fields(head) {
                if let Some(value) = map.get(*name) {
                    flatten(value, kind, &step(format!("s:{name}")), out);
                }
            }
        }
        (kind, value) => panic!("{value} is no {kind}"),
    }
}

fn flat(object: &Value) -> Flat {
    let mut out = Flat::new();
    flatten(object, "Thing", &Path::new(), &mut out);
    out
}

fn below<'f>(flat: &'f Flat, path: &Path) -> impl Iterator<Item = &'f Path> {
    let path = path.clone();
    flat.keys().filter(move |p| p.len() > path.len() && p[..path.len()] == path[..])
}

/// The fields that an object sets.
fn set_of(flat: &Flat) -> Paths {
    let own = |(path, node): (&Path, &Node)| {
        let last = path.last()?;
        let empty = below(flat, path).next().is_none();
        let named = last.starts_with("s:");
        let own = match node {
            Node::Leaf(_) => true,
            Node::Struct | Node::Map => empty || !named,
            Node::List => !named,
        };
        own.then(|| path.clone())
    };
    flat.iter().filter_map(own).collect()
}

/// With the named fields that lead to others.
fn with_named(set: &Paths) -> Paths {
    let mut out = set.clone();
    for path in set {
        for end in 1..path.len() {
            if path[end - 1].starts_with("s:") {
                out.insert(path[..end].to_vec());
            }
        }
    }
    out
}

/// Without the paths in `gone` and all below them; what was emptied by that is null.
fn without(from: &Flat, gone: &Paths) -> Flat {
    let starts = |path: &Path, set: &Paths| (1..=path.len()).any(|end| set.contains(&path[..end]));
    let mut out: Flat = from.iter().filter(|(p, _)| !starts(p, gone)).map(|(p, n)| (p.clone(), n.clone())).collect();
    let emptied: Vec<Path> = out
        .iter()
        .filter(|(path, node)| !matches!(node, Node::Leaf(_)) && below(&out, path).next().is_none())
        .filter(|(path, _)| gone.iter().any(|g| g.len() > path.len() && g[..path.len()] == path[..]))
        .map(|(path, _)| path.clone())
        .collect();
    for path in emptied {
        out.insert(path, Node::Leaf(Value::Null));
    }
    out
}

fn minus(a: &Paths, b: &Paths) -> Paths {
    a.difference(b).cloned().collect()
}

fn plus(a: &Paths, b: &Paths) -> Paths {
    a.union(b).cloned().collect()
}

/// Paths that are new or other, and paths that are gone. What loses all it contained is not other for
/// that.
fn difference(old: &Flat, new: &Flat) -> (Paths, Paths) {
    let other = |(path, node): &(&Path, &Node)| {
        !path.is_empty()
            && match (old.get(*path), node) {
                (Some(Node::Struct | Node::Map | Node::List), Node::Leaf(_)) => below(old, path).next().is_none(),
                (there, node) => there != Some(*node),
            }
    };
    let taken = new.iter().filter(other).map(|(path, _)| path.clone()).collect();
    let gone = old.keys().filter(|path| !new.contains_key(*path)).cloned().collect();
    (taken, gone)
}

/// `config` laid over `live`.
fn laid(live: &Flat, config: &Flat) -> Flat {
    let mut out = live.clone();
    for (path, node) in config {
        let there = live.get(path);
        let full = below(live, path).next().is_some();
        match (node, there) {
            // Null takes the place of a value, not of what something contains.
            (Node::Leaf(Value::Null), Some(Node::Struct | Node::Map | Node::List)) if full => {}
            (Node::Leaf(_), _) => drop(out.insert(path.clone(), node.clone())),
            (_, None | Some(Node::Leaf(_))) => drop(out.insert(path.clone(), node.clone())),
            _ => {}
        }
    }
    out
}

/// Manager and operation: what is owned, and since when.
type Owners = BTreeMap<(String, &'static str), (Paths, i64)>;

fn stripped(set: Paths) -> Paths {
    let unowned: [&[&str]; 4] = [&["s:kind"], &["s:apiVersion"], &["s:metadata"], &["s:metadata", "s:name"]];
    set.into_iter().filter(|path| !unowned.iter().any(|u| path == u)).collect()
}

/// The main door has nothing to say about status.
fn main_part(set: Paths) -> Paths {
    set.into_iter().filter(|path| path.first().is_none_or(|first| first != "s:status")).collect()
}

#[derive(Clone, Default)]
struct Model {
    object: Option<Value>,
    owners: Owners,
}

/// What an object of which nothing is known looks like.
fn nothing() -> Flat {
    flat(&canonical(&json!({})))
}

impl Model {
    fn live(&self) -> Flat {
        self.object.as_ref().map_or_else(nothing, flat)
    }

    fn updated(&mut self, manager: &str, new: &Value, now: i64) {
        let create = self.object.is_none();
        let (taken, gone) = difference(&self.live(), &flat(new));
        let (taken, gone) = (main_part(taken), main_part(gone));
        if create || !self.owners.is_empty() {
            for (set, _) in self.owners.values_mut() {
                *set = minus(&minus(set, &taken), &gone);
            }
            let own = stripped(taken);
            if !own.is_empty() {
                let entry = self.owners.entry((manager.to_owned(), "Update")).or_default();
                *entry = (plus(&entry.0, &own), now);
            }
            self.owners.retain(|_, (set, _)| !set.is_empty());
        }
        self.object = Some(new.clone());
    }

    /// The object after an apply, or the conflicts: manager, operation, path.
    fn applied(
        &mut self,
        manager: &str,
        config: &Value,
        force: bool,
        now: i64,
    ) -> Result<Flat, BTreeSet<(String, &'static str, String)>> {
        let (live, config) = (self.live(), flat(config));
        // What is created holds what the configuration says and nothing else.
        let mut merged = laid(&self.object.as_ref().map_or_else(|| flat(&json!({})), flat), &config);
        let own = main_part(set_of(&config));
        let key = (manager.to_owned(), "Apply");
        let mut rest = self.owners.clone();
        if self.object.is_some() && rest.is_empty() {
            // What was there before anybody was written down.
            let own = stripped(main_part(difference(&nothing(), &live).0));
            rest.insert(("before-first-apply".to_owned(), "Update"), (own, now));
        }
        let before = rest.remove(&key);
        if let Some((last, _)) = &before {
            let last = with_named(last);
            let owned = rest.values().fold(own.clone(), |all, (set, _)| plus(&all, set));
            let all = with_named(&set_of(&merged));
            let bare = without(&merged, &last);
            let kept = plus(&with_named(&set_of(&bare)), &with_named(&owned));
            let back = without(&merged, &minus(&all, &kept));
            let lost = minus(&all, &with_named(&set_of(&back)));
            merged = without(&merged, &lost.intersection(&last).cloned().collect());
        }
        let (taken, gone) = difference(&live, &merged);
        let (taken, gone) = (main_part(taken), main_part(gone));
        let mut conflicts = BTreeSet::new();
        for ((other, operation), (set, _)) in &rest {
            for path in set.intersection(&taken) {
                conflicts.insert((other.clone(), *operation, print(path)));
            }
        }
        if !force && !conflicts.is_empty() {
            return Err(conflicts);
        }
        for (set, _) in rest.values_mut() {
            *set = minus(&minus(set, &taken), &gone);
        }
        rest.insert(key, (stripped(own), before.map_or(0, |(_, time)| time)));
        rest.retain(|_, (set, _)| !set.is_empty());
        self.owners = rest;
        Ok(merged)
    }
}

fn print(path: &Path) -> String {
    let step = |step: &String| match step.split_at(2) {
        ("k:", keys) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).expect("keys");
            format!("[{}]", keys.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(","))
        }
        ("v:", value) => format!("[={value}]"),
        (_, name) => format!(".{name}"),
    };
    path.iter().map(step).collect()
}

/// What the object says of its owners, in the model's form.
fn owners_of(object: &Value) -> Owners {
    fn collect(tree: &Value, at: &Path, out: &mut Paths) {
        for (name, child) in tree.as_object().into_iter().flatten() {
            if name == "." {
                continue;
            }
            let path = [&at[..], std::slice::from_ref(name)].concat();
            let map = child.as_object().expect("a tree");
            if map.is_empty() || map.contains_key(".") {
                out.insert(path.clone());
            }
            collect(child, &path, out);
        }
    }
    let mut object = object.clone();
    expand(&mut object);
    let list = object.pointer("/metadata/managedFields").and_then(Value::as_array).cloned().unwrap_or_default();
    let one = |entry: &Value| {
        let mut set = Paths::new();
        collect(&entry["fieldsV1"], &Path::new(), &mut set);
        let time: Option<Timestamp> = entry["time"].as_str().and_then(|text| text.parse().ok());
        let operation = if entry["operation"] == "Apply" { "Apply" } else { "Update" };
        let name = entry["manager"].as_str().unwrap_or_default().to_owned();
        ((name, operation), (set, time.map_or(0, Timestamp::as_second)))
    };
    list.iter().map(one).collect()
}

/// The model's owners with steps as they are written.
fn as_written(owners: &Owners) -> Owners {
    let step = |step: &String| step.strip_prefix("s:").map_or_else(|| step.clone(), |name| format!("f:{name}"));
    let paths = |set: &Paths| set.iter().map(|path| path.iter().map(step).collect()).collect();
    owners.iter().map(|(key, (set, time))| (key.clone(), (paths(set), *time))).collect()
}

/// As it is stored and read again.
fn canonical(object: &Value) -> Value {
    let schema = thing();
    let decoded = decode::tree(object.clone(), &schema, decode::Strictness::Ignore).expect("decodes").value;
    super::from_slice(&encode::json(&decoded, &schema)).expect("reads")
}

fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// A stream of choices.
struct Choices<'c> {
    left: std::slice::Iter<'c, u8>,
    nulls: bool,
}

impl Choices<'_> {
    fn pick(&mut self, of: u8) -> u8 {
        self.left.next().copied().unwrap_or(0) % of
    }

    fn word(&mut self) -> Value {
        json!(["x", "y", "z"][usize::from(self.pick(3))])
    }

    /// Some of the names, in some order.
    fn names(&mut self) -> Vec<&'static str> {
        let orders: [&[&str]; 8] =
            [&[], &["a"], &["b"], &["a", "b"], &["b", "a"], &["c", "a"], &["a", "b", "c"], &["c", "b", "a"]];
        orders[usize::from(self.pick(8))].to_vec()
    }

    fn add(&mut self, map: &mut Map<String, Value>, name: &str, of: u8, value: impl FnOnce(&mut Self) -> Value) {
        match self.pick(of) {
            0 => {
                let value = value(self);
                map.insert(name.to_owned(), value);
            }
            1 if self.nulls && self.pick(4) == 0 => drop(map.insert(name.to_owned(), Value::Null)),
            _ => {}
        }
    }

    fn inner(&mut self, depth: u8) -> Value {
        let mut map = Map::new();
        self.add(&mut map, "a", 2, Self::word);
        self.add(&mut map, "b", 2, |c| json!(c.pick(3)));
        if depth > 0 {
            self.add(&mut map, "deep", 2, |c| c.inner(depth - 1));
        }
        Value::Object(map)
    }

    fn ports(&mut self) -> Value {
        let ports = self.names().into_iter().map(|name| {
            let mut port = Map::new();
            let (number, protocol) = match name {
                "a" => (80, None),
                "b" => (443, Some("TCP")),
                _ => (80, Some("UDP")),
            };
            port.insert("port".into(), json!(number));
            if let Some(protocol) = protocol {
                port.insert("protocol".into(), json!(protocol));
            } else if self.pick(2) == 0 {
                // What it says is what it is by default.
                port.insert("protocol".into(), json!("TCP"));
            }
            self.add(&mut port, "name", 2, Self::word);
            Value::Object(port)
        });
        ports.collect::<Vec<_>>().into()
    }

    fn item(&mut self, name: &str) -> Value {
        let mut map = Map::new();
        map.insert("name".into(), json!(name));
        self.add(&mut map, "value", 2, Self::word);
        self.add(&mut map, "ports", 3, Self::ports);
        self.add(&mut map, "inner", 3, |c| c.inner(1));
        self.add(&mut map, "tags", 3, |c| json!(c.names()));
        Value::Object(map)
    }

    fn words(&mut self) -> Value {
        self.names().into_iter().map(|name| (name.to_owned(), self.word())).collect::<Map<_, _>>().into()
    }

    fn spec(&mut self) -> Value {
        let mut map = Map::new();
        self.add(&mut map, "number", 2, |c| json!(c.pick(3)));
        self.add(&mut map, "text", 2, Self::word);
        self.add(&mut map, "set", 2, |c| json!(c.names()));
        self.add(&mut map, "ports", 2, Self::ports);
        self.add(&mut map, "items", 2, |c| c.names().into_iter().map(|name| c.item(name)).collect::<Vec<_>>().into());
        self.add(&mut map, "whole", 3, |c| json!(c.names()));
        self.add(&mut map, "selector", 3, |c| json!({"labels": c.words()}));
        self.add(&mut map, "labels", 2, Self::words);
        self.add(&mut map, "inner", 2, |c| c.inner(2));
        self.add(&mut map, "inners", 3, |c| {
            c.names().into_iter().map(|name| (name.to_owned(), c.inner(1))).collect::<Map<_, _>>().into()
        });
        self.add(&mut map, "always", 4, |c| c.inner(1));
        Value::Object(map)
    }

    fn object(&mut self) -> Value {
        let mut object = json!({"kind": "Thing", "apiVersion": "apps/v1", "metadata": {"name": "thing"}});
        if self.pick(3) == 0 {
            object["metadata"]["labels"] = self.words();
        }
        if self.pick(4) == 0 {
            object["metadata"]["finalizers"] = json!(self.names());
        }
        object["spec"] = self.spec();
        if self.pick(6) == 0 {
            object["status"] = self.inner(1);
        }
        object
    }
}

/// One write, by the code and by the model; the message says which write went wrong.
fn step(model: &mut Model, choices: &mut Choices<'_>, now: i64) -> Result<(), TestCaseError> {
    let schema = thing();
    let name = ["one", "two", "three"][usize::from(choices.pick(3))];
    let manager = Manager {
        name: name.into(),
        api_version: "apps/v1".into(),
        also: &[],
        subresource: String::new(),
        reset: &[&["status"]],
        now: Timestamp::from_second(now).expect("a time"),
    };
    let live = model.object.clone();
    // What an update would have made of it is kept by the model without the owners.
    let with_owners = |object: &Value, list: &Value| {
        let mut object = object.clone();
        if !list.is_null() {
            object["metadata"]["managedFields"] = list.clone();
        }
        object
    };
    if choices.pick(3) == 0 {
        choices.nulls = false;
        let mut new = choices.object();
        if let Some(live) = &live {
            // Parts of what is there stay.
            for (field, value) in live["spec"].as_object().into_iter().flatten() {
                if choices.pick(3) != 0 {
                    new["spec"][field] = value.clone();
                }
            }
            new["status"] = live["status"].clone();
        }
        let mut new = canonical(&new);
        model.updated(name, &bare(&new), now);
        new = with_owners(&new, &live.as_ref().map_or(Value::Null, |l| l["metadata"]["managedFields"].clone()));
        update(live.as_ref(), &mut new, &schema, &manager);
        prop_assert_eq!(owners_of(&new), as_written(&model.owners), "{} updates {:?} to {}", name, live, new);
        model.object = Some(canonical(&new));
        return Ok(());
    }
    choices.nulls = true;
    let force = choices.pick(2) == 0;
    let config = choices.object();
    let got = apply(live.as_ref(), &config, &schema, &manager, force);
    let what = format!("{name} applies (force: {force}) {config} to {live:?}");
    match (got, model.applied(name, &config, force, now)) {
        (Ok(got), Ok(want)) => {
            prop_assert_eq!(flat(&got), want, "{}", what);
            // Where the order of a list changed, the model does not see it.
            let changed = live.as_ref().is_none_or(|live| bare(live) != bare(&got));
            if let Some((_, time)) = model.owners.get_mut(&(name.to_owned(), "Apply"))
                && changed
            {
                *time = now;
            }
            prop_assert_eq!(owners_of(&got), as_written(&model.owners), "{}", what);
            model.object = Some(canonical(&got));
        }
        (Err(status), Err(want)) => {
            let causes = status.details.as_ref().map(|d| d.causes.clone()).unwrap_or_default();
            let got: BTreeSet<(String, String)> = causes.into_iter().map(|c| (c.message, c.field)).collect();
            let with = |(manager, operation, path): &(String, &str, String)| {
                let using = if *operation == "Apply" { "" } else { " using apps/v1" };
                (format!("conflict with {manager:?}{using}"), path.clone())
            };
            prop_assert_eq!((status.code, got), (409, want.iter().map(with).collect()), "{}", what);
            let count = format!("Apply failed with {} conflict", want.len());
            prop_assert!(status.message.starts_with(&count), "{}", status.message);
        }
        (got, want) => prop_assert!(false, "{}: {:?}, the model says {:?}", what, got, want.err()),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The state, the owners and the conflicts after any writes are those of the model.
    #[test]
    fn any_writes_end_as_the_model_says(choices in proptest::collection::vec(any::<u8>(), 0..600), steps in 1..8i64) {
        let mut choices = Choices { left: choices.iter(), nulls: false };
        let mut model = Model::default();
        for now in 1..=steps {
            step(&mut model, &mut choices, now * 60)?;
        }
    }
}
