//! FlowSchema: which requests share a priority level, and how they are told apart within it.

use api::types::flowcontrol::v1 as flow;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::flow_control;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

const DEFAULT_PRECEDENCE: i32 = 1000;
const MAX_PRECEDENCE: i32 = 10_000;
/// The schema that alone may come first.
const EXEMPT: &str = "exempt";
const ANY: &str = "*";
const METHODS: &[&str] = &["ByNamespace", "ByUser"];
const SUBJECTS: &[&str] = &["Group", "ServiceAccount", "User"];
const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

pub struct FlowSchema;

impl Kind for FlowSchema {
    type Object = flow::FlowSchema;
    const SHAPE: Shape = Shape::cluster("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas")
        .singular("flowschema")
        .status()
        .status_keeps(flow_control::STATUS_KEEPS)
        .status_resets(&[&["spec"], &["metadata"]]);

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, schema: &mut Self::Object) {
        if schema.spec.matching_precedence.unwrap_or(0) == 0 {
            schema.spec.matching_precedence = Some(DEFAULT_PRECEDENCE);
        }
    }

    fn validate(_ctx: &Ctx, schema: &Self::Object, errors: &mut FieldErrors) {
        let name = schema.metadata.name.as_deref().unwrap_or_default();
        let path = Path::new("spec");
        spec(name, &schema.spec, &path, errors);
        if flow_control::fixed_schema(name).is_some_and(|fixed| fixed != schema.spec) {
            let wrong = format!("spec of '{name}' must equal the fixed value");
            errors.invalid(&path, check::value(&schema.spec), wrong);
        }
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        let conditions = new.status.iter().flat_map(|status| status.conditions.iter().flatten());
        flow_control::condition_types(conditions.map(|condition| condition.type_.as_str()), errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("PriorityLevel", "The priority level of its requests."),
                    Column::text("MatchingPrecedence", "Of the schemas that match, the one with the lowest is taken."),
                    Column::text("DistinguisherMethod", "How the flows within it are told apart."),
                    Column::AGE,
                    Column::text("MissingPL", "Whether the priority level it names is missing or broken."),
                ]
            },
            row: |schema, now| {
                let spec = &schema.spec;
                let method = spec.distinguisher_method.as_ref().map_or("<none>", |method| method.type_.as_str());
                let conditions = schema.status.iter().flat_map(|status| status.conditions.iter().flatten());
                let mut dangling = conditions.filter(|condition| condition.type_ == "Dangling");
                let missing = dangling.next().map_or("?", |condition| condition.status.as_deref().unwrap_or_default());
                let row = vec![
                    cells::name(&schema.metadata),
                    spec.priority_level_configuration.name.clone().into(),
                    spec.matching_precedence.unwrap_or(0).into(),
                    method.into(),
                    cells::of(&schema.metadata, now),
                    missing.into(),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn spec(name: &str, spec: &flow::FlowSchemaSpec, path: &Path, errors: &mut FieldErrors) {
    let (precedence, at) = (spec.matching_precedence.unwrap_or(0), path.child("matchingPrecedence"));
    if precedence <= 0 {
        errors.invalid(&at, precedence, "must be a positive value");
    }
    if precedence > MAX_PRECEDENCE {
        errors.invalid(&at, precedence, format!("must not be greater than {MAX_PRECEDENCE}"));
    }
    if precedence == 1 && name != EXEMPT {
        errors.invalid(&at, precedence, "only the schema named 'exempt' may have matchingPrecedence 1");
    }
    if let Some(method) = spec.distinguisher_method.as_ref().filter(|m| !METHODS.contains(&m.type_.as_str())) {
        errors.not_supported(&path.child("distinguisherMethod").child("type"), check::value(method), METHODS);
    }
    let level = path.child("priorityLevelConfiguration").child("name");
    match spec.priority_level_configuration.name.as_str() {
        "" => errors.required(&level, "must reference a priority level"),
        name => check::all(names::dns1123_subdomain(name), &level, name, errors),
    }
    for (i, rule) in spec.rules.iter().flatten().enumerate() {
        self::rule(rule, &path.child("rules").index(i), errors);
    }
}

fn rule(rule: &flow::PolicyRulesWithSubjects, path: &Path, errors: &mut FieldErrors) {
    if rule.subjects.is_empty() {
        errors.required(&path.child("subjects"), "subjects must contain at least one value");
    }
    for (i, subject) in rule.subjects.iter().enumerate() {
        self::subject(subject, &path.child("subjects").index(i), errors);
    }
    let (resources, urls) = (rule.resource_rules.iter().flatten(), rule.non_resource_rules.iter().flatten());
    if resources.clone().next().is_none() && urls.clone().next().is_none() {
        errors.required(path, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    for (i, rule) in resources.enumerate() {
        resource_rule(rule, &path.child("resourceRules").index(i), errors);
    }
    for (i, rule) in urls.enumerate() {
        url_rule(rule, &path.child("nonResourceRules").index(i), errors);
    }
}

fn subject(subject: &flow::Subject, path: &Path, errors: &mut FieldErrors) {
    let kind = subject.kind.as_str();
    if !SUBJECTS.contains(&kind) {
        errors.not_supported(&path.child("kind"), kind, SUBJECTS);
        return;
    }
    let parts = [
        ("ServiceAccount", "serviceAccount", subject.service_account.is_some()),
        ("User", "user", subject.user.is_some()),
        ("Group", "group", subject.group.is_some()),
    ];
    // What the kind names is looked at first, then what it does not name must be absent.
    for (of, field, is_there) in parts.iter().filter(|(of, ..)| *of == kind) {
        let path = path.child(field);
        match *of {
            _ if !is_there => errors.required(&path, format!("{field} is required when subject kind is '{of}'")),
            "ServiceAccount" => {
                subject.service_account.iter().for_each(|account| self::account(account, &path, errors))
            }
            _ => {
                let user = subject.user.as_ref().map(|user| user.name.as_str());
                let group = subject.group.as_ref().map(|group| group.name.as_str());
                let name = if *of == "User" { user } else { group };
                if name == Some("") {
                    errors.required(&path.child("name"), "");
                }
            }
        }
    }
    for (of, field, is_there) in parts.iter().filter(|(of, ..)| *of != kind) {
        if *is_there {
            errors.forbidden(&path.child(field), format!("{field} is forbidden when subject kind is not '{of}'"));
        }
    }
}

fn account(account: &flow::ServiceAccountSubject, path: &Path, errors: &mut FieldErrors) {
    match account.name.as_str() {
        "" => errors.required(&path.child("name"), ""),
        ANY => {}
        name => check::all(names::dns1123_subdomain(name), &path.child("name"), name, errors),
    }
    match account.namespace.as_str() {
        "" => errors.required(&path.child("namespace"), "must specify namespace for service account"),
        name => check::all(names::dns1123_label(name), &path.child("namespace"), name, errors),
    }
}

fn has_any(list: &[String]) -> bool {
    list.iter().any(|item| item == ANY)
}

fn verbs(verbs: &[String], path: &Path, errors: &mut FieldErrors) {
    if verbs.is_empty() {
        errors.required(path, "verbs must contain at least one value");
    } else if has_any(verbs) {
        alone(verbs, "verbs", path, errors);
    } else if verbs.iter().any(|verb| !VERBS.contains(&verb.as_str())) {
        errors.not_supported(path, check::value(&verbs), VERBS);
    }
}

/// `*` needs no company.
fn alone(list: &[String], what: &str, path: &Path, errors: &mut FieldErrors) {
    if list.len() > 1 && has_any(list) {
        errors.invalid(path, check::value(&list), format!("if '*' is present, must not specify other {what}"));
    }
}

fn resource_rule(rule: &flow::ResourcePolicyRule, path: &Path, errors: &mut FieldErrors) {
    verbs(&rule.verbs, &path.child("verbs"), errors);
    for (list, field, missing, what) in [
        (&rule.api_groups, "apiGroups", "resource rules must supply at least one api group", "api groups"),
        (&rule.resources, "resources", "resource rules must supply at least one resource", "resources"),
    ] {
        if list.is_empty() {
            errors.required(&path.child(field), missing);
        }
        alone(list, what, &path.child(field), errors);
    }
    let (list, path) = (rule.namespaces.as_deref().unwrap_or_default(), path.child("namespaces"));
    if list.is_empty() && !rule.cluster_scope.unwrap_or(false) {
        errors.required(&path, "resource rules that are not cluster scoped must supply at least one namespace");
    } else if has_any(list) {
        alone(list, "namespaces", &path, errors);
    } else {
        for (i, name) in list.iter().enumerate() {
            for message in names::dns1123_label(name) {
                let wrong = format!("each member of this list must be '*' or a DNS-1123 label; {message}");
                errors.invalid(&path.index(i), name.as_str(), wrong);
            }
        }
    }
}

fn url_rule(rule: &flow::NonResourcePolicyRule, path: &Path, errors: &mut FieldErrors) {
    verbs(&rule.verbs, &path.child("verbs"), errors);
    let (urls, path) = (&rule.non_resource_urls, path.child("nonResourceURLs"));
    if urls.is_empty() {
        errors.required(&path, "nonResourceURLs must contain at least one value");
    } else if has_any(urls) {
        alone(urls, "non-resource URLs", &path, errors);
    } else {
        for (i, url) in urls.iter().enumerate() {
            if let Some(wrong) = wrong_url(url) {
                errors.invalid(&path.index(i), url.as_str(), wrong);
            }
        }
    }
}

fn wrong_url(url: &str) -> Option<&'static str> {
    let stars = url.matches('*').count();
    match url {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !url.starts_with('/') => Some("must start with slash"),
        _ if url.contains(' ') => Some("must not contain white-space"),
        _ if url.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !url.ends_with("/*")) => Some("wildcard can only do suffix matching"),
        _ => None,
    }
}
