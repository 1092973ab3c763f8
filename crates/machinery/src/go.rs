//! How Go prints what clients get to see: quoted texts, numbers, trees, and why a text is no JSON.

use std::fmt::Write as _;

use serde_json::Value;

/// A text in double quotes with Go's escapes (`strconv.Quote`).
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c == '\u{7f}' => escape(&mut out, format_args!("\\x{:02x}", c as u32)),
            c if printable(c) => out.push(c),
            c if (c as u32) < 0x1_0000 => escape(&mut out, format_args!("\\u{:04x}", c as u32)),
            c => escape(&mut out, format_args!("\\U{:08x}", c as u32)),
        }
    }
    out.push('"');
    out
}

fn escape(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = out.write_fmt(text);
}

/// Rust's notion of what need not be escaped is Go's, but for marks that combine with what stands before.
fn printable(c: char) -> bool {
    c == ' '
        || (!c.is_control() && !c.is_whitespace() && !matches!(c.escape_debug().next(), Some('\\')))
        || is_combining(c)
}

fn is_combining(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}

/// A number as Go's JSON encoder writes it.
pub fn float(number: f64) -> String {
    let magnitude = number.abs();
    if magnitude == 0.0 || (1e-6..1e21).contains(&magnitude) {
        return format!("{number}");
    }
    let text = format!("{number:e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) if !exponent.starts_with('-') => format!("{mantissa}e+{exponent}"),
        _ => text,
    }
}

/// A tree as Go prints it with `%v`: `map[a:1 b:[x y]]`.
pub fn print(value: &Value) -> String {
    let mut out = String::new();
    print_to(&mut out, value);
    out
}

fn print_to(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::String(text) => out.push_str(text),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => out.push_str(&shortest(float, 1e21)),
            None => out.push_str(&number.to_string()),
        },
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                print_to(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push_str("map[");
            for (i, (key, value)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                out.push_str(key);
                out.push(':');
                print_to(out, value);
            }
            out.push(']');
        }
    }
}

/// A float in its shortest form: with an exponent, of two digits at least, below 1e-4 and from a limit on
/// (1e21 for `%v`).
pub(crate) fn shortest(number: f64, limit: f64) -> String {
    let magnitude = number.abs();
    if magnitude == 0.0 || (1e-4..limit).contains(&magnitude) {
        return format!("{number}");
    }
    let text = format!("{number:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    match exponent.strip_prefix('-') {
        Some(digits) => format!("{mantissa}e-{digits:0>2}"),
        None => format!("{mantissa}e+{exponent:0>2}"),
    }
}

/// Why bytes are no JSON, in Go's words; `None` when they are, as far as their syntax goes.
pub fn json_error(bytes: &[u8]) -> Option<String> {
    /// What may stand next.
    #[derive(Clone, Copy)]
    enum Next {
        Value,
        ValueOrEnd,
        KeyOrEnd,
        Key,
        Colon,
        AfterValue,
    }
    let mut open: Vec<u8> = Vec::new();
    let mut next = Next::Value;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
            at += 1;
            continue;
        }
        let wrong = |context: &str| Some(invalid(byte, context));
        match (next, byte) {
            (Next::Value | Next::ValueOrEnd, b'{' | b'[') => {
                open.push(byte);
                if open.len() > MAX_NESTING {
                    return Some("exceeded max depth".to_owned());
                }
                next = if byte == b'{' { Next::KeyOrEnd } else { Next::ValueOrEnd };
                at += 1;
            }
            (Next::ValueOrEnd, b']') | (Next::KeyOrEnd, b'}') => {
                open.pop();
                next = Next::AfterValue;
                at += 1;
            }
            (Next::Value | Next::ValueOrEnd, _) => {
                at = match literal(bytes, at) {
                    Ok(end) => end,
                    Err(error) => return Some(error),
                };
                next = Next::AfterValue;
            }
            (Next::KeyOrEnd | Next::Key, b'"') => {
                at = match string(bytes, at) {
                    Ok(end) => end,
                    Err(error) => return Some(error),
                };
                next = Next::Colon;
            }
            (Next::KeyOrEnd | Next::Key, _) => return wrong("looking for beginning of object key string"),
            (Next::Colon, b':') => {
                next = Next::Value;
                at += 1;
            }
            (Next::Colon, _) => return wrong("after object key"),
            (Next::AfterValue, _) => {
                next = match (open.last(), byte) {
                    (Some(b'{'), b',') => Next::Key,
                    (Some(b'['), b',') => Next::Value,
                    (Some(b'{'), b'}') | (Some(b'['), b']') => {
                        open.pop();
                        Next::AfterValue
                    }
                    (Some(b'{'), _) => return wrong("after object key:value pair"),
                    (Some(_), _) => return wrong("after array element"),
                    (None, _) => return wrong("after top-level value"),
                };
                at += 1;
            }
        }
    }
    let done = open.is_empty() && matches!(next, Next::AfterValue);
    (!done).then(end_of_input)
}

/// The deepest nesting that Go's reader takes.
const MAX_NESTING: usize = 10_000;

fn end_of_input() -> String {
    "unexpected end of JSON input".to_owned()
}

fn invalid(byte: u8, context: &str) -> String {
    let shown = match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        other => {
            let quoted = quote(&char::from(other).to_string());
            format!("'{}'", &quoted[1..quoted.len() - 1])
        }
    };
    format!("invalid character {shown} {context}")
}

fn literal(bytes: &[u8], start: usize) -> Result<usize, String> {
    match bytes[start] {
        b'"' => string(bytes, start),
        b'-' | b'0'..=b'9' => number(bytes, start),
        b't' => word(bytes, start, "true"),
        b'f' => word(bytes, start, "false"),
        b'n' => word(bytes, start, "null"),
        other => Err(invalid(other, "looking for beginning of value")),
    }
}

fn word(bytes: &[u8], start: usize, word: &str) -> Result<usize, String> {
    for (i, want) in word.bytes().enumerate().skip(1) {
        match bytes.get(start + i) {
            None => return Err(end_of_input()),
            Some(byte) if *byte != want => {
                return Err(invalid(*byte, &format!("in literal {word} (expecting '{}')", char::from(want))));
            }
            Some(_) => {}
        }
    }
    Ok(start + word.len())
}

fn string(bytes: &[u8], start: usize) -> Result<usize, String> {
    let mut at = start + 1;
    loop {
        match bytes.get(at) {
            None => return Err(end_of_input()),
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => match bytes.get(at + 1) {
                None => return Err(end_of_input()),
                Some(b'u') => {
                    for i in 2..6 {
                        match bytes.get(at + i) {
                            None => return Err(end_of_input()),
                            Some(byte) if !byte.is_ascii_hexdigit() => {
                                return Err(invalid(*byte, "in \\u hexadecimal character escape"));
                            }
                            Some(_) => {}
                        }
                    }
                    at += 6;
                }
                Some(b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => at += 2,
                Some(byte) => return Err(invalid(*byte, "in string escape code")),
            },
            Some(byte) if *byte < 0x20 => return Err(invalid(*byte, "in string literal")),
            Some(_) => at += 1,
        }
    }
}

fn number(bytes: &[u8], start: usize) -> Result<usize, String> {
    let mut at = start;
    let digits = |at: &mut usize| {
        let from = *at;
        while bytes.get(*at).is_some_and(u8::is_ascii_digit) {
            *at += 1;
        }
        *at > from
    };
    let missing = |at: usize, context: &str| bytes.get(at).map_or_else(end_of_input, |byte| invalid(*byte, context));
    if bytes[at] == b'-' {
        at += 1;
    }
    if bytes.get(at) == Some(&b'0') {
        at += 1;
    } else if !digits(&mut at) {
        return Err(missing(at, "in numeric literal"));
    }
    if bytes.get(at) == Some(&b'.') {
        at += 1;
        if !digits(&mut at) {
            return Err(missing(at, "after decimal point in numeric literal"));
        }
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        at += 1;
        if matches!(bytes.get(at), Some(b'+' | b'-')) {
            at += 1;
        }
        if !digits(&mut at) {
            return Err(missing(at, "in exponent of numeric literal"));
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn syntax_errors_are_told_as_go_tells_them() {
        for (text, want) in [
            ("", Some("unexpected end of JSON input")),
            (" ", Some("unexpected end of JSON input")),
            ("{\"kind\"", Some("unexpected end of JSON input")),
            ("[1", Some("unexpected end of JSON input")),
            ("{\"a\":1,}", Some("invalid character '}' looking for beginning of object key string")),
            ("{'a':1}", Some(r"invalid character '\'' looking for beginning of object key string")),
            ("{\"a\" 1}", Some("invalid character '1' after object key")),
            ("{\"a\":01}", Some("invalid character '1' after object key:value pair")),
            ("[1 2]", Some("invalid character '2' after array element")),
            ("[1,]", Some("invalid character ']' looking for beginning of value")),
            ("{} x", Some("invalid character 'x' after top-level value")),
            ("\"a\tb\"", Some(r"invalid character '\t' in string literal")),
            (r#""\x""#, Some("invalid character 'x' in string escape code")),
            (r#""\u12x4""#, Some(r"invalid character 'x' in \u hexadecimal character escape")),
            ("tru", Some("unexpected end of JSON input")),
            ("trux", Some("invalid character 'x' in literal true (expecting 'e')")),
            ("1.x", Some("invalid character 'x' after decimal point in numeric literal")),
            ("1e+", Some("unexpected end of JSON input")),
            ("-a", Some("invalid character 'a' in numeric literal")),
            ("\u{feff}{}", Some("invalid character 'ï' looking for beginning of value")),
            (" {\"a\":[1,-0.5e3,null,true,\"\\ud800\\n\"]} ", None),
        ] {
            assert_eq!(json_error(text.as_bytes()).as_deref(), want, "{text:?}");
        }
        assert_eq!(json_error("[".repeat(10_001).as_bytes()).as_deref(), Some("exceeded max depth"));
    }

    #[test]
    fn texts_numbers_and_trees_are_printed_as_go_prints_them() {
        assert_eq!(quote("a\"b\\\u{1}\u{2028}é\n"), r#""a\"b\\\x01\u2028é\n""#);
        for (number, want) in [(1000.0, "1000"), (1.5, "1.5"), (1e21, "1e+21"), (1e-7, "1e-7"), (-0.25, "-0.25")] {
            assert_eq!(float(number), want);
        }
        assert_eq!(shortest(1e-7, 1e21), "1e-07");
        let tree = json!({"b": [1, "x", null, 1.5], "a": {"c": true}});
        assert_eq!(print(&tree), "map[a:map[c:true] b:[1 x <nil> 1.5]]");
    }

    proptest! {
        /// What one reader takes the other takes.
        #[test]
        fn syntax_is_judged_as_by_the_reader(text in r#"(\{|\}|\[|\]|:|,|"a"|"\\n"|null|true|-1|1e9|0|\.5| |\n|x){0,12}"#) {
            let taken = serde_json::from_str::<Value>(&text).is_ok();
            prop_assert_eq!(json_error(text.as_bytes()).is_none(), taken, "{}", text);
        }
    }
}
