//! The objects of a definition that is being deleted go first, finalizers and all; then the definition.

use std::sync::Arc;
use std::time::Duration;

use kinds::custom_resource_definition::{CLEANUP_FINALIZER, Condition, Definition};
use kinds::{AnyKind, SharedKind};
use machinery::meta;
use machinery::status;
use serde_json::json;
use stdx::ClockExt;
use transport::SharedHandler;

use super::{Custom, GROUP, PLURAL, RETRY, conditions, name_of, patch_status};
use crate::audit::causes::Causes;
use crate::bootstrap;
use crate::cacher::{Cacher, WatchOptions};
use crate::registry::catalogue::Resource;
use crate::registry::store::{self, Depth, Write};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::verbs::options::DeleteOptions;

/// How long it is waited for objects before the status says that some are left.
const PATIENCE: Duration = Duration::from_secs(60);

/// Deletes them, waits until they are gone, and lets the definition go. Ends when that is done.
pub(super) async fn empty(
    server: Arc<ApiServer>,
    door: SharedHandler,
    definition: Arc<Definition>,
    custom: Option<Arc<Custom>>,
) {
    let mut failures = 0;
    let keeper = Emptying { server, door, definition, custom };
    loop {
        match keeper.run().await {
            Ok(()) => return,
            Err(status) if status.code == 404 => return,
            Err(status) => {
                failures += 1;
                tracing::warn!(name = name_of(&keeper.definition), %status, "objects are not deleted; trying again");
            }
        }
        keeper.server.clock.sleep(RETRY.delay(failures)).await;
    }
}

struct Emptying {
    server: Arc<ApiServer>,
    door: SharedHandler,
    definition: Arc<Definition>,
    custom: Option<Arc<Custom>>,
}

impl Emptying {
    async fn run(&self) -> status::Result<()> {
        let terminating = conditions::terminating;
        let Some((custom, cacher)) = self.custom.as_ref().zip(self.cacher()) else {
            let last = terminating("NeverEstablished", "resource was never established", true);
            return self.say(last, true).await;
        };
        let begun = terminating("InstanceDeletionInProgress", "CustomResource deletion is in progress", false);
        self.say(begun, false).await?;
        if let Err(status) = self.delete_all(custom, &cacher).await {
            let why = format!("could not issue all deletes: {status}");
            self.say(terminating("InstanceDeletionFailed", &why, false), false).await?;
            return Err(status);
        }
        let gone = self.all_gone(&cacher);
        tokio::pin!(gone);
        if self.server.clock.timeout(PATIENCE, &mut gone).await.is_err() {
            let why = "could not confirm zero CustomResources remaining: timed out waiting for the condition";
            self.say(terminating("InstanceDeletionCheck", why, false), false).await?;
            gone.await;
        }
        self.say(terminating("InstanceDeletionCompleted", "removed all instances", true), true).await
    }

    /// The cache of the resource as it is now: a change of the definition may have replaced it.
    fn cacher(&self) -> Option<Arc<Cacher>> {
        let shape = self.custom.as_ref()?.storage().shape().prefix.to_owned();
        self.server.cachers.of_prefix(&shape)
    }

    async fn delete_all(&self, custom: &Arc<Custom>, cacher: &Arc<Cacher>) -> status::Result<()> {
        let kind = SharedKind::Custom(custom.storage().clone());
        let store = self.server.cachers.durable_store().clone();
        let resource = Resource::custom(kind, store, cacher.clone(), custom.clone());
        // Creates that were under way have ended, or come too late.
        *custom.open.write().await = false;
        resource.settle(None).await?;
        let user = bootstrap::myself();
        let mut failed = None;
        for slot in cacher.snapshot().objects().values() {
            let object = &slot.object;
            let shape = resource.shape();
            let request = RequestInfo {
                is_resource: true,
                verb: "delete".into(),
                group: shape.group.into(),
                version: shape.version.into(),
                namespace: object.namespace().into(),
                resource: shape.plural.into(),
                name: object.name().into(),
                ..RequestInfo::default()
            };
            let write = Write {
                server: &self.server,
                resource: &resource,
                request: &request,
                user: &user,
                causes: &Causes::default(),
                namespace: object.namespace(),
                name: object.name(),
                subresource: "",
                dry_run: false,
                manager: "",
                depth: Depth::Full,
            };
            let deleted = match &object.damage {
                Some(_) => store::delete_unreadable(&write).await,
                None => store::delete(&write, &DeleteOptions::default()).await.map(drop),
            };
            match deleted {
                Err(status) if status.code != 404 => failed = Some(status),
                _ => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Ends when the cache holds no object.
    async fn all_gone(&self, first: &Arc<Cacher>) {
        let mut cacher = first.clone();
        loop {
            if let Ok(mut watch) = cacher.watch(WatchOptions::default()) {
                if cacher.snapshot().objects().is_empty() {
                    return;
                }
                while watch.next().await.is_some() {
                    if cacher.snapshot().objects().is_empty() {
                        return;
                    }
                }
            }
            self.server.clock.sleep(RETRY.initial).await;
            match self.cacher() {
                Some(again) => cacher = again,
                None => return,
            }
        }
    }

    /// Says in the status of the definition how far it is; in the end its finalizer goes.
    async fn say(&self, condition: Condition, done: bool) -> status::Result<()> {
        let name = name_of(&self.definition);
        let path = format!("/apis/{GROUP}/v1/{PLURAL}/{name}");
        loop {
            let live = bootstrap::send(&self.door, "GET", &path, "application/json", None).await?;
            if Some(meta::uid(&live)) != self.definition.metadata.uid.as_deref() {
                return Ok(());
            }
            let status = live.get("status").cloned().unwrap_or_default();
            let all = status.get("conditions").filter(|all| all.is_array()).cloned().unwrap_or_else(|| json!([]));
            let mut all: Vec<Condition> = serde_json::from_value(all).map_err(status::Status::internal)?;
            conditions::set(&mut all, condition.clone(), self.server.clock.wall());
            let mut metadata = json!({"resourceVersion": meta::resource_version(&live), "uid": meta::uid(&live)});
            if done {
                let left: Vec<&str> = meta::finalizers(&live).into_iter().filter(|f| *f != CLEANUP_FINALIZER).collect();
                metadata["finalizers"] = if left.is_empty() { json!(null) } else { json!(left) };
            }
            let patch = json!({"metadata": metadata, "status": {"conditions": all}});
            match patch_status(&self.door, name, &patch).await {
                Err(status) if status.code == 409 => {}
                outcome => return outcome.map(drop),
            }
        }
    }
}
