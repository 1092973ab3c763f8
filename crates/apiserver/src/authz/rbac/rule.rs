//! One RBAC rule: what it matches, and whether rules held cover a rule that is to be granted; pure.

use serde_json::{Map, Value, json};

use crate::request::RequestInfo;

/// One rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub groups: Vec<String>,
    pub resources: Vec<String>,
    /// Empty for every name.
    pub names: Vec<String>,
    pub urls: Vec<String>,
}

fn strings(object: &Value, key: &str) -> Vec<String> {
    let list = object.get(key).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|v| v == value)
}

impl Rule {
    /// Reads a rule of a role.
    pub fn of(rule: &Value) -> Self {
        Self {
            verbs: strings(rule, "verbs"),
            groups: strings(rule, "apiGroups"),
            resources: strings(rule, "resources"),
            names: strings(rule, "resourceNames"),
            urls: strings(rule, "nonResourceURLs"),
        }
    }

    /// The rules of a role.
    pub fn all_of(role: &Value) -> Vec<Self> {
        role.get("rules").and_then(Value::as_array).into_iter().flatten().map(Self::of).collect()
    }

    /// Everything, which only `cluster-admin` grants.
    pub fn full_authority() -> [Self; 2] {
        let all = || vec!["*".to_owned()];
        [
            Self { verbs: all(), groups: all(), resources: all(), ..Self::default() },
            Self { verbs: all(), urls: all(), ..Self::default() },
        ]
    }

    /// The rule as an object has it.
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        for (key, list) in [
            ("verbs", &self.verbs),
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.urls),
        ] {
            if key == "verbs" || !list.is_empty() {
                out.insert(key.to_owned(), json!(list));
            }
        }
        Value::Object(out)
    }

    /// True when the rule allows what the request says.
    pub fn matches(&self, request: &RequestInfo) -> bool {
        if !has(&self.verbs, "*") && !has(&self.verbs, &request.verb) {
            return false;
        }
        if !request.is_resource {
            return self.urls.iter().any(|url| url_covers(url, &request.path));
        }
        (has(&self.groups, "*") || has(&self.groups, &request.group))
            && self.resources.iter().any(|r| resource_matches(r, &request.resource, &request.subresource))
            && (self.names.is_empty() || has(&self.names, &request.name))
    }

    /// The rule as rules of one verb, one group, one resource, at most one name, or one verb and URL.
    fn break_down(&self) -> Vec<Self> {
        let one = |s: &String| vec![s.clone()];
        let mut out = Vec::new();
        for group in &self.groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let part =
                        Self { verbs: one(verb), groups: one(group), resources: one(resource), ..Self::default() };
                    if self.names.is_empty() {
                        out.push(part);
                    } else {
                        out.extend(self.names.iter().map(|n| Self { names: one(n), ..part.clone() }));
                    }
                }
            }
        }
        for url in &self.urls {
            out.extend(self.verbs.iter().map(|v| Self { verbs: one(v), urls: one(url), ..Self::default() }));
        }
        out
    }

    /// True when this rule allows everything `other` does.
    fn covers(&self, other: &Self) -> bool {
        let all = |mine: &[String], theirs: &[String]| has(mine, "*") || theirs.iter().all(|t| has(mine, t));
        let resource = |theirs: &String| {
            has(&self.resources, theirs)
                || theirs.split_once('/').is_some_and(|(_, sub)| has(&self.resources, &format!("*/{sub}")))
        };
        let names = match (self.names.is_empty(), other.names.is_empty()) {
            (true, _) => true,
            (false, true) => false,
            (false, false) => other.names.iter().all(|n| has(&self.names, n)),
        };
        all(&self.verbs, &other.verbs)
            && all(&self.groups, &other.groups)
            && (has(&self.resources, "*") || other.resources.iter().all(resource))
            && names
            && other.urls.iter().all(|url| self.urls.iter().any(|mine| url_covers(mine, url)))
    }

    /// The rule on one line, as denials show it.
    pub fn compact(&self) -> String {
        let mut parts = Vec::new();
        for (key, list) in [
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.urls),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ] {
            if !list.is_empty() {
                parts.push(format!("{key}:{}", quoted(list)));
            }
        }
        format!("{{{}}}", parts.join(", "))
    }
}

/// A list as Go prints it: `["a" "b"]`.
pub fn quoted(list: &[String]) -> String {
    let items: Vec<String> = list.iter().map(|s| format!("{s:?}")).collect();
    format!("[{}]", items.join(" "))
}

fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == "*" {
        return true;
    }
    match rule.split_once('/') {
        None => subresource.is_empty() && rule == resource,
        Some((parent, sub)) => !subresource.is_empty() && sub == subresource && (parent == "*" || parent == resource),
    }
}

/// `*`, the same, or a prefix before a final `*`.
fn url_covers(rule: &str, url: &str) -> bool {
    rule == "*" || rule == url || rule.ends_with('*') && url.starts_with(rule.trim_end_matches('*'))
}

/// The parts of `wanted` that no rule of `held` covers, merged by resource.
pub fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let mut out: Vec<Rule> = Vec::new();
    for part in wanted.iter().flat_map(Rule::break_down).filter(|p| !held.iter().any(|h| h.covers(p))) {
        let same = |o: &&mut Rule| {
            o.groups == part.groups && o.resources == part.resources && o.names == part.names && o.urls.is_empty()
        };
        match out.iter_mut().find(same).filter(|_| part.urls.is_empty()) {
            Some(merged) if has(&merged.verbs, &part.verbs[0]) => {}
            Some(merged) => merged.verbs.extend(part.verbs),
            None => out.push(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `verbs; groups; resources; names; urls`, comma separated, `core` for the empty group.
    fn rule(text: &str) -> Rule {
        let parts: Vec<Vec<String>> = text
            .split(';')
            .map(|part| part.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect())
            .collect();
        let part = |i: usize| parts.get(i).cloned().unwrap_or_default();
        let groups = part(1).into_iter().map(|g| if g == "core" { String::new() } else { g }).collect();
        Rule { verbs: part(0), groups, resources: part(2), names: part(3), urls: part(4) }
    }

    fn request(text: &str) -> RequestInfo {
        let parts: Vec<&str> = text.split_whitespace().collect();
        if parts[1].starts_with('/') {
            return RequestInfo { verb: parts[0].into(), path: parts[1].into(), ..RequestInfo::default() };
        }
        let (resource, subresource) = parts[2].split_once('/').unwrap_or((parts[2], ""));
        RequestInfo {
            is_resource: true,
            verb: parts[0].into(),
            group: if parts[1] == "core" { String::new() } else { parts[1].into() },
            resource: resource.into(),
            subresource: subresource.into(),
            name: parts.get(3).copied().unwrap_or_default().into(),
            ..RequestInfo::default()
        }
    }

    #[test]
    fn what_a_rule_matches() {
        for (text, ask, want) in [
            ("get;core;pods", "get core pods x", true),
            ("get;core;pods", "list core pods", false),
            ("*;core;pods", "list core pods", true),
            ("get;core;pods", "get apps pods x", false),
            ("get;*;pods", "get apps pods x", true),
            ("get;core;pods", "get core pods/log x", false),
            ("get;core;pods/log", "get core pods/log x", true),
            ("get;core;*/log", "get core pods/log x", true),
            ("get;core;*/log", "get core pods x", false),
            ("get;core;*/status", "get core pods/log x", false),
            ("get;core;*", "get core pods/log x", true),
            ("get;core;pods;a,b", "get core pods b", true),
            ("get;core;pods;a,b", "get core pods c", false),
            ("get;core;pods;a", "list core pods", false),
            ("get;;;;/healthz", "get /healthz", true),
            ("get;;;;/healthz", "get /healthz/x", false),
            ("get;;;;/healthz/*", "get /healthz/x", true),
            ("get;;;;/api*", "get /apis/apps", true),
            ("get;;;;*", "get /anything", true),
            ("*;*;*", "get /anything", false),
            ("get;;;;*", "get core pods x", false),
        ] {
            assert_eq!(rule(text).matches(&request(ask)), want, "{text} / {ask}");
        }
    }

    #[test]
    fn what_is_missing_of_a_grant() {
        for (held, wanted, want) in [
            (&["get,list;core;pods"][..], &["get;core;pods"][..], ""),
            (&["get;core;pods", "list;core;pods"], &["get,list;core;pods"], ""),
            (
                &["get;core;pods"],
                &["get,list,watch;core;pods"],
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}"#,
            ),
            (&["get;core;*"], &["get;core;secrets"], ""),
            (&["get;core;pods"], &["get;core;*"], r#"{APIGroups:[""], Resources:["*"], Verbs:["get"]}"#),
            (&["get;core;*/log"], &["get;core;pods/log"], ""),
            (&["get;core;pods;a"], &["get;core;pods"], r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#),
            (
                &["get;core;pods;a"],
                &["get;core;pods;a,b"],
                r#"{APIGroups:[""], Resources:["pods"], ResourceNames:["b"], Verbs:["get"]}"#,
            ),
            (&["*;*;*"], &["escalate;x;y"], ""),
            (&["*;*;*"], &["get;;;;/x"], r#"{NonResourceURLs:["/x"], Verbs:["get"]}"#),
            (&["get;;;;/x/*"], &["get;;;;/x/y"], ""),
            (&[], &["get;core;pods;;"], r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#),
        ] {
            let held: Vec<Rule> = held.iter().map(|t| rule(t)).collect();
            let wanted: Vec<Rule> = wanted.iter().map(|t| rule(t)).collect();
            let got: Vec<String> = missing(&held, &wanted).iter().map(Rule::compact).collect();
            assert_eq!(got.join("\n"), want, "{held:?} {wanted:?}");
        }
    }
}
