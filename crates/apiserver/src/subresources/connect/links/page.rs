//! The links of an HTML page, led here as the page passes. Pure.
//!
//! ```text
//!  <p>x</p><a class=b href="/login">     text passes as it is; a start tag is held until its '>'
//!                          └──────┘      the value of an attribute that is a link of that element
//!  <a class=b href="/api/v1/…/proxy/login">
//! ```
//!
//! What is cut anywhere gives the same as what comes whole. All that has a meaning here is ASCII, so that any
//! encoding may stand in between in which ASCII means itself. Where nothing is a tag (comments, the texts of
//! scripts and styles) nothing is changed, and nothing is in a tag that is longer than the bound.

use std::ops::Range;

/// The longest start tag whose links are led here; a longer one, say with a whole image in it, passes as it is.
const LONGEST: usize = 64 * 1024;
/// So many links of one tag are; no element has more of its own.
const MOST: usize = 8;

/// Which attributes of which elements are links: upstream's list.
const LINKS: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["formaction", "src", "usemap"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Elements between whose tags nothing is a tag.
const RAW: &[&str] = &["script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes", "plaintext"];

/// Where in a start tag a byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Element,
    BetweenAttributes,
    Name,
    AfterName,
    BeforeValue,
    /// With its quote; 0: without one.
    Value(u8),
}

/// A start tag as far as it came.
#[derive(Debug)]
struct Tag {
    at: At,
    held: Vec<u8>,
    element: Option<Range<usize>>,
    name: Range<usize>,
    value: usize,
    /// Attributes that are links: where their values stand.
    links: Vec<Range<usize>>,
    /// It is longer than the bound and is not held any more.
    passes: bool,
    raw: Option<&'static str>,
}

#[derive(Debug)]
enum State {
    Text,
    /// What may become a tag; at most as much as tells one from a comment.
    Opening(Vec<u8>),
    Tag(Box<Tag>),
    /// Until two dashes and a bracket; so many dashes have come.
    Comment(u8),
    /// Until a bracket.
    Markup,
    /// Until the end tag of that element; so much of it has come.
    Raw(&'static str, usize),
}

/// Leads the links of one page here.
pub struct Page<F> {
    /// What a link becomes; `None`: it stays.
    lead: F,
    state: State,
}

impl<F: Fn(&str) -> Option<String>> Page<F> {
    /// Begins a page.
    pub fn new(lead: F) -> Self {
        Self { lead, state: State::Text }
    }

    /// Takes the next piece; appends what of the page is known by then.
    pub fn take(&mut self, mut piece: &[u8], out: &mut Vec<u8>) {
        while let Some(first) = piece.first() {
            let taken = match &mut self.state {
                State::Text => {
                    let at = piece.iter().position(|byte| *byte == b'<').unwrap_or(piece.len());
                    out.extend_from_slice(&piece[..at]);
                    if at < piece.len() {
                        self.state = State::Opening(vec![b'<']);
                    }
                    piece.len().min(at + 1)
                }
                State::Comment(_) | State::Markup => self.skip(piece, out),
                State::Raw(..) => self.raw(piece, out),
                State::Opening(held) => {
                    let mut held = std::mem::take(held);
                    // Either the byte is of what opens, or nothing opens and it is looked at again.
                    let (state, taken) = match (held.len(), first) {
                        (1, b'a'..=b'z' | b'A'..=b'Z') => {
                            held.clear();
                            (State::Tag(Box::new(Tag::new())), 0)
                        }
                        // `<!-->` and `<!--->` are comments, too.
                        (3, b'-') => {
                            held.push(*first);
                            (State::Comment(2), 1)
                        }
                        (1, b'!') | (2, b'-') => {
                            held.push(*first);
                            (State::Opening(std::mem::take(&mut held)), 1)
                        }
                        (1, b'/' | b'?') | (2 | 3, _) => (State::Markup, 0),
                        _ => (State::Text, 0),
                    };
                    out.extend_from_slice(&held);
                    self.state = state;
                    taken
                }
                State::Tag(tag) => {
                    let (taken, ended) = tag.take(piece, out);
                    if ended {
                        tag.end(&self.lead, out);
                        self.state = tag.raw.map_or(State::Text, |element| State::Raw(element, 0));
                    }
                    taken
                }
            };
            piece = &piece[taken..];
        }
    }

    /// Appends what was held: the page ends in the middle of it.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Opening(held) => out.extend_from_slice(&held),
            State::Tag(tag) => out.extend_from_slice(&tag.held),
            _ => {}
        }
    }

    fn skip(&mut self, piece: &[u8], out: &mut Vec<u8>) -> usize {
        let mut taken = 0;
        for byte in piece {
            taken += 1;
            let ended = match &mut self.state {
                State::Comment(dashes) => {
                    let ended = *byte == b'>' && *dashes >= 2;
                    *dashes = if *byte == b'-' { (*dashes + 1).min(2) } else { 0 };
                    ended
                }
                _ => *byte == b'>',
            };
            if ended {
                self.state = State::Text;
                break;
            }
        }
        out.extend_from_slice(&piece[..taken]);
        taken
    }

    /// The text of an element in which nothing is a tag but its own end. `</name` is enough: what follows of it
    /// is looked at as text, in which a bracket that closes means nothing.
    fn raw(&mut self, piece: &[u8], out: &mut Vec<u8>) -> usize {
        let State::Raw(element, came) = &mut self.state else { return 0 };
        let (element, mut taken) = (element.as_bytes(), 0);
        for byte in piece {
            if *came == element.len() + 2 && matches!(byte, b' ' | b'\t' | b'\n' | b'\x0c' | b'\r' | b'/' | b'>') {
                self.state = State::Markup;
                break;
            }
            let goes_on = match *came {
                0 => *byte == b'<',
                1 => *byte == b'/',
                came => element.get(came - 2).is_some_and(|want| byte.eq_ignore_ascii_case(want)),
            };
            // The begin of an end tag may be where another one broke off.
            *came = if goes_on { *came + 1 } else { usize::from(*byte == b'<') };
            taken += 1;
        }
        out.extend_from_slice(&piece[..taken]);
        taken
    }
}

impl Tag {
    fn new() -> Self {
        Self {
            at: At::Element,
            held: vec![b'<'],
            element: None,
            name: 0..0,
            value: 0,
            links: Vec::new(),
            passes: false,
            raw: None,
        }
    }

    /// Takes what is of the tag: how much, and whether it ended.
    fn take(&mut self, piece: &[u8], out: &mut Vec<u8>) -> (usize, bool) {
        for (index, byte) in piece.iter().enumerate() {
            if self.passes {
                out.push(*byte);
            } else {
                self.held.push(*byte);
            }
            if self.step(*byte) {
                return (index + 1, true);
            }
            if self.held.len() > LONGEST {
                out.append(&mut self.held);
                self.links.clear();
                self.passes = true;
            }
        }
        (piece.len(), false)
    }

    /// Goes on by a byte, which is the last that is held; true when the tag ends with it.
    fn step(&mut self, byte: u8) -> bool {
        let here = self.held.len().saturating_sub(1);
        let space = matches!(byte, b' ' | b'\t' | b'\n' | b'\x0c' | b'\r');
        match (self.at, byte) {
            (At::Value(0), b'>') => {
                self.value_ends(here);
                return true;
            }
            (At::Element | At::BetweenAttributes | At::Name | At::AfterName | At::BeforeValue, b'>') => {
                self.element_ends(here);
                return true;
            }
            (At::Element, _) if space || byte == b'/' => {
                self.element_ends(here);
                self.at = At::BetweenAttributes;
            }
            (At::Name, b'=') | (At::AfterName, b'=') => {
                if self.at == At::Name {
                    self.name.end = here;
                }
                self.at = At::BeforeValue;
            }
            (At::Name, _) if space => {
                self.name.end = here;
                self.at = At::AfterName;
            }
            (At::Name | At::AfterName, b'/') => self.at = At::BetweenAttributes,
            (At::BeforeValue, b'"' | b'\'') => {
                self.value = here + 1;
                self.at = At::Value(byte);
            }
            (At::BeforeValue, _) if !space => {
                self.value = here;
                self.at = At::Value(0);
            }
            (At::Value(0), _) if space => {
                self.value_ends(here);
                self.at = At::BetweenAttributes;
            }
            (At::Value(quote), _) if quote != 0 && quote == byte => {
                self.value_ends(here);
                self.at = At::BetweenAttributes;
            }
            (At::BetweenAttributes | At::AfterName, _) if !space && byte != b'/' => {
                self.name = here..here;
                self.at = At::Name;
            }
            _ => {}
        }
        false
    }

    fn element_ends(&mut self, here: usize) {
        if self.at != At::Element || self.passes {
            return;
        }
        self.element = Some(1..here);
        self.raw = RAW.iter().find(|raw| self.held[1..here].eq_ignore_ascii_case(raw.as_bytes())).copied();
    }

    fn value_ends(&mut self, here: usize) {
        let Some(element) = self.element.clone().filter(|_| !self.passes && self.links.len() < MOST) else { return };
        let is = |range: &Range<usize>, text: &str| self.held[range.clone()].eq_ignore_ascii_case(text.as_bytes());
        let of = LINKS.iter().find(|(name, _)| is(&element, name));
        if of.is_some_and(|(_, names)| names.iter().any(|name| is(&self.name, name))) {
            self.links.push(self.value..here);
        }
    }

    /// Appends the tag with its links led here.
    fn end(&mut self, lead: &impl Fn(&str) -> Option<String>, out: &mut Vec<u8>) {
        let mut from = 0;
        for link in &self.links {
            let value = &self.held[link.clone()];
            // Browsers pass over what is white around a link.
            let value = value.trim_ascii();
            let Some(to) = std::str::from_utf8(value).ok().and_then(lead) else { continue };
            out.extend_from_slice(&self.held[from..link.start]);
            escape(&to, out);
            from = link.end;
        }
        out.extend_from_slice(&self.held[from..]);
    }
}

/// What ends no value, whatever stands around it. An ampersand is left alone: it stood in a value before.
fn escape(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"&#34;"),
            b'\'' => out.extend_from_slice(b"&#39;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            byte => out.push(byte),
        }
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
