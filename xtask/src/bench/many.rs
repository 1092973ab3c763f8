//! Many pods at once: how long they take to be Ready and to go, what each costs us, what they cost
//! while nothing happens, and how soon all of them see a change of a ConfigMap.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::types::core::v1::{ConfigMap, Pod};
use client::watch::Event;
use client::{Client, DeleteParams, Patch, WatchParams};
use serde_json::{Value, json};
use stdx::{ClockExt, SharedClock};

use super::IMAGE;
use super::figures::{Figures, ms};
use super::process::usage;

const PATIENCE: Duration = Duration::from_secs(180);
const MAP: &str = "many";

/// The pods that begin at once, and those of the quiet rows.
const AT_ONCE: usize = 30;
const QUIET: usize = 50;

/// Runs all rows; leaves nothing.
pub async fn run(
    client: &Client,
    socket: &Path,
    clock: &SharedClock,
    pid: u32,
    quick: bool,
    figures: &mut Figures,
) -> Result<()> {
    let runtime = cri::Client::new(&format!("unix://{}", socket.display()), clock.clone())?;
    prepare(client).await?;

    let one = names("one", 1);
    start(client, clock, &one).await?;
    figures.add(
        "deletion of one pod → gone from the API and the runtime",
        ms(end(client, &runtime, clock, &one).await?),
        "",
        None,
    );

    let all = names("many", AT_ONCE);
    let before = usage(pid)?;
    let took = start(client, clock, &all).await?;
    let cpu = (usage(pid)?.cpu - before.cpu) * 1e3 / AT_ONCE as f64;
    figures.add(&format!("apply → Ready of {AT_ONCE} pods at once"), ms(took), "", None);
    figures.add("our CPU for each of them, API server and all", format!("{cpu:.1} ms"), "≤ 15 ms", Some(cpu <= 15.0));
    let before = usage(pid)?;
    let took = end(client, &runtime, clock, &all).await?;
    let cpu = (usage(pid)?.cpu - before.cpu) * 1e3 / AT_ONCE as f64;
    figures.add(&format!("deletion of {AT_ONCE} pods at once → gone"), ms(took), "", None);
    figures.add("our CPU for each of them", format!("{cpu:.1} ms"), "≤ 15 ms", Some(cpu <= 15.0));

    // What the runs before left in memory is not the pods': the second half of them tells.
    let all = names("quiet", QUIET);
    let (first, rest) = all.split_at(QUIET / 2);
    start(client, clock, first).await?;
    clock.sleep(Duration::from_secs(5)).await;
    let half = usage(pid)?.rss;
    start(client, clock, rest).await?;
    clock.sleep(Duration::from_secs(5)).await;
    let each = usage(pid)?.rss.saturating_sub(half) as f64 / 1e3 / rest.len() as f64;
    figures.add(&format!("RSS for each of {QUIET} pods"), format!("{each:.0} kB"), "≤ 100 kB", Some(each <= 100.0));
    let quiet = Duration::from_secs(if quick { 10 } else { 60 });
    let before = usage(pid)?.cpu;
    clock.sleep(quiet).await;
    let cpu = (usage(pid)?.cpu - before) / quiet.as_secs_f64() * 100.0;
    figures.add(&format!("idle with {QUIET} pods: CPU"), format!("{cpu:.2} % of a core"), "≤ 0.5 %", Some(cpu <= 0.5));

    let took = change(client, socket, clock, &all).await?;
    let text = format!("a ConfigMap's change is seen in {QUIET} pods");
    figures.add(&text, ms(took), "≤ 1 s", Some(took <= Duration::from_secs(1)));
    end(client, &runtime, clock, &all).await?;
    clear(client).await
}

/// Starts and ends as many pods again and again and prints what each turn cost for each pod. The first turn also
/// has what a fresh process does once.
pub async fn turns(client: &Client, socket: &Path, clock: &SharedClock, pid: u32, count: usize) -> Result<()> {
    let runtime = cri::Client::new(&format!("unix://{}", socket.display()), clock.clone())?;
    prepare(client).await?;
    for turn in 0..count {
        let all = names(&format!("turn-{turn}"), AT_ONCE);
        let before = usage(pid)?.cpu;
        let ready = start(client, clock, &all).await?;
        let started = usage(pid)?.cpu;
        let gone = end(client, &runtime, clock, &all).await?;
        let ended = usage(pid)?.cpu;
        let each = |cpu: f64| cpu * 1e3 / AT_ONCE as f64;
        let (start, end) = (each(started - before), each(ended - started));
        println!(
            "turn {turn}: start {start:.1} ms CPU a pod, end {end:.1} ms; ready after {}, gone after {}",
            ms(ready),
            ms(gone)
        );
    }
    clear(client).await
}

/// Makes what the pods mount.
pub async fn prepare(client: &Client) -> Result<()> {
    let map = json!({"metadata": {"name": MAP, "namespace": "default"}, "data": {"word": "before"}});
    client.api::<ConfigMap>().namespace("default").create(&serde_json::from_value(map)?).await?;
    Ok(())
}

/// And takes it away.
pub async fn clear(client: &Client) -> Result<()> {
    client.api::<ConfigMap>().namespace("default").delete(MAP, &DeleteParams::default()).await?;
    Ok(())
}

/// So many names.
pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n}")).collect()
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"bench": "many"}},
        "spec": {"terminationGracePeriodSeconds": 0, "volumes": [{"name": "map", "configMap": {"name": MAP}}],
            "containers": [{"name": "nginx", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                "volumeMounts": [{"name": "map", "mountPath": "/map"}]}]},
    })
}

/// Creates pods and waits until all are Ready.
pub async fn start(client: &Client, clock: &SharedClock, names: &[String]) -> Result<Duration> {
    let pods = client.api::<Pod>().namespace("default");
    let mut waiting: HashSet<&str> = names.iter().map(String::as_str).collect();
    let begin = clock.now();
    let mut after = None;
    for name in names {
        let created = pods.create(&serde_json::from_value(pod(name))?).await?;
        after.get_or_insert(client::object::revision_of(&created));
    }
    let params = WatchParams { after, ..WatchParams::default() };
    let mut watch = pods.watch(&params).await?;
    let until_ready = async {
        while let Some(event) = watch.next().await {
            if let Event::Added(pod) | Event::Modified(pod) = event?
                && api::pod::is_ready(&pod)
            {
                waiting.remove(pod.metadata.name.as_deref().unwrap_or_default());
            }
            if waiting.is_empty() {
                return Ok(clock.now().since(begin));
            }
        }
        bail!("the watch ended")
    };
    clock.timeout(PATIENCE, until_ready).await.context("the pods are not Ready")?
}

/// Deletes pods and waits until nothing of them is left.
pub async fn end(client: &Client, runtime: &cri::Client, clock: &SharedClock, names: &[String]) -> Result<Duration> {
    let pods = client.api::<Pod>().namespace("default");
    let begin = clock.now();
    for name in names {
        pods.delete(name, &DeleteParams::default().grace(1)).await?;
    }
    let until_gone = async {
        loop {
            let left = runtime.list_pod_sandbox(None).await?;
            let ours = |name: &String| left.iter().any(|s| s.metadata.as_ref().is_some_and(|m| m.name == *name));
            if !names.iter().any(ours) && gone(&pods, names).await? {
                return anyhow::Ok(clock.now().since(begin));
            }
            clock.sleep(Duration::from_millis(10)).await;
        }
    };
    clock.timeout(PATIENCE, until_gone).await.context("the pods are still there")?
}

async fn gone(pods: &client::Api<Pod>, names: &[String]) -> Result<bool> {
    for name in names {
        if pods.find(name).await?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Changes the ConfigMap and looks into every pod's volume, as its container sees it.
async fn change(client: &Client, socket: &Path, clock: &SharedClock, names: &[String]) -> Result<Duration> {
    let pods = client.api::<Pod>().namespace("default");
    let root = socket.parent().and_then(Path::parent).context("the cluster's folder")?.join("state/kubelet/pods");
    let mut files: Vec<PathBuf> = Vec::new();
    for name in names {
        let pod = pods.find(name).await?.context("the pod")?;
        let uid = pod.metadata.uid.context("a uid")?;
        files.push(root.join(uid).join("volumes/kubernetes.io~configmap/map/word"));
    }
    let maps = client.api::<ConfigMap>().namespace("default");
    let begin = clock.now();
    maps.patch(MAP, &Patch::Merge(json!({"data": {"word": "after"}}))).await?;
    let until_seen = async {
        for file in &files {
            while std::fs::read_to_string(file)? != "after" {
                clock.sleep(Duration::from_millis(5)).await;
            }
        }
        anyhow::Ok(clock.now().since(begin))
    };
    clock.timeout(PATIENCE, until_seen).await.context("the change does not arrive")?
}
