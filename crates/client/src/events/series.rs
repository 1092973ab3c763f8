//! What becomes of a stream of `events.k8s.io/v1` events: the first is created, repeats within six
//! minutes become its series, written at the second and when the series ends or changes its text.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::events::v1::{Event as SeriesEvent, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use stdx::clock::Instant;

use super::{Event, Reference, Type, event_meta};

/// A series that has not been added to for this long is over.
const QUIET: Duration = Duration::from_secs(360);
/// Series followed at a time; beyond it an event is created and not followed.
const TABLE: usize = 4096;

/// One write.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub event: SeriesEvent,
    /// The event exists: patch its series.
    pub is_known: bool,
    key: Key,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    kind: Type,
    action: String,
    reason: String,
    regarding: Reference,
    related: Option<Reference>,
}

struct Running {
    event: SeriesEvent,
    last: Instant,
    /// Counted but not written yet.
    unwritten: bool,
}

pub(super) struct Series {
    controller: String,
    instance: String,
    running: HashMap<Key, Running>,
}

impl Series {
    pub(super) fn new(controller: String, instance: String) -> Self {
        Self { controller, instance, running: HashMap::new() }
    }

    /// What to write for an event, if anything now.
    pub(super) fn observe(&mut self, event: &Event, now: Instant, wall: Timestamp) -> Option<Step> {
        let mut regarding = event.regarding.clone();
        regarding.resource_version = String::new();
        let key = Key {
            kind: event.kind,
            action: event.action.clone(),
            reason: event.reason.clone(),
            regarding,
            related: event.related.clone(),
        };
        if let Some(running) = self.running.get_mut(&key).filter(|r| now.since(r.last) < QUIET) {
            running.last = now;
            let count = running.event.series.as_ref().map_or(1, |s| s.count);
            let is_second = running.event.series.is_none();
            running.event.series =
                Some(EventSeries { count: count.saturating_add(1), last_observed_time: MicroTime(wall) });
            // Readers must see the newest text: it is what the object waits for now.
            let says_more = running.event.note.as_deref() != Some(event.message.as_str());
            running.event.note = Some(event.message.clone());
            running.unwritten = !(is_second || says_more);
            return (is_second || says_more).then(|| Step { event: running.event.clone(), is_known: true, key });
        }
        let out = SeriesEvent {
            metadata: event_meta(&event.regarding, wall, &event.annotations),
            event_time: Some(MicroTime(wall)),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            action: Some(event.action.clone()),
            reason: Some(event.reason.clone()),
            regarding: Some(event.regarding.object_reference()),
            related: event.related.as_ref().map(Reference::object_reference),
            note: Some(event.message.clone()),
            type_: Some(event.kind.as_str().into()),
            ..SeriesEvent::default()
        };
        if self.running.len() < TABLE || self.running.contains_key(&key) {
            self.running.insert(key.clone(), Running { event: out.clone(), last: now, unwritten: false });
        }
        Some(Step { event: out, is_known: false, key })
    }

    /// Remembers the name an event got.
    pub(super) fn written(&mut self, step: &Step) {
        if let Some(running) = self.running.get_mut(&step.key) {
            running.event.metadata.name.clone_from(&step.event.metadata.name);
        }
    }

    /// When the next series ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.running.values().map(|r| r.last + QUIET).min()
    }

    /// Ends quiet series; their last counts are to be written.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        self.running.retain(|key, running| {
            if now.since(running.last) < QUIET {
                return true;
            }
            if running.unwritten {
                steps.push(Step { event: running.event.clone(), is_known: true, key: key.clone() });
            }
            false
        });
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_written_at_its_second_event_its_changes_and_its_end() {
        let mut series = Series::new("default-scheduler".into(), "default-scheduler-h".into());
        let at = |s| Instant(Duration::from_secs(s));
        let mut say = |s: u64, text: &str| {
            let event = Event::new(Reference::default(), Type::Warning, "FailedScheduling", text).action("Scheduling");
            let step = series.observe(&event, at(s), Timestamp::UNIX_EPOCH);
            step.map(|s| (s.is_known, s.event.series.map_or(0, |s| s.count)))
        };
        assert_eq!(say(0, "a"), Some((false, 0)));
        assert_eq!(say(1, "a"), Some((true, 2)));
        assert_eq!(say(2, "a"), None);
        assert_eq!(say(3, "b"), Some((true, 4)));
        assert_eq!(say(4, "b"), None);
        assert_eq!(series.next_due(), Some(at(364)));
        let last: Vec<_> = series.expire(at(364)).into_iter().map(|s| s.event.series.map_or(0, |s| s.count)).collect();
        assert_eq!(last, [5]);
        assert_eq!(series.next_due(), None);
    }
}
