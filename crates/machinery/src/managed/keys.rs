//! The keys of a list's item as text, `{"containerPort":80,"protocol":"TCP"}`: read and put in order without
//! a parser where nothing in them needs one, which is nearly always.

use std::cmp::Ordering;

/// True when the text is an object of scalars as we write it: names in order, no spaces, nothing escaped,
/// whole numbers in their shortest form. False says nothing.
pub(super) fn is_plain(text: &str) -> bool {
    let Some(mut rest) = text.strip_prefix('{') else { return false };
    let mut last: Option<&str> = None;
    loop {
        let Some((name, after)) = plain_text(rest) else { return false };
        if last.is_some_and(|last| last >= name) {
            return false;
        }
        last = Some(name);
        let Some(after) = after.strip_prefix(':').and_then(scalar) else { return false };
        match after.as_bytes().first() {
            Some(b',') => rest = &after[1..],
            Some(b'}') => return after.len() == 1,
            _ => return false,
        }
    }
}

/// A text in quotes in which nothing is escaped, and what follows.
fn plain_text(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('"')?;
    let end = inner.bytes().position(|b| b == b'"' || b == b'\\' || b < b' ')?;
    (inner.as_bytes()[end] == b'"').then(|| (&inner[..end], &inner[end + 1..]))
}

/// What follows a scalar.
fn scalar(text: &str) -> Option<&str> {
    if text.starts_with('"') {
        return plain_text(text).map(|(_, rest)| rest);
    }
    let words = ["true", "false", "null"];
    words.iter().find_map(|word| text.strip_prefix(word)).or_else(|| whole(text).map(|(_, rest)| rest))
}

/// A whole number in its shortest form, and what follows.
fn whole(text: &str) -> Option<(i64, &str)> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let sign = text.len() - digits.len();
    let end = digits.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(digits.len());
    let shortest = end == 1 || (end > 1 && !digits.starts_with('0'));
    let number: i64 = text[..sign + end].parse().ok()?;
    // What goes on as a number is no whole one.
    let goes_on = matches!(digits.as_bytes().get(end), Some(b'.' | b'e' | b'E'));
    (shortest && !goes_on && (sign == 0 || number != 0)).then(|| (number, &digits[end..]))
}

/// How two different texts of keys, or of scalars, follow each other; `None` where they have to be read for that.
pub(super) fn order(a: &str, b: &str) -> Option<Ordering> {
    let (x, y) = (a.as_bytes(), b.as_bytes());
    let at = x.iter().zip(y).position(|(a, b)| a != b)?;
    let common = &x[..at];
    if common.contains(&b'\\') {
        return None;
    }
    if common.iter().filter(|b| **b == b'"').count() % 2 == 1 {
        // Inside of a text: one that ends here comes first.
        return match (x[at], y[at]) {
            (b'\\', _) | (_, b'\\') => None,
            (b'"', _) => Some(Ordering::Less),
            (_, b'"') => Some(Ordering::Greater),
            (a, b) => Some(a.cmp(&b)),
        };
    }
    // Numbers are told apart by their values, and begin where the common part has its last colon.
    let start = common.iter().rposition(|b| *b == b':')? + 1;
    let (x, y) = (whole(a.get(start..)?)?.0, whole(b.get(start..)?)?.0);
    (x != y).then(|| x.cmp(&y))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::super::element::Element;
    use super::*;

    #[test]
    fn what_is_plain() {
        for plain in [r#"{"name":"a"}"#, r#"{"a":1,"b":"é","c":true}"#, r#"{"a":0}"#, r#"{"a":-1,"b":null}"#] {
            assert!(is_plain(plain), "{plain}");
        }
        for other in [
            "",
            "{",
            "{}",
            "x",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1"#,
            r#"{"a":1}x"#,
            r#"{"a":1,}"#,
            r#"{"b":1,"a":1}"#,
            r#"{"a":1,"a":1}"#,
            r#"{"a":01}"#,
            r#"{"a":-0}"#,
            r#"{"a":1.0}"#,
            r#"{"a":1e3}"#,
            r#"{"a":[1]}"#,
            r#"{ "a":1}"#,
            r#"{"a":"\u0041"}"#,
            r#"{"a":99999999999999999999}"#,
            r#"{"a":truex}"#,
            "{\"a\":\"\n\"}",
        ] {
            assert!(!is_plain(other), "{other}");
        }
    }

    fn scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            "[a-c \"\\\\é\n]{0,3}".prop_map(Value::from),
            (-30i64..300).prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            (0i32..40).prop_map(|n| Value::from(f64::from(n) / 4.0)),
            Just(Value::Null),
        ]
    }

    fn keys() -> impl Strategy<Value = std::collections::BTreeMap<String, Value>> {
        prop::collection::btree_map("[ab\"]{1,2}", scalar(), 1..3)
    }

    proptest! {
        /// The short ways lead where the long ones do.
        #[test]
        fn the_short_ways_agree(a in keys(), b in keys()) {
            let text = |keys: &std::collections::BTreeMap<String, Value>| {
                match Element::keys(keys.iter().map(|(name, value)| (name.as_str(), value))) {
                    Element::Key(text) => text.into_owned(),
                    _ => String::new(),
                }
            };
            let (x, y) = (text(&a), text(&b));
            for (one, other) in a.values().zip(b.values()).filter(|(one, other)| one.is_string() && other.is_string()) {
                let order = order(&one.to_string(), &other.to_string());
                prop_assert!(order.is_none_or(|order| order == one.as_str().cmp(&other.as_str())), "{} {}", one, other);
            }
            if let Some(order) = order(&x, &y) {
                prop_assert_eq!(order, super::super::element::order_of_keys(&x, &y), "{} {}", x, y);
            }
            if is_plain(&x) {
                let read: std::collections::BTreeMap<String, Value> = serde_json::from_str(&x).expect("JSON");
                prop_assert_eq!(text(&read), x);
            }
        }

        #[test]
        fn any_text_is_answered(a in "\\PC{0,12}", b in "[{}\":,0-9a\\\\-]{0,12}") {
            is_plain(&a);
            if is_plain(&b) {
                prop_assert!(serde_json::from_str::<Value>(&b).is_ok(), "{}", b);
            }
            order(&a, &b);
            order(&b, &a);
        }
    }
}
