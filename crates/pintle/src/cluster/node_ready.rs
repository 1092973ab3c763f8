//! Waits for the Node to be Ready, as told by the kubelet of this start: what an earlier one said last is
//! still in the Node's status when the process comes back.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::{Client, Informer, Resource};
use jiff::Timestamp;
use serde_json::Value;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};

/// Ends when a Node was said to be Ready at or after `since`. It watches, as every client does.
///
/// # Errors
/// When that takes longer than `limit`: what the Node says of itself.
pub async fn wait(client: Client, clock: SharedClock, rng: Rng, since: Timestamp, limit: Duration) -> Result<()> {
    let resource = Resource::of::<api::types::core::v1::Node>();
    let stage = Stage::new();
    let nodes: Informer<Value> = Informer::builder(client, resource).start(clock.clone(), rng, &stage);
    let (sender, mut receiver) = tokio::sync::watch::channel(Some("no node has registered".to_owned()));
    let last = receiver.clone();
    nodes.subscribe(move |change| {
        sender.send_replace(problem(&change.object().view, since));
    });
    let waited = clock.timeout(limit, receiver.wait_for(Option::is_none)).await;
    stage.stop();
    match waited {
        Ok(ended) => ended.map(drop).context("the watch of nodes ended"),
        Err(_) => bail!("the node did not become Ready: {}", last.borrow().as_deref().unwrap_or_default()),
    }
}

/// Why the Node is not Ready; `None` when it is, and this was said at or after `since`. Heartbeats are in
/// whole seconds.
fn problem(node: &Value, since: Timestamp) -> Option<String> {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|c| c["type"] == "Ready");
    let heartbeat = |c: &Value| c["lastHeartbeatTime"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    match ready.filter(|c| heartbeat(c).is_some_and(|at| at.as_second() >= since.as_second())) {
        None => Some("the kubelet has not said how it is".to_owned()),
        Some(ready) if ready["status"] == "True" => None,
        Some(ready) => Some(ready["message"].as_str().unwrap_or_default().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_an_earlier_kubelet_said_does_not_count() {
        let since = "2026-11-29T12:00:05.7Z".parse().expect("a time");
        let node = |kind: &str, status: &str, at: &str| {
            json!({"status": {"conditions": [
                {"type": "MemoryPressure", "status": "True", "lastHeartbeatTime": "2026-11-29T12:00:06Z"},
                {"type": kind, "status": status, "lastHeartbeatTime": at, "message": "runtime is down"}]}})
        };
        let silent = Some("the kubelet has not said how it is".to_owned());
        for (seen, want) in [
            (node("Ready", "True", "2026-11-29T12:00:05Z"), None),
            (node("Ready", "True", "2026-11-29T12:01:00Z"), None),
            (node("Ready", "True", "2026-11-29T12:00:04Z"), silent.clone()),
            (node("Ready", "False", "2026-11-29T12:01:00Z"), Some("runtime is down".to_owned())),
            (node("DiskPressure", "True", "2026-11-29T12:01:00Z"), silent.clone()),
            (json!({}), silent.clone()),
        ] {
            assert_eq!(problem(&seen, since), want, "{seen}");
        }
    }
}
