//! What may have broken a claim, as the watch cache shows it: an IPAddress changed or taken away while
//! its Service is there, a range that is gone.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use tokio::sync::Notify;

use crate::cacher::{Cachers, WatchItem, WatchOptions, What};
use crate::objects::{Objects, Resource, SERVICE_CIDRS};

const ADDRESSES: Resource = Resource { group: "networking.k8s.io", plural: "ipaddresses" };
const SERVICES: Resource = Resource { group: "", plural: "services" };
/// After a watch that ended.
const PAUSE: Duration = Duration::from_secs(1);

/// Wakes the repair until the stage stops.
pub async fn run(cachers: Arc<Cachers>, touched: Arc<Notify>, clock: SharedClock, stage: Stage) {
    let work = async {
        loop {
            follow(&cachers, &touched).await;
            clock.sleep(PAUSE).await;
            // Whatever was missed in between.
            touched.notify_one();
        }
    };
    tokio::select! {
        () = stage.stopped() => {}
        () = work => {}
    }
}

/// Until a watch ends.
async fn follow(cachers: &Arc<Cachers>, touched: &Notify) {
    let objects: Arc<dyn Objects> = cachers.clone();
    let watch = |resource: Resource| {
        let cacher = cachers.find(resource.group, resource.plural)?;
        cacher.watch(WatchOptions { after: Some(cacher.revision()), ..WatchOptions::default() }).ok()
    };
    let (Some(mut addresses), Some(mut ranges)) = (watch(ADDRESSES), watch(SERVICE_CIDRS)) else { return };
    loop {
        let item = tokio::select! {
            item = addresses.next() => item,
            item = ranges.next() => item,
        };
        match item {
            Some(WatchItem::Event(event)) => {
                let object = event.object.value().unwrap_or_default();
                if matters(event.what, &object, |namespace, name| objects.get(SERVICES, namespace, name).is_some()) {
                    touched.notify_one();
                }
            }
            Some(WatchItem::Bookmark { .. }) => {}
            Some(WatchItem::Error(_)) | None => return,
        }
    }
}

/// True for what may leave a Service without its claim, or in no range. What comes with every Service,
/// and goes with it, is not.
fn matters(what: What, object: &Value, is_there: impl Fn(&str, &str) -> bool) -> bool {
    let Some(parent) = object.pointer("/spec/parentRef") else { return what == What::Deleted };
    let text = |field: &str| parent[field].as_str().unwrap_or_default();
    match what {
        What::Modified => true,
        What::Added => text("resource") != "services",
        What::Deleted => is_there(text("namespace"), text("name")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_breaks_claims_wakes() {
        let address = |resource: &str, name: &str| json!({"spec": {"parentRef": {"resource": resource, "namespace": "default", "name": name}}});
        let range = json!({"spec": {"cidrs": ["10.0.0.0/24"]}});
        for (what, object, want) in [
            (What::Added, address("services", "here"), false),
            (What::Added, address("gateways", "here"), true),
            (What::Modified, address("services", "here"), true),
            (What::Deleted, address("services", "here"), true),
            (What::Deleted, address("services", "gone"), false),
            (What::Added, range.clone(), false),
            (What::Deleted, range, true),
        ] {
            assert_eq!(matters(what, &object, |_, name| name == "here"), want, "{what:?} {object}");
        }
    }
}
