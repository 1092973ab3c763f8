//! The count: what is used of every quota of a namespace, from the caches.

use std::sync::Arc;
use std::time::Duration;

use api::resources::{self, Resources};
use kinds::Keep;
use machinery::quantity::Quantity;
use machinery::status::{self, Status};
use machinery::{meta, status::GroupResource};
use serde_json::Value;
use stdx::ClockExt;
use stdx::shutdown::Stage;

use super::decide::{self, Quota};
use super::{Sums, counted_as, quotas_of, resource, usage_of};
use crate::audit::causes::Causes;
use crate::bootstrap;
use crate::registry::store::{self, Depth, Write};
use crate::request::RequestInfo;
use crate::server::ApiServer;

/// All namespaces are counted at least this often: pods that should have ended long ago stop counting by
/// the clock alone.
const RESYNC: Duration = Duration::from_secs(300);
/// Between counts, so that many deletions are one count.
const PAUSE: Duration = Duration::from_millis(10);

/// Counts what is touched until the stage stops.
pub async fn run(server: Arc<ApiServer>, stage: Stage) {
    touch_all(&server);
    loop {
        let touched = std::mem::take(&mut *server.quotas.dirty.lock());
        for namespace in touched {
            if let Err(status) = count(&server, &namespace).await {
                if !status.is("Conflict") {
                    tracing::warn!(namespace, %status, "quotas were not counted");
                }
                server.quotas.touch(&namespace);
            }
        }
        tokio::select! {
            () = stage.stopped() => return,
            () = server.quotas.wake.notified() => {}
            () = server.clock.sleep(RESYNC) => touch_all(&server),
        }
        tokio::select! {
            () = stage.stopped() => return,
            () = server.clock.sleep(PAUSE) => {}
        }
    }
}

fn touch_all(server: &ApiServer) {
    let Some(quotas) = resource(server) else { return };
    let Ok(cacher) = quotas.cacher() else { return };
    for slot in cacher.snapshot().objects().values() {
        server.quotas.touch(slot.object.namespace());
    }
}

/// Counts one namespace.
async fn count(server: &ApiServer, namespace: &str) -> status::Result<()> {
    let Some(quotas) = resource(server) else { return Ok(()) };
    quotas.settle(None).await?;
    if quotas_of(&quotas, namespace)?.is_empty() {
        server.quotas.forget(namespace);
        return Ok(());
    }
    let space = server.quotas.space(namespace);
    // No charged write is under way while the caches are read.
    let quiet = space.write().await;
    quotas.settle(None).await?;
    let objects = quotas_of(&quotas, namespace)?;
    let found: Vec<Quota> = objects.iter().map(Quota::read).collect::<status::Result<_>>()?;
    let mut counts = Vec::new();
    for resource in server.catalogue.all().iter().filter(|r| r.shape().is_namespaced()) {
        let shape = resource.shape();
        if shape.keep == Keep::Virtual || resource.kind.stored_as().is_some() {
            continue;
        }
        let Some(counted) = counted_as(server, shape.group, shape.plural) else { continue };
        let tracked = |quota: &Quota| quota.wanted.keys().any(|name| counted.tracks(name));
        if found.iter().any(tracked) {
            resource.settle(None).await?;
            counts.push((counted, resource.cacher()?.snapshot()));
        }
    }
    drop(quiet);
    let now = server.clock.wall();
    let mut sums: Sums = found.iter().map(|quota| (quota.name.clone(), Resources::new())).collect();
    for (counted, snapshot) in counts {
        let mut objects: Vec<Value> = Vec::new();
        for slot in snapshot.range(namespace, "") {
            objects.push(slot.object.value()?);
        }
        for quota in &found {
            let Some(sum) = sums.get_mut(&quota.name) else { continue };
            for name in quota.wanted.keys().filter(|name| counted.tracks(name)) {
                sum.entry(name.clone()).or_insert(Quantity::ZERO);
            }
            for object in objects.iter().filter(|object| quota.covers(&counted, object)) {
                let mut taken = usage_of(server, &counted, object, now);
                taken.retain(|name, _| quota.wanted.contains_key(name));
                resources::add(sum, &taken);
            }
        }
        tokio::task::yield_now().await;
    }
    for (object, quota) in objects.iter().zip(&found) {
        let used = sums.remove(&quota.name).unwrap_or_default();
        // One that limits nothing and never did is left alone.
        if quota.hard == quota.wanted && (quota.used == used || quota.wanted.is_empty()) {
            continue;
        }
        write(server, namespace, object, &decide::written(object, Some(&quota.wanted), &used)).await?;
    }
    Ok(())
}

/// Writes what was counted, unless something was charged since.
async fn write(server: &ApiServer, namespace: &str, old: &Value, new: &Value) -> status::Result<()> {
    let Some(quotas) = resource(server) else { return Ok(()) };
    let (user, causes, request, name) =
        (bootstrap::myself(), Causes::default(), RequestInfo::default(), meta::name(old));
    let write = Write {
        server,
        resource: &quotas,
        request: &request,
        user: &user,
        causes: &causes,
        namespace,
        name,
        subresource: "status",
        dry_run: false,
        manager: "kube-apiserver",
        depth: Depth::Direct,
    };
    let same = |current: &Value| {
        if meta::resource_version(current) == meta::resource_version(old) {
            return Ok(new.clone());
        }
        Err(Status::modified(&GroupResource::new("", "resourcequotas"), name))
    };
    match store::update(&write, same).await {
        Err(status) if status.code == 404 => Ok(()),
        outcome => outcome.map(drop),
    }
}
