//! Namespaces that are going away: their content first (pods before all else, so that nothing a pod
//! needs is taken from under it), then the namespace itself.

mod plan;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::discovery::{self, Served};
use client::events::Reference;
use client::waits::Publisher;
use client::{Change, DeleteParams, Informer, ListParams, Propagation, Queue, Resource, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use serde_json::{Value, json};
use stdx::SharedClock;

use crate::context::Context;
use crate::garbage_collector::elsewhere;
use crate::views::{BareView, PodView};
use crate::writer::{Writer, revision};
use plan::Found;

const FINALIZER: &str = "kubernetes";
const WAIT: &str = "ContentRemains";
/// Resource types emptied at a time.
const WIDTH: usize = 16;
/// Answers of other servers that are read at a time.
const AT_ONCE: usize = 4;
/// How soon content that waits for somebody's finalizer is looked at again.
const AGAIN: Duration = Duration::from_secs(5);

struct Controller {
    context: Context,
    /// For what other servers answer for.
    foreign: Writer,
    namespaces: Informer<BareView>,
    pods: Informer<PodView>,
    writer: Writer,
    waits: Publisher,
    clock: SharedClock,
    resource: Resource,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<String>::new(context.clock.clone());
    let writer = context.writer("namespace-controller", "namespace-controller");
    let foreign = writer.of_foreign(AT_ONCE);
    let controller = Arc::new(Controller {
        context: context.clone(),
        foreign,
        namespaces: context.namespaces(),
        pods: context.pods(),
        writer,
        waits: context.waits(),
        clock: context.clock.clone(),
        resource: Resource::of::<Namespace>(),
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.namespaces.subscribe(move |change| {
        let namespace = change.object();
        match change {
            Change::Deleted(_) => own.waits.withdraw_all(&Reference::of(&own.resource, &namespace.meta)),
            Change::Applied { .. } if namespace.meta.is_deleting() => {
                keys.add_caused(namespace.meta.name.clone(), own.namespaces.cause(namespace));
            }
            Change::Applied { .. } => {}
        }
    });
    // The last pod lets the rest go.
    let (own, keys) = (controller.clone(), queue.clone());
    controller.pods.subscribe(move |change| {
        if let Change::Deleted(pod) = change {
            let namespace = own.namespaces.find("", &pod.meta.namespace);
            if namespace.is_some_and(|n| n.meta.is_deleting()) {
                keys.add_caused(pod.meta.namespace.clone(), own.pods.cause(pod));
            }
        }
    });
    let own = controller.clone();
    let ready = async move {
        own.namespaces.synced().await;
        own.pods.synced().await;
    };
    controller::run(context.runner("namespace", 10), queue, controller, ready, &context.stage);
}

impl Controller {
    /// Deletes what is in the namespace; what is left.
    async fn empty(&self, namespace: &str) -> Result<Found> {
        let mut discovered = discovery::discover(&self.writer.client).await?;
        let others = elsewhere::of(&discovered, &self.context).await;
        let failed = std::mem::take(&mut discovered.failed);
        let mut found = Found { undiscovered: failed, ..Found::default() };
        let writer = |s: &Served| {
            let api = (s.resource.group.to_string(), s.resource.version.to_string());
            if others.contains_key(&api) { &self.foreign } else { &self.writer }
        };
        let deletable = |s: &Served| s.resource.namespaced && s.can(&["list", "delete"]);
        let (pods, rest): (Vec<_>, Vec<_>) = discovered
            .resources
            .into_iter()
            .filter(deletable)
            .partition(|s| s.resource.group.is_empty() && *s.resource.plural == *"pods");
        for stage in [pods, rest] {
            let all = futures::stream::iter(stage);
            let results: Vec<_> =
                all.map(|s| empty_one(writer(&s), s, namespace)).buffer_unordered(WIDTH).collect().await;
            for one in results {
                found.failures.extend(one.failures);
                found.remaining.extend(one.remaining);
                for (finalizer, count) in one.finalizers {
                    *found.finalizers.entry(finalizer).or_default() += count;
                }
            }
            if !found.remaining.is_empty() || !found.failures.is_empty() {
                found.failures.sort();
                break;
            }
        }
        Ok(found)
    }
}

#[async_trait]
impl Reconcile for Controller {
    type Key = String;

    async fn reconcile(&self, name: &String, pass: &Pass) -> Result<Next> {
        let Some(cached) = self.namespaces.find("", name).filter(|n| n.meta.is_deleting()) else {
            return Ok(Next::Done);
        };
        let mut object: Value = cached.decode()?;
        let finalizers = object.pointer("/spec/finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
        if !finalizers.contains(&json!(FINALIZER)) {
            return Ok(Next::Done);
        }
        let about = Reference::of(&self.resource, &cached.meta);
        let found = self.empty(name).await?;
        let old = object.pointer("/status/conditions").cloned().unwrap_or_default();
        let old: Vec<NamespaceCondition> = serde_json::from_value(old).unwrap_or_default();
        let is_marked = object.pointer("/status/phase").and_then(Value::as_str) == Some("Terminating");
        let news = plan::conditions(&old, &found, self.clock.wall());
        // An empty namespace goes at once; nobody would read what it said.
        if (news.is_some() || !is_marked) && !found.is_empty() {
            object["status"]["phase"] = json!("Terminating");
            object["status"]["conditions"] = json!(news.unwrap_or(old));
            object = self.writer.update_status(&self.resource, &object).await?;
            pass.hold(self.namespaces.reached(revision(&object)));
        }
        if !found.is_empty() {
            self.waits.publish(&about, WAIT, "namespace content", found.remaining_text());
            return Ok(Next::After(AGAIN));
        }
        self.waits.withdraw_all(&about);
        if let Some(list) = object.pointer_mut("/spec/finalizers").and_then(Value::as_array_mut) {
            list.retain(|f| f != FINALIZER);
        }
        let api = self.writer.client.dynamic(self.resource.clone());
        match api.update_subresource(name, "finalize", &object).await {
            Ok(_) => Ok(Next::Done),
            Err(error) if error.is_not_found() => Ok(Next::Done),
            Err(error) => Err(error),
        }
    }

    fn all(&self) -> Vec<String> {
        self.namespaces.list().iter().map(|n| n.meta.name.clone()).collect()
    }
}

async fn empty_one(writer: &Writer, served: Served, namespace: &str) -> Found {
    let mut found = Found::default();
    let resource = &served.resource;
    if let Err(error) = delete_all(writer, &served, namespace).await {
        if !error.is_not_found() {
            found.failures.push(error.to_string());
        }
    }
    let api = writer.client.dynamic(resource.clone()).namespace(namespace);
    match api.list_all(&ListParams::all()).await {
        Ok(list) if list.items.is_empty() => {}
        Ok(list) => {
            found.remaining.insert(format!("{}.{}", resource.plural, resource.group), list.items.len());
            for finalizer in list.items.iter().flat_map(machinery::meta::finalizers) {
                *found.finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
        }
        Err(error) if error.is_not_found() => {}
        Err(error) => found.failures.push(error.to_string()),
    }
    found
}

async fn delete_all(writer: &Writer, served: &Served, namespace: &str) -> Result<()> {
    let api = writer.client.dynamic(served.resource.clone()).namespace(namespace);
    let params = DeleteParams::default().propagation(Propagation::Background);
    if served.can(&["deletecollection"]) {
        match api.delete_collection(&params, &ListParams::all()).await {
            Err(error) if error.status().is_some_and(|s| s.code == 405) => {}
            result => return result.map(drop),
        }
    }
    for item in api.list_all(&ListParams::all()).await?.items {
        if !machinery::meta::is_deleting(&item) {
            writer.delete(&served.resource, namespace, machinery::meta::name(&item), &params).await?;
        }
    }
    Ok(())
}
