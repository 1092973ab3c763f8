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

mod choices;
mod flat;

use choices::Choices;
use flat::{Flat, Path, Paths, difference, flat, laid, minus, plus, set_of, with_named, without};

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

/// One write, by the code and by the model; the message says which write went wrong.
fn step(model: &mut Model, choices: &mut Choices<'_>, now: i64) -> Result<(), TestCaseError> {
    let schema = thing();
    let name = ["one", "two", "three"][usize::from(choices.pick(3))];
    let manager = Manager {
        name: name.into(),
        api_version: "apps/v1".into(),
        also: Vec::new(),
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
            let many = if want.len() == 1 { "" } else { "s" };
            let head = format!("Apply failed with {} conflict{many}", want.len());
            prop_assert_eq!(status.message.split(':').next(), Some(head.as_str()));
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
