//! What both kinds of admission webhooks share: where they are, when they are asked, what they promise.

use api::meta::apis::meta::v1::LabelSelector;
use api::types::admissionregistration::v1 as admission;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::admission_rules as rules;
use crate::check;

const SIDE_EFFECTS: &[&str] = &["None", "NoneOnDryRun"];
/// What older objects may say.
const ALL_SIDE_EFFECTS: &[&str] = &["None", "NoneOnDryRun", "Some", "Unknown"];
/// The forms of a review that this server speaks.
const VERSIONS: &[&str] = &["v1", "v1beta1"];
const FORM: &str = "; desired format: https://host[/path]";

/// A webhook of either kind.
pub struct Hook<'a> {
    pub name: &'a str,
    pub versions: &'a [String],
    pub client: &'a admission::WebhookClientConfig,
    pub failure_policy: Option<&'a str>,
    pub match_policy: Option<&'a str>,
    pub match_conditions: Option<&'a Vec<admission::MatchCondition>>,
    pub namespace_selector: Option<&'a LabelSelector>,
    pub object_selector: Option<&'a LabelSelector>,
    pub rules: Option<&'a Vec<admission::RuleWithOperations>>,
    pub side_effects: &'a str,
    pub timeout_seconds: Option<i32>,
    /// Mutating ones only.
    pub reinvocation_policy: Option<&'a str>,
}

/// What of the rules older objects may break.
struct Tolerance {
    side_effects: bool,
    versions: bool,
    names: bool,
    conditions: bool,
    selectors: bool,
}

impl Tolerance {
    /// Faults that the stored hooks have already are not held against a change.
    fn of(new: &[Hook], old: Option<&[Hook]>) -> Self {
        let Some(old) = old else {
            return Self { side_effects: false, versions: false, names: false, conditions: false, selectors: false };
        };
        let names: std::collections::BTreeSet<&str> = old.iter().map(|hook| hook.name).collect();
        let known = |hook: &Hook| hook.versions.is_empty() || speaks(hook.versions);
        let sound = |selector: Option<&LabelSelector>| {
            let mut errors = FieldErrors::new();
            selector.into_iter().for_each(|selector| check::selector(selector, &Path::root(), &mut errors));
            errors.is_empty()
        };
        Self {
            side_effects: old.iter().any(|hook| !SIDE_EFFECTS.contains(&hook.side_effects)),
            versions: !old.iter().all(known),
            names: names.len() < old.len(),
            conditions: new.len() == old.len()
                && new.iter().zip(old).all(|(new, old)| new.match_conditions == old.match_conditions),
            selectors: !old.iter().all(|hook| sound(hook.namespace_selector) && sound(hook.object_selector)),
        }
    }
}

/// Fills where a hook is called.
pub fn default_client(client: &mut admission::WebhookClientConfig) {
    if let Some(service) = &mut client.service {
        service.port.get_or_insert(443);
    }
}

/// Fills what rules leave open.
pub fn default_rules(rules: Option<&mut Vec<admission::RuleWithOperations>>) {
    for rule in rules.into_iter().flatten() {
        rule.scope.get_or_insert_with(|| "*".into());
    }
}

/// The mistakes in all hooks of an object, or in their change.
pub fn validate(hooks: &[Hook], old: Option<&[Hook]>, errors: &mut FieldErrors) {
    let tolerance = Tolerance::of(hooks, old);
    let mut seen = std::collections::BTreeSet::new();
    for (i, hook) in hooks.iter().enumerate() {
        let path = Path::new("webhooks").index(i);
        hook.check(&tolerance, &path, errors);
        let missing = format!("must specify one of {}", VERSIONS.join(", "));
        versions(hook.versions, tolerance.versions, &missing, &path.child("admissionReviewVersions"), errors);
        if !tolerance.names && !hook.name.is_empty() && !seen.insert(hook.name) {
            errors.duplicate(&path.child("name"), hook.name);
        }
    }
}

impl Hook<'_> {
    fn check(&self, tolerance: &Tolerance, path: &Path, errors: &mut FieldErrors) {
        let (name, at) = (self.name, path.child("name"));
        let wrong = names::dns1123_subdomain(name);
        if name.is_empty() {
            errors.required(&at, "");
        } else if wrong.is_empty() && name.split('.').count() < 3 {
            let wrong = "should be a domain with at least three segments separated by dots";
            errors.invalid(&at, name, wrong);
        } else {
            rules::joined(wrong, "", name, &at, errors);
        }
        for (i, rule) in self.rules.into_iter().flatten().enumerate() {
            let rule = rules::Rule {
                groups: &rule.api_groups,
                versions: &rule.api_versions,
                operations: &rule.operations,
                resources: &rule.resources,
                scope: rule.scope.as_deref(),
            };
            rule.check(&path.child("rules").index(i), errors);
        }
        let at = path.child("failurePolicy");
        check::one_of_or_absent(self.failure_policy, rules::FAILURE_POLICIES, &at, errors);
        rules::match_policy(self.match_policy, path, errors);
        let allowed = if tolerance.side_effects { ALL_SIDE_EFFECTS } else { SIDE_EFFECTS };
        match self.side_effects {
            "" => errors.required(&path.child("sideEffects"), format!("must specify one of {}", allowed.join(", "))),
            given => check::one_of_or_absent(Some(given), allowed, &path.child("sideEffects"), errors),
        }
        if let Some(seconds) = self.timeout_seconds.filter(|seconds| !(1..=30).contains(seconds)) {
            let wrong = "the timeout value must be between 1 and 30 seconds";
            errors.invalid(&path.child("timeoutSeconds"), seconds, wrong);
        }
        if !tolerance.selectors {
            for (selector, field) in
                [(self.namespace_selector, "namespaceSelector"), (self.object_selector, "objectSelector")]
            {
                selector.into_iter().for_each(|selector| check::selector(selector, &path.child(field), errors));
            }
        }
        let at = path.child("reinvocationPolicy");
        check::one_of_or_absent(self.reinvocation_policy, rules::REINVOCATION_POLICIES, &at, errors);
        client(self.client, &path.child("clientConfig"), errors);
        if !tolerance.conditions {
            rules::match_conditions(self.match_conditions, false, &path.child("matchConditions"), errors);
        }
    }
}

/// True for forms of a review of which this server speaks one.
pub fn speaks(versions: &[String]) -> bool {
    versions.iter().any(|version| VERSIONS.contains(&version.as_str()))
}

/// The mistakes in the forms of a review that a webhook speaks; `missing` is what is said of none at all,
/// `unknown`: none of them need be one that this server speaks.
pub fn versions(versions: &[String], unknown: bool, missing: &str, path: &Path, errors: &mut FieldErrors) {
    if versions.is_empty() {
        errors.required(path, missing);
        return;
    }
    let mut seen = std::collections::BTreeSet::new();
    for (i, version) in versions.iter().enumerate() {
        if !seen.insert(version) {
            errors.invalid(&path.index(i), version.as_str(), "duplicate version");
            continue;
        }
        check::all(names::dns1035_label(version), &path.index(i), version, errors);
    }
    if !unknown && !speaks(versions) {
        let wrong = format!("must include at least one of {}", VERSIONS.join(", "));
        errors.invalid(path, check::value(&versions), wrong);
    }
}

/// Where a webhook is: at a URL or behind a Service.
pub fn client(client: &admission::WebhookClientConfig, path: &Path, errors: &mut FieldErrors) {
    match (&client.url, &client.service) {
        (Some(url), None) => self::url(url, &path.child("url"), errors),
        (None, Some(service)) => self::service(service, &path.child("service"), errors),
        _ => errors.required(path, "exactly one of url or service is required"),
    }
}

fn url(url: &str, path: &Path, errors: &mut FieldErrors) {
    if let Some(wrong) = url.bytes().find(|byte| byte.is_ascii_control() || *byte == b' ') {
        let what =
            if wrong == b' ' { "invalid character \" \" in host name" } else { "invalid control character in URL" };
        errors.required(path, format!("url must be a valid URL: parse {url:?}: net/url: {what}{FORM}"));
        return;
    }
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = rest.split_once("://").unwrap_or(("", rest));
    let authority = if scheme.is_empty() { "" } else { rest.split('/').next().unwrap_or_default() };
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if !scheme.eq_ignore_ascii_case("https") {
        errors.invalid(path, scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if host.is_empty() {
        errors.invalid(path, "", format!("host must be specified{FORM}"));
    }
    if !user.is_empty() {
        errors.invalid(path, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        errors.invalid(path, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        errors.invalid(path, query, "query parameters are not permitted in the URL");
    }
}

fn service(service: &admission::ServiceReference, path: &Path, errors: &mut FieldErrors) {
    for (text, field) in [(&service.name, "name"), (&service.namespace, "namespace")] {
        if text.is_empty() {
            errors.required(&path.child(field), "");
        }
    }
    if let Some(port) = service.port.filter(|port| !(1..=65535).contains(port)) {
        errors.invalid(&path.child("port"), port, format!("port is not valid: {}", check::PORT_RANGE));
    }
    let (at, given) = (path.child("path"), service.path.as_deref().unwrap_or_default());
    if matches!(given, "" | "/") {
        return;
    }
    if given == "//" {
        errors.invalid(&at, given, "segment[0] may not be empty");
        return;
    }
    if !given.starts_with('/') {
        errors.invalid(&at, given, "must start with a '/'");
    }
    let rest = given.chars().next().map_or("", |first| &given[first.len_utf8()..]);
    for (i, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            errors.invalid(&at, given, format!("segment[{i}] may not be empty"));
            continue;
        }
        for message in names::dns1123_subdomain(step) {
            errors.invalid(&at, given, format!("segment[{i}]: {message}"));
        }
    }
}
