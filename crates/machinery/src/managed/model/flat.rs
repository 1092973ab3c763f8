//! An object as the model sees it: a flat list of paths, each a leaf or a container. The types are
//! written a second time here, so that the model does not lean on the schema it checks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

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
pub(super) type Path = Vec<String>;
pub(super) type Paths = BTreeSet<Path>;

/// What is at a path.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// A value that is owned as a whole, or `null` in the place of one that is not.
    Leaf(Value),
    Struct,
    Map,
    List,
}

pub(super) type Flat = BTreeMap<Path, Node>;

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

pub(super) fn flat(object: &Value) -> Flat {
    let mut out = Flat::new();
    flatten(object, "Thing", &Path::new(), &mut out);
    out
}

pub(super) fn below<'f>(flat: &'f Flat, path: &Path) -> impl Iterator<Item = &'f Path> {
    let path = path.clone();
    flat.keys().filter(move |p| p.len() > path.len() && p[..path.len()] == path[..])
}

/// The fields that an object sets.
pub(super) fn set_of(flat: &Flat) -> Paths {
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
pub(super) fn with_named(set: &Paths) -> Paths {
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
pub(super) fn without(from: &Flat, gone: &Paths) -> Flat {
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

pub(super) fn minus(a: &Paths, b: &Paths) -> Paths {
    a.difference(b).cloned().collect()
}

pub(super) fn plus(a: &Paths, b: &Paths) -> Paths {
    a.union(b).cloned().collect()
}

/// Paths that are new or other, and paths that are gone. What loses all it contained is not other for
/// that.
pub(super) fn difference(old: &Flat, new: &Flat) -> (Paths, Paths) {
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
pub(super) fn laid(live: &Flat, config: &Flat) -> Flat {
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
