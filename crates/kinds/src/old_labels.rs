//! Labels of nodes that have newer names: whoever still uses the old ones is told.

/// The old name, since when it is old, and the new name.
pub const OLD_LABELS: &[(&str, &str, &str)] = &[
    ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/region", "v1.17", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "v1.17", "topology.kubernetes.io/zone"),
    ("beta.kubernetes.io/instance-type", "v1.17", "node.kubernetes.io/instance-type"),
];

/// What is said of others that are old.
const OTHERS: &[(&str, &str)] = &[
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// What to use instead, for a label that is old.
pub fn advice(key: &str) -> Option<String> {
    if let Some((_, told)) = OTHERS.iter().find(|(old, _)| *old == key) {
        return Some((*told).to_owned());
    }
    let (_, since, new) = OLD_LABELS.iter().find(|(old, _, _)| *old == key)?;
    Some(format!("deprecated since {since}; use \"{new}\" instead"))
}
