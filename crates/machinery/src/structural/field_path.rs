//! Paths to fields as a schema writes them: `.spec.ports`, `.metadata.labels['app']`.

use super::{Additional, Node};
use crate::field::Path;

impl Node {
    /// The field that a path leads to, and its path as errors print it. `brackets`: names in brackets are
    /// allowed.
    ///
    /// # Errors
    /// Why it leads nowhere, in upstream's words.
    pub fn at_path(&self, text: &str, brackets: bool) -> Result<(Path, &Self), String> {
        let mut tokens = Tokens { rest: text };
        let (mut path, mut node) = (Path::root(), self);
        while let Some(token) = tokens.next() {
            let end = || "unexpected end of JSON path".to_owned();
            let name = match token {
                "[" if !brackets => return Err("array notation is not allowed".to_owned()),
                "[" => {
                    let quoted = tokens.next().ok_or_else(end)?;
                    let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                    let inner = inner.ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                    unescape(inner).map_err(|why| format!("invalid string literal: {why}"))?
                }
                "." => tokens.next().ok_or_else(end)?.to_owned(),
                other => return Err(format!("expected [ or . but got: {other}")),
            };
            let nowhere = || "does not refer to a valid field".to_owned();
            if node.properties.is_empty() {
                let Some(Additional::Schema(inner)) = &node.additional_properties else { return Err(nowhere()) };
                (path, node) = (path.key(&name), inner);
            } else {
                (path, node) = (path.child(&name), node.properties.get(&name).ok_or_else(nowhere)?);
            }
            if token == "[" {
                match tokens.next().ok_or_else(end)? {
                    "]" => {}
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
        }
        Ok((path, node))
    }
}

/// Delimiters, each alone, and what stands between them; what is quoted has none.
struct Tokens<'t> {
    rest: &'t str,
}

impl<'t> Tokens<'t> {
    fn next(&mut self) -> Option<&'t str> {
        let first = self.rest.chars().next()?;
        let end = match first {
            '.' | '[' | ']' => 1,
            '\'' => {
                let bytes = self.rest.as_bytes();
                (1..bytes.len()).find(|i| bytes[*i] == b'\'' && bytes[i - 1] != b'\\').map_or(bytes.len(), |i| i + 1)
            }
            _ => self.rest.find(['.', '[', ']']).unwrap_or(self.rest.len()),
        };
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(token)
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
        out.push(match chars.next() {
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some(c @ ('\'' | '\\')) => c,
            Some(other) => return Err(format!("invalid escape char \\{other}")),
            None => '\\',
        });
    }
    Ok(out)
}
