//! exec, attach, cp, port-forward and debug with real kubectl, over WebSocket and over SPDY, and what
//! becomes of a stream when either end of it is gone.

use std::io::Read;
use std::path::Path;
use std::process::{Output, Stdio};

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::registry::Registry;
use e2e::streams::{PROTOCOLS, Protocol, begun, ends, forward, kubectl};
use e2e::{clients, images, manifests};
use stdx::ClockExt;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

/// Bytes that go through a stream: more than any buffer on the way holds.
const MUCH: usize = 24 << 20;

/// Runs to its end, with something to read.
async fn run(cluster: &Cluster, mut command: Command, input: Vec<u8>) -> Result<Output> {
    let shown = format!("{:?}", command.as_std());
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("its input")?;
    let writing = async move {
        // Whoever has read enough closes.
        stdin.write_all(&input).await.ok();
        drop(stdin);
    };
    let both = async { tokio::join!(writing, child.wait_with_output()).1 };
    let ended = cluster.clock.timeout(PATIENCE, both).await;
    Ok(ended.with_context(|| format!("{shown} does not end\n{}", cluster.log_tail()))??)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Bytes that compress badly and repeat nowhere near.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut out = Vec::with_capacity(size + 8);
    while out.len() < size {
        out.extend_from_slice(&next());
    }
    out.truncate(size);
    out
}

pub async fn all() -> Result<()> {
    let images = [images::busybox("busybox:1")?, images::nginx("nginx:1")?];
    let registry = Registry::start(&images).await?;
    let mut cluster = Cluster::start(&[]).await?;
    cluster.trust_registry(&registry)?;
    let (busybox, nginx) = (registry.reference("busybox:1"), registry.reference("nginx:1"));
    let memory = "    volumeMounts: [{name: memory, mountPath: /memory}]\n  volumes:\n  - name: memory\n    \
                  emptyDir: {medium: Memory}\n";
    cluster.apply(&format!("{}{memory}", manifests::script("box", &busybox, "sleep 10000"))).await?;
    let web = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{terminationGracePeriodSeconds: 0, \
         containers: [{{name: web, image: \"{nginx}\"}}]}}"
    );
    cluster.apply(&web).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/box", "pod/web", "--timeout=60s"]).await?;
    for protocol in PROTOCOLS {
        let told = |what: &'static str| format!("{what} over {protocol:?}");
        exit_codes(&cluster, protocol).await.with_context(|| told("exit codes"))?;
        input_ends(&cluster, protocol).await.with_context(|| told("input ends"))?;
        a_terminal_has_a_size(&cluster, protocol).await.with_context(|| told("a terminal has a size"))?;
        attach(&cluster, protocol, &busybox).await.with_context(|| told("attach"))?;
        copies(&cluster, protocol).await.with_context(|| told("cp"))?;
        forwards(&cluster, protocol).await.with_context(|| told("port-forward"))?;
        debugs(&cluster, protocol, &busybox).await.with_context(|| told("debug"))?;
        client_go(&cluster, protocol).await.with_context(|| told("client-go"))?;
    }
    large_copies(&cluster).await.context("cp of a large file")?;
    python(&cluster).await.context("the Python client's helpers")?;
    no_network_between(&cluster).await.context("the way to the kubelet")?;
    refusals(&cluster).await.context("refusals")?;
    for protocol in PROTOCOLS {
        let told = |what: &'static str| format!("{what} over {protocol:?}");
        clients_vanish(&cluster, protocol).await.with_context(|| told("clients vanish"))?;
        containers_die(&cluster, protocol, &busybox).await.with_context(|| told("containers die"))?;
        servers_are_killed(&mut cluster, protocol).await.with_context(|| told("servers are killed"))?;
    }
    Ok(())
}

/// In one process streams go from the API server to the kubelet without a connection between.
async fn no_network_between(cluster: &Cluster) -> Result<()> {
    let page = cluster.kubectl(&["get", "--raw", "/metrics"]).await?;
    let counted = |way: &str| page.contains(&format!("\npintle_kubelet_streams_total{{way=\"{way}\"}} "));
    ensure!(counted("process") && !counted("network"), "{page}");
    Ok(())
}

async fn exit_codes(cluster: &Cluster, protocol: Protocol) -> Result<()> {
    let script = "echo out; echo err >&2; exit 7";
    let command = kubectl(cluster, protocol, &["exec", "box", "--", "sh", "-c", script]);
    let ended = run(cluster, command, Vec::new()).await?;
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    ensure!(ended.status.code() == Some(7) && out == "out\n", "{}: {out}{err}", ended.status);
    ensure!(err.contains("err\n") && err.contains("command terminated with exit code 7"), "{err}");
    let ended = run(cluster, kubectl(cluster, protocol, &["exec", "box", "--", "true"]), Vec::new()).await?;
    ensure!(ended.status.success() && ended.stdout.is_empty(), "{}", text(&ended.stderr));
    let ended = run(cluster, kubectl(cluster, protocol, &["exec", "box", "--", "/nonesuch"]), Vec::new()).await?;
    ensure!(!ended.status.success() && text(&ended.stderr).contains("nonesuch"), "{}", text(&ended.stderr));
    Ok(())
}

async fn input_ends(cluster: &Cluster, protocol: Protocol) -> Result<()> {
    // Only who hears the end of the input ends.
    let much = noise(MUCH);
    let ended = run(cluster, kubectl(cluster, protocol, &["exec", "-i", "box", "--", "cat"]), much.clone()).await?;
    ensure!(ended.status.success(), "{}", text(&ended.stderr));
    ensure!(ended.stdout == much, "{} bytes came back of {}", ended.stdout.len(), much.len());
    // And one that reads nothing ends without. Not more than a pipe holds: containerd 1.6 waits for ever for
    // the rest of an input whose process has ended (its shim keeps the pipe's other end open).
    let little = noise(16 << 10);
    let ended = run(cluster, kubectl(cluster, protocol, &["exec", "-i", "box", "--", "true"]), little).await?;
    ensure!(ended.status.success(), "{}", text(&ended.stderr));
    Ok(())
}

async fn a_terminal_has_a_size(cluster: &Cluster, protocol: Protocol) -> Result<()> {
    let typescript = cluster.root().join(format!("typescript-{protocol:?}"));
    let inner = "until stty size | grep -q '33 77'; do sleep 0.1; done; echo fir''st; \
                 until stty size | grep -q '44 55'; do sleep 0.1; done; echo sec''ond; exit 3";
    let kubectl = kubectl(cluster, protocol, &["exec", "-it", "box", "--", "sh", "-c", "$INNER"]);
    let quoted = |word: &std::ffi::OsStr| match word.to_string_lossy().as_ref() {
        "$INNER" => "\"$INNER\"".to_owned(),
        word => format!("'{word}'"),
    };
    let kubectl = kubectl.as_std();
    let words: Vec<String> = [kubectl.get_program()].into_iter().chain(kubectl.get_args()).map(quoted).collect();
    let out = typescript.display();
    let outer = format!(
        "stty rows 33 cols 77; (until grep -q 'fir[s]t' {out}; do sleep 0.1; done; stty rows 44 cols 55 </dev/tty) & {}",
        words.join(" ")
    );
    let mut script = Command::new("script");
    script.args(["--quiet", "--flush", "--return", "--command", &outer]).arg(&typescript).env("INNER", inner);
    script.envs(kubectl.get_envs().filter_map(|(key, value)| Some((key, value?))));
    script.kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = run(cluster, script, Vec::new()).await?;
    let said = text(&ended.stdout);
    ensure!(ended.status.code() == Some(3) && said.contains("first") && said.contains("second"), "{said}");
    Ok(())
}

async fn attach(cluster: &Cluster, protocol: Protocol, image: &str) -> Result<()> {
    let name = format!("reads-{}", if protocol == Protocol::Spdy { "spdy" } else { "websocket" });
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{restartPolicy: Never, containers: \
         [{{name: main, image: \"{image}\", stdin: true, stdinOnce: true, command: [sh, -c, \"read line; for i in 1 2 3 4 5; do echo got $line; sleep 0.2; done; exit 5\"]}}]}}"
    );
    cluster.apply(&pod).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=60s"]).await?;
    let ended = run(cluster, kubectl(cluster, protocol, &["attach", "-i", &name]), b"hello\n".to_vec()).await?;
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    ensure!(out.contains("got hello"), "{out}{err}");
    cluster.kubectl(&["delete", "pod", &name, "--wait=false"]).await?;
    Ok(())
}

async fn copies(cluster: &Cluster, protocol: Protocol) -> Result<()> {
    let (there, back) = (cluster.root().join("there"), cluster.root().join("back"));
    let much = noise(MUCH);
    std::fs::write(&there, &much)?;
    let (there, back) = (there.display().to_string(), back.display().to_string());
    for args in [["cp", &there, "box:/tmp/file"], ["cp", "box:/tmp/file", &back]] {
        let ended = run(cluster, kubectl(cluster, protocol, &args), Vec::new()).await?;
        ensure!(ended.status.success(), "{args:?}: {}", text(&ended.stderr));
    }
    let got = std::fs::read(&back)?;
    ensure!(got == much, "{} bytes came back of {}", got.len(), much.len());
    std::fs::remove_file(&back)?;
    Ok(())
}

/// What a program asks for that speaks one protocol and falls back to no other: commands, terminals that change
/// their size, copies (over SPDY of 500 MB), a hundred connections at once.
async fn client_go(cluster: &Cluster, protocol: Protocol) -> Result<()> {
    let check = if protocol == Protocol::Spdy { "streams-spdy" } else { "streams-websocket" };
    let mut command = Command::new(clients::tool("clientgo")?);
    let told = clients::run(cluster, command.arg(cluster.kubeconfig()).arg(check)).await?;
    ensure!(told.trim_end().ends_with(&format!("ok {check}")), "{told}");
    Ok(())
}

/// 500 MB of noise there and back. Both ends are in the memory of the pod's volume: disks are small and slow
/// where this runs.
async fn large_copies(cluster: &Cluster) -> Result<()> {
    const LARGE: u64 = 500 << 20;
    let uid = cluster.kubectl(&["get", "pod", "box", "-o", "jsonpath={.metadata.uid}"]).await?;
    let volume = format!("state/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/memory");
    let file = cluster.root().join(volume).join("here");
    let hash = async || -> Result<String> {
        let output = Command::new("sha256sum").stdin(std::fs::File::open(&file)?).output().await?;
        ensure!(output.status.success(), "{}", text(&output.stderr));
        Ok(text(&output.stdout))
    };
    std::io::copy(&mut std::fs::File::open("/dev/urandom")?.take(LARGE), &mut std::fs::File::create(&file)?)?;
    let sent = hash().await?;
    let path = file.display().to_string();
    for args in [["cp", &path, "box:/memory/there"], ["cp", "box:/memory/there", &path]] {
        let ended = run(cluster, kubectl(cluster, Protocol::WebSocket, &args), Vec::new()).await?;
        ensure!(ended.status.success(), "{args:?}: {}", text(&ended.stderr));
        // Only one of the two is there at a time.
        if args[1] == path {
            std::fs::remove_file(&file)?;
        }
    }
    ensure!(file.metadata()?.len() == LARGE && hash().await? == sent, "other bytes came back");
    cluster.kubectl(&["exec", "box", "--", "rm", "/memory/there", "/memory/here"]).await.map(drop)
}

async fn page(port: u16) -> Result<String> {
    let mut io = TcpStream::connect(("127.0.0.1", port)).await?;
    io.write_all(b"GET / HTTP/1.0\r\nHost: web\r\n\r\n").await?;
    let mut answer = Vec::new();
    io.read_to_end(&mut answer).await?;
    Ok(text(&answer))
}

async fn forwards(cluster: &Cluster, protocol: Protocol) -> Result<()> {
    let (mut child, port) = forward(cluster, protocol, "web", 80).await?;
    let all = (0..100).map(|_| page(port));
    let pages = cluster.clock.timeout(PATIENCE, futures::future::try_join_all(all)).await;
    for page in pages.context("100 connections")?? {
        ensure!(page.starts_with("HTTP/1.1 200 ") && page.contains("</html>"), "{page}");
    }
    // A connection that nobody takes ends, and later ones go on.
    child.kill().await?;
    let (mut child, port) = forward(cluster, protocol, "web", 81).await?;
    let nothing = cluster.clock.timeout(PATIENCE, page(port)).await.context("nobody listens")?;
    ensure!(nothing.as_ref().map_or(true, String::is_empty), "{nothing:?}");
    child.kill().await?;
    Ok(())
}

/// The input stays open until what was to be said has been: containerd lets go of the output of a container
/// without `stdinOnce` when the input ends.
async fn debugs(cluster: &Cluster, protocol: Protocol, image: &str) -> Result<()> {
    let name = format!("dbg-{}", if protocol == Protocol::Spdy { "spdy" } else { "websocket" });
    let image = format!("--image={image}");
    // Said more than once: containerd takes the input before it gives the output away.
    let script = "read line; for i in 1 2 3 4 5; do echo heard $line; sleep 0.2; done";
    let args = ["debug", "box", "-i", "-c", &name, &image, "--", "sh", "-c", script];
    let mut child = kubectl(cluster, protocol, &args).stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("its input")?;
    stdin.write_all(b"this\n").await?;
    let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
    let line = cluster.clock.timeout(PATIENCE, lines.next_line()).await.context("it says nothing")??;
    ensure!(line.as_deref() == Some("heard this"), "{line:?}");
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let code = ends(cluster, &mut child, "debug").await?;
    ensure!(code == Some(0), "debug: {code:?}");
    Ok(())
}

async fn python(cluster: &Cluster) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/streams.py");
    let mut command = Command::new(clients::tool("python/bin/python")?);
    let told = clients::run(cluster, command.arg(script).arg(cluster.kubeconfig())).await?;
    ensure!(told == "ok\n", "{told}");
    Ok(())
}

async fn refusals(cluster: &Cluster) -> Result<()> {
    for (args, want) in [
        (&["exec", "box", "-c", "nobody", "--", "true"][..], "container nobody is not valid for pod box"),
        (&["exec", "nobody", "--", "true"], "pods \"nobody\" not found"),
    ] {
        let why = cluster.kubectl_fails(args).await?;
        ensure!(why.contains(want), "{why}");
    }
    Ok(())
}

/// The descriptors that the cluster's process has.
fn descriptors(cluster: &Cluster) -> Result<usize> {
    let pid = cluster.pid().context("the process runs")?;
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

const EXEC: [&str; 6] = ["exec", "box", "--", "sh", "-c", "echo begun; sleep 9000"];

async fn clients_vanish(cluster: &Cluster, protocol: Protocol) -> Result<()> {
    let before = descriptors(cluster)?;
    let mut exec = begun(cluster, kubectl(cluster, protocol, &EXEC)).await?;
    let (mut forwarding, port) = forward(cluster, protocol, "web", 80).await?;
    // Held open: a connection within a stream within a connection.
    let mut io = TcpStream::connect(("127.0.0.1", port)).await?;
    io.write_all(b"GET / HTTP/1.1\r\n").await?;
    let during = descriptors(cluster)?;
    ensure!(during > before, "{during} descriptors with streams, {before} without");
    exec.kill().await?;
    forwarding.kill().await?;
    cluster
        .eventually("nothing is left of the streams", || async {
            let after = descriptors(cluster)?;
            // Connections at rest come and go by a few.
            ensure!(after <= before + 2, "{before} descriptors became {after}");
            Ok(())
        })
        .await
}

async fn containers_die(cluster: &Cluster, protocol: Protocol, image: &str) -> Result<()> {
    let name = format!("dies-{}", if protocol == Protocol::Spdy { "spdy" } else { "websocket" });
    cluster.apply(&manifests::script(&name, image, "echo begun; sleep 9000")).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=60s"]).await?;
    let mut exec =
        begun(cluster, kubectl(cluster, protocol, &["exec", &name, "--", "sh", "-c", "echo begun; sleep 9000"]))
            .await?;
    let mut attached = kubectl(cluster, protocol, &["attach", &name]).spawn()?;
    let mut log = begun(cluster, kubectl(cluster, protocol, &["logs", "-f", &name])).await?;
    cluster.kubectl(&["delete", "pod", &name, "--grace-period=1", "--wait=false"]).await?;
    let code = ends(cluster, &mut exec, "exec").await?;
    ensure!(code == Some(137), "exec: {code:?}");
    ends(cluster, &mut attached, "attach").await?;
    ensure!(ends(cluster, &mut log, "logs").await? == Some(0), "logs -f");
    Ok(())
}

/// The API server and the kubelet are one process here: both are gone at once and come back.
async fn servers_are_killed(cluster: &mut Cluster, protocol: Protocol) -> Result<()> {
    let mut exec = begun(cluster, kubectl(cluster, protocol, &EXEC)).await?;
    let (mut forwarding, _) = forward(cluster, protocol, "web", 80).await?;
    cluster.kill().await?;
    let code = ends(cluster, &mut exec, "exec").await?;
    // A kubectl that speaks SPDY takes a connection that ends for a command that ended well.
    let told = protocol == Protocol::Spdy || code != Some(0);
    ensure!(told, "exec whose servers were killed ended with {code:?}");
    ends(cluster, &mut forwarding, "port-forward").await?;
    cluster.up(&[]).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/box", "--timeout=60s"]).await?;
    exit_codes(cluster, protocol).await
}
