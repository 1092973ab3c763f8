//! Nothing is created in a namespace that does not exist or is being deleted, and the namespaces the
//! system lives in stay.

use std::sync::Arc;

use async_trait::async_trait;
use kinds::Verb;
use machinery::status::{self, GroupResource, Status};
use serde_json::Value;

use super::{Attributes, Plugin};
use crate::objects::{self, Objects};

const IMMORTAL: &[&str] = &["default", "kube-system", "kube-public"];

/// The plugin.
pub struct NamespaceLifecycle {
    objects: Arc<dyn Objects>,
}

impl NamespaceLifecycle {
    /// Over the objects given.
    pub fn new(objects: Arc<dyn Objects>) -> Self {
        Self { objects }
    }
}

/// What a namespace (`None`: there is none) allows; the text and cause of the refusal.
fn judge(name: &str, namespace: Option<&Value>, create: bool) -> Result<(), Refusal> {
    let Some(namespace) = namespace else { return Err(Refusal::Missing) };
    let terminating = namespace.pointer("/status/phase").and_then(Value::as_str) == Some("Terminating");
    if create && terminating {
        return Err(Refusal::Terminating(name.to_owned()));
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Refusal {
    Missing,
    Terminating(String),
}

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Value>) -> status::Result<()> {
        if attributes.is_for(objects::NAMESPACES, "") {
            if attributes.verb == Verb::Delete && IMMORTAL.contains(&attributes.name) {
                return Err(attributes.forbidden(None, "this namespace may not be deleted"));
            }
            return Ok(());
        }
        let name = attributes.namespace;
        let review = attributes.kind.shape().plural == "localsubjectaccessreviews";
        if name.is_empty() || attributes.verb == Verb::Delete || review || attributes.is_namespace() {
            return Ok(());
        }
        let namespace = self.objects.find(objects::NAMESPACES, "", name).await?;
        match judge(name, namespace.as_deref(), attributes.verb == Verb::Create) {
            Ok(()) => Ok(()),
            Err(Refusal::Missing) => Err(Status::not_found(&GroupResource::new("", "namespaces"), name)),
            Err(Refusal::Terminating(name)) => {
                let why = format!("unable to create new content in namespace {name} because it is being terminated");
                let cause = format!("namespace {name} is being terminated");
                let refusal = attributes.forbidden(object.as_deref(), why);
                Err(refusal.cause("NamespaceTerminating", cause, "metadata.namespace"))
            }
        }
    }
}

impl Attributes<'_> {
    /// True for writes to a Namespace or a subresource of one.
    fn is_namespace(&self) -> bool {
        let shape = self.kind.shape();
        shape.group.is_empty() && shape.plural == "namespaces"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_namespace_must_exist_and_live() {
        let live = json!({"status": {"phase": "Active"}});
        let ending = json!({"status": {"phase": "Terminating"}});
        for (namespace, create, want) in [
            (Some(&live), true, Ok(())),
            (Some(&ending), true, Err(Refusal::Terminating("n".into()))),
            (Some(&ending), false, Ok(())),
            (None, true, Err(Refusal::Missing)),
            (None, false, Err(Refusal::Missing)),
        ] {
            assert_eq!(judge("n", namespace, create), want, "{namespace:?} {create}");
        }
    }
}
