//! `./dev bench`: figures of this machine beside the budget. Speed is measured here and asserted
//! nowhere.

mod chain;
mod custom;
mod figures;
mod load;
mod many;
mod names;
mod network;
mod pages;
mod pods;
mod policies;
mod process;
mod rules;
mod scan;
mod services;
mod streams;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use client::Client;
use client::kubeconfig::Connection;
use e2e::cluster::Cluster;
use e2e::images;
use host::containerd;
use stdx::clock::RealClock;
use stdx::{ClockExt, SharedClock};

use figures::Figures;

/// No registry has it: it is made here and imported.
const IMAGE: &str = "pintle.invalid/bench/nginx:1";

/// What may be left out, and how short it may be.
const FLAGS: [&str; 13] = [
    "--only-chain",
    "--only-cpu",
    "--only-load",
    "--only-names",
    "--only-network",
    "--only-policies",
    "--only-pods",
    "--only-rules",
    "--only-services",
    "--only-streams",
    "--only-watches",
    "--quick",
    services::INSIDE,
];

/// Runs everything and prints a table.
pub fn run(args: &[String]) -> Result<()> {
    let unknown = args.iter().find(|a| !FLAGS.contains(&a.as_str()));
    ensure!(unknown.is_none(), "{unknown:?} is none of {FLAGS:?}");
    let has = |flag: &str| args.iter().any(|a| a == flag);
    let (quick, only_pods) = (has("--quick"), has("--only-pods"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut figures = Figures::default();
    let clock = RealClock::shared();
    if has(services::INSIDE) {
        runtime.block_on(services::inside(&clock, quick, &mut figures))?;
        println!("{}", figures.table());
        return Ok(());
    }
    if has("--only-services") {
        return services::outside(args);
    }
    if has("--only-watches") {
        runtime.block_on(watch::run(&clock, &watch::Extent::new(quick), &mut figures))?;
        println!("{}", figures.table());
        return Ok(());
    }
    if has("--only-names") {
        runtime.block_on(names::run(&clock, quick, &mut figures))?;
        println!("{}", figures.table());
        return Ok(());
    }
    if has("--only-network") {
        network::run(&clock, quick, &mut figures)?;
        println!("{}", figures.table());
        return Ok(());
    }
    if has("--only-policies") {
        policies::run(&clock, quick, &mut figures)?;
        println!("{}", figures.table());
        return Ok(());
    }
    if has("--only-rules") {
        rules::run(&clock, &mut figures)?;
        println!("{}", figures.table());
        return Ok(());
    }
    if has("--only-streams") {
        runtime.block_on(streams_and_pages(&clock, quick, &mut figures))?;
        println!("{}", figures.table());
        return Ok(());
    }
    if has("--only-cpu") {
        return runtime.block_on(many_turns(&clock, quick));
    }
    if has("--only-load") {
        runtime.block_on(server_alone(&clock, if quick { 500 } else { 5000 }, &mut figures))?;
        println!("{}", figures.table());
        return Ok(());
    }
    if !only_pods {
        rules::run(&clock, &mut figures).context("rules")?;
        network::run(&clock, quick, &mut figures).context("network")?;
        chain::run(&clock, if quick { 1000 } else { 10_000 }, &mut figures).context("chain")?;
        let objects = if quick { 30_000 } else { 300_000 };
        runtime.block_on(scan::run(&clock, objects, &mut figures)).context("scan")?;
        if has("--only-chain") {
            println!("{}", figures.table());
            return Ok(());
        }
    }
    runtime.block_on(all(&clock, quick, only_pods, figures))
}

/// The loads on a cluster without a node, which needs no runtime.
async fn server_alone(clock: &SharedClock, count: usize, figures: &mut Figures) -> Result<()> {
    let mut cluster = Cluster::prepare_server()?;
    cluster.up(&["--disable=kubelet,kube-proxy,dns"]).await?;
    let (client, pid) = (client(&cluster, clock)?, cluster.pid().context("the cluster runs")?);
    load::run(&client, pid, clock, count, figures).await.context("load")?;
    let megabytes = process::usage(pid)?.rss_mb();
    figures.add("RSS after those loads, without a node", format!("{megabytes:.0} MB"), "", None);
    cluster.stop().await
}

async fn all(clock: &SharedClock, quick: bool, only_pods: bool, mut figures: Figures) -> Result<()> {
    if !only_pods {
        start_times(clock, &mut figures).await.context("start")?;
    }

    let (mut cluster, socket) = with_image().await?;
    let rounds = if quick { 3 } else { 10 };
    // The runtime outlives our process, which the network would otherwise ask for each pod's policies.
    cluster.stop().await?;
    cluster.up(&["--disable=network-policy"]).await?;
    cluster.stop().await?;
    let bare = pods::bare(&socket, clock, rounds, &mut figures).await?;
    cluster.up(&[]).await?;

    let client = client(&cluster, clock)?;
    let pid = cluster.pid().context("the cluster runs")?;
    let quiet = Duration::from_secs(if quick { 10 } else { 60 });
    pods::run(&client, &socket, clock, rounds, bare, &mut figures).await.context("pods")?;
    if only_pods {
        end(cluster).await?;
        many_pods(clock, quick, &mut figures).await.context("many pods")?;
        println!("{}", figures.table());
        return Ok(());
    }
    settle(pid, clock).await?;
    idle(pid, quiet, clock, &mut figures).await?;
    let count = if quick { 500 } else { 5000 };
    load::run(&client, pid, clock, count, &mut figures).await.context("load")?;
    let after = process::usage(pid)?;
    figures.add(
        "RSS after those loads",
        format!("{:.0} MB", after.rss_mb()),
        "≤ 120 MB",
        Some(after.rss_mb() <= 120.0),
    );
    custom::run(&client, pid, clock, &mut figures).await.context("custom resources")?;
    load::beyond(&client, pid, clock, count, &mut figures).await.context("beyond")?;
    let binary = cluster.binary().to_owned();
    end(cluster).await?;
    many_pods(clock, quick, &mut figures).await.context("many pods")?;
    streams_and_pages(clock, quick, &mut figures).await?;
    names::run(clock, quick, &mut figures).await.context("names")?;
    tokio::task::block_in_place(|| policies::run(clock, quick, &mut figures)).context("policies")?;
    watch::run(clock, &watch::Extent::new(quick), &mut figures).await.context("watches")?;
    // Prints a table of its own.
    let short: Vec<String> = quick.then(|| "--quick".to_owned()).into_iter().collect();
    services::outside(&short).context("services")?;
    let megabytes = std::fs::metadata(binary)?.len() as f64 / 1e6;
    figures.add("binary, stripped", format!("{megabytes:.1} MB"), "≤ 40 MB", Some(megabytes <= 40.0));
    println!("{}", figures.table());
    Ok(())
}

/// A cluster whose runtime has the image, and the runtime's socket.
async fn with_image() -> Result<(Cluster, PathBuf)> {
    let mut cluster = Cluster::prepare()?;
    cluster.up(&[]).await?;
    let archive = cluster.root().join("bench.tar");
    std::fs::write(&archive, images::nginx(IMAGE)?.archive()?)?;
    let socket = cluster.root().join("run/containerd.sock");
    containerd::import(&socket, IMAGE, &archive).await?;
    Ok((cluster, socket))
}

/// Stops a cluster and takes away what it left on the host: the next one finds it as it was before this one.
async fn end(mut cluster: Cluster) -> Result<()> {
    cluster.stop().await?;
    Ok(tokio::task::spawn_blocking(move || drop(cluster)).await?)
}

/// Many pods, on a cluster that has done nothing else.
async fn many_pods(clock: &SharedClock, quick: bool, figures: &mut Figures) -> Result<()> {
    let (cluster, socket) = with_image().await?;
    let (client, pid) = (client(&cluster, clock)?, cluster.pid().context("the cluster runs")?);
    many::run(&client, &socket, clock, pid, quick, figures).await?;
    end(cluster).await
}

/// The processor time of pods alone, turn by turn: what two builds are compared by.
async fn many_turns(clock: &SharedClock, quick: bool) -> Result<()> {
    let (cluster, socket) = with_image().await?;
    let (client, pid) = (client(&cluster, clock)?, cluster.pid().context("the cluster runs")?);
    many::turns(&client, &socket, clock, pid, if quick { 3 } else { 10 }).await?;
    end(cluster).await
}

/// What goes through the kubelet's own server.
async fn streams_and_pages(clock: &SharedClock, quick: bool, figures: &mut Figures) -> Result<()> {
    let (mut cluster, socket) = with_image().await?;
    let archive = cluster.root().join("streams.tar");
    std::fs::write(&archive, images::busybox(streams::IMAGE)?.archive()?)?;
    containerd::import(&socket, streams::IMAGE, &archive).await?;
    let client = client(&cluster, clock)?;
    streams::run(&cluster, &client, &socket, clock, quick, figures).await.context("streams")?;
    streams::logs(&cluster, &client, clock, quick, figures).await.context("logs")?;
    pages::run(&cluster, &client, &socket, clock, quick, figures).await.context("pages")?;
    cluster.stop().await
}

/// A client over HTTPS, as a user's.
fn client(cluster: &Cluster, clock: &SharedClock) -> Result<Client> {
    let connection = Connection::load(&cluster.kubeconfig(), None)?;
    Ok(Client::https(&connection, "bench/1", clock)?)
}

/// Process start → API ready → node Ready: the median of five fresh clusters.
async fn start_times(clock: &SharedClock, figures: &mut Figures) -> Result<()> {
    let (mut api, mut node) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let mut cluster = Cluster::prepare()?;
        let begin = clock.now();
        cluster.spawn(&[])?;
        let ready = async {
            loop {
                if let Ok(client) = client(&cluster, clock)
                    && client.send(client::client::Call::get("/readyz")).await.is_ok()
                {
                    return;
                }
                clock.sleep(Duration::from_millis(2)).await;
            }
        };
        clock.timeout(Duration::from_secs(60), ready).await.context("the API is not ready")?;
        api.push(clock.now().since(begin));
        cluster.ready().await?;
        node.push(clock.now().since(begin));
        cluster.stop().await?;
    }
    let (api, node) = (figures::median(&mut api), figures::median(&mut node));
    let (a, n) = (api.as_secs_f64() * 1e3, node.as_secs_f64() * 1e3);
    figures.add("process start → API ready", format!("{a:.0} ms"), "≤ 300 ms", Some(a <= 300.0));
    figures.add("process start → node Ready", format!("{n:.0} ms"), "≤ 1000 ms", Some(n <= 1000.0));
    Ok(())
}

/// Waits until what the load left to do is done: until nothing but the node's Lease is written.
async fn settle(pid: u32, clock: &SharedClock) -> Result<()> {
    /// A Lease every ten seconds, each on one page of the log or two.
    const QUIET: u64 = 3 * 2 * 4096;
    let deadline = clock.now() + Duration::from_secs(180);
    loop {
        let before = process::usage(pid)?.written;
        clock.sleep(Duration::from_secs(20)).await;
        let written = process::usage(pid)?.written - before;
        if written <= QUIET {
            return Ok(());
        }
        anyhow::ensure!(clock.now() < deadline, "the cluster does not come to rest: {written} bytes in 20 s");
    }
}

async fn idle(pid: u32, quiet: Duration, clock: &SharedClock, figures: &mut Figures) -> Result<()> {
    let before = process::usage(pid)?;
    clock.sleep(quiet).await;
    let after = process::usage(pid)?;
    let seconds = quiet.as_secs_f64();
    let cpu = (after.cpu - before.cpu) / seconds * 100.0;
    let written = (after.written - before.written) as f64 / 1e6 / seconds * 86_400.0;
    let rss = after.rss_mb();
    figures.add("idle: RSS of the whole cluster process", format!("{rss:.1} MB"), "≤ 60 MB", Some(rss <= 60.0));
    figures.add("idle: CPU", format!("{cpu:.2} % of a core"), "≤ 0.5 %", Some(cpu <= 0.5));
    let shown = format!("{written:.0} MB a day (from {seconds:.0} s)");
    figures.add("idle: bytes written", shown, "≤ 100 MB a day", Some(written <= 100.0));
    Ok(())
}
