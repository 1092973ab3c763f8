//! Lifecycle hooks: what a container wants done after its start and before its end.

use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1::{Container, LifecycleHandler};
use stdx::{ClockExt, SharedClock};

use crate::probe::http;
use crate::runtime::Runtime;

/// Runs a hook for at most `limit`. The error is for the log: events do not quote hooks.
pub async fn run(
    hook: &LifecycleHandler,
    container: &Container,
    id: &str,
    ip: &str,
    limit: Duration,
    runtime: &Arc<dyn Runtime>,
    clock: &SharedClock,
) -> Result<(), String> {
    let work = async {
        if let Some(exec) = &hook.exec {
            let command = exec.command.clone().unwrap_or_default();
            let output = runtime.exec(id, &command, limit).await.map_err(|e| e.to_string())?;
            return match output.exit_code {
                0 => Ok(()),
                code => Err(format!("{} exited with {code}", command.join(" "))),
            };
        }
        if let Some(action) = &hook.http_get {
            let get = http::Get { agent: "kube-lifecycle", ..http::Get::of(action, container, ip)? };
            return http::call(&get, limit, clock).await;
        }
        if let Some(sleep) = &hook.sleep {
            clock.sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
            return Ok(());
        }
        Err("the hook has no handler that this kubelet knows".into())
    };
    clock.timeout(limit, Box::pin(work)).await.unwrap_or_else(|_| Err("the hook took too long".into()))
}
