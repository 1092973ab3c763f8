//! The `pintle` command where it refuses, stops, saves and removes: what it says is what it did.
//! No pods here; these need root alone.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use e2e::cluster::Cluster;
use e2e::runtime;
use serde_json::Value;
use tokio::process::Command;

/// Leaves the API server alone.
const API_ONLY: &str = "--disable=kube-controller-manager,kube-scheduler,kubelet,kube-proxy";

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
