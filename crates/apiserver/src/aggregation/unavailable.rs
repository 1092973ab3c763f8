//! How often, and for what reason, APIs that other servers answer for have become unavailable, and which are at
//! present: metrics under upstream's names.

use std::collections::BTreeMap;

use api::k8s::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use parking_lot::Mutex;

use super::API_SERVICES;
use super::availability::Condition;
use crate::metrics::{head, line};
use crate::server::ApiServer;

/// Names and reasons that are told apart; what is beyond is counted under none.
const SERIES: usize = 4096;
const GAUGE: &str = "aggregator_unavailable_apiservice";
const COUNTER: &str = "aggregator_unavailable_apiservice_total";

/// Counts, by the name of the APIService and the reason.
#[derive(Default)]
pub struct Unavailable(Mutex<BTreeMap<(String, String), u64>>);

impl Unavailable {
    /// The condition of an APIService has changed.
    pub(super) fn changed(&self, name: &str, before: Option<&Condition>, now: &Condition) {
        if !before.is_some_and(Condition::is_true) || now.is_true() {
            return;
        }
        let mut counts = self.0.lock();
        let mut key = (name.to_owned(), now.reason().to_owned());
        if counts.len() >= SERIES && !counts.contains_key(&key) {
            key = Default::default();
        }
        *counts.entry(key).or_default() += 1;
    }
}

/// Writes both. An API is available when its condition says so.
pub fn render(out: &mut String, server: &ApiServer) {
    head(out, GAUGE, "gauge", "APIServices that are marked as unavailable, by their names.");
    let cacher = server.cachers.find(API_SERVICES.group, API_SERVICES.plural);
    for slot in cacher.iter().flat_map(|cacher| cacher.snapshot().objects().values().cloned().collect::<Vec<_>>()) {
        let read = slot.object.value().and_then(|tree| kinds::view::read::<apiregistration::APIService>(&tree));
        let is_available = read.ok().and_then(|read| Condition::of(&read)).is_some_and(|condition| condition.is_true());
        let name = slot.object.name();
        line(out, format_args!("{GAUGE}{{name=\"{name}\"}} {}", u8::from(!is_available)));
    }
    let counts = server.aggregation.unavailable.0.lock();
    if counts.is_empty() {
        return;
    }
    head(out, COUNTER, "counter", "How often APIServices became unavailable, by their names and the reason.");
    for ((name, reason), count) in counts.iter() {
        line(out, format_args!("{COUNTER}{{name=\"{name}\",reason=\"{reason}\"}} {count}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_available_becomes_unavailable() {
        let counted = Unavailable::default();
        let (yes, no) = (Condition::new("True", "Passed", ""), Condition::new("False", "Gone", ""));
        let other = Condition::new("Unknown", "Other", "");
        for (before, now) in [
            (None, &yes),
            (None, &no),
            (Some(&yes), &no),
            (Some(&no), &other),
            (Some(&other), &yes),
            (Some(&yes), &yes),
            (Some(&yes), &no),
            (Some(&yes), &other),
        ] {
            counted.changed("a", before, now);
        }
        let of = |reason: &str| ("a".to_owned(), reason.to_owned());
        assert_eq!(*counted.0.lock(), BTreeMap::from([(of("Gone"), 2), (of("Other"), 1)]));
        for n in 0..SERIES + 10 {
            counted.changed(&n.to_string(), Some(&yes), &no);
        }
        assert_eq!(counted.0.lock().len(), SERIES + 1);
        assert_eq!(counted.0.lock()[&Default::default()], 12);
    }
}
