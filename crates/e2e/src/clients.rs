//! An API server process for programs other people wrote, and how those programs are run.
//!
//! No kubelet, no kernel rules: nothing of the host is touched, so that such servers run beside each
//! other and beside clusters.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use stdx::ClockExt;
use tokio::process::Command;

use crate::cluster::Cluster;

/// How long one program may take.
pub const LIMIT: Duration = Duration::from_secs(180);

/// `pintle up` with the API server and the controllers, on a free port of 127.0.0.1.
pub async fn server() -> Result<Cluster> {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port().to_string();
    let mut cluster = Cluster::prepare_server()?;
    let parts = "--disable=kubelet,kube-proxy,kube-scheduler,dns";
    cluster.up(&[parts, "--bind-address=127.0.0.1", "--secure-port", &port]).await?;
    Ok(cluster)
}

/// A file that `./dev tools` made.
pub fn tool(name: &str) -> Result<PathBuf> {
    // The name itself is not resolved: Python finds its packages by the link it was started through.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?.join("target/tools").join(name);
    if path.exists() {
        return Ok(path);
    }
    bail!("{} is missing: run ./dev tools", path.display())
}

/// Runs a program to its end and gives what it printed; fails with both its outputs and the server's
/// log when it fails, or takes longer than [`LIMIT`].
pub async fn run(cluster: &Cluster, command: &mut Command) -> Result<String> {
    command.stdin(Stdio::null()).kill_on_drop(true).env("HOME", cluster.root());
    let shown = format!("{:?}", command.as_std());
    let ended = cluster.clock.timeout(LIMIT, command.output()).await;
    let output = ended.with_context(|| format!("{shown}: still runs\n{}", cluster.log_tail()))??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        bail!("{shown}: {}\n{out}\n{err}\nthe server:\n{}", output.status, cluster.log_tail());
    }
    Ok(text(&output.stdout))
}
