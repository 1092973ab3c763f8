//! What streams cost: commands and connections into a pod through the API server and the kubelet, beside the
//! same on the runtime's own, and beside nothing in between.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::types::core::v1::Pod;
use client::kubeconfig::Connection;
use client::{Client, DeleteParams};
use cri::v1;
use e2e::cluster::Cluster;
use http::header::{CONNECTION, HOST, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde_json::{Value, json};
use stdx::{ClockExt, SharedClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use transport::once::{self, Io, Secure, Tcp};
use transport::spdy::session::{self, Event, Id, Reader, Side, Writer};
use transport::{Request, Response, tls};

use super::figures::{Figures, median, ms};
use super::process::usage;

/// The image of what is streamed to; imported, not pulled.
pub const IMAGE: &str = "pintle.invalid/bench/busybox:1";
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the runtime may take to begin the commands of all sessions.
const BEGUN: Duration = Duration::from_secs(600);
const POD: &str = "streams";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A server that each stream has a connection of its own to.
pub struct Way {
    address: String,
    secure: Option<(rustls::ClientConfig, String)>,
    clock: SharedClock,
}

impl Way {
    /// The cluster's API server, as its administrator.
    pub fn to_server(cluster: &Cluster, clock: &SharedClock) -> Result<Self> {
        let connection = Connection::load(&cluster.kubeconfig(), None)?;
        let target = connection.target()?;
        let pair = connection.certificate_pem.zip(connection.key_pem).context("a client certificate")?;
        let identity = tls::Identity::from_pem(&pair.0, &pair.1)?;
        let config = tls::client(clock, tls::roots(&connection.ca_pem)?, Some(identity))?;
        Ok(Self { address: target.address, secure: Some((config, target.server_name)), clock: clock.clone() })
    }

    /// A place that the runtime has named, and the path there.
    fn to_runtime(url: &str, clock: &SharedClock) -> Result<(Self, String)> {
        let uri: http::Uri = url.parse()?;
        let address = uri.authority().context("an address")?.to_string();
        Ok((Self { address, secure: None, clock: clock.clone() }, uri.path().to_owned()))
    }

    /// Asks on a new connection.
    pub async fn ask(&self, method: Method, path: &str, headers: HeaderMap) -> Result<Response> {
        let secure = self.secure.as_ref().map(|(config, server_name)| Secure { config, server_name });
        let io = once::connect(&Tcp, &self.address, secure, &self.clock).await?;
        let mut request: Request = http::Request::new(transport::empty());
        *request.method_mut() = method;
        *request.uri_mut() = path.parse()?;
        *request.headers_mut() = headers;
        request.headers_mut().insert(HOST, HeaderValue::from_str(&self.address)?);
        Ok(once::send(io, request).await?)
    }

    async fn upgraded(&self, method: Method, path: &str, headers: HeaderMap) -> Result<Box<dyn Io>> {
        let mut response = self.ask(method, path, headers).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (status, body) = (response.status(), transport::read(response.into_body(), 1 << 16).await?);
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(once::taken(&mut response).await?)
    }

    async fn spdy(&self, path: &str, protocol: &'static str) -> Result<(Reader, Writer)> {
        let headers = headers(&[("x-stream-protocol-version", protocol)], "SPDY/3.1");
        Ok(session::begin(self.upgraded(Method::POST, path, headers).await?, Side::Client).await?)
    }

    async fn websocket(&self, path: &str) -> Result<Box<dyn Io>> {
        let about = [
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "v5.channel.k8s.io"),
        ];
        self.upgraded(Method::GET, path, headers(&about, "websocket")).await
    }
}

fn headers(more: &[(&'static str, &'static str)], protocol: &'static str) -> HeaderMap {
    let value = HeaderValue::from_static;
    let more = more.iter().map(|(name, text)| (HeaderName::from_static(name), value(text)));
    more.chain([(CONNECTION, value("Upgrade")), (UPGRADE, value(protocol))]).collect()
}

/// Runs all rows; leaves nothing.
pub async fn run(
    cluster: &Cluster,
    client: &Client,
    socket: &Path,
    clock: &SharedClock,
    quick: bool,
    figures: &mut Figures,
) -> Result<()> {
    let runtime = cri::Client::new(&format!("unix://{}", socket.display()), clock.clone())?;
    let server = Way::to_server(cluster, clock)?;
    let megabytes = if quick { 64 } else { 256 };
    // What is fetched is noise: nothing on the way may compress it.
    let script = format!("dd if=/dev/urandom of=/tmp/file bs=1M count={megabytes} && exec httpd -f -p 80 -h /tmp");
    let (container, address) = start(client, clock, &script).await?;
    let bench = Bench { server, runtime, container, clock: clock.clone() };
    let rounds = if quick { 5 } else { 20 };
    bench.commands(rounds, figures).await.context("exec")?;
    bench.forwarded(&address, megabytes << 20, figures).await.context("port-forward")?;
    let pid = cluster.pid().context("the cluster runs")?;
    bench.idle(pid, if quick { 100 } else { 1000 }, figures).await.context("idle sessions")?;
    let pods = client.api::<Pod>().namespace("default");
    let begin = clock.now();
    pods.delete(POD, &DeleteParams::default().grace(0)).await?;
    let gone = async {
        while bench.sandbox().await?.is_some() {
            clock.sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    };
    clock.timeout(PATIENCE, gone).await.context("the runtime does not let go of the pod")??;
    figures.add("the pod's sandbox is gone after those sessions", ms(clock.now().since(begin)), "", None);
    Ok(())
}

/// Stands in the command of every session, to be found by.
const MARK: &str = "pintle-bench-session";

/// How many processes there are of sessions.
fn processes() -> Result<usize> {
    let all = std::fs::read_dir("/proc")?.flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    Ok(lines.filter(|line| line.windows(MARK.len()).any(|part| part == MARK.as_bytes())).count())
}

/// Starts the pod; gives its container's id and its address once its server answers.
async fn start(client: &Client, clock: &SharedClock, script: &str) -> Result<(String, String)> {
    let pods = client.api::<Pod>().namespace("default");
    let pod = json!({
        "metadata": {"name": POD, "namespace": "default"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": IMAGE,
            "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]}]},
    });
    pods.create(&serde_json::from_value(pod)?).await?;
    let serving = async {
        loop {
            clock.sleep(Duration::from_millis(20)).await;
            let pod = pods.find(POD).await?.context("the pod")?;
            if !api::pod::is_ready(&pod) {
                continue;
            }
            let pod: Value = serde_json::to_value(&pod)?;
            let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            let (id, ip) = (text("/status/containerStatuses/0/containerID"), text("/status/podIP"));
            let id = id.rsplit('/').next().unwrap_or_default().to_owned();
            if TcpStream::connect((ip.as_str(), 80)).await.is_ok() {
                return anyhow::Ok((id, format!("{ip}:80")));
            }
        }
    };
    clock.timeout(PATIENCE, serving).await.context("the pod does not serve")?
}

struct Bench {
    server: Way,
    runtime: cri::Client,
    container: String,
    clock: SharedClock,
}

impl Bench {
    async fn commands(&self, rounds: usize, figures: &mut Figures) -> Result<()> {
        let (mut bare, mut whole) = (Vec::new(), Vec::new());
        // One after the other, so that both meet the machine as it is.
        for _ in 0..rounds {
            let begin = self.clock.now();
            let request = v1::ExecRequest {
                container_id: self.container.clone(),
                cmd: vec!["true".to_owned()],
                stdout: true,
                stderr: true,
                ..v1::ExecRequest::default()
            };
            let (way, path) = Way::to_runtime(&self.runtime.exec(request).await?, &self.clock)?;
            succeeds(&way, &path).await.context("the runtime's own")?;
            bare.push(self.clock.now().since(begin));
            let begin = self.clock.now();
            succeeds(&self.server, &format!("{PODS}/{POD}/exec?command=true&stdout=true&stderr=true")).await?;
            whole.push(self.clock.now().since(begin));
        }
        let (bare, whole) = (median(&mut bare), median(&mut whole));
        figures.add("exec true on the runtime's own stream server", ms(bare), "", None);
        figures.add("exec true through the API server and the kubelet", ms(whole), "", None);
        let ours = whole.saturating_sub(bare);
        figures.add("our share of exec true", ms(ours), "≤ 20 ms", Some(ours <= Duration::from_millis(20)));
        Ok(())
    }

    async fn forwarded(&self, address: &str, size: u64, figures: &mut Figures) -> Result<()> {
        let (mut bare, mut copied, mut runtimes, mut whole) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let relay = relay(address).await?;
        // In turns, so that all meet the machine as it is.
        for _ in 0..5 {
            let begin = self.clock.now();
            fetch(address, size).await.context("without anything between")?;
            bare.push(self.clock.now().since(begin));
            let begin = self.clock.now();
            fetch(&relay, size).await.context("copied by a process between")?;
            copied.push(self.clock.now().since(begin));
            let sandbox = self.sandbox().await?.context("the sandbox")?;
            let url = self.runtime.port_forward(&sandbox, Vec::new()).await?;
            let (way, path) = Way::to_runtime(&url, &self.clock)?;
            let begin = self.clock.now();
            fetch_forwarded(&way, &path, size).await.context("the runtime's own")?;
            runtimes.push(self.clock.now().since(begin));
            let begin = self.clock.now();
            fetch_forwarded(&self.server, &format!("{PODS}/{POD}/portforward"), size).await?;
            whole.push(self.clock.now().since(begin));
        }
        let rate = |times: &mut Vec<Duration>| size as f64 / 1e6 / median(times).as_secs_f64().max(1e-6);
        let (bare, copied) = (rate(&mut bare), rate(&mut copied));
        let (runtimes, whole) = (rate(&mut runtimes), rate(&mut whole));
        figures.add("a file from a pod, bare TCP", format!("{bare:.0} MB/s"), "", None);
        figures.add("the same copied by a process between, TCP to TCP", format!("{copied:.0} MB/s"), "", None);
        figures.add("the same by port-forward of the runtime's own", format!("{runtimes:.0} MB/s"), "", None);
        let shown = format!("{whole:.0} MB/s ({:.1}× as long as bare TCP)", bare / whole);
        let met = Some(whole * 2.0 >= bare);
        figures.add("the same by port-forward through us", shown, "within 2× of bare TCP", met);
        Ok(())
    }

    /// The id of the pod's sandbox, while there is one.
    async fn sandbox(&self) -> Result<Option<String>> {
        let all = self.runtime.list_pod_sandbox(None).await?;
        Ok(all.into_iter().find(|s| s.metadata.as_ref().is_some_and(|m| m.name == POD)).map(|s| s.id))
    }

    /// Sessions that wait for an input that does not come, and then are let go, all at once.
    async fn idle(&self, pid: u32, count: usize, figures: &mut Figures) -> Result<()> {
        const AT_ONCE: usize = 4;
        let path = format!("{PODS}/{POD}/exec?command=cat&command=-&command=/tmp/{MARK}&stdin=true&stdout=true");
        // The first ones fill what is kept for later.
        let mut sessions = self.sessions(&path, 10, AT_ONCE).await?;
        let before = usage(pid)?.rss;
        sessions.extend(self.sessions(&path, count, AT_ONCE).await?);
        // A session is there before its command: the runtime begins them one after the other.
        let wanted = sessions.len();
        let begun = async {
            while processes()? < wanted {
                self.clock.sleep(Duration::from_millis(100)).await;
            }
            anyhow::Ok(())
        };
        self.clock.timeout(BEGUN, begun).await.with_context(|| format!("{:?} processes run", processes()))??;
        let each = usage(pid)?.rss.saturating_sub(before) as f64 / count as f64;
        let all = each * 1000.0 / 1e6;
        let what = format!("RSS of 1,000 idle exec sessions (from {count})");
        figures.add(&what, format!("{all:.0} MB"), "≤ 50 MB", Some(all <= 50.0));
        let (begin, all) = (self.clock.now(), processes()?);
        drop(sessions);
        let ended = async {
            while processes()? > 0 {
                self.clock.sleep(Duration::from_millis(20)).await;
            }
            anyhow::Ok(())
        };
        self.clock.timeout(PATIENCE, ended).await.with_context(|| format!("{:?} processes run on", processes()))??;
        let what = format!("{all} processes end when their sessions are let go");
        figures.add(&what, ms(self.clock.now().since(begin)), "", None);
        Ok(())
    }

    async fn sessions(&self, path: &str, count: usize, at_once: usize) -> Result<Vec<Box<dyn Io>>> {
        let share = |n: usize| count / at_once + usize::from(n < count % at_once);
        let all = futures::future::try_join_all((0..at_once).map(|n| self.some_sessions(path, share(n)))).await?;
        Ok(all.into_iter().flatten().collect())
    }

    /// One after the other.
    async fn some_sessions(&self, path: &str, count: usize) -> Result<Vec<Box<dyn Io>>> {
        let mut all = Vec::new();
        for _ in 0..count {
            let mut io = self.server.websocket(path).await?;
            // Something is said as soon as the command's streams are there.
            self.clock.timeout(PATIENCE, io.read_u8()).await.context("a session does not begin")??;
            all.push(io);
        }
        Ok(all)
    }
}

/// A command that ends well and says nothing.
async fn succeeds(way: &Way, path: &str) -> Result<()> {
    let (mut reader, writer) = way.spdy(path, "v4.channel.k8s.io").await?;
    let mut ids = Vec::new();
    for kind in ["error", "stdout", "stderr"] {
        ids.push(writer.open(vec![("streamtype".to_owned(), kind.to_owned())]).await?);
    }
    let (error, mut open) = (ids.first().copied(), ids.iter().copied().collect::<BTreeSet<Id>>());
    let mut account = Vec::new();
    while !open.is_empty() {
        match reader.next().await? {
            Some(Event::Data { id, bytes }) if Some(id) == error => account.extend_from_slice(&bytes),
            Some(Event::Finished { id } | Event::Reset { id, .. }) => {
                open.remove(&id);
            }
            Some(_) => {}
            None => break,
        }
    }
    let account = String::from_utf8_lossy(&account);
    ensure!(account.contains("\"Success\""), "it ended with {account:?}");
    Ok(())
}

const GET: &[u8] = b"GET /file HTTP/1.0\r\n\r\n";

/// Takes connections and copies what is said on them to and from the server there: what any way through a process
/// costs, without TLS and without frames.
async fn relay(to: &str) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (own, to) = (listener.local_addr()?.to_string(), to.to_owned());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let to = to.clone();
            tokio::spawn(async move {
                if let Ok(mut server) = TcpStream::connect(to).await {
                    let piece = 64 * 1024;
                    drop(tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, piece, piece).await);
                }
            });
        }
    });
    Ok(own)
}

/// Reads the file over TCP.
async fn fetch(address: &str, size: u64) -> Result<()> {
    let mut io = TcpStream::connect(address).await?;
    io.write_all(GET).await?;
    let (mut buffer, mut all) = (vec![0; 64 * 1024], 0);
    loop {
        match io.read(&mut buffer).await? {
            0 => break,
            read => all += read as u64,
        }
    }
    ensure!(all > size, "{all} bytes came");
    Ok(())
}

/// The same in a connection that is forwarded.
async fn fetch_forwarded(way: &Way, path: &str, size: u64) -> Result<()> {
    let (mut reader, writer) = way.spdy(path, "portforward.k8s.io").await?;
    let stream = |kind: &str| {
        let pairs = [("streamtype", kind), ("port", "80"), ("requestid", "0")];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    };
    let error = writer.open(stream("error")).await?;
    writer.finish(error).await?;
    let data = writer.open(stream("data")).await?;
    writer.data(data, GET.into()).await?;
    let mut all = 0;
    loop {
        match reader.next().await? {
            Some(Event::Data { id, bytes }) if id == data => all += bytes.len() as u64,
            Some(Event::Data { bytes, .. }) => bail!("{}", String::from_utf8_lossy(&bytes)),
            Some(Event::Finished { id } | Event::Reset { id, .. }) if id == data => break,
            Some(_) => {}
            None => break,
        }
    }
    ensure!(all > size, "{all} bytes came");
    Ok(())
}

/// Logs: the lines of a container that has ended, in the file that the kubelet reads.
pub async fn logs(
    cluster: &Cluster,
    client: &Client,
    clock: &SharedClock,
    quick: bool,
    figures: &mut Figures,
) -> Result<()> {
    const NAME: &str = "speaks";
    let pods = client.api::<Pod>().namespace("default");
    let pod = json!({
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": IMAGE,
            "imagePullPolicy": "IfNotPresent", "command": ["true"]}]},
    });
    pods.create(&serde_json::from_value(pod)?).await?;
    let ended = async {
        loop {
            let pod = serde_json::to_value(pods.find(NAME).await?.context("the pod")?)?;
            if pod.pointer("/status/phase") == Some(&json!("Succeeded")) {
                let uid = pod.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default().to_owned();
                return anyhow::Ok(uid);
            }
            clock.sleep(Duration::from_millis(20)).await;
        }
    };
    let uid = clock.timeout(PATIENCE, ended).await.context("the pod does not end")??;
    let file = cluster.root().join(format!("state/pod-logs/default_{NAME}_{uid}/main/0.log"));
    let megabytes: usize = if quick { 128 } else { 1024 };
    write_log(&file, megabytes << 20)?;
    let (server, pid) = (Way::to_server(cluster, clock)?, cluster.pid().context("the cluster runs")?);
    let path = format!("{PODS}/{NAME}/log");
    let mut tails = Vec::new();
    for _ in 0..11 {
        let begin = clock.now();
        let answer = server.ask(Method::GET, &format!("{path}?tailLines=10"), HeaderMap::new()).await?;
        let text = transport::read(answer.into_body(), 1 << 20).await?;
        tails.push(clock.now().since(begin));
        let lines = text.iter().filter(|byte| **byte == b'\n').count();
        ensure!(lines == 10, "{lines} lines came");
    }
    let p50 = median(&mut tails);
    let what = format!("logs --tail=10 of a file of {megabytes} MB, p50");
    figures.add(&what, ms(p50), "≤ 20 ms", Some(p50 <= Duration::from_millis(20)));
    let (begin, before) = (clock.now(), usage(pid)?);
    let mut body = server.ask(Method::GET, &path, HeaderMap::new()).await?.into_body();
    let mut all = 0;
    while let Some(frame) = http_body_util::BodyExt::frame(&mut body).await {
        let frame = frame.map_err(anyhow::Error::from_boxed)?;
        all += frame.into_data().map_or(0, |data| data.len());
    }
    let (wall, after) = (clock.now().since(begin).as_secs_f64(), usage(pid)?);
    ensure!(all > (megabytes << 20) / 2, "{all} bytes came");
    let (rate, per_core) = (all as f64 / 1e6 / wall, all as f64 / 1e6 / (after.cpu - before.cpu).max(0.01));
    let rss = format!("RSS {:.0} → {:.0} MB", before.rss_mb(), after.rss_mb());
    let shown = format!("{per_core:.0} MB per second of a core ({rate:.0} MB/s, {rss})");
    figures.add("log streaming, kubelet and API server", shown, "≥ 200 MB/s on one core", Some(per_core >= 200.0));
    pods.delete(NAME, &DeleteParams::default().grace(0)).await?;
    Ok(())
}

/// Lines as the runtime writes them, some 150 bytes each.
fn write_log(file: &Path, size: usize) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(file)?);
    let (mut written, mut number) = (0, 0_u64);
    while written < size {
        let line = format!("2026-11-29T11:23:11.687484462Z stdout F {number:010} {:.<100}\n", "");
        out.write_all(line.as_bytes())?;
        (written, number) = (written + line.len(), number + 1);
    }
    out.flush()?;
    Ok(())
}
