//! Pods that wait to be tried: now, after a back-off, or once something in the cluster changes.
//!
//! ```text
//!  add ──► active ──pop──► tried ──fits──► (gone from the queue)
//!            ▲               │ no node does
//!            │               ▼
//!     due ── backoff ◄────  parked   an event a refusing plugin cares about, or 5 minutes
//!            ▲ 1 s … 10 s    │
//!            └── try failed  └── gated: barred until the pod itself changes
//! ```
//!
//! Bounded by the number of pods without a node.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use stdx::backoff::Policy;
use stdx::clock::Instant;

use crate::metrics::Pending;
use crate::plugins::priority_sort::{self, Place};
use crate::plugins::{ClusterEvent, Profile};
use crate::pod::{PodInfo, Uid};

/// How long a pod that failed is left alone at least.
pub const BACKOFF: Policy = Policy { initial: Duration::from_secs(1), max: Duration::from_secs(10) };
/// A parked pod that no event woke is tried again after this.
pub const LEFTOVER: Duration = Duration::from_secs(5 * 60);

#[derive(Clone, Debug, PartialEq)]
enum State {
    Active(Place),
    /// Until then.
    Backoff(Instant),
    /// Since then, for what these plugins said (nobody: any event wakes).
    Parked {
        since: Instant,
        plugins: Vec<&'static str>,
    },
    Gated,
    /// Popped and not yet answered for.
    Tried,
}

#[derive(Clone, Debug)]
struct Entry {
    pod: Arc<PodInfo>,
    state: State,
    attempts: u32,
    /// Since when nothing but the scheduler holds it up.
    since: Option<Instant>,
    /// When the last attempt failed.
    failed: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Queue {
    entries: HashMap<Uid, Entry>,
    active: BTreeSet<Place>,
    due: BTreeSet<(Instant, Uid)>,
    /// Parked pods by when they will have waited long enough.
    leftover: BTreeSet<(Instant, Uid)>,
    entered: u64,
    /// Pods that a plugin bars from being tried.
    gated: usize,
    /// How many came to wait since that was asked last, by what brought them and where they wait.
    incoming: Incoming,
}

/// Counts of pods by the event that brought them, under upstream's name, and by where they wait since.
pub type Incoming = BTreeMap<(&'static str, &'static str), u64>;

/// What brings pods, beside what happens in the cluster.
mod event {
    pub const ADDED: &str = "UnschedulablePodAdd";
    pub const CHANGED: &str = "UnschedulablePodUpdate";
    pub const FAILED: &str = "ScheduleAttemptFailure";
    pub const BACKED_OFF: &str = "BackoffComplete";
    pub const WAITED_LONG: &str = "UnschedulableTimeout";
}

fn name(event: &ClusterEvent<'_>) -> &'static str {
    match event {
        ClusterEvent::NodeAdded(_) => "NodeAdd",
        ClusterEvent::NodeChanged { .. } => "NodeUpdate",
        ClusterEvent::PodGone(_) => "AssignedPodDelete",
    }
}

impl Queue {
    /// How many pods wait or are being tried.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many wait for what. Those that are being tried, or are told of, wait for nothing.
    pub fn pending(&self) -> Pending {
        let (active, backoff, unschedulable) = (self.active.len(), self.due.len(), self.leftover.len());
        Pending { active, backoff, unschedulable, gated: self.gated }
    }

    /// How many came to wait since this was asked last.
    pub fn take_incoming(&mut self) -> Incoming {
        std::mem::take(&mut self.incoming)
    }

    fn came(&mut self, event: &'static str, queue: &'static str) {
        *self.incoming.entry((event, queue)).or_default() += 1;
    }

    /// True when no pod waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The pod, if it is in the queue.
    pub fn get(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.entries.get(uid).map(|e| &e.pod)
    }

    /// How long the pod has been waiting for a node, gates aside, and in how many attempts.
    pub fn waited(&self, uid: &str, now: Instant) -> Option<(Duration, u32)> {
        let entry = self.entries.get(uid)?;
        Some((now.since(entry.since?), entry.attempts))
    }

    /// True when a plugin bars the pod from being tried at all.
    pub fn is_gated(&self, uid: &str) -> bool {
        self.entries.get(uid).is_some_and(|e| e.state == State::Gated)
    }

    /// Takes in a pod, or what has changed about one that is here.
    pub fn add(&mut self, pod: Arc<PodInfo>, profile: &Profile, now: Instant) {
        let barred = profile.plugins.iter().any(|p| p.bars(&pod));
        let uid = pod.uid.clone();
        let Some(entry) = self.entries.get_mut(&uid) else {
            let entry = Entry { pod, state: State::Gated, attempts: 0, since: None, failed: now };
            self.entries.insert(uid.clone(), entry);
            self.gated += 1;
            if barred {
                self.came(event::ADDED, "gated");
            } else {
                self.activate(&uid, now, event::ADDED);
            }
            return;
        };
        let old = std::mem::replace(&mut entry.pod, pod);
        if barred {
            self.change(&uid, State::Gated);
        } else if entry.pod.asks_differently(&old) && entry.state != State::Tried {
            self.wake_for(&uid, now, event::CHANGED);
        }
    }

    /// Forgets a pod: it is bound, gone, or somebody else's.
    pub fn remove(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        self.change(uid, State::Tried);
        self.entries.remove(uid).map(|e| e.pod)
    }

    /// The next pod to try; it stays in the queue as tried.
    pub fn pop(&mut self, now: Instant) -> Option<Arc<PodInfo>> {
        self.advance(now);
        let (_, _, uid) = self.active.first()?.clone();
        self.change(&uid, State::Tried);
        let entry = self.entries.get_mut(&uid)?;
        entry.attempts = entry.attempts.saturating_add(1);
        Some(entry.pod.clone())
    }

    /// No node does for the pod just tried; events that the plugins care about wake it.
    pub fn park(&mut self, uid: &str, plugins: Vec<&'static str>, now: Instant) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.failed = now;
            self.change(uid, State::Parked { since: now, plugins });
            self.came(event::FAILED, "unschedulable");
        }
    }

    /// The try itself failed: once more after the back-off.
    pub fn retry(&mut self, uid: &str, now: Instant) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.failed = now;
            let due = now + BACKOFF.delay(entry.attempts);
            self.change(uid, State::Backoff(due));
            self.came(event::FAILED, "backoff");
        }
    }

    /// Wakes one parked pod, whatever it was parked for: its victims have been told to go.
    pub fn wake(&mut self, uid: &str, now: Instant) {
        self.wake_for(uid, now, "AssignedPodDelete");
    }

    fn wake_for(&mut self, uid: &str, now: Instant, event: &'static str) {
        let Some(entry) = self.entries.get(uid) else { return };
        if matches!(entry.state, State::Active(_) | State::Backoff(_) | State::Tried) {
            return;
        }
        let due = entry.failed + BACKOFF.delay(entry.attempts);
        if entry.attempts == 0 || due <= now {
            self.activate(uid, now, event);
        } else {
            self.change(uid, State::Backoff(due));
            self.came(event, "backoff");
        }
    }

    /// Wakes the parked pods whose refusal the event might undo.
    pub fn on_event(&mut self, event: ClusterEvent<'_>, profile: &Profile, now: Instant) {
        // Exactly the parked ones have a leftover time.
        let might_help = |(_, uid): &(Instant, Uid)| {
            let Some(Entry { pod, state: State::Parked { plugins, .. }, .. }) = self.entries.get(uid) else {
                return None;
            };
            let wakes = |name: &&str| profile.get(name).is_some_and(|p| p.wakes(pod, event));
            (plugins.is_empty() || plugins.iter().any(wakes)).then(|| uid.clone())
        };
        let woken: Vec<Uid> = self.leftover.iter().filter_map(might_help).collect();
        for uid in woken {
            self.wake_for(&uid, now, name(&event));
        }
    }

    /// When [`Queue::pop`] may have more to give, if nothing else happens.
    pub fn next_due(&self) -> Option<Instant> {
        let (due, leftover) = (self.due.first(), self.leftover.first());
        due.into_iter().chain(leftover).map(|(at, _)| *at).min()
    }

    /// True when a pod can be tried at once.
    pub fn is_ready(&self, now: Instant) -> bool {
        !self.active.is_empty() || self.next_due().is_some_and(|at| at <= now)
    }

    fn advance(&mut self, now: Instant) {
        while let Some((at, uid)) = self.due.first().cloned().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, uid.clone()));
            self.activate(&uid, now, event::BACKED_OFF);
        }
        while let Some((at, uid)) = self.leftover.first().cloned().filter(|(at, _)| *at <= now) {
            self.leftover.remove(&(at, uid.clone()));
            self.activate(&uid, now, event::WAITED_LONG);
        }
    }

    fn activate(&mut self, uid: &str, now: Instant, event: &'static str) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        entry.since.get_or_insert(now);
        self.entered += 1;
        let place = priority_sort::place(&entry.pod, self.entered);
        self.change(uid, State::Active(place));
        self.came(event, "active");
    }

    /// The one place where a state ends and another begins.
    fn change(&mut self, uid: &str, to: State) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let key = |at: Instant| (at, uid.to_owned());
        match &entry.state {
            State::Active(place) => {
                self.active.remove(place);
            }
            State::Backoff(due) => {
                self.due.remove(&key(*due));
            }
            State::Parked { since, .. } => {
                self.leftover.remove(&key(*since + LEFTOVER));
            }
            State::Gated => self.gated -= 1,
            State::Tried => {}
        }
        match &to {
            State::Active(place) => {
                self.active.insert(place.clone());
            }
            State::Backoff(due) => {
                self.due.insert(key(*due));
            }
            State::Parked { since, .. } => {
                self.leftover.insert(key(*since + LEFTOVER));
            }
            State::Gated => self.gated += 1,
            State::Tried => {}
        }
        entry.state = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{asking, pod, roomy};
    use jiff::Timestamp;
    use serde_json::json;
    use stdx::Clock;
    use stdx::clock::ManualClock;

    struct Test {
        queue: Queue,
        clock: ManualClock,
        profile: Profile,
    }

    impl Test {
        fn new() -> Self {
            let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
            Self { queue: Queue::default(), clock, profile: Profile::default() }
        }

        fn add(&mut self, pod: PodInfo) {
            self.queue.add(Arc::new(pod), &self.profile, self.clock.now());
        }

        fn pop(&mut self) -> Option<String> {
            self.queue.pop(self.clock.now()).map(|p| p.name.clone())
        }

        fn park(&mut self, name: &str, plugin: &'static str) {
            self.queue.park(name, vec![plugin], self.clock.now());
        }

        fn pass(&self, millis: u64) {
            self.clock.advance(Duration::from_millis(millis));
        }

        fn node_added(&mut self) {
            self.queue.on_event(ClusterEvent::NodeAdded(&roomy("n")), &self.profile, self.clock.now());
        }
    }

    #[test]
    fn the_first_attempt_is_never_delayed_and_priority_leads() {
        let mut test = Test::new();
        test.add(asking("a", json!({})));
        test.add(PodInfo { priority: 7, ..asking("b", json!({})) });
        assert_eq!((test.pop(), test.pop(), test.pop()), (Some("b".into()), Some("a".into()), None));
    }

    #[test]
    fn backoff_doubles_from_one_to_ten_seconds() {
        let mut test = Test::new();
        test.add(asking("a", json!({})));
        for seconds in [1, 2, 4, 8, 10, 10] {
            assert_eq!(test.pop().as_deref(), Some("a"));
            test.queue.retry("a", test.clock.now());
            assert_eq!(test.queue.next_due(), Some(test.clock.now() + Duration::from_secs(seconds)));
            test.pass(seconds * 1000 - 1);
            assert_eq!(test.pop(), None);
            test.pass(1);
        }
    }

    #[test]
    fn only_events_that_may_help_wake_and_the_backoff_is_kept() {
        let mut test = Test::new();
        test.add(asking("a", json!({"cpu": "1"})));
        test.pop();
        test.park("a", "NodeResourcesFit");
        test.queue.on_event(
            ClusterEvent::NodeChanged { old: &roomy("n"), new: &roomy("n") },
            &test.profile,
            test.clock.now(),
        );
        test.pass(5_000);
        assert_eq!(test.pop(), None);
        test.node_added();
        assert_eq!(test.pop().as_deref(), Some("a"), "its back-off had passed");
        test.park("a", "NodeResourcesFit");
        test.node_added();
        assert_eq!(test.pop(), None, "2 s of back-off after the second failure");
        test.pass(2_000);
        assert_eq!(test.pop().as_deref(), Some("a"));
    }

    #[test]
    fn leftovers_are_tried_after_five_minutes() {
        let mut test = Test::new();
        test.add(asking("a", json!({})));
        test.pop();
        test.park("a", "NodeAffinity");
        test.pass(5 * 60 * 1000 - 1);
        assert_eq!(test.pop(), None);
        test.pass(1);
        assert_eq!(test.pop().as_deref(), Some("a"));
    }

    #[test]
    fn gates_hold_a_pod_until_they_are_removed() {
        let mut test = Test::new();
        test.add(pod("a", json!({"schedulingGates": [{"name": "g"}]})));
        assert!(test.queue.is_gated("a"));
        test.node_added();
        assert_eq!(test.pop(), None);
        test.add(pod("a", json!({})));
        assert_eq!(test.pop().as_deref(), Some("a"));
    }

    #[test]
    fn a_changed_pod_is_tried_again_and_a_status_change_is_not_one() {
        let mut test = Test::new();
        test.add(asking("a", json!({})));
        test.pop();
        test.park("a", "TaintToleration");
        test.pass(1_000);
        let message = Some(("Unschedulable".to_owned(), "why".to_owned()));
        test.add(PodInfo { unscheduled: message, ..asking("a", json!({})) });
        assert_eq!(test.pop(), None);
        test.add(pod("a", json!({"tolerations": [{"operator": "Exists"}]})));
        assert_eq!(test.pop().as_deref(), Some("a"));
        test.queue.remove("a");
        test.pass(10_000);
        assert!(test.queue.is_empty() && test.pop().is_none() && test.queue.next_due().is_none());
    }

    #[test]
    fn what_brings_pods_is_counted() {
        let mut test = Test::new();
        test.add(asking("a", json!({})));
        test.add(pod("g", json!({"schedulingGates": [{"name": "g"}]})));
        assert_eq!(test.pop().as_deref(), Some("a"));
        test.park("a", "NodeResourcesFit");
        test.node_added();
        test.pass(1000);
        assert_eq!(test.pop().as_deref(), Some("a"));
        test.queue.retry("a", test.clock.now());
        let incoming = test.queue.take_incoming();
        let told: Vec<String> =
            incoming.iter().map(|((event, queue), count)| format!("{event} {queue} {count}")).collect();
        assert_eq!(
            told,
            [
                "BackoffComplete active 1",
                "NodeAdd backoff 1",
                "ScheduleAttemptFailure backoff 1",
                "ScheduleAttemptFailure unschedulable 1",
                "UnschedulablePodAdd active 1",
                "UnschedulablePodAdd gated 1",
            ]
        );
        assert!(test.queue.take_incoming().is_empty());
    }
}
