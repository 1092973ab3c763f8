//! The runtime that `pintle up` supervises, alone: started, adopted, given a sandbox, stopped.

use std::time::Duration;

use anyhow::{Context, Result};
use cri::v1::{PodSandboxConfig, PodSandboxMetadata};
use e2e::runtime;
use host::containerd::{self, Started};
use host::layout::Layout;
use host::process::ProcessId;
use host::reset;
use stdx::ClockExt;
use stdx::clock::RealClock;

#[tokio::test]
async fn a_sandbox_runs_on_a_runtime_of_our_own_and_leaves_nothing() -> Result<()> {
    let dir = tempfile::Builder::new().prefix("pintle-runtime-").tempdir()?;
    let layout = Layout::below(dir.path());
    let clock = RealClock::shared();
    let settings = runtime::settings(&layout)?;
    runtime::network(&layout, "10.244.250.0/24".parse()?)?;
    assert_eq!(containerd::ensure(&layout, &settings, &clock).await?, Started::New);
    assert_eq!(containerd::ensure(&layout, &settings, &clock).await?, Started::Adopted);
    containerd::import_pause(&layout).await?;

    let client = cri::Client::new(&format!("unix://{}", layout.containerd_socket().display()), clock.clone())?;
    let metadata = PodSandboxMetadata {
        name: "probe".into(),
        uid: "0b0e9e5c-0000-4000-8000-000000000001".into(),
        namespace: "default".into(),
        attempt: 0,
    };
    let logs = dir.path().join("logs").display().to_string();
    let linux = cri::v1::LinuxPodSandboxConfig::default();
    let config = PodSandboxConfig {
        metadata: Some(metadata),
        log_directory: logs,
        linux: Some(linux),
        ..PodSandboxConfig::default()
    };
    let id = client.run_pod_sandbox(config, "").await?;
    let status = client.pod_sandbox_status(&id).await?;
    let ip = status.network.context("a network")?.ip;
    assert!(ip.starts_with("10.244.250."), "{ip}");

    // A runtime that was killed leaves its pods running; they are found again, to be stopped.
    let killed = ProcessId::load_alive(&layout.containerd_pid()).context("the runtime runs")?;
    std::process::Command::new("kill").args(["-9", &killed.pid.to_string()]).status()?;
    while killed.is_alive() {
        clock.sleep(Duration::from_millis(5)).await;
    }
    assert!(containerd::with_pods(&layout, &clock).await?.is_some());
    let client = cri::Client::new(&format!("unix://{}", layout.containerd_socket().display()), clock.clone())?;
    let found = loop {
        match client.list_pod_sandbox(None).await {
            Ok(found) => break found,
            Err(_) => clock.sleep(Duration::from_millis(50)).await,
        }
    };
    assert_eq!(found.into_iter().map(|s| s.id).collect::<Vec<_>>(), std::slice::from_ref(&id));
    client.stop_pod_sandbox(&id).await?;
    client.remove_pod_sandbox(&id).await?;

    let process = ProcessId::load_alive(&layout.containerd_pid()).context("the runtime runs")?;
    containerd::stop(process, &clock).await?;
    assert!(containerd::with_pods(&layout, &clock).await?.is_none(), "nothing is left to stop");
    let left: Vec<_> = reset::mounts()?.into_iter().filter(|m| m.starts_with(dir.path())).collect();
    assert!(left.is_empty(), "mounts are left: {left:?}");
    Ok(())
}
