//! Watchers over HTTPS: how late they hear of a write, and what each of them costs the server. The many
//! have a connection each, as the kubelets of a large cluster do, and a cluster of their own in which nothing
//! but the API server and its controllers runs.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::types::core::v1::ConfigMap;
use client::client::Call;
use client::kubeconfig::Connection;
use client::watch::Event;
use client::{Client, WatchParams};
use e2e::cluster::Cluster;
use http_body_util::BodyExt;
use serde_json::json;
use stdx::clock::Instant;
use stdx::{ClockExt, SharedClock};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::figures::{Figures, median, ms, percentile};
use super::process;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// Watchers of one client, and the writes they are shown.
const FEW: usize = 200;
const FEW_WRITES: usize = 200;

/// How much is measured.
pub struct Extent {
    /// Watchers of one resource, how many writes they are shown, and how far apart.
    pub watchers: usize,
    pub writes: usize,
    pub every: Duration,
    /// Informers, the Secrets of 1 MB they begin with, and how many bytes of them each reads.
    pub informers: usize,
    pub secrets: usize,
    pub read: usize,
}

impl Extent {
    pub fn new(quick: bool) -> Self {
        let every = Duration::from_millis(10);
        if quick {
            Self { watchers: 100, writes: 100, every, informers: 64, secrets: 20, read: 4 << 20 }
        } else {
            Self { watchers: 1000, writes: 1000, every, informers: 1024, secrets: 400, read: 16 << 20 }
        }
    }
}

/// Measures on a cluster of its own.
pub async fn run(clock: &SharedClock, extent: &Extent, figures: &mut Figures) -> Result<()> {
    let mut cluster = Cluster::prepare_server()?;
    cluster.up(&["--disable=kubelet", "--disable=kube-proxy"]).await?;
    let connection = Connection::load(&cluster.kubeconfig(), None)?;
    let pid = cluster.pid().context("the cluster runs")?;
    crowd(&connection, pid, clock, extent, figures).await.context("a crowd of watchers")?;
    informers(&connection, pid, clock, extent, figures).await.context("informers of large objects")?;
    cluster.stop().await
}

/// Watchers of small objects over one connection.
pub async fn few(client: &Client, clock: &SharedClock, figures: &mut Figures) -> Result<()> {
    let maps = client.api::<ConfigMap>().namespace("default");
    let object = |index: usize| -> Result<ConfigMap> {
        Ok(serde_json::from_value(json!({ "metadata": { "name": format!("watched-{index}") }, "data": { "k": "v" } }))?)
    };
    let after = Some(client::object::revision_of(&maps.create(&object(FEW_WRITES)?).await?));
    let (sender, mut seen) = mpsc::unbounded_channel::<(String, Instant)>();
    let mut watchers = JoinSet::new();
    for _ in 0..FEW {
        let mut watch = maps.watch(&WatchParams { after, ..Default::default() }).await?;
        let (sender, clock) = (sender.clone(), clock.clone());
        watchers.spawn(async move {
            let mut left = FEW_WRITES;
            while left > 0 {
                match watch.next().await {
                    Some(Ok(Event::Added(map))) => {
                        left -= 1;
                        // The receiver lives until all have sent.
                        let _ = sender.send((map.metadata.name.unwrap_or_default(), clock.now()));
                    }
                    Some(Ok(_)) => {}
                    other => anyhow::bail!("the watch ended: {other:?}"),
                }
            }
            Ok(())
        });
    }
    drop(sender);
    let mut sent = HashMap::new();
    for index in 0..FEW_WRITES {
        let map = object(index)?;
        sent.insert(map.metadata.name.clone().unwrap_or_default(), clock.now());
        maps.create(&map).await?;
    }
    let mut times = Vec::new();
    let collect = async {
        while let Some((name, at)) = seen.recv().await {
            times.extend(sent.get(&name).map(|begin| at.since(*begin)));
        }
    };
    clock.timeout(Duration::from_secs(60), collect).await.context("events are missing")?;
    while let Some(result) = watchers.join_next().await {
        result??;
    }
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    let met = Some(p50 <= Duration::from_millis(2) && p99 <= Duration::from_millis(10));
    let what = "200 watchers, write to delivery (write included), p50 / p99";
    figures.add(what, format!("{} / {}", ms(p50), ms(p99)), "2 / 10 ms", met);
    Ok(())
}

/// Clients with a connection each.
fn clients(connection: &Connection, count: usize, clock: &SharedClock) -> Result<Vec<Client>> {
    (0..count).map(|_| Ok(Client::https(connection, "bench/1", clock)?)).collect()
}

/// Many watchers of one resource, and a write every so often.
async fn crowd(
    connection: &Connection,
    pid: u32,
    clock: &SharedClock,
    extent: &Extent,
    figures: &mut Figures,
) -> Result<()> {
    let writer = Client::https(connection, "bench/1", clock)?;
    let map = |name: &str| json!({ "metadata": { "name": name }, "data": { "k": "v" } }).to_string();
    let first = writer.send(Call::write(http::Method::POST, MAPS, map("crowd"))).await?;
    let after = client::object::revision_of(&serde_json::from_slice::<ConfigMap>(&first)?);
    let alone = process::usage(pid)?;
    let mut watchers = JoinSet::new();
    for client in clients(connection, extent.watchers, clock)? {
        let mut body = client.open(Call::get(format!("{MAPS}?watch=1&resourceVersion={after}"))).await?;
        let (clock, writes) = (clock.clone(), extent.writes);
        watchers.spawn(async move {
            // Events come in the order of the writes, one a line: nothing needs to be parsed.
            let mut ends = Vec::with_capacity(writes);
            while ends.len() < writes {
                let frame = body.frame().await.context("the watch ended")?.map_err(|error| anyhow::anyhow!(error))?;
                let lines = frame.data_ref().map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count());
                ends.resize(ends.len() + lines, clock.now());
            }
            // The connection is the client's.
            drop(client);
            anyhow::Ok(ends)
        });
    }
    let before = process::usage(pid)?;
    let kilobytes = (before.rss.saturating_sub(alone.rss)) as f64 / 1e3 / extent.watchers as f64;
    figures.add(&format!("RSS per watcher, {} connections", extent.watchers), format!("{kilobytes:.0} kB"), "", None);
    let (mut sent, mut written) = (Vec::new(), Vec::new());
    let begin = clock.now();
    for index in 0..extent.writes {
        clock.sleep_until(begin + extent.every * index as u32).await;
        sent.push(clock.now());
        writer.send(Call::write(http::Method::POST, MAPS, map(&format!("crowd-{index}")))).await?;
        written.push(clock.now());
    }
    let (mut since_sent, mut since_written) = (Vec::new(), Vec::new());
    while let Some(ends) = watchers.join_next().await {
        for (end, (sent, written)) in ends??.into_iter().zip(sent.iter().zip(&written)) {
            since_sent.push(end.since(*sent));
            since_written.push(end.since(*written));
        }
    }
    let cpu = (process::usage(pid)?.cpu - before.cpu) * 1e6 / since_sent.len() as f64;
    let rate = 1.0 / extent.every.as_secs_f64();
    let what = format!("{} watchers, {rate:.0} writes/s: write sent → last byte, p50 / p99", extent.watchers);
    let shown = format!("{} / {}", ms(median(&mut since_sent)), ms(percentile(&mut since_sent, 99)));
    figures.add(&what, shown, "", None);
    let shown = format!("{} / {}", ms(median(&mut since_written)), ms(percentile(&mut since_written, 99)));
    figures.add("the same, from the write's answer", shown, "", None);
    figures.add("the same, CPU per event and watcher", format!("{cpu:.1} µs"), "", None);
    Ok(())
}

/// Many informers that all begin at once with large objects: the server must not hold a copy for each.
async fn informers(
    connection: &Connection,
    pid: u32,
    clock: &SharedClock,
    extent: &Extent,
    figures: &mut Figures,
) -> Result<()> {
    const BEGIN: &str = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                         &resourceVersionMatch=NotOlderThan&resourceVersion=0";
    let writer = Client::https(connection, "bench/1", clock)?;
    let data = "eHh4".repeat(1 << 18);
    for index in 0..extent.secrets {
        let secret = json!({ "metadata": { "name": format!("large-{index}") }, "data": { "k": data } });
        writer.send(Call::write(http::Method::POST, SECRETS, secret.to_string())).await?;
    }
    let alone = process::usage(pid)?;
    let mut readers = JoinSet::new();
    for client in clients(connection, extent.informers, clock)? {
        let read = extent.read;
        readers.spawn(async move {
            let mut body = client.open(Call::get(format!("{SECRETS}?{BEGIN}"))).await?;
            let mut left = read;
            while left > 0 {
                let frame = body.frame().await.context("the watch ended")?.map_err(|error| anyhow::anyhow!(error))?;
                left = left.saturating_sub(frame.data_ref().map_or(0, bytes::Bytes::len));
            }
            // All stay until the last has read enough.
            anyhow::Ok((client, body))
        });
    }
    let mut peak = alone.rss;
    let mut open = Vec::new();
    while open.len() < extent.informers {
        peak = peak.max(process::usage(pid)?.rss);
        match clock.timeout(Duration::from_millis(20), readers.join_next()).await {
            Ok(Some(reader)) => open.push(reader??),
            Ok(None) => break,
            Err(_) => {}
        }
    }
    ensure!(open.len() == extent.informers, "informers are missing");
    let (before, peak) = (alone.rss as f64 / 1e6, peak as f64 / 1e6);
    let what = format!(
        "RSS before and at most while {} informers begin with {} × 1 MB Secrets (each reads {} MB)",
        extent.informers,
        extent.secrets,
        extent.read >> 20
    );
    figures.add(&what, format!("{before:.0} → {peak:.0} MB"), "< 1 GB", Some(peak < 1000.0));
    Ok(())
}
