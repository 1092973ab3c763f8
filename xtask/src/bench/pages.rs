//! What is told of a node and its pods: how long a summary takes, and that who asks for metrics again and again
//! leaves nothing behind.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use client::Client;
use client::client::Call;
use e2e::cluster::Cluster;
use stdx::SharedClock;

use super::figures::{Figures, median, ms};
use super::{many, process};

/// Pods that are told of.
const PODS: usize = 100;

/// Runs all rows; leaves nothing.
pub async fn run(
    cluster: &Cluster,
    client: &Client,
    socket: &std::path::Path,
    clock: &SharedClock,
    quick: bool,
    figures: &mut Figures,
) -> Result<()> {
    let count = if quick { 10 } else { PODS };
    many::prepare(client).await?;
    let names = many::names("told", count);
    many::start(client, clock, &names).await?;
    let nodes = client.send(Call::get("/api/v1/nodes")).await?;
    let nodes: serde_json::Value = serde_json::from_slice(&nodes)?;
    let node = nodes.pointer("/items/0/metadata/name").and_then(serde_json::Value::as_str).context("a node")?;
    let page = |name: &str| format!("/api/v1/nodes/{node}/proxy/{name}");
    let mut times = Vec::new();
    for _ in 0..11 {
        let begin = clock.now();
        let summary = client.send(Call::get(page("stats/summary"))).await?;
        times.push(clock.now().since(begin));
        let summary: serde_json::Value = serde_json::from_slice(&summary)?;
        let told = summary["pods"].as_array().map_or(0, Vec::len);
        ensure!(told >= count, "{told} pods are told of");
    }
    // The first one measures what pods have on disk.
    let first = times.first().copied().unwrap_or_default();
    let p50 = median(&mut times);
    let what = format!("stats/summary of {count} pods: the first / p50");
    let shown = format!("{} / {}", ms(first), ms(p50));
    figures.add(&what, shown, "p50 ≤ 20 ms", Some(p50 <= Duration::from_millis(20)));

    let pid = cluster.pid().context("the cluster runs")?;
    let pages = ["metrics", "metrics/cadvisor", "metrics/resource", "metrics/probes"].map(page);
    let scrape = async |rounds: usize| -> Result<f64> {
        for _ in 0..rounds {
            client.send(Call::get("/metrics")).await?;
            for page in &pages {
                client.send(Call::get(page.clone())).await?;
            }
        }
        Ok(process::usage(pid)?.rss_mb())
    };
    let before = scrape(20).await?;
    let rounds = if quick { 40 } else { 400 };
    // What an allocator keeps for later it has after so many.
    let middle = scrape(rounds).await?;
    let after = scrape(rounds).await?;
    let what = format!("RSS before, between and after twice {rounds} scrapes of five pages");
    let shown = format!("{before:.1} → {middle:.1} → {after:.1} MB");
    figures.add(&what, shown, "no growth in the second half (2 %)", Some(after <= middle * 1.02));
    let runtime = cri::Client::new(&format!("unix://{}", socket.display()), clock.clone())?;
    many::end(client, &runtime, clock, &names).await?;
    many::clear(client).await
}
