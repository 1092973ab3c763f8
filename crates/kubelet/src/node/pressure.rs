//! When a node is short of memory, disk or process ids. Pure.

use std::time::Duration;

use machinery::quantity::Quantity;
use stdx::clock::Instant;

use super::facts::{Disk, Levels};

/// The least that must be free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Bytes, or how many.
    Amount(u64),
    /// Thousandths of a percent of what there is.
    Share(u64),
}

impl Bound {
    /// A share of so many percent.
    pub const fn percent(percent: u64) -> Self {
        Self::Share(percent * 1000)
    }

    /// What must be free of `all`, rounded down as upstream does.
    pub fn of(self, all: u64) -> u64 {
        match self {
            Self::Amount(amount) => amount,
            Self::Share(share) => {
                let part = u128::from(all) * u128::from(share) / 100_000;
                u64::try_from(part).unwrap_or(u64::MAX)
            }
        }
    }
}

/// Below these the node is under pressure; what is `None` is not watched. The default is upstream's
/// for hard eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    pub memory_available: Option<Bound>,
    /// Of the file system with volumes and logs.
    pub data_available: Option<Bound>,
    pub data_inodes_free: Option<Bound>,
    /// Of the file system with images.
    pub images_available: Option<Bound>,
    pub images_inodes_free: Option<Bound>,
    pub pids_available: Option<Bound>,
    /// Pressure is over only after this long without it, so that the node does not flap.
    pub transition: Duration,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            memory_available: Some(Bound::Amount(100 << 20)),
            data_available: Some(Bound::percent(10)),
            data_inodes_free: Some(Bound::percent(5)),
            images_available: Some(Bound::percent(15)),
            images_inodes_free: Some(Bound::percent(5)),
            ..Self::none()
        }
    }
}

impl Thresholds {
    /// Nothing is watched.
    pub const fn none() -> Self {
        Self {
            memory_available: None,
            data_available: None,
            data_inodes_free: None,
            images_available: None,
            images_inodes_free: None,
            pids_available: None,
            transition: Duration::from_secs(5 * 60),
        }
    }

    /// Reads `--eviction-hard`: `memory.available<100Mi,nodefs.available<10%`. As upstream, what the
    /// text does not name is not watched, and neither is what is set to `0%` or `100%`.
    ///
    /// # Errors
    /// When the text is not of that form: says which part of it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut out = Self::none();
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let Some((signal, value)) = part.split_once('<') else {
                return Err(format!("invalid eviction threshold {part:?}: expected <signal><<quantity>"));
            };
            let place = match signal {
                "memory.available" => &mut out.memory_available,
                "nodefs.available" => &mut out.data_available,
                "nodefs.inodesFree" => &mut out.data_inodes_free,
                "imagefs.available" => &mut out.images_available,
                "imagefs.inodesFree" => &mut out.images_inodes_free,
                "pid.available" => &mut out.pids_available,
                _ => return Err(format!("unsupported eviction signal {signal:?}")),
            };
            if seen.contains(&signal) {
                return Err(format!("eviction signal {signal:?} is given twice"));
            }
            seen.push(signal);
            *place = bound(value)
                .ok_or_else(|| format!("invalid eviction threshold {part:?}: {value:?} is no positive amount"))?;
        }
        Ok(out)
    }
}

/// `Some(None)` for shares that switch the signal off.
fn bound(value: &str) -> Option<Option<Bound>> {
    let Some(percent) = value.strip_suffix('%') else {
        let amount = value.parse::<Quantity>().ok()?.value();
        return u64::try_from(amount).ok().filter(|a| *a > 0).map(|a| Some(Bound::Amount(a)));
    };
    let percent: f64 = percent.parse().ok().filter(|p| (0.0..=100.0).contains(p))?;
    // In range: at most 100,000.
    let share = (percent * 1000.0).round() as u64;
    Some((share > 0 && share < 100_000).then_some(Bound::Share(share)))
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
    let is_below = |bound: Option<Bound>, free: u64, all: u64| all > 0 && bound.is_some_and(|b| free < b.of(all));
    let full = |disk: Option<Disk>, available, inodes_free| {
        disk.is_some_and(|d| {
            is_below(available, d.available, d.capacity) || is_below(inodes_free, d.inodes_free, d.inodes)
        })
    };
    let images = levels.images.or(levels.data);
    Pressure {
        memory: levels.memory_available.is_some_and(|free| is_below(t.memory_available, free, levels.memory)),
        disk: full(levels.data, t.data_available, t.data_inodes_free)
            || full(images, t.images_available, t.images_inodes_free),
        pids: levels.pids_free.is_some_and(|free| is_below(t.pids_available, free, levels.pids)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds() {
        let t = Thresholds::default();
        let disk = |available, inodes_free| Some(Disk { capacity: 100, available, inodes: 100, inodes_free });
        let fine = Levels {
            memory: 4 << 30,
            memory_available: Some(1 << 30),
            data: disk(10, 5),
            images: disk(15, 5),
            pids: 100,
            pids_free: Some(0),
        };
        assert_eq!(below(&t, &fine), Pressure::default());
        assert_eq!(below(&t, &Levels::default()), Pressure::default());
        for (levels, want) in [
            (Levels { memory_available: Some((100 << 20) - 1), ..fine }, (true, false)),
            (Levels { data: disk(9, 50), ..fine }, (false, true)),
            (Levels { data: disk(50, 4), ..fine }, (false, true)),
            (Levels { images: disk(14, 50), ..fine }, (false, true)),
            (Levels { images: disk(50, 4), ..fine }, (false, true)),
            // Images share the disk of the rest.
            (Levels { data: disk(14, 50), images: None, ..fine }, (false, true)),
            (Levels { data: Some(Disk { capacity: 100, available: 50, ..Disk::default() }), ..fine }, (false, false)),
        ] {
            let got = below(&t, &levels);
            assert_eq!((got.memory, got.disk), want, "{levels:?}");
        }
        assert!(below(&Thresholds { pids_available: Some(Bound::Amount(1)), ..t }, &fine).pids);
    }

    #[test]
    fn the_flag() {
        let of = |text: &str| Thresholds::parse(text);
        assert_eq!(of(""), Ok(Thresholds::none()));
        let upstream = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%";
        assert_eq!(of(upstream), Ok(Thresholds::default()));
        let own = of("memory.available<1Gi, nodefs.available<2.5%,pid.available<100").expect("thresholds");
        assert_eq!(own.memory_available, Some(Bound::Amount(1 << 30)));
        assert_eq!(own.data_available, Some(Bound::Share(2500)));
        assert_eq!((own.images_available, own.pids_available), (None, Some(Bound::Amount(100))));
        assert_eq!(of("nodefs.available<0%,imagefs.available<100%"), Ok(Thresholds::none()));
        for bad in [
            "memory.available",
            "memory.available>1Gi",
            "memory.free<1Gi",
            "memory.available<-1",
            "memory.available<0",
            "nodefs.available<101%",
            "nodefs.available<-1%",
            "nodefs.available<x%",
            "nodefs.available<NaN%",
            "memory.available<1Gi,memory.available<2Gi",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shares_are_rounded_down() {
        assert_eq!((Bound::percent(10).of(109), Bound::percent(10).of(0), Bound::Amount(7).of(3)), (10, 0, 7));
        assert_eq!(Bound::percent(50).of(u64::MAX), u64::MAX / 2);
    }

    #[test]
    fn pressure_ends_late() {
        let mut monitor = Monitor::new(Thresholds::default());
        let (good, bad) = (
            Levels { memory: 4 << 30, memory_available: Some(1 << 30), ..Levels::default() },
            Levels { memory: 4 << 30, memory_available: Some(0), ..Levels::default() },
        );
        let at = |seconds| Instant(Duration::from_secs(seconds));
        let steps = [(0, good, false), (10, bad, true), (20, good, true), (309, good, true), (310, good, false)];
        for (second, levels, want) in steps {
            assert_eq!(monitor.observe(&levels, at(second)).memory, want, "{second}");
        }
    }
}
