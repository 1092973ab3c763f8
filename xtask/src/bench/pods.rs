//! Apply → Ready of one pod, beside the bare runtime calls for the same container on the same
//! machine: the difference is ours.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::types::core::v1::Pod;
use client::watch::Event;
use client::{Client, DeleteParams, WatchParams};
use cri::v1;
use serde_json::json;
use stdx::{ClockExt, SharedClock};

use super::IMAGE;
use super::figures::{Figures, median, ms};

/// Measures `rounds` of each.
pub async fn run(
    client: &Client,
    socket: &Path,
    clock: &SharedClock,
    rounds: usize,
    figures: &mut Figures,
) -> Result<()> {
    let mut bare = Vec::new();
    let runtime = cri::Client::new(&format!("unix://{}", socket.display()), clock.clone())?;
    for round in 0..rounds {
        bare.push(bare_calls(&runtime, clock, round).await.context("bare runtime calls")?);
    }
    let mut ours = Vec::new();
    for round in 0..rounds {
        ours.push(apply_to_ready(client, clock, round).await.context("apply to Ready")?);
    }
    let (bare, whole) = (median(&mut bare), median(&mut ours));
    figures.add("bare runtime calls (sandbox, create, start)", ms(bare), "", None);
    figures.add("apply → Ready, one pod, image present", ms(whole), "", None);
    let share = whole.saturating_sub(bare);
    figures.add("our share of apply → Ready", ms(share), "≤ 30 ms", Some(share <= Duration::from_millis(30)));
    Ok(())
}

async fn bare_calls(runtime: &cri::Client, clock: &SharedClock, round: usize) -> Result<Duration> {
    let logs = tempfile::tempdir()?;
    let sandbox = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: format!("bare-{round}"),
            uid: format!("bare-{round}"),
            namespace: "bench".into(),
            attempt: 0,
        }),
        log_directory: logs.path().display().to_string(),
        linux: Some(v1::LinuxPodSandboxConfig::default()),
        ..Default::default()
    };
    let container = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "nginx".into(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: IMAGE.into(), ..Default::default() }),
        log_path: "nginx.log".into(),
        linux: Some(v1::LinuxContainerConfig::default()),
        ..Default::default()
    };
    let begin = clock.now();
    let id = runtime.run_pod_sandbox(sandbox.clone(), "").await?;
    let inner = runtime.create_container(&id, container, sandbox).await?;
    runtime.start_container(&inner).await?;
    let took = clock.now().since(begin);
    runtime.stop_pod_sandbox(&id).await?;
    runtime.remove_pod_sandbox(&id).await?;
    Ok(took)
}

async fn apply_to_ready(client: &Client, clock: &SharedClock, round: usize) -> Result<Duration> {
    let name = format!("bench-{round}");
    let pods = client.api::<Pod>().namespace("default");
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "nginx", "image": IMAGE,
            "imagePullPolicy": "IfNotPresent" }] },
    }))?;
    let begin = clock.now();
    let created = pods.create(&pod).await?;
    let params = WatchParams {
        field_selector: format!("metadata.name={name}"),
        after: Some(client::object::revision_of(&created)),
        ..Default::default()
    };
    let mut watch = pods.watch(&params).await?;
    let until_ready = async {
        while let Some(event) = watch.next().await {
            if let Event::Added(pod) | Event::Modified(pod) = event?
                && api::pod::is_ready(&pod)
            {
                return Ok(clock.now().since(begin));
            }
        }
        bail!("the watch ended")
    };
    let took = clock.timeout(Duration::from_secs(60), until_ready).await.context("the pod is not Ready")??;
    pods.delete(&name, &DeleteParams::default().grace(0)).await?;
    Ok(took)
}
