//! A JSON tree as the YAML that upstream writes: block style, lists not indented below their key, keys
//! in an order that reads numbers as numbers.
//!
//! ```text
//! {"a":[{"b":1,"c":{}}],"d":"1","e":"x\ny"}  ──►  a:
//!                                                 - b: 1
//!                                                   c: {}
//!                                                 d: "1"
//!                                                 e: |-
//!                                                   x
//!                                                   y
//! ```
//!
//! Long lines are not folded. Every text reads as the text it was: what a reader might take for a
//! number, a boolean or a time is quoted.

use std::cmp::Ordering;

use serde_json::{Map, Value};

/// A document.
pub fn yaml(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    match value {
        Value::Object(map) if !map.is_empty() => entries(&mut out, map, 0),
        Value::Array(items) if !items.is_empty() => list(&mut out, items, 0),
        scalar => {
            plain(&mut out, scalar, 0);
            out.push(b'\n');
        }
    }
    out
}

/// An item of a list whose key stands at the beginning of a line.
pub fn yaml_item(out: &mut Vec<u8>, value: &Value) {
    item(out, value, 0);
}

/// The fields of an object, the first of which begins where the output ends.
fn entries(out: &mut Vec<u8>, map: &Map<String, Value>, indent: usize) {
    let mut sorted: Vec<(&String, &Value)> = map.iter().collect();
    sorted.sort_by(|(a, _), (b, _)| in_order(a, b));
    for (i, (key, value)) in sorted.into_iter().enumerate() {
        if i > 0 {
            space(out, indent);
        }
        // Longer keys are not found by readers that look for the colon.
        let long = key.len() > 128;
        if long {
            out.extend_from_slice(b"? ");
        }
        text(out, key, None);
        if long {
            out.push(b'\n');
            space(out, indent);
        }
        out.push(b':');
        match value {
            Value::Object(map) if !map.is_empty() => {
                out.push(b'\n');
                space(out, indent + 2);
                entries(out, map, indent + 2);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push(b'\n');
                space(out, indent);
                list(out, items, indent);
            }
            scalar => {
                out.push(b' ');
                plain(out, scalar, indent + 2);
                out.push(b'\n');
            }
        }
    }
}

/// Items, the first of which begins where the output ends.
fn list(out: &mut Vec<u8>, items: &[Value], indent: usize) {
    for (i, value) in items.iter().enumerate() {
        if i > 0 {
            space(out, indent);
        }
        item(out, value, indent);
    }
}

fn item(out: &mut Vec<u8>, value: &Value, indent: usize) {
    out.extend_from_slice(b"- ");
    match value {
        Value::Object(map) if !map.is_empty() => entries(out, map, indent + 2),
        Value::Array(items) if !items.is_empty() => list(out, items, indent + 2),
        scalar => {
            plain(out, scalar, indent + 2);
            out.push(b'\n');
        }
    }
}

fn space(out: &mut Vec<u8>, indent: usize) {
    out.resize(out.len() + indent, b' ');
}

/// What stands on one line, or is a text.
fn plain(out: &mut Vec<u8>, value: &Value, indent: usize) {
    match value {
        Value::String(value) => text(out, value, Some(indent)),
        // Empty lists and objects, numbers, booleans and null are written as JSON writes them.
        other => out.extend_from_slice(other.to_string().as_bytes()),
    }
}

/// A text in the plainest form that is read back as it. `lines`: how far the lines of a longer one are
/// indented; a key has only one line.
fn text(out: &mut Vec<u8>, text: &str, lines: Option<usize>) {
    let special = text.chars().any(|c| c != '\n' && !is_printable(c));
    let breaks = text.contains('\n');
    if let Some(indent) = lines.filter(|_| breaks && !special && !text.ends_with(' ')) {
        return literal(out, text, indent);
    }
    if special || breaks || reads_as_other(text) {
        return quoted(out, text);
    }
    if is_plain(text) {
        out.extend_from_slice(text.as_bytes());
    } else {
        out.push(b'\'');
        out.extend_from_slice(text.replace('\'', "''").as_bytes());
        out.push(b'\'');
    }
}

/// As upstream's writer sees it: nothing beyond the basic plane, and no tab.
fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
        && !matches!(c, '\u{feff}' | '\u{2028}' | '\u{2029}')
}

/// A text that nothing around it can be mistaken for a part of.
fn is_plain(text: &str) -> bool {
    let (Some(first), Some(last)) = (text.chars().next(), text.chars().last()) else { return false };
    let begins_a_document = text.starts_with("---") || text.starts_with("...");
    if first == ' ' || last == ' ' || begins_a_document || ",[]{}#&*!|>'\"%@`".contains(first) {
        return false;
    }
    let followed = |at: usize| text.as_bytes().get(at + 1).is_none_or(|next| *next == b' ');
    if matches!(first, '?' | '-') && followed(0) {
        return false;
    }
    let bytes = text.as_bytes();
    !(0..bytes.len()).any(|at| match bytes[at] {
        b':' => followed(at),
        b'#' => at > 0 && bytes[at - 1] == b' ',
        _ => false,
    })
}

/// A text of several lines, as it is.
fn literal(out: &mut Vec<u8>, text: &str, indent: usize) {
    out.push(b'|');
    if text.starts_with([' ', '\n']) {
        out.push(b'2');
    }
    let body = match text.strip_suffix('\n') {
        None => {
            out.push(b'-');
            text
        }
        // Further line feeds at the end belong to the text.
        Some(rest) if rest.is_empty() || rest.ends_with('\n') => {
            out.push(b'+');
            rest
        }
        Some(rest) => rest,
    };
    for line in body.split('\n') {
        out.push(b'\n');
        if !line.is_empty() {
            space(out, indent);
            out.extend_from_slice(line.as_bytes());
        }
    }
}

fn quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for c in text.chars() {
        let short = match c {
            '"' | '\\' => c,
            '\0' => '0',
            '\u{7}' => 'a',
            '\u{8}' => 'b',
            '\t' => 't',
            '\n' => 'n',
            '\u{b}' => 'v',
            '\u{c}' => 'f',
            '\r' => 'r',
            '\u{1b}' => 'e',
            '\u{85}' => 'N',
            '\u{2028}' => 'L',
            '\u{2029}' => 'P',
            _ if is_printable(c) => {
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            _ => {
                let code = u32::from(c);
                let escape = match code {
                    0..=0xff => format!("\\x{code:02X}"),
                    0x100..=0xffff => format!("\\u{code:04X}"),
                    _ => format!("\\U{code:08X}"),
                };
                out.extend_from_slice(escape.as_bytes());
                continue;
            }
        };
        out.push(b'\\');
        out.push(short as u8);
    }
    out.push(b'"');
}

/// What a reader of YAML 1.1 takes for something else than a text when it stands alone.
fn reads_as_other(text: &str) -> bool {
    const WORDS: &[&str] = &["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let Some(first) = text.chars().next() else { return true };
    let cased = |word: &&str| {
        let upper = word.to_ascii_uppercase();
        text == *word || text == upper || (text.starts_with(&upper[..1]) && text[1..] == word[1..])
    };
    match first {
        '~' => text == "~",
        'y' | 'Y' | 'n' | 'N' | 't' | 'T' | 'f' | 'F' | 'o' | 'O' => WORDS.iter().any(cased),
        '+' | '-' | '.' | '0'..='9' => is_number(text) || is_sexagesimal(text) || is_time(text),
        _ => false,
    }
}

fn is_number(text: &str) -> bool {
    let bare = text.replace('_', "");
    let unsigned = bare.strip_prefix(['+', '-']).unwrap_or(&bare);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(bare.as_str(), ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let radix = |prefixes: [&str; 2], radix: u32| {
        let digits = prefixes.iter().find_map(|prefix| unsigned.strip_prefix(prefix));
        digits.is_some_and(|digits| !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix)))
    };
    if radix(["0x", "0X"], 16) || radix(["0o", "0O"], 8) || radix(["0b", "0B"], 2) {
        return true;
    }
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).map_or((unsigned, None), |(m, e)| (m, Some(e)));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let some = !whole.is_empty() || !fraction.is_empty();
    let exponent = exponent.is_none_or(|e| {
        let e = e.strip_prefix(['+', '-']).unwrap_or(e);
        !e.is_empty() && digits(e)
    });
    some && digits(whole) && digits(fraction) && exponent
}

/// `1:30`, which YAML 1.1 reads as ninety.
fn is_sexagesimal(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut parts = unsigned.split(':');
    let first = parts.next().unwrap_or_default();
    let rest: Vec<&str> = parts.collect();
    let Some((last, middle)) = rest.split_last() else { return false };
    let number = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_digit()) && part.bytes().all(|b| b.is_ascii_digit() || b == b'_')
    };
    let sixty = |part: &str| matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']);
    let (last, fraction) = last.split_once('.').unwrap_or((last, ""));
    number(first)
        && middle.iter().all(|part| sixty(part))
        && sixty(last)
        && fraction.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

/// A day, or a day and a time.
fn is_time(text: &str) -> bool {
    let day = text.split(['T', 't', ' ']).next().unwrap_or_default();
    let mut parts = day.split('-');
    let mut number = |longest: usize, shortest: usize| {
        parts.next().is_some_and(|p| (shortest..=longest).contains(&p.len()) && p.bytes().all(|b| b.is_ascii_digit()))
    };
    number(4, 4) && number(2, 1) && number(2, 1) && parts.next().is_none()
}

/// The order of keys: letters by themselves, before them what is none, numbers by their value.
fn in_order(a: &str, b: &str) -> Ordering {
    let (left, right): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let Some(at) = left.iter().zip(&right).position(|(x, y)| x != y) else {
        return left.len().cmp(&right.len());
    };
    let (x, y) = (left[at], right[at]);
    let after_digits = at > 0 && left[at - 1].is_ascii_digit();
    match (x.is_alphabetic(), y.is_alphabetic()) {
        (true, true) => x.cmp(&y),
        (is, _) if is || y.is_alphabetic() => {
            // In the middle of a number it has ended; elsewhere what is no letter comes first.
            if is == after_digits { Ordering::Less } else { Ordering::Greater }
        }
        _ => {
            let inside =
                (x == '0' || y == '0') && left[..at].iter().rev().take_while(|c| c.is_ascii_digit()).any(|c| *c != '0');
            let number = |of: &[char]| {
                let digits = of[at..].iter().take_while(|c| c.is_ascii_digit());
                let start = u64::from(inside);
                digits.fold((start, 0usize), |(value, count), digit| {
                    let digit = u64::from(digit.to_digit(10).unwrap_or(0));
                    (value.saturating_mul(10).saturating_add(digit), count + 1)
                })
            };
            number(&left).cmp(&number(&right)).then(x.cmp(&y))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn check(value: &Value, want: &str) {
        assert_eq!(String::from_utf8_lossy(&yaml(value)), want);
    }

    #[test]
    fn trees_are_written_as_upstream_writes_them() {
        check(
            &json!({"b": [{"y": 1, "x": {}}, "s", []], "a": {"c": null, "d": [[1, 2], [3]]}, "e": true}),
            "a:\n  c: null\n  d:\n  - - 1\n    - 2\n  - - 3\nb:\n- x: {}\n  \"y\": 1\n- s\n- []\ne: true\n",
        );
        check(&json!({}), "{}\n");
        check(
            &json!({"t": "a\nb\n", "u": "a\nb", "v": " a\n\n", "w": [{"k": "x\n\ny"}]}),
            "t: |\n  a\n  b\nu: |-\n  a\n  b\nv: |2+\n   a\n\nw:\n- k: |-\n    x\n\n    y\n",
        );
        check(
            &json!({"a10": 1, "a2": 2, "a": 3, "a-b": 4, "1": 5, "B": 6}),
            "\"1\": 5\nB: 6\na: 3\na-b: 4\na2: 2\na10: 1\n",
        );
    }

    #[test]
    fn texts_stay_texts() {
        for (text, want) in [
            ("", r#""""#),
            ("plain text", "plain text"),
            ("1", r#""1""#),
            ("1.5e3", r#""1.5e3""#),
            ("0x1F", r#""0x1F""#),
            ("1_000", r#""1_000""#),
            ("1:30", r#""1:30""#),
            ("10.0.0.1", "10.0.0.1"),
            ("2008-01-01T01:01:01Z", r#""2008-01-01T01:01:01Z""#),
            ("yes", r#""yes""#),
            ("Off", r#""Off""#),
            ("yES", "yES"),
            ("~", r#""~""#),
            (".inf", r#"".inf""#),
            ("a: b", "'a: b'"),
            ("a:b", "a:b"),
            ("a #b", "'a #b'"),
            ("- a", "'- a'"),
            ("-a", "-a"),
            ("it's", "it's"),
            ("'x", "'''x'"),
            (" x", "' x'"),
            ("*x", "'*x'"),
            ("{}", "'{}'"),
            ("a\tb", r#""a\tb""#),
            ("\u{e9}", "\u{e9}"),
            ("\u{1F980}", r#""\U0001F980""#),
            ("a\n b ", r#""a\n b ""#),
            ("---", "'---'"),
        ] {
            check(&json!({ "k": text }), &format!("k: {want}\n"));
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let texts = prop_oneof!["\\PC{0,12}", "[-+.:0-9eExTZ_ynofNO~#?,\\[\\]{}'\"|>%@`& \n\t]{0,8}", any::<String>()];
        let leaf = prop_oneof![
            texts.prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[-a-z0-9:#.~ \n]{0,6}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_as_it_was(value in any_value()) {
            let text = yaml(&json!({ "k": value }));
            let back = crate::yaml::read(&text);
            prop_assert_eq!(back.ok(), Some(json!({ "k": value })), "{}", String::from_utf8_lossy(&text));
        }
    }
}
