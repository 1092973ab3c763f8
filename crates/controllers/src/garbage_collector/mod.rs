//! Garbage collection: objects whose owners are all gone go too; owners that are deleted in the
//! foreground wait for their dependents; owners that orphan let them live.
//!
//! It follows the metadata of every deletable resource that discovery shows, and of custom resources and of
//! what other servers answer for as they come and go (`custom.rs`, `elsewhere.rs`). The graph of owners
//! only says what to look at: before anything is deleted, the object and each owner are read anew,
//! and the deletion is bound to the uid and revision that were read.

mod custom;
pub(crate) mod elsewhere;
mod graph;
mod plan;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::discovery;
use client::events::{Reference, Type};
use client::{Bounds, DeleteParams, Error, Key, Meta, OwnerRef, Patch, Queue, Resource, Result};
use futures::future::join_all;
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::ClockExt;
use stdx::backoff::Policy;

use crate::context::Context;
use crate::writer::Writer;
use custom::Custom;
use elsewhere::Elsewhere;
use graph::{FOREGROUND, Graph, Node, ORPHAN, Place, Work};
use plan::{Facts, Owner, Verdict};

const RETRY: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(30) };
/// Uids known not to exist that are remembered; each saves a read per dependent.
const ABSENT: usize = 500;
/// Resources whose objects own nothing and are owned by nobody: kept out for their number.
const IGNORED: [(&str, &str); 3] = [("", "events"), ("events.k8s.io", "events"), ("explain.pintle.dev", "waits")];

struct Controller {
    writer: Writer,
    graph: Mutex<Graph>,
    /// Kinds by group and kind.
    kinds: Mutex<HashMap<(String, String), Resource>>,
    absent: Mutex<Absent>,
    queue: Arc<Queue<Work>>,
    custom: Custom,
    elsewhere: Elsewhere,
}

#[derive(Default)]
struct Absent {
    order: VecDeque<String>,
    uids: BTreeSet<String>,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<Work>::new(context.clock.clone());
    let mut writer = context.writer("generic-garbage-collector", "garbage-collector-controller");
    // It reads single objects, which may be those of another server.
    writer.client = writer.client.with_bounds(Bounds::FOREIGN);
    let controller = Arc::new(Controller {
        writer,
        graph: Mutex::new(Graph::default()),
        kinds: Mutex::new(HashMap::new()),
        absent: Mutex::new(Absent::default()),
        queue: queue.clone(),
        custom: Custom::default(),
        elsewhere: Elsewhere::default(),
    });
    let (own, followed) = (controller.clone(), context.clone());
    let ready = async move { own.follow(&followed).await };
    controller::run(context.runner("garbage-collector", 20), queue, controller, ready, &context.stage);
}

impl Controller {
    /// Finds the resources and follows each; ends when every cache is filled.
    async fn follow(self: Arc<Self>, context: &Context) {
        let mut failures = 0;
        let found = loop {
            match discovery::discover(context.reader()).await {
                // A server that cannot be asked, and answers only for itself, is not waited for.
                Ok(found) if self.are_elsewhere(context, &found).await => break found,
                Ok(found) => tracing::warn!(failed = ?found.failed, "some groups were not discovered; trying again"),
                Err(error) => tracing::warn!(%error, "discovery failed; trying again"),
            }
            failures += 1;
            context.clock.sleep(RETRY.delay(failures)).await;
        };
        let mut synced = Vec::new();
        let others = elsewhere::of(&found, context).await;
        if elsewhere::is_known(&found) {
            elsewhere::follow(&self, context);
        }
        if found.resources.iter().any(|served| custom::is_definition(&served.resource)) {
            synced.extend(self.follow_definitions(context).await);
        }
        for served in found.resources {
            let resource = served.resource.clone();
            let api = (resource.group.to_string(), resource.version.to_string());
            if self.custom.has(&resource) || others.contains_key(&api) {
                continue;
            }
            let kind = (resource.group.to_string(), resource.kind.to_string());
            self.kinds.lock().insert(kind, resource.clone());
            let is_ignored = IGNORED.iter().any(|(g, p)| *resource.group == **g && *resource.plural == **p);
            if is_ignored || !served.can(&["list", "watch", "delete"]) {
                continue;
            }
            let own = self.clone();
            let of = resource.clone();
            synced.push(context.follow(&resource, move |meta, is_gone| own.heard(&of, meta, is_gone)));
        }
        join_all(synced).await;
    }

    /// True when everything that was not discovered is answered for by other servers.
    async fn are_elsewhere(&self, context: &Context, found: &discovery::Discovered) -> bool {
        // What they answer for is followed apart from the rest, so it has to be known which that is.
        let others = elsewhere::of(found, context).await;
        let is_other = |name: &str| {
            let (group, version) = name.split_once('/').unwrap_or(("", name));
            others.contains_key(&(group.to_owned(), version.to_owned()))
        };
        found.failed.iter().all(|(name, _)| is_other(name))
    }

    /// A cache tells of an object.
    fn heard(&self, resource: &Resource, meta: &Meta, is_gone: bool) {
        let work = {
            let mut graph = self.graph.lock();
            if is_gone { graph.deleted(&meta.uid) } else { graph.applied(resource, meta) }
        };
        self.enqueue(work);
    }

    fn enqueue(&self, work: BTreeSet<Work>) {
        for item in work {
            self.queue.add(item);
        }
    }

    fn node(&self, uid: &str) -> Option<Node> {
        self.graph.lock().get(uid).cloned()
    }

    /// The resource of an owner reference. A version the server does not prefer is the same object.
    fn resource_of(&self, api_version: &str, kind: &str) -> Option<Resource> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.kinds.lock().get(&(group.to_owned(), kind.to_owned())).cloned()
    }

    fn vanish(&self, uid: &str) {
        let work = self.graph.lock().deleted(uid);
        let mut absent = self.absent.lock();
        if absent.uids.insert(uid.to_owned()) {
            absent.order.push_back(uid.to_owned());
            if absent.order.len() > ABSENT {
                if let Some(oldest) = absent.order.pop_front() {
                    absent.uids.remove(&oldest);
                }
            }
        }
        drop(absent);
        self.enqueue(work);
    }

    async fn read(&self, resource: &Resource, key: &Key) -> Result<Option<(Meta, Value)>> {
        let api = self.writer.client.dynamic(resource.clone()).namespace(&key.namespace);
        let Some(object) = api.find(&key.name).await? else { return Ok(None) };
        let bytes = serde_json::to_vec(&object).map_err(|e| Error::Decode(e.to_string()))?;
        Ok(Some((client::object::meta(&bytes)?, object)))
    }

    /// A node that was only named: does it exist?
    async fn look_for(&self, uid: &str, api_version: &str, kind: &str, key: &Key) -> Result<()> {
        let Some(resource) = self.resource_of(api_version, kind) else {
            return Err(Error::Invalid(format!("owner {uid}: no resource is known for {api_version} {kind}")));
        };
        let key = if resource.namespaced { key.clone() } else { Key::new("", key.name.clone()) };
        if resource.namespaced && key.namespace.is_empty() {
            // Named by an object of cluster scope: such a reference can never be resolved.
            return Ok(());
        }
        match self.read(&resource, &key).await? {
            Some((meta, _)) if meta.uid == uid => {}
            _ => self.vanish(uid),
        }
        Ok(())
    }

    async fn delete(&self, uid: &str) -> Result<()> {
        let Some(node) = self.node(uid) else { return Ok(()) };
        let (resource, key) = match &node.place {
            Place::Named { api_version, kind, key } => return self.look_for(uid, api_version, kind, key).await,
            Place::Seen { resource, key } => (resource.clone(), key.clone()),
        };
        if !node.waits_for_dependents && (node.deleting || node.owners.is_empty()) {
            return Ok(());
        }
        let Some((meta, object)) = self.read(&resource, &key).await?.filter(|(meta, _)| meta.uid == uid) else {
            self.vanish(uid);
            return Ok(());
        };
        if meta.is_deleting() && meta.has_finalizer(FOREGROUND) {
            return self.wait_for_dependents(uid, &resource, &meta).await;
        }
        if meta.is_deleting() {
            return Ok(());
        }
        let mut owners = Vec::new();
        for owner in &meta.owner_references {
            match self.judge_owner(owner, &resource, &meta).await? {
                Some(judgement) => owners.push((owner.uid.clone(), judgement)),
                // It cannot be resolved at all: then nothing is deleted.
                None => return Ok(()),
            }
        }
        let facts = {
            let graph = self.graph.lock();
            Facts {
                has_dependents: graph.get(uid).is_some_and(|n| !n.dependents.is_empty()),
                has_waiting_dependent: graph.has_waiting_dependent(uid),
                orphans: meta.has_finalizer(ORPHAN),
                foreground: meta.has_finalizer(FOREGROUND),
            }
        };
        match plan::judge(&owners, facts) {
            Verdict::Keep => Ok(()),
            Verdict::Drop(uids) => {
                let left = |o: &&OwnerRef| !uids.contains(&o.uid);
                self.set_owners(&resource, &meta, meta.owner_references.iter().filter(left)).await
            }
            Verdict::Delete { propagation, unblock } => {
                let mut revision = meta.revision;
                if unblock {
                    revision = self.unblock(&resource, &meta, object).await?;
                }
                let params = DeleteParams::of_uid(uid).propagation(propagation).revision(revision);
                match self.writer.delete(&resource, &key.namespace, &key.name, &params).await? {
                    Some(_) => Ok(()),
                    None => {
                        self.vanish(uid);
                        Ok(())
                    }
                }
            }
        }
    }

    /// What a fresh read says of an owner; `None` when the reference cannot be resolved.
    async fn judge_owner(&self, owner: &OwnerRef, resource: &Resource, dependent: &Meta) -> Result<Option<Owner>> {
        if self.absent.lock().uids.contains(&owner.uid) {
            return Ok(Some(Owner::Dangling));
        }
        let Some(owner_resource) = self.resource_of(&owner.api_version, &owner.kind) else {
            let (version, kind) = (&owner.api_version, &owner.kind);
            return Err(Error::Invalid(format!(
                "{}: no resource is known for its owner {version} {kind}",
                dependent.key()
            )));
        };
        if owner_resource.namespaced && dependent.namespace.is_empty() {
            let message = format!(
                "ownerRef [{}/{}, namespace: , name: {}, uid: {}] does not exist in namespace \"\"",
                owner.api_version, owner.kind, owner.name, owner.uid
            );
            let about = Reference::of(resource, dependent);
            self.writer.event_about(&about, Type::Warning, "OwnerRefInvalidNamespace", message);
            return Ok(None);
        }
        let namespace = if owner_resource.namespaced { dependent.namespace.clone() } else { String::new() };
        let found = self.read(&owner_resource, &Key::new(namespace, owner.name.clone())).await?;
        Ok(Some(match found {
            Some((meta, _)) if meta.uid == owner.uid => {
                if meta.is_deleting() && meta.has_finalizer(FOREGROUND) {
                    Owner::Waiting
                } else {
                    Owner::Solid
                }
            }
            _ => Owner::Dangling,
        }))
    }

    async fn wait_for_dependents(&self, uid: &str, resource: &Resource, meta: &Meta) -> Result<()> {
        let blocking = self.graph.lock().blocking(uid);
        if blocking.is_empty() {
            return self.remove_finalizer(resource, meta, FOREGROUND).await;
        }
        for (dependent, waits) in blocking {
            if !waits {
                self.queue.add(Work::Delete(dependent));
            }
        }
        Ok(())
    }

    async fn orphan(&self, uid: &str) -> Result<()> {
        let Some(Node { place: Place::Seen { resource, key }, .. }) = self.node(uid) else { return Ok(()) };
        let Some((meta, _)) = self.read(&resource, &key).await?.filter(|(meta, _)| meta.uid == uid) else {
            self.vanish(uid);
            return Ok(());
        };
        if !meta.has_finalizer(ORPHAN) {
            return Ok(());
        }
        let dependents = self.graph.lock().dependents(uid);
        let releases = dependents.iter().filter_map(|(_, node)| match &node.place {
            Place::Seen { resource, key } => Some(self.release(uid, resource, key)),
            Place::Named { .. } => None,
        });
        for result in join_all(releases).await {
            result?;
        }
        self.remove_finalizer(&resource, &meta, ORPHAN).await
    }

    /// Takes an owner off a dependent.
    async fn release(&self, owner: &str, resource: &Resource, key: &Key) -> Result<()> {
        let Some((meta, _)) = self.read(resource, key).await? else { return Ok(()) };
        if !meta.owner_references.iter().any(|o| o.uid == owner) {
            return Ok(());
        }
        self.set_owners(resource, &meta, meta.owner_references.iter().filter(|o| o.uid != owner)).await
    }

    async fn set_owners<'a>(
        &self,
        resource: &Resource,
        meta: &Meta,
        owners: impl Iterator<Item = &'a OwnerRef>,
    ) -> Result<()> {
        let owners: Vec<Value> = owners.map(crate::templates::reference).collect();
        let owners = if owners.is_empty() { Value::Null } else { json!(owners) };
        self.patch(resource, meta, json!({"ownerReferences": owners})).await.map(drop)
    }

    async fn unblock(&self, resource: &Resource, meta: &Meta, object: Value) -> Result<u64> {
        let mut owners = object.pointer("/metadata/ownerReferences").cloned().unwrap_or_default();
        for owner in owners.as_array_mut().into_iter().flatten() {
            owner["blockOwnerDeletion"] = json!(false);
        }
        let written = self.patch(resource, meta, json!({"ownerReferences": owners})).await?;
        Ok(written.map_or(meta.revision, |o| crate::writer::revision(&o)))
    }

    async fn remove_finalizer(&self, resource: &Resource, meta: &Meta, finalizer: &str) -> Result<()> {
        let left: Vec<&String> = meta.finalizers.iter().filter(|f| *f != finalizer).collect();
        let left = if left.is_empty() { Value::Null } else { json!(left) };
        self.patch(resource, meta, json!({"finalizers": left})).await.map(drop)
    }

    /// Changes metadata, provided the object is still as it was read.
    async fn patch(&self, resource: &Resource, meta: &Meta, mut change: Value) -> Result<Option<Value>> {
        change["resourceVersion"] = json!(meta.revision.to_string());
        change["uid"] = json!(meta.uid);
        let patch = Patch::Merge(json!({"metadata": change}));
        match self.writer.patch(resource, &meta.namespace, &meta.name, &patch).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Reconcile for Controller {
    type Key = Work;

    async fn reconcile(&self, work: &Work, _pass: &Pass) -> Result<Next> {
        match work {
            Work::Delete(uid) => self.delete(uid).await?,
            Work::Orphan(uid) => self.orphan(uid).await?,
        }
        Ok(Next::Done)
    }
}
