//! The line and the paragraph separator of Unicode, which end lines in YAML 1.1 and are letters to the scanner.
//!
//! ```text
//!  a: x⏎ᴸ  y     read with ᴸ as a line's end: where the scalars are
//!  a: xM y       its line ends are one, after a mark of which they were
//!  "x M y"       folded by the scanner; what the mark stands for comes back: "xᴸy"
//! ```
//!
//! Folding makes a space of a line feed, and of a separator itself.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle};

const LINE: char = '\u{2028}';
const PARAGRAPH: char = '\u{2029}';

/// Letters that a text does not have, and what they stand for in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    /// A line feed, a line separator, a paragraph separator.
    letters: [char; 3],
}

/// What marks stand for.
const MARKED: [char; 3] = ['\n', LINE, PARAGRAPH];

/// The text without separators, with marks in place of those within scalars.
pub(super) fn marked(text: Cow<'_, str>, options: granit_parser::Options) -> (Cow<'_, str>, Option<Marks>) {
    if !text.contains([LINE, PARAGRAPH]) {
        return (text, None);
    }
    let letters: Vec<char> = text.chars().collect();
    let flat: String = letters.iter().map(|c| if is_separator(*c) { '\n' } else { *c }).collect();
    let scalars = scalars(&flat, &letters, options);
    let Some(marks) = Marks::absent_from(&letters).filter(|_| !scalars.is_empty()) else {
        return (Cow::Owned(flat), None);
    };
    let mut out = String::with_capacity(flat.len());
    let mut at = 0;
    for (range, style) in scalars {
        out.extend(letters[at..range.start].iter().map(|c| if is_separator(*c) { '\n' } else { *c }));
        marks.put(&letters[range.clone()], style, &mut out);
        at = range.end;
    }
    out.extend(letters[at..].iter().map(|c| if is_separator(*c) { '\n' } else { *c }));
    (Cow::Owned(out), Some(marks))
}

fn is_separator(c: char) -> bool {
    matches!(c, LINE | PARAGRAPH)
}

fn is_break(c: char) -> bool {
    is_separator(c) || c == '\n'
}

/// Where the scalars of the first document are that hold a separator.
fn scalars(flat: &str, letters: &[char], options: granit_parser::Options) -> Vec<(Range<usize>, ScalarStyle)> {
    let mut out: Vec<(Range<usize>, ScalarStyle)> = Vec::new();
    for event in Parser::new_from_str_with_options(flat, options) {
        let Ok((event, span)) = event else { break };
        match event {
            Event::Scalar(_, style, ..) => {
                let range = span.start.index()..span.end.index().min(letters.len());
                let after = out.last().is_none_or(|(last, _)| last.end <= range.start);
                if after && letters.get(range.clone()).is_some_and(|part| part.iter().any(|c| is_separator(*c))) {
                    out.push((range, style));
                }
            }
            Event::DocumentEnd => break,
            _ => {}
        }
    }
    out
}

impl Marks {
    fn absent_from(letters: &[char]) -> Option<Self> {
        let used: HashSet<char> = letters.iter().copied().filter(|c| matches!(c, '\u{e000}'..='\u{f8ff}')).collect();
        let mut free = ('\u{e000}'..='\u{f8ff}').filter(|c| !used.contains(c));
        Some(Self { letters: [free.next()?, free.next()?, free.next()?] })
    }

    /// Writes a scalar with each run of line ends that has a separator as marks and one line feed. The scanner
    /// says of a block where its content is, without its header.
    fn put(&self, scalar: &[char], style: ScalarStyle, out: &mut String) {
        let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
        let mut at = 0;
        let mut begun = !block;
        while at < scalar.len() {
            let c = scalar[at];
            let escaped = style == ScalarStyle::DoubleQuoted && is_escaped(scalar, at);
            if !is_break(c) || escaped || !begun {
                begun |= !is_break(c) && c != ' ';
                out.push(if is_separator(c) { '\n' } else { c });
                at += 1;
                continue;
            }
            let mut end = at;
            let mut last = at;
            while end < scalar.len() && (is_break(scalar[end]) || matches!(scalar[end], ' ' | '\t')) {
                if is_break(scalar[end]) {
                    last = end;
                }
                end += 1;
            }
            let run = &scalar[at..=last];
            if run.iter().any(|c| is_separator(*c)) {
                let breaks = run.iter().filter_map(|c| MARKED.iter().position(|marked| marked == c));
                out.extend(breaks.map(|i| self.letters[i]));
                out.push('\n');
            } else {
                out.extend(run);
            }
            at = last + 1;
        }
    }

    /// The text of a scalar with what its marks stand for.
    pub(super) fn resolve(&self, text: &str, style: ScalarStyle) -> Option<String> {
        if !text.contains(self.letters) {
            return None;
        }
        let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find(self.letters) {
            let (before, marks) = rest.split_at(start);
            out.push_str(if block { before } else { before.trim_end_matches([' ', '\t']) });
            let end = marks.find(|c| !self.letters.contains(&c)).unwrap_or(marks.len());
            let (marks, after) = marks.split_at(end);
            let ends: Vec<char> = marks.chars().filter_map(|mark| self.stands_for(mark)).collect();
            rest = match after.chars().next() {
                // One line end was left of them; a literal keeps it, and so do lines that are indented more.
                Some('\n') if block => {
                    out.extend(&ends);
                    &after[1..]
                }
                Some(' ') => {
                    out.extend(folded(&ends));
                    &after[1..]
                }
                // Cut off at the end of a block.
                None if block => after,
                _ => {
                    out.extend(folded(&ends));
                    after
                }
            };
        }
        out.push_str(rest);
        Some(out)
    }

    fn stands_for(&self, mark: char) -> Option<char> {
        self.letters.iter().position(|letter| *letter == mark).map(|i| MARKED[i])
    }
}

/// A first line feed goes, or is a space when nothing follows it; a first separator stays.
fn folded(ends: &[char]) -> Vec<char> {
    match ends {
        ['\n'] => vec![' '],
        ['\n', rest @ ..] => rest.to_vec(),
        all => all.to_vec(),
    }
}

fn is_escaped(scalar: &[char], at: usize) -> bool {
    scalar[..at].iter().rev().take_while(|c| **c == '\\').count() % 2 == 1
}
