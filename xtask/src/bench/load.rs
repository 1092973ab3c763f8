//! Durable creates, lists and watches over HTTPS, with the server's own CPU beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use api::types::core::v1::{ConfigMap, Pod};
use client::Client;
use client::client::Call;
use serde_json::json;
use stdx::SharedClock;
use tokio::task::JoinSet;

use super::figures::{Figures, median, ms, percentile};
use super::{process, watch};

const WORKERS: usize = 32;

/// Runs the loads one after another.
pub async fn run(client: &Client, pid: u32, clock: &SharedClock, count: usize, figures: &mut Figures) -> Result<()> {
    creates(client, pid, clock, count, figures).await.context("creates")?;
    lists(client, clock, count, figures).await.context("lists")?;
    watch::few(client, clock, figures).await.context("watches")
}

/// What is beyond the loads of the budget: twice the pods of [`run`], and lists of large objects.
pub async fn beyond(client: &Client, pid: u32, clock: &SharedClock, count: usize, figures: &mut Figures) -> Result<()> {
    fill(client, clock, count, 2 * count).await.context("more creates")?;
    lists(client, clock, 2 * count, figures).await.context("longer lists")?;
    memory(client, pid, figures).await.context("large lists")
}

fn pod(index: usize) -> Result<Pod> {
    // Nobody schedules it, so that nothing but the server works.
    Ok(serde_json::from_value(json!({
        "metadata": { "name": format!("load-{index:05}"), "labels": { "app": "load", "shard": (index % 16).to_string() },
            "annotations": { "note": "x".repeat(600) } },
        "spec": { "schedulerName": "nobody", "automountServiceAccountToken": false, "containers": [
            { "name": "main", "image": "example.invalid/app:1", "env": [{ "name": "A", "value": "1" }],
              "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } } }] },
    }))?)
}

/// Creates the pods from one number up to another, and says how long each took.
async fn fill(client: &Client, clock: &SharedClock, from: usize, to: usize) -> Result<Vec<Duration>> {
    let next = Arc::new(AtomicUsize::new(from));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (client, clock, next) = (client.clone(), clock.clone(), next.clone());
        workers.spawn(async move {
            let pods = client.api::<Pod>().namespace("default");
            let mut times = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= to {
                    return anyhow::Ok(times);
                }
                let pod = pod(index)?;
                let sent = clock.now();
                pods.create(&pod).await?;
                times.push(clock.now().since(sent));
            }
        });
    }
    let mut times = Vec::new();
    while let Some(result) = workers.join_next().await {
        times.extend(result??);
    }
    Ok(times)
}

async fn creates(client: &Client, pid: u32, clock: &SharedClock, count: usize, figures: &mut Figures) -> Result<()> {
    let before = process::usage(pid)?;
    let begin = clock.now();
    let mut times = fill(client, clock, 0, count).await?;
    let wall = clock.now().since(begin).as_secs_f64();
    let cpu = process::usage(pid)?.cpu - before.cpu;
    let (rate, per_cpu) = (count as f64 / wall, count as f64 / cpu.max(0.01));
    let p99 = percentile(&mut times, 99);
    let micros = 1e6 / per_cpu;
    let shown = format!("{rate:.0}/s, {per_cpu:.0} per CPU second of the server ({micros:.0} µs each)");
    figures.add("durable pod creates over HTTPS, 32 workers", shown, "≥ 10× upstream's per CPU second", None);
    let met = Some(p99 <= Duration::from_millis(15));
    figures.add("the same, p50 / p99", format!("{} / {}", ms(median(&mut times)), ms(p99)), "p99 ≤ 15 ms", met);
    Ok(())
}

async fn lists(client: &Client, clock: &SharedClock, count: usize, figures: &mut Figures) -> Result<()> {
    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let path = "/api/v1/namespaces/default/pods";
    let none = format!("{path}?labelSelector=app%3Dnothing");
    for (name, path, accept, budget) in [
        ("JSON", path, "application/json", Some(15)),
        ("protobuf", path, "application/vnd.kubernetes.protobuf", Some(10)),
        ("Table", path, TABLE, Some(40)),
        ("matching nothing", none.as_str(), "application/json", None),
    ] {
        let mut times = Vec::new();
        let mut size = 0;
        for _ in 0..11 {
            let call = Call { accept, ..Call::get(path) };
            let begin = clock.now();
            size = client.send(call).await?.len();
            times.push(clock.now().since(begin));
        }
        let p50 = median(&mut times);
        let what = format!("list of {count} pods, {name} ({:.1} MB), p50", size as f64 / 1e6);
        // The budget is for so many.
        let budget = budget.filter(|_| count <= 5000);
        let met = budget.map(|limit| p50 <= Duration::from_millis(limit));
        figures.add(&what, ms(p50), &budget.map(|b| format!("≤ {b} ms")).unwrap_or_default(), met);
    }
    Ok(())
}

/// What twenty lists of 50 MiB leave behind in memory.
async fn memory(client: &Client, pid: u32, figures: &mut Figures) -> Result<()> {
    let maps = client.api::<ConfigMap>().namespace("default");
    for index in 0..50 {
        let data = json!({ "k": "x".repeat(1 << 20) });
        let map = json!({ "metadata": { "name": format!("large-{index}"), "labels": { "large": "1" } }, "data": data });
        maps.create(&serde_json::from_value(map)?).await?;
    }
    let before = process::usage(pid)?.rss_mb();
    for _ in 0..20 {
        client.send(Call::get("/api/v1/namespaces/default/configmaps?labelSelector=large%3D1")).await?;
    }
    let after = process::usage(pid)?.rss_mb();
    let shown = format!("{before:.0} → {after:.0} MB");
    figures.add("RSS before and after 20 lists of 50 MiB", shown, "within 20 %", Some(after <= before * 1.2));
    Ok(())
}
