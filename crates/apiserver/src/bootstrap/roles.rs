//! The bootstrap roles as objects, and what an existing object lacks of them; pure.

use std::sync::LazyLock;

use machinery::meta;
use serde_json::{Map, Value, json};

use crate::authz::rbac::Rule;
use crate::authz::rbac::rule;
use crate::objects::{self, Resource};

const TABLE: &str = include_str!("roles.txt");
const GROUP: &str = "rbac.authorization.k8s.io";
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

static OBJECTS: LazyLock<Vec<Value>> = LazyLock::new(|| parse(TABLE));

/// Every bootstrap role and binding, roles first.
pub fn all() -> &'static [Value] {
    &OBJECTS
}

/// The rules of one bootstrap ClusterRole; empty when there is none of the name.
pub fn cluster_role_rules(name: &str) -> Vec<Rule> {
    let found = all().iter().find(|o| meta::kind(o) == "ClusterRole" && meta::name(o) == name);
    found.map(Rule::all_of).unwrap_or_default()
}

/// Where objects of an RBAC kind are kept.
pub fn resource(kind: &str) -> Option<Resource> {
    match kind {
        "Role" => Some(objects::ROLES),
        "RoleBinding" => Some(objects::ROLE_BINDINGS),
        "ClusterRole" => Some(objects::CLUSTER_ROLES),
        "ClusterRoleBinding" => Some(objects::CLUSTER_ROLE_BINDINGS),
        _ => None,
    }
}

/// Reads the table. A line that cannot be read is left out; a test reads the whole table back.
fn parse(table: &str) -> Vec<Value> {
    let (mut roles, mut bindings): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    for line in table.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if line.starts_with(' ') {
            if let (Some(role), Some(rule)) = (roles.last_mut(), parse_rule(&words)) {
                if let Some(rules) = role["rules"].as_array_mut() {
                    rules.push(rule);
                }
            }
            continue;
        }
        match words.as_slice() {
            [kind @ ("ClusterRoleBinding" | "RoleBinding"), name, role, subjects @ ..] => {
                bindings.extend(parse_binding(kind, name, role, subjects.first().copied().unwrap_or_default()));
            }
            [kind @ ("ClusterRole" | "Role"), name, marks @ ..] => {
                if let Some(controller) = name.strip_prefix("system:controller:").filter(|_| *kind == "ClusterRole") {
                    let account = format!("ServiceAccount:kube-system/{controller}");
                    bindings.extend(parse_binding(
                        "ClusterRoleBinding",
                        name,
                        &format!("ClusterRole/{name}"),
                        &account,
                    ));
                }
                roles.push(parse_role(kind, name, marks));
            }
            _ => {}
        }
    }
    roles.append(&mut bindings);
    roles
}

fn object(kind: &str, name: &str) -> Value {
    let mut metadata = json!({
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {AUTO_UPDATE: "true"},
    });
    match name.split_once('/') {
        Some((namespace, name)) => {
            metadata["namespace"] = json!(namespace);
            metadata["name"] = json!(name);
        }
        None => metadata["name"] = json!(name),
    }
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": metadata})
}

fn parse_role(kind: &str, name: &str, marks: &[&str]) -> Value {
    let mut role = object(kind, name);
    role["rules"] = json!([]);
    for mark in marks {
        if let Some((key, value)) = mark.strip_prefix('+').and_then(|m| m.split_once('=')) {
            role["metadata"]["labels"][key] = json!(value);
        } else if let Some(label) = mark.strip_prefix('<') {
            role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]});
        }
    }
    role
}

fn parse_rule(words: &[&str]) -> Option<Value> {
    let list = |text: &str| -> Vec<String> {
        text.split(',').map(|s| if s == "core" { String::new() } else { s.to_owned() }).collect()
    };
    let mut rule = Rule::default();
    match words {
        [verbs, "url", urls] => (rule.verbs, rule.urls) = (list(verbs), list(urls)),
        [verbs, groups, resources, names @ ..] => {
            (rule.verbs, rule.groups, rule.resources) = (list(verbs), list(groups), list(resources));
            match names {
                [] => {}
                ["=", names] => rule.names = list(names),
                _ => return None,
            }
        }
        _ => return None,
    }
    Some(rule.to_value())
}

fn parse_binding(kind: &str, name: &str, role: &str, subjects: &str) -> Option<Value> {
    let (role_kind, role_name) = role.split_once('/')?;
    let mut binding = object(kind, name);
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": role_kind, "name": role_name});
    let subjects: Vec<Value> = subjects.split(',').filter(|s| !s.is_empty()).filter_map(parse_subject).collect();
    if !subjects.is_empty() {
        binding["subjects"] = Value::Array(subjects);
    }
    Some(binding)
}

fn parse_subject(text: &str) -> Option<Value> {
    let (kind, name) = text.split_once(':')?;
    Some(match (kind, name.split_once('/')) {
        ("ServiceAccount", Some((namespace, name))) => json!({"kind": kind, "name": name, "namespace": namespace}),
        _ => json!({"apiGroup": GROUP, "kind": kind, "name": name}),
    })
}

/// What to do so that an existing object has everything a bootstrap object has.
#[derive(Clone, Debug, PartialEq)]
pub enum Mend {
    /// Nothing is missing, or the object says it is not to be touched.
    Keep,
    /// Write this instead.
    Update(Value),
    /// A binding's role cannot be changed: delete it and create the wanted one.
    Recreate,
}

/// Compares an existing object with the wanted one. Missing labels, annotations, rules (by what they
/// allow, not how they are written), selectors and subjects are added; what is there stays.
pub fn mend(existing: &Value, wanted: &Value) -> Mend {
    if meta::annotation(existing, AUTO_UPDATE) == Some("false") {
        return Mend::Keep;
    }
    if wanted.get("roleRef").is_some() && role_ref(existing) != role_ref(wanted) {
        return Mend::Recreate;
    }
    let mut next = existing.clone();
    for part in ["labels", "annotations"] {
        let defaults = wanted["metadata"].get(part).and_then(Value::as_object).into_iter().flatten();
        for (key, value) in defaults {
            let have = meta::metadata_mut(&mut next).entry(part).or_insert_with(|| json!({}));
            if let Some(have) = have.as_object_mut() {
                have.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
    }
    let Some(fields) = next.as_object_mut() else { return Mend::Keep };
    if wanted.get("rules").is_some() && wanted.get("aggregationRule").is_none() {
        let missing = rule::missing(&Rule::all_of(existing), &Rule::all_of(wanted));
        // Whole rules are added, as they are written, where any part of them is missing.
        let lacking = Rule::all_of(wanted)
            .into_iter()
            .filter(|r| !rule::missing(&Rule::all_of(existing), std::slice::from_ref(r)).is_empty());
        if !missing.is_empty() {
            add_missing(fields, "rules", lacking.map(|r| r.to_value()));
        }
    }
    match (wanted.get("aggregationRule"), fields.get("aggregationRule")) {
        (Some(rule), None) => drop(fields.insert("aggregationRule".into(), rule.clone())),
        (Some(rule), Some(_)) => {
            if let Some(have) = fields.get_mut("aggregationRule").and_then(Value::as_object_mut) {
                add_missing(have, "clusterRoleSelectors", items(&rule["clusterRoleSelectors"]));
            }
        }
        (None, Some(_)) => drop(fields.remove("aggregationRule")),
        (None, None) => {}
    }
    if let Some(subjects) = wanted.get("subjects") {
        add_missing(fields, "subjects", items(subjects));
    }
    if next == *existing { Mend::Keep } else { Mend::Update(next) }
}

fn role_ref(binding: &Value) -> Option<(&str, &str)> {
    let role = binding.get("roleRef")?;
    Some((role.get("kind")?.as_str()?, role.get("name")?.as_str()?))
}

fn items(list: &Value) -> impl Iterator<Item = Value> + '_ {
    list.as_array().into_iter().flatten().cloned()
}

fn add_missing(fields: &mut Map<String, Value>, key: &str, wanted: impl Iterator<Item = Value>) {
    let mut list = match fields.remove(key) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    for item in wanted {
        if !list.contains(&item) {
            list.push(item);
        }
    }
    fields.insert(key.to_owned(), Value::Array(list));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_whole() {
        let lines = || TABLE.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
        let rules: usize = all().iter().map(|o| Rule::all_of(o).len()).sum();
        assert_eq!(rules, lines().filter(|l| l.starts_with(' ')).count());
        let controllers = lines().filter(|l| l.starts_with("ClusterRole system:controller:")).count();
        assert_eq!(all().len(), lines().filter(|l| !l.starts_with(' ')).count() + controllers);
        for object in all() {
            let rules = Rule::all_of(object);
            let whole = |r: &Rule| !r.verbs.is_empty() && (r.urls.is_empty() != r.resources.is_empty());
            assert!(rules.iter().all(whole), "{object}");
            if let Some((kind, name)) = role_ref(object) {
                let namespace = if kind == "Role" { meta::namespace(object) } else { "" };
                let target = |o: &&Value| (meta::kind(o), meta::name(o), meta::namespace(o)) == (kind, name, namespace);
                assert!(all().iter().any(|o| target(&o)), "{} binds nothing: {kind} {name}", meta::name(object));
            }
        }
        assert_eq!(cluster_role_rules("cluster-admin"), Rule::full_authority());
    }

    #[test]
    fn missing_parts_are_added_and_what_is_there_stays() {
        let role = |rules: Value| json!({"metadata": {"name": "r"}, "rules": rules});
        let rule = |verbs: &[&str]| json!({"verbs": verbs, "apiGroups": [""], "resources": ["pods"]});
        let verbs = |mend: Mend| match mend {
            Mend::Update(object) => Rule::all_of(&object).iter().map(|r| r.verbs.join(",")).collect::<Vec<_>>(),
            other => vec![format!("{other:?}")],
        };
        for (existing, wanted, want) in [
            (role(json!([rule(&["get"])])), role(json!([rule(&["get"])])), vec!["Keep"]),
            (role(json!([rule(&["*"])])), role(json!([rule(&["get"])])), vec!["Keep"]),
            (role(json!([rule(&["get"])])), role(json!([rule(&["get", "list"])])), vec!["get", "get,list"]),
            (role(json!([])), role(json!([rule(&["get"])])), vec!["get"]),
        ] {
            assert_eq!(verbs(mend(&existing, &wanted)), want, "{existing} {wanted}");
        }
        let mut protected = role(json!([]));
        protected["metadata"]["annotations"] = json!({AUTO_UPDATE: "false"});
        assert_eq!(mend(&protected, &role(json!([rule(&["get"])]))), Mend::Keep);
        let binding = |role: &str, subjects: Value| json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": subjects});
        let (a, b) = (json!({"kind": "User", "name": "a"}), json!({"kind": "User", "name": "b"}));
        assert_eq!(mend(&binding("x", json!([])), &binding("y", json!([]))), Mend::Recreate);
        assert_eq!(
            mend(&binding("x", json!([a])), &binding("x", json!([b]))),
            Mend::Update(binding("x", json!([a, b])))
        );
    }
}
