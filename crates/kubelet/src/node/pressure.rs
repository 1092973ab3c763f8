//! When a node is short of memory, disk or process ids. Pure.

use std::time::Duration;

use stdx::clock::Instant;

use super::facts::{Disk, Levels};

/// Below these the node is under pressure. Upstream's hard eviction thresholds, but for `plenty`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    pub memory_available: u64,
    /// Percent of the capacity, for volumes and logs, then for images.
    pub data_available: u64,
    pub images_available: u64,
    /// A disk with so much left is not full, whatever share of it that is: pressure keeps every new
    /// pod away, and nothing here evicts pods or removes images to end it.
    pub plenty: u64,
    pub inodes_free: u64,
    /// `None` sets no bound, as upstream does by default.
    pub pids_free: Option<u64>,
    /// Pressure is over only after this long without it, so that the node does not flap.
    pub transition: Duration,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            memory_available: 100 << 20,
            data_available: 10,
            images_available: 15,
            plenty: 1 << 30,
            inodes_free: 5,
            pids_free: None,
            transition: Duration::from_secs(5 * 60),
        }
    }
}

/// What the node is short of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pids: bool,
}

/// Remembers when pressure was last seen.
#[derive(Debug)]
pub struct Monitor {
    thresholds: Thresholds,
    memory: Option<Instant>,
    disk: Option<Instant>,
    pids: Option<Instant>,
}

impl Monitor {
    /// Nothing has been seen.
    pub fn new(thresholds: Thresholds) -> Self {
        Self { thresholds, memory: None, disk: None, pids: None }
    }

    /// The pressure at `now`, given what is free.
    pub fn observe(&mut self, levels: &Levels, now: Instant) -> Pressure {
        let t = self.thresholds;
        let current = below(&t, levels);
        let held = |last: &mut Option<Instant>, is_now: bool| {
            if is_now {
                *last = Some(now);
            }
            last.is_some_and(|at| is_now || now.since(at) < t.transition)
        };
        Pressure {
            memory: held(&mut self.memory, current.memory),
            disk: held(&mut self.disk, current.disk),
            pids: held(&mut self.pids, current.pids),
        }
    }
}

/// What is below its threshold right now. What is not known is not below.
pub fn below(t: &Thresholds, levels: &Levels) -> Pressure {
    let full = |disk: Option<Disk>, percent: u64| {
        disk.is_some_and(|d| {
            d.available < t.plenty && is_below(d.available, d.capacity, percent)
                || is_below(d.inodes_free, d.inodes, t.inodes_free)
        })
    };
    Pressure {
        memory: levels.memory_available.is_some_and(|free| free < t.memory_available),
        disk: full(levels.data, t.data_available) || full(levels.images, t.images_available),
        pids: levels.pids_free.zip(t.pids_free).is_some_and(|(free, least)| free < least),
    }
}

fn is_below(free: u64, of: u64, percent: u64) -> bool {
    of > 0 && u128::from(free) * 100 < u128::from(of) * u128::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds() {
        let t = Thresholds::default();
        let disk = |available, inodes_free| Some(Disk { capacity: 100, available, inodes: 100, inodes_free });
        let fine =
            Levels { memory_available: Some(1 << 30), data: disk(10, 5), images: disk(15, 5), pids_free: Some(0) };
        assert_eq!(below(&t, &fine), Pressure::default());
        assert_eq!(below(&t, &Levels::default()), Pressure::default());
        for (levels, want) in [
            (Levels { memory_available: Some((100 << 20) - 1), ..fine }, (true, false)),
            (Levels { data: disk(9, 50), ..fine }, (false, true)),
            (Levels { data: disk(50, 4), ..fine }, (false, true)),
            (Levels { images: disk(14, 50), ..fine }, (false, true)),
            (Levels { data: Some(Disk { capacity: 100, available: 50, ..Disk::default() }), ..fine }, (false, false)),
            (
                Levels { data: Some(Disk { capacity: 1 << 40, available: 2 << 30, ..Disk::default() }), ..fine },
                (false, false),
            ),
            (
                Levels { data: Some(Disk { capacity: 1 << 40, available: 1 << 29, ..Disk::default() }), ..fine },
                (false, true),
            ),
        ] {
            let got = below(&t, &levels);
            assert_eq!((got.memory, got.disk), want, "{levels:?}");
        }
        assert!(below(&Thresholds { pids_free: Some(1), ..t }, &fine).pids);
    }

    #[test]
    fn pressure_ends_late() {
        let mut monitor = Monitor::new(Thresholds::default());
        let (good, bad) = (
            Levels { memory_available: Some(1 << 30), ..Levels::default() },
            Levels { memory_available: Some(0), ..Levels::default() },
        );
        let at = |seconds| Instant(Duration::from_secs(seconds));
        let steps = [(0, good, false), (10, bad, true), (20, good, true), (309, good, true), (310, good, false)];
        for (second, levels, want) in steps {
            assert_eq!(monitor.observe(&levels, at(second)).memory, want, "{second}");
        }
    }
}
