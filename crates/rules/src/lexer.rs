//! The words of an expression.

use crate::source::Issues;

/// What a word is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Op(&'static str),
    True,
    False,
    Null,
    In,
    Int,
    Uint,
    Float,
    String,
    Bytes,
    Ident,
    EscapedIdent,
    End,
}

/// One word: where it starts, in characters and in bytes, and what it says.
#[derive(Clone, Copy, Debug)]
pub struct Token<'s> {
    pub kind: Kind,
    pub offset: u32,
    pub text: &'s str,
    start: usize,
}

impl<'s> Token<'s> {
    /// The end of a text without words.
    pub const END: Token<'static> = Token { kind: Kind::End, offset: 0, text: "<EOF>", start: 0 };

    /// From the start of this word to the end of `last`.
    pub fn through(&self, last: &Token<'_>, text: &'s str) -> &'s str {
        text.get(self.start..last.start + if last.kind == Kind::End { 0 } else { last.text.len() }).unwrap_or("")
    }
}

/// Two-character operators come first.
const OPS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*",
    "/", "%",
];

/// Cuts `text` into words; the last is always [`Kind::End`]. What is no word is told and skipped.
pub fn tokens<'s>(text: &'s str, issues: &mut Issues) -> Vec<Token<'s>> {
    let mut out = Vec::new();
    let (mut at, mut offset) = (0usize, 0u32);
    while at < text.len() {
        let rest = text.get(at..).unwrap_or("");
        let (kind, length) = next(rest);
        let word = rest.get(..length).unwrap_or(rest);
        match kind {
            Word::Token(kind) => out.push(Token { kind, offset, text: word, start: at }),
            Word::Space => {}
            Word::Broken => {
                issues.add(Some(offset), format!("Syntax error: token recognition error at: '{word}'"));
            }
        }
        at += word.len();
        offset += u32::try_from(word.chars().count()).unwrap_or(u32::MAX);
    }
    out.push(Token { kind: Kind::End, offset, text: "<EOF>", start: text.len() });
    out
}

/// White space as it is shown in messages.
pub fn escape(text: &str) -> String {
    text.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t")
}

enum Word {
    Token(Kind),
    Space,
    Broken,
}

fn next(rest: &str) -> (Word, usize) {
    let bytes = rest.as_bytes();
    let byte = |i: usize| bytes.get(i).copied().unwrap_or(0);
    let first = byte(0);
    let run = |from: usize, f: fn(u8) -> bool| from + bytes.iter().skip(from).take_while(|b| f(**b)).count();
    match first {
        b' ' | b'\t' | b'\r' | b'\n' | 0x0c => {
            return (Word::Space, run(0, |b| matches!(b, b' ' | b'\t' | b'\r' | b'\n' | 0x0c)));
        }
        b'/' if byte(1) == b'/' => return (Word::Space, run(0, |b| b != b'\n')),
        b'0'..=b'9' => return number(bytes),
        b'.' if byte(1).is_ascii_digit() => return number(bytes),
        b'"' | b'\'' => return string(rest, 0, Kind::String),
        b'`' => {
            let end = run(1, |b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-' | b'/' | b' '));
            return if end > 1 && byte(end) == b'`' {
                (Word::Token(Kind::EscapedIdent), end + 1)
            } else {
                broken(rest, end)
            };
        }
        b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
            let quoted = |at: usize| matches!(byte(at), b'"' | b'\'');
            let text = match (first, byte(1)) {
                (b'r' | b'R', _) if quoted(1) => Some(string(rest, 1, Kind::String)),
                (b'b' | b'B', _) if quoted(1) => Some(string(rest, 1, Kind::Bytes)),
                (b'b' | b'B', b'r' | b'R') if quoted(2) => Some(string(rest, 2, Kind::Bytes)),
                _ => None,
            };
            if let Some((Word::Token(kind), end)) = text {
                return (Word::Token(kind), end);
            }
            let end = run(0, |b| b.is_ascii_alphanumeric() || b == b'_');
            let kind = match &bytes[..end] {
                b"true" => Kind::True,
                b"false" => Kind::False,
                b"null" => Kind::Null,
                b"in" => Kind::In,
                _ => Kind::Ident,
            };
            return (Word::Token(kind), end);
        }
        _ => {}
    }
    for op in OPS {
        if rest.starts_with(op) {
            return (Word::Token(Kind::Op(op)), op.len());
        }
    }
    let more = usize::from(matches!(first, b'&' | b'|' | b'='));
    broken(rest, more)
}

/// The text up to and with the character after `before` bytes is no word.
fn broken(rest: &str, before: usize) -> (Word, usize) {
    let shown = rest.get(before..).and_then(|r| r.chars().next()).map_or(rest.len(), |c| before + c.len_utf8());
    (Word::Broken, shown.max(1).min(rest.len()))
}

fn number(bytes: &[u8]) -> (Word, usize) {
    let byte = |i: usize| bytes.get(i).copied().unwrap_or(0);
    let digits = |from: usize| from + bytes.iter().skip(from).take_while(|b| b.is_ascii_digit()).count();
    if byte(0) == b'0' && byte(1) == b'x' && byte(2).is_ascii_hexdigit() {
        let end = 2 + bytes.iter().skip(2).take_while(|b| b.is_ascii_hexdigit()).count();
        return match byte(end) {
            b'u' | b'U' => (Word::Token(Kind::Uint), end + 1),
            _ => (Word::Token(Kind::Int), end),
        };
    }
    let whole = digits(0);
    let mut end = whole;
    if byte(end) == b'.' && byte(end + 1).is_ascii_digit() {
        end = digits(end + 1);
    }
    if matches!(byte(end), b'e' | b'E') {
        let sign = usize::from(matches!(byte(end + 1), b'+' | b'-'));
        if byte(end + 1 + sign).is_ascii_digit() {
            end = digits(end + 1 + sign);
        }
    }
    if end > whole {
        (Word::Token(Kind::Float), end)
    } else if matches!(byte(end), b'u' | b'U') {
        (Word::Token(Kind::Uint), end + 1)
    } else {
        (Word::Token(Kind::Int), end)
    }
}

fn string(rest: &str, prefix: usize, kind: Kind) -> (Word, usize) {
    let raw = rest.as_bytes()[..prefix].iter().any(|b| matches!(b, b'r' | b'R'));
    let body = rest.get(prefix..).unwrap_or("");
    let quote = body.get(..1).unwrap_or("\"");
    for triple in [true, false] {
        let mark = if triple { quote.repeat(3) } else { quote.to_owned() };
        if !body.starts_with(&mark) {
            continue;
        }
        let bytes = body.as_bytes();
        let mut at = mark.len();
        while let Some(inside) = body.get(at..) {
            if inside.starts_with(&mark) {
                return (Word::Token(kind), prefix + at + mark.len());
            }
            match bytes.get(at) {
                None => {
                    if !triple {
                        return (Word::Broken, rest.len());
                    }
                    break;
                }
                Some(b'\n' | b'\r') if !triple => return (Word::Broken, prefix + at + 1),
                Some(b'\\') if !raw => match escaped(inside) {
                    Some(length) => at += length,
                    None if triple => break,
                    None => return broken(rest, prefix + at + 1),
                },
                Some(_) => at += inside.chars().next().map_or(1, char::len_utf8),
            }
        }
        // An open ''' is the empty text followed by an open quote.
    }
    (Word::Broken, rest.len())
}

/// The length of the escape that `text` starts with, if it is one.
fn escaped(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let hex = |n: usize| bytes.get(2..2 + n).is_some_and(|h| h.iter().all(u8::is_ascii_hexdigit)).then_some(2 + n);
    match bytes.get(1)? {
        b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'"' | b'\'' | b'\\' | b'?' | b'`' => Some(2),
        b'x' | b'X' => hex(2),
        b'u' => hex(4),
        b'U' => hex(8),
        b'0'..=b'3' => bytes.get(2..4).is_some_and(|o| o.iter().all(|b| (b'0'..=b'7').contains(b))).then_some(4),
        _ => None,
    }
}

/// What a string or bytes word stands for. Bytes take escapes as bytes, strings as code points.
pub fn unquote(word: &str, bytes: bool) -> Result<Vec<u8>, &'static str> {
    let mut body = word;
    if bytes {
        body = body.get(1..).unwrap_or("");
    }
    let raw = body.starts_with(['r', 'R']);
    if raw {
        body = body.get(1..).unwrap_or("");
    }
    let quotes = if body.len() >= 6 && (body.starts_with("'''") || body.starts_with("\"\"\"")) { 3 } else { 1 };
    let body = body.get(quotes..body.len().saturating_sub(quotes)).ok_or("unable to unescape string")?;
    if raw || !body.contains('\\') {
        return Ok(body.as_bytes().to_vec());
    }
    let mut out = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(c) = rest.chars().next() {
        if c != '\\' {
            out.extend_from_slice(&rest.as_bytes()[..c.len_utf8()]);
            rest = rest.get(c.len_utf8()..).unwrap_or("");
            continue;
        }
        let length = escaped(rest).ok_or("unable to unescape string")?;
        let escape = rest.get(1..length).unwrap_or("");
        let (head, digits) = (escape.as_bytes().first().copied().unwrap_or(0), escape.get(1..).unwrap_or(""));
        let code = match head {
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'n' => 10,
            b'r' => 13,
            b't' => 9,
            b'v' => 11,
            b'x' | b'X' | b'u' | b'U' => {
                if bytes && matches!(head, b'u' | b'U') {
                    return Err("unable to unescape string");
                }
                u32::from_str_radix(digits, 16).map_err(|_| "unable to unescape string")?
            }
            b'0'..=b'3' => u32::from_str_radix(escape, 8).map_err(|_| "unable to unescape string")?,
            other => u32::from(other),
        };
        if bytes {
            out.push(u8::try_from(code).map_err(|_| "unable to unescape string")?);
        } else {
            let c = char::from_u32(code).ok_or("invalid unicode code point")?;
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
        rest = rest.get(length..).unwrap_or("");
    }
    Ok(out)
}
