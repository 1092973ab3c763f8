//! A line of progress per step with its time: what `pintle up` shows.

use std::io::{IsTerminal, Write};

use stdx::SharedClock;
use stdx::clock::Instant;

/// Writes lines to standard output. A reader that went away is no error.
pub struct Progress {
    clock: SharedClock,
    start: Instant,
    last: Instant,
    colour: bool,
}

impl Progress {
    /// Counts from now.
    pub fn new(clock: SharedClock) -> Self {
        let now = clock.now();
        Self { clock, start: now, last: now, colour: std::io::stdout().is_terminal() }
    }

    /// A step is done; its time is that since the last one.
    pub fn done(&mut self, text: &str) {
        let now = self.clock.now();
        let milliseconds = now.since(self.last).as_millis();
        self.last = now;
        let mark = if self.colour { "\x1b[32m✔\x1b[0m" } else { "✔" };
        self.line(&format!("{mark} {text:<58} {milliseconds:>6} ms"));
    }

    /// A line without a time.
    pub fn line(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }

    /// Milliseconds since the start.
    pub fn total(&self) -> u128 {
        self.clock.now().since(self.start).as_millis()
    }
}
