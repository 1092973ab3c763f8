//! The scheduler as a state machine: events in, actions out. No await, no clock, no I/O.
//!
//! ```text
//!  Event ──► handle() ──► snapshot, queue          Action ──► carried out elsewhere ──► Event
//!                              │                      ▲
//!                              └──────► step() ───────┘   one pod tried
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use stdx::Rng;
use stdx::clock::Instant;

use crate::choose::{Choice, Unfit, choose};
use crate::laps::{Ended, Laps, Point};
use crate::metrics::Pending;
use crate::node::NodeFacts;
use crate::plugins::{ClusterEvent, Profile};
use crate::pod::{PodInfo, Uid};
use crate::preempt::{self, Preemption};
use crate::queue::{Incoming, Queue};
use crate::snapshot::Snapshot;

/// Everything that may happen to the scheduler.
#[derive(Clone, Debug)]
pub enum Event {
    /// A node is new or has changed.
    Node(NodeFacts),
    NodeGone(String),
    /// A pod is new or has changed.
    Pod(Arc<PodInfo>),
    PodGone(Uid),
    /// All nodes and pods that were there at the start have been told.
    Synced,
    /// A Binding was answered.
    Bound {
        uid: Uid,
        outcome: Result<(), BindFailure>,
    },
    /// The victims of a preemption were told to go, or that failed.
    Preempted {
        uid: Uid,
        outcome: Result<(), String>,
    },
}

/// Why a Binding failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindFailure {
    /// The pod no longer exists: nothing to try again.
    pub gone: bool,
    pub text: String,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Bind {
        pod: Arc<PodInfo>,
        node: String,
    },
    /// Tell the world why the pod has no node.
    Report {
        pod: Arc<PodInfo>,
        report: Report,
    },
    /// The pod waits for its gates to be removed.
    Gated(Arc<PodInfo>),
    /// The pod waits no more, or is gone.
    Withdraw(Arc<PodInfo>),
    /// Make room: mark the victims, then delete them.
    Preempt {
        pod: Arc<PodInfo>,
        node: String,
        victims: Vec<Arc<PodInfo>>,
    },
    /// The pod's nomination no longer holds.
    ClearNomination(Arc<PodInfo>),
}

/// Why a pod has no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of the PodScheduled condition: `Unschedulable` or `SchedulerError`.
    pub reason: &'static str,
    pub message: String,
    /// What it waits for, in short: `NodeResourcesFit on 1 of 1 nodes`.
    pub on: String,
    /// What `status.nominatedNodeName` becomes; `None` leaves it.
    pub nominate: Option<String>,
}

/// See the module.
pub struct Core {
    scheduler_name: String,
    profile: Profile,
    rng: Rng,
    synced: bool,
    snapshot: Snapshot,
    queue: Queue,
    /// Pods that were given a node and whose Binding the cache does not show yet.
    assumed: HashMap<Uid, Arc<PodInfo>>,
    /// Preemptors whose victims are being told; `true` when one was woken meanwhile.
    preempting: HashMap<Uid, bool>,
}

impl Core {
    /// A scheduler that knows nothing yet.
    pub fn new(scheduler_name: String, profile: Profile, rng: Rng) -> Self {
        Self {
            scheduler_name,
            profile,
            rng,
            synced: false,
            snapshot: Snapshot::default(),
            queue: Queue::default(),
            assumed: HashMap::new(),
            preempting: HashMap::new(),
        }
    }

    /// When [`Core::step`] may have something to do, if nothing else happens.
    pub fn next_due(&self) -> Option<Instant> {
        self.queue.next_due().filter(|_| self.synced)
    }

    /// True when [`Core::step`] has something to do.
    pub fn is_ready(&self, now: Instant) -> bool {
        self.synced && self.queue.is_ready(now)
    }

    /// How many pods wait for what.
    pub fn pending(&self) -> Pending {
        self.queue.pending()
    }

    /// How many pods came to wait since this was asked last.
    pub fn take_incoming(&mut self) -> Incoming {
        self.queue.take_incoming()
    }

    /// How long a pod has been waiting for a node, and in how many attempts.
    pub fn waited(&self, uid: &str, now: Instant) -> Option<(Duration, u32)> {
        self.queue.waited(uid, now)
    }

    /// How many pods wait for a node.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Takes in one event.
    pub fn handle(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::Synced => {
                self.synced = true;
                Vec::new()
            }
            Event::Node(facts) => {
                self.set_node(facts, now);
                Vec::new()
            }
            Event::NodeGone(name) => {
                self.snapshot.remove_node(&name);
                Vec::new()
            }
            Event::Pod(pod) if pod.terminal => self.forget(&pod.uid, now),
            Event::Pod(pod) if !pod.node.is_empty() => self.assigned(pod, now),
            Event::Pod(pod) => self.unassigned(pod, now),
            Event::PodGone(uid) => self.forget(&uid, now),
            Event::Bound { uid, outcome } => self.bound(&uid, outcome, now),
            Event::Preempted { uid, outcome } => self.preempted(&uid, outcome, now),
        }
    }

    fn set_node(&mut self, facts: NodeFacts, now: Instant) {
        let new = facts.clone();
        match self.snapshot.set_node(facts) {
            None => self.queue.on_event(ClusterEvent::NodeAdded(&new), &self.profile, now),
            Some(old) if new.admits_differently(&old) => {
                self.queue.on_event(ClusterEvent::NodeChanged { old: &old, new: &new }, &self.profile, now);
            }
            Some(_) => {}
        }
    }

    fn assigned(&mut self, pod: Arc<PodInfo>, now: Instant) -> Vec<Action> {
        self.assumed.remove(&pod.uid);
        self.preempting.remove(&pod.uid);
        self.snapshot.forget_nomination(&pod.uid);
        let waited = self.queue.remove(&pod.uid);
        let node = pod.node.clone();
        if let Some(old) = self.snapshot.place(pod.clone(), &node) {
            if pod.requests.is_less_somewhere(&old.requests) {
                self.queue.on_event(ClusterEvent::PodGone(&old), &self.profile, now);
            }
        }
        waited.map(|_| Action::Withdraw(pod)).into_iter().collect()
    }

    fn unassigned(&mut self, pod: Arc<PodInfo>, now: Instant) -> Vec<Action> {
        if self.assumed.contains_key(&pod.uid) {
            // On its way to a node: the answer to its Binding decides. Should it fail, the next try
            // is made with what the pod asks for by then.
            self.queue.add(pod, &self.profile, now);
            return Vec::new();
        }
        if pod.scheduler_name != self.scheduler_name || pod.deleting {
            return self.forget(&pod.uid, now);
        }
        if !self.preempting.contains_key(&pod.uid) {
            self.snapshot.nominate(&pod, &pod.nominated);
        }
        let was_gated = self.queue.is_gated(&pod.uid);
        self.queue.add(pod.clone(), &self.profile, now);
        match (was_gated, self.queue.is_gated(&pod.uid)) {
            (_, true) => vec![Action::Gated(pod)],
            (true, false) => vec![Action::Withdraw(pod)],
            (false, false) => Vec::new(),
        }
    }

    /// The pod is gone, finished, or no concern of ours.
    fn forget(&mut self, uid: &str, now: Instant) -> Vec<Action> {
        self.assumed.remove(uid);
        self.preempting.remove(uid);
        self.snapshot.forget_nomination(uid);
        let waited = self.queue.remove(uid);
        let placed = self.snapshot.displace(uid);
        // A nominee that goes leaves the room it waited for.
        let leaves = placed.or_else(|| waited.clone().filter(|p| !p.nominated.is_empty()));
        if let Some(pod) = leaves {
            self.queue.on_event(ClusterEvent::PodGone(&pod), &self.profile, now);
        }
        waited.map(Action::Withdraw).into_iter().collect()
    }

    fn bound(&mut self, uid: &str, outcome: Result<(), BindFailure>, now: Instant) -> Vec<Action> {
        let Err(failure) = outcome else {
            return self.queue.remove(uid).map(Action::Withdraw).into_iter().collect();
        };
        // When the cache has shown the pod on a node meanwhile, the Binding did happen.
        let Some(pod) = self.assumed.remove(uid) else { return Vec::new() };
        self.snapshot.displace(uid);
        self.queue.on_event(ClusterEvent::PodGone(&pod), &self.profile, now);
        if failure.gone {
            return self.queue.remove(uid).map(Action::Withdraw).into_iter().collect();
        }
        self.queue.retry(uid, now);
        let message = format!("binding rejected: running Bind plugin \"DefaultBinder\": {}", failure.text);
        let report = Report { reason: "SchedulerError", message, on: "its Binding".to_owned(), nominate: None };
        vec![Action::Report { pod, report }]
    }

    fn preempted(&mut self, uid: &str, outcome: Result<(), String>, now: Instant) -> Vec<Action> {
        let woken = self.preempting.remove(uid);
        let Some(pod) = self.queue.get(uid).cloned() else { return Vec::new() };
        match outcome {
            Ok(()) => {
                if woken == Some(true) {
                    self.queue.wake(uid, now);
                }
                Vec::new()
            }
            Err(_) => {
                self.snapshot.forget_nomination(uid);
                self.queue.retry(uid, now);
                vec![Action::ClearNomination(pod)]
            }
        }
    }

    /// Tries the next pod; `None` when none is due. What is done is told to `laps` as it goes.
    pub fn step(&mut self, now: Instant, laps: &mut dyn Laps) -> Option<Vec<Action>> {
        if !self.synced {
            return None;
        }
        let pod = self.queue.pop(now)?;
        if let Some(woken) = self.preempting.get_mut(&pod.uid) {
            // Its victims are still being told to go.
            *woken = true;
            self.queue.park(&pod.uid, Vec::new(), now);
            return Some(Vec::new());
        }
        Some(match choose(&pod, &self.snapshot, &self.profile, &self.rng, laps) {
            Choice::Node { name } => {
                self.assumed.insert(pod.uid.clone(), pod.clone());
                self.snapshot.forget_nomination(&pod.uid);
                self.snapshot.place(pod.clone(), &name);
                vec![Action::Bind { pod, node: name }]
            }
            Choice::Unfit(unfit) => self.unfit(&pod, &unfit, now, laps),
        })
    }

    fn unfit(&mut self, pod: &Arc<PodInfo>, unfit: &Unfit, now: Instant, laps: &mut dyn Laps) -> Vec<Action> {
        let mut message = unfit.message();
        let mut nominate = None;
        let mut actions = Vec::new();
        if unfit.nodes > 0 {
            let preemption = preempt::plan(pod, unfit, &self.snapshot, &self.profile, &self.rng);
            let found = matches!(preemption, Preemption::Victims { .. });
            laps.point(Point::PostFilter, if found { Ended::Success } else { Ended::Unschedulable });
            message = format!("{message} {}", preemption.clause());
            match preemption {
                Preemption::Victims { node, victims } => {
                    actions.extend(self.clear_lesser_nominations(pod, &node).into_iter().map(Action::ClearNomination));
                    self.snapshot.nominate(pod, &node);
                    self.preempting.insert(pod.uid.clone(), false);
                    nominate = Some(node.clone());
                    actions.push(Action::Preempt { pod: pod.clone(), node, victims });
                }
                Preemption::Nowhere { .. } if !pod.nominated.is_empty() => {
                    self.snapshot.forget_nomination(&pod.uid);
                    nominate = Some(String::new());
                }
                Preemption::Nowhere { .. } | Preemption::NotEligible(_) => {}
            }
        }
        let on: Vec<String> =
            unfit.plugins.iter().map(|(plugin, n)| format!("{plugin} on {n} of {} nodes", unfit.nodes)).collect();
        let on = if on.is_empty() { "a node".to_owned() } else { on.join(", ") };
        self.queue.park(&pod.uid, unfit.plugins.keys().copied().collect(), now);
        let report = Report { reason: "Unschedulable", message, on, nominate };
        actions.insert(0, Action::Report { pod: pod.clone(), report });
        actions
    }

    /// Nominees of less priority lose their claim on the node a preemptor takes.
    fn clear_lesser_nominations(&mut self, pod: &PodInfo, node: &str) -> Vec<Arc<PodInfo>> {
        let lesser = |p: &&Arc<PodInfo>| p.priority < pod.priority && p.uid != pod.uid;
        let out: Vec<Arc<PodInfo>> = self.snapshot.nominated(node).iter().filter(lesser).cloned().collect();
        let uids: HashSet<&str> = out.iter().map(|p| p.uid.as_str()).collect();
        for uid in uids {
            self.snapshot.forget_nomination(uid);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{asking, facts, pod, roomy};
    use serde_json::json;
    use std::time::Duration;

    /// A core that runs on text: each action is one line.
    struct Test {
        core: Core,
        now: Instant,
    }

    impl Test {
        fn new() -> Self {
            let core = Core::new("default-scheduler".into(), Profile::default(), Rng::seeded(1));
            Self { core, now: Instant::default() }
        }

        fn synced() -> Self {
            let mut test = Self::new();
            test.event(Event::Synced);
            test
        }

        fn event(&mut self, event: Event) -> Vec<String> {
            self.core.handle(event, self.now).iter().map(print).collect()
        }

        fn pod(&mut self, pod: PodInfo) -> Vec<String> {
            let pod = PodInfo { scheduler_name: "default-scheduler".into(), ..pod };
            self.event(Event::Pod(Arc::new(pod)))
        }

        fn run(&mut self) -> Vec<String> {
            let mut out = Vec::new();
            while let Some(actions) = self.core.step(self.now, &mut crate::laps::Untimed) {
                out.extend(actions.iter().map(print));
            }
            out
        }

        fn pass(&mut self, seconds: u64) {
            self.now = self.now + Duration::from_secs(seconds);
        }

        fn bound(&mut self, uid: &str) -> Vec<String> {
            self.event(Event::Bound { uid: uid.into(), outcome: Ok(()) })
        }
    }

    fn print(action: &Action) -> String {
        match action {
            Action::Bind { pod, node } => format!("bind {} {node}", pod.name),
            Action::Report { pod, report } => {
                let nominate = report.nominate.as_ref().map(|n| format!(" nominate={n:?}")).unwrap_or_default();
                format!("report {} {}: {} [{}]{nominate}", pod.name, report.reason, report.message, report.on)
            }
            Action::Gated(pod) => format!("gated {}", pod.name),
            Action::Withdraw(pod) => format!("withdraw {}", pod.name),
            Action::Preempt { pod, node, victims } => {
                let names: Vec<&str> = victims.iter().map(|v| v.name.as_str()).collect();
                format!("preempt for {} on {node}: {}", pod.name, names.join(" "))
            }
            Action::ClearNomination(pod) => format!("clear nomination {}", pod.name),
        }
    }

    #[test]
    fn nothing_is_decided_before_everything_is_known() {
        let mut test = Test::new();
        test.pod(asking("p", json!({"cpu": "3"})));
        test.event(Event::Node(roomy("a")));
        assert_eq!(test.run(), Vec::<String>::new());
        test.pod(PodInfo { node: "a".into(), ..asking("q", json!({"cpu": "3"})) });
        test.event(Event::Synced);
        assert_eq!(test.run().len(), 1, "it sees q on the node");
    }

    #[test]
    fn an_assumed_pod_takes_room_at_once() {
        let mut test = Test::synced();
        test.event(Event::Node(roomy("a")));
        test.pod(asking("p", json!({"cpu": "3"})));
        test.pod(asking("q", json!({"cpu": "3"})));
        assert_eq!(
            test.run(),
            [
                "bind p a",
                "report q Unschedulable: 0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod. [NodeResourcesFit on 1 of 1 nodes]",
            ]
        );
        assert_eq!(test.bound("p"), ["withdraw p"]);
        test.pod(PodInfo { node: "a".into(), ..asking("p", json!({"cpu": "3"})) });
        test.pass(10);
        assert_eq!(test.run(), Vec::<String>::new());
        // p finishes, and q fits.
        test.pod(PodInfo { node: "a".into(), terminal: true, ..asking("p", json!({"cpu": "3"})) });
        assert_eq!(test.run(), ["bind q a"]);
        assert_eq!(
            test.pod(PodInfo { node: "a".into(), ..asking("q", json!({"cpu": "3"})) }),
            ["withdraw q"],
            "the cache may be faster than the answer"
        );
        assert_eq!(test.bound("q"), Vec::<String>::new());
    }

    #[test]
    fn a_failed_binding_gives_the_room_back_and_is_tried_again() {
        let mut test = Test::synced();
        test.event(Event::Node(roomy("a")));
        test.pod(asking("p", json!({"cpu": "3"})));
        test.pod(asking("q", json!({"cpu": "3"})));
        test.run();
        test.pass(2);
        let failure = |gone| Err(BindFailure { gone, text: "no".into() });
        assert_eq!(
            test.event(Event::Bound { uid: "p".into(), outcome: failure(false) }),
            ["report p SchedulerError: binding rejected: running Bind plugin \"DefaultBinder\": no [its Binding]"]
        );
        assert_eq!(test.run(), ["bind q a"]);
        assert_eq!(test.event(Event::Bound { uid: "q".into(), outcome: failure(true) }), ["withdraw q"]);
        test.pass(1);
        assert_eq!(test.run(), ["bind p a"]);
    }

    #[test]
    fn no_nodes_then_a_node() {
        let mut test = Test::synced();
        test.pod(asking("p", json!({})));
        assert_eq!(test.run(), ["report p Unschedulable: no nodes available to schedule pods [a node]"]);
        test.pass(1);
        test.event(Event::Node(facts("a", json!({}), json!({"unschedulable": true}), json!({"pods": "1"}))));
        assert_eq!(
            test.run(),
            [
                "report p Unschedulable: 0/1 nodes are available: 1 node(s) were unschedulable. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling. [NodeUnschedulable on 1 of 1 nodes]"
            ]
        );
        test.pass(2);
        test.event(Event::Node(roomy("a")));
        assert_eq!(test.run(), ["bind p a"]);
    }

    #[test]
    fn other_schedulers_pods_and_deleted_ones_are_left_alone() {
        let mut test = Test::synced();
        test.event(Event::Node(roomy("a")));
        test.event(Event::Pod(Arc::new(asking("other", json!({})))));
        test.pod(PodInfo { deleting: true, ..asking("going", json!({})) });
        test.pod(asking("p", json!({})));
        assert_eq!(test.event(Event::PodGone("p".into())), ["withdraw p"]);
        assert_eq!(test.run(), Vec::<String>::new());
        assert_eq!(test.core.waiting(), 0);
    }

    #[test]
    fn gates_are_said_and_lifted() {
        let mut test = Test::synced();
        test.event(Event::Node(roomy("a")));
        assert_eq!(test.pod(pod("p", json!({"schedulingGates": [{"name": "g"}]}))), ["gated p"]);
        assert_eq!(test.run(), Vec::<String>::new());
        assert_eq!(test.pod(pod("p", json!({}))), ["withdraw p"]);
        assert_eq!(test.run(), ["bind p a"]);
    }

    #[test]
    fn a_preemptor_gets_the_room_its_victim_leaves() {
        let mut test = Test::synced();
        test.event(Event::Node(roomy("a")));
        let low = PodInfo { node: "a".into(), ..asking("low", json!({"cpu": "3"})) };
        test.pod(low.clone());
        let high = PodInfo { priority: 10, ..asking("high", json!({"cpu": "3"})) };
        test.pod(high.clone());
        assert_eq!(
            test.run(),
            [
                "report high Unschedulable: 0/1 nodes are available: 1 Insufficient cpu. preemption: found a potential placement for pod on node a, preempting 1 victims [NodeResourcesFit on 1 of 1 nodes] nominate=\"a\"",
                "preempt for high on a: low",
            ]
        );
        test.pass(2);
        // The victim leaves before the preemption is answered for: the preemptor is not tried twice.
        test.pod(PodInfo { nominated: "a".into(), ..high });
        test.event(Event::PodGone("low".into()));
        test.pod(asking("late", json!({"cpu": "3"})));
        let late = test.run();
        assert!(late.len() == 1 && late[0].starts_with("report late Unschedulable"), "{late:?}");
        test.event(Event::Preempted { uid: "high".into(), outcome: Ok(()) });
        test.pass(5);
        assert_eq!(test.run(), ["bind high a"]);
    }

    #[test]
    fn a_preemption_that_failed_is_undone() {
        let mut test = Test::synced();
        test.event(Event::Node(roomy("a")));
        test.pod(PodInfo { node: "a".into(), ..asking("low", json!({"cpu": "3"})) });
        test.pod(PodInfo { priority: 10, ..asking("high", json!({"cpu": "3"})) });
        assert_eq!(test.run().len(), 2);
        let failed = Event::Preempted { uid: "high".into(), outcome: Err("no".into()) };
        assert_eq!(test.event(failed), ["clear nomination high"]);
        test.pass(1);
        assert_eq!(test.run().len(), 2, "tried again");
    }
}
