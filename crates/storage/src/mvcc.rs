//! The state every implementation shares: the current entries and a bounded list of the changes that
//! led to them. Pure: no I/O, no clock, no locks.
//!
//! ```text
//!  floor                                            revision
//!    │  changes: 5 put a   6 put b   7 delete a   8 put b  │
//!    ▼                                                     ▼
//!  state at 6 = current {b@8} with 8 and 7 undone = {a@5, b@6}
//! ```
//!
//! Each change carries the entry before it, so that the state at any revision since `floor` is the
//! current map (a cheap clone) with the later changes undone, and no per-key list of revisions is
//! kept. `V` is the value itself or where it lies on disk.

use std::collections::VecDeque;
use std::ops::Bound;

use bytes::Bytes;
use imbl::OrdMap;
use stdx::clock::Instant;

use crate::{Error, Expect, HistoryBounds, RangeOptions, Revision};

/// An entry without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Versioned<V> {
    pub value: V,
    pub create: Revision,
    pub modified: Revision,
    pub version: u64,
}

/// One commit, with what it replaced.
#[derive(Clone, Debug)]
pub(crate) struct Change<V> {
    pub revision: Revision,
    pub key: Bytes,
    pub after: Option<Versioned<V>>,
    pub before: Option<Versioned<V>>,
    pub at: Instant,
    /// Bytes it counts for in the bounds of history.
    pub cost: usize,
}

/// Entries by key; clones share structure.
pub(crate) type Entries<V> = OrdMap<Bytes, Versioned<V>>;

/// Entries in key order, and whether more follow.
pub(crate) type Slice<V> = (Vec<(Bytes, Versioned<V>)>, bool);

/// The state of a store.
#[derive(Debug)]
pub(crate) struct Mvcc<V: Clone> {
    current: Entries<V>,
    changes: VecDeque<Change<V>>,
    revision: Revision,
    floor: Revision,
    bytes: usize,
    bounds: HistoryBounds,
}

impl<V: Clone> Mvcc<V> {
    /// A store whose history begins at `revision` with these entries.
    pub fn new(current: Entries<V>, revision: Revision, bounds: HistoryBounds) -> Self {
        Self { current, changes: VecDeque::new(), revision, floor: revision, bytes: 0, bounds }
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The oldest revision whose state is known.
    pub fn floor(&self) -> Revision {
        self.floor
    }

    /// The current entries; the clone is cheap and never changes.
    pub fn current(&self) -> &Entries<V> {
        &self.current
    }

    /// Makes a change that was checked: its revision follows the last one.
    pub fn apply(&mut self, key: Bytes, after: Option<Versioned<V>>, revision: Revision, at: Instant, cost: usize) {
        let before = match &after {
            Some(entry) => self.current.insert(key.clone(), entry.clone()),
            None => self.current.remove(&key),
        };
        self.revision = revision;
        let cost = cost + key.len();
        self.bytes += cost;
        self.changes.push_back(Change { revision, key, after, before, at, cost });
        self.trim(at);
    }

    /// Points the current entry of `key` to another place, if it is still of this revision.
    pub fn relocate(&mut self, key: &[u8], modified: Revision, value: V) {
        if let Some(entry) = self.current.get_mut(key) {
            if entry.modified == modified {
                entry.value = value;
            }
        }
    }

    fn trim(&mut self, now: Instant) {
        while self.changes.len() > 1 {
            let Some(oldest) = self.changes.front() else { return };
            if self.bytes <= self.bounds.bytes && now.since(oldest.at) <= self.bounds.age {
                return;
            }
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.changes.pop_front() {
            self.floor = oldest.revision;
            self.bytes -= oldest.cost;
        }
    }

    /// Forgets what happened up to and including `before`.
    pub fn compact(&mut self, before: Revision) -> Result<(), Error> {
        if before > self.revision {
            return Err(Error::Future { asked: before, current: self.revision });
        }
        while self.changes.front().is_some_and(|c| c.revision <= before) {
            self.forget_oldest();
        }
        self.floor = self.floor.max(before);
        Ok(())
    }

    fn check_known(&self, asked: Revision) -> Result<(), Error> {
        if asked > self.revision {
            return Err(Error::Future { asked, current: self.revision });
        }
        if asked < self.floor {
            return Err(Error::Compacted { asked, oldest: self.floor });
        }
        Ok(())
    }

    fn after(&self, revision: Revision) -> impl DoubleEndedIterator<Item = &Change<V>> {
        let from = self.changes.partition_point(|c| c.revision <= revision);
        self.changes.range(from..)
    }

    /// The entries as they were at `revision`; only keys of `prefix` are right.
    pub fn state_at(&self, revision: Revision, prefix: &[u8]) -> Result<Entries<V>, Error> {
        self.check_known(revision)?;
        let mut entries = self.current.clone();
        for change in self.after(revision).rev().filter(|c| c.key.starts_with(prefix)) {
            match &change.before {
                Some(entry) => entries.insert(change.key.clone(), entry.clone()),
                None => entries.remove(&change.key),
            };
        }
        Ok(entries)
    }

    /// The map a range reads and the revision it shows.
    pub fn range_source(&self, prefix: &[u8], options: &RangeOptions) -> Result<(Entries<V>, Revision), Error> {
        let revision = options.revision.unwrap_or(self.revision);
        Ok((self.state_at(revision, prefix)?, revision))
    }

    /// At most `limit` changes of `prefix` after `after`, and the revision up to which they are all.
    pub fn changes_after(
        &self,
        prefix: &[u8],
        after: Revision,
        limit: usize,
    ) -> Result<(Vec<Change<V>>, Revision), Error> {
        self.check_known(after)?;
        let mut found = Vec::new();
        for change in self.after(after).filter(|c| c.key.starts_with(prefix)) {
            if found.len() == limit {
                let reached = found.last().map_or(after, |c: &Change<V>| c.revision);
                return Ok((found, reached));
            }
            found.push(change.clone());
        }
        Ok((found, self.revision))
    }
}

/// What `expect` demands of the entry that was last written at `found`.
pub(crate) fn holds(expect: Expect, found: Option<Revision>) -> bool {
    match expect {
        Expect::Absent => found.is_none(),
        Expect::At(revision) => found == Some(revision),
    }
}

/// The part of `entries` that a range asks for.
pub(crate) fn slice<V: Clone>(entries: &Entries<V>, prefix: &[u8], options: &RangeOptions) -> Slice<V> {
    let start = options.start.as_deref().filter(|s| *s > prefix).unwrap_or(prefix);
    let mut found = Vec::new();
    let bounds: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(start), Bound::Unbounded);
    for (key, entry) in entries.range::<_, [u8]>(bounds).take_while(|(k, _)| k.starts_with(prefix)) {
        if options.limit > 0 && found.len() == options.limit {
            return (found, true);
        }
        found.push((key.clone(), entry.clone()));
    }
    (found, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn entry(value: &'static str, create: u64, modified: u64, version: u64) -> Versioned<&'static str> {
        Versioned { value, create, modified, version }
    }

    fn sample(bounds: HistoryBounds) -> Mvcc<&'static str> {
        let mut state = Mvcc::new(OrdMap::new(), 4, bounds);
        let at = |s| Instant(Duration::from_secs(s));
        state.apply("a".into(), Some(entry("a5", 5, 5, 1)), 5, at(5), 2);
        state.apply("b".into(), Some(entry("b6", 6, 6, 1)), 6, at(6), 2);
        state.apply("a".into(), None, 7, at(7), 0);
        state.apply("b".into(), Some(entry("b8", 6, 8, 2)), 8, at(8), 2);
        state
    }

    #[test]
    fn the_past_is_the_present_with_changes_undone() {
        let state = sample(HistoryBounds::default());
        let at = |revision| {
            let entries = state.state_at(revision, b"").expect("known");
            entries.iter().map(|(k, v)| format!("{}={}", k[0] as char, v.value)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(at(4), "");
        assert_eq!(at(5), "a=a5");
        assert_eq!(at(6), "a=a5 b=b6");
        assert_eq!(at(7), "b=b6");
        assert_eq!(at(8), "b=b8");
        assert!(matches!(state.state_at(3, b""), Err(Error::Compacted { asked: 3, oldest: 4 })));
        assert!(matches!(state.state_at(9, b""), Err(Error::Future { asked: 9, current: 8 })));
    }

    #[test]
    fn history_is_bounded_by_bytes_and_by_age() {
        let by_bytes = sample(HistoryBounds { bytes: 6, age: Duration::MAX });
        assert_eq!(by_bytes.floor(), 6);
        let by_age = sample(HistoryBounds { bytes: usize::MAX, age: Duration::from_secs(1) });
        assert_eq!(by_age.floor(), 6);
        let nothing = sample(HistoryBounds { bytes: 0, age: Duration::ZERO });
        assert_eq!(nothing.floor(), 7);
    }
}
