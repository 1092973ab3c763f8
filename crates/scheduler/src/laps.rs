//! How long the parts of a decision take. Who decides knows no time: it says what it has just done, and who
//! listens looks at the clock.
//!
//! ```text
//!  choose() ── prepare A, prepare B │ filter A B on one node, A B on the next, … │ score A, B │
//!                plugin()  plugin()  point()       plugin() …                  point()      point()
//! ```

use std::time::Duration;

use stdx::SharedClock;
use stdx::clock::Instant;

/// Of one decision so many nodes are timed plugin by plugin: to time all of thousands would cost more than to
/// filter them.
pub const NODES: usize = 16;
/// Of so many decisions one is timed plugin by plugin, as upstream has it.
const ONE_OF: u32 = 10;

/// A part of a decision, by upstream's name for the place where plugins extend it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    PreFilter,
    Filter,
    PostFilter,
    Score,
    Bind,
}

impl Point {
    /// As it stands in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::PreFilter => "PreFilter",
            Self::Filter => "Filter",
            Self::PostFilter => "PostFilter",
            Self::Score => "Score",
            Self::Bind => "Bind",
        }
    }
}

/// What came of it, by upstream's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    Success,
    /// The plugin has nothing to say about the pod.
    Skip,
    Unschedulable,
    /// Nor would it be without other pods.
    Unresolvable,
    Error,
}

impl Ended {
    /// As it stands in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "Success",
            Self::Skip => "Skip",
            Self::Unschedulable => "Unschedulable",
            Self::Unresolvable => "UnschedulableAndUnresolvable",
            Self::Error => "Error",
        }
    }
}

/// Listens to a decision.
pub trait Laps {
    /// Does it want to hear of plugins?
    fn hears_plugins(&self) -> bool;
    /// What a plugin has done since the last thing that was told.
    fn plugin(&mut self, point: Point, plugin: &'static str, ended: Ended);
    /// What was done since the last thing that was told is nobody's.
    fn between(&mut self);
    /// All of a part, since the one before.
    fn point(&mut self, point: Point, ended: Ended);
}

/// Listens to nothing.
pub struct Untimed;

impl Laps for Untimed {
    fn hears_plugins(&self) -> bool {
        false
    }

    fn plugin(&mut self, _: Point, _: &'static str, _: Ended) {}

    fn between(&mut self) {}

    fn point(&mut self, _: Point, _: Ended) {}
}

/// One thing that took so long; without a plugin: a whole part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    pub point: Point,
    pub plugin: Option<&'static str>,
    pub ended: Ended,
    pub took: Duration,
}

/// Looks at the clock whenever something is told. Used for one decision after the other.
pub struct Stopwatch {
    clock: SharedClock,
    point: Instant,
    lap: Instant,
    decisions: u32,
    laps: Vec<Lap>,
}

impl Stopwatch {
    /// One that has heard nothing.
    pub fn new(clock: SharedClock) -> Self {
        let now = clock.now();
        Self { clock, point: now, lap: now, decisions: 0, laps: Vec::new() }
    }

    /// A decision begins.
    pub fn begin(&mut self, now: Instant) {
        (self.point, self.lap) = (now, now);
        self.laps.clear();
        self.decisions = (self.decisions + 1) % ONE_OF;
    }

    /// What was heard of it.
    pub fn laps(&self) -> &[Lap] {
        &self.laps
    }

    /// The end of one lap, the begin of the next.
    fn tell(&mut self, point: Point, plugin: Option<&'static str>, ended: Ended) {
        let now = self.clock.now();
        let since = if plugin.is_some() { self.lap } else { self.point };
        self.laps.push(Lap { point, plugin, ended, took: now.since(since) });
        self.lap = now;
        if plugin.is_none() {
            self.point = now;
        }
    }
}

impl Laps for Stopwatch {
    fn hears_plugins(&self) -> bool {
        self.decisions == 1
    }

    fn plugin(&mut self, point: Point, plugin: &'static str, ended: Ended) {
        if self.hears_plugins() {
            self.tell(point, Some(plugin), ended);
        }
    }

    fn between(&mut self) {
        if self.hears_plugins() {
            self.lap = self.clock.now();
        }
    }

    fn point(&mut self, point: Point, ended: Ended) {
        self.tell(point, None, ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stdx::clock::{Clock, ManualClock};

    #[test]
    fn laps_are_since_the_last_and_parts_since_the_part_before() {
        let clock = ManualClock::new("2030-01-01T00:00:00Z".parse().expect("a time"));
        let mut watch = Stopwatch::new(Arc::new(clock.clone()));
        let pass = |seconds| clock.advance(Duration::from_secs(seconds));
        let mut all = Vec::new();
        for _ in 0..=ONE_OF {
            watch.begin(clock.now());
            pass(1);
            watch.plugin(Point::PreFilter, "A", Ended::Skip);
            pass(2);
            watch.point(Point::PreFilter, Ended::Success);
            pass(3);
            watch.between();
            pass(4);
            watch.plugin(Point::Filter, "B", Ended::Unschedulable);
            watch.point(Point::Filter, Ended::Unschedulable);
            all.push(watch.laps().iter().map(|l| (l.plugin.unwrap_or("-"), l.took.as_secs())).collect::<Vec<_>>());
        }
        assert_eq!(all[0], [("A", 1), ("-", 3), ("B", 4), ("-", 7)]);
        // Not every decision is heard plugin by plugin.
        assert_eq!(all[1], [("-", 3), ("-", 7)]);
        assert_eq!(all[ONE_OF as usize], all[0]);
    }
}
