//! One device of a slice: its attributes, capacities, counters, taints and place.

use std::collections::BTreeMap;

use api::meta::api::resource::Quantity as Amount;
use api::types::resource::v1 as resource;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use machinery::quantity::Quantity;
use serde_json::Value;

use crate::check;
use crate::devices as rules;
use crate::pod::validate_scheduling;
use crate::resources;

const ATTRIBUTES_AND_CAPACITIES: usize = 32;
const ATTRIBUTE_VALUES: usize = 48;
const VALUE_LENGTH: usize = 64;
const TAINTS: usize = 16;
const CONSUMPTIONS: usize = 2;
const COUNTERS: usize = 32;
const CHOICES: usize = 10;
const KEY_LENGTH: usize = 63 + 1 + 32;
const SEMVER: &str = "must be a string compatible with semver.org spec 2.0.0";
const ONE_PLACE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
                         `perDeviceNodeSelection` is set to true in the ResourceSlice spec";

/// True for a device whose attributes have several values.
pub fn has_lists(device: &resource::Device) -> bool {
    device.attributes.iter().flat_map(BTreeMap::values).any(|attribute| {
        attribute.bools.is_some()
            || attribute.ints.is_some()
            || attribute.strings.is_some()
            || attribute.versions.is_some()
    })
}

/// True for a device of which a slice may have fewer.
pub fn is_advanced(device: &resource::Device) -> bool {
    device.taints.as_ref().is_some_and(|taints| !taints.is_empty())
        || device.consumes_counters.as_ref().is_some_and(|counters| !counters.is_empty())
        || has_lists(device)
}

/// A key of a map in a path.
fn key_path(path: &Path, key: &str, max: usize) -> Path {
    if key.len() <= max || !key.is_ascii() {
        return path.key(key);
    }
    let rest = max - "...".len();
    path.key(format!("{}...{}", &key[..rest.div_ceil(2)], &key[key.len() - rest / 2..]))
}

pub fn validate(
    device: &resource::Device,
    old: Option<&resource::Device>,
    selected: bool,
    path: &Path,
    errors: &mut FieldErrors,
) {
    rules::label(&device.name, &path.child("name"), errors);
    let (attributes, capacity) = (device.attributes.iter().flatten(), device.capacity.iter().flatten());
    let entries = attributes.clone().count() + capacity.clone().count();
    if entries > ATTRIBUTES_AND_CAPACITIES {
        let wrong =
            format!("the total number of attributes and capacities must not exceed {ATTRIBUTES_AND_CAPACITIES}");
        errors.invalid(path, entries, wrong);
    }
    let values: usize = attributes.clone().map(|(_, attribute)| values_of(attribute)).sum();
    if values > ATTRIBUTE_VALUES {
        let wrong = format!("the total number of attribute values must not exceed {ATTRIBUTE_VALUES}");
        errors.invalid(path, values, wrong);
    }
    let at = path.child("attributes");
    for (key, attribute) in attributes {
        rules::qualified(key, &at, errors);
        self::attribute(attribute, &key_path(&at, key, KEY_LENGTH), errors);
    }
    let (at, shared) = (path.child("capacity"), device.allow_multiple_allocations.unwrap_or(false));
    for (key, capacity) in capacity {
        rules::qualified(key, &at, errors);
        let path = key_path(&at, key, KEY_LENGTH).child("requestPolicy");
        match &capacity.request_policy {
            Some(policy) if shared => self::policy(&capacity.value, policy, &path, errors),
            Some(_) => errors.forbidden(&path, "allowMultipleAllocations must be true"),
            None => {}
        }
    }
    if old.is_none_or(|old| old.taints != device.taints) {
        let taints = device.taints.as_deref().unwrap_or_default();
        rules::list(taints, TAINTS, &path.child("taints"), errors, |taint, path, errors| {
            rules::taint(taint, None, path, errors);
        });
    }
    let consumed = device.consumes_counters.as_deref().unwrap_or_default();
    let check_consumed = |consumed: &resource::DeviceCounterConsumption, path: &Path, errors: &mut FieldErrors| {
        counters(&consumed.counter_set, "counterSet", &consumed.counters, path, errors);
    };
    let set = |consumed: &resource::DeviceCounterConsumption| consumed.counter_set.clone();
    rules::set(consumed, CONSUMPTIONS, &path.child("consumesCounters"), errors, check_consumed, set);
    place(device, selected, path, errors);
    let (wanted, failures) = (device.binding_conditions.as_ref(), device.binding_failure_conditions.as_ref());
    rules::binding_conditions(wanted, failures, path, errors);
}

/// Counters of a set, or what a device takes of them.
pub fn counters(
    set: &str,
    field: &str,
    counters: &BTreeMap<String, resource::Counter>,
    path: &Path,
    errors: &mut FieldErrors,
) {
    match set {
        "" => errors.required(&path.child(field), ""),
        name => rules::label(name, &path.child(field), errors),
    }
    let path = path.child("counters");
    if counters.is_empty() {
        errors.required(&path, "");
    } else if counters.len() > COUNTERS {
        errors.too_many(&path, counters.len(), COUNTERS);
    } else {
        counters.keys().for_each(|key| rules::label(key, &path, errors));
    }
}

fn place(device: &resource::Device, selected: bool, path: &Path, errors: &mut FieldErrors) {
    if !selected {
        if device.node_name.is_some() || device.node_selector.is_some() || device.all_nodes.is_some() {
            let wrong = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set \
                         to true in the ResourceSlice spec";
            errors.invalid(path, Value::Null, wrong);
        }
        return;
    }
    let mut ways = Vec::new();
    if let Some(name) = &device.node_name {
        let path = path.child("nodeName");
        if name.is_empty() {
            errors.invalid(&path, "", "must not be empty");
        } else {
            ways.push("`nodeName`");
            check::all(names::dns1123_subdomain(name), &path, name, errors);
        }
    }
    if let Some(selector) = &device.node_selector {
        ways.push("`nodeSelector`");
        validate_scheduling::node_selector(selector, &path.child("nodeSelector"), errors);
    }
    match device.all_nodes {
        None => {}
        Some(true) => ways.push("`allNodes`"),
        Some(false) => errors.invalid(&path.child("allNodes"), false, "must be either unset or set to true"),
    }
    match ways.len() {
        0 => errors.required(path, ONE_PLACE),
        1 => {}
        _ => errors.invalid(path, format!("{{{}}}", ways.join(", ")), ONE_PLACE),
    }
}

fn values_of(attribute: &resource::DeviceAttribute) -> usize {
    let lens = [
        attribute.bools.as_ref().map_or(0, Vec::len),
        attribute.ints.as_ref().map_or(0, Vec::len),
        attribute.strings.as_ref().map_or(0, Vec::len),
        attribute.versions.as_ref().map_or(0, Vec::len),
    ];
    lens.iter().sum::<usize>().max(1)
}

fn attribute(attribute: &resource::DeviceAttribute, path: &Path, errors: &mut FieldErrors) {
    let mut given = usize::from(attribute.bool.is_some()) + usize::from(attribute.int.is_some());
    if let Some(text) = &attribute.string {
        given += 1;
        text_value(text, &path.child("string"), errors);
    }
    if let Some(text) = &attribute.version {
        given += 1;
        version(text, &path.child("version"), errors);
    }
    let lists = [
        (attribute.bools.as_ref().map(Vec::len), "bools"),
        (attribute.ints.as_ref().map(Vec::len), "ints"),
        (attribute.strings.as_ref().map(Vec::len), "strings"),
        (attribute.versions.as_ref().map(Vec::len), "versions"),
    ];
    for (len, field) in lists {
        given += usize::from(len.is_some());
        if len == Some(0) {
            errors.invalid(&path.child(field), Value::Array(Vec::new()), "must not be empty if specified");
        }
    }
    for (i, text) in attribute.strings.iter().flatten().enumerate() {
        text_value(text, &path.child("strings").index(i), errors);
    }
    for (i, text) in attribute.versions.iter().flatten().enumerate() {
        version(text, &path.child("versions").index(i), errors);
    }
    match given {
        0 => errors.invalid(path, "", "exactly one value must be specified"),
        1 => {}
        _ => errors.invalid(path, check::value(attribute), "exactly one value must be specified"),
    }
}

fn text_value(text: &str, path: &Path, errors: &mut FieldErrors) {
    if text.len() > VALUE_LENGTH {
        errors.too_long(path, VALUE_LENGTH);
    }
}

fn version(text: &str, path: &Path, errors: &mut FieldErrors) {
    if !is_semver(text) {
        errors.invalid(path, text, SEMVER);
    }
    text_value(text, path, errors);
}

/// `1.2.3-rc.1+build`, without a leading `v` and without leading zeros.
fn is_semver(text: &str) -> bool {
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, pre) = text.split_once('-').map_or((text, None), |(core, pre)| (core, Some(pre)));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let numeric = |part: &str| digits(part) && (part == "0" || !part.starts_with('0'));
    let word = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() == 3
        && numbers.iter().all(|part| numeric(part))
        && pre.is_none_or(|pre| pre.split('.').all(|part| word(part) && (!digits(part) || numeric(part))))
        && build.is_none_or(|build| build.split('.').all(word))
}

/// How much of a shared capacity may be asked for.
fn policy(max: &Amount, policy: &resource::CapacityRequestPolicy, path: &Path, errors: &mut FieldErrors) {
    let choices = policy.valid_values.as_deref().unwrap_or_default();
    let default = policy.default.as_ref();
    match (choices, &policy.valid_range) {
        ([_, ..], Some(_)) => {
            let wrong = r#"exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#;
            errors.forbidden(path, wrong);
        }
        ([_, ..], None) => match default {
            None => errors.required(&path.child("default"), "required when validValues is defined"),
            Some(default) => self::choices(default, max, choices, &path.child("validValues"), errors),
        },
        ([], Some(range)) => match default {
            None => errors.required(&path.child("default"), "required when validRange is defined"),
            Some(default) => self::range(default, max, range, &path.child("validRange"), errors),
        },
        ([], None) => {}
    }
}

fn amount(amount: &Amount) -> Quantity {
    resources::parse(amount).unwrap_or(Quantity::ZERO)
}

fn choices(default: &Amount, max: &Amount, choices: &[Amount], path: &Path, errors: &mut FieldErrors) {
    for (i, pair) in choices.windows(2).enumerate() {
        if amount(&pair[0]) > amount(&pair[1]) {
            errors.invalid(&path.index(i + 1), pair[1].0.as_str(), "values must be sorted in ascending order");
        }
    }
    let check = |choice: &Amount, path: &Path, errors: &mut FieldErrors| {
        if amount(choice) > amount(max) {
            errors.invalid(path, choice.0.as_str(), format!("option is larger than capacity value: {}", max.0));
        }
    };
    rules::set(choices, CHOICES, path, errors, check, |choice| amount(choice).value().to_string());
    if choices.len() > CHOICES || !choices.iter().any(|choice| amount(choice) == amount(default)) {
        errors.invalid(path, default.0.as_str(), "default value is not valid according to the requestPolicy");
    }
}

fn range(
    default: &Amount,
    capacity: &Amount,
    range: &resource::CapacityRequestPolicyRange,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let (min, top) = (&range.min, amount(capacity));
    let at = path.child("min");
    if amount(min) > top {
        errors.invalid(&at, min.0.as_str(), format!("min is larger than capacity value: {}", capacity.0));
    }
    if amount(default) < amount(min) {
        errors.invalid(&at, default.0.as_str(), format!("default is less than min: {}", min.0));
    }
    if let Some(max) = &range.max {
        let at = path.child("max");
        if amount(min) > amount(max) {
            errors.invalid(&at, min.0.as_str(), format!("min is larger than max: {}", max.0));
        }
        if amount(max) > top {
            errors.invalid(&at, max.0.as_str(), format!("max is larger than capacity value: {}", capacity.0));
        }
        if amount(default) > amount(max) {
            errors.invalid(&at, default.0.as_str(), format!("default is more than max: {}", max.0));
        }
    }
    let Some(step) = &range.step else { return };
    let at = path.child("step");
    let one = amount(min).add(&amount(step));
    if one > top {
        let wrong = format!("one step {one} is larger than capacity value: {}", capacity.0);
        errors.invalid(&at, step.0.as_str(), wrong);
    }
    for value in std::iter::once(default).chain(&range.max) {
        let (above, step_size) = (amount(value).value() - amount(min).value(), amount(step).value());
        if step_size == 0 || above % step_size != 0 {
            let wrong = format!("value is not a multiple of a given step ({}) from ({})", step.0, min.0);
            errors.invalid(&at, value.0.as_str(), wrong);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (text, want) in [
            ("1.2.3", true),
            ("0.0.0-rc.1+build.5", true),
            ("1.2.3-0a", true),
            ("1.2.3+01", true),
            ("1.2", false),
            ("01.2.3", false),
            ("1.2.3-01", false),
            ("1.2.3-", false),
            ("v1.2.3", false),
            ("", false),
        ] {
            assert_eq!(is_semver(text), want, "{text}");
        }
    }
}
