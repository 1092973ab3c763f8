//! Regular expressions in Go's syntax, which is what Kubernetes means by a pattern.
//!
//! A pattern is read as Go reads it, with Go's complaints, and written anew in the syntax of the
//! [`regex`] crate, whose engine is of the same kind: time is linear in the text, and the first match
//! from the left counts.
//!
//! ```text
//! ^[\w-]+\Q.\E$  ──►  ^[0-9A-Za-z_\x{2d}]+\x{2e}$
//! ```
//!
//! Compiled programs are of bounded size and live in one bounded cache.

mod parse;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The largest program of a pattern, in bytes.
const LARGEST: usize = 2 * 1024 * 1024;
/// A program that counts as small.
const SMALL: usize = 64 * 1024;
/// What the cache holds: a small program weighs 1, any other [`HEAVY`].
const CAPACITY: usize = 1024;
const HEAVY: usize = LARGEST / SMALL;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Regexp(regex::Regex);

impl Regexp {
    /// True when the pattern matches anywhere in the text.
    pub fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// The first match.
    pub fn find<'t>(&self, text: &'t str) -> Option<&'t str> {
        self.0.find(text).map(|found| found.as_str())
    }

    /// Every match, one after the other.
    pub fn find_all<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        self.0.find_iter(text).map(|found| found.as_str())
    }
}

/// Compiles a pattern, or finds it compiled.
///
/// # Errors
/// What Go says of the pattern: ``error parsing regexp: missing closing ]: `[a` ``.
pub fn compile(pattern: &str) -> Result<Arc<Regexp>, String> {
    static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);
    let cache = || CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = cache().programs.get(pattern) {
        return Ok(Arc::clone(known));
    }
    let (program, weight) = build(pattern)?;
    let program = Arc::new(program);
    cache().put(pattern, &program, weight);
    Ok(program)
}

/// Says whether a pattern can be compiled.
///
/// # Errors
/// What Go says of the pattern.
pub fn check(pattern: &str) -> Result<(), String> {
    if pattern.is_empty() { Ok(()) } else { compile(pattern).map(drop) }
}

#[derive(Default)]
struct Cache {
    programs: HashMap<Box<str>, Arc<Regexp>>,
    weight: usize,
}

impl Cache {
    /// When it is full it is emptied: what is in use comes back with its next use.
    fn put(&mut self, pattern: &str, program: &Arc<Regexp>, weight: usize) {
        if self.weight + weight > CAPACITY {
            *self = Self::default();
        }
        if self.programs.insert(pattern.into(), Arc::clone(program)).is_none() {
            self.weight += weight;
        }
    }
}

fn build(pattern: &str) -> Result<(Regexp, usize), String> {
    let failed = |what: &str, part: &str| format!("error parsing regexp: {what}: `{part}`");
    let translated = parse::translate(pattern).map_err(|error| failed(error.what, &error.part))?;
    for (limit, weight) in [(SMALL, 1), (LARGEST, HEAVY)] {
        match regex::RegexBuilder::new(&translated).size_limit(limit).build() {
            Ok(program) => return Ok((Regexp(program), weight)),
            Err(regex::Error::CompiledTooBig(_)) => {}
            Err(_) => return Err(failed("invalid character class range", pattern)),
        }
    }
    Err(failed("expression too large", pattern))
}
