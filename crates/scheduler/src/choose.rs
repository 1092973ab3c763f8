//! The decision: which node for this pod, or why none. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use stdx::Rng;

use crate::laps::{Ended, Laps, NODES, Point};
use crate::node::NodeInfo;
use crate::plugins::{Judge, Plugin, Profile, Refusal};
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// What was decided.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// Run it there.
    Node { name: String },
    /// No node does.
    Unfit(Unfit),
}

/// Why no node does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unfit {
    /// How many nodes there are.
    pub nodes: usize,
    /// How many nodes give each reason.
    pub reasons: BTreeMap<Cow<'static, str>, usize>,
    /// How many nodes each plugin refused; these plugins' events wake the pod.
    pub plugins: BTreeMap<&'static str, usize>,
    /// Nodes that might do if other pods were not there.
    pub crowded: Vec<String>,
}

impl Unfit {
    fn refuse(&mut self, plugin: &'static str, refusal: Refusal, node: &str) {
        for reason in refusal.reasons {
            *self.reasons.entry(reason).or_default() += 1;
        }
        *self.plugins.entry(plugin).or_default() += 1;
        if refusal.preemption_helps {
            self.crowded.push(node.to_owned());
        }
    }

    /// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
    pub fn message(&self) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        render(self.nodes, &self.reasons)
    }
}

/// The sentence about `nodes` nodes; the parts are sorted as texts.
pub fn render(nodes: usize, reasons: &BTreeMap<Cow<'static, str>, usize>) -> String {
    let mut parts: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    parts.sort();
    let mut out = format!("0/{nodes} nodes are available:");
    if !parts.is_empty() {
        out.push_str(&format!(" {}.", parts.join(", ")));
    }
    out
}

/// The plugins prepared for one pod, in the profile's order.
pub struct Judges<'a>(Vec<(&'a dyn Plugin, Box<dyn Judge + 'a>)>);

impl<'a> Judges<'a> {
    /// Prepares all plugins that have something to say.
    pub fn prepare(pod: &'a PodInfo, snapshot: &'a Snapshot, profile: &'a Profile, laps: &mut dyn Laps) -> Self {
        let mut judges = Vec::with_capacity(profile.plugins.len());
        for plugin in profile.plugins.iter().map(AsRef::as_ref) {
            let judge: Option<Box<dyn Judge + 'a>> = Plugin::prepare(plugin, pod, snapshot);
            laps.plugin(Point::PreFilter, plugin.name(), if judge.is_some() { Ended::Success } else { Ended::Skip });
            judges.extend(judge.map(|judge| (plugin, judge)));
        }
        Self(judges)
    }

    /// Does the node do, as it stands?
    pub fn filter(&self, node: &NodeInfo) -> Result<(), (&'static str, Refusal)> {
        self.0.iter().try_for_each(|(plugin, judge)| judge.filter(node).map_err(|refusal| (plugin.name(), refusal)))
    }

    /// The same, told as it goes.
    fn filter_told(&self, node: &NodeInfo, laps: &mut dyn Laps) -> Result<(), (&'static str, Refusal)> {
        laps.between();
        self.0.iter().try_for_each(|(plugin, judge)| {
            let found = judge.filter(node);
            let ended = match &found {
                Ok(()) => Ended::Success,
                Err(refusal) if refusal.preemption_helps => Ended::Unschedulable,
                Err(_) => Ended::Unresolvable,
            };
            laps.plugin(Point::Filter, plugin.name(), ended);
            found.map_err(|refusal| (plugin.name(), refusal))
        })
    }

    /// Does the node do, also when the preemptors that wait for room there have come?
    fn filter_with_nominated(
        &self,
        pod: &PodInfo,
        node: &NodeInfo,
        nominated: &[Arc<PodInfo>],
        laps: Option<&mut dyn Laps>,
    ) -> Result<(), (&'static str, Refusal)> {
        let mut ahead = nominated.iter().filter(|p| p.uid != pod.uid && p.priority >= pod.priority).peekable();
        if ahead.peek().is_some() {
            let mut crowded = node.clone();
            ahead.for_each(|p| crowded.add(p.clone()));
            self.filter(&crowded)?;
        }
        match laps {
            Some(laps) => self.filter_told(node, laps),
            None => self.filter(node),
        }
    }
}

/// Of many nodes not all need a look: so many feasible ones are enough to choose well.
pub fn enough(nodes: usize) -> usize {
    const ALL: usize = 100;
    if nodes < ALL {
        return nodes;
    }
    let percent = 50usize.saturating_sub(nodes / 125).max(5);
    (nodes * percent / 100).max(ALL)
}

/// Decides where `pod` runs. Among equally good nodes the choice is random, and so is the node
/// that is looked at first, lest the first nodes fill up. What it does is told to `laps` as it goes.
pub fn choose(pod: &PodInfo, snapshot: &Snapshot, profile: &Profile, rng: &Rng, laps: &mut dyn Laps) -> Choice {
    let mut unfit = Unfit { nodes: snapshot.len(), ..Unfit::default() };
    if snapshot.is_empty() {
        return Choice::Unfit(unfit);
    }
    let judges = Judges::prepare(pod, snapshot, profile, laps);
    laps.point(Point::PreFilter, Ended::Success);
    let fits = |node: &NodeInfo, laps: Option<&mut dyn Laps>| {
        judges.filter_with_nominated(pod, node, snapshot.nominated(&node.name), laps)
    };
    if let Some(node) = snapshot.get(&pod.nominated) {
        if fits(node, None).is_ok() {
            laps.point(Point::Filter, Ended::Success);
            return Choice::Node { name: node.name.clone() };
        }
    }
    let only = judges.0.iter().find_map(|(plugin, judge)| Some((plugin.name(), judge.only()?)));
    let start = rng.below(snapshot.len() as u64) as usize;
    let (enough, candidates): (usize, Box<dyn Iterator<Item = &NodeInfo>>) = match &only {
        Some((_, names)) => (names.len(), Box::new(names.iter().filter_map(|n| snapshot.get(n)))),
        None => (enough(snapshot.len()), Box::new(snapshot.nodes_from(start))),
    };
    let mut feasible = Vec::new();
    let mut looked_at = 0;
    for node in candidates {
        let told = laps.hears_plugins() && looked_at < NODES;
        looked_at += 1;
        match fits(node, if told { Some(&mut *laps) } else { None }) {
            Ok(()) => feasible.push(node),
            Err((plugin, refusal)) => unfit.refuse(plugin, refusal, &node.name),
        }
        if feasible.len() >= enough {
            break;
        }
    }
    laps.point(Point::Filter, if feasible.is_empty() { Ended::Unschedulable } else { Ended::Success });
    if feasible.is_empty() {
        // The nodes the pod did not name were never asked.
        if let Some((plugin, _)) = only {
            let rest = unfit.nodes.saturating_sub(looked_at);
            if rest > 0 {
                unfit.reasons.insert(Cow::Owned(format!("node(s) didn't satisfy plugin(s) [{plugin}]")), rest);
                *unfit.plugins.entry(plugin).or_default() += rest;
            }
        }
        return Choice::Unfit(unfit);
    }
    Choice::Node { name: best(&feasible, &judges, rng, laps).name.clone() }
}

fn best<'n>(feasible: &[&'n NodeInfo], judges: &Judges<'_>, rng: &Rng, laps: &mut dyn Laps) -> &'n NodeInfo {
    let mut totals = vec![0i64; feasible.len()];
    if feasible.len() > 1 {
        for (plugin, judge) in judges.0.iter().filter(|(_, j)| j.scores()) {
            laps.between();
            let (first, rest) = feasible.split_at(if laps.hears_plugins() { feasible.len().min(NODES) } else { 0 });
            let mut scores = Vec::with_capacity(feasible.len());
            for node in first {
                scores.push(judge.score(node));
                laps.plugin(Point::Score, plugin.name(), Ended::Success);
            }
            scores.extend(rest.iter().map(|node| judge.score(node)));
            judge.normalize(&mut scores);
            for (total, score) in totals.iter_mut().zip(scores) {
                *total += score * plugin.weight();
            }
        }
        laps.point(Point::Score, Ended::Success);
    }
    let top = totals.iter().copied().max().unwrap_or_default();
    let ties: Vec<usize> = (0..totals.len()).filter(|i| totals[*i] == top).collect();
    feasible[ties[rng.below(ties.len() as u64) as usize]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laps::Untimed;
    use crate::node::NodeFacts;
    use crate::plugins::testing::{asking, facts, pod, roomy};
    use serde_json::json;

    fn cluster(nodes: Vec<NodeFacts>, pods: Vec<(&str, PodInfo)>) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for node in nodes {
            snapshot.set_node(node);
        }
        for (node, pod) in pods {
            snapshot.place(Arc::new(pod), node);
        }
        snapshot
    }

    fn decide(pod: &PodInfo, snapshot: &Snapshot) -> String {
        match choose(pod, snapshot, &Profile::default(), &Rng::seeded(1), &mut Untimed) {
            Choice::Node { name } => name,
            Choice::Unfit(unfit) => unfit.message(),
        }
    }

    #[test]
    fn the_better_node_is_chosen() {
        let busy = asking("q", json!({"cpu": "2", "memory": "4Gi"}));
        let snapshot = cluster(vec![roomy("a"), roomy("b")], vec![("a", busy)]);
        assert_eq!(decide(&asking("p", json!({"cpu": "1", "memory": "1Gi"})), &snapshot), "b");
        assert_eq!(decide(&pod("p", json!({"nodeName": "a"})), &snapshot), "a");
    }

    #[test]
    fn the_message_counts_and_sorts_reasons_as_texts() {
        assert_eq!(decide(&asking("p", json!({})), &cluster(vec![], vec![])), "no nodes available to schedule pods");
        let mut nodes: Vec<NodeFacts> = (0..10).map(|i| roomy(&format!("n{i}"))).collect();
        for i in 0..2 {
            nodes.push(facts(&format!("c{i}"), json!({}), json!({"unschedulable": true}), json!({})));
        }
        let taints = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
        nodes.push(facts("t", json!({}), taints, json!({})));
        let snapshot = cluster(nodes, vec![]);
        assert_eq!(
            decide(&asking("p", json!({"cpu": "64", "memory": "1Ti"})), &snapshot),
            "0/13 nodes are available: 1 node(s) had untolerated taint(s), 10 Insufficient cpu, 10 Insufficient memory, 2 node(s) were unschedulable."
        );
    }

    #[test]
    fn a_pod_of_a_daemon_set_is_told_about_its_node_only() {
        let snapshot = cluster(vec![roomy("a"), roomy("b"), roomy("c")], vec![]);
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}}});
        let want = |cpu: &str| {
            pod(
                "p",
                json!({"affinity": affinity, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}),
            )
        };
        assert_eq!(decide(&want("1"), &snapshot), "b");
        assert_eq!(
            decide(&want("9"), &snapshot),
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]."
        );
    }

    #[test]
    fn room_for_a_preemptor_is_not_given_away() {
        let mut snapshot = cluster(vec![roomy("a")], vec![]);
        let preemptor = Arc::new(PodInfo { priority: 10, ..asking("high", json!({"cpu": "3"})) });
        snapshot.nominate(&preemptor, "a");
        let low = asking("low", json!({"cpu": "2"}));
        assert_eq!(decide(&low, &snapshot), "0/1 nodes are available: 1 Insufficient cpu.");
        assert_eq!(decide(&PodInfo { priority: 11, ..low }, &snapshot), "a");
        let mut itself = (*preemptor).clone();
        itself.nominated = "a".into();
        assert_eq!(decide(&itself, &snapshot), "a");
    }

    #[test]
    fn of_many_nodes_some_are_enough() {
        for (nodes, want) in [(0, 0), (99, 99), (100, 100), (250, 120), (1000, 420), (5000, 500), (10_000, 500)] {
            assert_eq!(enough(nodes), want, "{nodes}");
        }
    }

    #[test]
    fn ties_are_broken_by_the_seed_alone() {
        let snapshot = cluster((0..5).map(|i| roomy(&format!("n{i}"))).collect(), vec![]);
        let pick =
            |seed| choose(&asking("p", json!({})), &snapshot, &Profile::default(), &Rng::seeded(seed), &mut Untimed);
        assert_eq!(pick(3), pick(3));
        let distinct: std::collections::BTreeSet<String> = (0..50).map(|s| format!("{:?}", pick(s))).collect();
        assert_eq!(distinct.len(), 5);
    }

    #[derive(Default)]
    struct Heard(Vec<String>);

    impl Laps for Heard {
        fn hears_plugins(&self) -> bool {
            true
        }

        fn plugin(&mut self, point: Point, plugin: &'static str, ended: Ended) {
            self.0.push(format!("{} {plugin} {}", point.name(), ended.name()));
        }

        fn between(&mut self) {}

        fn point(&mut self, point: Point, ended: Ended) {
            self.0.push(format!("{} {}", point.name(), ended.name()));
        }
    }

    #[test]
    fn what_is_done_is_told_and_of_many_nodes_some() {
        let nodes = |count: usize| cluster((0..count).map(|i| roomy(&format!("n{i}"))).collect(), vec![]);
        let heard = |pod: &PodInfo, snapshot: &Snapshot| {
            let mut heard = Heard::default();
            choose(pod, snapshot, &Profile::default(), &Rng::seeded(1), &mut heard);
            heard.0
        };
        let one = heard(&asking("p", json!({"cpu": "9"})), &nodes(1));
        for want in
            ["PreFilter NodeName Skip", "PreFilter Success", "Filter NodeResourcesFit UnschedulableAndUnresolvable"]
        {
            assert!(one.iter().any(|line| line == want), "{want}: {one:?}");
        }
        assert_eq!(one.last().map(String::as_str), Some("Filter Unschedulable"));
        let many = heard(&asking("p", json!({"cpu": "1"})), &nodes(3 * NODES));
        for point in ["Filter", "Score"] {
            let want = format!("{point} NodeResourcesFit Success");
            assert_eq!(many.iter().filter(|line| **line == want).count(), NODES, "{many:?}");
        }
        assert_eq!(many.last().map(String::as_str), Some("Score Success"));
    }
}
