//! Exponential back-off per key, reset by time or by success.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use crate::clock::Instant;

/// The shape of an exponential back-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The first delay.
    pub initial: Duration,
    /// No delay exceeds this.
    pub max: Duration,
}

impl Policy {
    /// The delay after `failures` failures in a row (1 gives `initial`).
    pub fn delay(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(62);
        self.initial
            .checked_mul(1u32.checked_shl(doublings.min(31)).unwrap_or(u32::MAX))
            .unwrap_or(self.max)
            .min(self.max)
    }
}

/// Failures in a row per key. Bounded by its owner's keys: call [`Backoff::forget`] when a key goes.
#[derive(Debug)]
pub struct Backoff<K> {
    policy: Policy,
    entries: HashMap<K, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    failures: u32,
    since: Instant,
}

impl<K: Hash + Eq + Clone> Backoff<K> {
    /// An empty table under `policy`.
    pub fn new(policy: Policy) -> Self {
        Self { policy, entries: HashMap::new() }
    }

    /// Counts a failure at `now` and returns how long to wait from then.
    pub fn fail(&mut self, key: &K, now: Instant) -> Duration {
        let entry = self.entries.entry(key.clone()).or_insert(Entry { failures: 0, since: now });
        entry.failures = entry.failures.saturating_add(1);
        entry.since = now;
        self.policy.delay(entry.failures)
    }

    /// How long the key must still wait at `now`; zero when it need not.
    pub fn remaining(&self, key: &K, now: Instant) -> Duration {
        self.entries.get(key).map_or(Duration::ZERO, |e| (e.since + self.policy.delay(e.failures)).since(now))
    }

    /// How often the key failed in a row.
    pub fn failures(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |e| e.failures)
    }

    /// Forgets the key: it succeeded or is gone.
    pub fn forget(&mut self, key: &K) {
        self.entries.remove(key);
    }

    /// Forgets keys that have not failed for `quiet`.
    pub fn collect(&mut self, now: Instant, quiet: Duration) {
        self.entries.retain(|_, e| now.since(e.since) < quiet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let policy = Policy { initial: Duration::from_secs(10), max: Duration::from_secs(300) };
        let delays: Vec<u64> = (1..=8).map(|n| policy.delay(n).as_secs()).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(policy.delay(u32::MAX), policy.max);
    }

    #[test]
    fn a_key_waits_out_its_own_delay_only() {
        let mut backoff = Backoff::new(Policy { initial: Duration::from_secs(1), max: Duration::from_secs(8) });
        let t0 = Instant::default();
        assert_eq!(backoff.fail(&"a", t0), Duration::from_secs(1));
        assert_eq!(backoff.fail(&"a", t0), Duration::from_secs(2));
        assert_eq!(backoff.remaining(&"a", t0 + Duration::from_secs(1)), Duration::from_secs(1));
        assert_eq!(backoff.remaining(&"b", t0), Duration::ZERO);
        backoff.forget(&"a");
        assert_eq!(backoff.failures(&"a"), 0);
    }
}
