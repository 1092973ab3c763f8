//! Rules that the kinds of devices share: names, selectors, requests, configuration, taints.

use std::collections::{BTreeMap, BTreeSet};

use ::rules::selector::Wrong;
use api::types::resource::v1 as resource;
use jiff::Timestamp;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde::Serialize;
use serde_json::Value;

use crate::check;
use crate::storage;

const POOL_LENGTH: usize = 253;
const IDENTIFIER_LENGTH: usize = 32;
const SELECTORS: usize = 32;
const EXPRESSION_LENGTH: usize = 10 * 1024;
const PARAMETERS_LENGTH: usize = 10 * 1024;
const REQUESTS: usize = 32;
const CONSTRAINTS: usize = 32;
/// How many configurations a claim or class may carry.
pub const CONFIGS: usize = 32;
const ALTERNATIVES: usize = 8;
const BINDING_CONDITIONS: usize = 4;
const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];
const IDENTIFIER: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
                          alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for \
                          validation is '[A-Za-z_][A-Za-z0-9_]*')";
const NO_REQUEST: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// A list without too many items, each of them sound. When there are too many, only that is said.
pub fn list<T>(
    items: &[T],
    max: usize,
    path: &Path,
    errors: &mut FieldErrors,
    mut item: impl FnMut(&T, &Path, &mut FieldErrors),
) -> bool {
    if items.len() > max {
        errors.too_many(path, items.len(), max);
        return false;
    }
    for (i, each) in items.iter().enumerate() {
        item(each, &path.index(i), errors);
    }
    true
}

/// The same, and no key twice.
pub fn set<T, K: Ord + Serialize>(
    items: &[T],
    max: usize,
    path: &Path,
    errors: &mut FieldErrors,
    item: impl FnMut(&T, &Path, &mut FieldErrors),
    key: impl Fn(&T) -> K,
) {
    if !list(items, max, path, errors, item) {
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, each) in items.iter().enumerate() {
        let key = key(each);
        let shown = check::value(&key);
        if !seen.insert(key) {
            errors.duplicate(&path.index(i), shown);
        }
    }
}

/// The name of who drives devices.
pub fn driver(name: &str, path: &Path, errors: &mut FieldErrors) {
    if name.is_empty() {
        errors.required(path, "");
    } else {
        storage::driver_name(name, path, errors);
    }
}

/// The name of a pool: one or several names of objects.
pub fn pool(name: &str, path: &Path, errors: &mut FieldErrors) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    if name.len() > POOL_LENGTH {
        errors.too_long(path, POOL_LENGTH);
    }
    for part in name.split('/') {
        check::all(names::dns1123_subdomain(part), path, part, errors);
    }
}

/// A label: the name of a device, a request, a set of counters.
pub fn label(name: &str, path: &Path, errors: &mut FieldErrors) {
    check::all(names::dns1123_label(name), path, name, errors);
}

/// The id of a share, as it is usually written.
pub fn uid(uid: &str, path: &Path, errors: &mut FieldErrors) {
    let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lengths: Vec<usize> = uid.split('-').map(str::len).collect();
    if !matches!(uid.len(), 32 | 36 | 38 | 45) {
        errors.invalid(path, uid, format!("error validating uid: invalid UUID length: {}", uid.len()));
    } else if uid.len() == 36 && !(lengths == [8, 4, 4, 4, 12] && uid.split('-').all(is_hex)) {
        errors.invalid(path, uid, "error validating uid: invalid UUID format");
    } else if uid.len() != 36 || uid.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let wrong = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase \
                     hexadecimal characters";
        errors.invalid(path, uid, wrong);
    }
}

fn identifier(name: &str, path: &Path, errors: &mut FieldErrors) {
    if name.len() > IDENTIFIER_LENGTH {
        errors.too_long(path, IDENTIFIER_LENGTH);
    }
    let letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    let bytes = name.as_bytes();
    if !(bytes.first().is_some_and(letter) && bytes.iter().all(|byte| letter(byte) || byte.is_ascii_digit())) {
        errors.invalid(path, name, IDENTIFIER);
    }
}

/// The name of an attribute or capacity, with or without a domain.
pub fn qualified(name: &str, path: &Path, errors: &mut FieldErrors) {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [name] => identifier(name, path, errors),
        [domain, name] => {
            match *domain {
                "" => errors.invalid(path, "", "the domain must not be empty"),
                domain => driver(domain, path, errors),
            }
            match *name {
                "" => errors.invalid(path, "", "the name must not be empty"),
                name => identifier(name, path, errors),
            }
        }
        _ => {}
    }
}

fn fully_qualified(name: &str, path: &Path, errors: &mut FieldErrors) {
    qualified(name, path, errors);
    if !name.contains('/') {
        errors.invalid(path, name, "a fully qualified name must be a domain and a name separated by a slash");
    }
}

/// Selectors of devices.
pub fn selectors(
    selectors: Option<&Vec<resource::DeviceSelector>>,
    stored: bool,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let selectors = selectors.map(Vec::as_slice).unwrap_or_default();
    list(selectors, SELECTORS, path, errors, |selector, path, errors| {
        let path = path.child("cel");
        let Some(cel) = &selector.cel else {
            errors.required(&path, "");
            return;
        };
        let path = path.child("expression");
        if stored {
            // It could be read when it came.
        } else if cel.expression.len() > EXPRESSION_LENGTH {
            errors.too_long(&path, EXPRESSION_LENGTH);
        } else {
            match ::rules::selector::check(&cel.expression) {
                Ok(()) => {}
                Err(Wrong::Invalid(why)) => errors.invalid(&path, cel.expression.as_str(), why),
                Err(Wrong::TooComplex) => errors.forbidden(&path, "too complex, exceeds cost limit"),
            }
        }
    });
}

/// What only a driver understands.
pub fn opaque(
    config: Option<&resource::OpaqueDeviceConfiguration>,
    stored: bool,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let path = path.child("opaque");
    let Some(config) = config else {
        errors.required(&path, "");
        return;
    };
    driver(&config.driver, &path.child("driver"), errors);
    raw(&config.parameters.0, if stored { usize::MAX } else { PARAMETERS_LENGTH }, &path.child("parameters"), errors);
}

/// An object of no type we know.
pub fn raw(value: &Value, max: usize, path: &Path, errors: &mut FieldErrors) {
    if value.is_null() {
        errors.required(path, "");
    } else if value.to_string().len() > max {
        errors.too_long(path, max);
    } else if !value.is_object() {
        errors.invalid(path, "<value omitted>", "must be a valid JSON object");
    }
}

/// The requests of a claim, and the alternatives of each.
pub struct RequestNames<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> RequestNames<'a> {
    pub fn of(claim: Option<&'a resource::DeviceClaim>) -> Self {
        let requests = claim.into_iter().flat_map(|claim| claim.requests.iter().flatten());
        let alternatives = |request: &'a resource::DeviceRequest| {
            request.first_available.iter().flatten().map(|alternative| alternative.name.as_str()).collect()
        };
        Self(requests.map(|request| (request.name.as_str(), alternatives(request))).collect())
    }

    fn has(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => self.0.contains_key(name),
            Some((request, alternative)) => self.0.get(request).is_some_and(|known| known.contains(alternative)),
        }
    }

    /// A name must be that of a request, or of one of its alternatives.
    pub fn check(&self, name: &str, path: &Path, errors: &mut FieldErrors) {
        if name.matches('/').count() > 1 {
            errors.invalid(path, name, NO_REQUEST);
            return;
        }
        for part in name.split('/') {
            label(part, path, errors);
        }
        if !self.has(name) {
            errors.invalid(path, name, NO_REQUEST);
        }
    }

    /// The same for a list of them.
    pub fn check_all(&self, given: Option<&Vec<String>>, path: &Path, errors: &mut FieldErrors) {
        let given = given.map(Vec::as_slice).unwrap_or_default();
        set(given, REQUESTS, path, errors, |name, path, errors| self.check(name, path, errors), String::clone);
    }
}

/// What a claim asks for.
pub fn claim(spec: Option<&resource::ResourceClaimSpec>, path: &Path, errors: &mut FieldErrors) {
    let Some(claim) = spec.and_then(|spec| spec.devices.as_ref()) else { return };
    let path = path.child("devices");
    let names = RequestNames::of(Some(claim));
    let requests = claim.requests.as_deref().unwrap_or_default();
    set(requests, REQUESTS, &path.child("requests"), errors, request, |request| request.name.clone());
    let constraints = claim.constraints.as_deref().unwrap_or_default();
    list(constraints, CONSTRAINTS, &path.child("constraints"), errors, |constraint, path, errors| {
        names.check_all(constraint.requests.as_ref(), &path.child("requests"), errors);
        match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(name), _) => fully_qualified(name, &path.child("matchAttribute"), errors),
            (None, Some(name)) => fully_qualified(name, &path.child("distinctAttribute"), errors),
            (None, None) => {
                let wrong = r#"exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set"#;
                errors.required(path, wrong);
            }
        }
    });
    let configs = claim.config.as_deref().unwrap_or_default();
    list(configs, CONFIGS, &path.child("config"), errors, |config, path, errors| {
        names.check_all(config.requests.as_ref(), &path.child("requests"), errors);
        opaque(config.opaque.as_ref(), false, path, errors);
    });
}

fn request(request: &resource::DeviceRequest, path: &Path, errors: &mut FieldErrors) {
    label(&request.name, &path.child("name"), errors);
    let alternatives = request.first_available.as_deref().unwrap_or_default();
    match (&request.exactly, alternatives) {
        (None, []) => errors.required(path, "exactly one of `exactly` or `firstAvailable` is required"),
        (Some(_), [_, ..]) => {
            let wrong = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.invalid(path, Value::Null, wrong);
        }
        (Some(exactly), []) => {
            let wish = Wish {
                class: &exactly.device_class_name,
                selectors: exactly.selectors.as_ref(),
                mode: exactly.allocation_mode.as_deref(),
                count: exactly.count.unwrap_or(0),
                tolerations: exactly.tolerations.as_deref(),
            };
            wish.check(&path.child("exactly"), errors);
        }
        (None, alternatives) => {
            let path = path.child("firstAvailable");
            set(alternatives, ALTERNATIVES, &path, errors, alternative, |alternative| alternative.name.clone());
        }
    }
}

fn alternative(alternative: &resource::DeviceSubRequest, path: &Path, errors: &mut FieldErrors) {
    label(&alternative.name, &path.child("name"), errors);
    let wish = Wish {
        class: &alternative.device_class_name,
        selectors: alternative.selectors.as_ref(),
        mode: alternative.allocation_mode.as_deref(),
        count: alternative.count.unwrap_or(0),
        tolerations: alternative.tolerations.as_deref(),
    };
    wish.check(path, errors);
}

/// What a request and an alternative have in common.
struct Wish<'a> {
    class: &'a str,
    selectors: Option<&'a Vec<resource::DeviceSelector>>,
    mode: Option<&'a str>,
    count: i64,
    tolerations: Option<&'a [resource::DeviceToleration]>,
}

impl Wish<'_> {
    fn check(&self, path: &Path, errors: &mut FieldErrors) {
        let class = path.child("deviceClassName");
        match self.class {
            "" => errors.required(&class, ""),
            name => check::all(names::dns1123_subdomain(name), &class, name, errors),
        }
        selectors(self.selectors, false, &path.child("selectors"), errors);
        let count = path.child("count");
        match self.mode.unwrap_or_default() {
            "All" if self.count != 0 => {
                errors.invalid(&count, self.count, "must not be specified when allocationMode is 'All'");
            }
            "ExactCount" if self.count <= 0 => errors.invalid(&count, self.count, "must be greater than zero"),
            "All" | "ExactCount" => {}
            other => errors.not_supported(&path.child("allocationMode"), other, &["All", "ExactCount"]),
        }
        for (i, toleration) in self.tolerations.unwrap_or_default().iter().enumerate() {
            self::toleration(toleration, &path.child("tolerations").index(i), errors);
        }
    }
}

fn toleration(toleration: &resource::DeviceToleration, path: &Path, errors: &mut FieldErrors) {
    if let Some(key) = toleration.key.as_deref().filter(|key| !key.is_empty()) {
        check::all(names::qualified_name(key), &path.child("key"), key, errors);
    }
    let value = toleration.value.as_deref().unwrap_or_default();
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" if !value.is_empty() => {
            errors.invalid(&path.child("value"), value, "must be empty for operator `Exists`");
        }
        "Exists" => {}
        "Equal" => check::all(names::label_value(value), &path.child("value"), value, errors),
        "" => errors.required(&path.child("operator"), ""),
        other => errors.not_supported(&path.child("operator"), other, &["Equal", "Exists"]),
    }
    let effect = toleration.effect.as_deref().filter(|effect| !effect.is_empty());
    check::one_of_or_absent(effect, EFFECTS, &path.child("effect"), errors);
}

/// Fills what a claim leaves open.
pub fn default_claim(spec: Option<&mut resource::ResourceClaimSpec>) {
    let Some(claim) = spec.and_then(|spec| spec.devices.as_mut()) else { return };
    for request in claim.requests.iter_mut().flatten() {
        if let Some(exactly) = &mut request.exactly {
            default_wish(&mut exactly.allocation_mode, &mut exactly.count);
        }
        for alternative in request.first_available.iter_mut().flatten() {
            default_wish(&mut alternative.allocation_mode, &mut alternative.count);
        }
    }
}

fn default_wish(mode: &mut Option<String>, count: &mut Option<i64>) {
    if mode.as_deref().unwrap_or_default().is_empty() {
        *mode = Some("ExactCount".into());
    }
    if mode.as_deref() == Some("ExactCount") && count.unwrap_or(0) == 0 {
        *count = Some(1);
    }
}

/// A taint says since when.
pub fn default_taint(taint: &mut resource::DeviceTaint, now: Timestamp) {
    let whole = Timestamp::from_second(now.as_second()).unwrap_or(now);
    taint.time_added.get_or_insert(api::meta::apis::meta::v1::Time(whole));
}

/// A taint of a device. An effect that the stored object has already is not looked at.
pub fn taint(
    taint: &resource::DeviceTaint,
    old: Option<&resource::DeviceTaint>,
    path: &Path,
    errors: &mut FieldErrors,
) {
    check::all(names::qualified_name(&taint.key), &path.child("key"), &taint.key, errors);
    if let Some(value) = taint.value.as_deref().filter(|value| !value.is_empty()) {
        check::all(names::label_value(value), &path.child("value"), value, errors);
    }
    if old.is_none_or(|old| old.effect != taint.effect) {
        check::one_of(Some(&taint.effect), EFFECTS, &path.child("effect"), errors);
    }
}

/// Conditions that must become true before a pod is bound, and those that end the attempt.
pub fn binding_conditions(
    wanted: Option<&Vec<String>>,
    failures: Option<&Vec<String>>,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let slice = |list: Option<&'_ Vec<String>>| -> Vec<String> { list.cloned().unwrap_or_default() };
    let (wanted, failures) = (slice(wanted), slice(failures));
    let (wanted_path, failures_path) = (path.child("bindingConditions"), path.child("bindingFailureConditions"));
    let name = |name: &String, path: &Path, errors: &mut FieldErrors| {
        check::all(names::qualified_name(name), path, name, errors);
    };
    list(&wanted, BINDING_CONDITIONS, &wanted_path, errors, name);
    list(&failures, BINDING_CONDITIONS, &failures_path, errors, name);
    let mut seen = BTreeSet::new();
    for (i, condition) in wanted.iter().enumerate() {
        if !seen.insert(condition) {
            errors.duplicate(&wanted_path.index(i), condition.as_str());
        }
    }
    let mut failed = BTreeSet::new();
    for (i, condition) in failures.iter().enumerate() {
        let at = failures_path.index(i);
        if !failed.insert(condition) {
            errors.duplicate(&at, condition.as_str());
        }
        if seen.contains(condition) {
            let wrong = "bindingFailureConditions must not overlap with bindingConditions";
            errors.invalid(&at, condition.as_str(), wrong);
        }
    }
    if wanted.is_empty() && !failures.is_empty() {
        let wrong = "bindingConditions are required to use bindingFailureConditions";
        errors.invalid(&wanted_path, check::value(&wanted), wrong);
    }
    if failures.is_empty() && !wanted.is_empty() {
        let wrong = "bindingFailureConditions are required to use bindingConditions";
        errors.invalid(&failures_path, check::value(&failures), wrong);
    }
}
