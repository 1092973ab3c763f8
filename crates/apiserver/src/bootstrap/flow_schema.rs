//! Whether the priority level that a flow schema names is there: its condition `Dangling`; pure.
//!
//! ```text
//!  schema "probes" names level "exempt", which is there    Dangling=False  Found
//!  schema "mine" names level "gone"                        Dangling=True   NotFound
//! ```

use jiff::Timestamp;
use serde_json::{Value, json};

const DANGLING: &str = "Dangling";

/// The condition that is to be written; `None` when the schema says it already.
pub(super) fn condition(schema: &Value, is_there: impl Fn(&str) -> bool, now: Timestamp) -> Option<Value> {
    let level = schema.pointer("/spec/priorityLevelConfiguration/name").and_then(Value::as_str).unwrap_or_default();
    let of = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let (status, reason, message) = if is_there(level) {
        ("False", "Found", format!("{of} and it exists"))
    } else {
        ("True", "NotFound", format!("{of} but there is no such object"))
    };
    let conditions = schema.pointer("/status/conditions").and_then(Value::as_array);
    let said = conditions.into_iter().flatten().find(|condition| condition["type"] == DANGLING);
    let is_said = said.is_some_and(|said| {
        said["status"] == status && said["reason"] == reason && said["message"].as_str() == Some(message.as_str())
    });
    (!is_said).then(|| {
        json!({"type": DANGLING, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": machinery::time::rfc3339(now)})
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_says_whether_its_level_is_there() {
        let there = "This FlowSchema references the PriorityLevelConfiguration object named \"a\" and it exists";
        let gone =
            "This FlowSchema references the PriorityLevelConfiguration object named \"b\" but there is no such object";
        let said = |status: &str, reason: &str, message: &str| {
            json!([{"type": "Dangling", "status": status,
            "reason": reason, "message": message, "lastTransitionTime": "2020-01-01T00:00:00Z"}])
        };
        for (level, conditions, want) in [
            ("a", json!(null), Some(("False", "Found", there))),
            ("b", json!([]), Some(("True", "NotFound", gone))),
            ("a", said("False", "Found", there), None),
            ("b", said("True", "NotFound", gone), None),
            ("b", said("False", "Found", there), Some(("True", "NotFound", gone))),
            // Another name for what is there.
            ("a", said("False", "Found", "in other words"), Some(("False", "Found", there))),
            (
                "a",
                json!([{"type": "Other", "status": "False", "reason": "Found", "message": there}]),
                Some(("False", "Found", there)),
            ),
        ] {
            let schema =
                json!({"spec": {"priorityLevelConfiguration": {"name": level}}, "status": {"conditions": conditions}});
            let found = condition(&schema, |name| name == "a", Timestamp::UNIX_EPOCH);
            let want = want.map(|(status, reason, message)| {
                json!({"type": "Dangling", "status": status, "reason": reason,
                "message": message, "lastTransitionTime": "1970-01-01T00:00:00Z"})
            });
            assert_eq!(found, want, "{schema}");
        }
    }
}
