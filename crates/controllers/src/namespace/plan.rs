//! What a namespace that is going away says of itself, and whether it is empty. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NamespaceCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// What one pass over the content found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Groups that could not be discovered: version and error.
    pub undiscovered: Vec<(String, String)>,
    /// Deletions and listings that failed.
    pub failures: Vec<String>,
    /// Objects left per `plural.group`.
    pub remaining: BTreeMap<String, usize>,
    /// Objects left per finalizer.
    pub finalizers: BTreeMap<String, usize>,
}

impl Found {
    /// Nothing is left and nothing is unknown.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What is left, in the words of the condition.
    pub(super) fn remaining_text(&self) -> String {
        let each = self.remaining.iter().map(|(what, n)| format!("{what} has {n} resource instances"));
        format!("Some resources are remaining: {}", each.collect::<Vec<_>>().join(", "))
    }

    fn finalizers_text(&self) -> String {
        let each = self.finalizers.iter().map(|(name, n)| format!("{name} in {n} resource instances"));
        let each = each.collect::<Vec<_>>().join(", ");
        format!("Some content in the namespace has finalizers remaining: {each}")
    }
}

/// The conditions, changed where they changed; `None` when none did.
pub(super) fn conditions(old: &[NamespaceCondition], found: &Found, now: Timestamp) -> Option<Vec<NamespaceCondition>> {
    let undiscovered = found.undiscovered.len();
    let discovery = (undiscovered > 0).then(|| {
        let errors: Vec<String> = found.undiscovered.iter().map(|(group, error)| format!("{group}: {error}")).collect();
        let all = errors.join(", ");
        ("DiscoveryFailed", format!("Discovery failed for some groups, {undiscovered} failing: unable to retrieve the complete list of server APIs: {all}"))
    });
    let failures = found.failures.len();
    let content = (failures > 0).then(|| {
        let all = found.failures.join(", ");
        ("ContentDeletionFailed", format!("Failed to delete all resource types, {failures} remaining: {all}"))
    });
    let remaining = (!found.remaining.is_empty()).then(|| ("SomeResourcesRemain", found.remaining_text()));
    let finalizers = (!found.finalizers.is_empty()).then(|| ("SomeFinalizersRemain", found.finalizers_text()));
    let table = [
        (
            "NamespaceDeletionDiscoveryFailure",
            discovery,
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        (
            "NamespaceDeletionContentFailure",
            content,
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        ("NamespaceContentRemaining", remaining, "ContentRemoved", "All content successfully removed"),
        (
            "NamespaceFinalizersRemaining",
            finalizers,
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
        ),
    ];
    let mut out = old.to_vec();
    let mut changed = false;
    for (kind, failure, fine, fine_text) in table {
        let status = if failure.is_some() { "True" } else { "False" };
        let (reason, message) = failure.unwrap_or_else(|| (fine, fine_text.to_owned()));
        let new = NamespaceCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message),
            last_transition_time: Some(Time(now)),
        };
        match out.iter_mut().find(|c| c.type_ == kind) {
            None => {
                out.push(new);
                changed = true;
            }
            Some(old) if old.status != new.status || old.message != new.message || old.reason != new.reason => {
                let since = old.last_transition_time.clone().filter(|_| old.status == new.status);
                *old = NamespaceCondition { last_transition_time: since.or(new.last_transition_time.clone()), ..new };
                changed = true;
            }
            Some(_) => {}
        }
    }
    changed.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_say_what_is_left_and_settle() {
        let now = Timestamp::UNIX_EPOCH;
        let found = Found {
            remaining: [("pods.".to_owned(), 1), ("things.example.com".to_owned(), 2)].into(),
            finalizers: [("example.com/f".to_owned(), 2)].into(),
            ..Found::default()
        };
        let first = conditions(&[], &found, now).expect("new");
        let text = |list: &[NamespaceCondition], kind: &str| {
            let c = list.iter().find(|c| c.type_ == kind).expect("there");
            format!("{} {} {}", c.status, c.reason.clone().unwrap_or_default(), c.message.clone().unwrap_or_default())
        };
        assert_eq!(
            text(&first, "NamespaceContentRemaining"),
            "True SomeResourcesRemain Some resources are remaining: pods. has 1 resource instances, things.example.com has 2 resource instances"
        );
        assert_eq!(
            text(&first, "NamespaceFinalizersRemaining"),
            "True SomeFinalizersRemain Some content in the namespace has finalizers remaining: example.com/f in 2 resource instances"
        );
        assert_eq!(
            text(&first, "NamespaceDeletionContentFailure"),
            "False ContentDeleted All content successfully deleted, may be waiting on finalization"
        );
        assert_eq!(conditions(&first, &found, now), None);
        let over = conditions(&first, &Found::default(), now).expect("changed");
        assert_eq!(text(&over, "NamespaceContentRemaining"), "False ContentRemoved All content successfully removed");
        assert!(Found::default().is_empty() && !found.is_empty());
    }
}
