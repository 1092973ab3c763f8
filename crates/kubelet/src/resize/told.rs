//! What is said of a resize: two conditions, and events. Pure.

use api::types::core::v1::{Container, PodCondition, PodStatus, ResourceRequirements};
use serde::Serialize;

use crate::pod::BoundPod;

pub const PENDING: &str = "PodResizePending";
pub const IN_PROGRESS: &str = "PodResizeInProgress";

/// One condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub reason: String,
    pub message: String,
    /// Of the pod, when the resize was asked for.
    pub generation: i64,
}

/// Where a pod's resize stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resizing {
    /// What is wished for is not allocated.
    pub pending: Option<Said>,
    /// What is allocated is not what containers have.
    pub progress: Option<Said>,
}

impl Resizing {
    /// What a status said.
    pub fn of(status: &PodStatus) -> Self {
        let said = |kind: &str| {
            let found = status.conditions.iter().flatten().find(|c| c.type_ == kind && c.status == "True")?;
            Some(Said {
                reason: found.reason.clone().unwrap_or_default(),
                message: found.message.clone().unwrap_or_default(),
                generation: found.observed_generation.unwrap_or_default(),
            })
        };
        Self { pending: said(PENDING), progress: said(IN_PROGRESS) }
    }

    /// The conditions, without their times.
    pub fn conditions(&self) -> Vec<PodCondition> {
        let text = |text: &String| (!text.is_empty()).then(|| text.clone());
        let all = [(PENDING, &self.pending), (IN_PROGRESS, &self.progress)];
        let said = all.into_iter().filter_map(|(kind, said)| said.as_ref().map(|said| (kind, said)));
        said.map(|(kind, said)| PodCondition {
            type_: kind.into(),
            status: "True".into(),
            reason: text(&said.reason),
            message: text(&said.message),
            observed_generation: Some(said.generation).filter(|g| *g > 0),
            ..PodCondition::default()
        })
        .collect()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Part<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<Part<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct Part<'a> {
    name: &'a str,
    resources: ResourceRequirements,
}

/// The text of an event about a resize: `what` happened, to which resources, and why.
pub fn message(pod: &BoundPod, what: &str, generation: i64, error: &str) -> String {
    fn parts(list: &[Container]) -> Vec<Part<'_>> {
        let part = |c: &'_ Container| c.resources.clone().unwrap_or_default();
        list.iter().map(|c| Part { name: &c.name, resources: part(c) }).collect()
    }
    let init_containers = parts(pod.init_containers());
    let summary = Summary { init_containers, containers: parts(pod.containers()), generation, error };
    match serde_json::to_string(&summary) {
        Ok(summary) => format!("Pod resize {what}: {summary}"),
        Err(_) => format!("Pod resize {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn events_name_the_resources() {
        let pod =
            pod(json!({"spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}, {"name": "b"}]}}));
        assert_eq!(
            message(&pod, "started", 3, ""),
            r#"Pod resize started: {"containers":[{"name":"a","resources":{"limits":{"cpu":"1"}}},{"name":"b","resources":{}}],"generation":3}"#
        );
        let text = message(&pod, "Deferred", 3, "no room");
        assert!(
            text.starts_with("Pod resize Deferred: {") && text.ends_with(r#""generation":3,"error":"no room"}"#),
            "{text}"
        );
    }

    #[test]
    fn conditions_come_back_from_a_status() {
        let said = |reason: &str, generation| Some(Said { reason: reason.into(), message: "m".into(), generation });
        let all = Resizing { pending: said("Deferred", 2), progress: said("", 1) };
        let status = PodStatus { conditions: Some(all.conditions()), ..PodStatus::default() };
        assert_eq!(Resizing::of(&status), all);
        assert_eq!(Resizing::of(&PodStatus::default()), Resizing::default());
    }
}
