//! Which nodes a pod's `nodeSelector` and node affinity admit.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod};

/// What affinity looks at of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeFacts<'a> {
    pub name: &'a str,
    pub labels: &'a BTreeMap<String, String>,
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |v: &str| values.iter().any(|w| w == v);
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        operator @ ("Gt" | "Lt") => {
            let have = value.and_then(|v| v.parse::<i64>().ok());
            let want = values.first().and_then(|v| v.parse::<i64>().ok());
            matches!((have, want), (Some(h), Some(w)) if if operator == "Gt" { h > w } else { h < w })
        }
        _ => false,
    }
}

/// Does the node satisfy every requirement of the term? A term without requirements admits none.
pub fn term_matches(term: &NodeSelectorTerm, node: NodeFacts<'_>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |r: &NodeSelectorRequirement| r.key == "metadata.name" && holds(r, Some(node.name));
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|r| holds(r, node.labels.get(&r.key).map(String::as_str)))
        && fields.iter().all(field)
}

/// Does the node satisfy one of the terms?
pub fn selector_matches(selector: &NodeSelector, node: NodeFacts<'_>) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, node))
}

/// The node affinity of a pod, if it has one.
pub fn node_affinity(pod: &Pod) -> Option<&NodeAffinity> {
    pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()
}

/// May the pod run on the node, by its `nodeSelector` and its required node affinity?
pub fn admits(pod: &Pod, node: NodeFacts<'_>) -> bool {
    let spec = pod.spec.as_ref();
    let wanted = spec.and_then(|s| s.node_selector.as_ref()).into_iter().flatten();
    let required = node_affinity(pod).and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    wanted.into_iter().all(|(k, v)| node.labels.get(k) == Some(v))
        && required.is_none_or(|selector| selector_matches(selector, node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selector_and_affinity_admit_nodes() {
        let labels: BTreeMap<String, String> =
            [("zone", "a"), ("cpus", "8")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let node = NodeFacts { name: "n1", labels: &labels };
        let term = |expression: serde_json::Value| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [expression]}}}})
        };
        let expression = |e: serde_json::Value| term(json!({"matchExpressions": [e]}));
        for (spec, want) in [
            (json!({}), true),
            (json!({"nodeSelector": {"zone": "a"}}), true),
            (json!({"nodeSelector": {"zone": "b"}}), false),
            (expression(json!({"key": "zone", "operator": "In", "values": ["a", "b"]})), true),
            (expression(json!({"key": "zone", "operator": "NotIn", "values": ["a"]})), false),
            (expression(json!({"key": "none", "operator": "NotIn", "values": ["a"]})), true),
            (expression(json!({"key": "zone", "operator": "Exists"})), true),
            (expression(json!({"key": "zone", "operator": "DoesNotExist"})), false),
            (expression(json!({"key": "cpus", "operator": "Gt", "values": ["4"]})), true),
            (expression(json!({"key": "cpus", "operator": "Lt", "values": ["8"]})), false),
            (expression(json!({"key": "zone", "operator": "Gt", "values": ["4"]})), false),
            (expression(json!({"key": "zone", "operator": "Near"})), false),
            (term(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]})), true),
            (term(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]})), false),
            (term(json!({})), false),
        ] {
            let mut spec = spec;
            spec["containers"] = json!([]);
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).expect("a pod");
            assert_eq!(admits(&pod, node), want, "{spec}");
        }
    }
}
