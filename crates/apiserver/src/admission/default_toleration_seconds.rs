//! A pod stays five minutes on a node that stopped answering, unless it says otherwise.

use async_trait::async_trait;
use kinds::Verb;
use machinery::status;
use serde_json::{Value, json};

use super::{Attributes, Plugin};
use crate::objects;

const SECONDS: i64 = 300;
const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// The plugin.
pub struct DefaultTolerationSeconds;

/// Adds the tolerations that are not there.
fn tolerate(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let list = spec.entry("tolerations").or_insert_with(|| json!([]));
    if list.is_null() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else { return };
    for taint in TAINTS {
        let text = |t: &Value, key: &str| t.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let covers = |t: &Value| {
            let (key, effect) = (text(t, "key"), text(t, "effect"));
            (key.is_empty() || key == taint) && (effect.is_empty() || effect == "NoExecute")
        };
        if !list.iter().any(covers) {
            list.push(json!({
                "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS,
            }));
        }
    }
}

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Value>) -> status::Result<()> {
        if let Some(pod) = object.filter(|_| attributes.verb != Verb::Delete && attributes.is_for(objects::PODS, "")) {
            tolerate(pod);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_tolerated_yet_is_added() {
        let not_ready = json!({"key": TAINTS[0], "operator": "Exists", "effect": "NoExecute"});
        for (given, want) in [
            (json!(null), vec!["not-ready 300", "unreachable 300"]),
            (json!([not_ready]), vec!["not-ready null", "unreachable 300"]),
            (json!([{"operator": "Exists"}]), vec![" null"]),
            (
                json!([{"operator": "Exists", "effect": "NoSchedule"}]),
                vec![" null", "not-ready 300", "unreachable 300"],
            ),
            (json!([{"key": "other", "operator": "Exists"}]), vec!["other null", "not-ready 300", "unreachable 300"]),
        ] {
            let mut pod = json!({"spec": {"tolerations": given}});
            tolerate(&mut pod);
            let short = |t: &Value| {
                let key = t["key"].as_str().unwrap_or_default().replace("node.kubernetes.io/", "");
                format!("{key} {}", t["tolerationSeconds"])
            };
            let got: Vec<String> = pod["spec"]["tolerations"].as_array().unwrap().iter().map(short).collect();
            assert_eq!(got, want, "{given}");
        }
    }
}
