//! What the status of a definition should say; pure.

use api::meta::apis::meta::v1::Time;
use jiff::Timestamp;
use kinds::custom_resource_definition::{
    APPROVAL as CONFORMANT, Condition, Definition, ESTABLISHED, NAMES_ACCEPTED, TERMINATING,
};

use super::names::Verdict;

/// The annotation by which those who look after Kubernetes' own groups approve of a definition in one.
const APPROVAL: &str = "api-approved.kubernetes.io";

fn condition(kind: &str, status: bool, reason: &str, message: impl Into<String>) -> Condition {
    Condition {
        kind: kind.into(),
        status: if status { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
        ..Condition::default()
    }
}

/// Puts a condition in, with the time at which its status became what it is.
pub fn set(conditions: &mut Vec<Condition>, mut new: Condition, now: Timestamp) {
    let Some(old) = conditions.iter_mut().find(|old| old.kind == new.kind) else {
        new.last_transition_time = Some(Time(now));
        conditions.push(new);
        return;
    };
    let since = old.last_transition_time.take().filter(|_| old.status == new.status);
    new.last_transition_time = Some(since.unwrap_or(Time(now)));
    *old = new;
}

/// The conditions of a definition whose names were judged. `served` says that requests are answered.
pub fn of(definition: &Definition, verdict: &Verdict, served: bool, now: Timestamp) -> Vec<Condition> {
    let mut conditions = definition.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    if let Some(approval) = approval(definition) {
        set(&mut conditions, approval, now);
    }
    let accepted = match &verdict.refused {
        None => condition(NAMES_ACCEPTED, true, "NoConflicts", "no conflicts found"),
        Some((reason, message)) => condition(NAMES_ACCEPTED, false, reason, message),
    };
    set(&mut conditions, accepted, now);
    // What was established stays so, also when it wants other names that it cannot have.
    if !definition.is(ESTABLISHED) {
        let established = match (&verdict.refused, served) {
            (Some(_), _) => condition(ESTABLISHED, false, "NotAccepted", "not all names are accepted"),
            (None, false) => condition(ESTABLISHED, false, "Installing", "the initial names have been accepted"),
            (None, true) => {
                condition(ESTABLISHED, true, "InitialNamesAccepted", "the initial names have been accepted")
            }
        };
        set(&mut conditions, established, now);
    }
    conditions
}

/// A definition on its way out.
pub fn terminating(reason: &str, message: &str, done: bool) -> Condition {
    condition(TERMINATING, !done, reason, message)
}

/// Definitions in groups of Kubernetes' own say who approved of them.
fn approval(definition: &Definition) -> Option<Condition> {
    let group = definition.spec.group.as_str();
    let own = |domain: &str| group == domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    if !own("k8s.io") && !own("kubernetes.io") {
        return None;
    }
    const KIND: &str = CONFORMANT;
    let annotations = definition.metadata.annotations.as_ref();
    let annotation = annotations.and_then(|annotations| annotations.get(APPROVAL)).map(String::as_str);
    let url = |text: &str| {
        let rest = text.split_once("://");
        rest.is_some_and(|(scheme, rest)| {
            !scheme.is_empty()
                && scheme.bytes().all(|b| b.is_ascii_alphanumeric())
                && !rest.is_empty()
                && !rest.starts_with('/')
        })
    };
    Some(match annotation {
        None | Some("") => {
            let why = format!(
                "protected groups must have approval annotation {APPROVAL:?}, see \
                 https://github.com/kubernetes/enhancements/pull/1111"
            );
            condition(KIND, false, "MissingAnnotation", why)
        }
        Some(text) if url(text) => condition(KIND, true, "ApprovedAnnotation", format!("approved in {text}")),
        Some(text) if text.starts_with("unapproved") => {
            condition(KIND, false, "UnapprovedAnnotation", format!("not approved: {text:?}"))
        }
        Some(_) => {
            let why = format!(
                "protected groups must have approval annotation {APPROVAL:?} with either a URL or a reason starting \
                 with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"
            );
            condition(KIND, false, "InvalidAnnotation", why)
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(group: &str, annotation: Option<&str>, old: Value, refused: bool, served: bool, want: &[&str]) {
        let annotations = annotation.map(|text| json!({ APPROVAL: text }));
        let tree = json!({"metadata": {"name": "as.b.c", "annotations": annotations.unwrap_or(json!({}))},
            "spec": {"group": group, "names": {"plural": "as", "kind": "A"}}, "status": {"conditions": old}});
        let definition: Definition = serde_json::from_value(tree.clone()).expect("a definition");
        let refused = refused.then(|| ("KindConflict", "\"A\" is already in use".to_owned()));
        let verdict = Verdict { accepted: definition.spec.names.clone(), refused };
        let now = "2030-01-01T00:00:00Z".parse().expect("time");
        let got: Vec<String> = of(&definition, &verdict, served, now)
            .iter()
            .map(|c| {
                format!(
                    "{}={} {} {}",
                    c.kind,
                    c.status,
                    c.reason,
                    c.last_transition_time.as_ref().map_or("-".to_owned(), |at| machinery::time::rfc3339(at.0))
                )
            })
            .collect();
        assert_eq!(got, want, "{tree}");
    }

    #[test]
    fn a_definition_is_established_once() {
        let now = "2030-01-01T00:00:00Z";
        check(
            "b.c",
            None,
            json!([]),
            false,
            true,
            &[
                &format!("NamesAccepted=True NoConflicts {now}"),
                &format!("Established=True InitialNamesAccepted {now}"),
            ],
        );
        check(
            "b.c",
            None,
            json!([]),
            true,
            false,
            &[&format!("NamesAccepted=False KindConflict {now}"), &format!("Established=False NotAccepted {now}")],
        );
        let old = json!([{"type": "NamesAccepted", "status": "True", "lastTransitionTime": "2029-01-01T00:00:00Z"},
            {"type": "Established", "status": "True", "reason": "Old", "lastTransitionTime": "2029-01-01T00:00:00Z"}]);
        check(
            "b.c",
            None,
            old.clone(),
            true,
            true,
            &[&format!("NamesAccepted=False KindConflict {now}"), "Established=True Old 2029-01-01T00:00:00Z"],
        );
        check(
            "b.c",
            None,
            old,
            false,
            true,
            &["NamesAccepted=True NoConflicts 2029-01-01T00:00:00Z", "Established=True Old 2029-01-01T00:00:00Z"],
        );
    }

    #[test]
    fn groups_of_kubernetes_own_need_approval() {
        for (group, annotation, want) in [
            ("b.c", None, None),
            ("mykubernetes.io", None, None),
            ("a.k8s.io", None, Some(("False", "MissingAnnotation"))),
            ("a.kubernetes.io", Some("https://example.com/1"), Some(("True", "ApprovedAnnotation"))),
            ("a.k8s.io", Some("unapproved, experimental"), Some(("False", "UnapprovedAnnotation"))),
            ("a.k8s.io", Some("whatever"), Some(("False", "InvalidAnnotation"))),
        ] {
            let annotations = annotation.map(|text| json!({ APPROVAL: text })).unwrap_or(json!({}));
            let tree = json!({"metadata": {"name": "x", "annotations": annotations},
                "spec": {"group": group, "names": {"plural": "as", "kind": "A"}}});
            let got = approval(&serde_json::from_value(tree).expect("a definition"));
            let got = got.as_ref().map(|c| (c.status.as_str(), c.reason.as_str()));
            assert_eq!(got, want, "{group} {annotation:?}");
        }
    }
}
