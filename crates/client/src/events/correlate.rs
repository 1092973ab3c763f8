//! What becomes of a stream of `core/v1` events: repeats are counted on one object, near repeats
//! are combined, floods are cut. Pure: time comes in.
//!
//! ```text
//!   spam filter (25 at once, then one per 300 s, per source and object)
//!     → aggregate (from the 10th different message within 600 s: "(combined from similar events): …")
//!       → repeat of a known event? raise its count : create
//! ```

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as CoreEvent, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use stdx::clock::Instant;

use super::{Event, Reference, event_meta};

/// Entries of each table; the oldest go first.
const TABLE: usize = 4096;
const SIMILAR: usize = 10;
const SIMILAR_WITHIN: Duration = Duration::from_secs(600);
const BURST: f64 = 25.0;
const REFILL: f64 = 1.0 / 300.0;
const COMBINED: &str = "(combined from similar events): ";

/// An event as it is to be written.
#[derive(Clone, Debug)]
pub(super) struct Correlated {
    pub event: CoreEvent,
    /// Its name on the server, when it is a repeat.
    pub known: Option<String>,
    key: RepeatKey,
}

impl Correlated {
    pub(super) fn namespace(&self) -> String {
        self.event.metadata.namespace.clone().unwrap_or_default()
    }

    /// What a repeat changes.
    pub(super) fn patch(&self) -> Value {
        json!({"count": self.event.count, "lastTimestamp": self.event.last_timestamp, "message": self.event.message})
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SimilarKey {
    regarding: Reference,
    kind: super::Type,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RepeatKey {
    similar: SimilarKey,
    /// `None` for a combined event: whatever it says, it is the same one.
    message: Option<String>,
}

struct Seen {
    name: String,
    count: i32,
    first: Timestamp,
}

struct Similar {
    messages: HashSet<String>,
    last: Instant,
}

struct Bucket {
    tokens: f64,
    at: Instant,
}

/// A table that forgets its oldest entries.
struct Table<K, V> {
    entries: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K: Hash + Eq + Clone, V> Table<K, V> {
    fn new() -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new() }
    }

    fn entry(&mut self, key: &K, make: impl FnOnce() -> V) -> &mut V {
        if !self.entries.contains_key(key) {
            if self.order.len() >= TABLE {
                if let Some(oldest) = self.order.pop_front() {
                    self.entries.remove(&oldest);
                }
            }
            self.order.push_back(key.clone());
        }
        self.entries.entry(key.clone()).or_insert_with(make)
    }
}

pub(super) struct Correlator {
    component: String,
    host: String,
    buckets: Table<Reference, Bucket>,
    similar: Table<SimilarKey, Similar>,
    seen: Table<RepeatKey, Seen>,
}

impl Correlator {
    pub(super) fn new(component: String, host: String) -> Self {
        Self { component, host, buckets: Table::new(), similar: Table::new(), seen: Table::new() }
    }

    /// What to write; `None` when the event is one too many.
    pub(super) fn correlate(&mut self, event: &Event, now: Instant, wall: Timestamp) -> Option<Correlated> {
        // The revision an object had does not make two events about it different.
        let mut regarding = event.regarding.clone();
        regarding.resource_version = String::new();
        let object = Reference { field_path: String::new(), ..regarding.clone() };
        if !self.admit(&object, now) {
            return None;
        }
        let mut similar = SimilarKey { regarding: object, kind: event.kind, reason: event.reason.clone() };
        let is_combined = self.is_one_of_many(&similar, &event.message, now);
        let (message, key) = if is_combined {
            (format!("{COMBINED}{}", event.message), RepeatKey { similar, message: None })
        } else {
            similar.regarding = regarding;
            (event.message.clone(), RepeatKey { similar, message: Some(event.message.clone()) })
        };
        let meta = event_meta(&event.regarding, wall, &event.annotations);
        let fresh_name = meta.name.clone().unwrap_or_default();
        let seen = self.seen.entry(&key, || Seen { name: String::new(), count: 0, first: wall });
        seen.count = seen.count.saturating_add(1);
        if seen.count == 1 {
            seen.first = wall;
        }
        let known = (!seen.name.is_empty()).then(|| seen.name.clone());
        let mut out = CoreEvent {
            metadata: meta,
            involved_object: event.regarding.object_reference(),
            type_: Some(event.kind.as_str().into()),
            reason: Some(event.reason.clone()),
            message: Some(message),
            source: Some(EventSource {
                component: Some(self.component.clone()),
                host: (!self.host.is_empty()).then(|| self.host.clone()),
            }),
            reporting_component: Some(self.component.clone()),
            reporting_instance: (!self.host.is_empty()).then(|| self.host.clone()),
            count: Some(seen.count),
            first_timestamp: Some(Time(seen.first)),
            last_timestamp: Some(Time(wall)),
            related: event.related.as_ref().map(Reference::object_reference),
            ..CoreEvent::default()
        };
        out.metadata.name = Some(known.clone().unwrap_or(fresh_name));
        Some(Correlated { event: out, known, key })
    }

    /// Remembers the name under which the server keeps the event.
    pub(super) fn written(&mut self, correlated: &Correlated, name: String) {
        if let Some(seen) = self.seen.entries.get_mut(&correlated.key) {
            seen.name = name;
        }
    }

    fn admit(&mut self, object: &Reference, now: Instant) -> bool {
        let bucket = self.buckets.entry(object, || Bucket { tokens: BURST, at: now });
        bucket.tokens = (bucket.tokens + now.since(bucket.at).as_secs_f64() * REFILL).min(BURST);
        bucket.at = now;
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }

    fn is_one_of_many(&mut self, key: &SimilarKey, message: &str, now: Instant) -> bool {
        let similar = self.similar.entry(key, || Similar { messages: HashSet::new(), last: now });
        if now.since(similar.last) > SIMILAR_WITHIN {
            similar.messages.clear();
        }
        similar.last = now;
        similar.messages.insert(message.to_owned());
        if similar.messages.len() < SIMILAR {
            return false;
        }
        // Bounded: which one goes does not matter, only that the next different one is many again.
        let other = similar.messages.iter().find(|m| *m != message).cloned();
        if let Some(other) = other {
            similar.messages.remove(&other);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Type;

    fn event(name: &str, message: &str) -> Event {
        let regarding =
            Reference { kind: "Pod".into(), namespace: "default".into(), name: name.into(), ..Default::default() };
        Event::new(regarding, Type::Warning, "Failed", message)
    }

    struct Driver {
        correlator: Correlator,
        now: Duration,
    }

    impl Driver {
        fn new() -> Self {
            Self { correlator: Correlator::new("kubelet".into(), "n1".into()), now: Duration::ZERO }
        }

        /// What is written: `create 1 message`, `patch 3 message`, or nothing.
        fn send(&mut self, name: &str, message: &str) -> String {
            let wall = Timestamp::UNIX_EPOCH + self.now;
            let Some(out) = self.correlator.correlate(&event(name, message), Instant(self.now), wall) else {
                return "dropped".into();
            };
            let name = out.event.metadata.name.clone().unwrap_or_default();
            let verb = if out.known.is_some() { "patch" } else { "create" };
            let line =
                format!("{verb} {} {}", out.event.count.unwrap_or(0), out.event.message.clone().unwrap_or_default());
            self.correlator.written(&out, name);
            line
        }
    }

    #[test]
    fn repeats_raise_a_count() {
        let mut driver = Driver::new();
        assert_eq!(driver.send("a", "x"), "create 1 x");
        assert_eq!(driver.send("a", "x"), "patch 2 x");
        assert_eq!(driver.send("b", "x"), "create 1 x");
        assert_eq!(driver.send("a", "x"), "patch 3 x");
    }

    #[test]
    fn from_the_tenth_different_message_they_are_combined() {
        let mut driver = Driver::new();
        for n in 1..=9 {
            assert_eq!(driver.send("a", &format!("m{n}")), format!("create 1 m{n}"));
        }
        assert_eq!(driver.send("a", "m10"), "create 1 (combined from similar events): m10");
        assert_eq!(driver.send("a", "m11"), "patch 2 (combined from similar events): m11");
        driver.now += Duration::from_secs(601);
        assert_eq!(driver.send("a", "m12"), "create 1 m12");
    }

    #[test]
    fn a_flood_is_cut_and_refills_slowly() {
        let mut driver = Driver::new();
        for n in 1..=25 {
            assert_ne!(driver.send("a", "x"), "dropped", "event {n}");
        }
        assert_eq!(driver.send("a", "x"), "dropped");
        assert_eq!(driver.send("b", "x"), "create 1 x");
        driver.now += Duration::from_secs(300);
        assert_eq!(driver.send("a", "x"), "patch 26 x");
        assert_eq!(driver.send("a", "x"), "dropped");
    }
}
