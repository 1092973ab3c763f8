//! The flow schemas and priority levels every cluster has: mandatory ones, which nobody changes, and
//! suggested ones, which are the server's until somebody changes them.

use api::types::flowcontrol::v1 as flow;
use machinery::field::{FieldErrors, Path};
use serde_json::{Value, json};

/// Says of an object whether the server keeps its spec up to date.
pub const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
/// What of `metadata` a write of the status does not change.
pub(crate) const STATUS_KEEPS: &[&str] =
    &["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"];

const GROUP_VERSION: &str = "flowcontrol.apiserver.k8s.io/v1";
const EVERYBODY: &[&str] = &["system:unauthenticated", "system:authenticated"];

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": GROUP_VERSION, "kind": kind,
        "metadata": {"name": name, "annotations": {AUTO_UPDATE: "true"}},
        "spec": spec,
    })
}

/// A limited level: its shares, how much of them it lends, over how many queues it waits and how many
/// of them a flow is dealt.
fn level(name: &str, shares: u32, lends: u32, queues: u32, hand: u32) -> Value {
    let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
    let limited = json!({
        "nominalConcurrencyShares": shares, "lendablePercent": lends,
        "limitResponse": {"type": "Queue", "queuing": queuing},
    });
    object("PriorityLevelConfiguration", name, json!({"type": "Limited", "limited": limited}))
}

fn groups(names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| json!({"kind": "Group", "group": {"name": name}})).collect()
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

fn system_accounts() -> Value {
    json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "kube-system"}})
}

fn resources(verbs: &[&str], group: &str, resources: &[&str], cluster: bool) -> Value {
    let mut rule = json!({"verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": ["*"]});
    if cluster {
        rule["clusterScope"] = true.into();
    }
    rule
}

fn schema(name: &str, level: &str, precedence: u32, method: &str, rule: Value) -> Value {
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": [rule],
    });
    if !method.is_empty() {
        spec["distinguisherMethod"] = json!({"type": method});
    }
    object("FlowSchema", name, spec)
}

/// All requests of these subjects.
fn everything(subjects: Vec<Value>) -> Value {
    json!({
        "subjects": subjects,
        "resourceRules": [resources(&["*"], "*", &["*"], true)],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    })
}

/// The objects that always are as they are here: levels first.
pub fn mandatory() -> Vec<Value> {
    let limited = json!({
        "nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"},
    });
    let exempt = json!({"nominalConcurrencyShares": 0, "lendablePercent": 0});
    vec![
        object("PriorityLevelConfiguration", "catch-all", json!({"type": "Limited", "limited": limited})),
        object("PriorityLevelConfiguration", "exempt", json!({"type": "Exempt", "exempt": exempt})),
        schema("exempt", "exempt", 1, "", everything(groups(&["system:masters"]))),
        schema("catch-all", "catch-all", 10_000, "ByUser", everything(groups(EVERYBODY))),
    ]
}

/// The objects a cluster starts with: levels first.
pub fn suggested() -> Vec<Value> {
    let (manager, scheduler) = (user("system:kube-controller-manager"), user("system:kube-scheduler"));
    let nodes = || groups(&["system:nodes"]);
    let probes = json!({
        "subjects": groups(EVERYBODY),
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}],
    });
    let election = json!({
        "subjects": [manager, scheduler, system_accounts()],
        "resourceRules": [resources(&["get", "create", "update"], "coordination.k8s.io", &["leases"], false)],
    });
    let health = json!({
        "subjects": nodes(),
        "resourceRules": [
            resources(&["*"], "", &["nodes", "nodes/status"], true),
            resources(&["*"], "coordination.k8s.io", &["leases"], false),
        ],
    });
    vec![
        level("system", 30, 33, 64, 6),
        level("node-high", 40, 25, 64, 6),
        level("leader-election", 10, 0, 16, 4),
        level("workload-high", 40, 50, 128, 6),
        level("workload-low", 100, 90, 128, 6),
        level("global-default", 20, 50, 128, 6),
        schema("system-nodes", "system", 500, "ByUser", everything(nodes())),
        schema("system-node-high", "node-high", 400, "ByUser", health),
        schema("probes", "exempt", 2, "", probes),
        schema("system-leader-election", "leader-election", 100, "ByUser", election),
        schema("kube-controller-manager", "workload-high", 800, "ByNamespace", everything(vec![manager])),
        schema("kube-scheduler", "workload-high", 800, "ByNamespace", everything(vec![scheduler])),
        schema(
            "kube-system-service-accounts",
            "workload-high",
            900,
            "ByNamespace",
            everything(vec![system_accounts()]),
        ),
        schema("service-accounts", "workload-low", 9000, "ByUser", everything(groups(&["system:serviceaccounts"]))),
        schema("global-default", "global-default", 9900, "ByUser", everything(groups(EVERYBODY))),
    ]
}

/// The spec a mandatory object of this kind and name must have.
fn fixed(kind: &str, name: &str) -> Option<Value> {
    if !matches!(name, "exempt" | "catch-all") {
        return None;
    }
    let is_it = |object: &Value| object["kind"] == kind && object["metadata"]["name"] == name;
    mandatory().into_iter().find(is_it).map(|mut object| object["spec"].take())
}

pub(crate) fn fixed_schema(name: &str) -> Option<flow::FlowSchemaSpec> {
    fixed("FlowSchema", name).and_then(|spec| serde_json::from_value(spec).ok())
}

pub(crate) fn fixed_level(name: &str) -> Option<flow::PriorityLevelConfigurationSpec> {
    fixed("PriorityLevelConfiguration", name).and_then(|spec| serde_json::from_value(spec).ok())
}

/// Each type of condition is there once, and named.
pub(crate) fn condition_types<'a>(types: impl Iterator<Item = &'a str>, errors: &mut FieldErrors) {
    let mut seen = std::collections::BTreeSet::new();
    for (i, type_) in types.enumerate() {
        let path = Path::new("status").child("conditions").index(i).child("type");
        if !seen.insert(type_) {
            errors.duplicate(&path, type_);
        }
        if type_.is_empty() {
            errors.required(&path, "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fixed_can_be_read() {
        assert_eq!(fixed_schema("exempt").unwrap().matching_precedence, Some(1));
        assert_eq!(fixed_level("catch-all").unwrap().limited.unwrap().nominal_concurrency_shares, Some(5));
        assert_eq!(fixed_schema("global-default"), None);
    }
}
