//! Ending containers: hook, signal, grace, kill; then the sandbox.

use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1::Container as Spec;
use client::events::Type;
use stdx::ClockExt;
use stdx::backoff::Policy;

use super::plan::{Kill, Why};
use crate::container::config;
use crate::context::Context;
use crate::hook;
use crate::pod::{BoundPod, is_restartable_init};
use crate::runtime::{Container, Error, PodState, Result};

/// What a hook leaves a container at least.
const MIN_GRACE: Duration = Duration::from_secs(2);
/// Whether a container has ended after its own signal is asked with these pauses.
const ASK_AGAIN: Policy = Policy { initial: Duration::from_millis(20), max: Duration::from_secs(1) };

/// A grace as the API has it.
pub fn seconds(grace: i64) -> Duration {
    Duration::from_secs(u64::try_from(grace).unwrap_or(0))
}

fn gone_is_fine(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

/// Ends one container in its grace: the preStop hook first, then the signal.
async fn container(
    ctx: &Context,
    pod: &BoundPod,
    spec: Option<&Spec>,
    found: &Container,
    ip: &str,
    grace: Duration,
    message: String,
) -> Result<()> {
    ctx.report.event(pod, Some(&found.name), Type::Normal, "Killing", message);
    let mut grace = grace;
    let pre_stop = spec.and_then(|s| Some((s, s.lifecycle.as_ref()?.pre_stop.as_ref()?)));
    if let Some((spec, hook)) = pre_stop.filter(|_| grace > Duration::ZERO && found.started_at.is_some()) {
        let begun = ctx.clock.now();
        if let Err(why) = hook::run(hook, spec, &found.id, ip, grace, &ctx.runtime, &ctx.clock).await {
            tracing::info!(pod = %pod.full_name(), container = found.name, why, "preStop hook failed");
            ctx.report.event(pod, Some(&found.name), Type::Warning, "FailedPreStopHook", "PreStopHook failed".into());
        }
        grace = grace.saturating_sub(ctx.clock.now().since(begun)).max(MIN_GRACE);
    }
    let signal = spec.and_then(config::stop_signal).filter(|_| found.stop_signal.is_none() && grace > Duration::ZERO);
    if let Some(signal) = signal {
        // This runtime knows of no other signal than its own: what is left of the grace begins with ours.
        match ctx.runtime.signal(&found.id, signal.kernel).await {
            Ok(()) if ended_within(ctx, pod, &found.id, grace).await => return Ok(()),
            Ok(()) => grace = Duration::ZERO,
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                tracing::warn!(pod = %pod.full_name(), container = found.name, %error, "stop signal not sent");
            }
        }
    }
    gone_is_fine(ctx.runtime.stop_container(&found.id, grace).await)
}

/// Whether the container ends within so long. Asks more and more rarely.
async fn ended_within(ctx: &Context, pod: &BoundPod, id: &str, grace: Duration) -> bool {
    let known = PodState::default();
    let deadline = ctx.clock.now() + grace;
    for n in 1.. {
        let left = deadline.since(ctx.clock.now());
        if left == Duration::ZERO {
            break;
        }
        ctx.clock.sleep(ASK_AGAIN.delay(n).min(left)).await;
        let seen = ctx.runtime.pod(&pod.uid, &known).await;
        if seen.is_ok_and(|seen| seen.by_id(id).is_none_or(|c| !c.may_run())) {
            return true;
        }
    }
    false
}

/// Ends containers that the plan condemned while the pod goes on.
pub async fn condemned(ctx: &Context, pod: &BoundPod, seen: &PodState, kills: &[Kill]) -> Result<()> {
    let ip = ctx.pod_ips(pod, seen).into_iter().next().unwrap_or_default();
    for kill in kills {
        let Some(found) = seen.by_id(&kill.id) else { continue };
        let spec = pod.container(&kill.name);
        let probe = spec.and_then(|s| match kill.why {
            Why::Liveness => s.liveness_probe.as_ref(),
            Why::Startup => s.startup_probe.as_ref(),
            Why::Changed | Why::Unknown | Why::Resized => None,
        });
        let own = probe.and_then(|p| p.termination_grace_period_seconds);
        let seconds = own.or(pod.spec().termination_grace_period_seconds).unwrap_or(30);
        let grace = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        container(ctx, pod, spec, found, &ip, grace, kill.message.clone()).await?;
    }
    Ok(())
}

/// Ends containers without grace and removes them, in this order; their logs stay.
pub async fn at_once(ctx: &Context, pod: &BoundPod, found: &[&Container]) -> Result<()> {
    let running = found.iter().filter(|c| c.may_run());
    let ended = running.map(|c| {
        let message = format!("Stopping container {}", c.name);
        container(ctx, pod, None, c, "", Duration::ZERO, message)
    });
    for ended in futures::future::join_all(ended).await {
        ended?;
    }
    for container in found {
        gone_is_fine(ctx.runtime.remove_container(&container.id).await)?;
    }
    Ok(())
}

/// Ends everything of a pod: its containers at once, then its restartable init containers from the
/// last to the first, all within one grace; then its sandboxes.
pub async fn pod(ctx: &Arc<Context>, pod: &BoundPod, seen: &PodState, grace: Duration) -> Result<()> {
    let deadline = ctx.clock.now() + grace;
    let ip = ctx.pod_ips(pod, seen).into_iter().next().unwrap_or_default();
    let running: Vec<&Container> = seen.containers.iter().filter(|c| c.may_run()).collect();
    let is_sidecar =
        |c: &&&Container| pod.init_containers().iter().any(|spec| spec.name == c.name && is_restartable_init(spec));
    let stop = |found: &Container, grace: Duration| {
        let (found, ip) = (found.clone(), ip.clone());
        async move {
            let message = format!("Stopping container {}", found.name);
            container(ctx, pod, pod.container(&found.name), &found, &ip, grace, message).await
        }
    };
    let mains = running.iter().filter(|c| !is_sidecar(c)).map(|c| stop(c, grace));
    let mut result = Ok(());
    for ended in futures::future::join_all(mains).await {
        result = result.and(ended);
    }
    let order = |name: &str| pod.init_containers().iter().position(|c| c.name == name);
    let mut sidecars: Vec<_> = running.iter().filter(is_sidecar).collect();
    sidecars.sort_by_key(|c| std::cmp::Reverse(order(&c.name)));
    for sidecar in sidecars {
        let left = deadline.since(ctx.clock.now()).max(MIN_GRACE.min(grace));
        result = result.and(stop(sidecar, left).await);
    }
    result?;
    sandboxes(ctx, seen).await
}

/// Stops every sandbox that is not known to be stopped. One that the runtime calls not ready may
/// still hold its network.
pub async fn sandboxes(ctx: &Context, seen: &PodState) -> Result<()> {
    let mut result = Ok(());
    for sandbox in &seen.sandboxes {
        result = result.and(gone_is_fine(ctx.runtime.stop_sandbox(&sandbox.id).await));
    }
    result
}

/// Removes everything of a pod from the runtime.
pub async fn remove(ctx: &Context, seen: &PodState) -> Result<()> {
    sandboxes(ctx, seen).await?;
    for container in &seen.containers {
        gone_is_fine(ctx.runtime.remove_container(&container.id).await)?;
    }
    for sandbox in &seen.sandboxes {
        gone_is_fine(ctx.runtime.remove_sandbox(&sandbox.id).await)?;
    }
    Ok(())
}

/// Dead containers and sandboxes that nobody needs any more: of each name the newest stays, and the
/// newest dead one beside it, whose log is the previous one; a sandbox stays while it holds one. Pure.
pub fn surplus(seen: &PodState) -> (Vec<String>, Vec<String>) {
    let mut containers = Vec::new();
    let mut kept_sandboxes: Vec<&str> = seen.sandboxes.first().map(|s| s.id.as_str()).into_iter().collect();
    let mut counts = std::collections::BTreeMap::new();
    for container in &seen.containers {
        let count = counts.entry(container.name.as_str()).or_insert(0);
        *count += 1;
        if *count > 2 && !container.may_run() {
            containers.push(container.id.clone());
        } else {
            kept_sandboxes.push(&container.sandbox_id);
        }
    }
    let free = seen.sandboxes.iter().filter(|s| !s.ready && !kept_sandboxes.contains(&s.id.as_str()));
    (containers, free.map(|s| s.id.clone()).collect())
}

/// Removes what [`surplus`] names, with the logs of the containers.
pub async fn collect(ctx: &Context, seen: &PodState) -> Result<()> {
    let (containers, sandboxes) = surplus(seen);
    for id in &containers {
        gone_is_fine(ctx.runtime.remove_container(id).await)?;
        if let Some(found) = seen.by_id(id).filter(|c| !c.log_path.is_empty()) {
            let path = found.log_path.clone();
            let removed =
                crate::context::blocking(move || crate::logs::rotate::remove_all(std::path::Path::new(&path)));
            removed.await.map_err(|e| Error::Unavailable(e.to_string()))?;
        }
    }
    for id in &sandboxes {
        gone_is_fine(ctx.runtime.stop_sandbox(id).await)?;
        gone_is_fine(ctx.runtime.remove_sandbox(id).await)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{ContainerState, Sandbox, fake};
    use jiff::Timestamp;

    #[test]
    fn the_last_dead_one_stays_for_its_log() {
        let spec = |name: &str| serde_json::from_value(serde_json::json!({"name": name})).expect("a container");
        let sandbox = |id: &str, ready| Sandbox {
            id: id.into(),
            attempt: 0,
            ready,
            created_at: Timestamp::UNIX_EPOCH,
            ips: vec![],
            host_network: false,
        };
        let container = |name: &str, sandbox: &str, state, id: &str| {
            let mut c = fake::container(&spec(name), sandbox, state, 1);
            c.id = id.into();
            c
        };
        use ContainerState::{Exited, Running};
        let seen = PodState {
            sandboxes: vec![sandbox("s2", true), sandbox("s1", false), sandbox("s0", false)],
            containers: vec![
                container("a", "s2", Running, "a4"),
                container("a", "s2", Exited, "a3"),
                container("a", "s1", Exited, "a2"),
                container("b", "s1", Exited, "b1"),
                container("a", "s0", Exited, "a1"),
            ],
        };
        assert_eq!(surplus(&seen), (vec!["a2".into(), "a1".into()], vec!["s0".into()]));
    }
}
