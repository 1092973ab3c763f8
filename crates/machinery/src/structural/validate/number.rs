//! Numbers: their bounds, and when two are the same.

use serde_json::{Number, Value};

use super::found::{Found, What};
use super::{At, Outcome};
use crate::go;
use crate::structural::{Node, Type};

/// True for a float that stands for a whole number which floats can count.
pub(super) fn is_whole(float: f64) -> bool {
    const COUNTED: f64 = 9_007_199_254_740_991.0;
    float.abs() <= COUNTED && {
        let whole = float.trunc();
        let difference = (float - whole).abs();
        float == whole || difference / (float.abs() + whole.abs()) < 1e-9
    }
}

/// True when a value is one of an enumeration; a number counts in the type of the other.
pub(super) fn is_equal(value: &Value, allowed: &Value) -> bool {
    match (value, allowed) {
        (Value::Null, _) | (_, Value::Null) => false,
        (Value::Number(value), Value::Number(allowed)) => match (value.as_i64(), allowed.as_i64()) {
            (Some(value), Some(allowed)) => value == allowed,
            #[expect(clippy::cast_possible_truncation, reason = "as upstream converts it")]
            (None, Some(allowed)) => value.as_f64().is_some_and(|value| value as i64 == allowed),
            (_, None) => value.as_f64() == allowed.as_f64(),
        },
        (value, allowed) => value == allowed,
    }
}

/// A float as error texts print it.
fn print(float: f64) -> String {
    go::shortest(float, 1e21)
}

/// Can the number be held by the schema's type and format?
fn is_in_range(kind: Option<Type>, format: &str, number: &Number) -> bool {
    let whole = || match number.as_i64() {
        Some(whole) => Some(whole),
        #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and small enough")]
        None => number.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9.3e18).map(|f| f as i64),
    };
    match (kind, format) {
        (Some(Type::Integer), "int32") => whole().is_some_and(|whole| i32::try_from(whole).is_ok()),
        (Some(Type::Integer), _) => whole().is_some(),
        (Some(Type::Number), "float") => number.as_f64().is_some_and(|f| f.abs() <= f64::from(f32::MAX)),
        _ => true,
    }
}

/// Adds what is wrong with a number.
pub(super) fn check(node: &Node, format: &str, number: &Number, at: &At<'_>, out: &mut Outcome) {
    out.matched += 1;
    let kind = node.kind.filter(|kind| matches!(kind, Type::Integer | Type::Number) && !node.int_or_string);
    let out_of_range = |what: &str, number: &Number| {
        if is_in_range(kind, format, number) {
            return None;
        }
        let kind = kind.map_or("", Type::word);
        let form = if format.is_empty() { "(default format)".to_owned() } else { format!("with format {format}") };
        Some(format!("{what} value must be of type {kind} {form} in {}", at.text()))
    };
    if let Some(text) = out_of_range("Checked", number) {
        out.add(Found::plain(text));
    }
    let Some(validation) = &node.validation else { return };
    let whole = number.as_i64();
    let float = number.as_f64().unwrap_or_default();
    // A bound that the type cannot hold is told, and compared as a float.
    let mut usable = |what: &str, bound: f64| {
        let text = Number::from_f64(bound).and_then(|bound| out_of_range(what, &bound));
        let fits = text.is_none();
        if let Some(text) = text {
            out.add(Found::plain(text));
        }
        fits
    };
    let mut wrong = Vec::new();
    let value = || Value::Number(number.clone());
    if let Some(factor) = validation.multiple_of {
        let fits = usable("MultipleOf", factor);
        #[expect(clippy::cast_possible_truncation, reason = "as upstream converts it")]
        let (factor, shown, positive, multiple) = match whole.filter(|_| fits) {
            Some(whole) => {
                let factor = factor as i64;
                (Value::from(factor), factor.to_string(), factor > 0, factor > 0 && whole % factor == 0)
            }
            None => {
                let quotient = if factor < 1.0 { 1.0 / factor * float } else { float / factor };
                (Value::from(factor), print(factor), factor > 0.0, is_whole(quotient))
            }
        };
        if !positive {
            let message = format!("factor MultipleOf declared for {} must be positive: {shown}", at.text());
            wrong.push((factor, message));
        } else if !multiple {
            wrong.push((value(), format!("{} in body should be a multiple of {shown}", at.text())));
        }
    }
    for (bound, exclusive, is_max) in [
        (validation.minimum, validation.exclusive_minimum, false),
        (validation.maximum, validation.exclusive_maximum, true),
    ] {
        let Some(bound) = bound else { continue };
        let fits = usable(if is_max { "Maximum boundary" } else { "Minimum boundary" }, bound);
        let whole = whole.filter(|_| fits);
        #[expect(clippy::cast_possible_truncation, reason = "as upstream converts it")]
        let (order, shown) = match whole {
            Some(whole) => (Some(whole.cmp(&(bound as i64))), (bound as i64).to_string()),
            None => (float.partial_cmp(&bound), print(bound)),
        };
        let beyond = if is_max { std::cmp::Ordering::Greater } else { std::cmp::Ordering::Less };
        if order == Some(beyond) || (exclusive && order == Some(std::cmp::Ordering::Equal)) {
            let how = match (is_max, exclusive) {
                (true, false) => "less than or equal to",
                (true, true) => "less than",
                (false, false) => "greater than or equal to",
                (false, true) => "greater than",
            };
            wrong.push((value(), format!("{} in body should be {how} {shown}", at.text())));
        }
    }
    for (value, message) in wrong {
        out.add(Found::of(What::Other, at.text(), Some(value), message));
    }
}
