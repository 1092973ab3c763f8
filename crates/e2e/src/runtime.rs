//! A container runtime that is not the cluster's own: for parts that run alone, and for
//! `--container-runtime-endpoint`.

use std::path::Path;

use anyhow::{Context, Result};
use host::cni::Network;
use host::containerd::Settings;
use host::layout::Layout;
use host::process::ProcessId;
use host::{cni, containerd, preflight};
use ipnet::IpNet;
use stdx::SharedClock;

use crate::cluster;

/// Starts (or adopts) a runtime with all its folders below `root`, with the sandbox image; its
/// endpoint.
pub async fn start(root: &Path, clock: &SharedClock) -> Result<String> {
    let layout = Layout::below(root);
    network(&layout, "10.244.0.0/24".parse()?)?;
    let endpoint = start_without_network(root, clock).await?;
    containerd::import_pause(&layout).await?;
    Ok(endpoint)
}

/// The same with no network for pods: a Node on it does not become Ready.
pub async fn start_without_network(root: &Path, clock: &SharedClock) -> Result<String> {
    let layout = Layout::below(root);
    containerd::ensure(&layout, &settings(&layout)?, clock).await?;
    Ok(format!("unix://{}", layout.containerd_socket().display()))
}

/// What the runtime's configuration depends on; its plugins are there afterwards.
pub fn settings(layout: &Layout) -> Result<Settings> {
    cni::link_plugins(&layout.cni_plugins(), &cluster::binary()?, &[PLUGIN, "loopback"], cni::PLUGIN_FOLDERS)?;
    Ok(Settings {
        cni_plugins: layout.cni_plugins(),
        restrict_oom_score: containerd::lacks_resource_capability(),
        runtime: preflight::oci_runtime("").context("an OCI runtime")?.to_owned(),
    })
}

/// The plugin under test.
const PLUGIN: &str = "pintle-cni";

/// Writes the configuration of the pods' network, with addresses of `range`.
pub fn network(layout: &Layout, range: IpNet) -> Result<()> {
    let network = Network { plugin: PLUGIN, ranges: &[range], state: &layout.cni_state(), gate: None, mtu: None };
    Ok(cni::write(&layout.cni_config(), &cni::render(&network))?)
}

/// Kills the runtime below `root` as a crash would, and waits for its end. What it was.
pub async fn kill(root: &Path) -> Result<ProcessId> {
    let running = ProcessId::load_alive(&Layout::below(root).containerd_pid()).context("the runtime runs")?;
    let killed = tokio::process::Command::new("kill").args(["-9", &running.pid.to_string()]).status().await?;
    anyhow::ensure!(killed.success(), "kill: {killed}");
    running.ended().await?;
    Ok(running)
}
