//! Names: how many are answered by one core, how long an answer takes, and how soon a Service has its name.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::types::core::v1::Service;
use client::{Client, DeleteParams};
use dns::wire::{Edns, Name, ask, kind, rcode, read};
use e2e::cluster::Cluster;
use serde_json::json;
use stdx::{ClockExt, SharedClock};
use tokio::net::UdpSocket;

use super::figures::{Figures, median, ms, percentile};
use super::process;

/// Services that have names while questions are asked.
const SERVICES: usize = 500;
/// Clients, each with one question under way; as many as keep a core busy, and no more than wait for each other.
const CLIENTS: usize = 8;
/// Services whose names are waited for.
const ROUNDS: usize = 100;

/// A cluster without a node, whose DNS is asked on loopback.
pub async fn run(clock: &SharedClock, quick: bool, figures: &mut Figures) -> Result<()> {
    let port = std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
    let secure = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut cluster = Cluster::prepare_server()?;
    let (port_flag, secure_flag) = (format!("--dns-port={port}"), format!("--secure-port={secure}"));
    cluster.up(&["--disable=kubelet,kube-proxy", "--node-ip=127.0.0.1", &port_flag, &secure_flag]).await?;
    let (client, pid) = (super::client(&cluster, clock)?, cluster.pid().context("the cluster runs")?);
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    let services = client.api::<Service>().namespace("default");
    for index in 0..SERVICES {
        services.create(&service(&format!("name-{index}"))?).await?;
    }
    let last = question(&format!("name-{}", SERVICES - 1))?;
    resolved(at, &last, clock).await?;
    answers(at, pid, clock, quick, figures).await?;
    changes(&client, at, clock, if quick { 20 } else { ROUNDS }, figures).await?;
    cluster.stop().await
}

fn service(name: &str) -> Result<Service> {
    Ok(serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"ports": [{"name": "http", "port": 80}]}}))?)
}

fn question(service: &str) -> Result<Vec<u8>> {
    let name = Name::parse(&format!("{service}.default.svc.cluster.local"))?;
    let mut out = Vec::new();
    ask(7, &name, kind::A, false, Some(Edns { size: 1232, signatures: false }), &mut out);
    Ok(out)
}

/// Asks until the name is there, as fast as answers come.
async fn resolved(at: SocketAddr, question: &[u8], clock: &SharedClock) -> Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    socket.connect(at).await?;
    let deadline = clock.now() + Duration::from_secs(30);
    let mut buffer = [0; 2048];
    while clock.now() < deadline {
        socket.send(question).await?;
        let length = clock.timeout(Duration::from_secs(5), socket.recv(&mut buffer)).await.context("no answer")??;
        if read(&buffer[..length])?.code == rcode::NOERROR {
            return Ok(());
        }
    }
    bail!("the name does not come")
}

/// Questions as fast as they are answered, each client one after another.
async fn answers(at: SocketAddr, pid: u32, clock: &SharedClock, quick: bool, figures: &mut Figures) -> Result<()> {
    let count = if quick { 5_000 } else { 50_000 };
    let before = process::usage(pid)?;
    let begin = clock.now();
    // A thread each: what is measured is the server, not this program's own runtime.
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let clock = clock.clone();
            tokio::task::spawn_blocking(move || -> Result<Vec<Duration>> {
                let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
                socket.connect(at)?;
                socket.set_read_timeout(Some(Duration::from_secs(5)))?;
                let questions: Vec<Vec<u8>> =
                    (0..SERVICES).map(|index| question(&format!("name-{index}"))).collect::<Result<_>>()?;
                let (mut buffer, mut times) = ([0; 2048], Vec::with_capacity(count));
                for index in 0..count {
                    let question = &questions[(index + n * 61) % SERVICES];
                    let sent = clock.now();
                    socket.send(question)?;
                    let length = socket.recv(&mut buffer)?;
                    times.push(clock.now().since(sent));
                    ensure!(length > 12 && buffer[3] & 0xf == 0 && buffer[7] == 1, "no address came");
                }
                Ok(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for client in clients {
        times.extend(client.await??);
    }
    let wall = clock.now().since(begin).as_secs_f64();
    let cpu = process::usage(pid)?.cpu - before.cpu;
    let (rate, per_cpu) = (times.len() as f64 / wall, times.len() as f64 / cpu.max(0.01));
    let shown = format!("{per_cpu:.0} per CPU second of the server ({rate:.0}/s while clients have the other core)");
    figures.add("names of Services answered over UDP", shown, "≥ 50,000/s on one core", Some(per_cpu >= 50_000.0));
    let p99 = percentile(&mut times, 99);
    let what = format!("the same, {CLIENTS} clients at once, p50 / p99");
    let met = Some(p99 < Duration::from_millis(1));
    figures.add(&what, format!("{} / {}", ms(median(&mut times)), ms(p99)), "p99 < 1 ms", met);
    Ok(())
}

/// From the answer to a Service's write to its name.
async fn changes(
    client: &Client,
    at: SocketAddr,
    clock: &SharedClock,
    rounds: usize,
    figures: &mut Figures,
) -> Result<()> {
    let services = client.api::<Service>().namespace("default");
    let mut times = Vec::new();
    for index in 0..rounds {
        let name = format!("change-{index}");
        let question = question(&name)?;
        services.create(&service(&name)?).await?;
        let begin = clock.now();
        resolved(at, &question, clock).await?;
        times.push(clock.now().since(begin));
        services.delete(&name, &DeleteParams::default()).await?;
    }
    let p99 = percentile(&mut times, 99);
    let shown = format!("{} / {}", ms(median(&mut times)), ms(p99));
    let what = "a Service is written → its name is answered, p50 / p99";
    figures.add(what, shown, "≤ 5 ms", Some(p99 <= Duration::from_millis(5)));
    Ok(())
}
