//! Before a pod that was deleted ends, its endpoints leave the rules of this node, where a Service asks for it:
//! what the node's service proxy says is waited for, for a while.

use std::time::Duration;

use parking_lot::Mutex;
use stdx::ClockExt;

use super::mailbox::Mailbox;
use super::start::Memory;
use crate::context::Context;
use crate::pod::BoundPod;
use crate::report::Wait;
use crate::runtime::PodState;

/// The code of the Wait.
pub const LEAVING: &str = "EndpointInRules";
/// How long is waited at most: where no proxy says anything, nobody is the worse for it for long.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the pod waits at most for its endpoints to leave; `None` when it does not. Pure.
fn limit(is_deleted: bool, runs: bool, grace: Duration, services: &[String]) -> Option<Duration> {
    // Half of its time is for what it has to do itself.
    let limit = PATIENCE.min(grace / 2);
    (is_deleted && runs && !services.is_empty() && !limit.is_zero()).then_some(limit)
}

/// Waits, once in the life of a pod; what is left of its grace.
pub async fn first(
    ctx: &Context,
    pod: &BoundPod,
    seen: &PodState,
    grace: Duration,
    memory: &Mutex<Memory>,
    mail: &Mailbox,
) -> Duration {
    if memory.lock().left {
        return grace;
    }
    let services = if pod.is_deleted() { ctx.cluster.leaves_first(pod) } else { Vec::new() };
    let Some(limit) = limit(pod.is_deleted(), seen.may_run(), grace, &services) else {
        // A wait that was given up for this quicker end is over.
        mail.activity(None);
        return grace;
    };
    let begun = ctx.clock.now();
    let text = format!("new connections may still go to it by {}", services.join(", "));
    mail.activity(Some(Wait { code: LEAVING, on: "the node's service proxy".into(), text }));
    if ctx.clock.timeout(limit, ctx.cluster.has_left(pod, &services)).await.is_err() {
        tracing::info!(pod = %pod.full_name(), ?services, "no service proxy said that its endpoints have left the rules");
    }
    mail.activity(None);
    memory.lock().left = true;
    grace.saturating_sub(ctx.clock.now().since(begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_and_for_how_long() {
        /// Whether it was deleted and runs, its grace in ms, its Services, and how long it waits in ms.
        type Case<'a> = (bool, bool, u64, &'a [String], Option<u64>);
        let (web, none) = (["web".to_owned()], []);
        let table: [Case<'_>; 7] = [
            (true, true, 30_000, &web, Some(2_000)),
            (true, true, 4_000, &web, Some(2_000)),
            (true, true, 1_000, &web, Some(500)),
            // At once is at once.
            (true, true, 0, &web, None),
            // Nobody asks for it.
            (true, true, 30_000, &none, None),
            // It ended by itself, or the node needs room.
            (false, true, 30_000, &web, None),
            // Nothing of it answers.
            (true, false, 30_000, &web, None),
        ];
        for (is_deleted, runs, grace, services, want) in table {
            let got = limit(is_deleted, runs, Duration::from_millis(grace), services);
            assert_eq!(got, want.map(Duration::from_millis), "{is_deleted} {runs} {grace} {services:?}");
        }
    }
}
