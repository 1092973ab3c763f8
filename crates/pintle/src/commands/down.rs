//! `pintle down`: ends the cluster process. Pods keep running unless `--pods` says otherwise.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use host::containerd;
use host::layout::Layout;
use host::process::ProcessId;
use rustix::process::Signal;
use stdx::{ClockExt, SharedClock};

use crate::roots::Roots;

/// Stop the cluster.
#[derive(Args, Debug)]
pub struct Down {
    #[command(flatten)]
    pub roots: Roots,
    /// Stop and remove the pods too, then the container runtime.
    #[arg(long)]
    pub pods: bool,
}

/// Runs the command.
pub async fn run(args: Down, clock: SharedClock) -> Result<()> {
    let layout = args.roots.layout();
    match ProcessId::load_alive(&layout.pid()) {
        Some(process) => {
            stop_process(process, &clock).await?;
            // A process that ended at once left it.
            let _ = std::fs::remove_file(layout.pid());
            println!("pintle stopped; {}", if args.pods { "stopping pods" } else { "pods keep running" });
        }
        None => println!("pintle is not running"),
    }
    if args.pods {
        let stopped = stop_pods(&layout, &clock).await?;
        println!("{stopped} pods stopped");
    }
    Ok(())
}

/// Ends a process in order; after a minute, at once.
async fn stop_process(process: ProcessId, clock: &SharedClock) -> Result<()> {
    if !process.signal(Signal::TERM) && process.is_alive() {
        bail!("pid {} cannot be told to end; run this with sudo", process.pid);
    }
    let deadline = clock.now() + Duration::from_secs(60);
    while process.is_alive() {
        if clock.now() >= deadline {
            process.signal(Signal::KILL);
            bail!("pid {} did not end within 60 s and was killed", process.pid);
        }
        clock.sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Stops and removes every pod of our runtime, then the runtime. Returns how many there were.
pub async fn stop_pods(layout: &Layout, clock: &SharedClock) -> Result<usize> {
    let socket = layout.containerd_socket();
    let Some(runtime) = containerd::with_pods(layout, clock).await.context("the container runtime")? else {
        cri::shims::end_all(&socket);
        return Ok(0);
    };
    let endpoint = format!("unix://{}", socket.display());
    let client = cri::Client::new(&endpoint, clock.clone()).context("the container runtime's socket")?;
    // A runtime started just now listens before it answers.
    let deadline = clock.now() + Duration::from_secs(30);
    let sandboxes = loop {
        match client.list_pod_sandbox(None).await {
            Ok(sandboxes) => break sandboxes,
            Err(error) if clock.now() >= deadline => return Err(error).context("listing pods"),
            Err(_) => clock.sleep(Duration::from_millis(50)).await,
        }
    };
    let count = sandboxes.len();
    for sandbox in sandboxes {
        let name = sandbox.metadata.map(|m| format!("{}/{}", m.namespace, m.name)).unwrap_or_default();
        // A stop that a kubelet had asked for before it was killed may end meanwhile, and fails this one.
        let deadline = clock.now() + Duration::from_secs(10);
        while let Err(error) = end_pod(&client, &sandbox.id).await {
            if clock.now() >= deadline {
                return Err(error).with_context(|| format!("stopping pod {name}"));
            }
            clock.sleep(Duration::from_millis(200)).await;
        }
    }
    containerd::stop(runtime, clock).await?;
    // What it has forgotten itself nobody else will end.
    cri::shims::end_all(&socket);
    let _ = std::fs::remove_file(PathBuf::from(&socket));
    Ok(count)
}

/// Stops a pod and removes it. One that went on its way out while we were looking is gone.
async fn end_pod(client: &cri::Client, id: &str) -> Result<(), cri::Error> {
    match client.stop_pod_sandbox(id).await {
        Err(error) if error.is_not_found() => return Ok(()),
        stopped => stopped?,
    }
    client.remove_pod_sandbox(id).await
}
