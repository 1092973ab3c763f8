//! NodeAffinity: `nodeSelector` and required node affinity filter, preferred terms score.

use api::affinity::{selector_matches, term_matches};

use super::{ClusterEvent, Judge, Plugin, Refusal, scale};
use crate::node::{NodeFacts, NodeInfo};
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// See the module.
pub struct NodeAffinity;

struct Prepared<'a>(&'a PodInfo);

fn admits(pod: &PodInfo, node: &NodeFacts) -> bool {
    let required =
        pod.node_affinity.as_ref().and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    pod.node_selector.iter().all(|(k, v)| node.labels.get(k) == Some(v))
        && required.is_none_or(|selector| selector_matches(selector, node.affine()))
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn weight(&self) -> i64 {
        2
    }

    fn prepare<'a>(&'a self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn Judge + 'a>> {
        if pod.node_selector.is_empty() && pod.node_affinity.is_none() { None } else { Some(Box::new(Prepared(pod))) }
    }

    fn wakes(&self, pod: &PodInfo, event: ClusterEvent<'_>) -> bool {
        match event {
            ClusterEvent::NodeAdded(node) => admits(pod, node),
            ClusterEvent::NodeChanged { old, new } => old.labels != new.labels && admits(pod, new),
            ClusterEvent::PodGone(_) => false,
        }
    }
}

impl Judge for Prepared<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        if admits(self.0, node) {
            Ok(())
        } else {
            Err(Refusal::never("node(s) didn't match Pod's node affinity/selector"))
        }
    }

    /// Pods of a DaemonSet name their node in `matchFields` of every term: only those need a look.
    fn only(&self) -> Option<Vec<&str>> {
        let required = self.0.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution.as_ref()?;
        let mut names = Vec::new();
        for term in &required.node_selector_terms {
            let mut of_term: Option<Vec<&str>> = None;
            for field in term.match_fields.iter().flatten() {
                if field.key == "metadata.name" && field.operator == "In" {
                    let values: Vec<&str> = field.values.iter().flatten().map(String::as_str).collect();
                    of_term = Some(match of_term {
                        Some(before) => before.into_iter().filter(|n| values.contains(n)).collect(),
                        None => values,
                    });
                }
            }
            names.extend(of_term?);
        }
        names.sort_unstable();
        names.dedup();
        Some(names)
    }

    fn scores(&self) -> bool {
        let preferred = |a: &k8s_openapi::api::core::v1::NodeAffinity| {
            a.preferred_during_scheduling_ignored_during_execution.as_ref().is_some_and(|p| !p.is_empty())
        };
        self.0.node_affinity.as_deref().is_some_and(preferred)
    }

    fn score(&self, node: &NodeInfo) -> i64 {
        let affinity = self.0.node_affinity.as_ref();
        let preferred = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
        let met = preferred.into_iter().flatten().filter(|p| term_matches(&p.preference, node.affine()));
        met.map(|p| i64::from(p.weight)).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        scale(scores, false);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{facts, filter, node, pod, scores};
    use super::*;
    use serde_json::{Value, json};

    fn labelled(name: &str, labels: Value) -> NodeInfo {
        node(facts(name, labels, json!({}), json!({})), vec![])
    }

    fn required(terms: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    #[test]
    fn selector_and_required_terms_filter() {
        let no = "!node(s) didn't match Pod's node affinity/selector";
        let on = labelled("n", json!({"zone": "a"}));
        let zone = |z: &str| json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": [z]}]}]);
        for (spec, want) in [
            (json!({}), "skip"),
            (json!({"nodeSelector": {"zone": "a"}}), "fits"),
            (json!({"nodeSelector": {"zone": "b"}}), no),
            (required(zone("a")), "fits"),
            (required(zone("b")), no),
        ] {
            assert_eq!(filter(&NodeAffinity, &pod("p", spec.clone()), &on), want, "{spec}");
        }
        let waiting = pod("p", json!({"nodeSelector": {"zone": "b"}}));
        let after = labelled("n", json!({"zone": "b"}));
        assert!(NodeAffinity.wakes(&waiting, ClusterEvent::NodeChanged { old: &on.facts, new: &after.facts }));
        assert!(!NodeAffinity.wakes(&waiting, ClusterEvent::NodeAdded(&on.facts)));
    }

    #[test]
    fn a_pod_that_names_its_nodes_needs_no_others() {
        let snapshot = Snapshot::default();
        let name = |names: Value| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": names}]});
        for (terms, want) in [
            (json!([name(json!(["b", "a"]))]), Some(vec!["a", "b"])),
            (json!([name(json!(["a"])), {"matchExpressions": [{"key": "x", "operator": "Exists"}]}]), None),
        ] {
            let pod = pod("p", required(terms));
            let judge = NodeAffinity.prepare(&pod, &snapshot).expect("it has affinity");
            assert_eq!(judge.only(), want);
        }
    }

    #[test]
    fn preferred_terms_score() {
        let term = |z: &str, w: i32| json!({"weight": w, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": [z]}]}});
        let spec = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term("a", 10), term("b", 40)]}}});
        let nodes = ["a", "b", "c"].map(|z| labelled(z, json!({ "zone": z })));
        assert_eq!(scores(&NodeAffinity, &pod("p", spec), &nodes), Some(vec![25, 100, 0]));
        assert_eq!(scores(&NodeAffinity, &pod("p", json!({"nodeSelector": {"zone": "a"}})), &nodes), None);
    }
}
