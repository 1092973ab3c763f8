//! `fieldPath` of a rule: `.spec.containers` or `.labels['a.b']`, and whether the schema has it.

use serde_json::Value as Json;

/// The path as messages write it, if the schema has it; else what is wrong with it.
pub fn field_path(text: &str, schema: &Json) -> Result<String, String> {
    let mut words = Words { rest: text };
    let mut at = schema;
    let mut out = String::new();
    while let Some(word) = words.next() {
        let name = match word {
            "." => words.next().ok_or("unexpected end of JSON path")?.to_owned(),
            "[" => {
                let quoted = words.next().ok_or("unexpected end of JSON path")?;
                let inner = quoted
                    .strip_prefix('\'')
                    .and_then(|q| q.strip_suffix('\''))
                    .ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                let name = unescape(inner).map_err(|why| format!("invalid string literal: {why}"))?;
                let close = words.next().ok_or("unexpected end of JSON path")?;
                if close != "]" {
                    return Err(format!("expected ] but got {close}"));
                }
                name
            }
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        let missing = || "does not refer to a valid field".to_owned();
        if let Some(properties) = at.get("properties") {
            at = properties.get(&name).ok_or_else(missing)?;
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(&name);
        } else {
            at = at.get("additionalProperties").filter(|s| s.is_object()).ok_or_else(missing)?;
            out.push_str(&format!("[{name}]"));
        }
    }
    Ok(out)
}

/// Cuts at `.`, `[` and `]`, but not within quotes.
struct Words<'t> {
    rest: &'t str,
}

impl<'t> Words<'t> {
    fn next(&mut self) -> Option<&'t str> {
        if self.rest.is_empty() {
            return None;
        }
        let bytes = self.rest.as_bytes();
        let end = match bytes[0] {
            b'.' | b'[' | b']' => 1,
            b'\'' => {
                (1..bytes.len()).find(|i| bytes[*i] == b'\'' && bytes[*i - 1] != b'\\').map_or(bytes.len(), |i| i + 1)
            }
            _ => self.rest.find(['.', '[', ']']).unwrap_or(bytes.len()),
        };
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(word)
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('a') => out.push('\u{7}'),
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('v') => out.push('\u{b}'),
            Some(c @ ('\'' | '\\')) => out.push(c),
            Some(other) => return Err(format!("invalid escape char \\{other}")),
            None => out.push('\\'),
        }
    }
    Ok(out)
}
