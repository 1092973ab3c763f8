//! What an evaluation may cost. The cost is upstream's, so that a rule is cut off where it is cut off
//! there; beneath it lie bounds of our own on steps and memory, because some calls cost little and do
//! much (`replace`, `format`, a pattern that is built anew in a loop).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use machinery::regexp::{self, Regexp};

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// It cost too much.
    Cancelled,
    /// An operator or function has no meaning for a value; the text is what clients see.
    NoOverload(Box<str>),
    /// It failed; the text is what clients see.
    Failed(Box<str>),
}

impl Error {
    /// A failure with this text.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self::Failed(text.into())
    }

    /// A value that an operator has no meaning for.
    pub fn no_such_overload() -> Self {
        Self::NoOverload("no such overload".into())
    }

    /// A value that this operator or function has no meaning for.
    pub fn no_overload_of(what: &str) -> Self {
        Self::NoOverload(format!("no such overload: {what}").into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("operation cancelled: actual cost limit exceeded"),
            Self::NoOverload(text) | Self::Failed(text) => f.write_str(text),
        }
    }
}

/// Steps that one evaluation may make, whatever it costs.
const MAX_STEPS: u64 = 50_000_000;

/// Bytes that the values of one evaluation may take up, whatever it costs.
const MAX_BYTES: u64 = 128 << 20;

/// What reading one pattern counts as, in steps.
const PATTERN_STEPS: u64 = 50_000;

/// Patterns made while evaluating are kept up to this number.
const MAX_PATTERNS: usize = 64;

/// Counts what one evaluation costs.
#[derive(Debug, Default)]
pub struct Meter {
    cost: u64,
    limit: u64,
    steps: u64,
    bytes: u64,
    patterns: HashMap<Box<str>, Arc<Regexp>>,
}

impl Meter {
    /// Nothing spent yet.
    pub fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    /// What was spent.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Spends upstream's cost of something.
    pub fn charge(&mut self, cost: u64) -> Result<(), Error> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Makes `steps` steps.
    pub fn step(&mut self, steps: u64) -> Result<(), Error> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > MAX_STEPS { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Takes up memory. What is freed again is not given back: it took time to fill.
    pub fn allocate(&mut self, bytes: usize) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.bytes > MAX_BYTES { Err(Error::Cancelled) } else { self.step(bytes as u64 / 64) }
    }

    /// The pattern of a text that is known only now.
    pub fn pattern(&mut self, text: &str) -> Result<Arc<Regexp>, Error> {
        if let Some(known) = self.patterns.get(text) {
            return Ok(Arc::clone(known));
        }
        self.step(PATTERN_STEPS)?;
        let pattern = regexp::compile(text).map_err(Error::new)?;
        if self.patterns.len() >= MAX_PATTERNS {
            self.patterns.clear();
        }
        self.patterns.insert(text.into(), Arc::clone(&pattern));
        Ok(pattern)
    }
}
