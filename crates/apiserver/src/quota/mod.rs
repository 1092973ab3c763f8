//! ResourceQuotas: charged before a write, refunded when it does not happen, counted anew when something
//! goes.
//!
//! ```text
//!  write path: charge ─► used + delta, compare-and-swap of the quota's status ─► write ─► landed
//!                 └─ no room: 403            └─ the write failed: refund
//!  recount:    waits until no charged write of the namespace is under way, counts, writes hard and used
//! ```
//!
//! A count is exact: between a charge and its write nothing is counted, so what is counted is what is
//! charged. Requests that meet at one quota are charged together, by whoever comes first.
//!
//! Upstream counts in its controller manager, from caches of every resource. Here the server counts, whose
//! caches these are: nothing is kept twice, and no count can be older than a charge.

mod decide;
mod recount;
pub mod usage;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use api::resources::Resources;
use futures::future::BoxFuture;
use jiff::Timestamp;
use machinery::meta;
use machinery::status::{self, Status};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, OwnedRwLockReadGuard, RwLock, oneshot};

use crate::bootstrap;
use crate::registry::catalogue::Resource;
use crate::registry::store::{self, Depth, Write};
use crate::server::ApiServer;
use decide::{Quota, Request};
use usage::Counted;

pub use recount::run;

/// How often a charge begins anew when somebody else writes the quota.
const ATTEMPTS: usize = 20;

/// What is under way, and what is to be counted.
#[derive(Default)]
pub struct Quotas {
    /// By namespace. Held for reading from a charge until its write has ended.
    spaces: Mutex<HashMap<String, Arc<RwLock<()>>>>,
    /// Who waits at which quota.
    lines: Mutex<HashMap<(String, String), Arc<Line>>>,
    /// Namespaces to count.
    dirty: Mutex<BTreeSet<String>>,
    wake: Notify,
}

/// Those who want something of one quota: the first serves all.
#[derive(Default)]
struct Line {
    turn: tokio::sync::Mutex<()>,
    waiting: Mutex<Vec<Waiter>>,
}

struct Waiter {
    request: Arc<Request>,
    answer: oneshot::Sender<status::Result<Resources, Refusal>>,
}

/// Why a quota gives nothing.
enum Refusal {
    /// It has no room, in the words for the client.
    Text(String),
    Status(Box<Status>),
}

/// What a write was charged, until it has ended.
#[derive(Default)]
pub struct Charge {
    charged: Vec<(String, Resources)>,
    under_way: Option<OwnedRwLockReadGuard<()>>,
}

impl Quotas {
    /// Has a namespace counted soon.
    fn touch(&self, namespace: &str) {
        if self.dirty.lock().insert(namespace.to_owned()) {
            self.wake.notify_one();
        }
    }

    fn space(&self, namespace: &str) -> Arc<RwLock<()>> {
        self.spaces.lock().entry(namespace.to_owned()).or_default().clone()
    }

    fn line(&self, namespace: &str, quota: &str) -> Arc<Line> {
        self.lines.lock().entry((namespace.to_owned(), quota.to_owned())).or_default().clone()
    }

    /// Forgets what is kept about a namespace without quotas.
    fn forget(&self, namespace: &str) {
        self.spaces.lock().remove(namespace);
        self.lines.lock().retain(|(space, _), _| space != namespace);
    }
}

/// The resource of the quotas themselves.
fn resource(server: &ApiServer) -> Option<Arc<Resource>> {
    server.catalogue.find("", "v1", "resourcequotas")
}

/// The quotas of a namespace as the cache has them.
fn quotas_of(quotas: &Resource, namespace: &str) -> status::Result<Vec<Value>> {
    let snapshot = quotas.cacher()?.snapshot();
    if snapshot.objects().is_empty() {
        return Ok(Vec::new());
    }
    snapshot.range(namespace, "").map(|slot| slot.object.value()).collect()
}

/// How the objects that a write is about are counted; `None` when no quota can care.
fn counted(write: &Write<'_>) -> Option<Counted> {
    let shape = write.resource.shape();
    if write.namespace.is_empty() || !shape.is_namespaced() {
        return None;
    }
    counted_as(write.server, shape.group, shape.plural)
}

/// The same by name, with the device classes where they matter.
fn counted_as(server: &ApiServer, group: &str, plural: &str) -> Option<Counted> {
    let counted = usage::counted(group, plural)?;
    if !counted.depends_on_classes() {
        return Some(counted);
    }
    let Some(classes) = server.cachers.find("resource.k8s.io", "deviceclasses") else { return Some(counted) };
    let snapshot = classes.snapshot();
    Some(counted.with_classes(snapshot.objects().values().filter_map(|slot| slot.object.value().ok())))
}

/// What an object takes, less what was charged already: a pod that asks for devices by the name of a resource
/// is charged for them, and the claim that is then made for it is not charged again.
fn usage_of(server: &ApiServer, counted: &Counted, object: &Value, now: Timestamp) -> Resources {
    let mut out = counted.usage(object, now);
    if let Some(pod) = counted.depends_on_classes().then(|| pod_of(server, object)).flatten()
        && let Some(pods) = usage::counted("", "pods")
    {
        usage::less_what_the_pod_took(&mut out, &pods.usage(&pod, now));
    }
    out
}

/// The pod a claim was made for, where both agree on it.
fn pod_of(server: &ApiServer, claim: &Value) -> Option<Value> {
    let (name, uid) = usage::made_for(claim)?;
    let namespace = meta::namespace(claim);
    let pod = server.catalogue.find("", "v1", "pods")?.cached(namespace, name)?.value().ok()?;
    let claims = server.cachers.find("resource.k8s.io", "resourceclaims")?.snapshot();
    let others: Vec<Value> = match pod.pointer("/status/extendedResourceClaimStatus") {
        Some(_) => Vec::new(),
        None => claims.range(namespace, "").filter_map(|slot| slot.object.value().ok()).collect(),
    };
    (meta::uid(&pod) == uid && usage::is_claim_of(&pod, claim, others.iter())).then_some(pod)
}

/// Charges a write to the quotas of its namespace, all or none. A dry run is judged alike and charged to
/// nobody. Boxed, since a charge is itself a write.
///
/// # Errors
/// 403 when a quota has no room.
pub fn charge<'a>(
    write: &'a Write<'_>,
    old: Option<&'a Value>,
    new: &'a Value,
) -> BoxFuture<'a, status::Result<Charge>> {
    Box::pin(async move {
        let Some(quotas) = resource(write.server).filter(|_| !write.namespace.is_empty()) else {
            return Ok(Charge::default());
        };
        let found = quotas_of(&quotas, write.namespace)?;
        if found.is_empty() {
            return Ok(Charge::default());
        }
        let Some(counted) = counted(write).filter(|c| c.is_charged(old, new, write.subresource)) else {
            return Ok(Charge::default());
        };
        let now = write.server.clock.wall();
        let old = old.map(|old| (old.clone(), usage_of(write.server, &counted, old, now)));
        let usage = usage_of(write.server, &counted, new, now);
        let request = Arc::new(Request { counted, usage, old, new: new.clone() });
        let under_way = write.server.quotas.space(write.namespace).read_owned().await;
        let mut charge = Charge { charged: Vec::new(), under_way: Some(under_way) };
        for quota in found {
            match ask(write, &quotas, &quota, &request).await {
                Ok(charged) if charged.is_empty() => {}
                Ok(charged) => charge.charged.push((meta::name(&quota).to_owned(), charged)),
                Err(refusal) => {
                    refund(write, charge).await;
                    return Err(match refusal {
                        Refusal::Text(why) => {
                            let shown = if write.name.is_empty() { meta::name(new) } else { write.name };
                            Status::forbidden(&write.resource.group_resource(), shown, why)
                        }
                        Refusal::Status(status) => status,
                    });
                }
            }
        }
        Ok(charge)
    })
}

/// Asks one quota. Who cares about nothing of the request is told so without being written.
async fn ask(
    write: &Write<'_>,
    quotas: &Resource,
    object: &Value,
    request: &Arc<Request>,
) -> Result<Resources, Refusal> {
    let quota = Quota::read(object).map_err(Refusal::Status)?;
    let asked = decide::delta(&quota, request).map_err(Refusal::Text)?;
    if asked.is_empty() {
        return Ok(asked);
    }
    if write.dry_run {
        return decide::charge(&mut quota.clone(), &asked).map(|()| Resources::new()).map_err(Refusal::Text);
    }
    let line = write.server.quotas.line(write.namespace, &quota.name);
    let (answer, mut answered) = oneshot::channel();
    line.waiting.lock().push(Waiter { request: request.clone(), answer });
    let turn = line.turn.lock().await;
    if let Ok(answer) = answered.try_recv() {
        return answer;
    }
    // Nobody has served us: we serve all who wait, ourselves among them.
    let waiting = std::mem::take(&mut *line.waiting.lock());
    let requests: Vec<Arc<Request>> = waiting.iter().map(|waiter| waiter.request.clone()).collect();
    let answers = serve(write, quotas, &quota.name, &requests).await;
    for (waiter, answer) in waiting.into_iter().zip(answers) {
        // One who has gone is refunded by nobody: the next count puts it right.
        if waiter.answer.send(answer).is_err() {
            write.server.quotas.touch(write.namespace);
        }
    }
    drop(turn);
    answered.try_recv().unwrap_or_else(|_| Err(Refusal::Status(Status::internal("a quota gave no answer"))))
}

/// Charges requests to one quota in one write.
async fn serve(
    write: &Write<'_>,
    quotas: &Resource,
    name: &str,
    requests: &[Arc<Request>],
) -> Vec<Result<Resources, Refusal>> {
    let answers: Mutex<Vec<Result<Resources, String>>> = Mutex::default();
    let outcome = change(write, quotas, name, &|object| {
        let mut quota = Quota::read(object)?;
        let judged = requests.iter().map(|request| {
            let asked = decide::delta(&quota, request)?;
            decide::charge(&mut quota, &asked).map(|()| asked)
        });
        *answers.lock() = judged.collect();
        Ok(decide::written(object, None, &quota.used))
    })
    .await;
    match outcome {
        Ok(()) => answers.into_inner().into_iter().map(|answer| answer.map_err(Refusal::Text)).collect(),
        // A quota that is gone limits nothing.
        Err(status) if status.code == 404 => requests.iter().map(|_| Ok(Resources::new())).collect(),
        Err(status) => requests.iter().map(|_| Err(Refusal::Status(status.clone()))).collect(),
    }
}

type Change<'a> = &'a (dyn Fn(&Value) -> status::Result<Value> + Send + Sync);

/// Changes the status of a quota by compare-and-swap.
async fn change(write: &Write<'_>, quotas: &Resource, name: &str, how: Change<'_>) -> status::Result<()> {
    let user = bootstrap::myself();
    let write = Write {
        server: write.server,
        resource: quotas,
        request: write.request,
        user: &user,
        causes: write.causes,
        namespace: write.namespace,
        name,
        subresource: "status",
        dry_run: false,
        manager: "",
        depth: Depth::Direct,
    };
    let mut last = Status::modified(&quotas.group_resource(), name);
    for _ in 0..ATTEMPTS {
        match store::update(&write, how).await {
            Err(status) if status.is("Conflict") => last = status,
            outcome => return outcome.map(drop),
        }
    }
    Err(last)
}

/// The write did not happen: what it was charged is free again.
pub fn refund<'a>(write: &'a Write<'_>, charge: Charge) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let Some(quotas) = resource(write.server) else { return };
        for (name, charged) in &charge.charged {
            let undo = |object: &Value| -> status::Result<Value> {
                let mut quota = Quota::read(object)?;
                decide::refund(&mut quota, charged);
                Ok(decide::written(object, None, &quota.used))
            };
            if let Err(error) = change(write, &quotas, name, &undo).await {
                tracing::debug!(quota = name, %error, "a charge was not refunded; the next count will do it");
                write.server.quotas.touch(write.namespace);
            }
        }
    })
}

/// The write happened. What quotas may have to be counted for is counted.
pub fn landed(write: &Write<'_>, charge: Charge, old: Option<&Value>, new: Option<&Value>) {
    let charged = charge.under_way.is_some();
    drop(charge);
    if write.namespace.is_empty() {
        return;
    }
    let shape = write.resource.shape();
    let own = shape.plural == "resourcequotas" && shape.group.is_empty();
    if own && write.subresource.is_empty() {
        return write.server.quotas.touch(write.namespace);
    }
    let Some(quotas) = resource(write.server) else { return };
    if !quotas_of(&quotas, write.namespace).is_ok_and(|found| !found.is_empty()) {
        return;
    }
    let Some(counted) = counted(write) else { return };
    let now = write.server.clock.wall();
    let usage =
        |object: Option<&Value>| object.map(|object| usage_of(write.server, &counted, object, now)).unwrap_or_default();
    let is_less = || {
        let after = usage(new);
        usage(old).iter().any(|(name, before)| after.get(name).is_none_or(|after| after < before))
    };
    // One that nobody charged, because the quota came while it was under way.
    if (!charged && old.is_none()) || is_less() {
        write.server.quotas.touch(write.namespace);
    }
}

/// What is used by the objects of one resource, for each quota.
type Sums = BTreeMap<String, Resources>;
