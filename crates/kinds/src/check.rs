//! Small rules about one value at one path, which many kinds use.

use std::collections::BTreeSet;

use api::meta::apis::meta::v1::{Condition, LabelSelector};
use api::meta::util::intstr::IntOrString;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde::Serialize;
use serde_json::Value;

pub const IMMUTABLE: &str = "field is immutable";
pub const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";
pub const ID_RANGE: &str = "must be between 0 and 2147483647, inclusive";
pub const IP_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' \
                       (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";

const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of \
                      alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' \
                      (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', \
                      regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";
const REASON_LIMIT: usize = 1024;
const MESSAGE_LIMIT: usize = 32 * 1024;

/// The JSON form of a part of a view, for the value of a message.
pub fn value(part: &impl Serialize) -> Value {
    serde_json::to_value(part).unwrap_or(Value::Null)
}

/// `messages` about `value`, each as a mistake.
pub fn all(messages: Vec<String>, path: &Path, value: &str, errors: &mut FieldErrors) {
    for message in messages {
        errors.invalid(path, value, message);
    }
}

/// At least zero; an absent number is fine.
pub fn not_negative(number: Option<impl Into<i64>>, path: &Path, errors: &mut FieldErrors) {
    if let Some(number) = number.map(Into::into).filter(|n| *n < 0) {
        errors.invalid(path, number, NOT_NEGATIVE);
    }
}

/// A port number.
pub fn port(number: i32, path: &Path, errors: &mut FieldErrors) {
    if !(1..=65535).contains(&number) {
        errors.invalid(path, number, PORT_RANGE);
    }
}

/// A port by number or name.
pub fn port_or_name(port: &IntOrString, path: &Path, errors: &mut FieldErrors) {
    match port {
        IntOrString::Int(number) => self::port(*number, path, errors),
        IntOrString::String(name) => all(names::port_name(name), path, name, errors),
    }
}

/// One of `supported`; an empty value is missing.
pub fn one_of(text: Option<&str>, supported: &[&str], path: &Path, errors: &mut FieldErrors) {
    match text.unwrap_or_default() {
        "" => errors.required(path, ""),
        text if supported.contains(&text) => {}
        text => errors.not_supported(path, text, supported),
    }
}

/// One of `supported`, or absent.
pub fn one_of_or_absent(text: Option<&str>, supported: &[&str], path: &Path, errors: &mut FieldErrors) {
    if let Some(text) = text.filter(|text| !supported.contains(text)) {
        errors.not_supported(path, text, supported);
    }
}

/// May not change.
pub fn immutable<T: PartialEq + Serialize + ?Sized>(new: &T, old: &T, path: &Path, errors: &mut FieldErrors) {
    if new != old {
        errors.invalid(path, serde_json::to_value(new).unwrap_or(Value::Null), IMMUTABLE);
    }
}

/// The same for a field whose absence means its zero: protobuf and clients that leave zeros out say none.
pub fn immutable_zero<T>(new: &Option<T>, old: &Option<T>, path: &Path, errors: &mut FieldErrors)
where
    T: Default + PartialEq + Serialize,
{
    let is_zero = |value: &Option<T>| value.as_ref().is_none_or(|value| *value == T::default());
    if !(is_zero(new) && is_zero(old)) {
        immutable(new, old, path, errors);
    }
}

/// A count that only grows; an absent one is zero.
pub fn not_decremented(new: Option<i32>, old: Option<i32>, path: &Path, errors: &mut FieldErrors) {
    if old.is_some_and(|old| new.is_none_or(|new| new < old)) {
        errors.invalid(path, new.unwrap_or(0), "cannot be decremented");
    }
}

/// The percentage in `25%`.
pub fn percent(text: &str) -> Option<i32> {
    text.strip_suffix('%').filter(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

/// A count that is not negative, or a percentage.
pub fn count_or_percent(amount: &IntOrString, path: &Path, errors: &mut FieldErrors) {
    match amount {
        IntOrString::Int(number) => not_negative(Some(*number), path, errors),
        IntOrString::String(text) if percent(text).is_none() => errors.invalid(path, text.as_str(), PERCENT),
        IntOrString::String(_) => {}
    }
}

/// True for no pods at all; what is neither count nor percentage is none, too.
pub fn is_zero(amount: &IntOrString) -> bool {
    match amount {
        IntOrString::Int(number) => *number == 0,
        IntOrString::String(text) => percent(text).unwrap_or(0) == 0,
    }
}

/// No more than all.
pub fn at_most_all(amount: &IntOrString, path: &Path, errors: &mut FieldErrors) {
    if let IntOrString::String(text) = amount
        && percent(text).is_some_and(|n| n > 100)
    {
        errors.invalid(path, text.as_str(), "must not be greater than 100%");
    }
}

/// A label selector.
pub fn selector(selector: &LabelSelector, path: &Path, errors: &mut FieldErrors) {
    let labels = selector.match_labels.iter().flatten().map(|(k, v)| (k.as_str(), v.as_str()));
    crate::metadata::validate_labels(labels, &path.child("matchLabels"), errors);
    for (i, expression) in selector.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let values = expression.values.as_deref().unwrap_or_default();
        match expression.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(&path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "In" | "NotIn" => {}
            "Exists" | "DoesNotExist" if !values.is_empty() => errors
                .forbidden(&path.child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
            "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        all(names::qualified_name(&expression.key), &path.child("key"), &expression.key, errors);
        for (j, value) in values.iter().enumerate() {
            all(names::label_value(value), &path.child("values").index(j), value, errors);
        }
    }
}

/// A selector that cannot be read selects nothing: says so in the kind's own words, once more.
pub fn is_readable(selector: &LabelSelector, wrong: &str, path: &Path, errors: &mut FieldErrors) -> bool {
    let is_readable = api::selector(selector).is_ok();
    if !is_readable {
        errors.invalid(path, value(selector), wrong);
    }
    is_readable
}

/// True for the selector that selects everything (or was never given).
pub fn is_empty_selector(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(|labels| labels.is_empty())
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// An address that traffic can be sent to.
pub fn routable(address: std::net::IpAddr, text: &str, path: &Path, errors: &mut FieldErrors) {
    use std::net::IpAddr;
    if address.is_unspecified() {
        errors.invalid(path, text, format!("may not be unspecified ({text})"));
    }
    if address.is_loopback() {
        errors.invalid(path, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if link_local {
        errors.invalid(path, text, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    let link_multicast = match address {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] == 0xff02,
    };
    if link_multicast {
        errors.invalid(path, text, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

/// A network in its canonical form.
pub fn cidr(text: &str, path: &Path, errors: &mut FieldErrors) {
    match text.parse::<ipnet::IpNet>() {
        Err(_) => errors.invalid(path, text, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
        Ok(net) if net.addr() != net.network() || net.to_string() != text => {
            errors.invalid(path, text, format!("must be in canonical form (\"{}\")", net.trunc()));
        }
        Ok(_) => {}
    }
}

/// Conditions in the form newer kinds have.
pub fn conditions(conditions: &[Condition], path: &Path, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        if !seen.insert(condition.type_.as_str()) {
            errors.duplicate(&path.child("type"), condition.type_.as_str());
        }
        all(names::qualified_name(&condition.type_), &path.child("type"), &condition.type_, errors);
        let states = ["False", "True", "Unknown"];
        one_of_or_absent(Some(&condition.status), &states, &path.child("status"), errors);
        if let Some(generation) = condition.observed_generation.filter(|n| *n < 0) {
            let wrong = "must be greater than or equal to zero";
            errors.invalid(&path.child("observedGeneration"), generation, wrong);
        }
        if condition.last_transition_time.0 == jiff::Timestamp::default() {
            errors.required(&path.child("lastTransitionTime"), "must be set");
        }
        let (reason, reason_path) = (condition.reason.as_str(), path.child("reason"));
        if reason.is_empty() {
            errors.required(&reason_path, "must be set");
        } else if !is_reason(reason) {
            errors.invalid(&reason_path, reason, REASON);
        } else if reason.len() > REASON_LIMIT {
            errors.too_long(&reason_path, REASON_LIMIT);
        }
        if condition.message.len() > MESSAGE_LIMIT {
            errors.too_long(&path.child("message"), MESSAGE_LIMIT);
        }
    }
}

fn is_reason(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(|c| c.is_ascii_alphanumeric() || *c == b'_')
        && bytes.iter().all(|c| c.is_ascii_alphanumeric() || b"_,:".contains(c))
}
