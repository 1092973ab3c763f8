//! What a decode knows while it walks: where it is, and what it found wrong so far.

use super::scalar;
use super::{MAX_ERRORS, MAX_NODES};
use crate::go;
use crate::schema::{Scalar, Shape, TypeRef};

/// One step of a path.
pub(super) enum Step<'t> {
    /// A field of a type, by its position.
    Field(TypeRef<'t>, usize),
    Key(String),
    Index(usize),
}

/// Where the values come from, which is whose words are used for what does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A JSON text: numbers are judged by their digits.
    Text,
    /// A tree that stands for a JSON text.
    Tree,
    /// A tree that is read without the detour over a text, as after a strategic merge patch.
    Converted,
}

/// What a decode keeps while it walks.
pub(super) struct State<'t> {
    pub(super) root: TypeRef<'t>,
    pub(super) path: Vec<Step<'t>>,
    pub(super) report: bool,
    pub(super) source: Source,
    /// Unknown and duplicate fields, each text once.
    pub(super) errors: Vec<String>,
    /// A field of the object is called like `kind` or `apiVersion` but for the case of its letters.
    pub(super) folded_head: bool,
    /// Lists and objects so far.
    nodes: usize,
    /// The first value that is of another type than its field; the walk went on.
    misfit: Option<String>,
    /// What ended the walk.
    fatal: Option<String>,
}

impl<'t> State<'t> {
    pub(super) fn new(root: TypeRef<'t>, report: bool, source: Source) -> Self {
        Self {
            root,
            path: Vec::with_capacity(16),
            report,
            source,
            errors: Vec::new(),
            folded_head: false,
            nodes: 0,
            misfit: None,
            fatal: None,
        }
    }

    /// What is wrong with the object, by upstream's order of precedence.
    pub(super) fn failure(&mut self) -> Option<String> {
        self.fatal.take().or_else(|| self.misfit.take())
    }

    pub(super) fn duplicate(&mut self, last: Option<&str>) {
        self.mistake("duplicate", last);
    }

    pub(super) fn unknown(&mut self, name: &str) {
        if self.path.is_empty() && (name.eq_ignore_ascii_case("kind") || name.eq_ignore_ascii_case("apiVersion")) {
            self.folded_head = true;
        }
        self.mistake("unknown", Some(name));
    }

    fn mistake(&mut self, what: &str, last: Option<&str>) {
        if !self.report || self.errors.len() >= MAX_ERRORS {
            return;
        }
        let path = self.strict_path(last);
        let text = match self.source {
            Source::Converted => format!("{what} field \"{path}\""),
            Source::Text | Source::Tree => format!("{what} field {}", go::quote(&path)),
        };
        if !self.errors.contains(&text) {
            self.errors.push(text);
        }
    }

    /// `spec.containers[0].foo`.
    fn strict_path(&self, last: Option<&str>) -> String {
        let mut out = String::new();
        let name = |out: &mut String, part: &str| {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(part);
        };
        for step in &self.path {
            match step {
                Step::Field(t, position) => name(&mut out, t.at(*position).name()),
                Step::Key(part) => name(&mut out, part),
                Step::Index(i) => out.push_str(&format!("[{i}]")),
            }
        }
        if let Some(last) = last {
            name(&mut out, last);
        }
        out
    }

    /// A value of another type: the first one is told when all has been read.
    pub(super) fn misfit(&mut self, shape: Shape<'_>, found: &str, go_type: &str) {
        if self.misfit.is_some() {
            return;
        }
        self.misfit = Some(match (self.source, shape) {
            (Source::Converted, Shape::Scalar(scalar)) => scalar::cannot_convert(found, scalar, go_type),
            (Source::Converted, _) => {
                let wanted = match shape {
                    Shape::List(_) => "slice from",
                    Shape::Map(_) => "map from",
                    _ => "struct from:",
                };
                format!("cannot restore {wanted} {}", scalar::go_kind(found))
            }
            _ => self.cannot_unmarshal(found, go_type),
        });
    }

    /// A value of which a list of numbers, read as bytes, has no room.
    pub(super) fn no_byte(&mut self, found: &str) {
        let text = self.cannot_unmarshal(found, "uint8");
        self.misfit.get_or_insert(text);
    }

    /// A text that is told when all has been read.
    pub(super) fn wrong(&mut self, text: String) {
        self.misfit.get_or_insert(text);
    }

    /// A text that ends the walk.
    pub(super) fn end(&mut self, text: String) {
        self.fatal.get_or_insert(text);
    }

    /// A value of another type that its own reader refused, which ends the walk.
    pub(super) fn end_misfit(&mut self, scalar: Scalar, found: &str, go_type: &str) {
        let text = match (self.source, scalar) {
            (Source::Converted, _) => format!("json: cannot unmarshal {found} into Go value of type {go_type}"),
            _ => self.cannot_unmarshal(found, go_type),
        };
        self.end(text);
    }

    fn cannot_unmarshal(&self, found: &str, go_type: &str) -> String {
        // The innermost struct is named, and the fields that lead to the value, embedded structs among them.
        let (mut owner, mut fields): (_, Vec<&str>) = (None, Vec::new());
        for step in &self.path {
            if let Step::Field(t, position) = step {
                owner = Some(*t);
                let name = t.at(*position).name();
                fields.extend(t.embedding(name));
                fields.push(name);
            }
        }
        let place = match owner {
            Some(t) => format!("Go struct field {}.{}", t.name(), fields.join(".")),
            None => "Go value".to_owned(),
        };
        format!("json: cannot unmarshal {found} into {place} of type {go_type}")
    }

    /// Counts a list or object that begins at a depth.
    pub(super) fn enter(&mut self, depth: usize) -> Result<(), ()> {
        self.nodes += 1;
        let why = if depth >= super::MAX_DEPTH {
            "exceeded max depth".to_owned()
        } else if self.nodes > MAX_NODES {
            super::too_many_nodes()
        } else {
            return Ok(());
        };
        self.end(why);
        Err(())
    }
}
