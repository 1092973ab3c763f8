//! YAML as upstream reads it: the first document of a stream, its scalars by the rules of YAML 1.1, with
//! anchors, aliases and merge keys, as the JSON tree it stands for.
//!
//! ```text
//! base: &b {cpu: 1}        {"base": {"cpu": 1},
//! web: {<<: *b, on: yes}    "web":  {"cpu": 1, "true": true}}
//! ```
//!
//! Every part of the work is bounded: by the document's nodes, by what its aliases stand for, by depth.

mod breaks;
mod resolve;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Parser, ScalarStyle, ScanError};
use serde_json::{Map, Value};

use self::breaks::Marks;
use self::resolve::Meaning;
use crate::decode::{MAX_BYTES, MAX_DEPTH};
use crate::status::{Result, Status};

/// The most nodes of a document, as written and with all its aliases replaced.
const MAX_NODES: usize = 500_000;
/// The most anchors of a document: the scanner looks through them at each one.
const MAX_ANCHORS: usize = 10_000;
/// The bytes that are read again because of aliases that are keys.
const AGAIN: usize = 8 * MAX_BYTES;
/// The most keys set twice that are told.
const MAX_ERRORS: usize = 100;

/// A document.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) value: Value,
    /// One text about all keys that are set twice; the last one counts.
    pub(crate) errors: Option<String>,
}

/// Reads the first document of a text.
///
/// # Errors
/// Why it is no YAML, or none that JSON can say, in upstream's words as far as they are known.
pub(crate) fn parse(bytes: &[u8]) -> std::result::Result<Parsed, String> {
    let prefixed = |error: String| format!("yaml: {error}");
    let text = std::str::from_utf8(bytes).map_err(|_| prefixed("invalid UTF-8".to_owned()))?;
    if text.chars().any(|c| !allowed(c)) {
        return Err(prefixed("control characters are not allowed".to_owned()));
    }
    // To YAML 1.1 this is a line's end, wherever it stands.
    let text = if text.contains(NEXT_LINE) { Cow::Owned(text.replace(NEXT_LINE, "\n")) } else { Cow::Borrowed(text) };
    check_first(&text).map_err(prefixed)?;
    let (text, marks) = breaks::marked(apart(text), options());
    let document = Document::read(&text, marks).map_err(|failure| prefixed(failure.why))?;
    let Some(root) = document.root else { return Ok(Parsed { value: Value::Null, errors: None }) };
    let mut builder = Builder { document: &document, built: 0, aliased: 0, copied: 0, aliases: 0, doubled: Vec::new() };
    let value = builder.value(root, 0)?;
    let errors =
        (!builder.doubled.is_empty()).then(|| format!("yaml: unmarshal errors:\n  {}", builder.doubled.join("\n  ")));
    Ok(Parsed { value, errors })
}

/// The text with a space between each alias that is a key and its colon: to YAML 1.1 `*a: 1` is a field
/// called as `a` says, to the scanner `a:` is a name. Bounded by what reading again and again may cost.
fn apart(mut text: Cow<'_, str>) -> Cow<'_, str> {
    let mut budget = AGAIN;
    while let Err(Failure { at: Some(at), .. }) = Document::read(&text, None) {
        let Some(left) = budget.checked_sub(text.len()) else { break };
        budget = left;
        text.to_mut().insert(at, ' ');
    }
    text
}

/// Where the colon is of an alias that is a key and stands at a place of a text.
fn colon_after_alias(text: &str, at: usize) -> Option<usize> {
    let name = text.get(at..)?.strip_prefix('*')?;
    let rest = name.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    let after = rest.strip_prefix(':')?;
    let ends = after.is_empty() || after.starts_with([' ', '\t', '\n', '\r', ',', '[', ']', '{', '}']);
    (ends && rest.len() < name.len()).then(|| text.len() - rest.len())
}

/// Why a text is no document, and where a space may make it one.
struct Failure {
    why: String,
    at: Option<usize>,
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self { why, at: None }
    }
}

/// No tab stands before the first token of a text.
fn check_first(text: &str) -> std::result::Result<(), String> {
    let mut lines = text.lines().map(|line| line.trim_start_matches(' ')).enumerate();
    let first = lines.find(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    match first {
        Some((0, line)) if line.starts_with('\t') => Err(NO_TOKEN.to_owned()),
        Some((before, line)) if line.starts_with('\t') => Err(format!("line {}: {NO_TOKEN}", before + 1)),
        _ => Ok(()),
    }
}

const NO_TOKEN: &str = "found character that cannot start any token";
const NEXT_LINE: char = '\u{85}';

/// What may stand in a document.
fn allowed(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

/// How the scanner reads.
fn options() -> granit_parser::Options {
    let mut options = granit_parser::options! {
        emit_unresolved_aliases: true,
        block_scalar_eof_without_line_feed: true,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    options.set_emit_comments(false);
    options
}

type NodeId = usize;

enum Node<'t> {
    Scalar {
        text: Cow<'t, str>,
        /// Neither quoted nor tagged: its text says what it is.
        plain: bool,
        tag: String,
    },
    List(Vec<NodeId>),
    /// Keys and values by turns.
    Map(Vec<NodeId>),
    Alias(NodeId),
}

/// The nodes of one document, children before parents' ends.
struct Document<'t> {
    nodes: Vec<Node<'t>>,
    /// Counted from one.
    lines: Vec<usize>,
    root: Option<NodeId>,
}

impl<'t> Document<'t> {
    fn read(text: &'t str, marks: Option<Marks>) -> std::result::Result<Self, Failure> {
        let mut document = Self { nodes: Vec::new(), lines: Vec::new(), root: None };
        let mut anchors: HashMap<usize, NodeId> = HashMap::new();
        let mut open: Vec<NodeId> = Vec::new();
        for event in Parser::new_from_str_with_options(text, options()) {
            let (event, span) = event.map_err(|error| Failure {
                why: scan_error(&error, text),
                at: error.marker().byte_offset().and_then(|at| colon_after_alias(text, at)),
            })?;
            let tag_of = |tag: Option<Cow<'_, granit_parser::Tag>>| {
                tag.map(|tag| format!("{}{}", tag.handle(), tag.suffix())).unwrap_or_default()
            };
            let (node, anchor, opens) = match event {
                Event::Scalar(text, style, anchor, tag) => {
                    let tag = tag_of(tag);
                    let plain = style == ScalarStyle::Plain && tag.is_empty();
                    let text = match marks.and_then(|marks| marks.resolve(&text, style)) {
                        Some(resolved) => Cow::Owned(resolved),
                        None => text,
                    };
                    (Node::Scalar { text, plain, tag }, anchor, false)
                }
                Event::SequenceStart(_, anchor, _) => (Node::List(Vec::new()), anchor, true),
                Event::MappingStart(_, anchor, _) => (Node::Map(Vec::new()), anchor, true),
                Event::Alias(id) => match anchors.get(&id) {
                    Some(target) => (Node::Alias(*target), 0, false),
                    None => return Err("unknown anchor referenced".to_owned().into()),
                },
                Event::UnresolvedAlias(name) => {
                    return Err(Failure {
                        why: format!("unknown anchor '{name}' referenced"),
                        at: span.start.byte_offset().and_then(|at| colon_after_alias(text, at)),
                    });
                }
                Event::SequenceEnd | Event::MappingEnd => {
                    open.pop();
                    continue;
                }
                // What follows the first document is not looked at.
                Event::DocumentEnd => break,
                _ => continue,
            };
            let id = document.nodes.len();
            if id >= MAX_NODES {
                return Err(format!("document contains more than {MAX_NODES} nodes").into());
            }
            document.nodes.push(node);
            document.lines.push(span.start.line());
            match open.last().map(|parent| &mut document.nodes[*parent]) {
                Some(Node::List(children) | Node::Map(children)) => children.push(id),
                _ => document.root = Some(id),
            }
            if anchor > 0 {
                anchors.insert(anchor, id);
                if anchors.len() > MAX_ANCHORS {
                    return Err(format!("document contains more than {MAX_ANCHORS} anchors").into());
                }
            }
            if opens {
                open.push(id);
            }
        }
        Ok(document)
    }
}

/// The words of upstream's reader where they are known; the line is counted as it counts.
fn scan_error(error: &ScanError, document: &str) -> String {
    const NO_NODE: &str = "did not find expected node content";
    const END_OF_LIST: &str = "did not find expected ',' or ']'";
    let info = error.info();
    let (mut of_parser, text) = match info.split_once(", ") {
        Some((context, text)) if context.starts_with("while parsing") => (true, text),
        Some((context, text)) if context.starts_with("while scanning") => (false, text),
        _ => (false, info.as_str()),
    };
    let text = match text {
        "tabs disallowed in this context" | "tabs disallowed within this context (block indentation)" => NO_TOKEN,
        "found a tab" => "found a tab character that violates indentation",
        text if text.starts_with("unexpected character: ") => NO_TOKEN,
        "simple key expected ':'" => "could not find expected ':'",
        "unclosed quote" => "found unexpected end of stream",
        "exceeded configured flow nesting limit" | "recursion limit exceeded" => "exceeded max depth",
        text => {
            let told = match text {
                "expected ',' or ']'" | "unclosed bracket '['" => END_OF_LIST,
                "unclosed bracket '{'" => "did not find expected ',' or '}'",
                "misplaced bracket" | "\"-\" is only valid inside a block" => NO_NODE,
                text if text.starts_with("unexpected EOF while parsing") => NO_NODE,
                other => other,
            };
            of_parser |= told != text;
            told
        }
    };
    // Upstream's parser counts lines from zero, its scanner from one; the first of its counts is not told.
    let line = match info.as_str() {
        unclosed if unclosed.starts_with("unclosed bracket") => document.lines().count(),
        "unclosed quote" => document.matches('\n').count() + 1,
        // The mark is where the text began that the tab goes on with.
        tab if tab.ends_with("found a tab") => error.marker().line() + 1,
        _ => error.marker().line().saturating_sub(usize::from(of_parser)),
    };
    if line <= usize::from(!of_parser) { text.to_owned() } else { format!("line {line}: {text}") }
}

/// Builds the tree that the nodes stand for.
struct Builder<'d, 't> {
    document: &'d Document<'t>,
    /// Nodes so far, and those of them that an alias stands for.
    built: usize,
    aliased: usize,
    /// Bytes of texts that aliases have copied.
    copied: usize,
    /// How many aliases stand around what is built.
    aliases: usize,
    doubled: Vec<String>,
}

type Built<T> = std::result::Result<T, String>;

impl Builder<'_, '_> {
    fn enter(&mut self, depth: usize) -> Built<()> {
        self.built += 1;
        self.aliased += usize::from(self.aliases > 0);
        let bomb = self.aliased > 100 && self.built > 1000 && self.aliased as f64 / self.built as f64 > 0.99;
        if bomb || self.built > MAX_NODES || self.copied > MAX_BYTES {
            return Err("yaml: document contains excessive aliasing".to_owned());
        }
        if depth > MAX_DEPTH { Err("yaml: exceeded max depth".to_owned()) } else { Ok(()) }
    }

    fn value(&mut self, id: NodeId, depth: usize) -> Built<Value> {
        self.enter(depth)?;
        match &self.document.nodes[id] {
            Node::Scalar { .. } => self.meaning(id)?.value(),
            Node::List(items) => {
                let items = items.iter().map(|item| self.value(*item, depth + 1));
                items.collect::<Built<Vec<Value>>>().map(Value::Array)
            }
            Node::Map(_) => {
                let mut map = Object::default();
                self.fill(id, &mut map, depth)?;
                Ok(Value::Object(map.fields))
            }
            Node::Alias(target) => {
                self.aliases += 1;
                // An alias within its own anchor ends at the bound of depth.
                let value = self.value(*target, depth + 1);
                self.aliases -= 1;
                value
            }
        }
    }

    fn meaning(&mut self, id: NodeId) -> Built<Meaning<'_>> {
        let Node::Scalar { text, plain, tag } = &self.document.nodes[id] else { return Ok(Meaning::Null) };
        if self.aliases > 0 {
            self.copied += text.len();
        }
        if !plain && tag.is_empty() {
            return Ok(Meaning::Text(text.as_ref().into()));
        }
        resolve::resolve(tag, text).map_err(|error| format!("yaml: {error}"))
    }

    /// Sets the fields of a mapping in an object that may have some already.
    fn fill(&mut self, id: NodeId, out: &mut Object, depth: usize) -> Built<()> {
        let document = self.document;
        let Node::Map(pairs) = &document.nodes[id] else { return Ok(()) };
        for pair in pairs.chunks_exact(2) {
            let (key, value) = (pair[0], pair[1]);
            if is_merge(&document.nodes[key]) {
                self.merge(value, out, depth)?;
                continue;
            }
            self.enter(depth + 1)?;
            let mut named = key;
            while let Node::Alias(target) = &document.nodes[named] {
                named = *target;
            }
            if !matches!(&document.nodes[named], Node::Scalar { .. }) {
                return Err("yaml: invalid map key: a list or a map".to_owned());
            }
            let key = self.meaning(named)?;
            let (name, shown) = (key.key(), key.shown());
            let Some(name) = name else {
                let kind = if shown == "<nil>" { "%!s(<nil>)" } else { "uint64" };
                let value = match &document.nodes[value] {
                    Node::Scalar { .. } => self.meaning(value)?.shown(),
                    _ => "[]interface {}{...}".to_owned(),
                };
                return Err(format!("unsupported map key of type: {kind}, key: {shown}, value: {value}"));
            };
            let value_of = self.value(value, depth + 1)?;
            if !out.set(name, &shown, value_of) && self.doubled.len() < MAX_ERRORS {
                self.doubled.push(format!("line {}: key {shown} already set in map", document.lines[value]));
            }
        }
        Ok(())
    }

    /// `<<`: the fields of another mapping, or of several, of which the first has the last word.
    fn merge(&mut self, id: NodeId, out: &mut Object, depth: usize) -> Built<()> {
        const WRONG: &str = "yaml: map merge requires map or sequence of maps as the value";
        let document = self.document;
        let sources = match &document.nodes[id] {
            Node::List(items) => items.iter().rev().copied().collect(),
            Node::Scalar { .. } => return Err(WRONG.to_owned()),
            Node::Map(_) | Node::Alias(_) => vec![id],
        };
        for source in sources {
            self.enter(depth + 1)?;
            let (target, aliased) = match &document.nodes[source] {
                Node::Alias(target) => (*target, 1),
                _ => (source, 0),
            };
            if !matches!(&document.nodes[target], Node::Map(_)) {
                return Err(WRONG.to_owned());
            }
            self.aliases += aliased;
            self.fill(target, out, depth + 1)?;
            self.aliases -= aliased;
        }
        Ok(())
    }
}

fn is_merge(node: &Node<'_>) -> bool {
    matches!(node, Node::Scalar { text, plain, tag } if text == "<<" && (*plain || tag.ends_with(":merge")))
}

/// An object while it is built.
#[derive(Default)]
struct Object {
    fields: Map<String, Value>,
    /// Keys that were no texts, which few are: `1` and `"1"` are two.
    others: HashSet<String>,
}

impl Object {
    /// Sets a field; false when its key was set before.
    fn set(&mut self, name: String, shown: &str, value: Value) -> bool {
        let new = match self.fields.contains_key(&name) {
            false => true,
            true => self.others.contains(&name) == shown.starts_with('"'),
        };
        if !shown.starts_with('"') {
            self.others.insert(name.clone());
        }
        self.fields.insert(name, value);
        new
    }
}

/// Reads a document that no schema describes.
///
/// # Errors
/// 400.
pub fn read(bytes: &[u8]) -> Result<Value> {
    match parse(bytes) {
        Ok(parsed) => Ok(parsed.value),
        Err(error) => Err(Status::bad_request(format!("the body of the request cannot be read: {error}"))),
    }
}

/// Enough for [`MAX_DEPTH`] levels several times over; only what is used is ever real memory.
const STACK: usize = 64 * 1024 * 1024;

/// Runs `work` where there is room to descend, and waits for it: the writer descends with every level of
/// a document and takes tens of kilobytes for each, which a thread that serves requests does not have.
///
/// # Errors
/// 503 when the system has no thread to give.
fn with_room<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("yaml".to_owned()).stack_size(STACK).spawn_scoped(scope, work);
        match thread.map(|thread| thread.join()) {
            Ok(Ok(done)) => done,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => Err(Status::unavailable(format!("no thread for a YAML document: {error}"))),
        }
    })
}

/// Writes a tree.
///
/// # Errors
/// 500 when it cannot be written as YAML.
pub fn write(value: &Value) -> Result<String> {
    with_room(|| serde_saphyr::to_string(value).map_err(Status::internal))
}
