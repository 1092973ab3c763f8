//! Which images are removed because nobody uses them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use stdx::clock::Instant;

use crate::node::facts::Disk;
use crate::runtime::Image;

/// When images go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// From so many percent in use on, images are removed; at 100 only when the node is short of disk.
    pub high: u64,
    /// Until so many are in use.
    pub low: u64,
    /// An image that has been here for less stays: it may have been fetched for a container that is about
    /// to be made.
    pub min_age: Duration,
    /// One that nobody has used for longer goes, however much room there is.
    pub max_age: Option<Duration>,
}

impl Default for Policy {
    fn default() -> Self {
        Self::USUAL
    }
}

impl Policy {
    /// Upstream's.
    pub const USUAL: Self = Self { high: 85, low: 80, min_age: Duration::from_secs(120), max_age: None };

    /// Says what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        let Self { high, low, min_age, max_age } = *self;
        if high > 100 || low > 100 {
            return Err(format!("image garbage collection starts at {high} % and ends at {low} %: of 100 at most"));
        }
        if low >= high {
            return Err(format!("image garbage collection would end at {low} %, not below the {high} % it starts at"));
        }
        match max_age {
            Some(max) if max <= min_age => {
                Err(format!("images would go after {max:?} and stay for {min_age:?}: the former must be longer"))
            }
            _ => Ok(()),
        }
    }
}

/// How full the file system with the images is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Percent in use.
    pub percent: u64,
    /// Bytes to be freed; zero where it is not full enough.
    pub to_free: u64,
}

/// `None` where the file system says nothing of itself.
pub fn usage(disk: &Disk, policy: &Policy) -> Option<Usage> {
    let (capacity, available) = (u128::from(disk.capacity), u128::from(disk.available.min(disk.capacity)));
    let percent = 100 - (available * 100).checked_div(capacity)?;
    let is_full = policy.high < 100 && percent >= u128::from(policy.high);
    let wanted = capacity * u128::from(100 - policy.low.min(100)) / 100;
    let to_free = if is_full { wanted.saturating_sub(available) } else { 0 };
    Some(Usage { percent: u64::try_from(percent).ok()?, to_free: u64::try_from(to_free).ok()? })
}

#[derive(Clone, Copy, Debug)]
struct Age {
    /// When it was found; `None` for those that were here before us.
    found: Option<Instant>,
    /// When it was last seen in use.
    used: Option<Instant>,
}

/// Since when which images are here, and when they were last used.
#[derive(Debug)]
pub struct Ages {
    known: BTreeMap<String, Age>,
    began: Instant,
    is_first: bool,
}

impl Ages {
    /// Nothing was seen before `now`.
    pub fn new(now: Instant) -> Self {
        Self { known: BTreeMap::new(), began: now, is_first: true }
    }

    /// Takes in what is here at `now`.
    pub fn observe(&mut self, images: &[Image], is_used: impl Fn(&Image) -> bool, now: Instant) {
        let found = (!self.is_first).then_some(now);
        self.is_first = false;
        self.known.retain(|id, _| images.iter().any(|image| image.id == *id));
        for image in images {
            let age = self.known.entry(image.id.clone()).or_insert(Age { found, used: None });
            if is_used(image) {
                age.used = Some(now);
            }
        }
    }

    /// The images that may go at `now`, when they were last observed: those that were not used for longest,
    /// then those that were here for longest, first.
    pub fn removable<'a>(&self, images: &'a [Image], policy: &Policy, now: Instant) -> Vec<&'a Image> {
        let is_old = |age: &Age| age.found.is_none_or(|found| now.since(found) >= policy.min_age);
        let mut out = self.idle(images, now, is_old);
        out.sort_by_key(|(age, image)| (age.used, age.found, image.id.as_str()));
        out.into_iter().map(|(_, image)| image).collect()
    }

    /// The images that nobody has used for too long.
    pub fn outdated<'a>(&self, images: &'a [Image], policy: &Policy, now: Instant) -> Vec<&'a Image> {
        let Some(max) = policy.max_age else { return Vec::new() };
        let is_outdated = |age: &Age| now.since(age.used.or(age.found).unwrap_or(self.began)) > max;
        self.idle(images, now, is_outdated).into_iter().map(|(_, image)| image).collect()
    }

    /// Those that are not used now, and that the runtime does not keep for itself.
    fn idle<'a>(&self, images: &'a [Image], now: Instant, is: impl Fn(&Age) -> bool) -> Vec<(Age, &'a Image)> {
        let known = images.iter().filter(|i| !i.pinned).filter_map(|i| Some((*self.known.get(&i.id)?, i)));
        known.filter(|(age, _)| age.used.is_none_or(|used| used < now) && is(age)).collect()
    }
}

/// What is said when too little could be removed.
pub fn too_little(usage: &Usage, capacity: u64, freed: u64) -> String {
    let Usage { percent, .. } = usage;
    let size = size(capacity);
    format!(
        "Insufficient free disk space on the node's image filesystem ({percent}% of {size} used). Failed to free \
         sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used \
         by active images, logs, volumes, or other data."
    )
}

/// `26.4 GiB`.
fn size(bytes: u64) -> String {
    let (mut whole, mut unit) = (bytes, 0);
    let mut tenths = u128::from(bytes) * 10;
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    while whole >= 1024 && unit + 1 < UNITS.len() {
        (whole, tenths, unit) = (whole / 1024, (tenths + 512) / 1024, unit + 1);
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(Duration::from_secs(seconds))
    }

    fn image(id: &str) -> Image {
        Image { id: id.into(), size: 10, ..Image::default() }
    }

    fn ids(images: &[&Image]) -> String {
        images.iter().map(|i| i.id.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn how_full_is_full() {
        let of = |available, policy: &Policy| {
            let disk = Disk { capacity: 1000, available, ..Disk::default() };
            usage(&disk, policy).map(|u| (u.percent, u.to_free))
        };
        let usual = Policy::default();
        assert_eq!(of(200, &usual), Some((80, 0)));
        assert_eq!(of(151, &usual), Some((85, 49)), "rounded as upstream does");
        assert_eq!(of(0, &usual), Some((100, 200)));
        assert_eq!(of(2000, &usual), Some((0, 0)));
        assert_eq!(of(0, &Policy { high: 100, ..usual }), Some((100, 0)));
        assert_eq!(usage(&Disk::default(), &usual), None);
        let full = Disk { capacity: u64::MAX, available: 0, ..Disk::default() };
        assert!(usage(&full, &usual).is_some_and(|u| u.to_free > u64::MAX / 6));
    }

    #[test]
    fn what_is_used_young_or_pinned_stays() {
        let policy = Policy::default();
        let mut images = vec![image("old"), image("used"), image("once"), Image { pinned: true, ..image("pinned") }];
        let mut ages = Ages::new(at(0));
        ages.observe(&images, |i| i.id == "used" || i.id == "once", at(1));
        assert_eq!(ids(&ages.removable(&images, &policy, at(1))), "old", "it was here before us");
        images.push(image("new"));
        ages.observe(&images, |i| i.id == "used", at(100));
        assert_eq!(ids(&ages.removable(&images, &policy, at(100))), "old once");
        ages.observe(&images, |i| i.id == "used", at(219));
        assert_eq!(ids(&ages.removable(&images, &policy, at(219))), "old once");
        ages.observe(&images, |i| i.id == "used", at(220));
        assert_eq!(ids(&ages.removable(&images, &policy, at(220))), "old new once");
        // One that went and came again is young.
        images.retain(|i| i.id != "old");
        ages.observe(&images, |_| false, at(230));
        images.push(image("old"));
        ages.observe(&images, |_| false, at(240));
        assert_eq!(ids(&ages.removable(&images, &policy, at(240))), "new once used");
    }

    #[test]
    fn what_was_not_used_for_long_goes() {
        let policy = Policy { max_age: Some(Duration::from_secs(1000)), ..Policy::default() };
        let images = [image("a"), image("b")];
        let mut ages = Ages::new(at(5));
        ages.observe(&images, |i| i.id == "b", at(10));
        assert_eq!(ids(&ages.outdated(&images, &policy, at(1005))), "");
        assert_eq!(ids(&ages.outdated(&images, &policy, at(1006))), "a");
        assert_eq!(ids(&ages.outdated(&images, &policy, at(1011))), "a b");
        assert_eq!(ids(&ages.outdated(&images, &Policy::default(), at(9999))), "");
    }

    #[test]
    fn what_it_says() {
        let text = too_little(&Usage { percent: 88, to_free: 1 }, 28_346_784_153, 385_820_817);
        assert!(text.contains("(88% of 26.4 GiB used)") && text.contains("(freed 385820817 bytes)"), "{text}");
        assert_eq!([0, 1023, 1024, u64::MAX].map(size), ["0.0 B", "1023.0 B", "1.0 KiB", "16.0 EiB"]);
    }

    #[test]
    fn impossible_policies() {
        let usual = Policy::default();
        for (policy, good) in [
            (usual, true),
            (Policy { high: 80, ..usual }, false),
            (Policy { high: 101, ..usual }, false),
            (Policy { high: 1, low: 0, ..usual }, true),
            (Policy { max_age: Some(Duration::from_secs(120)), ..usual }, false),
        ] {
            assert_eq!(policy.check().is_ok(), good, "{policy:?}");
        }
    }
}
