//! How long a container that keeps ending waits before it starts again. Pure.
//!
//! ```text
//!  ends ─► starts at once ─► ends ─► 10 s ─► ends ─► 20 s ─► … 300 s;  ten minutes of running forget it
//! ```

use std::collections::HashMap;
use std::time::Duration;

use stdx::backoff::Policy;
use stdx::clock::Instant;

/// Upstream's times.
pub const POLICY: Policy = Policy { initial: Duration::from_secs(10), max: Duration::from_secs(300) };
/// Who runs for so long is not crashing.
const FORGET: Duration = Duration::from_secs(600);

/// Upstream's times with another longest delay, which the first is not longer than either.
pub fn policy(max: Duration) -> Policy {
    Policy { initial: POLICY.initial.min(max), max }
}

/// A container may not start yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The whole delay, as messages print it.
    pub delay: Duration,
    /// When it ends.
    pub until: Instant,
}

/// Delays by container. One per pod: it ends with the pod.
#[derive(Clone, Debug)]
pub struct CrashLoop {
    policy: Policy,
    entries: HashMap<String, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    starts: u32,
    last: Instant,
}

impl CrashLoop {
    /// Nothing has crashed yet.
    pub fn new(policy: Policy) -> Self {
        Self { policy, entries: HashMap::new() }
    }

    /// Whether the container `key`, which ended at `ended`, may start at `now`. The key changes with
    /// the container's definition.
    pub fn may_start(&self, key: &str, ended: Instant, now: Instant) -> Result<(), Wait> {
        let Some(entry) = self.entries.get(key).filter(|e| !self.is_over(e, ended)) else { return Ok(()) };
        let delay = self.policy.delay(entry.starts);
        let until = ended + delay;
        if now < until { Err(Wait { delay, until }) } else { Ok(()) }
    }

    /// The container, which ended at `ended`, is starting again.
    pub fn starts(&mut self, key: &str, ended: Instant, now: Instant) {
        let known = self.entries.get(key).filter(|e| !self.is_over(e, ended));
        let starts = known.map_or(1, |e| e.starts.saturating_add(1));
        self.entries.insert(key.to_owned(), Entry { starts, last: now });
    }

    /// It ran long enough for its past to be forgotten, however short delays are.
    fn is_over(&self, entry: &Entry, ended: Instant) -> bool {
        ended.since(entry.last) > FORGET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_have_a_shorter_longest_delay() {
        let delays = |max: u64| {
            let policy = policy(Duration::from_secs(max));
            [1, 2, 3, 9].map(|n| policy.delay(n).as_secs())
        };
        assert_eq!(delays(300), [10, 20, 40, 300]);
        assert_eq!(delays(15), [10, 15, 15, 15]);
        assert_eq!(delays(2), [2, 2, 2, 2]);
    }

    #[test]
    fn delays_grow_and_are_forgotten() {
        let mut crash = CrashLoop::new(POLICY);
        let try_start = |crash: &mut CrashLoop, key: &str, ended, now| {
            crash.may_start(key, ended, now).map(|()| crash.starts(key, ended, now))
        };
        let at = |s| Instant(Duration::from_secs(s));
        let wait = |delay, until| Err(Wait { delay: Duration::from_secs(delay), until: at(until) });
        assert_eq!(try_start(&mut crash, "c", at(0), at(0)), Ok(()));
        assert_eq!(try_start(&mut crash, "c", at(1), at(1)), wait(10, 11));
        assert_eq!(try_start(&mut crash, "other", at(1), at(1)), Ok(()));
        assert_eq!(try_start(&mut crash, "c", at(1), at(11)), Ok(()));
        assert_eq!(try_start(&mut crash, "c", at(12), at(13)), wait(20, 32));
        assert_eq!(try_start(&mut crash, "c", at(12), at(32)), Ok(()));
        let mut now = 32;
        let mut delays = Vec::new();
        for _ in 0..6 {
            let Err(wait) = try_start(&mut crash, "c", at(now + 1), at(now + 1)) else { panic!("no delay") };
            delays.push(wait.delay.as_secs());
            now = wait.until.0.as_secs();
            assert_eq!(try_start(&mut crash, "c", at(now - wait.delay.as_secs()), at(now)), Ok(()));
        }
        assert_eq!(delays, [40, 80, 160, 300, 300, 300]);
        assert_eq!(try_start(&mut crash, "c", at(now + 601), at(now + 601)), Ok(()));
        assert_eq!(try_start(&mut crash, "c", at(now + 602), at(now + 602)), wait(10, now + 612));
    }
}
