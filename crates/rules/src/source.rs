//! The text of an expression and what is wrong with it, shown with a line and a caret.
//!
//! ```text
//! ERROR: <input>:1:6: undeclared reference to 'y' (in container '')
//!  | x == y
//!  | .....^
//! ```

use std::fmt::Write;

/// No more than this many mistakes of one expression are told.
const MAX_ISSUES: usize = 100;

/// Lines longer than this are not shown.
const MAX_SNIPPET: usize = 16_384;

/// One mistake at a character of the text, or of the text as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Characters before the mistake.
    pub offset: Option<u32>,
    pub message: String,
}

/// The mistakes in one expression, in the order they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Issues(pub Vec<Issue>);

impl Issues {
    /// True when nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a mistake. Beyond the bound they are counted, not kept apart.
    pub fn add(&mut self, offset: Option<u32>, message: impl Into<String>) {
        self.0.push(Issue { offset, message: message.into() });
    }

    /// All mistakes as one text, by position.
    pub fn show(&self, text: &str) -> String {
        let source = Source::new(text);
        let mut placed: Vec<((i64, i64), &Issue)> =
            self.0.iter().take(MAX_ISSUES).map(|i| (source.place(i.offset), i)).collect();
        placed.sort_by_key(|(place, _)| *place);
        let mut out = String::new();
        for (i, ((line, column), issue)) in placed.into_iter().enumerate() {
            if i > 0 {
                out.push('\n');
            }
            let _ = write!(out, "ERROR: <input>:{line}:{}: {}", column + 1, issue.message);
            source.snippet(line, column, &mut out);
        }
        if self.0.len() > MAX_ISSUES {
            let _ = write!(out, "\n{} more errors were truncated", self.0.len() - MAX_ISSUES);
        }
        out
    }
}

struct Source<'s> {
    lines: Vec<&'s str>,
    /// Characters before each line.
    starts: Vec<u32>,
}

impl<'s> Source<'s> {
    fn new(text: &'s str) -> Self {
        let lines: Vec<&str> = text.split('\n').collect();
        let mut at = 0;
        let starts = lines
            .iter()
            .map(|line| {
                let start = at;
                at += count(line) + 1;
                start
            })
            .collect();
        Self { lines, starts }
    }

    /// Line from one, column from zero.
    fn place(&self, offset: Option<u32>) -> (i64, i64) {
        let Some(offset) = offset else { return (-1, -1) };
        if self.lines == [""] {
            return (1, -1);
        }
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        (line as i64, i64::from(offset - self.starts.get(line - 1).copied().unwrap_or(0)))
    }

    fn snippet(&self, line: i64, column: i64, out: &mut String) {
        let Some(text) = usize::try_from(line - 1).ok().and_then(|i| self.lines.get(i)) else { return };
        if text.len() > MAX_SNIPPET || (self.lines.len() == 1 && text.is_empty()) {
            return;
        }
        let _ = write!(out, "\n | {}", text.replace('\t', " "));
        out.push_str("\n | ");
        let mut chars = text.chars();
        for _ in 0..column {
            match chars.next() {
                Some(c) => out.push(if c.len_utf8() > 1 { '\u{ff0e}' } else { '.' }),
                None => break,
            }
        }
        out.push(if chars.next().is_some_and(|c| c.len_utf8() > 1) { '\u{ff3e}' } else { '^' });
    }
}

fn count(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(u32::MAX)
}
