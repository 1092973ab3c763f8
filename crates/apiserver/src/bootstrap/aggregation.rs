//! Aggregated ClusterRoles show the rules they gather. Authorization does not wait for this: it
//! gathers by itself; the objects are for those who read them.

use std::time::Duration;

use serde_json::{Value, json};
use std::sync::Arc;
use stdx::{ClockExt, SharedClock};
use transport::SharedHandler;

use crate::authn::service_account;
use crate::authz::Rbac;
use crate::authz::rbac::Rule;
use crate::cacher::{Cachers, WatchItem, WatchOptions};
use crate::objects::CLUSTER_ROLES;

/// After a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Who writes the rules.
pub fn user() -> kinds::User {
    const NAMESPACE: &str = "kube-system";
    kinds::User {
        name: service_account::user_name(NAMESPACE, "clusterrole-aggregation-controller"),
        groups: service_account::groups(NAMESPACE),
        ..kinds::User::default()
    }
}

/// What to write: the roles whose rules are not what they should be.
fn plan(rbac: &Rbac) -> Vec<(String, Value)> {
    rbac.with_index(|index| {
        let stale = index.aggregations().filter(|(_, _, current)| !current);
        stale.map(|(name, rules, _)| (name.to_owned(), rules.iter().map(Rule::to_value).collect())).collect()
    })
}

/// Brings every aggregated role up to date once. `handler` is a door for [`user`]. False when a
/// write failed.
pub async fn settle(handler: &SharedHandler, rbac: &Rbac) -> bool {
    let mut whole = true;
    for (name, rules) in plan(rbac) {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}");
        let patch = json!({"rules": rules});
        let written = super::send(handler, "PATCH", &path, "application/merge-patch+json", Some(&patch)).await;
        match written {
            Ok(_) => {}
            // Deleted in the meantime.
            Err(status) if status.code == 404 => {}
            Err(status) => {
                tracing::warn!(role = name, %status, "aggregated rules not written");
                whole = false;
            }
        }
    }
    whole
}

/// Keeps them up to date for ever.
pub async fn run(handler: SharedHandler, rbac: Arc<Rbac>, cachers: Arc<Cachers>, clock: SharedClock) {
    loop {
        follow(&handler, &rbac, &cachers).await;
        clock.sleep(PAUSE).await;
    }
}

/// Until the watch ends or a write fails.
async fn follow(handler: &SharedHandler, rbac: &Rbac, cachers: &Cachers) {
    let Some(cacher) = cachers.find(CLUSTER_ROLES.group, CLUSTER_ROLES.plural) else {
        return std::future::pending().await;
    };
    let Ok(mut watch) = cacher.watch(WatchOptions::default()) else { return };
    loop {
        if !settle(handler, rbac).await {
            return;
        }
        match watch.next().await {
            Some(WatchItem::Event(_) | WatchItem::Bookmark { .. }) => {}
            Some(WatchItem::Error(_)) | None => return,
        }
    }
}
