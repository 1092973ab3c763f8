//! Apply → Ready of one pod, beside the bare runtime calls for the same pod on the same machine: the
//! difference is ours. Each round begins when nothing is left of the one before, so that no teardown
//! is measured with a start; the bare calls run while no kubelet does, with the configuration that
//! the kubelet would give them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use api::types::core::v1::Pod;
use client::watch::Event;
use client::{Client, DeleteParams, WatchParams};
use cri::v1;
use kubelet::cgroup::{Cgroups, Hierarchies};
use kubelet::container::{config, env, sandbox};
use kubelet::pod::BoundPod;
use kubelet::runtime::Image;
use serde_json::{Value, json};
use stdx::{ClockExt, SharedClock};

use super::IMAGE;
use super::figures::{Figures, median, ms};

/// How long one round may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures `rounds` of bare runtime calls; nothing else may use the runtime.
pub async fn bare(socket: &Path, clock: &SharedClock, rounds: usize, figures: &mut Figures) -> Result<Duration> {
    let runtime = cri::Client::new(&format!("unix://{}", socket.display()), clock.clone())?;
    let mut all = Vec::new();
    for round in 0..rounds {
        all.push(bare_calls(&runtime, clock, round).await.context("bare runtime calls")?);
    }
    let bare = median(&mut all);
    figures.add("bare runtime calls (sandbox, create, start)", ms(bare), "", None);
    Ok(bare)
}

/// Measures `rounds` of apply → Ready.
pub async fn run(
    client: &Client,
    socket: &Path,
    clock: &SharedClock,
    rounds: usize,
    bare: Duration,
    figures: &mut Figures,
) -> Result<()> {
    let runtime = cri::Client::new(&format!("unix://{}", socket.display()), clock.clone())?;
    let mut all = Vec::new();
    for round in 0..rounds {
        all.push(apply_to_ready(client, &runtime, clock, round).await.context("apply to Ready")?);
    }
    let whole = median(&mut all);
    figures.add("apply → Ready, one pod, image present", ms(whole), "", None);
    let share = whole.saturating_sub(bare);
    figures.add("our share of apply → Ready", ms(share), "≤ 30 ms", Some(share <= Duration::from_millis(30)));
    Ok(())
}

/// The pod that is measured.
fn pod(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "nginx", "image": IMAGE,
            "imagePullPolicy": "IfNotPresent" }] },
    })
}

async fn bare_calls(runtime: &cri::Client, clock: &SharedClock, round: usize) -> Result<Duration> {
    let logs = tempfile::tempdir()?;
    let mut object = pod(&format!("bare-{round}"));
    object["metadata"]["uid"] = json!(format!("bare-{round}"));
    let pod = BoundPod::parse(Arc::new(serde_json::from_value(object)?)).context("a whole pod")?;
    let cgroups = Cgroups::new(Hierarchies::parse(&std::fs::read_to_string("/proc/self/mountinfo")?), "");
    let sandbox = sandbox::render(&sandbox::Inputs {
        pod: &pod,
        attempt: 0,
        dns: v1::DnsConfig::default(),
        log_directory: &logs.path().to_string_lossy(),
        cgroup_parent: &cgroups.parent(&pod),
        cluster_domain: "cluster.local",
        users: None,
    });
    let sandbox = sandbox.map_err(|why| anyhow!(why))?;
    let spec = pod.containers().first().context("a container")?;
    std::fs::create_dir_all(logs.path().join(&spec.name))?;
    let container = config::render(&config::Inputs {
        pod: &pod,
        container: spec,
        attempt: 0,
        image: &Image::default(),
        image_ref: IMAGE,
        environment: &env::Environment::default(),
        mounts: &[],
        target: None,
        users: None,
        node_memory: 0,
        seccomp_root: Path::new("/"),
    });
    let container = container.map_err(|why| anyhow!(why))?;
    let begin = clock.now();
    let id = runtime.run_pod_sandbox(sandbox.clone(), "").await?;
    let inner = runtime.create_container(&id, container, sandbox).await?;
    runtime.start_container(&inner).await?;
    let took = clock.now().since(begin);
    runtime.stop_pod_sandbox(&id).await?;
    runtime.remove_pod_sandbox(&id).await?;
    cgroups.remove(&pod);
    Ok(took)
}

async fn apply_to_ready(client: &Client, runtime: &cri::Client, clock: &SharedClock, round: usize) -> Result<Duration> {
    let name = format!("bench-{round}");
    let pods = client.api::<Pod>().namespace("default");
    let pod: Pod = serde_json::from_value(pod(&name))?;
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
    let took = clock.timeout(PATIENCE, until_ready).await.context("the pod is not Ready")??;
    pods.delete(&name, &DeleteParams::default().grace(0)).await?;
    let until_gone = async {
        loop {
            let left = runtime.list_pod_sandbox(None).await?;
            if !left.iter().any(|s| s.metadata.as_ref().is_some_and(|m| m.name == name)) {
                return anyhow::Ok(());
            }
            clock.sleep(Duration::from_millis(10)).await;
        }
    };
    clock.timeout(PATIENCE, until_gone).await.context("the pod is still in the runtime")??;
    Ok(took)
}
