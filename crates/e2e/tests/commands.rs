//! The `pintle` command where it refuses, stops, saves and removes: what it says is what it did; and what it says
//! while it runs.
//! No pods here; these need root alone.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use e2e::cluster::Cluster;
use e2e::collector::Collector;
use e2e::runtime;
use serde_json::Value;
use tokio::process::Command;

/// Leaves the API server alone.
const API_ONLY: &str = "--disable=kube-controller-manager,kube-scheduler,kubelet,kube-proxy,dns";

/// The names below a folder, however deep, and what is in its files.
fn tree(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            out.push((path.display().to_string(), Vec::new()));
            out.extend(tree(&path)?);
        } else {
            out.push((path.display().to_string(), std::fs::read(&path)?));
        }
    }
    out.sort();
    Ok(out)
}

/// Runs `up`, which must refuse with these words and change nothing below the cluster's folder.
async fn refuses(cluster: &Cluster, mut command: Command, words: &[&str]) -> Result<()> {
    let before = tree(cluster.root())?;
    let output = command.stdin(Stdio::null()).output().await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "it did not refuse: {said}");
    for word in words {
        ensure!(said.contains(word), "{word:?} is not said: {said}");
    }
    ensure!(said.contains("nothing was changed"), "{said}");
    let after = tree(cluster.root())?;
    ensure!(after == before, "something was changed: {before:?} became {after:?}");
    Ok(())
}

fn up(cluster: &Cluster, flags: &[&str]) -> Command {
    let mut command = cluster.pintle_command(&["up", "--no-user-kubeconfig"]);
    command.args(cluster.roots()).args(flags);
    command
}

/// The same through another program that runs it.
fn through(mut outer: Command, inner: &Command) -> Command {
    outer.arg(inner.as_std().get_program()).args(inner.as_std().get_args());
    outer
}

async fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output().await?;
    ensure!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[tokio::test]
async fn up_says_what_is_missing_before_it_changes_anything() -> Result<()> {
    let cluster = Cluster::prepare()?;

    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    // Where nobody can read it: the tree the tests are built in may be its owner's alone.
    let copy = tempfile::Builder::new().prefix("pintle-nobody-").tempdir()?;
    let program = copy.path().join("pintle");
    let inner = up(&cluster, &[]);
    std::fs::copy(inner.as_std().get_program(), &program)?;
    let open = |path: &Path| std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755));
    open(copy.path()).and_then(|()| open(&program))?;
    nobody.arg(&program).args(inner.as_std().get_args());
    refuses(&cluster, nobody, &["needs root", "run it with sudo"]).await?;

    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port().to_string();
    let busy = up(&cluster, &["--bind-address=127.0.0.1", "--secure-port", &port]);
    let said = format!("127.0.0.1:{port} is in use; the API server needs it");
    refuses(&cluster, busy, &[&said, "choose another port"]).await?;

    // In a mount namespace of its own, where the program is no file.
    let containerd = ["/usr/bin/containerd", "/usr/local/bin/containerd"].into_iter().find(|p| Path::new(p).is_file());
    let hide = format!("mount --bind /dev/null {} && exec \"$@\"", containerd.context("containerd is installed")?);
    let mut hidden = Command::new("unshare");
    hidden.args(["--mount", "sh", "-c", &hide, "sh"]);
    let hidden = through(hidden, &up(&cluster, &[]));
    refuses(&cluster, hidden, &["containerd is not installed", "apt-get install containerd"]).await?;

    let socket = copy.path().join("theirs.sock");
    let endpoint = format!("--container-runtime-endpoint=unix://{}", socket.display());
    let absent = up(&cluster, &["--disable=kube-proxy", &endpoint]);
    let said = format!("there is no socket {}", socket.display());
    refuses(&cluster, absent, &[&said, "systemctl start containerd"]).await?;
    // Whoever listened there is gone, and the socket is not.
    drop(std::os::unix::net::UnixListener::bind(&socket)?);
    let said = format!("nobody listens on {}", socket.display());
    let mut alone = cluster.pintle_command(&["kubelet", "--kubeconfig=/nonexistent", &endpoint]);
    alone.arg("--root-dir").arg(cluster.root().join("kubelet"));
    refuses(&cluster, alone, &[&said, "systemctl start containerd"]).await?;

    // Somebody else's pod, whose address one of ours would get.
    let link = ["link", "add", "pintle-theirs", "type", "veth", "peer", "name", "pintle-peer"];
    let steps: [&[&str]; 3] =
        [&link, &["link", "set", "pintle-theirs", "up"], &["route", "add", "10.244.0.77", "dev", "pintle-theirs"]];
    for step in steps {
        ip(step).await?;
    }
    let said = "the link pintle-theirs has 10.244.0.77";
    let refused = refuses(&cluster, up(&cluster, &[]), &[said, "ip link delete pintle-theirs"]).await;
    ip(&["link", "delete", "pintle-theirs"]).await?;
    refused?;

    std::fs::create_dir_all(cluster.root().join("state/store"))?;
    std::fs::write(cluster.root().join("state/store/format"), "pintle store, format 99\n")?;
    let newer = up(&cluster, &[API_ONLY]);
    refuses(&cluster, newer, &["the store has format 99", "start the pintle that wrote it"]).await
}

#[tokio::test]
async fn down_stops_a_cluster_that_is_still_starting() -> Result<()> {
    let cluster = Cluster::prepare()?;
    // A Node without a network for pods does not become Ready: this start goes on until it is stopped.
    let theirs = tempfile::Builder::new().prefix("pintle-runtime-").tempdir()?;
    let endpoint = runtime::start_without_network(theirs.path(), &cluster.clock).await?;
    let result = stops_a_start(&cluster, &endpoint).await;
    runtime::kill(theirs.path()).await?;
    result
}

async fn stops_a_start(cluster: &Cluster, endpoint: &str) -> Result<()> {
    let flags = ["--disable=kube-proxy", "--container-runtime-endpoint", endpoint];
    let starting = up(cluster, &flags).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pid = cluster.root().join("run/pintle.pid");
    let named = || async { host::process::ProcessId::load_alive(&pid).context("nothing runs yet") };
    let process = cluster.eventually("the process is named", named).await?;

    let refused = up(cluster, &flags).output().await?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(said.contains("a cluster runs already") && said.contains("pintle down --state-dir="), "{said}");

    let down = cluster.pintle(&["down"]).await?;
    ensure!(down.status.success() && !process.is_alive(), "{down:?}");
    ensure!(String::from_utf8_lossy(&down.stdout).contains("pintle stopped"), "{down:?}");
    let started = starting.wait_with_output().await?;
    let said = String::from_utf8_lossy(&started.stderr).into_owned();
    ensure!(!started.status.success(), "{started:?}");
    ensure!(said.contains("ready"), "{said}");
    let again = cluster.pintle(&["down"]).await?;
    ensure!(String::from_utf8_lossy(&again.stdout).contains("pintle is not running"), "{again:?}");
    Ok(())
}

#[tokio::test]
async fn reset_removes_what_is_ours_from_folders_that_were_there_before() -> Result<()> {
    let mut cluster = Cluster::prepare()?;
    let root = cluster.root().to_owned();
    for folder in ["state", "config", "config/certs.d"] {
        std::fs::create_dir(root.join(folder))?;
    }
    std::fs::write(root.join("config/certs.d/mine"), "mine")?;
    cluster.up(&[API_ONLY]).await?;
    // What somebody else puts there later is not ours either.
    std::fs::write(root.join("run/mine"), "mine")?;
    cluster.stop().await?;
    let reset = cluster.pintle(&["reset"]).await?;
    let said = String::from_utf8_lossy(&reset.stdout).into_owned();
    ensure!(reset.status.success(), "{said}{}", String::from_utf8_lossy(&reset.stderr));
    for kept in ["config/certs.d", "run/mine"] {
        ensure!(said.contains(&root.join(kept).display().to_string()), "{kept} is not named: {said}");
    }
    ensure!(!root.join("state").exists(), "the state folder held nothing of others and is still there");
    let left: Vec<String> = tree(&root)?.into_iter().map(|(name, _)| name).collect();
    let expected = ["config", "config/certs.d", "config/certs.d/mine", "run", "run/mine"];
    let ours = |name: &&String| name.contains("/config") || name.contains("/run");
    let left: Vec<&String> = left.iter().filter(ours).collect();
    let expected: Vec<String> = expected.iter().map(|name| root.join(name).display().to_string()).collect();
    ensure!(left == expected.iter().collect::<Vec<_>>(), "{left:?}");
    Ok(())
}

async fn resource_version(cluster: &Cluster, name: &str) -> Result<u64> {
    let object = cluster.json(&["get", "configmap", name]).await?;
    Ok(object.pointer("/metadata/resourceVersion").and_then(Value::as_str).context("a version")?.parse()?)
}

#[tokio::test]
async fn a_snapshot_of_a_running_cluster_is_gone_back_to() -> Result<()> {
    let mut cluster = Cluster::prepare()?;
    cluster.up(&[API_ONLY]).await?;
    cluster.kubectl(&["create", "configmap", "before", "--from-literal=a=1"]).await?;
    let file = cluster.root().join("saved").display().to_string();
    let run = async |cluster: &Cluster, args: &[&str]| -> Result<(bool, String)> {
        let output = cluster.pintle(args).await?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
    };
    let (done, said) = run(&cluster, &["snapshot", "save", &file]).await?;
    ensure!(done && said.contains("saved"), "{said}");
    let (done, said) = run(&cluster, &["snapshot", "save", &file]).await?;
    ensure!(!done && said.contains("exists already"), "a snapshot was overwritten: {said}");

    cluster.kubectl(&["create", "configmap", "after"]).await?;
    cluster.kubectl(&["patch", "configmap", "before", "-p", r#"{"data":{"a":"2"}}"#]).await?;
    let last = resource_version(&cluster, "before").await?;
    let (done, said) = run(&cluster, &["snapshot", "inspect", &file]).await?;
    ensure!(done && said.contains("objects at revision"), "{said}");
    let (done, said) = run(&cluster, &["snapshot", "restore", &file]).await?;
    ensure!(!done && said.contains("the cluster runs") && said.contains("pintle down"), "{said}");

    cluster.stop().await?;
    let (done, said) = run(&cluster, &["why", "pod/any"]).await?;
    ensure!(!done && said.contains("the cluster does not run; pintle up --state-dir="), "{said}");
    let stopped = cluster.root().join("stopped").display().to_string();
    let (done, said) = run(&cluster, &["snapshot", "save", &stopped]).await?;
    ensure!(done, "a stopped cluster is not saved: {said}");
    let (done, said) = run(&cluster, &["snapshot", "restore", &file]).await?;
    ensure!(done && said.contains("the state before is kept in"), "{said}");

    cluster.up(&[API_ONLY]).await?;
    let data = cluster.kubectl(&["get", "configmap", "before", "-o", "jsonpath={.data.a}"]).await?;
    ensure!(data == "1", "not as saved: {data}");
    cluster.kubectl_fails(&["get", "configmap", "after"]).await?;
    cluster.kubectl(&["annotate", "configmap", "before", "touched=yes"]).await?;
    let now = resource_version(&cluster, "before").await?;
    ensure!(now > last + storage::snapshot::JUMP / 2, "the revision went from {last} to {now}");
    Ok(())
}

/// A request of the administrator's with curl, which can say what kubectl cannot; the body of the answer.
async fn curl(cluster: &Cluster, port: &str, arguments: &[&str], path: &str) -> Result<String> {
    let config = cluster.json(&["config", "view", "--raw", "-o", "json"]).await?;
    let file = |name: &str, data: &Value| -> Result<String> {
        let path = cluster.root().join(name);
        let decoded = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, data.as_str().unwrap_or_default())?;
        std::fs::write(&path, decoded)?;
        Ok(path.display().to_string())
    };
    let user = &config["users"][0]["user"];
    let (cert, key) =
        (file("curl.crt", &user["client-certificate-data"])?, file("curl.key", &user["client-key-data"])?);
    let ca = file("curl-ca.crt", &config["clusters"][0]["cluster"]["certificate-authority-data"])?;
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "30", "--cert", &cert, "--key", &key, "--cacert", &ca]);
    let output = command.args(arguments).arg(format!("https://127.0.0.1:{port}{path}")).output().await?;
    ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_found_in_the_log_and_in_its_trace() -> Result<()> {
    let collector = Collector::start().await?;
    let mut cluster = Cluster::prepare()?;
    let config = cluster.root().join("tracing.yaml");
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";
    std::fs::write(&config, format!("{head}endpoint: {}\nsamplingRatePerMillion: 0\n", collector.address))?;
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port().to_string();
    let config = config.display().to_string();
    let flags = [API_ONLY, "--bind-address=127.0.0.1", "--secure-port", &port, "--logging-format=json"];
    cluster.up(&[&flags[..], &["--tracing-config-file", &config]].concat()).await?;
    let log = || std::fs::read_to_string(cluster.root().join("pintle.log")).unwrap_or_default();
    ensure!(!log().contains("\"msg\":\"HTTP\""), "nobody asked for a line of every request");
    // From here on somebody does.
    let put = curl(&cluster, &port, &["--request", "PUT", "--data", "4"], "/debug/flags/v").await?;
    ensure!(put == "successfully set klog.logging.verbosity to 4\n", "{put}");

    let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let body = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "traced"}}"#;
    let (trace, id) = (format!("traceparent: {caller}"), "audit-id: 11111111-2222-4333-8444-555555555555");
    let post = ["--header", &trace, "--header", id, "--header", "content-type: application/json", "--data", body];
    let path = "/api/v1/namespaces/default/configmaps";
    let created: Value = serde_json::from_str(&curl(&cluster, &port, &post, path).await?)?;
    ensure!(created["metadata"]["name"] == "traced", "{created:#}");
    let lines: Vec<Value> = log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let line = lines.iter().find(|line| line["audit-ID"] == "11111111-2222-4333-8444-555555555555");
    let line = line.with_context(|| format!("no line of the request in\n{}", log()))?;
    for (name, want) in [
        ("msg", "HTTP"),
        ("method", "POST"),
        ("verb", "create"),
        ("resource", "configmaps"),
        ("namespace", "default"),
        ("URI", path),
        ("traceID", "0af7651916cd43dd8448eb211c80319c"),
    ] {
        ensure!(line[name] == *want, "{name} of {line}");
    }
    ensure!(line["resp"] == 201 && line["v"] == 4 && line["ts"].as_f64().is_some_and(|ts| ts > 1.7e12), "{line}");

    let spans = cluster
        .eventually("the parts of the trace arrive", || async {
            let spans = collector.spans();
            ensure!(spans.iter().any(|span| span.name == "Create store"), "{spans:#?}");
            Ok(spans)
        })
        .await?;
    let find =
        |name: &str| spans.iter().find(|span| span.name == name).with_context(|| format!("no {name}: {spans:#?}"));
    let request = find("POST /api/v1/namespaces/{:namespace}/configmaps")?;
    let trace = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes();
    ensure!(request.parent_span_id == 0xb7ad_6b71_6920_3331_u64.to_be_bytes(), "{request:#?}");
    for name in ["Admit", "Validate", "Create store"] {
        let part = find(name)?;
        ensure!(part.trace_id == trace && part.parent_span_id == request.span_id, "{part:#?}");
    }
    // Nobody asked for others: one in a million of none.
    ensure!(spans.iter().all(|span| span.trace_id == trace), "{spans:#?}");
    let page = curl(&cluster, &port, &[], "/metrics").await?;
    ensure!(page.contains("pintle_trace_spans_total{result=\"dropped\"} 0"), "{page}");
    cluster.stop().await
}
