//! Services on a real node while what is behind them changes: no request is lost.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::cluster::Cluster;
use e2e::registry::Registry;
use e2e::{images, manifests};
use stdx::{ClockExt, SharedClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// An answer that takes longer is lost. The machine may be busy with other things: what is only slow is not lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// Answers that take longer are told, to know what other clients might have given up.
const SLOW: Duration = Duration::from_secs(2);

/// One request on a connection of its own.
async fn ask(to: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(to).await.context("connecting")?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.context("asking")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.context("reading")?;
    ensure!(
        answer.starts_with(b"HTTP/1.1 200"),
        "answered {:?}",
        String::from_utf8_lossy(&answer[..answer.len().min(80)])
    );
    Ok(())
}

/// What became of requests.
#[derive(Default)]
struct Tally {
    answered: AtomicUsize,
    /// Of those, how many took longer than [`SLOW`].
    slow: AtomicUsize,
}

/// Asks until it is told to end; what was said of the requests that did not go well.
async fn load(
    (to, rate): (SocketAddr, f64),
    clock: SharedClock,
    ends: Arc<AtomicBool>,
    tally: Arc<Tally>,
) -> Vec<String> {
    let (begin, mut sent, mut lost) = (clock.now(), 0_u64, Vec::new());
    let mut under_way = JoinSet::new();
    while !ends.load(Ordering::Relaxed) {
        let due = (clock.now().since(begin).as_secs_f64() * rate) as u64;
        for _ in sent..due {
            let (clock, tally) = (clock.clone(), tally.clone());
            under_way.spawn(async move {
                let asked = clock.now();
                clock.timeout(PATIENCE, ask(to)).await.unwrap_or_else(|_| bail!("no answer"))?;
                tally.answered.fetch_add(1, Ordering::Relaxed);
                tally.slow.fetch_add(usize::from(clock.now().since(asked) > SLOW), Ordering::Relaxed);
                anyhow::Ok(())
            });
        }
        sent = sent.max(due);
        while let Some(done) = under_way.try_join_next() {
            if let Err(error) = done.context("a request").and_then(|outcome| outcome) {
                lost.push(format!("{:?}: {error:#}", clock.now().since(begin)));
            }
        }
        clock.sleep(Duration::from_millis(2)).await;
    }
    while let Some(done) = under_way.join_next().await {
        if let Err(error) = done.context("a request").and_then(|outcome| outcome) {
            lost.push(format!("at the end: {error:#}"));
        }
    }
    lost
}

/// How often connections of this host's own were asked for again, because nothing had come back: who drops what is sent
/// to it is hidden by that.
fn asked_again() -> Result<u64> {
    let table = std::fs::read_to_string("/proc/net/netstat").context("/proc/net/netstat")?;
    let mut rows = table.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (rows.next().context("names")?, rows.next().context("values")?);
    let of = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "TCPSynRetrans");
    Ok(of.context("TCPSynRetrans")?.1.parse()?)
}

/// A rolling update of all pods of `web` while it is asked all the time, so often a second by each of two addresses.
/// No request is lost.
async fn roll(cluster: &Cluster, manifest: &str, rate: f64) -> Result<()> {
    cluster.apply(manifest).await?;
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]).await?;
    let ip = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]).await?;
    let address = format!("http://{ip}/");
    cluster.eventually("the Service answers", || cluster.http_get(&address)).await?;
    let node = cluster.node_ip().await?;
    let before = cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "name"]).await?;

    // Half through the Service's own address, half through the node's.
    let (ends, tally) = (Arc::new(AtomicBool::new(false)), Arc::new(Tally::default()));
    let start = |to: SocketAddr| tokio::spawn(load((to, rate), cluster.clock.clone(), ends.clone(), tally.clone()));
    let loads = [start(format!("{ip}:80").parse()?), start(SocketAddr::new(node, 30080))];
    let busy = || async {
        ensure!(tally.answered.load(Ordering::Relaxed) as f64 > 2.0 * rate, "not yet under load");
        Ok(())
    };
    cluster.eventually("requests are answered", busy).await?;
    let again = asked_again()?;
    cluster.kubectl(&["rollout", "restart", "deployment/web"]).await?;
    let rolled = cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    // Those that end are still being asked by whoever had them.
    let alone = || async {
        let names = cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "name"]).await?;
        let old = names.lines().filter(|name| before.lines().any(|b| b == *name)).count();
        ensure!(old == 0, "{old} of the old pods are there");
        Ok(())
    };
    let alone = cluster.eventually("the old pods are gone", alone).await;
    ends.store(true, Ordering::Relaxed);
    let mut lost = Vec::new();
    for load in loads {
        lost.extend(load.await?);
    }
    rolled?;
    alone?;
    let [answered, slow] = [&tally.answered, &tally.slow].map(|count| count.load(Ordering::Relaxed));
    let (count, again) = (lost.len(), asked_again()? - again);
    lost.truncate(10);
    println!("{answered} requests answered ({slow} after more than {SLOW:?}), {count} lost, {again} asked for again");
    ensure!(count == 0, "{count} of {} requests were lost: {lost:#?}", answered + count);
    // A few are the machine's; where nobody is there, all are for as long as that is so.
    ensure!(again * 100 <= answered as u64, "{again} of {answered} connections were asked for again");
    Ok(())
}

/// How many pods serve.
const PODS: u32 = 10;
/// What lets a server of a manifest go on for two seconds once it is to end.
const HOOK: &str = "        lifecycle:\n          preStop:\n            sleep: {seconds: 2}\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_update_loses_no_request() -> Result<()> {
    let registry = Registry::start(&[images::nginx("nginx:1")?]).await?;
    let cluster = Cluster::start(&[]).await?;
    cluster.trust_registry(&registry)?;
    let manifest = manifests::web("web", &registry.reference("nginx:1"), PODS, 30080);
    ensure!(manifest.contains(HOOK), "the servers of the other test would have a hook");
    roll(&cluster, &manifest, 250.0).await?;
    let node = cluster.node_ip().await?;

    // Load balancers are told when the node is about to go.
    let (healthy, lives) = (format!("http://{node}:10256/healthz"), format!("http://{node}:10256/livez"));
    cluster.eventually("the node takes connections", || cluster.http_get(&healthy)).await?;
    cluster.kubectl(&["taint", "nodes", "--all", "ToBeDeletedByClusterAutoscaler=1:NoSchedule"]).await?;
    let leaves = || async {
        ensure!(cluster.http_get(&healthy).await.is_err(), "it still takes connections");
        Ok(())
    };
    cluster.eventually("a node that is about to go takes none", leaves).await?;
    cluster.http_get(&lives).await.context("the proxy itself is well")?;
    cluster.kubectl(&["taint", "nodes", "--all", "ToBeDeletedByClusterAutoscaler-"]).await?;
    cluster.eventually("it takes connections again", || cluster.http_get(&healthy)).await?;
    Ok(())
}

/// Servers that end at once when they are told to, without a hook: their endpoints leave the rules before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_first_may_end_at_once() -> Result<()> {
    let registry = Registry::start(&[images::nginx("nginx:1")?]).await?;
    let cluster = Cluster::start(&[]).await?;
    cluster.trust_registry(&registry)?;
    let wants = format!("kind: Service\nmetadata:\n  annotations: {{{}: \"true\"}}\n", api::leaving::WANTED);
    let manifest = manifests::web("web", &registry.reference("nginx:1"), PODS, 30080).replace(HOOK, "");
    let manifest = manifest.replace("kind: Service\nmetadata:\n", &wants);
    ensure!(manifest.contains(&wants) && !manifest.contains("preStop"), "{manifest}");
    roll(&cluster, &manifest, 250.0).await?;
    // It was said, and not only waited for.
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]).await?;
    let path = format!("jsonpath={{.metadata.annotations.{}}}", api::leaving::LEFT.replace('.', "\\."));
    let lease = api::leaving::lease(node.trim());
    let left = cluster.kubectl(&["get", "lease", "-n", api::leaving::NAMESPACE, &lease, "-o", &path]).await?;
    ensure!(left.lines().any(|line| line.starts_with("default/web/")), "{left:?}");
    Ok(())
}
