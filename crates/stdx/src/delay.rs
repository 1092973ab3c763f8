//! A queue whose items become due at a point in time; an item is in it at most once.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use crate::clock::Instant;

/// Items ordered by due time. Adding an item again keeps the earlier of the two times.
#[derive(Debug)]
pub struct DelayQueue<T> {
    due: BTreeSet<(Instant, u64)>,
    items: HashMap<u64, T>,
    ids: HashMap<T, (Instant, u64)>,
    next: u64,
}

impl<T: Hash + Eq + Clone> Default for DelayQueue<T> {
    fn default() -> Self {
        Self { due: BTreeSet::new(), items: HashMap::new(), ids: HashMap::new(), next: 0 }
    }
}

impl<T: Hash + Eq + Clone> DelayQueue<T> {
    /// Adds `item`, due at `at` unless it is due sooner already.
    pub fn add(&mut self, item: T, at: Instant) {
        if let Some(&(old, id)) = self.ids.get(&item) {
            if old <= at {
                return;
            }
            self.due.remove(&(old, id));
            self.due.insert((at, id));
            self.ids.insert(item, (at, id));
            return;
        }
        let id = self.next;
        self.next += 1;
        self.due.insert((at, id));
        self.items.insert(id, item.clone());
        self.ids.insert(item, (at, id));
    }

    /// Removes `item`; true when it was there.
    pub fn remove(&mut self, item: &T) -> bool {
        let Some((at, id)) = self.ids.remove(item) else { return false };
        self.due.remove(&(at, id));
        self.items.remove(&id);
        true
    }

    /// When the next item is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The next item due at `now`, if any.
    pub fn pop(&mut self, now: Instant) -> Option<T> {
        let &(at, id) = self.due.first()?;
        if at > now {
            return None;
        }
        self.due.remove(&(at, id));
        let item = self.items.remove(&id)?;
        self.ids.remove(&item);
        Some(item)
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_earlier_time_wins_and_an_item_comes_out_once() {
        let mut queue = DelayQueue::default();
        let at = |s| Instant(Duration::from_secs(s));
        queue.add("a", at(5));
        queue.add("a", at(2));
        queue.add("a", at(9));
        queue.add("b", at(3));
        assert_eq!(queue.next_due(), Some(at(2)));
        assert_eq!(queue.pop(at(1)), None);
        assert_eq!(queue.pop(at(4)), Some("a"));
        assert_eq!(queue.pop(at(4)), Some("b"));
        assert!(queue.is_empty());
    }
}
