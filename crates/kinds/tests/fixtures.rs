//! The rules of each kind as text: cases in `tests/fixtures/*.txt`, read and answered by one
//! function. `UPDATE_EXPECT=1 cargo test -p kinds --test fixtures` rewrites the answers.
//!
//! ```text
//! kind apps/v1 Deployment          what the file is about
//!
//! create                           a command: create, object, update [subresource], row, claims
//! {"spec": {}}                     one JSON document; `update` and `claims` may have a merge patch
//! ----
//! spec.selector: Required value    the answer, up to the next empty line
//! ```
//!
//! A line `dual-stack` gives the cluster addresses of both families. Documents need neither kind nor metadata: both are filled in.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use kinds::{AnyKind, ClaimKind, ClusterOptions, Ctx, User, Verb};
use serde_json::{Value, json};

const SEPARATOR: &str = "----";

fn options() -> ClusterOptions {
    ClusterOptions { service_cidrs: vec!["10.96.0.0/12".parse().expect("a network")], node_ports: (30_000, 32_767) }
}

fn now() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().expect("a time")
}

struct World {
    user: User,
    options: ClusterOptions,
}

impl World {
    fn ctx<'a>(&'a self, verb: Verb, subresource: &'a str) -> Ctx<'a> {
        Ctx { user: &self.user, verb, subresource, dry_run: false, now: now(), options: &self.options }
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().expect("an object").remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// Fills kind and metadata.
fn complete(kind: &dyn AnyKind, mut object: Value) -> Value {
    let shape = kind.shape();
    object["apiVersion"] = shape.api_version().into();
    object["kind"] = shape.kind.into();
    if object.get("metadata").is_none() {
        object["metadata"] = json!({"name": "x"});
        if shape.is_namespaced() {
            object["metadata"]["namespace"] = "ns".into();
        }
    }
    object
}

/// The first part of a write: defaults and claims, answered with the next number.
fn claim(world: &World, kind: &dyn AnyKind, new: &mut Value, old: Option<&Value>, out: &mut String) -> bool {
    let verb = if old.is_some() { Verb::Update } else { Verb::Create };
    let ctx = world.ctx(verb, "");
    kind.defaults(&ctx, new).expect("defaults");
    let claims = match kind.claims(&ctx, new, old) {
        Ok(claims) => claims,
        Err(status) => {
            writeln!(out, "{}", status.message).expect("text");
            return false;
        }
    };
    for (word, list) in [("take", &claims.take), ("release", &claims.release)] {
        for claim in list {
            let wanted = claim.wanted.as_deref().unwrap_or("any");
            writeln!(
                out,
                "{word} {} {wanted}{}",
                claim.pointer,
                claim.also.iter().map(|p| format!(" and {p}")).collect::<String>()
            )
            .expect("text");
        }
    }
    for (i, claim) in claims.take.iter().enumerate() {
        let given = match claim.kind {
            ClaimKind::ClusterIp { v6: false } => format!("10.96.0.{}", 10 + i),
            ClaimKind::ClusterIp { v6: true } => format!("fd00::{}", 10 + i),
            ClaimKind::NodePort { .. } => (30_000 + i).to_string(),
        };
        claim.write(new, claim.wanted.as_deref().unwrap_or(&given));
    }
    true
}

fn finish(world: &World, kind: &dyn AnyKind, sub: &str, new: &mut Value, old: Option<&Value>, out: &mut String) {
    let verb = if old.is_some() { Verb::Update } else { Verb::Create };
    let finished = match kind.finish(&world.ctx(verb, sub), new, old) {
        Ok(finished) => finished,
        Err(status) => {
            writeln!(out, "{} {}", status.code, status.message).expect("text");
            return;
        }
    };
    for error in &finished.errors.0 {
        writeln!(out, "{error}").expect("text");
    }
    for warning in &finished.warnings {
        writeln!(out, "warning: {warning}").expect("text");
    }
    if finished.errors.is_empty() {
        let generation = new.pointer("/metadata/generation").map(|n| format!(", generation {n}")).unwrap_or_default();
        writeln!(out, "ok{generation}").expect("text");
    }
}

/// A stored object made from what a user sent.
fn stored(world: &World, kind: &dyn AnyKind, mut object: Value) -> Value {
    let sent = object.get("status").cloned();
    let status = sent.filter(|_| kind.shape().has_status && !kind.shape().status_on_create);
    let mut ignored = String::new();
    claim(world, kind, &mut object, None, &mut ignored);
    finish(world, kind, "", &mut object, None, &mut ignored);
    if let Some(status) = status {
        merge(&mut object["status"], &status);
    }
    object
}

fn answer(world: &World, kind: &dyn AnyKind, command: &str, input: &str) -> String {
    let mut documents = serde_json::Deserializer::from_str(input).into_iter::<Value>();
    let mut object = complete(kind, documents.next().expect("a document").expect("JSON"));
    let patch = documents.next().map(|patch| patch.expect("JSON"));
    let patched = |object: &Value| {
        let mut new = object.clone();
        merge(&mut new, patch.as_ref().expect("a patch"));
        new
    };
    let mut out = String::new();
    let mut words = command.split(' ');
    match words.next() {
        Some("create") => {
            let mut claims = String::new();
            match claim(world, kind, &mut object, None, &mut claims) {
                true => finish(world, kind, "", &mut object, None, &mut out),
                false => out = claims,
            }
        }
        Some("object") => {
            let before = object.clone();
            let object = match &patch {
                None => stored(world, kind, object),
                Some(_) => {
                    let old = stored(world, kind, before);
                    let mut new = patched(&old);
                    claim(world, kind, &mut new, Some(&old), &mut String::new());
                    finish(world, kind, "", &mut new, Some(&old), &mut String::new());
                    new
                }
            };
            out = serde_json::to_string_pretty(&object).expect("JSON") + "\n";
        }
        Some("update") => {
            let old = stored(world, kind, object);
            let mut new = patched(&old);
            let mut claims = String::new();
            match claim(world, kind, &mut new, Some(&old), &mut claims) {
                true => finish(world, kind, words.next().unwrap_or_default(), &mut new, Some(&old), &mut out),
                false => out = claims,
            }
        }
        Some("claims") => match &patch {
            None => {
                claim(world, kind, &mut object, None, &mut out);
            }
            Some(_) => {
                let old = stored(world, kind, object);
                claim(world, kind, &mut patched(&old), Some(&old), &mut out);
            }
        },
        Some("row") => {
            let (cells, conditions) = kind.row(&object, now()).expect("a row");
            assert_eq!(cells.len(), kind.columns().len(), "a cell for each column");
            for (column, cell) in kind.columns().iter().zip(&cells) {
                let cell = cell.as_str().map_or_else(|| cell.to_string(), str::to_owned);
                writeln!(out, "{}: {cell}", column.name).expect("text");
            }
            for condition in conditions {
                writeln!(out, "condition {condition}").expect("text");
            }
        }
        other => panic!("no such command: {other:?}"),
    }
    out
}

/// Answers every case of a file; returns the file with the answers in place.
fn check(path: &Path, text: &str) -> String {
    let mut world = World { user: User { name: "jane".into(), ..User::default() }, options: options() };
    let mut out = String::new();
    let mut kind: Option<&'static dyn AnyKind> = None;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.is_empty() || line.starts_with('#') {
            writeln!(out, "{line}").expect("text");
            continue;
        }
        if line == "dual-stack" {
            world.options.service_cidrs.push("fd00::/112".parse().expect("a network"));
            writeln!(out, "{line}").expect("text");
            continue;
        }
        if let Some(names) = line.strip_prefix("kind ") {
            let (version, name) = names.split_once(' ').expect("a version and a kind");
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            kind = kinds::by_kind(group, version, name).or_else(|| {
                let unserved: &dyn AnyKind = &kinds::custom_resource_definition::CustomResourceDefinition;
                (unserved.shape().kind == name).then_some(unserved)
            });
            writeln!(out, "{line}").expect("text");
            continue;
        }
        let mut input = String::new();
        for line in lines.by_ref().take_while(|line| *line != SEPARATOR) {
            writeln!(input, "{line}").expect("text");
        }
        while lines.next_if(|line| !line.is_empty()).is_some() {}
        let kind = kind.unwrap_or_else(|| panic!("{} names a kind", path.display()));
        let answer = answer(&world, kind, line, &input);
        write!(out, "{line}\n{input}{SEPARATOR}\n{answer}").expect("text");
    }
    out
}

#[test]
fn every_case_has_its_answer() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).expect("fixtures").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("text");
        let answered = check(&file, &text);
        if answered == text {
            continue;
        }
        if std::env::vars().any(|(key, _)| key == "UPDATE_EXPECT") {
            std::fs::write(&file, answered).expect("written");
            continue;
        }
        let first = text.lines().zip(answered.lines()).enumerate().find(|(_, (a, b))| a != b);
        wrong.push(format!("{}: {first:?}", file.display()));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What a case shows of its kind.
fn shows(command: &str, answer: &str) -> &'static str {
    let is_mistake = |line: &str| !["ok", "warning: ", "take ", "release "].iter().any(|start| line.starts_with(start));
    match command.split(' ').next() {
        Some("object") => "its defaults",
        Some("create" | "update" | "claims") if answer.lines().any(is_mistake) => "a mistake",
        Some("create" | "update") => "a good one",
        _ => "something else",
    }
}

/// Every kind that can be written has its defaults, an object that is good, and three that are not with the exact
/// message, or says here why not. A kind that is added without them fails.
#[test]
fn every_kind_has_good_and_bad_cases() {
    // Of these upstream looks at nothing but what cannot be read at all: `crates/apiserver/tests/workloads.rs`,
    // what_is_asked_badly_is_told, has what is told of that.
    const NOTHING_TO_GET_WRONG: &[&str] = &["TokenReview", "SelfSubjectReview", "SelfSubjectRulesReview"];
    // Told by the server itself: ComponentStatus, what is measured.
    let only_told = |verbs: &[&str]| !verbs.is_empty() && verbs.iter().all(|verb| ["get", "list"].contains(verb));
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut found: BTreeMap<(String, &'static str), usize> = BTreeMap::new();
    for file in std::fs::read_dir(&folder).expect("fixtures") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("text");
        let (mut kind, mut command, mut lines) = (String::new(), String::new(), text.lines());
        while let Some(line) = lines.next() {
            match line.strip_prefix("kind ") {
                Some(name) => name.clone_into(&mut kind),
                None if line == SEPARATOR => {
                    let answer: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
                    *found.entry((kind.clone(), shows(&command, &answer.join("\n")))).or_default() += 1;
                }
                None if line.starts_with(|c: char| c.is_ascii_lowercase()) => line.clone_into(&mut command),
                None => {}
            }
        }
    }
    let mut missing = Vec::new();
    for kind in kinds::ALL.iter().filter(|kind| !only_told(kind.shape().verbs)) {
        let name = format!("{} {}", kind.shape().api_version(), kind.shape().kind);
        let count = |what: &'static str| found.get(&(name.clone(), what)).copied().unwrap_or_default();
        let mistakes = if NOTHING_TO_GET_WRONG.contains(&kind.shape().kind) { 0 } else { 3 };
        if count("its defaults") < 1 || count("its defaults") + count("a good one") < 1 || count("a mistake") < mistakes
        {
            let all = ["its defaults", "a good one", "a mistake"].map(|what| format!("{what}: {}", count(what)));
            missing.push(format!("{name}: {}", all.join(", ")));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
