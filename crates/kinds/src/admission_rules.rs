//! What the kinds that register admission share: which requests they are about, under which conditions,
//! with which parameters.

use std::collections::BTreeSet;

use api::meta::apis::meta::v1::LabelSelector;
use api::types::admissionregistration::v1 as admission;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use rules::policy::{self, Variables, Wanted, World};
use rules::types::Type;

use crate::cells;
use crate::check;
use crate::kind::Column;

pub const FAILURE_POLICIES: &[&str] = &["Fail", "Ignore"];
pub const REINVOCATION_POLICIES: &[&str] = &["IfNeeded", "Never"];
const MATCH_POLICIES: &[&str] = &["Equivalent", "Exact"];
const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
/// What can be changed on its way in: a deletion brings nothing.
const MUTATING_OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "UPDATE"];
const SCOPES: &[&str] = &["*", "Cluster", "Namespaced"];
const CONDITIONS: usize = 64;
const EXCLUSIVE: &str = "name and selector are mutually exclusive";
const RESERVED_SUFFIX: &str = ".static.k8s.io";
/// Words of the expression language.
const RESERVED: &[&str] = &[
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The columns of both kinds of bindings.
pub const BINDING_COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("PolicyName", "The policy it puts to use."),
    Column::text("ParamRef", "The parameters it gives it."),
    Column::AGE,
];

/// Says that the object has no effect: whoever relies on it must know.
pub fn not_called(what: &str) -> String {
    format!("this server does not call {what} yet: the object is kept and has no effect")
}

/// Names that only manifests read at start may have.
pub fn reserved_name(name: Option<&String>) -> Option<String> {
    let why = "are reserved for static manifest-based configurations and cannot be managed via the API";
    name.filter(|name| name.ends_with(RESERVED_SUFFIX))
        .map(|_| format!("metadata.name: names ending with {RESERVED_SUFFIX:?} {why}"))
}

/// Fills what the choice of requests leaves open.
pub fn default_match(matching: Option<&mut admission::MatchResources>) {
    let Some(matching) = matching else { return };
    matching.match_policy.get_or_insert_with(|| "Equivalent".into());
    matching.namespace_selector.get_or_insert_default();
    matching.object_selector.get_or_insert_default();
    let rules = matching.resource_rules.iter_mut().flatten();
    for rule in rules.chain(matching.exclude_resource_rules.iter_mut().flatten()) {
        rule.scope.get_or_insert_with(|| "*".into());
    }
}

/// Which writes a rule is about.
pub struct Rule<'a> {
    pub groups: &'a Option<Vec<String>>,
    pub versions: &'a Option<Vec<String>>,
    pub operations: &'a Option<Vec<String>>,
    pub resources: &'a Option<Vec<String>>,
    pub scope: Option<&'a str>,
}

impl Rule<'_> {
    pub fn check(&self, path: &Path, errors: &mut FieldErrors) {
        let slice = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
        let (operations, at) = (slice(self.operations), path.child("operations"));
        alone(&operations, "operations", &at, errors);
        for (i, operation) in operations.iter().enumerate() {
            check::one_of_or_absent(Some(operation), OPERATIONS, &at.index(i), errors);
        }
        alone(&slice(self.groups), "API groups", &path.child("apiGroups"), errors);
        let (versions, at) = (slice(self.versions), path.child("apiVersions"));
        alone(&versions, "API versions", &at, errors);
        for (i, _) in versions.iter().enumerate().filter(|(_, version)| version.is_empty()) {
            errors.required(&at.index(i), "");
        }
        resources(&slice(self.resources), &path.child("resources"), errors);
        check::one_of_or_absent(self.scope, SCOPES, &path.child("scope"), errors);
    }
}

/// At least one; `*` needs no company.
fn alone(list: &[String], what: &str, path: &Path, errors: &mut FieldErrors) {
    if list.is_empty() {
        errors.required(path, "");
    }
    if list.len() > 1 && list.iter().any(|item| item == "*") {
        errors.invalid(path, check::value(&list), format!("if '*' is present, must not specify other {what}"));
    }
}

fn resources(list: &[String], path: &Path, errors: &mut FieldErrors) {
    if list.is_empty() {
        errors.required(path, "");
    }
    let (mut all_of, mut everywhere, mut plain) = (BTreeSet::new(), BTreeSet::new(), false);
    for (i, item) in list.iter().enumerate() {
        if item.is_empty() {
            errors.required(&path.index(i), "");
            continue;
        }
        let Some((resource, part)) = item.split_once('/') else {
            plain = item != "*";
            continue;
        };
        let wrong = |present: String| format!("if '{present}' is present, must not specify {item}");
        if all_of.contains(resource) {
            errors.invalid(&path.index(i), item.as_str(), wrong(format!("{resource}/*")));
        }
        if everywhere.contains(part) {
            errors.invalid(&path.index(i), item.as_str(), wrong(format!("*/{part}")));
        }
        if part == "*" {
            all_of.insert(resource);
        }
        if resource == "*" {
            everywhere.insert(part);
        }
    }
    let has = |wanted: &str| list.iter().any(|item| item == wanted);
    if list.len() > 1 && has("*/*") {
        errors.invalid(path, check::value(&list), "if '*/*' is present, must not specify other resources");
    }
    if has("*") && plain {
        let wrong = "if '*' is present, must not specify other resources without subresources";
        errors.invalid(path, check::value(&list), wrong);
    }
}

/// One of two policies of matching.
pub fn match_policy(policy: Option<&str>, path: &Path, errors: &mut FieldErrors) {
    check::one_of_or_absent(policy, MATCH_POLICIES, &path.child("matchPolicy"), errors);
}

fn needed_selector(selector: Option<&LabelSelector>, path: &Path, errors: &mut FieldErrors) {
    match selector {
        None => errors.required(path, ""),
        Some(selector) => check::selector(selector, path, errors),
    }
}

/// The requests a policy or binding is about.
pub fn match_resources(matching: &admission::MatchResources, path: &Path, errors: &mut FieldErrors) {
    match &matching.match_policy {
        None => errors.required(&path.child("matchPolicy"), ""),
        Some(policy) => match_policy(Some(policy), path, errors),
    }
    needed_selector(matching.namespace_selector.as_ref(), &path.child("namespaceSelector"), errors);
    needed_selector(matching.object_selector.as_ref(), &path.child("objectSelector"), errors);
    for (rules, field) in
        [(&matching.resource_rules, "resourceRules"), (&matching.exclude_resource_rules, "excludeResourceRules")]
    {
        for (i, rule) in rules.iter().flatten().enumerate() {
            named_rule(rule, &path.child(field).index(i), errors);
        }
    }
}

fn named_rule(rule: &admission::NamedRuleWithOperations, path: &Path, errors: &mut FieldErrors) {
    let (mut seen, at) = (BTreeSet::new(), path.child("resourceNames"));
    for (i, name) in rule.resource_names.iter().flatten().enumerate() {
        check::all(names::path_segment(name), &at.index(i), name, errors);
        if !seen.insert(name) {
            errors.duplicate(&at.index(i), name.as_str());
        }
    }
    let rule = Rule {
        groups: &rule.api_groups,
        versions: &rule.api_versions,
        operations: &rule.operations,
        resources: &rule.resources,
        scope: rule.scope.as_deref(),
    };
    rule.check(path, errors);
}

/// The requests a policy is about: it must be about some.
pub fn constraints(matching: Option<&admission::MatchResources>, path: &Path, errors: &mut FieldErrors) {
    let Some(matching) = matching else {
        errors.required(path, "");
        return;
    };
    match_resources(matching, path, errors);
    if matching.resource_rules.as_ref().is_none_or(Vec::is_empty) {
        errors.required(&path.child("resourceRules"), "");
    }
}

/// What mutates cannot be about deletions.
pub fn mutating(matching: Option<&admission::MatchResources>, path: &Path, errors: &mut FieldErrors) {
    let rules = matching.into_iter().flat_map(|matching| matching.resource_rules.iter().flatten());
    for operation in rules.flat_map(|rule| rule.operations.iter().flatten()) {
        let path = path.child("resourceRules").child("operations");
        check::one_of_or_absent(Some(operation), MUTATING_OPERATIONS, &path, errors);
    }
}

/// Conditions under which a hook or policy is asked at all.
pub fn match_conditions(
    conditions: Option<&Vec<admission::MatchCondition>>,
    params: bool,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let world = World { params, authorizer: true, patches: false, variables: None };
    let conditions = conditions.map(Vec::as_slice).unwrap_or_default();
    if conditions.len() > CONDITIONS {
        errors.too_many(path, conditions.len(), CONDITIONS);
    }
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        let wanted = Some((world, Wanted::Bool));
        expression(condition.expression.trim(), "", wanted, &path.child("expression"), errors);
        let (name, at) = (condition.name.as_str(), path.child("name"));
        if name.is_empty() {
            errors.required(&at, "");
            continue;
        }
        check::all(names::qualified_name(name), &at, name, errors);
        if !seen.insert(name) {
            errors.duplicate(&at, name);
        }
    }
}

/// An expression that says something, and, where that is known here, what is wanted.
pub fn expression(
    expression: &str,
    missing: &str,
    wanted: Option<(World<'_>, Wanted)>,
    path: &Path,
    errors: &mut FieldErrors,
) {
    if expression.trim().is_empty() {
        errors.required(path, missing);
    } else if let Some(Err(wrong)) = wanted.map(|(world, wanted)| policy::check(expression, world, wanted)) {
        errors.invalid(path, expression, wrong);
    }
}

/// Names for expressions that others use, each by those after it.
pub fn variables(
    variables: Option<&Vec<admission::Variable>>,
    params: bool,
    old: Option<&Vec<admission::Variable>>,
    path: &Path,
    errors: &mut FieldErrors,
) -> Variables {
    let old: BTreeSet<&str> = old.into_iter().flatten().map(|old| old.expression.as_str()).collect();
    let mut known = Variables::default();
    for (i, variable) in variables.into_iter().flatten().enumerate() {
        let (path, name) = (path.index(i), variable.name.as_str());
        if name.trim().is_empty() {
            errors.required(&path.child("name"), "name is not specified");
        } else if !is_identifier(name) {
            errors.invalid(&path.child("name"), name, "must be a valid CEL identifier");
        }
        let (at, text) = (path.child("expression"), variable.expression.as_str());
        if text.trim().is_empty() {
            errors.required(&at, "expression is not specified");
            continue;
        }
        let world = World { params, authorizer: true, patches: false, variables: Some(&known) };
        let given = policy::check(text, world, Wanted::Anything).unwrap_or_else(|wrong| {
            // What was stored stays.
            if !old.contains(text) {
                errors.invalid(&at, text, wrong);
            }
            Type::Dyn
        });
        known.add(name, given);
    }
    known
}

fn is_identifier(name: &str) -> bool {
    let letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    let bytes = name.as_bytes();
    bytes.first().is_some_and(letter)
        && bytes.iter().all(|byte| letter(byte) || byte.is_ascii_digit())
        && !RESERVED.contains(&name)
}

/// The kind of a policy's parameters.
pub fn param_kind(kind: &admission::ParamKind, path: &Path, errors: &mut FieldErrors) {
    let (text, at) = (kind.api_version.as_deref().unwrap_or_default(), path.child("apiVersion"));
    let (group, version) = text.split_once('/').unwrap_or(("", text));
    if text.is_empty() {
        errors.required(&at, "");
    } else if version.contains('/') {
        errors.invalid(&at, text, format!("unexpected GroupVersion string: {text}"));
    } else {
        if !group.is_empty() {
            joined(names::dns1123_subdomain(group), "", group, &at, errors);
        }
        match version {
            "" => errors.invalid(&at, text, "version must be specified"),
            version => joined(names::dns1035_label(version), "", version, &at, errors),
        }
    }
    let (kind, at) = (kind.kind.as_deref().unwrap_or_default(), path.child("kind"));
    if kind.is_empty() {
        errors.required(&at, "");
    } else {
        let intro = "may have mixed case, but should otherwise match: ";
        joined(names::dns1035_label(&kind.to_lowercase()), intro, kind, &at, errors);
    }
}

/// All messages as one mistake.
pub fn joined(messages: Vec<String>, intro: &str, value: &str, path: &Path, errors: &mut FieldErrors) {
    if !messages.is_empty() {
        errors.invalid(path, value, format!("{intro}{}", messages.join(",")));
    }
}

/// The parameters a binding gives its policy.
pub fn param_ref(param: &admission::ParamRef, path: &Path, errors: &mut FieldErrors) {
    let name = param.name.as_deref().unwrap_or_default();
    if !name.is_empty() {
        check::all(names::path_segment(name), &path.child("name"), name, errors);
        if param.selector.is_some() {
            errors.forbidden(&path.child("name"), EXCLUSIVE);
        }
    }
    if let Some(selector) = &param.selector {
        check::selector(selector, &path.child("selector"), errors);
        if !name.is_empty() {
            errors.forbidden(&path.child("selector"), EXCLUSIVE);
        }
    } else if name.is_empty() {
        errors.required(path, "one of name or selector must be specified");
    }
    let action = param.parameter_not_found_action.as_deref();
    check::one_of(action, &["Deny", "Allow"], &path.child("parameterNotFoundAction"), errors);
}

/// The policy a binding puts to use.
pub fn policy_name(name: &str, path: &Path, errors: &mut FieldErrors) {
    match name {
        "" => errors.required(path, ""),
        name => check::all(names::dns1123_subdomain(name), path, name, errors),
    }
}

/// What the policy's kind of parameters looks like in a cell.
pub fn param_kind_cell(kind: Option<&admission::ParamKind>) -> String {
    kind.map_or_else(
        || "<unset>".into(),
        |kind| {
            let part = |part: &Option<String>| part.clone().unwrap_or_default();
            format!("{}/{}", part(&kind.api_version), part(&kind.kind))
        },
    )
}

/// The same for the parameters of a binding.
pub fn param_ref_cell(param: Option<&admission::ParamRef>) -> serde_json::Value {
    let Some(param) = param else { return "<unset>".into() };
    let part = |part: &'_ Option<String>| part.clone().unwrap_or_default();
    match (part(&param.name), part(&param.namespace), &param.selector) {
        (name, namespace, _) if !name.is_empty() => {
            let namespace = if namespace.is_empty() { "*".to_owned() } else { namespace };
            format!("{namespace}/{name}").into()
        }
        (_, _, Some(selector)) => cells::selector(selector),
        _ => "<unset>".into(),
    }
}
