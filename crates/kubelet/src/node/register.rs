//! The Node object is created once; a kubelet that starts again adopts it.

use std::collections::BTreeMap;

use api::meta::apis::meta::v1::ObjectMeta;
use api::types::coordination::v1::Lease;
use api::types::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use client::{Client, Error, Patch};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::identity::Identity;

/// Tells the attach controller that volumes are its business.
const ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Tells one machine from another of the same name.
pub const MACHINE_ID: &str = "pintle.dev/machine-id";
/// A Lease that was renewed within so many seconds belongs to a kubelet that lives.
const ALIVE: i64 = 40;

/// The node cannot be registered, now or ever.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Another machine has this node's name and is alive.
    #[error(
        "node {name:?} is another machine (its id is {theirs}, ours is {ours}) that renewed its Lease {seconds} s ago; \
         give this node another name"
    )]
    Taken { name: String, theirs: String, ours: String, seconds: i64 },
    /// The API server refuses it.
    #[error("node {0:?}: {1}")]
    Refused(String, Error),
}

impl RegisterError {
    /// Trying again changes nothing.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Taken { .. } => true,
            Self::Refused(_, error) => error.is_invalid(),
        }
    }
}

/// The labels every Node carries.
pub fn labels(name: &str, os: &str, architecture: &str) -> BTreeMap<String, String> {
    [
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", os),
        ("kubernetes.io/arch", architecture),
        ("beta.kubernetes.io/os", os),
        ("beta.kubernetes.io/arch", architecture),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn annotations(identity: &Identity) -> BTreeMap<String, String> {
    [(ATTACH.to_owned(), "true".to_owned()), (MACHINE_ID.to_owned(), identity.machine_id.clone())].into()
}

/// The Node to create. `extra` labels and taints are those an administrator asked for.
pub fn render(
    identity: &Identity,
    defaults: &BTreeMap<String, String>,
    extra: &BTreeMap<String, String>,
    taints: &[Taint],
    status: NodeStatus,
) -> Node {
    let mut labels = defaults.clone();
    labels.extend(extra.clone());
    let taints = (!taints.is_empty()).then(|| taints.to_vec());
    Node {
        metadata: ObjectMeta {
            name: Some(identity.node_name.clone()),
            labels: Some(labels),
            annotations: Some(annotations(identity)),
            ..ObjectMeta::default()
        },
        spec: taints.is_some().then(|| NodeSpec { taints, ..NodeSpec::default() }),
        status: Some(status),
    }
}

/// What an adopted Node lacks of its own metadata; `None` when nothing. Labels that an administrator
/// asked for count at the first registration only: later they may have been changed on purpose.
pub fn reconcile(node: &Node, identity: &Identity, defaults: &BTreeMap<String, String>) -> Option<Value> {
    let lacking = |has: &Option<BTreeMap<String, String>>, wanted: &BTreeMap<String, String>| -> Value {
        let none = BTreeMap::new();
        let has = has.as_ref().unwrap_or(&none);
        let lacking = wanted.iter().filter(|(key, value)| has.get(*key) != Some(value));
        json!(lacking.collect::<BTreeMap<_, _>>())
    };
    let mut metadata = json!({
        "labels": lacking(&node.metadata.labels, defaults),
        "annotations": lacking(&node.metadata.annotations, &annotations(identity)),
    });
    let map = metadata.as_object_mut()?;
    map.retain(|_, lacking| lacking.as_object().is_some_and(|l| !l.is_empty()));
    if map.is_empty() { None } else { Some(json!({"metadata": metadata})) }
}

/// A Node that was registered.
#[derive(Clone, Debug)]
pub struct Registered {
    pub node: Node,
    /// It was not there before, and so has the status it was created with.
    pub is_new: bool,
}

/// Creates the Node or adopts the one there is.
pub async fn register(
    client: &Client,
    identity: &Identity,
    wanted: &Node,
    defaults: &BTreeMap<String, String>,
    now: Timestamp,
) -> Result<Registered, RegisterError> {
    let name = identity.node_name.as_str();
    let refused = |error: Error| RegisterError::Refused(name.to_owned(), error);
    let api = client.api::<Node>();
    // Creating first: at the first start that is one request.
    match api.create(wanted).await {
        Err(error) if error.is_already_exists() => {}
        result => return result.map(|node| Registered { node, is_new: true }).map_err(refused),
    }
    let mut node = api.get(name).await.map_err(refused)?;
    check_owner(client, identity, &node, now).await?;
    if let Some(patch) = reconcile(&node, identity, defaults) {
        node = api.patch(name, &Patch::Merge(patch)).await.map_err(refused)?;
    }
    Ok(Registered { node, is_new: false })
}

/// A Node of our name that another machine registered is taken over only when that is silent.
async fn check_owner(client: &Client, ours: &Identity, node: &Node, now: Timestamp) -> Result<(), RegisterError> {
    let name = &ours.node_name;
    let theirs = node.metadata.annotations.as_ref().and_then(|a| a.get(MACHINE_ID)).cloned().unwrap_or_default();
    if theirs.is_empty() || theirs == ours.machine_id {
        return Ok(());
    }
    let leases = client.api::<Lease>().namespace("kube-node-lease");
    let lease = leases.find(name).await.map_err(|e| RegisterError::Refused(name.clone(), e))?;
    let renewed = lease.and_then(|l| l.spec).and_then(|s| s.renew_time);
    let seconds = renewed.map(|at| now.duration_since(at.0).as_secs());
    if let Some(seconds) = seconds.filter(|s| (-ALIVE..ALIVE).contains(s)) {
        return Err(RegisterError::Taken { name: name.clone(), theirs, ours: ours.machine_id.clone(), seconds });
    }
    tracing::warn!(node = name, theirs, "taking over the node of another machine that is silent");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adopted_node_gets_back_what_it_must_have() {
        let identity = Identity { node_name: "n1".into(), machine_id: "m".into() };
        let defaults = labels("n1", "linux", "amd64");
        let extra = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let mut node = render(&identity, &defaults, &extra, &[], NodeStatus::default());
        assert_eq!(node.spec, None, "pod ranges are given to it");
        assert_eq!(reconcile(&node, &identity, &defaults), None);
        let labels = node.metadata.labels.get_or_insert_default();
        labels.insert("kubernetes.io/hostname".into(), "old".into());
        labels.remove("zone");
        assert_eq!(
            reconcile(&node, &identity, &defaults),
            Some(json!({"metadata": {"labels": {"kubernetes.io/hostname": "n1"}}}))
        );
        node.metadata.annotations = None;
        assert!(
            reconcile(&node, &identity, &defaults).is_some_and(|p| p["metadata"]["annotations"][MACHINE_ID] == "m")
        );
    }
}
