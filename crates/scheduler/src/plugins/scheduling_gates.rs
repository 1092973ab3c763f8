//! SchedulingGates: a pod with `spec.schedulingGates` waits until they are removed.

use super::{Judge, Plugin};
use crate::pod::PodInfo;
use crate::snapshot::Snapshot;

/// See the module.
pub struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        "SchedulingGates"
    }

    fn bars(&self, pod: &PodInfo) -> bool {
        !pod.gates.is_empty()
    }

    fn prepare<'a>(&'a self, _: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn Judge + 'a>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::pod;
    use super::*;
    use serde_json::json;

    #[test]
    fn gates_bar() {
        assert!(SchedulingGates.bars(&pod("p", json!({"schedulingGates": [{"name": "g"}]}))));
        assert!(!SchedulingGates.bars(&pod("p", json!({}))));
    }
}
