//! An object with pods below it: a Deployment, a ReplicaSet, a Service, a Node. In its plainest form:
//! what it waits for itself, and then each pod below it that is not well, with what that waits for.

use std::collections::BTreeMap;

use api::wait::Wait;
use api::{pod, selector};
use client::{Client, ListParams, Resource};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use machinery::labels::Selector;
use machinery::{meta, time};
use serde_json::Value;

use crate::Error;
use crate::gather::{events, owners, waits};
use crate::render::{happenings, headline, line, waiting, wrap};
use crate::seen::{Happened, Owner, Seen};

/// Pods that are not well are shown up to this many.
const PODS: usize = 10;
/// Owners of pods that are followed to find out whose they are.
const CHAINS: usize = 200;

/// What was found out about an object and the pods below it.
#[derive(Clone, Debug, Default)]
pub struct Whole {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub object: Value,
    /// Of the object, and of what stands between it and its pods.
    pub waits: Vec<Wait>,
    /// Each pod below it with its own Waits; no history.
    pub pods: Vec<Seen>,
    /// Of the object, and of what stands between it and its pods.
    pub history: Vec<Happened>,
}

/// Gathers what there is to know about an object that is not a pod.
pub(crate) async fn gather(client: &Client, namespace: &str, kind: &str, name: &str) -> Result<Whole, Error> {
    let resource = find(client, kind).await?.ok_or_else(|| Error::NoKind(kind.to_owned()))?;
    let api = client.dynamic(resource.clone());
    let api = if resource.namespaced { api.namespace(namespace) } else { api };
    let absent = || Error::Absent { kind: resource.kind.to_string(), name: name.to_owned() };
    let object = api.find(name).await?.ok_or_else(absent)?;
    let uid = meta::uid(&object).to_owned();
    // What is about an object without a namespace is kept in `default`.
    let about = if resource.namespaced { namespace } else { "default" };
    let mut pods = client.api::<Pod>();
    if resource.namespaced {
        pods = pods.namespace(namespace);
    }
    let below = Below::of(&resource, &object);
    let params = match &below {
        Below::Node => ListParams::all().fields(format!("spec.nodeName={name}")),
        _ => ListParams::all(),
    };
    let mut pods = pods.list_all(&params).await?.items;
    let mut between = Vec::new();
    match &below {
        Below::Node => {}
        Below::Selected(selector) => pods.retain(|p| selector.matches(p.metadata.labels.as_ref().unwrap_or(&NONE))),
        Below::Owned(selector) => {
            if let Some(selector) = selector {
                pods.retain(|p| selector.matches(p.metadata.labels.as_ref().unwrap_or(&NONE)));
            }
            between = owned(client, namespace, &uid, &mut pods).await?;
        }
    }

    let mut waits = waits(client, resource.namespaced.then_some(namespace)).await?;
    let concerned: Vec<&str> = between.iter().map(|o| o.uid.as_str()).chain([uid.as_str()]).collect();
    let mut whole = Whole {
        kind: resource.kind.to_string(),
        namespace: if resource.namespaced { namespace.to_owned() } else { String::new() },
        name: name.to_owned(),
        ..Whole::default()
    };
    for pod in pods {
        let text = |s: &Option<String>| s.clone().unwrap_or_default();
        let uid = text(&pod.metadata.uid);
        let (own, rest) = waits.into_iter().partition(|w: &Wait| w.object.uid == uid);
        waits = rest;
        let (namespace, name) = (text(&pod.metadata.namespace), text(&pod.metadata.name));
        whole.pods.push(Seen { namespace, name, pod: Some(pod), waits: own, ..Seen::default() });
    }
    waits.retain(|w| concerned.contains(&w.object.uid.as_str()));
    whole.waits = waits;
    // A node's own events name it in place of its uid.
    let own_name = (!resource.namespaced).then_some(name);
    for uid in concerned.into_iter().chain(own_name) {
        let told = events(client, about, &format!("involvedObject.uid={uid}")).await?;
        whole.history.extend(told.into_iter().filter(|e| e.uid == uid));
    }
    whole.object = object;
    Ok(whole)
}

static NONE: BTreeMap<String, String> = BTreeMap::new();

/// Which pods are below an object.
enum Below {
    /// Those bound to it.
    Node,
    /// Those it selects.
    Selected(Selector),
    /// Those that descend from it; the selector, where there is one, leaves out most others.
    Owned(Option<Selector>),
}

impl Below {
    fn of(resource: &Resource, object: &Value) -> Self {
        let written = object.pointer("/spec/selector");
        match (&*resource.group, &*resource.kind) {
            ("", "Node") => Self::Node,
            ("", "Service") => {
                let labels: BTreeMap<String, String> =
                    written.and_then(|s| serde_json::from_value(s.clone()).ok()).unwrap_or_default();
                Self::Selected(if labels.is_empty() { Selector::nothing() } else { Selector::from_labels(&labels) })
            }
            _ => {
                let of = |s: &Value| serde_json::from_value::<LabelSelector>(s.clone()).ok();
                let parsed = written.and_then(of).and_then(|s| selector(&s).ok());
                Self::Owned(parsed.filter(|s| !s.is_empty()))
            }
        }
    }
}

/// Keeps the pods that descend from the object of this uid, and tells what stands between.
async fn owned(client: &Client, namespace: &str, uid: &str, pods: &mut Vec<Pod>) -> Result<Vec<Owner>, Error> {
    let mut chains: BTreeMap<String, Vec<Owner>> = BTreeMap::new();
    for pod in pods.iter() {
        let Some(owner) = api::owner::controller(&pod.metadata) else { continue };
        if chains.contains_key(&owner.uid) || chains.len() >= CHAINS {
            continue;
        }
        let chain =
            owners(client, namespace, owner.api_version.clone(), owner.kind.clone(), owner.name.clone()).await?;
        chains.insert(owner.uid.clone(), chain);
    }
    let below = |owner: &str| owner == uid || chains.get(owner).is_some_and(|c| c.iter().any(|o| o.uid == uid));
    pods.retain(|p| api::owner::controller(&p.metadata).is_some_and(|o| below(&o.uid)));
    let mut between: BTreeMap<String, Owner> = BTreeMap::new();
    for chain in chains.values() {
        let Some(end) = chain.iter().position(|o| o.uid == uid) else { continue };
        between.extend(chain[..end].iter().map(|o| (o.uid.clone(), o.clone())));
    }
    Ok(between.into_values().collect())
}

/// The resource of a kind, by any name people call it: plural, singular, short, with its group.
async fn find(client: &Client, kind: &str) -> Result<Option<Resource>, Error> {
    let kind = kind.to_lowercase();
    let (name, group) = match kind.split_once('.') {
        Some((name, group)) => (name, Some(group)),
        None => (kind.as_str(), None),
    };
    let served = client::discovery::discover(client).await?.resources;
    let is_called = |s: &client::discovery::Served| {
        let called = *s.resource.plural == *name
            || s.resource.kind.to_lowercase() == name
            || s.names.iter().any(|n| !n.is_empty() && n == name);
        called && group.is_none_or(|g| *s.resource.group == *g) && s.can(&["get"])
    };
    Ok(served.into_iter().find(is_called).map(|s| s.resource))
}

/// Says what the object and its pods wait for, as of `now`. Pure.
pub(crate) fn render(whole: &Whole, now: Timestamp) -> String {
    let mut out = String::new();
    let place = if whole.namespace.is_empty() { String::new() } else { format!("{}/", whole.namespace) };
    let mut text = format!("{} {place}{}", whole.kind.to_lowercase(), whole.name);
    if meta::is_deleting(&whole.object) {
        text.push_str(" is being deleted");
    }
    if let Some(created) = meta::creation_timestamp(&whole.object) {
        text.push_str(&format!(", {} old", time::age(created, now)));
    }
    let (well, ill): (Vec<&Seen>, Vec<&Seen>) = whole.pods.iter().partition(|s| is_well(s));
    text.push_str(&match whole.pods.len() {
        0 => ", no pods".to_owned(),
        all => format!(", {} of {all} pods are well", well.len()),
    });
    line(&mut out, format_args!("{text}"));
    let of_pods = whole.pods.iter().any(|s| !s.waits.is_empty());
    let own = Seen {
        namespace: whole.namespace.clone(),
        name: whole.name.clone(),
        waits: whole.waits.clone(),
        ..Seen::default()
    };
    waiting(&mut out, &own, &whole.kind, now);
    let said = conditions(&mut out, &whole.object);
    if ill.is_empty() && whole.waits.is_empty() && !of_pods && !said {
        line(&mut out, format_args!("\nit waits for nothing"));
    }
    for seen in ill.iter().take(PODS) {
        line(&mut out, format_args!(""));
        headline(&mut out, seen, now);
        waiting(&mut out, seen, "Pod", now);
    }
    if ill.len() > PODS {
        line(&mut out, format_args!("\n… and {} more pods that are not well", ill.len() - PODS));
    }
    happenings(&mut out, whole.history.clone(), &whole.kind, now);
    out
}

/// Ready, or done, and waiting for nothing.
fn is_well(seen: &Seen) -> bool {
    let done = |p: &Pod| pod::is_ready(p) || pod::phase(p) == "Succeeded";
    seen.waits.is_empty() && seen.pod.as_ref().is_some_and(|p| done(p) && !pod::is_deleting(p))
}

/// The conditions that say something is wrong, in their own words; true when there are any.
fn conditions(out: &mut String, object: &Value) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array).map(Vec::as_slice);
    let mut said = false;
    for condition in conditions.unwrap_or_default() {
        let text = |key: &str| condition.get(key).and_then(Value::as_str).unwrap_or_default();
        // `Ready`, `Available`, `Progressing`, `Complete` should be true; what says that something is
        // wrong (pressure, failure, unavailability) should not.
        let kind = text("type");
        let bad = ["Pressure", "Failure", "Failed", "Unavailable", "Suspended", "Limited"]
            .iter()
            .any(|word| kind.ends_with(word));
        let wrong = text("status") == "Unknown" || (text("status") == "True") == bad;
        if !wrong || text("message").is_empty() {
            continue;
        }
        if !said {
            line(out, format_args!("\nits status says"));
        }
        said = true;
        line(out, format_args!("  {kind} is {}: {}", text("status"), text("reason")));
        wrap(out, "      ", text("message"));
    }
    said
}
