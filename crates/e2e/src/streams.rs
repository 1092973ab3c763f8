//! kubectl's streams, held open: how it speaks, what it says first, and that it ends.

use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use stdx::ClockExt;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::cluster::{Cluster, PATIENCE};

/// How kubectl speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    WebSocket,
    Spdy,
}

pub const PROTOCOLS: [Protocol; 2] = [Protocol::WebSocket, Protocol::Spdy];

/// A kubectl that speaks so, with nothing to read.
pub fn kubectl(cluster: &Cluster, protocol: Protocol, args: &[&str]) -> Command {
    let mut command = cluster.kubectl_command(args);
    let websockets = if protocol == Protocol::WebSocket { "true" } else { "false" };
    command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets);
    command.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The first line of what a command says; what more it says is read to the end.
async fn first_line(cluster: &Cluster, child: &mut Child) -> Result<String> {
    let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
    let line = cluster.clock.timeout(PATIENCE, lines.next_line()).await;
    let line = line.with_context(|| format!("it says nothing\n{}", cluster.log_tail()))??.context("it ended")?;
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(line)
}

/// Starts a command whose first line is `begun`; gives it once it has said so.
pub async fn begun(cluster: &Cluster, mut command: Command) -> Result<Child> {
    let shown = format!("{:?}", command.as_std());
    let mut child = command.spawn()?;
    let line = first_line(cluster, &mut child).await.with_context(|| shown.clone())?;
    ensure!(line == "begun", "{shown}: {line:?}");
    Ok(child)
}

/// `kubectl port-forward` to a port of a pod; gives the port on this side.
pub async fn forward(cluster: &Cluster, protocol: Protocol, pod: &str, port: u16) -> Result<(Child, u16)> {
    let args = ["port-forward", &format!("pod/{pod}"), &format!(":{port}")];
    let mut child = kubectl(cluster, protocol, &args).spawn()?;
    let line = first_line(cluster, &mut child).await.context("port-forward")?;
    let local = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    Ok((child, local.with_context(|| format!("no port in {line:?}"))?))
}

/// The code of a child that must end by itself.
pub async fn ends(cluster: &Cluster, child: &mut Child, what: &str) -> Result<Option<i32>> {
    let ended = cluster.clock.timeout(PATIENCE, child.wait()).await;
    let Ok(ended) = ended else { bail!("{what} does not end\n{}", cluster.log_tail()) };
    Ok(ended?.code())
}
