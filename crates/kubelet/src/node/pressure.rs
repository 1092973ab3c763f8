//! When a node is short of memory, disk or process ids, and when something is to be done about it.
//!
//! ```text
//!  levels ──► Gauge { Monitor (pure) } ──► due: pods end            (evict)
//!                                      └─► pressure: conditions     (node::keeper)
//!                                                 └─► who is let in (pods, admit)
//! ```
//!
//! There is one for a node: a shortage that whoever ends pods has seen, and has relieved at once, is told as a
//! condition and keeps other pods away for as long as pressure has to stay away before it is over.

use parking_lot::Mutex;
use stdx::clock::Instant;
use tokio::sync::watch;

use super::facts::Levels;
use super::thresholds::{Signal, Threshold, Thresholds};

/// What the node is short of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pids: bool,
}

impl Pressure {
    /// The Node's conditions that say so, as messages list them.
    pub fn conditions(self) -> Vec<&'static str> {
        let all = [(self.memory, "MemoryPressure"), (self.disk, "DiskPressure"), (self.pids, "PIDPressure")];
        all.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect()
    }
}

/// What is to be known at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    pub pressure: Pressure,
    /// What is to be answered now, the most urgent first.
    pub due: Vec<Threshold>,
}

/// Remembers when thresholds were crossed, and when pressure was last seen.
#[derive(Debug)]
pub struct Monitor {
    thresholds: Thresholds,
    /// Those that are crossed, since when, and whether they were to be answered at the last look.
    crossed: Vec<(Threshold, Instant, bool)>,
    memory: Option<Instant>,
    disk: Option<Instant>,
    pids: Option<Instant>,
}

impl Monitor {
    /// Nothing has been seen.
    pub fn new(thresholds: Thresholds) -> Self {
        Self { thresholds, crossed: Vec::new(), memory: None, disk: None, pids: None }
    }

    /// The pressure at `now`, given what is free. What was to be answered counts until what is to become free
    /// is free.
    pub fn observe(&mut self, levels: &Levels, now: Instant) -> Observed {
        let before = std::mem::take(&mut self.crossed);
        for threshold in self.thresholds.all() {
            let known = before.iter().find(|(known, ..)| *known == threshold);
            if threshold.is_crossed(levels, known.is_some_and(|(.., was_due)| *was_due)) {
                let since = known.map_or(now, |(_, since, _)| *since);
                self.crossed.push((threshold, since, now.since(since) >= threshold.grace));
            }
        }
        let is = |wanted: fn(Signal) -> bool| self.crossed.iter().any(|(threshold, ..)| wanted(threshold.signal));
        let current = Pressure {
            memory: is(|s| s == Signal::Memory),
            disk: is(Signal::is_of_disk),
            pids: is(|s| s == Signal::Pids),
        };
        let held = |last: &mut Option<Instant>, is_now: bool| {
            if is_now {
                *last = Some(now);
            }
            last.is_some_and(|at| is_now || now.since(at) < self.thresholds.transition)
        };
        let pressure = Pressure {
            memory: held(&mut self.memory, current.memory),
            disk: held(&mut self.disk, current.disk),
            pids: held(&mut self.pids, current.pids),
        };
        let due = self.crossed.iter().filter(|(.., is_due)| *is_due).map(|(threshold, ..)| *threshold).collect();
        Observed { pressure, due }
    }
}

/// The monitor of a node, shared by all that look at it and all that act on what was seen.
#[derive(Debug)]
pub struct Gauge {
    monitor: Mutex<Monitor>,
    pressure: watch::Sender<Pressure>,
}

impl Gauge {
    /// Nothing has been seen.
    pub fn new(thresholds: Thresholds) -> Self {
        Self { monitor: Mutex::new(Monitor::new(thresholds)), pressure: watch::Sender::default() }
    }

    /// As [`Monitor::observe`]; whoever asks for the pressure from now on is told what was seen.
    pub fn observe(&self, levels: &Levels, now: Instant) -> Observed {
        // Told under the lock: who looked last is heard last.
        let mut monitor = self.monitor.lock();
        let found = monitor.observe(levels, now);
        self.pressure.send_if_modified(|told| std::mem::replace(told, found.pressure) != found.pressure);
        found
    }

    /// The pressure as it was last seen.
    pub fn pressure(&self) -> Pressure {
        *self.pressure.borrow()
    }

    /// Hears of every change of it.
    pub fn changes(&self) -> watch::Receiver<Pressure> {
        self.pressure.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Disk, ImageDisk};
    use super::super::thresholds::{Bounds, Graces};
    use super::*;
    use std::time::Duration;

    fn below(thresholds: Thresholds, levels: &Levels) -> Pressure {
        Monitor::new(thresholds).observe(levels, Instant(Duration::ZERO)).pressure
    }

    #[test]
    fn thresholds() {
        let t = Thresholds::default();
        let disk = |available, inodes_free| Some(Disk { capacity: 100, available, inodes: 100, inodes_free });
        let own = |available, inodes_free| disk(available, inodes_free).map_or(ImageDisk::Unknown, ImageDisk::Own);
        let fine = Levels {
            memory: 4 << 30,
            memory_available: Some(1 << 30),
            data: disk(10, 5),
            images: own(15, 5),
            pids: 100,
            pids_free: Some(0),
        };
        assert_eq!(below(t, &fine), Pressure::default());
        assert_eq!(below(t, &Levels::default()), Pressure::default());
        for (levels, want) in [
            (Levels { memory_available: Some((100 << 20) - 1), ..fine }, (true, false)),
            (Levels { data: disk(9, 50), ..fine }, (false, true)),
            (Levels { data: disk(50, 4), ..fine }, (false, true)),
            (Levels { images: own(14, 50), ..fine }, (false, true)),
            (Levels { images: own(50, 4), ..fine }, (false, true)),
            // Images share the disk of the rest.
            (Levels { data: disk(14, 50), images: ImageDisk::Shared, ..fine }, (false, true)),
            // A disk that nobody has looked at is not short of anything.
            (Levels { data: disk(14, 50), images: ImageDisk::Unknown, ..fine }, (false, false)),
            (Levels { data: disk(14, 50), ..fine }, (false, false)),
            (Levels { data: Some(Disk { capacity: 100, available: 50, ..Disk::default() }), ..fine }, (false, false)),
        ] {
            let got = below(t, &levels);
            assert_eq!((got.memory, got.disk), want, "{levels:?}");
        }
        let pids = Thresholds::hard(Bounds::limits("pid.available<1").expect("bounds"));
        assert_eq!(below(pids, &fine).conditions(), ["PIDPressure"]);
    }

    /// A kubelet that begins knows its own disk before it has asked the runtime for that of the images: what that
    /// one is short of is no pressure that lasts, and nothing that has to become free.
    #[test]
    fn the_disk_of_images_is_not_taken_for_another() {
        let reclaim = Bounds::reclaims("imagefs.available=50").expect("bounds");
        let gauge = Gauge::new(Thresholds { reclaim, ..Thresholds::default() });
        let disk = |available| Disk { capacity: 100, available, inodes: 100, inodes_free: 100 };
        let levels = |images| Levels { data: Some(disk(12)), images, ..Levels::default() };
        let at = |second| Instant(Duration::from_secs(second));
        assert_eq!(gauge.observe(&levels(ImageDisk::Unknown), at(0)), Observed::default());
        assert_eq!(gauge.observe(&levels(ImageDisk::Own(disk(60))), at(1)), Observed::default());
        assert_eq!(gauge.observe(&levels(ImageDisk::Unknown), at(2)), Observed::default(), "it does not answer");
        let found = gauge.observe(&levels(ImageDisk::Own(disk(14))), at(3));
        assert_eq!((found.pressure.disk, found.due.first().map(|t| t.signal)), (true, Some(Signal::Images)));
    }

    fn memory(free: u64) -> Levels {
        Levels { memory: 4 << 30, memory_available: Some(free << 20), ..Levels::default() }
    }

    /// Seconds, megabytes that are free, and then whether there is pressure and how many thresholds are due.
    fn check(thresholds: Thresholds, steps: &[(u64, u64, bool, usize)]) {
        let mut monitor = Monitor::new(thresholds);
        for (second, free, pressure, due) in steps {
            let found = monitor.observe(&memory(*free), Instant(Duration::from_secs(*second)));
            assert_eq!((found.pressure.memory, found.due.len()), (*pressure, *due), "at {second}: {found:?}");
        }
    }

    #[test]
    fn pressure_ends_late() {
        let steps =
            [(0, 1024, false, 0), (10, 0, true, 1), (20, 1024, true, 0), (309, 1024, true, 0), (310, 1024, false, 0)];
        check(Thresholds::default(), &steps);
    }

    #[test]
    fn what_is_soft_has_to_last() {
        let thresholds = Thresholds {
            soft: Bounds::limits("memory.available<500Mi").expect("bounds"),
            soft_grace: Graces::graces("memory.available=30s").expect("graces"),
            transition: Duration::from_secs(1),
            ..Thresholds::default()
        };
        // There is pressure from the beginning; it is answered once it lasted, and begins anew after a pause.
        check(thresholds, &[(0, 400, true, 0), (29, 400, true, 0), (30, 400, true, 1), (40, 50, true, 2)]);
        check(
            thresholds,
            &[(0, 400, true, 0), (20, 600, false, 0), (25, 400, true, 0), (54, 400, true, 0), (55, 400, true, 1)],
        );
    }

    #[test]
    fn more_than_the_bound_has_to_become_free() {
        let reclaim = Bounds::reclaims("memory.available=200Mi").expect("bounds");
        let thresholds = Thresholds { reclaim, transition: Duration::from_secs(1), ..Thresholds::default() };
        check(
            thresholds,
            &[(0, 150, false, 0), (10, 90, true, 1), (20, 250, true, 1), (30, 300, false, 0), (40, 250, false, 0)],
        );
    }
}
