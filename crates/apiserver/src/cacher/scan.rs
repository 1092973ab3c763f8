//! A walk over what a filter lets through, in pieces: a long walk lets others in between.

use std::sync::Arc;

use super::object::CachedObject;
use super::pairs::Marks;
use super::snapshot::Snapshot;
use super::watcher::Filter;

/// Objects looked at in one piece.
const PIECE: usize = 4096;

/// Where a walk stands.
pub struct Scan {
    filter: Filter,
    wanted: Marks,
    snapshot: Snapshot,
    /// The key to go on at; `None` at the end.
    next: Option<String>,
}

impl Scan {
    /// Over a snapshot in key order, from the key `start` on.
    pub fn new(filter: Filter, snapshot: Snapshot, start: Option<&str>) -> Self {
        let wanted = Marks::wanted(&filter.labels, &filter.fields);
        Self { filter, wanted, snapshot, next: Some(start.unwrap_or_default().to_owned()) }
    }

    /// What is walked over.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// True when there is nothing more.
    pub fn is_over(&self) -> bool {
        self.next.is_none()
    }

    /// Goes on for one piece, or until `most` have been found.
    pub fn step(&mut self, most: usize, found: &mut impl Extend<Arc<CachedObject>>) {
        let Some(start) = self.next.take() else { return };
        if let Some((some, next)) = self.of_few(&start, most) {
            found.extend(some);
            self.next = next;
            return;
        }
        let filter = &self.filter;
        let mut left = most;
        let slots = self.snapshot.range(filter.range_namespace(self.snapshot.namespaced()), &start);
        for (i, slot) in slots.enumerate() {
            if i == PIECE || left == 0 {
                self.next = Some(slot.object.key.to_string());
                return;
            }
            if slot.marks.may_match(self.wanted) && filter.passes(&slot.object) {
                left -= 1;
                found.extend([slot.object.clone()]);
            }
        }
    }

    /// What is found among few, and the key to go on at.
    fn of_few(&self, start: &str, most: usize) -> Option<(Vec<Arc<CachedObject>>, Option<String>)> {
        let mut rest = self.few()?.filter(|object| *object.key >= *start && self.filter.passes(object));
        let some = rest.by_ref().take(most).cloned().collect();
        let next = rest.next().map(|object| object.key.to_string());
        Some((some, next))
    }

    /// The few objects that can match, where an index or a key tells.
    fn few(&self) -> Option<Box<dyn Iterator<Item = &Arc<CachedObject>> + Send + '_>> {
        if let Some(key) = self.filter.key(self.snapshot.namespaced()) {
            return Some(Box::new(self.snapshot.get(&key).into_iter()));
        }
        let terms = self.filter.fields.terms().iter().filter(|term| term.equals && !term.value.is_empty());
        terms.filter_map(|term| self.snapshot.by_field(&term.field, &term.value)).next()
    }
}
