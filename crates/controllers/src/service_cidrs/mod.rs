//! ServiceCIDRs: a range is ready once it has its finalizer, and goes when no address needs it.
//!
//! Watches ranges and addresses. The API server takes addresses from ranges that are ready and stay.

mod plan;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::events::{Reference, Type};
use client::{Cached, Change, Informer, Patch, Queue, Resource, Result};
use jiff::SignedDuration;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use serde_json::{Value, json};
use stdx::SharedClock;

use crate::context::Context;
use crate::views::{BareView, RangeView};
use crate::writer::{Writer, revision};
use plan::Range;

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const MANAGED_BY: (&str, &str) = ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");
/// How long a range stays after its deletion began, until every API server has heard that nothing more is to
/// be taken from it.
const GRACE: SignedDuration = SignedDuration::from_secs(10);

struct Controller {
    ranges: Informer<RangeView>,
    addresses: Informer<BareView>,
    writer: Writer,
    clock: SharedClock,
    resource: Resource,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<String>::new(context.clock.clone());
    let controller = Arc::new(Controller {
        ranges: context.service_cidrs(),
        addresses: context.ip_addresses(),
        writer: context.writer("service-cidrs-controller", "service-cidrs-controller"),
        clock: context.clock.clone(),
        resource: Resource::of::<ServiceCIDR>(),
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.ranges.subscribe(move |change| {
        let changed = range(change.object());
        // What one range covers another may let go of, and the other way round.
        for other in own.ranges.list().iter().filter(|other| plan::overlap(&range(other), &changed)) {
            keys.add_caused(other.meta.name.clone(), own.ranges.cause(change.object()));
        }
        keys.add_caused(changed.name, own.ranges.cause(change.object()));
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.addresses.subscribe(move |change| {
        // Only the last address of a range that is to go changes anything.
        let (Change::Deleted(address), Some(ip)) = (change, address(change.object())) else { return };
        let going = own.ranges.list().into_iter().filter(|range| range.meta.is_deleting());
        for other in going.filter(|other| range(other).networks.iter().any(|network| network.contains(&ip))) {
            keys.add_caused(other.meta.name.clone(), own.addresses.cause(address));
        }
    });
    let (ranges, addresses) = (controller.ranges.synced(), controller.addresses.synced());
    let ready = async move {
        ranges.await;
        addresses.await;
    };
    controller::run(context.runner("service-cidrs", 1), queue, controller, ready, &context.stage);
}

fn range(cached: &Cached<RangeView>) -> Range {
    let networks = cached.view.spec.cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect();
    Range { name: cached.meta.name.clone(), networks }
}

/// The address that an object claims for a Service.
fn address(cached: &Cached<BareView>) -> Option<IpAddr> {
    let ours = cached.meta.labels.get(MANAGED_BY.0).is_some_and(|by| by == MANAGED_BY.1);
    ours.then(|| cached.meta.name.parse().ok()).flatten()
}

impl Controller {
    /// Writes the Ready condition, unless it is as it should be.
    async fn tell(
        &self,
        cached: &Cached<RangeView>,
        status: &str,
        reason: &str,
        message: &str,
        pass: &Pass,
    ) -> Result<()> {
        let ready = cached.view.status.conditions.iter().find(|c| c.kind == "Ready");
        if ready.is_some_and(|c| c.status == status) {
            return Ok(());
        }
        let condition = json!({"type": "Ready", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": machinery::time::rfc3339(self.clock.wall())});
        let patch =
            Patch::Strategic(json!({"metadata": {"uid": cached.meta.uid}, "status": {"conditions": [condition]}}));
        match self.writer.patch_status(&self.resource, "", &cached.meta.name, &patch).await {
            Ok(written) => pass.hold(self.ranges.reached(revision(&written))),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                let about = Reference::of(&self.resource, &cached.meta);
                let text = format!("The ServiceCIDR Status can not be set to Ready={status}");
                self.writer.event_about(&about, Type::Warning, "KubernetesServiceCIDRError", text);
                return Err(error);
            }
        }
        Ok(())
    }

    async fn patch_finalizers(&self, cached: &Cached<RangeView>, change: Value, pass: &Pass) -> Result<()> {
        let mut metadata = change;
        metadata["uid"] = json!(cached.meta.uid);
        let patch = Patch::Strategic(json!({"metadata": metadata}));
        match self.writer.patch(&self.resource, "", &cached.meta.name, &patch).await {
            Ok(written) => pass.hold(self.ranges.reached(revision(&written))),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[async_trait]
impl Reconcile for Controller {
    type Key = String;

    async fn reconcile(&self, name: &String, pass: &Pass) -> Result<Next> {
        let Some(cached) = self.ranges.find("", name) else { return Ok(Next::Done) };
        let Some(begun) = cached.meta.deletion_timestamp else {
            if !cached.meta.has_finalizer(FINALIZER) {
                self.patch_finalizers(&cached, json!({"finalizers": [FINALIZER]}), pass).await?;
            }
            self.tell(&cached, "True", "", "Kubernetes Service CIDR is ready", pass).await?;
            return Ok(Next::Done);
        };
        if !cached.meta.has_finalizer(FINALIZER) {
            return Ok(Next::Done);
        }
        let own = range(&cached);
        let all = self.ranges.list();
        let others: Vec<Range> =
            all.iter().filter(|r| r.meta.name != *name && !r.meta.is_deleting()).map(|r| range(r)).collect();
        let used = self.addresses.list();
        if !plan::may_go(&own, &others, used.iter().filter_map(|a| address(a))) {
            let why = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new \
                       ServiceCIDR";
            self.tell(&cached, "False", "Terminating", why, pass).await?;
            return Ok(Next::Done);
        }
        let left = GRACE.as_millis() - self.clock.wall().duration_since(begun).as_millis();
        if let Ok(left @ 1..) = u64::try_from(left) {
            return Ok(Next::After(Duration::from_millis(left)));
        }
        let gone = json!({"$deleteFromPrimitiveList/finalizers": [FINALIZER]});
        self.patch_finalizers(&cached, gone, pass).await?;
        Ok(Next::Done)
    }

    fn all(&self) -> Vec<String> {
        self.ranges.list().iter().map(|range| range.meta.name.clone()).collect()
    }
}
