//! A container runtime that is not the cluster's own: for parts that run alone, and for
//! `--container-runtime-endpoint`.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use host::layout::Layout;
use host::process::ProcessId;
use host::{cni, containerd, preflight};
use stdx::SharedClock;

/// Starts (or adopts) a runtime with all its folders below `root`, with the sandbox image; its
/// endpoint.
pub async fn start(root: &Path, clock: &SharedClock) -> Result<String> {
    let layout = Layout::below(root);
    cni::write(&layout.cni_config(), &cni::render("10.244.0.0/24".parse()?, &layout.cni_state()))?;
    let endpoint = start_without_network(root, clock).await?;
    containerd::import_pause(&layout).await?;
    Ok(endpoint)
}

/// The same with no network for pods: a Node on it does not become Ready.
pub async fn start_without_network(root: &Path, clock: &SharedClock) -> Result<String> {
    let layout = Layout::below(root);
    let plugins = cni::find_plugins(cni::PLUGIN_FOLDERS).map_err(|m| anyhow!("missing plugins: {m:?}"))?;
    let settings = containerd::Settings {
        cni_plugins: plugins,
        restrict_oom_score: containerd::lacks_resource_capability(),
        runtime: preflight::oci_runtime("").context("an OCI runtime")?.to_owned(),
    };
    containerd::ensure(&layout, &settings, clock).await?;
    Ok(format!("unix://{}", layout.containerd_socket().display()))
}

/// Kills the runtime below `root` as a crash would, and waits for its end. What it was.
pub async fn kill(root: &Path) -> Result<ProcessId> {
    let running = ProcessId::load_alive(&Layout::below(root).containerd_pid()).context("the runtime runs")?;
    let killed = tokio::process::Command::new("kill").args(["-9", &running.pid.to_string()]).status().await?;
    anyhow::ensure!(killed.success(), "kill: {killed}");
    running.ended().await?;
    Ok(running)
}
