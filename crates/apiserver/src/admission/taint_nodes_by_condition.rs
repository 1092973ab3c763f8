//! A node that registers takes no pods until it has said that it is ready.

use async_trait::async_trait;
use kinds::Verb;
use machinery::status;
use serde_json::{Value, json};

use super::{Attributes, Plugin};
use crate::objects;

const TAINT: &str = "node.kubernetes.io/not-ready";

/// The plugin.
pub struct TaintNodesByCondition;

/// Adds the taint unless the node has it.
fn taint(node: &mut Value) {
    let Some(node) = node.as_object_mut() else { return };
    let spec = node.entry("spec").or_insert_with(|| json!({}));
    let Some(spec) = spec.as_object_mut() else { return };
    let taints = spec.entry("taints").or_insert_with(|| json!([]));
    let has = |t: &Value| t["key"] == TAINT && t["effect"] == "NoSchedule";
    if taints.as_array().is_some_and(|list| list.iter().any(has)) {
        return;
    }
    let new = json!({"key": TAINT, "effect": "NoSchedule"});
    match taints.as_array_mut() {
        Some(list) => list.push(new),
        None => *taints = json!([new]),
    }
}

#[async_trait]
impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Value>) -> status::Result<()> {
        if let Some(node) = object.filter(|_| attributes.verb == Verb::Create && attributes.is_for(objects::NODES, ""))
        {
            taint(node);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_node_is_tainted_once() {
        let mut node = json!({"metadata": {"name": "a"}});
        taint(&mut node);
        taint(&mut node);
        assert_eq!(node["spec"]["taints"], json!([{"key": TAINT, "effect": "NoSchedule"}]));
    }
}
