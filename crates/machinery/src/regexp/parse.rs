//! Reads a pattern as Go does and writes it for the `regex` crate.

use std::borrow::Cow;
use std::fmt::Write as _;

/// What Go says of a pattern, and the part of the pattern it means.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Error<'p> {
    pub what: &'static str,
    pub part: Cow<'p, str>,
}

type Result<'p, T> = std::result::Result<T, Error<'p>>;

fn wrong<'p, T>(what: &'static str, part: &'p str) -> Result<'p, T> {
    Err(Error { what, part: Cow::Borrowed(part) })
}

/// The most repetitions a pattern may ask for, nested ones multiplied.
const MAX_REPEAT: u32 = 1000;
/// The deepest nesting of groups; the engine's own limit is lower than Go's 1000.
const MAX_DEPTH: usize = 200;

/// The pattern in the syntax of the `regex` crate.
pub(super) fn translate(pattern: &str) -> Result<'_, String> {
    let mut parser =
        Parser { pattern, rest: pattern, out: String::with_capacity(pattern.len() + 16), groups: Vec::new() };
    parser.run()?;
    Ok(parser.out)
}

struct Parser<'p> {
    pattern: &'p str,
    rest: &'p str,
    out: String,
    groups: Vec<Group>,
}

/// An open group, and the largest product of repetitions in it so far.
#[derive(Clone, Copy, Default)]
struct Group {
    repeats: u32,
}

/// What the last item was, for the repetition that may follow it.
#[derive(Clone, Copy)]
enum Last<'p> {
    /// Nothing that can be repeated.
    Nothing,
    /// An item whose own repetitions multiply to this.
    Item(u32),
    /// A repetition, which began here.
    Repeat(&'p str),
}

/// The named classes.
const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];
const BAD_CLASS: &str = "invalid character class range";
const BAD_ESCAPE: &str = "invalid escape sequence";
const BAD_CAPTURE: &str = "invalid named capture";
const BAD_PERL: &str = "invalid or unsupported Perl syntax";

impl<'p> Parser<'p> {
    fn run(&mut self) -> Result<'p, ()> {
        let mut last = Last::Nothing;
        let mut top = Group::default();
        while let Some(c) = self.rest.chars().next() {
            let before = self.rest;
            last = match c {
                '(' if self.rest.starts_with("(?") => self.perl(&mut top)?,
                '(' => {
                    self.skip(1);
                    self.open(&mut top, "(?:")?
                }
                ')' => match self.groups.pop() {
                    Some(outer) => {
                        self.skip(1);
                        self.out.push(')');
                        let inner = std::mem::replace(&mut top, outer);
                        top.repeats = top.repeats.max(inner.repeats);
                        Last::Item(inner.repeats.max(1))
                    }
                    None => return wrong("unexpected )", self.pattern),
                },
                '|' => {
                    self.skip(1);
                    self.out.push('|');
                    Last::Nothing
                }
                '^' | '$' | '.' => {
                    self.skip(1);
                    self.out.push(c);
                    Last::Item(1)
                }
                '[' => {
                    self.class()?;
                    Last::Item(1)
                }
                '*' | '+' | '?' => {
                    self.skip(1);
                    self.repeat(before, last, c.encode_utf8(&mut [0; 4]), 1, &mut top)?
                }
                '{' => match self.bounds()? {
                    Some(bounds) => self.repeat(before, last, &bounds.0, bounds.1, &mut top)?,
                    None => {
                        self.skip(1);
                        literal(&mut self.out, '{');
                        Last::Item(1)
                    }
                },
                '\\' => self.escape()?,
                c => {
                    self.skip(c.len_utf8());
                    literal(&mut self.out, c);
                    Last::Item(1)
                }
            };
        }
        if self.groups.is_empty() { Ok(()) } else { wrong("missing closing )", self.pattern) }
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    /// What was read since `before`.
    fn read(&self, before: &'p str) -> &'p str {
        &before[..before.len() - self.rest.len()]
    }

    fn open(&mut self, top: &mut Group, text: &str) -> Result<'p, Last<'p>> {
        if self.groups.len() >= MAX_DEPTH {
            return wrong("expression nests too deeply", self.pattern);
        }
        self.groups.push(std::mem::take(top));
        self.out.push_str(text);
        Ok(Last::Nothing)
    }

    /// Writes a repetition of the last item.
    fn repeat(
        &mut self,
        before: &'p str,
        last: Last<'p>,
        operator: &str,
        count: u32,
        top: &mut Group,
    ) -> Result<'p, Last<'p>> {
        let lazy = self.rest.starts_with('?');
        if lazy {
            self.skip(1);
        }
        match last {
            Last::Nothing => wrong("missing argument to repetition operator", {
                let read = self.read(before);
                if lazy { &read[..read.len() - 1] } else { read }
            }),
            Last::Repeat(first) => wrong("invalid nested repetition operator", self.read(first)),
            Last::Item(inner) => {
                let product = inner.saturating_mul(count.max(1));
                if product > MAX_REPEAT {
                    return wrong("invalid repeat count", self.read(before));
                }
                top.repeats = top.repeats.max(product);
                self.out.push_str(operator);
                if lazy {
                    self.out.push('?');
                }
                Ok(Last::Repeat(before))
            }
        }
    }

    /// `{2}`, `{2,}`, `{2,5}`, and the largest number in it; `None` for a brace that stands for itself.
    fn bounds(&mut self) -> Result<'p, Option<(String, u32)>> {
        let Some((inner, rest)) = self.rest[1..].split_once('}') else { return Ok(None) };
        let (min, max) = match inner.split_once(',') {
            Some((min, max)) => (min, Some(max)),
            None => (inner, None),
        };
        let number = |text: &str| {
            let plain = !text.is_empty()
                && text.bytes().all(|b| b.is_ascii_digit())
                && (text.len() == 1 || !text.starts_with('0'));
            plain.then(|| text.parse::<u32>().unwrap_or(u32::MAX))
        };
        let low = number(min);
        let high = match max {
            None => low,
            Some("") => low.map(|_| 0),
            Some(text) => number(text),
        };
        let (Some(low), Some(high)) = (low, high) else { return Ok(None) };
        let whole = &self.rest[..self.rest.len() - rest.len()];
        let open_ended = max == Some("");
        if low > MAX_REPEAT || high > MAX_REPEAT || (!open_ended && low > high) {
            return wrong("invalid repeat count", whole);
        }
        self.rest = rest;
        Ok(Some((whole.to_owned(), low.max(high))))
    }

    /// `(?i)`, `(?i:…)`, `(?P<name>…)`.
    fn perl(&mut self, top: &mut Group) -> Result<'p, Last<'p>> {
        let whole = self.rest;
        if let Some(named) = whole.strip_prefix("(?P<").or_else(|| whole.strip_prefix("(?<")) {
            let Some(end) = named.find('>') else { return wrong(BAD_CAPTURE, whole) };
            let name = &named[..end];
            self.rest = &named[end + 1..];
            if name.is_empty() || !name.chars().all(|c| c == '_' || c.is_alphanumeric()) {
                return wrong(BAD_CAPTURE, self.read(whole));
            }
            return self.open(top, "(?:");
        }
        self.skip(2);
        let (mut negated, mut any) = (false, false);
        while let Some(c) = self.rest.chars().next() {
            self.skip(c.len_utf8());
            match c {
                'i' | 'm' | 's' | 'U' => any = true,
                '-' if !negated => (negated, any) = (true, false),
                ':' | ')' if !negated || any => {
                    // `(?)` and `(?:` set nothing.
                    let flags = &self.read(whole)[2..];
                    let text = format!("(?{flags}");
                    if c == ':' {
                        return self.open(top, &text);
                    }
                    if flags != ")" {
                        self.out.push_str(&text);
                    }
                    return Ok(Last::Nothing);
                }
                _ => return wrong(BAD_PERL, self.read(whole)),
            }
        }
        wrong("missing closing )", self.pattern)
    }

    fn escape(&mut self) -> Result<'p, Last<'p>> {
        let after = &self.rest[1..];
        let Some(c) = after.chars().next() else { return wrong("trailing backslash at end of expression", "") };
        match c {
            'A' => self.out.push_str("\\A"),
            'z' => self.out.push_str("\\z"),
            'b' => self.out.push_str("(?-u:\\b)"),
            'B' => self.out.push_str("(?-u:\\B)"),
            'Q' => {
                let quoted = &after[1..];
                let (text, rest) = quoted.split_once("\\E").unwrap_or((quoted, ""));
                self.rest = rest;
                text.chars().for_each(|c| literal(&mut self.out, c));
                return Ok(if text.is_empty() { Last::Nothing } else { Last::Item(1) });
            }
            _ => {
                if let Some(set) = self.set()? {
                    let _ = write!(self.out, "[{set}]");
                } else {
                    let c = self.character()?;
                    point(&mut self.out, c);
                }
                return Ok(Last::Item(1));
            }
        }
        self.skip(2);
        Ok(Last::Item(1))
    }

    /// `\d`, `\pL`, `\p{Greek}`: what stands between the brackets of its class.
    fn set(&mut self) -> Result<'p, Option<String>> {
        let whole = self.rest;
        let Some(c) = whole[1..].chars().next() else { return Ok(None) };
        let ascii = match c.to_ascii_lowercase() {
            'd' => "0-9",
            's' => "\\t\\n\\f\\r\\x20",
            'w' => "0-9A-Za-z_",
            'p' => return self.property().map(Some),
            _ => return Ok(None),
        };
        self.skip(2);
        Ok(Some(if c.is_ascii_uppercase() { format!("[^{ascii}]") } else { ascii.to_owned() }))
    }

    fn property(&mut self) -> Result<'p, String> {
        let whole = self.rest;
        let mut negated = whole.as_bytes()[1] == b'P';
        let name = match whole[2..].chars().next() {
            None => return wrong(BAD_CLASS, whole),
            Some('{') => {
                let Some((name, rest)) = whole[3..].split_once('}') else { return wrong(BAD_CLASS, whole) };
                self.rest = rest;
                name
            }
            Some(c) => {
                self.skip(2 + c.len_utf8());
                &whole[2..2 + c.len_utf8()]
            }
        };
        let name = name.strip_prefix('^').map_or(name, |name| {
            negated = !negated;
            name
        });
        let read = self.read(whole);
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return wrong(BAD_CLASS, read);
        }
        let set = format!("\\{}{{{name}}}", if negated { 'P' } else { 'p' });
        if regex::Regex::new(&set).is_err() {
            return wrong(BAD_CLASS, read);
        }
        Ok(set)
    }

    /// An escape that stands for one character.
    fn character(&mut self) -> Result<'p, u32> {
        let whole = self.rest;
        let mut rest = whole[1..].chars();
        let Some(c) = rest.next() else { return wrong("trailing backslash at end of expression", "") };
        let digits = |text: &'p str, radix, most: usize| {
            let len = text.chars().take(most).take_while(|c| c.is_digit(radix)).count();
            (len, u32::from_str_radix(&text[..len], radix).unwrap_or(0))
        };
        let value = match c {
            '1'..='7' if !matches!(whole[2..].bytes().next(), Some(b'0'..=b'7')) => {
                self.skip(2);
                return wrong(BAD_ESCAPE, self.read(whole));
            }
            '0'..='7' => {
                let (len, value) = digits(&whole[1..], 8, 3);
                self.skip(1 + len);
                return Ok(value);
            }
            'x' => match whole[2..].strip_prefix('{') {
                Some(text) => {
                    let (len, value) = digits(text, 16, 8);
                    let end = 3 + len;
                    if len == 0 || value > 0x10_ffff || !whole[end..].starts_with('}') {
                        let shown = whole[end..].chars().next().map_or(end, |c| end + c.len_utf8());
                        return wrong(BAD_ESCAPE, &whole[..shown]);
                    }
                    self.skip(end + 1);
                    return Ok(value);
                }
                None => {
                    let (len, value) = digits(&whole[2..], 16, 2);
                    if len < 2 {
                        let end = 2 + len;
                        let shown = whole[end..].chars().next().map_or(end, |c| end + c.len_utf8());
                        return wrong(BAD_ESCAPE, &whole[..shown]);
                    }
                    self.skip(4);
                    return Ok(value);
                }
            },
            'a' => 7,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            'v' => 11,
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => u32::from(c),
            c => return wrong(BAD_ESCAPE, &whole[..1 + c.len_utf8()]),
        };
        self.skip(2);
        Ok(value)
    }

    fn class(&mut self) -> Result<'p, ()> {
        let whole = self.rest;
        self.skip(1);
        let mut set = String::from("[");
        if self.rest.starts_with('^') {
            self.skip(1);
            set.push('^');
        }
        let mut first = true;
        loop {
            if self.rest.is_empty() {
                return wrong("missing closing ]", whole);
            }
            if self.rest.starts_with(']') && !first {
                self.skip(1);
                set.push(']');
                self.out.push_str(&set);
                return Ok(());
            }
            first = false;
            if self.rest.starts_with("[:")
                && let Some(end) = self.rest.find(":]")
            {
                let name = &self.rest[..end + 2];
                let plain = self.rest[2..end].trim_start_matches('^');
                if !POSIX.contains(&plain) || name.len() - plain.len() > 5 {
                    return wrong(BAD_CLASS, name);
                }
                set.push_str(name);
                self.skip(end + 2);
                continue;
            }
            if self.rest.starts_with('\\')
                && let Some(inner) = self.set()?
            {
                set.push_str(&inner);
                continue;
            }
            self.range(whole, &mut set)?;
        }
    }

    /// One character or a range of them in a class.
    fn range(&mut self, class: &'p str, set: &mut String) -> Result<'p, ()> {
        let before = self.rest;
        let low = self.class_character(class)?;
        let mut high = low;
        if self.rest.len() >= 2 && self.rest.starts_with('-') && !self.rest.starts_with("-]") {
            self.skip(1);
            high = self.class_character(class)?;
            if high < low {
                return wrong(BAD_CLASS, self.read(before));
            }
        }
        // What no text can hold is left out.
        let low = if (0xd800..0xe000).contains(&low) { 0xe000 } else { low };
        let high = if (0xd800..0xe000).contains(&high) { 0xd7ff } else { high };
        if low <= high {
            let _ = write!(set, "\\x{{{low:x}}}-\\x{{{high:x}}}");
        } else {
            set.push_str("[^\\x{0}-\\x{10ffff}]");
        }
        Ok(())
    }

    fn class_character(&mut self, class: &'p str) -> Result<'p, u32> {
        match self.rest.chars().next() {
            None => wrong("missing closing ]", class),
            Some('\\') => self.character(),
            Some(c) => {
                self.skip(c.len_utf8());
                Ok(u32::from(c))
            }
        }
    }
}

fn literal(out: &mut String, c: char) {
    if c.is_ascii_alphanumeric() || !c.is_ascii() {
        out.push(c);
    } else {
        point(out, u32::from(c));
    }
}

/// A code point; a surrogate matches nothing.
fn point(out: &mut String, point: u32) {
    let text = match char::from_u32(point) {
        Some(_) => format!("\\x{{{point:x}}}"),
        None => "[^\\x{0}-\\x{10ffff}]".to_owned(),
    };
    out.push_str(&text);
}
