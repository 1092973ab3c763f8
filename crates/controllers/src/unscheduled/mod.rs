//! Pods that no scheduler has taken up: nobody else could say so, because the scheduler that would
//! is the one that is missing.
//!
//! A scheduler binds a pod or writes into its `PodScheduled` condition why not; a pod with neither
//! waits for a scheduler to come. Where one runs that takes less than a Wait needs to be seen.

use client::Change;
use client::events::Reference;

use crate::context::Context;
use crate::views::{CachedPod, is_active};
use k8s_openapi::api::core::v1::Pod;

/// The code of the Wait.
const WAIT: &str = "NoScheduler";

pub(crate) fn start(context: &Context) {
    let (waits, resource) = (context.waits(), client::Resource::of::<Pod>());
    context.pods().subscribe(move |change| {
        let pod = change.object();
        let about = || Reference::of(&resource, &pod.meta);
        match change {
            Change::Applied { .. } if is_untaken(pod) => {
                let name = pod.view.spec.scheduler.as_deref().unwrap_or("default-scheduler");
                let text =
                    format!("the pod has no node, and no scheduler named {name} has bound it or said why it cannot");
                waits.publish(&about(), WAIT, format!("scheduler {name}"), text);
            }
            Change::Applied { old: Some(old), .. } if !is_untaken(old) => {}
            _ => waits.withdraw(&about(), WAIT),
        }
    });
}

/// No node and no word from a scheduler.
fn is_untaken(pod: &CachedPod) -> bool {
    let told = pod.view.status.conditions.iter().any(|c| c.kind == "PodScheduled");
    pod.view.spec.node_name.is_empty() && !told && is_active(pod)
}
