//! How much of memory, disk and process ids a node keeps free, and what it does about less. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use machinery::quantity::Quantity;

use super::facts::{Disk, Levels};

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    Memory,
    /// The file system with volumes and logs.
    Data,
    DataInodes,
    /// The file system with images.
    Images,
    ImagesInodes,
    Pids,
}

impl Signal {
    /// In the order in which they are answered: memory first, for it is lost first.
    pub const ALL: [Self; 6] =
        [Self::Memory, Self::Data, Self::DataInodes, Self::Images, Self::ImagesInodes, Self::Pids];

    /// As flags and files name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory.available",
            Self::Data => "nodefs.available",
            Self::DataInodes => "nodefs.inodesFree",
            Self::Images => "imagefs.available",
            Self::ImagesInodes => "imagefs.inodesFree",
            Self::Pids => "pid.available",
        }
    }

    fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|signal| signal.name() == name);
        found.ok_or_else(|| format!("unsupported eviction signal {name:?}"))
    }

    /// What the node is short of, as messages name it.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Data | Self::Images => "ephemeral-storage",
            Self::DataInodes | Self::ImagesInodes => "inodes",
            Self::Pids => "pids",
        }
    }

    /// True where removing images may help.
    pub fn is_of_disk(self) -> bool {
        !matches!(self, Self::Memory | Self::Pids)
    }

    /// True for the file system that holds images, where they have one of their own.
    pub fn is_of_images(self) -> bool {
        matches!(self, Self::Images | Self::ImagesInodes)
    }

    /// How much is free of how much; `None` where nobody knows.
    pub fn level(self, levels: &Levels) -> Option<(u64, u64)> {
        let (data, images) = (levels.data, levels.image_disk());
        let bytes = |disk: Option<Disk>| disk.map(|d| (d.available, d.capacity));
        let inodes = |disk: Option<Disk>| disk.map(|d| (d.inodes_free, d.inodes));
        let found = match self {
            Self::Memory => levels.memory_available.map(|free| (free, levels.memory)),
            Self::Data => bytes(data),
            Self::DataInodes => inodes(data),
            Self::Images => bytes(images),
            Self::ImagesInodes => inodes(images),
            Self::Pids => levels.pids_free.map(|free| (free, levels.pids)),
        };
        found.filter(|(_, all)| *all > 0)
    }
}

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

/// Something for each signal, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerSignal<T>([Option<T>; 6]);

impl<T: Copy> PerSignal<T> {
    /// Nothing for any.
    pub const fn none() -> Self {
        Self([None; 6])
    }

    pub const fn with(mut self, signal: Signal, value: T) -> Self {
        self.0[signal as usize] = Some(value);
        self
    }

    pub fn get(&self, signal: Signal) -> Option<T> {
        self.0[signal as usize]
    }

    /// Those that have something.
    pub fn iter(&self) -> impl Iterator<Item = (Signal, T)> + '_ {
        Signal::ALL.into_iter().filter_map(|signal| Some((signal, self.get(signal)?)))
    }

    /// `<signal><separator><value>`, comma separated, each signal once.
    fn parse(text: &str, separator: char, read: impl Fn(&str) -> Result<Option<T>, String>) -> Result<Self, String> {
        let mut given = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let Some((signal, value)) = part.split_once(separator) else {
                return Err(format!("invalid eviction threshold {part:?}: expected <signal>{separator}<quantity>"));
            };
            if given.insert(signal.to_owned(), value.to_owned()).is_some() {
                return Err(format!("eviction signal {signal:?} is given twice"));
            }
        }
        Self::read(&given, read)
    }

    fn read(
        given: &BTreeMap<String, String>,
        read: impl Fn(&str) -> Result<Option<T>, String>,
    ) -> Result<Self, String> {
        let mut out = Self::none();
        for (name, value) in given {
            let why = |why| format!("invalid eviction threshold {name}: {value:?} {why}");
            out.0[Signal::named(name)? as usize] = read(value).map_err(why)?;
        }
        Ok(out)
    }
}

/// What must be free. What has none is not watched.
pub type Bounds = PerSignal<Bound>;

impl Bounds {
    /// Upstream's for hard eviction.
    pub const USUAL: Self = Self::none()
        .with(Signal::Memory, Bound::Amount(100 << 20))
        .with(Signal::Data, Bound::percent(10))
        .with(Signal::DataInodes, Bound::percent(5))
        .with(Signal::Images, Bound::percent(15))
        .with(Signal::ImagesInodes, Bound::percent(5));

    /// Reads `--eviction-hard`: `memory.available<100Mi,nodefs.available<10%`. As upstream, what the text does
    /// not name is not watched, and neither is what is set to `0%` or `100%`.
    ///
    /// # Errors
    /// When the text is not of that form: says which part of it.
    pub fn limits(text: &str) -> Result<Self, String> {
        Self::parse(text, '<', bound)
    }

    /// The same from a file.
    pub fn limits_of(given: &BTreeMap<String, String>) -> Result<Self, String> {
        Self::read(given, bound)
    }

    /// Reads `--eviction-minimum-reclaim`: `nodefs.available=500Mi`.
    pub fn reclaims(text: &str) -> Result<Self, String> {
        Self::parse(text, '=', reclaim)
    }

    /// The same from a file.
    pub fn reclaims_of(given: &BTreeMap<String, String>) -> Result<Self, String> {
        Self::read(given, reclaim)
    }
}

/// How long what must be free may be missing.
pub type Graces = PerSignal<Duration>;

impl Graces {
    /// Reads `--eviction-soft-grace-period`: `memory.available=30s`.
    pub fn graces(text: &str) -> Result<Self, String> {
        Self::parse(text, '=', |value| crate::config::duration(value).map(Some))
    }

    /// The same from a file.
    pub fn graces_of(given: &BTreeMap<String, String>) -> Result<Self, String> {
        Self::read(given, |value| crate::config::duration(value).map(Some))
    }
}

/// `None` for shares that switch the signal off.
fn bound(value: &str) -> Result<Option<Bound>, String> {
    let amount = || "is no positive amount".to_owned();
    let Some(percent) = value.strip_suffix('%') else {
        return positive(value).map(|a| Some(Bound::Amount(a))).ok_or_else(amount);
    };
    let share = share(percent).ok_or_else(amount)?;
    Ok((share > 0 && share < 100_000).then_some(Bound::Share(share)))
}

fn reclaim(value: &str) -> Result<Option<Bound>, String> {
    let found = match value.strip_suffix('%') {
        Some(percent) => share(percent).filter(|s| *s > 0).map(|s| Some(Bound::Share(s))),
        None if value == "0" => Some(None),
        None => positive(value).map(|a| Some(Bound::Amount(a))),
    };
    found.ok_or_else(|| "is no positive amount".to_owned())
}

fn positive(value: &str) -> Option<u64> {
    u64::try_from(value.parse::<Quantity>().ok()?.value()).ok().filter(|a| *a > 0)
}

/// Thousandths of a percent.
fn share(percent: &str) -> Option<u64> {
    let percent: f64 = percent.parse().ok().filter(|p| (0.0..=100.0).contains(p))?;
    // In range: at most 100,000.
    Some((percent * 1000.0).round() as u64)
}

/// When pods are evicted, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Less than this is answered at once.
    pub hard: Bounds,
    /// Less than this is answered when it lasts.
    pub soft: Bounds,
    /// How long it has to last.
    pub soft_grace: Graces,
    /// So much more than the bound has to become free once it was crossed.
    pub reclaim: Bounds,
    /// The most seconds that a pod has to end when it is evicted for what lasted.
    pub max_pod_grace: u32,
    /// Pressure is over only after this long without it, so that the node does not flap.
    pub transition: Duration,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self::hard(Bounds::USUAL)
    }
}

impl Thresholds {
    /// Nothing is watched.
    pub const fn none() -> Self {
        Self::hard(Bounds::none())
    }

    /// Only what is answered at once.
    pub const fn hard(hard: Bounds) -> Self {
        Self {
            hard,
            soft: Bounds::none(),
            soft_grace: Graces::none(),
            reclaim: Bounds::none(),
            max_pod_grace: 0,
            transition: Duration::from_secs(5 * 60),
        }
    }

    /// A soft bound needs a grace period.
    ///
    /// # Errors
    /// When one has none.
    pub fn check(&self) -> Result<(), String> {
        let missing = self.soft.iter().find(|(signal, _)| self.soft_grace.get(*signal).is_none());
        missing.map_or(Ok(()), |(signal, _)| {
            Err(format!("grace period must be specified for the soft eviction threshold {}", signal.name()))
        })
    }

    /// Each bound by itself, those first that are to be answered first.
    pub fn all(&self) -> impl Iterator<Item = Threshold> + '_ {
        let of = |bounds: &Bounds, signal, is_hard| {
            let grace = if is_hard { Duration::ZERO } else { self.soft_grace.get(signal).unwrap_or_default() };
            Some(Threshold { signal, bound: bounds.get(signal)?, grace, reclaim: self.reclaim.get(signal) })
        };
        Signal::ALL
            .into_iter()
            .flat_map(move |signal| [of(&self.hard, signal, true), of(&self.soft, signal, false)])
            .flatten()
    }
}

/// One bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    pub signal: Signal,
    pub bound: Bound,
    pub grace: Duration,
    pub reclaim: Option<Bound>,
}

impl Threshold {
    /// Answered at once.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// True with less free than there must be; `was_crossed`: and what has to become free beyond that.
    pub fn is_crossed(&self, levels: &Levels, was_crossed: bool) -> bool {
        let Some((free, all)) = self.signal.level(levels) else { return false };
        let more = self.reclaim.filter(|_| was_crossed).map_or(0, |more| more.of(all));
        free < self.bound.of(all).saturating_add(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag() {
        let of = |text: &str| Bounds::limits(text);
        assert_eq!(of(""), Ok(Bounds::none()));
        let upstream = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%";
        assert_eq!(of(upstream), Ok(Bounds::USUAL));
        let own = of("memory.available<1Gi, nodefs.available<2.5%,pid.available<100").expect("bounds");
        assert_eq!(own.get(Signal::Memory), Some(Bound::Amount(1 << 30)));
        assert_eq!(own.get(Signal::Data), Some(Bound::Share(2500)));
        assert_eq!((own.get(Signal::Images), own.get(Signal::Pids)), (None, Some(Bound::Amount(100))));
        assert_eq!(of("nodefs.available<0%,imagefs.available<100%"), Ok(Bounds::none()));
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
    fn what_lasts_and_what_is_to_become_free() {
        let graces = Graces::graces("memory.available=1m30s,nodefs.available=0s").expect("graces");
        assert_eq!(graces.get(Signal::Memory), Some(Duration::from_secs(90)));
        assert!(Graces::graces("memory.available=-1s").is_err() && Graces::graces("memory.available=soon").is_err());
        let reclaims =
            Bounds::reclaims("memory.available=0,nodefs.available=500Mi,imagefs.available=1%").expect("read");
        assert_eq!(reclaims.get(Signal::Memory), None);
        assert_eq!(reclaims.get(Signal::Data), Some(Bound::Amount(500 << 20)));
        assert!(Bounds::reclaims("nodefs.available=0%").is_err() && Bounds::reclaims("nodefs.available=-1").is_err());
        let soft = Bounds::limits("memory.available<1Gi,pid.available<5").expect("bounds");
        let thresholds = Thresholds { soft, soft_grace: graces, ..Thresholds::none() };
        let text = "grace period must be specified for the soft eviction threshold pid.available";
        assert_eq!(thresholds.check(), Err(text.to_owned()));
        assert_eq!(Thresholds::default().check(), Ok(()));
    }

    #[test]
    fn shares_are_rounded_down() {
        assert_eq!((Bound::percent(10).of(109), Bound::percent(10).of(0), Bound::Amount(7).of(3)), (10, 0, 7));
        assert_eq!(Bound::percent(50).of(u64::MAX), u64::MAX / 2);
    }
}
