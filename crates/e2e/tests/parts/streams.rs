//! Every way of speaking to a pod beside every way of being cut off, where each part is a process of its own:
//! each stream ends, and nothing of it is left, in no process and in no container. And logs that are followed
//! while they are rotated and their container starts anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::streams::{PROTOCOLS, Protocol, begun, ends, forward, kubectl};
use host::layout::Layout;
use host::process::ProcessId;
use stdx::ClockExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin};

/// In the command line of all that runs in a container for a stream.
const MARK: &str = "of-a-stream-that-is-cut";

/// The parts that are killed and started again.
pub struct World<'a> {
    pub cluster: &'a Cluster,
    pub busybox: String,
    pub nginx: String,
    /// A page of the cluster that needs no API server.
    pub page: &'a str,
    pub server: &'a mut Child,
    pub start_server: &'a dyn Fn() -> Result<Child>,
    pub kubelet: &'a mut Child,
    pub start_kubelet: &'a dyn Fn() -> Result<Child>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    ClientVanishes,
    KubeletKilled,
    ServerRestarted,
    ContainerDies,
}

impl World<'_> {
    pub async fn run(&mut self) -> Result<()> {
        let (busybox, nginx) = (&self.busybox, &self.nginx);
        for name in ["stays", "dies"] {
            let pod = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
                 containers:\n  - {{name: says, image: {busybox:?}, command: [sh, -c, \"truncate -s 8G /tmp/{MARK}; \
                 while true; do echo begun; sleep 0.1; done\"]}}\n  - {{name: web, image: {nginx:?}}}\n"
            );
            self.cluster.apply(&pod).await?;
        }
        self.cluster.kubectl(&["wait", "--for=condition=Ready", "pod/stays", "pod/dies", "--timeout=60s"]).await?;
        checkpoint(self.cluster).await.context("a checkpoint")?;
        logs_are_followed(self.cluster, busybox).await.context("logs through rotations and a restart")?;
        for (fault, pod) in [
            (Fault::ClientVanishes, "stays"),
            (Fault::ContainerDies, "dies"),
            (Fault::KubeletKilled, "stays"),
            (Fault::ServerRestarted, "stays"),
        ] {
            self.cut_off(fault, pod).await.with_context(|| format!("{fault:?}"))?;
        }
        self.cluster.kubectl(&["delete", "pod", "stays", "dies", "--ignore-not-found"]).await.map(drop)
    }

    async fn cut_off(&mut self, fault: Fault, pod: &str) -> Result<()> {
        let cluster = self.cluster;
        let before = self.descriptors()?;
        let mut all = Vec::new();
        for protocol in PROTOCOLS {
            all.push(exec(cluster, protocol, pod).await?);
            all.push(attach(cluster, protocol, pod).await?);
            all.push(port_forward(cluster, protocol, pod).await?);
            all.push(copy(cluster, protocol, pod).await?);
        }
        all.push(follow(cluster, pod).await?);
        ensure!(marked("cat")?.len() == PROTOCOLS.len(), "{:?}", marked("cat")?);
        match fault {
            Fault::ClientVanishes => {
                for stream in &mut all {
                    stream.child.kill().await?;
                }
            }
            Fault::KubeletKilled => {
                self.kubelet.kill().await?;
                every_one_ends(cluster, &mut all, fault).await?;
                *self.kubelet = (self.start_kubelet)()?;
            }
            Fault::ServerRestarted => {
                self.server.kill().await?;
                every_one_ends(cluster, &mut all, fault).await?;
                cluster.http_get(self.page).await.context("the Service answers without an API server")?;
                *self.server = (self.start_server)()?;
            }
            Fault::ContainerDies => {
                cluster.kubectl(&["delete", "pod", pod, "--wait=false"]).await?;
                every_one_ends(cluster, &mut all, fault).await?;
            }
        }
        drop(all);
        cluster
            .eventually("nothing is left of the streams", || async {
                // Not what only writes, such as the `tar` of a copy: the shim of containerd 1.6 keeps its output
                // open, and it waits for a reader until its container ends, with upstream's kubelet as with ours.
                let left = marked("cat")?;
                ensure!(left.is_empty(), "run on in a container: {left:?}");
                for (process, now) in self.descriptors()? {
                    // Another process than before has nothing to compare with.
                    let Some(before) = before.get(&process) else { continue };
                    // Connections at rest come and go by a few, and another kubelet has others to the runtime; each
                    // of nine streams has three descriptors or more there.
                    let few = if process.0 == "runtime" { 10 } else { 2 };
                    ensure!(now <= before + few, "{process:?}: {before} descriptors became {now}");
                }
                Ok(())
            })
            .await?;
        if fault != Fault::ContainerDies {
            // Whoever was killed is there again, for the next one.
            cluster
                .eventually("streams are opened again", || async {
                    let said = cluster.kubectl(&["exec", pod, "-c", "says", "--", "echo", "again"]).await?;
                    ensure!(said == "again\n", "{said}");
                    Ok(())
                })
                .await?;
        }
        Ok(())
    }

    /// How many descriptors each process has that streams go through.
    fn descriptors(&self) -> Result<BTreeMap<(&'static str, u32), usize>> {
        let runtime = ProcessId::load_alive(&Layout::below(self.cluster.root()).containerd_pid());
        let runtime = u32::try_from(runtime.context("the runtime runs")?.pid)?;
        let mut all = BTreeMap::new();
        for (name, pid) in
            [("API server", self.server.id()), ("kubelet", self.kubelet.id()), ("runtime", Some(runtime))]
        {
            let pid = pid.with_context(|| format!("the {name} runs"))?;
            all.insert((name, pid), std::fs::read_dir(format!("/proc/{pid}/fd"))?.count());
        }
        Ok(all)
    }
}

/// Whether a container can be written to a file is for the runtime to say: containerd 1.6 cannot, which is a 404
/// whose words kubectl keeps to itself; a newer one gives the name of the file.
async fn checkpoint(cluster: &Cluster) -> Result<()> {
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]).await?;
    let path = format!("/api/v1/nodes/{node}/proxy/checkpoint/default/stays/says");
    let output = cluster.kubectl_output(&["create", "--raw", &path, "--filename", "/dev/null"]).await?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        ensure!(out.contains("checkpoint-stays_default-says-"), "{out}");
    } else {
        ensure!(err.contains("NotFound") || err.contains("Unimplemented"), "{err}");
    }
    Ok(())
}

/// Processes of this program that run in a container for a stream.
fn marked(program: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let begins = line.strip_prefix(program.as_bytes()).is_some_and(|rest| rest.first() == Some(&0));
        if begins && contains(&line, MARK.as_bytes()) {
            found.push(format!("{}: {}", entry.file_name().display(), String::from_utf8_lossy(&line)));
        }
    }
    Ok(found)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// A stream under way.
struct Open {
    what: String,
    child: Child,
    /// Held, so that the input does not end.
    _input: Option<ChildStdin>,
    /// A connection through it.
    connection: Option<TcpStream>,
}

impl Open {
    fn new(what: &str, protocol: Protocol, child: Child) -> Self {
        Self { what: format!("{what} over {protocol:?}"), child, _input: None, connection: None }
    }
}

/// Runs until its input ends.
async fn exec(cluster: &Cluster, protocol: Protocol, pod: &str) -> Result<Open> {
    let script = format!("echo begun; exec cat - /tmp/none-{MARK}");
    let mut command = kubectl(cluster, protocol, &["exec", "-i", pod, "-c", "says", "--", "sh", "-c", &script]);
    command.stdin(Stdio::piped());
    let mut child = begun(cluster, command).await?;
    let input = child.stdin.take();
    Ok(Open { _input: input, ..Open::new("exec", protocol, child) })
}

async fn attach(cluster: &Cluster, protocol: Protocol, pod: &str) -> Result<Open> {
    let command = kubectl(cluster, protocol, &["attach", pod, "-c", "says"]);
    Ok(Open::new("attach", protocol, begun(cluster, command).await?))
}

/// With a connection that has been answered and stays.
async fn port_forward(cluster: &Cluster, protocol: Protocol, pod: &str) -> Result<Open> {
    let (child, port) = forward(cluster, protocol, pod, 80).await?;
    let mut io = TcpStream::connect(("127.0.0.1", port)).await?;
    io.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n").await?;
    let answered = cluster.clock.timeout(PATIENCE, io.read_u8()).await.context("the page does not come")?;
    ensure!(answered? == b'H', "no HTTP");
    Ok(Open { connection: Some(io), ..Open::new("port-forward", protocol, child) })
}

/// Of more than there is time for, to where it needs no room; begun once it runs in the container.
async fn copy(cluster: &Cluster, protocol: Protocol, pod: &str) -> Result<Open> {
    let before = marked("tar")?.len();
    let from = format!("{pod}:/tmp/{MARK}");
    let child = kubectl(cluster, protocol, &["cp", "-c", "says", &from, "/dev/null"]).spawn()?;
    cluster
        .eventually("a copy begins", || async {
            ensure!(marked("tar")?.len() > before, "nothing yet");
            Ok(())
        })
        .await?;
    Ok(Open::new("cp", protocol, child))
}

async fn follow(cluster: &Cluster, pod: &str) -> Result<Open> {
    let command = kubectl(cluster, Protocol::WebSocket, &["logs", "-f", pod, "-c", "says"]);
    Ok(Open { what: "logs -f".to_owned(), ..Open::new("", Protocol::WebSocket, begun(cluster, command).await?) })
}

async fn every_one_ends(cluster: &Cluster, all: &mut [Open], fault: Fault) -> Result<()> {
    for stream in all {
        let what = stream.what.as_str();
        // kubectl goes on listening for a pod whose containers are gone, but no connection does.
        if fault == Fault::ContainerDies {
            if let Some(mut io) = stream.connection.take() {
                let rest = cluster.clock.timeout(PATIENCE, io.read_to_end(&mut Vec::new())).await;
                // Cut off or ended in order.
                rest.with_context(|| format!("a connection through {what} does not end"))?.ok();
                stream.child.kill().await?;
                continue;
            }
        }
        let code = ends(cluster, &mut stream.child, what).await?;
        // A kubectl that speaks SPDY takes a connection that ends for a command that ended well.
        let told = code != Some(0) || !["exec over WebSocket", "cp over WebSocket"].contains(&what);
        ensure!(told, "{what} was cut off and ended with {code:?}");
    }
    Ok(())
}

/// Files of the log that were moved away.
fn rotated(folder: &Path) -> Result<usize> {
    let names = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<Result<Vec<_>>>()?;
    Ok(names.iter().filter(|name| name.contains(".log.")).count())
}

/// The script of a container that counts until the gate is opened, and then ends badly, once.
fn counts(name: &str) -> String {
    format!(
        "[ -e /gate/open ] && echo {name} again && sleep 9000; i=0; until [ -e /gate/open ]; do n=0; \
         while [ $n -lt 40 ]; do n=$((n+1)); i=$((i+1)); echo {name} $i {:x<60}; done; sleep 0.02; done; \
         echo {name} last $i; exit 1",
        ""
    )
}

/// The lines of one container: each number once, in order, up to the last.
fn whole<'a>(lines: impl Iterator<Item = &'a str>, name: &str) -> Result<usize> {
    let (mut expected, mut last) = (1, None);
    for line in lines {
        let mut words = line.split(' ');
        ensure!(words.next() == Some(name), "{line}");
        match words.next() {
            Some("last") => last = words.next().and_then(|n| n.parse::<usize>().ok()),
            number => {
                ensure!(
                    last.is_none() && number == Some(&expected.to_string()),
                    "{line:?} came where {expected} should"
                );
                expected += 1;
            }
        }
    }
    ensure!(last == Some(expected - 1), "{name}: {expected} of {last:?} came");
    Ok(expected - 1)
}

async fn logs_are_followed(cluster: &Cluster, busybox: &str) -> Result<()> {
    let gate = cluster.root().join("gate");
    std::fs::create_dir(&gate)?;
    let container = |name: &str| {
        let mounts = "volumeMounts: [{name: gate, mountPath: /gate}]";
        format!("  - {{name: {name}, image: {busybox:?}, command: [sh, -c, {:?}], {mounts}}}\n", counts(name))
    };
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: counts}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         restartPolicy: OnFailure\n  containers:\n{}{}  volumes:\n  - name: gate\n    hostPath: {{path: {:?}}}\n",
        container("a"),
        container("b"),
        gate.display().to_string(),
    );
    cluster.apply(&pod).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/counts", "--timeout=60s"]).await?;
    let one = cluster.kubectl_command(&["logs", "-f", "counts", "-c", "a"]).stdout(Stdio::piped()).spawn()?;
    let both = ["logs", "-f", "counts", "--all-containers", "--prefix", "--timestamps"];
    let both = cluster.kubectl_command(&both).stdout(Stdio::piped()).spawn()?;
    let followed = async {
        let (one, both) = tokio::join!(one.wait_with_output(), both.wait_with_output());
        anyhow::Ok((one?, both?))
    };
    let followed = tokio::spawn(followed);
    let uid = cluster.kubectl(&["get", "pod", "counts", "-o", "jsonpath={.metadata.uid}"]).await?;
    let folder = |name: &str| -> PathBuf { cluster.root().join(format!("state/pod-logs/default_counts_{uid}/{name}")) };
    cluster
        .eventually("both logs have been moved away twice", || async {
            for name in ["a", "b"] {
                ensure!(rotated(&folder(name))? >= 2, "{name} not yet");
            }
            Ok(())
        })
        .await?;
    // The newest lines, whatever was moved away: at most so many, one after the other.
    let tail = cluster.kubectl(&["logs", "counts", "-c", "a", "--tail=5"]).await?;
    let numbers: Vec<usize> = tail.lines().filter_map(|line| line.split(' ').nth(1)?.parse().ok()).collect();
    ensure!(numbers.len() == tail.lines().count() && numbers.len() <= 5, "{tail}");
    ensure!(numbers.is_sorted_by(|a, b| a + 1 == *b), "{tail}");
    std::fs::write(gate.join("open"), "")?;
    let ended =
        cluster.clock.timeout(PATIENCE, followed).await.context("logs -f goes on when the container has ended")?;
    let (one, both) = ended??;
    ensure!(one.status.success() && both.status.success(), "{} {}", one.status, both.status);
    let (one, both) = (String::from_utf8(one.stdout)?, String::from_utf8(both.stdout)?);
    let count = whole(one.lines(), "a")?;
    for name in ["a", "b"] {
        let prefix = format!("[pod/counts/{name}] ");
        let stamped: Vec<&str> = both.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let split: Vec<(&str, &str)> = stamped.iter().filter_map(|line| line.split_once(' ')).collect();
        let whole = whole(split.iter().map(|(_, text)| *text), name)?;
        ensure!(name == "b" || whole == count, "{whole} lines, and {count} without a time");
        let times = split.iter().map(|(time, _)| time.parse::<jiff::Timestamp>()).collect::<Result<Vec<_>, _>>()?;
        ensure!(times.is_sorted(), "the times of {name} are not in order");
    }
    // Its next life is another log, and the one before is kept.
    cluster
        .eventually("the containers start again", || async {
            for name in ["a", "b"] {
                let now = cluster.kubectl(&["logs", "counts", "-c", name]).await?;
                ensure!(now == format!("{name} again\n"), "{now}");
            }
            Ok(())
        })
        .await?;
    let last = format!("a last {count}\n");
    for more in [&["--tail=1"][..], &["--tail=1", "--since=1h"]] {
        let args = [&["logs", "counts", "-c", "a", "--previous"], more].concat();
        ensure!(cluster.kubectl(&args).await? == last, "{args:?}");
    }
    cluster.kubectl(&["delete", "pod", "counts"]).await.map(drop)
}
