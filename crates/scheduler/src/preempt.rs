//! DefaultPreemption: which pods of lower priority would have to go, and where. Pure.
//!
//! Disruption budgets are not looked at: the kind does not exist here yet.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use stdx::Rng;

use crate::choose::{Judges, Unfit, render};
use crate::laps::Untimed;
use crate::node::NodeInfo;
use crate::plugins::Profile;
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// What preemption came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Preemption {
    /// The pod may not preempt; in the words users read.
    NotEligible(&'static str),
    /// No node would do even then; why, by count.
    Nowhere { nodes: usize, reasons: BTreeMap<Cow<'static, str>, usize> },
    /// These must go from there.
    Victims { node: String, victims: Vec<Arc<PodInfo>> },
}

impl Preemption {
    /// The clause at the end of a FailedScheduling message.
    pub fn clause(&self) -> String {
        match self {
            Self::NotEligible(why) => format!("preemption: {why}"),
            Self::Nowhere { nodes, reasons } => format!("preemption: {}", render(*nodes, reasons)),
            Self::Victims { node, victims } => format!(
                "preemption: found a potential placement for pod on node {node}, preempting {} victims",
                victims.len()
            ),
        }
    }
}

const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// Decides whom `pod`, which fits nowhere for the reasons in `unfit`, may push aside.
pub fn plan(pod: &PodInfo, unfit: &Unfit, snapshot: &Snapshot, profile: &Profile, rng: &Rng) -> Preemption {
    if pod.never_preempts {
        return Preemption::NotEligible("not eligible due to preemptionPolicy=Never.");
    }
    if let Some(node) = snapshot.get(&pod.nominated) {
        if node.pods.values().any(|p| p.preempted && p.deleting && p.priority < pod.priority) {
            return Preemption::NotEligible("not eligible due to a terminating pod on the nominated node.");
        }
    }
    let mut reasons: BTreeMap<Cow<'static, str>, usize> = BTreeMap::new();
    let hopeless = unfit.nodes.saturating_sub(unfit.crowded.len());
    if hopeless > 0 {
        reasons.insert(Cow::Borrowed(NOT_HELPFUL), hopeless);
    }
    let judges = Judges::prepare(pod, snapshot, profile, &mut Untimed);
    let enough = (unfit.nodes / 10).max(100);
    let start = rng.below(unfit.crowded.len() as u64) as usize;
    let (before, after) = unfit.crowded.split_at(start);
    let mut candidates = Vec::new();
    for node in after.iter().chain(before).filter_map(|name| snapshot.get(name)) {
        match victims(pod, node, snapshot.nominated(&node.name), &judges) {
            Ok(victims) => candidates.push((node, victims)),
            Err(why) => {
                for reason in why {
                    *reasons.entry(reason).or_default() += 1;
                }
            }
        }
        if candidates.len() >= enough {
            break;
        }
    }
    let least = candidates.into_iter().min_by_key(|(_, victims)| cost(victims));
    match least {
        Some((node, victims)) => Preemption::Victims { node: node.name.clone(), victims },
        None => Preemption::Nowhere { nodes: unfit.nodes, reasons },
    }
}

/// More important pods first: by priority, then by who has run longer.
fn importance(pod: &PodInfo) -> (Reverse<i32>, Timestamp, &str) {
    let since = pod.started.or(pod.created).unwrap_or(Timestamp::MAX);
    (Reverse(pod.priority), since, &pod.uid)
}

/// The fewest and least important pods whose going lets `pod` in.
fn victims(
    pod: &PodInfo,
    node: &NodeInfo,
    nominated: &[Arc<PodInfo>],
    judges: &Judges<'_>,
) -> Result<Vec<Arc<PodInfo>>, Vec<Cow<'static, str>>> {
    let mut lower: Vec<Arc<PodInfo>> = node.pods.values().filter(|p| p.priority < pod.priority).cloned().collect();
    if lower.is_empty() {
        return Err(vec![Cow::Borrowed(NO_VICTIMS)]);
    }
    let mut without = node.clone();
    for other in nominated.iter().filter(|p| p.uid != pod.uid && p.priority >= pod.priority) {
        without.add(other.clone());
    }
    for victim in &lower {
        without.remove(&victim.uid);
    }
    judges.filter(&without).map_err(|(_, refusal)| refusal.reasons)?;
    lower.sort_by(|a, b| importance(a).cmp(&importance(b)));
    // Each may stay, the most important first, if the pod still fits.
    lower.retain(|victim| {
        without.add(victim.clone());
        let stays = judges.filter(&without).is_ok();
        if !stays {
            without.remove(&victim.uid);
        }
        !stays
    });
    if lower.is_empty() { Err(vec![Cow::Borrowed(NO_VICTIMS)]) } else { Ok(lower) }
}

/// What a set of victims costs: the highest priority among them, then the sum, then how many, then
/// how long the most important has run (the youngest is the cheapest).
fn cost(victims: &[Arc<PodInfo>]) -> (i32, i64, usize, Reverse<Timestamp>) {
    let highest = victims.iter().map(|p| p.priority).max().unwrap_or(i32::MIN);
    // Shifted above zero, so that more victims never cost less.
    let sum = victims.iter().map(|p| i64::from(p.priority) + i64::from(i32::MAX) + 1).sum();
    let oldest = victims.iter().filter(|p| p.priority == highest);
    let oldest = oldest.filter_map(|p| p.started.or(p.created)).min().unwrap_or(Timestamp::MAX);
    (highest, sum, victims.len(), Reverse(oldest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::{Choice, choose};
    use crate::plugins::testing::{asking, roomy};
    use serde_json::json;

    fn of(name: &str, priority: i32, cpu: &str) -> PodInfo {
        PodInfo { priority, ..asking(name, json!({ "cpu": cpu })) }
    }

    /// Nodes of 4 cores with the pods given; who goes, or the clause.
    fn check(pod: &PodInfo, nodes: &[(&str, Vec<PodInfo>)]) -> String {
        let mut snapshot = Snapshot::default();
        for (name, pods) in nodes {
            snapshot.set_node(roomy(name));
            for pod in pods {
                snapshot.place(Arc::new(pod.clone()), name);
            }
        }
        let (profile, rng) = (Profile::default(), Rng::seeded(1));
        let Choice::Unfit(unfit) = choose(pod, &snapshot, &profile, &rng, &mut Untimed) else {
            return "fits".to_owned();
        };
        match plan(pod, &unfit, &snapshot, &profile, &rng) {
            Preemption::Victims { node, victims } => {
                let names: Vec<&str> = victims.iter().map(|v| v.name.as_str()).collect();
                format!("{node}: {}", names.join(" "))
            }
            other => other.clause(),
        }
    }

    #[test]
    fn the_least_harm_is_chosen() {
        let want = of("p", 10, "3");
        for (nodes, result) in [
            // Only who must go goes: the smaller of the two may stay.
            (vec![("a", vec![of("x", 1, "3"), of("y", 1, "1")])], "a: x"),
            // The more important one stays when either would do.
            (vec![("a", vec![of("x", 5, "2"), of("y", 1, "2"), of("z", 0, "0")])], "a: x y"),
            (vec![("a", vec![of("x", 5, "1"), of("y", 1, "3")])], "a: y"),
            // The node whose victims matter least.
            (vec![("a", vec![of("x", 5, "4")]), ("b", vec![of("y", 4, "4")])], "b: y"),
            (vec![("a", vec![of("x", 1, "2"), of("y", 1, "2")]), ("b", vec![of("z", 1, "4")])], "b: z"),
            (
                vec![("a", vec![of("x", 10, "4")])],
                "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
            ),
            (
                vec![("a", vec![of("x", 10, "2"), of("y", 1, "2")])],
                "preemption: 0/1 nodes are available: 1 Insufficient cpu.",
            ),
        ] {
            assert_eq!(check(&want, &nodes), result, "{nodes:?}");
        }
        assert_eq!(
            check(&of("p", 10, "64"), &[("a", vec![of("x", 1, "4")]), ("b", vec![])]),
            "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
        );
        let never = PodInfo { never_preempts: true, ..want };
        assert_eq!(
            check(&never, &[("a", vec![of("x", 1, "4")])]),
            "preemption: not eligible due to preemptionPolicy=Never."
        );
    }

    #[test]
    fn a_preemptor_waits_for_its_victims() {
        let want = PodInfo { nominated: "a".into(), ..of("p", 10, "3") };
        let going = PodInfo { deleting: true, preempted: true, ..of("x", 1, "4") };
        assert_eq!(
            check(&want, &[("a", vec![going])]),
            "preemption: not eligible due to a terminating pod on the nominated node."
        );
    }

    #[test]
    fn the_clause_of_a_success_names_the_place() {
        let victims = Preemption::Victims { node: "a".into(), victims: vec![Arc::new(of("x", 1, "1"))] };
        assert_eq!(victims.clause(), "preemption: found a potential placement for pod on node a, preempting 1 victims");
    }
}
