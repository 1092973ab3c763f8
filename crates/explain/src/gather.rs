//! Asks the API server for everything an explanation is made of.

use api::wait::Wait;
use client::{Client, Error, ListParams, Resource};
use k8s_openapi::api::core::v1::{Event, Pod};
use machinery::meta;
use serde_json::Value;

use crate::seen::{Happened, Owner, Seen};

/// A chain of owners is not followed further: an honest one has two links.
const OWNERS: usize = 8;

/// Gathers what there is to know about a pod.
pub async fn gather(client: &Client, namespace: &str, name: &str) -> Result<Seen, Error> {
    let pod = client.api::<Pod>().namespace(namespace).find(name).await?;
    let mut seen = Seen { namespace: namespace.to_owned(), name: name.to_owned(), pod, ..Seen::default() };
    let controller = seen.pod.as_ref().and_then(|p| api::owner::controller(&p.metadata));
    if let Some(first) = controller {
        seen.owners =
            owners(client, namespace, first.api_version.clone(), first.kind.clone(), first.name.clone()).await?;
    }
    let uid = seen.pod.as_ref().and_then(|p| p.metadata.uid.clone()).unwrap_or_default();
    let concerned: Vec<&str> = seen.owners.iter().map(|o| o.uid.as_str()).chain([uid.as_str()]).collect();

    seen.waits = waits(client, Some(namespace)).await?;
    seen.waits.retain(|w| concerned.contains(&w.object.uid.as_str()));

    let about_pod = format!("involvedObject.kind=Pod,involvedObject.name={name}");
    let mut history = events(client, namespace, &about_pod).await?;
    // Of a pod that exists, not of earlier ones of its name.
    history.retain(|e| uid.is_empty() || e.uid.is_empty() || e.uid == uid);
    let mut below = name.to_owned();
    for owner in &seen.owners {
        let about = format!("involvedObject.uid={}", owner.uid);
        let theirs = events(client, namespace, &about).await?;
        // An owner does much that does not concern this pod.
        history.extend(theirs.into_iter().filter(|e| e.warning || mentions(&e.message, &below)));
        below.clone_from(&owner.name);
    }
    seen.history = history;
    Ok(seen)
}

/// The Waits of a namespace, or of all.
pub(crate) async fn waits(client: &Client, namespace: Option<&str>) -> Result<Vec<Wait>, Error> {
    let api = client.api::<Wait>();
    let api = match namespace {
        Some(namespace) => api.namespace(namespace),
        None => api,
    };
    match api.list_all(&ListParams::all()).await {
        Ok(list) => Ok(list.items),
        // Another server than ours, or no leave to read them: statuses must do.
        Err(error) if error.is_not_found() || error.is_forbidden() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// True when `name` stands in the text as a word of its own.
fn mentions(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    text.split(|c| !is_part(c)).any(|word| word.trim_end_matches('.') == name)
}

pub(crate) async fn events(client: &Client, namespace: &str, fields: &str) -> Result<Vec<Happened>, Error> {
    let params = ListParams::all().fields(fields);
    let list = client.api::<Event>().namespace(namespace).list_all(&params).await?;
    Ok(list.items.into_iter().map(Happened::from).collect())
}

/// Follows controllers upwards. A link that cannot be read ends the chain.
pub(crate) async fn owners(
    client: &Client,
    namespace: &str,
    api_version: String,
    kind: String,
    name: String,
) -> Result<Vec<Owner>, Error> {
    let mut out: Vec<Owner> = Vec::new();
    let mut next = Some((api_version, kind, name));
    while let Some((api_version, kind, name)) = next.take() {
        let Some(resource) = resource(client, &api_version, &kind).await else { break };
        let object = match client.dynamic(resource).namespace(namespace).find(&name).await {
            Ok(Some(object)) => object,
            Ok(None) => break,
            Err(error) if error.is_forbidden() => break,
            Err(error) => return Err(error),
        };
        out.push(Owner { kind, name, uid: meta::uid(&object).to_owned() });
        if out.len() < OWNERS {
            next = controller(&object);
        }
    }
    Ok(out)
}

fn controller(object: &Value) -> Option<(String, String, String)> {
    let owners = meta::owner_references(object);
    let owner = owners.iter().find(|o| o.controller)?;
    Some((owner.api_version.to_owned(), owner.kind.to_owned(), owner.name.to_owned()))
}

/// The resource of a kind: known for the workloads, asked of the server for the rest.
async fn resource(client: &Client, api_version: &str, kind: &str) -> Option<Resource> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let plural = match (group, kind) {
        ("apps", "ReplicaSet") => "replicasets",
        ("apps", "Deployment") => "deployments",
        ("apps", "StatefulSet") => "statefulsets",
        ("apps", "DaemonSet") => "daemonsets",
        ("batch", "Job") => "jobs",
        ("batch", "CronJob") => "cronjobs",
        ("", "ReplicationController") => "replicationcontrollers",
        ("", "Node") => return Some(Resource::new("", "v1", "nodes", "Node", false)),
        _ => {
            let served = client::discovery::discover(client).await.ok()?.resources;
            let found = served.into_iter().map(|s| s.resource);
            return found.into_iter().find(|r| *r.kind == *kind && r.api_version() == api_version);
        }
    };
    Some(Resource::new(group, version, plural, kind, true))
}

#[cfg(test)]
mod unit {
    use super::mentions;

    #[test]
    fn names_are_found_as_words() {
        assert!(mentions("Created pod: web-1", "web-1"));
        assert!(mentions("Scaled up replica set web-1 from 0 to 3", "web-1"));
        assert!(mentions("lost web-1.", "web-1"));
        assert!(!mentions("Created pod: web-10", "web-1"));
        assert!(!mentions("Created pod: my-web-1", "web-1"));
    }
}
