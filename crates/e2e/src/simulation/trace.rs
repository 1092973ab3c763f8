//! What happened, in order: the lines a failing run shows, the hash two equal runs share, and the
//! rules that were broken.

use std::collections::VecDeque;
use std::fmt::Arguments;

use parking_lot::Mutex;
use stdx::clock::{Clock, ManualClock};

/// Lines kept for the report of a failure.
const KEPT: usize = 400;

struct State {
    hash: u64,
    lines: u64,
    recent: VecDeque<String>,
    broken: Vec<String>,
}

/// See the module.
pub struct Trace {
    clock: ManualClock,
    /// Every line goes to standard error as well.
    loud: bool,
    state: Mutex<State>,
}

impl Trace {
    /// An empty trace of a world with this clock.
    pub fn new(clock: ManualClock, loud: bool) -> Self {
        let state = State { hash: 0xcbf2_9ce4_8422_2325, lines: 0, recent: VecDeque::new(), broken: Vec::new() };
        Self { clock, loud, state: Mutex::new(state) }
    }

    /// Adds a line.
    pub fn line(&self, text: Arguments<'_>) {
        let line = format!("{:>12.6} {text}", self.clock.now().0.as_secs_f64());
        if self.loud {
            eprintln!("{line}");
        }
        let mut state = self.state.lock();
        // FNV-1a: nothing hostile is hashed here.
        for byte in line.bytes() {
            state.hash = (state.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        state.lines += 1;
        if state.recent.len() == KEPT {
            state.recent.pop_front();
        }
        state.recent.push_back(line);
    }

    /// Says that a rule was broken; the run ends at its next step.
    pub fn broken(&self, what: Arguments<'_>) {
        self.line(format_args!("BROKEN {what}"));
        self.state.lock().broken.push(what.to_string());
    }

    /// The rules broken so far.
    pub fn all_broken(&self) -> Vec<String> {
        self.state.lock().broken.clone()
    }

    /// True when nothing is broken.
    pub fn is_clean(&self) -> bool {
        self.state.lock().broken.is_empty()
    }

    /// The hash over every line, and how many there were.
    pub fn hash(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.hash, state.lines)
    }

    /// The last lines.
    pub fn recent(&self) -> Vec<String> {
        self.state.lock().recent.iter().cloned().collect()
    }
}
